/* run.c: the passes of a call, each in a workspace of its own, and what they wrote. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/call.h"
#include "runtime/base/status.h"

/* ---- passes ---- */

int call_keeps(const call_problem *p) {
  return (p->spec.keep || p->spec.tail > 0) && p->spec.grads && !p->loss;
}

flp_status call_make_saved(call_buffers *b, const call_problem *p, const flp_plan *plan) {
  size_t bytes = 0;
  FLP_TRY(flp_plan_saved(plan, p->n, UINT64_MAX, &bytes));
  enum { ALIGNMENT = 256 }; /* of flp_args.saved */
  bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT * (size_t)p->shards;
  return bytes ? call_make(b, CALL_SAVED, bytes) : FLP_OK;
}

flp_status call_layout(const call_buffers *b, const call_problem *p, const flp_plan *plan, flp_pass pass, int64_t n,
                       flp_layout *out) {
  int forward = pass == FLP_PASS_FORWARD, backward = pass == FLP_PASS_BACKWARD;
  *out = (flp_layout)FLP_LAYOUT_INIT;
  if (p->spec.listed && pass != FLP_PASS_COMBINE) return flp_plan_layout_listed(plan, pass, n, p->list_count, 0, out);
  if (!b->at[CALL_SAVED].buffer.data || !(forward || backward)) return flp_plan_layout(plan, pass, n, 0, out);
  flp_pass saved = forward ? FLP_PASS_FORWARD_SAVED : FLP_PASS_BACKWARD_SAVED;
  FLP_TRY(flp_plan_layout(plan, saved, n, UINT64_MAX, out));
  if (out->mode == FLP_MODE_DIRECTION || p->spec.tail > 0) return flp_plan_layout(plan, saved, n, 0, out);
  return forward ? flp_plan_layout(plan, pass, n, 0, out) : FLP_OK;
}

static flp_status run_pass(call_buffers *b, const call_problem *p, flp_plan *plan, flp_pass pass, int shard) {
  flp_layout layout;
  FLP_TRY(call_layout(b, p, plan, pass, p->n, &layout));
  FLP_TRY(call_make(b, CALL_WORKSPACE, (size_t)layout.bytes));
  flp_args args = call_args(b, p, pass, shard);
  FLP_TRY(call_execute(plan, &args));
  return cli_device_synchronise(b->device);
}

flp_status call_forward(call_buffers *b, const call_problem *p, flp_plan *plan) {
  if (p->loss) return run_pass(b, p, plan, FLP_PASS_STEP, 0);
  for (int shard = 0; shard < p->shards; shard++) FLP_TRY(run_pass(b, p, plan, FLP_PASS_FORWARD, shard));
  return p->shards > 1 ? run_pass(b, p, plan, FLP_PASS_COMBINE, 0) : FLP_OK;
}

flp_status call_backward(call_buffers *b, const call_problem *p, flp_plan *plan) {
  for (int shard = 0; shard < p->shards && p->spec.grads && !p->loss; shard++)
    FLP_TRY(run_pass(b, p, plan, FLP_PASS_BACKWARD, shard));
  return FLP_OK;
}

/* ---- results ---- */

flp_status call_count_bad(flp_plan *plan, CUstream stream, int64_t *bad_rows) {
  flp_status status = flp_plan_check(plan, stream);
  *bad_rows = status == FLP_ERROR_DATA ? strtoll(flp_error_detail(), NULL, 10) : 0; /* its message begins with it */
  return status == FLP_ERROR_DATA ? FLP_OK : status;
}

flp_status call_check_data(flp_plan *plan, CUstream stream, int *data_error) {
  int64_t bad_rows = 0;
  FLP_TRY(call_count_bad(plan, stream, &bad_rows));
  *data_error = bad_rows > 0;
  return FLP_OK;
}

/* What is written: its name, and the field of a result that holds it, up to CALL_PARTIAL. */
static const struct {
  const char *name;
  size_t field;
} outputs[CALL_SLOTS] = {[CALL_LOGPROB] = {"logprob", offsetof(call_result, logprob)},
                         [CALL_ENTROPY] = {"entropy", offsetof(call_result, entropy)},
                         [CALL_STATS] = {"stats", offsetof(call_result, stats)},
                         [CALL_GRAD_HIDDEN] = {"grad_hidden", offsetof(call_result, grad_hidden)},
                         [CALL_GRAD_WEIGHT] = {"grad_weight", offsetof(call_result, grad_weight)},
                         [CALL_GRAD_BIAS] = {"grad_bias", offsetof(call_result, grad_bias)},
                         [CALL_GRAD_LORA_A] = {"grad_lora_a", offsetof(call_result, grad_lora_a)},
                         [CALL_GRAD_LORA_B] = {"grad_lora_b", offsetof(call_result, grad_lora_b)},
                         [CALL_LOSS] = {"loss", offsetof(call_result, loss)},
                         [CALL_METRICS] = {"metrics", offsetof(call_result, metrics)},
                         [CALL_TAIL_REPORT] = {"tail_report", offsetof(call_result, tail_report)},
                         [CALL_TOP_IDS] = {"top_ids", offsetof(call_result, top_ids)},
                         [CALL_TOP_LOGPROB] = {"top_logprob", offsetof(call_result, top_logprob)},
                         [CALL_TOP_REST] = {"top_rest", offsetof(call_result, top_rest)},
                         [CALL_RANK] = {"rank", offsetof(call_result, rank)},
                         [CALL_PARTIAL] = {"partial", 0},
                         [CALL_PARTIAL_TARGETS] = {"partial_targets", 0},
                         [CALL_SAVED] = {"saved", 0},
                         [CALL_WORKSPACE] = {"workspace", 0}};

/* Elements between the rows of a gradient are as they were; what a sum starts from has its own. */
static int is_gap_written(const call_problem *p, call_slot slot, const unsigned char *matrix) {
  call_array array = call_array_of(p, slot);
  size_t width = array.stride * array.element, used = (size_t)p->spec.hidden * array.element;
  int is_whole = slot == CALL_GRAD_HIDDEN || slot == CALL_GRAD_LORA_A;
  if (!is_whole && (slot != CALL_GRAD_WEIGHT || p->weight_base)) return 0;
  for (size_t row = 0; row < array.rows; row++)
    for (size_t i = used; i < width; i++)
      if (matrix[row * width + i] != CALL_POISON) return 1;
  return 0;
}

const void *call_result_at(const call_result *result, call_slot slot) {
  const void *array;
  memcpy(&array, (const char *)result + outputs[slot].field, sizeof array);
  return array;
}

flp_status call_take(call_buffers *b, const call_problem *p, call_slot slot, call_result *result) {
  void *taken = NULL;
  int overrun = 0;
  if (call_result_at(result, slot) || !call_array_of(p, slot).wanted) return FLP_OK;
  flp_status status = call_buffer_take(&b->at[slot], call_bytes(p, slot), &taken, &overrun);
  memcpy((char *)result + outputs[slot].field, &taken, sizeof taken);
  FLP_TRY(status);
  if (overrun || (taken && b->guarded && is_gap_written(p, slot, taken))) result->overrun = outputs[slot].name;
  return FLP_OK;
}

flp_status call_download(call_buffers *b, const call_problem *p, call_result *result) {
  for (int slot = CALL_LOGPROB; slot < CALL_PARTIAL; slot++) FLP_TRY(call_take(b, p, (call_slot)slot, result));
  for (int slot = CALL_PARTIAL; slot < CALL_SLOTS; slot++) {
    int overrun = 0;
    FLP_TRY(call_buffer_guard(&b->at[slot], &overrun));
    if (overrun) result->overrun = outputs[slot].name;
  }
  return FLP_OK;
}

void call_result_clear(call_result *result) {
  void *const arrays[] = {result->logprob,     result->entropy,   result->stats,       result->grad_hidden,
                          result->grad_weight, result->grad_bias, result->loss,        result->metrics,
                          result->tail_report, result->top_ids,   result->top_logprob, result->top_rest,
                          result->rank,        result->grad_lora_a, result->grad_lora_b};
  for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) free(arrays[i]);
  *result = (call_result){0};
}

/* run.c: the passes of a call, each in a workspace of its own, and what they wrote. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/call.h"
#include "runtime/base/status.h"
#include "runtime/kernel/kernel.h"

/* ---- passes ---- */

int call_keeps(const call_problem *p) {
  return (p->spec.keep || flp_kernel_spec_emits(&p->spec)) && p->spec.grads && !p->loss;
}

flp_status call_make_saved(call_buffers *b, const call_problem *p, const flp_plan *plan) {
  size_t bytes = 0;
  FLP_TRY(flp_plan_saved(plan, p->n, UINT64_MAX, &bytes));
  enum { ALIGNMENT = 256 }; /* of flp_args.saved */
  bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT * (size_t)p->shards;
  return bytes ? call_make(b, FLP_ARRAY_saved, bytes) : FLP_OK;
}

flp_status call_layout(const call_buffers *b, const call_problem *p, const flp_plan *plan, flp_pass pass, int64_t n,
                       flp_layout *out) {
  int forward = pass == FLP_PASS_FORWARD, backward = pass == FLP_PASS_BACKWARD;
  *out = (flp_layout)FLP_LAYOUT_INIT;
  if (p->spec.listed && pass != FLP_PASS_COMBINE) return flp_plan_layout_listed(plan, pass, n, p->list_count, 0, out);
  if (!b->at[FLP_ARRAY_saved].buffer.data || !(forward || backward)) return flp_plan_layout(plan, pass, n, 0, out);
  flp_pass saved = forward ? FLP_PASS_FORWARD_SAVED : FLP_PASS_BACKWARD_SAVED;
  FLP_TRY(flp_plan_layout(plan, saved, n, UINT64_MAX, out));
  int is_small = out->mode == FLP_MODE_DIRECTION || flp_kernel_spec_emits(&p->spec);
  if (is_small) return flp_plan_layout(plan, saved, n, 0, out);
  return forward ? flp_plan_layout(plan, pass, n, 0, out) : FLP_OK;
}

static flp_status run_pass(call_buffers *b, const call_problem *p, flp_plan *plan, flp_pass pass, int shard) {
  flp_layout layout;
  FLP_TRY(call_layout(b, p, plan, pass, p->n, &layout));
  FLP_TRY(call_make(b, FLP_ARRAY_workspace, (size_t)layout.bytes));
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

static const size_t places[FLP_ARRAYS] = {
#define NONE(type, field, ...)
#define PLACE(type, field, ...) [FLP_ARRAY_##field] = offsetof(call_result, field),
    FLP_ARGS_FIELDS(NONE, PLACE, PLACE, NONE)
#undef PLACE
#undef NONE
};

/* Elements between the rows of a matrix are as they were; what a sum starts from has its own. */
static int is_gap_written(const call_problem *p, flp_array_id id, const void *matrix) {
  call_array array = call_array_of(p, id);
  int is_of_columns = FLP_ARRAY[id].columns == FLP_SIZE_V;
  size_t used = (size_t)(is_of_columns ? p->shard_vocab : p->spec.hidden) * array.element;
  size_t width = array.stride * array.element;
  int has_gaps = FLP_ARRAY[id].stride_offset && (is_of_columns || FLP_ARRAY[id].columns == FLP_SIZE_D);
  if (!has_gaps || (id == FLP_ARRAY_grad_weight && p->weight_base)) return 0;
  return !call_has_gaps(matrix, array.rows, used, width);
}

const void *call_result_at(const call_result *result, flp_array_id id) {
  const void *array;
  memcpy(&array, (const char *)result + places[id], sizeof array);
  return array;
}

flp_status call_take(call_buffers *b, const call_problem *p, flp_array_id id, call_result *result) {
  void *taken = NULL;
  int overrun = 0;
  if (call_result_at(result, id) || !call_array_of(p, id).wanted) return FLP_OK;
  flp_status status = call_buffer_take(&b->at[id], call_bytes(p, id), &taken, &overrun);
  memcpy((char *)result + places[id], &taken, sizeof taken);
  FLP_TRY(status);
  if (overrun || (taken && b->guarded && is_gap_written(p, id, taken))) result->overrun = FLP_ARRAY[id].name;
  return FLP_OK;
}

/* What passes between shards, and space of the library, are nobody's results. */
static int is_result(flp_array_id id) {
  char forward = flp_array_letter(id, FLP_PASS_FORWARD);
  return flp_array_is_written(id) && forward != 'p' && forward != 'b';
}

flp_status call_download(call_buffers *b, const call_problem *p, call_result *result) {
  for (int id = 0; id < FLP_ARRAYS; id++) {
    int overrun = 0;
    if (is_result((flp_array_id)id)) FLP_TRY(call_take(b, p, (flp_array_id)id, result));
    if (FLP_ARRAY[id].way != FLP_WAY_IN) FLP_TRY(call_buffer_guard(&b->at[id], &overrun));
    if (overrun) result->overrun = FLP_ARRAY[id].name;
  }
  return FLP_OK;
}

void call_result_clear(call_result *result) {
  for (int id = 0; id < FLP_ARRAYS; id++)
    if (is_result((flp_array_id)id)) free((void *)call_result_at(result, (flp_array_id)id));
  *result = (call_result){0};
}

/* buffers.c: the arrays of a call in device or host memory: their sizes, guards and poison. */
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/call.h"
#include "runtime/base/operands.h"
#include "runtime/base/status.h"
#include "runtime/kernel/kernel.h"

/* ---- one buffer ---- */

flp_status call_buffer_make(cli_device *device, size_t bytes, size_t shift, int guarded, call_buffer *out) {
  call_buffer_clear(out);
  *out = (call_buffer){.shift = shift, .bytes = bytes, .guarded = guarded};
  FLP_TRY(cli_buffer_create(device, shift + bytes + (guarded ? CALL_GUARD : 0), &out->buffer));
  return guarded ? cli_buffer_fill(&out->buffer, CALL_POISON) : FLP_OK;
}

void *call_buffer_at(const call_buffer *b, size_t offset) {
  return b->buffer.data ? (char *)b->buffer.data + b->shift + offset : NULL;
}

static int is_poison(const unsigned char *bytes, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (bytes[i] != CALL_POISON) return 0;
  return 1;
}

flp_status call_buffer_guard(const call_buffer *b, int *overrun) {
  unsigned char edge[CALL_GUARD];
  if (!b->guarded || !b->buffer.data) return FLP_OK;
  FLP_TRY(cli_buffer_download(&b->buffer, b->shift + b->bytes, edge, CALL_GUARD));
  *overrun |= !is_poison(edge, CALL_GUARD);
  FLP_TRY(cli_buffer_download(&b->buffer, 0, edge, b->shift));
  *overrun |= !is_poison(edge, b->shift);
  return FLP_OK;
}

flp_status call_buffer_take(call_buffer *b, size_t bytes, void **out, int *overrun) {
  cli_buffer *buffer = &b->buffer;
  if (!buffer->data) return FLP_OK;
  if (!buffer->device->driver && !b->guarded) {
    *out = buffer->data;
    *buffer = (cli_buffer){0};
    return FLP_OK;
  }
  *out = malloc(bytes + 1);
  if (!*out) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the result");
  FLP_TRY(cli_buffer_download(buffer, b->shift, *out, bytes));
  return call_buffer_guard(b, overrun);
}

void call_buffer_clear(call_buffer *b) {
  if (!b->borrowed) cli_buffer_destroy(&b->buffer);
  *b = (call_buffer){0};
}

/* ---- arrays ---- */

call_array call_array_of(const call_problem *p, call_slot slot) {
  const flp_spec *spec = &p->spec;
  size_t n = (size_t)p->n, vocab = (size_t)(p->shards * p->shard_vocab), all_rows = (size_t)p->shards * n;
  size_t stride = (size_t)p->stride, metrics = p->loss ? p->loss->metric_count : 0,
         targets = (size_t)flp_spec_targets(spec), rank = (size_t)spec->lora_rank;
  const call_array rows = {1, n, 1, sizeof(float)}; /* as most arrays are */
  const call_array arrays[CALL_SLOTS] = {
      [CALL_HIDDEN] = {1, n, stride, flp_dtype_bytes(flp_hidden_dtype(spec))},
      [CALL_WEIGHT] = {1, vocab, stride, flp_dtype_bytes(flp_weight_dtype(spec))},
      [CALL_BIAS] = {1, vocab, 1, flp_dtype_bytes(flp_bias_dtype(spec))},
      [CALL_TARGET] = {1, n, targets, flp_dtype_bytes(spec->target_dtype)},
      [CALL_GRAD_LOGPROB] = {1, n, targets, sizeof(float)},
      [CALL_ROWS] = {1, (size_t)p->row_count, 1, sizeof(int32_t)},
      [CALL_LIST_OFFSETS] = {1, n + 1, 1, sizeof(int64_t)},
      [CALL_LORA_A] = {1, rank, stride, flp_dtype_bytes(spec->dtype)},
      [CALL_LORA_B] = {1, vocab, rank, flp_dtype_bytes(spec->dtype)},
      [CALL_TEACHER] = {1, n, targets, sizeof(float)},
      [CALL_LIST_IDS] = {1, (size_t)p->list_count, 1, flp_dtype_bytes(spec->target_dtype)},
      [CALL_LOGPROB] = {1, n, targets, sizeof(float)},
      [CALL_ENTROPY] = {spec->entropy != FLP_ENTROPY_NONE, n, 1, sizeof(float)},
      [CALL_STATS] = {p->gives_stats, n, 4, sizeof(float)},
      [CALL_GRAD_HIDDEN] = {(spec->grads & FLP_GRAD_HIDDEN) != 0, all_rows, stride,
                            flp_dtype_bytes(spec->grad_hidden_dtype)},
      [CALL_GRAD_WEIGHT] = {(spec->grads & FLP_GRAD_WEIGHT) != 0, vocab, stride,
                            flp_dtype_bytes(spec->grad_weight_dtype)},
      [CALL_GRAD_BIAS] = {(spec->grads & FLP_GRAD_BIAS) != 0, vocab, 1, flp_dtype_bytes(spec->grad_bias_dtype)},
      [CALL_GRAD_LORA_A] = {(spec->grads & FLP_GRAD_LORA_A) != 0, (size_t)p->shards * rank, stride,
                            flp_dtype_bytes(spec->grad_lora_dtype)},
      [CALL_GRAD_LORA_B] = {(spec->grads & FLP_GRAD_LORA_B) != 0, vocab, rank, flp_dtype_bytes(spec->grad_lora_dtype)},
      [CALL_LOSS] = {p->loss != NULL, n, 1, sizeof(float)},
      [CALL_METRICS] = {p->gives_metrics && metrics, metrics * n, 1, sizeof(float)},
      [CALL_TAIL_REPORT] = {spec->tail > 0 && spec->grads, (size_t)p->shards, 4, sizeof(float)},
      [CALL_TOP_IDS] = {spec->topk > 0, all_rows, (size_t)spec->topk, flp_dtype_bytes(spec->target_dtype)},
      [CALL_TOP_LOGPROB] = {spec->topk > 0, all_rows, (size_t)spec->topk, sizeof(float)},
      [CALL_TOP_REST] = {spec->topk > 0 && p->shards == 1, n, 1, sizeof(float)},
      [CALL_RANK] = {spec->rank && p->shards == 1, n, 1, sizeof(int32_t)},
      [CALL_PARTIAL] = {p->shards > 1, all_rows, 4, sizeof(float)},
      [CALL_PARTIAL_TARGETS] = {p->shards > 1 && targets > 1, all_rows, targets, sizeof(float)}};
  return slot < CALL_LOGPROB && !arrays[slot].wanted ? rows : arrays[slot];
}

size_t call_bytes(const call_problem *p, call_slot slot) {
  call_array array = call_array_of(p, slot);
  return array.rows * array.stride * array.element;
}

/* ---- all buffers ---- */

/* Other arrays are aligned as their elements want it. */
static int is_shifted(call_slot slot) {
  return slot == CALL_HIDDEN || slot == CALL_WEIGHT || slot == CALL_BIAS || slot == CALL_LORA_A ||
         slot == CALL_LORA_B || (slot >= CALL_GRAD_HIDDEN && slot <= CALL_GRAD_LORA_B);
}

flp_status call_make(call_buffers *b, call_slot slot, size_t bytes) {
  return call_buffer_make(b->device, bytes, is_shifted(slot) ? b->shift : 0, b->guarded, &b->at[slot]);
}

static flp_status upload(call_buffers *b, const call_problem *p, call_slot slot) {
  size_t bytes = call_bytes(p, slot);
  call_buffer *to = &b->at[slot];
  if (!b->guarded && !b->shift) {
    call_buffer_clear(to);
    to->bytes = bytes;
    return cli_buffer_create_from(b->device, p->operand[slot], bytes, call_array_of(p, slot).element, &to->buffer);
  }
  FLP_TRY(call_make(b, slot, bytes));
  return cli_buffer_upload(&to->buffer, to->shift, p->operand[slot], bytes);
}

flp_status call_upload(call_buffers *b, const call_problem *p) {
  for (int slot = 0; slot < CALL_OPERANDS; slot++)
    if (p->operand[slot]) FLP_TRY(upload(b, p, (call_slot)slot));
  return FLP_OK;
}

flp_status call_make_outputs(call_buffers *b, const call_problem *p) {
  for (int slot = CALL_LOGPROB; slot < CALL_OUTPUTS_END; slot++) {
    call_buffer *to = &b->at[slot];
    if (!call_array_of(p, (call_slot)slot).wanted) continue;
    FLP_TRY(to->borrowed ? cli_buffer_fill(&to->buffer, CALL_POISON)
                         : call_make(b, (call_slot)slot, call_bytes(p, (call_slot)slot)));
    if (slot == CALL_GRAD_WEIGHT && p->weight_base)
      FLP_TRY(cli_buffer_upload(&to->buffer, to->shift, p->weight_base, call_bytes(p, CALL_GRAD_WEIGHT)));
  }
  return FLP_OK;
}

void call_borrow(call_buffers *b, const call_buffers *from, call_slot slot) {
  b->at[slot] = from->at[slot];
  b->at[slot].borrowed = 1;
}

flp_status call_poison(const call_buffers *b, uint8_t value) {
  for (int slot = CALL_LOGPROB; slot < CALL_SLOTS; slot++)
    FLP_TRY(cli_buffer_fill_on(&b->at[slot].buffer, b->stream, value));
  return FLP_OK;
}

void call_clear(call_buffers *b) {
  for (int slot = 0; slot < CALL_SLOTS; slot++) call_buffer_clear(&b->at[slot]);
}

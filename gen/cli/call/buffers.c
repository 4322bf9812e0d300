/* buffers.c: the arrays of a call in device or host memory: their sizes, guards and poison. */
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/call.h"
#include "runtime/base/status.h"

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

int call_has_gaps(const void *matrix, size_t rows, size_t used, size_t width) {
  const unsigned char *bytes = matrix;
  for (size_t row = 0; row < rows; row++)
    if (!is_poison(bytes + row * width + used, width - used)) return 0;
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

int64_t call_size(const call_problem *p, flp_size size) {
  const flp_args counts = {.n = p->n, .row_count = p->row_count, .list_count = p->list_count};
  if (size == FLP_SIZE_V) return p->shards * p->shard_vocab;
  if (size == FLP_SIZE_D) return p->stride;
  if (size == FLP_SIZE_OFFSETS) return p->n + 1;
  if (size == FLP_SIZE_METRICS) return p->loss ? p->loss->metric_count : 0;
  return flp_size_of(size, &p->spec, &counts);
}

/* From one row to the next: of raw scores and their gradient whole 16 bytes, and what stands between rows of all other
 * matrices. */
static int64_t stride_of(const call_problem *p, const flp_array *array) {
  if (array->columns != FLP_SIZE_V) return call_size(p, array->columns);
  return (p->shard_vocab + 7) / 8 * 8 + p->stride - p->spec.hidden;
}

static int is_wanted(const call_problem *p, flp_array_id id) {
  char forward = flp_array_letter(id, FLP_PASS_FORWARD), combine = flp_array_letter(id, FLP_PASS_COMBINE);
  if (!flp_array_is_written(id) || !FLP_ARRAY[id].is_asked(&p->spec)) return FLP_ARRAY[id].way == FLP_WAY_IN;
  if (forward == 'p' || forward == 'b') return p->shards > 1;
  if (forward == 'w' && combine == 'x') return p->shards == 1;
  if (id == FLP_ARRAY_stats) return p->gives_stats;
  if (id == FLP_ARRAY_raw_scores) return !p->loss; /* a step stores none */
  if (id == FLP_ARRAY_metrics) return p->gives_metrics && call_size(p, FLP_SIZE_METRICS);
  return (id != FLP_ARRAY_loss || p->loss) && (id != FLP_ARRAY_tail_report || p->spec.grads);
}

call_array call_array_of(const call_problem *p, flp_array_id id) {
  const flp_array *array = &FLP_ARRAY[id];
  int64_t each = array->way == FLP_WAY_EACH ? p->shards : 1;
  return (call_array){.wanted = is_wanted(p, id),
                      .rows = (size_t)(each * call_size(p, array->rows)),
                      .stride = (size_t)stride_of(p, array),
                      .element = flp_dtype_bytes(flp_array_dtype(id, &p->spec))};
}

size_t call_bytes(const call_problem *p, flp_array_id id) {
  call_array array = call_array_of(p, id);
  return array.rows * array.stride * array.element;
}

/* ---- all buffers ---- */

/* Others are aligned as their elements want it. */
static size_t shift_of(const call_buffers *b, flp_array_id id) {
  const flp_array *array = &FLP_ARRAY[id];
  if (!array->stride_offset && array->rows != FLP_SIZE_V) return 0;
  int is_narrow = array->element == FLP_ELEMENT_FLOAT && b->shift > 0 && b->shift < sizeof(float);
  return is_narrow ? sizeof(float) : b->shift;
}

flp_status call_make(call_buffers *b, flp_array_id id, size_t bytes) {
  return call_buffer_make(b->device, bytes, shift_of(b, id), b->guarded, &b->at[id]);
}

static flp_status upload(call_buffers *b, const call_problem *p, flp_array_id id) {
  size_t bytes = call_bytes(p, id);
  call_buffer *to = &b->at[id];
  if (!b->guarded && !b->shift) {
    call_buffer_clear(to);
    to->bytes = bytes;
    return cli_buffer_create_from(b->device, p->operand[id], bytes, call_array_of(p, id).element, &to->buffer);
  }
  FLP_TRY(call_make(b, id, bytes));
  return cli_buffer_upload(&to->buffer, to->shift, p->operand[id], bytes);
}

flp_status call_upload(call_buffers *b, const call_problem *p) {
  for (int id = 0; id < FLP_ARRAYS; id++)
    if (p->operand[id]) FLP_TRY(upload(b, p, (flp_array_id)id));
  return FLP_OK;
}

flp_status call_make_outputs(call_buffers *b, const call_problem *p) {
  for (int id = 0; id < FLP_ARRAYS; id++) {
    call_buffer *to = &b->at[id];
    if (!flp_array_is_written((flp_array_id)id) || !call_array_of(p, (flp_array_id)id).wanted) continue;
    FLP_TRY(to->borrowed ? cli_buffer_fill(&to->buffer, CALL_POISON)
                         : call_make(b, (flp_array_id)id, call_bytes(p, (flp_array_id)id)));
    if (id == FLP_ARRAY_grad_weight && p->weight_base)
      FLP_TRY(cli_buffer_upload(&to->buffer, to->shift, p->weight_base, call_bytes(p, FLP_ARRAY_grad_weight)));
  }
  return FLP_OK;
}

void call_borrow(call_buffers *b, const call_buffers *from, flp_array_id id) {
  b->at[id] = from->at[id];
  b->at[id].borrowed = 1;
}

flp_status call_poison(const call_buffers *b, uint8_t value) {
  for (int id = 0; id < FLP_ARRAYS; id++)
    if (FLP_ARRAY[id].way != FLP_WAY_IN) FLP_TRY(cli_buffer_fill_on(&b->at[id].buffer, b->stream, value));
  return FLP_OK;
}

void call_clear(call_buffers *b) {
  for (int id = 0; id < FLP_ARRAYS; id++) call_buffer_clear(&b->at[id]);
}

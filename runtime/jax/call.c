/* call.c: a frame of XLA -> flp_spec and flp_args. Numbers and arrays are rows of runtime/base/fields.h and args.h. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/args.h"
#include "runtime/base/fields.h"
#include "runtime/jax/call.h"

enum { WORKSPACE_ALIGNMENT = 256 };

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

__attribute__((format(printf, 2, 3))) static flp_status refuse(jax_call *call, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(call->detail, sizeof call->detail, format, list);
  va_end(list);
  return FLP_ERROR_ARGUMENT;
}

static int is(xla_span text, const char *word) {
  return strlen(word) == text.bytes && memcmp(word, text.data, text.bytes) == 0;
}

/* ---- attributes: numbers by the names of their fields, and the names of buffers */

/* What an attribute of a field may be; 0 of a pointer, which no program holds. */
#define TYPE(type) \
  _Generic((type){0}, float : XLA_F32, const void * : 0, void * : 0, const double * : 0, default : XLA_S64)

static const struct number {
  const char *name;
  int type;
  size_t place, bytes; /* in jax_call */
} NUMBERS[] = {
#define NONE(type, field, ...)
#define FIELD(type, field, ...) {#field, TYPE(type), offsetof(jax_call, spec.field), sizeof(type)},
    FLP_SPEC_FIELDS(FIELD, NONE)
#undef FIELD
#define FIELD(type, field, ...) {#field, TYPE(type), offsetof(jax_call, args.field), sizeof(type)},
        FLP_ARGS_FIELDS(FIELD, NONE, NONE, NONE)
#undef FIELD
#undef NONE
};

/* A loss is its program's bytes, and its parameters. */
static flp_status read_array(jax_call *call, xla_span name, const xla_array *array) {
  if (is(name, "loss_parameters") && array->type == XLA_F64) {
    call->args.loss_parameters = array->values;
    call->numbers = (int64_t)array->count;
    return FLP_OK;
  }
  if (!is(name, "loss") || array->type != XLA_U8)
    return refuse(call, "array %.*s is none of this release of flp", (int)name.bytes, name.data);
  call->spec.loss = array->values;
  call->spec.loss_bytes = array->count;
  flp_loss_description stated = FLP_LOSS_DESCRIPTION_INIT;
  flp_status status = flp_loss_describe(array->values, array->count, &stated);
  if (status != FLP_OK) return snprintf(call->detail, sizeof call->detail, "%s", flp_error_detail()), status;
  call->metrics = stated.metric_count;
  call->parameters = stated.parameter_count;
  return FLP_OK;
}

/* What names the buffers. */
typedef struct buffer_names {
  xla_span operands, results;
} buffer_names;

static flp_status read_number(jax_call *call, xla_span name, int kind, const xla_scalar *scalar) {
  const struct number *number = NUMBERS;
  while (number < NUMBERS + COUNT(NUMBERS) && !(number->type && is(name, number->name))) number++;
  if (number == NUMBERS + COUNT(NUMBERS))
    return refuse(call, "attribute %.*s is none of this release of flp", (int)name.bytes, name.data);
  if (kind != XLA_ATTRIBUTE_SCALAR || scalar->type != number->type)
    return refuse(call, "attribute %s has another type than this release of flp reads", number->name);
  memcpy((char *)call + number->place, scalar->value, number->bytes);
  return FLP_OK;
}

static flp_status read_attributes(jax_call *call, const xla_attributes *given, buffer_names *names) {
  for (int64_t i = 0; i < given->count; i++) {
    xla_span *text = is(*given->names[i], "operands")  ? &names->operands
                     : is(*given->names[i], "results") ? &names->results
                                                       : NULL;
    if (text && given->kinds[i] == XLA_ATTRIBUTE_STRING) {
      *text = *(const xla_span *)given->values[i];
    } else {
      flp_status status = given->kinds[i] == XLA_ATTRIBUTE_ARRAY
                              ? read_array(call, *given->names[i], given->values[i])
                              : read_number(call, *given->names[i], given->kinds[i], given->values[i]);
      if (status != FLP_OK) return status;
    }
  }
  if (call->args.loss_parameters && call->numbers < call->parameters)
    return refuse(call, "loss_parameters has %lld numbers (accepted: %lld of this loss)", (long long)call->numbers,
                  (long long)call->parameters);
  if (call->args.pass >= FLP_PASS_FORWARD && call->args.pass <= FLP_PASS_STEP) return FLP_OK;
  return refuse(call, "pass is %d (accepted: FORWARD 1, COMBINE 2, BACKWARD 3, STEP 4)", (int)call->args.pass);
}

/* ---- buffers */

/* As XLA writes it: f32[13,64]. */
typedef struct shape {
  int type;
  int64_t rank;
  const int64_t *dims;
} shape;

/* XLA's type of a flp_dtype, of bytes at 0, and its word. */
static const struct type {
  int type;
  const char *word;
} TYPES[] = {
    [0] = {XLA_U8, "u8"},
    [FLP_DTYPE_BF16] = {XLA_BF16, "bf16"},
    [FLP_DTYPE_FP16] = {XLA_F16, "f16"},
    [FLP_DTYPE_FP32] = {XLA_F32, "f32"},
    [FLP_DTYPE_INT32] = {XLA_S32, "s32"},
    [FLP_DTYPE_INT64] = {XLA_S64, "s64"},
};

enum { SHAPE_BYTES = 96, NO_TYPE = -1 };

static const char *show(shape of, char out[SHAPE_BYTES]) {
  int used = snprintf(out, SHAPE_BYTES, "type %d[", of.type);
  for (int i = 0; i < COUNT(TYPES); i++)
    if (TYPES[i].type == of.type) used = snprintf(out, SHAPE_BYTES, "%s[", TYPES[i].word);
  for (int i = 0; i < of.rank && used < SHAPE_BYTES; i++)
    used += snprintf(out + used, (size_t)(SHAPE_BYTES - used), i ? ",%lld" : "%lld", (long long)of.dims[i]);
  if (used < SHAPE_BYTES) snprintf(out + used, (size_t)(SHAPE_BYTES - used), "]");
  return out;
}

static int type_of(unsigned dtype) {
  return dtype < COUNT(TYPES) ? TYPES[dtype].type : NO_TYPE;
}

/* The shape of an array; dimensions that are always 1 are none. */
static shape shape_of(flp_array_id id, const jax_call *call, int64_t dims[2]) {
  const flp_array *array = &FLP_ARRAY[id];
  const flp_size sizes[] = {array->rows, array->columns};
  shape want = {type_of(flp_array_dtype(id, &call->spec)), 0, dims};
  for (int i = 0; i < COUNT(sizes); i++)
    if (sizes[i] != FLP_SIZE_ONE && (sizes[i] != FLP_SIZE_K || call->spec.targets > 1))
      dims[want.rank++] = sizes[i] == FLP_SIZE_METRICS ? call->metrics
                                                       : flp_size_of(sizes[i], &call->spec, &call->args);
  return want;
}

/* Whether a pass writes an array: combine reads what each shard wrote, backward what forward did. */
static int is_result(flp_array_id id, flp_pass pass) {
  if (FLP_ARRAY[id].way == FLP_WAY_SPACE) return 1;
  if (pass == FLP_PASS_COMBINE) return FLP_ARRAY[id].way == FLP_WAY_OUT;
  return flp_array_is_written(id) && (pass != FLP_PASS_BACKWARD || !flp_array_is_of(id, FLP_PASS_FORWARD));
}

static flp_status check_shape(jax_call *call, const char *name, const xla_buffer *buffer, shape want) {
  char has[SHAPE_BYTES], accepted[SHAPE_BYTES];
  shape given = {buffer->type, buffer->rank, buffer->dims};
  if (given.type == want.type && given.rank == want.rank &&
      memcmp(given.dims, want.dims, sizeof *want.dims * (size_t)want.rank) == 0)
    return FLP_OK;
  return refuse(call, "%s is %s (accepted: %s)", name, show(given, has), show(want, accepted));
}

static flp_status take(jax_call *call, flp_array_id id, int is_of_results, const xla_buffer *buffer) {
  const char *name = FLP_ARRAY[id].name;
  if (!flp_array_is_of(id, call->args.pass) || is_result(id, call->args.pass) != is_of_results)
    return refuse(call, "%s is no %s of pass %d", name, is_of_results ? "result" : "operand", (int)call->args.pass);
  int64_t dims[2];
  flp_status status = check_shape(call, name, buffer, shape_of(id, call, dims));
  if (status == FLP_OK) flp_array_set(id, &call->args, buffer->data);
  return status;
}

/* Buffers of flp_diverge, of which args.h has no rows: (N), (N,V) or (N,6). */
enum { OF_VOCAB = -1 };

static const struct score_buffer {
  const char *name;
  size_t place; /* in flp_diverge_args */
  int columns;  /* 0: one a row */
  int is_narrow, is_of_results;
} SCORE_BUFFERS[] = {
#define BUFFER(field, ...) {#field, offsetof(flp_diverge_args, field), __VA_ARGS__}
    BUFFER(scores, OF_VOCAB, 0, 0),
    BUFFER(teacher, OF_VOCAB, 0, 0),
    BUFFER(scale_rows, 0, 0, 0),
    BUFFER(teacher_scale_rows, 0, 0, 0),
    BUFFER(upstream, 0, 0, 0),
    BUFFER(values, FLP_DIVERGE_VALUES, 0, 1),
    BUFFER(grad_scores, OF_VOCAB, 1, 1),
#undef BUFFER
};

/* NULL if the name is none of theirs, or stands on the other side. */
static const struct score_buffer *score_buffer_of(xla_span name, int is_of_results) {
  for (int i = 0; i < COUNT(SCORE_BUFFERS); i++)
    if (is(name, SCORE_BUFFERS[i].name) && SCORE_BUFFERS[i].is_of_results == is_of_results) return &SCORE_BUFFERS[i];
  return NULL;
}

static flp_status take_scores(jax_call *call, const struct score_buffer *row, const xla_buffer *buffer) {
  flp_dtype dtype = row->is_narrow ? flp_array_dtype(FLP_ARRAY_hidden, &call->spec) : FLP_DTYPE_FP32;
  int64_t dims[2] = {call->args.n, row->columns};
  if (row->columns == OF_VOCAB) dims[1] = flp_size_of(FLP_SIZE_V, &call->spec, &call->args);
  shape want = {type_of(dtype), row->columns ? 2 : 1, dims};
  flp_status status = check_shape(call, row->name, buffer, want);
  if (status == FLP_OK) memcpy((char *)&call->diverge + row->place, &buffer->data, sizeof buffer->data);
  return status;
}

/* The next word of a text, which is shortened by it; no bytes at its end. */
static xla_span next_word(xla_span *text) {
  const char *space = text->bytes ? memchr(text->data, ' ', text->bytes) : NULL;
  xla_span word = {text->data, space ? (size_t)(space - text->data) : text->bytes};
  size_t used = word.bytes + (space != NULL);
  text->data += used;
  text->bytes -= used;
  return word;
}

static flp_status take_all(jax_call *call, const xla_list *list, int is_of_results, xla_span names) {
  for (int64_t i = 0; i < list->count; i++) {
    xla_span name = next_word(&names);
    int id = 0; /* the first of its name that is not taken: vectors have one for all */
    while (id < FLP_ARRAYS && !(is(name, FLP_ARRAY[id].name) && !flp_array_get((flp_array_id)id, &call->args))) id++;
    const struct score_buffer *scores = score_buffer_of(name, is_of_results);
    if ((id == FLP_ARRAYS && !scores) || list->kinds[i] != XLA_BUFFER)
      return refuse(call, "buffer %lld is named \"%.*s\", which is no buffer of this release of flp", (long long)i,
                    (int)name.bytes, name.data);
    flp_status status = scores ? take_scores(call, scores, list->values[i])
                               : take(call, (flp_array_id)id, is_of_results, list->values[i]);
    if (status != FLP_OK) return status;
  }
  return names.bytes ? refuse(call, "\"%.*s\" has no buffer", (int)names.bytes, names.data) : FLP_OK;
}

/* ---- the call */

/* XLA aligns buffers to less than flp_args wants of the workspace: flp_jax_workspace has asked for that much more. */
static void align_workspace(flp_args *args) {
  size_t beyond = (uintptr_t)args->workspace % WORKSPACE_ALIGNMENT;
  size_t skip = beyond ? WORKSPACE_ALIGNMENT - beyond : 0;
  int some = args->workspace && args->workspace_bytes > skip;
  args->workspace = some ? (char *)args->workspace + skip : NULL;
  args->workspace_bytes = some ? args->workspace_bytes - skip : 0;
}

flp_status jax_call_read(const xla_call_frame *frame, jax_call *call) {
  call->spec = (flp_spec)FLP_SPEC_INIT;
  call->args = (flp_args)FLP_ARGS_INIT;
  call->diverge = (flp_diverge_args)FLP_DIVERGE_ARGS_INIT;
  call->metrics = call->parameters = call->numbers = 0;
  call->detail[0] = 0;
  buffer_names names = {{NULL, 0}, {NULL, 0}};
  flp_status status = read_attributes(call, &frame->attributes, &names);
  if (status == FLP_OK) status = take_all(call, &frame->arguments, 0, names.operands);
  if (status == FLP_OK) status = take_all(call, &frame->results, 1, names.results);
  align_workspace(&call->args);
  call->diverge.n = call->args.n;
  call->diverge.loss_parameters = call->args.loss_parameters;
  return status;
}

/* call.c: a frame of XLA -> flp_spec and flp_args, by a table of the buffers and one of the attributes. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/jax/call.h"

enum { WORKSPACE_ALIGNMENT = 256, STATS_COLUMNS = 4 };

/* Letters of `dims` are sizes of the problem: equal letters, equal sizes. */
enum { SIZE_N, SIZE_D, SIZE_V, SIZE_WORKSPACE, SIZE_STATS, SIZES };
static const char SIZE_LETTERS[] = "NDVW4";

/* Buffers of one kind have one type: an operand and its gradient. */
typedef enum buffer_kind { HIDDEN, WEIGHT, BIAS, IDS, FLOATS, BYTES, KINDS } buffer_kind;

typedef struct buffer_field {
  const char *name;
  const char *dims;
  buffer_kind kind;
  size_t place; /* in flp_args */
} buffer_field;

#define FIELD(name, dims, kind) \
  { #name, dims, kind, offsetof(flp_args, name) }
static const buffer_field FIELDS[] = {
    FIELD(hidden, "ND", HIDDEN),      FIELD(weight, "VD", WEIGHT),          FIELD(bias, "V", BIAS),
    FIELD(target, "N", IDS),          FIELD(temperature_rows, "N", FLOATS), FIELD(logprob, "N", FLOATS),
    FIELD(entropy, "N", FLOATS),      FIELD(stats, "N4", FLOATS),           FIELD(grad_logprob, "N", FLOATS),
    FIELD(grad_entropy, "N", FLOATS), FIELD(grad_hidden, "ND", HIDDEN),     FIELD(grad_weight, "VD", WEIGHT),
    FIELD(grad_bias, "V", BIAS),      FIELD(workspace, "W", BYTES),
};

enum { OPERANDS = 1 << HIDDEN | 1 << WEIGHT | 1 << BIAS };

/* XLA's type -> flp's, and the kinds that take it. */
static const struct type {
  xla_type xla;
  int kinds;
  flp_dtype flp;
} TYPES[] = {
    {XLA_BF16, OPERANDS, FLP_DTYPE_BF16},
    {XLA_F16, OPERANDS, FLP_DTYPE_FP16},
    {XLA_F32, OPERANDS | 1 << FLOATS, FLP_DTYPE_FP32},
    {XLA_S32, 1 << IDS, FLP_DTYPE_INT32},
    {XLA_S64, 1 << IDS, FLP_DTYPE_INT64},
    {XLA_U8, 1 << BYTES, 0},
};

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

__attribute__((format(printf, 2, 3))) static flp_status refuse(jax_call *call, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(call->detail, sizeof call->detail, format, list);
  va_end(list);
  return FLP_ERROR_ARGUMENT;
}

/* ---- buffers */

/* What the buffers read so far have settled; -1 and 0: not yet. */
typedef struct known_sizes {
  int64_t sizes[SIZES];
  flp_dtype types[KINDS];
} known_sizes;

static const buffer_field *field_of(xla_span name) {
  for (int i = 0; i < COUNT(FIELDS); i++)
    if (strlen(FIELDS[i].name) == name.bytes && memcmp(FIELDS[i].name, name.data, name.bytes) == 0) return &FIELDS[i];
  return NULL;
}

static flp_status check_dims(jax_call *call, const buffer_field *field, const xla_buffer *buffer, known_sizes *known) {
  if (buffer->rank != (int64_t)strlen(field->dims))
    return refuse(call, "%s has %lld dimensions (accepted: %zu)", field->name, (long long)buffer->rank,
                  strlen(field->dims));
  for (int i = 0; field->dims[i]; i++) {
    int64_t *size = &known->sizes[strchr(SIZE_LETTERS, field->dims[i]) - SIZE_LETTERS];
    if (*size < 0) *size = buffer->dims[i];
    if (buffer->dims[i] != *size)
      return refuse(call, "%s has size %lld in dimension %d (accepted: %lld)", field->name, (long long)buffer->dims[i],
                    i, (long long)*size);
  }
  return FLP_OK;
}

static flp_status check_type(jax_call *call, const buffer_field *field, const xla_buffer *buffer, known_sizes *known) {
  flp_dtype *settled = &known->types[field->kind];
  for (int i = 0; i < COUNT(TYPES); i++) {
    if (!(TYPES[i].kinds >> field->kind & 1) || (int)TYPES[i].xla != buffer->type) continue;
    if (*settled != 0 && *settled != TYPES[i].flp) break;
    *settled = TYPES[i].flp;
    return FLP_OK;
  }
  return refuse(call, "%s has XLA's type %d (accepted: that of its kind, and of a gradient its operand's)", field->name,
                buffer->type);
}

static flp_status take(jax_call *call, const buffer_field *field, const xla_buffer *buffer, known_sizes *known) {
  flp_status status = check_dims(call, field, buffer, known);
  if (status == FLP_OK) status = check_type(call, field, buffer, known);
  if (status == FLP_OK) memcpy((char *)&call->args + field->place, &buffer->data, sizeof buffer->data);
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

/* seen: a bit for each row of FIELDS */
static flp_status take_all(jax_call *call, const xla_list *list, xla_span names, known_sizes *known, uint32_t *seen) {
  for (int64_t i = 0; i < list->count; i++) {
    xla_span name = next_word(&names);
    const buffer_field *field = field_of(name);
    if (!field)
      return refuse(call, "buffer %lld is named \"%.*s\", which is no buffer of this release of flp", (long long)i,
                    (int)name.bytes, name.data);
    if (list->kinds[i] != XLA_BUFFER) return refuse(call, "%s is no buffer", field->name);
    *seen |= 1u << (field - FIELDS);
    flp_status status = take(call, field, list->values[i], known);
    if (status != FLP_OK) return status;
  }
  return names.bytes ? refuse(call, "\"%.*s\" has no buffer", (int)names.bytes, names.data) : FLP_OK;
}

static int has(uint32_t seen, const char *name) {
  return (int)(seen >> (field_of((xla_span){name, strlen(name)}) - FIELDS) & 1u);
}

/* ---- attributes */

typedef struct call_attributes {
  int64_t pass, ignore_index, mixed;
  float temperature, scale, softcap;
  xla_span operands, results;
} call_attributes;

static const struct attribute {
  const char *name;
  int kind, type; /* type of a scalar */
  size_t place, bytes;
} ATTRIBUTES[] = {
    {"ignore_index", XLA_ATTRIBUTE_SCALAR, XLA_S64, offsetof(call_attributes, ignore_index), sizeof(int64_t)},
    {"mixed", XLA_ATTRIBUTE_SCALAR, XLA_S64, offsetof(call_attributes, mixed), sizeof(int64_t)},
    {"operands", XLA_ATTRIBUTE_STRING, 0, offsetof(call_attributes, operands), sizeof(xla_span)},
    {"pass", XLA_ATTRIBUTE_SCALAR, XLA_S64, offsetof(call_attributes, pass), sizeof(int64_t)},
    {"results", XLA_ATTRIBUTE_STRING, 0, offsetof(call_attributes, results), sizeof(xla_span)},
    {"scale", XLA_ATTRIBUTE_SCALAR, XLA_F32, offsetof(call_attributes, scale), sizeof(float)},
    {"softcap", XLA_ATTRIBUTE_SCALAR, XLA_F32, offsetof(call_attributes, softcap), sizeof(float)},
    {"temperature", XLA_ATTRIBUTE_SCALAR, XLA_F32, offsetof(call_attributes, temperature), sizeof(float)},
};

/* XLA sorts attributes by name, and so does the table: a call has these and no others. */
static flp_status read_attributes(jax_call *call, const xla_attributes *given, call_attributes *out) {
  if (given->count != COUNT(ATTRIBUTES))
    return refuse(call, "the call has %lld attributes (accepted: %d, those of this release of flp)",
                  (long long)given->count, COUNT(ATTRIBUTES));
  for (int i = 0; i < COUNT(ATTRIBUTES); i++) {
    const struct attribute *want = &ATTRIBUTES[i];
    const xla_span *name = given->names[i];
    if (name->bytes != strlen(want->name) || memcmp(name->data, want->name, name->bytes) != 0)
      return refuse(call, "attribute %d is named \"%.*s\" (accepted: \"%s\")", i, (int)name->bytes, name->data,
                    want->name);
    const xla_scalar *scalar = given->values[i];
    if (given->kinds[i] != want->kind || (want->kind == XLA_ATTRIBUTE_SCALAR && scalar->type != want->type))
      return refuse(call, "attribute %s has another type than this release of flp reads", want->name);
    const void *from = want->kind == XLA_ATTRIBUTE_SCALAR ? scalar->value : given->values[i];
    memcpy((char *)out + want->place, from, want->bytes);
  }
  return FLP_OK;
}

/* ---- the call */

/* Of two dtypes products have the one of 16 bits; whether there may be two the library judges. */
static void fill_dtypes(flp_spec *spec, const known_sizes *known, int64_t mixed) {
  spec->hidden_dtype = known->types[HIDDEN];
  spec->weight_dtype = known->types[WEIGHT];
  spec->bias_dtype = known->types[BIAS];
  spec->dtype = spec->hidden_dtype == FLP_DTYPE_FP32 ? spec->weight_dtype : spec->hidden_dtype;
  spec->target_dtype = known->types[IDS];
  spec->mixed = (flp_mixed)mixed;
}

static void fill_spec(flp_spec *spec, const known_sizes *known, uint32_t seen, float softcap) {
  spec->vocab = known->sizes[SIZE_V];
  spec->hidden = known->sizes[SIZE_D];
  if (has(seen, "entropy")) spec->entropy = FLP_ENTROPY_FORWARD;
  if (has(seen, "grad_entropy")) spec->entropy = FLP_ENTROPY_BACKWARD;
  if (has(seen, "grad_hidden")) spec->grads |= FLP_GRAD_HIDDEN;
  if (has(seen, "grad_weight")) spec->grads |= FLP_GRAD_WEIGHT;
  if (has(seen, "grad_bias")) spec->grads |= FLP_GRAD_BIAS;
  spec->has_bias = has(seen, "bias");
  spec->per_row_temperature = has(seen, "temperature_rows");
  spec->softcap = softcap;
}

/* XLA aligns buffers to less than flp_args wants of the workspace: flp_jax_workspace has asked for that much more. */
static void align_workspace(flp_args *args, size_t bytes) {
  size_t beyond = (uintptr_t)args->workspace % WORKSPACE_ALIGNMENT;
  size_t skip = beyond ? WORKSPACE_ALIGNMENT - beyond : 0;
  int some = bytes > skip;
  args->workspace = some ? (char *)args->workspace + skip : NULL;
  args->workspace_bytes = some ? bytes - skip : 0;
}

flp_status jax_call_read(const xla_call_frame *frame, jax_call *call) {
  call->spec = (flp_spec)FLP_SPEC_INIT;
  call->args = (flp_args)FLP_ARGS_INIT;
  call->detail[0] = 0;
  call_attributes given = {0};
  flp_status status = read_attributes(call, &frame->attributes, &given);
  if (status != FLP_OK) return status;

  known_sizes known = {{-1, -1, -1, -1, STATS_COLUMNS}, {0}};
  uint32_t seen = 0;
  status = take_all(call, &frame->arguments, given.operands, &known, &seen);
  if (status == FLP_OK) status = take_all(call, &frame->results, given.results, &known, &seen);
  if (status != FLP_OK) return status;
  if (!has(seen, "hidden") || !has(seen, "weight") || !has(seen, "target") || !has(seen, "workspace"))
    return refuse(call, "hidden, weight, target and workspace are needed, and not all are there");

  fill_dtypes(&call->spec, &known, given.mixed);
  fill_spec(&call->spec, &known, seen, given.softcap);
  call->args.pass = (flp_pass)given.pass;
  call->args.n = known.sizes[SIZE_N];
  call->args.temperature = given.temperature;
  call->args.scale = given.scale;
  call->args.ignore_index = given.ignore_index;
  align_workspace(&call->args, (size_t)known.sizes[SIZE_WORKSPACE]);
  return FLP_OK;
}

/* api_case.c: random specs, and operands for them; see api.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/half.h"
#include "tests/drivers/api.h"

/* ---- specs ---- */

static void draw_gradients(draw *d, flp_spec *s) {
  s->grads = (uint32_t)draw_below(d, 8);
  if (s->grads & FLP_GRAD_BIAS) s->has_bias = 1;
  if (draw_one_in(d, 2)) s->grad_hidden_dtype = draw_one_in(d, 2) ? FLP_DTYPE_FP32 : s->dtype;
  if (draw_one_in(d, 2)) s->grad_weight_dtype = draw_one_in(d, 2) ? FLP_DTYPE_FP32 : s->dtype;
  if (s->grad_weight_dtype == FLP_DTYPE_FP32 || s->dtype == FLP_DTYPE_FP32)
    s->accumulate_grad_weight = draw_one_in(d, 2);
  if (s->dtype == FLP_DTYPE_BF16 && s->grads) s->keep = draw_one_in(d, 3);
}

/* A built-in loss of one target a row, as specs have here, of values that the reference here has. */
static const char *draw_builtin(draw *d) {
  for (;;) {
    const char *name = flp_loss_builtin(draw_below(d, (int)flp_loss_table_count));
    flp_loss loss;
    API_EXPECT(flp_loss_find(name, &loss) == FLP_OK, "flp_loss_find(%s)", name);
    if (!flp_loss_is_over_targets(&loss) && !flp_loss_is_of_scores(&loss)) return name;
  }
}

static void draw_loss(draw *d, flp_spec *s) {
  static uint8_t bytes[FLP_LOSS_BYTES_MAX];
  char name[FLP_LOSS_TITLE_BYTES];
  strcpy(name, draw_builtin(d));
  static const char *const terms[] = {"", "+k3", "+entropy"}; /* that add to any other */
  const char *term = DRAW_OF(d, terms);
  if (!strstr("k1 k2 k3 entropy token_entropy", name)) strcat(name, term);
  flp_status status = flp_loss_builtin_bytes(name, bytes, sizeof bytes, &s->loss_bytes);
  API_EXPECT(status == FLP_OK, "flp_loss_builtin_bytes(%s)", name);
  s->loss = bytes;
}

static void draw_head(draw *d, flp_spec *s) {
  s->vocab = draw_one_in(d, 8) ? 2 : 2 + draw_below(d, draw_one_in(d, 4) ? 300 : 70);
  s->hidden = 8 * (1 + draw_below(d, 8));
  s->dtype = DRAW_OF(d, (flp_dtype[]){FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32});
  s->has_bias = draw_one_in(d, 2);
  s->softcap = draw_one_in(d, 3) ? DRAW_OF(d, (float[]){0.5f, 3, 30}) : 0;
  s->per_row_temperature = draw_one_in(d, 2);
  draw_gradients(d, s);
  if (draw_one_in(d, 2)) {
    draw_loss(d, s);
    s->entropy = FLP_ENTROPY_BACKWARD; /* enough for any loss */
  }
}

void api_draw_spec(draw *d, flp_spec *spec, flp_options *options) {
  flp_spec s = FLP_SPEC_INIT;
  flp_options o = FLP_OPTIONS_INIT;
  s.target_dtype = DRAW_OF(d, (flp_dtype[]){FLP_DTYPE_INT32, FLP_DTYPE_INT64});
  s.entropy = (flp_entropy)draw_below(d, 3);
  if (draw_one_in(d, 5)) {
    s.op = FLP_OP_SELECT;
    s.dtype = DRAW_OF(d, (flp_dtype[]){FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32, FLP_DTYPE_FP64});
    s.vocab = 2 + draw_below(d, draw_one_in(d, 4) ? 2500 : 90);
  } else {
    draw_head(d, &s);
  }
  uint32_t element = (uint32_t)api_bytes_of(s.dtype);
  s.alignment = draw_one_in(d, 2) ? 16 : element << draw_below(d, element == 8 ? 2 : element == 4 ? 3 : 4);
  o.device = FLP_DEVICE_HOST;
  o.rung = draw_one_in(d, 2) ? FLP_RUNG_AUTO : FLP_RUNG_EAGER;
  o.threads = draw_one_in(d, 4) ? 0 : 1 + draw_below(d, 3);
  o.strict = draw_one_in(d, 4);
  o.host_fallback = draw_one_in(d, 2);
  if (draw_one_in(d, 3)) o.chunk_rows = 1 + draw_below(d, 20);
  if (draw_one_in(d, 3)) o.chunk_vocab = 1 + draw_below(d, 200);
  if (draw_one_in(d, 3)) o.budget_bytes = UINT64_C(1) << (10 + draw_below(d, 16));
  *spec = s;
  *options = o;
}

/* ---- elements ---- */

size_t api_bytes_of(flp_dtype dtype) {
  return dtype == FLP_DTYPE_FP32 || dtype == FLP_DTYPE_INT32   ? 4
         : dtype == FLP_DTYPE_INT64 || dtype == FLP_DTYPE_FP64 ? 8
                                                               : 2;
}

flp_dtype api_grad_dtype(flp_dtype asked, flp_dtype operand) {
  return asked ? asked : operand;
}

double api_element(flp_dtype dtype, const void *base, int64_t index) {
  float value;
  if (dtype == FLP_DTYPE_FP64) return ((const double *)base)[index];
  flp_half_widen(dtype, (const char *)base + index * (int64_t)api_bytes_of(dtype), 1, &value);
  return (double)value;
}

double api_store(flp_dtype dtype, void *base, int64_t index, double value) {
  float narrow = (float)value;
  if (dtype == FLP_DTYPE_FP64)
    ((double *)base)[index] = value;
  else
    flp_half_narrow(dtype, &narrow, 1, (char *)base + index * (int64_t)api_bytes_of(dtype));
  return api_element(dtype, base, index);
}

/* ---- operands ---- */

/* Of `rows` rows with random distance; what lies between rows holds NaN. *out: the numbers as they are stored. */
static void *draw_matrix(api_case *c, int64_t rows, double size, int64_t *stride, double *out) {
  size_t element = api_bytes_of(c->spec.dtype), unit = c->spec.alignment / element;
  size_t step = (size_t)c->depth + (draw_one_in(c->d, 2) ? unit * (size_t)(1 + draw_below(c->d, 3)) : 0);
  while (step % unit) step++;
  *stride = (int64_t)step == c->depth && draw_one_in(c->d, 2) ? 0 : (int64_t)step;
  size_t bytes = rows ? ((size_t)(rows - 1) * step + (size_t)c->depth) * element : 0;
  void *base = api_block(bytes, draw_one_in(c->d, 2) ? c->spec.alignment : 0, 0xFF);
  for (int64_t i = 0; i < rows * c->depth; i++)
    out[i] = api_store(c->spec.dtype, base, i / c->depth * (int64_t)step + i % c->depth, size * draw_real(c->d));
  return base;
}

/* Once the numbers are drawn: a row of NaN or infinities, in a wild case. */
static void spoil_row(api_case *c, const flp_args *args) {
  if (!c->n || draw_one_in(c->d, 2)) return;
  int64_t stride = args->hidden_stride ? args->hidden_stride : c->depth, row = draw_below(c->d, (int)c->n);
  double value = DRAW_OF(c->d, (double[]){NAN, INFINITY, -INFINITY, 60000});
  char *base = (char *)(uintptr_t)args->hidden;
  for (int64_t i = draw_below(c->d, (int)c->depth); i < c->depth; i++)
    c->hidden[row * c->depth + i] = api_store(c->spec.dtype, base, row * stride + i, value);
}

static int64_t draw_target(api_case *c, int64_t ignore) {
  int narrow = c->spec.target_dtype == FLP_DTYPE_INT32;
  if (!draw_one_in(c->d, 4)) return draw_below(c->d, (int)c->total);
  if (draw_one_in(c->d, 2) && (!narrow || (int32_t)ignore == ignore)) return ignore;
  if (narrow) return DRAW_OF(c->d, (int64_t[]){-1, c->total, INT32_MAX, INT32_MIN});
  return DRAW_OF(c->d, (int64_t[]){-1, c->total, INT64_MAX, INT64_MIN, INT64_C(1) << 32, INT32_MIN});
}

static void draw_targets(api_case *c, flp_args *args) {
  size_t element = api_bytes_of(c->spec.target_dtype);
  void *base = api_block((size_t)c->n * element, element * (size_t)draw_below(c->d, 2), 0);
  args->ignore_index = DRAW_OF(c->d, (int64_t[]){-100, -100, 0, c->total - 1, INT64_MIN, INT64_MAX});
  for (int64_t i = 0; i < c->n; i++) {
    c->target[i] = draw_target(c, args->ignore_index);
    if (c->spec.target_dtype == FLP_DTYPE_INT32)
      ((int32_t *)base)[i] = (int32_t)c->target[i];
    else
      ((int64_t *)base)[i] = c->target[i];
  }
  args->target = base;
}

static void draw_temperatures(api_case *c, flp_args *args) {
  static const float tame[] = {1, 0.5f, 2.5f}, wild[] = {1e-30f, 1e30f, 1e-3f}, bad[] = {0, -1, NAN, INFINITY};
  args->temperature = c->wild ? DRAW_OF(c->d, (float[]){1, 1e-3f, 1e4f}) : DRAW_OF(c->d, tame);
  float *rows = c->spec.per_row_temperature ? api_block((size_t)c->n * 4, 4 * (size_t)draw_below(c->d, 2), 0) : NULL;
  for (int64_t i = 0; i < c->n; i++) {
    float value = DRAW_OF(c->d, tame);
    if (c->wild && draw_one_in(c->d, 2)) value = DRAW_OF(c->d, wild);
    if (draw_one_in(c->d, 8)) value = DRAW_OF(c->d, bad);
    if (rows) rows[i] = value;
    c->temperature[i] = (double)(rows ? value : args->temperature);
  }
  args->temperature_rows = rows;
  args->scale = c->wild ? DRAW_OF(c->d, (float[]){1, -1, 0, 1e-6f, 1e3f}) : DRAW_OF(c->d, (float[]){1, 1, -2, 0.1f, 0});
}

/* A set of rows with repeats, and ids that are no row. */
static void draw_rows(api_case *c, flp_args *args) {
  memset(c->listed, 1, (size_t)c->n);
  c->bad_ids = 0;
  if (!c->n || !draw_one_in(c->d, 3)) return;
  int64_t count = draw_below(c->d, 2 * (int)c->n + 1);
  int32_t *rows = api_block((size_t)(count ? count : 1) * 4, 4 * (size_t)draw_below(c->d, 2), 0);
  memset(c->listed, 0, (size_t)c->n);
  for (int64_t i = 0; i < count; i++) {
    rows[i] = (int32_t)draw_below(c->d, (int)c->n);
    if (draw_one_in(c->d, 10)) rows[i] = DRAW_OF(c->d, (int32_t[]){-1, (int32_t)c->n, INT32_MAX, INT32_MIN});
    if (rows[i] >= 0 && rows[i] < c->n)
      c->listed[rows[i]] = 1;
    else
      c->bad_ids++;
  }
  args->rows = rows;
  args->row_count = count;
}

static void draw_shards(api_case *c) {
  c->shards = draw_one_in(c->d, 4) ? 1 + draw_below(c->d, API_SHARDS_MAX) : 1;
  c->valid = draw_one_in(c->d, 3) ? 1 + draw_below(c->d, (int)c->vocab) : c->vocab;
  c->total = (c->shards - 1) * c->vocab + c->valid;
}

static void allocate(api_case *c) {
  size_t rows = (size_t)c->n, columns = (size_t)(c->shards * c->vocab), depth = (size_t)c->depth;
  c->hidden = api_block((rows + 1) * depth * sizeof(double), 0, 0);
  c->weight = api_block(columns * depth * sizeof(double), 0, 0);
  c->bias = api_block(columns * sizeof(double), 0, 0);
  c->target = api_block((rows + 1) * sizeof(int64_t), 0, 0);
  c->temperature = api_block((rows + 1) * sizeof(double), 0, 0);
  c->listed = api_block(rows + 1, 0, 0);
}

void api_case_draw(api_case *c) {
  flp_args args = FLP_ARGS_INIT;
  c->n = draw_one_in(c->d, 12) ? 0 : 1 + draw_below(c->d, 12);
  c->depth = c->spec.hidden;
  c->vocab = c->spec.vocab;
  c->wild = draw_one_in(c->d, 4);
  draw_shards(c);
  allocate(c);
  args.n = c->n;
  args.hidden = draw_matrix(c, c->n, 1.5, &args.hidden_stride, c->hidden);
  draw_temperatures(c, &args);
  draw_targets(c, &args);
  draw_rows(c, &args);
  if (c->wild) spoil_row(c, &args);
  for (int s = 0; s < c->shards; s++) {
    size_t element = api_bytes_of(c->spec.dtype);
    void *bias = c->spec.has_bias ? api_block((size_t)c->vocab * element, element, 0xFF) : NULL;
    args.weight = draw_matrix(c, c->vocab, 0.8, &args.weight_stride, c->weight + s * c->vocab * c->depth);
    for (int64_t v = 0; bias && v < c->vocab; v++)
      c->bias[s * c->vocab + v] = api_store(c->spec.dtype, bias, v, draw_real(c->d));
    args.bias = bias;
    args.vocab_offset = s * c->vocab;
    args.vocab_valid = s == c->shards - 1 && (c->valid < c->vocab || draw_one_in(c->d, 2)) ? c->valid : 0;
    args.vocab_total = c->shards > 1 || draw_one_in(c->d, 2) ? c->total : 0;
    c->shard_args[s] = args;
  }
}

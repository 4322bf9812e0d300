/* api_select.c: calls of flp_select beside sums in double; see api.h. */
#include <math.h>
#include <string.h>

#include "tests/drivers/api.h"

enum { TARGETS_MAX = 4 };

typedef struct scores {
  draw *d;
  const flp_spec *spec;
  flp_plan *plan;
  int strict, bad;
  int64_t n, k;
  double *z; /* (n, vocab) as stored */
  int64_t *target;
  flp_select_args args;
} scores;

static int is_wide(const scores *s) {
  return s->spec->dtype == FLP_DTYPE_FP64;
}

static void *numbers(const scores *s, int64_t count, int is_output) {
  size_t bytes = (size_t)count * (is_wide(s) ? 8 : 4);
  return is_output ? api_output(bytes, 8) : api_block(bytes, 8, 0);
}

static double number(const scores *s, const void *base, int64_t i) {
  return api_element(is_wide(s) ? FLP_DTYPE_FP64 : FLP_DTYPE_FP32, base, i);
}

static int64_t stride_of(const scores *s, int64_t *stride) {
  int64_t unit = (int64_t)(s->spec->alignment / api_bytes_of(s->spec->dtype)), step = s->spec->vocab;
  if (unit < 1) unit = 1;
  step += draw_below(s->d, 3) * unit;
  while (step % unit) step++;
  *stride = step == s->spec->vocab && draw_one_in(s->d, 2) ? 0 : step;
  return step;
}

static size_t bytes_between(const scores *s, int64_t step) {
  return s->n ? (size_t)((s->n - 1) * step + s->spec->vocab) * api_bytes_of(s->spec->dtype) : 0;
}

static void draw_scores(scores *s) {
  int64_t step = stride_of(s, &s->args.scores_stride), vocab = s->spec->vocab;
  void *base = api_block(bytes_between(s, step), draw_one_in(s->d, 2) ? s->spec->alignment : 0, 0xFF);
  double size = DRAW_OF(s->d, (double[]){1, 10, 300});
  s->z = api_block((size_t)(s->n * vocab + 1) * sizeof(double), 0, 0);
  for (int64_t i = 0; i < s->n * vocab; i++)
    s->z[i] = api_store(s->spec->dtype, base, i / vocab * step + i % vocab,
                        i % vocab && draw_one_in(s->d, 60) ? -INFINITY : size * draw_real(s->d));
  s->args.scores = base;
}

static void draw_targets(scores *s) {
  int narrow = s->spec->target_dtype == FLP_DTYPE_INT32;
  size_t count = (size_t)(s->n * s->k);
  void *base = api_block(count * (narrow ? 4 : 8), 8, 0);
  s->target = api_block((count + 1) * sizeof(int64_t), 0, 0);
  s->args.ignore_index = DRAW_OF(s->d, (int64_t[]){-100, 0, s->spec->vocab - 1});
  for (size_t i = 0; i < count; i++) {
    int64_t id = draw_below(s->d, (int)s->spec->vocab);
    if (draw_one_in(s->d, 6)) id = s->args.ignore_index;
    if (draw_one_in(s->d, 12)) id = narrow ? INT32_MIN : DRAW_OF(s->d, (int64_t[]){INT64_MIN, INT64_MAX});
    if (draw_one_in(s->d, 20)) id = s->spec->vocab;
    s->bad += id != s->args.ignore_index && (id < 0 || id >= s->spec->vocab);
    s->target[i] = id;
    if (narrow)
      ((int32_t *)base)[i] = (int32_t)id;
    else
      ((int64_t *)base)[i] = id;
  }
  s->args.target = base;
}

static void run(scores *s, const char *name) {
  flp_select_args spoilt = s->args;
  const char *field = draw_one_in(s->d, 2) && api_outputs_untouched() ? api_spoil_select(s->d, s->spec, &spoilt) : NULL;
  if (field) api_expect_refusal(flp_select(s->plan, &spoilt), field, name);
  flp_status status = flp_select(s->plan, &s->args);
  /* BACKWARD reads logprobs of bad targets and counts none */
  flp_status wanted = s->bad && s->n && s->args.pass == FLP_PASS_FORWARD ? FLP_ERROR_DATA : FLP_OK;
  api_count.calls++;
  if (!s->strict) {
    API_EXPECT(status == FLP_OK && !*flp_error_detail(), "%s: %s", name, flp_status_name(status));
    status = flp_plan_check(s->plan, NULL);
  }
  API_EXPECT(status == wanted, "%s with %d bad targets: %s", name, s->bad, flp_status_name(status));
}

/* Of a row in nats: t = z/T. */
typedef struct sums {
  double log_sum, entropy;
  int is_wanted;
} sums;

static sums sums_of(const scores *s, int64_t row) {
  const double *z = s->z + row * s->spec->vocab;
  double top = -INFINITY, sum = 0, weighted = 0;
  sums r = {0};
  for (int64_t i = 0; i < s->k; i++) r.is_wanted |= s->target[row * s->k + i] != s->args.ignore_index;
  for (int64_t v = 0; v < s->spec->vocab; v++) top = fmax(top, z[v] / s->args.temperature);
  for (int64_t v = 0; v < s->spec->vocab; v++) {
    double u = z[v] / s->args.temperature - top;
    sum += exp(u);
    if (u > -700) weighted += u * exp(u);
  }
  r.log_sum = top + log(sum);
  r.entropy = log(sum) - weighted / sum;
  return r;
}

static double logprob_of(const scores *s, int64_t row, int64_t i, const sums *r) {
  int64_t id = s->target[row * s->k + i];
  if (id == s->args.ignore_index) return 0;
  if (id < 0 || id >= s->spec->vocab) return NAN;
  return s->z[row * s->spec->vocab + id] / s->args.temperature - r->log_sum;
}

/* allowed: relative to the wanted value or 1 */
static void compare(const char *what, int64_t row, double got, double wanted, double allowed) {
  api_count.values++;
  int same = isnan(wanted)   ? isnan(got)
             : isinf(wanted) ? got == wanted
                             : fabs(got - wanted) <= allowed * fmax(1, fabs(wanted));
  API_EXPECT(same, "%s of row %ld is %.9g, in double %.9g", what, (long)row, got, wanted);
}

static double unit_of(const scores *s) {
  return is_wide(s) ? 1e-11 : 4e-7;
}

static void compare_forward(const scores *s) {
  for (int64_t row = 0; row < s->n; row++) {
    sums r = sums_of(s, row);
    for (int64_t i = 0; i < s->k; i++)
      compare("logprob", row, number(s, s->args.logprob, row * s->k + i), logprob_of(s, row, i, &r), unit_of(s));
    if (s->args.entropy)
      compare("entropy", row, number(s, s->args.entropy, row), r.is_wanted ? r.entropy : 0, unit_of(s));
  }
}

static double slope_of(const scores *s, int64_t row, int64_t v, const sums *r, double *size) {
  double w = s->z[row * s->spec->vocab + v] / s->args.temperature - r->log_sum, p = exp(w), sum = 0;
  *size = 0;
  for (int64_t i = 0; i < s->k; i++) {
    int64_t id = s->target[row * s->k + i];
    if (id == s->args.ignore_index || !s->args.grad_logprob) continue;
    double g = number(s, s->args.grad_logprob, row * s->k + i);
    if (g != 0 && (id < 0 || id >= s->spec->vocab)) return NAN;
    sum += g * ((id == v) - p);
    *size += fabs(g) * ((id == v) + p);
  }
  if (!s->args.grad_entropy || !r->is_wanted || p == 0) return sum / s->args.temperature;
  double e = number(s, s->args.grad_entropy, row);
  *size += fabs(e) * p * (fabs(w) + r->entropy + 1);
  return (sum - e * p * (w + r->entropy)) / s->args.temperature;
}

static void compare_backward(const scores *s) {
  int64_t step = s->args.grad_scores_stride ? s->args.grad_scores_stride : s->spec->vocab;
  double relative = s->spec->dtype == FLP_DTYPE_BF16 ? 0x1p-8 : s->spec->dtype == FLP_DTYPE_FP16 ? 0x1p-11 : unit_of(s);
  for (int64_t row = 0; row < s->n; row++) {
    sums r = sums_of(s, row);
    double stored = unit_of(s) * (4 + fabs(r.log_sum));
    for (int64_t v = 0; v < s->spec->vocab; v++) {
      double size, wanted = slope_of(s, row, v, &r, &size);
      double got = api_element(s->spec->dtype, s->args.grad_scores, row * step + v);
      double allowed = fabs(wanted) * relative + size * stored / s->args.temperature + 0x1p-24;
      api_count.values++;
      API_EXPECT(isnan(wanted) ? isnan(got) : fabs(got - wanted) <= allowed,
                 "grad_scores[%ld] of row %ld is %.9g, in double %.9g", (long)v, (long)row, got, wanted);
    }
  }
}

static void *upstream(const scores *s, int64_t count) {
  void *base = numbers(s, count, 0);
  flp_dtype dtype = is_wide(s) ? FLP_DTYPE_FP64 : FLP_DTYPE_FP32;
  for (int64_t i = 0; i < count; i++) api_store(dtype, base, i, draw_one_in(s->d, 4) ? 0 : draw_real(s->d));
  return base;
}

static void run_backward(scores *s) {
  s->args.pass = FLP_PASS_BACKWARD;
  if (s->spec->entropy == FLP_ENTROPY_BACKWARD && draw_one_in(s->d, 2)) s->args.grad_entropy = upstream(s, s->n);
  if (!s->args.grad_entropy || draw_one_in(s->d, 2)) s->args.grad_logprob = upstream(s, s->n * s->k);
  int in_place = draw_one_in(s->d, 3);
  if (in_place) {
    s->args.grad_scores = (void *)(uintptr_t)s->args.scores;
    s->args.grad_scores_stride = s->args.scores_stride;
  } else {
    int64_t step = stride_of(s, &s->args.grad_scores_stride);
    s->args.grad_scores = api_output(bytes_between(s, step), draw_one_in(s->d, 2) ? s->spec->alignment : 0);
  }
  run(s, "flp_select backward");
  compare_backward(s);
}

void api_run_select(api_case *c) {
  scores s = {.d = c->d, .spec = &c->spec, .plan = c->plan, .strict = c->options.strict, .args = FLP_SELECT_ARGS_INIT};
  s.args.n = s.n = draw_one_in(c->d, 10) ? 0 : 1 + draw_below(c->d, 6);
  s.args.k = s.k = 1 + draw_below(c->d, TARGETS_MAX);
  s.args.temperature = DRAW_OF(c->d, (double[]){1, 0.5, 3});
  draw_scores(&s);
  draw_targets(&s);
  s.args.logprob = numbers(&s, s.n * s.k, 1);
  s.args.stats = numbers(&s, s.n * 3, 1);
  if (s.spec->entropy != FLP_ENTROPY_NONE) s.args.entropy = numbers(&s, s.n, 1);
  run(&s, "flp_select forward");
  compare_forward(&s);
  s.args.entropy = NULL;
  run_backward(&s);
}

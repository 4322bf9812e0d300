/* scale.c: gradients times a factor, on one rung, against double.
 *
 * Values lie in a poisoned buffer whose rows have gaps behind them and a guard at the end; what stands in gaps and guard
 * must stay. An element may be half a place of dtype off what is right, and the float product's own rounding; below
 * dtype's least normal number (of fp32 too: kernels take subnormals for 0) half a place of that. A factor of 1 must leave
 * every bit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/lists.h"
#include "gen/cli/call/normal.h"
#include "gen/cli/check/session.h"
#include "runtime/base/half.h"
#include "runtime/base/status.h"

typedef struct shape {
  const char *name;
  int64_t n, columns;
  int natural; /* 1: aligned as an element is */
} shape;

static const shape shapes[] = {{"columns=2", 3, 2, 0},
                               {"less than a vector", 5, 7, 0},
                               {"ragged", 67, 1531, 0},
                               {"whole vectors", 300, 4096, 0},
                               {"more rows than CTAs", 5003, 64, 0},
                               {"one row", 1, 151936, 0},
                               {"element by element", 67, 1531, 1}};
static const struct {
  float value;
  const char *output; /* in reports */
} factors[] = {
    {1, "scale: times 1"}, {0.37f, "scale: times 0.37"},   {-3, "scale: times -3"},   {0x1p-20f, "scale: times 2^-20"},
    {0, "scale: times 0"}, {0x1p16f, "scale: times 2^16"}, {NAN, "scale: times nan"}, {INFINITY, "scale: times inf"}};

typedef struct problem {
  check_case c;
  int64_t stride;
  size_t element, bytes;
  float factor;
  char *values; /* (n,stride) */
} problem;

static check_case case_of(const shape *s, flp_dtype dtype) {
  check_case c = check_case_default(dtype, s->n, s->columns, 0);
  c.name = s->name;
  c.spec.op = FLP_OP_SCALE;
  c.spec.alignment = s->natural ? (uint32_t)flp_dtype_bytes(dtype) : 16;
  return c;
}

static double value_at(const problem *p, const char *from, int64_t i) {
  return cli_number_at(p->c.spec.dtype, from, i / p->c.spec.vocab * p->stride + i % p->c.spec.vocab);
}

/* Normal numbers; some are NaN, infinite, 0 or the least that there are. */
static float drawn(flp_dtype dtype, uint64_t seed, int64_t i) {
  static const float odd[] = {NAN, INFINITY, -INFINITY, 0, -0.0f};
  uint64_t bits = cli_hash(seed ^ (uint64_t)i * 0x9e3779b97f4a7c15u);
  if (bits % 61 == 0) return odd[bits / 61 % 5];
  if (bits % 67 == 0) return dtype == FLP_DTYPE_FP16 ? 0x1p-14f : 0x1p-126f;
  return (float)((double)(bits >> 32) / 0x1p31 - 1) * 4;
}

static flp_status problem_create(const shape *s, flp_dtype dtype, float factor, problem *p) {
  *p = (problem){.c = case_of(s, dtype), .element = flp_dtype_bytes(dtype), .factor = factor};
  int64_t unit = (int64_t)(p->c.spec.alignment / p->element);
  p->stride = (s->columns + unit) / unit * unit; /* a gap of at least one element */
  p->bytes = (size_t)(s->n * p->stride) * p->element;
  p->values = malloc(p->bytes);
  if (!p->values) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for values");
  memset(p->values, 0xff, p->bytes);
  for (int64_t row = 0; row < s->n; row++)
    for (int64_t v = 0; v < s->columns; v++) {
      float value = drawn(dtype, 7, row * s->columns + v);
      flp_half_narrow(dtype, &value, 1, p->values + (size_t)(row * p->stride + v) * p->element);
    }
  return FLP_OK;
}

/* ---- running ---- */

typedef struct run {
  cli_device device;
  call_buffer values, factor;
  void *got;
  int overrun;
} run;

static flp_status execute(const problem *p, flp_plan *plan, run *r) {
  FLP_TRY(call_buffer_make(&r->device, p->bytes, 0, 1, &r->values));
  FLP_TRY(call_buffer_make(&r->device, sizeof p->factor, 0, 1, &r->factor));
  FLP_TRY(cli_buffer_upload(&r->values.buffer, 0, p->values, p->bytes));
  FLP_TRY(cli_buffer_upload(&r->factor.buffer, 0, &p->factor, sizeof p->factor));
  FLP_TRY(cli_device_synchronise(&r->device));
  flp_scale_args args = FLP_SCALE_ARGS_INIT;
  args.n = p->c.n;
  args.values = call_buffer_at(&r->values, 0);
  args.values_stride = p->stride;
  args.factor = call_buffer_at(&r->factor, 0);
  args.stream = r->device.stream;
  FLP_TRY(flp_scale(plan, &args));
  return call_buffer_take(&r->values, p->bytes, &r->got, &r->overrun);
}

static flp_status run_problem(const problem *p, const check_how *how, run *r) {
  flp_options options = check_how_options(how);
  flp_plan *plan = NULL;
  FLP_TRY(cli_device_open(options.device, &r->device));
  flp_status status = check_precompile_plan(how->precompile, &p->c.spec, &options, &plan);
  if (status == FLP_OK) status = execute(p, plan, r);
  flp_plan_destroy(plan);
  return status;
}

static void run_clear(run *r) {
  call_buffer_clear(&r->values);
  call_buffer_clear(&r->factor);
  free(r->got);
  cli_device_close(&r->device);
}

/* ---- comparing ---- */

/* The distance of neighbours in dtype around a number. */
static double place_of(flp_dtype dtype, double right) {
  int digits = dtype == FLP_DTYPE_BF16 ? 8 : dtype == FLP_DTYPE_FP16 ? 11 : 24;
  double least = dtype == FLP_DTYPE_FP16 ? 0x1p-14 : 0x1p-126;
  return ldexp(fmax(fabs(right), least), 1 - digits);
}

static double right_of(const problem *p, int64_t i) {
  double right = value_at(p, p->values, i) * (double)p->factor;
  float narrow = (float)right;
  char cell[4];
  flp_half_narrow(p->c.spec.dtype, &narrow, 1, cell);
  flp_half_widen(p->c.spec.dtype, cell, 1, &narrow);
  return isinf(narrow) ? (double)narrow : right; /* beyond the largest number */
}

static flp_status compare_values(const problem *p, const run *r, check_metric *out) {
  int64_t count = p->c.n * p->c.spec.vocab;
  if (p->factor == 1) {
    *out = check_metric_bits(r->got, p->values, p->bytes);
    return FLP_OK;
  }
  cli_memory memory = {0};
  check_numbers a = check_numbers_of(&memory, count);
  flp_status status = cli_memory_status(&memory, "a comparison");
  for (int64_t i = 0; status == FLP_OK && i < count; i++) {
    double right = right_of(p, i), unit = isfinite(right) ? place_of(p->c.spec.dtype, right) : 1;
    double allowed = fabs(right) < 0x1p-126 ? 0x1p-126 : 0.501 * unit; /* a float subnormal may be 0 */
    check_numbers_set(&a, i, value_at(p, r->got, i), right, unit, allowed);
  }
  *out = check_numbers_judge(&a);
  cli_memory_free(&memory);
  return status;
}

static flp_status check_one(const shape *s, flp_dtype dtype, size_t factor, const check_how *how,
                            check_report *report) {
  problem p;
  run r = {0};
  check_metric metric;
  FLP_TRY(problem_create(s, dtype, factors[factor].value, &p));
  flp_status status = run_problem(&p, how, &r);
  if (status == FLP_OK) status = compare_values(&p, &r, &metric);
  if (status == FLP_OK) {
    const char *note =
        r.overrun || !call_has_gaps(r.got, (size_t)s->n, (size_t)s->columns * p.element, (size_t)p.stride * p.element)
            ? "wrote outside of rows"
            : NULL;
    metric.pass &= note == NULL;
    check_report_add(report, &p.c, how->options.rung, factors[factor].output, metric, note);
  }
  run_clear(&r);
  free(p.values);
  return status;
}

flp_status check_scale(const check_part *of, const check_how *how, check_report *report) {
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
    for (size_t j = 0; j < sizeof factors / sizeof factors[0]; j++)
      FLP_TRY(check_one(&shapes[i], of->dtype, j, how, report));
  return FLP_OK;
}

void check_scale_cases(const check_part *of, check_list *list) {
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) check_list_add(list, case_of(&shapes[i], of->dtype));
}

/* eager_case.c: a random problem on the host, ready for the eager rung and for the long double oracle. */
#include "tests/unit/support/eager_case.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/api/validate.h"
#include "runtime/base/half.h"
#include "runtime/base/operands.h"

double eager_case_random(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return (double)(*state >> 8) * 0x1p-23 - 1.0 + 0x1p-24;
}

static void *allocate(int64_t bytes) {
  void *memory = NULL;
  cr_assert_eq(posix_memalign(&memory, 256, (size_t)bytes + 256), 0);
  memset(memory, 0xff, (size_t)bytes + 256);
  return memory;
}

/* Stores value rounded to dtype; returns what was stored. */
static long double store(flp_dtype dtype, void *base, int64_t at, double value) {
  float exact = (float)value, kept;
  char *out = (char *)base + at * flp_half_bytes(dtype);
  flp_half_narrow(dtype, &exact, 1, out);
  flp_half_widen(dtype, out, 1, &kept);
  return (long double)kept;
}

static double load(flp_dtype dtype, const void *base, int64_t at) {
  float value;
  flp_half_widen(dtype, (const char *)base + at * flp_half_bytes(dtype), 1, &value);
  return (double)value;
}

void eager_case_set_hidden(eager_case *c, int64_t row, int64_t d, double value) {
  c->reference.hidden[row * c->spec.hidden + d] =
      store(c->spec.hidden_dtype, c->hidden, row * c->args.hidden_stride + d, value);
}

void eager_case_set_weight(eager_case *c, int64_t column, int64_t d, double value) {
  c->reference.weight[column * c->spec.hidden + d] =
      store(c->spec.weight_dtype, c->weight, column * c->args.weight_stride + d, value);
}

void eager_case_set_bias(eager_case *c, int64_t column, double value) {
  c->reference.bias[column] = store(c->spec.bias_dtype, c->bias, column, value);
}

void eager_case_set_target(eager_case *c, int64_t row, int64_t target) {
  if (c->spec.target_dtype == FLP_DTYPE_INT32)
    ((int32_t *)c->target)[row] = (int32_t)target;
  else
    ((int64_t *)c->target)[row] = target;
  c->reference.target[row] = target >= 0 && target < c->spec.vocab ? (int)target : -1;
}

void eager_case_set_targets(eager_case *c, int64_t row, int64_t k, int64_t target) {
  int64_t at = row * flp_spec_targets(&c->spec) + k;
  if (c->spec.target_dtype == FLP_DTYPE_INT32)
    ((int32_t *)c->target)[at] = (int32_t)target;
  else
    ((int64_t *)c->target)[at] = target;
}

int64_t eager_case_get_target(const eager_case *c, int64_t row) {
  return c->spec.target_dtype == FLP_DTYPE_INT32 ? ((int32_t *)c->target)[row] : ((int64_t *)c->target)[row];
}

void eager_case_set_lists(eager_case *c, const int64_t *ids, const int64_t *count) {
  int64_t n = c->args.n, vocab = c->spec.vocab, total = 0;
  for (int64_t row = 0; row < n; row++) total += count[row];
  free(c->list_offsets);
  free(c->list_ids);
  free(c->reference.listed);
  c->list_offsets = calloc((size_t)n + 1, sizeof *c->list_offsets);
  c->list_ids = calloc((size_t)total + 1, 8);
  c->reference.listed = calloc((size_t)(n * vocab) + 1, 1);
  for (int64_t row = 0, e = 0; row < n; row++) {
    for (int64_t end = e + count[row]; e < end; e++) {
      if (c->spec.target_dtype == FLP_DTYPE_INT32)
        ((int32_t *)c->list_ids)[e] = (int32_t)ids[e];
      else
        ((int64_t *)c->list_ids)[e] = ids[e];
      if (ids[e] >= 0 && ids[e] < vocab) c->reference.listed[row * vocab + ids[e]] = 1;
    }
    c->list_offsets[row + 1] = e;
  }
  c->args.list_offsets = c->list_offsets;
  c->args.list_ids = c->list_ids;
  c->args.list_count = total;
}

/* A number from 0 to below - 1. */
static int64_t random_below(uint32_t *state, int64_t below) {
  return (int64_t)((double)below * (0.5 + 0.4999 * eager_case_random(state)));
}

void eager_case_random_lists(eager_case *c, int64_t longest, uint32_t seed) {
  int64_t n = c->args.n, at = 0, *ids = calloc((size_t)(n * longest) + 1, 8), *count = calloc((size_t)n + 1, 8);
  uint32_t state = seed * 2654435761u + 12345u;
  for (int64_t row = 0; row < n; row++) {
    count[row] = 1 + random_below(&state, longest);
    for (int64_t i = 0; i < count[row]; i++) ids[at + i] = random_below(&state, c->spec.vocab);
    if (count[row] > 2) ids[at] = ids[at + count[row] - 1];
    if (c->reference.target[row] >= 0) ids[at + random_below(&state, count[row])] = eager_case_get_target(c, row);
    at += count[row];
  }
  eager_case_set_lists(c, ids, count);
  free(ids);
  free(count);
}

void eager_case_set_temperature(eager_case *c, int64_t row, double value) {
  c->temperature[row] = (float)value;
  c->reference.temperature[row] = (long double)(float)value;
}

static void fill(eager_case *c, uint32_t seed) {
  int64_t n = c->args.n, vocab = c->spec.vocab, depth = c->spec.hidden;
  uint32_t state = seed * 2654435761u + 12345u;
  double spread = 2.0 / sqrt((double)depth);
  for (int64_t i = 0; i < n * depth; i++) eager_case_set_hidden(c, i / depth, i % depth, 2 * eager_case_random(&state));
  for (int64_t i = 0; i < vocab * depth; i++)
    eager_case_set_weight(c, i / depth, i % depth, spread * eager_case_random(&state));
  for (int64_t v = 0; c->spec.has_bias && v < vocab; v++) eager_case_set_bias(c, v, eager_case_random(&state));
  for (int64_t i = 0; i < n; i++) {
    eager_case_set_target(c, i, (int64_t)((double)vocab * (0.5 + 0.4999 * eager_case_random(&state))));
    if (c->spec.per_row_temperature) eager_case_set_temperature(c, i, 1.25 + eager_case_random(&state));
    c->grad_logprob[i] = (float)eager_case_random(&state);
    c->grad_entropy[i] = (float)eager_case_random(&state);
    c->reference.grad_logprob[i] = (long double)c->grad_logprob[i];
    if (c->spec.entropy == FLP_ENTROPY_BACKWARD) c->reference.grad_entropy[i] = (long double)c->grad_entropy[i];
  }
}

static void allocate_all(eager_case *c, int64_t n) {
  const flp_spec *spec = &c->spec;
  int64_t width = spec->hidden + c->padding, wide = 4 * width, targets = n * flp_spec_targets(spec);
  c->hidden = allocate(n * wide);
  c->weight = allocate(spec->vocab * wide);
  c->bias = allocate(spec->vocab * 4);
  c->target = allocate(targets * 8);
  c->temperature = allocate(n * 4);
  c->logprob = allocate(targets * 4);
  c->entropy = allocate(n * 4);
  c->stats = allocate(n * 16);
  c->partial = allocate(n * 16);
  c->grad_logprob = allocate(targets * 4);
  c->grad_entropy = allocate(n * 4);
  c->grad_hidden = allocate(n * wide);
  c->grad_weight = allocate(spec->vocab * wide);
  c->grad_bias = allocate(spec->vocab * 4);
}

void eager_case_create(eager_case *c, const flp_spec *spec, int64_t n, uint32_t seed) {
  memset(c, 0, sizeof *c);
  cr_assert_eq(flp_spec_resolve(spec, &c->spec), FLP_OK, "%s", flp_error_detail());
  c->padding = 16;
  c->budget = UINT64_C(256) << 20;
  allocate_all(c, n);
  flp_args args = FLP_ARGS_INIT;
  int64_t stride = c->spec.hidden + c->padding;
  args.n = n;
  args.hidden = c->hidden;
  args.weight = c->weight;
  args.hidden_stride = args.weight_stride = args.grad_hidden_stride = args.grad_weight_stride = stride;
  args.target = c->target;
  if (c->spec.has_bias) args.bias = c->bias;
  if (c->spec.per_row_temperature) args.temperature_rows = c->temperature;
  c->args = args;
  long_problem_create(&c->reference, (int)n, (int)c->spec.vocab, (int)c->spec.hidden);
  c->reference.softcap = (long double)c->spec.softcap;
  fill(c, seed);
}

void eager_case_destroy(eager_case *c) {
  void *const blocks[] = {c->hidden,      c->weight,       c->bias,         c->target,
                          c->temperature, c->logprob,      c->entropy,      c->stats,
                          c->partial,     c->grad_logprob, c->grad_entropy, c->grad_hidden,
                          c->grad_weight, c->grad_bias,    c->list_offsets, c->list_ids};
  for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) free(blocks[i]);
  long_problem_destroy(&c->reference);
}

static flp_status layout_of(const eager_case *c, const flp_args *args, flp_layout *out) {
  if (!c->spec.listed || args->pass == FLP_PASS_COMBINE)
    return flp_eager_layout(&c->spec, args->pass, args->n, c->budget, c->threads, out);
  return flp_eager_layout_listed(&c->spec, args->pass, args->n, args->list_count, c->budget, c->threads, out);
}

flp_status eager_case_run(eager_case *c, const flp_args *args) {
  flp_layout layout = FLP_LAYOUT_INIT;
  flp_status status = layout_of(c, args, &layout);
  if (status != FLP_OK) return status;
  flp_args resolved, given = *args;
  given.workspace = allocate((int64_t)layout.bytes);
  given.workspace_bytes = layout.bytes;
  status = flp_args_resolve(&c->spec, &given, &resolved);
  if (status == FLP_OK) status = flp_eager_execute(&c->spec, &resolved, c->threads, &c->bad_rows);
  for (size_t i = 0; i < 256; i++) /* the guard behind the workspace is untouched */
    cr_assert_eq(((unsigned char *)given.workspace)[layout.bytes + i], 0xff);
  free(given.workspace);
  return status;
}

void eager_case_forward(eager_case *c) {
  size_t n = (size_t)c->args.n;
  memset(c->logprob, 0xff, n * 4 * (size_t)flp_spec_targets(&c->spec));
  memset(c->entropy, 0xff, n * 4);
  memset(c->stats, 0xff, n * 16);
  flp_args args = c->args;
  args.pass = FLP_PASS_FORWARD;
  args.logprob = c->logprob;
  args.entropy = c->spec.entropy == FLP_ENTROPY_NONE ? NULL : c->entropy;
  args.stats = c->stats;
  cr_assert_eq(eager_case_run(c, &args), FLP_OK, "%s", flp_error_detail());
}

void eager_case_backward(eager_case *c) {
  size_t n = (size_t)c->args.n, width = 4 * (size_t)(c->spec.hidden + c->padding);
  memset(c->grad_hidden, 0xff, n * width);
  if (!c->spec.accumulate_grad_weight) memset(c->grad_weight, 0xff, (size_t)c->spec.vocab * width);
  memset(c->grad_bias, 0xff, (size_t)c->spec.vocab * 4);
  flp_args args = c->args;
  args.pass = FLP_PASS_BACKWARD;
  args.stats = c->stats;
  args.grad_logprob = c->grad_logprob;
  args.grad_entropy = c->spec.entropy == FLP_ENTROPY_BACKWARD ? c->grad_entropy : NULL;
  args.grad_hidden = c->spec.grads & FLP_GRAD_HIDDEN ? c->grad_hidden : NULL;
  args.grad_weight = c->spec.grads & FLP_GRAD_WEIGHT ? c->grad_weight : NULL;
  args.grad_bias = c->spec.grads & FLP_GRAD_BIAS ? c->grad_bias : NULL;
  cr_assert_eq(eager_case_run(c, &args), FLP_OK, "%s", flp_error_detail());
}

double eager_case_grad_hidden(const eager_case *c, int64_t row, int64_t d) {
  return load(c->spec.grad_hidden_dtype, c->grad_hidden, row * c->args.grad_hidden_stride + d);
}

double eager_case_grad_weight(const eager_case *c, int64_t column, int64_t d) {
  return load(c->spec.grad_weight_dtype, c->grad_weight, column * c->args.grad_weight_stride + d);
}

double eager_case_grad_bias(const eager_case *c, int64_t column) {
  return load(c->spec.grad_bias_dtype, c->grad_bias, column);
}

static void expect_close(const char *what, int64_t i, double got, double wanted, double tolerance) {
  double allowed = tolerance * fmax(1.0, fabs(wanted));
  cr_assert(fabs(got - wanted) <= allowed, "%s[%ld] is %.9g, the oracle has %.9g", what, (long)i, got, wanted);
}

void eager_case_check_forward(const eager_case *c, double tolerance) {
  for (int64_t row = 0; row < c->args.n; row++) {
    if (c->reference.target[row] < 0) continue;
    long double logprob, entropy;
    long_forward(&c->reference, (int)row, &logprob, &entropy);
    expect_close("logprob", row, (double)c->logprob[row], (double)logprob, tolerance);
    cr_assert_leq(c->logprob[row], 0.0f);
    if (c->spec.entropy != FLP_ENTROPY_NONE)
      expect_close("entropy", row, (double)c->entropy[row], (double)entropy, tolerance);
  }
}

/* Every derivative costs two passes of the oracle, so a large tensor is looked at in at most about 150 places. */
static int64_t step_of(int64_t count) {
  return count <= 150 ? 1 : count / 150 | 1;
}

void eager_case_check_backward(eager_case *c, double tolerance) {
  int64_t depth = c->spec.hidden, rows = c->args.n * depth, columns = c->spec.vocab * depth;
  long_problem *reference = &c->reference;
  for (int64_t i = 0; c->spec.grads & FLP_GRAD_HIDDEN && i < rows; i += step_of(rows))
    if (reference->target[i / depth] >= 0)
      expect_close("grad_hidden", i, eager_case_grad_hidden(c, i / depth, i % depth),
                   (double)long_derivative(reference, reference->hidden + i), tolerance);
  for (int64_t i = 0; c->spec.grads & FLP_GRAD_WEIGHT && i < columns; i += step_of(columns))
    expect_close("grad_weight", i, eager_case_grad_weight(c, i / depth, i % depth),
                 (double)long_derivative(reference, reference->weight + i), tolerance);
  for (int64_t v = 0; c->spec.grads & FLP_GRAD_BIAS && v < c->spec.vocab; v += step_of(c->spec.vocab))
    expect_close("grad_bias", v, eager_case_grad_bias(c, v), (double)long_derivative(reference, reference->bias + v),
                 tolerance);
}

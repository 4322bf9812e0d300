/* eager_passes.c: all passes of an eager_case beside the oracle, and what changes no bit of them. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/half.h"
#include "runtime/kernel/abi.h"
#include "tests/unit/support/eager_case.h"

enum { SHARDS = 3 };

/* What stats hold of a row without a gradient would spread if it were read. */
static void check_backward(eager_case *c, double tolerance) {
  float *stats = memcpy(malloc((size_t)c->args.n * 16 + 1), c->stats, (size_t)c->args.n * 16);
  for (int64_t i = 0; i < 4 * c->args.n; i++)
    if (!eager_case_has_gradient(c, i / 4)) c->stats[i] = NAN;
  eager_case_backward(c);
  eager_case_check_backward(c, tolerance);
  memcpy(c->stats, stats, (size_t)c->args.n * 16);
  free(stats);
}

static void run(eager_case *c, const char *bits, const char *what) {
  eager_case_forward(c);
  if (c->spec.grads) eager_case_backward(c);
  eager_case_expect_bits(c, bits, c->spec.grads, what);
}

/* Threads, workspaces, the other gradients of a mask, and whether the best columns are asked for. */
static void expect_bits(eager_case *c, const char *bits) {
  const int runs[][2] = {{1, 0}, {3, 0}, {2, 1}, {1, 2}};
  const flp_spec spec = c->spec;
  const int threads = c->threads;
  for (int i = 0; i < 4; i++) {
    c->threads = runs[i][0];
    c->squeeze = runs[i][1];
    run(c, bits, c->squeeze ? "in a smaller workspace" : "with other threads");
  }
  c->threads = threads;
  c->squeeze = 0;
  for (uint32_t mask = 1; mask < spec.grads; mask++) {
    if (mask & ~spec.grads) continue;
    c->spec.grads = mask;
    eager_case_backward(c);
    eager_case_expect_bits(c, bits, mask, "without the other gradients");
  }
  c->spec = spec;
  if (!spec.topk && !spec.rank) return;
  c->spec.topk = c->spec.rank = 0;
  flp_args args = eager_case_args(c, FLP_PASS_FORWARD);
  memset(c->logprob, 0xff, (size_t)c->args.n * 4);
  memset(c->stats, 0xff, (size_t)c->args.n * 16);
  cr_assert_eq(eager_case_run(c, &args), FLP_OK, "%s", flp_error_detail());
  c->spec = spec;
  eager_case_expect_bits(c, bits, 0, "without the best columns");
}

/* Rows from first on, by themselves: lists do not begin with the first id then. */
static void expect_rows_alone(eager_case *c, int64_t first, int64_t count) {
  const flp_args whole = c->args;
  size_t targets = (size_t)c->reference.targets, at = (size_t)first * targets;
  float *logprob = memcpy(malloc((size_t)whole.n * targets * 4 + 1), c->logprob, (size_t)whole.n * targets * 4);
  if (whole.rows || first < 0 || count > whole.n) return free(logprob);
  c->args.n = count;
  c->args.hidden = (const char *)whole.hidden + first * whole.hidden_stride * flp_half_bytes(c->spec.hidden_dtype);
  c->args.target = (const char *)whole.target + at * (c->spec.target_dtype == FLP_DTYPE_INT32 ? 4 : 8);
  if (whole.temperature_rows) c->args.temperature_rows = whole.temperature_rows + first;
  if (whole.list_offsets) c->args.list_offsets = whole.list_offsets + first;
  eager_case_forward(c);
  cr_assert_eq(memcmp(c->logprob, logprob + at, (size_t)count * targets * 4), 0, "logprob of rows alone");
  c->args = whole;
  free(logprob);
}

/* 0.25 + gradient in columns that any row lists; others are left alone: -0 + 0 would lose its sign. */
static void expect_accumulation(eager_case *c) {
  int64_t stride = c->args.grad_weight_stride, count = c->spec.vocab * stride, columns = eager_case_columns(c);
  float *got = eager_case_output(c, FLP_GRAD_WEIGHT)->data, *plain, *start = malloc((size_t)count * 4);
  plain = memcpy(malloc((size_t)count * 4), got, (size_t)count * 4);
  for (int64_t i = 0; i < count; i++) {
    int listed = !c->spec.listed;
    for (int64_t row = 0; !listed && row < c->args.n; row++)
      listed = i / stride < columns && c->reference.listed[row * columns + i / stride];
    got[i] = start[i] = listed ? 0.25f : -0.0f;
  }
  c->spec.accumulate_grad_weight = 1;
  flp_args args = eager_case_args(c, FLP_PASS_BACKWARD);
  cr_assert_eq(eager_case_run(c, &args), FLP_OK, "%s", flp_error_detail());
  for (int64_t i = 0; i < count; i++) {
    int is_left = signbit(start[i]) || i % stride >= c->spec.hidden;
    float want = is_left ? start[i] : start[i] + plain[i];
    int same = got[i] == want && !signbit(got[i]) == !signbit(want);
    cr_assert(isnan(want) ? isnan(got[i]) : same, "grad_weight[%ld]: %g", (long)i, (double)got[i]);
  }
  c->spec.accumulate_grad_weight = 0;
  memcpy(got, plain, (size_t)count * 4);
  free(plain);
  free(start);
}

/* ---- vocab shards: a large one, a small one and the rest, each with two columns of padding ---- */

typedef struct shards {
  eager_case *c;
  flp_spec whole;
  int64_t offsets[SHARDS + 1];
  float *partial, *raw; /* (SHARDS, n, 4), (SHARDS, n, targets) */
  long double *t;
} shards;

static flp_args shard_args(shards *s, flp_pass pass, int shard) {
  eager_case *c = s->c;
  int64_t offset = s->offsets[shard], bytes = 4;
  c->spec.vocab = s->offsets[shard + 1] - offset + 2;
  flp_args args = eager_case_args(c, pass);
  args.weight = (const char *)c->weight + offset * c->args.weight_stride * bytes;
  if (c->spec.has_bias) args.bias = (const char *)c->bias + offset * bytes;
  if (c->spec.lora_rank) args.lora_b = (const char *)c->lora_b + offset * c->spec.lora_rank * bytes;
  args.vocab_offset = offset;
  args.vocab_valid = s->offsets[shard + 1] - offset;
  args.vocab_total = s->whole.vocab;
  return args;
}

static int is_within(const shards *s, int shard, int64_t column) {
  return column >= s->offsets[shard] && column < s->offsets[shard + 1];
}

/* The partial of a row that is not bad on this shard. */
static void check_scores(const shards *s, int shard, int64_t row, const float *partial) {
  long double maximum = -INFINITY, sum = 0;
  for (int64_t v = s->offsets[shard]; v < s->offsets[shard + 1]; v++) maximum = fmaxl(maximum, s->t[v]);
  if (maximum == -INFINITY) {
    cr_assert(partial[0] == -FLP_SCORE_LIMIT && partial[1] == 0 && partial[2] == 0, "row %ld is empty", (long)row);
    return;
  }
  double allowed = 3e-6 + 3 * s->c->product / (double)s->c->reference.temperature[row];
  for (int64_t v = s->offsets[shard]; v < s->offsets[shard + 1]; v++) sum += expl(s->t[v] - maximum);
  double top = (double)(maximum * M_LOG2El), log_sum = (double)log2l(sum);
  cr_assert_float_eq(partial[0], top, allowed * fmax(1, fabs(top)));
  cr_assert_float_eq((double)partial[0] - top + log2((double)partial[1]), log_sum, allowed * fmax(1, fabs(top)));
}

static void check_partial(const shards *s, int shard, int64_t row) {
  const long_problem *p = &s->c->reference;
  int64_t at = shard * p->n + row, kind = s->c->kind[row];
  const float *partial = s->partial + 4 * at;
  int is_bad = kind == EAGER_ROW_BAD || kind == EAGER_ROW_BAD_LIST;
  is_bad |= kind == EAGER_ROW_NO_TARGET && is_within(s, shard, p->target[row]);
  for (int64_t k = 0; k < p->targets; k++) {
    int target = p->target[row * p->targets + k];
    float got = p->targets > 1 ? s->raw[at * p->targets + k] : partial[3];
    if (kind == EAGER_ROW_LEFT_OUT || is_bad || target < 0 || !is_within(s, shard, target))
      cr_assert_eq(got, -INFINITY, "row %ld: a target that is not on shard %d", (long)row, shard);
    else if (kind == EAGER_ROW_ACTIVE) {
      double want = (double)long_raw_score(p, (int)row, target);
      double off = (double)got == want ? 0 : fabs((double)got - want);
      cr_assert_leq(off, 1e-6 * fmax(1, fabs(want)), "row %ld: %g", (long)row, (double)got);
    }
  }
  if (kind == EAGER_ROW_LEFT_OUT)
    cr_assert(partial[0] == -FLP_SCORE_LIMIT && partial[1] == 0 && partial[2] == 0, "row %ld", (long)row);
  if (is_bad) cr_assert(isnan(partial[0]), "row %ld", (long)row);
  if (kind != EAGER_ROW_ACTIVE) return;
  check_scores(s, shard, row, partial);
  if (s->whole.topk)
    eager_case_check_top(s->c, row, s->t, 0, s->offsets[shard], s->offsets[shard + 1] - s->offsets[shard]);
}

static void forward_shard(shards *s, int shard) {
  eager_case *c = s->c;
  int64_t n = c->args.n;
  flp_args args = shard_args(s, FLP_PASS_FORWARD, shard);
  args.logprob = args.entropy = args.stats = args.top_rest = NULL;
  args.rank = NULL;
  args.partial = s->partial + 4 * n * shard;
  if (c->reference.targets > 1) args.partial_targets = s->raw + n * c->reference.targets * shard;
  cr_assert_eq(eager_case_run(c, &args), FLP_OK, "%s", flp_error_detail());
  for (int64_t row = 0; row < n; row++) {
    int kind = c->kind[row];
    if (kind == EAGER_ROW_ACTIVE) long_read(&c->reference, (int)row, s->t);
    check_partial(s, shard, row);
    c->bad_rows -= kind == EAGER_ROW_BAD || kind == EAGER_ROW_BAD_LIST ||
                   (kind == EAGER_ROW_NO_TARGET && is_within(s, shard, c->reference.target[row]));
  }
  for (int64_t i = 0; i < c->args.row_count; i++) c->bad_rows -= c->args.rows[i] < 0 || c->args.rows[i] >= n;
}

static void combine(shards *s, double tolerance) {
  eager_case *c = s->c;
  for (int shard = 0; shard < SHARDS; shard++) forward_shard(s, shard);
  c->spec = s->whole;
  c->spec.topk = c->spec.rank = 0;
  flp_args args = eager_case_args(c, FLP_PASS_COMBINE);
  args.partial = s->partial;
  if (c->reference.targets > 1) args.partial_targets = s->raw;
  args.shard_count = SHARDS;
  args.vocab_total = s->whole.vocab;
  cr_assert_eq(eager_case_run(c, &args), FLP_OK, "%s", flp_error_detail());
  c->merged = 1;
  eager_case_check_forward(c, fmax(2e-6, 5 * tolerance));
  c->merged = 0;
  cr_assert_eq(c->bad_rows, eager_case_bad_rows(c, FLP_PASS_COMBINE), "combine counts %d bad rows",
               (int)c->bad_rows);
}

/* Gradients of hidden and A are sums over shards, those of columns stand in their shard, with zeros behind them. */
static void add_gradients(const shards *s, int shard, float *sums[EAGER_OUTPUTS]) {
  int64_t valid = s->offsets[shard + 1] - s->offsets[shard];
  for (int i = 0; i < EAGER_OUTPUTS; i++) {
    const eager_output *out = &s->c->outputs[i];
    const float *data = out->data;
    int64_t count = out->rows * out->stride, width = out->stride;
    if (!out->grad || !data) continue;
    if (out->grad & (FLP_GRAD_HIDDEN | FLP_GRAD_LORA_A)) {
      for (int64_t at = 0; at < count; at++) sums[i][at] += data[at];
      continue;
    }
    memcpy(sums[i] + s->offsets[shard] * width, data, (size_t)(valid * width) * 4);
    for (int64_t at = valid * width; at < (valid + 2) * width; at++)
      cr_assert(at % width >= out->width || data[at] == 0, "%s behind shard %d", out->name, shard);
  }
}

static void check_gradients(shards *s, double tolerance) {
  eager_case *c = s->c;
  float *sums[EAGER_OUTPUTS];
  for (int i = 0; i < EAGER_OUTPUTS; i++) sums[i] = calloc(c->outputs[i].bytes + 1, 1);
  for (int shard = 0; shard < SHARDS; shard++) {
    flp_args args = shard_args(s, FLP_PASS_BACKWARD, shard);
    cr_assert_eq(eager_case_run(c, &args), FLP_OK, "%s", flp_error_detail());
    add_gradients(s, shard, sums);
  }
  c->spec = s->whole;
  for (int i = 0; i < EAGER_OUTPUTS; i++) {
    if (c->outputs[i].grad && c->outputs[i].data) memcpy(c->outputs[i].data, sums[i], c->outputs[i].bytes);
    free(sums[i]);
  }
  eager_case_check_backward(c, tolerance);
}

static void check_shards(eager_case *c, double forward, double backward) {
  size_t n = (size_t)c->args.n, targets = (size_t)c->reference.targets, vocab = (size_t)c->spec.vocab;
  int64_t first = c->spec.vocab * 13 / 31, small = c->spec.vocab / 31;
  shards s = {.c = c, .whole = c->spec, .offsets = {0, first, first + small, c->spec.vocab}};
  s.partial = aligned_alloc(16, SHARDS * n * 16 + 16);
  s.raw = calloc(SHARDS * n * targets + 1, sizeof *s.raw);
  s.t = calloc(vocab, sizeof *s.t);
  eager_case_sync(c);
  c->bad_rows = 0;
  combine(&s, forward);
  if (s.whole.grads) check_gradients(&s, backward);
  c->spec = s.whole;
  free(s.partial);
  free(s.raw);
  free(s.t);
}

void eager_case_check_all(eager_case *c, double forward, double backward) {
  const uint64_t before = c->bad_rows = 7; /* passes add to it */
  eager_case_forward(c);
  eager_case_check_forward(c, forward);
  cr_assert_eq(c->bad_rows - before, eager_case_bad_rows(c, FLP_PASS_FORWARD), "%d", (int)c->bad_rows);
  if (c->spec.grads) check_backward(c, backward);
  cr_assert_eq(c->bad_rows - before,
               eager_case_bad_rows(c, FLP_PASS_FORWARD) +
                   (c->spec.grads ? eager_case_bad_rows(c, FLP_PASS_BACKWARD) : 0));
  char *bits = eager_case_snapshot(c);
  expect_bits(c, bits);
  expect_rows_alone(c, 0, 1);
  eager_case_forward(c);
  expect_rows_alone(c, c->args.n - c->args.n / 3, c->args.n / 3);
  eager_case_forward(c);
  int is_fp32 = c->spec.dtype == FLP_DTYPE_FP32;
  if ((c->spec.grads & FLP_GRAD_WEIGHT) && c->spec.grad_weight_dtype == FLP_DTYPE_FP32) {
    eager_case_backward(c);
    expect_accumulation(c);
  }
  if (is_fp32 && c->spec.vocab >= 62 && !c->args.vocab_valid && c->args.n > 0) check_shards(c, forward, backward);
  free(bits);
}

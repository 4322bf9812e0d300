/* test_eager_cases.c: one table of problems, each run on the eager rung beside the long double oracle: forward,
 * backward, shards of the vocabulary and what adds to a gradient; and the same bits in other threads, workspaces and
 * masks, and for rows that stand elsewhere. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/support/eager_case.h"
#include "tests/unit/support/rows.h"

enum { B = 1 << FLP_DTYPE_BF16, H = 1 << FLP_DTYPE_FP16, F = 1 << FLP_DTYPE_FP32, EACH = B | H | F };

typedef struct row {
  const char *name;
  int dtypes;
  int64_t n;
  flp_spec spec;
  int64_t longest;       /* of lists; 0: no lists */
  int no_entropy;        /* else its value and gradient */
  double forward, backward; /* tolerances; 0: what the dtype allows */
  void (*edge)(eager_case *c);
} row;

/* ---- edges: what a case has that a random one has not ---- */

static void scaled(eager_case *c) {
  c->args.scale = -1.5f;
  if (!c->spec.per_row_temperature) c->args.temperature = 0.75f;
}

static void sharp(eager_case *c) {
  c->args.scale = 40; /* the likeliest column has nearly all of a row */
}

static void temperatures_of(eager_case *c, const double *values) {
  c->product = 2e-7;
  for (int i = 0; i < 7; i++) c->temperature[i] = (float)values[i];
}

static void temperatures(eager_case *c) {
  temperatures_of(c, (const double[]){1e-3, 1e-2, 0.1, 1, 10, 100, 1000});
}

/* Scores that fp32 does not tell apart by one. */
static void low_temperatures(eager_case *c) {
  temperatures_of(c, (const double[]){1e-5, 1e-6, 1e-7, 1e-8, 2e-8, 5e-8, 2e-7});
}

/* Small multiples of 1/64 beside 10^4: every product and sum is exact in fp32. */
static void shifted(eager_case *c) {
  uint32_t state = 9;
  for (int i = 0; i < c->args.n * 8; i++) eager_case_set_hidden(c, i / 8, i % 8, round(8 * test_random(&state)) / 8);
  for (int i = 0; i < c->spec.vocab * 8; i++)
    eager_case_set_weight(c, i / 8, i % 8, round(8 * test_random(&state)) / 8);
  for (int v = 0; v < c->spec.vocab; v++) eager_case_set_bias(c, v, 10000);
}

/* The whole first tile among them, and the target of row 4, of whose logprob no gradient is asked. */
static void minus_infinities(eager_case *c) {
  for (int v = 0; v < c->spec.vocab; v++)
    if (v < 130 || v % 3 == 0) eager_case_set_bias(c, v, -INFINITY);
  for (int i = 0; i < 4; i++) eager_case_set_target(c, i, 0, 200 + 3 * i); /* 200 % 3 = 2 */
  eager_case_set_target(c, 4, 0, 3);
  c->grad_logprob[4] = 0;
}

static void nothing_but_minus_infinities(eager_case *c) {
  for (int v = 0; v < c->spec.vocab; v++) eager_case_set_bias(c, v, -INFINITY);
}

static void nan_and_infinity(eager_case *c) {
  eager_case_set_hidden(c, 3, 5, NAN);
  eager_case_set_hidden(c, c->args.n - 1, 0, INFINITY);
}

/* A head of one hidden number, 1, and two columns, whose scores thus are the weights over T. */
static void two_columns(eager_case *c, double first, double second) {
  for (int64_t i = 0; i < c->args.n; i++) {
    for (int64_t d = 0; d < 8; d++) eager_case_set_hidden(c, i, d, d == 0);
    c->temperature[i] = (float)M_LOG2E / (i == 1 ? 2 : i == 3 ? 4 : 1); /* log2(e): weights are scores in log2 units */
    eager_case_set_target(c, i, 0, 0);
  }
  eager_case_set_weight(c, 0, 0, first);
  eager_case_set_weight(c, 1, 0, second);
}

/* Rows 1 and 3 are beyond the limit, 2^30. */
static void beyond(eager_case *c) {
  two_columns(c, 0x1p30 * 0.999, 0x1p30 * 0.75);
}

static void beyond_below(eager_case *c) {
  two_columns(c, -0x1p30 * 0.75, -0x1p30 * 0.999);
}

/* Such a score is no bad one. */
static void far_below_the_largest(eager_case *c) {
  two_columns(c, -1e20, 0.5);
  c->temperature[1] = 1e-9f;
}

static void certain(eager_case *c) {
  for (int i = 0; i < 2 * 8; i++) eager_case_set_hidden(c, i / 8, i % 8, i % 8 == 0);
  for (int v = 0; v < c->spec.vocab; v++) eager_case_set_weight(c, v, 0, v == 17 ? 200 : -200);
  eager_case_set_target(c, 0, 0, 17);
  eager_case_set_target(c, 1, 0, 18);
}

static void next_to_zero(eager_case *c) {
  c->args.temperature = 1e-8f;
  c->product = 4e-7;
}

static void ignored(eager_case *c) {
  eager_case_set_target(c, 1, 0, -100);
  eager_case_set_target(c, 4, 0, -100);
  eager_case_set_hidden(c, 1, 0, NAN); /* never read */
}

static void ignored_by_7(eager_case *c) {
  c->args.ignore_index = 7;
  eager_case_set_target(c, 0, 0, 7);
  eager_case_set_target(c, 1, 0, -100);
}

static void bad(eager_case *c) {
  eager_case_set_target(c, 0, 0, c->spec.vocab);
  eager_case_set_target(c, 2, 0, -1);
  c->temperature[3] = 0;
  c->temperature[5] = INFINITY;
  c->temperature[6] = NAN;
}

/* Row lists are sets. */
static void row_list(eager_case *c) {
  static const int32_t rows[] = {4, 1, 4, -1, 6, 1};
  c->args.rows = rows;
  c->args.row_count = 6;
  eager_case_set_hidden(c, 0, 0, NAN);
}

static void no_row(eager_case *c) {
  static const int32_t none = 0;
  c->args.rows = &none;
}

static void no_gradient(eager_case *c) {
  c->grad_logprob[2] = c->grad_entropy[2] = 0;
  c->grad_logprob[4] = 0; /* its entropy still counts */
  eager_case_set_hidden(c, 2, 0, 1);
}

static void padded(eager_case *c) {
  c->args.vocab_valid = 17;
  for (int i = 0; i < c->args.n; i++) eager_case_set_target(c, i, 0, i == 1 ? -100 : i);
}

/* A shard of minus infinities, a target in the small shard, and at the ends of all. */
static void of_shards(eager_case *c) {
  for (int v = 130; v < 140; v++) eager_case_set_bias(c, v, -INFINITY);
  for (int i = 0; i < 4; i++) eager_case_set_target(c, i, 0, 43 * i);
  eager_case_set_target(c, 4, 0, 140);
  eager_case_set_target(c, 5, 0, c->spec.vocab);
  eager_case_set_target(c, 6, 0, -100);
}

static void every_column(eager_case *c) {
  for (int64_t at = 0; at < c->args.n * c->spec.targets; at++) {
    int64_t i = at / c->spec.targets, k = at % c->spec.targets;
    eager_case_set_target(c, i, k, i == 1 ? 17 : (k + i) % c->spec.vocab);
    c->grad_logprob[at] = 1;
  }
}

/* Rows 1 and 3 hold an id that is none; row 2 nothing but ignored ids. */
static void bad_targets(eager_case *c) {
  for (int64_t at = 0; at < 20; at++) {
    eager_case_set_target(c, at / 4, at % 4, at / 4 == 2 ? -100 : at);
    c->grad_logprob[at] = 0.5f;
  }
  eager_case_set_target(c, 1, 2, c->spec.vocab);
  eager_case_set_target(c, 3, 0, -1);
  eager_case_set_target(c, 3, 1, INT64_MAX);
  eager_case_set_target(c, 3, 2, -100);
}

/* Ignored entries are 0 beside targets that are NaN, in a row whose scores are. */
static void nan_targets(eager_case *c) {
  for (int64_t at = 0; at < 4; at++) eager_case_set_target(c, at / 2, at % 2, at == 1 ? -100 : at);
  eager_case_set_hidden(c, 0, 3, NAN);
  for (int64_t at = 0; at < 4; at++) c->grad_logprob[at] = 1;
}

/* Row 2 is NaN and has no gradient, which reaches no sum; rows 1 and 4 are left out. */
static void targets_without_gradient(eager_case *c) {
  static const int32_t rows[] = {0, 2, 3};
  for (int64_t at = 0; at < 15; at++) {
    eager_case_set_target(c, at / 3, at % 3, 2 * at);
    c->grad_logprob[at] = at / 3 == 2 ? 0 : 1;
  }
  memset(c->grad_entropy, 0, 5 * sizeof(float));
  eager_case_set_hidden(c, 2, 0, NAN);
  c->args.rows = rows;
  c->args.row_count = 3;
}

/* Scores 0 and 1, of which many are equal. */
static void equal_scores(eager_case *c) {
  c->exact = 1;
  for (int64_t i = 0; i < 3 * 8; i++) eager_case_set_hidden(c, i / 8, i % 8, i % 8 == 0);
  for (int64_t v = 0; v < c->spec.vocab; v++)
    for (int64_t d = 0; d < 8; d++) eager_case_set_weight(c, v, d, d == 0 ? (v * 7 % 5 == 4 ? 1 : v % 2) : 0);
  eager_case_set_target(c, 0, 0, 1);
  eager_case_set_target(c, 1, 0, 599);
  eager_case_set_target(c, 2, 0, 0);
}

/* The column at place 3·row. */
static void targets_among_the_best(eager_case *c) {
  long double *t = calloc((size_t)c->spec.vocab, sizeof *t);
  for (int64_t row = 0; row < c->args.n; row++) {
    long_read(&c->reference, (int)row, t);
    for (int64_t v = 0; v < c->spec.vocab; v++) {
      int64_t above = 0;
      for (int64_t other = 0; other < c->spec.vocab; other++) above += t[other] > t[v];
      if (above == 3 * row) eager_case_set_target(c, row, 0, v);
    }
  }
  free(t);
}

static void bad_top(eager_case *c) {
  static const int32_t rows[] = {0, 1, 2, 3, 4};
  c->args.rows = rows;
  c->args.row_count = 5;
  eager_case_set_target(c, 1, 0, -100);
  eager_case_set_target(c, 2, 0, 300);
  eager_case_set_hidden(c, 3, 2, NAN);
  c->temperature[4] = 1e-12f; /* scores beyond the limit */
}

static void few_finite(eager_case *c) {
  for (int v = 0; v < c->spec.vocab; v++)
    if (v % 50) eager_case_set_bias(c, v, -INFINITY);
  eager_case_set_target(c, 0, 0, 50);
  eager_case_set_target(c, 1, 0, 51);
}

/* One target for all rows, and their lists. */
static void set_lists(eager_case *c, int64_t target, const int64_t *ids, const int64_t *count) {
  for (int64_t i = 0; i < c->args.n; i++) eager_case_set_target(c, i, 0, target);
  eager_case_set_lists(c, ids, count);
}

static void all_listed(eager_case *c) {
  int64_t n = c->args.n, vocab = c->spec.vocab, *ids = calloc((size_t)(n * vocab), 8), *count = calloc((size_t)n, 8);
  for (int64_t i = 0; i < n; i++) count[i] = vocab;
  for (int64_t e = 0; e < n * vocab; e++) ids[e] = (7 * e + 5) % vocab; /* 7 and 150 have no common factor */
  eager_case_set_lists(c, ids, count);
  free(ids);
  free(count);
}

/* Good; two ids too large; too small; far too large; no target; nothing at all; good. */
static void bad_lists(eager_case *c) {
  static const int64_t ids[] = {5, 9, 30, 5, 50, 51, -1, 5, INT64_MIN, 5, INT64_MAX, 6, 7, 5, 49, 0};
  set_lists(c, 5, ids, (const int64_t[]){3, 3, 3, 2, 2, 0, 3});
}

static void twice_bad_lists(eager_case *c) {
  static const int64_t ids[] = {-1, 2, 3, 3, 60, 2}, targets[] = {50, 4, 7};
  for (int i = 0; i < 3; i++) eager_case_set_target(c, i, 0, targets[i]);
  eager_case_set_lists(c, ids, (const int64_t[]){2, 2, 2});
}

/* Entries before, between and behind the rows belong to none. */
static void gaps_of_lists(eager_case *c) {
  static const int64_t ids[] = {-7, -7, 5, 9, 5, 11, -7}, offsets[3] = {2, 4, 6};
  set_lists(c, 5, ids, (const int64_t[]){2, 5});
  memcpy(c->list_offsets, offsets, sizeof offsets);
}

/* NaN in a hidden row, a score beyond the limit, no score above -inf: NaN in the row, nothing in the head. */
static void nan_lists(eager_case *c) {
  static const int64_t ids[] = {5, 9, 5, 9, 20, 21, 5, 9};
  set_lists(c, 5, ids, (const int64_t[]){2, 2, 2, 2});
  eager_case_set_target(c, 2, 0, 20);
  eager_case_set_hidden(c, 0, 3, NAN);
  eager_case_set_weight(c, 9, 3, 1);
  eager_case_set_hidden(c, 1, 3, 1e10);
  eager_case_set_bias(c, 20, -INFINITY);
  eager_case_set_bias(c, 21, -INFINITY);
}

static void infinite_lists(eager_case *c) {
  static const int64_t ids[] = {5, 9, 20, 21};
  set_lists(c, 9, ids, (const int64_t[]){4});
  eager_case_set_bias(c, 20, -INFINITY);
}

/* The lists of rows that are left out are not looked at. */
static void lists_left_out(eager_case *c) {
  static const int64_t ids[] = {-1, 90, 5, 6, -1, 5, 9, -1, -1};
  static const int32_t rows[] = {3, 1, 0, 4, 3};
  for (int i = 0; i < 5; i++) eager_case_set_target(c, i, 0, i == 0 || i == 4 ? -100 : 5);
  eager_case_set_lists(c, ids, (const int64_t[]){2, 2, 1, 2, 2});
  c->args.rows = rows;
  c->args.row_count = 5;
}

/* An id outside the vocabulary, which every shard sees, and a list without the target, which one does. */
static void lists_of_shards(eager_case *c) {
  int64_t *ids = c->list_ids;
  ids[c->list_offsets[2]] = c->spec.vocab;
  eager_case_set_target(c, 5, 0, 0);
  for (int64_t e = c->list_offsets[5]; e < c->list_offsets[6]; e++) ids[e] = 1 + 8 * (e - c->list_offsets[5]);
}

static void adapter(eager_case *c) {
  c->args.lora_scale = c->args.n == 1 ? 2 : -0.75f;
}

static void ends_of_shards(eager_case *c) {
  const int64_t targets[] = {135, 130, 140}; /* in the small shard, of which few rows list a column; and at both ends */
  for (int i = 0; i < 3; i++) {
    eager_case_set_target(c, i, 0, targets[i]);
    ((int64_t *)c->list_ids)[c->list_offsets[i]] = targets[i];
  }
}

/* ---- the table ---- */

#define FP32 FLP_DTYPE_FP32
#define INT32 FLP_DTYPE_INT32
/* gradients in fp32; tolerances of an adapter, whose u is rounded once, by dtype */
#define WIDE .grad_hidden_dtype = FP32, .grad_weight_dtype = FP32, .grad_bias_dtype = FP32
#define SPLIT .mixed = FLP_MIXED_SPLIT, .grads = ALL, WIDE
#define LORA_FP32 .forward = 2e-5, .backward = 1e-4
#define LORA_BF16 .forward = 0x1p-4, .backward = 0x1p-3
#define LORA_FP16 .forward = 0x1p-7, .backward = 0x1p-6
#define CASE(title, set, rows, v, d, ...) \
  .name = title, .dtypes = set, .n = rows, .spec = {.vocab = v, .hidden = d, __VA_ARGS__}

static const row rows[] = {
    {CASE("smallest", EACH, 1, 2, 8, .grads = HEAD)},
    {CASE("one tile", EACH, 3, 37, 16, .grads = HEAD)},
    {CASE("tiles of both", EACH, 65, 129, 24, .grads = ALL)},
    {CASE("many tiles", EACH, 70, 700, 40, .grads = HEAD)},
    {CASE("wide", EACH, 5, 1300, 8, .grads = HEAD)},
    {CASE("chunks and panels", B, 150, 700, 520, .grads = ALL)},
    {CASE("columns of more than a tile", F, 70, 300, 8, .grads = ALL), .backward = 3e-6},
    {CASE("int32 targets", B, 9, 200, 32, .has_bias = 1, .target_dtype = INT32)},
    {CASE("no entropy", F, 4, 62, 8, .grads = ALL), .no_entropy = 1},
    {CASE("scores alone", B, 150, 1500, 264)},
    {CASE("fp32 gradients", H, 5, 130, 16, .grads = ALL, WIDE)},
    {CASE("an fp32 gradient", B, 5, 130, 16, .grads = FLP_GRAD_WEIGHT, .grad_weight_dtype = FP32)},
    {CASE("no rows", B | F, 0, 20, 8, .grads = ALL)},

    {CASE("softcap, scale, temperature", F, 6, 150, 16, .grads = ALL, .softcap = 2.5f), .edge = scaled},
    {CASE("softcap, scale, temperatures", F, 5, 70, 8, .grads = ALL, .softcap = 1.5f, .per_row_temperature = 1),
     .backward = 3e-6, .edge = scaled},
    {CASE("temperatures", B | F, 7, 300, 16, .per_row_temperature = 1), .edge = temperatures},
    {CASE("low temperatures", B | F, 7, 300, 16, .per_row_temperature = 1), .edge = low_temperatures},
    {CASE("a temperature next to zero", F, 5, 40, 8, .grads = ALL), .no_entropy = 1, .backward = 1e-3,
     .edge = next_to_zero},
    {CASE("beyond the limit", F, 4, 2, 8, .per_row_temperature = 1), .edge = beyond},
    {CASE("beyond the limit, below", F, 4, 2, 8, .per_row_temperature = 1), .edge = beyond_below},
    {CASE("far below the largest", F, 2, 2, 8, .per_row_temperature = 1), .forward = 1e-6,
     .edge = far_below_the_largest},
    {CASE("certain", F, 2, 62, 8, .grads = HEAD), .edge = certain},
    {CASE("a shift", F, 4, 140, 8, .has_bias = 1), .forward = 1.2e-7, .edge = shifted},
    {CASE("columns of -inf", B | F, 5, 290, 16, .grads = ALL), .edge = minus_infinities},
    {CASE("nothing but -inf", B | F, 3, 93, 8, .has_bias = 1), .edge = nothing_but_minus_infinities},
    {CASE("rows of NaN", H | F, 67, 260, 16, .grads = ALL), .edge = nan_and_infinity},
    {CASE("ignored rows", B | F, 5, 62, 8, .grads = HEAD), .edge = ignored},
    {CASE("another ignore index", B | F, 3, 62, 8, .grads = HEAD), .edge = ignored_by_7},
    {CASE("bad rows", F, 8, 62, 8, .grads = HEAD, .per_row_temperature = 1, .target_dtype = INT32), .edge = bad},
    {CASE("a row list", F, 6, 62, 8, .grads = HEAD), .edge = row_list},
    {CASE("an empty row list", F, 3, 62, 8, .grads = HEAD), .edge = no_row},
    {CASE("no gradient", F, 6, 62, 8, .grads = ALL), .edge = no_gradient},
    {CASE("padding", F, 4, 20, 8, .grads = ALL), .edge = padded},
    {CASE("shards", F, 7, 310, 16, .grads = ALL, .softcap = 4, .alignment = 4)},
    {CASE("an empty shard", F, 7, 310, 16, .grads = ALL, .alignment = 4), .edge = of_shards},

    {CASE("2 targets", F, 70, 300, 24, .grads = ALL, .targets = 2)},
    {CASE("3 targets", F, 70, 300, 24, .grads = ALL, .targets = 3), .backward = 3e-6},
    {CASE("20 targets", F, 70, 300, 24, .grads = ALL, .targets = 20), .backward = 2e-5},
    {CASE("64 targets", F, 70, 300, 24, .grads = ALL, .targets = 64), .backward = 6e-5},
    {CASE("targets, softcap, temperatures", F, 70, 300, 24, .grads = ALL, .targets = 7, .softcap = 3,
     .per_row_temperature = 1), .backward = 7e-6},
    {CASE("targets of sharp rows", F, 70, 300, 24, .grads = ALL, .targets = 7), .forward = 1e-5, .backward = 2.8e-4,
     .edge = sharp},
    {CASE("every column is a target", F, 3, 300, 24, .targets = 300), .edge = every_column},
    {CASE("bad targets", F, 5, 300, 24, .grads = ALL, .targets = 4), .edge = bad_targets},
    {CASE("targets of NaN scores", F, 2, 300, 24, .grads = ALL, .targets = 2), .edge = nan_targets},
    {CASE("targets without a gradient", F, 5, 300, 24, .grads = ALL, .targets = 3), .edge = targets_without_gradient},

    {CASE("all are the best", EACH, 1, 2, 8, .topk = 1, .rank = 1)},
    {CASE("the best", EACH, 3, 37, 16, .topk = 37, .target_dtype = INT32)},
    {CASE("the best 20", EACH, 65, 129, 24, .topk = 20, .rank = 1)},
    {CASE("the best 128", EACH, 9, 700, 40, .topk = 128, .rank = 1, .has_bias = 1)},
    {CASE("targets among the best", B | F, 9, 700, 40, .topk = 40, .rank = 1), .edge = targets_among_the_best},
    {CASE("the best 3", EACH, 5, 1300, 8, .topk = 3, .rank = 1, .target_dtype = INT32)},
    {CASE("the best of many panels", B, 70, 1500, 32, .topk = 20, .rank = 1)},
    {CASE("the best by temperatures", F, 5, 200, 16, .topk = 7, .rank = 1, .softcap = 2.5f, .has_bias = 1,
     .per_row_temperature = 1), .edge = scaled},
    {CASE("equal scores", F, 3, 600, 8, .topk = 100, .rank = 1), .edge = equal_scores},
    {CASE("no best", B | F, 6, 300, 16, .topk = 4, .rank = 1, .per_row_temperature = 1), .edge = bad_top},
    {CASE("fewer than the best", F, 2, 300, 8, .topk = 10, .rank = 1, .has_bias = 1), .edge = few_finite},
    {CASE("the best of no rows", F, 0, 30, 8, .topk = 12, .rank = 1)},

    {CASE("listed", EACH, 1, 2, 8, .grads = ALL), .longest = 2},
    {CASE("listed, one tile", EACH, 3, 37, 16, .grads = ALL), .longest = 12},
    {CASE("listed, tiles of both", EACH, 65, 129, 24, .grads = ALL), .longest = 5},
    {CASE("listed, wide", EACH, 5, 1300, 8, .grads = ALL), .longest = 200},
    {CASE("listed, deep", EACH, 3, 62, 1040, .grads = ALL), .longest = 9},
    {CASE("listed, many rows", B, 90, 300, 520, .grads = ALL), .longest = 60},
    {CASE("listed, int32", F, 9, 62, 16, .grads = HEAD, .target_dtype = INT32), .longest = 20, .no_entropy = 1},
    {CASE("listed, fp32 gradients", B, 9, 60, 16, .grads = ALL, WIDE), .longest = 20},
    {CASE("listed, softcap, scale, temperatures", F, 7, 70, 8, .grads = ALL, .softcap = 1.5f, .per_row_temperature = 1),
     .longest = 15, .backward = 2e-6, .edge = scaled},
    {CASE("listed, the target alone", F, 6, 62, 24, .grads = ALL), .longest = 1},
    {CASE("listed, all", F, 11, 150, 24, .grads = ALL), .longest = 1, .backward = 2e-6, .edge = all_listed},
    {CASE("bad lists", F, 7, 50, 8, .grads = ALL), .longest = 1, .edge = bad_lists},
    {CASE("rows bad twice over", F, 3, 50, 8, .grads = ALL), .longest = 1, .edge = twice_bad_lists},
    {CASE("gaps of lists", F, 2, 50, 8, .grads = ALL), .longest = 1, .edge = gaps_of_lists},
    {CASE("lists of NaN", F, 4, 50, 8, .grads = ALL), .longest = 1, .edge = nan_lists},
    {CASE("lists of -inf", F, 1, 50, 8, .grads = ALL), .longest = 1, .edge = infinite_lists},
    {CASE("lists left out", F, 5, 50, 8, .grads = ALL), .longest = 1, .edge = lists_left_out},
    {CASE("no lists", F, 0, 20, 8, .grads = ALL), .longest = 1},
    {CASE("listed, shards", F, 9, 310, 16, .grads = ALL, .softcap = 4, .alignment = 4), .longest = 12,
     .edge = ends_of_shards},
    {CASE("bad lists of shards", F, 9, 310, 16, .grads = ALL, .softcap = 4, .alignment = 4), .longest = 12,
     .edge = lists_of_shards},

    {CASE("adapter", F, 1, 2, 8, .lora_rank = 8, .grads = LORA), LORA_FP32, .edge = adapter},
    {CASE("adapter, bias", F, 5, 93, 16, .lora_rank = 8, .grads = LORA | FLP_GRAD_BIAS), LORA_FP32, .edge = adapter},
    {CASE("adapter of a high rank", F, 3, 140, 24, .lora_rank = 136, .grads = LORA, .softcap = 5), LORA_FP32,
     .edge = adapter},
    {CASE("adapter, bf16", B, 7, 90, 32, .lora_rank = 16, .grads = LORA), LORA_BF16},
    {CASE("adapter, fp16", H, 7, 90, 32, .lora_rank = 16, .grads = LORA, .grad_hidden_dtype = FP32,
     .grad_lora_dtype = FP32), LORA_FP16},
    {CASE("adapter of many panels", B, 150, 300, 40, .lora_rank = 24, .grads = LORA), LORA_BF16},
    {CASE("adapter, padding", F, 4, 20, 8, .lora_rank = 8, .grads = LORA), LORA_FP32, .edge = padded},
    {CASE("adapter, no rows", F, 0, 20, 8, .lora_rank = 8, .grads = LORA)},

    {CASE("split weight, bf16", B, 5, 37, 16, SPLIT, .weight_dtype = FP32), .forward = 5e-5, .backward = 5e-5},
    {CASE("split hidden, bf16", B, 5, 37, 16, SPLIT, .hidden_dtype = FP32), .forward = 5e-5, .backward = 5e-5},
    {CASE("split weight, fp16", H, 5, 37, 16, SPLIT, .weight_dtype = FP32), .forward = 4e-6, .backward = 4e-6},
    {CASE("split hidden, fp16", H, 5, 37, 16, SPLIT, .hidden_dtype = FP32), .forward = 4e-6, .backward = 4e-6},
};

/* Of the gradients' own dtype: half of a unit in the last place, with room for sums near a tie. */
static double backward_of(const row *r, const flp_spec *spec) {
  flp_dtype dtype = spec->grad_weight_dtype && spec->grad_weight_dtype != spec->dtype ? FLP_DTYPE_FP32 : spec->dtype;
  if (r->backward != 0) return r->backward;
  return dtype == FLP_DTYPE_BF16 ? 0x1.1p-8 : dtype == FLP_DTYPE_FP16 ? 0x1.1p-11 : r->longest ? 1e-6 : 2e-6;
}

static void check(const row *r, flp_dtype dtype) {
  eager_case c;
  flp_spec spec = r->spec;
  spec.struct_bytes = sizeof spec;
  spec.dtype = dtype;
  spec.listed = r->longest > 0;
  spec.entropy = r->no_entropy ? FLP_ENTROPY_NONE : FLP_ENTROPY_BACKWARD;
  spec.has_bias |= (spec.grads & FLP_GRAD_BIAS) != 0;
  if (!spec.target_dtype) spec.target_dtype = FLP_DTYPE_INT64;
  if (!spec.alignment) spec.alignment = 16;
  uint32_t seed = (uint32_t)(r - rows);
  eager_case_create_listed(&c, &spec, r->n, r->longest, seed);
  if (r->edge) r->edge(&c);
  eager_case_check_all(&c, r->forward != 0 ? r->forward : spec.listed ? 1.5e-7 : 4e-7, backward_of(r, &spec));
  eager_case_destroy(&c);
}

ParameterizedTestParameters(eager, cases) {
  return rows_numbered(sizeof rows / sizeof rows[0]);
}

ParameterizedTest(int *at, eager, cases) {
  const row *r = &rows[*at];
  cr_log_info("%s", r->name);
  for (int dtype = FLP_DTYPE_BF16; dtype <= FLP_DTYPE_FP32; dtype++)
    if (r->dtypes & 1 << dtype) check(r, (flp_dtype)dtype);
}

/* test_eager_top.c: the best columns and the rank of the target on the eager rung, against long double. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/support/eager_case.h"

typedef struct top {
  int64_t k;
  int64_t *ids; /* (n, k), also where ids are 32 bits */
  float *logprob, *rest;
  int32_t *rank;
} top;

static flp_spec make_spec(flp_dtype dtype, int64_t vocab, int64_t hidden, int topk, int rank) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.dtype = dtype;
  spec.vocab = vocab;
  spec.hidden = hidden;
  spec.topk = topk;
  spec.rank = rank;
  return spec;
}

static void *poisoned(int64_t count, size_t bytes) {
  void *memory = malloc((size_t)count * bytes + 16);
  memset(memory, 0x7f, (size_t)count * bytes + 16);
  return memory;
}

static void top_free(top *t) {
  free(t->ids);
  free(t->logprob);
  free(t->rest);
  free(t->rank);
}

/* Forward of the case with every output of its spec; ids as 64 bits. partial: of a shard, or NULL */
static top run(eager_case *c, float *partial) {
  int64_t n = c->args.n, k = c->spec.topk, narrow = c->spec.target_dtype == FLP_DTYPE_INT32;
  top t = {.k = k};
  void *ids = poisoned(n * k, 8);
  t.ids = poisoned(n * k, 8);
  t.logprob = poisoned(n * k, 4);
  t.rest = poisoned(n, 4);
  t.rank = poisoned(n, 4);
  flp_args args = c->args;
  args.pass = FLP_PASS_FORWARD;
  args.partial = partial;
  if (!partial) args.logprob = c->logprob, args.stats = c->stats;
  if (k) args.top_ids = ids, args.top_logprob = t.logprob;
  if (k && !partial) args.top_rest = t.rest;
  if (c->spec.rank && !partial) args.rank = t.rank;
  cr_assert_eq(eager_case_run(c, &args), FLP_OK, "%s", flp_error_detail());
  for (int64_t i = 0; i < n * k; i++) t.ids[i] = narrow ? ((int32_t *)ids)[i] : ((int64_t *)ids)[i];
  cr_assert_eq(((unsigned char *)ids)[n * k * (narrow ? 4 : 8)], 0x7f, "written behind the last id");
  free(ids);
  return t;
}

static long double probability(const eager_case *c, int64_t row, int64_t column) {
  long_problem other = c->reference;
  int target = (int)column;
  long double logprob, entropy;
  int *targets = calloc((size_t)c->args.n, sizeof *targets);
  targets[row] = target;
  other.target = targets;
  long_forward(&other, (int)row, &logprob, &entropy);
  free(targets);
  return expl(logprob);
}

/* Ids are distinct, fall, and no other column is above the last; the rest and the rank are the oracle's. */
static void expect_row(const eager_case *c, const top *t, int64_t row, double slack) {
  const int64_t *ids = t->ids + row * t->k;
  long double listed = 0, last = INFINITY;
  int64_t above = 0;
  char *seen = calloc((size_t)c->spec.vocab, 1);
  for (int64_t i = 0; i < t->k; i++) {
    cr_assert(ids[i] >= 0 && ids[i] < c->spec.vocab && !seen[ids[i]], "row %ld: id %ld", (long)row, (long)ids[i]);
    seen[ids[i]] = 1;
    long double score = long_score(&c->reference, (int)row, (int)ids[i]), p = probability(c, row, ids[i]);
    cr_assert_leq(score, last + (long double)slack);
    last = score;
    listed += p;
    cr_assert_float_eq(t->logprob[row * t->k + i], (double)logl(p), slack * fmax(1, fabs((double)logl(p))));
  }
  long double target = long_score(&c->reference, (int)row, c->reference.target[row]);
  for (int64_t v = 0; v < c->spec.vocab; v++) {
    long double score = long_score(&c->reference, (int)row, (int)v);
    if (t->k && !seen[v]) cr_assert_leq(score, last + (long double)slack);
    above += score > target;
  }
  if (t->k) cr_assert_float_eq(t->rest[row], (double)(1 - listed), slack);
  if (c->spec.rank) cr_assert_eq(t->rank[row], above, "row %ld: %d, not %ld", (long)row, t->rank[row], (long)above);
  free(seen);
}

Test(eager_top, every_dtype_and_ragged_shape_matches_long_double) {
  const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32};
  const int64_t shapes[][4] = {{1, 2, 8, 1}, {3, 37, 16, 37}, {65, 129, 24, 20}, {9, 700, 40, 128}, {5, 1300, 8, 3}};
  for (int d = 0; d < 3; d++)
    for (int s = 0; s < 5; s++) {
      flp_spec spec = make_spec(dtypes[d], shapes[s][1], shapes[s][2], (int)shapes[s][3], s != 1);
      spec.target_dtype = d == 1 ? FLP_DTYPE_INT32 : FLP_DTYPE_INT64;
      spec.has_bias = d == 2;
      eager_case c;
      eager_case_create(&c, &spec, shapes[s][0], 1 + (uint32_t)s);
      top t = run(&c, NULL);
      for (int64_t row = 0; row < c.args.n; row++) expect_row(&c, &t, row, 1e-6);
      top_free(&t);
      eager_case_destroy(&c);
    }
}

Test(eager_top, softcap_negative_scale_and_temperatures) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 200, 16, 7, 1);
  spec.softcap = 2.5f;
  spec.has_bias = spec.per_row_temperature = 1;
  eager_case c;
  eager_case_create(&c, &spec, 5, 3);
  c.args.scale = -1.5f;
  c.reference.scale = -1.5L;
  top t = run(&c, NULL);
  for (int64_t row = 0; row < 5; row++) expect_row(&c, &t, row, 1e-6);
  top_free(&t);
  eager_case_destroy(&c);
}

/* Small multiples of 1/8, whose products are exact: many columns are equal. */
Test(eager_top, of_equal_scores_the_lowest_ids) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 600, 8, 100, 1);
  eager_case c;
  eager_case_create(&c, &spec, 3, 1);
  for (int64_t i = 0; i < 3 * 8; i++) eager_case_set_hidden(&c, i / 8, i % 8, i % 8 == 0);
  for (int64_t v = 0; v < 600; v++)
    for (int64_t d = 0; d < 8; d++) eager_case_set_weight(&c, v, d, d == 0 ? (v * 7 % 5 == 4 ? 1 : v % 2) : 0);
  eager_case_set_target(&c, 0, 1);
  eager_case_set_target(&c, 1, 599);
  eager_case_set_target(&c, 2, 0);
  top t = run(&c, NULL);
  int64_t best = 0, ones = 0;
  for (int64_t v = 0; v < 600; v++) {
    if (!(v * 7 % 5 == 4 || v % 2)) continue;
    ones++;
    for (int64_t row = 0; row < 3 && best < 100; row++) cr_assert_eq(t.ids[row * 100 + best], v);
    best++;
  }
  cr_expect(t.rank[0] == 0 && t.rank[1] == 0 && t.rank[2] == ones);
  top_free(&t);
  eager_case_destroy(&c);
}

Test(eager_top, rows_without_work_and_bad_rows) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 300, 16, 4, 1);
  spec.per_row_temperature = 1;
  eager_case c;
  eager_case_create(&c, &spec, 6, 4);
  int32_t rows[] = {0, 1, 2, 3, 4};
  c.args.rows = rows;
  c.args.row_count = 5;
  eager_case_set_target(&c, 1, -100);
  eager_case_set_target(&c, 2, 300);
  eager_case_set_hidden(&c, 3, 2, NAN);
  c.temperature[4] = 1e-12f; /* scores beyond the limit */
  top t = run(&c, NULL);
  expect_row(&c, &t, 0, 1e-6);
  for (int row = 1; row < 6; row++) {
    int is_nan = row >= 2 && row <= 4;
    for (int i = 0; i < 4; i++) {
      cr_expect_eq(t.ids[row * 4 + i], -1, "row %d", row);
      cr_expect(is_nan ? isnan(t.logprob[row * 4 + i]) : t.logprob[row * 4 + i] == 0, "row %d", row);
    }
    cr_expect(is_nan ? isnan(t.rest[row]) : t.rest[row] == 0, "row %d", row);
    cr_expect_eq(t.rank[row], -1, "row %d", row);
    cr_expect(is_nan ? isnan(c.logprob[row]) : c.logprob[row] == 0, "row %d", row);
  }
  cr_expect_eq(c.bad_rows, 2);
  top_free(&t);
  eager_case_destroy(&c);
}

Test(eager_top, columns_of_minus_infinity_are_not_among_the_best) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 300, 8, 10, 1);
  spec.has_bias = 1;
  eager_case c;
  eager_case_create(&c, &spec, 2, 4);
  for (int v = 0; v < 300; v++)
    if (v % 50) eager_case_set_bias(&c, v, -INFINITY);
  eager_case_set_target(&c, 0, 50);
  eager_case_set_target(&c, 1, 51);
  top t = run(&c, NULL);
  for (int row = 0; row < 2; row++) {
    double sum = 0;
    for (int i = 0; i < 10; i++) {
      cr_expect_eq(t.ids[row * 10 + i] == -1, i >= 6);
      cr_expect_eq(isinf(t.logprob[row * 10 + i]) != 0, i >= 6);
      sum += exp((double)t.logprob[row * 10 + i]);
    }
    cr_expect_float_eq(sum, 1, 1e-6);
    cr_expect_eq(t.rest[row], 0);
  }
  cr_expect(t.rank[0] >= 0 && t.rank[0] < 6 && t.rank[1] == 6);
  top_free(&t);
  eager_case_destroy(&c);
}

/* Bits: threads, budget and whether the best are asked for change nothing. */
Test(eager_top, bits_depend_on_nothing_else) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 1500, 32, 20, 1), plain = make_spec(FLP_DTYPE_BF16, 1500, 32, 0, 0);
  eager_case c, exact;
  eager_case_create(&c, &spec, 70, 5);
  eager_case_create(&exact, &plain, 70, 5);
  c.threads = 1;
  top first = run(&c, NULL);
  eager_case_forward(&exact);
  cr_expect_eq(memcmp(c.logprob, exact.logprob, 70 * 4), 0);
  cr_expect_eq(memcmp(c.stats, exact.stats, 70 * 16), 0);
  for (int threads = 2; threads <= 5; threads++) {
    c.threads = threads;
    flp_layout layout = FLP_LAYOUT_INIT;
    cr_assert_eq(flp_eager_layout(&c.spec, FLP_PASS_FORWARD, 70, UINT64_C(256) << 20, 1, &layout), FLP_OK);
    if (threads == 5) c.budget = layout.smallest_bytes;
    top again = run(&c, NULL);
    cr_expect_eq(memcmp(first.ids, again.ids, 70 * 20 * 8), 0);
    cr_expect_eq(memcmp(first.logprob, again.logprob, 70 * 20 * 4), 0);
    cr_expect_eq(memcmp(first.rest, again.rest, 70 * 4), 0);
    cr_expect_eq(memcmp(first.rank, again.rank, 70 * 4), 0);
    top_free(&again);
  }
  /* A target among the best has the logprob that stands there, and its rank. */
  for (int64_t row = 0; row < 70; row++) {
    int64_t place = 3 * row % 20;
    eager_case_set_target(&c, row, first.ids[row * 20 + place]);
  }
  top targets = run(&c, NULL);
  for (int64_t row = 0; row < 70; row++) {
    cr_expect_eq(targets.rank[row], 3 * row % 20);
    cr_expect_eq(c.logprob[row], first.logprob[row * 20 + 3 * row % 20]);
  }
  top_free(&first);
  top_free(&targets);
  eager_case_destroy(&c);
  eager_case_destroy(&exact);
}

/* Two shards of 150: their scores in nats, of which the best are the whole head's. */
Test(eager_top, shards_give_scores_and_global_ids) {
  flp_spec whole_spec = make_spec(FLP_DTYPE_FP32, 300, 16, 5, 0), spec = make_spec(FLP_DTYPE_FP32, 150, 16, 5, 1);
  eager_case whole, part;
  eager_case_create(&whole, &whole_spec, 4, 6);
  top all = run(&whole, NULL);
  float partial[16] __attribute__((aligned(16)));
  for (int shard = 0; shard < 2; shard++) {
    eager_case_create(&part, &spec, 4, 6);
    for (int64_t i = 0; i < 4 * 16; i++)
      eager_case_set_hidden(&part, i / 16, i % 16, (double)whole.reference.hidden[i]);
    for (int64_t i = 0; i < 150 * 16; i++)
      eager_case_set_weight(&part, i / 16, i % 16, (double)whole.reference.weight[shard * 150 * 16 + i]);
    for (int row = 0; row < 4; row++) eager_case_set_target(&part, row, eager_case_get_target(&whole, row));
    part.args.vocab_offset = shard * 150;
    part.args.vocab_total = 300;
    top own = run(&part, partial);
    for (int row = 0; row < 4; row++) {
      int place = 0;
      for (int i = 0; i < 5; i++) {
        int64_t id = all.ids[row * 5 + i];
        if (id / 150 != shard) continue;
        cr_expect_eq(own.ids[row * 5 + place], id);
        double t = (double)long_score(&whole.reference, row, (int)id);
        cr_expect_float_eq(own.logprob[row * 5 + place], t, 1e-6);
        place++;
      }
    }
    top_free(&own);
    eager_case_destroy(&part);
  }
  top_free(&all);
  eager_case_destroy(&whole);
}

Test(eager_top, a_shard_with_few_columns_and_no_columns_of_weight) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 8, 8, 12, 0);
  eager_case c;
  float partial[4] __attribute__((aligned(16)));
  eager_case_create(&c, &spec, 1, 2);
  c.args.vocab_offset = 10;
  c.args.vocab_valid = 3;
  c.args.vocab_total = 20;
  eager_case_set_target(&c, 0, 2);
  top t = run(&c, partial);
  for (int i = 0; i < 12; i++) {
    cr_expect(i < 3 ? t.ids[i] >= 10 && t.ids[i] < 13 : t.ids[i] == -1);
    cr_expect_eq(isinf(t.logprob[i]) != 0, i >= 3);
  }
  top_free(&t);
  eager_case_destroy(&c);
}

Test(eager_top, no_rows) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 30, 8, 12, 1);
  eager_case c;
  eager_case_create(&c, &spec, 0, 2);
  top t = run(&c, NULL);
  cr_expect_eq(t.rank[0], 0x7f7f7f7f);
  top_free(&t);
  eager_case_destroy(&c);
}

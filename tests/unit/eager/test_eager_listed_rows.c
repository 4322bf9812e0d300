/* test_eager_listed_rows.c: listed columns on the eager rung: bad lists, rows that are left out, vocab shards, sizes. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/kernel/abi.h"
#include "tests/unit/support/eager_case.h"

static flp_spec make_spec(int64_t vocab, int64_t hidden) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.dtype = FLP_DTYPE_FP32;
  spec.vocab = vocab;
  spec.hidden = hidden;
  spec.has_bias = 1;
  spec.entropy = FLP_ENTROPY_BACKWARD;
  spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS;
  spec.listed = 1;
  return spec;
}

/* Runs both passes and compares all rows but the bad ones with the oracle, where these are not in the loss. */
static void check_bad(eager_case *c, const int *bad, uint64_t count) {
  for (int i = 0; i < c->args.n; i++)
    if (bad[i]) c->reference.target[i] = -1;
  eager_case_forward(c);
  cr_expect_eq(c->bad_rows, count, "%d", (int)c->bad_rows);
  eager_case_backward(c);
  cr_expect_eq(c->bad_rows, 2 * count, "%d", (int)c->bad_rows);
  for (int i = 0; i < c->args.n; i++) {
    cr_expect_eq(!!isnan(c->logprob[i]), bad[i], "row %d", i);
    cr_expect_eq(!!isnan(c->entropy[i]), bad[i], "row %d", i);
    for (int j = 0; j < 4; j++) cr_expect_eq(!!isnan(c->stats[4 * i + j]), bad[i], "row %d", i);
    for (int d = 0; d < 8; d++) cr_expect_eq(!!isnan(eager_case_grad_hidden(c, i, d)), bad[i], "row %d", i);
  }
  eager_case_check_forward(c, 1.5e-7);
  eager_case_check_backward(c, 1e-6);
}

Test(eager_listed_rows, bad_lists_give_nan_and_are_counted_once_and_touch_nothing_else) {
  const int64_t ids[] = {5, 9, 30,         /* good */
                         5, 50, 51,        /* two ids too large */
                         -1, 5, INT64_MIN, /* too small */
                         5, INT64_MAX,     /* far too large */
                         6, 7,             /* no target */
                                           /* nothing at all */
                         5, 49, 0};        /* good */
  const int64_t count[7] = {3, 3, 3, 2, 2, 0, 3};
  const int bad[7] = {0, 1, 1, 1, 1, 1, 0};
  flp_spec spec = make_spec(50, 8);
  eager_case c;
  eager_case_create(&c, &spec, 7, 71);
  for (int i = 0; i < 7; i++) eager_case_set_target(&c, i, 5);
  eager_case_set_lists(&c, ids, count);
  check_bad(&c, bad, 5);
  eager_case_destroy(&c);
}

Test(eager_listed_rows, a_row_that_is_bad_twice_over_is_counted_once) {
  const int64_t ids[] = {-1, 2, 3, 3, 60, 2};
  const int64_t count[3] = {2, 2, 2};
  const int bad[3] = {1, 1, 1};
  flp_spec spec = make_spec(50, 8);
  eager_case c;
  eager_case_create(&c, &spec, 3, 72);
  eager_case_set_target(&c, 0, 50);
  eager_case_set_target(&c, 1, 4);
  eager_case_set_target(&c, 2, 7);
  eager_case_set_lists(&c, ids, count);
  check_bad(&c, bad, 3);
  eager_case_destroy(&c);
}

Test(eager_listed_rows, offsets_that_do_not_ascend_within_the_lists_make_every_row_bad) {
  static const struct {
    int at;
    int64_t value;
  } wrong[] = {{0, -1}, {4, 13}, {1, 8}, {2, -1}, {0, INT64_MIN}, {4, INT64_MAX}, {3, 2}, {1, INT64_MAX}};
  int64_t ids[12];
  const int64_t count[4] = {3, 3, 3, 3};
  const int bad[4] = {1, 1, 0, 1};
  for (int e = 0; e < 12; e++) ids[e] = 5 + e % 3;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    flp_spec spec = make_spec(50, 8);
    eager_case c;
    eager_case_create(&c, &spec, 4, 73);
    for (int row = 0; row < 4; row++) eager_case_set_target(&c, row, row == 2 ? -100 : 6);
    eager_case_set_lists(&c, ids, count);
    c.list_offsets[wrong[i].at] = wrong[i].value;
    check_bad(&c, bad, 3);
    for (int v = 0; v < 50; v++) cr_expect_eq(eager_case_grad_bias(&c, v), 0.0);
    eager_case_destroy(&c);
  }
}

Test(eager_listed_rows, entries_before_between_and_behind_the_rows_belong_to_none) {
  const int64_t ids[] = {-7, -7, 5, 9, 5, 11, -7}, count[2] = {2, 5}, offsets[3] = {2, 4, 6};
  flp_spec spec = make_spec(50, 8);
  eager_case c;
  eager_case_create(&c, &spec, 2, 74);
  for (int i = 0; i < 2; i++) eager_case_set_target(&c, i, 5);
  eager_case_set_lists(&c, ids, count);
  memcpy(c.list_offsets, offsets, sizeof offsets);
  memset(c.reference.listed, 0, 100);
  for (int e = 2; e < 6; e++) c.reference.listed[50 * (e / 4) + ids[e]] = 1;
  check_bad(&c, (const int[2]){0, 0}, 0);
  eager_case_destroy(&c);
}

/* What stats hold of a row decides, not why: here a caller wrote it. */
Test(eager_listed_rows, a_row_with_nan_in_its_stats_adds_nothing_to_the_head) {
  flp_spec spec = make_spec(50, 8);
  for (int word = 0; word < 4; word++) {
    eager_case c;
    eager_case_create(&c, &spec, 5, 75);
    eager_case_random_lists(&c, 9, 76);
    eager_case_forward(&c);
    c.stats[4 * 3 + word] = NAN;
    c.reference.target[3] = -1;
    eager_case_backward(&c);
    cr_expect_eq(c.bad_rows, 0);
    eager_case_check_backward(&c, 1e-6);
    for (int d = 0; d < 8; d++) cr_expect(isnan(eager_case_grad_hidden(&c, 3, d)));
    eager_case_destroy(&c);
  }
}

/* NaN in a hidden row, a score beyond the limit, no score above -inf: NaN in the row, nothing in the head. */
Test(eager_listed_rows, rows_whose_scores_make_nan_stay_in_themselves) {
  flp_spec spec = make_spec(50, 8);
  const int64_t ids[] = {5, 9, 5, 9, 20, 21, 5, 9}, count[4] = {2, 2, 2, 2};
  const int bad[4] = {1, 1, 1, 0};
  eager_case c;
  eager_case_create(&c, &spec, 4, 77);
  for (int i = 0; i < 4; i++) eager_case_set_target(&c, i, i == 2 ? 20 : 5);
  eager_case_set_lists(&c, ids, count);
  eager_case_set_hidden(&c, 0, 3, NAN);
  eager_case_set_weight(&c, 9, 3, 1);
  eager_case_set_hidden(&c, 1, 3, 1e10);
  eager_case_set_bias(&c, 20, -INFINITY);
  eager_case_set_bias(&c, 21, -INFINITY);
  for (int i = 0; i < 3; i++) c.reference.target[i] = -1;
  eager_case_forward(&c);
  cr_expect_eq(c.bad_rows, 2); /* the first is NaN without being bad */
  eager_case_backward(&c);
  cr_expect_eq(c.bad_rows, 2);
  eager_case_check_forward(&c, 1.5e-7);
  eager_case_check_backward(&c, 1e-6);
  for (int i = 0; i < 4; i++) {
    cr_expect_eq(!!isnan(c.logprob[i]), bad[i]);
    for (int d = 0; d < 8; d++) cr_expect_eq(!!isnan(eager_case_grad_hidden(&c, i, d)), bad[i]);
  }
  eager_case_destroy(&c);
}

Test(eager_listed_rows, listed_columns_of_minus_infinity_have_no_probability) {
  flp_spec spec = make_spec(50, 8);
  const int64_t ids[] = {5, 9, 20, 21}, count[1] = {4};
  eager_case c;
  eager_case_create(&c, &spec, 1, 78);
  eager_case_set_target(&c, 0, 9);
  eager_case_set_lists(&c, ids, count);
  eager_case_set_bias(&c, 20, -INFINITY);
  eager_case_forward(&c);
  eager_case_backward(&c);
  eager_case_check_forward(&c, 1.5e-7);
  for (int d = 0; d < 8; d++) {
    cr_expect_eq(eager_case_grad_weight(&c, 20, d), 0.0);
    cr_expect_float_eq(eager_case_grad_hidden(&c, 0, d), (double)long_derivative(&c.reference, c.reference.hidden + d),
                       1e-6);
  }
  eager_case_destroy(&c);
}

/* The lists of rows that are left out are not looked at. */
Test(eager_listed_rows, ignored_rows_row_lists_and_rows_without_upstream_gradient) {
  const int64_t ids[] = {-1, 90, 5, 6, -1, 5, 9, -1, -1}, count[5] = {2, 2, 1, 2, 2};
  const int32_t rows[] = {3, 1, 0, 4, 3};
  flp_spec spec = make_spec(50, 8);
  eager_case c;
  eager_case_create(&c, &spec, 5, 79);
  for (int i = 0; i < 5; i++) eager_case_set_target(&c, i, i == 0 || i == 4 ? -100 : 5);
  eager_case_set_lists(&c, ids, count);
  c.reference.target[2] = -1; /* not in rows */
  c.args.rows = rows;
  c.args.row_count = 5;
  check_bad(&c, (const int[5]){0}, 0);
  for (int i = 0; i < 5; i += 2) cr_expect(c.logprob[i] == 0 && eager_case_grad_hidden(&c, i, 3) == 0);
  c.grad_logprob[3] = c.grad_entropy[3] = 0;
  c.reference.target[3] = -1;
  ((int64_t *)c.list_ids)[5] = -1;
  eager_case_backward(&c);
  cr_expect_eq(c.bad_rows, 0);
  eager_case_check_backward(&c, 1e-6);
  for (int d = 0; d < 8; d++) cr_expect_eq(eager_case_grad_hidden(&c, 3, d), 0.0);
  eager_case_destroy(&c);
}

Test(eager_listed_rows, no_rows_give_a_weight_gradient_of_zero) {
  flp_spec spec = make_spec(20, 8);
  eager_case c;
  eager_case_create(&c, &spec, 0, 80);
  eager_case_set_lists(&c, NULL, NULL);
  eager_case_backward(&c);
  for (int v = 0; v < 20; v++) {
    cr_assert_eq(eager_case_grad_bias(&c, v), 0.0);
    for (int d = 0; d < 8; d++) cr_assert_eq(eager_case_grad_weight(&c, v, d), 0.0);
  }
  eager_case_destroy(&c);
}

/* ---- vocab shards ---- */

enum { SHARDS = 3, ROWS = 9, VOCAB = 310, DEPTH = 16 };
static const int64_t offsets[SHARDS + 1] = {0, 130, 140, VOCAB};

static flp_args shard_args(const eager_case *c, flp_pass pass, int shard) {
  flp_args args = c->args;
  args.pass = pass;
  args.weight = (const char *)c->weight + offsets[shard] * c->args.weight_stride * 4;
  args.bias = (const char *)c->bias + offsets[shard] * 4;
  args.vocab_offset = offsets[shard];
  args.vocab_valid = offsets[shard + 1] - offsets[shard];
  args.vocab_total = VOCAB;
  return args;
}

static void forward_shards(eager_case *c, float *partials, float *logprob, float *stats) {
  for (int s = 0; s < SHARDS; s++) {
    flp_args args = shard_args(c, FLP_PASS_FORWARD, s);
    args.partial = partials + 4 * ROWS * s;
    c->spec.vocab = args.vocab_valid;
    cr_assert_eq(eager_case_run(c, &args), FLP_OK, "%s", flp_error_detail());
  }
  flp_args combine = c->args;
  combine.pass = FLP_PASS_COMBINE;
  combine.partial = partials;
  combine.shard_count = SHARDS;
  combine.vocab_total = VOCAB;
  combine.logprob = logprob;
  combine.stats = stats;
  c->spec.vocab = VOCAB;
  cr_assert_eq(eager_case_run(c, &combine), FLP_OK, "%s", flp_error_detail());
}

static void create_shards(eager_case *c, uint32_t seed) {
  flp_spec spec = make_spec(VOCAB, DEPTH);
  spec.softcap = 4;
  spec.alignment = 4;
  eager_case_create(c, &spec, ROWS, seed);
  eager_case_set_target(c, 0, 135);        /* in the small shard, of which few rows list a column */
  eager_case_set_target(c, 3, offsets[1]); /* where the shard before has padding */
  eager_case_set_target(c, 4, offsets[2]);
  eager_case_random_lists(c, 12, seed + 1);
}

Test(eager_listed_rows, partials_of_shards_combine_to_the_whole) {
  eager_case c;
  create_shards(&c, 81);
  float partials[SHARDS * ROWS * 4], logprob[ROWS], stats[ROWS * 4];
  forward_shards(&c, partials, logprob, stats);
  eager_case_forward(&c);
  int empty = 0;
  for (int i = 0; i < ROWS; i++) {
    cr_expect_float_eq(logprob[i], c.logprob[i], 1e-6);
    cr_expect_float_eq(stats[4 * i] + stats[4 * i + 1], c.stats[4 * i] + c.stats[4 * i + 1], 1e-6);
    const float *small = partials + 4 * (ROWS + i);
    empty += small[0] == -FLP_SCORE_LIMIT && small[1] == 0 && small[2] == 0 && small[3] == -INFINITY;
  }
  cr_expect(empty > 0 && empty < ROWS, "%d rows list nothing of the small shard", empty);
  cr_expect_eq(c.bad_rows, 0);
  eager_case_destroy(&c);
}

/* Only the shard that has the target sees that a list lacks it; all see an id outside the vocabulary. */
Test(eager_listed_rows, bad_rows_of_shards_combine_to_nan) {
  eager_case c;
  create_shards(&c, 83);
  float partials[SHARDS * ROWS * 4], logprob[ROWS], stats[ROWS * 4];
  int64_t *ids = c.list_ids;
  ids[c.list_offsets[2]] = VOCAB;
  eager_case_set_target(&c, 5, 0);
  for (int64_t e = c.list_offsets[5]; e < c.list_offsets[6]; e++) ids[e] = 1 + 8 * (e - c.list_offsets[5]);
  forward_shards(&c, partials, logprob, stats);
  cr_expect_eq(c.bad_rows, SHARDS + 1);
  for (int i = 0; i < ROWS; i++) {
    cr_expect_eq(!!isnan(logprob[i]), i == 2 || i == 5, "row %d", i);
    for (int s = 0; s < SHARDS; s++) {
      const float *partial = partials + 4 * (ROWS * s + i);
      int is_bad = i == 2 || (i == 5 && s == 0);
      for (int j = 0; j < 3; j++) cr_expect_eq(!!isnan(partial[j]), is_bad, "row %d, shard %d", i, s);
      if (is_bad) cr_expect_eq(partial[3], -INFINITY);
    }
  }
  eager_case_destroy(&c);
}

Test(eager_listed_rows, gradients_of_shards_add_up_and_padding_gets_zeros) {
  eager_case c;
  create_shards(&c, 85);
  eager_case_forward(&c);
  double sum[ROWS][DEPTH] = {{0}};
  for (int s = 0; s < SHARDS; s++) {
    flp_args args = shard_args(&c, FLP_PASS_BACKWARD, s);
    args.stats = c.stats;
    args.grad_logprob = c.grad_logprob;
    args.grad_entropy = c.grad_entropy;
    args.grad_hidden = c.grad_hidden;
    args.grad_weight = c.grad_weight;
    args.grad_bias = c.grad_bias;
    memset(c.grad_weight, 0xff, (size_t)(VOCAB * args.grad_weight_stride) * 4);
    memset(c.grad_bias, 0xff, VOCAB * 4);
    c.spec.vocab = args.vocab_valid + 2;
    cr_assert_eq(eager_case_run(&c, &args), FLP_OK, "%s", flp_error_detail());
    for (int64_t v = 0; v < args.vocab_valid; v += 3) {
      long double *parameter = c.reference.weight + (offsets[s] + v) * DEPTH + 5;
      cr_expect_float_eq(eager_case_grad_weight(&c, v, 5), (double)long_derivative(&c.reference, parameter), 1e-6);
    }
    for (int d = 0; d < DEPTH; d++) cr_expect_eq(eager_case_grad_weight(&c, args.vocab_valid + 1, d), 0.0);
    cr_expect_eq(eager_case_grad_bias(&c, args.vocab_valid), 0.0);
    for (int i = 0; i < ROWS * DEPTH; i++)
      sum[i / DEPTH][i % DEPTH] += eager_case_grad_hidden(&c, i / DEPTH, i % DEPTH);
  }
  for (int i = 0; i < ROWS * DEPTH; i++) {
    double right = (double)long_derivative(&c.reference, c.reference.hidden + i);
    cr_expect_float_eq(sum[i / DEPTH][i % DEPTH], right, 1e-6);
  }
  eager_case_destroy(&c);
}

/* ---- sizes ---- */

static flp_layout layout_of(const flp_spec *spec, flp_pass pass, int64_t list_count) {
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_eager_layout_listed(spec, pass, 1000, list_count, UINT64_MAX, 2, &layout), FLP_OK);
  cr_expect(layout.mode == FLP_MODE_LISTED && layout.products == 0 && layout.chunks == 1);
  cr_expect_eq(layout.smallest_bytes, layout.bytes);
  return layout;
}

Test(eager_listed_rows, memory_grows_by_12_bytes_an_id_forward_and_24_backward) {
  flp_spec spec = make_spec(5000, 64);
  const int64_t few = 6400, many = 640000;
  cr_expect_eq(layout_of(&spec, FLP_PASS_FORWARD, many).bytes - layout_of(&spec, FLP_PASS_FORWARD, few).bytes,
               12 * (uint64_t)(many - few));
  cr_expect_eq(layout_of(&spec, FLP_PASS_BACKWARD, many).bytes - layout_of(&spec, FLP_PASS_BACKWARD, few).bytes,
               24 * (uint64_t)(many - few));
  spec.grads = FLP_GRAD_HIDDEN;
  cr_expect_eq(layout_of(&spec, FLP_PASS_BACKWARD, many).bytes - layout_of(&spec, FLP_PASS_BACKWARD, few).bytes,
               12 * (uint64_t)(many - few));
  cr_expect_eq(layout_of(&spec, FLP_PASS_FORWARD, many).flops, 2.0 * 64 * (double)many);
  cr_expect_eq(layout_of(&spec, FLP_PASS_BACKWARD, many).flops, 4.0 * 64 * (double)many);
}

Test(eager_listed_rows, too_small_a_budget_names_the_smallest) {
  flp_spec spec = make_spec(5000, 64);
  flp_layout layout = FLP_LAYOUT_INIT;
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_BACKWARD; pass += FLP_PASS_BACKWARD - FLP_PASS_FORWARD) {
    uint64_t least = layout_of(&spec, (flp_pass)pass, 3000).bytes;
    cr_expect_eq(flp_eager_layout_listed(&spec, (flp_pass)pass, 1000, 3000, least, 2, &layout), FLP_OK);
    cr_expect_eq(flp_eager_layout_listed(&spec, (flp_pass)pass, 1000, 3000, least - 1, 2, &layout), FLP_ERROR_BUDGET);
    char text[64];
    snprintf(text, sizeof text, "%llu bytes or more", (unsigned long long)least);
    cr_expect(strstr(flp_error_detail(), text), "%s", flp_error_detail());
  }
}

Test(eager_listed_rows, too_small_a_workspace_is_refused) {
  flp_spec spec = make_spec(50, 8);
  eager_case c;
  eager_case_create(&c, &spec, 3, 87);
  eager_case_random_lists(&c, 9, 88);
  flp_args args = c.args;
  _Alignas(256) char workspace[64];
  args.workspace = workspace;
  args.workspace_bytes = sizeof workspace;
  args.logprob = c.logprob;
  args.vocab_valid = args.vocab_total = 50;
  uint64_t bad = 0;
  cr_assert_eq(flp_eager_execute(&c.spec, &args, 1, &bad), FLP_ERROR_WORKSPACE);
  eager_case_destroy(&c);
}

/* test_bench_rows.c: the rows of `flpgen bench --data`, on the CPU: what is drawn, entropies, targets, and that they
 * are the same again; and that random data are what they have always been. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/bench/bench.h"
#include "gen/cli/call/normal.h"
#include "gen/cli/call/oracle.h"
#include "runtime/api/validate.h"
#include "runtime/base/half.h"
#include "runtime/base/process.h"

/* ---- what is drawn ---- */

Test(bench_rows, quantiles_are_those_of_the_sources) {
  cr_expect_float_eq(rows_quantile(CLI_DATA_POLICY, 0.5), 0.01, 1e-12);
  cr_expect_float_eq(rows_quantile(CLI_DATA_POLICY, 0.8), 0.672, 1e-12);
  cr_expect_float_eq(rows_quantile(CLI_DATA_POLICY, 0.65), 0.341, 1e-12, "half way");
  cr_expect_float_eq(rows_quantile(CLI_DATA_POLICY, 1), 4.5, 1e-12);
  cr_expect_float_eq(rows_quantile(CLI_DATA_TEXT, 0.95), 3.6, 1e-12);
  cr_expect_float_eq(rows_quantile(CLI_DATA_TEXT, 0), 0, 1e-12);
  cr_expect_float_eq(rows_quantile(CLI_DATA_BASE, 0.3), 1.36, 1e-12);
  cr_expect_float_eq(rows_quantile(CLI_DATA_BASE, 0.995), 9.1, 1e-12);
  cr_expect_float_eq(rows_entropy(CLI_DATA_BASE, 1000, 0.995), 0.9 * log(1000), 1e-12, "of a small vocabulary");
  float entropy[5] = {4, 0, 2, 3, 1};
  double quantile[ROWS_QUANTILES];
  rows_quantiles(entropy, 5, quantile);
  cr_expect_float_eq(quantile[0], 0.4, 1e-6);
  cr_expect_float_eq(quantile[1], 2, 1e-6);
  cr_expect_float_eq(quantile[5], 3.96, 1e-6);
}

/* Every id once. */
static void expect_permutation(const int64_t *ids, int64_t vocab) {
  char *met = calloc((size_t)vocab, 1);
  int64_t moved = 0;
  for (int64_t i = 0; i < vocab; i++) {
    cr_assert(ids[i] >= 0 && ids[i] < vocab && !met[ids[i]]++);
    moved += ids[i] != i;
  }
  cr_expect_gt(moved, vocab * 9 / 10);
  free(met);
}

Test(bench_rows, favoured_columns_differ_and_follow_zipf) {
  enum { VOCAB = 5000, ROWS = 2000 };
  static int64_t shuffled[VOCAB], place[VOCAB], ids[ROWS_FAVOURED];
  static int in_row[VOCAB];
  double first = 0, early = 0;
  rows_shuffle(7, VOCAB, shuffled);
  expect_permutation(shuffled, VOCAB);
  for (int64_t i = 0; i < VOCAB; i++) place[shuffled[i]] = i;
  for (int row = 0; row < ROWS; row++) {
    rows_favour(9, row, shuffled, VOCAB, ids);
    for (int k = 0; k < ROWS_FAVOURED; k++) {
      cr_assert(ids[k] >= 0 && ids[k] < VOCAB && in_row[ids[k]] != row + 1, "row %d has %ld twice", row, (long)ids[k]);
      in_row[ids[k]] = row + 1;
      early += place[ids[k]] < 1000;
    }
    first += (double)place[ids[0]];
  }
  /* Of 160 draws log(1001) / log(5000), 81 %, lie below 1000; that they differ moves some up. */
  cr_expect_float_eq(early / ROWS / ROWS_FAVOURED, 0.8, 0.02);
  cr_expect_gt(first / ROWS, 400, "ranks are dealt out at random: the first column is not the most frequent one");
}

Test(bench_rows, a_small_vocabulary_is_favoured_as_a_whole) {
  int64_t shuffled[30], ids[ROWS_FAVOURED], sum = 0;
  rows_shuffle(1, 30, shuffled);
  cr_assert_eq(rows_favoured(30), 30);
  rows_favour(1, 5, shuffled, 30, ids);
  expect_permutation(ids, 30);
  for (int i = 0; i < 30; i++) sum += ids[i];
  cr_expect_eq(sum, 29 * 30 / 2);
}

/* ---- hidden states ---- */

static double product(const float *a, const float *b, int64_t depth) {
  double sum = 0;
  for (int64_t i = 0; i < depth; i++) sum += (double)a[i] * (double)b[i];
  return sum;
}

/* Scores of the parts at the columns, which have something in common. */
static void expect_parts(int count, int64_t depth, double tolerance) {
  rows_columns columns;
  cli_normal normal;
  float *values = malloc((size_t)(count + 1 + ROWS_PARTS) * (size_t)depth * sizeof *values);
  float *chance = values + count * depth, *parts = chance + depth;
  cr_assert_eq(cli_normal_create(FLP_DTYPE_FP32, 1 / sqrt((double)depth), 3, &normal), FLP_OK);
  cr_assert_eq(rows_columns_create(count, depth, &columns), FLP_OK);
  cli_normal_fill(&normal, 0, (count + 1) * depth, values);
  for (int k = 0; k < count; k++) {
    for (int64_t i = 0; i < depth && k > 0; i++) values[k * depth + i] += 0.03f * values[i];
    rows_columns_set(&columns, k, values + k * depth);
  }
  rows_parts(&columns, chance, parts);
  for (int k = 0; k < count; k++) {
    const double wanted[ROWS_PARTS] = {ROWS_TOP, log(k + 1), k == 0};
    for (int m = 0; m < ROWS_PARTS; m++)
      cr_expect_float_eq(product(values + k * depth, parts + m * depth, depth), wanted[m], tolerance,
                         "column %d, part %d of %d columns of %ld", k, m, count, (long)depth);
  }
  rows_columns_destroy(&columns);
  cli_normal_destroy(&normal);
  free(values);
}

Test(bench_rows, parts_have_the_scores_that_are_asked_for) {
  expect_parts(ROWS_FAVOURED, 4096, 0.2);
  expect_parts(ROWS_FAVOURED, 1000, 0.2);
  expect_parts(5, 72, 0.05);
  expect_parts(1, 8, 0.05);
}

Test(bench_rows, a_number_raises_then_tilts_less_then_shrinks) {
  enum { DEPTH = 8 };
  float parts[ROWS_PARTS * DEPTH], out[DEPTH];
  for (int i = 0; i < DEPTH; i++) {
    parts[i] = 20;
    parts[DEPTH + i] = 5;
    parts[2 * DEPTH + i] = 1;
  }
  const double cases[][3] = {{1, 1, 20 - 12 + 24}, {0.5, 1, 20 - 12 + 12}, {0, 1, 20 - 12}, {-0.5, 1, 20 - 6},
                             {-1, 1, 20},          {-2, 1, 0.4},           {1, 0.5, 64},    {-1.5, 4, 20 * 0.51 / 4}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    rows_mix(parts, DEPTH, cases[i][0], cases[i][1], out);
    cr_expect_float_eq(out[3], cases[i][2], 1e-4, "number %g, scale %g: %g", cases[i][0], cases[i][1], out[3]);
  }
}

/* ---- whole rows, on the host ---- */

typedef struct made {
  cli_device device;
  bench_args args;
  bench_data data;
  const void *hidden, *weight, *bias;
  const int64_t *target;
  const float *temperature;
} made;

/* n rows of a kind; set: the spec, but for its shape */
static void make(made *m, cli_data kind, flp_spec set, int64_t n, int64_t depth, int64_t vocab, int64_t seed) {
  *m = (made){.args = {.spec = CLI_SPEC_ARGS_INIT, .options = FLP_OPTIONS_INIT, .seed = seed, .data = kind}};
  set.vocab = vocab;
  set.hidden = depth;
  cr_assert_eq(flp_spec_resolve(&set, &m->args.spec.spec), FLP_OK, "%s", flp_error_detail());
  m->args.options.device = FLP_DEVICE_HOST;
  m->data = (bench_data){.args = &m->args, .buffers = {.device = &m->device}};
  cr_assert_eq(cli_device_open(FLP_DEVICE_HOST, &m->device), FLP_OK);
  cr_assert_eq(bench_data_head(&m->data), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(bench_data_rows(&m->data, n), FLP_OK, "%s", flp_error_detail());
  const call_buffer *at = m->data.buffers.at;
  m->hidden = at[FLP_ARRAY_hidden].buffer.data;
  m->weight = at[FLP_ARRAY_weight].buffer.data;
  m->bias = at[FLP_ARRAY_bias].buffer.data;
  m->target = at[FLP_ARRAY_target].buffer.data;
  m->temperature = at[FLP_ARRAY_temperature_rows].buffer.data;
}

static void clear(made *m) {
  bench_data_clear(&m->data);
  cli_device_close(&m->device);
}

/* The rows by the fp64 oracle. out: (n) */
static void judge(const made *m, oracle_row *out) {
  const call_problem *call = &m->data.call;
  const flp_spec *spec = &call->spec;
  int64_t n = call->n, *rows = malloc((size_t)n * sizeof *rows);
  double *temperature = malloc((size_t)n * sizeof *temperature);
  for (int64_t row = 0; row < n; row++) {
    rows[row] = row;
    temperature[row] = m->temperature ? (double)m->temperature[row] : 1;
  }
  oracle_problem problem = {.dtype = spec->dtype,
                            .n = n,
                            .vocab = spec->vocab,
                            .depth = spec->hidden,
                            .hidden = m->hidden,
                            .weight = m->weight,
                            .bias = m->bias,
                            .hidden_stride = spec->hidden,
                            .weight_stride = spec->hidden,
                            .target = m->target,
                            .temperature = temperature,
                            .scale = call->scale,
                            .softcap = (double)spec->softcap,
                            .threads = flp_processors()};
  cr_assert_eq(oracle_forward(&problem, rows, n, out), FLP_OK);
  free(rows);
  free(temperature);
}

/* As many rows lie below the entropy of each fraction as there should, give or take four standard deviations. */
static void expect_entropies(cli_data kind, int64_t vocab, const oracle_row *rows, int64_t n) {
  for (int i = 0; i < ROWS_QUANTILES; i++) {
    double fraction = ROWS_FRACTIONS[i], most = rows_entropy(kind, vocab, fraction) * 1.01 + 1e-4, below = 0;
    if (most > 0.9 * log((double)vocab)) continue; /* where those above are too */
    for (int64_t row = 0; row < n; row++) below += rows[row].entropy <= most;
    double off = 4 * sqrt(fraction * (1 - fraction) * (double)n) + 1;
    cr_expect_float_eq(below, fraction * (double)n, off, "%s: %g of %ld rows below %g", rows_kind_name(kind), below,
                       (long)n, most);
  }
}

/* logprob + entropy is 0 on average; in a row it spreads as log p does, by less than the entropy plus one. */
static void expect_targets(cli_data kind, const oracle_row *rows, int64_t n) {
  double sum = 0, squares = 0;
  for (int64_t row = 0; row < n; row++) {
    double off = rows[row].logprob + rows[row].entropy;
    sum += off;
    squares += off * off;
  }
  double error = sqrt(squares) / (double)n;
  cr_expect_lt(fabs(sum / (double)n), 4 * error, "%s: %g, standard error %g", rows_kind_name(kind), sum / (double)n,
               error);
  cr_expect(squares > 0 && error < 0.25, "%s: %g", rows_kind_name(kind), error);
}

static void expect_kind(cli_data kind, flp_spec spec, int64_t n) {
  enum { DEPTH = 512, VOCAB = 3000 }; /* fewer elements cannot be as sharp: the 160 are too much alike */
  made m;
  oracle_row *rows = malloc((size_t)n * sizeof *rows);
  make(&m, kind, spec, n, DEPTH, VOCAB, 1);
  judge(&m, rows);
  expect_entropies(kind, VOCAB, rows, n);
  expect_targets(kind, rows, n);
  float *entropy = malloc((size_t)n * sizeof *entropy);
  double quantile[ROWS_QUANTILES];
  for (int64_t row = 0; row < n; row++) entropy[row] = (float)rows[row].entropy;
  rows_quantiles(entropy, n, quantile);
  cr_expect_eq(m.data.entropies.n, n);
  for (int i = 0; i < ROWS_QUANTILES; i++)
    cr_expect_float_eq(m.data.entropies.quantile[i], quantile[i], 1e-4 + 1e-4 * quantile[i], "what bench prints");
  free(entropy);
  free(rows);
  clear(&m);
}

Test(bench_rows, policy_has_entropies_and_targets_of_its_kind) {
  expect_kind(CLI_DATA_POLICY, (flp_spec)FLP_SPEC_INIT, 128);
}

Test(bench_rows, text_has_entropies_and_targets_of_its_kind) {
  expect_kind(CLI_DATA_TEXT, (flp_spec)FLP_SPEC_INIT, 128);
}

Test(bench_rows, base_has_entropies_and_targets_of_its_kind) {
  expect_kind(CLI_DATA_BASE, (flp_spec)FLP_SPEC_INIT, 128);
}

/* Entropies are those of the head as it is. */
Test(bench_rows, bias_softcap_and_temperatures_count) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.dtype = FLP_DTYPE_FP32;
  spec.has_bias = spec.per_row_temperature = 1;
  spec.softcap = 60;
  expect_kind(CLI_DATA_TEXT, spec, 64);
}

Test(bench_rows, the_weight_has_unit_rows) {
  made m;
  float row[256];
  make(&m, CLI_DATA_POLICY, (flp_spec)FLP_SPEC_INIT, 1, 256, 500, 1);
  for (int64_t v = 0; v < 500; v++) {
    flp_half_widen(FLP_DTYPE_BF16, (const uint16_t *)m.weight + v * 256, 256, row);
    cr_assert_float_eq(product(row, row, 256), 1, 2e-3);
  }
  clear(&m);
}

enum { SAME_VOCAB = 2000, SAME_DEPTH = 8, SORTS = 20 };

static double same_p[SAME_VOCAB]; /* of every row */

static int compare_by_p(const void *a, const void *b) {
  double x = same_p[*(const int *)a], y = same_p[*(const int *)b];
  return (x < y) - (x > y);
}

/* Makes every row the first one, and the probabilities of its columns. */
static void make_same(made *m, int64_t rows) {
  uint16_t *hidden = (uint16_t *)(uintptr_t)m->hidden;
  float *temperature = (float *)(uintptr_t)m->temperature, a[SAME_DEPTH], b[SAME_DEPTH], bias;
  double sum = 0, cap = (double)m->data.call.spec.softcap;
  for (int64_t row = 1; row < rows; row++) {
    memcpy(hidden + row * SAME_DEPTH, hidden, SAME_DEPTH * sizeof *hidden);
    temperature[row] = temperature[0];
  }
  flp_half_widen(FLP_DTYPE_BF16, hidden, SAME_DEPTH, a);
  for (int64_t v = 0; v < SAME_VOCAB; v++) {
    flp_half_widen(FLP_DTYPE_BF16, (const uint16_t *)m->weight + v * SAME_DEPTH, SAME_DEPTH, b);
    flp_half_widen(FLP_DTYPE_BF16, (const uint16_t *)m->bias + v, 1, &bias);
    double z = product(a, b, SAME_DEPTH) + (double)bias;
    sum += same_p[v] = exp(cap * tanh(z / cap) / (double)temperature[0]);
  }
  for (int64_t v = 0; v < SAME_VOCAB; v++) same_p[v] /= sum;
}

/* Targets against a softmax that is known, its columns sorted by probability into 20 sorts: chi-square of 19 degrees of
 * freedom is above 44 once in a thousand times. */
static void expect_frequencies(const int64_t *target, int64_t rows) {
  static int order[SAME_VOCAB], sort[SAME_VOCAB];
  double share[SORTS] = {0}, count[SORTS] = {0}, chi = 0, hits = 0;
  for (int v = 0; v < SAME_VOCAB; v++) order[v] = v;
  qsort(order, SAME_VOCAB, sizeof *order, compare_by_p);
  for (int i = 0; i < SAME_VOCAB; i++) {
    sort[order[i]] = i * SORTS / SAME_VOCAB;
    share[sort[order[i]]] += same_p[order[i]];
  }
  for (int64_t row = 0; row < rows; row++) {
    count[sort[target[row]]]++;
    hits += target[row] == order[0];
  }
  for (int i = 0; i < SORTS; i++) chi += pow(count[i] - rows * share[i], 2) / (rows * share[i]);
  cr_expect_lt(chi, 44, "chi-square %g", chi);
  double most = rows * same_p[order[0]];
  cr_expect_float_eq(hits, most, 4 * sqrt(most) + 1, "%g of %g", hits, most);
}

Test(bench_rows, targets_are_as_frequent_as_their_probabilities) {
  enum { ROWS = 4000 };
  static int64_t target[ROWS];
  static float entropy[ROWS];
  flp_spec spec = FLP_SPEC_INIT;
  float *partial = NULL;
  rows_plan plan;
  made m;
  spec.has_bias = spec.per_row_temperature = 1;
  spec.softcap = 4;
  make(&m, CLI_DATA_RANDOM, spec, ROWS, SAME_DEPTH, SAME_VOCAB, 1);
  make_same(&m, ROWS);
  rows_request request = {CLI_DATA_POLICY, 1, &m.data.call, &m.args.options};
  cr_assert_eq(rows_plan_create(&request, &m.data.buffers, &plan), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(plan.sliced.shards, 3);
  cr_assert_eq(rows_plan_entropies(&plan, entropy), FLP_OK);
  double wanted = 0;
  for (int v = 0; v < SAME_VOCAB; v++) wanted -= same_p[v] * log(same_p[v]);
  cr_expect_float_eq(entropy[ROWS - 1], wanted, 1e-4);
  cr_assert_eq(rows_plan_partials(&plan, &partial), FLP_OK);
  rows_scores scores = {&plan.sliced, m.hidden, m.weight, m.bias, m.temperature, partial};
  cr_assert_eq(rows_draw_targets(&scores, 11, target), FLP_OK);
  expect_frequencies(target, ROWS);
  free(partial);
  rows_plan_destroy(&plan);
  clear(&m);
}

static int is_same(const made *a, const made *b, flp_array_id id) {
  const cli_buffer *x = &a->data.buffers.at[id].buffer, *y = &b->data.buffers.at[id].buffer;
  return x->bytes == y->bytes && memcmp(x->data, y->data, x->bytes) == 0;
}

Test(bench_rows, a_seed_gives_the_same_rows_again) {
  made a, b, c;
  make(&a, CLI_DATA_POLICY, (flp_spec)FLP_SPEC_INIT, 20, 128, 900, 4);
  make(&b, CLI_DATA_POLICY, (flp_spec)FLP_SPEC_INIT, 20, 128, 900, 4);
  make(&c, CLI_DATA_POLICY, (flp_spec)FLP_SPEC_INIT, 20, 128, 900, 5);
  static const flp_array_id arrays[] = {FLP_ARRAY_hidden, FLP_ARRAY_weight, FLP_ARRAY_target};
  for (int i = 0; i < 3; i++) {
    cr_expect(is_same(&a, &b, arrays[i]), "array %d", arrays[i]);
    cr_expect_not(is_same(&a, &c, arrays[i]), "array %d", arrays[i]);
  }
  for (int i = 1; i < ROWS_QUANTILES; i++)
    cr_expect_gt(fabs(a.data.entropies.quantile[i] - c.data.entropies.quantile[i]), 1e-3, "drawn anew by another seed");
  clear(&a);
  clear(&b);
  clear(&c);
}

/* Shapes that leave no choice: fewer columns than are favoured, fewer elements than columns, one row. */
Test(bench_rows, small_shapes_have_rows_too) {
  static const int64_t shapes[][3] = {{1, 8, 2}, {3, 8, 100}, {5, 24, 770}, {17, 72, 160}};
  for (size_t i = 0; i < 4; i++)
    for (int kind = CLI_DATA_POLICY; kind <= CLI_DATA_BASE; kind++) {
      made m;
      make(&m, (cli_data)kind, (flp_spec)FLP_SPEC_INIT, shapes[i][0], shapes[i][1], shapes[i][2], 1);
      for (int64_t row = 0; row < shapes[i][0]; row++)
        cr_expect(m.target[row] >= 0 && m.target[row] < shapes[i][2], "shape %zu", i);
      for (int q = 0; q < ROWS_QUANTILES; q++)
        cr_expect(m.data.entropies.quantile[q] >= 0 && m.data.entropies.quantile[q] <= log(shapes[i][2]) + 1e-3);
      clear(&m);
    }
}

/* ---- random data ---- */

static uint64_t digest(const made *m, flp_array_id id) {
  const cli_buffer *buffer = &m->data.buffers.at[id].buffer;
  const unsigned char *bytes = buffer->data;
  uint64_t sum = 0;
  for (size_t i = 0; i < buffer->bytes; i++) sum = cli_hash(sum ^ bytes[i]);
  return sum;
}

Test(bench_rows, random_data_are_the_bits_that_they_were) {
  flp_spec spec = FLP_SPEC_INIT;
  made m;
  spec.has_bias = spec.per_row_temperature = 1;
  make(&m, CLI_DATA_RANDOM, spec, 40, 64, 1000, 1);
  static const struct {
    flp_array_id id;
    uint64_t digest;
  } pinned[] = {{FLP_ARRAY_hidden, 0x537dabf86511c1f8},
                {FLP_ARRAY_weight, 0x22de909f6aa8a089},
                {FLP_ARRAY_bias, 0x75de268270cca654},
                {FLP_ARRAY_target, 0x901d1dc6ee7ad389},
                {FLP_ARRAY_temperature_rows, 0x28e52f9b41593b51}};
  for (size_t i = 0; i < sizeof pinned / sizeof pinned[0]; i++)
    cr_expect_eq(digest(&m, pinned[i].id), pinned[i].digest, "array %d: 0x%016lx", pinned[i].id,
                 (unsigned long)digest(&m, pinned[i].id));
  cr_expect_eq(m.data.entropies.n, 0, "not measured");
  clear(&m);
}

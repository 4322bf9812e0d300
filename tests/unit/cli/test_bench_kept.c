/* test_bench_kept.c: lists of `flpgen bench --keep-set --data`, on the CPU: they hold what the rows give weight to, and
 * flatter rows have longer ones. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/bench/bench.h"
#include "runtime/api/validate.h"
#include "runtime/base/half.h"

enum { ROWS = 96, DEPTH = 512, VOCAB = 1500 };

typedef struct made {
  bench_args args;
  cli_device device;
  bench_data data;
} made;

/* mean: of the lists */
static void make(made *m, cli_data kind, double mean, double masked) {
  *m = (made){.args = {.spec = CLI_SPEC_ARGS_INIT, .options = FLP_OPTIONS_INIT, .seed = 1, .data = kind}};
  flp_spec spec = FLP_SPEC_INIT;
  spec.vocab = VOCAB;
  spec.hidden = DEPTH;
  spec.listed = 1;
  m->args.spec.kept = mean;
  m->args.masked = masked;
  cr_assert_eq(flp_spec_resolve(&spec, &m->args.spec.spec), FLP_OK, "%s", flp_error_detail());
  m->args.options.device = FLP_DEVICE_HOST;
  m->data = (bench_data){.args = &m->args, .buffers = {.device = &m->device}};
  cr_assert_eq(cli_device_open(FLP_DEVICE_HOST, &m->device), FLP_OK);
  cr_assert_eq(bench_data_head(&m->data), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(bench_data_rows(&m->data, ROWS), FLP_OK, "%s", flp_error_detail());
}

static void clear(made *m) {
  bench_data_clear(&m->data);
  cli_device_close(&m->device);
}

static const void *array(const made *m, flp_array_id id) {
  return m->data.buffers.at[id].buffer.data;
}

/* The softmax of a row. p: (V). Returns its entropy */
static double softmax(const made *m, int64_t row, double *p) {
  static float h[DEPTH], w[DEPTH];
  double sum = 0, entropy = 0;
  flp_half_widen(FLP_DTYPE_BF16, (const uint16_t *)array(m, FLP_ARRAY_hidden) + row * DEPTH, DEPTH, h);
  for (int64_t v = 0; v < VOCAB; v++) {
    double z = 0;
    flp_half_widen(FLP_DTYPE_BF16, (const uint16_t *)array(m, FLP_ARRAY_weight) + v * DEPTH, DEPTH, w);
    for (int i = 0; i < DEPTH; i++) z += (double)h[i] * (double)w[i];
    sum += p[v] = exp(z);
  }
  for (int64_t v = 0; v < VOCAB; v++) {
    p[v] /= sum;
    entropy -= p[v] * log(p[v]);
  }
  return entropy;
}

static int falling(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x < y) - (x > y);
}

/* A list: distinct ids, the target among them. Returns what p it has, of what the best of so many columns have. */
static double share_of_best(const made *m, int64_t row, double *p) {
  static int met[VOCAB], list;
  const int64_t *offsets = array(m, FLP_ARRAY_list_offsets), *ids = array(m, FLP_ARRAY_list_ids),
                *target = array(m, FLP_ARRAY_target);
  double mass = 0, best = 0;
  int found = 0;
  list++;
  for (int64_t e = offsets[row]; e < offsets[row + 1]; e++) {
    cr_assert(ids[e] >= 0 && ids[e] < VOCAB && met[ids[e]] != list, "row %ld: %ld", (long)row, (long)ids[e]);
    met[ids[e]] = list;
    mass += p[ids[e]];
    found += ids[e] == target[row];
  }
  cr_expect_eq(found, target[row] != m->data.call.ignore_index, "row %ld", (long)row);
  qsort(p, VOCAB, sizeof *p, falling);
  for (int64_t i = 0; i < offsets[row + 1] - offsets[row]; i++) best += p[i];
  return mass / best;
}

/* least: of that share, on average */
static void expect_lists(const made *m, double mean, double least) {
  static double p[VOCAB], entropy[ROWS];
  const int64_t *offsets = array(m, FLP_ARRAY_list_offsets), *target = array(m, FLP_ARRAY_target);
  double sum = 0;
  for (int64_t row = 0; row < ROWS; row++) {
    entropy[row] = softmax(m, row, p);
    if (target[row] != m->data.call.ignore_index)
      sum += share_of_best(m, row, p) / ROWS;
    else
      sum += 1.0 / ROWS;
  }
  cr_expect_gt(sum, least, "%s: %g", rows_kind_name(m->args.data), sum);
  for (int a = 0; a < ROWS; a++)
    for (int b = 0; b < ROWS; b++)
      cr_expect(entropy[a] < entropy[b] + 1e-3 || offsets[a + 1] - offsets[a] >= offsets[b + 1] - offsets[b],
                "rows %d and %d", a, b);
  cr_expect_eq(m->data.call.list_count, offsets[ROWS]);
  cr_expect_float_eq((double)offsets[ROWS] / ROWS, mean, 0.35 * mean);
}

/* Lists by chance would have a hundredth. Chance has a part in the scores of so few elements. */
Test(bench_kept, lists_are_the_rows_best_columns_and_longer_where_they_are_flat) {
  static const cli_data kinds[] = {CLI_DATA_POLICY, CLI_DATA_TEXT, CLI_DATA_BASE};
  static const double least[] = {0.8, 0.6, 0.4};
  for (int i = 0; i < 3; i++) {
    made m;
    make(&m, kinds[i], 20, 0);
    expect_lists(&m, 20, least[i]);
    cr_expect_eq(m.data.entropies.n, ROWS);
    clear(&m);
  }
}

/* Beyond the columns that a row favours, and masked rows. */
Test(bench_kept, long_lists_go_on_with_others) {
  made m;
  make(&m, CLI_DATA_TEXT, 350, 0.25);
  expect_lists(&m, 350, 0.65);
  const int64_t *target = array(&m, FLP_ARRAY_target);
  int masked = 0;
  for (int row = 0; row < ROWS; row++) masked += target[row] == m.data.call.ignore_index;
  cr_expect_eq(masked, ROWS / 4);
  clear(&m);
}

Test(bench_kept, a_seed_gives_the_same_lists_again) {
  made a, b;
  make(&a, CLI_DATA_POLICY, 5, 0);
  make(&b, CLI_DATA_POLICY, 5, 0);
  cr_assert_eq(a.data.call.list_count, b.data.call.list_count);
  cr_expect_eq(memcmp(array(&a, FLP_ARRAY_list_ids), array(&b, FLP_ARRAY_list_ids), (size_t)a.data.call.list_count * 8),
               0);
  clear(&a);
  clear(&b);
}

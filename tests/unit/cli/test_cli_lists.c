/* test_cli_lists.c: lists of columns as bench and check draw them: lengths, ids, targets, seeds. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/lists.h"

enum { ROWS = 4000, VOCAB = 3000 };

typedef struct scene {
  cli_zipf zipf;
  cli_lists lists;
  int64_t target[ROWS];
} scene;

static scene *create(int64_t vocab, double mean, uint64_t seed) {
  scene *s = calloc(1, sizeof *s);
  cr_assert_eq(cli_zipf_create(vocab, seed, &s->zipf), FLP_OK);
  for (int i = 0; i < ROWS; i++) s->target[i] = i % 7 ? (i * 37) % vocab : -100;
  cr_assert_eq(cli_lists_draw(&s->zipf, s->target, ROWS, mean, seed, &s->lists), FLP_OK);
  return s;
}

static void destroy(scene *s) {
  cli_zipf_destroy(&s->zipf);
  cli_lists_destroy(&s->lists);
  free(s);
}

static int64_t length_of(const scene *s, int row) {
  return s->lists.offsets[row + 1] - s->lists.offsets[row];
}

Test(lists, lengths_have_the_mean_and_run_to_four_times_it) {
  static const double means[] = {1, 1.5, 20, 200};
  for (int m = 0; m < 4; m++) {
    scene *s = create(VOCAB, means[m], 5);
    int64_t most = 0;
    for (int row = 0; row < ROWS; row++) {
      cr_assert(length_of(s, row) >= 1);
      if (length_of(s, row) > most) most = length_of(s, row);
    }
    double mean = (double)s->lists.offsets[ROWS] / ROWS;
    cr_expect_float_eq(mean / means[m], 1, 0.06, "%g for %g", mean, means[m]);
    cr_expect((double)most <= 4 * means[m] + 1, "%lld", (long long)most);
    if (m > 1) cr_expect((double)most > 3.8 * means[m], "%lld", (long long)most);
    destroy(s);
  }
}

static void check_row(const scene *s, int row, int64_t vocab, char *seen) {
  int64_t has_target = 0;
  memset(seen, 0, (size_t)vocab);
  for (int64_t e = s->lists.offsets[row]; e < s->lists.offsets[row + 1]; e++) {
    int64_t id = s->lists.ids[e];
    cr_assert(id >= 0 && id < vocab);
    cr_assert(!seen[id], "row %d has %lld twice", row, (long long)id);
    seen[id] = 1;
    has_target += id == s->target[row];
  }
  cr_assert_eq(has_target, s->target[row] >= 0);
}

Test(lists, an_id_stands_once_and_the_target_is_there) {
  static char seen[VOCAB];
  static const int64_t vocabs[] = {2, 40, VOCAB};
  for (int v = 0; v < 3; v++) {
    scene *s = create(vocabs[v], 2 + (double)vocabs[v] / 3, 9);
    for (int row = 0; row < ROWS; row++) check_row(s, row, vocabs[v], seen);
    destroy(s);
  }
}

static int by_count(const void *a, const void *b) {
  int left = *(const int *)a, right = *(const int *)b;
  return (left < right) - (left > right);
}

/* Of draws by Zipf's law over 3000 ids the most frequent has ln 2/ln 3001, 1 in 11.5, and the tenth a seventh of that. */
Test(lists, frequent_ids_recur_and_are_anywhere) {
  static int count[VOCAB];
  enum { DRAWS = 100000 };
  cli_zipf zipf;
  cr_assert_eq(cli_zipf_create(VOCAB, 3, &zipf), FLP_OK);
  memset(count, 0, sizeof count);
  for (uint64_t i = 0; i < DRAWS; i++) count[cli_zipf_draw(&zipf, i * 0x9e3779b97f4a7c15u)]++;
  cr_expect(count[zipf.order[0]] > DRAWS / 13 && count[zipf.order[0]] < DRAWS / 10, "%d", count[zipf.order[0]]);
  cr_expect_neq(zipf.order[0], 0);
  qsort(count, VOCAB, sizeof *count, by_count);
  double ratio = (double)count[0] / count[9];
  cr_expect(ratio > 6 && ratio < 9, "%g", ratio);
  cr_expect(count[VOCAB / 2] > 0, "rare ids are drawn too");
  cli_zipf_destroy(&zipf);
}

Test(lists, a_seed_decides_all) {
  scene *a = create(VOCAB, 20, 5), *same = create(VOCAB, 20, 5), *other = create(VOCAB, 20, 6);
  size_t bytes = (size_t)a->lists.offsets[ROWS] * sizeof(int64_t);
  cr_assert_eq(a->lists.offsets[ROWS], same->lists.offsets[ROWS]);
  cr_expect_eq(memcmp(a->lists.ids, same->lists.ids, bytes), 0);
  cr_expect_neq(memcmp(a->lists.offsets, other->lists.offsets, sizeof(int64_t) * ROWS), 0);
  destroy(a);
  destroy(same);
  destroy(other);
}

Test(lists, ids_are_written_in_the_dtype_of_targets) {
  const int64_t ids[3] = {7, -1, 150000};
  int32_t narrow[3];
  int64_t wide[3];
  cli_ids_narrow(FLP_DTYPE_INT32, ids, 3, narrow);
  cli_ids_narrow(FLP_DTYPE_INT64, ids, 3, wide);
  for (int i = 0; i < 3; i++) {
    cr_expect_eq(narrow[i], (int32_t)ids[i]);
    cr_expect_eq(wide[i], ids[i]);
  }
}

/* kept.c: lists of columns of rows as sharp as a trained model's, as a sampler's top-p leaves them.
 *
 * Lengths are those that lists.h draws; the flatter a row is, the longer its list. A list has the row's target, then the
 * columns that the row favours, best first, then others by Zipf's law. */
#include "gen/cli/bench/kept.h"

#include <stdlib.h>

#include "gen/cli/call/memory.h"

/* A row, or a list, with what it is ordered by. */
typedef struct ranked {
  double value;
  int64_t i;
} ranked;

static int falling(const void *a, const void *b) {
  const ranked *x = a, *y = b;
  if (x->value != y->value) return x->value < y->value ? 1 : -1;
  return (x->i > y->i) - (x->i < y->i);
}

/* of[row]: the drawn list whose length and common ids a row gets. rows, lists: (n) to work in */
static void pair(const float *entropy, const cli_lists *drawn, int64_t n, ranked *rows, ranked *lists, int64_t *of) {
  for (int64_t i = 0; i < n; i++) {
    rows[i] = (ranked){(double)entropy[i], i};
    lists[i] = (ranked){(double)(drawn->offsets[i + 1] - drawn->offsets[i]), i};
  }
  qsort(rows, (size_t)n, sizeof *rows, falling);
  qsort(lists, (size_t)n, sizeof *lists, falling);
  for (int64_t i = 0; i < n; i++) of[rows[i].i] = lists[i].i;
}

/* A list while it is filled. seen: (V) the last row, from 1, that has the id */
typedef struct filling {
  int64_t row, count, length, *seen, *ids;
} filling;

static void add(filling *list, int64_t id) {
  if (list->count == list->length || list->seen[id] == list->row + 1) return;
  list->seen[id] = list->row + 1;
  list->ids[list->count++] = id;
}

/* favoured: (rows_favoured) to work in. others: as many ids as the list has, all different: so they fill it */
static void fill(const bench_kept *kept, const int64_t *order, filling *list, const int64_t *others,
                 int64_t *favoured) {
  int64_t vocab = kept->rows->call->spec.vocab, target = kept->target[list->row];
  if (target >= 0 && target < vocab) add(list, target);
  rows_favourites(kept->rows, list->row, order, favoured);
  for (int k = 0; k < rows_favoured(vocab); k++) add(list, favoured[k]);
  for (int64_t i = 0; i < list->length; i++) add(list, others[i]);
}

/* order: (V), as rows_order has it */
static void fill_all(const bench_kept *kept, const cli_lists *drawn, const int64_t *of, const int64_t *order,
                     int64_t *seen, cli_lists *out) {
  int64_t favoured[ROWS_FAVOURED];
  out->offsets[0] = 0;
  for (int64_t row = 0; row < kept->rows->call->n; row++) {
    const int64_t *from = &drawn->offsets[of[row]];
    filling list = {row, 0, from[1] - from[0], seen, out->ids + out->offsets[row]};
    fill(kept, order, &list, drawn->ids + from[0], favoured);
    out->offsets[row + 1] = out->offsets[row] + list.length;
  }
}

flp_status bench_kept_draw(const bench_kept *kept, const cli_lists *drawn, cli_lists *out) {
  size_t n = (size_t)kept->rows->call->n, vocab = (size_t)kept->rows->call->spec.vocab;
  cli_memory memory = {0};
  ranked *ranks = cli_memory_take(&memory, 2 * n * sizeof *ranks);
  int64_t *of = cli_memory_take(&memory, n * sizeof *of);
  int64_t *order = cli_memory_take(&memory, vocab * sizeof *order);
  int64_t *seen = cli_memory_take_zeros(&memory, vocab * sizeof *seen);
  *out =
      (cli_lists){malloc((n + 1) * sizeof *out->offsets), malloc(((size_t)drawn->offsets[n] + 1) * sizeof *out->ids)};
  memory.is_short |= !out->offsets || !out->ids;
  flp_status status = cli_memory_status(&memory, "the lists of rows");
  if (status == FLP_OK) {
    pair(kept->entropy, drawn, (int64_t)n, ranks, ranks + n, of);
    rows_order(kept->rows, order);
    fill_all(kept, drawn, of, order, seen, out);
  } else {
    cli_lists_destroy(out);
  }
  cli_memory_free(&memory);
  return status;
}

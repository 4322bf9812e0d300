/* lists.c: lists of columns, of a case's pattern: as the rung takes them, and sorted without repeats for the oracle.
 *
 * Invariant: the oracle's list of a row that is bad, or has no target, is empty; no such row is asked of it. */
#include "gen/cli/check/problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/lists.h"
#include "runtime/base/status.h"

/* ---- patterns ---- */

/* Ids of a row as they are drawn, and where those of its pattern go. */
typedef struct pattern_row {
  const check_problem *problem;
  int64_t row, target;
  const int64_t *drawn;
  int64_t drawn_count;
} pattern_row;

/* Ids of a row in the making. */
typedef struct id_list {
  int64_t *ids, count;
} id_list;

static void put(id_list *out, int64_t id) {
  out->ids[out->count++] = id;
}

typedef void (*pattern_fn)(const pattern_row *in, id_list *out);

/* Every second row has its first id again at the end. */
static void as_drawn(const pattern_row *in, id_list *out) {
  for (int64_t i = 0; i < in->drawn_count + in->row % 2; i++) put(out, in->drawn[i % in->drawn_count]);
}

static void target_alone(const pattern_row *in, id_list *out) {
  if (in->target >= 0 && in->target < in->problem->c.spec.vocab) put(out, in->target);
}

static void all_columns(const pattern_row *in, id_list *out) {
  for (int64_t v = in->problem->c.spec.vocab - 1; v >= 0; v--) put(out, v);
}

/* An id once, twice or three times, apart. */
static void with_repeats(const pattern_row *in, id_list *out) {
  for (int64_t pass = 0; pass < 3; pass++)
    for (int64_t i = 0; i < in->drawn_count; i++)
      if (in->drawn[i] % 3 >= pass) put(out, in->drawn[i]);
}

/* The id, of no column, that a bad row has; -2 for none. */
static int64_t foreign_id(const pattern_row *in) {
  int wide = in->problem->c.spec.target_dtype == FLP_DTYPE_INT64, low = in->row % 16 >= 8;
  if (in->row % 8 == 1) return in->problem->c.spec.vocab;
  if (in->row % 8 == 3) return -1;
  if (in->row % 8 != 7) return -2;
  return wide ? (low ? INT64_MIN : INT64_C(1) << 40) : low ? INT32_MIN : INT32_MAX;
}

/* By eights: an id beyond the vocabulary, -1, a list without the target, none, an id far out; the others are good. */
static void some_bad(const pattern_row *in, id_list *out) {
  int64_t foreign = foreign_id(in);
  if (in->row % 8 == 5) return;
  for (int64_t i = 0; i < in->drawn_count; i++)
    if (in->row % 8 != 4 || in->drawn[i] != in->target) put(out, in->drawn[i]);
  if (foreign != -2) put(out, foreign);
}

static const pattern_fn patterns[] = {
    [CHECK_LISTS_DRAWN] = as_drawn,       [CHECK_LISTS_ONE] = target_alone, [CHECK_LISTS_ALL] = all_columns,
    [CHECK_LISTS_REPEATS] = with_repeats, [CHECK_LISTS_BAD] = some_bad,     [CHECK_LISTS_DESCEND] = as_drawn,
    [CHECK_LISTS_BEFORE] = as_drawn,      [CHECK_LISTS_BEHIND] = as_drawn};

/* The most ids that a pattern makes of the drawn ones of all rows. */
static int64_t most_ids(const check_problem *problem, int64_t drawn) {
  int64_t n = problem->c.n;
  return problem->c.lists == CHECK_LISTS_ALL ? n * problem->c.spec.vocab : 3 * drawn + n;
}

static pattern_row row_of(const check_problem *problem, const cli_lists *drawn, int64_t row) {
  int64_t begin = drawn->offsets[row];
  return (pattern_row){problem, row, problem->target_id[row], drawn->ids + begin, drawn->offsets[row + 1] - begin};
}

/* ---- arrays ---- */

/* Sorts the ids of a row and drops repeats; 0 ids, and 1 returned, where they make the row bad. */
static int sort_row(const check_problem *problem, int64_t row, int64_t *columns, int64_t *count) {
  int64_t begin = problem->list_offsets[row], end = problem->list_offsets[row + 1], unique = 0, has = 0;
  for (int64_t e = begin; e < end; e++)
    columns[e - begin] = cli_id_at(problem->c.spec.target_dtype, problem->list_ids, e);
  qsort(columns, (size_t)(end - begin), sizeof *columns, cli_by_value);
  int bad = end > begin && (columns[0] < 0 || columns[end - begin - 1] >= problem->c.spec.vocab);
  for (int64_t i = 0; i < end - begin; i++) {
    has |= columns[i] == problem->target_id[row];
    if (i == 0 || columns[i] != columns[unique - 1]) columns[unique++] = columns[i];
  }
  *count = bad || !has ? 0 : unique;
  return bad || !has;
}

/* What the oracle reads; list_offsets are still as they should be. */
static void sort_lists(check_problem *problem) {
  int64_t count = 0;
  for (int64_t row = 0; row < problem->c.n; row++) {
    int64_t own = 0;
    problem->column_offsets[row] = count;
    problem->list_bad[row] = (uint8_t)sort_row(problem, row, problem->list_columns + count, &own);
    count += own;
  }
  problem->column_offsets[problem->c.n] = count;
}

/* Offsets that are no lists: every row is bad then. */
static void break_offsets(check_problem *problem) {
  int64_t n = problem->c.n, *offsets = problem->list_offsets, middle = offsets[n / 2];
  if (problem->c.lists < CHECK_LISTS_DESCEND || n < 2) return;
  if (problem->c.lists == CHECK_LISTS_DESCEND) {
    offsets[n / 2] = offsets[n / 2 + 1];
    offsets[n / 2 + 1] = middle;
  }
  if (problem->c.lists == CHECK_LISTS_BEFORE) offsets[0] = -1;
  if (problem->c.lists == CHECK_LISTS_BEHIND) offsets[n]++;
  memset(problem->list_bad, 1, (size_t)n);
}

static flp_status take(check_problem *problem, int64_t count) {
  size_t n = (size_t)problem->c.n, ids = (size_t)count * sizeof(int64_t), offsets = (n + 1) * sizeof(int64_t);
  char what[80];
  snprintf(what, sizeof what, "the lists of case %s", problem->c.name);
  problem->list_count = count;
  problem->list_ids = cli_memory_take(&problem->memory, ids);
  problem->list_columns = cli_memory_take(&problem->memory, ids);
  problem->column_offsets = cli_memory_take(&problem->memory, offsets);
  problem->list_bad = cli_memory_take(&problem->memory, n);
  return cli_memory_status(&problem->memory, what);
}

static flp_status take_offsets(check_problem *problem) {
  problem->list_offsets = cli_memory_take(&problem->memory, ((size_t)problem->c.n + 1) * sizeof(int64_t));
  return cli_memory_status(&problem->memory, "lists");
}

static flp_status fill(check_problem *problem, const cli_lists *drawn) {
  int64_t n = problem->c.n, most = most_ids(problem, drawn->offsets[n]);
  id_list made = {.ids = cli_memory_take(&problem->memory, (size_t)most * sizeof(int64_t))};
  FLP_TRY(take_offsets(problem));
  for (int64_t row = 0; row < n; row++) {
    pattern_row in = row_of(problem, drawn, row);
    problem->list_offsets[row] = made.count;
    patterns[problem->c.lists](&in, &made);
  }
  problem->list_offsets[n] = made.count;
  FLP_TRY(take(problem, made.count));
  cli_ids_narrow(problem->c.spec.target_dtype, made.ids, made.count, problem->list_ids);
  sort_lists(problem);
  break_offsets(problem);
  return FLP_OK;
}

flp_status check_lists_create(check_problem *problem, uint64_t seed) {
  const check_case *c = &problem->c;
  cli_zipf zipf = {0};
  cli_lists drawn = {0};
  flp_status status = cli_zipf_create(c->spec.vocab, seed, &zipf);
  if (status == FLP_OK) status = cli_lists_draw(&zipf, problem->target_id, c->n, c->kept, seed + 1, &drawn);
  if (status == FLP_OK) status = fill(problem, &drawn);
  cli_zipf_destroy(&zipf);
  cli_lists_destroy(&drawn);
  return status;
}

flp_status check_lists_permute(check_problem *problem, const int64_t *order, int64_t n) {
  size_t element = flp_dtype_bytes(problem->c.spec.target_dtype);
  check_problem old = *problem;
  int64_t count = 0, at = 0;
  for (int64_t i = 0; i < n; i++) count += old.list_offsets[order[i] + 1] - old.list_offsets[order[i]];
  problem->c.n = n;
  FLP_TRY(take_offsets(problem));
  FLP_TRY(take(problem, count));
  for (int64_t i = 0; i < n; i++) {
    int64_t begin = old.list_offsets[order[i]], own = old.list_offsets[order[i] + 1] - begin;
    memcpy((char *)problem->list_ids + (size_t)at * element, (char *)old.list_ids + (size_t)begin * element,
           (size_t)own * element);
    problem->list_offsets[i] = at;
    at += own;
  }
  problem->list_offsets[n] = at;
  sort_lists(problem);
  return FLP_OK;
}

void check_lists_reverse(check_problem *problem) {
  size_t element = flp_dtype_bytes(problem->c.spec.target_dtype);
  char *ids = problem->list_ids, held[sizeof(int64_t)];
  for (int64_t row = 0; row < problem->c.n; row++) {
    int64_t low = problem->list_offsets[row], high = problem->list_offsets[row + 1] - 1;
    for (; low < high; low++, high--) {
      memcpy(held, ids + (size_t)low * element, element);
      memcpy(ids + (size_t)low * element, ids + (size_t)high * element, element);
      memcpy(ids + (size_t)high * element, held, element);
    }
  }
}

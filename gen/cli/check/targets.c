/* targets.c: several targets of a row, of a case's pattern, and how a rung gets them.
 *
 * Invariant: a row whose first target is ignored has none, and one whose first target has no upstream gradient has
 * none at all; so patterns of rows are what they are with one target. */
#include "gen/cli/check/problem.h"

#include <math.h>

#include "gen/cli/call/lists.h"
#include "gen/cli/call/normal.h"
#include "runtime/base/status.h"

/* Uniform in (-1, 1). */
static double uniform(uint64_t hash) {
  return ((double)(hash >> 11) + 0.5) * 0x1p-52 - 1.0;
}

/* ---- patterns ---- */

typedef struct pattern_row {
  const check_problem *problem;
  const cli_zipf *zipf;
  int64_t row, own;
  uint64_t seed;
} pattern_row;

/* Target k of a row, k > 0. */
typedef int64_t (*pattern_fn)(const pattern_row *in, int64_t k);

static int64_t as_drawn(const pattern_row *in, int64_t k) {
  uint64_t hash = cli_hash(in->seed + (uint64_t)k);
  if (in->row % 4 == 2 && hash % 4 == 0) return CHECK_IGNORE_INDEX;
  if (in->row % 2 && k == in->problem->targets - 1) return in->own;
  return cli_zipf_draw(in->zipf, cli_hash(hash));
}

static int64_t as_teachers(const pattern_row *in, int64_t k) {
  return in->zipf->order[(k + in->row % 3) % in->problem->c.spec.vocab];
}

static int64_t own_again(const pattern_row *in, int64_t k) {
  (void)k;
  return in->own;
}

static int64_t ends(const pattern_row *in, int64_t k) {
  return (in->row + k) % 2 ? 0 : in->problem->c.spec.vocab - 1;
}

static int64_t none(const pattern_row *in, int64_t k) {
  (void)in;
  (void)k;
  return CHECK_IGNORE_INDEX;
}

/* The last of them, the second, or one in the middle. */
static int64_t some_bad(const pattern_row *in, int64_t k) {
  const int64_t count = in->problem->targets, places[] = {count - 1, 1, count / 2};
  const int64_t foreign[] = {in->problem->c.spec.vocab, -1, INT32_MAX};
  if (in->row % 3 && k == (places[in->row / 3 % 3] > 0 ? places[in->row / 3 % 3] : 1)) return foreign[in->row / 9 % 3];
  return as_drawn(in, k);
}

static const pattern_fn patterns[] = {[CHECK_TARGETS_DRAWN] = as_drawn, [CHECK_TARGETS_TEACHER] = as_teachers,
                                      [CHECK_TARGETS_SAME] = own_again, [CHECK_TARGETS_ENDS] = ends,
                                      [CHECK_TARGETS_FEW] = none,       [CHECK_TARGETS_BAD] = some_bad};

static int is_zero(double value) {
  return value >= 0 && value <= 0;
}

/* A hundredth of the upstream gradients is 0. */
static double draw_gradient(uint64_t hash) {
  return hash % 100 == 3 ? 0 : (double)(float)uniform(hash);
}

static void swap_first(int64_t *target, double *g, int64_t with) {
  int64_t id = target[0];
  double gradient = g[0];
  target[0] = target[with];
  g[0] = g[with];
  target[with] = id;
  g[with] = gradient;
}

static void draw_row(check_problem *problem, const pattern_row *in) {
  int64_t count = problem->targets, *target = problem->target_id + in->row * count;
  double *g = problem->g + in->row * count;
  int is_idle = is_zero(g[0]), is_left_out = in->own == CHECK_IGNORE_INDEX;
  for (int64_t k = 1; k < count; k++) {
    target[k] = is_left_out ? CHECK_IGNORE_INDEX : patterns[problem->c.targets](in, k);
    int has_none = is_idle || target[k] == CHECK_IGNORE_INDEX;
    g[k] = has_none ? 0 : draw_gradient(cli_hash(in->seed + 0x5eed + (uint64_t)k));
  }
  if (is_left_out) g[0] = 0;
  if (problem->c.targets == CHECK_TARGETS_FEW) swap_first(target, g, in->row * 7 % count);
}

flp_status check_targets_draw(check_problem *problem, uint64_t seed) {
  cli_zipf zipf = {0};
  FLP_TRY(cli_zipf_create(problem->c.spec.vocab, seed, &zipf));
  for (int64_t row = 0; row < problem->c.n; row++) {
    pattern_row in = {problem, &zipf, row, problem->target_id[row * problem->targets],
                      cli_hash(seed + 1 + (uint64_t)row)};
    draw_row(problem, &in);
  }
  cli_zipf_destroy(&zipf);
  return FLP_OK;
}

/* ---- what a row has ---- */

check_targets_seen check_targets_see(const check_problem *problem, int64_t row) {
  check_targets_seen seen = {0};
  for (int64_t k = row * problem->targets; k < (row + 1) * problem->targets; k++) {
    int64_t id = problem->target_id[k];
    if (id == CHECK_IGNORE_INDEX) continue;
    seen.has_target = 1;
    seen.has_foreign |= id < 0 || id >= problem->c.spec.vocab;
    seen.has_gradient |= !is_zero(problem->g[k]);
  }
  return seen;
}

void check_targets_export(check_problem *problem) {
  int64_t count = problem->c.n * problem->targets;
  cli_ids_narrow(problem->c.spec.target_dtype, problem->target_id, count, problem->target);
  for (int64_t at = 0; at < count; at++) {
    int ignored = problem->targets > 1 && problem->target_id[at] == CHECK_IGNORE_INDEX;
    problem->grad_logprob[at] = ignored ? NAN : (float)problem->g[at];
  }
}

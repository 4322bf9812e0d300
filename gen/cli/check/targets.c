/* targets.c: several targets of a row, of a case's pattern, how a rung gets them, and what a loss over them reads of a
 * teacher and makes of a row.
 *
 * Invariants: a row whose first target is ignored has none, and one whose first target has no upstream gradient has
 * none at all; so patterns of rows are what they are with one target. By a teacher the targets of a row have at most
 * the whole mass together; one that is ignored, and every one of a row that is left out, has NaN: nobody reads it. */
#include "gen/cli/check/problem.h"

#include <math.h>

#include "gen/cli/call/lists.h"
#include "gen/cli/call/normal.h"
#include "gen/cli/call/teacher.h"
#include "runtime/base/status.h"

/* ---- patterns ---- */

typedef struct pattern_row {
  const check_problem *problem;
  const cli_zipf *zipf;
  int64_t row, own;
  uint64_t seed;
} pattern_row;

static int64_t as_drawn(const pattern_row *in, int64_t k) {
  uint64_t hash = cli_hash(in->seed + (uint64_t)k);
  if (in->row % 4 == 2 && hash % 4 == 0) return CHECK_IGNORE_INDEX;
  if (in->row % 2 && k == in->problem->targets - 1) return in->own;
  return cli_zipf_draw(in->zipf, cli_hash(hash));
}

/* The last of them, the second, or one in the middle. */
static int64_t some_bad(const pattern_row *in, int64_t k) {
  const int64_t count = in->problem->targets, places[] = {count - 1, 1, count / 2};
  const int64_t foreign[] = {in->problem->c.spec.vocab, -1, INT32_MAX};
  if (in->row % 3 && k == (places[in->row / 3 % 3] > 0 ? places[in->row / 3 % 3] : 1)) return foreign[in->row / 9 % 3];
  return as_drawn(in, k);
}

/* Target k of a row, k > 0. */
static int64_t target_at(const pattern_row *in, int64_t k) {
  int64_t vocab = in->problem->c.spec.vocab;
  switch (in->problem->c.targets) {
    case CHECK_TARGETS_TEACHER:
      return in->zipf->order[(k + in->row % 3) % vocab];
    case CHECK_TARGETS_SAME:
      return in->own;
    case CHECK_TARGETS_ENDS:
      return (in->row + k) % 2 ? 0 : vocab - 1;
    case CHECK_TARGETS_FEW:
      return CHECK_IGNORE_INDEX;
    case CHECK_TARGETS_BAD:
      return some_bad(in, k);
    default:
      return as_drawn(in, k);
  }
}

/* A hundredth of the upstream gradients is 0. */
static double draw_gradient(uint64_t hash) {
  return hash % 100 == 3 ? 0 : (double)(float)cli_uniform(hash);
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
  int is_idle = check_is_zero(g[0]), is_left_out = in->own == CHECK_IGNORE_INDEX;
  for (int64_t k = 1; k < count; k++) {
    target[k] = is_left_out ? CHECK_IGNORE_INDEX : target_at(in, k);
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
    seen.has_gradient |= !check_is_zero(problem->g[k]);
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

/* ---- losses over several targets ---- */

static int is_ignored(const check_problem *problem, int64_t at) {
  return problem->target_id[at] == CHECK_IGNORE_INDEX;
}

void check_teacher_loss(const check_problem *problem, int64_t row, const double *logprob,
                        const double inputs[FLP_LOSS_ALL_INPUTS], flp_loss_row *out, float *grad) {
  int64_t count = problem->targets, first = row * count;
  uint8_t skipped[FLP_TARGETS_MAX];
  for (int64_t k = 0; k < count; k++) skipped[k] = (uint8_t)is_ignored(problem, first + k);
  const flp_loss_targets targets = {.count = count,
                                    .teacher_logprob = problem->teacher ? problem->teacher + first : NULL,
                                    .skipped = skipped,
                                    .exact = logprob};
  flp_loss_evaluate_targets(problem->loss, &problem->loss_plan, &targets, inputs, problem->loss_parameters, out, grad);
}

/* Log-probability of what a teacher never says: -inf, unless the loss or a derivative is infinite there, as those of
 * reverse_kl are. */
static float log_of_none(const check_problem *problem) {
  enum { TWO = 2 };
  const float teacher[TWO] = {-0.5f, -INFINITY}, logprob[TWO] = {-1, -2};
  const double inputs[FLP_LOSS_ALL_INPUTS] = {[FLP_LOSS_WEIGHT] = 1, [FLP_LOSS_ENTROPY] = 1};
  const flp_loss_targets targets = {.count = TWO, .logprob = logprob, .teacher_logprob = teacher};
  float grad[TWO];
  flp_loss_row row;
  flp_loss_evaluate_targets(problem->loss, &problem->loss_plan, &targets, inputs, problem->loss_parameters, &row, grad);
  return isfinite(row.loss) && isfinite(grad[0]) && isfinite(grad[1]) ? -INFINITY : -80;
}

/* A target of the row that is not ignored, if any is. */
static int64_t place_of(const check_problem *problem, int64_t row, uint64_t seed) {
  int64_t count = problem->targets, place = (int64_t)(seed % (uint64_t)count);
  for (int64_t k = 0; k < count && is_ignored(problem, row * count + place); k++) place = (place + 1) % count;
  return place;
}

/* Nearly all of the mass, so that what is left is at its least. */
static void make_whole(int64_t count, float *out) {
  double sum = 0;
  for (int64_t k = 0; k < count; k++) sum += exp((double)out[k]);
  for (int64_t k = 0; k < count; k++) out[k] = (float)((double)out[k] - log(sum) - 0x1p-20);
}

static void draw_teacher(const check_problem *problem, int64_t row, uint64_t seed, float none, float *out) {
  int64_t count = problem->targets, place = place_of(problem, row, seed);
  check_teacher pattern = problem->c.teacher;
  cli_teacher_draw(seed, count, out);
  if (pattern == CHECK_TEACHER_WHOLE) make_whole(count, out);
  for (int64_t k = 0; k < count; k++) {
    if (pattern == CHECK_TEACHER_CERTAIN) out[k] = k == place ? 0 : none;
    if (pattern == CHECK_TEACHER_MISSING && (row + k) % 2) out[k] = none;
    if (pattern == CHECK_TEACHER_TAILS) out[k] = -20 - (float)(cli_hash(seed + (uint64_t)k) % 90);
    if (problem->forward_class[row] == CHECK_LEFT_OUT || is_ignored(problem, row * count + k)) out[k] = NAN;
  }
}

flp_status check_teacher_draw(check_problem *problem, uint64_t seed) {
  int64_t count = problem->targets;
  if (!flp_loss_is_over_targets(problem->loss)) return FLP_OK;
  flp_loss_plan_of(problem->loss, &problem->loss_plan);
  if (!(flp_loss_inputs(problem->loss) >> FLP_LOSS_TEACHER_LOGPROB & 1)) return FLP_OK;
  problem->teacher = cli_memory_take(&problem->memory, (size_t)(problem->c.n * count) * sizeof(float));
  FLP_TRY(cli_memory_status(&problem->memory, "the teacher of a step"));
  float none = log_of_none(problem);
  for (int64_t row = 0; row < problem->c.n; row++)
    draw_teacher(problem, row, cli_hash(seed + (uint64_t)row), none, problem->teacher + row * count);
  return FLP_OK;
}

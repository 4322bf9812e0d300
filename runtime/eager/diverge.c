/* diverge.c: the eager rung of flp_diverge: a row at a time in double, rows shared among the threads.
 *
 *     q = softmax a·x, p = softmax b·y, D = loss(log p, log q),  G = ∂D/∂log q
 *     dx_v = a·(u·(G_v − q_v·Σ G / Σ q) + g·([v = y] − q_v) − e·q_v·(log q_v + H))
 *
 * source: runtime/loss/targets.c, all columns being targets. Σ q is 1 but for rounding; with it equal rows give 0. */
#include "runtime/eager/diverge.h"

#include <math.h>
#include <stdlib.h>

#include "runtime/base/half.h"
#include "runtime/base/status.h"
#include "runtime/eager/core.h"

/* Scores of one row; what a thread has of its own. */
typedef struct row_scores {
  double *logs; /* (V) scaled scores, then log-probabilities */
  double lse;
  int64_t best;
  int is_dead, is_beyond; /* no score above -inf or within the limit; of these those that count as bad */
} row_scores;

typedef struct scratch {
  row_scores student, teacher;
  float *slope; /* (V) G, then dx */
} scratch;

typedef struct job {
  const flp_spec *spec;
  const flp_loss *loss;
  const flp_diverge_args *args;
  flp_loss_plan plan;
  scratch *of_worker;
  atomic_ullong bad_rows;
} job;

static void read_scores(const float *scores, double scale, int64_t count, row_scores *out) {
  double top = -INFINITY, sum = 0;
  out->best = 0;
  for (int64_t v = 0; v < count; v++) {
    out->logs[v] = scale * (double)scores[v];
    if (out->logs[v] > top) top = out->logs[out->best = v];
  }
  double reference = isfinite(top) ? top : 0;
  for (int64_t v = 0; v < count; v++) sum += exp(out->logs[v] - reference);
  double units = top * M_LOG2E;
  int is_alive = units > -FLP_SCORE_LIMIT && units <= FLP_SCORE_LIMIT && sum > 0;
  out->is_dead = units > FLP_SCORE_LIMIT || (!is_alive && !isnan(sum));
  out->is_beyond = (units > FLP_SCORE_LIMIT && isfinite(units)) || (units <= -FLP_SCORE_LIMIT && !isnan(sum));
  out->lse = reference + log(sum);
}

static void take_logs(int64_t count, row_scores *row) {
  for (int64_t v = 0; v < count; v++) row->logs[v] -= row->lse;
}

static double scale_of(float scale, const float *rows, int64_t row) {
  return (double)(rows ? rows[row] : scale);
}

/* What bindings read of a state; this rung makes all else again. */
static void give_state(double *out, const scratch *s) {
  out[0] = s->student.lse * M_LOG2E;
  out[1] = s->teacher.lse * M_LOG2E;
}

static double entropy_of(const double *logs, int64_t count) {
  double entropy = 0;
  for (int64_t v = 0; v < count; v++) entropy -= logs[v] > -INFINITY ? exp(logs[v]) * logs[v] : 0;
  return entropy;
}

static void give_values(float *out, double value, const scratch *s, int64_t count) {
  double entropy = entropy_of(s->student.logs, count), acceptance = 0;
  for (int64_t v = 0; v < count; v++) {
    double q = exp(s->student.logs[v]), p = exp(s->teacher.logs[v]);
    acceptance += p < q ? p : q;
  }
  int is_nan = isnan(s->student.lse + s->teacher.lse);
  out[0] = is_nan ? NAN : (float)value;
  out[1] = (float)s->student.lse;
  out[2] = (float)s->teacher.lse;
  out[3] = isnan(s->student.lse) ? NAN : (float)entropy;
  out[4] = is_nan ? NAN : (float)acceptance;
  out[5] = !is_nan && s->student.best == s->teacher.best ? 1 : 0;
}

/* Upstream gradients of a row. */
typedef struct pulls {
  double value, logprob, entropy;
} pulls;

/* What those of log q of the target and of the entropy pull at column v, but for a. */
static double beside_of(const double *logs, int64_t v, int64_t target, double entropy, const pulls *of) {
  double q = exp(logs[v]), out = 0;
  if (of->logprob != 0) out += of->logprob * ((double)(v == target) - q);
  if (of->entropy != 0 && !(q == 0)) out -= of->entropy * q * (logs[v] + entropy);
  return out;
}

static void give_gradient(const job *j, int64_t row, scratch *s, double scale, pulls of) {
  int64_t count = j->spec->vocab, target = j->args->target ? j->args->target[row] : -1;
  double of_slope = 0, of_q = 0, entropy = of.entropy == 0 ? 0 : entropy_of(s->student.logs, count);
  if (target < 0 || target >= count) of.logprob = 0;
  for (int64_t v = 0; v < count; v++) {
    of_slope += (double)s->slope[v];
    of_q += (double)(float)exp(s->student.logs[v]);
  }
  double pull = of_slope / of_q;
  for (int64_t v = 0; v < count; v++) {
    double dx = (double)s->slope[v] - (double)(float)exp(s->student.logs[v]) * pull;
    dx = of.value == 0 ? 0 : dx * of.value;
    s->slope[v] = (float)(scale * (dx + beside_of(s->student.logs, v, target, entropy, &of)));
  }
  int64_t bytes = (int64_t)flp_dtype_bytes(j->spec->dtype);
  char *out = (char *)j->args->grad_scores + row * j->args->grad_scores_stride * bytes;
  flp_half_narrow(j->spec->dtype, s->slope, count, out);
}

static void do_row(void *context, int64_t row, int worker) {
  job *j = context;
  const flp_diverge_args *a = j->args;
  scratch *s = &j->of_worker[worker];
  int64_t count = j->spec->vocab;
  double scale = scale_of(a->scale, a->scale_rows, row);
  read_scores(a->scores + row * a->scores_stride, scale, count, &s->student);
  read_scores(a->teacher + row * a->teacher_stride, scale_of(a->teacher_scale, a->teacher_scale_rows, row), count,
              &s->teacher);
  if (a->values && (s->student.is_beyond || s->teacher.is_beyond)) atomic_fetch_add(&j->bad_rows, 1);
  if (s->student.is_dead || s->teacher.is_dead) s->student.lse = s->teacher.lse = NAN;
  take_logs(count, &s->student);
  take_logs(count, &s->teacher);
  flp_loss_targets targets = {.count = count, .exact = s->student.logs, .exact_teacher = s->teacher.logs};
  double inputs[FLP_LOSS_ALL_INPUTS] = {[FLP_LOSS_WEIGHT] = 1};
  flp_loss_row result;
  flp_loss_evaluate_targets(j->loss, &j->plan, &targets, inputs, a->loss_parameters, &result,
                            a->grad_scores ? s->slope : NULL);
  if (a->state) give_state(a->state + row * FLP_DIVERGE_STATE, s);
  if (a->values) give_values(a->values + row * FLP_DIVERGE_VALUES, result.loss, s, count);
  pulls of = {a->upstream ? a->upstream[row] : 1, a->grad_logprob ? a->grad_logprob[row] : 0,
              a->grad_entropy ? a->grad_entropy[row] : 0};
  if (a->grad_scores) give_gradient(j, row, s, scale, of);
}

static flp_status make_scratch(scratch *each, int count, int64_t vocab) {
  for (int i = 0; i < count; i++) {
    each[i].student.logs = malloc((size_t)vocab * sizeof(double));
    each[i].teacher.logs = malloc((size_t)vocab * sizeof(double));
    each[i].slope = malloc((size_t)vocab * sizeof(float));
    if (!each[i].student.logs || !each[i].teacher.logs || !each[i].slope)
      return flp_fail(FLP_ERROR_MEMORY, "out of host memory for rows of %lld columns", (long long)vocab);
  }
  return FLP_OK;
}

flp_status flp_eager_diverge(const flp_spec *spec, const flp_loss *loss, const flp_diverge_args *args, int threads,
                             uint64_t *bad_rows) {
  if (args->n == 0) return FLP_OK;
  scratch each[EAGER_THREADS_MAX] = {0};
  job j = {.spec = spec, .loss = loss, .args = args, .of_worker = each};
  eager_team team;
  int most = eager_thread_count(threads), count = args->n < most ? (int)args->n : most;
  flp_loss_plan_of(loss, &j.plan);
  flp_status status = make_scratch(each, count, spec->vocab);
  if (status == FLP_OK) {
    eager_team_start(&team, count);
    eager_team_run(&team, args->n, do_row, &j);
    eager_team_stop(&team);
  }
  for (int i = 0; i < count; i++) {
    free(each[i].student.logs);
    free(each[i].teacher.logs);
    free(each[i].slope);
  }
  *bad_rows += atomic_load(&j.bad_rows);
  return status;
}

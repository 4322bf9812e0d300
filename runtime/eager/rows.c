/* rows.c: decisions per row: active rows, their scale and target, and their outputs. */
#include <float.h>
#include <string.h>

#include "runtime/base/number.h"
#include "runtime/base/operands.h"
#include "runtime/eager/core.h"

static const double log2_e = 1.4426950408889634074;
static const double ln_2 = 0.69314718055994530942;

int64_t eager_id_at(const flp_spec *spec, const void *ids, int64_t at) {
  if (spec->target_dtype == FLP_DTYPE_INT32) return ((const int32_t *)ids)[at];
  return ((const int64_t *)ids)[at];
}

static int64_t target_id(const flp_spec *spec, const flp_args *args, int64_t row, int64_t k) {
  return eager_id_at(spec, args->target, row * flp_spec_targets(spec) + k);
}

int eager_is_ignored(const flp_spec *spec, const flp_args *args, int64_t row, int64_t k) {
  return target_id(spec, args, row, k) == args->ignore_index;
}

static double temperature_of(const flp_spec *spec, const flp_args *args, int64_t row) {
  return spec->per_row_temperature ? (double)args->temperature_rows[row] : (double)args->temperature;
}

eager_scale eager_row_scale(const flp_spec *spec, const flp_args *args, int64_t row) {
  double temperature = temperature_of(spec, args, row), cap = (double)spec->softcap, logit_scale = (double)args->scale;
  eager_scale scale = {.capped = spec->softcap > 0};
  scale.outer = (scale.capped ? cap : logit_scale) * log2_e / temperature;
  scale.inner = scale.capped ? logit_scale / cap : 0;
  return scale;
}

double eager_score_slope(const eager_scale *scale, double x) {
  if (!scale->capped) return scale->outer * ln_2;
  double tanh_x = tanh(scale->inner * x);
  return scale->outer * ln_2 * scale->inner * (1 - tanh_x) * (1 + tanh_x);
}

int64_t eager_row_target(const flp_spec *spec, const flp_args *args, int64_t row, int64_t k) {
  int64_t id = target_id(spec, args, row, k), local = id - args->vocab_offset;
  if (id == args->ignore_index || id < 0) return -1;
  return local >= 0 && local < args->vocab_valid ? local : -1;
}

double eager_grad_target(const flp_spec *spec, const flp_args *args, int64_t row, int64_t k) {
  if (!args->grad_logprob || eager_is_ignored(spec, args, row, k)) return 0;
  return (double)args->grad_logprob[row * flp_spec_targets(spec) + k];
}

/* No gradient that is given asks anything of this row. A NaN does. */
static int is_inactive(const flp_spec *spec, const flp_args *args, const eager_scores *scores, int64_t row) {
  const float *entropy = spec->entropy == FLP_ENTROPY_BACKWARD ? args->grad_entropy : NULL;
  if (args->grad_raw_scores) return 0;
  if (entropy && entropy[row] != 0) return 0;
  if (scores && (scores->grad_lse[row] != 0 || scores->grad_mean[row] != 0)) return 0;
  for (int64_t k = 0; k < flp_spec_targets(spec); k++)
    if (eager_grad_target(spec, args, row, k) != 0) return 0;
  return 1;
}

static int is_usable(const flp_spec *spec, const flp_args *args, int64_t row) {
  double factor = (double)(spec->softcap > 0 ? spec->softcap : args->scale);
  return !spec->per_row_temperature || flp_number_is_temperature(args->temperature_rows[row], factor);
}

static int is_bad(const flp_spec *spec, const flp_args *args, int64_t row) {
  for (int64_t k = 0; k < flp_spec_targets(spec); k++) {
    int64_t id = target_id(spec, args, row, k);
    if (id != args->ignore_index && (id < 0 || id >= args->vocab_total)) return 1;
  }
  return !is_usable(spec, args, row);
}

static int has_target(const flp_spec *spec, const flp_args *args, int64_t row) {
  for (int64_t k = 0; k < flp_spec_targets(spec); k++)
    if (!eager_is_ignored(spec, args, row, k)) return 1;
  return 0;
}

static uint8_t class_of(const flp_spec *spec, const flp_args *args, const eager_scores *scores, int64_t row) {
  if (!has_target(spec, args, row)) return FLP_ROW_LEFT_OUT;
  if (args->pass == FLP_PASS_BACKWARD && is_inactive(spec, args, scores, row)) return FLP_ROW_LEFT_OUT;
  return is_bad(spec, args, row) ? FLP_ROW_BAD : FLP_ROW_ACTIVE;
}

/* Marks the rows of the list active and all others left out; ids that are no row are counted. */
static void mark_listed(const flp_args *args, uint8_t *row_class, uint64_t *bad_rows) {
  memset(row_class, FLP_ROW_LEFT_OUT, (size_t)args->n);
  for (int64_t i = 0; i < args->row_count; i++) {
    int64_t row = args->rows[i];
    if (row < 0 || row >= args->n)
      ++*bad_rows;
    else
      row_class[row] = FLP_ROW_ACTIVE;
  }
}

/* Whether 0 <= list_offsets[r] <= list_offsets[r + 1] <= list_count for every row; else every row is bad. */
static int lists_ascend(const flp_args *args) {
  const int64_t *offsets = args->list_offsets;
  if (offsets[0] < 0 || offsets[args->n] > args->list_count) return 0;
  for (int64_t row = 0; row < args->n; row++)
    if (offsets[row] > offsets[row + 1]) return 0;
  return 1;
}

/* Whether a row's list holds its target, and ids of the vocabulary alone; else the row is bad. */
static int is_good_list(const flp_spec *spec, const flp_args *args, int64_t row) {
  int64_t target = eager_row_target(spec, args, row, 0);
  int is_found = target < 0;
  for (int64_t e = args->list_offsets[row]; e < args->list_offsets[row + 1]; e++) {
    int64_t id = eager_id_at(spec, args->list_ids, e);
    if (id < 0 || id >= args->vocab_total) return 0;
    is_found |= id - args->vocab_offset == target;
  }
  return is_found;
}

int64_t eager_rows_classify(const flp_spec *spec, const flp_args *args, const eager_scores *scores, uint8_t *row_class,
                            int32_t *index, uint64_t *bad_rows) {
  if (args->rows)
    mark_listed(args, row_class, bad_rows);
  else
    memset(row_class, FLP_ROW_ACTIVE, (size_t)args->n);
  int64_t count = 0;
  int has_lists = eager_is_listed(spec, args->pass), ascend = has_lists && lists_ascend(args);
  for (int64_t row = 0; row < args->n; row++) {
    if (row_class[row] == FLP_ROW_ACTIVE) row_class[row] = class_of(spec, args, scores, row);
    if (has_lists && row_class[row] == FLP_ROW_ACTIVE && !(ascend && is_good_list(spec, args, row)))
      row_class[row] = FLP_ROW_BAD;
    if (row_class[row] == FLP_ROW_ACTIVE) index[count++] = (int32_t)row;
    if (row_class[row] == FLP_ROW_BAD) ++*bad_rows;
  }
  return count;
}

void eager_rows_fill(const flp_spec *spec, const flp_args *args, const uint8_t *row_class) {
  int64_t count = flp_spec_targets(spec);
  for (int64_t row = 0; row < args->n; row++) {
    if (row_class[row] == FLP_ROW_ACTIVE) continue;
    float value = row_class[row] == FLP_ROW_BAD ? NAN : 0.0f;
    for (int64_t k = 0; args->logprob && k < count; k++) args->logprob[row * count + k] = value;
    if (args->entropy) args->entropy[row] = value;
    for (int i = 0; args->stats && i < 4; i++) args->stats[4 * row + i] = value;
    for (int i = 0; args->statistics && i < 4; i++) args->statistics[4 * row + i] = i < 3 ? value : 0;
    if (!args->partial || args->pass != FLP_PASS_FORWARD) continue;
    float *partial = args->partial + 4 * row;
    partial[0] = row_class[row] == FLP_ROW_BAD ? NAN : (float)-FLP_SCORE_LIMIT;
    partial[1] = partial[2] = 0;
    partial[3] = -INFINITY;
    for (int i = 0; args->partial_statistics && i < 4; i++) args->partial_statistics[4 * row + i] = i < 3 ? value : 0;
    for (int64_t k = 0; count > 1 && k < count; k++) args->partial_targets[row * count + k] = -INFINITY;
  }
}

eager_partial eager_partial_of(const double *t, int64_t count) {
  double maximum = -INFINITY;
  int has_nan = 0;
  for (int64_t j = 0; j < count; j++) {
    if (t[j] > maximum) maximum = t[j];
    has_nan |= isnan(t[j]);
  }
  if (has_nan) return (eager_partial){maximum, NAN, NAN, NAN, NAN};
  eager_partial partial = {.maximum = maximum};
  for (int64_t j = 0; j < count; j++) {
    partial.total += t[j];
    if (t[j] == -INFINITY) continue; /* probability 0, and nothing to the entropy */
    double u = t[j] - maximum, e = exp2(u);
    partial.sum += e;
    partial.weighted += e * u;
    partial.squares += e * e;
  }
  return partial;
}

eager_partial eager_partial_move(eager_partial partial, double maximum) {
  double shift = partial.maximum - maximum, factor = exp2(shift);
  return (eager_partial){maximum, partial.sum * factor, (partial.weighted + shift * partial.sum) * factor,
                         partial.squares * factor * factor, partial.total};
}

/* A sum of 0 means that no score was above -inf: the other side stands alone, and 0·inf is never formed. */
eager_partial eager_partial_merge(eager_partial left, eager_partial right) {
  int keeps_left = left.sum != 0 && left.maximum >= right.maximum;
  eager_partial all = right.sum == 0 || keeps_left ? left : right, other = right.sum == 0 || keeps_left ? right : left;
  if (other.sum != 0) {
    other = eager_partial_move(other, all.maximum);
    all.sum += other.sum;
    all.weighted += other.weighted;
    all.squares += other.squares;
  }
  all.total += other.total;
  return all;
}

int eager_is_best(const eager_call *call, const eager_scale *scale, eager_partial whole, const double *targets) {
  int is_best = 0;
  for (int64_t k = 0; k < flp_spec_targets(call->spec); k++)
    is_best |= targets[k] != -INFINITY && eager_score(scale, targets[k]) >= whole.maximum;
  return is_best;
}

void eager_statistics_write(const eager_call *call, int64_t row, eager_partial whole, double columns, int is_best) {
  const flp_args *args = call->args;
  const eager_scores *scores = call->scores;
  int is_good = !eager_is_beyond_limit(whole.maximum, whole.sum) && whole.maximum <= FLP_SCORE_LIMIT;
  double log_sum = is_good ? log2(whole.sum) : NAN, lse = ln_2 * (log_sum + whole.maximum);
  double mean = is_good ? ln_2 * whole.total / columns : NAN;
  if (scores) {
    scores->lse[row] = (float)lse;
    scores->mean_score[row] = (float)mean;
  }
  if (args->statistics) {
    const double values[4] = {lse, mean, ln_2 * (log2(whole.squares) - 2 * log_sum), is_best && !isnan(lse)};
    for (int i = 0; i < 4; i++) args->statistics[4 * row + i] = (float)values[i];
  }
  if (args->pass != FLP_PASS_FORWARD || !args->partial || !args->partial_statistics) return;
  if (is_good) whole = eager_partial_move(whole, (double)args->partial[4 * row]);
  const double sums[4] = {whole.total, whole.squares, columns, is_best};
  for (int i = 0; i < 4; i++) args->partial_statistics[4 * row + i] = (float)sums[i];
}

int eager_is_beyond_limit(double maximum, double sum) {
  return (maximum > FLP_SCORE_LIMIT && maximum <= (double)FLT_MAX) || (maximum <= -FLP_SCORE_LIMIT && !isnan(sum));
}

void eager_partial_write(const eager_call *call, int64_t row, eager_partial part, const double *targets) {
  const flp_args *args = call->args;
  int64_t count = flp_spec_targets(call->spec);
  float *out = args->partial + 4 * row;
  int empty = part.maximum <= -FLP_SCORE_LIMIT && !isnan(part.sum);
  double maximum = empty ? -FLP_SCORE_LIMIT : (double)(float)part.maximum;
  if (fabs(maximum) <= FLP_SCORE_LIMIT) part = eager_partial_move(part, maximum);
  out[0] = (float)maximum;
  out[1] = empty ? 0 : (float)part.sum;
  out[2] = empty ? 0 : (float)part.weighted;
  out[3] = count > 1 ? -INFINITY : (float)targets[0];
  for (int64_t k = 0; count > 1 && k < count; k++) args->partial_targets[row * count + k] = (float)targets[k];
}

/* The stored sum is about the maximum as stored, in fp32, so that stats are consistent to double precision. */
void eager_row_finish(const eager_call *call, int64_t row, const eager_scale *scale, eager_partial whole,
                      const double *targets) {
  const flp_args *args = call->args;
  int64_t count = flp_spec_targets(call->spec);
  double maximum = NAN, log_sum = NAN, log_whole = NAN, entropy = NAN, largest = -INFINITY;
  int is_whole = flp_args_are_whole(args); /* other shards may have more */
  int is_asked = args->logprob || args->entropy || args->stats ||
                 (is_whole && (args->top_ids || args->top_logprob || args->top_rest || args->rank));
  if (eager_is_beyond_limit(whole.maximum, whole.sum)) {
    if (is_asked) atomic_fetch_add(call->bad_rows, 1);
  } else if (whole.maximum <= FLP_SCORE_LIMIT) {
    log_whole = log2(whole.sum);
    maximum = (double)(float)whole.maximum;
    log_sum = log_whole + (whole.maximum - maximum);
    entropy = ln_2 * (log_whole - whole.weighted / whole.sum);
    if (entropy < 0) entropy = 0;
  }
  for (int64_t k = 0; k < count; k++) {
    double logprob = ln_2 * ((eager_score(scale, targets[k]) - whole.maximum) - log_whole);
    int ignored = eager_is_ignored(call->spec, args, row, k);
    if (logprob > 0 || ignored) logprob = 0;
    if (args->logprob) args->logprob[row * count + k] = (float)logprob;
    if (!ignored && !(logprob <= largest)) largest = logprob; /* a NaN too, which all of a row's are then */
  }
  if (args->entropy) args->entropy[row] = (float)entropy;
  if (!args->stats) return;
  const double stats[4] = {maximum, log_sum, largest, entropy};
  for (int i = 0; i < 4; i++) args->stats[4 * row + i] = (float)stats[i];
}

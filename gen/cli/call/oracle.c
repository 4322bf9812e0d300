/* oracle.c: scores, softmax and gradients in fp64, eight rows at a time; see the header.
 *
 * Invariant: a block is eight rows of one operand (the left) against a list of rows of the other (the right), so that
 * one routine gives the scores of rows against the vocabulary and of columns against the batch. */
#include "gen/cli/call/oracle.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/lists.h"
#include "runtime/base/half.h"
#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include "runtime/kernel/abi.h"

enum { BLOCK = 8, STEP = 16, THREADS_MAX = 64 };

typedef double wide __attribute__((vector_size(64), aligned(8)));
typedef int64_t wide_bits __attribute__((vector_size(64), aligned(8)));
typedef float narrow __attribute__((vector_size(32), aligned(4)));
typedef int32_t units __attribute__((vector_size(32), aligned(4)));

/* Of functions that take most of the time: by the widest vectors that the machine has. Sums keep their order and their
 * roundings (-ffp-contract=off), so that numbers are the same on each. */
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define BY_WIDEST_VECTORS __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define BY_WIDEST_VECTORS
#endif
#define INTO_CALLERS static inline __attribute__((always_inline))

double oracle_round(flp_dtype dtype, double value) {
  float single = (float)value;
  if (dtype == FLP_DTYPE_BF16) return (double)flp_half_from_bf16(flp_half_to_bf16(single));
  if (dtype == FLP_DTYPE_FP16) return (double)flp_half_from_fp16(flp_half_to_fp16(single));
  return (double)single;
}

/* ---- blocks of work over threads ---- */

typedef struct block_job block_job;
/* Does block `block` with memory of its own. */
typedef void (*block_fn)(const block_job *job, int64_t block, double *scratch);

struct block_job {
  const oracle_problem *problem;
  block_fn work;
  const int64_t *left, *right; /* ids of rows of either operand; right NULL: 0, 1, 2, ... */
  int64_t left_count, right_count;
  int left_is_weight;
  const oracle_row *stats; /* of the hidden rows, in their list's order */
  oracle_row *out;
  double *exact, *yardstick, *squares;
  const oracle_columns *columns;
  oracle_visit_fn visit;
  void *context;
  atomic_llong *next;
  atomic_int *failed;
};

/* Doubles that one worker needs: squares and operands of the left block, one right row, scores and their yardstick,
 * sums. */
static size_t scratch_count(const block_job *job) {
  size_t depth = (size_t)job->problem->depth, right = (size_t)job->right_count;
  return BLOCK * depth * 5 + depth + 2 * BLOCK * right + 64;
}

static void *block_worker(void *argument) {
  const block_job *job = argument;
  double *scratch = aligned_alloc(64, (scratch_count(job) * sizeof(double) + 63) / 64 * 64);
  if (!scratch) {
    atomic_store(job->failed, 1);
    return NULL;
  }
  int64_t blocks = (job->left_count + BLOCK - 1) / BLOCK;
  for (;;) {
    int64_t block = atomic_fetch_add(job->next, 1);
    if (block >= blocks) break;
    job->work(job, block, scratch);
  }
  free(scratch);
  return NULL;
}

static flp_status run_blocks(block_job *job) {
  atomic_llong next = 0;
  atomic_int failed = 0;
  job->next = &next;
  job->failed = &failed;
  pthread_t threads[THREADS_MAX];
  int started = 0;
  int wanted = job->problem->threads < THREADS_MAX ? job->problem->threads : THREADS_MAX;
  if ((job->left_count + BLOCK - 1) / BLOCK < wanted) wanted = (int)((job->left_count + BLOCK - 1) / BLOCK);
  while (started + 1 < wanted && flp_thread_start(&threads[started], block_worker, job) == 0) started++;
  block_worker(job);
  for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
  return atomic_load(&failed) ? flp_fail(FLP_ERROR_MEMORY, "the oracle ran out of host memory") : FLP_OK;
}

/* Blocks of rows of hidden against all columns. */
static block_job job_of_rows(const oracle_problem *problem, block_fn work, const int64_t *rows, int64_t count) {
  return (block_job){
      .problem = problem, .work = work, .left = rows, .left_count = count, .right_count = problem->vocab};
}

/* ---- scores ---- */

typedef struct block_memory {
  double *left;     /* (depth, 8) */
  float *left32;    /* (depth, 8) */
  float *row;       /* (depth) one row of the right operand */
  double *scores;   /* (right, 8) x = z + b in fp64 */
  double *scores32; /* (right, 8) the same by the yardstick */
  double *sums;     /* (8, 2, depth) per output row: exact and yardstick */
  float *sums32;    /* (8, depth) */
  double *squares;  /* (8, 2) of the left rows: times the right rows' own, and without */
  double *worst;    /* (8) what either sum of the left rows' scores is off at most */
} block_memory;

static block_memory split(const block_job *job, double *scratch) {
  size_t depth = (size_t)job->problem->depth, right = (size_t)job->right_count;
  block_memory m;
  m.squares = scratch;
  m.worst = m.squares + 2 * BLOCK;
  m.left = m.worst + BLOCK;
  m.left32 = (float *)(m.left + BLOCK * depth);
  m.scores = m.left + BLOCK * depth * 2;
  m.scores32 = m.scores + BLOCK * right;
  m.sums = m.scores32 + BLOCK * right;
  m.sums32 = (float *)(m.sums + 2 * BLOCK * depth);
  m.row = m.sums32 + BLOCK * depth;
  return m;
}

double oracle_in_terms(flp_dtype dtype, flp_dtype stored, int terms, double value) {
  if (!stored || stored == dtype) return value;
  double first = oracle_round(dtype, value);
  return first + (terms > 1 ? oracle_round(dtype, value - first) : 0);
}

/* Elements as products take them. */
static void widen(const oracle_problem *problem, flp_dtype stored, const char *base, int64_t at, int64_t count,
                  float *out) {
  if (!stored) stored = problem->dtype;
  flp_half_widen(stored, base + at * flp_half_bytes(stored), count, out);
  for (int64_t i = 0; i < count; i++)
    out[i] = (float)oracle_in_terms(problem->dtype, stored, problem->terms, (double)out[i]);
}

static void widen_row(const oracle_problem *problem, int is_weight, int64_t row, float *out) {
  int64_t stride = is_weight ? problem->weight_stride : problem->hidden_stride;
  const char *base = is_weight ? problem->weight : problem->hidden;
  flp_dtype stored = is_weight ? problem->weight_dtype : problem->hidden_dtype;
  int64_t own = problem->depth - problem->more, more = problem->more;
  widen(problem, stored, base, row * stride, own, out);
  const char *beside = is_weight ? problem->weight_more : problem->hidden_more;
  if (more) widen(problem, problem->dtype, beside, row * more, more, out + own);
}

static int64_t right_id(const block_job *job, int64_t i) {
  return job->right ? job->right[i] : i;
}

static void load_left(const block_job *job, int64_t block, const block_memory *m) {
  int64_t depth = job->problem->depth;
  for (int64_t r = 0; r < BLOCK; r++) {
    int64_t i = block * BLOCK + r;
    if (i < job->left_count)
      widen_row(job->problem, job->left_is_weight, job->left[i], m->row);
    else
      memset(m->row, 0, (size_t)depth * sizeof *m->row);
    for (int64_t d = 0; d < depth; d++) {
      m->left32[d * BLOCK + r] = m->row[d];
      m->left[d * BLOCK + r] = (double)m->row[d];
    }
  }
}

static float bias_of(const oracle_problem *problem, int64_t column) {
  float value = 0;
  if (problem->bias) widen(problem, problem->bias_dtype, problem->bias, column, 1, &value);
  return value;
}

/* out: 2^-e of each row, whose largest magnitude of these has the exponent e */
INTO_CALLERS void scale_of(const wide *addends, int count, wide *out) {
  wide_bits largest = (wide_bits)((wide){0} + 0x1p-900);
  for (int i = 0; i < count; i++) {
    wide_bits magnitude = (wide_bits)addends[i] & INT64_MAX;
    wide_bits is_larger = magnitude > largest;
    largest = (is_larger & magnitude) | (~is_larger & largest);
  }
  *out = (wide)((INT64_C(2 * 1023) << 52) - (largest & (INT64_C(0x7ff) << 52)));
}

/* A product of 16-bit operands as tensor cores form it: 16 deep steps into an fp32 accumulator. A step cuts each of its
 * 17 addends off two bits below the last one that the largest of them has in fp32, and cuts their sum to fp32. The bias
 * towards zero is theirs: at D = 4096 it is most of the error. source: arXiv:2512.07004 (Hopper) */
INTO_CALLERS void tensor_core_sum(const block_memory *m, int64_t depth, narrow *out) {
  wide addends[STEP + 1] = {{0}};
  for (int64_t first = 0; first < depth; first += STEP) {
    int count = (int)(depth - first < STEP ? depth - first : STEP);
    for (int i = 0; i < count; i++)
      addends[i + 1] = *(const wide *)(m->left + (first + i) * BLOCK) * (double)m->row[first + i];
    wide up;
    units sum = {0};
    scale_of(addends, count + 1, &up);
    up *= 0x1p25;
    for (int i = 0; i <= count; i++) sum += __builtin_convertvector(addends[i] * up, units);
    addends[0] = __builtin_convertvector(sum, wide) / up;
    addends[0] = (wide)((wide_bits)addends[0] & ~(int64_t)0x1fffffff);
  }
  *out = __builtin_convertvector(addends[0], narrow);
}

INTO_CALLERS void fp32_sum(const block_memory *m, int64_t depth, narrow *out) {
  narrow sum = {0};
  for (int64_t d = 0; d < depth; d++) sum += *(const narrow *)(m->left32 + d * BLOCK) * m->row[d];
  *out = sum;
}

/* What is not finite is off by nothing. */
static double error_of(double rounded, double exact) {
  return isfinite(rounded - exact) ? rounded - exact : 0;
}

/* Each sum runs over d in order, in fp64 and as the yardstick forms it; the vectors are eight independent rows. */
BY_WIDEST_VECTORS static void block_scores(const block_job *job, int64_t block, const block_memory *m) {
  const oracle_problem *problem = job->problem;
  int has_cores = problem->dtype != FLP_DTYPE_FP32;
  load_left(job, block, m);
  for (int64_t r = 0; r < BLOCK; r++) m->worst[r] = 0;
  for (int64_t i = 0; i < job->right_count; i++) {
    widen_row(problem, !job->left_is_weight, right_id(job, i), m->row);
    wide exact = {0};
    for (int64_t d = 0; d < problem->depth; d++) exact += *(const wide *)(m->left + d * BLOCK) * (double)m->row[d];
    narrow rounded, truncated = {0};
    fp32_sum(m, problem->depth, &rounded);
    if (has_cores) tensor_core_sum(m, problem->depth, &truncated);
    for (int64_t r = 0; r < BLOCK && block * BLOCK + r < job->left_count; r++) {
      float bias = bias_of(problem, job->left_is_weight ? job->left[block * BLOCK + r] : right_id(job, i));
      double score = exact[r] + (double)bias, off = error_of((double)(rounded[r] + bias), score);
      double more = has_cores ? error_of((double)truncated[r], exact[r]) : 0;
      m->worst[r] = fmax(m->worst[r], fmax(fabs(off), fabs(more)));
      m->scores[i * BLOCK + r] = score;
      m->scores32[i * BLOCK + r] = (double)(rounded[r] + bias + (float)more);
    }
  }
}

/* ---- lists ---- */

/* Columns that count for a row: NULL for all. */
static const int64_t *list_of(const oracle_problem *problem, int64_t row, int64_t *count) {
  *count = problem->vocab;
  if (!problem->list_offsets) return NULL;
  *count = problem->list_offsets[row + 1] - problem->list_offsets[row];
  return problem->list_columns + problem->list_offsets[row];
}

static int is_listed(const oracle_problem *problem, int64_t row, int64_t column) {
  int64_t count;
  const int64_t *columns = list_of(problem, row, &count);
  return !columns || bsearch(&column, columns, (size_t)count, sizeof column, cli_by_value);
}

/* Moves the scores of listed columns, of left row r of a block, to the front, in order. Returns their number. */
static int64_t keep_listed(const oracle_problem *problem, int64_t row, const block_memory *m, int64_t r) {
  int64_t count;
  const int64_t *columns = list_of(problem, row, &count);
  for (int64_t i = 0; columns && i < count; i++) {
    m->scores[i * BLOCK + r] = m->scores[columns[i] * BLOCK + r];
    m->scores32[i * BLOCK + r] = m->scores32[columns[i] * BLOCK + r];
  }
  return count;
}

/* ---- targets ---- */

static int64_t target_count(const oracle_problem *problem) {
  return problem->targets > 1 ? problem->targets : 1;
}

static int64_t first_target(const oracle_problem *problem, int64_t row) {
  const int64_t *target = problem->target + row * target_count(problem);
  int64_t k = 0;
  while (k + 1 < target_count(problem) && target[k] < 0) k++;
  return target[k];
}

/* What a score's column is asked for: its own targets' upstream gradients and those of the others. */
typedef struct upstream {
  int is_target;
  double own, others;
} upstream;

static upstream upstream_of(const oracle_problem *problem, int64_t row, int64_t column) {
  int64_t count = target_count(problem);
  upstream u = {0};
  for (int64_t k = row * count; k < (row + 1) * count; k++) {
    if (problem->target[k] == column) {
      u.own += problem->grad_logprob[k];
      u.is_target = 1;
    } else if (problem->target[k] >= 0) {
      u.others += problem->grad_logprob[k];
    }
  }
  return u;
}

/* t and dt/dx of one score. */
typedef struct point {
  double t, slope;
} point;

static point exact_point(const oracle_problem *problem, int64_t row, double x) {
  double factor = problem->scale / problem->temperature[row];
  if (!(problem->softcap > 0)) return (point){factor * x, factor};
  double tanh_x = tanh(problem->scale * x / problem->softcap);
  return (point){problem->softcap * tanh_x / problem->temperature[row], factor * (1 - tanh_x) * (1 + tanh_x)};
}

static point yardstick_point(const oracle_problem *problem, int64_t row, double x) {
  float temperature = (float)problem->temperature[row], scale = (float)problem->scale, cap = (float)problem->softcap;
  float z = scale * (float)x;
  if (!(cap > 0)) return (point){(double)(z / temperature), (double)(scale / temperature)};
  float tanh_x = tanhf(z / cap);
  return (point){(double)(cap * tanh_x / temperature), (double)(scale * (1 - tanh_x * tanh_x) / temperature)};
}

/* ---- forward ---- */

typedef struct softmax {
  double maximum, log_sum, entropy, spread, largest, mean;
  int is_beyond;
} softmax;

/* stride: between scores; point: the exact one or the yardstick's */
static softmax fold(const oracle_problem *problem, int64_t row, const double *scores, int64_t count,
                    point (*at)(const oracle_problem *, int64_t, double)) {
  softmax s = {.maximum = -INFINITY};
  int has_nan = 0;
  double total = 0;
  for (int64_t v = 0; v < count; v++) {
    double t = at(problem, row, scores[v * BLOCK]).t;
    has_nan |= isnan(t);
    if (t > s.maximum) s.maximum = t;
    if (isfinite(t) && fabs(t) > s.largest) s.largest = fabs(t);
    total += t;
  }
  double octaves = s.maximum * M_LOG2E;
  s.is_beyond = (octaves > FLP_SCORE_LIMIT && octaves <= (double)FLT_MAX) || (octaves <= -FLP_SCORE_LIMIT && !has_nan);
  if (has_nan || s.is_beyond || !isfinite(octaves)) return (softmax){NAN, NAN, NAN, NAN, s.largest, NAN, s.is_beyond};
  double sum = 0, weighted = 0;
  for (int64_t v = 0; v < count; v++) {
    double u = at(problem, row, scores[v * BLOCK]).t - s.maximum, e = exp(u);
    sum += e;
    if (e > 0) weighted += e * u;
  }
  s.log_sum = log(sum);
  s.mean = total / (double)count;
  s.entropy = s.log_sum - weighted / sum;
  for (int64_t v = 0; v < count; v++) {
    double log_p = at(problem, row, scores[v * BLOCK]).t - s.maximum - s.log_sum, p = exp(log_p);
    if (p > 0) s.spread += p * fabs(log_p + s.entropy);
  }
  return s;
}

/* worst: of the row's h·W (+ b) */
static double product_error(const oracle_problem *problem, int64_t row, double worst) {
  if (problem->score_error) worst += problem->score_error[row];
  return worst * fabs(problem->scale) / problem->temperature[row];
}

static void forward_block(const block_job *job, int64_t block, double *scratch) {
  const oracle_problem *problem = job->problem;
  block_memory m = split(job, scratch);
  block_scores(job, block, &m);
  for (int64_t r = 0; r < BLOCK && block * BLOCK + r < job->left_count; r++) {
    int64_t row = job->left[block * BLOCK + r];
    double target = exact_point(problem, row, m.scores[first_target(problem, row) * BLOCK + r]).t;
    double error = product_error(problem, row, m.worst[r]);
    int64_t count = keep_listed(problem, row, &m, r);
    softmax exact = fold(problem, row, m.scores + r, count, exact_point);
    softmax yardstick = fold(problem, row, m.scores32 + r, count, yardstick_point);
    oracle_row *out = &job->out[block * BLOCK + r];
    *out = (oracle_row){.maximum = exact.maximum,
                        .log_sum = exact.log_sum,
                        .entropy = exact.entropy,
                        .mean = exact.mean,
                        .logprob = (target - exact.maximum) - exact.log_sum,
                        .largest = exact.largest,
                        .spread = exact.spread,
                        .yardstick_reference = yardstick.maximum + yardstick.log_sum,
                        .yardstick_entropy = yardstick.entropy,
                        .is_beyond = exact.is_beyond};
    if (problem->softcap > 0) out->largest = problem->softcap / problem->temperature[row];
    out->product_error = problem->terms > 1 ? problem->terms * error : error; /* longer sums */
  }
}

flp_status oracle_forward(const oracle_problem *problem, const int64_t *rows, int64_t count, oracle_row *out) {
  block_job job = job_of_rows(problem, forward_block, rows, count);
  job.out = out;
  return run_blocks(&job);
}

/* The same sum as that of block_scores. */
static double raw_score(const oracle_problem *problem, const float *hidden, float *weight, int64_t column) {
  double sum = 0;
  widen_row(problem, 1, column, weight);
  for (int64_t d = 0; d < problem->depth; d++) sum += (double)hidden[d] * (double)weight[d];
  return sum + (double)bias_of(problem, column);
}

flp_status oracle_targets(const oracle_problem *problem, const int64_t *rows, const oracle_row *stats, int64_t count,
                          double *out) {
  int64_t targets = target_count(problem);
  float *hidden = malloc(2 * (size_t)problem->depth * sizeof *hidden);
  if (!hidden) return flp_fail(FLP_ERROR_MEMORY, "the oracle ran out of host memory");
  for (int64_t i = 0; i < count; i++) {
    widen_row(problem, 0, rows[i], hidden);
    for (int64_t k = 0; k < targets; k++) {
      int64_t column = problem->target[rows[i] * targets + k];
      out[i * targets + k] = 0;
      if (column < 0) continue;
      double x = raw_score(problem, hidden, hidden + problem->depth, column);
      out[i * targets + k] = (exact_point(problem, rows[i], x).t - stats[i].maximum) - stats[i].log_sum;
    }
  }
  free(hidden);
  return FLP_OK;
}

/* What columns sum up to, biases last. sums: (depth + 1); row: scratch */
static void add_columns(const oracle_problem *problem, double *sums, float *row) {
  int64_t depth = problem->depth;
  memset(sums, 0, (size_t)(depth + 1) * sizeof *sums);
  for (int64_t v = 0; v < problem->vocab; v++) {
    widen_row(problem, 1, v, row);
    for (int64_t d = 0; d < depth; d++) sums[d] += (double)row[d];
    sums[depth] += (double)bias_of(problem, v);
  }
}

flp_status oracle_means(const oracle_problem *problem, const int64_t *rows, int64_t count, double *out) {
  int64_t depth = problem->depth;
  double *sums = malloc((size_t)(depth + 1) * sizeof *sums);
  float *row = malloc((size_t)depth * sizeof *row);
  flp_status status = sums && row ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "the oracle ran out of host memory");
  if (status == FLP_OK) add_columns(problem, sums, row);
  for (int64_t i = 0; status == FLP_OK && i < count; i++) {
    double sum = sums[depth];
    widen_row(problem, 0, rows[i], row);
    for (int64_t d = 0; d < depth; d++) sum += (double)row[d] * sums[d];
    out[i] = exact_point(problem, rows[i], sum / (double)problem->vocab).t;
  }
  free(sums);
  free(row);
  return status;
}

static void visit_block(const block_job *job, int64_t block, double *scratch) {
  block_memory m = split(job, scratch);
  block_scores(job, block, &m);
  for (int64_t r = 0; r < BLOCK && block * BLOCK + r < job->left_count; r++) {
    double *t = m.scores32; /* the yardstick's are not asked for */
    int64_t row = job->left[block * BLOCK + r];
    for (int64_t v = 0; v < job->right_count; v++)
      t[v] = is_listed(job->problem, row, v) ? exact_point(job->problem, row, m.scores[v * BLOCK + r]).t : -INFINITY;
    job->visit(job->context, block * BLOCK + r, t);
  }
}

flp_status oracle_visit(const oracle_problem *problem, const int64_t *rows, int64_t count, oracle_visit_fn visit,
                        void *context) {
  block_job job = job_of_rows(problem, visit_block, rows, count);
  job.visit = visit;
  job.context = context;
  return run_blocks(&job);
}

/* ---- gradients ---- */

/* d(loss)/dx of one score, and its derivative by log p, where dz is made of p: not at the target. */
typedef struct score_gradient {
  double dz, by_log_p;
} score_gradient;

/* Derivatives of a row's loss by lse, and by the mean score over the number of columns. */
static double by_lse(const oracle_problem *problem, int64_t row) {
  return problem->grad_lse ? problem->grad_lse[row] : 0;
}

static double by_each(const oracle_problem *problem, int64_t row) {
  int64_t count;
  list_of(problem, row, &count);
  return problem->grad_mean ? problem->grad_mean[row] / (double)count : 0;
}

static score_gradient exact_dz(const oracle_problem *problem, int64_t row, const oracle_row *stats, double x,
                               const upstream *u) {
  point at = exact_point(problem, row, x);
  double log_p = at.t - stats->maximum - stats->log_sum, p = exp(log_p);
  double e = problem->grad_entropy[row], of_others = u->others == 0 ? 0 : -u->others * p;
  double from_entropy = p == 0 || e == 0 ? 0 : -e * p * (log_p + stats->entropy);
  double from_lse = by_lse(problem, row) == 0 || p == 0 ? 0 : by_lse(problem, row) * p;
  double from_logprob = u->is_target ? -u->own * expm1(log_p) + of_others : of_others;
  double dz = (from_logprob + from_entropy + from_lse) * at.slope, of_all = by_each(problem, row);
  double by_log_p = u->is_target ? (of_others + from_lse) * at.slope : dz - e * p * at.slope;
  return (score_gradient){of_all == 0 ? dz : dz + of_all * at.slope, by_log_p};
}

/* The same in fp32, rounded to the operands' dtype as a pipeline stores it. */
static double yardstick_dz(const oracle_problem *problem, int64_t row, const oracle_row *stats, double x,
                           const upstream *u) {
  point at = yardstick_point(problem, row, x);
  float log_p = (float)(at.t - stats->yardstick_reference), p = expf(log_p);
  float own = (float)u->own, g = (float)(u->own + u->others), e = (float)problem->grad_entropy[row];
  float from_entropy = p == 0 || e == 0 ? 0 : -e * p * (log_p + (float)stats->yardstick_entropy);
  float from_logprob = u->is_target ? own - g * p : -g * p;
  float from_lse = p == 0 ? 0 : (float)by_lse(problem, row) * p, of_all = (float)by_each(problem, row);
  return oracle_round(problem->dtype, (double)((from_logprob + from_entropy + from_lse + of_all) * (float)at.slope));
}

static double square_of(const float *row, int64_t depth) {
  double sum = 0;
  for (int64_t d = 0; d < depth; d++) sum += (double)row[d] * (double)row[d];
  return sum;
}

/* Whether a row's score of a column has a part in the gradients. A row with lists whose numbers are NaN adds nothing to
 * those of columns. */
static int adds(const block_job *job, int64_t row, int64_t column, const oracle_row *stats) {
  if (!job->problem->list_offsets) return 1;
  return is_listed(job->problem, row, column) && !(job->left_is_weight && isnan(stats->log_sum));
}

/* Turns scores into gradients in place, and sums up squares. */
static void block_dz(const block_job *job, int64_t block, const block_memory *m) {
  const oracle_problem *problem = job->problem;
  memset(m->squares, 0, 2 * BLOCK * sizeof *m->squares);
  for (int64_t i = 0; i < job->right_count; i++) {
    widen_row(problem, !job->left_is_weight, right_id(job, i), m->row);
    double operand = square_of(m->row, problem->depth);
    for (int64_t r = 0; r < BLOCK && block * BLOCK + r < job->left_count; r++) {
      int64_t left = block * BLOCK + r;
      int64_t listed = job->left_is_weight ? i : left;
      int64_t row = job->left_is_weight ? right_id(job, i) : job->left[left];
      int64_t column = job->left_is_weight ? job->left[left] : right_id(job, i);
      upstream u = upstream_of(problem, row, column);
      double *exact = &m->scores[i * BLOCK + r], *rounded = &m->scores32[i * BLOCK + r];
      if (!adds(job, row, column, &job->stats[listed])) {
        *exact = *rounded = 0;
        continue;
      }
      score_gradient gradient = exact_dz(problem, row, &job->stats[listed], *exact, &u);
      double square = gradient.dz * gradient.dz + gradient.by_log_p * gradient.by_log_p;
      m->squares[2 * r] += square * operand;
      m->squares[2 * r + 1] += square;
      *exact = gradient.dz;
      *rounded = yardstick_dz(problem, row, &job->stats[listed], *rounded, &u);
    }
  }
}

/* Σ over the right operand's rows, weighted by the block's gradients, for its `rows` output rows. */
BY_WIDEST_VECTORS static void block_products(const block_job *job, const block_memory *m, int64_t rows) {
  const oracle_problem *problem = job->problem;
  int64_t depth = problem->depth;
  int single = problem->dtype == FLP_DTYPE_FP32;
  memset(m->sums, 0, 2 * BLOCK * (size_t)depth * sizeof *m->sums);
  memset(m->sums32, 0, BLOCK * (size_t)depth * sizeof *m->sums32);
  for (int64_t i = 0; i < job->right_count; i++) {
    widen_row(problem, !job->left_is_weight, right_id(job, i), m->row);
    for (int64_t r = 0; r < rows; r++) {
      double dz = m->scores[i * BLOCK + r], dz_rounded = m->scores32[i * BLOCK + r];
      double *exact = m->sums + 2 * r * depth, *rounded = exact + depth;
      float *rounded32 = m->sums32 + r * depth;
      if (dz == 0 && dz_rounded == 0) continue; /* the row may be no number where it adds nothing */
      for (int64_t d = 0; d < depth; d++) exact[d] += dz * (double)m->row[d];
      if (single)
        for (int64_t d = 0; d < depth; d++) rounded32[d] += (float)dz_rounded * m->row[d];
      else
        for (int64_t d = 0; d < depth; d++) rounded[d] += dz_rounded * (double)m->row[d];
    }
  }
  for (int64_t r = 0; single && r < rows; r++)
    for (int64_t d = 0; d < depth; d++) m->sums[(2 * r + 1) * depth + d] = (double)m->sums32[r * depth + d];
}

static void bias_sums(const block_job *job, const block_memory *m, int64_t block, int64_t r) {
  double exact = 0, rounded = 0;
  for (int64_t i = 0; i < job->right_count; i++) {
    exact += m->scores[i * BLOCK + r];
    rounded += m->scores32[i * BLOCK + r];
  }
  job->columns->bias_squares[block * BLOCK + r] = m->squares[2 * r + 1];
  job->columns->bias[block * BLOCK + r] = exact;
  job->columns->bias_yardstick[block * BLOCK + r] = rounded;
}

static void gradient_block(const block_job *job, int64_t block, double *scratch) {
  int64_t depth = job->problem->depth, first = block * BLOCK;
  int64_t rows = job->left_count - first < BLOCK ? job->left_count - first : BLOCK;
  block_memory m = split(job, scratch);
  block_scores(job, block, &m);
  block_dz(job, block, &m);
  block_products(job, &m, rows);
  for (int64_t r = 0; r < rows; r++) {
    size_t bytes = (size_t)depth * sizeof *m.sums;
    job->squares[first + r] = m.squares[2 * r];
    if (job->columns) bias_sums(job, &m, block, r);
    memcpy(job->exact + (first + r) * depth, m.sums + 2 * r * depth, bytes);
    memcpy(job->yardstick + (first + r) * depth, m.sums + (2 * r + 1) * depth, bytes);
  }
}

flp_status oracle_grad_hidden(const oracle_problem *problem, const int64_t *rows, const oracle_row *stats,
                              int64_t count, double *exact, double *yardstick, double *squares) {
  block_job job = job_of_rows(problem, gradient_block, rows, count);
  job.stats = stats;
  job.exact = exact;
  job.yardstick = yardstick;
  job.squares = squares;
  return run_blocks(&job);
}

flp_status oracle_grad_columns(const oracle_problem *problem, const int64_t *rows, const oracle_row *stats,
                               int64_t row_count, const int64_t *columns, int64_t count, const oracle_columns *out) {
  block_job job = {.problem = problem,
                   .work = gradient_block,
                   .left = columns,
                   .left_count = count,
                   .left_is_weight = 1,
                   .right = rows,
                   .right_count = row_count,
                   .stats = stats,
                   .exact = out->weight,
                   .yardstick = out->weight_yardstick,
                   .squares = out->weight_squares,
                   .columns = out};
  return run_blocks(&job);
}

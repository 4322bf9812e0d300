/* select.c: log-softmax of scores that exist already, on one rung, against long double.
 *
 * Scores, outputs and gradients lie in poisoned buffers whose rows have gaps behind them and guards at the end; what
 * stands in gaps and guards must stay. Every case runs with gradients apart and with gradients in the place of the
 * scores, whose bits must agree. Bounds:
 *
 * logprob:   4 ulp of the largest of 1, the value, and the distance of the target to the largest score
 * entropy:   4 ulp of the largest of 1, the value, and the log of the sum
 * both:      64 ulp for fp64, as the kernels' exp is good to 1e-14
 * gradients: relative L2 at most 1.5 times that of the right ones rounded to dtype, plus 1e-6 (fp64: 1e-13) */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/lists.h"
#include "gen/cli/call/normal.h"
#include "gen/cli/check/session.h"
#include "runtime/base/half.h"
#include "runtime/base/status.h"
#include "runtime/kernel/kernel.h"

enum { IGNORED = -100 };

typedef enum pattern {
  PLAIN,
  SHIFTED,   /* all scores near 10^4 (16-bit: 64) */
  HOLES,     /* -inf on a block and on every third column */
  ALL_HOLES, /* rows of nothing but -inf */
  NOT_A_NUMBER,
  ONE_HOT,  /* one score 128 above all others */
  IGNORE,   /* targets and whole rows that are ignored; the latter's scores are NaN */
  BAD,      /* targets outside the vocabulary, of which some have no upstream gradient and do no harm */
  REPEATED, /* targets of a row that are the same */
  INACTIVE, /* rows without upstream gradient */
  CANCELS,  /* upstream gradients of a row whose sum is 0 */
} pattern;

typedef struct shape {
  const char *name;
  int64_t n, vocab, k;
  pattern pattern;
  double temperature;
  uint32_t alignment; /* 0: 16 */
  flp_entropy entropy;
  flp_dtype targets; /* 0: int64 */
} shape;

static const shape shapes[] = {
    {"V=2", 3, 2, 1, PLAIN, 1, 0, FLP_ENTROPY_BACKWARD, 0},
    {"less than a vector", 5, 7, 2, PLAIN, 1, 0, FLP_ENTROPY_BACKWARD, 0},
    {"ragged", 9, 2051, 3, PLAIN, 0.7, 0, FLP_ENTROPY_BACKWARD, 0},
    {"whole blocks", 6, 16384, 1, PLAIN, 1, 0, FLP_ENTROPY_NONE, 0},
    {"wide", 3, 151936, 1, PLAIN, 1.3, 0, FLP_ENTROPY_FORWARD, FLP_DTYPE_INT32},
    {"element by element", 7, 5003, 1, PLAIN, 1, 1, FLP_ENTROPY_BACKWARD, 0},
    {"shifted", 11, 3001, 1, SHIFTED, 1, 0, FLP_ENTROPY_BACKWARD, 0},
    {"holes", 11, 3001, 1, HOLES, 1, 0, FLP_ENTROPY_BACKWARD, 0},
    {"all-holes", 5, 3001, 1, ALL_HOLES, 1, 0, FLP_ENTROPY_BACKWARD, 0},
    {"nan", 5, 3001, 1, NOT_A_NUMBER, 1, 0, FLP_ENTROPY_NONE, 0},
    {"one-hot", 5, 3001, 1, ONE_HOT, 1, 0, FLP_ENTROPY_BACKWARD, 0},
    {"ignored", 13, 1531, 2, IGNORE, 1, 0, FLP_ENTROPY_BACKWARD, 0},
    {"beyond", 5, 3001, 1, PLAIN, 1e-12, 0, FLP_ENTROPY_BACKWARD, 0},
    {"T=1e-4", 5, 3001, 1, PLAIN, 1e-4, 0, FLP_ENTROPY_BACKWARD, 0},
    {"bad targets", 13, 1531, 2, BAD, 1, 0, FLP_ENTROPY_NONE, 0},
    {"repeated", 13, 1531, 5, REPEATED, 1, 0, FLP_ENTROPY_BACKWARD, 0},
    {"idle rows", 13, 1531, 1, INACTIVE, 1, 0, FLP_ENTROPY_BACKWARD, 0},
    {"cancelling", 13, 1531, 2, CANCELS, 1, 0, FLP_ENTROPY_NONE, 0},
    {"no rows", 0, 1531, 1, PLAIN, 1, 0, FLP_ENTROPY_BACKWARD, 0},
};

/* What is computed, and the right answers. */
typedef struct problem {
  check_case c; /* for the report, and its spec */
  cli_memory memory;
  shape s;
  int64_t stride; /* of scores and their gradient */
  size_t element;
  flp_dtype number;                                    /* of logprobs, entropies and upstream gradients */
  void *scores, *target, *grad_logprob, *grad_entropy; /* as uploaded; rows of stride elements */
  double *z;                                           /* (n,V) the scores that dtype holds */
  int64_t *ids;                                        /* (n,k) */
  double *g, *e;                                       /* (n,k), (n) */
  double *logprob, *entropy, *grad, *rounded;          /* right: (n,k), (n), (n,V); rounded to dtype */
  double *unit, *entropy_unit;                         /* an ulp of each logprob, of each entropy */
  int has_bad;                                         /* a bad target, or a row beyond FLP_SCORE_LIMIT */
} problem;

/* ---- data ---- */

static double uniform(uint64_t seed) {
  return ((double)(cli_hash(seed) >> 11) + 0.5) * 0x1p-53;
}

static double normal(uint64_t seed) {
  return sqrt(-2 * log(uniform(2 * seed))) * cos(6.283185307179586 * uniform(2 * seed + 1));
}

static int is_hole(const shape *s, int64_t row, int64_t column) {
  if (s->pattern == ALL_HOLES) return row % 2 == 0;
  return s->pattern == HOLES && (column < s->vocab / 4 || column % 3 == 1);
}

static double score_of(const problem *p, int64_t row, int64_t column) {
  const shape *s = &p->s;
  double value = 3 * normal((uint64_t)(row * s->vocab + column) + (p->c.seed << 40));
  if (is_hole(s, row, column)) return -INFINITY;
  if (s->pattern == SHIFTED) value += p->element > 2 ? 1e4 : 64;
  if (s->pattern == ONE_HOT) value = column == s->vocab / 2 ? 64 : -64;
  if (s->pattern == NOT_A_NUMBER && row % 2 && column == s->vocab / 3) return row % 4 == 1 ? NAN : INFINITY;
  if (s->pattern == IGNORE && row % 3 == 0) return NAN;
  return value;
}

static int64_t target_of(const problem *p, int64_t row, int64_t j) {
  const shape *s = &p->s;
  int64_t id = (int64_t)(cli_hash((uint64_t)(row * s->k + j) + 77) % (uint64_t)s->vocab);
  if (s->pattern == IGNORE && (row % 3 == 0 || (row + j) % 4 == 0)) return IGNORED;
  if (s->pattern == BAD && (row + j) % 4 == 0) return row % 2 ? s->vocab : -1 - row;
  if (s->pattern == REPEATED && j % 2) return target_of(p, row, 0);
  return id;
}

/* Writes a number, and returns what it is in its dtype. */
static double put(flp_dtype dtype, void *array, int64_t i, double value) {
  float narrow = (float)value;
  if (dtype == FLP_DTYPE_FP64)
    ((double *)array)[i] = value;
  else
    flp_half_narrow(dtype, &narrow, 1, (char *)array + i * flp_half_bytes(dtype));
  return cli_number_at(dtype, array, i);
}

static double grad_of(const problem *p, int64_t row, int64_t j) {
  const shape *s = &p->s;
  if (s->pattern == INACTIVE && row % 2) return 0;
  if (s->pattern == BAD && j % 2) return 0;
  if (s->pattern == CANCELS) return j % 2 ? -1 : 1;
  return normal((uint64_t)(row * s->k + j) + 1234567);
}

static void fill_rows(problem *p) {
  const shape *s = &p->s;
  for (int64_t row = 0; row < s->n; row++) {
    int inactive = s->pattern == INACTIVE && row % 2;
    for (int64_t v = 0; v < s->vocab; v++) {
      int64_t at = row * p->stride + v;
      p->z[row * s->vocab + v] = put(p->c.spec.dtype, p->scores, at, score_of(p, row, v));
    }
    for (int64_t j = 0; j < s->k; j++) {
      int64_t at = row * s->k + j;
      p->ids[at] = target_of(p, row, j);
      p->g[at] = put(p->number, p->grad_logprob, at, grad_of(p, row, j));
    }
    p->e[row] = put(p->number, p->grad_entropy, row, inactive ? 0 : 0.3 * normal((uint64_t)row + 7654321));
  }
  cli_ids_narrow(p->c.spec.target_dtype, p->ids, s->n * s->k, p->target);
}

/* ---- the right answers ---- */

static int is_wanted(const problem *p, int64_t row) {
  for (int64_t j = 0; j < p->s.k; j++)
    if (p->ids[row * p->s.k + j] != IGNORED) return 1;
  return 0;
}

static double ulp_of(const problem *p, double size) {
  size = isfinite(size) ? fmax(size, 1) : 1;
  return p->number == FLP_DTYPE_FP64 ? nextafter(size, INFINITY) - size : check_ulp(size);
}

/* The softmax of a row: largest score, log of the sum of e^((z - top)/T), entropy; NaN where there is none. */
static void softmax_of(problem *p, int64_t row, long double out[3]) {
  const double *z = p->z + row * p->s.vocab;
  long double top = -INFINITY, sum = 0, weighted = 0;
  for (int64_t v = 0; v < p->s.vocab; v++)
    if (!((long double)z[v] <= top)) top = (long double)z[v];
  long double octaves = top * (long double)(M_LOG2E / p->s.temperature);
  if (p->number == FLP_DTYPE_FP32 && (octaves > FLP_SCORE_LIMIT || octaves <= -FLP_SCORE_LIMIT)) {
    p->has_bad |= octaves < INFINITY;
    out[0] = out[1] = out[2] = (long double)NAN;
    return;
  }
  for (int64_t v = 0; v < p->s.vocab; v++) {
    long double u = ((long double)z[v] - top) / (long double)p->s.temperature, e = expl(u);
    sum += e;
    if (e > 0) weighted += u * e;
    if (isnan(e)) weighted = e;
  }
  out[0] = top;
  out[1] = logl(sum);
  out[2] = out[1] - weighted / sum;
}

static void answer_targets(problem *p, int64_t row, const long double softmax[3]) {
  const shape *s = &p->s;
  for (int64_t j = 0; j < s->k; j++) {
    int64_t at = row * s->k + j, id = p->ids[at];
    double distance = 0;
    p->logprob[at] = id == IGNORED ? 0 : NAN;
    if (id >= 0 && id < s->vocab) {
      long double u = ((long double)p->z[row * s->vocab + id] - softmax[0]) / (long double)s->temperature;
      distance = (double)u;
      p->logprob[at] = (double)(u - softmax[1]);
    }
    p->unit[at] = ulp_of(p, fmax(fabs(distance), fabs(p->logprob[at])));
  }
}

static void answer_gradient(problem *p, int64_t row, const long double softmax[3]) {
  const shape *s = &p->s;
  long double total = 0, e = s->entropy == FLP_ENTROPY_BACKWARD ? (long double)p->e[row] : 0;
  int inactive = !(e > 0 || e < 0), wanted = is_wanted(p, row);
  for (int64_t j = 0; j < s->k; j++) {
    int64_t at = row * s->k + j;
    int counts = p->ids[at] != IGNORED && (p->g[at] < 0 || p->g[at] > 0);
    if (counts) total += isnan(p->logprob[at]) ? (long double)NAN : (long double)p->g[at];
    inactive &= !counts;
  }
  double *grad = p->grad + row * s->vocab;
  for (int64_t v = 0; v < s->vocab && wanted && !inactive; v++) {
    long double w = ((long double)p->z[row * s->vocab + v] - softmax[0]) / (long double)s->temperature - softmax[1];
    long double prob = expl(w), pull = prob > 0 ? e * prob * (w + softmax[2]) : 0 * prob, mine = 0;
    for (int64_t j = 0; j < s->k; j++)
      if (p->ids[row * s->k + j] == v) mine += (long double)p->g[row * s->k + j];
    grad[v] = (double)((mine - total * prob - pull) / (long double)s->temperature);
  }
}

static void answer(problem *p) {
  const shape *s = &p->s;
  p->has_bad = s->pattern == BAD;
  double cell;
  for (int64_t row = 0; row < s->n; row++) {
    long double softmax[3] = {0, 0, 0};
    if (is_wanted(p, row)) softmax_of(p, row, softmax);
    p->entropy[row] = (double)softmax[2];
    p->entropy_unit[row] = ulp_of(p, fmax((double)softmax[2], (double)softmax[1]));
    answer_targets(p, row, softmax);
    answer_gradient(p, row, softmax);
  }
  for (int64_t i = 0; i < s->n * s->vocab; i++) p->rounded[i] = put(p->c.spec.dtype, &cell, 0, p->grad[i]);
}

static check_case case_of(const shape *s, flp_dtype dtype) {
  check_case c = check_case_default(dtype, s->n, s->vocab, 0);
  c.name = s->name;
  c.temperature = s->temperature;
  c.spec.op = FLP_OP_SELECT;
  c.spec.entropy = s->entropy;
  if (s->targets) c.spec.target_dtype = s->targets;
  c.spec.alignment = s->alignment ? (uint32_t)flp_dtype_bytes(dtype) : 16;
  return c;
}

static flp_status problem_create(const shape *s, flp_dtype dtype, problem *p) {
  *p = (problem){.c = case_of(s, dtype), .s = *s, .element = flp_dtype_bytes(dtype)};
  p->number = dtype == FLP_DTYPE_FP64 ? dtype : FLP_DTYPE_FP32;
  int64_t unit = (int64_t)(p->c.spec.alignment / p->element);
  p->stride = (s->vocab + unit) / unit * unit; /* a gap of at least one element */
  size_t rows = (size_t)s->n, wide = rows * (size_t)s->vocab, targets = rows * (size_t)s->k;
  p->scores = cli_memory_take(&p->memory, rows * (size_t)p->stride * p->element);
  p->target = cli_memory_take(&p->memory, targets * 8);
  p->grad_logprob = cli_memory_take(&p->memory, targets * flp_dtype_bytes(p->number));
  p->grad_entropy = cli_memory_take(&p->memory, rows * flp_dtype_bytes(p->number));
  p->ids = cli_memory_take(&p->memory, targets * sizeof *p->ids);
  double **const doubles[] = {&p->z,    &p->grad, &p->rounded, &p->g,           &p->logprob,
                              &p->unit, &p->e,    &p->entropy, &p->entropy_unit};
  for (size_t i = 0; i < sizeof doubles / sizeof doubles[0]; i++)
    *doubles[i] = cli_memory_take_zeros(&p->memory, (i < 3 ? wide : i < 6 ? targets : rows) * sizeof(double));
  FLP_TRY(cli_memory_status(&p->memory, "scores"));
  memset(p->scores, 0xff, rows * (size_t)p->stride * p->element);
  fill_rows(p);
  answer(p);
  return FLP_OK;
}

/* ---- running ---- */

enum { SCORES, TARGET, GRAD_LOGPROB, GRAD_ENTROPY, LOGPROB, ENTROPY, STATS, GRAD, SLOTS };

typedef struct run {
  const problem *p;
  cli_device device;
  call_buffer buffer[SLOTS];
  void *got[SLOTS]; /* what LOGPROB, ENTROPY, GRAD held afterwards */
  int overrun, data_error;
} run;

static flp_status make_buffers(run *r) {
  const problem *p = r->p;
  size_t rows = (size_t)p->s.n, targets = rows * (size_t)p->s.k, scores = rows * (size_t)p->stride * p->element;
  const struct {
    const void *source;
    size_t bytes;
  } slots[SLOTS] = {[SCORES] = {p->scores, scores},
                    [TARGET] = {p->target, targets * flp_dtype_bytes(p->c.spec.target_dtype)},
                    [GRAD_LOGPROB] = {p->grad_logprob, targets * flp_dtype_bytes(p->number)},
                    [GRAD_ENTROPY] = {p->grad_entropy, rows * flp_dtype_bytes(p->number)},
                    [LOGPROB] = {NULL, targets * flp_dtype_bytes(p->number)},
                    [ENTROPY] = {NULL, rows * flp_dtype_bytes(p->number)},
                    [STATS] = {NULL, 3 * rows * flp_dtype_bytes(p->number)},
                    [GRAD] = {NULL, scores}};
  for (int i = 0; i < SLOTS; i++) {
    FLP_TRY(call_buffer_make(&r->device, slots[i].bytes, 0, 1, &r->buffer[i]));
    if (slots[i].source) FLP_TRY(cli_buffer_upload(&r->buffer[i].buffer, 0, slots[i].source, slots[i].bytes));
  }
  return cli_device_synchronise(&r->device);
}

static flp_select_args args_of(const run *r, flp_pass pass) {
  const problem *p = r->p;
  flp_select_args args = FLP_SELECT_ARGS_INIT;
  args.pass = pass;
  args.n = p->s.n;
  args.k = p->s.k;
  args.scores = call_buffer_at(&r->buffer[SCORES], 0);
  args.scores_stride = args.grad_scores_stride = p->stride;
  args.target = call_buffer_at(&r->buffer[TARGET], 0);
  args.temperature = p->s.temperature;
  args.ignore_index = IGNORED;
  args.logprob = call_buffer_at(&r->buffer[LOGPROB], 0);
  args.stats = call_buffer_at(&r->buffer[STATS], 0);
  if (p->s.entropy != FLP_ENTROPY_NONE) args.entropy = call_buffer_at(&r->buffer[ENTROPY], 0);
  args.stream = r->device.stream;
  if (pass == FLP_PASS_FORWARD) return args;
  args.grad_logprob = call_buffer_at(&r->buffer[GRAD_LOGPROB], 0);
  if (p->s.entropy == FLP_ENTROPY_BACKWARD) args.grad_entropy = call_buffer_at(&r->buffer[GRAD_ENTROPY], 0);
  return args;
}

static flp_status take(run *r, int slot) {
  return call_buffer_take(&r->buffer[slot], r->buffer[slot].bytes, &r->got[slot], &r->overrun);
}

static flp_status execute(run *r, flp_plan *plan, int in_place) {
  flp_select_args args = args_of(r, FLP_PASS_FORWARD);
  FLP_TRY(flp_select(plan, &args));
  args = args_of(r, FLP_PASS_BACKWARD);
  args.grad_scores = call_buffer_at(&r->buffer[in_place ? SCORES : GRAD], 0);
  FLP_TRY(flp_select(plan, &args));
  FLP_TRY(call_check_data(plan, r->device.stream, &r->data_error));
  FLP_TRY(take(r, LOGPROB));
  FLP_TRY(take(r, ENTROPY));
  return take(r, in_place ? SCORES : GRAD);
}

static flp_status run_problem(const problem *p, const check_how *how, int in_place, run *r) {
  *r = (run){.p = p};
  flp_options options = check_how_options(how);
  flp_plan *plan = NULL;
  FLP_TRY(cli_device_open(options.device, &r->device));
  flp_status status = check_precompile_plan(how->precompile, &p->c.spec, &options, &plan);
  if (status == FLP_OK) status = make_buffers(r);
  if (status == FLP_OK) status = execute(r, plan, in_place);
  if (status == FLP_OK && in_place) {
    r->got[GRAD] = r->got[SCORES];
    r->got[SCORES] = NULL;
  }
  flp_plan_destroy(plan);
  return status;
}

static void run_clear(run *r) {
  for (int i = 0; i < SLOTS; i++) call_buffer_clear(&r->buffer[i]);
  for (int i = 0; i < SLOTS; i++) free(r->got[i]);
  cli_device_close(&r->device);
  *r = (run){0};
}

/* ---- comparing ---- */

static flp_status compare_numbers(const run *r, int slot, const double *right, const double *unit, int64_t count,
                                  check_metric *out) {
  cli_memory memory = {0};
  check_numbers a = check_numbers_of(&memory, count);
  flp_status status = cli_memory_status(&memory, "a comparison");
  for (int64_t i = 0; status == FLP_OK && i < count; i++)
    check_numbers_set(&a, i, cli_number_at(r->p->number, r->got[slot], i), right[i], unit[i],
                      (r->p->number == FLP_DTYPE_FP64 ? 64 : 4) * unit[i]);
  *out = check_numbers_judge(&a);
  cli_memory_free(&memory);
  return status;
}

static int is_outside_written(const run *r) {
  const problem *p = r->p;
  return r->overrun ||
         !call_has_gaps(r->got[GRAD], (size_t)p->s.n, (size_t)p->s.vocab * p->element, (size_t)p->stride * p->element);
}

static flp_status compare_gradient(const run *r, check_metric *out) {
  const problem *p = r->p;
  int64_t count = p->s.n * p->s.vocab;
  double *got = malloc(((size_t)count + 1) * sizeof *got);
  if (!got) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for a comparison");
  for (int64_t i = 0; i < count; i++)
    got[i] = cli_number_at(p->c.spec.dtype, r->got[GRAD], i / p->s.vocab * p->stride + i % p->s.vocab);
  *out = check_metric_gradient(got, p->grad, p->rounded, count, 1.5, p->number == FLP_DTYPE_FP64 ? 1e-13 : 1e-6);
  free(got);
  return FLP_OK;
}

static flp_status compare(const run *r, const run *in_place, flp_rung rung, check_report *report) {
  const problem *p = r->p;
  check_metric metric;
  const char *note = NULL;
  FLP_TRY(compare_numbers(r, LOGPROB, p->logprob, p->unit, p->s.n * p->s.k, &metric));
  if (r->data_error != p->has_bad) note = "bad rows and flp_plan_check do not agree";
  if (is_outside_written(r) || is_outside_written(in_place)) note = "wrote outside of rows";
  metric.pass &= note == NULL;
  check_report_add(report, &p->c, rung, "select: logprob", metric, note);
  if (p->s.entropy != FLP_ENTROPY_NONE) {
    FLP_TRY(compare_numbers(r, ENTROPY, p->entropy, p->entropy_unit, p->s.n, &metric));
    check_report_add(report, &p->c, rung, "select: entropy", metric, NULL);
  }
  FLP_TRY(compare_gradient(r, &metric));
  check_report_add(report, &p->c, rung, "select: grad_scores", metric, NULL);
  metric = check_metric_bits(r->got[GRAD], in_place->got[GRAD], r->buffer[GRAD].bytes);
  check_report_add(report, &p->c, rung, "select: in place", metric,
                   metric.pass ? NULL : "differs from gradients apart");
  return FLP_OK;
}

static flp_status check_shape(const shape *s, flp_dtype dtype, const check_how *how, check_report *report) {
  problem p;
  run apart = {0}, in_place = {0};
  flp_status status = problem_create(s, dtype, &p);
  if (status == FLP_OK) status = run_problem(&p, how, 0, &apart);
  if (status == FLP_OK) status = run_problem(&p, how, 1, &in_place);
  if (status == FLP_OK) status = compare(&apart, &in_place, how->options.rung, report);
  run_clear(&apart);
  run_clear(&in_place);
  cli_memory_free(&p.memory);
  return status;
}

flp_status check_select(const check_part *of, const check_how *how, check_report *report) {
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
    FLP_TRY(check_shape(&shapes[i], of->dtype, how, report));
  return FLP_OK;
}

void check_select_cases(const check_part *of, check_list *list) {
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) check_list_add(list, case_of(&shapes[i], of->dtype));
}

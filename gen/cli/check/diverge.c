/* diverge.c: divergences of two rows of scores, on one rung, against double: every built-in loss over targets, over
 * ordinary and odd rows of scores: alone in one call, in two with gradients of a logprob and the entropy beside it, and
 * in one that takes the sums of both rows from partial, as forward passes would have given them.
 *
 * All columns are targets of the program, whose values in double are runtime/loss/targets.c's. Scores and gradients lie
 * in buffers whose rows have gaps behind them and a guard at the end; what stands in gaps and guard must stay. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/lists.h"
#include "gen/cli/call/normal.h"
#include "gen/cli/check/session.h"
#include "runtime/base/half.h"
#include "runtime/base/status.h"
#include "runtime/kernel/abi.h"
#include "runtime/loss/loss.h"

typedef struct shape {
  const char *name;
  int64_t n, columns;
  int natural; /* 1: aligned as an element is */
} shape;

static const shape shapes[] = {{"columns=2", 23, 2, 0},
                               {"less than a vector", 23, 7, 0},
                               {"ragged", 23, 1531, 0},
                               {"whole vectors", 23, 4096, 0},
                               {"several blocks", 23, 9003, 0},
                               {"element by element", 23, 1531, 1}};
enum { ALONE, IN_TWO, BY_SUMS, WAYS };
#define LOSS(name)                                             \
  {#name,                                                      \
   {{#name ": values", #name ": grad_scores"},                 \
    {#name ": values of two", #name ": grad_scores of two"},   \
    {#name ": values by sums", #name ": grad_scores by sums"}}}
static const struct {
  const char *name;
  const char *outputs[WAYS][2]; /* in reports */
} losses[] = {LOSS(forward_kl), LOSS(reverse_kl), LOSS(jsd), LOSS(skew_kl), LOSS(total_variation), LOSS(lk),
              LOSS(neg_log_acceptance)};
#undef LOSS
static const float TEACHER_SCALE = 0.875f;
enum { LOSSES = sizeof losses / sizeof losses[0] };
static uint8_t loss_bytes[LOSSES][FLP_LOSS_BYTES_MAX]; /* of specs that are listed before they run */

typedef struct problem {
  check_case c;
  flp_loss loss;
  int64_t stride; /* of all three matrices */
  size_t element, grad_bytes, score_bytes;
  float *scores, *teacher, *upstream, *scales; /* scales: (N), of the student's scores */
  int way;                                     /* IN_TWO: the second call has what follows */
  float *grad_logprob, *grad_entropy;
  float *partial, *teacher_partial; /* (N,4) of BY_SUMS */
  int64_t *target;
  void *blank; /* what outputs hold before: 0xff in each byte */
  double parameters[FLP_LOSS_PARAMETERS_MAX];
} problem;

static flp_status case_of(const shape *s, int loss, flp_dtype dtype, check_case *out) {
  *out = check_case_default(dtype, s->n, s->columns, 0);
  out->name = s->name;
  out->spec.op = FLP_OP_DIVERGE;
  out->spec.alignment = s->natural ? (uint32_t)sizeof(float) : 16;
  out->spec.loss = loss_bytes[loss];
  return flp_loss_builtin_bytes(losses[loss].name, loss_bytes[loss], sizeof loss_bytes[loss], &out->spec.loss_bytes);
}

/* ---- data ---- */

/* Rows of falling temperature; of every eight one is the teacher's own, one has columns that student, teacher or both
 * exclude, one has a single column, one is beyond what scores may be, and one a NaN. */
enum { ROW_EQUAL = 1, ROW_EXCLUDED, ROW_SINGLE, ROW_BEYOND, ROW_NAN, ROW_SORTS = 8 };

static double normal_at(uint64_t seed, int64_t i) {
  double sum = 0; /* of four uniform ones, times the root of 3 */
  for (int j = 0; j < 4; j++) sum += cli_unit(cli_hash(seed + (uint64_t)(4 * i + j) * 0x9e3779b97f4a7c15u));
  return (sum - 2) * 1.7320508;
}

static void draw_row(const problem *p, int64_t row) {
  float *x = p->scores + row * p->stride, *y = p->teacher + row * p->stride;
  int64_t columns = p->c.spec.vocab, sort = row % ROW_SORTS;
  double sharpness = 1 + (double)(row % 5) * 2;
  for (int64_t v = 0; v < columns; v++) {
    double own = normal_at(11, row * columns + v);
    y[v] = (float)(sharpness * own);
    x[v] = sort == ROW_EQUAL ? y[v] : (float)(sharpness * (0.9 * own + 0.3 * normal_at(12, row * columns + v)));
    if (sort == ROW_EXCLUDED && v % 3 == 1) x[v] = -INFINITY;
    if (sort == ROW_EXCLUDED && v % 5 == 1) y[v] = -INFINITY;
    if (sort == ROW_SINGLE && v > 0) x[v] = y[v] = -INFINITY;
  }
  if (sort == ROW_BEYOND) x[columns - 1] = 3e9f;
  if (sort == ROW_NAN) y[columns / 2] = NAN;
  p->scales[row] = row % 9 == 4 ? -0.5f : 1 + (float)(row % 4) / 8;
  p->upstream[row] = row % 7 == 3 ? 0 : (float)(row % 3) - 1.25f;
  p->target[row] = row % 6 == 5 ? -1 : (int64_t)(cli_hash((uint64_t)row) % (uint64_t)columns);
  p->grad_logprob[row] = row % 4 == 3 ? 0 : (float)(row % 5) - 1.5f;
  p->grad_entropy[row] = row % 3 == 1 ? 0 : 0.375f;
}

/* What forward sums of a row: the largest score in log2 units, that of no NaN, and Σ 2^(t - that), NaN where one is. */
static void take_partial(const float *scores, double scale, int64_t columns, float out[4]) {
  double top = -FLP_SCORE_LIMIT, sum = 0;
  for (int64_t v = 0; v < columns; v++) top = fmax(top, scale * M_LOG2E * (double)scores[v]);
  out[0] = (float)top;
  for (int64_t v = 0; v < columns; v++) sum += exp2(scale * M_LOG2E * (double)scores[v] - (double)out[0]);
  out[1] = (float)sum;
  out[2] = out[3] = NAN; /* is not looked at */
}

static void take_partials(const problem *p) {
  for (int64_t row = 0; row < p->c.n; row++) {
    int64_t at = row * p->stride;
    take_partial(p->scores + at, (double)p->scales[row], p->c.spec.vocab, p->partial + 4 * row);
    take_partial(p->teacher + at, (double)TEACHER_SCALE, p->c.spec.vocab, p->teacher_partial + 4 * row);
  }
}

static void set_parameters(problem *p) {
  for (uint32_t i = 0; i < p->loss.parameter_count; i++) {
    const flp_loss_parameter *own = &p->loss.parameters[i];
    p->parameters[i] = strcmp(own->name, "rest_weight") == 0 ? 0 : own->fallback; /* there is no rest */
  }
}

static flp_status problem_create(const shape *s, int loss, flp_dtype dtype, int way, problem *p) {
  *p = (problem){.element = flp_dtype_bytes(dtype), .way = way};
  FLP_TRY(case_of(s, loss, dtype, &p->c));
  FLP_TRY(flp_loss_read(p->c.spec.loss, p->c.spec.loss_bytes, &p->loss));
  set_parameters(p);
  p->stride = s->columns / 8 * 8 + 16;
  p->grad_bytes = (size_t)(s->n * p->stride) * p->element;
  p->score_bytes = (size_t)(s->n * p->stride) * sizeof(float);
  p->scores = calloc(1, p->score_bytes);
  p->teacher = calloc(1, p->score_bytes);
  p->upstream = calloc((size_t)s->n, sizeof(float));
  p->scales = calloc((size_t)s->n, sizeof(float));
  p->grad_logprob = calloc((size_t)s->n, sizeof(float));
  p->grad_entropy = calloc((size_t)s->n, sizeof(float));
  p->target = calloc((size_t)s->n, sizeof(int64_t));
  p->partial = calloc((size_t)s->n, 4 * sizeof(float));
  p->teacher_partial = calloc((size_t)s->n, 4 * sizeof(float));
  p->blank = malloc(p->score_bytes);
  if (!p->scores || !p->teacher || !p->upstream || !p->scales || !p->grad_logprob || !p->grad_entropy || !p->target ||
      !p->partial || !p->teacher_partial || !p->blank)
    return flp_fail(FLP_ERROR_MEMORY, "out of host memory for scores");
  memset(p->blank, 0xff, p->score_bytes);
  for (int64_t row = 0; row < s->n; row++) draw_row(p, row);
  take_partials(p);
  return FLP_OK;
}

static void problem_clear(problem *p) {
  free(p->scores);
  free(p->teacher);
  free(p->upstream);
  free(p->scales);
  free(p->grad_logprob);
  free(p->grad_entropy);
  free(p->target);
  free(p->partial);
  free(p->teacher_partial);
  free(p->blank);
}

/* ---- running ---- */

typedef struct run {
  cli_device device;
  call_buffer scores, teacher, upstream, scales, values, grad, target, grad_logprob, grad_entropy, state, partial,
      teacher_partial;
  void *got_values, *got_grad;
  int overrun;
} run;

static flp_status upload(run *r, call_buffer *buffer, const void *from, size_t bytes) {
  FLP_TRY(call_buffer_make(&r->device, bytes, 0, 1, buffer));
  return cli_buffer_upload(&buffer->buffer, 0, from, bytes);
}

static flp_status upload_all(const problem *p, run *r) {
  size_t n = (size_t)p->c.n;
  FLP_TRY(upload(r, &r->scores, p->scores, p->score_bytes));
  FLP_TRY(upload(r, &r->teacher, p->teacher, p->score_bytes));
  FLP_TRY(upload(r, &r->upstream, p->upstream, n * sizeof(float)));
  FLP_TRY(upload(r, &r->scales, p->scales, n * sizeof(float)));
  FLP_TRY(upload(r, &r->values, p->blank, n * FLP_DIVERGE_VALUES * sizeof(float)));
  FLP_TRY(upload(r, &r->grad, p->blank, p->grad_bytes));
  FLP_TRY(upload(r, &r->target, p->target, n * sizeof(int64_t)));
  FLP_TRY(upload(r, &r->grad_logprob, p->grad_logprob, n * sizeof(float)));
  FLP_TRY(upload(r, &r->grad_entropy, p->grad_entropy, n * sizeof(float)));
  FLP_TRY(upload(r, &r->partial, p->partial, 4 * n * sizeof(float)));
  FLP_TRY(upload(r, &r->teacher_partial, p->teacher_partial, 4 * n * sizeof(float)));
  FLP_TRY(call_buffer_make(&r->device, n * FLP_DIVERGE_STATE * sizeof(double), 0, 1, &r->state));
  return cli_device_synchronise(&r->device);
}

/* All that a single call makes. */
static flp_diverge_args args_of(const problem *p, const run *r) {
  flp_diverge_args args = FLP_DIVERGE_ARGS_INIT;
  args.n = p->c.n;
  args.scores = call_buffer_at(&r->scores, 0);
  args.teacher = call_buffer_at(&r->teacher, 0);
  args.scores_stride = args.teacher_stride = args.grad_scores_stride = p->stride;
  args.scale_rows = call_buffer_at(&r->scales, 0);
  args.teacher_scale = TEACHER_SCALE;
  args.loss_parameters = p->parameters;
  args.upstream = call_buffer_at(&r->upstream, 0);
  args.values = call_buffer_at(&r->values, 0);
  args.grad_scores = call_buffer_at(&r->grad, 0);
  args.stream = r->device.stream;
  if (p->way != BY_SUMS) return args;
  args.partial = call_buffer_at(&r->partial, 0);
  args.teacher_partial = call_buffer_at(&r->teacher_partial, 0);
  return args;
}

static flp_status execute_in_two(const problem *p, flp_plan *plan, const run *r) {
  flp_diverge_args first = args_of(p, r), second = first;
  first.grad_scores = NULL;
  first.state = second.state = call_buffer_at(&r->state, 0);
  second.values = NULL;
  second.resumes = 1;
  second.target = call_buffer_at(&r->target, 0);
  second.grad_logprob = call_buffer_at(&r->grad_logprob, 0);
  second.grad_entropy = call_buffer_at(&r->grad_entropy, 0);
  FLP_TRY(flp_diverge(plan, &first));
  return flp_diverge(plan, &second);
}

static flp_status execute(const problem *p, flp_plan *plan, run *r) {
  size_t value_bytes = (size_t)p->c.n * FLP_DIVERGE_VALUES * sizeof(float);
  FLP_TRY(upload_all(p, r));
  flp_diverge_args args = args_of(p, r);
  FLP_TRY(p->way == IN_TWO ? execute_in_two(p, plan, r) : flp_diverge(plan, &args));
  FLP_TRY(call_buffer_take(&r->values, value_bytes, &r->got_values, &r->overrun));
  FLP_TRY(call_buffer_take(&r->grad, p->grad_bytes, &r->got_grad, &r->overrun));
  return FLP_OK;
}

static flp_status run_problem(const problem *p, const check_how *how, run *r) {
  flp_options options = check_how_options(how);
  flp_plan *plan = NULL;
  FLP_TRY(cli_device_open(options.device, &r->device));
  flp_status status = check_precompile_plan(how->precompile, &p->c.spec, &options, &plan);
  if (status == FLP_OK) status = execute(p, plan, r);
  flp_plan_destroy(plan);
  return status;
}

static void run_clear(run *r) {
  call_buffer *const buffers[] = {&r->scores,       &r->teacher, &r->upstream, &r->scales,
                                  &r->values,       &r->grad,    &r->target,   &r->grad_logprob,
                                  &r->grad_entropy, &r->state,   &r->partial,  &r->teacher_partial};
  for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) call_buffer_clear(buffers[i]);
  free(r->got_values);
  free(r->got_grad);
  cli_device_close(&r->device);
}

/* ---- comparing ---- */

/* One row in double. */
typedef struct truth {
  double values[FLP_DIVERGE_VALUES];
  double *log_q, *log_p, *grad; /* (V) */
  float *slope;                 /* (V) ∂D/∂log q */
  double size;                  /* of log-probabilities that count */
} truth;

static double lse_of(const float *scores, double scale, int64_t count, int64_t *best, double *scaled) {
  double top = -INFINITY, sum = 0;
  int has_nan = 0;
  for (int64_t v = 0; v < count; v++) {
    scaled[v] = scale * (double)scores[v];
    has_nan |= isnan(scaled[v]);
    if (scaled[v] > top) top = scaled[*best = v];
  }
  if (has_nan) return NAN;
  for (int64_t v = 0; v < count; v++) sum += exp(scaled[v] - top);
  return top > 1e9 ? (double)INFINITY : top + log(sum);
}

/* What upstream gradients of log q of the target and of the entropy pull at column v, or the sizes of its terms. */
static double beside(const problem *p, int64_t row, const truth *t, int64_t v, int of_sizes) {
  double q = exp(t->log_q[v]), log_q = q > 0 ? t->log_q[v] : 0, entropy = t->values[3];
  double own = p->target[row] < 0 ? 0 : (double)p->grad_logprob[row], of_entropy = (double)p->grad_entropy[row];
  if (p->way != IN_TWO) return 0;
  if (of_sizes) return fabs(own) * ((v == p->target[row]) + q) + of_entropy * q * (fabs(log_q) + entropy + 1);
  double of_logprob = own == 0 ? 0 : own * ((v == p->target[row]) - q);
  return of_logprob - (of_entropy == 0 ? 0 : of_entropy * q * (log_q + entropy));
}

static void take_truth(const problem *p, int64_t row, truth *t) {
  const float *x = p->scores + row * p->stride, *y = p->teacher + row * p->stride;
  int64_t columns = p->c.spec.vocab, best_x = -1, best_y = -2;
  double scale = (double)p->scales[row], slopes = 0, shares = 0;
  double lse_x = lse_of(x, scale, columns, &best_x, t->log_q);
  double lse_y = lse_of(y, (double)TEACHER_SCALE, columns, &best_y, t->log_p);
  if (isinf(lse_x) || isinf(lse_y)) lse_x = lse_y = NAN; /* no number for either */
  int is_nan = isnan(lse_x + lse_y);
  *t = (truth){.values = {NAN, lse_x, lse_y}, .log_q = t->log_q, .log_p = t->log_p, .grad = t->grad, .slope = t->slope};
  for (int64_t v = 0; v < columns; v++) {
    t->log_q[v] -= lse_x;
    t->log_p[v] -= lse_y;
  }
  flp_loss_plan plan;
  flp_loss_row result;
  flp_loss_targets targets = {.count = columns, .exact = t->log_q, .exact_teacher = t->log_p};
  flp_loss_plan_of(&p->loss, &plan);
  flp_loss_evaluate_targets(&p->loss, &plan, &targets, (double[FLP_LOSS_ALL_INPUTS]){[FLP_LOSS_WEIGHT] = 1},
                            p->parameters, &result, t->slope);
  if (!is_nan) t->values[0] = result.loss;
  for (int64_t v = 0; v < columns; v++) {
    double q = exp(t->log_q[v]), other = exp(t->log_p[v]);
    t->values[3] -= q > 0 ? q * t->log_q[v] : 0;
    t->values[4] += fmin(q, other);
    t->size += q > 0 ? q * fabs(t->log_q[v]) : 0;
    slopes += (double)t->slope[v];
    shares += q;
  }
  if (isnan(lse_x)) t->values[3] = NAN;
  t->values[5] = best_x == best_y && !is_nan;
  for (int64_t v = 0; v < columns; v++) {
    double dx = (double)t->slope[v] - exp(t->log_q[v]) * slopes / shares;
    t->grad[v] = p->upstream[row] == 0 ? 0 : dx * (double)p->upstream[row];
    t->grad[v] = scale * (t->grad[v] + beside(p, row, t, v, 0));
  }
  if (is_nan) t->values[4] = NAN;
}

/* What f32 may be off: of a score's exponential and of what is summed some 2^-21, of a log-probability likewise. */
static void set_values(const run *r, const truth *t, int64_t row, check_numbers *out) {
  const float *got = (const float *)r->got_values + row * FLP_DIVERGE_VALUES;
  for (int64_t i = 0; i < FLP_DIVERGE_VALUES; i++) {
    double unit = 0x1p-20 * (1 + t->size + (isfinite(t->values[i]) ? fabs(t->values[i]) : 0));
    check_numbers_set(out, row * FLP_DIVERGE_VALUES + i, (double)got[i], t->values[i], unit, i == 5 ? 0 : 4 * unit);
  }
}

static void set_grad(const problem *p, const run *r, const truth *t, int64_t row, check_numbers *out) {
  int64_t columns = p->c.spec.vocab;
  int digits = p->c.spec.dtype == FLP_DTYPE_BF16 ? 8 : p->c.spec.dtype == FLP_DTYPE_FP16 ? 11 : 24;
  double least = p->c.spec.dtype == FLP_DTYPE_FP16 ? 0x1p-24 : 0x1p-126;
  for (int64_t v = 0; v < columns; v++) {
    double q = exp(t->log_q[v]), other = exp(t->log_p[v]), right = t->grad[v];
    double mass = q + other + fabs((double)t->slope[v]) + q * (isfinite(t->values[0]) ? fabs(t->values[0]) : 1);
    double pull = fabs((double)p->upstream[row]), size = beside(p, row, t, v, 1);
    if (pull > 0 && isfinite(mass)) size += pull * mass;
    double noise = fabs((double)p->scales[row]) * size * 0x1p-19 * (1 + fabs(fmax(t->log_q[v], -100)));
    double unit = isfinite(right) ? ldexp(fabs(right), -digits) + least + (isfinite(noise) ? noise : 0) : 1;
    check_numbers_set(out, row * columns + v, cli_number_at(p->c.spec.dtype, r->got_grad, row * p->stride + v), right,
                      unit, 2 * unit);
  }
}

static flp_status compare(const problem *p, const run *r, check_metric metrics[2]) {
  int64_t columns = p->c.spec.vocab;
  cli_memory memory = {0};
  check_numbers values = check_numbers_of(&memory, p->c.n * FLP_DIVERGE_VALUES);
  check_numbers grad = check_numbers_of(&memory, p->c.n * columns);
  truth t = {.log_q = cli_memory_take(&memory, (size_t)columns * sizeof(double)),
             .log_p = cli_memory_take(&memory, (size_t)columns * sizeof(double)),
             .grad = cli_memory_take(&memory, (size_t)columns * sizeof(double)),
             .slope = cli_memory_take(&memory, (size_t)columns * sizeof(float))};
  flp_status status = cli_memory_status(&memory, "a comparison");
  for (int64_t row = 0; status == FLP_OK && row < p->c.n; row++) {
    take_truth(p, row, &t);
    set_values(r, &t, row, &values);
    set_grad(p, r, &t, row, &grad);
  }
  if (status == FLP_OK) {
    metrics[0] = check_numbers_judge(&values);
    metrics[1] = check_numbers_judge(&grad);
  }
  cli_memory_free(&memory);
  return status;
}

static flp_status check_one(const shape *s, int loss, flp_dtype dtype, int way, const check_how *how,
                            check_report *report) {
  problem p;
  run r = {0};
  check_metric metrics[2];
  flp_status status = problem_create(s, loss, dtype, way, &p);
  if (status == FLP_OK) status = run_problem(&p, how, &r);
  if (status == FLP_OK) status = compare(&p, &r, metrics);
  if (status == FLP_OK) {
    size_t used = (size_t)s->columns * p.element, width = (size_t)p.stride * p.element;
    int has_gaps = call_has_gaps(r.got_grad, (size_t)s->n, used, width);
    const char *note = r.overrun || !has_gaps ? "wrote outside of rows" : NULL;
    metrics[1].pass &= note == NULL;
    for (int i = 0; i < 2; i++)
      check_report_add(report, &p.c, how->options.rung, losses[loss].outputs[way][i], metrics[i], i ? note : NULL);
  }
  run_clear(&r);
  problem_clear(&p);
  return status;
}

/* Every loss over the ragged shape, each other shape with one of them. */
static int is_checked(size_t at, int loss) {
  return at == 2 || (int)at % LOSSES == loss;
}

flp_status check_diverge(const check_part *of, const check_how *how, check_report *report) {
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
    for (int loss = 0; loss < LOSSES; loss++)
      for (int way = 0; way < WAYS && is_checked(i, loss); way++)
        FLP_TRY(check_one(&shapes[i], loss, of->dtype, way, how, report));
  return FLP_OK;
}

void check_diverge_cases(const check_part *of, check_list *list) {
  check_case c;
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
    for (int loss = 0; loss < LOSSES; loss++)
      if (is_checked(i, loss) && case_of(&shapes[i], loss, of->dtype, &c) == FLP_OK) check_list_add(list, c);
}

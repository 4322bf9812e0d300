/* data.c: the data of a case, for the rung and for the oracle.
 *
 * Invariants: rows of padding behind the vocabulary, and elements between rows, hold NaN, so that whatever reads them
 * shows; upstream gradients are never 0 unless the case asks for it; a seed gives the same data everywhere. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gen/cli/call/normal.h"
#include "gen/cli/check/problem.h"
#include "gen/cli/shared/spec_args.h"
#include "runtime/api/validate.h"
#include "runtime/base/half.h"
#include "runtime/base/number.h"
#include "runtime/base/operands.h"
#include "runtime/base/process.h"
#include "runtime/base/status.h"

static uint64_t next_random(uint64_t *state) {
  uint64_t z = cli_hash(*state);
  *state += 0x9e3779b97f4a7c15u;
  return z;
}

/* Uniform in (-1, 1). */
static double uniform(uint64_t *state) {
  return cli_uniform(next_random(state));
}

static void *take(check_problem *problem, int64_t count, size_t bytes) {
  return cli_memory_take(&problem->memory, (size_t)count * bytes);
}

static int64_t hot_column(const check_case *c) {
  return c->spec.vocab / 2;
}

/* Behind the first columns, whatever a kernel takes those to be. */
static int64_t steep_column(const check_case *c) {
  return c->spec.vocab - 1 - c->spec.vocab / 16;
}

static int is_hole(const check_case *c, int64_t column) {
  if (c->fill == CHECK_FILL_ALL_HOLES) return 1;
  return c->fill == CHECK_FILL_HOLES && (column < c->spec.vocab / 4 || column % 3 == 1) && column != hot_column(c);
}

static int is_exact(const check_case *c) {
  return c->fill == CHECK_FILL_EXACT || c->fill == CHECK_FILL_EQUAL || c->fill == CHECK_FILL_ONE_HOT;
}

static void fill_hidden_row(const check_case *c, int64_t row, uint64_t *state, float *out) {
  int64_t depth = c->spec.hidden;
  for (int64_t d = 0; d < depth; d++) {
    double value = uniform(state);
    out[d] = (float)(is_exact(c) ? round(8 * value) / 8 : 1.75 * value);
  }
  for (int64_t d = depth / 2; c->fill == CHECK_FILL_EQUAL && d < depth; d++) out[d] = 0;
  if (c->fill == CHECK_FILL_SHIFTED) out[0] = 100;
  if (c->fill == CHECK_FILL_ONE_HOT) out[0] = 1;
  if (c->fill == CHECK_FILL_NEGATIVE) out[0] = 128;
  if (c->fill == CHECK_FILL_STEEP) out[0] = row >= c->n - 1 - c->n / 8 ? 1.5f : 0;
  /* An infinity is a NaN to products in terms; of a few columns it need not be one in truth. */
  int is_split = c->spec.listed && (c->spec.dtype == FLP_DTYPE_FP32 || c->spec.mixed == FLP_MIXED_SPLIT);
  if ((c->rows == CHECK_ROWS_NAN || c->rows == CHECK_ROWS_NAN_INACTIVE) && row % 5 == 1)
    out[depth / 2] = row % 2 || is_split ? NAN : INFINITY;
}

static void fill_weight_row(const check_case *c, int64_t column, uint64_t *state, float *out) {
  int64_t depth = c->spec.hidden;
  uint64_t same = c->seed + 77;
  double spread = 3.0 / sqrt((double)depth);
  for (int64_t d = 0; d < depth; d++) {
    /* Equal where hidden is not 0; elsewhere rows differ, or the gradient of hidden would be 0 but for rounding. */
    double value = uniform(c->fill == CHECK_FILL_EQUAL && d < depth / 2 ? &same : state);
    out[d] = (float)(1.75 * spread * value);
    if (c->fill == CHECK_FILL_EXACT || c->fill == CHECK_FILL_EQUAL) out[d] = (float)(round(8 * value) / 8);
    if (c->fill == CHECK_FILL_ONE_HOT) out[d] = 0;
  }
  if (c->fill == CHECK_FILL_SHIFTED) out[0] = 100;
  if (c->fill == CHECK_FILL_ONE_HOT) out[0] = column == hot_column(c) ? 64 : -64;
  if (c->fill == CHECK_FILL_NEGATIVE) out[0] = -128;
  if (c->fill == CHECK_FILL_STEEP && column == steep_column(c)) out[0] = 100;
}

/* Elements of a row, and from one to the next. */
typedef struct row_shape {
  int64_t width, stride;
} row_shape;

/* A matrix of `rows` rows, of which the first `real` are filled. */
static void *make_matrix(check_problem *problem, flp_dtype dtype, int64_t rows, int64_t real, row_shape shape,
                         uint64_t seed, void (*fill_row)(const check_case *, int64_t, uint64_t *, float *)) {
  size_t row_bytes = (size_t)(shape.stride * flp_half_bytes(dtype));
  char *matrix = take(problem, rows, row_bytes);
  float *row = take(problem, shape.width, sizeof *row);
  if (!matrix || !row) return matrix;
  memset(matrix, 0xff, (size_t)rows * row_bytes);
  for (int64_t i = 0; i < real; i++) {
    fill_row(&problem->c, i, &seed, row);
    flp_half_narrow(dtype, row, shape.width, matrix + (size_t)i * row_bytes);
  }
  return matrix;
}

static void *make_bias(check_problem *problem, uint64_t seed) {
  const check_case *c = &problem->c;
  int64_t bytes = flp_half_bytes(c->spec.bias_dtype);
  char *bias = take(problem, problem->padded_vocab, (size_t)bytes);
  if (!bias) return NULL;
  memset(bias, 0xff, (size_t)(problem->padded_vocab * bytes));
  for (int64_t v = 0; v < c->spec.vocab; v++) {
    float value = is_exact(c) ? 0.5f : (float)uniform(&seed);
    if (is_hole(c, v)) value = -INFINITY;
    flp_half_narrow(c->spec.bias_dtype, &value, 1, bias + v * bytes);
  }
  return bias;
}

/* A column with a score above -inf, unless there is none. */
static int64_t good_target(const check_case *c, uint64_t *state) {
  int64_t vocab = c->spec.vocab, last = vocab < 5 ? vocab : 5;
  if (c->rows == CHECK_ROWS_LAST_TILE) return vocab - 1 - (int64_t)(next_random(state) % (uint64_t)last);
  int64_t target = (int64_t)(next_random(state) % (uint64_t)vocab);
  if (c->fill == CHECK_FILL_ONE_HOT && next_random(state) % 2) return hot_column(c);
  return is_hole(c, target) ? hot_column(c) : target;
}

static int64_t choose_target(const check_case *c, int64_t row, uint64_t *state) {
  int64_t target = good_target(c, state);
  if (c->rows == CHECK_ROWS_NONE || (c->rows == CHECK_ROWS_MASKED && row % 3 == 1)) return CHECK_IGNORE_INDEX;
  if (c->rows == CHECK_ROWS_BAD && row % 4 == 1) return c->spec.vocab + (row % 8 == 1 ? 0 : 2000000000 - c->spec.vocab);
  if (c->rows == CHECK_ROWS_BAD && row % 4 == 3) return row % 8 == 3 ? -1 : INT32_MIN;
  return target;
}

/* A row whose logprob is NaN, and which has no upstream gradient. */
static int is_idle_oddity(const check_case *c, int64_t row) {
  return (c->rows == CHECK_ROWS_NAN_INACTIVE || c->rows == CHECK_ROWS_BEYOND) && row % 5 == 1;
}

static double choose_temperature(const check_case *c, int64_t row, uint64_t *state) {
  static const double bad[] = {0, -1, NAN, INFINITY};
  double value = uniform(state);
  if (!c->spec.per_row_temperature) return (double)(float)c->temperature;
  if (c->rows == CHECK_ROWS_BAD && row % 4 == 2) return bad[row / 4 % 4];
  if (is_idle_oddity(c, row) && c->rows == CHECK_ROWS_BEYOND) return (double)1e-12f;
  return (double)(float)pow(c->temperature, value);
}

static void fill_rows(check_problem *problem, uint64_t seed) {
  const check_case *c = &problem->c;
  uint64_t state = seed;
  for (int64_t row = 0; row < c->n; row++) {
    int64_t own = row * problem->targets; /* the first; targets.c has the others */
    problem->target_id[own] = choose_target(c, row, &state);
    problem->temperature[row] = choose_temperature(c, row, &state);
    int inactive = (c->rows == CHECK_ROWS_INACTIVE && row % 2) || (c->rows == CHECK_ROWS_FEW && row % 512) ||
                   is_idle_oddity(c, row);
    float g = (float)uniform(&state), e = (float)uniform(&state);
    problem->g[own] = inactive ? 0 : (double)g;
    problem->e[row] = inactive || c->spec.entropy != FLP_ENTROPY_BACKWARD ? 0 : (double)e;
  }
}

/* Row `row` of hidden, or of weight. */
static char *row_at(const check_problem *problem, void *matrix, flp_dtype dtype, int64_t row) {
  return (char *)matrix + row * problem->stride * flp_half_bytes(dtype);
}

/* Hidden states along the target's row of weight, whose score is then some 9 for a factor of 1 whatever the depth. */
static void turn_to_targets(check_problem *problem, uint64_t seed) {
  const flp_spec *spec = &problem->c.spec;
  float *row = take(problem, spec->hidden, sizeof *row);
  for (int64_t i = 0; row && i < problem->c.n; i++) {
    int64_t target = problem->target_id[i * problem->targets];
    if (target < 0 || target >= spec->vocab) continue;
    double factor = problem->c.fill == CHECK_FILL_PEAKED ? 1.25 + 0.75 * uniform(&seed) : -2 + 0.2 * uniform(&seed);
    flp_half_widen(spec->weight_dtype, row_at(problem, problem->weight, spec->weight_dtype, target), spec->hidden, row);
    for (int64_t d = 0; d < spec->hidden; d++) row[d] = (float)(factor * (double)row[d] + 0.05 * uniform(&seed));
    flp_half_narrow(spec->hidden_dtype, row, spec->hidden, row_at(problem, problem->hidden, spec->hidden_dtype, i));
  }
}

/* Hidden states along a dozen rows of weight, whose scores fall by a twentieth from one to the next: the target's among
 * the first, every second one of those that all rows favour. The largest score is some 5 in the first row, no rival to
 * the sum of all others, and six times that in the last. */
static void sharpen(check_problem *problem, uint64_t seed) {
  enum { FAVOURED = 12, COMMON = 24 };
  const flp_spec *spec = &problem->c.spec;
  int64_t depth = spec->hidden;
  float *sum = take(problem, 2 * depth, sizeof *sum), *row = sum ? sum + depth : NULL;
  for (int64_t i = 0; sum && i < problem->c.n; i++) {
    int64_t target = problem->target_id[i * problem->targets], place = (int64_t)(next_random(&seed) % 4);
    memset(sum, 0, (size_t)depth * sizeof *sum);
    for (int64_t k = 0; k < FAVOURED; k++) {
      uint64_t drawn = next_random(&seed);
      int64_t column = (int64_t)(drawn % (uint64_t)(k % 2 && spec->vocab > COMMON ? COMMON : spec->vocab));
      if (k == place && target >= 0 && target < spec->vocab) column = target;
      double factor = (0.5 + 2.5 * (double)i / (double)problem->c.n) * (1 - 0.05 * (double)k);
      flp_half_widen(spec->weight_dtype, row_at(problem, problem->weight, spec->weight_dtype, column), depth, row);
      for (int64_t d = 0; d < depth; d++) sum[d] += (float)(factor * (double)row[d]);
    }
    flp_half_narrow(spec->hidden_dtype, sum, depth, row_at(problem, problem->hidden, spec->hidden_dtype, i));
  }
}

/* Those of fill_hidden_row, which rows that were made anew have lost. */
static void set_nan_rows(check_problem *problem) {
  const check_case *c = &problem->c;
  int64_t element = flp_half_bytes(c->spec.hidden_dtype);
  for (int64_t row = 1; row < c->n; row += 5) {
    float value = row % 2 ? NAN : INFINITY;
    flp_half_narrow(c->spec.hidden_dtype, &value, 1,
                    (char *)problem->hidden + (row * problem->stride + c->spec.hidden / 2) * element);
  }
}

/* Every third row from the end, each twice, between two ids that are no row. */
static void fill_row_list(check_problem *problem) {
  int32_t *rows = problem->rows;
  int64_t count = 0;
  rows[count++] = -1;
  for (int64_t row = problem->c.n - 1; row >= 0; row -= 3) {
    rows[count++] = (int32_t)row;
    rows[count++] = (int32_t)row;
  }
  rows[count++] = (int32_t)problem->c.n;
  problem->row_count = count;
  problem->has_bad = problem->c.n > 0; /* with no rows nothing is looked at */
}

static uint8_t class_of(const check_problem *problem, int64_t row, int backward) {
  const check_case *c = &problem->c;
  if (problem->rows && (c->n - 1 - row) % 3 != 0) return CHECK_LEFT_OUT;
  check_targets_seen seen = check_targets_see(problem, row);
  if (!seen.has_target) return CHECK_LEFT_OUT;
  if (backward && !seen.has_gradient && problem->e[row] == 0) return CHECK_LEFT_OUT;
  double factor = c->spec.softcap > 0 ? (double)c->spec.softcap : c->scale;
  int good = !seen.has_foreign && flp_number_is_temperature((float)problem->temperature[row], factor) &&
             !(problem->list_bad && problem->list_bad[row]);
  return good ? CHECK_ACTIVE : CHECK_BAD;
}

/* The arrays over rows as the rung takes them, from the oracle's. */
static void export_rows(check_problem *problem) {
  check_targets_export(problem);
  for (int64_t row = 0; row < problem->c.n; row++) {
    problem->temperature_rows[row] = (float)problem->temperature[row];
    problem->grad_entropy[row] = (float)problem->e[row];
    problem->forward_class[row] = class_of(problem, row, 0);
    problem->backward_class[row] = class_of(problem, row, 1);
    problem->has_bad |= problem->forward_class[row] == CHECK_BAD;
  }
}

static void fill_weight_base(check_problem *problem, uint64_t seed) {
  size_t count = (size_t)(problem->padded_vocab * problem->stride);
  for (size_t i = 0; i < count; i++) problem->weight_base[i] = (float)(0.01 * uniform(&seed));
}

static void take_rows(check_problem *problem) {
  int64_t n = problem->c.n, targets = n * problem->targets;
  problem->target = take(problem, targets, 8);
  problem->temperature_rows = take(problem, n, 4);
  problem->grad_logprob = take(problem, targets, 4);
  problem->grad_entropy = take(problem, n, 4);
  problem->forward_class = take(problem, n, 1);
  problem->backward_class = take(problem, n, 1);
  problem->target_id = take(problem, targets, 8);
  problem->temperature = take(problem, n, 8);
  problem->g = take(problem, targets, 8);
  problem->e = take(problem, n, 8);
  if (problem->c.rows == CHECK_ROWS_LIST) problem->rows = take(problem, 2 * n + 4, 4);
}

/* ---- the adapter ---- */

/* Row j of A. Scores of 10^4 and of -16384 come from the first element, which the adapter then leaves alone. */
static void fill_lora_a(const check_case *c, int64_t j, uint64_t *state, float *out) {
  int64_t depth = c->spec.hidden;
  double spread = 1.75 / sqrt((double)depth);
  for (int64_t d = 0; d < depth; d++) {
    double value = uniform(state);
    out[d] = (float)(is_exact(c) ? (d % 8 == j % 8 ? round(2 * value) / 4 : 0) : spread * value);
  }
  if (c->fill == CHECK_FILL_SHIFTED || c->fill == CHECK_FILL_NEGATIVE) out[0] = 0;
  /* of equal scores: where u is 0 rows of B differ, or the gradients of A and B would be 0 but for rounding */
  if (c->fill == CHECK_FILL_EQUAL && j >= c->spec.lora_rank / 2) memset(out, 0, (size_t)depth * sizeof *out);
}

static void fill_lora_b(const check_case *c, int64_t column, uint64_t *state, float *out) {
  uint64_t same = c->seed + 78;
  (void)column;
  int64_t rank = c->spec.lora_rank;
  for (int64_t j = 0; j < rank; j++) {
    double value = uniform(c->fill == CHECK_FILL_EQUAL && j < rank / 2 ? &same : state);
    out[j] = (float)(is_exact(c) ? round(2 * value) / 4 : 1.75 / sqrt((double)rank) * value);
    if (c->lora == CHECK_LORA_ZERO) out[j] = 0;
  }
}

/* Above this many products of u and B what is said of scores' errors is a bound. */
static const double EVERY_SCORE = 2e10;

static flp_status project_lora(check_problem *problem) {
  const flp_spec *spec = &problem->c.spec;
  double size = (double)problem->c.n * (double)spec->vocab * (double)spec->lora_rank;
  const oracle_lora lora = {.dtype = spec->dtype,
                            .hidden_dtype = spec->hidden_dtype,
                            .terms = flp_operand_terms(spec),
                            .n = problem->c.n,
                            .vocab = spec->vocab,
                            .depth = spec->hidden,
                            .rank = spec->lora_rank,
                            .hidden = problem->hidden,
                            .a = problem->lora_a,
                            .b = problem->lora_b,
                            .hidden_stride = problem->stride,
                            .a_stride = problem->stride,
                            .scale = problem->lora_scale,
                            .is_bounded = problem->c.sampled || size > EVERY_SCORE};
  return oracle_lora_project(&lora, problem->lora_u, problem->score_error);
}

static flp_status create_lora(check_problem *problem, uint64_t seed) {
  const flp_spec *spec = &problem->c.spec;
  int64_t rank = spec->lora_rank, n = problem->c.n;
  const row_shape of_a = {spec->hidden, problem->stride}, of_b = {rank, rank};
  problem->lora_scale = problem->c.lora == CHECK_LORA_OFF ? 0 : 0.75;
  problem->lora_a = make_matrix(problem, spec->dtype, rank, rank, of_a, seed, fill_lora_a);
  problem->lora_b =
      make_matrix(problem, spec->dtype, problem->padded_vocab, spec->vocab, of_b, seed + 1000, fill_lora_b);
  problem->lora_u = take(problem, n * rank, (size_t)flp_half_bytes(spec->dtype));
  problem->score_error = take(problem, n, sizeof(double));
  FLP_TRY(cli_memory_status(&problem->memory, "an adapter"));
  return project_lora(problem);
}

static void set_lora_oracle(check_problem *problem) {
  oracle_problem *oracle = &problem->oracle;
  if (!problem->c.spec.lora_rank) return;
  oracle->more = problem->c.spec.lora_rank;
  oracle->depth += oracle->more;
  oracle->hidden_more = problem->lora_u;
  oracle->weight_more = problem->lora_b;
  oracle->score_error = problem->score_error;
}

/* ---- the whole ---- */

static void set_oracle(check_problem *problem) {
  const flp_spec *spec = &problem->c.spec;
  problem->oracle = (oracle_problem){.dtype = spec->dtype,
                                     .hidden_dtype = spec->hidden_dtype,
                                     .weight_dtype = spec->weight_dtype,
                                     .bias_dtype = spec->bias_dtype,
                                     .terms = flp_operand_terms(spec),
                                     .n = problem->c.n,
                                     .vocab = spec->vocab,
                                     .depth = spec->hidden,
                                     .hidden = problem->hidden,
                                     .weight = problem->weight,
                                     .bias = problem->bias,
                                     .hidden_stride = problem->stride,
                                     .weight_stride = problem->stride,
                                     .targets = problem->targets,
                                     .target = problem->target_id,
                                     .temperature = problem->temperature,
                                     .scale = (double)(float)problem->c.scale,
                                     .softcap = (double)spec->softcap,
                                     .grad_logprob = problem->g,
                                     .grad_entropy = problem->e,
                                     .grad_lse = problem->by_lse,
                                     .grad_mean = problem->by_mean,
                                     .list_offsets = problem->column_offsets,
                                     .list_columns = problem->list_columns,
                                     .threads = flp_processors()};
  set_lora_oracle(problem);
}

static void take_operands(check_problem *problem, uint64_t seed) {
  const flp_spec *spec = &problem->c.spec;
  int64_t n = problem->c.n, vocab = problem->padded_vocab;
  const row_shape shape = {spec->hidden, problem->stride};
  problem->hidden = make_matrix(problem, spec->hidden_dtype, n, n, shape, seed + 1, fill_hidden_row);
  problem->weight = make_matrix(problem, spec->weight_dtype, vocab, spec->vocab, shape, seed + 2, fill_weight_row);
  if (spec->has_bias) problem->bias = make_bias(problem, seed + 3);
  if (spec->accumulate_grad_weight) problem->weight_base = take(problem, vocab * problem->stride, sizeof(float));
  take_rows(problem);
}

static flp_status fill(check_problem *problem, uint64_t seed) {
  const check_case *c = &problem->c;
  char what[80];
  snprintf(what, sizeof what, "the data of case %s", c->name);
  FLP_TRY(cli_memory_status(&problem->memory, what));
  if (problem->weight_base) fill_weight_base(problem, seed + 4);
  if (problem->rows) fill_row_list(problem);
  fill_rows(problem, seed + 5);
  if (c->fill == CHECK_FILL_PEAKED || c->fill == CHECK_FILL_UNLIKELY) turn_to_targets(problem, seed + 6);
  if (c->fill == CHECK_FILL_SHARP) sharpen(problem, seed + 6);
  int has_nan = c->rows == CHECK_ROWS_NAN || c->rows == CHECK_ROWS_NAN_INACTIVE;
  if (c->fill == CHECK_FILL_SHARP && has_nan) set_nan_rows(problem);
  FLP_TRY(cli_memory_status(&problem->memory, what));
  if (c->spec.listed) FLP_TRY(check_lists_create(problem, seed + 7));
  if (c->spec.lora_rank) FLP_TRY(create_lora(problem, seed + 9));
  if (problem->targets > 1) FLP_TRY(check_targets_draw(problem, seed + 8));
  export_rows(problem);
  set_oracle(problem);
  return check_problem_train(problem);
}

flp_status check_problem_create(const check_case *c, check_problem *out) {
  *out = (check_problem){.c = *c};
  FLP_TRY(flp_spec_resolve(&c->spec, &out->c.spec));
  const flp_spec *spec = &out->c.spec;
  out->targets = flp_spec_targets(spec);
  out->shard_vocab = check_shard_vocab(c);
  out->padded_vocab = out->shard_vocab * c->shards;
  out->stride = spec->hidden + c->padding;
  out->shift = spec->alignment < 16 ? spec->alignment : 0;
  uint64_t seed = c->seed * 1000003u;
  take_operands(out, seed);
  flp_status status = fill(out, seed);
  if (status != FLP_OK) check_problem_clear(out);
  return status;
}

call_problem check_problem_call(const check_problem *p) {
  const flp_spec *spec = &p->c.spec;
  call_problem call = {.spec = *spec,
                       .loss = p->loss,
                       .n = p->c.n,
                       .stride = p->stride,
                       .shards = p->c.shards,
                       .shard_vocab = p->shard_vocab,
                       .temperature = p->c.temperature,
                       .scale = p->c.scale,
                       .lora_scale = p->lora_scale,
                       .ignore_index = CHECK_IGNORE_INDEX,
                       .row_count = p->row_count,
                       .list_count = p->list_count,
                       .loss_parameters = p->loss_parameters,
                       .gives_stats = !p->loss,
                       .gives_metrics = 1,
                       .weight_base = p->weight_base,
                       .operand = {[FLP_ARRAY_hidden] = p->hidden,
                                   [FLP_ARRAY_weight] = p->weight,
                                   [FLP_ARRAY_bias] = p->bias,
                                   [FLP_ARRAY_target] = p->target,
                                   [FLP_ARRAY_rows] = p->rows,
                                   [FLP_ARRAY_old_lse] = p->old_lse,
                                   [FLP_ARRAY_target_score] = p->target_score,
                                   [FLP_ARRAY_list_offsets] = p->list_offsets,
                                   [FLP_ARRAY_list_ids] = p->list_ids,
                                   [FLP_ARRAY_lora_a] = p->lora_a,
                                   [FLP_ARRAY_lora_b] = p->lora_b,
                                   [FLP_ARRAY_teacher_logprob] = p->teacher}};
  if (spec->per_row_temperature) call.operand[FLP_ARRAY_temperature_rows] = p->temperature_rows;
  if (spec->grads) call.operand[FLP_ARRAY_grad_logprob] = p->grad_logprob;
  if (spec->grads && spec->entropy == FLP_ENTROPY_BACKWARD) call.operand[FLP_ARRAY_grad_entropy] = p->grad_entropy;
  for (int i = FLP_LOSS_OLD_LOGPROB; i < FLP_LOSS_INPUTS_MAX; i++) call.operand[call_loss_input(i)] = p->loss_input[i];
  return call;
}

static void remove_adapter(check_problem *problem) {
  flp_spec *spec = &problem->c.spec;
  spec->lora_rank = 0;
  spec->grad_lora_dtype = (flp_dtype)0;
  spec->grads &= ~(uint32_t)(FLP_GRAD_LORA_A | FLP_GRAD_LORA_B);
  problem->lora_a = problem->lora_b = NULL;
}

check_problem check_problem_plain(const check_problem *problem) {
  check_problem plain = *problem;
  plain.c.mode = plain.c.spec.listed ? FLP_MODE_LISTED : (flp_mode)0;
  cli_spec_set_mode(&plain.c.spec, plain.c.mode);
  plain.c.spec.topk = plain.c.spec.rank = plain.c.spec.statistics = plain.c.spec.raw_scores = 0;
  plain.c.spec.loss = NULL;
  plain.c.spec.loss_bytes = 0;
  if (plain.c.lora != CHECK_LORA_ON) remove_adapter(&plain);
  if (plain.scores) plain.c.spec.grads = 0; /* no upstream gradient of logprobs says what its gradients are */
  plain.loss = NULL;
  plain.old_lse = plain.target_score = plain.teacher = NULL;
  memset(plain.loss_input, 0, sizeof plain.loss_input);
  return plain;
}

void check_problem_clear(check_problem *problem) {
  cli_memory_free(&problem->memory);
  *problem = (check_problem){0};
}

/* array[i] <- array[order[i]] */
static void permute(void *array, size_t bytes, const int64_t *order, int64_t n, char *scratch) {
  for (int64_t i = 0; i < n; i++) memcpy(scratch + (size_t)i * bytes, (char *)array + (size_t)order[i] * bytes, bytes);
  memcpy(array, scratch, (size_t)n * bytes);
}

flp_status check_problem_permute(check_problem *problem, const int64_t *order, int64_t n) {
  size_t row_bytes = (size_t)(problem->stride * flp_half_bytes(problem->c.spec.hidden_dtype));
  size_t targets_bytes = 8 * (size_t)problem->targets;
  char *scratch = take(problem, n, row_bytes > targets_bytes ? row_bytes : targets_bytes);
  FLP_TRY(cli_memory_status(&problem->memory, "the order of rows"));
  permute(problem->hidden, row_bytes, order, n, scratch);
  permute(problem->target_id, targets_bytes, order, n, scratch);
  permute(problem->temperature, 8, order, n, scratch);
  permute(problem->g, targets_bytes, order, n, scratch);
  permute(problem->e, 8, order, n, scratch);
  if (problem->list_offsets) FLP_TRY(check_lists_permute(problem, order, n));
  problem->c.n = n;
  if (problem->lora_a) FLP_TRY(project_lora(problem));
  set_oracle(problem);
  export_rows(problem);
  return FLP_OK;
}

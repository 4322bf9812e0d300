/* api_passes.c: calls of a head: forward and combine, backward, step; see api.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/drivers/api.h"

/* ---- one call ---- */

static const char *name_of(const flp_args *args) {
  static const char *const names[] = {[FLP_PASS_FORWARD] = "forward",
                                      [FLP_PASS_COMBINE] = "combine",
                                      [FLP_PASS_BACKWARD] = "backward",
                                      [FLP_PASS_STEP] = "step"};
  return names[args->pass];
}

static flp_status execute(const api_case *c, const flp_args *args, flp_pass pass) {
  return pass == FLP_PASS_STEP ? flp_step(c->plan, args) : flp_execute(c->plan, args);
}

/* Of any budget that fits, in a block of as many bytes. 0: the options' budget is too small for this pass. */
static int give_workspace(const api_case *c, flp_args *args) {
  size_t bytes = 0;
  uint64_t budget = DRAW_OF(c->d, (uint64_t[]){0, UINT64_MAX, 1, 4096, 1 << 16});
  flp_status status = flp_plan_workspace(c->plan, args->pass, c->n, budget, &bytes);
  if (status == FLP_ERROR_BUDGET) {
    API_EXPECT(strstr(flp_error_detail(), "budget"), "no budget in the detail");
    if (draw_one_in(c->d, 2)) return 0;
    status = flp_plan_workspace(c->plan, args->pass, c->n, UINT64_MAX, &bytes);
  }
  API_EXPECT(status == FLP_OK, "flp_plan_workspace of %s: %s", name_of(args), flp_status_name(status));
  args->workspace = api_block(bytes, 0, 0xFF);
  args->workspace_bytes = bytes;
  return 1;
}

/* The call with one field made wrong. */
static void refuse(const api_case *c, const flp_args *args) {
  flp_args spoilt = *args;
  const char *field = api_spoil_args(c->d, &c->spec, &spoilt);
  if (field) api_expect_refusal(execute(c, &spoilt, args->pass), field, name_of(args));
  if (args->workspace_bytes == 0 || c->n == 0) return;
  spoilt = *args;
  spoilt.workspace_bytes = 0;
  flp_status status = execute(c, &spoilt, args->pass);
  API_EXPECT(status == FLP_ERROR_WORKSPACE, "%s without workspace: %s", name_of(args), flp_status_name(status));
  API_EXPECT(strstr(flp_error_detail(), "workspace_bytes"), "%s without workspace: no field named", name_of(args));
  API_EXPECT(api_outputs_untouched(), "%s without workspace wrote an output", name_of(args));
  api_count.refused_calls++;
}

/* Whether so many rows may be reported where `bad` are known to be: numbers of a wild case may be more than
 * fp32 holds. */
static int is_count(const api_case *c, int64_t reported, int bad) {
  return reported == bad || (c->wild && reported > bad && reported <= bad + c->n);
}

/* Runs args, sometimes after a bad call; `bad` rows are to be reported. 0: no workspace fits the budget drawn. */
static int run(const api_case *c, flp_args *args, int bad) {
  if (!give_workspace(c, args)) return 0;
  if (draw_one_in(c->d, 2) && api_outputs_untouched()) refuse(c, args);
  flp_status status = execute(c, args, args->pass), wanted = bad && c->n ? FLP_ERROR_DATA : FLP_OK;
  api_count.calls++;
  if (c->options.strict) {
    int is_more = c->wild && c->n && status == FLP_ERROR_DATA;
    API_EXPECT(status == wanted || is_more, "strict %s with %d bad rows: %s", name_of(args), bad,
               flp_status_name(status));
    return 1;
  }
  API_EXPECT(status == FLP_OK && !*flp_error_detail(), "%s: %s", name_of(args), flp_status_name(status));
  status = flp_plan_check(c->plan, NULL);
  API_EXPECT(status == FLP_OK || status == FLP_ERROR_DATA, "flp_plan_check after %s: %s", name_of(args),
             flp_status_name(status));
  API_EXPECT(is_count(c, status == FLP_OK ? 0 : atoi(flp_error_detail()), c->n ? bad : 0),
             "flp_plan_check after %s counts other than %d bad rows", name_of(args), bad);
  return 1;
}

/* ---- forward ---- */

static float *rows_output(const api_case *c, int64_t width, size_t offset) {
  return api_output((size_t)(c->n * width) * sizeof(float), offset);
}

static void give_outputs(const api_case *c, flp_args *args) {
  args->logprob = rows_output(c, 1, 4 * (size_t)draw_below(c->d, 2));
  if (c->spec.entropy != FLP_ENTROPY_NONE) args->entropy = rows_output(c, 1, 4 * (size_t)draw_below(c->d, 2));
  args->stats = rows_output(c, 4, 16 * (size_t)draw_below(c->d, 2));
}

/* Of the whole head or of a shard, into partials of (shards, n, 4) if they are given. */
static int run_forward(const api_case *c, int shard, float *partials, flp_args *out) {
  flp_args args = c->shard_args[shard];
  args.pass = FLP_PASS_FORWARD;
  if (partials) args.partial = partials + shard * c->n * 4;
  if (c->shards == 1) give_outputs(c, &args);
  *out = args;
  return run(c, out, api_bad_count(c, NULL, NULL, 0));
}

static int run_combine(const api_case *c, float *partials, flp_args *out) {
  flp_args args = c->shard_args[0];
  args.pass = FLP_PASS_COMBINE;
  args.vocab_valid = c->shards == 1 ? c->valid : 0;
  args.vocab_total = c->total;
  args.shard_count = c->shards;
  args.partial = partials;
  give_outputs(c, &args);
  *out = args;
  return run(c, out, api_bad_count(c, NULL, NULL, 0));
}

/* Fills outputs of all rows; 0: a call found no budget. */
static int score(const api_case *c, flp_args *out) {
  int combines = c->shards > 1 || draw_one_in(c->d, 4);
  float *partials = combines ? api_block((size_t)(c->shards * c->n) * 16, 0, API_POISON) : NULL;
  for (int shard = 0; shard < c->shards; shard++) {
    if (!run_forward(c, shard, partials, out)) return 0;
    if (c->shards == 1) api_compare_rows(c, out->logprob, out->entropy);
  }
  if (!combines) return 1;
  if (!run_combine(c, partials, out)) return 0;
  api_compare_rows(c, out->logprob, out->entropy);
  return 1;
}

/* ---- gradients ---- */

static void *gradient_output(const api_case *c, int64_t rows, flp_dtype dtype, int64_t *stride) {
  size_t element = api_bytes_of(dtype), unit = element > c->spec.alignment ? element : c->spec.alignment;
  size_t step = (size_t)c->depth + (draw_one_in(c->d, 2) ? unit * (size_t)(1 + draw_below(c->d, 2)) : 0);
  while (step * element % unit) step++;
  *stride = (int64_t)step == c->depth && draw_one_in(c->d, 2) ? 0 : (int64_t)step;
  size_t bytes = rows ? ((size_t)(rows - 1) * step + (size_t)c->depth) * element : 0;
  return api_output(bytes, draw_one_in(c->d, 2) ? unit : 0);
}

/* Returns what an accumulated grad_weight starts from, or NULL. */
static float *give_gradients(const api_case *c, flp_args *args) {
  const flp_spec *s = &c->spec;
  float *start = NULL;
  flp_dtype weight = api_grad_dtype(s->grad_weight_dtype, s->dtype);
  if (s->grads & FLP_GRAD_HIDDEN)
    args->grad_hidden =
        gradient_output(c, c->n, api_grad_dtype(s->grad_hidden_dtype, s->dtype), &args->grad_hidden_stride);
  if (s->grads & FLP_GRAD_WEIGHT) args->grad_weight = gradient_output(c, c->vocab, weight, &args->grad_weight_stride);
  if (s->grads & FLP_GRAD_BIAS) {
    size_t element = api_bytes_of(s->dtype);
    args->grad_bias = api_output((size_t)c->vocab * element, element * (size_t)draw_below(c->d, 2));
  }
  if (!args->grad_weight || !s->accumulate_grad_weight) return NULL;
  int64_t stride = args->grad_weight_stride ? args->grad_weight_stride : c->depth;
  size_t bytes = (size_t)((c->vocab - 1) * stride + c->depth) * sizeof(float);
  start = api_block(bytes, 0, 0);
  memcpy(start, args->grad_weight, bytes); /* poison is a small number in fp32, and stays between rows */
  return start;
}

/* What lies between the rows of a gradient was not written. */
static void check_gaps(const api_case *c, const char *what, const void *base, flp_dtype dtype, int64_t rows,
                       int64_t stride) {
  size_t element = api_bytes_of(dtype);
  for (int64_t row = 0; base && stride && row + 1 < rows; row++)
    API_EXPECT(api_is_poison((const char *)base + (size_t)(row * stride + c->depth) * element,
                             (size_t)(stride - c->depth) * element),
               "%s: what follows row %ld was written", what, (long)row);
}

static void check_gradients(const api_case *c, const flp_args *args) {
  check_gaps(c, "grad_hidden", args->grad_hidden, api_grad_dtype(c->spec.grad_hidden_dtype, c->spec.dtype), c->n,
             args->grad_hidden_stride);
  check_gaps(c, "grad_weight", args->grad_weight, api_grad_dtype(c->spec.grad_weight_dtype, c->spec.dtype), c->vocab,
             args->grad_weight_stride);
}

static float *draw_upstream(const api_case *c) {
  float *g = api_block((size_t)c->n * sizeof(float), 4 * (size_t)draw_below(c->d, 2), 0);
  for (int64_t i = 0; i < c->n; i++) g[i] = draw_one_in(c->d, 4) ? 0 : (float)draw_real(c->d);
  if (c->wild && c->n) g[draw_below(c->d, (int)c->n)] = DRAW_OF(c->d, (float[]){NAN, INFINITY, 1e30f, 1e-30f});
  return g;
}

static void run_backward(const api_case *c, int shard, const flp_args *scored, const float *g, const float *e) {
  enum { ROWS_MAX = 16 };
  api_class class[ROWS_MAX];
  double wide_g[ROWS_MAX] = {0}, wide_e[ROWS_MAX] = {0};
  flp_args args = c->shard_args[shard];
  args.pass = FLP_PASS_BACKWARD;
  args.stats = scored->stats;
  args.grad_logprob = g;
  args.grad_entropy = e;
  api_outputs_poison(); /* what the call does not write is not looked at below */
  for (int64_t i = 0; i < c->n; i++) {
    class[i] = api_class_of(c, i, g, e, 1);
    wide_g[i] = g ? (double)g[i] : 0;
    wide_e[i] = e ? (double)e[i] : 0;
  }
  const float *start = give_gradients(c, &args);
  if (!run(c, &args, api_bad_count(c, g, e, 1))) return;
  check_gradients(c, &args);
  api_compare_gradients(c, &args, shard, wide_g, wide_e, class, start);
}

static void differentiate(const api_case *c, const flp_args *scored) {
  int takes_entropy = c->spec.entropy == FLP_ENTROPY_BACKWARD && c->n > 0;
  float *e = takes_entropy && draw_one_in(c->d, 2) ? draw_upstream(c) : NULL;
  float *g = e && draw_one_in(c->d, 3) ? NULL : draw_upstream(c);
  flp_args kept = *scored; /* stats leave the outputs, which are poisoned again */
  kept.stats = api_block((size_t)c->n * 16, 0, 0);
  if (c->n) memcpy(kept.stats, scored->stats, (size_t)c->n * 16);
  for (int shard = 0; shard < c->shards; shard++) run_backward(c, shard, &kept, g, e);
}

/* ---- step ---- */

static const float *draw_vector(const api_case *c, double size) {
  float *out = api_block((size_t)c->n * sizeof(float), 4 * (size_t)draw_below(c->d, 2), 0);
  for (int64_t i = 0; i < c->n; i++) out[i] = (float)(size * draw_real(c->d) - (size > 2 ? size : 0));
  return out;
}

/* Inputs of the loss; a missing weight is 1, a missing old_logprob the policy's own. */
static void give_inputs(const api_case *c, flp_args *args, double *parameters) {
  uint32_t read = flp_loss_inputs(&c->loss);
  if (draw_one_in(c->d, 2)) args->old_logprob = draw_vector(c, 3);
  if (draw_one_in(c->d, 2)) args->row_weight = draw_vector(c, 1);
  if (read >> FLP_LOSS_REF_LOGPROB & 1) args->ref_logprob = draw_vector(c, 3);
  if (read >> FLP_LOSS_ADVANTAGE & 1) args->advantage = draw_vector(c, 1);
  for (uint32_t i = 0; i < c->loss.vector_count; i++) args->vectors[i] = draw_vector(c, 1);
  for (uint32_t i = 0; i < c->loss.parameter_count; i++) {
    const flp_loss_parameter *p = &c->loss.parameters[i];
    parameters[i] = p->fallback;
    if (isfinite(p->low) && isfinite(p->high) && draw_one_in(c->d, 2))
      parameters[i] = p->low + (p->high - p->low) * fabs(draw_real(c->d));
  }
  args->loss_parameters = draw_one_in(c->d, 2) || c->loss.parameter_count == 0 ? NULL : parameters;
}

static void evaluate(const api_case *c, const flp_args *args, int64_t row, flp_loss_row *out) {
  const float *given[FLP_LOSS_ALL_INPUTS];
  double inputs[FLP_LOSS_ALL_INPUTS] = {0}, fallbacks[FLP_LOSS_PARAMETERS_MAX];
  flp_loss_inputs_of(args, given);
  for (int i = 0; i < FLP_LOSS_INPUTS_MAX; i++) inputs[i] = given[i] ? (double)given[i][row] : 0;
  inputs[FLP_LOSS_LOGPROB] = (double)args->logprob[row];
  inputs[FLP_LOSS_ENTROPY] = (double)args->entropy[row];
  if (!args->old_logprob) inputs[FLP_LOSS_OLD_LOGPROB] = inputs[FLP_LOSS_LOGPROB];
  if (!args->row_weight) inputs[FLP_LOSS_WEIGHT] = 1;
  for (uint32_t i = 0; i < c->loss.parameter_count; i++) fallbacks[i] = c->loss.parameters[i].fallback;
  flp_loss_evaluate_row(&c->loss, inputs, args->loss_parameters ? args->loss_parameters : fallbacks, out);
}

static void check_row_number(const char *what, int64_t row, api_class class, double got, double wanted) {
  if (class != API_ACTIVE) wanted = class == API_BAD ? NAN : 0;
  int same = isnan(wanted) ? isnan(got) : got == (double)(float)wanted;
  API_EXPECT(same, "%s of row %ld is %.9g, in double %.9g", what, (long)row, got, wanted);
}

static void compare_step(const api_case *c, const flp_args *args, const float *start) {
  enum { ROWS_MAX = 16 };
  api_class class[ROWS_MAX];
  double g[ROWS_MAX] = {0}, e[ROWS_MAX] = {0};
  for (int64_t row = 0; row < c->n; row++) {
    flp_loss_row wanted;
    evaluate(c, args, row, &wanted);
    class[row] = api_class_of(c, row, NULL, NULL, 0);
    check_row_number("loss", row, class[row], (double)args -> loss[row], wanted.loss);
    for (uint32_t i = 0; i < c->loss.metric_count; i++)
      check_row_number("a metric", row, class[row], (double)args -> metrics[i * c->n + row], wanted.metrics[i]);
    g[row] = (double)(float)wanted.grad_logprob;
    e[row] = (double)(float)wanted.grad_entropy;
    if (class[row] == API_ACTIVE && g[row] == 0 && e[row] == 0) class[row] = API_LEFT_OUT;
  }
  check_gradients(c, args);
  api_compare_gradients(c, args, 0, g, e, class, start);
}

static void step(const api_case *c) {
  double parameters[FLP_LOSS_PARAMETERS_MAX] = {0};
  flp_args args = c->shard_args[0];
  args.pass = FLP_PASS_STEP;
  api_outputs_poison();
  give_outputs(c, &args);
  args.stats = NULL;
  give_inputs(c, &args, parameters);
  args.loss = rows_output(c, 1, 4);
  args.metrics = rows_output(c, (int64_t)c->loss.metric_count, 4);
  const float *start = give_gradients(c, &args);
  if (!run(c, &args, api_bad_count(c, NULL, NULL, 0))) return;
  api_compare_rows(c, args.logprob, args.entropy);
  if (c->n) compare_step(c, &args, start);
}

void api_run_head(api_case *c) {
  flp_args scored;
  api_case_draw(c);
  if (score(c, &scored) && c->spec.grads) differentiate(c, &scored);
  if (c->spec.loss && c->shards == 1) step(c);
}

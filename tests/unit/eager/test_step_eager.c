/* test_step_eager.c: flp_step on the eager rung, against forward, the published formula of a loss and backward in plain
 * double arithmetic, and the errors of its arguments. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/flp.h"

enum { N = 37, V = 301, D = 24, BAD_ROW = 5, LEFT_OUT_ROW = 11, UNLISTED_ROW = 20 };
enum { ALL_GRADS = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS };

/* A problem in fp32, where operands are exactly what the double computation reads. */
typedef struct problem {
  _Alignas(16) float hidden[N * D];
  _Alignas(16) float weight[V * D];
  float bias[V], old_logprob[N], ref_logprob[N], advantage[N], row_weight[N];
  int64_t target[N];
  int32_t rows[N - 1];
  float logprob[N], entropy[N], loss[N], metrics[8 * N], grad_bias[V];
  _Alignas(16) float grad_hidden[N * D];
  _Alignas(16) float grad_weight[V * D];
  uint8_t program[4096];
  size_t program_bytes;
} problem;

static double uniform(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return (*state >> 8) / 8388608.0 - 1;
}

static problem *create(const char *loss) {
  problem *p = aligned_alloc(16, sizeof *p);
  uint32_t state = 7;
  memset(p, 0, sizeof *p);
  for (int i = 0; i < N * D; i++) p->hidden[i] = (float)uniform(&state);
  for (int i = 0; i < V * D; i++) p->weight[i] = (float)uniform(&state);
  for (int i = 0; i < V; i++) p->bias[i] = (float)uniform(&state);
  for (int i = 0, listed = 0; i < N; i++) {
    p->target[i] = i == BAD_ROW ? V : i == LEFT_OUT_ROW ? -100 : (i * 17) % V;
    p->old_logprob[i] = (float)(-6 + uniform(&state));
    p->ref_logprob[i] = (float)(-6 + uniform(&state));
    p->advantage[i] = (float)uniform(&state);
    p->row_weight[i] = (float)(1 + 0.5 * uniform(&state)) / N;
    if (i != UNLISTED_ROW) p->rows[listed++] = i;
  }
  cr_assert_eq(flp_loss_builtin_bytes(loss, p->program, sizeof p->program, &p->program_bytes), FLP_OK, "%s",
               flp_error_detail());
  return p;
}

static flp_spec spec_of(const problem *p) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.dtype = FLP_DTYPE_FP32;
  spec.vocab = V;
  spec.hidden = D;
  spec.has_bias = 1;
  spec.entropy = FLP_ENTROPY_BACKWARD;
  spec.grads = ALL_GRADS;
  spec.loss = p->program;
  spec.loss_bytes = p->program_bytes;
  return spec;
}

static flp_args args_of(problem *p) {
  flp_args a = FLP_ARGS_INIT;
  a.pass = FLP_PASS_STEP;
  a.n = N;
  a.hidden = p->hidden;
  a.weight = p->weight;
  a.bias = p->bias;
  a.target = p->target;
  a.temperature = 0.7f;
  a.rows = p->rows;
  a.row_count = N - 1;
  a.old_logprob = p->old_logprob;
  a.ref_logprob = p->ref_logprob;
  a.advantage = p->advantage;
  a.row_weight = p->row_weight;
  a.logprob = p->logprob;
  a.entropy = p->entropy;
  a.loss = p->loss;
  a.metrics = p->metrics;
  a.grad_hidden = p->grad_hidden;
  a.grad_weight = p->grad_weight;
  a.grad_bias = p->grad_bias;
  return a;
}

static flp_plan *plan_of(const flp_spec *spec) {
  flp_options options = FLP_OPTIONS_INIT;
  flp_plan *plan = NULL;
  options.device = FLP_DEVICE_HOST;
  options.threads = 2;
  cr_assert_eq(flp_plan_create(spec, &options, &plan), FLP_OK, "%s", flp_error_detail());
  return plan;
}

/* A plan of a problem, and the arguments of its step. */
typedef struct step {
  problem *p;
  flp_spec spec;
  flp_plan *plan;
  flp_args a;
} step;

static step open_step(const char *loss, uint32_t grads) {
  step s = {.p = create(loss)};
  s.spec = spec_of(s.p);
  s.spec.grads = grads;
  s.plan = plan_of(&s.spec);
  s.a = args_of(s.p);
  return s;
}

static void close_step(step *s) {
  flp_plan_destroy(s->plan);
  free(s->p);
}

static flp_status run(flp_plan *plan, flp_args *a, uint64_t budget) {
  size_t bytes = 0;
  cr_assert_eq(flp_plan_workspace(plan, FLP_PASS_STEP, a->n, budget, &bytes), FLP_OK, "%s", flp_error_detail());
  a->workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
  memset(a->workspace, 0xff, bytes);
  a->workspace_bytes = bytes;
  flp_status status = flp_step(plan, a);
  free(a->workspace);
  return status;
}

/* One row in double: probabilities p, logprob and entropy, and what GRPO with k3 and an entropy bonus makes of them. */
typedef struct plain_row {
  double p[V], logprob, entropy, loss, by_logprob, by_entropy;
} plain_row;

static void score(const problem *p, int i, plain_row *out) {
  double z[V], top = -INFINITY, sum = 0;
  for (int v = 0; v < V; v++) {
    z[v] = (double)p->bias[v];
    for (int d = 0; d < D; d++) z[v] += (double)p->hidden[i * D + d] * (double)p->weight[v * D + d];
    z[v] /= (double)0.7f;
    top = fmax(top, z[v]);
  }
  for (int v = 0; v < V; v++) sum += exp(z[v] - top);
  out->logprob = z[p->target[i]] - top - log(sum);
  out->entropy = 0;
  for (int v = 0; v < V; v++) {
    out->p[v] = exp(z[v] - top) / sum;
    out->entropy -= out->p[v] * log(out->p[v]);
  }
}

/* Defaults of the built-in programs: clip to [0.8, 1.2], beta and the entropy's coefficient as they are given here. */
static void judge(const problem *p, int i, const double parameters[4], plain_row *out) {
  double w = (double)p->row_weight[i], a = (double)p->advantage[i];
  double ratio = exp(out->logprob - (double)p->old_logprob[i]), kl = (double)p->ref_logprob[i] - out->logprob;
  double clipped = fmin(fmax(ratio, 1 - parameters[0]), 1 + parameters[1]);
  int is_clipped = clipped * a < ratio * a;
  out->loss = w * (-fmin(ratio * a, clipped * a) + parameters[2] * (exp(kl) - kl - 1) - parameters[3] * out->entropy);
  out->by_logprob = w * ((is_clipped ? 0 : -ratio * a) + parameters[2] * (1 - exp(kl)));
  out->by_entropy = -w * parameters[3];
}

/* Products sum fp32 in the order of whatever BLAS is there: oldest kernels of OpenBLAS err most. */
#define GRADIENT 0.5

static void expect_close(double got, double want, double scale, const char *what, int i) {
  cr_expect(fabs(got - want) <= 2e-5 * scale, "%s %d: %.9g, not %.9g", what, i, got, want);
}

static void add_gradients(const problem *p, int i, const plain_row *r, double *hidden, double *weight, double *bias) {
  for (int v = 0; v < V; v++) {
    double dz = r->by_logprob * ((v == p->target[i]) - r->p[v]) - r->by_entropy * r->p[v] * (log(r->p[v]) + r->entropy);
    dz /= (double)0.7f;
    bias[v] += dz;
    for (int d = 0; d < D; d++) {
      hidden[d] += dz * (double)p->weight[v * D + d];
      weight[v * D + d] += dz * (double)p->hidden[i * D + d];
    }
  }
}

static void expect_row(const problem *p, int i, const plain_row *r, const double *hidden) {
  expect_close(p->logprob[i], r->logprob, 1, "logprob", i);
  expect_close(p->entropy[i], r->entropy, 1, "entropy", i);
  expect_close(p->loss[i], r->loss, 0.1, "loss", i);
  for (int d = 0; d < D; d++) expect_close(p->grad_hidden[i * D + d], hidden[d], GRADIENT, "grad_hidden", i);
}

/* Inactive rows: 0, but NaN in what a bad row has of its own. */
static void expect_inactive(const problem *p, int i) {
  const float own[] = {p->logprob[i], p->entropy[i], p->loss[i], p->metrics[i], p->grad_hidden[i * D + 3]};
  for (size_t j = 0; j < sizeof own / sizeof own[0]; j++) {
    if (i == BAD_ROW) cr_expect(isnan(own[j]), "row %d, value %zu", i, j);
    if (i != BAD_ROW) cr_expect_eq(own[j], 0.0f, "row %d, value %zu", i, j);
  }
}

static void expect_step(const problem *p, const double parameters[4]) {
  static double weight[V * D], bias[V];
  memset(weight, 0, sizeof weight);
  memset(bias, 0, sizeof bias);
  for (int i = 0; i < N; i++) {
    plain_row r;
    double hidden[D] = {0};
    if (i == BAD_ROW || i == LEFT_OUT_ROW || i == UNLISTED_ROW) {
      expect_inactive(p, i);
      continue;
    }
    score(p, i, &r);
    judge(p, i, parameters, &r);
    add_gradients(p, i, &r, hidden, weight, bias);
    expect_row(p, i, &r, hidden);
  }
  for (int i = 0; i < V * D; i++) expect_close(p->grad_weight[i], weight[i], GRADIENT, "grad_weight", i);
  for (int v = 0; v < V; v++) expect_close(p->grad_bias[v], bias[v], GRADIENT, "grad_bias", v);
}

Test(step_eager, is_forward_loss_and_backward) {
  step s = open_step("grpo+k3+entropy", ALL_GRADS);
  const double parameters[] = {0.2, 0.2, 0.04, 0.01};
  s.a.loss_parameters = parameters;
  cr_assert_eq(run(s.plan, &s.a, 0), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(flp_plan_check(s.plan, NULL), FLP_ERROR_DATA);
  cr_expect(strncmp(flp_error_detail(), "1 row ", 6) == 0, "a bad row counts once: %s", flp_error_detail());
  expect_step(s.p, parameters);
  close_step(&s);
}

Test(step_eager, smaller_workspaces_give_the_same_bits) {
  step s = open_step("grpo+k3+entropy", ALL_GRADS), t = open_step("grpo+k3+entropy", ALL_GRADS);
  flp_layout layout = FLP_LAYOUT_INIT, least = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(s.plan, FLP_PASS_STEP, N, 0, &layout), FLP_OK);
  cr_expect_eq(layout.products, 4);
  cr_assert_lt(layout.smallest_bytes, layout.bytes);
  cr_assert_eq(flp_plan_layout(s.plan, FLP_PASS_STEP, N, layout.smallest_bytes, &least), FLP_OK);
  cr_expect_eq(least.bytes, layout.smallest_bytes);
  cr_expect_eq(flp_plan_layout(s.plan, FLP_PASS_STEP, N, layout.smallest_bytes - 1, &least), FLP_ERROR_BUDGET);
  cr_assert_eq(run(s.plan, &s.a, 0), FLP_OK);
  cr_assert_eq(run(t.plan, &t.a, layout.smallest_bytes), FLP_OK);
  cr_expect_eq(memcmp(s.p->loss, t.p->loss, sizeof s.p->loss), 0);
  cr_expect_eq(memcmp(s.p->grad_hidden, t.p->grad_hidden, sizeof s.p->grad_hidden), 0);
  cr_expect_eq(memcmp(s.p->grad_weight, t.p->grad_weight, sizeof s.p->grad_weight), 0);
  close_step(&s);
  close_step(&t);
}

Test(step_eager, no_rows_leave_the_head_zero) {
  step s = open_step("nll", ALL_GRADS);
  s.a.n = s.a.row_count = 0;
  memset(s.p->grad_weight, 0xff, sizeof s.p->grad_weight);
  cr_assert_eq(run(s.plan, &s.a, 0), FLP_OK, "%s", flp_error_detail());
  for (int i = 0; i < V * D; i++) cr_assert_eq(s.p->grad_weight[i], 0.0f);
  close_step(&s);
}

Test(step_eager, without_gradients_there_are_losses) {
  step s = open_step("nll", 0);
  s.a.grad_hidden = s.a.grad_weight = s.a.grad_bias = NULL;
  s.a.row_weight = NULL;
  s.a.metrics = NULL;
  cr_assert_eq(run(s.plan, &s.a, 0), FLP_OK, "%s", flp_error_detail());
  cr_expect_lt(s.p->loss[0], 20.0f);
  cr_expect_eq(s.p->loss[0], -s.p->logprob[0]);
  close_step(&s);
}

/* ---- what is refused ---- */

static void refuse_spec(const flp_spec *spec, const char *detail) {
  flp_options options = FLP_OPTIONS_INIT;
  flp_plan *plan = NULL;
  options.device = FLP_DEVICE_HOST;
  cr_expect_eq(flp_plan_create(spec, &options, &plan), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(), detail);
}

Test(step_eager, specs_that_do_not_fit_are_refused) {
  problem *p = create("grpo+entropy");
  flp_spec good = spec_of(p), spec = good;
  char detail[96];
  spec.entropy = FLP_ENTROPY_FORWARD;
  refuse_spec(&spec, "spec.entropy is 1, but loss grpo+entropy has a gradient by the entropy (accepted: BACKWARD 2)");
  spec = good;
  spec.loss_bytes--;
  snprintf(detail, sizeof detail, "spec.loss is no loss program: loss: length is %zu, there are %zu bytes",
           good.loss_bytes, spec.loss_bytes);
  refuse_spec(&spec, detail);
  spec = good;
  spec.loss = NULL;
  snprintf(detail, sizeof detail, "spec.loss is NULL, but spec.loss_bytes is %zu (accepted: 0)", spec.loss_bytes);
  refuse_spec(&spec, detail);
  spec = good;
  spec.keep = 1;
  refuse_spec(&spec, "spec.keep is 1, but spec.dtype is fp32 (accepted: bf16)");
  spec.dtype = FLP_DTYPE_BF16;
  spec.grads = 0;
  refuse_spec(&spec, "spec.keep is 1, but spec.grads is 0 (accepted: FLP_GRAD_* bits)");
  free(p);
}

static void refuse_args(flp_plan *plan, const flp_args *args, const char *detail) {
  cr_expect_eq(flp_step(plan, args), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(), detail);
}

Test(step_eager, arguments_that_do_not_fit_are_refused) {
  step s = open_step("grpo+k3", ALL_GRADS);
  flp_args good = s.a;
  s.a.pass = FLP_PASS_FORWARD;
  refuse_args(s.plan, &s.a, "args.pass is 1 (accepted: STEP 4; flp_execute runs the others)");
  cr_expect_eq(flp_execute(s.plan, &good), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(),
                   "args.pass is 4 (accepted: FORWARD 1, COMBINE 2, BACKWARD 3; flp_step runs STEP 4)");
  s.a = good;
  s.a.advantage = NULL;
  refuse_args(s.plan, &s.a, "args.advantage is NULL, but loss grpo+k3 reads it");
  s.a = good;
  s.a.ref_logprob = NULL;
  refuse_args(s.plan, &s.a, "args.ref_logprob is NULL, but loss grpo+k3 reads it");
  s.a = good;
  s.a.row_weight = (const float *)((const char *)s.p->row_weight + 2);
  cr_expect_eq(flp_step(s.plan, &s.a), FLP_ERROR_ARGUMENT);
  s.a = good;
  s.a.grad_logprob = s.p->loss;
  refuse_args(s.plan, &s.a, "args.grad_logprob is given, but a step makes its own");
  s.a = good;
  s.a.vocab_total = V + 1;
  refuse_args(s.plan, &s.a,
              "args.vocab_offset is 0 and args.vocab_total 302, but a step needs the whole head "
              "(accepted: 0, and vocab_valid 301)");
  s.a = good;
  const double parameters[] = {-1, 0.2, 0.04};
  s.a.loss_parameters = parameters;
  cr_expect_eq(flp_step(s.plan, &s.a), FLP_ERROR_ARGUMENT);
  cr_expect_eq(strncmp(flp_error_detail(), "args.loss_parameters: ", 22), 0, "%s", flp_error_detail());
  s.a = good;
  s.a.saved = s.a.grad_weight;
  refuse_args(s.plan, &s.a, "args.saved is given, but only forward and backward pass it on");
  close_step(&s);
}

Test(step_eager, keeps_nothing) {
  step s = open_step("nll", ALL_GRADS);
  size_t bytes = 1;
  cr_expect_eq(flp_plan_saved(s.plan, N, 0, &bytes), FLP_OK);
  cr_expect_eq(bytes, 0);
  close_step(&s);
}

Test(step_eager, ids_of_plans_distinguish_losses) {
  problem *p = create("nll"), *q = create("grpo");
  char ids[3][17];
  flp_spec specs[] = {spec_of(p), spec_of(q), spec_of(q)};
  specs[2].loss = NULL;
  specs[2].loss_bytes = 0;
  for (int i = 0; i < 3; i++) {
    flp_plan *plan = plan_of(&specs[i]);
    cr_assert_eq(flp_plan_get_id(plan, ids[i]), FLP_OK);
    flp_plan_destroy(plan);
  }
  cr_expect_str_neq(ids[0], ids[1]);
  cr_expect_str_neq(ids[1], ids[2]);
  free(p);
  free(q);
}

Test(step_eager, built_in_losses_come_as_bytes) {
  size_t bytes = 0;
  uint8_t few[8];
  cr_expect_eq(flp_loss_builtin_bytes("grpo", NULL, 0, &bytes), FLP_OK);
  cr_expect_gt(bytes, sizeof few);
  cr_expect_eq(flp_loss_builtin_bytes("grpo", few, sizeof few, &bytes), FLP_ERROR_ARGUMENT);
  cr_expect_eq(flp_loss_builtin_bytes("grp", NULL, 0, &bytes), FLP_ERROR_ARGUMENT);
  cr_expect_eq(bytes, 0);
}

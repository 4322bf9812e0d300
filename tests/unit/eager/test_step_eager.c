/* test_step_eager.c: flp_step on the eager rung beside the long double oracle, whose loss has the derivatives of a
 * published formula as its weights; and the errors of its arguments. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/support/eager_case.h"
#include "tests/unit/support/refuse.h"
#include "tests/unit/support/stage.h"
#include "tests/unit/support/words.h"

enum { N = 37, V = 301, D = 24, BAD_ROW = 5, LEFT_OUT_ROW = 11, UNLISTED_ROW = 20, UNWEIGHTED_ROW = 3 };

/* A problem, its plan, and the arguments of its step. */
typedef struct step {
  eager_case c;
  flp_spec spec; /* as given */
  flp_plan *plan;
  flp_args a;
  float old_logprob[N], ref_logprob[N], advantage[N], row_weight[N], loss[N], metrics[8 * N];
  int32_t rows[N - 1];
} step;

static void draw_rows(step *s) {
  uint32_t state = 7;
  for (int i = 0, listed = 0; i < N; i++) {
    if (i == BAD_ROW || i == LEFT_OUT_ROW) eager_case_set_target(&s->c, i, 0, i == BAD_ROW ? V : -100);
    s->old_logprob[i] = (float)(-6 + test_random(&state));
    s->ref_logprob[i] = (float)(-6 + test_random(&state));
    s->advantage[i] = (float)test_random(&state);
    s->row_weight[i] = i == UNWEIGHTED_ROW ? 0 : (float)(1 + 0.5 * test_random(&state)) / N;
    if (i != UNLISTED_ROW) s->rows[listed++] = i;
  }
}

static void set_args(step *s, int reads_policies) {
  s->c.args.temperature = 0.7f;
  s->c.args.rows = s->rows;
  s->c.args.row_count = N - 1;
  s->a = eager_case_args(&s->c, FLP_PASS_BACKWARD);
  s->a.pass = FLP_PASS_STEP;
  s->a.grad_logprob = s->a.grad_entropy = NULL;
  s->a.stats = NULL;
  s->a.logprob = s->c.logprob;
  s->a.entropy = s->c.entropy;
  s->a.loss = s->loss;
  s->a.metrics = s->metrics;
  s->a.row_weight = s->row_weight;
  if (!reads_policies) return;
  s->a.old_logprob = s->old_logprob;
  s->a.ref_logprob = s->ref_logprob;
  s->a.advantage = s->advantage;
}

static step *open_step(const char *loss, uint32_t grads, float softcap) {
  step *s = calloc(1, sizeof *s);
  char words[96];
  int reads_policies = strncmp(loss, "grpo", 4) == 0;
  snprintf(words, sizeof words, "dtype=fp32 V=301 D=24 bias loss=%s", loss);
  flp_spec spec = words_spec(words);
  spec.softcap = softcap;
  spec.entropy = reads_policies ? FLP_ENTROPY_BACKWARD : FLP_ENTROPY_NONE;
  spec.grads = grads;
  s->spec = spec;
  eager_case_create(&s->c, &spec, N, 7);
  draw_rows(s);
  flp_options options = words_options("rung=auto device=host threads=2");
  s->plan = stage_plan(&spec, &options);
  set_args(s, reads_policies);
  return s;
}

static void close_step(step *s) {
  flp_plan_destroy(s->plan);
  eager_case_destroy(&s->c);
  free(s);
}

static flp_status run(step *s, uint64_t budget) {
  size_t bytes = 0;
  cr_assert_eq(flp_plan_workspace(s->plan, FLP_PASS_STEP, s->a.n, budget, &bytes), FLP_OK, "%s", flp_error_detail());
  s->a.workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
  memset(s->a.workspace, 0xff, bytes);
  s->a.workspace_bytes = bytes;
  flp_status status = flp_step(s->plan, &s->a);
  free(s->a.workspace);
  return status;
}

/* ---- beside formulas ---- */

/* What a loss reads of a row, and the loss and its derivatives by logprob, entropy, lse and mean score. */
typedef struct judged {
  double logprob, entropy, lse, mean, loss;
  double by_logprob, by_entropy, by_lse, by_mean;
} judged;

/* GRPO with k3 and an entropy bonus; parameters: the clip below and above, beta, the entropy's coefficient. */
static void grpo(const step *s, int i, const double parameters[4], judged *r) {
  double w = (double)s->row_weight[i], a = (double)s->advantage[i];
  double ratio = exp(r->logprob - (double)s->old_logprob[i]), kl = (double)s->ref_logprob[i] - r->logprob;
  double clipped = fmin(fmax(ratio, 1 - parameters[0]), 1 + parameters[1]);
  int is_clipped = clipped * a < ratio * a;
  r->loss = w * (-fmin(ratio * a, clipped * a) + parameters[2] * (exp(kl) - kl - 1) - parameters[3] * r->entropy);
  r->by_logprob = w * ((is_clipped ? 0 : -ratio * a) + parameters[2] * (1 - exp(kl)));
  r->by_entropy = -w * parameters[3];
}

/* Label smoothing and a z-loss. */
static void cross_entropy(const step *s, int i, const double parameters[4], judged *r) {
  double w = (double)s->row_weight[i], e = parameters[0], z = parameters[1];
  r->loss = w * (-(1 - e) * r->logprob + e * (r->lse - r->mean) + z * r->lse * r->lse);
  r->by_logprob = -w * (1 - e);
  r->by_lse = w * (e + 2 * z * r->lse);
  r->by_mean = -w * e;
}

static const struct row {
  const char *loss;
  void (*judge)(const step *s, int i, const double parameters[4], judged *r);
  double parameters[4];
  float softcap;
  double tolerance, of_loss; /* products sum fp32 in the order of whatever BLAS is there: oldest ones err most */
} rows[] = {{"grpo+k3+entropy", grpo, {0.2, 0.2, 0.04, 0.01}, 0, 1e-5, 2e-6},
            {"cross_entropy", cross_entropy, {0.1, 0.02}, 0, 1e-6, 1e-6},
            {"cross_entropy", cross_entropy, {0.1, 0.02}, 3, 1e-6, 1e-6},
            {"cross_entropy", cross_entropy, {1, 0.02}, 0, 1e-6, 1e-6}}; /* no derivative by the logprob */

/* Values of a row beside the formula, whose derivatives become the weights of the oracle's loss. */
static void check_row(step *s, const struct row *row, int i, long double *t) {
  long_row read = long_read(&s->c.reference, i, t);
  judged r = {.entropy = (double)read.entropy, .lse = (double)read.lse, .mean = (double)read.mean};
  r.logprob = (double)(t[eager_case_get_target(&s->c, i, 0)] - read.lse);
  row->judge(s, i, row->parameters, &r);
  cr_assert_float_eq(s->c.logprob[i], r.logprob, 2e-5);
  if (s->c.entropy) cr_assert_float_eq(s->c.entropy[i], r.entropy, 2e-5);
  cr_assert_float_eq(s->loss[i], r.loss, row->of_loss, "loss %d: %.9g, not %.9g", i, (double)s->loss[i], r.loss);
  s->c.grad_logprob[i] = (float)r.by_logprob;
  s->c.grad_entropy[i] = (float)r.by_entropy;
  s->c.reference.grad_lse[i] = (long double)r.by_lse;
  s->c.reference.grad_mean[i] = (long double)r.by_mean;
}

static void check_step(step *s, const struct row *row) {
  static long double t[V];
  eager_case_sync(&s->c);
  for (int i = 0; i < N; i++) {
    if (s->c.kind[i] == EAGER_ROW_ACTIVE) {
      check_row(s, row, i, t);
      continue;
    }
    const float own[] = {s->c.logprob[i], s->loss[i], s->metrics[i], s->c.entropy ? s->c.entropy[i] : s->loss[i]};
    cr_assert_eq(s->c.kind[i], i == BAD_ROW ? EAGER_ROW_BAD : EAGER_ROW_LEFT_OUT);
    for (int j = 0; j < 4; j++) cr_assert(i == BAD_ROW ? isnan(own[j]) : own[j] == 0, "row %d, value %d", i, j);
  }
  eager_case_check_backward(&s->c, row->tolerance);
}

Test(step_eager, is_forward_loss_and_backward_in_any_workspace) {
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    step *s = open_step(rows[i].loss, ALL, rows[i].softcap);
    flp_layout layout = FLP_LAYOUT_INIT, least = FLP_LAYOUT_INIT;
    float loss[N], metrics[N];
    s->a.loss_parameters = rows[i].parameters;
    cr_assert_eq(run(s, 0), FLP_OK, "%s", flp_error_detail());
    cr_expect_eq(flp_plan_check(s->plan, NULL), FLP_ERROR_DATA);
    cr_expect(strncmp(flp_error_detail(), "1 row or row id was bad ", 24) == 0, "%s", flp_error_detail());
    cr_expect_eq(flp_plan_check(s->plan, NULL), FLP_OK, "and is told once");
    check_step(s, &rows[i]);
    memset(s->c.stats, 0, N * 16); /* a step gives none */
    char *bits = eager_case_snapshot(&s->c);
    memcpy(loss, s->loss, sizeof loss);
    memcpy(metrics, s->metrics, sizeof metrics);
    cr_assert_eq(flp_plan_layout(s->plan, FLP_PASS_STEP, N, 0, &layout), FLP_OK);
    cr_expect_eq(layout.products, 4);
    cr_assert_lt(layout.smallest_bytes, layout.bytes);
    cr_assert_eq(flp_plan_layout(s->plan, FLP_PASS_STEP, N, layout.smallest_bytes, &least), FLP_OK);
    cr_expect_eq(least.bytes, layout.smallest_bytes);
    cr_expect_eq(flp_plan_layout(s->plan, FLP_PASS_STEP, N, layout.smallest_bytes - 1, &least), FLP_ERROR_BUDGET);
    cr_assert_eq(run(s, layout.smallest_bytes), FLP_OK);
    eager_case_expect_bits(&s->c, bits, ALL, "in a smaller workspace");
    cr_expect_arr_eq(s->loss, loss, sizeof loss);
    cr_expect_arr_eq(s->metrics, metrics, sizeof metrics);
    free(bits);
    close_step(s);
  }
}

Test(step_eager, no_rows_leave_the_head_zero) {
  step *s = open_step("nll", ALL, 0);
  s->a.n = s->a.row_count = 0;
  cr_assert_eq(run(s, 0), FLP_OK, "%s", flp_error_detail());
  for (int i = 0; i < V * D; i++) cr_assert_eq(eager_case_grad(&s->c, FLP_GRAD_WEIGHT, i / D, i % D), 0.0);
  close_step(s);
}

Test(step_eager, without_gradients_there_are_losses) {
  step *s = open_step("nll", 0, 0);
  s->a.row_weight = NULL;
  s->a.metrics = NULL;
  cr_assert_eq(run(s, 0), FLP_OK, "%s", flp_error_detail());
  cr_expect_lt(s->loss[0], 20.0f);
  cr_expect_eq(s->loss[0], -s->c.logprob[0]);
  close_step(s);
}

/* ---- what is refused ---- */

/* What spec and arguments must not be otherwise is in tests/golden/api/specs.txt and tests/golden/plan/calls.txt. */
Test(step_eager, programs_of_another_length_are_refused) {
  step *s = open_step("grpo+entropy", ALL, 0);
  flp_options options = words_options("rung=auto device=host");
  size_t bytes = s->spec.loss_bytes;
  char few[96], none[96];
  flp_plan *plan;
  snprintf(few, sizeof few, "spec.loss is no loss program: loss: length is %zu, there are %zu bytes", bytes, bytes - 1);
  snprintf(none, sizeof none, "spec.loss is NULL, but spec.loss_bytes is %zu (accepted: 0)", bytes);
  s->spec.loss_bytes--;
  expect_refused(flp_plan_create(&s->spec, &options, &plan), few);
  s->spec.loss_bytes++;
  s->spec.loss = NULL;
  expect_refused(flp_plan_create(&s->spec, &options, &plan), none);
  close_step(s);
}

Test(step_eager, each_call_is_for_its_passes) {
  step *s = open_step("grpo+k3", ALL, 0);
  const double parameters[] = {-1, 0.2, 0.04};
  flp_args forward = s->a;
  forward.pass = FLP_PASS_FORWARD;
  expect_refused(flp_step(s->plan, &forward), "args.pass is 1 (accepted: STEP 4; flp_execute runs the others)");
  expect_refused(flp_execute(s->plan, &s->a),
                 "args.pass is 4 (accepted: FORWARD 1, COMBINE 2, BACKWARD 3; flp_step runs STEP 4)");
  s->a.loss_parameters = parameters;
  expect_refused_with(flp_step(s->plan, &s->a), "args.loss_parameters: ");
  close_step(s);
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

/* test_step_scores.c: flp_step on the eager rung with losses that read lse and mean_score, against plain double arithmetic:
 * losses, and gradients of hidden, weight and bias, with and without a softcap. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/flp.h"

enum { N = 21, V = 203, D = 16, BAD_ROW = 5, LEFT_OUT_ROW = 11 };
static const double smoothing = 0.1, z_weight = 0.02, temperature = 0.75;

typedef struct problem {
  _Alignas(16) float hidden[N * D];
  _Alignas(16) float weight[V * D];
  float bias[V], row_weight[N], loss[N], metrics[2 * N], grad_bias[V];
  int64_t target[N];
  _Alignas(16) float grad_hidden[N * D];
  _Alignas(16) float grad_weight[V * D];
  double want_loss[N], want_hidden[N * D], want_weight[V * D], want_bias[V];
} problem;

static double uniform(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return (*state >> 8) / 8388608.0 - 1;
}

static problem *create(void) {
  problem *p = aligned_alloc(16, (sizeof *p + 15) / 16 * 16);
  uint32_t state = 11;
  memset(p, 0, sizeof *p);
  for (int i = 0; i < N * D; i++) p->hidden[i] = (float)uniform(&state);
  for (int i = 0; i < V * D; i++) p->weight[i] = (float)uniform(&state);
  for (int i = 0; i < V; i++) p->bias[i] = (float)uniform(&state);
  for (int i = 0; i < N; i++) {
    p->target[i] = i == BAD_ROW ? V : i == LEFT_OUT_ROW ? -100 : (i * 31) % V;
    p->row_weight[i] = i == 3 ? 0 : (float)(1 + 0.5 * uniform(&state)) / N;
  }
  return p;
}

/* One row: t and dt/dz, then the loss and what it gives to every gradient. */
static void add_row(problem *p, int i, double cap, double e) {
  double t[V], slope[V], top = -INFINITY, sum = 0, mean = 0, w = (double)p->row_weight[i];
  for (int v = 0; v < V; v++) {
    double z = (double)p->bias[v];
    for (int d = 0; d < D; d++) z += (double)p->hidden[i * D + d] * (double)p->weight[v * D + d];
    t[v] = cap > 0 ? cap * tanh(z / cap) / temperature : z / temperature;
    slope[v] = (cap > 0 ? 1 - tanh(z / cap) * tanh(z / cap) : 1) / temperature;
    top = fmax(top, t[v]);
    mean += t[v] / V;
  }
  for (int v = 0; v < V; v++) sum += exp(t[v] - top);
  double lse = top + log(sum), nll = lse - t[p->target[i]];
  p->want_loss[i] = w * ((1 - e) * nll + e * (lse - mean) + z_weight * lse * lse);
  for (int v = 0; v < V; v++) {
    double share = exp(t[v] - lse), is_target = v == p->target[i];
    double dz = w * slope[v] * ((1 - e) * (share - is_target) + e * (share - 1.0 / V) + 2 * z_weight * lse * share);
    p->want_bias[v] += dz;
    for (int d = 0; d < D; d++) {
      p->want_hidden[i * D + d] += dz * (double)p->weight[v * D + d];
      p->want_weight[v * D + d] += dz * (double)p->hidden[i * D + d];
    }
  }
}

static double worst(const float *got, const double *want, int count) {
  double largest = 0;
  for (int i = 0; i < count; i++) largest = fmax(largest, fabs((double)got[i] - want[i]));
  return largest;
}

static void run(problem *p, float cap, double e, uint64_t budget) {
  uint8_t program[4096];
  size_t length, bytes;
  flp_spec spec = FLP_SPEC_INIT;
  flp_options options = FLP_OPTIONS_INIT;
  flp_args a = FLP_ARGS_INIT;
  flp_plan *plan;
  const double parameters[] = {e, z_weight};
  cr_assert_eq(flp_loss_builtin_bytes("cross_entropy", program, sizeof program, &length), FLP_OK);
  spec.dtype = FLP_DTYPE_FP32, spec.vocab = V, spec.hidden = D, spec.has_bias = 1, spec.softcap = cap;
  spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS;
  spec.loss = program, spec.loss_bytes = length;
  options.device = FLP_DEVICE_HOST, options.threads = 2;
  cr_assert_eq(flp_plan_create(&spec, &options, &plan), FLP_OK, "%s", flp_error_detail());
  a.pass = FLP_PASS_STEP, a.n = N, a.hidden = p->hidden, a.weight = p->weight, a.bias = p->bias, a.target = p->target;
  a.temperature = (float)temperature, a.row_weight = p->row_weight, a.loss = p->loss, a.metrics = p->metrics;
  a.grad_hidden = p->grad_hidden, a.grad_weight = p->grad_weight, a.grad_bias = p->grad_bias;
  a.loss_parameters = parameters;
  cr_assert_eq(flp_plan_workspace(plan, FLP_PASS_STEP, N, budget, &bytes), FLP_OK, "%s", flp_error_detail());
  a.workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
  memset(a.workspace, 0xff, bytes);
  a.workspace_bytes = bytes;
  cr_assert_eq(flp_step(plan, &a), FLP_OK, "%s", flp_error_detail());
  free(a.workspace);
  flp_plan_destroy(plan);
}

static void check(float cap, double e) {
  problem *p = create();
  for (int i = 0; i < N; i++)
    if (i != BAD_ROW && i != LEFT_OUT_ROW) add_row(p, i, (double)cap, e);
  run(p, cap, e, 0);
  cr_expect(isnan(p->loss[BAD_ROW]) && isnan(p->metrics[BAD_ROW]) && isnan(p->grad_hidden[BAD_ROW * D]));
  p->loss[BAD_ROW] = 0;
  memset(&p->grad_hidden[BAD_ROW * D], 0, D * sizeof(float));
  cr_expect_lt(worst(p->loss, p->want_loss, N), 1e-6);
  cr_expect_lt(worst(p->grad_hidden, p->want_hidden, N * D), 1e-6);
  cr_expect_lt(worst(p->grad_weight, p->want_weight, V * D), 1e-6);
  cr_expect_lt(worst(p->grad_bias, p->want_bias, V), 1e-6);
  float loss = p->loss[2], hidden = p->grad_hidden[2 * D + 1], weight = p->grad_weight[7];
  run(p, cap, e, 70000);
  cr_expect(!(p->loss[2] < loss) && !(p->loss[2] > loss), "a small workspace gives the same bits");
  cr_expect(!(p->grad_hidden[2 * D + 1] < hidden) && !(p->grad_hidden[2 * D + 1] > hidden));
  cr_expect_lt(fabs((double)(p->grad_weight[7] - weight)), 1e-7);
  free(p);
}

Test(step_scores, equals_the_formula) { check(0, smoothing); }

Test(step_scores, equals_the_formula_with_a_softcap) { check(3, smoothing); }

/* No derivative by the logprob: rows still have gradients. */
Test(step_scores, is_whole_smoothing) { check(0, 1); }

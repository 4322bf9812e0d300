/* consumer.c: scores two rows on the CPU through nothing but the public header. */
#include <flp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 2, D = 8, V = 3 };

/* The weight's rows are 0, 1 and 2 times the same vector, so the scores of a row of ones are 0, D and 2·D. */
static float expected_logprob(int target) {
  double sum = 0;
  for (int v = 0; v < V; v++) sum += exp((double)(v * D));
  return (float)((double)(target * D) - log(sum));
}

static int score(float logprob[N]) {
  float hidden[N * D], weight[V * D];
  int64_t target[N] = {2, 1};
  for (int i = 0; i < N * D; i++) hidden[i] = 1.0f;
  for (int i = 0; i < V * D; i++) weight[i] = (float)(i / D);

  flp_spec spec = FLP_SPEC_INIT;
  spec.vocab = V, spec.hidden = D, spec.dtype = FLP_DTYPE_FP32;
  flp_options options = FLP_OPTIONS_INIT;
  options.device = FLP_DEVICE_HOST;
  flp_plan *plan;
  size_t bytes;
  if (flp_plan_create(&spec, &options, &plan) != FLP_OK) return 0;
  if (flp_plan_workspace(plan, FLP_PASS_FORWARD, N, 0, &bytes) != FLP_OK) return 0;
  flp_args args = FLP_ARGS_INIT;
  args.n = N, args.hidden = hidden, args.weight = weight, args.target = target, args.logprob = logprob;
  args.workspace = aligned_alloc(256, (bytes + 255) / 256 * 256 + 256), args.workspace_bytes = bytes;
  int ok = flp_execute(plan, &args) == FLP_OK;
  free(args.workspace);
  flp_plan_destroy(plan);
  return ok;
}

int main(void) {
  float logprob[N] = {0};
  if (!score(logprob)) {
    fprintf(stderr, "flp failed: %s\n", flp_error_detail());
    return 1;
  }
  int wrong = fabsf(logprob[0] - expected_logprob(2)) > 1e-5f || fabsf(logprob[1] - expected_logprob(1)) > 1e-5f;
  printf("flp %s: %.6f %.6f\n", flp_version(), (double)logprob[0], (double)logprob[1]);
  return wrong;
}

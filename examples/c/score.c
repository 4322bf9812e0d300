/* score.c: log-probabilities of four tokens, on the CPU. */
#include <flp.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 4, D = 64, V = 1000 };

int main(void) {
  static float hidden[N * D], weight[V * D], logprob[N];
  int64_t target[N] = {1, 2, 3, 4};
  for (int i = 0; i < V * D; i++) weight[i] = (float)(i % 11) / 10;
  for (int i = 0; i < N * D; i++) hidden[i] = (float)(i % 7) / 10;

  flp_spec spec = FLP_SPEC_INIT; /* what to specialise for */
  spec.vocab = V, spec.hidden = D, spec.dtype = FLP_DTYPE_FP32;
  flp_options options = FLP_OPTIONS_INIT;
  options.device = FLP_DEVICE_HOST; /* without this line: GPU 0, and pointers of the device */
  flp_plan *plan = NULL;
  size_t bytes = 0;
  int ok = flp_plan_create(&spec, &options, &plan) == FLP_OK &&
           flp_plan_workspace(plan, FLP_PASS_FORWARD, N, 0, &bytes) == FLP_OK; /* exact */

  flp_args args = FLP_ARGS_INIT; /* pointers and values of one call */
  args.n = N, args.hidden = hidden, args.weight = weight, args.target = target, args.logprob = logprob;
  args.workspace = aligned_alloc(256, (bytes + 256) / 256 * 256), args.workspace_bytes = bytes;
  ok = ok && flp_execute(plan, &args) == FLP_OK; /* on a GPU: enqueues and returns */
  for (int i = 0; ok && i < N; i++) printf("%f\n", (double)logprob[i]);
  if (!ok) fprintf(stderr, "%s\n", flp_error_detail());
  free(args.workspace);
  flp_plan_destroy(plan);
  return !ok;
}

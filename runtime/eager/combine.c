/* combine.c: partials of all shards of a vocabulary, merged in rank order into the outputs of each row. */
#include "runtime/eager/core.h"

/* A maximum of -FLP_SCORE_LIMIT stands for a shard without a score above it; its sums matter if they are NaN. */
static eager_partial read_partial(const float *in) {
  if ((double)in[0] <= -FLP_SCORE_LIMIT) {
    double sum = isnan(in[1]) ? NAN : 0;
    return (eager_partial){-INFINITY, sum, sum};
  }
  return (eager_partial){(double)in[0], (double)in[1], (double)in[2]};
}

static void combine_row(void *context, int64_t active, int worker) {
  (void)worker;
  const eager_call *call = context;
  const flp_args *args = call->args;
  int64_t row = call->rows.index[active];
  eager_partial whole = {-INFINITY, 0, 0};
  double target = -INFINITY;
  for (int64_t shard = 0; shard < args->shard_count; shard++) {
    const float *in = args->partial + 4 * (shard * args->n + row);
    eager_partial part = read_partial(in);
    if (isnan(in[0])) part.sum = part.weighted = NAN;
    whole = eager_partial_merge(whole, part);
    if (in[3] != -INFINITY) target = (double)in[3];
  }
  eager_scale scale = eager_row_scale(call->spec, args, row);
  eager_row_finish(call, row, &scale, whole, target);
}

void eager_combine(const eager_call *call) {
  eager_team_run(call->team, call->rows.count, combine_row, (void *)(uintptr_t)call);
}

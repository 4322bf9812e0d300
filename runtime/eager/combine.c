/* combine.c: partials of all shards of a vocabulary, merged in rank order into the outputs of each row. */
#include "runtime/base/operands.h"
#include "runtime/eager/core.h"

/* A maximum of -FLP_SCORE_LIMIT stands for a shard without a score above it; its sums matter if they are NaN. */
static eager_partial read_partial(const float *in) {
  if ((double)in[0] <= -FLP_SCORE_LIMIT) {
    double sum = isnan(in[1]) ? NAN : 0;
    return (eager_partial){.maximum = -INFINITY, .sum = sum, .weighted = sum};
  }
  return (eager_partial){.maximum = (double)in[0], .sum = (double)in[1], .weighted = (double)in[2]};
}

/* The raw score of target k, from the shard that holds it. */
static double find_target(const eager_call *call, int64_t row, int64_t k) {
  const flp_args *args = call->args;
  int64_t count = flp_spec_targets(call->spec);
  double found = -INFINITY;
  for (int64_t shard = 0; shard < args->shard_count; shard++) {
    int64_t at = shard * args->n + row;
    float score = count > 1 ? args->partial_targets[at * count + k] : args->partial[4 * at + 3];
    if (score != -INFINITY) found = (double)score;
  }
  return found;
}

static void combine_row(void *context, int64_t active, int worker) {
  (void)worker;
  const eager_call *call = context;
  const flp_args *args = call->args;
  int64_t row = call->rows.index[active];
  eager_partial whole = {.maximum = -INFINITY};
  double columns = 0, best = -INFINITY;
  for (int64_t shard = 0; shard < args->shard_count; shard++) {
    int64_t at = 4 * (shard * args->n + row);
    const float *in = args->partial + at;
    eager_partial part = read_partial(in);
    if (isnan(in[0])) part.sum = part.weighted = NAN;
    if (args->partial_statistics) {
      const float *sums = args->partial_statistics + at;
      part.total = (double)sums[0];
      part.squares = (double)sums[1];
      columns += (double)sums[2];
      if (sums[3] != 0 && (double)in[0] > best) best = (double)in[0];
    }
    whole = eager_partial_merge(whole, part);
  }
  eager_scale scale = eager_row_scale(call->spec, args, row);
  double targets[FLP_TARGETS_MAX];
  for (int64_t k = 0; k < flp_spec_targets(call->spec); k++) targets[k] = find_target(call, row, k);
  eager_row_finish(call, row, &scale, whole, targets);
  eager_statistics_write(call, row, whole, columns, best >= whole.maximum);
}

void eager_combine(const eager_call *call) {
  eager_team_run(call->team, call->rows.count, combine_row, (void *)(uintptr_t)call);
}

/* plan.c: how long a plan takes to make, with caches that are empty and with caches that are not. */
#include <stdio.h>

#include "gen/cli/bench/bench.h"

void bench_plan_begin(cli_scratch *caches, bench_result *result) {
  result->plan_cold_ms = result->plan_warm_ms = -1;
  if (cli_scratch_open("bench", caches) != FLP_OK)
    snprintf(result->plan_error, sizeof result->plan_error, "%s", flp_error_detail());
}

static flp_status time_plan(const bench_args *args, const flp_options *options, double *out_ms) {
  flp_plan *plan = NULL;
  double start = cli_seconds_now();
  FLP_TRY(flp_plan_create(&args->spec.spec, options, &plan));
  *out_ms = 1e3 * (cli_seconds_now() - start);
  flp_plan_destroy(plan);
  return FLP_OK;
}

void bench_plan_time(const cli_scratch *caches, const bench_args *args, bench_result *result) {
  if (!caches->root[0]) return;
  flp_options options = args->options;
  options.cache_dir = caches->kernels;
  options.cache_path = "";
  flp_status status = time_plan(args, &options, &result->plan_cold_ms);
  if (status == FLP_OK) status = time_plan(args, &options, &result->plan_warm_ms);
  if (status != FLP_OK) snprintf(result->plan_error, sizeof result->plan_error, "%s", flp_error_detail());
}

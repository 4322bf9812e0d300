/* bench_plan.c: how long a plan takes to make, with caches that are empty and with caches that are not. */
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

void bench_plan_begin(bench_caches *caches, bench_result *result) {
  const char *temporary = getenv("TMPDIR");
  result->plan_cold_ms = result->plan_warm_ms = -1;
  int length = snprintf(caches->root, sizeof caches->root, "%s/flpgen-bench-XXXXXX",
                        temporary && temporary[0] ? temporary : "/tmp");
  if (length < 0 || (size_t)length >= sizeof caches->root || !mkdtemp(caches->root)) {
    snprintf(result->plan_error, sizeof result->plan_error, "no temporary directory: %s", strerror(errno));
    caches->root[0] = 0;
    return;
  }
  char driver[sizeof caches->root + 8];
  snprintf(driver, sizeof driver, "%s/driver", caches->root);
  setenv("CUDA_CACHE_PATH", driver, 1);
}

static flp_status time_plan(const bench_args *args, double *out_ms) {
  flp_plan *plan = NULL;
  double start = cli_seconds_now();
  FLP_TRY(flp_plan_create(&args->spec.spec, &args->options, &plan));
  *out_ms = 1e3 * (cli_seconds_now() - start);
  flp_plan_destroy(plan);
  return FLP_OK;
}

/* An environment variable as it was. */
typedef struct saved {
  const char *name;
  char *value; /* owned; NULL if it was not set */
} saved;

static saved set_variable(const char *name, const char *value) {
  const char *before = getenv(name);
  saved was = {.name = name, .value = before ? strdup(before) : NULL};
  setenv(name, value, 1);
  return was;
}

static void restore_variable(saved *was) {
  if (was->value)
    setenv(was->name, was->value, 1);
  else
    unsetenv(was->name);
  free(was->value);
}

void bench_plan_time(const bench_caches *caches, const bench_args *args, bench_result *result) {
  if (!caches->root[0]) return;
  char kernels[sizeof caches->root + 8];
  snprintf(kernels, sizeof kernels, "%s/kernels", caches->root);
  saved cache = set_variable("FLP_CACHE_DIR", kernels), path = set_variable("FLP_CACHE_PATH", "");
  flp_status status = time_plan(args, &result->plan_cold_ms);
  if (status == FLP_OK) status = time_plan(args, &result->plan_warm_ms);
  if (status != FLP_OK) snprintf(result->plan_error, sizeof result->plan_error, "%s", flp_error_detail());
  restore_variable(&cache);
  restore_variable(&path);
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *where) {
  (void)status;
  (void)type;
  (void)where;
  return remove(path);
}

void bench_plan_end(bench_caches *caches) {
  if (caches->root[0]) nftw(caches->root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
  caches->root[0] = 0;
}

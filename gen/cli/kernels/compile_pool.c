/* compile_pool.c: see compile_pool.h. */
#include "gen/cli/kernels/compile_pool.h"

#include <stdlib.h>

#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include "runtime/driver/compile.h"
#include "runtime/load/linker.h"

enum { CONTEXT_NEEDS = 1 << 30 }; /* bytes of device memory for each */

flp_status cli_compilers_open(const cli_device *device, int most, cli_compilers *out) {
  const flp_driver *driver = device->driver;
  size_t available = 0, total = 0;
  *out = (cli_compilers){.driver = driver, .device = device->info.handle};
  if (!driver->cuCtxCreate_v2 || !driver->cuCtxDestroy_v2) return FLP_OK;
  FLP_TRY(flp_driver_status(driver, driver->cuMemGetInfo_v2(&available, &total), "cuMemGetInfo"));
  if (most > CLI_COMPILERS_MAX) most = CLI_COMPILERS_MAX;
  size_t fit = available / CONTEXT_NEEDS;
  out->count = fit < (size_t)most ? (int)fit : most;
  return FLP_OK;
}

void cli_compilers_close(cli_compilers *compilers) {
  for (int i = 0; i < compilers->count; i++)
    if (compilers->context[i]) compilers->driver->cuCtxDestroy_v2(compilers->context[i]);
  *compilers = (cli_compilers){0};
}

/* ---- pools ---- */

/* Makes the context of a thread current, and the context itself when it is the first to need it. */
static int enter(const cli_compilers *compilers, CUcontext *context) {
  const flp_driver *driver = compilers->driver;
  if (*context) return driver->cuCtxPushCurrent_v2(*context) == 0;
  if (driver->cuCtxCreate_v2(context, 0, compilers->device) == 0) return 1;
  *context = NULL;
  return 0;
}

static void do_tasks(cli_pool *pool) {
  for (;;) {
    pthread_mutex_lock(&pool->lock);
    int i = pool->next < pool->count ? pool->next++ : pool->count;
    pthread_mutex_unlock(&pool->lock);
    if (i == pool->count) return;
    pool->task(pool->argument, i);
    pthread_mutex_lock(&pool->lock);
    pool->done[i] = 1;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
  }
}

static void *work(void *argument) {
  const cli_pool_worker *member = argument;
  cli_pool *pool = member->pool;
  CUcontext popped;
  if (enter(pool->compilers, member->context)) {
    do_tasks(pool);
    pool->compilers->driver->cuCtxPopCurrent_v2(&popped);
  }
  pthread_mutex_lock(&pool->lock);
  pool->left--;
  pthread_cond_broadcast(&pool->changed);
  pthread_mutex_unlock(&pool->lock);
  return NULL;
}

flp_status cli_pool_start(cli_compilers *compilers, int count, cli_pool_task task, void *argument, cli_pool *out) {
  *out = (cli_pool){.compilers = compilers, .task = task, .argument = argument, .count = count};
  out->done = calloc((size_t)count + 1, 1);
  if (!out->done) return flp_fail(FLP_ERROR_MEMORY, "no memory for a list of %d kernels", count);
  pthread_mutex_init(&out->lock, NULL);
  pthread_cond_init(&out->changed, NULL);
  pthread_mutex_lock(&out->lock);
  for (int i = 0; i < compilers->count && i < count; i++) {
    cli_pool_worker *member = &out->member[i];
    *member = (cli_pool_worker){.pool = out, .context = &compilers->context[i]};
    if (flp_thread_start(&member->thread, work, member) != 0) break;
    out->started = ++out->left;
  }
  pthread_mutex_unlock(&out->lock);
  return FLP_OK;
}

int cli_pool_wait(cli_pool *pool, int i) {
  pthread_mutex_lock(&pool->lock);
  while (!pool->done[i] && pool->left > 0) pthread_cond_wait(&pool->changed, &pool->lock);
  int done = pool->done[i];
  pthread_mutex_unlock(&pool->lock);
  return done;
}

static void end_threads(cli_pool *pool) {
  for (int i = 0; i < pool->started; i++) pthread_join(pool->member[i].thread, NULL);
  pool->started = 0;
}

void cli_pool_finish(cli_pool *pool) {
  for (int i = 0; i < pool->count; i++) cli_pool_wait(pool, i);
  end_threads(pool);
}

void cli_pool_stop(cli_pool *pool) {
  if (!pool->done) return;
  pthread_mutex_lock(&pool->lock);
  pool->next = pool->count;
  pthread_mutex_unlock(&pool->lock);
  end_threads(pool);
  pthread_cond_destroy(&pool->changed);
  pthread_mutex_destroy(&pool->lock);
  free(pool->done);
  pool->done = NULL;
}

/* ---- one kernel ---- */

void cli_precompile(const flp_driver *driver, const flp_store *store, flp_kernel_image *image) {
  CUmodule module = NULL;
  flp_compile call;
  if (flp_linker_takes(image->desc.key.kind)) flp_linker_link(driver, store, image);
  if (image->cubin) return;
  flp_compile_open(&call, &image->desc);
  if (driver->cuModuleLoadDataEx(&module, image->ptx, call.option_count, call.options, call.values) == 0)
    driver->cuModuleUnload(module);
}

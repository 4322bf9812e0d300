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

/* ---- crews ---- */

/* Makes the context of a thread current, and the context itself when it is the first to need it. */
static int enter(const cli_compilers *compilers, CUcontext *context) {
  const flp_driver *driver = compilers->driver;
  if (*context) return driver->cuCtxPushCurrent_v2(*context) == 0;
  if (driver->cuCtxCreate_v2(context, 0, compilers->device) == 0) return 1;
  *context = NULL;
  return 0;
}

static void do_tasks(cli_crew *crew) {
  for (;;) {
    pthread_mutex_lock(&crew->lock);
    int i = crew->next < crew->count ? crew->next++ : crew->count;
    pthread_mutex_unlock(&crew->lock);
    if (i == crew->count) return;
    crew->task(crew->argument, i);
    pthread_mutex_lock(&crew->lock);
    crew->done[i] = 1;
    pthread_cond_broadcast(&crew->changed);
    pthread_mutex_unlock(&crew->lock);
  }
}

static void *work(void *argument) {
  const cli_crew_member *member = argument;
  cli_crew *crew = member->crew;
  CUcontext popped;
  if (enter(crew->compilers, member->context)) {
    do_tasks(crew);
    crew->compilers->driver->cuCtxPopCurrent_v2(&popped);
  }
  pthread_mutex_lock(&crew->lock);
  crew->left--;
  pthread_cond_broadcast(&crew->changed);
  pthread_mutex_unlock(&crew->lock);
  return NULL;
}

flp_status cli_crew_start(cli_compilers *compilers, int count, cli_crew_task task, void *argument, cli_crew *out) {
  *out = (cli_crew){.compilers = compilers, .task = task, .argument = argument, .count = count};
  out->done = calloc((size_t)count + 1, 1);
  if (!out->done) return flp_fail(FLP_ERROR_MEMORY, "no memory for a list of %d kernels", count);
  pthread_mutex_init(&out->lock, NULL);
  pthread_cond_init(&out->changed, NULL);
  pthread_mutex_lock(&out->lock);
  for (int i = 0; i < compilers->count && i < count; i++) {
    cli_crew_member *member = &out->member[i];
    *member = (cli_crew_member){.crew = out, .context = &compilers->context[i]};
    if (flp_thread_start(&member->thread, work, member) != 0) break;
    out->started = ++out->left;
  }
  pthread_mutex_unlock(&out->lock);
  return FLP_OK;
}

int cli_crew_wait(cli_crew *crew, int i) {
  pthread_mutex_lock(&crew->lock);
  while (!crew->done[i] && crew->left > 0) pthread_cond_wait(&crew->changed, &crew->lock);
  int done = crew->done[i];
  pthread_mutex_unlock(&crew->lock);
  return done;
}

static void end_threads(cli_crew *crew) {
  for (int i = 0; i < crew->started; i++) pthread_join(crew->member[i].thread, NULL);
  crew->started = 0;
}

void cli_crew_finish(cli_crew *crew) {
  for (int i = 0; i < crew->count; i++) cli_crew_wait(crew, i);
  end_threads(crew);
}

void cli_crew_stop(cli_crew *crew) {
  if (!crew->done) return;
  pthread_mutex_lock(&crew->lock);
  crew->next = crew->count;
  pthread_mutex_unlock(&crew->lock);
  end_threads(crew);
  pthread_cond_destroy(&crew->changed);
  pthread_mutex_destroy(&crew->lock);
  free(crew->done);
  crew->done = NULL;
}

/* ---- one kernel ---- */

void cli_compile_ahead(const flp_driver *driver, const flp_store *store, flp_kernel_image *image) {
  CUmodule module = NULL;
  flp_compile call;
  if (flp_linker_takes(image->desc.key.kind)) flp_linker_link(driver, store, image);
  if (image->cubin) return;
  flp_compile_open(&call, &image->desc);
  if (driver->cuModuleLoadDataEx(&module, image->ptx, call.option_count, call.options, call.values) == 0)
    driver->cuModuleUnload(module);
}

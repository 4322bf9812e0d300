/* blas_open.c: opens an OpenBLAS so that it starts no threads.
 *
 * When OpenBLAS is loaded it starts a thread for each processor that the loading thread may run on, but one; where it
 * cannot, it raises SIGINT, which ends the host (blas_thread_init in its blas_server.c). So it is loaded while this
 * thread may run on one processor only. It then has no thread to start again after a fork either. A library that the
 * host has loaded before keeps the threads that it has; a host that loads it later has one thread until it calls
 * openblas_set_num_threads. */
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/eager/blas.h"

enum {
  OPENMP_BUILD = 2,
  PROCESSOR_SETS = 8,        /* of 1024 processors each */
  STARTING_BYTES = 128 << 20 /* of buffers, and a stack */
};

/* Leaves of the processors in a set one alone. */
static void keep_one(cpu_set_t sets[PROCESSOR_SETS], size_t bytes) {
  size_t first = 0;
  while (first < 8 * bytes && !CPU_ISSET_S(first, bytes, sets)) first++;
  memset(sets, 0, bytes);
  CPU_SET_S(first, bytes, sets);
}

/* Returns NULL with a reason if it cannot be loaded, or not without threads. */
static void *load_without_threads(const char *file, char reason[EAGER_BLAS_TEXT_BYTES]) {
  cpu_set_t before[PROCESSOR_SETS], one[PROCESSOR_SETS];
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library) return library;
  /* OpenBLAS and what it needs end the process, or fault, where memory runs out while they start. */
  void *probe = mmap(NULL, STARTING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe == MAP_FAILED) {
    snprintf(reason, EAGER_BLAS_TEXT_BYTES, "%.*s is not loaded: out of memory", EAGER_BLAS_PATH_BYTES, file);
    return NULL;
  }
  munmap(probe, STARTING_BYTES);
  /* An OpenMP build brings this runtime, which would count one processor for the whole process. */
  (void)dlopen("libgomp.so.1", RTLD_LAZY | RTLD_LOCAL);
  memset(before, 0, sizeof before);
  int failed = sched_getaffinity(0, sizeof before, before);
  memcpy(one, before, sizeof one);
  keep_one(one, sizeof one);
  if (failed || sched_setaffinity(0, sizeof one, one) != 0) {
    snprintf(reason, EAGER_BLAS_TEXT_BYTES,
             "%.*s is not loaded: it starts threads when it is, unless this thread can be confined to one processor",
             EAGER_BLAS_PATH_BYTES, file);
    return NULL;
  }
  library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  const char *error = library ? NULL : dlerror();
  if (error) snprintf(reason, EAGER_BLAS_TEXT_BYTES, "%s", error);
  (void)sched_setaffinity(0, sizeof before, before);
  return library;
}

/* dlsym gives an object pointer; POSIX lets it hold a function's address. */
static void find_symbol(void *library, const char *symbol, void *function, size_t bytes) {
  char prefixed[64]; /* as Python's package scipy-openblas32 names it */
  snprintf(prefixed, sizeof prefixed, "scipy_%s", symbol);
  void *address = dlsym(library, symbol);
  if (!address) address = dlsym(library, prefixed);
  memcpy(function, &address, bytes);
}

static void describe(void *library, const char *file, char out[EAGER_BLAS_TEXT_BYTES]) {
  const char *(*get_config)(void) = NULL, *(*get_core)(void) = NULL;
  find_symbol(library, "openblas_get_config", &get_config, sizeof get_config);
  find_symbol(library, "openblas_get_corename", &get_core, sizeof get_core);
  char name[32] = "OpenBLAS", version[32] = "";
  if (get_config) sscanf(get_config(), "%31s %31s", name, version);
  const char *core = get_core ? get_core() : "";
  snprintf(out, EAGER_BLAS_TEXT_BYTES, "%s%s%s%s%.32s (%.*s)", name, version[0] ? " " : "", version,
           core[0] ? " for " : "", core, EAGER_BLAS_PATH_BYTES, file);
}

int eager_blas_open(const char *file, eager_blas_library *out, char reason[EAGER_BLAS_TEXT_BYTES]) {
  void *library = load_without_threads(file, reason);
  if (!library) return 0;
  find_symbol(library, "cblas_sgemm", &out->sgemm, sizeof out->sgemm);
  find_symbol(library, "openblas_set_num_threads", &out->set_threads, sizeof out->set_threads);
  find_symbol(library, "openblas_get_num_threads", &out->get_threads, sizeof out->get_threads);
  int (*get_parallel)(void) = NULL;
  find_symbol(library, "openblas_get_parallel", &get_parallel, sizeof get_parallel);
  if (!out->sgemm || !out->set_threads || !out->get_threads) {
    snprintf(reason, EAGER_BLAS_TEXT_BYTES, "%.*s is not used: it has no %s", EAGER_BLAS_PATH_BYTES, file,
             !out->sgemm         ? "cblas_sgemm"
             : !out->set_threads ? "openblas_set_num_threads"
                                 : "openblas_get_num_threads");
    dlclose(library);
    return 0;
  }
  out->openmp = get_parallel && get_parallel() == OPENMP_BUILD;
  describe(library, file, out->name);
  return 1;
}

/* blas.c: OpenBLAS for the products of the eager reference; plain C without it.
 *
 * Invariants: a library is used only if it passes the probe of blas_tiles.c. It runs one thread while a pass of this
 * library uses it, because the team has threads; the last pass restores the host's setting. A count of threads that
 * is 1 already is left alone: setting it makes OpenBLAS start its threads anew after a fork. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include "runtime/eager/blas.h"

static struct {
  pthread_once_t once;
  int is_used; /* else plain C */
  eager_blas_library library;
  eager_blas_tiles tiles;
  char reason[EAGER_BLAS_TEXT_BYTES]; /* why it is not used */
  atomic_int has_news;                /* a reason that was not logged */
  /* What follows is under FLP_LOCK_BLAS. */
  unsigned process; /* of the passes inside */
  int inside;       /* passes that multiply now */
  int threads_before;
} blas = {.once = PTHREAD_ONCE_INIT};

static void set_threads(int threads) {
  if (blas.library.get_threads() != threads) blas.library.set_threads(threads);
}

static void find_blas(const char *file) {
  if (!eager_blas_open(file, &blas.library, blas.reason)) {
    atomic_store(&blas.has_news, 1);
    return;
  }
  int before = blas.library.get_threads();
  set_threads(1);
  const char *refusal = eager_blas_tiles_find(blas.library.sgemm, &blas.tiles);
  set_threads(before);
  blas.is_used = !refusal; /* not closed if it is refused: its threads may be running */
  if (!refusal) return;
  snprintf(blas.reason, sizeof blas.reason, "%.420s is not used: %s", blas.library.name, refusal);
  atomic_store(&blas.has_news, 1);
}

static void open_blas(void) {
  flp_setting setting;
  flp_setting_get(FLP_SETTING_BLAS_LIBRARY, &setting); /* may log, so before */
  flp_fork_hold();
  find_blas(setting.value);
  flp_fork_release();
}

/* The log may be a host's that waits for other threads, so it is outside of the once. */
static int uses_blas(void) {
  pthread_once(&blas.once, open_blas);
  if (atomic_exchange(&blas.has_news, 0))
    flp_log(FLP_LOG_WARNING,
            "the CPU rung multiplies in plain C, which is slower: %s; FLP_BLAS_LIBRARY names an "
            "OpenBLAS, such as that of Debian's libopenblas0 or of Python's scipy-openblas32",
            blas.reason);
  return blas.is_used;
}

/* Passes that were running at a fork do not end in the child, which restores the host's setting here. */
static void forget_parent(void) {
  if (blas.process != flp_process() && blas.inside > 0) {
    set_threads(blas.threads_before);
    blas.inside = 0;
  }
  blas.process = flp_process();
}

void eager_blas_enter(void) {
  if (!uses_blas()) return;
  flp_lock(FLP_LOCK_BLAS);
  forget_parent();
  if (blas.inside++ == 0) {
    blas.threads_before = blas.library.get_threads();
    set_threads(1);
  }
  flp_unlock(FLP_LOCK_BLAS);
}

void eager_blas_leave(void) {
  if (!blas.is_used) return;
  flp_lock(FLP_LOCK_BLAS);
  if (--blas.inside == 0) set_threads(blas.threads_before);
  flp_unlock(FLP_LOCK_BLAS);
}

void eager_blas_enter_thread(void) {
  if (blas.is_used && blas.library.openmp) blas.library.set_threads(1);
}

void eager_multiply(eager_product product, const eager_matrices *x) {
  if (!blas.is_used) {
    eager_multiply_plain(product, x);
    return;
  }
  flp_fork_hold(); /* OpenBLAS locks its buffers */
  eager_blas_tiles_multiply(&blas.tiles, product, x);
  flp_fork_release();
}

const char *eager_blas_name(void) {
  return uses_blas() ? blas.library.name : "plain C";
}

const char *eager_blas_reason(void) {
  return uses_blas() ? "" : blas.reason;
}

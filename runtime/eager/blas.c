/* blas.c: OpenBLAS, opened at run time, for the products of the eager reference; plain C without it.
 *
 * Invariants: a library is used only if it passes a probe: right, and the same bits for a row wherever it stands in a
 * tile. It runs one thread while a pass of this library uses it, because the team has threads; the
 * last pass restores the host's setting. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include "runtime/eager/core.h"

typedef void (*sgemm_fn)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a,
                         int a_stride, const float *b, int b_stride, float beta, float *c, int c_stride);
enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112, OPENMP_BUILD = 2 };

static struct {
  pthread_once_t once;
  sgemm_fn sgemm; /* NULL: plain C */
  void (*set_threads)(int);
  int (*get_threads)(void);
  int openmp;
  char name[160];
  /* What follows is under FLP_LOCK_BLAS. */
  unsigned process; /* of the passes inside */
  int inside;       /* passes that multiply now */
  int threads_before;
} blas = {.once = PTHREAD_ONCE_INIT};

static void multiply_blas(eager_product product, const eager_matrices *x) {
  static const int transposes[][2] = {[EAGER_SCORES] = {NO_TRANSPOSE, TRANSPOSE},
                                      [EAGER_GRAD_HIDDEN] = {NO_TRANSPOSE, NO_TRANSPOSE},
                                      [EAGER_GRAD_WEIGHT] = {TRANSPOSE, NO_TRANSPOSE}};
  blas.sgemm(ROW_MAJOR, transposes[product][0], transposes[product][1], x->m, x->n, x->k, 1.0f, x->a, (int)x->a_stride,
             x->b, (int)x->b_stride, product == EAGER_SCORES ? 0.0f : 1.0f, x->c, (int)x->c_stride);
}

enum { PROBE_DEPTH = 584 }; /* past the depth at which OpenBLAS splits a product, and ragged */

static int probe_passes(const float *a, const float *b, const float *c) {
  for (int j = 0; j < EAGER_TILE_COLUMNS; j++) {
    double sum = 0;
    for (int k = 0; k < PROBE_DEPTH; k++) sum += (double)a[k] * (double)b[j * PROBE_DEPTH + k];
    if (!(fabs(sum - (double)c[j]) < 1e-3)) return 0;
  }
  for (int i = 1; i < EAGER_TILE_ROWS; i++)
    if (memcmp(c, c + i * EAGER_TILE_COLUMNS, EAGER_TILE_COLUMNS * sizeof *c) != 0) return 0;
  return 1;
}

/* Multiplies a tile of equal rows. */
static int probe(void) {
  static float a[EAGER_TILE_ROWS * PROBE_DEPTH], b[EAGER_TILE_COLUMNS * PROBE_DEPTH];
  static float c[EAGER_TILE_ROWS * EAGER_TILE_COLUMNS];
  uint32_t state = 1;
  for (size_t i = 0; i < sizeof b / sizeof b[0]; i++) {
    state = state * 1664525u + 1013904223u;
    b[i] = (float)(state >> 8) * 0x1p-23f - 1.0f;
  }
  for (int i = 0; i < EAGER_TILE_ROWS; i++)
    for (int k = 0; k < PROBE_DEPTH; k++) a[i * PROBE_DEPTH + k] = b[(k * 37) % (PROBE_DEPTH * 3)];
  eager_matrices x = {EAGER_TILE_ROWS,   EAGER_TILE_COLUMNS, PROBE_DEPTH, a, PROBE_DEPTH, b, PROBE_DEPTH, c,
                      EAGER_TILE_COLUMNS};
  multiply_blas(EAGER_SCORES, &x);
  return probe_passes(a, b, c);
}

/* dlsym gives an object pointer; POSIX lets it hold a function's address. */
static void find_symbol(void *library, const char *symbol, void *function, size_t bytes) {
  void *address = dlsym(library, symbol);
  memcpy(function, &address, bytes);
}

static void describe_blas(void *library, const char *file) {
  const char *(*get_config)(void) = NULL;
  find_symbol(library, "openblas_get_config", &get_config, sizeof get_config);
  char name[32] = "OpenBLAS", version[32] = "";
  if (get_config) sscanf(get_config(), "%31s %31s", name, version);
  snprintf(blas.name, sizeof blas.name, "%s%s%s (%.64s)", name, version[0] ? " " : "", version, file);
}

static void open_blas(void) {
  snprintf(blas.name, sizeof blas.name, "plain C");
  flp_setting setting;
  flp_setting_get(FLP_SETTING_BLAS_LIBRARY, &setting);
  void *library = dlopen(setting.value, RTLD_NOW | RTLD_LOCAL);
  if (!library) return;
  find_symbol(library, "cblas_sgemm", &blas.sgemm, sizeof blas.sgemm);
  find_symbol(library, "openblas_set_num_threads", &blas.set_threads, sizeof blas.set_threads);
  find_symbol(library, "openblas_get_num_threads", &blas.get_threads, sizeof blas.get_threads);
  int (*get_parallel)(void) = NULL;
  find_symbol(library, "openblas_get_parallel", &get_parallel, sizeof get_parallel);
  if (!blas.sgemm || !blas.set_threads || !blas.get_threads) {
    blas.sgemm = NULL;
    dlclose(library);
    return;
  }
  blas.openmp = get_parallel && get_parallel() == OPENMP_BUILD;
  int before = blas.get_threads();
  blas.set_threads(1);
  if (probe())
    describe_blas(library, setting.value);
  else
    blas.sgemm = NULL; /* not closed: its threads may be running */
  blas.set_threads(before);
}

/* Passes that were running at a fork do not end in the child, which restores the host's setting here. */
static void forget_parent(void) {
  if (blas.process != flp_process() && blas.inside > 0) {
    blas.set_threads(blas.threads_before);
    blas.inside = 0;
  }
  blas.process = flp_process();
}

void eager_blas_enter(void) {
  pthread_once(&blas.once, open_blas);
  if (!blas.sgemm) return;
  flp_lock(FLP_LOCK_BLAS);
  forget_parent();
  if (blas.inside++ == 0) {
    blas.threads_before = blas.get_threads();
    blas.set_threads(1);
  }
  flp_unlock(FLP_LOCK_BLAS);
}

void eager_blas_leave(void) {
  if (!blas.sgemm) return;
  flp_lock(FLP_LOCK_BLAS);
  if (--blas.inside == 0) blas.set_threads(blas.threads_before);
  flp_unlock(FLP_LOCK_BLAS);
}

void eager_blas_enter_thread(void) {
  if (blas.sgemm && blas.openmp) blas.set_threads(1);
}

void eager_multiply(eager_product product, const eager_matrices *x) {
  if (blas.sgemm)
    multiply_blas(product, x);
  else
    eager_multiply_plain(product, x);
}

const char *eager_blas_name(void) {
  pthread_once(&blas.once, open_blas);
  return blas.name;
}

/* blas.h: what the files of OpenBLAS share, divided by the file that implements it. core.h has what passes call. */
#ifndef FLP_EAGER_BLAS_H
#define FLP_EAGER_BLAS_H

#include "runtime/eager/core.h"

/* cblas_sgemm */
typedef void (*eager_sgemm_fn)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                               const float *a, int a_stride, const float *b, int b_stride, float beta, float *c,
                               int c_stride);

enum { EAGER_BLAS_TEXT_BYTES = 560, EAGER_BLAS_PATH_BYTES = 320 }; /* a path longer than that is cut, a reason is not */

/* ---- blas_open.c ---- */

typedef struct eager_blas_library {
  eager_sgemm_fn sgemm;
  void (*set_threads)(int);
  int (*get_threads)(void);
  int openmp;                       /* counts threads per thread */
  char name[EAGER_BLAS_TEXT_BYTES]; /* "OpenBLAS 0.3.21 for Zen (libopenblas.so.0)" */
} eager_blas_library;

/* Opens a library so that it starts no thread. Returns 1 if it is there; else reason says why not. */
int eager_blas_open(const char *file, eager_blas_library *out, char reason[EAGER_BLAS_TEXT_BYTES]);

/* ---- blas_tiles.c ---- */

/* How tiles of each product are handed over: indices of a table. */
typedef struct eager_blas_tiles {
  eager_sgemm_fn sgemm;
  int way[EAGER_PRODUCTS];
} eager_blas_tiles;

/* Finds the fastest way of each product that gives right sums, and a row the same bits wherever it stands in a tile.
 * Returns NULL, or what is wrong with the library. */
const char *eager_blas_tiles_find(eager_sgemm_fn sgemm, eager_blas_tiles *out);

void eager_blas_tiles_multiply(const eager_blas_tiles *tiles, eager_product product, const eager_matrices *x);

#endif

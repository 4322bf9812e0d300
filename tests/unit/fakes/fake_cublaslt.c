/* fake_cublaslt.c: a stand-in for cuBLASLt: checks its arguments as the library would, and computes fp32 products on
 * the host memory that the stand-in for libcuda hands out as device memory. 16-bit products are checked, not computed.
 *
 * FAKE_CUBLASLT in the environment makes calls fail: "cublasLtCreate=1;cublasLtMatmul=15". Its heuristics name three
 * algorithms, the second of them marked unfit. */
#include <stdlib.h>
#include <string.h>

#include "autotune/gemm/cublaslt.h"

/* A stand-in's symbols must not be mistaken for the library's: each is declared by the table's own types. */
#define DECLARE(type, name, args) type name args;
CUBLASLT_FUNCTIONS(DECLARE)

enum { INVALID_VALUE = 7, NOT_SUPPORTED = 15 };

struct cublasLtContext {
  int unused;
};
struct cublasLtMatrixLayoutOpaque {
  int type;
  uint64_t rows, columns;
  int64_t stride;
};
struct cublasLtMatmulDescOpaque {
  int32_t transpose[2];
};
struct cublasLtMatmulPreferenceOpaque {
  uint64_t workspace;
};

static cublasStatus_t scripted(const char *name) {
  const char *script = getenv("FAKE_CUBLASLT"), *at = script ? strstr(script, name) : NULL;
  return at && at[strlen(name)] == '=' ? atoi(at + strlen(name) + 1) : 0;
}

/* Allocates what a create function makes, unless the script makes it fail. */
static cublasStatus_t make(const char *name, size_t bytes, void *out) {
  cublasStatus_t status = scripted(name);
  void *made = status ? NULL : calloc(1, bytes);
  memcpy(out, &made, sizeof made);
  return status;
}

size_t cublasLtGetVersion(void) {
  return 130002;
}

const char *cublasLtGetStatusName(cublasStatus_t status) {
  return status == 1               ? "CUBLAS_STATUS_NOT_INITIALIZED"
         : status == INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
         : status == NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                   : "unknown";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
  return make("cublasLtCreate", sizeof **out, out);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  free(handle);
  return 0;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, int type, uint64_t rows, uint64_t columns,
                                          int64_t stride) {
  cublasStatus_t status = make("cublasLtMatrixLayoutCreate", sizeof **out, out);
  if (status) return status;
  **out = (struct cublasLtMatrixLayoutOpaque){type, rows, columns, stride};
  return stride < 0 || (uint64_t)stride < rows ? INVALID_VALUE : 0;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  free(layout);
  return 0;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, int compute, int scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return INVALID_VALUE;
  return make("cublasLtMatmulDescCreate", sizeof **out, out);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  free(desc);
  return 0;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, int attribute, const void *value,
                                              size_t bytes) {
  int which = attribute - CUBLASLT_MATMUL_DESC_TRANSA;
  if (which < 0 || which > 1 || bytes != sizeof desc->transpose[0]) return INVALID_VALUE;
  memcpy(&desc->transpose[which], value, bytes);
  return 0;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
  return make("cublasLtMatmulPreferenceCreate", sizeof **out, out);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  free(preference);
  return 0;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, int attribute,
                                                    const void *value, size_t bytes) {
  if (attribute != CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES || bytes != sizeof preference->workspace)
    return INVALID_VALUE;
  memcpy(&preference->workspace, value, bytes);
  return 0;
}

/* 1 if op(a) · op(b) has the shape of c. */
static int fits(const int32_t transpose[2], const struct cublasLtMatrixLayoutOpaque *a,
                const struct cublasLtMatrixLayoutOpaque *b, const struct cublasLtMatrixLayoutOpaque *c) {
  uint64_t m = transpose[0] ? a->columns : a->rows, depth = transpose[0] ? a->rows : a->columns;
  uint64_t n = transpose[1] ? b->rows : b->columns, other_depth = transpose[1] ? b->columns : b->rows;
  return m == c->rows && n == c->columns && depth == other_depth && a->type == b->type;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *out, int *count) {
  cublasStatus_t status = scripted("cublasLtMatmulAlgoGetHeuristic");
  *count = 0;
  if (status) return status;
  if (!handle || c != d || preference->workspace == 0 || !fits(desc->transpose, a, b, c)) return INVALID_VALUE;
  for (int i = 0; i < 3 && i < wanted; i++) {
    memset(&out[i], 0, sizeof out[i]);
    out[i].algo.data[0] = (uint64_t)i;
    out[i].state = i == 1 ? NOT_SUPPORTED : 0;
    ++*count;
  }
  return 0;
}

static float at(const float *matrix, const struct cublasLtMatrixLayoutOpaque *layout, int transpose, uint64_t row,
                uint64_t column) {
  return transpose ? matrix[column + row * (uint64_t)layout->stride] : matrix[row + column * (uint64_t)layout->stride];
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, CUstream stream) {
  (void)stream;
  cublasStatus_t status = scripted("cublasLtMatmul");
  if (status) return status;
  if (!handle || !a || !b || !d || c != d || c_layout != d_layout || !workspace || workspace_bytes == 0)
    return INVALID_VALUE;
  if (algo->data[0] == 1 || !fits(desc->transpose, a_layout, b_layout, d_layout)) return NOT_SUPPORTED;
  if (a_layout->type != CUDA_R_32F || d_layout->type != CUDA_R_32F) return 0;
  uint64_t depth = desc->transpose[0] ? a_layout->rows : a_layout->columns;
  float *out = d;
  for (uint64_t column = 0; column < d_layout->columns; column++)
    for (uint64_t row = 0; row < d_layout->rows; row++) {
      double sum = 0;
      for (uint64_t k = 0; k < depth; k++)
        sum += (double)at(a, a_layout, desc->transpose[0], row, k) *
               (double)at(b, b_layout, desc->transpose[1], k, column);
      float *cell = &out[row + column * (uint64_t)d_layout->stride];
      *cell = *(const float *)alpha * (float)sum + (*(const float *)beta != 0 ? *(const float *)beta * *cell : 0);
    }
  return 0;
}

/* cublaslt.h: the part of cuBLASLt's C API that plain matrix products need, opened with dlopen.
 *
 * No CUDA header is used: types and numbers that cross the ABI are declared here as CUDA 12 and 13 document them; they
 * are the same in both. */
#ifndef FLP_AUTOTUNE_CUBLASLT_H
#define FLP_AUTOTUNE_CUBLASLT_H

#include "runtime/driver/driver.h"

typedef int cublasStatus_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct cublasLtMatrixLayoutOpaque *cublasLtMatrixLayout_t;
typedef struct cublasLtMatmulDescOpaque *cublasLtMatmulDesc_t;
typedef struct cublasLtMatmulPreferenceOpaque *cublasLtMatmulPreference_t;

typedef struct cublasLtMatmulAlgo_t {
  uint64_t data[8];
} cublasLtMatmulAlgo_t;

typedef struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
} cublasLtMatmulHeuristicResult_t;

enum {
  /* cublasOperation_t */
  CUBLAS_OP_N = 0,
  CUBLAS_OP_T = 1,
  /* cudaDataType */
  CUDA_R_32F = 0,
  CUDA_R_16F = 2,
  CUDA_R_16BF = 14,
  /* cublasComputeType_t */
  CUBLAS_COMPUTE_32F = 68,
  /* cublasLtMatmulDescAttributes_t; each an int32_t */
  CUBLASLT_MATMUL_DESC_TRANSA = 3,
  CUBLASLT_MATMUL_DESC_TRANSB = 4,
  /* cublasLtMatmulPreferenceAttributes_t; a uint64_t */
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1
};

#define CUBLASLT_FUNCTIONS(F)                                                                                        \
  F(size_t, cublasLtGetVersion, (void))                                                                              \
  F(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t *))                                                            \
  F(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t))                                                             \
  F(const char *, cublasLtGetStatusName, (cublasStatus_t))                                                           \
  F(cublasStatus_t, cublasLtMatrixLayoutCreate, (cublasLtMatrixLayout_t *, int, uint64_t, uint64_t, int64_t))        \
  F(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t))                                           \
  F(cublasStatus_t, cublasLtMatmulDescCreate, (cublasLtMatmulDesc_t *, int, int))                                    \
  F(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t))                                               \
  F(cublasStatus_t, cublasLtMatmulDescSetAttribute, (cublasLtMatmulDesc_t, int, const void *, size_t))               \
  F(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t *))                                  \
  F(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t))                                   \
  F(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute, (cublasLtMatmulPreference_t, int, const void *, size_t))   \
  F(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,                                                                  \
    (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, \
     cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t *, int *))             \
  F(cublasStatus_t, cublasLtMatmul,                                                                                  \
    (cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t, const void *,       \
     cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t,     \
     const cublasLtMatmulAlgo_t *, void *, size_t, CUstream))

enum { CUBLASLT_PATH_BYTES = 1024 };

typedef struct cublaslt {
#define CUBLASLT_FIELD(type, name, args) type(*name) args;
  CUBLASLT_FUNCTIONS(CUBLASLT_FIELD)
#undef CUBLASLT_FIELD
  void *library;
  cublasLtHandle_t handle;
  size_t version; /* e.g. 130002 */
  char path[CUBLASLT_PATH_BYTES];
} cublaslt;

/* Opens cuBLASLt and makes a handle; a context must be current on this thread. It
 * tries in turn the file that FLP_CUBLASLT_LIBRARY names, and nothing else if it is set; libcublasLt.so.13 and .12 by
 * the loader's path, in the CUDA toolkit's usual place and in the NVIDIA wheels of the Python environments at hand.
 * error: UNAVAILABLE naming what was tried and why it failed */
flp_status cublaslt_open(cublaslt *out);

/* Destroys the handle. The library stays loaded: CUDA libraries do not survive unloading. Zeroed is fine. */
void cublaslt_close(cublaslt *library);

/* UNSUPPORTED with "what failed: CUBLAS_STATUS_X (n)"; OK for 0. */
flp_status cublaslt_status(const cublaslt *library, cublasStatus_t status, const char *what);

/* ---- places.c ---- */

enum { CUBLASLT_PLACES_MAX = 64 };

/* Names to hand to dlopen, best first. */
typedef struct cublaslt_places {
  char *name[CUBLASLT_PLACES_MAX]; /* owned */
  int count;
} cublaslt_places;

void cublaslt_places_find(cublaslt_places *out);
void cublaslt_places_clear(cublaslt_places *places);

#endif

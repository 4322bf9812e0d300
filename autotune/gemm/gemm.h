/* gemm.h: GEMM baselines through cuBLASLt, the yardstick of the fused kernels.
 *
 * Shapes are row-major and dense, as everywhere in this project; cuBLASLt sees their column-major view. Accumulation is
 * in fp32 whatever the operands. */
#ifndef FLP_AUTOTUNE_GEMM_H
#define FLP_AUTOTUNE_GEMM_H

#include "autotune/gemm/cublaslt.h"
#include "autotune/measure.h"

/* c (m,n) = op(a) (m,k) · op(b) (k,n), plus c if accumulate. */
typedef struct gemm_shape {
  int64_t m, n, k;
  int transpose_a, transpose_b; /* a is stored (k,m), b is stored (n,k) */
  flp_dtype dtype;              /* of a and b: BF16, FP16 or FP32 */
  flp_dtype out_dtype;          /* of c: dtype or FP32 */
  int accumulate;
} gemm_shape;

/* The three products of a language-model head over N rows, V columns and depth D. */
typedef enum gemm_product {
  GEMM_SCORES,      /* (N,V) = hidden (N,D) · weight (V,D)ᵀ */
  GEMM_GRAD_HIDDEN, /* (N,D) = dz (N,V) · weight (V,D) */
  GEMM_GRAD_WEIGHT, /* (V,D) = dz (N,V)ᵀ · hidden (N,D) */
  GEMM_PRODUCTS
} gemm_product;

/* "scores", "grad_hidden", "grad_weight" */
const char *gemm_product_name(gemm_product product);

/* The shape of a product over n rows and `vocab` columns of a spec's head, outputs in the dtypes that the spec asks
 * for (scores in its dtype). spec: resolved */
gemm_shape gemm_shape_of(gemm_product product, const flp_spec *spec, int64_t n, int64_t vocab);

/* 2·m·n·k */
double gemm_flops(const gemm_shape *shape);

/* The same product in cuBLASLt's form: column-major out (rows,columns) = op(first) · op(second). A row-major matrix
 * is the column-major one of its transpose, and (A·B)ᵀ = Bᵀ·Aᵀ: first is b, second is a. */
typedef struct gemm_matrix {
  uint64_t rows, columns;
  int64_t stride; /* elements from a column to the next */
} gemm_matrix;

typedef struct gemm_view {
  gemm_matrix first, second, out;
  int transpose_first, transpose_second;
} gemm_view;

gemm_view gemm_view_of(const gemm_shape *shape);

enum { GEMM_ALGORITHMS_MAX = 8 };

/* A product with its operands and algorithm; plain data, its descriptors are owned. */
typedef struct gemm {
  const cublaslt *library; /* borrowed */
  gemm_shape shape;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t first, second, out;
  cublasLtMatmulHeuristicResult_t algorithm[GEMM_ALGORITHMS_MAX];
  int algorithm_count, chosen;
  int first_algorithm; /* that the library does not refuse; known once one was chosen */
  /* set by the caller */
  const void *a, *b;
  void *c, *workspace;
  size_t workspace_bytes;
} gemm;

/* Gets the first algorithms that the library's heuristics name for a workspace; chooses the first.
 * error: UNSUPPORTED if there is none for this shape */
flp_status gemm_create(const cublaslt *library, const gemm_shape *shape, size_t workspace_bytes, gemm *out);
/* A zeroed one is fine. */
void gemm_destroy(gemm *product);

/* Enqueues the product once. error: UNSUPPORTED if the library refuses */
flp_status gemm_enqueue(gemm *product, CUstream stream);
/* The same as a piece of work to measure, which borrows the product. */
measure_item gemm_item(gemm *product);
/* The product by its first algorithm, which callers that do not choose get, e.g. torch.matmul. */
measure_item gemm_first_item(gemm *product);

/* Chooses the fastest of the algorithms on the operands that are set: the least median of bursts in random order,
 * because in a fixed order the first would run on a card that is still cool.
 * error: UNSUPPORTED if every one is refused; as measure_run */
flp_status gemm_choose(gemm *product, measure_clock *clock, const measure_options *options);

#endif

/* gemm.c: GEMM baselines: row-major shapes, their column-major view, descriptors and the choice of an
 * algorithm. */
#include "autotune/gemm/gemm.h"

#include <inttypes.h>

#include "runtime/base/status.h"

/* ---- shapes: pure ---- */

const char *gemm_product_name(gemm_product product) {
  static const char *const names[GEMM_PRODUCTS] = {"scores", "grad_hidden", "grad_weight"};
  return product >= 0 && product < GEMM_PRODUCTS ? names[product] : "?";
}

gemm_shape gemm_shape_of(gemm_product product, const flp_spec *spec, int64_t n, int64_t vocab) {
  int64_t depth = spec->hidden;
  const gemm_shape shapes[GEMM_PRODUCTS] = {
      [GEMM_SCORES] = {.m = n, .n = vocab, .k = depth, .transpose_b = 1, .out_dtype = spec->dtype},
      [GEMM_GRAD_HIDDEN] = {.m = n, .n = depth, .k = vocab, .out_dtype = spec->grad_hidden_dtype},
      [GEMM_GRAD_WEIGHT] = {.m = vocab,
                            .n = depth,
                            .k = n,
                            .transpose_a = 1,
                            .out_dtype = spec->grad_weight_dtype,
                            .accumulate = spec->accumulate_grad_weight}};
  gemm_shape shape = shapes[product];
  shape.dtype = spec->dtype;
  return shape;
}

double gemm_flops(const gemm_shape *shape) {
  return 2.0 * (double)shape->m * (double)shape->n * (double)shape->k;
}

/* A row-major (rows, columns) matrix, seen column-major. */
static gemm_matrix view_matrix(int64_t rows, int64_t columns) {
  return (gemm_matrix){.rows = (uint64_t)columns, .columns = (uint64_t)rows, .stride = columns};
}

gemm_view gemm_view_of(const gemm_shape *shape) {
  return (gemm_view){
      .first = shape->transpose_b ? view_matrix(shape->n, shape->k) : view_matrix(shape->k, shape->n),
      .second = shape->transpose_a ? view_matrix(shape->k, shape->m) : view_matrix(shape->m, shape->k),
      .out = view_matrix(shape->m, shape->n),
      .transpose_first = shape->transpose_b,
      .transpose_second = shape->transpose_a,
  };
}

/* ---- descriptors ---- */

static int data_type(flp_dtype dtype) {
  return dtype == FLP_DTYPE_BF16 ? CUDA_R_16BF : dtype == FLP_DTYPE_FP16 ? CUDA_R_16F : CUDA_R_32F;
}

static flp_status create_layout(const cublaslt *library, const gemm_matrix *matrix, flp_dtype dtype,
                                cublasLtMatrixLayout_t *out) {
  return cublaslt_status(
      library,
      library->cublasLtMatrixLayoutCreate(out, data_type(dtype), matrix->rows, matrix->columns, matrix->stride),
      "cublasLtMatrixLayoutCreate");
}

static flp_status set_transpose(const gemm *product, int attribute, int transpose) {
  const cublaslt *library = product->library;
  int32_t operation = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
  return cublaslt_status(
      library, library->cublasLtMatmulDescSetAttribute(product->desc, attribute, &operation, sizeof operation),
      "cublasLtMatmulDescSetAttribute");
}

static flp_status create_descriptors(gemm *product) {
  const cublaslt *library = product->library;
  const gemm_shape *shape = &product->shape;
  gemm_view view = gemm_view_of(shape);
  FLP_TRY(cublaslt_status(library, library->cublasLtMatmulDescCreate(&product->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                          "cublasLtMatmulDescCreate"));
  FLP_TRY(set_transpose(product, CUBLASLT_MATMUL_DESC_TRANSA, view.transpose_first));
  FLP_TRY(set_transpose(product, CUBLASLT_MATMUL_DESC_TRANSB, view.transpose_second));
  FLP_TRY(create_layout(library, &view.first, shape->dtype, &product->first));
  FLP_TRY(create_layout(library, &view.second, shape->dtype, &product->second));
  return create_layout(library, &view.out, shape->out_dtype, &product->out);
}

static flp_status no_algorithm(const gemm *product, const char *why) {
  const gemm_shape *shape = &product->shape;
  return flp_fail(FLP_ERROR_UNSUPPORTED,
                  "cuBLASLt has no algorithm for a product of m=%" PRId64 " n=%" PRId64 " k=%" PRId64 ": %s", shape->m,
                  shape->n, shape->k, why);
}

static flp_status find_algorithms(gemm *product, size_t workspace_bytes) {
  const cublaslt *library = product->library;
  cublasLtMatmulPreference_t preference = NULL;
  uint64_t limit = workspace_bytes;
  int count = 0;
  FLP_TRY(
      cublaslt_status(library, library->cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate"));
  flp_status status = cublaslt_status(library,
                                      library->cublasLtMatmulPreferenceSetAttribute(
                                          preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit),
                                      "cublasLtMatmulPreferenceSetAttribute");
  if (status == FLP_OK)
    status = cublaslt_status(library,
                             library->cublasLtMatmulAlgoGetHeuristic(
                                 library->handle, product->desc, product->first, product->second, product->out,
                                 product->out, preference, GEMM_ALGORITHMS_MAX, product->algorithm, &count),
                             "cublasLtMatmulAlgoGetHeuristic");
  library->cublasLtMatmulPreferenceDestroy(preference);
  if (status != FLP_OK) return no_algorithm(product, flp_error_detail());
  /* Those that do not apply are marked so, and dropped. */
  for (int i = 0; i < count; i++)
    if (product->algorithm[i].state == 0) product->algorithm[product->algorithm_count++] = product->algorithm[i];
  return product->algorithm_count ? FLP_OK : no_algorithm(product, "its heuristics name none");
}

flp_status gemm_create(const cublaslt *library, const gemm_shape *shape, size_t workspace_bytes, gemm *out) {
  *out = (gemm){.library = library, .shape = *shape};
  flp_status status = create_descriptors(out);
  if (status == FLP_OK) status = find_algorithms(out, workspace_bytes);
  if (status != FLP_OK) gemm_destroy(out);
  return status;
}

void gemm_destroy(gemm *product) {
  const cublaslt *library = product->library;
  cublasLtMatrixLayout_t layouts[] = {product->first, product->second, product->out};
  for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
    if (layouts[i]) library->cublasLtMatrixLayoutDestroy(layouts[i]);
  if (product->desc) library->cublasLtMatmulDescDestroy(product->desc);
  *product = (gemm){0};
}

/* ---- running ---- */

static flp_status enqueue_by(const gemm *product, int algorithm, CUstream stream) {
  const cublaslt *library = product->library;
  const float one = 1.0f, beta = product->shape.accumulate ? 1.0f : 0.0f;
  cublasStatus_t status = library->cublasLtMatmul(library->handle, product->desc, &one, product->b, product->first,
                                                  product->a, product->second, &beta, product->c, product->out,
                                                  product->c, product->out, &product->algorithm[algorithm].algo,
                                                  product->workspace, product->workspace_bytes, stream);
  return cublaslt_status(library, status, "cublasLtMatmul");
}

flp_status gemm_enqueue(gemm *product, CUstream stream) {
  return enqueue_by(product, product->chosen, stream);
}

static flp_status enqueue_item(void *context, CUstream stream) {
  return gemm_enqueue(context, stream);
}

measure_item gemm_item(gemm *product) {
  return (measure_item){.enqueue = enqueue_item, .context = product};
}

static flp_status enqueue_first(void *context, CUstream stream) {
  const gemm *product = context;
  return enqueue_by(product, product->first_algorithm, stream);
}

measure_item gemm_first_item(gemm *product) {
  return (measure_item){.enqueue = enqueue_first, .context = product};
}

/* One of a product's algorithms as a piece of work to measure. */
typedef struct attempt {
  const gemm *product;
  int algorithm;
} attempt;

static flp_status enqueue_attempt(void *context, CUstream stream) {
  const attempt *a = context;
  return enqueue_by(a->product, a->algorithm, stream);
}

/* Keeps the algorithms that the library does not refuse; the first call also loads the kernel. */
static flp_status try_all(gemm *product, measure_clock *clock, attempt *out, int *count) {
  *count = 0;
  for (int i = 0; i < product->algorithm_count; i++) {
    double ms = 0;
    out[*count] = (attempt){product, i};
    measure_item item = {.enqueue = enqueue_attempt, .context = &out[*count]};
    flp_status status = measure_burst(clock, &item, 1, &ms);
    if (status == FLP_ERROR_UNSUPPORTED) continue;
    FLP_TRY(status);
    ++*count;
  }
  return *count ? FLP_OK : no_algorithm(product, "every one that its heuristics name was refused");
}

flp_status gemm_choose(gemm *product, measure_clock *clock, const measure_options *options) {
  attempt attempts[GEMM_ALGORITHMS_MAX];
  measure_item items[GEMM_ALGORITHMS_MAX];
  measure_summary ms[GEMM_ALGORITHMS_MAX];
  int count = 0, best = 0;
  FLP_TRY(try_all(product, clock, attempts, &count));
  for (int i = 0; i < count; i++) items[i] = (measure_item){.enqueue = enqueue_attempt, .context = &attempts[i]};
  FLP_TRY(measure_run(clock, items, count, options, ms));
  for (int i = 1; i < count; i++)
    if (ms[i].median < ms[best].median) best = i;
  product->chosen = attempts[best].algorithm;
  product->first_algorithm = attempts[0].algorithm;
  return FLP_OK;
}

/* test_gemm.c: shapes of GEMM baselines and their column-major view; products, choices and failures on a stand-in. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autotune/gemm/gemm.h"
#include "tests/unit/support/clock_case.h"

static flp_spec head(void) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.vocab = 11;
  spec.hidden = 8;
  spec.dtype = FLP_DTYPE_FP32;
  spec.grad_hidden_dtype = spec.grad_weight_dtype = FLP_DTYPE_FP32;
  return spec;
}

/* ---- shapes ---- */

static void expect_view(gemm_product product, gemm_view expected) {
  flp_spec spec = head();
  gemm_shape shape = gemm_shape_of(product, &spec, 5, 11);
  gemm_view view = gemm_view_of(&shape);
  cr_expect_eq(memcmp(&view, &expected, sizeof view), 0, "%s: %lux%lu(%ld)%s x %lux%lu(%ld)%s = %lux%lu(%ld)",
               gemm_product_name(product), view.first.rows, view.first.columns, view.first.stride,
               view.transpose_first ? "T" : "", view.second.rows, view.second.columns, view.second.stride,
               view.transpose_second ? "T" : "", view.out.rows, view.out.columns, view.out.stride);
  cr_expect_eq(gemm_flops(&shape), 2.0 * 5 * 8 * 11, "every product of a head has as many");
}

Test(gemm, views_are_the_column_major_form) {
  /* N=5, V=11, D=8: hidden (5,8) is 8x5, weight (11,8) is 8x11, dz and scores (5,11) are 11x5 */
  expect_view(GEMM_SCORES, (gemm_view){{8, 11, 8}, {8, 5, 8}, {11, 5, 11}, 1, 0});
  expect_view(GEMM_GRAD_HIDDEN, (gemm_view){{8, 11, 8}, {11, 5, 11}, {8, 5, 8}, 0, 0});
  expect_view(GEMM_GRAD_WEIGHT, (gemm_view){{8, 5, 8}, {11, 5, 11}, {8, 11, 8}, 0, 1});
}

Test(gemm, outputs_have_the_dtypes_that_the_spec_asks_for) {
  flp_spec spec = head();
  spec.dtype = spec.grad_hidden_dtype = FLP_DTYPE_BF16;
  spec.accumulate_grad_weight = 1;
  gemm_shape scores = gemm_shape_of(GEMM_SCORES, &spec, 5, 11), hidden = gemm_shape_of(GEMM_GRAD_HIDDEN, &spec, 5, 11),
             weight = gemm_shape_of(GEMM_GRAD_WEIGHT, &spec, 5, 11);
  cr_expect_eq(scores.out_dtype, FLP_DTYPE_BF16);
  cr_expect_eq(hidden.out_dtype, FLP_DTYPE_BF16);
  cr_expect(weight.out_dtype == FLP_DTYPE_FP32 && weight.dtype == FLP_DTYPE_BF16 && weight.accumulate);
  cr_expect(!scores.accumulate && !hidden.accumulate);
}

/* ---- on the stand-in ---- */

static cublaslt open_fake(const char *script) {
  cublaslt library;
  setenv("FLP_CUBLASLT_LIBRARY", FLP_TEST_FAKE_CUBLASLT, 1);
  setenv("FAKE_CUBLASLT", script, 1);
  cr_assert_eq(cublaslt_open(&library), FLP_OK, "%s", flp_error_detail());
  return library;
}

static float value(int i) {
  return (float)((i * 37 + 11) % 29) - 14.0f;
}

/* The product of the row-major shape, by its definition. */
static float wanted(const gemm_shape *s, const float *a, const float *b, const float *before, int64_t i, int64_t j) {
  float sum = s->accumulate ? before[i * s->n + j] : 0;
  for (int64_t k = 0; k < s->k; k++)
    sum += (s->transpose_a ? a[k * s->m + i] : a[i * s->k + k]) * (s->transpose_b ? b[j * s->k + k] : b[k * s->n + j]);
  return sum;
}

static void expect_product(const cublaslt *library, gemm_product product, int accumulate) {
  flp_spec spec = head();
  gemm_shape shape = gemm_shape_of(product, &spec, 5, 11);
  float a[128], b[128], c[128], before[128], workspace[16];
  gemm g;
  shape.accumulate = accumulate;
  for (int i = 0; i < 128; i++) {
    a[i] = value(i);
    b[i] = value(1000 + i);
    c[i] = before[i] = value(2000 + i);
  }
  cr_assert_eq(gemm_create(library, &shape, sizeof workspace, &g), FLP_OK, "%s", flp_error_detail());
  g.a = a;
  g.b = b;
  g.c = c;
  g.workspace = workspace;
  g.workspace_bytes = sizeof workspace;
  cr_assert_eq(gemm_enqueue(&g, NULL), FLP_OK, "%s", flp_error_detail());
  for (int64_t i = 0; i < shape.m; i++)
    for (int64_t j = 0; j < shape.n; j++)
      cr_assert_eq(c[i * shape.n + j], wanted(&shape, a, b, before, i, j), "%s [%ld][%ld]", gemm_product_name(product),
                   i, j);
  cr_expect_eq(
      memcmp(c + shape.m * shape.n, before + shape.m * shape.n, (128 - (size_t)(shape.m * shape.n)) * sizeof *c), 0,
      "nothing beyond the result");
  gemm_destroy(&g);
}

Test(gemm, computes_the_product_of_its_shape) {
  cublaslt library = open_fake("");
  for (int product = 0; product < GEMM_PRODUCTS; product++)
    for (int accumulate = 0; accumulate < 2; accumulate++) expect_product(&library, (gemm_product)product, accumulate);
  cublaslt_close(&library);
}

Test(gemm, unfit_algorithms_are_dropped) {
  cublaslt library = open_fake("");
  flp_spec spec = head();
  gemm_shape shape = gemm_shape_of(GEMM_SCORES, &spec, 5, 11);
  gemm g;
  cr_assert_eq(gemm_create(&library, &shape, 64, &g), FLP_OK);
  cr_expect_eq(g.algorithm_count, 2);
  cr_expect(g.algorithm[0].algo.data[0] == 0 && g.algorithm[1].algo.data[0] == 2);
  gemm_destroy(&g);
  cublaslt_close(&library);
}

/* ---- choice, with a simulated clock ---- */

static double cost_ms[GEMM_ALGORITHMS_MAX];

/* Costs the algorithm's entry of the table; a negative cost is a refusal. */
static cublasStatus_t timed_matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                                   cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                                   const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                                   cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                                   size_t workspace_bytes, CUstream stream) {
  (void)handle, (void)desc, (void)alpha, (void)a, (void)a_layout, (void)b, (void)b_layout, (void)beta, (void)c,
      (void)c_layout, (void)d, (void)d_layout, (void)workspace, (void)workspace_bytes, (void)stream;
  double ms = cost_ms[algo->data[0]];
  now_ms += ms > 0 ? ms : 0;
  return ms < 0 ? 15 : 0;
}

/* first_ms: of a call by the first algorithm */
static flp_status choose(const double costs[3], int *chosen, double *first_ms) {
  cublaslt library = open_fake("");
  flp_spec spec = head();
  gemm_shape shape = gemm_shape_of(GEMM_SCORES, &spec, 5, 11);
  measure_clock clock = open_clock();
  gemm g;
  library.cublasLtMatmul = timed_matmul;
  memcpy(cost_ms, costs, 3 * sizeof *costs);
  cr_assert_eq(gemm_create(&library, &shape, 64, &g), FLP_OK);
  flp_status status = gemm_choose(&g, &clock, &(measure_options){.burst_ms = 10, .rounds = 3, .seed = 1});
  *chosen = g.chosen;
  measure_item first = gemm_first_item(&g);
  if (status == FLP_OK) cr_expect_eq(measure_burst(&clock, &first, 1, first_ms), FLP_OK);
  gemm_destroy(&g);
  measure_clock_destroy(&clock);
  cublaslt_close(&library);
  return status;
}

Test(gemm, the_fastest_algorithm_is_chosen) {
  int chosen = -1;
  double first_ms = -1;
  cr_expect_eq(choose((const double[]){2, 0, 3}, &chosen, &first_ms), FLP_OK);
  cr_expect(chosen == 0 && first_ms == 2);
  cr_expect_eq(choose((const double[]){3, 0, 2}, &chosen, &first_ms), FLP_OK);
  cr_expect(chosen == 1 && first_ms == 3);
  cr_expect_eq(choose((const double[]){-1, 0, 9}, &chosen, &first_ms), FLP_OK, "one that is refused is passed over");
  cr_expect(chosen == 1 && first_ms == 9);
  cr_expect_eq(choose((const double[]){-1, 0, -1}, &chosen, &first_ms), FLP_ERROR_UNSUPPORTED);
  cr_expect_str_eq(flp_error_detail(),
                   "cuBLASLt has no algorithm for a product of m=5 n=11 k=8: every one that its heuristics name was "
                   "refused");
}

/* ---- failures ---- */

static void expect_no_library(const char *path, const char *script, const char *why) {
  cublaslt library;
  char expected[2048];
  setenv("FLP_CUBLASLT_LIBRARY", path, 1);
  setenv("FAKE_CUBLASLT", script, 1);
  cr_expect_eq(cublaslt_open(&library), FLP_ERROR_UNAVAILABLE);
  snprintf(expected, sizeof expected,
           "cuBLASLt, for GEMM baselines, cannot be opened: %s (tried: %s); set FLP_CUBLASLT_LIBRARY to the path "
           "of libcublasLt.so.13 or libcublasLt.so.12",
           why, path);
  cr_expect_str_eq(flp_error_detail(), expected);
  cr_expect(!library.handle && !library.library);
}

Test(gemm, a_library_that_is_not_there_or_not_it_is_reported) {
  char why[1024];
  expect_no_library("/nonexistent/lt.so", "",
                    "/nonexistent/lt.so: cannot open shared object file: No such file or directory");
  snprintf(why, sizeof why, "%s has no symbol cublasLtGetVersion: it is not cuBLASLt 12 or newer", FLP_TEST_FAKE_CUDA);
  expect_no_library(FLP_TEST_FAKE_CUDA, "", why);
  snprintf(why, sizeof why, "cublasLtCreate of %s failed: CUBLAS_STATUS_NOT_INITIALIZED (1)", FLP_TEST_FAKE_CUBLASLT);
  expect_no_library(FLP_TEST_FAKE_CUBLASLT, "cublasLtCreate=1", why);
}

Test(gemm, a_shape_without_algorithm_is_reported) {
  cublaslt library = open_fake("cublasLtMatmulAlgoGetHeuristic=15");
  flp_spec spec = head();
  gemm_shape shape = gemm_shape_of(GEMM_GRAD_WEIGHT, &spec, 5, 11);
  gemm g;
  cr_expect_eq(gemm_create(&library, &shape, 64, &g), FLP_ERROR_UNSUPPORTED);
  cr_expect_str_eq(flp_error_detail(),
                   "cuBLASLt has no algorithm for a product of m=11 n=8 k=5: cublasLtMatmulAlgoGetHeuristic failed: "
                   "CUBLAS_STATUS_NOT_SUPPORTED (15)");
  cr_expect_null(g.desc);
  cublaslt_close(&library);
}

/* ---- places ---- */

static void touch(const char *directory, const char *name) {
  char command[2048];
  snprintf(command, sizeof command, "mkdir -p '%s' && touch '%s'/%s", directory, directory, name);
  cr_assert_eq(system(command), 0);
}

Test(gemm, wheels_of_the_python_at_hand_are_searched) {
  char root[512], part[768], path[1024];
  snprintf(root, sizeof root, "%s/lt-XXXXXX", FLP_TEST_SCRATCH);
  cr_assert(mkdtemp(root));
  snprintf(part, sizeof part, "%s/lib/python3.12/site-packages/nvidia/cublas/lib", root);
  touch(part, "libcublasLt.so.12");
  snprintf(part, sizeof part, "%s/lib/python3.12/site-packages/nvidia/cu13/lib", root);
  touch(part, "libcublasLt.so.13");
  unsetenv("FLP_CUBLASLT_LIBRARY");
  setenv("VIRTUAL_ENV", root, 1);
  cublaslt_places places;
  cublaslt_places_find(&places);
  cr_assert_geq(places.count, 4);
  cr_expect_str_eq(places.name[0], "libcublasLt.so.13", "the loader's path comes first");
  cr_expect_str_eq(places.name[1], "libcublasLt.so.12");
  snprintf(path, sizeof path, "%s/libcublasLt.so.13", part);
  cr_expect_str_eq(places.name[2], path, "then the newest in the environment");
  cublaslt_places_clear(&places);
  setenv("FLP_CUBLASLT_LIBRARY", "/one.so", 1);
  cublaslt_places_find(&places);
  cr_expect(places.count == 1 && strcmp(places.name[0], "/one.so") == 0, "a path that was given is the only one");
  cublaslt_places_clear(&places);
}

/* test_eager_blas.c: how a BLAS is opened, which are refused and why, and that rows keep their bits in it. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/eager/core.h"
#include "runtime/eager/eager.h"
#include "tests/unit/support/eager_case.h"
#include "tests/unit/support/rows.h"
#include "tests/unit/support/words.h"

#define FAKE FLP_TEST_FAKE_BLAS

static void use_fake(void) {
  setenv("FLP_BLAS_LIBRARY", FAKE, 1);
}

/* ---- products ---- */

typedef void (*multiply_fn)(eager_product product, const eager_matrices *x);

/* Beside the textbook's triple loop. padding: elements behind each row, which stay; equal: rows of a and of c are all
 * equal, and so are the bits of those of the product */
static void check_product(multiply_fn multiply, eager_product product, int m, int n, int k, int padding, int equal) {
  enum { ROWS = 1224, MOST = EAGER_TILE_COLUMNS * ROWS };
  static float a[MOST], b[MOST], c[MOST], before[MOST];
  int a_stride = (product == EAGER_GRAD_WEIGHT ? m : k) + padding, c_stride = n + padding;
  int b_stride = (product == EAGER_SCORES ? k : n) + padding;
  uint32_t state = 11;
  for (int i = 0; i < MOST; i++) {
    a[i] = equal && i >= a_stride ? a[i - a_stride] : (float)test_random(&state);
    b[i] = (float)test_random(&state);
    c[i] = before[i] = equal && i >= c_stride ? c[i - c_stride] : (float)test_random(&state);
  }
  eager_matrices x = {m, n, k, a, a_stride, b, b_stride, c, c_stride};
  multiply(product, &x);
  cr_assert_eq(memcmp(c + m * c_stride, before + m * c_stride, sizeof c - (size_t)(m * c_stride) * sizeof *c), 0);
  for (int i = 0; i < m * c_stride; i++) {
    int row = i / c_stride, column = i % c_stride;
    double sum = product == EAGER_SCORES ? 0 : (double)before[i];
    if (column >= n) {
      cr_assert_eq(c[i], before[i]);
      continue;
    }
    for (int d = 0; d < k; d++)
      sum += (double)a[product == EAGER_GRAD_WEIGHT ? d * a_stride + row : row * a_stride + d] *
             (double)b[product == EAGER_SCORES ? column * b_stride + d : d * b_stride + column];
    cr_assert_float_eq(c[i], sum, equal ? 1e-3 : 2e-5);
    if (equal && column == 0)
      cr_assert_eq(memcmp(c, c + i, (size_t)n * sizeof *c), 0, "product %d, n %d, k %d: row %d", product, n, k, row);
  }
}

static void expect_rows_keep_their_bits(void) {
  eager_blas_enter();
  for (int k = 8; k <= 1224; k += k < 64 ? 8 : 232)
    check_product(eager_multiply, EAGER_SCORES, EAGER_TILE_ROWS, EAGER_TILE_COLUMNS, k, 0, 1);
  for (int n = 8; n <= 512; n += n < 64 ? 8 : 56)
    check_product(eager_multiply, EAGER_GRAD_HIDDEN, EAGER_TILE_ROWS, n, EAGER_TILE_COLUMNS, 0, 1);
  eager_blas_leave();
}

Test(eager_blas, plain_products) {
  static const struct {
    eager_product product;
    int m, n, k;
  } rows[] = {{EAGER_SCORES, 64, 128, 24},       {EAGER_SCORES, 64, 128, 8},       {EAGER_GRAD_HIDDEN, 64, 24, 128},
              {EAGER_GRAD_HIDDEN, 64, 152, 128}, {EAGER_GRAD_WEIGHT, 128, 40, 64}};
  for (int i = 0; i < 5; i++)
    check_product(eager_multiply_plain, rows[i].product, rows[i].m, rows[i].n, rows[i].k, 8, 0);
}

static void expect_right(void) {
  flp_spec spec = words_spec("dtype=fp32 V=300 D=40 grads=hidden,weight");
  eager_case c;
  eager_case_create(&c, &spec, 70, 40);
  eager_case_forward(&c);
  eager_case_backward(&c);
  eager_case_check_forward(&c, 4e-7);
  eager_case_check_backward(&c, 3e-6);
  eager_case_destroy(&c);
}

/* Whatever OpenBLAS takes this processor for; one that it lacks the instructions of is not tried. */
static void try_core(const char *core) {
  if (*core) setenv("OPENBLAS_CORETYPE", core, 1);
  else unsetenv("OPENBLAS_CORETYPE");
  if (strstr(eager_blas_reason(), "cannot open")) cr_skip_test("no libopenblas.so.0");
  cr_expect(strncmp(eager_blas_name(), "OpenBLAS ", 9) == 0, "%s", flp_eager_describe());
  expect_rows_keep_their_bits();
  expect_right();
}

/* One of OpenBLAS's processors; "" is this one. */
static const char *const cores[] = {"",
#if defined(__x86_64__)
                                    "Haswell", "Zen", "Sandybridge"
#endif
};

static int runs_here(const char *core) {
#if defined(__x86_64__)
  if (strcmp(core, "Sandybridge") == 0) return __builtin_cpu_supports("avx");
  if (*core) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return 1;
}

ParameterizedTestParameters(eager_blas, openblas_of_a_processor) {
  return rows_numbered(sizeof cores / sizeof cores[0]);
}

ParameterizedTest(const int *at, eager_blas, openblas_of_a_processor) {
  if (!runs_here(cores[*at])) cr_skip_test("not the instructions of %s", cores[*at]);
  try_core(cores[*at]);
}

/* ---- libraries that are used or refused ---- */

static char logged[1024];
static int messages;

static void keep_log(flp_log_level level, const char *message, void *user) {
  (void)user;
  cr_expect_eq(level, FLP_LOG_WARNING);
  strncpy(logged, message, sizeof logged - 1);
  messages++;
}

static void expect_refused(const char *reason) {
  char text[1024];
  flp_log_set(keep_log, NULL);
  cr_expect_str_eq(eager_blas_name(), "plain C");
  cr_expect_str_eq(eager_blas_reason(), reason);
  snprintf(text, sizeof text, "plain C (%s), ", reason);
  cr_expect(strncmp(flp_eager_describe(), text, strlen(text)) == 0, "%s", flp_eager_describe());
  snprintf(text, sizeof text, "the CPU rung multiplies in plain C, which is slower: %s; FLP_BLAS_LIBRARY ", reason);
  cr_expect(strncmp(logged, text, strlen(text)) == 0, "%s", logged);
  cr_expect_eq(messages, 1);
  expect_right();
}

static const struct row {
  const char *library, *mode; /* mode: of the stand-in */
  const char *refusal;        /* NULL: it is used */
} rows[] = {
    {FAKE, "", NULL},        /* one order of sums */
    {FAKE, "haswell", NULL}, /* sums depend on the place, so it is called so that they do not */
    {FAKE, "by-call", "FakeBLAS 1.2 (" FAKE ") is not used: the bits of a row would depend on its place in a tile"},
    {FAKE, "wrong", "FakeBLAS 1.2 (" FAKE ") is not used: its sums are wrong"},
    {"libm.so.6", "", "libm.so.6 is not used: it has no cblas_sgemm"},
    {"/nonexistent/libblas.so", "",
     "/nonexistent/libblas.so: cannot open shared object file: No such file or directory"},
};

ParameterizedTestParameters(eager_blas, a_library_is_used_or_refused_by_name) {
  return rows_numbered(sizeof rows / sizeof rows[0]);
}

ParameterizedTest(const int *at, eager_blas, a_library_is_used_or_refused_by_name) {
  setenv("FLP_BLAS_LIBRARY", rows[*at].library, 1);
  setenv("FAKE_BLAS", rows[*at].mode, 1);
  if (rows[*at].refusal) return expect_refused(rows[*at].refusal);
  cr_expect_str_eq(eager_blas_name(), "FakeBLAS 1.2 (" FAKE ")");
  cr_expect_str_eq(eager_blas_reason(), "");
  expect_rows_keep_their_bits();
  expect_right();
}

/* ---- threads ---- */

Test(eager_blas, no_thread_is_started_and_processors_stay) {
  cpu_set_t before, after;
  cr_assert_eq(sched_getaffinity(0, sizeof before, &before), 0);
  use_fake();
  cr_expect(strncmp(eager_blas_name(), "FakeBLAS", 8) == 0, "%s", eager_blas_reason());
  cr_assert_eq(sched_getaffinity(0, sizeof after, &after), 0);
  cr_expect(CPU_EQUAL(&before, &after));
  void *library = dlopen(FAKE, RTLD_NOW | RTLD_NOLOAD);
  cr_assert(library);
  cr_expect_eq(*(int *)dlsym(library, "fake_blas_started"), 0);
}

Test(eager_blas, a_library_that_the_host_has_loaded_keeps_its_threads) {
  use_fake();
  void *library = dlopen(FAKE, RTLD_NOW);
  cr_assert(library);
  int (*get_threads)(void) = NULL;
  void (*set_threads)(int) = NULL;
  *(void **)&get_threads = dlsym(library, "openblas_get_num_threads");
  *(void **)&set_threads = dlsym(library, "openblas_set_num_threads");
  set_threads(5);
  eager_blas_enter();
  cr_expect_eq(get_threads(), 1);
  eager_blas_enter();
  eager_blas_leave();
  cr_expect_eq(get_threads(), 1);
  eager_blas_leave();
  cr_expect_eq(get_threads(), 5);
}

/* ---- forks ---- */

static atomic_int stop;

static void multiply_a_tile(void) {
  static _Thread_local float a[EAGER_TILE_ROWS * 8], b[EAGER_TILE_COLUMNS * 8], c[EAGER_TILE_ROWS * EAGER_TILE_COLUMNS];
  eager_matrices x = {EAGER_TILE_ROWS, EAGER_TILE_COLUMNS, 8, a, 8, b, 8, c, EAGER_TILE_COLUMNS};
  eager_blas_enter();
  eager_multiply(EAGER_SCORES, &x);
  eager_blas_leave();
}

static void *multiply_on(void *nothing) {
  while (!atomic_load(&stop)) multiply_a_tile();
  return nothing;
}

Test(eager_blas, a_child_has_the_locks_of_the_library_free) {
  use_fake();
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) cr_assert_eq(pthread_create(&threads[i], NULL, multiply_on, NULL), 0);
  for (int i = 0; i < 50; i++) {
    pid_t child = fork();
    if (child == 0) {
      alarm(60);
      multiply_a_tile();
      _exit(0);
    }
    int state;
    cr_assert_eq(waitpid(child, &state, 0), child);
    cr_assert_eq(state, 0, "child %d ended with %#x", i, state);
  }
  atomic_store(&stop, 1);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

/* fake_blas.c: stands in for libopenblas. It starts its threads as OpenBLAS does, when it is loaded, and sums in an
 * order that FAKE_BLAS chooses.
 *
 * FAKE_BLAS is one of
 *   (unset)   every element alike
 *   haswell   as OpenBLAS' kernel for Haswell and Zen: by the place of an element among 12 rows and 16 columns
 *   by-call   another order in every second call and row: no way to call it keeps the bits of a row
 *   wrong     sums that are wrong */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int fake_blas_started; /* threads, when it was loaded */
static int threads, calls;

static enum { ALIKE, HASWELL, BY_CALL, WRONG } mode;

static void read_mode(void) {
  static const char *const names[] = {[HASWELL] = "haswell", [BY_CALL] = "by-call", [WRONG] = "wrong"};
  const char *given = getenv("FAKE_BLAS");
  for (int i = HASWELL; given && i <= WRONG; i++)
    if (strcmp(given, names[i]) == 0) mode = i;
}

static void *sleep_on(void *nothing) {
  pause();
  return nothing;
}

__attribute__((constructor)) static void start(void) {
  cpu_set_t set;
  read_mode();
  threads = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  pthread_t thread;
  for (int i = 1; i < threads; i++, fake_blas_started++)
    if (pthread_create(&thread, NULL, sleep_on, NULL) != 0) raise(SIGINT);
}

void openblas_set_num_threads(int count) {
  threads = count;
}

int openblas_get_num_threads(void) {
  return threads;
}

const char *scipy_openblas_get_config(void) {
  return "FakeBLAS 1.2 FOR_TESTS";
}

enum { TRANSPOSE = 112 };

/* Whether the sum of an element is taken of even and odd k apart. As BLAS sees them, rows are columns of the result:
 * `row` is one of n, `column` one of m. */
static int splits(int row, int n, int column, int m) {
  if (mode == BY_CALL) return (row + calls) & 1;
  if (mode != HASWELL) return 0;
  if (row >= n / 12 * 12 || m < 16) return 1;
  int is_first_six = row % 12 < 6, is_last = column >= m - 8;
  return is_first_six ? column < 8 || (m % 16 == 0 && is_last) : m % 16 == 8 && is_last;
}

void cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a,
                 int a_stride, const float *b, int b_stride, float beta, float *c, int c_stride) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* as OpenBLAS has one for its buffers */
  (void)order;
  pthread_mutex_lock(&lock);
  calls++;
  for (int i = 0; i < m; i++)
    for (int j = 0; j < n; j++) {
      float sums[2] = {0, 0};
      int odd = splits(i, m, j, n); /* 1: odd k have a sum of their own */
      for (int d = 0; d < k; d++)
        sums[d & odd] += (transpose_a == TRANSPOSE ? a[d * a_stride + i] : a[i * a_stride + d]) *
                         (transpose_b == TRANSPOSE ? b[j * b_stride + d] : b[d * b_stride + j]);
      float *out = &c[i * c_stride + j];
      *out = alpha * (sums[0] + sums[1]) + (beta == 0 ? 0 : beta * *out) + (mode == WRONG ? 1.0f : 0.0f);
    }
  pthread_mutex_unlock(&lock);
}

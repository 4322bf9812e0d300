/* blas_tiles.c: tiles handed to a BLAS so that a row has the same bits wherever it stands in its tile.
 *
 * A BLAS may sum an element in an order that depends on the element's place. OpenBLAS' kernel for Haswell and Zen
 * (sgemm_kernel_8x4_haswell_2.c) takes our rows 12 at a time and, at the edges of 16 columns, sums even and odd k
 * apart for 6 of the 12. Groups of 8 rows do not reach that code; with 16 rows as its columns every row has the same
 * share of it. Of scores, which are most of the work, the second is 1.4 times faster; a whole tile, where bits allow
 * it, 1.9 times. A gradient of weight sums over rows, so its tile may be handed over whole. */
#include <math.h>
#include <string.h>

#include "runtime/eager/blas.h"

enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112, TURNED_ROWS = 16 };

/* What each product transposes. */
static const struct {
  int a, b;
} transposes[EAGER_PRODUCTS] = {[EAGER_SCORES] = {NO_TRANSPOSE, TRANSPOSE},
                                [EAGER_GRAD_HIDDEN] = {NO_TRANSPOSE, NO_TRANSPOSE},
                                [EAGER_GRAD_WEIGHT] = {TRANSPOSE, NO_TRANSPOSE}};

static void multiply(eager_sgemm_fn sgemm, eager_product product, const eager_matrices *x, int m, const float *a,
                     float *c) {
  sgemm(ROW_MAJOR, transposes[product].a, transposes[product].b, m, x->n, x->k, 1.0f, a, (int)x->a_stride, x->b,
        (int)x->b_stride, product == EAGER_SCORES ? 0.0f : 1.0f, c, (int)x->c_stride);
}

static void multiply_whole(eager_sgemm_fn sgemm, eager_product product, const eager_matrices *x) {
  multiply(sgemm, product, x, x->m, x->a, x->c);
}

static void multiply_by_eight(eager_sgemm_fn sgemm, eager_product product, const eager_matrices *x) {
  for (int i = 0; i < x->m; i += 8) multiply(sgemm, product, x, 8, x->a + i * x->a_stride, x->c + i * x->c_stride);
}

/* Scores of 16 rows at a time, transposed: (n,16) <- b (n,k) · a (16,k)^T. */
static void multiply_turned(eager_sgemm_fn sgemm, eager_product product, const eager_matrices *x) {
  (void)product;
  float turned[EAGER_TILE_COLUMNS * TURNED_ROWS];
  for (int i = 0; i < x->m; i += TURNED_ROWS) {
    sgemm(ROW_MAJOR, NO_TRANSPOSE, TRANSPOSE, x->n, TURNED_ROWS, x->k, 1.0f, x->b, (int)x->b_stride,
          x->a + i * x->a_stride, (int)x->a_stride, 0.0f, turned, TURNED_ROWS);
    for (int row = 0; row < TURNED_ROWS; row++)
      for (int j = 0; j < x->n; j++) x->c[(i + row) * x->c_stride + j] = turned[j * TURNED_ROWS + row];
  }
}

/* From fast to slow. */
typedef void (*way_fn)(eager_sgemm_fn sgemm, eager_product product, const eager_matrices *x);
enum { WAYS_MAX = 3 };
static const way_fn ways[EAGER_PRODUCTS][WAYS_MAX] = {
    [EAGER_SCORES] = {multiply_whole, multiply_turned, multiply_by_eight},
    [EAGER_GRAD_HIDDEN] = {multiply_whole, multiply_by_eight},
    [EAGER_GRAD_WEIGHT] = {multiply_whole}};

void eager_blas_tiles_multiply(const eager_blas_tiles *tiles, eager_product product, const eager_matrices *x) {
  ways[product][tiles->way[product]](tiles->sgemm, product, x);
}

/* ---- the probe ---- */

enum { DEPTH_MAX = 584, WIDTH_MAX = EAGER_DEPTH_BLOCK };

/* Shapes that passes use: depths of scores below and above the least that OpenBLAS splits, and ragged; whole and
 * ragged blocks of gradients. */
static const struct {
  eager_product product;
  int m, n, k;
} shapes[] = {{EAGER_SCORES, EAGER_TILE_ROWS, EAGER_TILE_COLUMNS, DEPTH_MAX},
              {EAGER_SCORES, EAGER_TILE_ROWS, EAGER_TILE_COLUMNS, 264},
              {EAGER_SCORES, EAGER_TILE_ROWS, EAGER_TILE_COLUMNS, 8},
              {EAGER_GRAD_HIDDEN, EAGER_TILE_ROWS, WIDTH_MAX, EAGER_TILE_COLUMNS},
              {EAGER_GRAD_HIDDEN, EAGER_TILE_ROWS, 72, EAGER_TILE_COLUMNS},
              {EAGER_GRAD_HIDDEN, EAGER_TILE_ROWS, 8, EAGER_TILE_COLUMNS},
              {EAGER_GRAD_WEIGHT, EAGER_TILE_COLUMNS, WIDTH_MAX, EAGER_TILE_ROWS},
              {EAGER_GRAD_WEIGHT, EAGER_TILE_COLUMNS, 8, EAGER_TILE_ROWS}};

typedef struct samples {
  float a[EAGER_TILE_COLUMNS * DEPTH_MAX], b[EAGER_TILE_COLUMNS * DEPTH_MAX]; /* a (m,k): equal rows */
  float c[EAGER_TILE_COLUMNS * WIDTH_MAX];
} samples;

/* Fills the operands of a product: random but for the rows of a, which are equal, and ones, which gradients add to. */
static eager_matrices sample(samples *s, eager_product product, int m, int n, int k) {
  int is_weight = product == EAGER_GRAD_WEIGHT;
  uint32_t state = 1;
  for (size_t i = 0; i < sizeof s->b / sizeof s->b[0]; i++) {
    state = state * 1664525u + 1013904223u;
    s->b[i] = (float)(state >> 8) * 0x1p-23f - 1.0f;
  }
  for (int i = 0; i < m; i++)
    for (int d = 0; d < k; d++) s->a[is_weight ? d * m + i : i * k + d] = s->b[(d * 37 + 5) % (DEPTH_MAX * 3)];
  for (int i = 0; i < m * n; i++) s->c[i] = 1.0f;
  return (eager_matrices){m, n, k, s->a, is_weight ? m : k, s->b, product == EAGER_SCORES ? k : n, s->c, n};
}

static int is_right(const eager_matrices *x, eager_product product) {
  int64_t a_step = product == EAGER_GRAD_WEIGHT ? x->a_stride : 1;
  int64_t b_step = product == EAGER_SCORES ? 1 : x->b_stride, b_next = product == EAGER_SCORES ? x->b_stride : 1;
  for (int j = 0; j < x->n; j++) {
    double sum = product == EAGER_SCORES ? 0 : 1;
    for (int d = 0; d < x->k; d++) sum += (double)x->a[d * a_step] * (double)x->b[j * b_next + d * b_step];
    for (int i = 0; i < x->m; i++)
      if (!(fabs(sum - (double)x->c[i * x->c_stride + j]) < 1e-3)) return 0;
  }
  return 1;
}

static int rows_are_equal(const eager_matrices *x) {
  for (int i = 1; i < x->m; i++)
    if (memcmp(x->c, x->c + i * x->c_stride, (size_t)x->n * sizeof *x->c) != 0) return 0;
  return 1;
}

typedef enum verdict { PASSES, BITS_DEPEND_ON_PLACE, IS_WRONG } verdict;

static verdict probe(samples *s, const eager_blas_tiles *tiles, eager_product product) {
  verdict worst = PASSES;
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    if (shapes[i].product != product) continue;
    eager_matrices x = sample(s, product, shapes[i].m, shapes[i].n, shapes[i].k);
    eager_blas_tiles_multiply(tiles, product, &x);
    if (!is_right(&x, product)) return IS_WRONG;
    if (product != EAGER_GRAD_WEIGHT && !rows_are_equal(&x)) worst = BITS_DEPEND_ON_PLACE;
  }
  return worst;
}

const char *eager_blas_tiles_find(eager_sgemm_fn sgemm, eager_blas_tiles *out) {
  static const char *const refusals[] = {
      [BITS_DEPEND_ON_PLACE] = "the bits of a row would depend on its place in a tile",
      [IS_WRONG] = "its sums are wrong"};
  static samples s; /* under the caller's once */
  out->sgemm = sgemm;
  for (int product = 0; product < EAGER_PRODUCTS; product++) {
    verdict found = IS_WRONG;
    for (int way = 0; way < WAYS_MAX && ways[product][way] && found != PASSES; way++) {
      out->way[product] = way;
      found = probe(&s, out, (eager_product)product);
    }
    if (found != PASSES) return refusals[found];
  }
  return NULL;
}

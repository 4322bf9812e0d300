/* mixture.c: hidden states whose scores at a row's columns are as asked for, whatever the columns have in common.
 *
 * They are mixtures of the columns a_k: h = Σ c_k a_k has the scores G c, where G is the columns' Gram matrix. c is
 * found by conjugate gradients, for all parts of a row at once; G is never formed. Columns of many elements are nearly
 * orthogonal, and a few steps do.
 * source: Hestenes and Stiefel, J. Res. NBS 49 (1952)
 *
 * Invariant: sums have one order, which depends on the number of columns and elements alone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/bench/eight.h"
#include "gen/cli/bench/rows.h"
#include "runtime/base/status.h"

/* Added to G, which is singular where there are more columns than elements; the residual, relative to what is asked
 * for, at which steps end. 64 steps are for such columns; 160 of 4096 elements take 6. */
#define RIDGE 1e-3
#define TOLERANCE 1e-4
enum { STEPS = 64 };

/* By column and part: coefficients, or scores. */
typedef struct vectors {
  double at[ROWS_FAVOURED][ROWS_PARTS];
} vectors;

/* Coefficients as elements are multiplied by them. */
typedef struct factors {
  float at[ROWS_FAVOURED][ROWS_PARTS];
} factors;

/* Elements of one block, by part. */
typedef struct mixture {
  float at[ROWS_PARTS][ROWS_BLOCK];
} mixture;

/* Partial sums of scores. */
typedef struct products {
  eight at[ROWS_FAVOURED][ROWS_PARTS];
} products;

static int64_t blocks_of(int64_t depth) {
  return (depth + ROWS_BLOCK - 1) / ROWS_BLOCK;
}

flp_status rows_columns_create(int count, int64_t depth, rows_columns *out) {
  *out = (rows_columns){.count = count, .depth = depth};
  out->block = calloc((size_t)(blocks_of(depth) * count) * ROWS_BLOCK, sizeof *out->block);
  return out->block ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "out of host memory for the columns of a row");
}

void rows_columns_destroy(rows_columns *columns) {
  free(columns->block);
  *columns = (rows_columns){0};
}

static int64_t width_of(const rows_columns *columns, int64_t block) {
  int64_t left = columns->depth - block * ROWS_BLOCK;
  return left < ROWS_BLOCK ? left : ROWS_BLOCK;
}

static float *block_of(const rows_columns *columns, int64_t block, int k) {
  return columns->block + (block * columns->count + k) * ROWS_BLOCK;
}

void rows_columns_set(rows_columns *columns, int k, const float *values) {
  for (int64_t block = 0; block < blocks_of(columns->depth); block++)
    memcpy(block_of(columns, block, k), values + block * ROWS_BLOCK, (size_t)width_of(columns, block) * sizeof *values);
}

/* A sum for each part: written out, as compilers do not unroll a loop over them. */
static void combine(const rows_columns *columns, int64_t block, const factors *c, mixture *out) {
  for (int group = 0; group < ROWS_BLOCK; group += 8) {
    eight level = {{0}, {0}}, slope = level, first = level;
    for (int k = 0; k < columns->count; k++) {
      eight a = eight_load(block_of(columns, block, k) + group);
      level = eight_add_scaled(level, c->at[k][0], a);
      slope = eight_add_scaled(slope, c->at[k][1], a);
      first = eight_add_scaled(first, c->at[k][2], a);
    }
    eight_store(out->at[0] + group, level);
    eight_store(out->at[1] + group, slope);
    eight_store(out->at[2] + group, first);
  }
}

static void project(const rows_columns *columns, int64_t block, const mixture *of, products *sums) {
  for (int k = 0; k < columns->count; k++) {
    eight level = sums->at[k][0], slope = sums->at[k][1], first = sums->at[k][2];
    for (int group = 0; group < ROWS_BLOCK; group += 8) {
      eight a = eight_load(block_of(columns, block, k) + group);
      level = eight_add(level, a, eight_load(of->at[0] + group));
      slope = eight_add(slope, a, eight_load(of->at[1] + group));
      first = eight_add(first, a, eight_load(of->at[2] + group));
    }
    sums->at[k][0] = level;
    sums->at[k][1] = slope;
    sums->at[k][2] = first;
  }
}

static factors factors_of(const rows_columns *columns, const vectors *c) {
  factors out = {0};
  for (int k = 0; k < columns->count; k++)
    for (int m = 0; m < ROWS_PARTS; m++) out.at[k][m] = (float)c->at[k][m];
  return out;
}

/* out = (G + RIDGE) c */
static void apply(const rows_columns *columns, const vectors *c, vectors *out) {
  products sums;
  memset(&sums, 0, sizeof sums);
  factors coefficients = factors_of(columns, c);
  mixture mixed;
  for (int64_t block = 0; block < blocks_of(columns->depth); block++) {
    combine(columns, block, &coefficients, &mixed);
    project(columns, block, &mixed, &sums);
  }
  for (int k = 0; k < columns->count; k++)
    for (int m = 0; m < ROWS_PARTS; m++) out->at[k][m] = eight_sum(sums.at[k][m]) + RIDGE * c->at[k][m];
}

static void dot(const vectors *a, const vectors *b, int count, double out[ROWS_PARTS]) {
  for (int m = 0; m < ROWS_PARTS; m++) {
    out[m] = 0;
    for (int k = 0; k < count; k++) out[m] += a->at[k][m] * b->at[k][m];
  }
}

/* to += factor * from, or from + factor * to where it is turned. */
static void add(vectors *to, const vectors *from, const double factor[ROWS_PARTS], int count, int turned) {
  for (int k = 0; k < count; k++)
    for (int m = 0; m < ROWS_PARTS; m++)
      to->at[k][m] = turned ? from->at[k][m] + factor[m] * to->at[k][m] : to->at[k][m] + factor[m] * from->at[k][m];
}

static int is_small(const double squares[ROWS_PARTS], const double wanted[ROWS_PARTS]) {
  for (int m = 0; m < ROWS_PARTS; m++)
    if (squares[m] > TOLERANCE * TOLERANCE * wanted[m]) return 0;
  return 1;
}

/* Coefficients with which the columns score as asked. rest: the scores on entry, what is left of them on return */
static void solve(const rows_columns *columns, vectors *rest, vectors *out) {
  vectors way = *rest, image;
  double wanted[ROWS_PARTS], squares[ROWS_PARTS], next[ROWS_PARTS], along[ROWS_PARTS], step[ROWS_PARTS],
      back[ROWS_PARTS];
  memset(out, 0, sizeof *out);
  dot(rest, rest, columns->count, squares);
  memcpy(wanted, squares, sizeof wanted);
  for (int i = 0; i < STEPS && !is_small(squares, wanted); i++) {
    apply(columns, &way, &image);
    dot(&way, &image, columns->count, along);
    for (int m = 0; m < ROWS_PARTS; m++) {
      step[m] = along[m] > 0 ? squares[m] / along[m] : 0;
      back[m] = -step[m];
    }
    add(out, &way, step, columns->count, 0);
    add(rest, &image, back, columns->count, 0);
    dot(rest, rest, columns->count, next);
    for (int m = 0; m < ROWS_PARTS; m++) step[m] = squares[m] > 0 ? next[m] / squares[m] : 0;
    add(&way, rest, step, columns->count, 1);
    memcpy(squares, next, sizeof squares);
  }
}

/* Scores of chance at the columns, in the first part. */
static void score_chance(const rows_columns *columns, const float *chance, vectors *out) {
  products sums;
  memset(&sums, 0, sizeof sums);
  for (int64_t block = 0; block < blocks_of(columns->depth); block++) {
    mixture one = {0};
    memcpy(one.at[0], chance + block * ROWS_BLOCK, (size_t)width_of(columns, block) * sizeof *chance);
    project(columns, block, &one, &sums);
  }
  for (int k = 0; k < columns->count; k++) out->at[k][0] = eight_sum(sums.at[k][0]);
}

void rows_parts(const rows_columns *columns, const float *chance, float *out) {
  vectors wanted = {0}, found;
  score_chance(columns, chance, &wanted);
  for (int k = 0; k < columns->count; k++) {
    wanted.at[k][0] = ROWS_TOP - wanted.at[k][0];
    wanted.at[k][1] = log(k + 1);
    wanted.at[k][2] = k == 0;
  }
  solve(columns, &wanted, &found);
  factors coefficients = factors_of(columns, &found);
  for (int64_t block = 0; block < blocks_of(columns->depth); block++) {
    mixture mixed;
    combine(columns, block, &coefficients, &mixed);
    for (int m = 0; m < ROWS_PARTS; m++)
      memcpy(out + m * columns->depth + block * ROWS_BLOCK, mixed.at[m],
             (size_t)width_of(columns, block) * sizeof *out);
  }
  for (int64_t i = 0; i < columns->depth; i++) out[i] += chance[i];
}

static double between(double low, double x, double high) {
  return fmin(fmax(x, low), high);
}

/* Above 0 the first column is raised, from 0 to -1 fall goes to 0, below all scores shrink, to a fiftieth. */
void rows_mix(const float *parts, int64_t depth, double number, double scale, float *out) {
  float raised = (float)(ROWS_RAISE * fmax(number, 0) / scale),
        fall = (float)(ROWS_FALL * (1 + between(-1, number, 0)));
  float factor = (float)((1 + 0.98 * fmin(number + 1, 0)) / scale);
  const float *level = parts, *slope = parts + depth, *first = parts + 2 * depth;
  for (int64_t i = 0; i < depth; i++) out[i] = (level[i] - slope[i] * fall) * factor + first[i] * raised;
}

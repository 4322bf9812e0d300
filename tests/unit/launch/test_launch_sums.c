/* test_launch_sums.c: the chunks of the backward pass, portable and through tensor maps, followed launch by launch:
 * every gradient element is summed over all that adds to it, and ends in one place; arrays are within the workspace. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/kernel/abi.h"
#include "tests/unit/support/launch_case.h"
#include "tests/unit/support/rows.h"

enum { COUNT_MAX = 4096, HIDDEN = 0, WEIGHT, BIAS, OUTPUTS };

/* A chunk of rows and columns. */
typedef struct range {
  int64_t row_begin, row_end, column_begin, column_end;
} range;

#define RANGE(p) ((range){(p).row_begin, (p).row_end, (p).column_begin, (p).column_end})

/* A gradient, and what has reached it so far, by rows of hidden or of the head. */
typedef struct output {
  uint64_t given, sums; /* where the caller wants it; bytes of its sums in the workspace */
  flp_dtype dtype;
  int is_wanted, is_begun; /* is_begun: the caller's own is added to */
  uint8_t begun[COUNT_MAX], written[COUNT_MAX]; /* something is summed; how often the final value was written */
  int64_t covered[COUNT_MAX];                   /* terms summed */
} output;

typedef struct follower {
  const flp_args *args;
  uint64_t element; /* bytes */
  range dz;         /* of the last one */
  uint64_t dz_at, dz_stride, bias_part;
  int gathers, chunks;
  output to[OUTPUTS];
} follower;

static void expect_in_workspace(const follower *f, uint64_t pointer, uint64_t bytes) {
  uint64_t start = stage_address(f->args->workspace);
  cr_expect(pointer >= start && pointer + bytes <= start + f->args->workspace_bytes, "%lx", (unsigned long)pointer);
}

/* Tiles of 128 x 256 cover it. */
static void expect_grid(const fake_launch *l, int32_t tiles_m, int32_t tiles_n, int64_t m, int64_t n) {
  cr_expect(tiles_m == (m + 127) / 128 && tiles_n == (n + 255) / 256, "%s", l->entry);
  cr_expect_eq(l->grid, (unsigned)(tiles_m * tiles_n), "%s", l->entry);
}

static void follow_dz(follower *f, range r, uint64_t dz, uint64_t stride, uint64_t bias_part, uint64_t tiles) {
  uint64_t rows = (uint64_t)(r.row_end - r.row_begin), columns = (uint64_t)(r.column_end - r.column_begin);
  f->dz = r;
  f->dz_at = dz;
  f->dz_stride = stride;
  f->bias_part = bias_part;
  f->chunks++;
  cr_expect(stride % 128 == 0 && stride >= columns * f->element);
  expect_in_workspace(f, dz, rows * stride);
  if (!bias_part) return;
  expect_in_workspace(f, bias_part, tiles * columns * 4);
  cr_expect_geq(bias_part, dz + rows * stride);
}

/* The chunk of dz adds to an output: reads must find something, the value is written once, and sums are in the
 * workspace or in an fp32 gradient itself. */
static void add(follower *f, int which, range r, int flags, uint64_t acc, uint64_t out) {
  output *to = &f->to[which];
  int reads = (flags & FLP_PRODUCT_READ_ACC) != 0, goes_on = (flags & FLP_PRODUCT_WRITE_ACC) != 0;
  int ends = (flags & FLP_PRODUCT_WRITE_OUT) != 0;
  int64_t begin = which == HIDDEN ? r.row_begin : r.column_begin, end = which == HIDDEN ? r.row_end : r.column_end;
  cr_expect_eq(memcmp(&r, &f->dz, sizeof r), 0);
  cr_assert_neq(goes_on, ends);
  if (ends || (which == WEIGHT && to->dtype == FLP_DTYPE_BF16)) /* which holds upper halves between chunks */
    cr_expect_eq(out, to->given);
  if ((reads || goes_on) && acc == to->given) cr_expect_eq(to->dtype, FLP_DTYPE_FP32);
  if ((reads || goes_on) && acc != to->given) expect_in_workspace(f, acc, to->sums);
  for (int64_t i = begin; i < end; i++) {
    cr_assert_eq(reads, to->begun[i] || to->is_begun, "element %ld", (long)i);
    cr_assert_eq(to->written[i], 0, "element %ld was final", (long)i);
    to->begun[i] = 1;
    to->covered[i] += which == HIDDEN ? r.column_end - r.column_begin : r.row_end - r.row_begin;
    to->written[i] += ends;
  }
}

static int flags_of(int read_acc, int write_acc, int write_out) {
  return (read_acc ? FLP_PRODUCT_READ_ACC : 0) | (write_acc ? FLP_PRODUCT_WRITE_ACC : 0) |
         (write_out ? FLP_PRODUCT_WRITE_OUT : 0);
}

static void follow_product(follower *f, const fake_launch *l, int which) {
  flp_grad_hidden_params p = STAGE_PARAMS(flp_grad_hidden_params, l);
  cr_expect(p.dz == f->dz_at && (uint64_t)p.dz_stride * f->element == f->dz_stride);
  int64_t m = which == HIDDEN ? p.row_end - p.row_begin : p.column_end - p.column_begin;
  expect_grid(l, p.tiles_m, p.tiles_n, m, spec.hidden);
  add(f, which, RANGE(p), flags_of(p.read_acc, p.write_acc, p.write_out), p.acc, p.out);
}

static void follow_products(follower *f, const fake_launch *l) {
  flp_products_map_params p;
  memcpy(&p, l->params, sizeof p);
  stage_map dz = stage_read_map(&p.dz_map);
  cr_expect(dz.start == f->dz_at && dz.stride_bytes == f->dz_stride);
  if (p.hidden_flags) add(f, HIDDEN, RANGE(p), p.hidden_flags, p.hidden_acc, p.hidden_out);
  if (p.weight_flags) add(f, WEIGHT, RANGE(p), p.weight_flags, p.weight_acc, p.weight_out);
}

static void follow_launch(follower *f, const fake_launch *l) {
  f->gathers += strcmp(l->entry, "gather") == 0;
  if (strcmp(l->entry, "grad_hidden") == 0) follow_product(f, l, HIDDEN);
  if (strcmp(l->entry, "grad_weight") == 0) follow_product(f, l, WEIGHT);
  if (strcmp(l->entry, "products_map") == 0) follow_products(f, l);
  if (strcmp(l->entry, "dz") == 0) {
    flp_dz_params p = STAGE_PARAMS(flp_dz_params, l);
    expect_grid(l, p.tiles_m, p.tiles_n, p.row_end - p.row_begin, p.column_end - p.column_begin);
    follow_dz(f, RANGE(p), p.dz, (uint64_t)p.dz_stride * f->element, p.bias_part, (uint64_t)p.tiles_m);
  }
  if (strcmp(l->entry, "dz_map") == 0) {
    flp_dz_map_params p;
    memcpy(&p, l->params, sizeof p);
    stage_map dz = stage_read_map(&p.dz_map);
    follow_dz(f, RANGE(p), dz.start, dz.stride_bytes, p.bias_part, (uint64_t)(p.row_end - p.row_begin + 255) / 256 * 2);
  }
  if (strcmp(l->entry, "bias_reduce") == 0) {
    flp_bias_reduce_params p = STAGE_PARAMS(flp_bias_reduce_params, l);
    cr_expect(p.bias_part && p.bias_part == f->bias_part);
    add(f, BIAS, RANGE(p), flags_of(p.read_acc, p.write_acc, p.write_out), p.acc, p.out);
  }
}

/* ---- one pass ---- */

/* Bytes of the weight's sums in the workspace: fp32, or half a byte or one for each element of whole tiles where the
 * gradient has the others. */
static uint64_t weight_sums(int64_t chunks, int is_mapped) {
  int64_t tile_rows = is_mapped ? 256 : 128, tile_columns = is_mapped && spec.dtype == FLP_DTYPE_FP32 ? 128 : 256;
  if (spec.grad_weight_dtype != FLP_DTYPE_BF16) return (uint64_t)(spec.vocab * spec.hidden) * 4;
  int64_t rows = (spec.vocab + tile_rows - 1) / tile_rows * tile_rows;
  uint64_t elements = (uint64_t)(rows * ((spec.hidden + tile_columns - 1) / tile_columns * tile_columns));
  return chunks <= 4 ? elements / 2 : elements;
}

static void expect_ledger(const output *to, int64_t count, int64_t terms, int in_place) {
  for (int64_t i = 0; i < count; i++) {
    cr_assert_eq(to->covered[i], to->is_wanted ? terms : 0, "element %ld covers %ld of %ld", (long)i,
                 (long)to->covered[i], (long)terms);
    cr_assert_eq(to->written[i], to->is_wanted && !in_place, "element %ld written %d times", (long)i, to->written[i]);
  }
}

static void set_output(output *to, const void *given, uint64_t sums, flp_dtype dtype) {
  to->given = stage_address(given);
  to->is_wanted = given != NULL;
  to->sums = sums;
  to->dtype = dtype;
}

/* Runs one pass and follows it; returns the mode. valid: columns, 0 for all */
static flp_mode run(int is_mapped, int64_t n, int64_t valid, uint64_t budget) {
  static follower f;
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, n, budget, &layout), FLP_OK, "%s", flp_error_detail());
  flp_args a = stage_args(&spec, FLP_PASS_BACKWARD, n);
  a.vocab_valid = valid;
  a.vocab_total = spec.vocab;
  a.workspace_bytes = layout.bytes;
  stage_execute(&s, plan, &a);
  memset(&f, 0, sizeof f);
  f.args = &a;
  f.element = spec.dtype == FLP_DTYPE_FP32 ? 4 : 2;
  set_output(&f.to[HIDDEN], a.grad_hidden, (uint64_t)(n * spec.hidden) * 4, spec.dtype);
  set_output(&f.to[WEIGHT], a.grad_weight, weight_sums(layout.chunks, is_mapped), spec.grad_weight_dtype);
  set_output(&f.to[BIAS], a.grad_bias, (uint64_t)spec.vocab * 4, spec.grad_bias_dtype);
  f.to[WEIGHT].is_begun = spec.accumulate_grad_weight;
  for (size_t i = 0; i < s.launch_count(); i++) follow_launch(&f, s.launch_at(i));
  int64_t columns = valid ? valid : spec.vocab;
  int by_rows = layout.mode == FLP_MODE_RECOMPUTE_ROWS, is_f32 = spec.grad_weight_dtype == FLP_DTYPE_FP32;
  expect_ledger(&f.to[HIDDEN], n, columns, 0);
  expect_ledger(&f.to[WEIGHT], columns, n, spec.accumulate_grad_weight || (by_rows && is_f32));
  expect_ledger(&f.to[BIAS], columns, n, spec.grad_bias_dtype == FLP_DTYPE_FP32);
  if (!valid) cr_expect(f.chunks == layout.chunks && (int)s.launch_count() == layout.launches);
  cr_expect_eq(f.gathers, !is_mapped ? 0 : by_rows ? f.chunks : 1);
  return layout.mode;
}

static void open_mask(uint32_t grads, const char *words, const char *options, const char *device) {
  static const char *const masks[] = {"",          "hidden",           "weight",           "hidden,weight",
                                      "bias bias", "hidden,bias bias", "weight,bias bias", "hidden,weight,bias bias"};
  char text[128];
  flp_options wanted = words_options(options);
  snprintf(text, sizeof text, "%s grads=%s", words, masks[grads]);
  s.script(device);
  use_plan(text, &wanted);
  if (!spec.grad_weight_dtype) spec.grad_weight_dtype = spec.dtype;
  if (!spec.grad_bias_dtype) spec.grad_bias_dtype = spec.dtype;
}

/* Chunk sizes that force each mode, with ragged last chunks. */
static const char *const forced[] = {"", "chunk_vocab=300", "chunk_rows=130", "chunk_rows=256", "chunk_vocab=1000",
                                     "chunk_rows=400", "chunk_rows=100 chunk_vocab=7"};

static const char *const words[] = {"dtype=bf16", "dtype=fp16 grad-weight-dtype=fp32 grad-bias-dtype=fp32",
                                    "dtype=fp32",
                                    "grad-weight-dtype=fp32 grad-bias-dtype=fp32 accumulate-grad-weight"};

TestSuite(launch_sums, .fini = close_plan);

ParameterizedTestParameters(launch_sums, every_mask_and_chunking) {
  return rows_numbered(sizeof words / sizeof words[0]);
}

ParameterizedTest(const int *at, launch_sums, every_mask_and_chunking) {
  stage_open(&s, "");
  for (uint32_t grads = 1; grads < 8; grads++)
    for (int i = 0; i < 14; i++) {
      open_mask(grads, words[*at], forced[i / 2], i % 2 ? "capability=9.0" : "");
      run(i % 2, 333, 0, 0);
      run(i % 2, 333, 901, 0);
      run(i % 2, 1, 0, 0);
    }
}

/* The planner's own choices under every budget, split mode among them. */
Test(launch_sums, under_budgets) {
  int modes[8] = {0};
  stage_open(&s, "");
  for (int i = 2; i < 16; i++) {
    open_mask((uint32_t)i / 2, "V=4000 D=512", "", i % 2 ? "capability=9.0;sms=4" : "sms=4");
    flp_layout layout = FLP_LAYOUT_INIT;
    cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, 1000, 1 << 30, &layout), FLP_OK);
    for (uint64_t budget = layout.smallest_bytes; budget < (64 << 20); budget += budget / 4)
      modes[run(i % 2, 1000, 0, budget)]++;
  }
  cr_expect(modes[FLP_MODE_RECOMPUTE_VOCAB] && modes[FLP_MODE_RECOMPUTE_ROWS] && modes[FLP_MODE_RECOMPUTE_SPLIT]);
}

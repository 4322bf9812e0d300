/* test_launch_sums.c: the chunks of the backward pass, portable and through tensor maps, followed launch by launch: every
 * gradient element is summed over all that adds to it, and ends in one place; arrays are within the workspace. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/kernel/abi.h"
#include "tests/unit/support/stage.h"
#include "tests/unit/support/words.h"

enum { COUNT_MAX = 4096, FLAGS = FLP_PRODUCT_READ_ACC | FLP_PRODUCT_WRITE_ACC | FLP_PRODUCT_WRITE_OUT };

/* What has reached one output so far, by rows or by columns of the head. */
typedef struct ledger {
  uint8_t begun[COUNT_MAX], written[COUNT_MAX]; /* something is summed; how often the final value was written */
  int64_t covered[COUNT_MAX];                   /* terms summed: columns of grad_hidden, rows of the others */
} ledger;

/* A chunk of rows and columns. */
typedef struct range {
  int64_t row_begin, row_end, column_begin, column_end;
} range;

typedef struct follower {
  const flp_spec *spec; /* resolved */
  const flp_args *args;
  const flp_layout *layout;
  range dz;                   /* of the last one */
  uint64_t dz_at, dz_stride;  /* bytes from row to row */
  uint64_t bias_part;
  int gathers, chunks;
  ledger hidden, weight, bias;
} follower;

#define RANGE(p) ((range){(p).row_begin, (p).row_end, (p).column_begin, (p).column_end})

static uint64_t element_bytes(const follower *f) {
  return f->spec->dtype == FLP_DTYPE_FP32 ? 4 : 2;
}

static void expect_in_workspace(const follower *f, uint64_t pointer, uint64_t bytes) {
  uint64_t start = stage_address(f->args->workspace);
  cr_expect(pointer >= start && pointer + bytes <= start + f->args->workspace_bytes, "%lx", (unsigned long)pointer);
}

static void follow_dz(follower *f, range r, uint64_t dz, uint64_t stride, uint64_t bias_part, uint64_t tiles) {
  uint64_t rows = (uint64_t)(r.row_end - r.row_begin), columns = (uint64_t)(r.column_end - r.column_begin);
  f->dz = r;
  f->dz_at = dz;
  f->dz_stride = stride;
  f->bias_part = bias_part;
  f->chunks++;
  cr_expect(stride % 128 == 0 && stride >= columns * element_bytes(f));
  cr_expect_leq(r.column_end, f->args->vocab_valid ? f->args->vocab_valid : f->spec->vocab);
  expect_in_workspace(f, dz, rows * stride);
  if (!bias_part) return;
  expect_in_workspace(f, bias_part, tiles * columns * 4);
  cr_expect_geq(bias_part, dz + rows * stride);
}

/* One addition to elements [begin, end) of an output: reads must find something, the value is written once. */
static void follow_sum(ledger *to, int64_t begin, int64_t end, int64_t terms, int flags, int preloaded) {
  for (int64_t i = begin; i < end; i++) {
    cr_assert_eq((flags & FLP_PRODUCT_READ_ACC) != 0, to->begun[i] || preloaded, "element %ld", (long)i);
    cr_assert_eq(to->written[i], 0, "element %ld was final", (long)i);
    cr_assert_neq((flags & FLP_PRODUCT_WRITE_ACC) != 0, (flags & FLP_PRODUCT_WRITE_OUT) != 0, "it goes on or ends");
    to->begun[i] = 1;
    to->covered[i] += terms;
    if (flags & FLP_PRODUCT_WRITE_OUT) to->written[i]++;
  }
}

/* Bytes of sums in the workspace: fp32, or half a byte or one for each element of whole tiles where the gradient has the
 * others. */
static uint64_t weight_sums(const follower *f, int64_t tile_rows, int64_t tile_columns) {
  int64_t vocab = f->spec->vocab, depth = f->spec->hidden;
  if (f->spec->grad_weight_dtype != FLP_DTYPE_BF16) return (uint64_t)(vocab * depth) * 4;
  int64_t rows = (vocab + tile_rows - 1) / tile_rows * tile_rows;
  uint64_t elements = (uint64_t)(rows * ((depth + tile_columns - 1) / tile_columns * tile_columns));
  return f->layout->chunks <= 4 ? elements / 2 : elements;
}

/* Sums are in the workspace, or in an fp32 gradient itself. */
static void expect_sink(const follower *f, int flags, uint64_t acc, uint64_t out, const void *given, flp_dtype dtype,
                        uint64_t bytes) {
  if (flags & FLP_PRODUCT_WRITE_OUT) cr_expect_eq(out, stage_address(given));
  if (!(flags & (FLP_PRODUCT_READ_ACC | FLP_PRODUCT_WRITE_ACC))) return;
  if (acc != stage_address(given)) expect_in_workspace(f, acc, bytes);
  else cr_expect_eq(dtype, FLP_DTYPE_FP32);
}

static void follow_hidden(follower *f, range r, int flags, uint64_t acc, uint64_t out) {
  expect_sink(f, flags, acc, out, f->args->grad_hidden, f->spec->grad_hidden_dtype,
              (uint64_t)(f->args->n * f->spec->hidden) * 4);
  follow_sum(&f->hidden, r.row_begin, r.row_end, r.column_end - r.column_begin, flags, 0);
}

static void follow_weight(follower *f, range r, int flags, uint64_t acc, uint64_t out, int64_t tile_rows,
                          int64_t tile_columns) {
  expect_sink(f, flags, acc, out, f->args->grad_weight, f->spec->grad_weight_dtype,
              weight_sums(f, tile_rows, tile_columns));
  if (f->spec->grad_weight_dtype == FLP_DTYPE_BF16)
    cr_expect_eq(out, stage_address(f->args->grad_weight), "it holds upper halves between chunks");
  follow_sum(&f->weight, r.column_begin, r.column_end, r.row_end - r.row_begin, flags,
             f->spec->accumulate_grad_weight);
}

static int flags_of(int read_acc, int write_acc, int write_out) {
  return (read_acc ? FLP_PRODUCT_READ_ACC : 0) | (write_acc ? FLP_PRODUCT_WRITE_ACC : 0) |
         (write_out ? FLP_PRODUCT_WRITE_OUT : 0);
}

/* Tiles of 128 x 256 cover it. */
static void expect_grid(const fake_launch *l, int32_t tiles_m, int32_t tiles_n, int64_t m, int64_t n) {
  cr_expect(tiles_m == (m + 127) / 128 && tiles_n == (n + 255) / 256, "%s", l->entry);
  cr_expect_eq(l->grid, (unsigned)(tiles_m * tiles_n), "%s", l->entry);
}

static void follow_product(follower *f, const fake_launch *l, int of_hidden) {
  flp_grad_hidden_params p = STAGE_PARAMS(flp_grad_hidden_params, l);
  range r = RANGE(p);
  cr_expect(memcmp(&r, &f->dz, sizeof r) == 0 && p.dz == f->dz_at);
  cr_expect_eq((uint64_t)p.dz_stride * element_bytes(f), f->dz_stride);
  int flags = flags_of(p.read_acc, p.write_acc, p.write_out);
  expect_grid(l, p.tiles_m, p.tiles_n, of_hidden ? r.row_end - r.row_begin : r.column_end - r.column_begin,
              f->spec->hidden);
  if (of_hidden) follow_hidden(f, r, flags, p.acc, p.out);
  else follow_weight(f, r, flags, p.acc, p.out, 128, 256);
}

static void follow_products(follower *f, const fake_launch *l) {
  flp_products_map_params p;
  memcpy(&p, l->params, sizeof p);
  range r = RANGE(p);
  stage_map dz = stage_read_map(&p.dz_map);
  cr_expect(memcmp(&r, &f->dz, sizeof r) == 0 && dz.start == f->dz_at && dz.stride_bytes == f->dz_stride);
  if (p.hidden_flags & FLP_PRODUCT_WANTED) follow_hidden(f, r, p.hidden_flags & FLAGS, p.hidden_acc, p.hidden_out);
  else cr_expect_eq(p.hidden_flags, 0);
  int64_t tile_columns = f->spec->dtype == FLP_DTYPE_FP32 ? 128 : 256;
  if (p.weight_flags & FLP_PRODUCT_WANTED)
    follow_weight(f, r, p.weight_flags & FLAGS, p.weight_acc, p.weight_out, 256, tile_columns);
  else cr_expect_eq(p.weight_flags, 0);
}

static void follow_bias(follower *f, const fake_launch *l) {
  flp_bias_reduce_params p = STAGE_PARAMS(flp_bias_reduce_params, l);
  range r = RANGE(p);
  cr_expect(memcmp(&r, &f->dz, sizeof r) == 0 && p.bias_part == f->bias_part && p.bias_part);
  int flags = flags_of(p.read_acc, p.write_acc, p.write_out);
  expect_sink(f, flags, p.acc, p.out, f->args->grad_bias, f->spec->grad_bias_dtype, (uint64_t)f->spec->vocab * 4);
  follow_sum(&f->bias, r.column_begin, r.column_end, r.row_end - r.row_begin, flags, 0);
}

static void follow_launch(follower *f, const fake_launch *l) {
  if (strcmp(l->entry, "dz") == 0) {
    flp_dz_params p = STAGE_PARAMS(flp_dz_params, l);
    expect_grid(l, p.tiles_m, p.tiles_n, p.row_end - p.row_begin, p.column_end - p.column_begin);
    follow_dz(f, RANGE(p), p.dz, (uint64_t)p.dz_stride * element_bytes(f), p.bias_part, (uint64_t)p.tiles_m);
  }
  if (strcmp(l->entry, "dz_map") == 0) {
    flp_dz_map_params p;
    memcpy(&p, l->params, sizeof p);
    stage_map dz = stage_read_map(&p.dz_map);
    uint64_t panels = (uint64_t)(p.row_end - p.row_begin + 255) / 256;
    follow_dz(f, RANGE(p), dz.start, dz.stride_bytes, p.bias_part, 2 * panels);
  }
  f->gathers += strcmp(l->entry, "gather") == 0;
  if (strcmp(l->entry, "grad_hidden") == 0) follow_product(f, l, 1);
  if (strcmp(l->entry, "grad_weight") == 0) follow_product(f, l, 0);
  if (strcmp(l->entry, "products_map") == 0) follow_products(f, l);
  if (strcmp(l->entry, "bias_reduce") == 0) follow_bias(f, l);
}

static void expect_ledger(const ledger *l, int64_t count, int64_t terms, int wanted, int in_place) {
  for (int64_t i = 0; i < count; i++) {
    cr_assert_eq(l->covered[i], wanted ? terms : 0, "element %ld covers %ld of %ld", (long)i, (long)l->covered[i],
                 (long)terms);
    cr_assert_eq(l->written[i], wanted && !in_place, "element %ld written %d times", (long)i, l->written[i]);
  }
}

/* ---- one pass ---- */

typedef struct problem {
  stage *s;
  flp_plan *plan;
  flp_spec spec; /* with the dtypes of its gradients */
  int mapped;
} problem;

/* Runs one pass and follows it; returns the mode. */
static flp_mode run(const problem *p, int64_t n, int64_t valid, uint64_t budget) {
  static follower f;
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(p->plan, FLP_PASS_BACKWARD, n, budget, &layout), FLP_OK, "%s", flp_error_detail());
  flp_args a = stage_args(&p->spec, FLP_PASS_BACKWARD, n);
  a.vocab_valid = valid;
  a.vocab_total = p->spec.vocab;
  a.workspace_bytes = layout.bytes;
  stage_execute(p->s, p->plan, &a);
  memset(&f, 0, sizeof f);
  f.spec = &p->spec;
  f.args = &a;
  f.layout = &layout;
  for (size_t i = 0; i < p->s->launch_count(); i++) follow_launch(&f, p->s->launch_at(i));
  int64_t columns = valid ? valid : p->spec.vocab;
  uint32_t grads = p->spec.grads;
  int by_rows = layout.mode == FLP_MODE_RECOMPUTE_ROWS;
  int in_place = p->spec.accumulate_grad_weight || (by_rows && p->spec.grad_weight_dtype == FLP_DTYPE_FP32);
  expect_ledger(&f.hidden, n, columns, (grads & FLP_GRAD_HIDDEN) != 0, 0);
  expect_ledger(&f.weight, columns, n, (grads & FLP_GRAD_WEIGHT) != 0, in_place);
  expect_ledger(&f.bias, columns, n, (grads & FLP_GRAD_BIAS) != 0, p->spec.grad_bias_dtype == FLP_DTYPE_FP32);
  if (!valid) cr_expect_eq(f.chunks, layout.chunks);
  if (!valid) cr_expect_eq((int)p->s->launch_count(), layout.launches);
  cr_expect_eq(f.gathers, !p->mapped ? 0 : by_rows ? f.chunks : 1);
  return layout.mode;
}

static void open_problem(problem *p, stage *s, uint32_t grads, const char *words, const char *device) {
  p->s = s;
  p->spec = words_spec(words);
  p->spec.grads = grads;
  p->spec.has_bias = (grads & FLP_GRAD_BIAS) != 0;
  if (!p->spec.grad_weight_dtype) p->spec.grad_weight_dtype = p->spec.dtype;
  p->spec.grad_hidden_dtype = p->spec.dtype;
  p->spec.grad_bias_dtype = p->spec.grad_weight_dtype;
  p->mapped = strstr(device, "9.0") != NULL;
  s->script(device);
}

/* Chunk sizes that force each mode, with ragged last chunks. */
static const char *const forced[] = {"",
                                     "chunk_vocab=300",
                                     "chunk_rows=130",
                                     "chunk_rows=256",
                                     "chunk_vocab=1000",
                                     "chunk_rows=400",
                                     "chunk_rows=100 chunk_vocab=7"};

static void run_masks(const char *words) {
  stage s;
  problem p;
  stage_open(&s, "");
  for (uint32_t grads = 1; grads < 8; grads++)
    for (int i = 0; i < 14; i++) {
      open_problem(&p, &s, grads, words, i % 2 ? "capability=9.0" : "");
      flp_options options = words_options(forced[i / 2]);
      p.plan = stage_plan(&p.spec, &options);
      run(&p, 333, 0, 0);
      run(&p, 333, 901, 0);
      run(&p, 1, 0, 0);
      flp_plan_destroy(p.plan);
    }
}

Test(launch_sums, every_mask_and_chunking_bf16) {
  run_masks("dtype=bf16");
}

Test(launch_sums, every_mask_and_chunking_fp16) {
  run_masks("dtype=fp16 grad-weight-dtype=fp32");
}

Test(launch_sums, every_mask_and_chunking_fp32) {
  run_masks("dtype=fp32");
}

Test(launch_sums, accumulating) {
  run_masks("grad-weight-dtype=fp32 accumulate-grad-weight");
}

/* The planner's own choices under every budget, split mode among them. */
Test(launch_sums, under_budgets) {
  stage s;
  problem p;
  int modes[8] = {0};
  stage_open(&s, "");
  for (int i = 2; i < 16; i++) {
    open_problem(&p, &s, (uint32_t)i / 2, "V=4000 D=512", i % 2 ? "capability=9.0;sms=4" : "sms=4");
    flp_options options = words_options("");
    flp_layout layout = FLP_LAYOUT_INIT;
    p.plan = stage_plan(&p.spec, &options);
    cr_assert_eq(flp_plan_layout(p.plan, FLP_PASS_BACKWARD, 1000, 1 << 30, &layout), FLP_OK);
    for (uint64_t budget = layout.smallest_bytes; budget < (64 << 20); budget += budget / 4)
      modes[run(&p, 1000, 0, budget)]++;
    flp_plan_destroy(p.plan);
  }
  cr_expect(modes[FLP_MODE_RECOMPUTE_VOCAB] && modes[FLP_MODE_RECOMPUTE_ROWS] && modes[FLP_MODE_RECOMPUTE_SPLIT]);
}

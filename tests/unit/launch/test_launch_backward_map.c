/* test_launch_backward_map.c: the backward pass where operands come through tensor maps: which rows are gathered when,
 * what the maps cover, and that every gradient element is summed over all that adds to it and ends in one place. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/driver/driver.h"
#include "runtime/kernel/abi.h"
#include "tests/unit/support/stage.h"

static const char hopper[] = "capability=9.0";
enum { COUNT_MAX = 4096, PANEL_ROWS = 256 };

/* What follows from the operand dtype. */
typedef struct tiling {
  unsigned bytes, box; /* of an element; elements of a box along a row */
  unsigned dz_columns, unit_tiles, product_columns;
} tiling;

static const tiling narrow = {2, 64, 192, 2, 256}, wide = {4, 32, 128, 1, 128};

/* What has reached one output so far, by rows or by columns of the head. */
typedef struct ledger {
  uint8_t begun[COUNT_MAX], written[COUNT_MAX];
  int64_t covered[COUNT_MAX];
} ledger;

typedef struct follower {
  const flp_spec *spec;
  const tiling *tiling;
  const flp_args *args;
  const flp_layout *layout;
  flp_gather_params gather; /* the last one */
  flp_dz_map_params dz;
  stage_map dz_map;
  int gathers, chunks, products;
  ledger hidden, weight, bias;
} follower;

static unsigned ceil_div(int64_t a, int64_t b) {
  return (unsigned)((a + b - 1) / b);
}

static void expect_in_workspace(const follower *f, uint64_t pointer, uint64_t bytes) {
  uint64_t start = stage_address(f->args->workspace);
  cr_expect(pointer >= start && pointer + bytes <= start + f->args->workspace_bytes, "%lx", (unsigned long)pointer);
}

static void expect_map(const follower *f, const flp_abi_map *map, uint64_t start, int64_t rows, int64_t columns,
                       int64_t stride, uint64_t box_rows) {
  stage_map got = stage_read_map(map);
  cr_expect_eq(got.start, start, "%lx, not %lx", (unsigned long)got.start, (unsigned long)start);
  cr_expect_eq(got.rows, (uint64_t)rows);
  cr_expect_eq(got.columns, (uint64_t)columns);
  cr_expect_eq(got.stride_bytes, (uint64_t)stride * f->tiling->bytes);
  cr_expect_eq(got.box_columns, f->tiling->box);
  cr_expect_eq(got.box_rows, box_rows);
}

static void follow_gather(follower *f, const fake_launch *l) {
  f->gather = STAGE_PARAMS(flp_gather_params, l);
  f->gathers++;
  int64_t rows = f->gather.row_end - f->gather.row_begin;
  cr_expect_eq(l->grid, ceil_div(rows, 8), "a warp a row");
  cr_expect_eq(f->gather.n, f->args->n);
  cr_expect_eq(f->gather.hidden_stride, f->args->hidden_stride);
  expect_in_workspace(f, f->gather.out, (uint64_t)(rows * f->gather.out_stride) * f->tiling->bytes);
  expect_in_workspace(f, f->gather.turn, 4);
}

typedef struct chunk {
  int64_t row_begin, row_end, column_begin, column_end;
} chunk;

/* hidden, gathered rows and weight of a chunk, as dz and the products see them. */
static void expect_operands(const follower *f, const chunk *c, const flp_abi_map *hidden, const flp_abi_map *gathered,
                            const flp_abi_map *weight, const uint64_t box_rows[2]) {
  const flp_args *a = f->args;
  int64_t rows = c->row_end - c->row_begin, depth = f->spec->hidden;
  cr_assert_leq(f->gather.row_begin, c->row_begin);
  cr_assert_geq(f->gather.row_end, c->row_end);
  uint64_t bytes = f->tiling->bytes;
  expect_map(f, hidden, stage_address(a->hidden) + (uint64_t)(c->row_begin * a->hidden_stride) * bytes, rows, depth,
             a->hidden_stride, box_rows[0]);
  expect_map(f, gathered,
             f->gather.out + (uint64_t)((c->row_begin - f->gather.row_begin) * f->gather.out_stride) * bytes, rows,
             depth, f->gather.out_stride, box_rows[0]);
  expect_map(f, weight, stage_address(a->weight) + (uint64_t)(c->column_begin * a->weight_stride) * bytes,
             c->column_end - c->column_begin, depth, a->weight_stride, box_rows[1]);
}

static void follow_dz(follower *f, const fake_launch *l) {
  memcpy(&f->dz, l->params, sizeof f->dz);
  f->chunks++;
  const flp_dz_map_params *p = &f->dz;
  chunk c = {p->row_begin, p->row_end, p->column_begin, p->column_end};
  int64_t rows = c.row_end - c.row_begin, columns = c.column_end - c.column_begin;
  unsigned units =
      ceil_div(rows, PANEL_ROWS) * ceil_div(ceil_div(columns, f->tiling->dz_columns), f->tiling->unit_tiles);
  cr_expect_eq(l->cluster, 2);
  cr_expect_eq(l->grid, 2 * (units < 66 ? units : 66));
  expect_operands(f, &c, &p->hidden_map, &p->gathered_map, &p->weight_map,
                  (const uint64_t[]){128, f->tiling->dz_columns / 2});
  f->dz_map = stage_read_map(&p->dz_map);
  int64_t stride = (columns + 63) / 64 * 64;
  expect_map(f, &p->dz_map, f->dz_map.start, rows, columns, stride, FLP_DZ_BOX_ROWS);
  expect_in_workspace(f, f->dz_map.start, (uint64_t)(rows * stride) * f->tiling->bytes);
  if (p->bias_part) {
    expect_in_workspace(f, p->bias_part, (uint64_t)ceil_div(rows, PANEL_ROWS) * 2 * (uint64_t)columns * 4);
    cr_expect_geq(p->bias_part, f->dz_map.start + (uint64_t)(rows * stride) * f->tiling->bytes);
  }
  cr_expect_eq(p->turn, f->gather.turn);
  cr_expect_eq(p->n, f->args->n);
  cr_expect_eq(p->depth, f->spec->hidden);
  cr_expect_eq(p->scale_pair != 0, f->spec->dtype == FLP_DTYPE_FP16);
}

/* One addition to elements [begin, end) of an output: reads must find something, the value is written once. */
static void follow_sum(ledger *to, int64_t begin, int64_t end, int64_t terms, int flags, int preloaded) {
  int reads = (flags & FLP_PRODUCT_READ_ACC) != 0, goes_on = (flags & FLP_PRODUCT_WRITE_ACC) != 0;
  int ends = (flags & FLP_PRODUCT_WRITE_OUT) != 0;
  for (int64_t i = begin; i < end; i++) {
    cr_assert_eq(reads, to->begun[i] || preloaded, "element %ld", (long)i);
    cr_assert_eq(to->written[i], 0, "element %ld was final", (long)i);
    cr_assert_neq(goes_on, ends);
    to->begun[i] = 1;
    to->covered[i] += terms;
    if (ends) to->written[i]++;
  }
}

static void expect_sink(const follower *f, int flags, uint64_t acc, uint64_t out, uint64_t given, uint64_t bytes) {
  if (flags & FLP_PRODUCT_WRITE_OUT) cr_expect_eq(out, given);
  if ((flags & (FLP_PRODUCT_READ_ACC | FLP_PRODUCT_WRITE_ACC)) && acc != given) expect_in_workspace(f, acc, bytes);
  if (acc == given) cr_expect_eq(f->spec->grad_weight_dtype, FLP_DTYPE_FP32);
}

/* Bytes of sums in the workspace: fp32, or half a byte or one for each element of whole tiles where the gradient has the
 * others. */
static uint64_t weight_sums(const follower *f) {
  int64_t vocab = f->spec->vocab, depth = f->spec->hidden;
  if (f->spec->grad_weight_dtype != FLP_DTYPE_BF16) return (uint64_t)(vocab * depth) * 4;
  uint64_t elements = (uint64_t)ceil_div(vocab, PANEL_ROWS) * PANEL_ROWS *
                      ceil_div(depth, f->tiling->product_columns) * f->tiling->product_columns;
  return f->layout->chunks <= 4 ? elements / 2 : elements;
}

static void follow_products(follower *f, const fake_launch *l) {
  flp_products_map_params p;
  memcpy(&p, l->params, sizeof p);
  f->products++;
  chunk c = {p.row_begin, p.row_end, p.column_begin, p.column_end};
  cr_expect_eq(p.row_begin, f->dz.row_begin);
  cr_expect_eq(p.row_end, f->dz.row_end);
  cr_expect_eq(p.column_begin, f->dz.column_begin);
  cr_expect_eq(p.column_end, f->dz.column_end);
  cr_expect_eq(p.turn, f->gather.turn);
  cr_expect_eq(p.scale_pair, f->dz.scale_pair);
  cr_expect_eq(p.n, f->args->n);
  int64_t rows = c.row_end - c.row_begin, columns = c.column_end - c.column_begin;
  expect_operands(f, &c, &p.hidden_map, &p.gathered_map, &p.weight_map,
                  (const uint64_t[]){f->tiling->box, f->tiling->box});
  expect_map(f, &p.dz_map, f->dz_map.start, rows, columns, (int64_t)(f->dz_map.stride_bytes / f->tiling->bytes),
             f->tiling->box);
  int hidden = p.hidden_flags & FLP_PRODUCT_WANTED, weight = p.weight_flags & FLP_PRODUCT_WANTED;
  unsigned units = (hidden ? ceil_div(rows, PANEL_ROWS) : 0) + (weight ? ceil_div(columns, PANEL_ROWS) : 0);
  units *= ceil_div(f->spec->hidden, f->tiling->product_columns);
  cr_expect_eq(l->grid, 2 * (units < 66 ? units : 66));
  if (hidden) {
    cr_expect_eq((p.hidden_flags & FLP_PRODUCT_OUT_F32) != 0, f->spec->grad_hidden_dtype == FLP_DTYPE_FP32);
    expect_sink(f, p.hidden_flags, p.hidden_acc, p.hidden_out, stage_address(f->args->grad_hidden),
                (uint64_t)(f->args->n * f->spec->hidden) * 4);
    follow_sum(&f->hidden, c.row_begin, c.row_end, columns, p.hidden_flags, 0);
  } else {
    cr_expect_eq(p.hidden_flags, 0);
  }
  if (weight) {
    cr_expect_eq((p.weight_flags & FLP_PRODUCT_OUT_F32) != 0, f->spec->grad_weight_dtype == FLP_DTYPE_FP32);
    expect_sink(f, p.weight_flags, p.weight_acc, p.weight_out, stage_address(f->args->grad_weight), weight_sums(f));
    if (f->spec->grad_weight_dtype == FLP_DTYPE_BF16)
      cr_expect_eq(p.weight_out, stage_address(f->args->grad_weight), "it holds upper halves between chunks");
    follow_sum(&f->weight, c.column_begin, c.column_end, rows, p.weight_flags, f->spec->accumulate_grad_weight);
  } else {
    cr_expect_eq(p.weight_flags, 0);
  }
}

static void follow_bias(follower *f, const fake_launch *l) {
  flp_bias_reduce_params p = STAGE_PARAMS(flp_bias_reduce_params, l);
  cr_expect_neq(f->dz.bias_part, 0);
  cr_expect_eq(p.bias_part, f->dz.bias_part);
  cr_expect_eq(p.tile_rows, 128);
  cr_expect_eq(p.row_begin, f->dz.row_begin);
  cr_expect_eq(p.row_end, f->dz.row_end);
  int flags = (p.read_acc ? FLP_PRODUCT_READ_ACC : 0) | (p.write_acc ? FLP_PRODUCT_WRITE_ACC : 0) |
              (p.write_out ? FLP_PRODUCT_WRITE_OUT : 0);
  CUdeviceptr out = stage_address(f->args->grad_bias);
  cr_expect_eq(p.acc == out, f->spec->grad_bias_dtype == FLP_DTYPE_FP32);
  cr_expect(!p.write_out || p.out == out);
  follow_sum(&f->bias, p.column_begin, p.column_end, p.row_end - p.row_begin, flags, 0);
}

static void expect_ledger(const ledger *l, int64_t count, int64_t terms, int wanted, int in_place) {
  for (int64_t i = 0; i < count; i++) {
    cr_assert_eq(l->covered[i], wanted ? terms : 0, "element %ld covers %ld of %ld", (long)i, (long)l->covered[i],
                 (long)terms);
    cr_assert_eq(l->written[i], wanted && !in_place, "element %ld written %d times", (long)i, l->written[i]);
  }
}

static void expect_all_made(const follower *f) {
  uint32_t grads = f->spec->grads;
  int64_t valid = f->args->vocab_valid ? f->args->vocab_valid : f->spec->vocab, n = f->args->n;
  int in_place = f->spec->accumulate_grad_weight ||
                 (f->layout->mode == FLP_MODE_RECOMPUTE_ROWS && f->spec->grad_weight_dtype == FLP_DTYPE_FP32);
  expect_ledger(&f->hidden, n, valid, (grads & FLP_GRAD_HIDDEN) != 0, 0);
  expect_ledger(&f->weight, valid, n, (grads & FLP_GRAD_WEIGHT) != 0, in_place);
  expect_ledger(&f->bias, valid, n, (grads & FLP_GRAD_BIAS) != 0, f->spec->grad_bias_dtype == FLP_DTYPE_FP32);
  cr_expect_eq(f->products, grads & (FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT) ? f->chunks : 0,
               "one launch for both products");
  cr_expect_eq(f->gathers, f->layout->mode == FLP_MODE_RECOMPUTE_ROWS ? f->chunks : 1);
}

static void follow(stage *s, follower *f) {
  for (size_t i = 0; i < s->launch_count(); i++) {
    const fake_launch *l = s->launch_at(i);
    cr_expect_eq(l->stream, STAGE_STREAM);
    if (strcmp(l->entry, "gather") == 0) follow_gather(f, l);
    if (strcmp(l->entry, "dz_map") == 0) follow_dz(f, l);
    if (strcmp(l->entry, "products_map") == 0) follow_products(f, l);
    if (strcmp(l->entry, "bias_reduce") == 0) follow_bias(f, l);
    cr_expect_str_neq(l->entry, "dz");
  }
  if (!f->args->vocab_valid || f->args->vocab_valid == f->spec->vocab)
    cr_expect_eq((int)s->launch_count(), f->layout->launches);
  expect_all_made(f);
}

/* Runs one pass and follows it; returns the mode. */
static flp_mode run_backward(stage *s, flp_plan *plan, const flp_spec *spec, int64_t n, int64_t valid,
                             uint64_t budget) {
  static follower f;
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, n, budget, &layout), FLP_OK, "%s", flp_error_detail());
  flp_args a = stage_args(spec, FLP_PASS_BACKWARD, n);
  a.vocab_valid = valid;
  a.vocab_total = spec->vocab;
  a.hidden_stride = spec->hidden + 8;
  a.weight_stride = spec->hidden + 16;
  a.workspace_bytes = layout.bytes;
  stage_execute(s, plan, &a);
  stage_expect_capturable(s);
  memset(&f, 0, sizeof f);
  f.spec = spec;
  f.tiling = spec->dtype == FLP_DTYPE_FP32 ? &wide : &narrow;
  f.args = &a;
  f.layout = &layout;
  follow(s, &f);
  return layout.mode;
}

/* Chunk sizes that force each mode, with ragged last chunks. */
static const struct {
  int64_t rows, vocab;
} forced[] = {{0, 0}, {0, 300}, {130, 0}, {256, 0}, {0, 1000}, {400, 0}, {100, 7}};

static void run_masks(flp_dtype dtype, flp_dtype grad_weight_dtype, int accumulate) {
  for (uint32_t grads = 1; grads < 8; grads++)
    for (size_t i = 0; i < sizeof forced / sizeof forced[0]; i++) {
      stage s;
      stage_open(&s, hopper);
      flp_spec spec = stage_spec(grads);
      spec.dtype = spec.grad_hidden_dtype = dtype;
      spec.grad_weight_dtype = spec.grad_bias_dtype = grad_weight_dtype;
      spec.accumulate_grad_weight = accumulate;
      flp_options options = FLP_OPTIONS_INIT;
      options.chunk_rows = forced[i].rows;
      options.chunk_vocab = forced[i].vocab;
      flp_plan *plan = stage_plan(&spec, &options);
      run_backward(&s, plan, &spec, 333, 0, 0);
      run_backward(&s, plan, &spec, 333, 901, 0);
      run_backward(&s, plan, &spec, 1, 0, 0);
      flp_plan_destroy(plan);
    }
}

Test(launch_backward_map, every_mask_and_chunking_bf16) {
  run_masks(FLP_DTYPE_BF16, FLP_DTYPE_BF16, 0);
}

Test(launch_backward_map, every_mask_and_chunking_fp16) {
  run_masks(FLP_DTYPE_FP16, FLP_DTYPE_FP32, 0);
}

Test(launch_backward_map, every_mask_and_chunking_fp32) {
  run_masks(FLP_DTYPE_FP32, FLP_DTYPE_FP32, 0);
}

Test(launch_backward_map, accumulating) {
  run_masks(FLP_DTYPE_BF16, FLP_DTYPE_FP32, 1);
}

/* The planner's own choices under every budget, R2 among them. */
Test(launch_backward_map, under_budgets) {
  int modes[8] = {0};
  for (uint32_t grads = 1; grads < 8; grads++) {
    stage s;
    stage_open(&s, "capability=9.0;sms=4");
    flp_spec spec = stage_spec(grads);
    spec.vocab = 4000;
    spec.hidden = 512;
    spec.grad_hidden_dtype = spec.grad_weight_dtype = spec.dtype;
    flp_plan *plan = stage_plan(&spec, NULL);
    flp_layout layout = FLP_LAYOUT_INIT;
    cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, 1000, 1 << 30, &layout), FLP_OK);
    for (uint64_t budget = layout.smallest_bytes; budget < (64 << 20); budget += budget / 4)
      modes[run_backward(&s, plan, &spec, 1000, 0, budget)]++;
    flp_plan_destroy(plan);
  }
  cr_expect_gt(modes[FLP_MODE_RECOMPUTE_VOCAB], 0);
  cr_expect_gt(modes[FLP_MODE_RECOMPUTE_ROWS], 0);
  cr_expect_gt(modes[FLP_MODE_RECOMPUTE_SPLIT], 0);
}

static void expect_sequence(uint32_t grads, flp_dtype dtype, int64_t chunk_rows, int64_t chunk_vocab,
                            const char *sequence) {
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = stage_spec(grads);
  spec.dtype = dtype;
  flp_options options = FLP_OPTIONS_INIT;
  options.chunk_rows = chunk_rows;
  options.chunk_vocab = chunk_vocab;
  flp_plan *plan = stage_plan(&spec, &options);
  flp_args a = stage_args(&spec, FLP_PASS_BACKWARD, 300);
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_BACKWARD, 300, 0);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, sequence);
  flp_plan_destroy(plan);
}

Test(launch_backward_map, sequences) {
  expect_sequence(3, FLP_DTYPE_BF16, 0, 512, "prepare record gather dz_map products_map dz_map products_map fill");
  expect_sequence(1, FLP_DTYPE_BF16, 256, 0,
                  "prepare record gather dz_map products_map gather dz_map products_map fill");
  expect_sequence(4, FLP_DTYPE_BF16, 0, 1000, "prepare record gather dz_map bias_reduce");
  expect_sequence(7, FLP_DTYPE_FP32, 0, 1000, "prepare record gather dz_map products_map bias_reduce fill");
  expect_sequence(7, FLP_DTYPE_FP16, 0, 1000, "prepare record dz_scale gather dz_map products_map bias_reduce fill");
}

Test(launch_backward_map, grids_are_what_the_device_holds) {
  stage s;
  stage_open(&s, "capability=9.0;clusters=3");
  flp_spec spec = stage_spec(3);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_BACKWARD, 2000);
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_BACKWARD, 2000, 0);
  stage_execute(&s, plan, &a);
  cr_expect_eq(s.launch_at(3)->grid, 6);
  cr_expect_eq(s.launch_at(4)->grid, 6);
  flp_plan_destroy(plan);
}

Test(launch_backward_map, a_failed_map_names_its_matrix) {
  stage s;
  stage_open(&s, "capability=9.0;fail:cuTensorMapEncodeTiled=1@4");
  flp_spec spec = stage_spec(FLP_GRAD_HIDDEN);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_BACKWARD, 300);
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_BACKWARD, 300, 0);
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_DRIVER);
  cr_expect_not_null(strstr(flp_error_detail(), "cuTensorMapEncodeTiled(dz) for bf16 V=1000"), "%s", flp_error_detail());
  flp_plan_destroy(plan);
}

/* Expects the portable backward pass of a spec for grad_hidden. */
static void expect_portable(const flp_spec *spec, const char *provider_script) {
  stage s;
  stage_open(&s, hopper);
  s.provider_script(provider_script);
  flp_plan *plan = stage_plan(spec, NULL);
  flp_args a = stage_args(spec, FLP_PASS_BACKWARD, 10);
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_BACKWARD, 10, 0);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare record dz grad_hidden fill");
  flp_plan_destroy(plan);
}

Test(launch_backward_map, misaligned_operands_use_the_portable_kernels) {
  flp_spec spec = stage_spec(FLP_GRAD_HIDDEN);
  spec.alignment = 8;
  expect_portable(&spec, "");
}

Test(launch_backward_map, kernels_that_read_rows_differently_are_refused) {
  flp_spec spec = stage_spec(FLP_GRAD_HIDDEN);
  expect_portable(&spec, "portable=dz");
}

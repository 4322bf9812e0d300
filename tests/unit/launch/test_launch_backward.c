/* test_launch_backward.c: the chunks of the backward pass: followed launch by launch, every gradient element is summed
 * over all that adds to it, and written once. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/driver/driver.h"
#include "runtime/kernel/abi.h"
#include "tests/unit/support/stage.h"

/* What has reached one output so far, by rows of 1 or by columns of 1. */
enum { COUNT_MAX = 4096 };
typedef struct ledger {
  uint8_t begun[COUNT_MAX];   /* 1 once something was accumulated */
  uint8_t written[COUNT_MAX]; /* times the final value was written */
  int64_t covered[COUNT_MAX]; /* terms summed: columns for grad_hidden, rows for the others */
} ledger;

typedef struct follower {
  const flp_spec *spec;
  const flp_args *args;
  const flp_layout *layout;
  flp_dz_params dz; /* the last one */
  ledger hidden, weight, bias;
} follower;

static void expect_in_workspace(const follower *f, uint64_t pointer, uint64_t bytes) {
  uint64_t start = stage_address(f->args->workspace);
  cr_expect(pointer >= start && pointer + bytes <= start + f->args->workspace_bytes, "%lx", (unsigned long)pointer);
}

static void follow_dz(follower *f, const fake_launch *l) {
  f->dz = STAGE_PARAMS(flp_dz_params, l);
  const flp_dz_params *p = &f->dz;
  int64_t rows = p->row_end - p->row_begin, columns = p->column_end - p->column_begin;
  cr_expect_eq(p->tiles_m, (rows + 127) / 128);
  cr_expect_eq(p->tiles_n, (columns + 255) / 256);
  cr_expect_eq(l->grid, (unsigned)p->tiles_m * (unsigned)p->tiles_n);
  cr_expect_eq(p->dz_stride % 64, 0);
  cr_expect_geq(p->dz_stride, columns);
  cr_expect_leq(p->column_end, f->args->vocab_valid ? f->args->vocab_valid : f->spec->vocab);
  uint64_t element = f->spec->dtype == FLP_DTYPE_FP32 ? 4 : 2;
  expect_in_workspace(f, p->dz, (uint64_t)(rows * p->dz_stride) * element);
  if (p->bias_part) {
    expect_in_workspace(f, p->bias_part, (uint64_t)(p->tiles_m * columns) * 4);
    cr_expect_geq(p->bias_part, p->dz + (uint64_t)(rows * p->dz_stride) * element);
  }
  cr_expect_eq(p->scale_pair != 0, f->spec->dtype == FLP_DTYPE_FP16);
}

/* One addition to elements [begin, end) of an output: reads must find something, the value is written once. */
static void follow_sum(ledger *to, int64_t begin, int64_t end, int64_t terms, int read_acc, int write_acc,
                       int write_out, int preloaded) {
  for (int64_t i = begin; i < end; i++) {
    cr_assert_eq(read_acc, to->begun[i] || preloaded, "element %ld", (long)i);
    cr_assert_eq(to->written[i], 0, "element %ld was final", (long)i);
    cr_assert_neq(write_acc, write_out, "either goes on or ends");
    to->begun[i] = 1;
    to->covered[i] += terms;
    if (write_out) to->written[i]++;
  }
}

/* Bytes of sums in the workspace: fp32, or half a byte or one for each element of whole tiles where the gradient has the
 * others. */
static uint64_t sums_bytes(const follower *f, int of_hidden) {
  int64_t rows = of_hidden ? f->args->n : f->spec->vocab, depth = f->spec->hidden;
  flp_dtype dtype = f->spec->grad_weight_dtype ? f->spec->grad_weight_dtype : f->spec->dtype;
  int is_split = !of_hidden && dtype == FLP_DTYPE_BF16;
  int64_t tiles = (rows + 127) / 128 * 128 * ((depth + 255) / 256 * 256);
  return is_split ? (uint64_t)(f->layout->chunks <= 4 ? tiles / 2 : tiles) : (uint64_t)(rows * depth) * 4;
}

static void follow_product(follower *f, const fake_launch *l, int of_hidden) {
  flp_grad_hidden_params p = STAGE_PARAMS(flp_grad_hidden_params, l);
  cr_expect_eq(p.dz, f->dz.dz);
  cr_expect_eq(p.dz_stride, f->dz.dz_stride);
  cr_expect_eq(p.row_begin, f->dz.row_begin);
  cr_expect_eq(p.row_end, f->dz.row_end);
  cr_expect_eq(p.column_begin, f->dz.column_begin);
  cr_expect_eq(p.column_end, f->dz.column_end);
  cr_expect_eq(p.scale_pair, f->dz.scale_pair);
  int64_t rows = p.row_end - p.row_begin, columns = p.column_end - p.column_begin;
  cr_expect_eq(p.tiles_m, ((of_hidden ? rows : columns) + 127) / 128);
  cr_expect_eq(p.tiles_n, (f->spec->hidden + 255) / 256);
  cr_expect_eq(l->grid, (unsigned)p.tiles_m * (unsigned)p.tiles_n);
  cr_expect_eq(p.operand, stage_address(of_hidden ? f->args->weight : f->args->hidden));
  uint64_t out = stage_address(of_hidden ? f->args->grad_hidden : f->args->grad_weight);
  int acc_is_output = p.acc == out;
  if (p.write_out) cr_expect_eq(p.out, out);
  if ((p.read_acc || p.write_acc) && !acc_is_output) expect_in_workspace(f, p.acc, sums_bytes(f, of_hidden));
  if (of_hidden)
    follow_sum(&f->hidden, p.row_begin, p.row_end, columns, p.read_acc, p.write_acc, p.write_out, 0);
  else
    follow_sum(&f->weight, p.column_begin, p.column_end, rows, p.read_acc, p.write_acc, p.write_out,
               f->spec->accumulate_grad_weight);
  if (!of_hidden && acc_is_output) cr_expect_eq(f->spec->grad_weight_dtype, FLP_DTYPE_FP32);
  if (!of_hidden && f->spec->grad_weight_dtype == FLP_DTYPE_BF16) {
    cr_expect_eq(p.out, out, "it holds upper halves");
    if (p.acc) cr_expect_eq(p.acc_stride, f->layout->chunks <= 4 ? 4 : 8, "lower bits");
  }
}

static void follow_bias(follower *f, const fake_launch *l) {
  flp_bias_reduce_params p = STAGE_PARAMS(flp_bias_reduce_params, l);
  cr_expect_neq(f->dz.bias_part, 0);
  cr_expect_eq(p.bias_part, f->dz.bias_part);
  cr_expect_eq(p.tile_rows, 128);
  cr_expect_eq(p.row_begin, f->dz.row_begin);
  cr_expect_eq(p.row_end, f->dz.row_end);
  cr_expect_eq(l->grid, (unsigned)(p.column_end - p.column_begin + 255) / 256);
  int acc_is_output = p.acc == stage_address(f->args->grad_bias);
  cr_expect_eq(acc_is_output, f->spec->grad_bias_dtype == FLP_DTYPE_FP32);
  if (p.write_out) cr_expect_eq(p.out, stage_address(f->args->grad_bias));
  if ((p.read_acc || p.write_acc) && !acc_is_output) expect_in_workspace(f, p.acc, (uint64_t)f->spec->vocab * 4);
  follow_sum(&f->bias, p.column_begin, p.column_end, p.row_end - p.row_begin, p.read_acc, p.write_acc, p.write_out, 0);
}

static void expect_ledger(const ledger *l, int64_t count, int64_t terms, int wanted, int in_place) {
  for (int64_t i = 0; i < count; i++) {
    cr_assert_eq(l->covered[i], wanted ? terms : 0, "element %ld covers %ld of %ld", (long)i, (long)l->covered[i],
                 (long)terms);
    cr_assert_eq(l->written[i], wanted && !in_place, "element %ld written %d times", (long)i, l->written[i]);
  }
}

static void follow(stage *s, follower *f) {
  size_t i = 0;
  cr_assert_str_eq(s->launch_at(i++)->entry, "prepare");
  cr_assert_str_eq(s->launch_at(i++)->entry, "record");
  if (f->spec->dtype == FLP_DTYPE_FP16) cr_assert_str_eq(s->launch_at(i++)->entry, "dz_scale");
  int fills = 0, dz = 0;
  for (; i < s->launch_count(); i++) {
    const fake_launch *l = s->launch_at(i);
    cr_expect_eq(l->stream, STAGE_STREAM);
    if (strcmp(l->entry, "dz") == 0) follow_dz(f, l), dz++;
    if (strcmp(l->entry, "grad_hidden") == 0) follow_product(f, l, 1);
    if (strcmp(l->entry, "grad_weight") == 0) follow_product(f, l, 0);
    if (strcmp(l->entry, "bias_reduce") == 0) follow_bias(f, l);
    if (strcmp(l->entry, "fill") == 0) fills++;
  }
  cr_expect_eq(fills, (f->spec->grads & FLP_GRAD_HIDDEN) != 0);
  int64_t valid = f->args->vocab_valid ? f->args->vocab_valid : f->spec->vocab, n = f->args->n;
  if (valid == f->spec->vocab) {
    cr_expect_eq(dz, f->layout->chunks);
    cr_expect_eq((int)s->launch_count(), f->layout->launches);
  }
  int in_place = f->spec->accumulate_grad_weight ||
                 (f->layout->mode == FLP_MODE_RECOMPUTE_ROWS && f->spec->grad_weight_dtype == FLP_DTYPE_FP32);
  expect_ledger(&f->hidden, n, valid, (f->spec->grads & FLP_GRAD_HIDDEN) != 0, 0);
  expect_ledger(&f->weight, valid, n, (f->spec->grads & FLP_GRAD_WEIGHT) != 0, in_place);
  expect_ledger(&f->bias, valid, n, (f->spec->grads & FLP_GRAD_BIAS) != 0, f->spec->grad_bias_dtype == FLP_DTYPE_FP32);
}

static void run_backward(stage *s, flp_plan *plan, const flp_spec *spec, int64_t n, int64_t valid, uint64_t budget) {
  static follower f;
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, n, budget, &layout), FLP_OK, "%s", flp_error_detail());
  flp_args a = stage_args(spec, FLP_PASS_BACKWARD, n);
  a.vocab_valid = valid;
  a.vocab_total = spec->vocab;
  a.workspace_bytes = layout.bytes;
  stage_execute(s, plan, &a);
  stage_expect_capturable(s);
  memset(&f, 0, sizeof f);
  f.spec = spec;
  f.args = &a;
  f.layout = &layout;
  follow(s, &f);
}

/* Chunk sizes that force each mode, with ragged last chunks. */
static const struct { int64_t rows, vocab; } forced[] = {{0, 0}, {0, 300}, {130, 0}, {0, 1000}, {400, 0}, {100, 7}};

static void run_masks(flp_dtype dtype, flp_dtype grad_weight_dtype, int accumulate) {
  for (uint32_t grads = 1; grads < 8; grads++)
    for (size_t i = 0; i < sizeof forced / sizeof forced[0]; i++) {
      stage s;
      stage_open(&s, "");
      flp_spec spec = stage_spec(grads);
      spec.dtype = dtype;
      spec.grad_weight_dtype = spec.grad_bias_dtype = grad_weight_dtype ? grad_weight_dtype : dtype;
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

Test(launch, backward_of_every_mask_and_chunking_bf16) {
  run_masks(FLP_DTYPE_BF16, (flp_dtype)0, 0);
}

Test(launch, backward_of_every_mask_and_chunking_fp16) {
  run_masks(FLP_DTYPE_FP16, FLP_DTYPE_FP32, 0);
}

Test(launch, backward_of_every_mask_and_chunking_fp32) {
  run_masks(FLP_DTYPE_FP32, (flp_dtype)0, 0);
}

Test(launch, backward_that_accumulates) {
  run_masks(FLP_DTYPE_BF16, FLP_DTYPE_FP32, 1);
}

/* The planner's own choices under every budget, R2 among them. */
Test(launch, backward_under_budgets) {
  int modes[8] = {0};
  for (uint32_t grads = 1; grads < 8; grads++) {
    stage s;
    stage_open(&s, "sms=4");
    flp_spec spec = stage_spec(grads);
    spec.vocab = 4000;
    spec.hidden = 512;
    flp_plan *plan = stage_plan(&spec, NULL);
    flp_layout layout = FLP_LAYOUT_INIT;
    cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, 1000, 1 << 30, &layout), FLP_OK);
    for (uint64_t budget = layout.smallest_bytes; budget < (64 << 20); budget += budget / 4) {
      run_backward(&s, plan, &spec, 1000, 0, budget);
      cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, 1000, budget, &layout), FLP_OK);
      modes[layout.mode]++;
    }
    flp_plan_destroy(plan);
  }
  cr_expect_gt(modes[FLP_MODE_RECOMPUTE_VOCAB], 0);
  cr_expect_gt(modes[FLP_MODE_RECOMPUTE_ROWS], 0);
  cr_expect_gt(modes[FLP_MODE_RECOMPUTE_SPLIT], 0);
}

Test(launch, backward_in_full_once) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(7);
  spec.dtype = FLP_DTYPE_FP16;
  spec.entropy = FLP_ENTROPY_BACKWARD;
  flp_options options = FLP_OPTIONS_INIT;
  options.chunk_vocab = 512;
  flp_plan *plan = stage_plan(&spec, &options);
  flp_args a = stage_args(&spec, FLP_PASS_BACKWARD, 100);
  a.grad_entropy = STAGE_AT(14);
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_BACKWARD, 100, 0);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s,
                        "prepare record dz_scale dz grad_hidden grad_weight bias_reduce dz grad_hidden grad_weight "
                        "bias_reduce fill");
  flp_prepare_params prepare = STAGE_PARAMS(flp_prepare_params, s.launch_at(0));
  cr_expect_eq(prepare.grad_logprob, stage_address(STAGE_AT(7)));
  cr_expect_eq(prepare.grad_entropy, stage_address(STAGE_AT(14)));
  cr_expect_eq(prepare.stats, 0, "an input here");
  flp_record_params record = STAGE_PARAMS(flp_record_params, s.launch_at(1));
  cr_expect_eq(record.stats, stage_address(STAGE_AT(5)));
  cr_expect_eq(record.grad_entropy, stage_address(STAGE_AT(14)));
  flp_dz_scale_params scale = STAGE_PARAMS(flp_dz_scale_params, s.launch_at(2));
  cr_expect_eq(scale.bound, record.bound);
  cr_expect_eq(STAGE_PARAMS(flp_dz_params, s.launch_at(3)).scale_pair, scale.scale_pair);
  cr_expect_eq(STAGE_PARAMS(flp_dz_params, s.launch_at(3)).record, record.record);
  flp_fill_params fill = STAGE_PARAMS(flp_fill_params, s.launch_at(11));
  cr_expect_eq(fill.out, stage_address(STAGE_AT(8)));
  cr_expect_eq(fill.out_is_f32, 0);
  cr_expect_eq(fill.n, 100);
  cr_expect_eq(s.launch_at(11)->grid, 13); /* 8 warps a CTA */
  flp_plan_destroy(plan);
}

/* test_launch_mixed.c: operands of two dtypes on a device: what is made in the workspace, in which order, and that kernels
 * take it in the operand's place. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/kernel/abi.h"
#include "runtime/plan/plan.h"
#include "tests/unit/support/launch_case.h"

static flp_spec mixed_spec(flp_dtype hidden, flp_dtype weight, uint32_t grads) {
  flp_spec wanted = stage_spec(grads);
  wanted.hidden_dtype = hidden;
  wanted.weight_dtype = weight;
  wanted.mixed = FLP_MIXED_ROUND;
  return wanted;
}

TestSuite(launch_mixed, .fini = close_plan);

static flp_args args_of(flp_pass pass, int64_t n) {
  flp_args a = stage_args(&spec, pass, n);
  a.workspace_bytes = stage_workspace(plan, pass, n, 0);
  return a;
}

#define PARAMS_OF(entry, which) STAGE_PARAMS(flp_##entry##_params, stage_launch(&s, #entry, which))

/* The launches over all but the first slice find it made by the one before, in the other half of the region. */
Test(launch_mixed, the_next_slice_is_made_while_one_is_multiplied) {
  enum { V = 151936, D = 4096, N = 8192, ELEMENT = 2 };
  flp_spec wanted = mixed_spec((flp_dtype)0, FLP_DTYPE_FP32, 0);
  wanted.vocab = V;
  wanted.hidden = D;
  open_plan("capability=9.0", wanted, 0, (flp_mode)0);
  flp_args a = args_of(FLP_PASS_FORWARD, N);
  a.weight_stride = D + 8;
  stage_execute(&s, plan, &a);
  stage_expect_capturable(&s);
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_FORWARD, N, 0, &layout), FLP_OK);
  cr_expect_eq(s.launch_count(), (size_t)layout.launches);
  flp_operand_terms_params first = PARAMS_OF(operand_terms, 0);
  cr_expect_eq(first.source, stage_address(a.weight));
  cr_expect_eq(first.source_stride, D + 8);
  cr_expect_eq(first.is_wide, 1);
  int64_t begin = 0, width = first.rows, widest = 0;
  uint64_t half = 0;
  cr_expect_lt(width, V / 2, "what is made before all products is little");
  for (int i = 0; begin < V; i++) {
    flp_forward_columns_map_params p; /* copied: what was launched is not aligned as maps are */
    memcpy(&p, stage_launch(&s, "forward_columns_map", i)->params, sizeof p);
    int64_t end = begin + width;
    cr_expect_eq(p.column_begin, begin);
    cr_expect_eq(p.vocab_valid, width);
    cr_expect(end == V || width % FLP_LEAF_COLUMNS == 0);
    stage_map map = stage_read_map(&p.weight_map);
    cr_expect_eq(map.start, first.out + (i % 2 ? half : 0));
    cr_expect_eq(map.rows, (uint64_t)width);
    cr_expect_eq(map.stride_bytes, D * ELEMENT);
    widest = width > widest ? width : widest;
    begin = end;
    width = p.ahead_rows;
    cr_assert(width > 0 ? end + width <= V : end == V);
    if (width == 0) continue;
    if (i == 0) half = p.ahead_out - first.out;
    cr_expect_eq(p.ahead_source, stage_address(a.weight) + (uint64_t)end * (D + 8) * 4);
    cr_expect_eq(p.ahead_stride, D + 8);
    cr_expect_eq(p.ahead_out, first.out + (i % 2 ? 0 : half));
  }
  cr_expect_geq(half, (uint64_t)widest * D * ELEMENT);
  for (size_t i = 0, seen = 0; i < s.launch_count(); i++) {
    seen += strcmp(s.launch_at((int)i)->entry, "operand_terms") == 0;
    cr_expect_leq(seen, 1);
  }
}

/* Portable kernels take the slice where row 0 of the weight would stand before it. */
Test(launch_mixed, chunks_of_backward_take_their_slice) {
  enum { N = 300, ELEMENT = 2 };
  flp_options options = stage_options(0, (flp_mode)0);
  options.chunk_vocab = 512;
  stage_open(&s, "");
  use_plan(mixed_spec((flp_dtype)0, FLP_DTYPE_FP32, FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT), &options);
  flp_args a = args_of(FLP_PASS_BACKWARD, N);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s,
                        "prepare record operand_terms dz grad_hidden grad_weight "
                        "operand_terms dz grad_hidden grad_weight fill");
  for (int i = 0; i < 2; i++) {
    flp_operand_terms_params made = PARAMS_OF(operand_terms, i);
    cr_expect_eq(made.source, stage_address(a.weight) + (uint64_t)i * 512 * 64 * 4);
    cr_expect_eq(made.rows, i ? 1000 - 512 : 512);
    flp_dz_params dz = PARAMS_OF(dz, i);
    cr_expect_eq(dz.weight + (uint64_t)dz.column_begin * (uint64_t)dz.weight_stride * ELEMENT, made.out);
    cr_expect_eq(dz.hidden, stage_address(a.hidden));
    flp_grad_hidden_params product = PARAMS_OF(grad_hidden, i);
    cr_expect_eq(product.operand, dz.weight);
    cr_expect_eq(PARAMS_OF(grad_weight, i).operand, stage_address(a.hidden));
  }
}

Test(launch_mixed, an_fp32_hidden_is_made_once_in_front_of_any_mode) {
  enum { N = 300 };
  flp_spec wanted = mixed_spec(FLP_DTYPE_FP32, (flp_dtype)0, 0);
  wanted.has_bias = 1;
  wanted.bias_dtype = FLP_DTYPE_FP32;
  open_plan("", wanted, 0, (flp_mode)0);
  flp_args a = args_of(FLP_PASS_FORWARD, N);
  a.bias = STAGE_AT(3);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "operand_terms operand_terms prepare forward combine");
  flp_operand_terms_params hidden = PARAMS_OF(operand_terms, 0), bias = PARAMS_OF(operand_terms, 1);
  cr_expect_eq(hidden.source, stage_address(a.hidden));
  cr_expect_eq(hidden.rows, N);
  cr_expect_eq(bias.source, stage_address(a.bias));
  cr_expect_eq(bias.rows, 4);
  cr_expect_eq(bias.last_depth, 1000 - 3 * 256);
  flp_forward_params p = PARAMS_OF(forward, 0);
  cr_expect_eq(p.hidden, hidden.out);
  cr_expect_eq(p.bias, bias.out);
  cr_expect_eq(p.weight, stage_address(a.weight));
}

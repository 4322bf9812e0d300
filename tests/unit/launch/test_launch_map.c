/* test_launch_map.c: the forward pass on a device with tensor maps: architectures by kernel, maps, clusters, chunks. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/driver/driver.h"
#include "runtime/kernel/abi.h"
#include "tests/unit/support/stage.h"

static const char hopper[] = "capability=9.0";

static flp_spec spec_of(void) {
  flp_spec spec = stage_spec(0);
  spec.vocab = 10000;
  return spec;
}

Test(launch_map, forward) {
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = spec_of();
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_FORWARD, 300);
  a.hidden_stride = 72;
  a.vocab_valid = 9000;
  a.vocab_total = 10000;
  a.logprob = a.stats = NULL;
  a.partial = STAGE_AT(12);
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_FORWARD, 300, 0);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare gather forward_map combine");
  stage_expect_capturable(&s);
  const fake_launch *l = s.launch_at(1);
  cr_expect_eq(l->grid, 38, "a warp a row");
  flp_gather_params gather = STAGE_PARAMS(flp_gather_params, l);
  cr_expect_eq(gather.hidden_stride, 72);
  cr_expect_eq(gather.out_stride, 64);
  cr_expect_eq(gather.n, 300);
  cr_expect_eq(gather.row_end, 300);
  l = s.launch_at(2);
  cr_expect_eq(l->cluster, 2);
  cr_expect_eq(l->grid, 2 * 2 * 12, "2 panels of 256 rows x 12 leaves, fewer than the clusters that fit");
  flp_forward_map_params p;
  memcpy(&p, l->params, sizeof p);
  cr_expect_eq(p.turn, gather.turn);
  cr_expect_neq(p.turn, 0);
  cr_expect_eq(p.vocab_valid, 9000);
  cr_expect_eq(p.capacity, 300);
  stage_map map = stage_read_map(&p.hidden_map);
  cr_expect_eq(map.start, stage_address(a.hidden));
  cr_expect_eq(map.columns, 64);
  cr_expect_eq(map.rows, 300);
  cr_expect_eq(map.stride_bytes, 144);
  cr_expect_eq(map.box_columns, 64);
  cr_expect_eq(map.box_rows, 128);
  map = stage_read_map(&p.gathered_map);
  cr_expect_eq(map.start, gather.out);
  cr_expect_eq(map.rows, 300);
  cr_expect_eq(map.stride_bytes, 128);
  map = stage_read_map(&p.weight_map);
  cr_expect_eq(map.start, stage_address(a.weight));
  cr_expect_eq(map.rows, 9000, "zeros behind the valid columns");
  cr_expect_eq(map.box_rows, 96, "each CTA loads its part");
  flp_combine_params combine = STAGE_PARAMS(flp_combine_params, s.launch_at(3));
  cr_expect_eq(combine.parts, 12);
  cr_expect_eq(combine.fold, FLP_GROUP_LEAVES);
  flp_plan_destroy(plan);
}

Test(launch_map, grid_is_what_the_device_holds) {
  stage s;
  stage_open(&s, "capability=9.0;clusters=5");
  flp_spec spec = spec_of();
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_FORWARD, 3000);
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_FORWARD, 3000, 0);
  stage_execute(&s, plan, &a);
  cr_expect_eq(s.launch_at(2)->grid, 10);
  flp_plan_destroy(plan);
}

Test(launch_map, chunks_gather_each_their_rows) {
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = spec_of();
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_FORWARD, 300);
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_FORWARD, 300, 0, &layout), FLP_OK);
  a.workspace_bytes = layout.smallest_bytes;
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare gather forward_map combine gather forward_map combine");
  for (int chunk = 0; chunk < 2; chunk++) {
    flp_gather_params gather = STAGE_PARAMS(flp_gather_params, s.launch_at(1 + 3 * chunk));
    flp_forward_map_params p;
    memcpy(&p, s.launch_at(2 + 3 * chunk)->params, sizeof p);
    cr_expect_eq(p.row_begin, 256 * chunk);
    cr_expect_eq(p.row_end, chunk ? 300 : 256);
    cr_expect_eq(gather.row_begin, p.row_begin);
    cr_expect_eq(gather.row_end, p.row_end);
    cr_expect_eq(stage_read_map(&p.hidden_map).rows, 300);
    cr_expect_eq(stage_read_map(&p.gathered_map).rows, chunk ? 44 : 256);
    cr_expect_eq(s.launch_at(3 + 3 * chunk)->grid, chunk ? 2 : 8);
  }
  flp_plan_destroy(plan);
}

static void expect_arch(const flp_spec *spec, const char *script, const char *sequence) {
  stage s;
  stage_open(&s, script);
  flp_plan *plan = stage_plan(spec, NULL);
  flp_args a = stage_args(spec, FLP_PASS_FORWARD, 10);
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_FORWARD, 10, 0);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, sequence);
  flp_plan_destroy(plan);
}

Test(launch_map, misaligned_operands_use_the_portable_kernel) {
  flp_spec spec = spec_of();
  spec.alignment = 8;
  expect_arch(&spec, hopper, "prepare forward combine");
}

Test(launch_map, fp32_has_boxes_of_half_as_many_columns) {
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = spec_of();
  spec.dtype = FLP_DTYPE_FP32;
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_FORWARD, 300);
  a.hidden_stride = 72;
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_FORWARD, 300, 0, &layout), FLP_OK);
  a.workspace_bytes = layout.smallest_bytes;
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare gather forward_map combine gather forward_map combine");
  flp_gather_params gather = STAGE_PARAMS(flp_gather_params, s.launch_at(4));
  flp_forward_map_params p;
  memcpy(&p, s.launch_at(5)->params, sizeof p);
  stage_map maps[] = {stage_read_map(&p.hidden_map), stage_read_map(&p.gathered_map), stage_read_map(&p.weight_map)};
  const uint64_t starts[] = {stage_address(a.hidden), gather.out, stage_address(a.weight)};
  const uint64_t strides[] = {72 * 4, 64 * 4, 64 * 4}, box_rows[] = {128, 128, 64};
  for (int i = 0; i < 3; i++) {
    cr_expect_eq(maps[i].start, starts[i], "map %d", i);
    cr_expect_eq(maps[i].columns, 64);
    cr_expect_eq(maps[i].stride_bytes, strides[i], "map %d", i);
    cr_expect_eq(maps[i].box_columns, 32);
    cr_expect_eq(maps[i].box_rows, box_rows[i]);
  }
  flp_plan_destroy(plan);
}

Test(launch_map, newer_devices_use_the_portable_kernel) {
  flp_spec spec = spec_of();
  expect_arch(&spec, "capability=10.0", "prepare forward combine");
}

Test(launch_map, a_device_without_room_for_a_cluster_falls_to_the_portable_kernel) {
  flp_spec spec = spec_of();
  expect_arch(&spec, "capability=9.0;clusters=0", "prepare forward combine");
}

Test(launch_map, a_failed_map_names_its_matrix) {
  stage s;
  stage_open(&s, "capability=9.0;fail:cuTensorMapEncodeTiled=1@3");
  flp_spec spec = spec_of();
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_FORWARD, 300);
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_FORWARD, 300, 0);
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_DRIVER);
  cr_expect_not_null(strstr(flp_error_detail(), "cuTensorMapEncodeTiled(weight) for bf16 V=10000"), "%s",
                     flp_error_detail());
  flp_plan_destroy(plan);
}

/* test_launch_targets.c: K targets a row on a device: which launches follow each other in forward, combine and backward,
 * what stands for a row's targets, and what chunks write anew. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/kernel/abi.h"
#include "runtime/plan/plan.h"
#include "tests/unit/support/launch_case.h"

enum { V = 1000, N = 300, K = 20 };

static flp_spec targets_spec(uint32_t grads) {
  flp_spec wanted = stage_spec(grads);
  wanted.targets = K;
  return wanted;
}

TestSuite(launch_targets, .fini = close_plan);

static flp_args args_of(flp_pass pass) {
  flp_args a = stage_args(&spec, pass, N);
  a.workspace_bytes = stage_workspace(plan, pass, N, 0);
  return a;
}

static int32_t launches_of(flp_pass pass) {
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, pass, N, 0, &layout), FLP_OK);
  return layout.launches;
}

#define PARAMS(entry) STAGE_PARAMS(flp_##entry##_params, stage_launch(&s, #entry, 0))
#define PARAMS_OF(entry, which) STAGE_PARAMS(flp_##entry##_params, stage_launch(&s, #entry, which))

static unsigned grid_of(const char *entry) {
  return stage_launch(&s, entry, 0)->grid;
}

/* ---- forward and combine ---- */

Test(launch_targets, forward_stores_scores_and_makes_logprobs_of_them) {
  flp_spec wanted = targets_spec(0);
  wanted.softcap = 30;
  open_plan("", wanted, 0, (flp_mode)0);
  flp_args a = args_of(FLP_PASS_FORWARD);
  a.scale = 3;
  a.ignore_index = -7;
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "targets_rows prepare targets_sort forward_targets combine targets_finish");
  cr_expect_eq(s.launch_count(), (size_t)launches_of(FLP_PASS_FORWARD));
  stage_expect_capturable(&s);
  flp_targets_rows_params rows = PARAMS(targets_rows);
  cr_expect_eq(grid_of("targets_rows"), 38); /* 8 warps a CTA */
  cr_expect_eq(rows.target, stage_address(STAGE_AT(4)));
  cr_expect_eq(rows.targets, K);
  cr_expect_eq(rows.n, N);
  cr_expect_eq(rows.ignore_index, -7);
  cr_expect_eq(rows.vocab_total, V);
  cr_expect_eq(rows.grad_logprob | rows.target_weight | rows.target_gradient | rows.target_exact, 0);
  flp_prepare_params prepare = PARAMS(prepare);
  cr_expect_eq(prepare.target, rows.target_row);
  cr_expect_eq(prepare.vocab_valid, 0, "no column is a target of its own");
  cr_expect_eq(prepare.vocab_total, V);
  cr_expect_eq(prepare.logprob, 0, "it is (N,K)");
  cr_expect_eq(prepare.stats, stage_address(STAGE_AT(5)));
  flp_targets_sort_params sort = PARAMS(targets_sort);
  cr_expect_eq(grid_of("targets_sort"), N);
  cr_expect_eq(sort.vocab_valid, V);
  cr_expect_eq(sort.ignore_index, -7);
  cr_expect_eq(sort.block_words, 1);
  cr_expect_neq(sort.target_block, 0);
  cr_expect_eq(sort.list_length | sort.list_target | sort.list_row | sort.target_offsets | sort.bound, 0);
  flp_forward_targets_params forward = PARAMS(forward_targets);
  cr_expect_eq(forward.list_column, sort.list_column);
  cr_expect_eq(forward.target_place, sort.target_place);
  cr_expect_eq(forward.target_block, sort.target_block);
  cr_expect_eq(forward.row_of, forward.index);
  cr_expect_eq(forward.score, rows.score);
  cr_expect_eq(forward.targets, K);
  cr_expect_eq(forward.block_words, 1);
  flp_combine_params combine = PARAMS(combine);
  flp_targets_finish_params finish = PARAMS(targets_finish);
  cr_expect_eq(grid_of("targets_finish"), 38);
  cr_expect_eq(finish.partial, combine.partial);
  cr_expect_eq(combine.logprob | combine.stats, 0);
  cr_expect_eq(finish.score, rows.score);
  cr_expect_eq(finish.shard_count, 1);
  cr_expect_eq(finish.cap_in, 0.1f);
  cr_expect_eq(finish.capped, 1);
  cr_expect_eq(finish.logprob, stage_address(STAGE_AT(6)));
  cr_expect_eq(finish.stats, stage_address(STAGE_AT(5)));
  cr_expect_eq(finish.error_word, prepare.error_word);
}

Test(launch_targets, hopper_has_its_own_forward) {
  flp_spec wanted = targets_spec(0);
  wanted.vocab = 10000;
  open_plan("capability=9.0", wanted, 0, (flp_mode)0);
  flp_args a = args_of(FLP_PASS_FORWARD);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "targets_rows prepare targets_sort gather forward_targets_map combine targets_finish");
  cr_expect_eq(s.launch_count(), (size_t)launches_of(FLP_PASS_FORWARD));
  flp_forward_targets_map_params forward;
  memcpy(&forward, stage_launch(&s, "forward_targets_map", 0)->params, sizeof forward);
  flp_targets_sort_params sort = PARAMS(targets_sort);
  cr_expect_eq(forward.row_of, sort.index);
  cr_expect_eq(forward.target_block, sort.target_block);
  cr_expect_eq(forward.score, PARAMS(targets_rows).score);
  cr_expect_eq(forward.block_words, 7, "of 1536 columns each");
  cr_expect_eq(sort.block_words, 7);
}

Test(launch_targets, a_shard_gives_scores_that_combine_reads) {
  open_plan("", targets_spec(0), 0, (flp_mode)0);
  flp_args a = args_of(FLP_PASS_FORWARD);
  a.logprob = a.stats = NULL;
  a.partial = STAGE_AT(12);
  a.partial_targets = STAGE_AT(13);
  a.vocab_offset = 5000;
  a.vocab_valid = 900;
  a.vocab_total = 10000;
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "targets_rows prepare targets_sort forward_targets combine");
  cr_expect_eq(PARAMS(targets_rows).score, stage_address(STAGE_AT(13)));
  cr_expect_eq(PARAMS(targets_rows).vocab_total, 10000);
  cr_expect_eq(PARAMS(forward_targets).score, stage_address(STAGE_AT(13)));
  cr_expect_eq(PARAMS(targets_sort).vocab_offset, 5000);
  cr_expect_eq(PARAMS(targets_sort).vocab_valid, 900);
  cr_expect_eq(PARAMS(combine).partial, stage_address(STAGE_AT(12)));
  a = args_of(FLP_PASS_COMBINE);
  a.partial = STAGE_AT(12);
  a.partial_targets = STAGE_AT(13);
  a.shard_count = 3;
  a.vocab_total = 10000;
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "targets_rows prepare targets_finish");
  cr_expect_eq(s.launch_count(), (size_t)launches_of(FLP_PASS_COMBINE));
  cr_expect_eq(PARAMS(targets_rows).score, 0, "they are inputs");
  flp_targets_finish_params finish = PARAMS(targets_finish);
  cr_expect_eq(finish.partial, stage_address(STAGE_AT(12)));
  cr_expect_eq(finish.score, stage_address(STAGE_AT(13)));
  cr_expect_eq(finish.shard_count, 3);
}

/* ---- backward ---- */

Test(launch_targets, backward_writes_dz_anew_at_the_targets) {
  open_plan("", targets_spec(3), 0, (flp_mode)0);
  flp_args a = args_of(FLP_PASS_BACKWARD);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(
      &s, "targets_rows prepare record targets_sort list_scores dz targets_patch grad_hidden grad_weight fill");
  cr_expect_eq(s.launch_count(), (size_t)launches_of(FLP_PASS_BACKWARD));
  stage_expect_capturable(&s);
  flp_targets_rows_params rows = PARAMS(targets_rows);
  cr_expect_eq(rows.grad_logprob, stage_address(STAGE_AT(7)));
  cr_expect_eq(rows.score, 0);
  cr_expect_eq(PARAMS(prepare).grad_logprob, rows.target_weight, "a sum of 0 is work all the same");
  cr_expect_eq(PARAMS(prepare).vocab_valid, 0);
  cr_expect_eq(PARAMS(record).grad_logprob, rows.target_gradient);
  flp_targets_sort_params sort = PARAMS(targets_sort);
  cr_expect_eq(sort.target_block, 0);
  cr_expect_eq(sort.bound, PARAMS(record).bound);
  cr_expect_eq(sort.target_weight, rows.target_weight);
  flp_list_scores_params scores = PARAMS(list_scores);
  cr_expect_eq(scores.offsets, sort.target_offsets);
  cr_expect_eq(scores.list_column, sort.list_column);
  cr_expect_eq(scores.list_length, sort.list_length);
  flp_targets_patch_params patch = PARAMS(targets_patch);
  cr_expect_eq(grid_of("targets_patch"), 38);
  cr_expect_eq(patch.list_score, scores.list_score);
  cr_expect_eq(patch.grad_logprob, stage_address(STAGE_AT(7)));
  cr_expect_eq(patch.target_exact, rows.target_exact);
  cr_expect_eq(patch.targets, K);
  cr_expect_eq(patch.row_end, N);
  cr_expect_eq(patch.column_end, V);
  cr_expect_eq(patch.dz, PARAMS(dz).dz);
  cr_expect_eq(patch.dz_stride, PARAMS(dz).dz_stride);
  cr_expect_eq(patch.list_dz, 0);
}

Test(launch_targets, each_chunk_and_its_column_sums) {
  open_plan("", targets_spec(7), 128, FLP_MODE_RECOMPUTE_ROWS);
  flp_args a = args_of(FLP_PASS_BACKWARD);
  stage_execute(&s, plan, &a);
#define CHUNK "dz targets_patch targets_bias grad_hidden grad_weight bias_reduce "
#define DIGIT "list_digits list_scan list_place "
  stage_expect_sequence(
      &s, "targets_rows prepare record targets_sort list_scores " DIGIT DIGIT "list_starts " CHUNK CHUNK CHUNK "fill");
  cr_expect_eq(s.launch_count(), (size_t)launches_of(FLP_PASS_BACKWARD));
  flp_targets_sort_params sort = PARAMS(targets_sort);
  flp_list_digits_params digits = PARAMS(list_digits);
  cr_expect_eq(digits.list_count, N * K);
  cr_expect_eq(digits.list_total, sort.target_total, "rows that take no part have no entries");
  cr_expect_neq(sort.target_total, 0);
  cr_expect_neq(sort.list_row, 0);
  for (int chunk = 0; chunk < 3; chunk++) {
    flp_targets_patch_params patch = PARAMS_OF(targets_patch, chunk);
    flp_targets_bias_params bias = PARAMS_OF(targets_bias, chunk);
    cr_expect_eq(patch.row_begin, 128 * chunk);
    cr_expect_eq(patch.row_end, chunk == 2 ? N : 128 * (chunk + 1));
    cr_expect_neq(patch.list_dz, 0);
    cr_expect_eq(bias.list_dz, patch.list_dz);
    cr_expect_eq(bias.row_begin, patch.row_begin);
    cr_expect_eq(bias.row_end, patch.row_end);
    cr_expect_eq(bias.column_end, V);
    cr_expect_eq(bias.bias_part, PARAMS_OF(dz, chunk).bias_part);
  }
  cr_expect_eq(grid_of("targets_bias"), 125);
}

Test(launch_targets, without_gradients_of_logprobs_nothing_is_written_anew) {
  flp_spec wanted = targets_spec(3);
  wanted.entropy = FLP_ENTROPY_BACKWARD;
  open_plan("", wanted, 0, (flp_mode)0);
  flp_args a = args_of(FLP_PASS_BACKWARD);
  a.grad_logprob = NULL;
  a.grad_entropy = STAGE_AT(14);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "targets_rows prepare record dz grad_hidden grad_weight fill");
  cr_expect_eq(PARAMS(prepare).grad_logprob, 0);
  cr_expect_eq(PARAMS(prepare).grad_entropy, stage_address(STAGE_AT(14)));
  cr_expect_eq(PARAMS(record).grad_logprob, 0);
}

/* One target is what it always was. */
Test(launch_targets, one_target_launches_what_none_does) {
  flp_spec wanted = targets_spec(3);
  wanted.targets = 1;
  open_plan("", wanted, 0, (flp_mode)0);
  flp_args a = args_of(FLP_PASS_FORWARD);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare forward combine");
  cr_expect_eq(PARAMS(prepare).target, stage_address(STAGE_AT(4)));
  cr_expect_eq(PARAMS(prepare).vocab_valid, V);
  a = args_of(FLP_PASS_BACKWARD);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare record dz grad_hidden grad_weight fill");
}

/* test_cli_call.c: a call's arrays: their sizes and guards, which field of flp_args each goes to, and what comes back. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/call.h"

enum { ROWS = 3, COLUMNS = 10, DEPTH = 8 };

static cli_device host = {.ordinal = FLP_DEVICE_HOST};

static flp_spec spec_of(uint32_t grads, flp_entropy entropy) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.dtype = FLP_DTYPE_FP32;
  spec.vocab = COLUMNS;
  spec.hidden = DEPTH;
  spec.grads = grads;
  spec.entropy = entropy;
  spec.grad_hidden_dtype = spec.grad_weight_dtype = spec.grad_bias_dtype = FLP_DTYPE_FP32;
  return spec;
}

static call_problem problem_of(uint32_t grads, flp_entropy entropy) {
  flp_spec spec = spec_of(grads, entropy);
  call_problem problem = call_problem_of(&spec, ROWS);
  problem.gives_stats = 1;
  return problem;
}

/* ---- one buffer ---- */

Test(call, a_byte_before_or_behind_an_array_shows) {
  for (int before = 0; before < 2; before++) {
    call_buffer buffer = {0};
    void *out = NULL;
    int overrun = 0;
    cr_assert_eq(call_buffer_make(&host, 40, 8, 1, &buffer), FLP_OK);
    unsigned char *array = call_buffer_at(&buffer, 0);
    cr_expect_eq((size_t)array % 256, 8);
    memset(array, 1, 40);
    cr_assert_eq(call_buffer_take(&buffer, 40, &out, &overrun), FLP_OK);
    cr_expect_eq(overrun, 0);
    cr_expect_eq(memcmp(out, array, 40), 0);
    free(out);
    array[before ? -1 : 40] = 0;
    cr_assert_eq(call_buffer_take(&buffer, 40, &out, &overrun), FLP_OK);
    cr_expect_eq(overrun, 1);
    free(out);
    call_buffer_clear(&buffer);
  }
}

Test(call, memory_of_the_host_is_handed_over_unless_it_is_guarded) {
  call_buffer buffer = {0};
  void *out = NULL;
  int overrun = 0;
  cr_assert_eq(call_buffer_make(&host, 40, 0, 0, &buffer), FLP_OK);
  void *array = call_buffer_at(&buffer, 0);
  cr_assert_eq(call_buffer_take(&buffer, 40, &out, &overrun), FLP_OK);
  cr_expect_eq(out, array);
  cr_expect_null(call_buffer_at(&buffer, 0));
  call_buffer_clear(&buffer);
  free(out);
}

/* ---- arguments ---- */

/* Buffers whose every id has an array. */
static call_buffers all_slots(const call_problem *problem) {
  call_buffers buffers = {.device = &host};
  for (int id = 0; id < FLP_ARRAYS; id++) {
    size_t bytes = call_bytes(problem, (flp_array_id)id);
    cr_assert_eq(call_make(&buffers, (flp_array_id)id, bytes ? bytes : 64), FLP_OK);
  }
  return buffers;
}

static const void *at(const call_buffers *buffers, int id) {
  return call_buffer_at(&buffers->at[id], 0);
}

Test(call, each_input_of_a_loss_goes_where_the_library_looks_for_it) {
  call_problem problem = problem_of(FLP_GRAD_HIDDEN, FLP_ENTROPY_FORWARD);
  call_buffers buffers = all_slots(&problem);
  const float *inputs[FLP_LOSS_ALL_INPUTS];
  flp_args args = call_args(&buffers, &problem, FLP_PASS_STEP, 0);
  flp_loss_inputs_of(&args, inputs);
  for (int i = FLP_LOSS_OLD_LOGPROB; i < FLP_LOSS_INPUTS_MAX; i++)
    cr_expect_eq((const void *)inputs[i], at(&buffers, call_loss_input(i)), "input %d", i);
  cr_expect_eq(args.loss, at(&buffers, FLP_ARRAY_loss));
  cr_expect_eq(args.metrics, at(&buffers, FLP_ARRAY_metrics));
  cr_expect_null(args.stats, "a step makes its own");
  cr_expect_null(args.grad_logprob);
  cr_expect_null(args.saved);
  call_clear(&buffers);
}

Test(call, each_pass_gets_its_own_arrays) {
  call_problem problem = problem_of(FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS, FLP_ENTROPY_BACKWARD);
  call_buffers buffers = all_slots(&problem);
  flp_args forward = call_args(&buffers, &problem, FLP_PASS_FORWARD, 0);
  flp_args backward = call_args(&buffers, &problem, FLP_PASS_BACKWARD, 0);
  cr_expect_eq(forward.logprob, at(&buffers, FLP_ARRAY_logprob));
  cr_expect_eq(forward.entropy, at(&buffers, FLP_ARRAY_entropy));
  cr_expect_eq(forward.stats, at(&buffers, FLP_ARRAY_stats));
  cr_expect_eq(forward.old_lse, at(&buffers, FLP_ARRAY_old_lse));
  cr_expect_eq(forward.saved, at(&buffers, FLP_ARRAY_saved));
  cr_expect(!forward.grad_hidden && !forward.grad_logprob && !forward.partial);
  cr_expect_eq(backward.grad_logprob, at(&buffers, FLP_ARRAY_grad_logprob));
  cr_expect_eq(backward.grad_entropy, at(&buffers, FLP_ARRAY_grad_entropy));
  cr_expect_eq(backward.grad_hidden, at(&buffers, FLP_ARRAY_grad_hidden));
  cr_expect_eq(backward.grad_weight, at(&buffers, FLP_ARRAY_grad_weight));
  cr_expect_eq(backward.grad_bias, at(&buffers, FLP_ARRAY_grad_bias));
  cr_expect_eq(backward.stats, at(&buffers, FLP_ARRAY_stats));
  cr_expect(!backward.logprob && !backward.entropy && !backward.old_lse);
  call_clear(&buffers);
}

Test(call, a_shard_gets_its_rows_of_the_head_and_no_more) {
  call_problem problem = problem_of(FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT, FLP_ENTROPY_FORWARD);
  problem.shards = 3;
  problem.shard_vocab = 4; /* of 10 columns: 4, 4, 2 */
  call_buffers buffers = all_slots(&problem);
  flp_args args = call_args(&buffers, &problem, FLP_PASS_BACKWARD, 2);
  cr_expect_eq(args.vocab_offset, 8);
  cr_expect_eq(args.vocab_valid, 2);
  cr_expect_eq(args.vocab_total, COLUMNS);
  cr_expect_eq((const float *)args.weight, (const float *)at(&buffers, FLP_ARRAY_weight) + 8 * DEPTH);
  cr_expect_eq((const float *)args.grad_weight, (const float *)at(&buffers, FLP_ARRAY_grad_weight) + 8 * DEPTH);
  cr_expect_eq((const float *)args.grad_hidden, (const float *)at(&buffers, FLP_ARRAY_grad_hidden) + 2 * ROWS * DEPTH);
  args = call_args(&buffers, &problem, FLP_PASS_FORWARD, 1);
  cr_expect_eq(args.partial, (const float *)at(&buffers, FLP_ARRAY_partial) + 4 * ROWS);
  cr_expect(!args.logprob && !args.entropy && !args.stats, "combine gives them");
  args = call_args(&buffers, &problem, FLP_PASS_COMBINE, 0);
  cr_expect_eq(args.partial, at(&buffers, FLP_ARRAY_partial));
  cr_expect_eq(args.shard_count, 3);
  cr_expect_eq(args.logprob, at(&buffers, FLP_ARRAY_logprob));
  call_clear(&buffers);
}

Test(call, what_a_tail_leaves_out_is_told_by_each_shard_that_makes_gradients) {
  call_problem problem = problem_of(FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT, FLP_ENTROPY_FORWARD);
  cr_expect_eq(call_array_of(&problem, FLP_ARRAY_tail_report).wanted, 0);
  cr_expect_eq(call_keeps(&problem), 0);
  problem.spec.tail = 0x1p-9f;
  problem.shards = 3;
  problem.shard_vocab = 4;
  cr_expect_eq(call_keeps(&problem), 1);
  cr_expect_eq(call_array_of(&problem, FLP_ARRAY_tail_report).wanted, 1);
  cr_expect_eq(call_bytes(&problem, FLP_ARRAY_tail_report), 3 * 4 * sizeof(float));
  call_buffers buffers = all_slots(&problem);
  cr_expect_null(call_args(&buffers, &problem, FLP_PASS_FORWARD, 1).tail_report);
  cr_expect_null(call_args(&buffers, &problem, FLP_PASS_COMBINE, 0).tail_report);
  for (int shard = 0; shard < 3; shard++)
    cr_expect_eq(call_args(&buffers, &problem, FLP_PASS_BACKWARD, shard).tail_report,
                 (float *)at(&buffers, FLP_ARRAY_tail_report) + 4 * shard);
  problem.shards = 1;
  cr_expect_eq(call_args(&buffers, &problem, FLP_PASS_STEP, 0).tail_report, at(&buffers, FLP_ARRAY_tail_report));
  call_clear(&buffers);
}

Test(call, lists_go_to_every_pass) {
  call_problem problem = problem_of(FLP_GRAD_HIDDEN, FLP_ENTROPY_FORWARD);
  problem.spec.listed = 1;
  problem.spec.target_dtype = FLP_DTYPE_INT32;
  problem.list_count = 17;
  cr_expect_eq(call_bytes(&problem, FLP_ARRAY_list_offsets), (ROWS + 1) * sizeof(int64_t));
  cr_expect_eq(call_bytes(&problem, FLP_ARRAY_list_ids), 17 * sizeof(int32_t));
  call_buffers buffers = all_slots(&problem);
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_BACKWARD; pass++) {
    flp_args args = call_args(&buffers, &problem, (flp_pass)pass, 0);
    cr_expect_eq((const void *)args.list_offsets, at(&buffers, FLP_ARRAY_list_offsets));
    cr_expect_eq(args.list_ids, at(&buffers, FLP_ARRAY_list_ids));
    cr_expect_eq(args.list_count, 17);
  }
  call_clear(&buffers);
}

/* ---- a whole call, on the eager rung ---- */

typedef struct scene {
  float hidden[ROWS * (DEPTH + 2)], weight[COLUMNS * (DEPTH + 2)], upstream[ROWS];
  int64_t target[ROWS];
  call_problem problem;
  call_buffers buffers;
  flp_plan *plan;
  call_result result;
} scene;

static void open_scene(scene *s) {
  *s = (scene){.problem = problem_of(FLP_GRAD_HIDDEN, FLP_ENTROPY_FORWARD),
               .buffers = {.device = &host, .guarded = 1},
               .upstream = {1, 1, 1},
               .target = {1, 2, 3}};
  for (int i = 0; i < ROWS * (DEPTH + 2); i++) s->hidden[i] = 0.01f * (float)i;
  for (int i = 0; i < COLUMNS * (DEPTH + 2); i++) s->weight[i] = 0.02f * (float)(i % 7);
  s->problem.stride = DEPTH + 2;
  s->problem.operand[FLP_ARRAY_hidden] = s->hidden;
  s->problem.operand[FLP_ARRAY_weight] = s->weight;
  s->problem.operand[FLP_ARRAY_target] = s->target;
  s->problem.operand[FLP_ARRAY_grad_logprob] = s->upstream;
  flp_options options = FLP_OPTIONS_INIT;
  options.rung = FLP_RUNG_EAGER;
  options.device = FLP_DEVICE_HOST;
  s->problem.spec.alignment = 4;
  cr_assert_eq(flp_plan_create(&s->problem.spec, &options, &s->plan), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(call_upload(&s->buffers, &s->problem), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(call_make_outputs(&s->buffers, &s->problem), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(call_forward(&s->buffers, &s->problem, s->plan), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(call_backward(&s->buffers, &s->problem, s->plan), FLP_OK, "%s", flp_error_detail());
}

static void close_scene(scene *s) {
  call_result_clear(&s->result);
  call_clear(&s->buffers);
  flp_plan_destroy(s->plan);
}

Test(call, what_was_asked_for_comes_back) {
  scene s;
  open_scene(&s);
  int data_error = 1;
  cr_expect_eq(call_check_data(s.plan, NULL, &data_error), FLP_OK);
  cr_expect_eq(data_error, 0);
  cr_assert_eq(call_download(&s.buffers, &s.problem, &s.result), FLP_OK);
  cr_assert(s.result.logprob && s.result.entropy && s.result.stats && s.result.grad_hidden);
  cr_expect(!s.result.grad_weight && !s.result.grad_bias && !s.result.loss && !s.result.metrics);
  cr_expect_null(s.result.overrun);
  for (int row = 0; row < ROWS; row++) cr_expect(s.result.logprob[row] < 0 && s.result.entropy[row] > 0, "row %d", row);
  close_scene(&s);
}

static void expect_overrun(flp_array_id id, size_t offset, const char *name) {
  scene s;
  open_scene(&s);
  *(unsigned char *)call_buffer_at(&s.buffers.at[id], offset) = 0;
  cr_assert_eq(call_download(&s.buffers, &s.problem, &s.result), FLP_OK);
  cr_expect_str_eq(s.result.overrun, name);
  close_scene(&s);
}

Test(call, what_was_written_outside_of_rows_is_named) {
  expect_overrun(FLP_ARRAY_entropy, ROWS * 4, "entropy");
  expect_overrun(FLP_ARRAY_grad_hidden, DEPTH * 4, "grad_hidden"); /* between two rows */
  scene s;
  open_scene(&s);
  size_t workspace = s.buffers.at[FLP_ARRAY_workspace].bytes;
  close_scene(&s);
  expect_overrun(FLP_ARRAY_workspace, workspace, "workspace");
}

Test(call, what_is_borrowed_is_filled_and_left_to_its_owner) {
  scene s;
  open_scene(&s);
  call_buffers other = {.device = &host, .guarded = 1};
  for (int id = 0; id < FLP_ARRAYS; id++)
    if (FLP_ARRAY[id].way == FLP_WAY_IN) call_borrow(&other, &s.buffers, (flp_array_id)id);
  call_borrow(&other, &s.buffers, FLP_ARRAY_grad_hidden);
  cr_assert_eq(call_make_outputs(&other, &s.problem), FLP_OK);
  cr_expect_eq(*(unsigned char *)call_buffer_at(&other.at[FLP_ARRAY_grad_hidden], 0), CALL_POISON);
  cr_assert_eq(call_forward(&other, &s.problem, s.plan), FLP_OK, "%s", flp_error_detail());
  call_clear(&other);
  cr_assert_eq(call_backward(&s.buffers, &s.problem, s.plan), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(call_download(&s.buffers, &s.problem, &s.result), FLP_OK);
  cr_expect_null(s.result.overrun);
  close_scene(&s);
}

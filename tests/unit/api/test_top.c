/* test_top.c: spec.topk and spec.rank at the API: which specs and arguments are refused, with which sentence, and what
 * descriptions and ids say. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/api/validate.h"
#include "runtime/plan/plan.h"
#include "tests/unit/support/stage.h"

static flp_spec top_spec(int topk, int rank) {
  flp_spec spec = stage_spec(3);
  spec.topk = topk;
  spec.rank = rank;
  return spec;
}

static void expect_refused(flp_status status, const char *sentence) {
  cr_expect_eq(status, FLP_ERROR_ARGUMENT, "%s: %s", flp_status_name(status), sentence);
  cr_expect_str_eq(flp_error_detail(), sentence);
}

/* ---- specs ---- */

static void refuse_spec(flp_spec spec, const char *sentence) {
  flp_spec out;
  expect_refused(flp_spec_resolve(&spec, &out), sentence);
}

Test(top, specs_that_are_taken) {
  flp_spec out;
  for (int topk = 0; topk <= FLP_TOPK_MAX; topk += 16)
    for (int rank = 0; rank < 2; rank++) {
      flp_spec spec = top_spec(topk, rank);
      cr_assert_eq(flp_spec_resolve(&spec, &out), FLP_OK, "%s", flp_error_detail());
      cr_expect(out.topk == topk && out.rank == rank);
    }
}

Test(top, specs_that_are_refused) {
  refuse_spec(top_spec(129, 0), "spec.topk is 129 (accepted: 0 to 128)");
  refuse_spec(top_spec(-1, 0), "spec.topk is -1 (accepted: 0 to 128)");
  refuse_spec(top_spec(0, 2), "spec.rank is 2 (accepted: 0 to 1)");
  flp_spec spec = FLP_SPEC_INIT;
  spec.op = FLP_OP_SELECT;
  spec.vocab = 1000;
  spec.topk = 1;
  refuse_spec(spec, "spec.topk is not 0, but spec.op is FLP_OP_SELECT (accepted: 0)");
  spec.topk = 0;
  spec.rank = 1;
  refuse_spec(spec, "spec.rank is not 0, but spec.op is FLP_OP_SELECT (accepted: 0)");
}

/* ---- arguments ---- */

static flp_status resolve(flp_spec spec, const flp_args *args) {
  flp_spec resolved;
  flp_args out;
  cr_assert_eq(flp_spec_resolve(&spec, &resolved), FLP_OK, "%s", flp_error_detail());
  return flp_args_resolve(&resolved, args, &out);
}

static flp_args top_args(const flp_spec *spec, flp_pass pass) {
  flp_args args = stage_args(spec, pass, 10);
  args.top_ids = STAGE_AT(11);
  args.top_logprob = STAGE_AT(12);
  args.top_rest = STAGE_AT(13);
  args.rank = STAGE_AT(14);
  return args;
}

Test(top, arguments_that_are_taken) {
  flp_spec spec = top_spec(20, 1);
  flp_args args = top_args(&spec, FLP_PASS_FORWARD);
  cr_expect_eq(resolve(spec, &args), FLP_OK, "%s", flp_error_detail());
  args.logprob = args.stats = NULL;
  cr_expect_eq(resolve(spec, &args), FLP_OK, "the best columns alone: %s", flp_error_detail());
  args.top_ids = NULL;
  args.top_logprob = args.top_rest = NULL;
  cr_expect_eq(resolve(spec, &args), FLP_OK, "the rank alone: %s", flp_error_detail());
  args.rank = NULL;
  expect_refused(resolve(spec, &args),
                 "args.logprob, entropy, stats, top_ids, top_logprob, top_rest, rank and partial are all NULL (accepted: at "
                 "least one)");
  args.logprob = STAGE_AT(6);
  cr_expect_eq(resolve(spec, &args), FLP_OK, "each may be NULL: %s", flp_error_detail());
}

Test(top, arguments_that_nobody_asked_for) {
  flp_spec plain = top_spec(0, 0), spec = top_spec(20, 1);
  flp_args args = stage_args(&plain, FLP_PASS_FORWARD, 10);
  args.top_ids = STAGE_AT(11);
  expect_refused(resolve(plain, &args), "args.top_ids is given, but spec.topk is 0");
  args.top_ids = NULL;
  args.top_logprob = STAGE_AT(11);
  expect_refused(resolve(plain, &args), "args.top_logprob is given, but spec.topk is 0");
  args.top_logprob = NULL;
  args.top_rest = STAGE_AT(11);
  expect_refused(resolve(plain, &args), "args.top_rest is given, but spec.topk is 0");
  args.top_rest = NULL;
  args.rank = STAGE_AT(11);
  expect_refused(resolve(plain, &args), "args.rank is given, but spec.rank is 0");
  flp_args backward = stage_args(&spec, FLP_PASS_BACKWARD, 10);
  backward.rank = STAGE_AT(11);
  expect_refused(resolve(spec, &backward), "args.rank is given, but only forward gives it");
  flp_args combine = stage_args(&spec, FLP_PASS_COMBINE, 10);
  combine.partial = STAGE_AT(12);
  combine.shard_count = 1;
  combine.top_ids = STAGE_AT(11);
  expect_refused(resolve(spec, &combine), "args.top_ids is given, but only forward gives it");
}

Test(top, arguments_that_are_misaligned) {
  flp_spec spec = top_spec(20, 1);
  flp_args args = top_args(&spec, FLP_PASS_FORWARD);
  args.top_ids = (void *)(uintptr_t)0x70004;
  expect_refused(resolve(spec, &args), "args.top_ids is 0x70004 (accepted: multiples of 8 bytes)");
  spec.target_dtype = FLP_DTYPE_INT32;
  cr_expect_eq(resolve(spec, &args), FLP_OK, "%s", flp_error_detail());
  args.rank = (int32_t *)(uintptr_t)0x70002;
  expect_refused(resolve(spec, &args), "args.rank is 0x70002 (accepted: multiples of 4 bytes)");
}

Test(top, shards) {
  flp_spec spec = top_spec(20, 1);
  flp_args args = top_args(&spec, FLP_PASS_FORWARD);
  args.logprob = args.stats = NULL;
  args.partial = STAGE_AT(15);
  args.vocab_total = 3000;
  expect_refused(resolve(spec, &args),
                 "args.top_rest is given, but the call covers a vocab shard, which does not know the other columns");
  args.top_rest = NULL;
  expect_refused(resolve(spec, &args),
                 "args.rank is given, but the call covers a vocab shard, which does not know the other columns");
  args.rank = NULL;
  cr_expect_eq(resolve(spec, &args), FLP_OK, "%s", flp_error_detail());
}

Test(top, more_columns_than_there_are) {
  flp_spec spec = top_spec(20, 0);
  spec.vocab = 12;
  flp_args args = stage_args(&spec, FLP_PASS_FORWARD, 10);
  args.top_ids = STAGE_AT(11);
  expect_refused(resolve(spec, &args), "args.vocab_total is 12, but spec.topk is 20 (accepted: 20 or more)");
  flp_args backward = stage_args(&spec, FLP_PASS_BACKWARD, 10);
  cr_expect_eq(resolve(spec, &backward), FLP_OK, "%s", flp_error_detail());
  args.partial = STAGE_AT(15);
  args.logprob = args.stats = NULL;
  args.vocab_total = 40;
  cr_expect_eq(resolve(spec, &args), FLP_OK, "a small shard of a head that has them: %s", flp_error_detail());
}

/* ---- descriptions and ids ---- */

Test(top, texts_of_a_spec) {
  char text[FLP_SPEC_TEXT_BYTES], words[FLP_SPEC_OPTIONS_BYTES];
  flp_spec spec = top_spec(20, 1);
  flp_plan_spec_text(&spec, text);
  flp_plan_spec_options(&spec, words);
  cr_expect_str_eq(text, "bf16 V=1000 D=64 grads=hidden,weight topk=20 rank");
  cr_expect_str_eq(words, "--vocab 1000 --hidden 64 --dtype bf16 --grad hidden,weight --topk 20 --rank");
}

static void id_of(flp_spec spec, char out[17]) {
  flp_options options = FLP_OPTIONS_INIT;
  options.device = FLP_DEVICE_HOST;
  flp_plan *plan = stage_plan(&spec, &options);
  flp_plan_get_id(plan, out);
  flp_plan_destroy(plan);
}

Test(top, ranks_that_give_other_columns_have_other_ids) {
  stage s;
  stage_open(&s, "");
  char ids[4][17];
  id_of(top_spec(0, 0), ids[0]);
  id_of(top_spec(20, 0), ids[1]);
  id_of(top_spec(21, 0), ids[2]);
  id_of(top_spec(20, 1), ids[3]);
  for (int a = 0; a < 4; a++)
    for (int b = 0; b < a; b++) cr_expect_str_neq(ids[a], ids[b]);
}

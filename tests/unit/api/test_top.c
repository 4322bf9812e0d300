/* test_top.c: spec.topk and spec.rank at the API: which specs and arguments are refused, with which sentence, and what
 * descriptions and ids say. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/plan/plan.h"
#include "tests/unit/support/refuse.h"
#include "tests/unit/support/stage.h"

static flp_spec top_spec(int topk, int rank) {
  flp_spec spec = stage_spec(3);
  spec.topk = topk;
  spec.rank = rank;
  return spec;
}

static flp_spec good_spec(void) {
  return top_spec(20, 1);
}

/* ---- specs ---- */

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
  REFUSE_SPEC(spec.topk = 129, "spec.topk is 129 (accepted: 0 to 128)");
  REFUSE_SPEC(spec.topk = -1, "spec.topk is -1 (accepted: 0 to 128)");
  REFUSE_SPEC(spec.rank = 2, "spec.rank is 2 (accepted: 0 to 1)");
}

/* ---- arguments ---- */

static flp_args good_args(flp_pass pass) {
  flp_spec spec = good_spec();
  flp_args args = stage_args(&spec, pass, 10);
  if (pass == FLP_PASS_COMBINE) args.partial = AT(12), args.shard_count = 1;
  if (pass != FLP_PASS_FORWARD) return args;
  args.top_ids = AT(11);
  args.top_logprob = AT(12);
  args.top_rest = AT(13);
  args.rank = AT(14);
  return args;
}

/* Leaves a call without the outputs of this header. */
static void take(flp_args *args) {
  args->top_ids = NULL;
  args->top_logprob = args->top_rest = NULL;
  args->rank = NULL;
}

#define TAKE (take(&args), args.logprob = args.stats = NULL)
#define SHARD (args.logprob = args.stats = NULL, args.partial = AT(15), args.vocab_total = 3000)
#define UNKNOWN " is given, but the call covers a vocab shard, which does not know the other columns"

Test(top, arguments) {
  ACCEPT(FORWARD, (void)0);
  ACCEPT(FORWARD, args.logprob = args.stats = NULL);                    /* the best columns alone */
  ACCEPT(FORWARD, (TAKE, args.rank = AT(14)));                          /* the rank alone */
  ACCEPT(FORWARD, (TAKE, args.logprob = AT(6)));                        /* each may be NULL */
  ACCEPT(FORWARD, (spec.target_dtype = FLP_DTYPE_INT32, args.top_ids = (char *)AT(7) + 4));
  ACCEPT(FORWARD, (SHARD, args.top_rest = NULL, args.rank = NULL));
  REFUSE(FORWARD, TAKE,
         "args.logprob, entropy, stats, top_ids, top_logprob, top_rest, rank and partial are all NULL (accepted: at "
         "least one)");
  REFUSE(FORWARD, (spec.topk = 0, take(&args), args.top_ids = AT(11)), "args.top_ids is given, but spec.topk is 0");
  REFUSE(FORWARD, (spec.topk = 0, take(&args), args.top_logprob = AT(11)),
         "args.top_logprob is given, but spec.topk is 0");
  REFUSE(FORWARD, (spec.topk = 0, take(&args), args.top_rest = AT(11)), "args.top_rest is given, but spec.topk is 0");
  REFUSE(FORWARD, spec.rank = 0, "args.rank is given, but spec.rank is 0");
  REFUSE(BACKWARD, args.rank = AT(11), "args.rank is given, but only forward gives it");
  REFUSE(COMBINE, args.top_ids = AT(11), "args.top_ids is given, but only forward gives it");
  REFUSE(FORWARD, args.top_ids = (char *)AT(7) + 4, "args.top_ids is 0x70004 (accepted: multiples of 8 bytes)");
  REFUSE(FORWARD, args.rank = (int32_t *)0x70002, "args.rank is 0x70002 (accepted: multiples of 4 bytes)");
  REFUSE(FORWARD, SHARD, "args.top_rest" UNKNOWN);
  REFUSE(FORWARD, (SHARD, args.top_rest = NULL), "args.rank" UNKNOWN);
}

Test(top, more_columns_than_there_are) {
  REFUSE(FORWARD, spec.vocab = 12, "args.vocab_total is 12, but spec.topk is 20 (accepted: 20 or more)");
  ACCEPT(BACKWARD, spec.vocab = 12);
  ACCEPT(FORWARD, (SHARD, spec.vocab = 12, args.vocab_total = 40, args.top_rest = NULL, args.rank = NULL));
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

/* test_targets.c: several targets a row (spec.targets) at the API: which specs and arguments are refused, with which
 * sentence; how a plan calls itself. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/plan/plan.h"
#include "tests/unit/support/refuse.h"
#include "tests/unit/support/stage.h"

static flp_spec targets_spec(uint32_t grads) {
  flp_spec spec = stage_spec(grads);
  spec.targets = 64;
  return spec;
}

/* ---- specs ---- */

Test(targets, specs_that_are_taken) {
  static const int counts[] = {0, 1, 2, 64, FLP_TARGETS_MAX};
  flp_spec out;
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    flp_spec spec = stage_spec(7);
    spec.targets = counts[i];
    cr_assert_eq(flp_spec_resolve(&spec, &out), FLP_OK, "%s", flp_error_detail());
    cr_expect_eq(out.targets, counts[i] ? counts[i] : 1);
  }
}

static flp_spec good_spec(void) {
  return targets_spec(7);
}

Test(targets, specs_that_are_refused) {
  REFUSE_SPEC(spec.targets = -1, "spec.targets is -1 (accepted: 0 to 512)");
  REFUSE_SPEC(spec.targets = 513, "spec.targets is 513 (accepted: 0 to 512)");
}

/* ---- arguments ---- */

/* A call of a shard, which has partial_targets; backward has none. */
static flp_args good_args(flp_pass pass) {
  flp_spec spec = targets_spec(7);
  flp_args a = stage_args(&spec, pass, 10);
  a.vocab_total = 2000;
  if (pass == FLP_PASS_BACKWARD) return a;
  if (pass == FLP_PASS_FORWARD) a.logprob = a.stats = NULL;
  if (pass == FLP_PASS_COMBINE) a.shard_count = 2;
  a.partial = AT(3);
  a.partial_targets = AT(4);
  return a;
}

Test(targets, arguments_that_are_taken) {
  ACCEPT(FORWARD, (void)0);
  ACCEPT(COMBINE, (void)0);
  ACCEPT(BACKWARD, (void)0);
  ACCEPT(FORWARD, args.partial_targets = (void *)0x40004);
  ACCEPT(FORWARD, (args.vocab_total = 0, args.partial = NULL, args.partial_targets = NULL, args.logprob = AT(5)));
  ACCEPT(FORWARD, (args.vocab_total = 0, args.logprob = AT(5)));
  ACCEPT(FORWARD, (args.n = 0, args.partial = NULL, args.partial_targets = NULL));
  ACCEPT(COMBINE, (args.n = 0, args.partial_targets = NULL));
  ACCEPT(FORWARD, (spec.targets = 1, args.partial_targets = NULL));
}

Test(targets, arguments_that_are_refused) {
  REFUSE(FORWARD, args.partial_targets = NULL,
         "args.partial_targets is NULL, but args.partial is given and spec.targets is above 1");
  REFUSE(COMBINE, args.partial_targets = NULL,
         "args.partial_targets is NULL, but args.partial is given and spec.targets is above 1");
  REFUSE(FORWARD, args.partial_targets = (void *)0x40002,
         "args.partial_targets is 0x40002 (accepted: multiples of 4 bytes)");
  REFUSE(FORWARD, (args.vocab_total = 0, args.partial = NULL, args.logprob = AT(5)),
         "args.partial_targets is given, but args.partial is NULL");
  REFUSE(BACKWARD, args.partial_targets = AT(4),
         "args.partial_targets is given, but only forward and combine pass it on");
  REFUSE(FORWARD, spec.targets = 1, "args.partial_targets is given, but spec.targets is not above 1");
  REFUSE(COMBINE, spec.targets = 0, "args.partial_targets is given, but spec.targets is not above 1");
  REFUSE(BACKWARD, (spec.targets = 0, args.partial_targets = AT(4)),
         "args.partial_targets is given, but only forward and combine pass it on");
  REFUSE(FORWARD, args.target = (void *)0x10004, "args.target is 0x10004 (accepted: multiples of 8 bytes)");
  REFUSE(BACKWARD, args.grad_logprob = (void *)0x10002,
         "args.grad_logprob is 0x10002 (accepted: multiples of 4 bytes)");
}

/* ---- what a plan says of itself ---- */

static void expect_text(const flp_spec *spec, const char *text, const char *options) {
  char got[FLP_SPEC_TEXT_BYTES], words[FLP_SPEC_OPTIONS_BYTES];
  flp_plan_spec_text(spec, got);
  flp_plan_spec_options(spec, words);
  cr_expect_str_eq(got, text);
  cr_expect_str_eq(words, options);
}

Test(targets, texts_of_a_spec) {
  flp_spec spec = targets_spec(1);
  expect_text(&spec, "bf16 V=1000 D=64 grads=hidden targets=64",
              "--vocab 1000 --hidden 64 --dtype bf16 --grad hidden --targets 64");
  spec.targets = 1;
  expect_text(&spec, "bf16 V=1000 D=64 grads=hidden",
              "--vocab 1000 --hidden 64 --dtype bf16 --grad hidden");
}

/* Ranks with other numbers of targets are no one job; one target is one target, however it is said. */
Test(targets, the_id_of_the_eager_rung) {
  stage s;
  stage_open(&s, "");
  flp_options options = FLP_OPTIONS_INIT;
  options.device = FLP_DEVICE_HOST;
  static const int counts[] = {0, 1, 2, 64};
  char id[4][17];
  for (int i = 0; i < 4; i++) {
    flp_spec spec = stage_spec(3);
    spec.targets = counts[i];
    flp_plan *plan = stage_plan(&spec, &options);
    cr_assert_eq(flp_plan_get_id(plan, id[i]), FLP_OK);
    flp_plan_destroy(plan);
  }
  cr_expect_str_eq(id[0], id[1]);
  cr_expect_str_neq(id[1], id[2]);
  cr_expect_str_neq(id[2], id[3]);
}

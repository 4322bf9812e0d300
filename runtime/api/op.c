/* op.c: see op.h. */
#include "runtime/api/op.h"

#include <stdio.h>

#include "runtime/base/status.h"
#include "runtime/kernel/op.h"

#define PASS(pass) (1u << FLP_PASS_##pass)

/* Of an operation without a head: a single launch over all rows, without workspace. */
static flp_status one_launch(const flp_plan *plan, flp_pass pass, int64_t n, uint64_t budget_bytes, flp_layout *out) {
  (void)pass, (void)budget_bytes;
  *out = (flp_layout){.struct_bytes = sizeof *out, .chunk_rows = n, .chunk_vocab = plan->spec.vocab, .launches = n > 0};
  return FLP_OK;
}

static const flp_op_calls ops[] = {
    [FLP_OP_HEAD] = {"flp_execute",
                     PASS(FORWARD) | PASS(COMBINE) | PASS(BACKWARD) | PASS(STEP) | PASS(BACKWARD_SAVED) |
                         PASS(FORWARD_SAVED) | PASS(BACKWARD_GIVEN),
                     flp_head_check_spec, flp_head_layout},
    [FLP_OP_SELECT] = {"flp_select", PASS(FORWARD) | PASS(BACKWARD), flp_select_check_spec, one_launch},
    [FLP_OP_SCALE] = {"flp_scale", PASS(FORWARD), flp_scale_check_spec, one_launch},
    [FLP_OP_DIVERGE] = {"flp_diverge", PASS(FORWARD), flp_diverge_check_spec, one_launch},
    [FLP_OP_LOSS] = {"flp_step", PASS(STEP), flp_loss_check_spec, one_launch},
};
_Static_assert(sizeof ops / sizeof ops[0] == FLP_OP_COUNT, "a row for every operation of names.h");

const flp_op_calls *flp_op_calls_of(flp_op op) {
  return &ops[op];
}

flp_status flp_op_check_plan(const flp_plan *plan, flp_op op) {
  if (!plan) return flp_fail(FLP_ERROR_ARGUMENT, "plan is NULL (accepted: a plan of flp_plan_create)");
  flp_op own = plan->spec.op;
  if (own == op) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "the plan's spec.op is %s (accepted: %s; %s runs it)", flp_op_of(own)->symbol,
                  flp_op_of(op)->symbol, ops[own].call);
}

flp_status flp_op_check_pass(const flp_plan *plan, flp_pass pass) {
  unsigned passes = ops[plan->spec.op].passes;
  if (passes >> pass & 1) return FLP_OK;
#define NAME(value, word) [FLP_PASS_##value] = #value,
  static const char *const names[] = {FLP_PASSES(NAME)};
#undef NAME
  char accepted[128] = "";
  size_t used = 0;
  for (int i = FLP_PASS_FORWARD; i <= FLP_PASS_LAST && used < sizeof accepted; i++)
    if (passes >> i & 1)
      used += (size_t)snprintf(accepted + used, sizeof accepted - used, "%s%s %d", used ? ", " : "", names[i], i);
  return flp_fail(FLP_ERROR_ARGUMENT, "pass is %s, but spec.op is %s (accepted: %s)", names[pass],
                  flp_op_of(plan->spec.op)->symbol, accepted);
}

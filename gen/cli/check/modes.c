/* modes.c: save, stream, direction and tail modes over repeats and budgets: the same bits from run to run; under every budget
 * the bits of logprob and entropy that score mode gives, and gradients as near to the oracle. */
#include "gen/cli/check/compare.h"
#include "gen/cli/check/parts.h"
#include "gen/cli/shared/losses.h"
#include "gen/cli/shared/spec_args.h"
#include "runtime/base/names.h"

typedef struct mode_state {
  check_how how;
  check_report *report;
  check_problem problem;
  check_truth truth;
  call_result first, plain; /* under the default budget; of score and recompute modes */
} mode_state;

static flp_status make_case(const check_part *of, check_case *out) {
  flp_mode mode = of->mode;
  check_case c = check_case_default(of->dtype, 300, 1700, mode == FLP_MODE_TAIL ? 264 : 72);
  c.name = "budgets";
  c.spec.grads = mode == FLP_MODE_DIRECTION ? FLP_GRAD_HIDDEN : FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  c.spec.entropy = FLP_ENTROPY_FORWARD;
  c.spec.grad_weight_dtype = FLP_DTYPE_FP32;
  c.mode = mode;
  c.spec.tail = of->tail;
  cli_spec_set_mode(&c.spec, mode);
  if (mode == FLP_MODE_TAIL) c.fill = CHECK_FILL_SHARP;
  c.rows = CHECK_ROWS_MASKED;
  c.seed = 8; /* every input is given */
  if (mode == FLP_MODE_STREAM) FLP_TRY(cli_loss_keep("grpo+k3", &c.spec));
  *out = c;
  return FLP_OK;
}

static flp_status check_repeat(const mode_state *s) {
  static const struct {
    const char *name;
    call_slot slot;
  } outputs[] = {{"repeat: logprob", CALL_LOGPROB},
                 {"repeat: entropy", CALL_ENTROPY},
                 {"repeat: loss", CALL_LOSS},
                 {"repeat: grad_hidden", CALL_GRAD_HIDDEN},
                 {"repeat: grad_weight", CALL_GRAD_WEIGHT},
                 {"repeat: tail_report", CALL_TAIL_REPORT}};
  const check_problem *p = &s->problem;
  call_result again;
  FLP_TRY(check_run(p, &s->how, &again));
  for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
    if (!call_result_at(&s->first, outputs[i].slot)) continue;
    check_metric metric = check_result_bits(p, outputs[i].slot, &again, &s->first);
    check_report_add(s->report, &p->c, s->how.rung, outputs[i].name, metric,
                     metric.pass ? NULL : "differs from run to run");
  }
  call_result_clear(&again);
  return FLP_OK;
}

/* From the least budget that will do, to find which it is doubled, to four times that. */
static flp_status check_budgets(const mode_state *s) {
  check_how how = s->how;
  call_result result = {0};
  int runs = 0;
  for (how.budget_bytes = 1 << 14; how.budget_bytes < UINT64_C(1) << 34 && runs < 3; how.budget_bytes *= 2) {
    flp_status status = check_run(&s->problem, &how, &result);
    if (status == FLP_ERROR_BUDGET || status == FLP_ERROR_UNAVAILABLE) continue;
    if (status == FLP_OK) status = check_compare(&s->problem, &s->truth, &result, &s->plain, how.rung, s->report);
    call_result_clear(&result);
    FLP_TRY(status);
    runs++;
  }
  return FLP_OK;
}

static flp_status check_state(mode_state *s) {
  FLP_TRY(check_truth_create(&s->problem, NULL, &s->truth));
  FLP_TRY(check_run(&s->problem, &s->how, &s->first));
  check_problem_follow(&s->problem, &s->first);
  FLP_TRY(check_run_plain(&s->problem, &s->how, &s->plain));
  FLP_TRY(check_repeat(s));
  return check_budgets(s);
}

void check_mode_cases(const check_part *of, check_list *list) {
  check_case c;
  if (make_case(of, &c) == FLP_OK) check_list_add(list, c);
}

flp_status check_mode_bits(const check_part *of, const check_how *how, check_report *report) {
  mode_state s = {.how = *how, .report = report};
  check_case c;
  FLP_TRY(make_case(of, &c));
  FLP_TRY(check_problem_create(&c, &s.problem));
  flp_status status = check_state(&s);
  call_result_clear(&s.first);
  call_result_clear(&s.plain);
  check_truth_clear(&s.truth);
  check_problem_clear(&s.problem);
  return status;
}

/* bits.c: bit identity: what the contract promises not to change a row's numbers.
 *
 * Forward: repeats, the order and number of rows, the budget, gradients asked for or not, the tile configuration.
 * Gradients: repeats. Of listed columns both: the order of ids. Save, stream, direction and tail modes: repeats, and
 * under every budget the bits of logprob and entropy that score mode gives, with gradients as near to the oracle. */
#include "gen/cli/check/compare.h"
#include "gen/cli/check/session.h"
#include "gen/cli/shared/common.h"
#include "gen/cli/shared/losses.h"
#include "gen/cli/shared/spec_args.h"
#include "runtime/base/status.h"

enum { ROWS = 150, ALL_GRADS = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS };
enum { ALL_OF_ADAPTER = FLP_GRAD_HIDDEN | FLP_GRAD_BIAS | FLP_GRAD_LORA_A | FLP_GRAD_LORA_B };

/* Outputs beside the rows, and all that a mode which keeps something has. */
static const flp_array_id gradients[] = {FLP_ARRAY_grad_hidden, FLP_ARRAY_grad_weight, FLP_ARRAY_grad_bias,
                                         FLP_ARRAY_grad_lora_a, FLP_ARRAY_grad_lora_b, FLP_ARRAYS};
static const flp_array_id all_outputs[] = {
    FLP_ARRAY_logprob,     FLP_ARRAY_entropy,     FLP_ARRAY_loss, FLP_ARRAY_grad_hidden,
    FLP_ARRAY_grad_weight, FLP_ARRAY_tail_report, FLP_ARRAYS};

typedef struct bits_state {
  check_how how;
  check_report *report;
  check_problem problem;        /* the reference: all rows, all gradients */
  call_result reference, plain; /* under the default budget; plain: of score and recompute modes, or nothing */
  check_truth truth;            /* where results are compared with the oracle */
} bits_state;

static check_case make_case(const check_part *of, uint32_t grads) {
  check_case c = check_case_default(of->dtype, ROWS, 2311, 136);
  c.name = "bits";
  c.spec.entropy = FLP_ENTROPY_BACKWARD;
  c.spec.grads = grads;
  c.spec.has_bias = 1;
  c.seed = 7;
  c.mode = of->mode;
  cli_spec_set_mode(&c.spec, of->mode);
  c.kept = 30;
  c.spec.targets = of->targets;
  c.spec.lora_rank = of->lora_rank;
  if (of->lora_rank && grads) c.spec.grads = ALL_OF_ADAPTER;
  return c;
}

static void add(const bits_state *s, const char *output, check_metric metric, const char *note) {
  check_report_add(s->report, &s->problem.c, s->how.options.rung, output, metric, metric.pass ? NULL : note);
}

/* Row i of a result against row order[i] of the reference; order NULL: the same. */
static check_metric compare_rows(const bits_state *s, const call_result *result, const int64_t *order, int64_t n) {
  check_metric total = {.cosine = 1, .pass = 1};
  for (int64_t i = 0; i < n; i++) {
    int64_t from = order ? order[i] : i;
    int64_t count = s->problem.targets;
    check_metric logprob = check_metric_bits(&result->logprob[i * count], &s->reference.logprob[from * count],
                                             (size_t)count * sizeof(float));
    check_metric entropy = check_metric_bits(&result->entropy[i], &s->reference.entropy[from], sizeof(float));
    total.max_ulp += logprob.max_ulp + entropy.max_ulp;
    total.pass &= logprob.pass && entropy.pass;
  }
  return total;
}

static const char REPEATS[] = "differs from run to run";

/* outputs: up to FLP_ARRAYS; those that the reference lacks are left out */
static void compare_outputs(const bits_state *s, const call_result *result, const char *what,
                            const flp_array_id *outputs, const char *note) {
  for (; *outputs < FLP_ARRAYS; outputs++)
    if (call_result_at(&s->reference, *outputs))
      add(s, cli_shortly("%s: %s", what, FLP_ARRAY[*outputs].name).text,
          check_result_bits(&s->problem, *outputs, result, &s->reference), note);
}

/* All outputs of a problem that should give the reference's. */
static flp_status check_again(const bits_state *s, const check_problem *p, const char *what, const char *note) {
  call_result again;
  FLP_TRY(check_run(p, &s->how, &again));
  add(s, cli_shortly("%s: rows", what).text, compare_rows(s, &again, NULL, ROWS), note);
  compare_outputs(s, &again, what, gradients, note);
  call_result_clear(&again);
  return FLP_OK;
}

static flp_status check_list_order(const bits_state *s) {
  check_problem reversed;
  FLP_TRY(check_problem_create(&s->problem.c, &reversed));
  check_lists_reverse(&reversed);
  flp_status status = check_again(s, &reversed, "lists reversed", "depends on the order of ids in lists");
  check_problem_clear(&reversed);
  return status;
}

static flp_status check_order(const bits_state *s, const char *output, const int64_t *order, int64_t n,
                              const char *note) {
  check_problem permuted;
  call_result result = {0};
  FLP_TRY(check_problem_create(&s->problem.c, &permuted));
  flp_status status = check_problem_permute(&permuted, order, n);
  if (status == FLP_OK) status = check_run(&permuted, &s->how, &result);
  if (status == FLP_OK) add(s, output, compare_rows(s, &result, order, n), note);
  call_result_clear(&result);
  check_problem_clear(&permuted);
  return status;
}

static flp_status check_orders(const bits_state *s) {
  int64_t reversed[ROWS], shuffled[ROWS], first[3] = {0, 1, 2}, one[1] = {77};
  for (int64_t i = 0; i < ROWS; i++) {
    reversed[i] = ROWS - 1 - i;
    shuffled[i] = i * 67 % ROWS; /* 67 and 150 share no factor */
  }
  FLP_TRY(check_order(s, "rows reversed", reversed, ROWS, "a row depends on its position"));
  FLP_TRY(check_order(s, "rows shuffled", shuffled, ROWS, "a row depends on its position"));
  FLP_TRY(check_order(s, "first 3 rows", first, 3, "a row depends on N"));
  return check_order(s, "row 77 alone", one, 1, "a row depends on N");
}

/* Forward alone: under the default budget and under about the smallest that will do. */
static flp_status check_forward_only(const bits_state *s) {
  check_problem problem;
  call_result result = {0};
  const flp_spec *spec = &s->problem.c.spec;
  const check_part of = {spec->dtype, s->problem.c.mode, 0, spec->targets, spec->lora_rank};
  check_case c = make_case(&of, 0);
  FLP_TRY(check_problem_create(&c, &problem));
  check_how how = s->how;
  flp_status status = check_run(&problem, &how, &result);
  if (status == FLP_OK)
    add(s, "no gradients", compare_rows(s, &result, NULL, ROWS), "forward depends on whether gradients are asked for");
  call_result_clear(&result);
  how.options.budget_bytes = 1024;
  do {
    how.options.budget_bytes *= 2;
    if (status == FLP_OK || status == FLP_ERROR_BUDGET) status = check_run(&problem, &how, &result);
  } while (status == FLP_ERROR_BUDGET && how.options.budget_bytes < UINT64_C(1) << 34);
  if (status == FLP_OK) add(s, "small budget", compare_rows(s, &result, NULL, ROWS), "forward depends on the budget");
  call_result_clear(&result);
  check_problem_clear(&problem);
  return status;
}

/* The same with its template's default tile configuration. */
static flp_status check_tunables(const bits_state *s) {
  if (!s->how.options.tune) return FLP_OK;
  check_how how = s->how;
  how.options.tune = NULL;
  call_result result;
  FLP_TRY(check_run(&s->problem, &how, &result));
  add(s, "own tunables", compare_rows(s, &result, NULL, ROWS), "forward depends on the tile configuration");
  call_result_clear(&result);
  return FLP_OK;
}

void check_bits_cases(const check_part *of, check_list *list) {
  check_list_add(list, make_case(of, ALL_GRADS));
  check_list_add(list, make_case(of, 0));
}

flp_status check_bits(const check_part *of, const check_how *how, check_report *report) {
  bits_state s = {.how = *how, .report = report};
  check_case c = make_case(of, ALL_GRADS);
  FLP_TRY(check_problem_create(&c, &s.problem));
  flp_status status = check_run(&s.problem, &s.how, &s.reference);
  if (status == FLP_OK) status = check_again(&s, &s.problem, "repeat", REPEATS);
  if (status == FLP_OK) status = check_orders(&s);
  if (status == FLP_OK) status = check_forward_only(&s);
  if (status == FLP_OK) status = check_tunables(&s);
  if (status == FLP_OK && of->mode == FLP_MODE_LISTED) status = check_list_order(&s);
  call_result_clear(&s.reference);
  check_problem_clear(&s.problem);
  return status;
}

/* ---- modes that keep something ---- */

static flp_status make_mode_case(const check_part *of, check_case *out) {
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

static flp_status repeat_mode(const bits_state *s) {
  call_result again;
  FLP_TRY(check_run(&s->problem, &s->how, &again));
  compare_outputs(s, &again, "repeat", all_outputs, REPEATS);
  call_result_clear(&again);
  return FLP_OK;
}

/* From the least budget that will do, to find which it is doubled, to four times that. */
static flp_status check_budgets(const bits_state *s) {
  check_how how = s->how;
  call_result result = {0};
  int runs = 0;
  for (how.options.budget_bytes = 1 << 14; how.options.budget_bytes < UINT64_C(1) << 34 && runs < 3;
       how.options.budget_bytes *= 2) {
    flp_status status = check_run(&s->problem, &how, &result);
    if (status == FLP_ERROR_BUDGET || status == FLP_ERROR_UNAVAILABLE) continue;
    if (status == FLP_OK)
      status = check_compare(&s->problem, &s->truth, &result, &s->plain, how.options.rung, s->report);
    call_result_clear(&result);
    FLP_TRY(status);
    runs++;
  }
  return FLP_OK;
}

static flp_status check_state(bits_state *s) {
  FLP_TRY(check_truth_create(&s->problem, NULL, &s->truth));
  FLP_TRY(check_run(&s->problem, &s->how, &s->reference));
  check_problem_follow(&s->problem, &s->reference);
  FLP_TRY(check_run_plain(&s->problem, &s->how, &s->plain));
  FLP_TRY(repeat_mode(s));
  return check_budgets(s);
}

void check_mode_cases(const check_part *of, check_list *list) {
  check_case c;
  if (make_mode_case(of, &c) == FLP_OK) check_list_add(list, c);
}

flp_status check_mode_bits(const check_part *of, const check_how *how, check_report *report) {
  bits_state s = {.how = *how, .report = report};
  check_case c;
  FLP_TRY(make_mode_case(of, &c));
  FLP_TRY(check_problem_create(&c, &s.problem));
  flp_status status = check_state(&s);
  call_result_clear(&s.reference);
  call_result_clear(&s.plain);
  check_truth_clear(&s.truth);
  check_problem_clear(&s.problem);
  return status;
}

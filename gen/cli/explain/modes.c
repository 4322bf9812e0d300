/* modes.c: the passes of a spec and their layouts, and why mode save, direction, tail or stream is taken or not. */
#include <stdio.h>

#include "gen/cli/explain/explain.h"
#include "runtime/base/names.h"
#include "runtime/base/quantity.h"
#include "runtime/kernel/kernel.h"
#include "runtime/plan/plan.h"

/* The planner of the assumed device, or of this machine's plan; NULL on the CPU rung, which has none of these modes. */
static const flp_planner *planner_of(const explanation *in, int assumed) {
  if (assumed) return &in->planner;
  return in->plan->rung == FLP_RUNG_EAGER ? NULL : &in->plan->planner;
}

/* 1 if the kernels that run can keep something for backward, and no other mode is asked for. */
static int can_keep(const explanation *in, int assumed) {
  const flp_planner *planner = planner_of(in, assumed);
  const flp_spec *spec = &in->planner.spec;
  return (spec->keep || spec->tail > 0) && planner && flp_planner_keeps(planner);
}

uint64_t explain_budget(const explanation *in, int assumed, flp_pass pass) {
  uint64_t plans = in->plan ? in->plan->device.memory_bytes : 0;
  return flp_pass_budget(in->args->options.budget_bytes, pass, assumed ? in->args->memory_bytes : plans);
}

int explain_has_pass(const explanation *in, int assumed, flp_pass pass) {
  const flp_spec *spec = &in->planner.spec;
  switch (pass) {
    case FLP_PASS_FORWARD:
      return 1;
    case FLP_PASS_BACKWARD:
      return spec->grads != 0;
    case FLP_PASS_BACKWARD_SAVED:
    case FLP_PASS_FORWARD_SAVED:
      return can_keep(in, assumed);
    case FLP_PASS_STEP:
      return spec->loss != NULL;
    case FLP_PASS_BACKWARD_GIVEN:
      return flp_spec_takes_scores(spec);
    default:
      return 0;
  }
}

static flp_status list_layout(const explanation *in, int assumed, flp_pass pass, int64_t n, flp_layout *out) {
  int64_t ids = explain_list_count(in->args->spec.kept, n);
  flp_scheme scheme;
  uint64_t budget = explain_budget(in, assumed, pass);
  if (!assumed) return flp_plan_layout_listed(in->plan, pass, n, ids, budget, out);
  FLP_TRY(flp_planner_pick_listed(&in->planner, pass, n, ids, budget, &scheme));
  flp_planner_describe_listed(&in->planner, pass, &scheme, n, ids, out);
  return FLP_OK;
}

flp_status explain_layout(const explanation *in, int assumed, flp_pass pass, int64_t n, flp_layout *out) {
  *out = (flp_layout)FLP_LAYOUT_INIT;
  if (in->planner.spec.listed) return list_layout(in, assumed, pass, n, out);
  uint64_t budget = explain_budget(in, assumed, pass);
  if (!assumed) return flp_plan_layout(in->plan, pass, n, budget, out);
  flp_scheme scheme;
  FLP_TRY(flp_planner_pick(&in->planner, pass, n, budget, 1, &scheme));
  flp_planner_describe(&in->planner, &scheme, n, out);
  return FLP_OK;
}

const flp_mode explain_modes[] = {FLP_MODE_SAVE, FLP_MODE_DIRECTION, FLP_MODE_TAIL, FLP_MODE_STREAM, (flp_mode)0};

static const char *task_of(flp_mode mode) {
  static const char *const tasks[] = {[FLP_MODE_SAVE] = "save exponentials",
                                      [FLP_MODE_STREAM] = "stream steps",
                                      [FLP_MODE_DIRECTION] = "keep directions",
                                      [FLP_MODE_TAIL] = "list columns"};
  return tasks[mode];
}

/* 1 if kernels and gradients allow the mode, whatever else is asked for. */
static int is_possible(const flp_planner *planner, flp_mode mode) {
  flp_planner own = *planner;
  if (mode != FLP_MODE_TAIL) own.mode = mode;
  return mode == FLP_MODE_STREAM ? flp_planner_streams(&own) : flp_planner_keeps(&own) == mode;
}

/* The mode that is asked for in place of this one; 0 if there is none. Steps and what forward keeps do not meet. */
static flp_mode other_mode(const flp_planner *planner, flp_mode mode) {
  if (flp_kernel_spec_emits(&planner->spec) && mode != FLP_MODE_TAIL) return FLP_MODE_TAIL;
  if (planner->mode == mode || (mode != FLP_MODE_STREAM && planner->mode == FLP_MODE_STREAM)) return (flp_mode)0;
  return planner->mode;
}

/* What takes direction mode from a spec that keeps something; NULL if nothing does. */
static const char *no_direction(const flp_spec *spec) {
  if (flp_planner_has_direction(spec)) return NULL;
  return spec->grads == FLP_GRAD_HIDDEN
             ? "the gradient of the entropy needs a second direction, which costs the product "
               "that recomputing does"
             : "it makes the gradient of hidden alone";
}

/* The same of any mode. */
static const char *why_not(const flp_planner *planner, flp_mode mode) {
  if (mode == FLP_MODE_DIRECTION) return no_direction(&planner->spec);
  if (mode == FLP_MODE_TAIL && !flp_kernel_spec_emits(&planner->spec))
    return "gradients are exact, which any tail allows; lists are of one target, of all columns, and of a loss that "
           "reads neither lse nor mean_score";
  int passes = mode == FLP_MODE_STREAM && planner->mean_passes;
  return passes ? "the mean of scores takes passes of its own" : NULL;
}

/* Says why kernels or options rule the mode out; 0 if they do not. */
static int is_ruled_out(const explanation *in, int assumed, flp_mode mode, char out[EXPLAIN_REASON_BYTES]) {
  const flp_planner *planner = planner_of(in, assumed);
  const char *what = task_of(mode), *arch = assumed ? in->assumed.arch : in->plan->arch;
  const char *why = why_not(&in->planner, mode);
  if (!planner)
    snprintf(out, EXPLAIN_REASON_BYTES, "not taken: the CPU rung does not %s", what);
  else if (other_mode(planner, mode))
    snprintf(out, EXPLAIN_REASON_BYTES, "not taken: mode %s is asked for", flp_mode_name(other_mode(planner, mode)));
  else if (!planner->spec.grads)
    snprintf(out, EXPLAIN_REASON_BYTES, "not taken: without gradients there is no reason to %s", what);
  else if (why)
    snprintf(out, EXPLAIN_REASON_BYTES, "not taken: %s", why);
  else if (!is_possible(planner, mode))
    snprintf(out, EXPLAIN_REASON_BYTES, "not taken: kernels of %s do not %s", arch, what);
  else
    return 0;
  return 1;
}

uint64_t explain_saved_bytes(const explanation *in, int assumed, flp_mode mode, int64_t n) {
  char reason[EXPLAIN_REASON_BYTES];
  return is_ruled_out(in, assumed, mode, reason) ? 0 : flp_planner_saved_bytes(&in->planner.spec, mode, n);
}

/* Of a frozen head the planner takes directions, unless exponentials are asked for. */
static void compare_kept(const explanation *in, flp_mode taken, flp_mode mode, int64_t n,
                         char out[EXPLAIN_REASON_BYTES]) {
  snprintf(out, EXPLAIN_REASON_BYTES,
           "not taken: it would keep %s; mode %s, which goes before it where hidden alone has a gradient, keeps %s",
           cli_bytes((double)flp_planner_saved_bytes(&in->planner.spec, mode, n)).text, flp_mode_name(taken),
           cli_bytes((double)flp_planner_saved_bytes(&in->planner.spec, taken, n)).text);
}

/* 1 if n rows have what they keep: of a step with a tail in the step's own budget, which holds all of it. */
static int is_taken(const flp_planner *planner, flp_mode mode, int64_t n, uint64_t budget, explain_saved *bytes) {
  flp_scheme step;
  if (n == 0) return 1;
  if (mode != FLP_MODE_TAIL || !planner->spec.loss) return flp_planner_saved(planner, n, budget) != 0;
  bytes->least = flp_planner_tail_step_least(planner, n);
  return flp_planner_pick(planner, FLP_PASS_STEP, n, budget, 1, &step) == FLP_OK && step.mode == mode;
}

static void reason_of_kept(const explanation *in, int assumed, flp_mode mode, int64_t n,
                           char out[EXPLAIN_REASON_BYTES]) {
  uint64_t budget = explain_budget(in, assumed, FLP_PASS_BACKWARD_SAVED);
  const flp_planner *planner = planner_of(in, assumed);
  explain_saved bytes;
  if (is_ruled_out(in, assumed, mode, out)) return;
  if (flp_planner_keeps(planner) != mode) {
    compare_kept(in, flp_planner_keeps(planner), mode, n, out);
    return;
  }
  explain_fit fit = explain_query_saved(planner, mode, n, budget, &bytes);
  cli_short kept = cli_bytes((double)bytes.kept), most = cli_bytes((double)budget);
  if (is_taken(planner, mode, n, budget, &bytes))
    snprintf(out, EXPLAIN_REASON_BYTES,
             "taken: %s from forward to backward, with the workspace of either, are %s the budget of %s", kept.text,
             fit == EXPLAIN_BEYOND ? "in the chunks that are asked for, beyond" : "within", most.text);
  else
    snprintf(out, EXPLAIN_REASON_BYTES,
             "not taken: it would keep %s, and with workspace needs %s at least; the budget is %s", kept.text,
             cli_bytes((double)bytes.least).text, most.text);
}

/* What a step takes instead of mode stream: of the two, the cheaper by the cost model. */
static void compare_costs(const flp_scheme *taken, const flp_scheme *stream, char out[EXPLAIN_REASON_BYTES]) {
  snprintf(out, EXPLAIN_REASON_BYTES,
           "not taken: modes %s and %s are cheaper: %.4g ms against %.4g ms by the cost model",
           flp_mode_name(FLP_MODE_SCORE), flp_mode_name(taken->mode), 1e3 * taken->seconds, 1e3 * stream->seconds);
}

static void reason_of_stream(const explanation *in, int assumed, int64_t n, char out[EXPLAIN_REASON_BYTES]) {
  const flp_planner *planner = planner_of(in, assumed);
  uint64_t budget = explain_budget(in, assumed, FLP_PASS_STEP);
  cli_short most = cli_bytes((double)budget);
  flp_scheme taken, stream;
  int is_any = planner && flp_planner_pick(planner, FLP_PASS_STEP, n, budget, 1, &taken) == FLP_OK;
  int is_taken = is_any && taken.mode == FLP_MODE_STREAM, has_flat = is_any && taken.size[FLP_REGION_flat];
  if (has_flat) snprintf(out, EXPLAIN_REASON_BYTES, "taken where two thirds of the rows are flat; else mode tail");
  if (has_flat || (!is_taken && is_ruled_out(in, assumed, FLP_MODE_STREAM, out))) return;
  explain_fit fit = explain_query(planner, FLP_PASS_STEP, FLP_MODE_STREAM, n, budget, &stream);
  if (is_taken)
    snprintf(out, EXPLAIN_REASON_BYTES, "taken: %lld chunk%s of at most %lld rows %s the budget of %s",
             (long long)taken.chunks, taken.chunks == 1 ? "" : "s", (long long)taken.chunk_rows,
             fit == EXPLAIN_FITS ? "within" : "as asked for, beyond", most.text);
  else if (!flp_planner_streams(planner))
    snprintf(out, EXPLAIN_REASON_BYTES, "not taken: chunks of the vocabulary are asked for, it has chunks of rows");
  else if (fit == EXPLAIN_LEAST)
    snprintf(out, EXPLAIN_REASON_BYTES, "not taken: no chunk fits the budget of %s; the least is %s", most.text,
             cli_bytes((double)stream.smallest_bytes).text);
  else
    compare_costs(&taken, &stream, out);
}

static int is_asked_for(const flp_spec *spec, flp_mode mode) {
  if (mode == FLP_MODE_TAIL) return spec->tail > 0;
  return flp_mode_keeps(mode) ? spec->keep : spec->loss != NULL;
}

int explain_mode_reason(const explanation *in, int assumed, flp_mode mode, int64_t n, char out[EXPLAIN_REASON_BYTES]) {
  const flp_spec *spec = &in->planner.spec;
  if (!is_asked_for(spec, mode)) return 0;
  if (flp_mode_keeps(mode))
    reason_of_kept(in, assumed, mode, n, out);
  else
    reason_of_stream(in, assumed, n, out);
  return 1;
}

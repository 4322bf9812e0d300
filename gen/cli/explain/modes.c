/* modes.c: the passes of a spec and their layouts, and why mode save or stream is taken or not. */
#include <stdio.h>

#include "gen/cli/explain/explain.h"
#include "runtime/plan/plan.h"

/* The planner of the assumed device, or of this machine's plan; NULL on the CPU rung, which neither saves nor streams. */
static const flp_planner *planner_of(const explanation *in, int assumed) {
  if (assumed) return &in->planner;
  return in->plan->rung == FLP_RUNG_EAGER ? NULL : &in->plan->planner;
}

/* 1 if the kernels that run can save exponentials, and no other mode is asked for. */
static int can_keep(const explanation *in, int assumed) {
  const flp_planner *planner = planner_of(in, assumed);
  return in->planner.spec.keep && planner && flp_planner_keeps(planner);
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
    default:
      return 0;
  }
}

flp_status explain_layout(const explanation *in, int assumed, flp_pass pass, int64_t n, flp_layout *out) {
  *out = (flp_layout)FLP_LAYOUT_INIT;
  if (!assumed) return flp_plan_layout(in->plan, pass, n, in->budget[pass], out);
  flp_scheme scheme;
  FLP_TRY(flp_planner_pick(&in->planner, pass, n, in->budget[pass], 1, &scheme));
  flp_planner_describe(&in->planner, &scheme, n, out);
  return FLP_OK;
}

uint64_t explain_saved_bytes(const explanation *in, int assumed, int64_t n) {
  const flp_planner *planner = planner_of(in, assumed);
  return can_keep(in, assumed) ? flp_planner_saved_bytes(&planner->spec, flp_planner_keeps(planner), n) : 0;
}

/* 1 if kernels and gradients allow the mode, whatever else is asked for. */
static int is_possible(const flp_planner *planner, flp_mode mode) {
  flp_planner own = *planner;
  own.mode = mode == FLP_MODE_STREAM ? FLP_MODE_STREAM : (flp_mode)0;
  return mode == FLP_MODE_STREAM ? flp_planner_streams(&own) : flp_planner_keeps(&own) != 0;
}

/* Says why kernels or options rule the mode out; 0 if they do not. */
static int is_ruled_out(const explanation *in, int assumed, flp_mode mode, char out[EXPLAIN_REASON_BYTES]) {
  const flp_planner *planner = planner_of(in, assumed);
  const char *what = mode == FLP_MODE_STREAM ? "stream steps" : "save exponentials";
  const char *arch = assumed ? in->assumed.arch : in->plan->arch;
  if (!planner)
    snprintf(out, EXPLAIN_REASON_BYTES, "not taken: the CPU rung does not %s", what);
  else if (planner->mode && planner->mode != FLP_MODE_STREAM)
    snprintf(out, EXPLAIN_REASON_BYTES, "not taken: mode %s is asked for", flp_mode_name(planner->mode));
  else if (!planner->spec.grads)
    snprintf(out, EXPLAIN_REASON_BYTES, "not taken: without gradients there is no reason to %s", what);
  else if (!is_possible(planner, mode))
    snprintf(out, EXPLAIN_REASON_BYTES, "not taken: kernels of %s do not %s", arch, what);
  else
    return 0;
  return 1;
}

static void reason_of_saved(const explanation *in, int assumed, int64_t n, char out[EXPLAIN_REASON_BYTES]) {
  char kept[CLI_TEXT_BYTES], least[CLI_TEXT_BYTES], most[CLI_TEXT_BYTES];
  uint64_t budget = in->budget[FLP_PASS_BACKWARD_SAVED];
  explain_saved bytes;
  if (is_ruled_out(in, assumed, FLP_MODE_SAVE, out)) return;
  int fits = explain_query_saved(planner_of(in, assumed), n, budget, &bytes) == EXPLAIN_FITS;
  cli_format_bytes((double)bytes.kept, kept);
  cli_format_bytes((double)bytes.least, least);
  cli_format_bytes((double)budget, most);
  if (fits)
    snprintf(out, EXPLAIN_REASON_BYTES,
             "taken: %s from forward to backward, with the workspace of either, are within the budget of %s", kept,
             most);
  else
    snprintf(out, EXPLAIN_REASON_BYTES,
             "not taken: it would keep %s, and with workspace needs %s at least; the budget is %s", kept, least, most);
}

/* What a step takes instead of mode stream: of the two, the cheaper by the cost model. */
static void compare_costs(const flp_scheme *taken, const flp_scheme *stream, char out[EXPLAIN_REASON_BYTES]) {
  snprintf(out, EXPLAIN_REASON_BYTES,
           "not taken: modes %s and %s are cheaper: %.4g ms against %.4g ms by the cost model",
           flp_mode_name(FLP_MODE_SCORE), flp_mode_name(taken->mode), 1e3 * taken->seconds, 1e3 * stream->seconds);
}

static void reason_of_stream(const explanation *in, int assumed, int64_t n, char out[EXPLAIN_REASON_BYTES]) {
  const flp_planner *planner = planner_of(in, assumed);
  uint64_t budget = in->budget[FLP_PASS_STEP];
  char least[CLI_TEXT_BYTES], most[CLI_TEXT_BYTES];
  flp_scheme taken, stream;
  if (is_ruled_out(in, assumed, FLP_MODE_STREAM, out)) return;
  int is_any = flp_planner_pick(planner, FLP_PASS_STEP, n, budget, 1, &taken) == FLP_OK;
  explain_fit fit = explain_query(planner, FLP_PASS_STEP, FLP_MODE_STREAM, n, budget, &stream);
  cli_format_bytes((double)stream.smallest_bytes, least);
  cli_format_bytes((double)budget, most);
  if (is_any && taken.mode == FLP_MODE_STREAM)
    snprintf(out, EXPLAIN_REASON_BYTES, "taken: %lld chunk%s of at most %lld rows %s the budget of %s",
             (long long)taken.chunks, taken.chunks == 1 ? "" : "s", (long long)taken.chunk_rows,
             fit == EXPLAIN_FITS ? "within" : "as asked for, beyond", most);
  else if (!flp_planner_streams(planner))
    snprintf(out, EXPLAIN_REASON_BYTES, "not taken: chunks of the vocabulary are asked for, it has chunks of rows");
  else if (fit == EXPLAIN_LEAST)
    snprintf(out, EXPLAIN_REASON_BYTES, "not taken: no chunk fits the budget of %s; the least is %s", most, least);
  else
    compare_costs(&taken, &stream, out);
}

int explain_mode_reason(const explanation *in, int assumed, flp_mode mode, int64_t n, char out[EXPLAIN_REASON_BYTES]) {
  const flp_spec *spec = &in->planner.spec;
  if (mode == FLP_MODE_SAVE ? !spec->keep : !spec->loss) return 0;
  if (mode == FLP_MODE_SAVE)
    reason_of_saved(in, assumed, n, out);
  else
    reason_of_stream(in, assumed, n, out);
  return 1;
}

/* modes.c: the passes of a spec and their layouts, and why mode S or P is taken or not. */
#include <stdio.h>

#include "gen/cli/explain/explain.h"
#include "runtime/plan/plan.h"

const char *explain_pass_name(flp_pass pass) {
  static const char *const names[EXPLAIN_PASSES] = {"",     "forward",         "combine",       "backward",
                                                    "step", "backward, saved", "forward, saved"};
  return names[pass];
}

/* 1 if the kernels that run can keep exponentials. */
static int can_keep(const explanation *in, int assumed) {
  if (!in->planner.spec.keep) return 0;
  return assumed ? in->planner.keep_rows > 0 : flp_plan_keeps(in->plan);
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
  return can_keep(in, assumed) ? flp_planner_saved_bytes(&in->planner.spec, n) : 0;
}

static void reason_of_saved(const explanation *in, int assumed, int64_t n, char out[EXPLAIN_REASON_BYTES]) {
  char kept[CLI_TEXT_BYTES], most[CLI_TEXT_BYTES];
  cli_format_bytes((double)explain_saved_bytes(in, assumed, n), kept);
  cli_format_bytes((double)in->budget[FLP_PASS_BACKWARD_SAVED], most);
  flp_layout layout;
  int fits = explain_layout(in, assumed, FLP_PASS_FORWARD_SAVED, n, &layout) == FLP_OK &&
             explain_layout(in, assumed, FLP_PASS_BACKWARD_SAVED, n, &layout) == FLP_OK;
  if (!can_keep(in, assumed))
    snprintf(out, EXPLAIN_REASON_BYTES, "not here: these kernels keep nothing; backward recomputes");
  else if (!fits)
    snprintf(out, EXPLAIN_REASON_BYTES,
             "not taken: it would keep %s, with its workspace more than the budget of %s; backward recomputes", kept,
             most);
  else
    snprintf(out, EXPLAIN_REASON_BYTES,
             "taken: %s from forward to backward, with the workspace of either, are within the budget of %s", kept,
             most);
}

static void reason_of_stream(const explanation *in, int assumed, int64_t n, char out[EXPLAIN_REASON_BYTES]) {
  flp_layout layout;
  char most[CLI_TEXT_BYTES];
  cli_format_bytes((double)in->budget[FLP_PASS_STEP], most);
  if (explain_layout(in, assumed, FLP_PASS_STEP, n, &layout) != FLP_OK)
    snprintf(out, EXPLAIN_REASON_BYTES, "not taken: %.200s", flp_error_detail());
  else if (layout.mode == FLP_MODE_STREAM)
    snprintf(out, EXPLAIN_REASON_BYTES, "taken: %lld chunks of at most %lld rows within the budget of %s",
             (long long)layout.chunks, (long long)layout.chunk_rows, most);
  else
    snprintf(out, EXPLAIN_REASON_BYTES,
             "not taken: these kernels do not stream, no chunk fits the budget of %s, or another mode is cheaper; the "
             "step scores and recomputes",
             most);
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

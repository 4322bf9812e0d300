/* run.c: a problem executed on one rung, in buffers that are poisoned and guarded.
 *
 * Invariants: every output and workspace holds 0xff bytes before it is written, and so do a guard behind each buffer
 * and the elements between rows; after the run the latter still do. */
#include "gen/cli/check/run.h"
#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/planner/planner.h"

typedef struct run_state {
  const check_problem *problem;
  const check_how *how;
  cli_device device;
  call_problem call;
  call_buffers buffers;
  flp_plan *plan;
} run_state;

int check_how_ends(const check_how *how, flp_status status) {
  return status == FLP_ERROR_MEMORY || (status == FLP_ERROR_ARGUMENT && how->options.tune);
}

/* The CUDA device, or the host. */
static int device_of(const check_how *how) {
  return how->options.rung == FLP_RUNG_EAGER ? FLP_DEVICE_HOST : how->options.device;
}

flp_options check_how_options(const check_how *how) {
  flp_options options = how->options;
  options.device = device_of(how);
  options.budget_bytes = 0;
  options.tune = NULL;
  options.mode = (flp_mode)0;
  return options;
}

flp_status check_how_plan(const check_how *how, const check_problem *problem, flp_plan **out) {
  const check_case *c = &problem->c;
  flp_spec spec = c->spec;
  spec.vocab = problem->shard_vocab;
  flp_options options = check_how_options(how);
  options.budget_bytes = how->options.budget_bytes;
  options.chunk_rows = c->chunk_rows;
  options.chunk_vocab = c->chunk_vocab;
  options.mode = c->mode == FLP_MODE_LISTED ? (flp_mode)0 : c->mode;     /* spec.listed says it */
  if (check_precompile_tunes(how->tuned_arch, &spec)) options.tune = how->options.tune;
  return check_precompile_plan(how->precompile, &spec, &options, out);
}

flp_status check_make_saved(call_buffers *buffers, const call_problem *call, const flp_plan *plan) {
  flp_rung rung = flp_plan_get_rung(plan);
  if (!call_keeps(call) || call->spec.listed) return FLP_OK; /* lists keep nothing */
  FLP_TRY(call_make_saved(buffers, call, plan));
  if (buffers->at[FLP_ARRAY_saved].bytes || call->n == 0) return FLP_OK;
  if (call->spec.tail > 0 && rung == FLP_RUNG_EAGER) return FLP_OK;
  return flp_fail(FLP_ERROR_UNAVAILABLE, "rung %s keeps nothing for backward", flp_rung_name(rung));
}

/* What was named is what runs, but for the eager rung, which has one mode. */
static flp_status check_mode(const run_state *run) {
  flp_layout layout;
  flp_mode mode = run->problem->c.mode;
  flp_pass pass = run->call.loss ? FLP_PASS_STEP : FLP_PASS_BACKWARD;
  int is_named = mode == FLP_MODE_STREAM ? run->call.loss != NULL : mode == FLP_MODE_TAIL && run->call.n > 0;
  if (run->how->options.rung == FLP_RUNG_EAGER || !is_named) return FLP_OK;
  FLP_TRY(call_layout(&run->buffers, &run->call, run->plan, pass, run->call.n, &layout));
  if (layout.mode == mode) return FLP_OK;
  return flp_fail(FLP_ERROR_INTERNAL, "mode %s was asked for, and %s was taken", flp_mode_name(mode),
                  flp_mode_name(layout.mode));
}

static flp_status run_all(run_state *run, call_result *out) {
  FLP_TRY(cli_device_open(device_of(run->how), &run->device));
  FLP_TRY(check_how_plan(run->how, run->problem, &run->plan));
  FLP_TRY(call_upload(&run->buffers, &run->call));
  FLP_TRY(call_make_outputs(&run->buffers, &run->call));
  FLP_TRY(check_make_saved(&run->buffers, &run->call, run->plan));
  FLP_TRY(cli_device_synchronise(&run->device));
  FLP_TRY(check_mode(run));
  FLP_TRY(call_forward(&run->buffers, &run->call, run->plan));
  if (run->call.spec.listed) FLP_TRY(call_count_bad(run->plan, run->device.stream, &out->bad_rows));
  FLP_TRY(call_backward(&run->buffers, &run->call, run->plan));
  FLP_TRY(call_check_data(run->plan, run->device.stream, &out->data_error));
  out->data_error |= out->bad_rows > 0;
  return call_download(&run->buffers, &run->call, out);
}

flp_status check_run(const check_problem *problem, const check_how *how, call_result *out) {
  *out = (call_result){0};
  run_state run = {.problem = problem, .how = how, .call = check_problem_call(problem)};
  run.buffers = (call_buffers){.device = &run.device, .shift = problem->shift, .guarded = 1};
  flp_failure held = flp_failure_hold(run_all(&run, out));
  flp_plan_destroy(run.plan);
  call_clear(&run.buffers);
  cli_device_close(&run.device);
  if (held.status != FLP_OK) call_result_clear(out);
  return flp_failure_restore(&held);
}

flp_status check_run_plain(const check_problem *problem, const check_how *how, call_result *out) {
  check_problem plain = check_problem_plain(problem);
  return check_run(&plain, how, out);
}

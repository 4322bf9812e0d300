/* test_check_precompile.c: kernels that `flpgen check` makes before a case needs them: side by side, once, in the cache
 * when a plan asks and not before; and the context that is held while cases run. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/check/session.h"
#include "tests/unit/support/stage.h"

enum { ALL_GRADS = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS, KERNELS = 4 /* of a spec on sm_90a */ };

typedef struct scene {
  stage stage;
  cli_device device;
  check_list list;
  check_precompile *precompile;
  flp_plan *plan;
} scene;

/* Cases of as many vocabularies. */
static void open_scene(scene *s, const char *script, int cases) {
  *s = (scene){.plan = NULL};
  stage_open(&s->stage, script);
  cr_assert_eq(cli_device_open(0, &s->device), FLP_OK, "%s", flp_error_detail());
  for (int i = 0; i < cases; i++) {
    check_case c = check_case_default(FLP_DTYPE_BF16, 3, 1000 + i, 64);
    c.spec.grads = ALL_GRADS;
    c.spec.has_bias = 1;
    check_list_add(&s->list, c);
  }
}

static void start(scene *s, int jobs) {
  check_precompile_wish wish = {.device = &s->device, .jobs = jobs, .jit = 1, .generic = 1, .list = &s->list};
  cr_assert_eq(check_precompile_start(&wish, &s->precompile), FLP_OK, "%s", flp_error_detail());
}

static flp_status plan_case(scene *s, int i, flp_rung rung) {
  flp_options options = FLP_OPTIONS_INIT;
  options.rung = rung;
  flp_plan_destroy(s->plan);
  return check_precompile_plan(s->precompile, &s->list.cases[i].spec, &options, &s->plan);
}

static void close_scene(scene *s) {
  size_t bytes;
  int modules, contexts;
  flp_plan_destroy(s->plan);
  check_precompile_stop(s->precompile);
  check_list_clear(&s->list);
  cli_device_close(&s->device);
  s->stage.held(&bytes, &modules, &contexts);
  cr_expect(bytes == 0 && modules == 0 && contexts == 0, "%zu bytes, %d modules, %d contexts", bytes, modules,
            contexts);
}

Test(check_precompile, a_kernel_is_made_once_and_in_the_cache_when_a_plan_asks) {
  scene s;
  open_scene(&s, "capability=9.0", 2);
  start(&s, 4);
  check_precompile_finish(s.precompile);
  int made = s.stage.provider_calls();
  cr_expect_eq(made, 2 * KERNELS - 2, "%d", made); /* they share rows and products */
  cr_expect_eq(plan_case(&s, 0, FLP_RUNG_HEURISTIC), FLP_ERROR_UNAVAILABLE);
  cr_expect_eq(plan_case(&s, 0, FLP_RUNG_JIT), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(plan_case(&s, 0, FLP_RUNG_HEURISTIC), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(plan_case(&s, 1, FLP_RUNG_HEURISTIC), FLP_ERROR_UNAVAILABLE);
  cr_expect_eq(plan_case(&s, 1, FLP_RUNG_JIT), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(s.stage.provider_calls(), made);
  close_scene(&s);
}

/* One load after the other would wait for the first until the time is up. */
Test(check_precompile, kernels_are_compiled_side_by_side, .timeout = 300) {
  scene s;
  open_scene(&s, "capability=9.0;meet=4", 3);
  start(&s, 4);
  cr_expect_eq(plan_case(&s, 2, FLP_RUNG_JIT), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(s.stage.calls("cuCtxCreate_v2"), 4);
  close_scene(&s);
  cr_expect_eq(s.stage.calls("cuCtxDestroy_v2"), 4);
}

Test(check_precompile, what_cannot_be_made_is_reported_by_the_plan_that_needs_it) {
  scene s;
  open_scene(&s, "capability=9.0", 1);
  s.stage.provider_script("fail=10;error=no such kernel");
  start(&s, 2);
  flp_status status = plan_case(&s, 0, FLP_RUNG_JIT);
  cr_expect_eq((int)status, 10);
  cr_expect(strstr(flp_error_detail(), "no such kernel"), "%s", flp_error_detail());
  close_scene(&s);
}

Test(check_precompile, without_contexts_plans_make_their_kernels_themselves) {
  scene s;
  open_scene(&s, "capability=9.0;fail:cuCtxCreate_v2=2", 1);
  start(&s, 4);
  cr_expect_eq(plan_case(&s, 0, FLP_RUNG_JIT), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(s.stage.provider_calls(), KERNELS);
  close_scene(&s);
}

Test(check_precompile, one_job_precompiles_nothing) {
  scene s;
  open_scene(&s, "capability=9.0", 1);
  start(&s, 1);
  cr_expect_null(s.precompile);
  cr_expect_eq(plan_case(&s, 0, FLP_RUNG_JIT), FLP_OK, "%s", flp_error_detail());
  close_scene(&s);
}

Test(check_precompile, stopped_early_it_leaves_nothing_behind) {
  scene s;
  open_scene(&s, "capability=9.0", 200);
  start(&s, 2);
  close_scene(&s);
  cr_expect_lt(s.stage.provider_calls(), 200 * KERNELS);
}

/* ---- the context ---- */

/* How often the primary context was made: retained while nobody held it. */
static int contexts_made(const char *log) {
  int held = 0, made = 0;
  for (const char *line = log; *line; line += strcspn(line, "\n"), line += *line == '\n') {
    if (strncmp(line, "cuDevicePrimaryCtxRetain\n", 25) == 0) made += held++ == 0;
    if (strncmp(line, "cuDevicePrimaryCtxRelease_v2\n", 29) == 0) held--;
  }
  return made;
}

static int contexts_of_a_session(const char *script) {
  stage stage;
  check_report report = {0};
  check_args args = {.spec = CLI_SPEC_ARGS_INIT, .given = check_case_default(FLP_DTYPE_BF16, 3, 1000, 64)};
  args.set = CHECK_SET_GIVEN;
  args.jobs = 1;
  args.quiet = 1;
  args.how.options = (flp_options)FLP_OPTIONS_INIT;
  args.how.options.rung = FLP_RUNG_JIT;
  stage_open(&stage, script);
  cr_assert_eq(check_session_run(&args, &report), FLP_OK, "%s", flp_error_detail());
  cr_expect_gt(report.count, 0);
  check_report_clear(&report);
  return contexts_made(stage.log());
}

Test(check_precompile, one_context_serves_all_cases) {
  cr_expect_eq(contexts_of_a_session("capability=9.0"), 1);
}

Test(check_precompile, after_a_fault_there_is_a_new_one) {
  cr_expect_eq(contexts_of_a_session("capability=9.0;fail:cuStreamSynchronize=700@40"), 2);
}

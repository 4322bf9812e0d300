/* test_check_concurrent.c: `flpgen check --concurrent` on the stand-in for libcuda: what runs where, that what differs
 * is found and named, that a deadlock is reported, and that nothing is left behind. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/check/concurrent.h"
#include "gen/cli/check/session.h"
#include "tests/unit/support/stage.h"

/* Other work is seen to run at the end of every round: it was launched, and nobody has asked for it yet. */
static const char plain[] = "capability=9.0;fill=1;busy=1";

typedef struct scene {
  stage stage;
  check_report report;
  check_load load;
  check_timeout timeout;
  cli_device device;
  check_how how;
} scene;

static void open_scene(scene *s, const char *script) {
  *s = (scene){.how = {.options = {.struct_bytes = sizeof(flp_options), .rung = FLP_RUNG_JIT}}};
  stage_open(&s->stage, script);
  setenv("FLP_CUBLASLT_LIBRARY", "/nonexistent/lt.so", 1);
  cr_assert_eq(cli_device_open(0, &s->device), FLP_OK, "%s", flp_error_detail());
  s->timeout = (check_timeout){.driver = s->device.driver, .limit_s = 20};
  flp_status status = check_load_create(&s->how, &s->device, &s->timeout, &s->load);
  cr_assert_eq(status, FLP_OK, "%s", flp_error_detail());
}

static void close_scene(scene *s) {
  size_t bytes;
  int modules, contexts;
  check_load_clear(&s->load);
  check_report_clear(&s->report);
  cli_device_close(&s->device);
  s->stage.held(&bytes, &modules, &contexts);
  cr_expect(bytes == 0 && modules == 0 && contexts == 0, "%zu bytes, %d modules, %d contexts", bytes, modules,
            contexts);
}

static check_case small_case(uint32_t grads) {
  check_case c = check_case_default(FLP_DTYPE_BF16, 300, 1000, 64);
  c.spec.entropy = grads ? FLP_ENTROPY_BACKWARD : FLP_ENTROPY_FORWARD;
  c.spec.grads = grads;
  return c;
}

static flp_status run(scene *s, uint32_t grads) {
  check_case c = small_case(grads);
  return check_concurrent_case(&c, &s->how, &s->load, &s->report);
}

static const check_finding *find(const scene *s, const char *output) {
  for (int64_t i = 0; i < s->report.count; i++)
    if (strcmp(s->report.findings[i].output, output) == 0) return &s->report.findings[i];
  cr_assert_fail("no finding of '%s'", output);
  return NULL;
}

Test(check_concurrent, every_output_is_compared_in_every_situation) {
  scene s;
  open_scene(&s, plain);
  cr_assert_eq(run(&s, 3), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(s.report.failed, 0);
  cr_expect_eq(s.report.count, 6 * 5 + 3 * 2, "five outputs in six situations; overlap and other work in three");
  static const char *const situations[] = {"streams", "beside work",    "streams beside work",
                                           "graph",   "graphs at once", "graphs beside work"};
  static const char *const outputs[] = {"logprob", "entropy", "stats", "grad_hidden", "grad_weight"};
  for (int i = 0; i < 6; i++)
    for (int o = 0; o < 5; o++) {
      char name[64];
      snprintf(name, sizeof name, "%s: %s", situations[i], outputs[o]);
      cr_expect(find(&s, name)->metric.pass, "%s", name);
    }
  cr_expect_str_eq(find(&s, "beside work: overlap")->note, "other work outlasted the checked calls in 4 of 4 rounds");
  /* Four rounds of one, two and two graphs; captured once each. */
  cr_expect_eq(s.stage.calls("cuGraphLaunch"), 4 * (1 + 2 + 2));
  cr_expect_eq(s.stage.calls("cuStreamBeginCapture_v2"), 1 + 2 + 2);
  cr_expect_eq(s.stage.calls("cuGraphExecDestroy"), 1 + 2 + 2);
  cr_expect_not_null(strstr(s.stage.log(), "cuGraphLaunch nodes=10\n"), "four of forward, six of backward");
  close_scene(&s);
}

/* By portable kernels too; an adapter has gradients of its own. */
Test(check_concurrent, outputs_are_those_of_the_case) {
  static const struct {
    const char *script;
    uint32_t grads;
    int lora_rank, outputs;
    const char *among;
  } cases[] = {{plain, 0, 0, 2, "graph: logprob"},
               {"capability=8.0;fill=1;busy=1", 3, 0, 5, "streams: grad_weight"},
               {plain, FLP_GRAD_HIDDEN | FLP_GRAD_LORA_A | FLP_GRAD_LORA_B, 16, 6, "graphs beside work: grad_lora_a"},
               {plain, FLP_GRAD_LORA_B, 16, 4, "streams: grad_lora_b"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    scene s;
    open_scene(&s, cases[i].script);
    check_case c = small_case(cases[i].grads);
    c.spec.lora_rank = cases[i].lora_rank;
    cr_assert_eq(check_concurrent_case(&c, &s.how, &s.load, &s.report), FLP_OK, "%s", flp_error_detail());
    cr_expect(s.report.failed == 0 && s.report.count == 6 * cases[i].outputs + 3 * 2, "%ld of %ld",
              (long)s.report.failed, (long)s.report.count);
    cr_expect(find(&s, cases[i].among)->metric.pass);
    close_scene(&s);
  }
}

/* Beside --lora-rank those alone, of that rank. */
Test(check_concurrent, its_cases_are_told_apart) {
  check_list all = {0}, adapted = {0};
  const check_part any = {.dtype = FLP_DTYPE_BF16}, own = {.dtype = FLP_DTYPE_BF16, .lora_rank = 128};
  check_concurrent_cases(&any, &all);
  check_concurrent_cases(&own, &adapted);
  cr_assert_eq(all.status, FLP_OK);
  int count = 0, others = 0;
  for (int i = 0; i < all.count; i++) count += all.cases[i].spec.lora_rank > 0;
  for (int i = 0; i < adapted.count; i++) {
    cr_expect(adapted.cases[i].spec.lora_rank == 128 || adapted.cases[i].spec.lora_rank == 0);
    others += adapted.cases[i].spec.lora_rank == 0;
  }
  cr_expect(count >= 3 && adapted.count == count + others && others == LOAD_PIECES);
  check_list_clear(&all);
  check_list_clear(&adapted);
}

Test(check_concurrent, gemm_baselines_are_among_the_other_work) {
  scene s;
  open_scene(&s, plain);
  check_load_clear(&s.load);
  setenv("FLP_CUBLASLT_LIBRARY", FLP_TEST_FAKE_CUBLASLT, 1);
  setenv("FAKE_CUBLASLT", "", 1);
  cr_assert_eq(check_load_create(&s.how, &s.device, &s.timeout, &s.load), FLP_OK, "%s", flp_error_detail());
  cr_expect_not_null(s.load.library.handle);
  cr_assert_eq(run(&s, 0), FLP_OK, "%s", flp_error_detail());
  cr_expect_not_null(strstr(find(&s, "beside work: overlap")->note, "other work and GEMM baselines outlasted"));
  setenv("FAKE_CUBLASLT", "cublasLtMatmulAlgoGetHeuristic=15", 1);
  check_load_clear(&s.load);
  cr_assert_eq(check_load_create(&s.how, &s.device, &s.timeout, &s.load), FLP_OK,
               "a shape that it lacks is no failure");
  cr_expect_null(s.load.library.handle);
  close_scene(&s);
}

/* Outputs that one run of the undisturbed call writes: logprob, entropy, stats by combine; dh and dW. */
enum { UNDISTURBED = 5 };

/* Spoils an output some outputs after the first call of the streams begins. */
static void expect_spoiled(int which, const char *output, const char *note) {
  scene s;
  char script[64];
  open_scene(&s, plain);
  snprintf(script, sizeof script, "%s;spoil=%d", plain, UNDISTURBED + which);
  s.stage.script(script);
  cr_assert_eq(run(&s, 3), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(s.report.failed, 1);
  const check_finding *f = find(&s, output);
  cr_expect(!f->metric.pass && f->metric.max_ulp > 0, "%s", output);
  cr_expect_str_eq(f->note, note);
  close_scene(&s);
}

Test(check_concurrent, what_differs_is_named) {
  expect_spoiled(1, "streams: logprob", "differs from an undisturbed run, first in round 1 on stream 1");
  expect_spoiled(5 + 4, "streams: grad_hidden", "differs from an undisturbed run, first in round 1 on stream 2");
  expect_spoiled(2 * 15 + 10 + 5, "streams: grad_weight",
                 "differs from an undisturbed run, first in round 3 on stream 3");
}

/* Without fill kernels write nothing: what is left is poison, and other poison than the undisturbed run started
 * from. */
Test(check_concurrent, what_is_never_written_is_found) {
  scene s;
  open_scene(&s, "capability=9.0;busy=1");
  cr_assert_eq(run(&s, 0), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(s.report.failed, 6 * 2);
  cr_expect_eq(find(&s, "graph: logprob")->metric.max_ulp, 4 * 300 * 4, "every byte of four rounds");
  close_scene(&s);
}

Test(check_concurrent, other_work_grows_until_it_overlaps_and_must) {
  scene s;
  open_scene(&s, "capability=9.0;fill=1");
  cr_assert_eq(run(&s, 0), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(s.load.depth, LOAD_DEPTH_MOST);
  cr_expect_eq(s.report.failed, 3);
  const check_finding *f = find(&s, "graphs beside work: overlap");
  cr_expect(!f->metric.pass);
  cr_expect_str_eq(f->note, "other work outlasted the checked calls in 0 of 4 rounds");
  close_scene(&s);
}

/* ---- failures ---- */

Test(check_concurrent, a_deadlock_is_reported_and_nothing_is_waited_for) {
  scene s;
  open_scene(&s, plain);
  s.timeout.limit_s = 0.05;
  s.stage.script("capability=9.0;fill=1;busy=1000000000");
  cr_expect_eq(run(&s, 3), FLP_ERROR_DRIVER);
  cr_expect_str_eq(flp_error_detail(), "deadlock: the checked calls on stream 1 of 1 still run after 0.05 seconds");
  cr_expect_eq(s.timeout.hung, 1);
  cr_expect_eq(s.stage.calls("cuMemFree_v2"), 0);
  cr_expect_eq(s.stage.calls("cuStreamDestroy_v2"), 0);
}

static void expect_failure(const char *script, const char *message) {
  scene s;
  char both[160];
  open_scene(&s, plain);
  snprintf(both, sizeof both, "%s;%s", plain, script);
  s.stage.script(both);
  cr_expect_eq(run(&s, 3), FLP_ERROR_DRIVER, "%s", script);
  cr_expect_not_null(strstr(flp_error_detail(), message), "'%s' is not in '%s'", message, flp_error_detail());
  cr_expect_eq(s.timeout.hung, 0);
  s.stage.script(plain);
  close_scene(&s);
}

Test(check_concurrent, failures_name_the_call) {
  expect_failure("fail:cuStreamQuery=700@40+", "cuStreamQuery failed: CUDA_ERROR_ILLEGAL_ADDRESS");
  expect_failure("fail:cuStreamCreate=2@2", "cuStreamCreate failed");
  expect_failure("fail:cuStreamBeginCapture_v2=1", "cuStreamBeginCapture failed");
  expect_failure("fail:cuStreamEndCapture=1", "cuStreamEndCapture failed");
  expect_failure("fail:cuGraphInstantiateWithFlags=2", "cuGraphInstantiate failed");
  expect_failure("fail:cuGraphLaunch=719", "cuGraphLaunch failed: CUDA_ERROR_LAUNCH_FAILED");
  expect_failure("fail:cuMemsetD8Async=1@9", "cuMemsetD8Async failed");
}

/* A call that cannot be captured fails the capture, which is ended all the same. */
Test(check_concurrent, a_failure_while_capturing_ends_the_capture) {
  scene s;
  open_scene(&s, plain);
  check_case c = small_case(0);
  check_problem problem;
  check_streams all;
  cr_assert_eq(check_problem_create(&c, &problem), FLP_OK);
  cr_assert_eq(check_streams_create(&problem, &s.how, &s.device, &s.timeout, &all), FLP_OK, "%s", flp_error_detail());
  char script[80];
  snprintf(script, sizeof script, "%s;fail:cuLaunchKernelEx=900", plain);
  s.stage.script(script);
  cr_expect_eq(check_streams_capture(&all, 0), FLP_ERROR_DRIVER);
  cr_expect_not_null(strstr(flp_error_detail(), "while a graph was captured: cuLaunchKernelEx(flp_forward_map)"));
  cr_expect_eq(s.stage.calls("cuStreamEndCapture"), 1);
  cr_expect_null(all.stream[0].graph);
  s.stage.script(plain);
  cr_expect_eq(check_streams_submit(&all, 0), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(check_streams_wait(&all, 1), FLP_OK);
  check_streams_clear(&all);
  check_problem_clear(&problem);
  close_scene(&s);
}

Test(check_concurrent, streams_are_waited_for_until_they_are_done) {
  scene s;
  open_scene(&s, "capability=9.0;fill=1;busy=20");
  check_load_enqueue(&s.load);
  int busy = 0;
  cr_expect_eq(check_load_busy(&s.load, &busy), FLP_OK);
  cr_expect_eq(busy, 1);
  int before = s.stage.calls("cuStreamQuery");
  cr_expect_eq(check_load_wait(&s.load), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(s.stage.calls("cuStreamQuery") - before, 2 * 21 - 1, "twenty times busy each, less the one asked above");
  cr_expect_eq(check_load_busy(&s.load, &busy), FLP_OK);
  cr_expect_eq(busy, 0);
  cr_expect(check_timeout_is_offered(s.device.driver));
  flp_driver old = *s.device.driver;
  old.cuGraphInstantiateWithFlags = NULL;
  cr_expect_not(check_timeout_is_offered(&old));
  close_scene(&s);
}

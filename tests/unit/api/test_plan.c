/* test_plan.c: a plan's description, its queries, its arguments, and plans on many threads. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/driver/driver.h"
#include "tests/unit/support/kernel_sample.h"
#include "tests/unit/support/refuse.h"
#include "tests/unit/support/stage.h"

static const char tuned_for[] = "Fake H200/132/13000";

static void expect_nothing_held(stage *s) {
  size_t bytes;
  int modules, contexts;
  s->held(&bytes, &modules, &contexts);
  cr_expect_eq(bytes, 0);
  cr_expect_eq(modules, 0);
  cr_expect_eq(contexts, 0);
}

Test(plan, describes_itself) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(7);
  spec.softcap = 30;
  flp_plan *plan = stage_plan(&spec, NULL);
  char text[2000], id[17], expected[2000];
  cr_assert_eq(flp_plan_get_id(plan, id), FLP_OK);
  cr_expect_eq(strspn(id, "0123456789abcdef"), 16);
  cr_assert_eq(flp_plan_describe(plan, text, sizeof text), FLP_OK);
  snprintf(
      expected, sizeof expected,
      "rung jit on Fake H200 (compute capability 8.0, 132 multiprocessors, driver 13000): kernels rows, forward, dz, "
      "grad_hidden, grad_weight for sm_80; spec bf16 V=1000 D=64 grads=hidden,weight,bias bias "
      "softcap=30; tiling: default; plan id %s; not tuned: the cache %s has no sm_80 kernel rows tuned for %s; not "
      "heuristic: the "
      "cache %s has no sm_80 kernel rows for this spec",
      id, s.cache, tuned_for, s.cache);
  cr_expect_str_eq(text, expected);
  char small[10];
  cr_expect_eq(flp_plan_describe(plan, small, sizeof small), FLP_OK);
  cr_expect_str_eq(small, "rung jit ");
  cr_expect_eq(flp_plan_describe(plan, NULL, 10), FLP_ERROR_ARGUMENT);
  cr_expect_eq(flp_plan_describe(plan, text, 0), FLP_ERROR_ARGUMENT);
  flp_plan_destroy(plan);
}

Test(plan, ids_differ_with_the_kernels) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(3);
  char a[17], b[17], c[17];
  flp_plan *plan = stage_plan(&spec, NULL);
  cr_assert_eq(flp_plan_get_id(plan, a), FLP_OK);
  flp_plan_destroy(plan);
  spec.vocab = 1001;
  plan = stage_plan(&spec, NULL);
  cr_assert_eq(flp_plan_get_id(plan, b), FLP_OK);
  flp_plan_destroy(plan);
  cr_expect_str_neq(a, b);
  spec.vocab = 1000;
  setenv("FLP_CACHE_DIR", "", 1);
  setenv("XDG_CACHE_HOME", s.generic, 1);
  s.provider_script("ptx= changed");
  plan = stage_plan(&spec, NULL);
  cr_assert_eq(flp_plan_get_id(plan, c), FLP_OK);
  flp_plan_destroy(plan);
  cr_expect_str_neq(a, c, "the same key, other code");
}

Test(plan, null_arguments) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(0);
  flp_layout layout = FLP_LAYOUT_INIT;
  size_t bytes;
  cr_expect_eq(flp_plan_create(&spec, NULL, NULL), FLP_ERROR_ARGUMENT);
  flp_options r2 = FLP_OPTIONS_INIT;
  r2.mode = FLP_MODE_RECOMPUTE_SPLIT;
  spec.grads = FLP_GRAD_HIDDEN;
  flp_plan *none = NULL;
  expect_refused(flp_plan_create(&spec, &r2, &none),
                 "options.mode is FLP_MODE_RECOMPUTE_SPLIT, but spec.grads is 1 (accepted: gradients of both "
                 "hidden and weight)");
  spec.grads = 0;
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_plan_destroy(NULL);
  cr_expect_eq(flp_plan_layout(NULL, FLP_PASS_FORWARD, 1, 0, &layout), FLP_ERROR_ARGUMENT);
  cr_expect_eq(flp_plan_layout(plan, FLP_PASS_FORWARD, 1, 0, NULL), FLP_ERROR_ARGUMENT);
  expect_refused(flp_plan_layout(plan, FLP_PASS_FORWARD, -1, 0, &layout), "n is -1 (accepted: 0 to 1073741824)");
  expect_refused(flp_plan_layout(plan, FLP_PASS_BACKWARD, 1, 0, &layout),
                 "pass is FLP_PASS_BACKWARD, but spec.grads is 0 (accepted: FLP_GRAD_* bits)");
  cr_expect_eq(flp_plan_layout(plan, (flp_pass)9, 1, 0, &layout), FLP_ERROR_ARGUMENT);
  layout.struct_bytes = 1;
  cr_expect_eq(flp_plan_layout(plan, FLP_PASS_FORWARD, 1, 0, &layout), FLP_ERROR_ARGUMENT);
  cr_expect_eq(flp_plan_workspace(plan, FLP_PASS_FORWARD, 1, 0, NULL), FLP_ERROR_ARGUMENT);
  cr_expect_eq(flp_plan_workspace(plan, FLP_PASS_FORWARD, 1, 1, &bytes), FLP_ERROR_BUDGET);
  cr_expect_eq(flp_plan_get_id(plan, NULL), FLP_ERROR_ARGUMENT);
  cr_expect_eq(flp_execute(NULL, NULL), FLP_ERROR_ARGUMENT);
  cr_expect_eq(flp_plan_check(NULL, NULL), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_plan_get_reason(NULL, FLP_RUNG_JIT), "");
  cr_expect_str_eq(flp_plan_get_reason(plan, (flp_rung)17), "");
  flp_plan_destroy(plan);
}

Test(plan, budgets_come_from_the_call_then_the_plan_then_the_pass) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(3);
  spec.vocab = 128000;
  spec.hidden = 1024;
  flp_options options = FLP_OPTIONS_INIT;
  options.budget_bytes = 60 << 20;
  flp_plan *plan = stage_plan(&spec, NULL), *small = stage_plan(&spec, &options);
  size_t by_pass, by_plan, by_call;
  cr_assert_eq(flp_plan_workspace(plan, FLP_PASS_BACKWARD, 8192, 0, &by_pass), FLP_OK);
  cr_assert_eq(flp_plan_workspace(small, FLP_PASS_BACKWARD, 8192, 0, &by_plan), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(flp_plan_workspace(small, FLP_PASS_BACKWARD, 8192, 500 << 20, &by_call), FLP_OK);
  cr_expect_leq(by_pass, (size_t)1 << 30);
  cr_expect_gt(by_pass, (size_t)500 << 20);
  cr_expect_leq(by_plan, (size_t)60 << 20);
  cr_expect_gt(by_call, (size_t)60 << 20);
  flp_plan_destroy(plan);
  flp_plan_destroy(small);
}

static void *create_and_destroy(void *spec) {
  for (int i = 0; i < 10; i++) flp_plan_destroy(stage_plan(spec, NULL));
  return NULL;
}

Test(plan, many_threads) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(7);
  pthread_t threads[8];
  for (int i = 0; i < 8; i++) cr_assert_eq(pthread_create(&threads[i], NULL, create_and_destroy, &spec), 0);
  for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
  cr_expect_eq(s.provider_calls(), 5, "each kernel is generated once, by whichever thread comes first");
  expect_nothing_held(&s);
}

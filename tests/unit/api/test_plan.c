/* test_plan.c: what the API says of calls without an argument, settings in force, plans on many threads, and steps and
 * tails on host memory. What it takes and refuses of specs, options and arguments is in tests/golden/api. */
#include <criterion/criterion.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/quantity.h"
#include "runtime/loss/loss.h"
#include "runtime/plan/plan.h"
#include "tests/unit/support/refuse.h"
#include "tests/unit/support/stage.h"
#include "tests/unit/support/words.h"

static stage s;

/* ---- what is missing ---- */

Test(plan, queries_without_an_argument_are_refused) {
  stage_open(&s, "");
  flp_spec dense = words_spec(""), lists = words_spec("listed");
  flp_plan *plan = stage_plan(&dense, NULL), *listed = stage_plan(&lists, NULL);
  flp_layout layout = FLP_LAYOUT_INIT, old = {.struct_bytes = 1};
  const flp_pass forward = FLP_PASS_FORWARD;
  size_t bytes;
  char id[17], text[100], contract[FLP_CONTRACT_BYTES];
  expect_refused_with(flp_plan_create(&dense, NULL, NULL), "");
  expect_refused_with(flp_plan_layout(NULL, forward, 1, 0, &layout), "plan is NULL");
  expect_refused_with(flp_plan_layout(plan, forward, 1, 0, NULL), "layout is NULL");
  expect_refused_with(flp_plan_layout(plan, forward, 1, 0, &old), "struct_bytes is 1");
  expect_refused_with(flp_plan_layout_listed(NULL, forward, 1, 1, 0, &layout), "plan is NULL");
  expect_refused_with(flp_plan_layout_listed(listed, forward, 1, 1, 0, NULL),
                      "layout is NULL (accepted: a flp_layout)");
  expect_refused_with(flp_plan_layout_listed(listed, forward, 1, 1, 0, &old), "struct_bytes is 1");
  expect_refused_with(flp_plan_workspace(plan, forward, 1, 0, NULL), "");
  expect_refused_with(flp_plan_saved(NULL, 1, 0, &bytes), "plan is NULL");
  expect_refused_with(flp_spec_saved(&dense, 1, 0, NULL), "");
  expect_refused_with(flp_spec_saved(&dense, -1, 0, &bytes), "n is -1");
  expect_refused_with(flp_plan_get_id(NULL, id), "plan is NULL");
  expect_refused_with(flp_plan_get_id(plan, NULL), "out is NULL");
  expect_refused_with(flp_plan_contract(NULL, NULL, contract), "plan is NULL");
  expect_refused_with(flp_plan_contract(plan, NULL, NULL), "out is NULL");
  expect_refused_with(flp_plan_describe(NULL, text, sizeof text), "plan is NULL (accepted: a plan of flp_plan_create)");
  expect_refused_with(flp_plan_describe(plan, NULL, 10), "buffer is NULL");
  expect_refused_with(flp_plan_describe(plan, text, 0), "capacity is 0");
  cr_expect_eq(flp_plan_get_rung(NULL), FLP_RUNG_AUTO);
  cr_expect_str_eq(flp_plan_get_reason(NULL, FLP_RUNG_JIT), "");
  cr_expect_str_eq(flp_plan_get_reason(plan, (flp_rung)17), "");
  cr_expect_eq(strncmp(flp_plan_get_reason(plan, FLP_RUNG_TUNED), "the cache ", 10), 0);
  cr_assert_eq(flp_plan_get_id(plan, id), FLP_OK);
  cr_expect_eq(strspn(id, "0123456789abcdef"), 16);
  cr_expect_eq(flp_plan_describe(plan, text, 10), FLP_OK);
  cr_expect_str_eq(text, "rung jit ");
  flp_plan_destroy(NULL);
  flp_plan_destroy(listed);
  flp_plan_destroy(plan);
}

/* ---- what decides bits ---- */

/* The contract of a plan; "" where it has none. */
static void put_contract(const char *words, flp_rung rung, char out[FLP_CONTRACT_BYTES]) {
  flp_spec spec = words_spec(words);
  flp_options options = FLP_OPTIONS_INIT;
  options.rung = rung;
  options.host_fallback = rung == FLP_RUNG_EAGER;
  flp_plan *plan = stage_plan(&spec, &options);
  flp_args args = FLP_ARGS_INIT;
  args.scale = 0.5f;
  args.temperature = 0.7f;
  cr_expect_eq(flp_plan_contract(plan, &args, out), FLP_OK);
  flp_plan_destroy(plan);
}

Test(plan, a_contract_names_path_and_numbers_and_no_more_outputs) {
  char plain[FLP_CONTRACT_BYTES], other[FLP_CONTRACT_BYTES];
  stage_open(&s, "");
  put_contract("V=1000 D=64 bias softcap=30", FLP_RUNG_AUTO, plain);
  cr_expect_not_null(strstr(plain, " on "), "%s", plain);
  cr_expect_not_null(strstr(plain, ": bf16 V=1000 D=64 bias softcap=30 scale=0.5 temperature=0.699999988 code="), "%s",
                     plain);
  put_contract("V=1000 D=64 bias softcap=30 entropy=backward grads=hidden,weight topk=5 rank", FLP_RUNG_AUTO, other);
  cr_expect_str_eq(other, plain);
  put_contract("V=1000 D=64 bias softcap=30 per-row-temperature", FLP_RUNG_AUTO, other);
  cr_expect_null(strstr(other, " temperature="), "%s", other);
  put_contract("V=1000 D=64 bias softcap=30", FLP_RUNG_EAGER, other);
  cr_expect_eq(strncmp(other, "cpu: bf16 V=1000", 16), 0, "%s", other);
  cr_expect_str_neq(strstr(other, "code="), strstr(plain, "code="));
}

Test(plan, a_contract_is_of_a_head) {
  char out[FLP_CONTRACT_BYTES];
  stage_open(&s, "");
  flp_spec spec = words_spec("op=select D=0 grads=");
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_refused_with(flp_plan_contract(plan, NULL, out), "the plan's spec.op is 1 (accepted: FLP_OP_HEAD 0)");
  flp_plan_destroy(plan);
}

Test(plan, calls_without_an_argument_are_refused) {
  stage_open(&s, "");
  flp_spec spec = words_spec(""), none;
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args out, args = FLP_ARGS_INIT;
  flp_select_args select = FLP_SELECT_ARGS_INIT;
  flp_scale_args scale;
  expect_refused_with(flp_spec_resolve(NULL, &none), "spec is NULL (accepted: a flp_spec)");
  expect_refused_with(flp_args_resolve(&plan->spec, NULL, &out), "args is NULL (accepted: a flp_args)");
  expect_refused_with(flp_select_args_resolve(&plan->spec, NULL, &select),
                      "args is NULL (accepted: a flp_select_args)");
  expect_refused_with(flp_scale_args_resolve(&plan->spec, NULL, &scale), "args is NULL (accepted: a flp_scale_args)");
  expect_refused_with(flp_execute(NULL, NULL), "plan is NULL");
  expect_refused_with(flp_execute(plan, NULL), "args is NULL");
  expect_refused_with(flp_plan_check(NULL, NULL), "plan is NULL");
  expect_refused_with(flp_select(NULL, &select), "plan is NULL");
  expect_refused_with(flp_step(NULL, NULL), "plan is NULL");
  expect_refused_with(flp_step(plan, &args), "the plan's spec.loss is NULL (accepted: a loss program, for flp_step)");
  flp_plan_destroy(plan);
}

Test(plan, arenas_and_losses_without_an_argument_are_refused) {
  flp_arena_stats stats = FLP_ARENA_STATS_INIT;
  flp_loss_description description = FLP_LOSS_DESCRIPTION_INIT;
  flp_arena *arena;
  size_t bytes;
  uint8_t program[FLP_LOSS_BYTES_MAX];
  cr_assert_eq(flp_arena_create(FLP_DEVICE_HOST, &arena), FLP_OK);
  cr_assert_eq(flp_loss_builtin_bytes("grpo", program, sizeof program, &bytes), FLP_OK);
  expect_refused_with(flp_arena_get_stats(NULL, &stats), "arena is NULL");
  expect_refused_with(flp_arena_get_stats(arena, NULL), "stats is NULL");
  expect_refused_with(flp_loss_builtin_bytes(NULL, program, sizeof program, &bytes), "name is NULL");
  expect_refused_with(flp_loss_builtin_bytes("grpo", program, sizeof program, NULL), "out_bytes is NULL");
  expect_refused_with(flp_loss_describe(NULL, bytes, &description), "bytes is NULL");
  expect_refused_with(flp_loss_describe(program, bytes, NULL), "out is NULL");
  flp_arena_destroy(arena);
}

Test(plan, a_workspace_is_there_and_aligned) {
  flp_spec given = words_spec(""), spec;
  flp_args args = stage_args(&given, FLP_PASS_FORWARD, 10), out;
  cr_assert_eq(flp_spec_resolve(&given, &spec), FLP_OK);
  args.workspace_bytes = 1024;
  args.workspace = AT(6);
  cr_expect_eq(flp_args_resolve(&spec, &args, &out), FLP_OK, "%s", flp_error_detail());
  args.workspace = (char *)AT(6) + 128;
  expect_refused(flp_args_resolve(&spec, &args, &out), "args.workspace is 0x60080 (accepted: multiples of 256 bytes)");
  args.workspace = NULL;
  expect_refused(flp_args_resolve(&spec, &args, &out),
                 "args.workspace is NULL, but args.workspace_bytes is not 0");
}

/* ---- settings ---- */

static const uint64_t STEP = UINT64_C(64) << 20;

Test(plan, a_budget_is_a_share_of_the_memory) {
  const uint64_t card = UINT64_C(80) << 30;
  cr_expect_eq(flp_pass_budget(5, FLP_PASS_STEP, card), 5, "one that is given comes first");
  cr_expect_eq(flp_pass_budget(0, FLP_PASS_STEP, card), 64 * STEP);
  cr_expect_eq(flp_pass_budget(0, FLP_PASS_FORWARD_SAVED, card - 1), 63 * STEP, "in whole steps");
  cr_expect_eq(flp_pass_budget(0, FLP_PASS_FORWARD, card), 4 * STEP, "scoring stays where it is");
  cr_expect_eq(flp_pass_budget(0, FLP_PASS_BACKWARD, UINT64_C(4) << 30), 4 * STEP, "no less than scoring");
}

Test(plan, what_is_in_force) {
  flp_rung rung;
  int32_t strict;
  uint64_t budget;
  stage_open(&s, "");
  cr_assert_eq(flp_options_in_force(NULL, FLP_PASS_FORWARD, &rung, &strict, &budget), FLP_OK);
  cr_expect(rung == FLP_RUNG_AUTO && strict == 0 && budget == (uint64_t)256 << 20);
  cr_assert_eq(flp_options_in_force(NULL, FLP_PASS_BACKWARD, NULL, NULL, &budget), FLP_OK);
  cr_expect_eq(budget, 102 * STEP, "1/20 of the 128 GiB of this GPU");
  flp_options on_host = FLP_OPTIONS_INIT;
  on_host.device = FLP_DEVICE_HOST;
  cr_assert_eq(flp_options_in_force(&on_host, FLP_PASS_BACKWARD, NULL, NULL, &budget), FLP_OK);
  cr_expect_eq(budget, 16 * STEP);
  setenv("FLP_FORCE", "generic", 1);
  setenv("FLP_STRICT", "1", 1);
  setenv("FLP_BUDGET", "3M", 1);
  cr_assert_eq(flp_options_in_force(NULL, FLP_PASS_STEP, &rung, &strict, &budget), FLP_OK);
  cr_expect(rung == FLP_RUNG_GENERIC && strict == 1 && budget == (uint64_t)3 << 20);
  flp_options options = words_options("rung=jit budget_bytes=77");
  cr_assert_eq(flp_options_in_force(&options, FLP_PASS_STEP, &rung, NULL, &budget), FLP_OK);
  cr_expect(rung == FLP_RUNG_JIT && budget == 77, "options come first");
  expect_refused(flp_options_in_force(NULL, (flp_pass)0, NULL, NULL, NULL), "pass is 0 (accepted: 1 to 7)");
  setenv("FLP_STRICT", "maybe", 1);
  expect_refused(flp_options_in_force(NULL, FLP_PASS_FORWARD, NULL, NULL, NULL),
                 "FLP_STRICT is \"maybe\" (accepted: 0, 1)");
}

/* Where commas part fractions, points still do here. */
Test(plan, bytes_do_not_depend_on_the_locale) {
  uint64_t bytes;
  setlocale(LC_ALL, "de_DE.UTF-8"); /* where it is not installed, the test shows little */
  cr_expect_eq(flp_bytes_parse("x", "1.5K", 1, &bytes), FLP_OK);
  cr_expect_eq(bytes, 1536);
  cr_expect_eq(flp_bytes_parse("x", "1,5K", 1, &bytes), FLP_ERROR_ARGUMENT);
  cr_expect_eq(bytes, 0);
  cr_expect_eq(flp_bytes_parse("x", "0", 0, &bytes), FLP_OK);
  cr_expect_eq(flp_bytes_parse("x", NULL, 0, &bytes), FLP_ERROR_ARGUMENT);
}

/* ---- plans ---- */

static void *create_and_destroy(void *spec) {
  for (int i = 0; i < 10; i++) flp_plan_destroy(stage_plan(spec, NULL));
  return NULL;
}

Test(plan, many_threads) {
  pthread_t threads[8];
  stage_open(&s, "");
  flp_spec spec = words_spec("grads=hidden,weight,bias bias");
  for (int i = 0; i < 8; i++) cr_assert_eq(pthread_create(&threads[i], NULL, create_and_destroy, &spec), 0);
  for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
  cr_expect_eq(s.provider_calls(), 5, "each kernel is generated once, by whichever thread comes first");
  stage_expect_nothing_held(&s);
}

Test(plan, a_loss_of_the_callers_own_is_a_file) {
  char text[FLP_TUNE_COMMAND_BYTES];
  uint8_t program[FLP_LOSS_BYTES_MAX];
  flp_spec spec = words_spec("grads=hidden,weight");
  flp_loss own;
  uint16_t logprob;
  cr_assert_eq(flp_loss_start(&own, "mine"), FLP_OK);
  cr_assert_eq(flp_loss_append(&own, FLP_LOSS_INPUT, FLP_LOSS_LOGPROB, 0, 0, &logprob), FLP_OK);
  cr_assert_eq(flp_loss_finish(&own, logprob), FLP_OK);
  spec.loss_bytes = flp_loss_write(&own, program, sizeof program);
  spec.loss = program;
  flp_plan_tune_command(&spec, text);
  cr_expect_str_eq(text, "flpgen tune --vocab 1000 --hidden 64 --dtype bf16 --grad hidden,weight --loss FILE");
}

/* ---- on host memory ---- */

enum { N = 3, V = 40, D = 64, K = 4 };

static _Alignas(256) unsigned char workspace[1 << 20];
static _Alignas(16) float hidden[N * D], weight[V * D], stats[4 * N];
static int64_t target[N * K];

static flp_args host_args(flp_plan **plan, const char *words) {
  flp_spec spec = words_spec(words);
  flp_options options = words_options("rung=auto device=host");
  flp_args a = FLP_ARGS_INIT;
  *plan = stage_plan(&spec, &options);
  for (int i = 0; i < V * D; i++) weight[i] = (float)(i % 7) / 7;
  for (int i = 0; i < N * K; i++) target[i] = i % V;
  a.n = N, a.hidden = hidden, a.weight = weight, a.target = target;
  a.workspace = workspace, a.workspace_bytes = sizeof workspace;
  return a;
}

/* Nothing is left out there. */
Test(plan, the_eager_rung_of_a_tail_is_exact_and_says_so) {
  static _Alignas(16) float grad_hidden[N * D];
  float logprob[N], ones[N] = {1, 1, 1}, report[4] = {7, 7, 7, 7};
  flp_plan *plan;
  stage_open(&s, "");
  flp_args a = host_args(&plan, "V=40 dtype=fp32 grads=hidden tail=2^-9");
  a.stats = stats, a.logprob = logprob;
  cr_assert_eq(flp_execute(plan, &a), FLP_OK, "%s", flp_error_detail());
  a.pass = FLP_PASS_BACKWARD;
  a.logprob = NULL;
  a.grad_logprob = ones, a.grad_hidden = grad_hidden, a.tail_report = report;
  cr_assert_eq(flp_execute(plan, &a), FLP_OK, "%s", flp_error_detail());
  for (int i = 0; i < 4; i++) cr_expect_eq(report[i], 0);
  flp_plan_destroy(plan);
}

Test(plan, a_step_over_targets_needs_what_its_loss_reads) {
  static float teacher[N * K], loss[N];
  flp_plan *plan;
  stage_open(&s, "");
  flp_args a = host_args(&plan, "V=40 dtype=fp32 targets=4 loss=forward_kl");
  for (int i = 0; i < N * K; i++) teacher[i] = -2;
  a.pass = FLP_PASS_STEP, a.loss = loss;
  expect_refused_with(flp_step(plan, &a), "teacher_logprob");
  cr_expect_not_null(strstr(flp_error_detail(), "loss forward_kl reads it"), "%s", flp_error_detail());
  a.teacher_logprob = teacher;
  cr_expect_eq(flp_step(plan, &a), FLP_OK, "%s", flp_error_detail());
  /* hidden states are 0: every token has 1/40 */
  double p = exp(-2), want = 4 * p * (-2 + log(40)) + (1 - 4 * p) * (log(1 - 4 * p) - log(0.9));
  for (int i = 0; i < N; i++) cr_expect_lt(fabs((double)loss[i] - want), 1e-6, "%g, want %g", (double)loss[i], want);
  flp_plan_destroy(plan);
}

/* test_frozen.c: a program that was compiled against flp.h of release 0.1.0 works with this library.
 *
 * Only the frozen header is included, never the tree's: its structs are what such a program passes. Every struct lies
 * before bytes that the library must neither read nor write. */
#include "tests/unit/frozen/flp_0_1_0.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 5, V = 19, D = 8, GUARD_BYTES = 256, GUARD = 0xa5 };

/* A struct of the program, then what is none of the library's business. */
#define GUARDED(type, INIT)                           \
  struct {                                            \
    type value;                                       \
    unsigned char guard[GUARD_BYTES];                 \
  } guarded = {.value = INIT};                        \
  memset(guarded.guard, GUARD, sizeof guarded.guard); \
  type *const s = &guarded.value

#define EXPECT_GUARDED()                                                                            \
  do {                                                                                              \
    cr_expect_eq(s->struct_bytes, sizeof *s);                                                       \
    for (int at = 0; at < GUARD_BYTES; at++) cr_assert_eq(guarded.guard[at], GUARD, "byte %d", at); \
  } while (0)

static float hidden[N * D] __attribute__((aligned(16))), weight[V * D] __attribute__((aligned(16)));
static int64_t target[N];
static unsigned char program[4096];
static size_t program_bytes;

static void make_problem(void) {
  for (int i = 0; i < N * D; i++) hidden[i] = (float)(i * 37 % 23 - 11) / 8;
  for (int i = 0; i < V * D; i++) weight[i] = (float)(i * 29 % 31 - 15) / 16;
  for (int i = 0; i < N; i++) target[i] = i * 7 % V;
  cr_assert_eq(flp_loss_builtin_bytes("grpo", program, sizeof program, &program_bytes), FLP_OK);
}

static flp_plan *make_plan(flp_op op) {
  GUARDED(flp_options, FLP_OPTIONS_INIT);
  flp_plan *plan = NULL;
  flp_spec spec = FLP_SPEC_INIT;
  make_problem();
  spec.vocab = V;
  spec.dtype = FLP_DTYPE_FP32;
  spec.op = op;
  if (op == FLP_OP_HEAD) {
    spec.hidden = D;
    spec.grads = FLP_GRAD_HIDDEN;
    spec.loss = program;
    spec.loss_bytes = program_bytes;
  }
  s->device = FLP_DEVICE_HOST;
  s->threads = 1;
  cr_assert_eq(flp_plan_create(&spec, s, &plan), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(flp_plan_get_rung(plan), FLP_RUNG_EAGER);
  EXPECT_GUARDED();
  return plan;
}

static double score(int row, int v) {
  double sum = 0;
  for (int d = 0; d < D; d++) sum += (double)hidden[row * D + d] * (double)weight[v * D + d];
  return sum;
}

static double logprob_of(int row) {
  double sum = 0;
  for (int v = 0; v < V; v++) sum += exp(score(row, v));
  return score(row, (int)target[row]) - log(sum);
}

static void expect_logprobs(const float *got) {
  for (int i = 0; i < N; i++) cr_expect_float_eq((double)got[i], logprob_of(i), 1e-4, "row %d: %g", i, (double)got[i]);
}

/* Gives args the workspace of their pass. */
static void *give_workspace(const flp_plan *plan, flp_args *args) {
  size_t bytes;
  void *memory = NULL;
  cr_assert_eq(flp_plan_workspace(plan, args->pass, N, 0, &bytes), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(posix_memalign(&memory, 256, bytes + 256), 0);
  args->workspace = memory;
  args->workspace_bytes = bytes;
  return memory;
}

Test(frozen, plans_scores_and_gradients) {
  flp_plan *plan = make_plan(FLP_OP_HEAD);
  GUARDED(flp_args, FLP_ARGS_INIT);
  float logprob[N], upstream[N], grad[N * D] __attribute__((aligned(16))), stats[N * 4] __attribute__((aligned(16)));
  s->n = N;
  s->hidden = hidden;
  s->weight = weight;
  s->target = target;
  s->logprob = logprob;
  s->stats = stats;
  void *memory = give_workspace(plan, s);
  cr_assert_eq(flp_execute(plan, s), FLP_OK, "%s", flp_error_detail());
  free(memory);
  expect_logprobs(logprob);
  s->pass = FLP_PASS_BACKWARD;
  s->logprob = NULL;
  for (int i = 0; i < N; i++) upstream[i] = 1;
  s->grad_logprob = upstream;
  s->grad_hidden = grad;
  memory = give_workspace(plan, s);
  cr_assert_eq(flp_execute(plan, s), FLP_OK, "%s", flp_error_detail());
  free(memory);
  for (int d = 0; d < D; d++) { /* of row 1 */
    double want = (double)weight[target[1] * D + d];
    double log_sum = score(1, (int)target[1]) - logprob_of(1);
    for (int v = 0; v < V; v++) want -= exp(score(1, v) - log_sum) * (double)weight[v * D + d];
    cr_expect_float_eq((double)grad[D + d], want, 1e-4);
  }
  EXPECT_GUARDED();
  cr_expect_eq(flp_plan_check(plan, NULL), FLP_OK);
  flp_plan_destroy(plan);
}

Test(frozen, steps) {
  flp_plan *plan = make_plan(FLP_OP_HEAD);
  GUARDED(flp_args, FLP_ARGS_INIT);
  float advantage[N] = {1, -1, 2, 0, 1}, logprob[N], loss[N], grad[N * D] __attribute__((aligned(16)));
  s->pass = FLP_PASS_STEP;
  s->n = N;
  s->hidden = hidden;
  s->weight = weight;
  s->target = target;
  s->advantage = advantage;
  s->logprob = logprob;
  s->loss = loss;
  s->grad_hidden = grad;
  void *memory = give_workspace(plan, s);
  cr_assert_eq(flp_step(plan, s), FLP_OK, "%s", flp_error_detail());
  free(memory);
  expect_logprobs(logprob);
  for (int i = 0; i < N; i++) cr_expect_float_eq((double)loss[i], -(double)advantage[i], 1e-6);
  EXPECT_GUARDED();
  flp_plan_destroy(plan);
}

Test(frozen, selects) {
  flp_plan *plan = make_plan(FLP_OP_SELECT);
  GUARDED(flp_select_args, FLP_SELECT_ARGS_INIT);
  static float scores[N * V + 64] __attribute__((aligned(16)));
  float logprob[N];
  enum { STRIDE = 20 };
  for (int i = 0; i < N; i++)
    for (int v = 0; v < V && i * STRIDE + v < N * V + 64; v++) scores[i * STRIDE + v] = (float)score(i, v);
  s->n = N;
  s->scores = scores;
  s->scores_stride = STRIDE;
  s->target = target;
  s->logprob = logprob;
  cr_assert_eq(flp_select(plan, s), FLP_OK, "%s", flp_error_detail());
  expect_logprobs(logprob);
  EXPECT_GUARDED();
  flp_plan_destroy(plan);
}

Test(frozen, layouts) {
  flp_plan *plan = make_plan(FLP_OP_HEAD);
  GUARDED(flp_layout, FLP_LAYOUT_INIT);
  size_t bytes;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_FORWARD, N, 0, s), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(flp_plan_workspace(plan, FLP_PASS_FORWARD, N, 0, &bytes), FLP_OK);
  cr_expect_eq(s->bytes, bytes);
  cr_expect_eq(s->products, 1);
  cr_expect_eq(s->flops, 2.0 * N * V * D);
  EXPECT_GUARDED();
  flp_plan_destroy(plan);
}

Test(frozen, losses) {
  GUARDED(flp_loss_description, FLP_LOSS_DESCRIPTION_INIT);
  make_problem();
  cr_assert_eq(flp_loss_describe(program, program_bytes, s), FLP_OK, "%s", flp_error_detail());
  cr_expect_str_eq(s->name, "grpo");
  cr_expect(s->parameter_count > 0 && s->metric_count > 0 && s->input_count > 0);
  EXPECT_GUARDED();
}

Test(frozen, arenas) {
  GUARDED(flp_arena_stats, FLP_ARENA_STATS_INIT);
  flp_arena *arena;
  void *memory;
  cr_assert_eq(flp_arena_create(FLP_DEVICE_HOST, &arena), FLP_OK);
  cr_assert_eq(flp_arena_take(arena, 1000, NULL, &memory), FLP_OK);
  cr_assert_eq(flp_arena_get_stats(arena, s), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(s->allocated_bytes, 1024);
  cr_expect_eq(s->driver_allocations, 1);
  EXPECT_GUARDED();
  cr_expect_eq(flp_arena_give_back(arena, memory, NULL), FLP_OK);
  flp_arena_destroy(arena);
}

/* Nothing is smaller than a struct of the first release. */
Test(frozen, smaller_structs_are_refused) {
  flp_plan *plan = make_plan(FLP_OP_HEAD), *none = NULL;
  flp_spec spec = FLP_SPEC_INIT;
  flp_options options = FLP_OPTIONS_INIT;
  flp_args args = FLP_ARGS_INIT;
  flp_layout layout = FLP_LAYOUT_INIT;
  spec.struct_bytes -= 8;
  cr_expect_eq(flp_plan_create(&spec, NULL, &none), FLP_ERROR_ARGUMENT);
  cr_expect_not_null(strstr(flp_error_detail(), "spec.struct_bytes is 80 (accepted: multiples of 8 from 88"));
  spec.struct_bytes += 8;
  spec.vocab = V;
  spec.hidden = D;
  options.struct_bytes -= 8;
  cr_expect_eq(flp_plan_create(&spec, &options, &none), FLP_ERROR_ARGUMENT);
  cr_expect_not_null(strstr(flp_error_detail(), "options.struct_bytes is 56 (accepted: multiples of 8 from 64"));
  args.struct_bytes -= 8;
  cr_expect_eq(flp_execute(plan, &args), FLP_ERROR_ARGUMENT);
  cr_expect_not_null(strstr(flp_error_detail(), "args.struct_bytes is 384 (accepted: multiples of 8 from 392"));
  layout.struct_bytes -= 8;
  cr_expect_eq(flp_plan_layout(plan, FLP_PASS_FORWARD, 1, 0, &layout), FLP_ERROR_ARGUMENT);
  cr_expect_not_null(strstr(flp_error_detail(), "layout.struct_bytes is 64 (accepted: multiples of 8 from 72"));
  flp_plan_destroy(plan);
}

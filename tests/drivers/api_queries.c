/* api_queries.c: what flp.h has beside the passes: sizes, names, descriptions, settings, log, arena; see api.h. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/names.h"
#include "tests/drivers/api.h"

static int64_t odd_integer(draw *d) {
  static const int64_t values[] = {0,
                                   1,
                                   -1,
                                   7,
                                   64,
                                   4096,
                                   151936,
                                   INT32_MAX,
                                   (int64_t)INT32_MAX + 1,
                                   INT64_C(1) << 30,
                                   (INT64_C(1) << 30) + 1,
                                   INT64_C(1) << 40,
                                   INT64_MAX,
                                   INT64_MIN,
                                   INT64_MAX - 7};
  return DRAW_OF(d, values);
}

/* A failure has a detail, and is none of the library's own. */
static void expect_sentence(flp_status status, const char *call) {
  api_count.queries++;
  API_EXPECT(status == FLP_OK || *flp_error_detail(), "%s: %s without a detail", call, flp_status_name(status));
  API_EXPECT(status != FLP_ERROR_INTERNAL && status != FLP_ERROR_DRIVER, "%s: %s", call, flp_status_name(status));
}

static void query_sizes(draw *d, const flp_plan *plan, const flp_spec *spec) {
  flp_layout layout = FLP_LAYOUT_INIT;
  flp_pass pass = (flp_pass)(draw_below(d, 9) - 1);
  int64_t n = draw_one_in(d, 2) ? odd_integer(d) : draw_below(d, 100);
  uint64_t budget = draw_one_in(d, 2) ? (uint64_t)odd_integer(d) : 0;
  size_t bytes = 1, saved = 1;
  flp_status status = flp_plan_layout(plan, pass, n, budget, &layout);
  expect_sentence(status, "flp_plan_layout");
  flp_status same = flp_plan_workspace(plan, pass, n, budget, &bytes);
  expect_sentence(same, "flp_plan_workspace");
  API_EXPECT(status == same && bytes == (status == FLP_OK ? layout.bytes : 0), "layout and workspace differ");
  if (n < 0 || n > 1 << 30) API_EXPECT(status == FLP_ERROR_ARGUMENT, "n %ld: %s", (long)n, flp_status_name(status));
  if (status == FLP_OK && budget) API_EXPECT(layout.bytes <= budget, "more workspace than the budget");
  expect_sentence(flp_plan_saved(plan, n, budget, &saved), "flp_plan_saved");
  API_EXPECT(saved == 0, "the eager rung saves something");
  expect_sentence(flp_spec_saved(spec, n, budget, &saved), "flp_spec_saved");
  layout.struct_bytes = (uint32_t)DRAW_OF(d, (int64_t[]){0, 4, 12, 4104, UINT32_MAX});
  status = flp_plan_layout(plan, FLP_PASS_FORWARD, 1, 0, &layout);
  API_EXPECT(status == FLP_ERROR_ARGUMENT && strstr(flp_error_detail(), "layout.struct_bytes"), "layout.struct_bytes");
  expect_sentence(status, "flp_plan_layout");
}

static void query_plan(draw *d, const flp_plan *plan) {
  char id[17], again[17], contract[FLP_CONTRACT_BYTES];
  size_t capacity = 1 + (size_t)draw_below(d, 3000);
  char *text = api_block(capacity, 0, 0xFF);
  expect_sentence(flp_plan_describe(plan, text, capacity), "flp_plan_describe");
  API_EXPECT(strnlen(text, capacity) < capacity, "flp_plan_describe: no end within its capacity");
  expect_sentence(flp_plan_describe(plan, text, 0), "flp_plan_describe");
  expect_sentence(flp_plan_describe(plan, NULL, 9), "flp_plan_describe");
  expect_sentence(flp_plan_get_id(plan, id), "flp_plan_get_id");
  API_EXPECT(flp_plan_get_id(plan, again) == FLP_OK && strcmp(id, again) == 0 && strlen(id) == 16, "flp_plan_get_id");
  expect_sentence(flp_plan_contract(plan, NULL, contract), "flp_plan_contract");
  API_EXPECT(flp_plan_get_rung(plan) == FLP_RUNG_EAGER, "the rung is not eager");
  for (int r = -3; r < 12; r++) {
    API_EXPECT(flp_plan_get_reason(plan, (flp_rung)r) != NULL, "flp_plan_get_reason(%d)", r);
    API_EXPECT(*flp_rung_name((flp_rung)r) && *flp_mode_name((flp_mode)r), "a name of %d", r);
    API_EXPECT(*flp_status_name((flp_status)(5 * r)), "flp_status_name(%d)", 5 * r);
  }
}

/* A loss program with a bit changed or cut short is described or refused, never read beyond its end. */
static void query_losses(draw *d) {
  flp_loss_description description = FLP_LOSS_DESCRIPTION_INIT;
  size_t bytes = 0, size = 0;
  const char *name = flp_loss_builtin(draw_below(d, (int)flp_loss_table_count));
  API_EXPECT(flp_loss_builtin_bytes(name, NULL, 0, &bytes) == FLP_OK && bytes > 0, "size of loss %s", name);
  uint8_t *program = api_block(bytes, 0, 0);
  expect_sentence(flp_loss_builtin_bytes(name, program, bytes - 1, &size), "flp_loss_builtin_bytes");
  expect_sentence(flp_loss_builtin_bytes(name, program, bytes, &size), "flp_loss_builtin_bytes");
  expect_sentence(flp_loss_describe(program, bytes, &description), "flp_loss_describe");
  size_t length = draw_one_in(d, 2) ? bytes : (size_t)draw_below(d, (int)bytes);
  uint8_t *changed = api_block(length, 0, 0);
  if (length) memcpy(changed, program, length);
  if (length && draw_one_in(d, 2)) changed[draw_below(d, (int)length)] ^= (uint8_t)(1 << draw_below(d, 8));
  flp_status status = flp_loss_describe(changed, length, &description);
  expect_sentence(status, "flp_loss_describe");
  if (length < bytes) API_EXPECT(status != FLP_OK, "a loss program of %zu of %zu bytes is accepted", length, bytes);
  flp_spec spec = FLP_SPEC_INIT;
  flp_options options = FLP_OPTIONS_INIT;
  flp_plan *plan;
  spec.vocab = spec.hidden = 8;
  spec.entropy = FLP_ENTROPY_BACKWARD;
  spec.loss = changed;
  spec.loss_bytes = length;
  options.device = FLP_DEVICE_HOST;
  expect_sentence(flp_plan_create(&spec, &options, &plan), "flp_plan_create with a changed loss");
  flp_plan_destroy(plan);
}

static void query_bytes(draw *d) {
  static const char letters[] = "0123456789.KMGTiB -+eExX\t";
  char text[24];
  uint64_t out = 1;
  int length = draw_below(d, 20);
  for (int i = 0; i < length; i++) text[i] = letters[draw_below(d, (int)sizeof letters - 1)];
  text[length] = 0;
  flp_status status = flp_bytes_parse("FLP_BUDGET", text, 1, &out);
  expect_sentence(status, "flp_bytes_parse");
  if (status != FLP_OK) API_EXPECT(out == 0 && strstr(flp_error_detail(), "FLP_BUDGET"), "flp_bytes_parse(%s)", text);
  if (status == FLP_OK) API_EXPECT(out >= 1 && out < UINT64_C(1) << 63, "flp_bytes_parse(%s) is too large", text);
}

static void query_settings(draw *d) {
  flp_options options = FLP_OPTIONS_INIT;
  flp_rung rung;
  int32_t strict;
  uint64_t budget;
  options.device = FLP_DEVICE_HOST;
  flp_pass pass = (flp_pass)(draw_below(d, 9) - 1);
  const char *field = draw_one_in(d, 2) ? api_spoil_options(d, &options) : NULL;
  flp_status status = flp_options_in_force(&options, pass, &rung, &strict, &budget);
  expect_sentence(status, "flp_options_in_force");
  int is_pass = pass >= FLP_PASS_FORWARD && pass <= FLP_PASS_LAST;
  API_EXPECT((status == FLP_OK) == (is_pass && !field), "flp_options_in_force with a bad %s", field ? field : "pass");
  if (status == FLP_OK) API_EXPECT(budget > 0, "a budget of 0 is in force");
}

static void keep_message(flp_log_level level, const char *message, void *user) {
  *(int *)user += level <= FLP_LOG_INFO && message != NULL;
}

/* Memory is taken and given back in any order; the bytes are the caller's. */
static void query_arena(draw *d) {
  enum { TAKEN = 6 };
  static int messages;
  flp_arena *arena;
  void *taken[TAKEN];
  flp_arena_stats stats = FLP_ARENA_STATS_INIT;
  uint64_t total = 0;
  flp_log_set(draw_one_in(d, 2) ? keep_message : NULL, &messages);
  expect_sentence(flp_arena_create(-2 - draw_below(d, 5), &arena), "flp_arena_create");
  API_EXPECT(!arena, "an arena of no device");
  expect_sentence(flp_arena_create(FLP_DEVICE_HOST, &arena), "flp_arena_create");
  for (int i = 0; i < TAKEN; i++) {
    size_t bytes = draw_one_in(d, 10) ? 0 : (size_t)draw_below(d, 20000);
    expect_sentence(flp_arena_take(arena, bytes, NULL, &taken[i]), "flp_arena_take");
    API_EXPECT(!taken[i] == !bytes && (uintptr_t)taken[i] % 256 == 0, "flp_arena_take: %p", taken[i]);
    if (bytes) memset(taken[i], i, bytes);
    total += bytes;
  }
  expect_sentence(flp_arena_get_stats(arena, &stats), "flp_arena_get_stats");
  API_EXPECT(stats.allocated_bytes >= total && stats.reserved_bytes >= stats.allocated_bytes, "flp_arena_get_stats");
  expect_sentence(flp_arena_give_back(arena, (char *)taken[0] + 1, NULL), "flp_arena_give_back of a foreign pointer");
  API_EXPECT(flp_arena_end_phase(arena, NULL) == FLP_ERROR_ARGUMENT, "flp_arena_end_phase with memory taken");
  for (int i = 0, first = draw_below(d, TAKEN); i < TAKEN; i++)
    expect_sentence(flp_arena_give_back(arena, taken[(first + i) % TAKEN], NULL), "flp_arena_give_back");
  expect_sentence(flp_arena_end_phase(arena, NULL), "flp_arena_end_phase");
  flp_arena_reset_peaks(arena);
  flp_arena_destroy(arena);
  flp_log_set(NULL, NULL);
}

/* Every function that takes a pointer, with NULL. */
static void query_nothing(void) {
  size_t bytes;
  char id[17];
  flp_arena_stats stats = FLP_ARENA_STATS_INIT;
  flp_plan_destroy(NULL);
  flp_arena_destroy(NULL);
  expect_sentence(flp_plan_layout(NULL, FLP_PASS_FORWARD, 1, 0, NULL), "flp_plan_layout(NULL)");
  expect_sentence(flp_plan_workspace(NULL, FLP_PASS_FORWARD, 1, 0, &bytes), "flp_plan_workspace(NULL)");
  expect_sentence(flp_plan_saved(NULL, 1, 0, &bytes), "flp_plan_saved(NULL)");
  expect_sentence(flp_spec_saved(NULL, 1, 0, &bytes), "flp_spec_saved(NULL)");
  expect_sentence(flp_plan_get_id(NULL, id), "flp_plan_get_id(NULL)");
  expect_sentence(flp_plan_check(NULL, NULL), "flp_plan_check(NULL)");
  expect_sentence(flp_execute(NULL, NULL), "flp_execute(NULL)");
  expect_sentence(flp_step(NULL, NULL), "flp_step(NULL)");
  expect_sentence(flp_select(NULL, NULL), "flp_select(NULL)");
  expect_sentence(flp_loss_describe(NULL, 9, NULL), "flp_loss_describe(NULL)");
  expect_sentence(flp_loss_builtin_bytes(NULL, NULL, 0, &bytes), "flp_loss_builtin_bytes(NULL)");
  expect_sentence(flp_arena_get_stats(NULL, &stats), "flp_arena_get_stats(NULL)");
  API_EXPECT(strlen(flp_version()) >= 5 && strlen(flp_sources_id()) == 64, "flp_version or flp_sources_id");
}

void api_run_queries(draw *d, const flp_plan *plan, const flp_spec *spec) {
  query_sizes(d, plan, spec);
  if (draw_one_in(d, 4)) query_plan(d, plan);
  if (draw_one_in(d, 4)) query_losses(d);
  query_bytes(d);
  query_settings(d);
  if (draw_one_in(d, 4)) query_arena(d);
  if (draw_one_in(d, 16)) query_nothing();
}

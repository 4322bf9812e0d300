/* golden.c: see golden.h. */
#include "tests/unit/support/golden.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/support/replay.h"
#include "tests/unit/support/trace.h"
#include "tests/unit/support/words.h"

flp_status golden_run(golden *g, const flp_args *args) {
  return args->pass == FLP_PASS_STEP ? flp_step(g->plan, args) : flp_execute(g->plan, args);
}

static void set_folder(const golden *g, const char *variable, const char *name) {
  char path[300];
  snprintf(path, sizeof path, "%s/%s", g->s.root, name);
  setenv(variable, path, 1);
}

void golden_open(golden *g, const char *device) {
  static const char *const libraries[][2] = {{FLP_TEST_FAKE_CUDA, GOLDEN_CUDA},
                                             {FLP_TEST_FAKE_PROVIDER, GOLDEN_PROVIDER},
                                             {FLP_TEST_FLPGEN_LIBRARY, GOLDEN_FLPGEN}};
  char name[16];
  stage_open(&g->s, device);
  cr_assert_eq(chdir(g->s.root), 0, "%s", g->s.root);
  for (int i = 0; i < 3; i++) cr_assert_eq(symlink(libraries[i][0], libraries[i][1]), 0, "%s", libraries[i][0]);
  snprintf(name, sizeof name, "%s", strrchr(g->s.root, '/') + 1);
  snprintf(g->s.root, sizeof g->s.root, GOLDEN_HERE "/../%s", name);
  setenv("FLP_CUDA_LIBRARY", GOLDEN_CUDA, 1);
  setenv("FLP_JIT_LIBRARY", GOLDEN_PROVIDER, 1);
  set_folder(g, "FLP_CACHE_DIR", "cache");
  set_folder(g, "FLP_GENERIC_DIR", "generic");
}

/* ---- plans ---- */

void golden_drop_plan(golden *g) {
  flp_plan_destroy(g->plan);
  g->plan = NULL;
  stage_expect_nothing_held(&g->s);
}

void golden_refused(golden *g, flp_status status) {
  char before[64];
  snprintf(before, sizeof before, "%s: ", flp_status_name(status));
  golden_put(g, before, flp_error_detail());
}

static int make_plan(golden *g) {
  if (g->plan) return 1;
  flp_status status = flp_plan_create(&g->spec, &g->options, &g->plan);
  if (status != FLP_OK) golden_refused(g, status);
  return status == FLP_OK;
}

static void set_device(golden *g, const char *words) {
  snprintf(g->device, sizeof g->device, "%s", words);
  g->s.script(words);
}

static void set_spec(golden *g, const char *words) {
  g->spec = words_spec(words);
  g->options = words_options("");
}

static void set_up(golden *g, const char *command, const char *words) {
  golden_drop_plan(g);
  if (strcmp(command, "device") == 0) set_device(g, words);
  else if (strcmp(command, "provider") == 0) g->s.provider_script(words);
  else if (strcmp(command, "spec") == 0) set_spec(g, words);
  else if (strcmp(command, "options") == 0) g->options = words_options(words);
  else cr_assert_fail("%s is no command", command);
}

/* ---- calls ---- */

/* A call over a whole head makes the launches that its layout counts. */
static void expect_launches(golden *g, const char *words, const flp_args *a) {
  const flp_scheme *scheme = trace_scheme(g->plan);
  int made = (int)g->s.launch_count(), more = (int)(int64_t)words_number(words, "uncounted", 0);
  if (!scheme || a->partial || (a->vocab_valid && a->vocab_valid < g->spec.vocab)) return;
  cr_expect_eq(made, scheme->launches + more, "%d launches, not %d: %s", made, scheme->launches + more, words);
}

static void call(golden *g, const char *words, flp_pass pass) {
  flp_args a;
  if (!make_plan(g)) return;
  flp_status status = words_call(g->plan, &g->spec, pass, words, &a);
  trace_begin(&g->s, g->plan);
  if (status == FLP_OK) status = golden_run(g, &a);
  if (status != FLP_OK) {
    golden_refused(g, status);
    if (status != FLP_ERROR_DRIVER && status != FLP_ERROR_DATA) cr_expect_eq(g->s.launch_count(), 0);
    return;
  }
  expect_launches(g, words, &a);
  trace_write(g->out, &g->s, g->plan, &a);
  if (g->each) g->each(g, &a);
}

static flp_status pick(const golden *g, flp_pass pass, const char *words, uint64_t budget, int query, flp_scheme *out) {
  const flp_planner *p = &g->plan->planner;
  int64_t n = (int64_t)words_number(words, "n", 0), count = (int64_t)words_number(words, "list_count", 0);
  if (g->spec.listed && pass != FLP_PASS_COMBINE) return flp_planner_pick_listed(p, pass, n, count, budget, out);
  return flp_planner_pick(p, pass, n, budget, query, out);
}

static void layout(golden *g, const char *words) {
  flp_scheme s, again;
  char name[64];
  if (!make_plan(g)) return;
  snprintf(name, sizeof name, "%.*s", (int)strcspn(words, " "), words);
  flp_pass pass = words_pass(name);
  flp_status status = pick(g, pass, words, words_number(words, "budget", UINT64_MAX), 1, &s);
  if (status != FLP_OK) return golden_refused(g, status);
  trace_layout(g->out, name, &s);
  cr_expect_eq(pick(g, pass, words, s.bytes, 0, &again), FLP_OK, "%s: %s", words, flp_error_detail());
  again.saved_bytes = s.saved_bytes; /* what a query alone tells */
  cr_expect_eq(memcmp(&s, &again, sizeof s), 0, "%s: query and execute agree", words);
}

static void prefer(golden *g, const char *words) {
  char mode[WORDS_BYTES];
  if (!make_plan(g)) return;
  flp_planner *p = &g->plan->planner;
  if (words_find(words, "mode", mode)) p->tuned_mode = flp_mode_find(mode);
  p->tuned_rows = (int64_t)words_number(words, "rows", 0);
  p->tuned_vocab = (int64_t)words_number(words, "columns", 0);
  p->tuned_step_rows = (int64_t)words_number(words, "steps", 0);
}

static void put_kept(golden *g, const char *words) {
  char mode[WORDS_BYTES];
  if (!make_plan(g)) return;
  flp_planner p = g->plan->planner;
  if (words_find(words, "mode", mode)) p.mode = flp_mode_find(mode);
  flp_mode kept = flp_planner_keeps(&p);
  fprintf(g->out, "%s, %d bytes; expands saved=%d step=%d; has directions=%d\n", flp_mode_name(kept),
          (int)flp_planner_saved_bytes(&p.spec, kept, 100), p.saved_expands, p.step_expands,
          flp_planner_has_direction(&p.spec));
  cr_expect(!flp_planner_saved_bytes(&p.spec, kept, 0) && !flp_planner_saved_bytes(&p.spec, FLP_MODE_STREAM, 100));
  p.emit_rows = p.keep_rows = 0;
  cr_expect_eq(flp_planner_keeps(&p), 0, "no kernels");
}

static void run_command(void *context, const char *command, const char *words, FILE *out) {
  golden *g = context;
  g->out = out;
  if (strcmp(command, "layout") == 0) layout(g, words);
  else if (strcmp(command, "prefer") == 0) prefer(g, words);
  else if (strcmp(command, "keeps") == 0) put_kept(g, words);
  else if (golden_plan_command(g, command, words)) return;
  else if (words_pass(command)) call(g, words, words_pass(command));
  else set_up(g, command, words);
}

/* ---- files ---- */

void golden_check_file(const char *name, golden_call_fn each) {
  golden g = {.each = each};
  golden_open(&g, "");
  set_spec(&g, "");
  replay_file(name, !each, run_command, &g);
  golden_drop_plan(&g);
}

static void check_one(const char *name, void *each) {
  golden_check_file(name, *(golden_call_fn *)each);
}

void golden_check(const char *folder, int least, golden_call_fn each) {
  replay_each(folder, least, check_one, &each);
}

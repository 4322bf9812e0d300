/* golden.c: see golden.h. */
#include "tests/unit/support/golden.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/support/trace.h"
#include "tests/unit/support/words.h"

flp_status golden_run(golden *g, const flp_args *args) {
  return args->pass == FLP_PASS_STEP ? flp_step(g->plan, args) : flp_execute(g->plan, args);
}

/* ---- plans ---- */

void golden_drop_plan(golden *g) {
  size_t bytes;
  int modules, contexts;
  flp_plan_destroy(g->plan);
  g->plan = NULL;
  g->s.held(&bytes, &modules, &contexts);
  cr_expect(!bytes && !modules && !contexts, "%zu bytes, %d modules, %d contexts are held", bytes, modules, contexts);
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

static void call(golden *g, const char *words, flp_pass pass, golden_call_fn each) {
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
  if (each) each(g, &a);
}

static void layout(golden *g, const char *words) {
  flp_scheme s;
  char name[64];
  if (!make_plan(g)) return;
  snprintf(name, sizeof name, "%.*s", (int)strcspn(words, " "), words);
  const flp_planner *p = &g->plan->planner;
  flp_pass pass = words_pass(name);
  int64_t n = (int64_t)words_number(words, "n", 0), count = (int64_t)words_number(words, "list_count", 0);
  uint64_t budget = words_number(words, "budget", UINT64_MAX);
  flp_status status = g->spec.listed && pass != FLP_PASS_COMBINE
                          ? flp_planner_pick_listed(p, pass, n, count, budget, &s)
                          : flp_planner_pick(p, pass, n, budget, 1, &s);
  if (status == FLP_OK) trace_layout(g->out, name, &s);
  else golden_refused(g, status);
}

static void run_command(golden *g, const char *line, golden_call_fn each) {
  char command[32];
  int length = 0;
  cr_assert_eq(sscanf(line, "> %31s %n", command, &length), 1, "%s", line);
  const char *words = line + (length ? (size_t)length : strlen(line));
  if (strcmp(command, "layout") == 0) layout(g, words);
  else if (golden_plan_command(g, command, words)) return;
  else if (words_pass(command)) call(g, words, words_pass(command), each);
  else set_up(g, command, words);
}

/* ---- files ---- */

/* The file's commands, each followed by what it gives. */
static char *replay(golden *g, char *text, golden_call_fn each) {
  char *made = NULL;
  size_t bytes = 0;
  int was_output = 0;
  g->out = open_memstream(&made, &bytes);
  for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
    if (*line != '>' && *line != '#') continue;
    fprintf(g->out, "%s%s\n", was_output ? "\n" : "", line);
    fflush(g->out);
    size_t before = bytes;
    if (*line == '>') run_command(g, line, each);
    fflush(g->out);
    was_output = bytes > before;
  }
  fclose(g->out);
  return made;
}

static char *read_file(const char *path) {
  size_t bytes = 1 << 20;
  FILE *file = fopen(path, "rb");
  cr_assert_not_null(file, "%s", path);
  char *text = calloc(1, bytes + 1);
  cr_assert_lt(fread(text, 1, bytes, file), bytes);
  fclose(file);
  return text;
}

static void expect_same(const char *path, const char *expected, const char *got) {
  int line = 1;
  const char *begin = expected;
  for (; *expected == *got && *got; expected++, got++)
    if (*got == '\n') begin = expected + 1, line++;
  if (*expected == *got) return;
  const char *made = got - (expected - begin);
  cr_expect_fail("%s:%d: expected\n  %.*s\ngot\n  %.*s\nFLP_GOLDEN_UPDATE=1 writes it anew", path, line,
                 (int)strcspn(begin, "\n"), begin, (int)strcspn(made, "\n"), made);
}

void golden_check_file(const char *path, golden_call_fn each) {
  golden g = {.out = NULL};
  const char *update = getenv("FLP_GOLDEN_UPDATE");
  stage_open(&g.s, "");
  set_spec(&g, "");
  char *text = read_file(path), *commands = strdup(text), *made = replay(&g, commands, each);
  golden_drop_plan(&g);
  if (!each && update && strcmp(update, "1") == 0) {
    FILE *file = fopen(path, "wb");
    cr_assert(file && fputs(made, file) >= 0 && fclose(file) == 0, "%s", path);
  } else if (!each) {
    expect_same(path, text, made);
  }
  free(text);
  free(commands);
  free(made);
}

/* ---- folders ---- */

static int is_text(const struct dirent *entry) {
  size_t length = strlen(entry->d_name);
  return length > 4 && strcmp(entry->d_name + length - 4, ".txt") == 0;
}

void golden_check(const char *folder, int least, golden_call_fn each) {
  char path[1024];
  struct dirent **files;
  snprintf(path, sizeof path, "%s/tests/golden/%s", FLP_TEST_TREE, folder);
  int count = scandir(path, &files, is_text, alphasort);
  cr_assert_geq(count, least, "%s", path);
  for (int i = 0; i < count; i++) {
    snprintf(path, sizeof path, "%s/tests/golden/%s/%s", FLP_TEST_TREE, folder, files[i]->d_name);
    golden_check_file(path, each);
    free(files[i]);
  }
  free(files);
}

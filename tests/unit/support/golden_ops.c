/* golden_ops.c: the commands of golden.h about operations without a head, and what a plan has seen of its data. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <string.h>

#include "runtime/api/validate.h"
#include "tests/unit/support/golden.h"
#include "tests/unit/support/words.h"

#define SELECT(name, type) {#name, type, offsetof(flp_select_args, name)}
static const words_argument select_rows[] = {
    SELECT(pass, 'i'),          SELECT(n, 'l'),           SELECT(k, 'l'),
    SELECT(scores, 'p'),        SELECT(scores_stride, 'l'), SELECT(target, 'p'),
    SELECT(temperature, 'd'),   SELECT(ignore_index, 'l'), SELECT(logprob, 'p'),
    SELECT(entropy, 'p'),       SELECT(stats, 'p'),       SELECT(grad_logprob, 'p'),
    SELECT(grad_entropy, 'p'),  SELECT(grad_scores, 'p'), SELECT(grad_scores_stride, 'l'),
    {NULL, 0, 0}};

#define SCALE(name, type) {#name, type, offsetof(flp_scale_args, name)}
static const words_argument scale_rows[] = {SCALE(reserved, 'i'), SCALE(n, 'l'),      SCALE(values, 'p'),
                                            SCALE(values_stride, 'l'), SCALE(factor, 'p'), {NULL, 0, 0}};

/* "forward WORDS" or "backward WORDS". */
static flp_select_args select_args(const char *words) {
  flp_select_args a = FLP_SELECT_ARGS_INIT;
  words_change_fields(&a, select_rows, "n=10 k=3 scores target stats logprob");
  if (strncmp(words, "backward", 8) == 0) words_change_fields(&a, select_rows, "pass=3 grad_logprob grad_scores");
  words_change_fields(&a, select_rows, words + strcspn(words, " "));
  a.stream = STAGE_STREAM;
  return a;
}

static flp_scale_args scale_args(const char *words) {
  flp_scale_args a = FLP_SCALE_ARGS_INIT;
  words_change_fields(&a, scale_rows, "n=5003 values factor");
  words_change_fields(&a, scale_rows, words);
  a.stream = STAGE_STREAM;
  return a;
}

/* ---- launches ---- */

static void put_pointer(golden *g, const words_argument *rows, const char *name, uint64_t address) {
  const char *of = address == g->plan->error_word ? "error_word" : NULL;
  for (const words_argument *row = rows; row->name && !of; row++)
    if (address == stage_address(STAGE_AT(100 + (row - rows)))) of = row->name;
  cr_assert(of || !address, "%s is at 0x%" PRIx64 ", where nothing is", name, address);
  if (of && strcmp(of, name) == 0) fprintf(g->out, " %s", name);
  else if (of) fprintf(g->out, " %s=%s", name, of);
}

static void put_param(golden *g, const words_argument *rows, const flp_abi_param *p, const uint8_t *at) {
  int64_t wide = 0;
  double number;
  memcpy(&wide, at, p->type == FLP_ABI_I32 ? 4 : 8);
  memcpy(&number, at, sizeof number);
  if (p->type == FLP_ABI_PTR) put_pointer(g, rows, p->name, (uint64_t)wide);
  else if (p->type == FLP_ABI_F64) fprintf(g->out, " %s=%.9g", p->name, number);
  else fprintf(g->out, " %s=%" PRId64, p->name, wide);
}

static void put_launches(golden *g, const words_argument *rows) {
  for (size_t i = 0; i < g->s.launch_count(); i++) {
    const fake_launch *l = g->s.launch_at(i);
    const flp_abi_entry *entry = flp_abi_find(l->entry);
    cr_expect_eq(l->stream, STAGE_STREAM);
    fprintf(g->out, "%s grid=%u", l->entry, l->grid);
    for (const flp_abi_param *p = flp_abi_first(entry); p; p = flp_abi_next(entry, p))
      put_param(g, rows, p, l->params + p->offset);
    fputc('\n', g->out);
  }
  stage_expect_capturable(&g->s);
}

/* ---- commands ---- */

static void finish(golden *g, flp_status status, const words_argument *rows) {
  if (status != FLP_OK) golden_refused(g, status);
  else if (g->s.launch_count()) put_launches(g, rows);
  else fprintf(g->out, "no launch\n");
}

/* Values that only the device sees. */
static void check(golden *g) {
  flp_status status = flp_plan_check(g->plan, STAGE_STREAM);
  if (status != FLP_OK) golden_refused(g, status);
  else fprintf(g->out, "good\n");
}

static void run_select(golden *g, const char *words) {
  flp_select_args a = select_args(words);
  finish(g, flp_select(g->plan, &a), select_rows);
}

static void run_scale(golden *g, const char *words) {
  flp_scale_args a = scale_args(words);
  finish(g, flp_scale(g->plan, &a), scale_rows);
}

int golden_other_command(golden *g, const char *command, const char *words) {
  int is_check = strcmp(command, "check") == 0, is_select = strcmp(command, "select") == 0;
  if (strcmp(command, "driver") == 0) return g->s.script(words), 1;
  if (!is_check && !is_select && strcmp(command, "scale") != 0) return 0;
  cr_assert_not_null(g->plan);
  g->s.reset();
  if (is_check) check(g);
  else if (is_select) run_select(g, words);
  else run_scale(g, words);
  return 1;
}

int golden_resolve_other(golden *g, const char *what, const char *words) {
  flp_spec given = g->spec, spec;
  flp_select_args select;
  flp_scale_args scale;
  char text[512];
  int is_select = strcmp(what, "select") == 0;
  if (!is_select && strcmp(what, "scale") != 0) return 0;
  snprintf(text, sizeof text, "%s", words + strspn(words, " "));
  char *of_spec = strstr(text, " / ");
  if (of_spec) *of_spec = 0, words_change_spec(&given, of_spec + 3);
  flp_status status = flp_spec_resolve(&given, &spec);
  flp_select_args select_given = select_args(is_select ? text : "forward");
  flp_scale_args scale_given = scale_args(is_select ? "" : text);
  if (status == FLP_OK && is_select) status = flp_select_args_resolve(&spec, &select_given, &select);
  if (status == FLP_OK && !is_select) status = flp_scale_args_resolve(&spec, &scale_given, &scale);
  if (status != FLP_OK) golden_refused(g, status);
  else
    fprintf(g->out, "taken: stride=%" PRId64 "\n", is_select ? select.scores_stride : scale.values_stride);
  return 1;
}

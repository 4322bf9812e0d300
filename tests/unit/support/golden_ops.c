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

#define DIVERGE(name, type) {#name, type, offsetof(flp_diverge_args, name)}
static const words_argument diverge_rows[] = {
    DIVERGE(is_shard, 'i'),       DIVERGE(n, 'l'),           DIVERGE(scores, 'p'),
    DIVERGE(scores_stride, 'l'),  DIVERGE(teacher, 'p'),     DIVERGE(teacher_stride, 'l'),
    DIVERGE(scale, 'f'),          DIVERGE(teacher_scale, 'f'), DIVERGE(scale_rows, 'p'),
    DIVERGE(teacher_scale_rows, 'p'), DIVERGE(upstream, 'p'), DIVERGE(values, 'p'),
    DIVERGE(grad_scores, 'p'),    DIVERGE(grad_scores_stride, 'l'), DIVERGE(target, 'p'),
    DIVERGE(grad_logprob, 'p'),   DIVERGE(grad_entropy, 'p'), DIVERGE(state, 'p'),
    DIVERGE(resumes, 'i'),        DIVERGE(partial, 'p'),     DIVERGE(teacher_partial, 'p'),
    {NULL, 0, 0}};

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

static flp_diverge_args diverge_args(const char *words) {
  flp_diverge_args a = FLP_DIVERGE_ARGS_INIT;
  words_change_fields(&a, diverge_rows, "n=10 scores teacher upstream values grad_scores");
  words_change_fields(&a, diverge_rows, words);
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
  double number = 0;
  float narrow;
  memcpy(&narrow, at, sizeof narrow);
  memcpy(&wide, at, p->type == FLP_ABI_I32 || p->type == FLP_ABI_F32 ? 4 : 8);
  memcpy(&number, at, p->type == FLP_ABI_F64 ? sizeof number : 0);
  if (p->type == FLP_ABI_PTR) put_pointer(g, rows, p->name, (uint64_t)wide);
  else if (p->type == FLP_ABI_F32) fprintf(g->out, " %s=%.9g", p->name, (double)narrow);
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

/* What an operation is: a call by words, and the strides that its arguments get. */
typedef struct other_op {
  const char *name;
  void (*run)(golden *g, const char *words);
  flp_status (*resolve)(const flp_spec *spec, const char *words, int64_t *stride);
} other_op;

static void run_select(golden *g, const char *words) {
  flp_select_args a = select_args(words);
  finish(g, flp_select(g->plan, &a), select_rows);
}

static flp_status resolve_select(const flp_spec *spec, const char *words, int64_t *stride) {
  flp_select_args given = select_args(words), out;
  flp_status status = flp_select_args_resolve(spec, &given, &out);
  *stride = out.scores_stride;
  return status;
}

static void run_scale(golden *g, const char *words) {
  flp_scale_args a = scale_args(words);
  finish(g, flp_scale(g->plan, &a), scale_rows);
}

static flp_status resolve_scale(const flp_spec *spec, const char *words, int64_t *stride) {
  flp_scale_args given = scale_args(words), out;
  flp_status status = flp_scale_args_resolve(spec, &given, &out);
  *stride = out.values_stride;
  return status;
}

static void run_diverge(golden *g, const char *words) {
  flp_diverge_args a = diverge_args(words);
  finish(g, flp_diverge(g->plan, &a), diverge_rows);
}

static flp_status resolve_diverge(const flp_spec *spec, const char *words, int64_t *stride) {
  flp_diverge_args given = diverge_args(words), out;
  flp_status status = flp_diverge_args_resolve(spec, &given, &out);
  *stride = out.grad_scores_stride;
  return status;
}

static flp_args loss_args(const char *words) {
  flp_args a = FLP_ARGS_INIT;
  words_change_fields(&a, WORDS_ARGUMENT, "pass=4 n=10 logprob advantage loss grad_logprob");
  words_change_fields(&a, WORDS_ARGUMENT, words);
  a.stream = STAGE_STREAM;
  return a;
}

static void run_loss(golden *g, const char *words) {
  flp_args a = loss_args(words);
  finish(g, flp_step(g->plan, &a), WORDS_ARGUMENT);
}

static flp_status resolve_loss(const flp_spec *spec, const char *words, int64_t *stride) {
  flp_args given = loss_args(words), out;
  flp_loss loss;
  *stride = 0;
  cr_assert_eq(flp_loss_read(spec->loss, spec->loss_bytes, &loss), FLP_OK);
  return flp_step_resolve(spec, &loss, &given, &out);
}

static const other_op ops[] = {{"select", run_select, resolve_select},
                               {"scale", run_scale, resolve_scale},
                               {"diverge", run_diverge, resolve_diverge},
                               {"loss", run_loss, resolve_loss}};

static const other_op *op_of(const char *name) {
  for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
    if (strcmp(ops[i].name, name) == 0) return &ops[i];
  return NULL;
}

int golden_other_command(golden *g, const char *command, const char *words) {
  int is_check = strcmp(command, "check") == 0;
  const other_op *op = op_of(command);
  if (strcmp(command, "driver") == 0) return g->s.script(words), 1;
  if (!is_check && !op) return 0;
  cr_assert_not_null(g->plan);
  g->s.reset();
  if (is_check) check(g);
  else op->run(g, words);
  return 1;
}

int golden_resolve_other(golden *g, const char *what, const char *words) {
  flp_spec given = g->spec, spec;
  int64_t stride = 0;
  char text[512];
  const other_op *op = op_of(what);
  if (!op) return 0;
  snprintf(text, sizeof text, "%s", words + strspn(words, " "));
  char *of_spec = strstr(text, " / ");
  if (of_spec) *of_spec = 0, words_change_spec(&given, of_spec + 3);
  flp_status status = flp_spec_resolve(&given, &spec);
  if (status == FLP_OK) status = op->resolve(&spec, text, &stride);
  if (status != FLP_OK) golden_refused(g, status);
  else fprintf(g->out, "taken: stride=%" PRId64 "\n", stride);
  return 1;
}

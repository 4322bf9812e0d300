/* peers.c: `flpgen bench --peers` and `--op diverge`, which hand over to the Python package, where the peers are, and
 * what makes the products of two heads.
 *
 * Invariant: what the Python command has no option for is refused here, never dropped. */
#include <errno.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gen/cli/bench/bench.h"
#include "gen/cli/shared/record.h"
#include "gen/cli/shared/text.h"

enum { WORDS = 48, TEXT_BYTES = 4096 };

/* The words of a command; they live in text. */
typedef struct command {
  const char *option, *what; /* that asks for it, and for what: "peers are" */
  char *word[WORDS];
  int count;
  size_t used;
  char text[TEXT_BYTES];
} command;

/* Adds one word; a command that is too long is left with used at TEXT_BYTES. */
static void add(command *c, const char *pattern, ...) __attribute__((format(printf, 2, 3)));
static void add(command *c, const char *pattern, ...) {
  va_list list;
  va_start(list, pattern);
  size_t left = TEXT_BYTES - c->used;
  int length = vsnprintf(c->text + c->used, left, pattern, list);
  va_end(list);
  if (length < 0 || (size_t)length >= left || c->count >= WORDS - 1) {
    c->used = TEXT_BYTES;
    return;
  }
  c->word[c->count++] = c->text + c->used;
  c->used += (size_t)length + 1;
}

flp_status bench_refuse(const bench_refusal *fields, size_t count, const char *with) {
  for (size_t i = 0; i < count; i++)
    if (fields[i].given) return flp_fail(FLP_ERROR_ARGUMENT, "%s: not accepted with %s", fields[i].option, with);
  return FLP_OK;
}

/* What peers cannot have beside a loss. A loss itself is Python's to know. */
static flp_status check_loss(const cli_spec_args *args) {
  const bench_refusal fields[] = {{args->loss.set_count > 0, "--loss-parameter"},
                                  {cli_spec_args_given(args, FLP_FIELD_entropy), "--entropy"},
                                  {args->spec.softcap > 0, "--softcap"}};
  return bench_refuse(fields, args->loss.name ? sizeof fields / sizeof fields[0] : 0,
                      "--loss and --peers, whose losses have no such choice");
}

static flp_status check_fields(const bench_args *args) {
  const flp_spec *spec = &args->spec.spec;
  const flp_options *options = &args->options;
  int accumulates = spec->accumulate_grad_weight && spec->loss; /* what --accumulate is */
  flp_dtype weight_dtype = spec->grad_weight_dtype ? spec->grad_weight_dtype : spec->dtype;
  const bench_refusal fields[] = {
      {args->masked > 0, "--masked"},
      {options->mode && options->mode != cli_spec_args_kept(&args->spec, (flp_mode)0), "--mode"},
      {options->chunk_rows != 0, "--chunk-rows"},
      {options->chunk_vocab != 0, "--chunk-vocab"},
      {options->rung != FLP_RUNG_AUTO, "--rung or --template-dir"},
      {args->spec.tune != NULL, "--tune"},
      {spec->listed, "--keep-set"},
      {spec->targets > 1, "--targets"},
      {spec->topk, "--topk"},
      {spec->rank, "--rank"},
      {spec->statistics, "--statistics"},
      {spec->mixed, "--mixed"},
      {spec->per_row_temperature, "--per-row-temperature"},
      {spec->target_dtype != FLP_DTYPE_INT64, "--target-dtype"},
      {spec->grad_hidden_dtype && spec->grad_hidden_dtype != spec->dtype, "--grad-hidden-dtype"},
      {!accumulates && weight_dtype != spec->dtype, "--grad-weight-dtype"},
      {!accumulates && spec->accumulate_grad_weight, "--accumulate-grad-weight"},
      {spec->alignment != 16, "--alignment"},
      {spec->grads & FLP_GRAD_BIAS, "--grad: bias"},
      {spec->grads == FLP_GRAD_WEIGHT, "--grad: weight alone"},
      {args->spec.scale != 1.0, "--model: a logit scale"}};
  FLP_TRY(bench_refuse(fields, sizeof fields / sizeof fields[0], "--peers, whose calls have no such choice"));
  return check_loss(&args->spec);
}

static void add_shape(command *c, const bench_args *args) {
  const flp_spec *spec = &args->spec.spec;
  char rows[BENCH_SIZES_MAX * 21] = "";
  for (int i = 0; i < args->row_count; i++) cli_append(rows, sizeof rows, ",", "%" PRId64, args->rows[i]);
  add(c, "--vocab=%" PRId64, spec->vocab);
  add(c, "--hidden=%" PRId64, spec->hidden);
  add(c, "--rows=%s", rows);
  add(c, "--dtype=%s", flp_dtype_name(spec->dtype));
  if (!spec->loss) add(c, "--entropy=%s", flp_entropy_name(spec->entropy));
  if (spec->grads) add(c, "--grad=hidden%s", spec->grads & FLP_GRAD_WEIGHT ? ",weight" : "");
  if (spec->has_bias) add(c, "--bias");
  if (spec->softcap > 0) add(c, "--softcap=%.9g", (double)spec->softcap);
  if (args->data != CLI_DATA_RANDOM) add(c, "--data=%s", rows_kind_name(args->data));
  if (spec->tail > 0) add(c, "--tail=%.9g", (double)spec->tail);
  if (spec->keep) add(c, "--save");
  if (spec->loss) add(c, "--loss=%s", args->spec.loss.name);
  if (spec->accumulate_grad_weight) add(c, "--accumulate");
}

static void add_rest(command *c, const bench_args *args) {
  if (args->options.budget_bytes) add(c, "--budget=%" PRIu64, args->options.budget_bytes);
  add(c, "--device=%" PRId32, args->options.device);
  add(c, "--burst-ms=%g", args->burst_ms);
  add(c, "--rounds=%" PRId64, args->rounds);
  add(c, "--seed=%" PRId64, args->seed);
  if (args->no_baseline) add(c, "--no-baseline");
  if (args->quiet) add(c, "--quiet");
  if (args->json) add(c, "--json=%s", args->json);
}

/* Python itself would end with words of its own. error: UNAVAILABLE; OK if it cannot be started, which comes again */
static flp_status check_package(const char *python, const char *asked) {
  static char option[] = "-c", code[] = "import importlib.util, sys; sys.exit(importlib.util.find_spec('flp') is None)";
  char *const argv[] = {(char *)python, option, code, NULL};
  pid_t child;
  int state = 0;
  if (posix_spawnp(&child, python, NULL, NULL, argv, environ) != 0) return FLP_OK;
  while (waitpid(child, &state, 0) < 0 && errno == EINTR) continue;
  if (state == 0) return FLP_OK;
  return flp_fail(FLP_ERROR_UNAVAILABLE,
                  "%s: %s has no package flp, which measures them; FLP_PYTHON names a Python that has", asked, python);
}

/* error: UNAVAILABLE */
static flp_status begin(command *c) {
  const char *python = getenv("FLP_PYTHON");
  if (!python || !python[0]) python = "python3";
  FLP_TRY(check_package(python, c->option));
  add(c, "%s", python);
  add(c, "-m");
  add(c, "flp.bench");
  return FLP_OK;
}

/* Returns on failure only. */
static flp_status hand_over(command *c, int quiet) {
  char text[TEXT_BYTES + 1];
  if (c->used >= TEXT_BYTES)
    return flp_fail(FLP_ERROR_ARGUMENT, "--json: the command would be too long; shorten the file");
  cli_record_join_command(c->count, c->word, text, sizeof text);
  if (!quiet) cli_complain("flpgen bench", "%s measured by the Python package flp: %s", c->what, text);
  fflush(NULL);
  execvp(c->word[0], c->word);
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "%s: %s could not be started (%s); %s measured by the Python package flp, with: %s", c->option,
                  c->word[0], strerror(errno), c->what, text);
}

flp_status bench_peers(const bench_args *args) {
  command c = {.option = "--peers", .what = "peers are"};
  FLP_TRY(check_fields(args));
  FLP_TRY(begin(&c));
  add(&c, "--peers=%s", args->peers);
  add_shape(&c, args);
  add_rest(&c, args);
  return hand_over(&c, args->quiet);
}

int bench_is_of_two_heads(int argc, char *const *argv) {
  for (int i = 1; i < argc; i++)
    if (strcmp(argv[i], "--op=diverge") == 0 ||
        (i + 1 < argc && strcmp(argv[i], "--op") == 0 && strcmp(argv[i + 1], "diverge") == 0))
      return 1;
  return 0;
}

flp_status bench_two_heads(int argc, char *const *argv) {
  command c = {.option = "--op diverge", .what = "divergences of two heads are"};
  FLP_TRY(begin(&c));
  for (int i = 1; i < argc; i++) add(&c, "%s", argv[i]);
  return hand_over(&c, 0);
}

/* check.c: `flpgen check`: its arguments, and what becomes of the findings. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gen/cli/check/run.h"
#include "gen/cli/check/session.h"
#include "gen/cli/kernels/compile_pool.h"
#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/record.h"
#include "gen/cli/verbs.h"
#include "runtime/base/process.h"
#include "runtime/kernel/kernel.h"

enum {
  KEY_ROWS = CLI_KEY_FIRST,
  KEY_TEMPERATURE,
  KEY_SCALE,
  KEY_JOBS,
  KEY_LIMIT,
  KEY_SEED,
  KEY_JSON,
  KEY_SET /* and a check_set */
};

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "What is checked:", 2},
    {"quick", KEY_SET + CHECK_SET_QUICK, NULL, 0,
     "one shape of each dtype, and every adversarial case in bf16 (default)", 2},
    {"all", KEY_SET + CHECK_SET_ALL, NULL, 0,
     "every dtype, entropy and gradient mask over ragged shapes, and every adversarial case", 2},
    {"concurrent", KEY_SET + CHECK_SET_CONCURRENT, NULL, 0,
     "bits on several streams at once, beside other work and in CUDA graphs; a part of --all where there is a GPU", 2},
    {"large", KEY_SET + CHECK_SET_LARGE, NULL, 0,
     "N=8192, V=151936, D=4096 with gradients, on sampled rows and columns", 2},
    {"mode", CLI_KEY_MODE, "NAME", 0,
     CLI_MODES_HELP
     "; beside a set only its cases of this mode, listed (L) and tail (T) too; save and direction are of "
     "--keep, stream needs --loss with a shape, tail is --tail 2^-9",
     2},
    {"rows", KEY_ROWS, "N", 0, "rows, with --vocab and --hidden; default 67", 2},
    {"temperature", KEY_TEMPERATURE, "T", 0, "with --vocab; per row, from 1/T to T", 2},
    {"scale", KEY_SCALE, "A", 0, "factor of the scores, with --vocab", 2},
    {"seed", KEY_SEED, "S", 0, "of the random data; default 1", 2},
    {NULL, 0, NULL, 0, "Execution:", 3},
    {"rung", CLI_KEY_RUNG, "NAME", 0, "only this one: tuned, heuristic, jit, generic or eager; default all", 3},
    CLI_OPTION(ARCH, 3),
    CLI_OPTION(TEMPLATES, 3),
    CLI_OPTION(DEVICE, 3),
    CLI_OPTION(THREADS, 3),
    {"jobs", KEY_JOBS, "N", 0,
     "kernels made at once, ahead of the cases that need them; default all CPUs; 1: none ahead", 3},
    CLI_OPTION(BUDGET, 3),
    {"limit", KEY_LIMIT, "SECONDS", 0, "of concurrent work: what takes longer is a deadlock; default 30", 3},
    {"verbose", 'v', NULL, 0, "print every finding, not only those that failed", 3},
    {"quiet", 'q', NULL, 0, "no progress, no warnings", 3},
    {"json", KEY_JSON, "FILE", OPTION_ARG_OPTIONAL, "write the record here; alone or '-': to standard output", 3},
    {0}};

static const cli_value values[] = {
    {KEY_ROWS, CLI_IS_INTEGER, CLI_PLACE(check_args, given.n), .most = INT32_MAX / 2},
    {KEY_TEMPERATURE, CLI_IS_POSITIVE, CLI_PLACE(check_args, given.temperature)},
    {KEY_SCALE, CLI_IS_FP32, CLI_PLACE(check_args, given.scale)},
    {KEY_JOBS, CLI_IS_INTEGER, CLI_PLACE(check_args, jobs), .least = 1, .most = CLI_COMPILERS_MAX},
    {KEY_LIMIT, CLI_IS_POSITIVE, CLI_PLACE(check_args, how.limit_s)},
    {KEY_SEED, CLI_IS_INTEGER, CLI_PLACE(check_args, given.seed), .most = INT64_MAX},
    {'v', CLI_IS_SWITCH, CLI_PLACE(check_args, verbose)},
    {'q', CLI_IS_QUIET, CLI_PLACE(check_args, quiet)},
    {KEY_JSON, CLI_IS_TEXT, CLI_PLACE(check_args, json), .unsaid = "-"},
    {ARGP_KEY_ARG, CLI_IS_JSON_FILE, CLI_PLACE(check_args, json)},
    {0}};

/* Options that some sets have no use for. */
enum { QUICK = 1 << CHECK_SET_QUICK, ALL = 1 << CHECK_SET_ALL, LARGE = 1 << CHECK_SET_LARGE };
enum { CONCURRENT = 1 << CHECK_SET_CONCURRENT, GIVEN = 1 << CHECK_SET_GIVEN, LISTED = QUICK | ALL | LARGE | GIVEN };
static const struct {
  int key;
  unsigned sets; /* that heed it */
} uses[] = {{KEY_ROWS, GIVEN},
            {KEY_TEMPERATURE, GIVEN},
            {KEY_SCALE, GIVEN},
            {CLI_KEY_BUDGET, LISTED},
            {KEY_SEED, LISTED},
            {KEY_LIMIT, ALL | CONCURRENT},
            {CLI_KEY_MODE, LISTED | CONCURRENT}};
enum { USES = sizeof uses / sizeof uses[0] };

static void set_set(check_args *args, check_set set, struct argp_state *state) {
  if (args->has_set && args->set != set)
    argp_error(state, "one of --quick, --all, --large and --concurrent is accepted, not two");
  args->set = set;
  args->has_set = 1;
}

static error_t parse(int key, char *text, struct argp_state *state) {
  check_args *args = state->input;
  for (int i = 0; i < USES; i++) args->used |= (unsigned)(uses[i].key == key) << i;
  if (key < KEY_SET || key > KEY_SET + CHECK_SET_GIVEN) return cli_values_parse(key, text, state);
  set_set(args, (check_set)(key - KEY_SET), state);
  return 0;
}

/* A spec that keeps something is checked in the mode that does, one with a loss as a step. error: ARGUMENT */
static flp_status resolve_given(check_args *args) {
  const char *loss = args->spec.loss.name;
  FLP_TRY(cli_spec_args_mode(&args->spec, args->given.mode));
  if (loss && args->spec.spec.keep)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--loss: '%s' is not accepted with --keep, whose backward pass takes any gradient", loss);
  FLP_TRY(cli_spec_args_resolve(&args->spec));
  args->given.mode = cli_spec_args_kept(&args->spec, args->given.mode);
  FLP_TRY(cli_spec_args_backward(&args->spec, args->given.mode, 0, 0));
  args->given.kept = args->spec.kept;
  if (loss) args->given.loss_parameters = args->spec.loss.set_count ? args->spec.loss.parameters : NULL;
  return FLP_OK;
}

/* What the set that is checked has no use for would be ignored. error: ARGUMENT naming both */
static flp_status check_unused(const check_args *args) {
  static const char *const names[] = {[CHECK_SET_QUICK] = "--quick, the default without a shape",
                                      [CHECK_SET_ALL] = "--all",
                                      [CHECK_SET_LARGE] = "--large",
                                      [CHECK_SET_CONCURRENT] = "--concurrent",
                                      [CHECK_SET_SELECT] = "--op select",
                                      [CHECK_SET_SCALE] = "--op scale",
                                      [CHECK_SET_DIVERGE] = "--op diverge",
                                      [CHECK_SET_LOSS] = "--op loss",
                                      [CHECK_SET_GIVEN] = "a shape"};
  static const char *const of_sets[] = {"op",   "dtype",      "tune",       "tail",      "targets", "topk",
                                        "rank", "statistics", "raw-scores", "lora-rank", NULL};
  static const char *const of_op[] = {"op", "dtype", NULL};
  const char *unused = NULL;
  char name[CLI_TEXT_BYTES];
  if (args->set != CHECK_SET_GIVEN)
    unused = cli_spec_args_other(&args->spec, args->spec.spec.op == FLP_OP_HEAD ? of_sets : of_op);
  for (int i = 0; i < USES && !unused; i++)
    if (args->used >> i & 1 && !(uses[i].sets >> args->set & 1))
      unused = cli_values_name(&cli_check_argp, uses[i].key, name) + strlen("--");
  if (!unused) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "--%s: not accepted with %s", unused, names[args->set]);
}

/* Of a set with --tail its cases of that mode are checked, with that tail; with --targets those of several targets, and
 * with --lora-rank those of an adapter, of that number where a case has none of its own. error: ARGUMENT */
static flp_status resolve_set(check_args *args) {
  flp_mode mode = args->given.mode;
  FLP_TRY(cli_spec_args_features(&args->spec));
  if (!flp_kernel_spec_emits(&args->spec.spec)) return FLP_OK;
  args->given.mode = FLP_MODE_TAIL;
  if (!mode || mode == FLP_MODE_TAIL) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "--mode: '%s' is not accepted beside --tail, whose mode is tail",
                  flp_mode_name(mode));
}

/* Takes the shape that was given, if any. error: ARGUMENT */
static flp_status resolve(check_args *args) {
  const flp_spec *spec = &args->spec.spec;
  int has_shape = spec->vocab > 0 || spec->hidden > 0 || args->spec.model;
  if (spec->op != FLP_OP_HEAD) {
    static const check_set sets[FLP_OP_COUNT] = {[FLP_OP_SELECT] = CHECK_SET_SELECT,
                                                 [FLP_OP_SCALE] = CHECK_SET_SCALE,
                                                 [FLP_OP_DIVERGE] = CHECK_SET_DIVERGE,
                                                 [FLP_OP_LOSS] = CHECK_SET_LOSS};
    if (has_shape || args->has_set)
      return flp_fail(FLP_ERROR_ARGUMENT, "--op %s is not accepted beside a shape or a set; it has its own cases",
                      flp_op_name(spec->op));
    args->set = sets[spec->op];
    if (spec->op != FLP_OP_SELECT && spec->dtype == FLP_DTYPE_FP64)
      return flp_fail(FLP_ERROR_ARGUMENT, "--dtype: 'fp64' is not accepted with --op %s (accepted: bf16, fp16, fp32)",
                      flp_op_name(spec->op));
  }
  if (has_shape && args->has_set)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--vocab, --hidden and --model are not accepted beside --quick, --all, --large, --concurrent");
  if (args->set == CHECK_SET_CONCURRENT && args->how.options.rung == FLP_RUNG_EAGER)
    return flp_fail(FLP_ERROR_ARGUMENT, "--rung: 'eager' is not accepted with --concurrent, it runs on the CPU");
  if (has_shape) args->set = CHECK_SET_GIVEN;
  FLP_TRY(check_unused(args));
  args->given.spec = *spec;
  if (!has_shape) return resolve_set(args);
  FLP_TRY(resolve_given(args));
  const char *arch = args->how.options.arch;
  FLP_TRY(cli_spec_check_tiling("--tune", args->spec.tune, spec, arch));
  if (arch && !check_precompile_arch(arch, spec))
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--arch: '%s' is not accepted; it has no kernels of its own for this head and --alignment", arch);
  args->given.spec = *spec;
  if (!(args->given.temperature > 0) || args->given.temperature > 1e30)
    return flp_fail(FLP_ERROR_ARGUMENT, "--temperature: expected a number > 0 and at most 1e30, got %g",
                    args->given.temperature);
  if (args->spec.model && !(args->given.scale < 1) && !(args->given.scale > 1)) args->given.scale = args->spec.scale;
  return FLP_OK;
}

static flp_status run_check(check_args *args, const char *command, check_report *report) {
  args->given.mode = args->how.options.mode; /* of cases, as chunks are */
  FLP_TRY(resolve(args));
  FLP_TRY(cli_spec_args_tune(args->spec.tune, &args->how.options));
  FLP_TRY(cli_templates_use(&args->how.options));
  if (args->json) FLP_TRY(cli_record_probe(args->json));
  FLP_TRY(check_session_run(args, report));
  if (report->incomplete) return flp_fail(FLP_ERROR_MEMORY, "out of memory for the findings");
  if (report->count == 0)
    return flp_fail(FLP_ERROR_UNAVAILABLE, "nothing was checked: no rung that was asked for has kernels for this");
  if (!args->json || strcmp(args->json, "-") != 0) check_report_print(report, args->verbose);
  return args->json ? check_report_write(report, args->json, command) : FLP_OK;
}

/* Ends the process without the clean-up that would wait for the device for ever. */
static void leave_hung(int code) {
  fflush(NULL);
  _exit(code);
}

const cli_values cli_check_argp = {
    CLI_OPTIONS(options, parse, values),
    .call = offsetof(check_args, how.options),
    .modes = CLI_CHECK_MODES,
    .argp.doc =
        "Checks every rung that this machine offers against an fp64 reference.\vWith --vocab and --hidden that one "
        "specialisation is checked over random and adversarial data. logprob and entropy are judged in ulps, gradients "
        "by their relative L2 error beside that of an ordinary matrix pipeline; outputs and workspace are poisoned "
        "first. Beside --quick, --all, --large and --concurrent, --dtype leaves the cases of the other dtypes out.\n\n"
        "Examples:\n"
        "  flpgen check --quick\n"
        "  flpgen check --vocab 50257 --hidden 768 --grad hidden,weight --rung jit\n\n" CLI_EXIT_HELP,
    .argp.children = cli_spec_children};

int cli_check(int argc, char **argv) {
  check_args args = {.spec = CLI_SPEC_ARGS_INIT,
                     .how = {.options = FLP_OPTIONS_INIT},
                     .given = {.name = "random", .n = 67, .temperature = 1, .scale = 1}};
  args.jobs = flp_processors();
  args.given.shards = 1;
  args.given.seed = 1;
  char command[1024];
  cli_record_join_command(argc, argv, command, sizeof command);
  cli_parse(&cli_check_argp, argc, argv, &args);
  check_report report = {0};
  flp_status status = run_check(&args, command, &report);
  int code = report.failed > 0 ? CLI_EXIT_FAILED : CLI_EXIT_OK;
  if (status != FLP_OK) code = cli_finish("flpgen check", args.json && strcmp(args.json, "-") == 0, status);
  if (report.hung) leave_hung(code);
  check_report_clear(&report);
  return code;
}

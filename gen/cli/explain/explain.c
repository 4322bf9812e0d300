/* explain.c: `flpgen explain`, costs and the plan that would run, with or without a GPU. */
#include "gen/cli/explain/explain.h"

#include <stdio.h>

#include "gen/cli/shared/option_args.h"
#include "gen/cli/verbs.h"
#include "runtime/api/validate.h"

enum { KEY_ROWS = CLI_KEY_FIRST, KEY_SMS, KEY_MEMORY, KEY_CAPABILITY };

/* The assumed device is an H200. */
enum { ASSUMED_MULTIPROCESSORS = 132, ASSUMED_MAJOR = 9, ASSUMED_MINOR = 0 };
static const uint64_t ASSUMED_MEMORY = UINT64_C(140) << 30;

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Plan:", 2},
    {"rows", KEY_ROWS, "LIST", 0, "numbers of rows N, default 8192", 2},
    CLI_OPTION(BUDGET, 2),
    {"mode", CLI_KEY_MODE, "NAME", 0, CLI_MODES_HELP "; save and direction are of --keep, stream is of steps of --loss",
     2},
    CLI_OPTION(RUNG, 2),
    CLI_OPTION(TEMPLATES, 2),
    CLI_OPTION(DEVICE, 2),
    CLI_OPTION(CHUNK_ROWS, 2),
    CLI_OPTION(CHUNK_VOCAB, 2),
    {"multiprocessors", KEY_SMS, "N", 0, "of the GPU that is assumed beside this machine's; default 132", 2},
    {"memory", KEY_MEMORY, "BYTES", 0, "of that GPU, of which passes with gradients get 1/20; default 140G", 2},
    {"capability", KEY_CAPABILITY, "M.N", 0, "compute capability of that GPU, which decides its kernels; default 9.0",
     2},
    {"json", CLI_SWITCH(explain_args, json), NULL, 0, "print one JSON document", 2},
    {0}};

static flp_status parse_rows(const char *text, void *place) {
  explain_args *args = place;
  return cli_parse_integers("--rows", text, 0, FLP_COUNT_MAX, EXPLAIN_ROWS_MAX, args->rows, &args->row_count);
}

static flp_status parse_capability(const char *text, void *place) {
  explain_args *args = place;
  int length = 0;
  int fields = sscanf(text, "%2d.%1d%n", &args->major, &args->minor, &length);
  if (fields == 2 && text[length] == 0 && text[0] != '-' && text[0] != '+' && args->minor >= 0) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "--capability: expected a compute capability, e.g. 8.0 or 9.0, got '%s'", text);
}

static const cli_value values[] = {
    {KEY_ROWS, CLI_IS_OWN, .parse = parse_rows},
    {KEY_SMS, CLI_IS_INTEGER, CLI_PLACE(explain_args, multiprocessors), .least = 1, .most = 65536},
    {KEY_MEMORY, CLI_IS_BYTES, CLI_PLACE(explain_args, memory_bytes)},
    {KEY_CAPABILITY, CLI_IS_OWN, .parse = parse_capability},
    {0}};

static flp_status check_mode(const explain_args *args) {
  uint32_t both = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  if (args->options.mode != FLP_MODE_RECOMPUTE_SPLIT || (args->spec.spec.grads & both) == both) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "--mode: 'recompute-split' is not accepted without --grad hidden,weight");
}

static flp_status explain(explain_args *args) {
  FLP_TRY(cli_spec_args_mode(&args->spec, args->options.mode));
  FLP_TRY(cli_spec_args_resolve(&args->spec));
  FLP_TRY(check_mode(args));
  FLP_TRY(cli_spec_check_tiling("--tune", args->spec.tune, &args->spec.spec, NULL));
  FLP_TRY(cli_spec_args_tune(args->spec.tune, &args->options));
  FLP_TRY(cli_templates_use(&args->options));
  flp_mode mode = args->options.mode; /* of save and stream modes the others are shown, which have the chunks */
  if (mode == FLP_MODE_SAVE || mode == FLP_MODE_STREAM) mode = (flp_mode)0;
  FLP_TRY(cli_spec_args_backward(&args->spec, mode, args->options.chunk_rows, args->options.chunk_vocab));
  flp_options resolved;
  FLP_TRY(flp_options_resolve(&args->options, &resolved));
  args->options = resolved;
  if (args->row_count == 0) args->rows[args->row_count++] = 8192;
  explanation out = {.args = args};
  FLP_TRY(explain_assume(args, &out.assumed, &out.planner));
  flp_plan *plan = NULL;
  if (flp_plan_create(&args->spec.spec, &args->options, &plan) != FLP_OK)
    snprintf(out.plan_error, sizeof out.plan_error, "%s", flp_error_detail());
  out.plan = plan;
  flp_status status = FLP_OK;
  if (args->json)
    status = explain_print_json(&out);
  else
    explain_print_text(&out);
  flp_plan_destroy(plan);
  return status;
}

const cli_values cli_explain_argp = {
    CLI_OPTIONS(options, cli_values_parse, values),
    .call = offsetof(explain_args, options),
    .modes = CLI_BACKWARD_MODES,
    .argp.doc =
        "Shows flop, memory and memory traffic of the naive form and of each mode, and the plan that would run here "
        "and on an assumed GPU; none is needed."
        "\vThe assumed GPU gets the kernels that a plan would take there. Workspace is memory beyond inputs and "
        "outputs. Traffic is a lower bound: every operand once a product, of mode direction the weight once a chunk of "
        "rows, plus chunks and accumulators.\n\n"
        "Examples:\n"
        "  flpgen explain --vocab 151936 --hidden 4096 --grad hidden,weight\n"
        "  flpgen explain --model config.json --rows 1024,65536 --capability 8.0\n\n" CLI_EXIT_HELP,
    .argp.children = cli_spec_children};

int cli_explain(int argc, char **argv) {
  explain_args args = {.spec = CLI_SPEC_ARGS_INIT,
                       .options = FLP_OPTIONS_INIT,
                       .multiprocessors = ASSUMED_MULTIPROCESSORS,
                       .memory_bytes = ASSUMED_MEMORY,
                       .major = ASSUMED_MAJOR,
                       .minor = ASSUMED_MINOR};
  args.options.host_fallback = 1;
  cli_parse(&cli_explain_argp, argc, argv, &args);
  flp_log_set(NULL, NULL); /* the reasons are shown */
  return cli_finish(argv[0], args.json, explain(&args));
}

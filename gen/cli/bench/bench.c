/* bench.c: `flpgen bench`, a specialisation's passes beside GEMM baselines of the same shapes. */
#include <stdio.h>
#include <string.h>

#include "gen/cli/bench/bench.h"
#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/record.h"
#include "gen/cli/verbs.h"

enum { KEY_ROWS = CLI_KEY_FIRST, KEY_DATA, KEY_MASKED, KEY_BURST, KEY_ROUNDS, KEY_SEED, KEY_PEERS, KEY_JSON };

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "What is measured:", 2},
    {"rows", KEY_ROWS, "LIST", 0, "numbers of rows N, default 8192", 2},
    {"data", KEY_DATA, "NAME", 0,
     "random (default), or rows as sharp as a trained model's: policy (a reasoning model on its own samples), text (a "
     "small model at temperature 0.6), base (at 1)",
     2},
    {"write-rows", CLI_TEXT(bench_args, write_rows), "FILE", 0,
     "write hidden, weight and target, and bias and temperature if there are any, to a safetensors file instead of "
     "measuring, for other programs to measure on; works without a GPU too",
     2},
    {"masked", KEY_MASKED, "FRACTION", 0, "of the rows whose target is the ignore index; default 0", 2},
    CLI_OPTION(BUDGET, 2),
    {"mode", CLI_KEY_MODE, "NAME", 0,
     CLI_MODES_HELP "; save and direction are of --keep, stream runs the steps of --loss in chunks", 2},
    CLI_OPTION(CHUNK_ROWS, 2),
    CLI_OPTION(CHUNK_VOCAB, 2),
    {"rung", CLI_KEY_RUNG, "NAME", 0, "auto (default), tuned, heuristic, jit or generic", 2},
    CLI_OPTION(ARCH, 2),
    CLI_OPTION(TEMPLATES, 2),
    CLI_OPTION(DEVICE, 2),
    {NULL, 0, NULL, 0, "How:", 3},
    {"burst-ms", KEY_BURST, "MS", 0, "least length of a burst of calls; default 75", 3},
    {"rounds", KEY_ROUNDS, "N", 0, "bursts of each case, in random order; default 7", 3},
    {"seed", KEY_SEED, "S", 0, "of the data and of the order; default 1", 3},
    {"no-baseline", CLI_SWITCH(bench_args, no_baseline), NULL, 0, "without the GEMM baseline, which needs cuBLASLt", 3},
    {"no-bare", CLI_SWITCH(bench_args, no_baseline), NULL, OPTION_ALIAS | OPTION_HIDDEN, NULL, 0},
    {"peers", KEY_PEERS, "LIST", OPTION_ARG_OPTIONAL,
     "beside other libraries: runs python3 -m flp.bench with these options; all (default), or names that its help "
     "lists",
     3},
    {"quiet", 'q', NULL, 0, "no progress, no warnings", 3},
    {"json", KEY_JSON, "FILE", OPTION_ARG_OPTIONAL, "write the record here; alone or '-': to standard output", 3},
    {0}};

static flp_status parse_rows(const char *text, void *place) {
  bench_args *args = place;
  return cli_parse_integers("--rows", text, 1, FLP_COUNT_MAX, BENCH_SIZES_MAX, args->rows, &args->row_count);
}

static flp_status parse_masked(const char *text, void *place) {
  double *out = place;
  FLP_TRY(cli_parse_number("--masked", text, out));
  if (*out < 0 || *out >= 1)
    return flp_fail(FLP_ERROR_ARGUMENT, "--masked: expected a fraction from 0 to below 1, got '%s'", text);
  return FLP_OK;
}

static const cli_value values[] = {
    {KEY_ROWS, CLI_IS_OWN, .parse = parse_rows},
    {KEY_DATA, CLI_IS_WORD, CLI_PLACE(bench_args, data), .words = CLI_DATA},
    {KEY_MASKED, CLI_IS_OWN, CLI_PLACE(bench_args, masked), .parse = parse_masked},
    {KEY_BURST, CLI_IS_OWN, CLI_PLACE(bench_args, burst_ms), .parse = cli_parse_burst},
    {KEY_ROUNDS, CLI_IS_INTEGER, CLI_PLACE(bench_args, rounds), .least = 1, .most = MEASURE_ROUNDS_MAX},
    {KEY_SEED, CLI_IS_INTEGER, CLI_PLACE(bench_args, seed), .most = INT64_MAX},
    {KEY_PEERS, CLI_IS_TEXT, CLI_PLACE(bench_args, peers), .unsaid = "all"},
    {'q', CLI_IS_QUIET, CLI_PLACE(bench_args, quiet)},
    {KEY_JSON, CLI_IS_TEXT, CLI_PLACE(bench_args, json), .unsaid = "-"},
    {ARGP_KEY_ARG, CLI_IS_JSON_FILE, CLI_PLACE(bench_args, json)},
    {0}};

static error_t parse(int key, char *text, struct argp_state *state) {
  const bench_args *args = state->input;
  error_t error = cli_values_parse(key, text, state);
  if (key == CLI_KEY_RUNG && args->options.rung == FLP_RUNG_EAGER)
    argp_error(state,
               "--rung: expected one of auto, tuned, heuristic, jit, generic, got 'eager', which runs on the CPU");
  return error;
}

static flp_status bench(bench_args *args, const char *command) {
  FLP_TRY(cli_spec_args_mode(&args->spec, args->options.mode));
  FLP_TRY(cli_spec_args_one_mode(&args->spec));
  FLP_TRY(cli_spec_args_resolve(&args->spec));
  FLP_TRY(cli_spec_check_tiling("--tune", args->spec.tune, &args->spec.spec, args->options.arch));
  if (args->row_count == 0) args->rows[args->row_count++] = 8192;
  FLP_TRY(cli_templates_use(&args->options));
  if (args->write_rows) return bench_write_rows(args);
  if (args->peers) return bench_peers(args);
  FLP_TRY(cli_spec_args_tune(args->spec.tune, &args->options));
  flp_mode mode = cli_spec_args_kept(&args->spec, args->options.mode);
  FLP_TRY(cli_spec_args_backward(&args->spec, mode, args->options.chunk_rows, args->options.chunk_vocab));
  bench_result result;
  if (args->json) FLP_TRY(cli_record_probe(args->json));
  FLP_TRY(bench_run(args, &result));
  if (!args->json || strcmp(args->json, "-") != 0) bench_print(args, &result);
  return args->json ? bench_write(args, &result, command, args->json) : FLP_OK;
}

const cli_values cli_bench_argp = {
    CLI_OPTIONS(options, parse, values),
    .call = offsetof(bench_args, options),
    .modes = CLI_BACKWARD_MODES,
    .argp.doc =
        "Times forward, backward and both, or steps of a loss, on this machine's GPU, beside GEMM baselines of the "
        "same shapes."
        "\vData is random, or as --data says: then a forward plan with entropy is made too, and the entropies of the "
        "rows "
        "are printed. Every case and product runs in bursts, interleaved in random order; figures are medians over "
        "the rounds, with the least and the most. GEMM baselines are the fastest of the first eight algorithms that "
        "cuBLASLt's heuristics name: one (the scores) for forward; for backward the scores again, but in save, stream "
        "and "
        "direction modes, and one for the gradient of hidden and of weight each. In mode direction forward has both of "
        "its "
        "products. With --keep-set every case is beside one product, that of the scores; with --tail so are those of "
        "mode "
        "tail, and the same without a tail stands beside them. With --targets the same with one target is timed beside "
        "them, or steps of nll beside those of a loss over several; with --lora-rank the same without an adapter, with "
        "--mixed the same with operands of one dtype. "
        "Products compute every row, masked or not. Host times are "
        "those of flp_execute until it returns, with the fewest of the rows. cuBLASLt is looked for where the "
        "loader looks, beside the CUDA toolkit and in the Python environments at hand; FLP_CUBLASLT_LIBRARY names "
        "another.\n\n"
        "Examples:\n"
        "  flpgen bench --vocab 151936 --hidden 4096 --grad hidden,weight\n"
        "  flpgen bench --model config.json --rows 4096,16384 --json=bench.json\n"
        "  flpgen bench --vocab 32000 --hidden 2048 --rows 512 --data policy --write-rows "
        "rows.safetensors\n"
        "  flpgen bench --op diverge --vocab 32000 --hidden 2048 --teacher-hidden 4096 --loss jsd\n\n"
        "Divergences of two heads are measured by python3 -m flp.bench, whose help has their options."
        "\n\n" CLI_EXIT_HELP,
    .argp.children = cli_spec_children};

int cli_bench(int argc, char **argv) {
  bench_args args = {.spec = CLI_SPEC_ARGS_INIT, .options = FLP_OPTIONS_INIT, .burst_ms = 75, .rounds = 7, .seed = 1};
  char command[1024];
  if (bench_is_of_two_heads(argc, argv)) return cli_finish("flpgen bench", 0, bench_two_heads(argc, argv));
  cli_record_join_command(argc, argv, command, sizeof command);
  cli_parse(&cli_bench_argp, argc, argv, &args);
  return cli_finish("flpgen bench", args.json && strcmp(args.json, "-") == 0, bench(&args, command));
}

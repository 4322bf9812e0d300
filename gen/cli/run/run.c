/* run.c: `flpgen run`, log-probabilities and gradients of tensors in safetensors files. */
#include "gen/cli/run/run.h"

#include "gen/cli/shared/spec_args.h"
#include "gen/cli/verbs.h"

enum { KEY_IGNORE = CLI_KEY_FIRST, KEY_ROWS, KEY_SEED, KEY_SCALE, KEY_LOSS_PARAMETER, KEY_LORA_SCALE, KEY_KEEP_SET };

#define OPERAND(field) CLI_TEXT(run_args, source[FLP_ARRAY_##field])
#define FIELD(field) (CLI_KEY_SPEC + FLP_FIELD_##field)

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Data:", 1},
    {"input", 'i', "FILE", 0, "look for tensors here, by the names of the options below; may be repeated", 1},
    {"hidden", OPERAND(hidden), "FILE:TENSOR", 0,
     "hidden states (..., D) in BF16, F16 or F32; with --demo the number D", 1},
    {"weight", OPERAND(weight), "FILE:TENSOR", 0, "weight of the head (V, D), same dtype, or see --mixed", 1},
    {"bias", OPERAND(bias), "FILE:TENSOR", 0, "bias of the head (V), same dtype, or see --mixed", 1},
    {"target", OPERAND(target), "FILE:TENSOR", 0, "token ids (...) in I32 or I64", 1},
    {"grad-logprob", OPERAND(grad_logprob), "FILE:TENSOR", 0, "upstream gradient of logprob (...) in F32", 1},
    {"grad-entropy", OPERAND(grad_entropy), "FILE:TENSOR", 0, "upstream gradient of entropy (...) in F32", 1},
    {"list-offsets", OPERAND(list_offsets), "FILE:TENSOR", 0,
     "where the lists of columns begin, a list a row, and the last ends (N+1) in I64: of a row only the columns of its "
     "list count, as a sampler's top-p or top-k mask leaves them",
     1},
    {"list-ids", OPERAND(list_ids), "FILE:TENSOR", 0, "the lists' token ids, one list behind the other, as target is",
     1},
    {"lora-a", OPERAND(lora_a), "FILE:TENSOR", 0,
     "A (R, D) of a low-rank adapter on the head, R a multiple of 8 up to 512, same dtype; the weight is frozen then",
     1},
    {"lora-b", OPERAND(lora_b), "FILE:TENSOR", 0, "B (V, R) of it, same dtype", 1},
    {"old-logprob", OPERAND(old_logprob), "FILE:TENSOR", 0,
     "of a loss: logprob of the policy that sampled (...) in F32", 1},
    {"ref-logprob", OPERAND(ref_logprob), "FILE:TENSOR", 0, "of a loss: logprob of the reference policy (...) in F32",
     1},
    {"advantage", OPERAND(advantage), "FILE:TENSOR", 0, "of a loss: (...) in F32", 1},
    {"row-weight", OPERAND(row_weight), "FILE:TENSOR", 0,
     "of a loss: the weight of each row's part (...) in F32; default 1", 1},
    {"teacher-logprob", OPERAND(teacher_logprob), "FILE:TENSOR", 0,
     "of a loss over several targets: their logprobs by the teacher (..., K) in F32", 1},
    {"output", 'o', "FILE", 0,
     "write logprob, entropy, loss, metrics.NAME, top_ids, top_logprob, top_rest, rank, grad_hidden, grad_weight, "
     "grad_bias, grad_lora_a, grad_lora_b here",
     1},
    {NULL, 0, NULL, 0, "Operation:", 2},
    {"temperature", OPERAND(temperature_rows), "T", 0, "a number > 0, or FILE:TENSOR with one F32 per row; default 1",
     2},
    {"scale", KEY_SCALE, "A", 0, "factor of the scores; default 1", 2},
    {"softcap", FIELD(softcap), "X", 0, "scores become X*tanh(score/X), X > 0", 2},
    {"ignore-index", KEY_IGNORE, "ID", 0, "target of rows that are masked; default -100", 2},
    {"mixed", FIELD(mixed), "HOW", 0,
     "how hidden or weight in F32 meets the other in BF16 or F16: round, rounded to it, as a bias in F32 is; split, as "
     "two terms of it, in two products",
     2},
    {"entropy", FIELD(entropy), "WHICH", 0, "none or forward (default); backward if a gradient of it is given", 2},
    {"grad", FIELD(grads), "LIST", 0,
     "any of hidden,weight,bias, and with an adapter of hidden,bias,lora_a,lora_b; default all, if upstream gradients "
     "or a loss are given",
     2},
    {"grad-hidden-dtype", FIELD(grad_hidden_dtype), "T", 0, "that of hidden (default) or fp32", 2},
    {"grad-weight-dtype", FIELD(grad_weight_dtype), "T", 0, "that of weight (default) or fp32", 2},
    {"tail", FIELD(tail), "VALUE", 0,
     "of all elements of the scores' gradient, leave out up to so much of the sum of magnitudes: 2^-20 to 2^-2, as "
     "2^-9, 1/512 or 0.002",
     2},
    {"targets", FIELD(targets), "K", 0,
     "logprobs of K columns of each row, 1 to 512: target, logprob, grad_logprob and teacher_logprob are (..., K) then",
     2},
    {"topk", FIELD(topk), "K", 0, "the best K columns of each row too, 1 to 128: ids, logprobs, the mass of all others",
     2},
    {"rank", FIELD(rank), NULL, 0, "and the rank of each target: how many columns have a higher score", 2},
    {"lora-scale", KEY_LORA_SCALE, "S", 0, "factor of an adapter's part of the scores; default 1, 0 turns it off", 2},
    {"loss", CLI_TEXT(run_args, loss.name), "LOSS", 0, FLP_LOSS_HELP "; one step gives it and its gradients", 2},
    {"loss-parameter", KEY_LOSS_PARAMETER, "NAME=NUMBER", 0, CLI_LOSS_PARAMETER_HELP, 2},
    {"model", CLI_TEXT(run_args, model), "FILE", 0, "take softcap and scale (with --demo sizes too) from a config.json",
     2},
    {NULL, 0, NULL, 0, "Execution:", 3},
    CLI_OPTION(RUNG, 3),
    CLI_OPTION(ARCH, 3),
    {"tune", CLI_TEXT(run_args, tune), "TEXT", 0, "tile configurations of kernels, named as by bench --tune", 3},
    CLI_OPTION(TEMPLATES, 3),
    CLI_OPTION(DEVICE, 3),
    CLI_OPTION(BUDGET, 3),
    CLI_OPTION(CHUNK_ROWS, 3),
    CLI_OPTION(CHUNK_VOCAB, 3),
    CLI_OPTION(THREADS, 3),
    CLI_OPTION(STRICT, 3),
    {"quiet", 'q', NULL, 0, "no progress, no warnings", 3},
    {"json", CLI_SWITCH(run_args, json), NULL, 0, "print one JSON document", 3},
    {NULL, 0, NULL, 0, "Demonstration:", 4},
    {"demo", CLI_SWITCH(run_args, demo), NULL, 0, "random data at real size; no files needed", 4},
    {"rows", KEY_ROWS, "N", 0, "default 256; a third of them masked", 4},
    {"vocab", FIELD(vocab), "V", 0, "default 151936", 4},
    {"dtype", FIELD(dtype), "T", 0, "bf16 (default), fp16 or fp32", 4},
    {"seed", KEY_SEED, "N", 0, "default 1", 4},
    {"keep-set", KEY_KEEP_SET, "MEAN", 0, "draw lists of columns too, of MEAN ids a row on average, from 1 to V", 4},
    {"lora-rank", FIELD(lora_rank), "R", 0, "draw an adapter of rank R too, a multiple of 8 up to 512", 4},
    {0}};

static flp_status parse_scale(const char *text, void *place) {
  run_args *args = place;
  args->has_scale = 1;
  return cli_parse_fp32("--scale", text, &args->scale);
}

static flp_status parse_lora_scale(const char *text, void *place) {
  run_args *args = place;
  args->has_lora_scale = 1;
  return cli_parse_fp32("--lora-scale", text, &args->lora_scale);
}

static const cli_value values[] = {
    {'i', CLI_IS_LIST, CLI_PLACE(run_args, files), .most = RUN_FILES_MAX},
    {'o', CLI_IS_TEXT, CLI_PLACE(run_args, output)},
    {'q', CLI_IS_QUIET, CLI_PLACE(run_args, quiet)},
    {KEY_IGNORE, CLI_IS_INTEGER, CLI_PLACE(run_args, ignore_index), .least = INT64_MIN, .most = INT64_MAX},
    {KEY_ROWS, CLI_IS_INTEGER, CLI_PLACE(run_args, rows), .most = INT32_MAX},
    {KEY_SEED, CLI_IS_INTEGER, CLI_PLACE(run_args, seed), .most = INT64_MAX},
    {KEY_SCALE, CLI_IS_OWN, .parse = parse_scale},
    {KEY_LORA_SCALE, CLI_IS_OWN, .parse = parse_lora_scale},
    {KEY_LOSS_PARAMETER, CLI_IS_OWN, CLI_PLACE(run_args, loss), .parse = cli_loss_args_add},
    {KEY_KEEP_SET, CLI_IS_OWN, CLI_PLACE(run_args, kept), .parse = cli_parse_kept},
    {0}};

/* Options of fields of the spec. The entropy's gradient is asked for by one that is given. */
static flp_status parse_field(flp_field_id field, const char *text, run_args *args) {
  int value;
  args->given |= 1u << field;
  if (field == FLP_FIELD_entropy) FLP_TRY(cli_parse_choice("--entropy", text, CLI_ENTROPY_VALUES, &value));
  if (field == FLP_FIELD_dtype) FLP_TRY(cli_parse_choice("--dtype", text, FLP_OPERAND_DTYPE_WORDS, &value));
  return cli_spec_parse(field, text, &args->spec);
}

static error_t parse(int key, char *text, struct argp_state *state) {
  /* what has no meaning but with --demo */
  static const int of_demo[] = {KEY_ROWS, FIELD(vocab), FIELD(dtype), KEY_SEED, KEY_KEEP_SET, FIELD(lora_rank)};
  run_args *args = state->input;
  for (size_t i = 0; i < sizeof of_demo / sizeof of_demo[0]; i++)
    if (key == of_demo[i]) cli_values_name(&cli_run_argp, key, args->demo_option);
  if (key < FIELD(dtype) || key >= CLI_KEY_SPEC + FLP_SPEC_FIELD_COUNT) return cli_values_parse(key, text, state);
  cli_argp_check(state, parse_field((flp_field_id)(key - CLI_KEY_SPEC), text, args));
  return 0;
}

const cli_values cli_run_argp = {
    CLI_OPTIONS(options, parse, values),
    .call = offsetof(run_args, options),
    .argp.doc =
        "Computes log-probabilities, entropies and gradients of a language-model head."
        "\vTensors that no option names are looked up in the --input files as hidden, weight (or lm_head.weight, "
        "model.embed_tokens.weight), bias (or lm_head.bias), target (or targets, labels), grad_logprob, grad_entropy, "
        "temperature, list_offsets, list_ids, lora_a (or lora_A.weight) and lora_b (or lora_B.weight); what a loss "
        "reads as old_logprob, ref_logprob, advantage, row_weight, teacher_logprob and the names of its vectors.\n\n"
        "Examples:\n"
        "  flpgen run --demo --rows 512\n"
        "  flpgen run -i model.safetensors -i batch.safetensors -o out.safetensors\n\n" CLI_EXIT_HELP};

int cli_run(int argc, char **argv) {
  run_args args = {.options = FLP_OPTIONS_INIT,
                   .spec = FLP_SPEC_INIT,
                   .scale = 1.0,
                   .lora_scale = 1.0,
                   .ignore_index = -100,
                   .rows = 256,
                   .seed = 1};
  args.options.host_fallback = 1;
  args.spec.entropy = FLP_ENTROPY_FORWARD;
  cli_parse(&cli_run_argp, argc, argv, &args);
  run_problem problem = {.n = 0};
  run_result result = {.data = FLP_OK};
  flp_status status = cli_templates_use(&args.options);
  if (status == FLP_OK) status = args.demo ? run_problem_demo(&args, &problem) : run_problem_load(&args, &problem);
  if (status == FLP_OK) status = cli_spec_check_tiling("--tune", args.tune, &problem.spec, args.options.arch);
  if (status == FLP_OK) status = cli_spec_args_tune(args.tune, &args.options);
  if (status == FLP_OK) status = run_execute(&args, &problem, &result);
  if (status == FLP_OK && args.output) status = run_write(args.output, &problem, &result);
  if (status == FLP_OK) status = run_report(&args, &problem, &result);
  /* Outputs of the good rows stand; the JSON report has the bad ones. */
  int json = args.json && status != FLP_OK;
  if (status == FLP_OK && result.data != FLP_OK) status = flp_fail(result.data, "%s", result.data_detail);
  run_result_clear(&result);
  run_problem_clear(&problem);
  return cli_finish(argv[0], json, status);
}

/* run.c: `flpgen run`, log-probabilities and gradients of tensors in safetensors files. */
#include "gen/cli/run/run.h"

#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/spec_args.h"
#include "gen/cli/verbs.h"

enum {
  KEY_ARRAY = CLI_KEY_FIRST, /* and an flp_array_id */
  KEY_IGNORE = KEY_ARRAY + FLP_ARRAYS, /* from here to KEY_SEED: parse_size */
  KEY_ROWS,
  KEY_SEED,
  KEY_SCALE, /* from here to KEY_KEEP_SET: parse_word */
  KEY_LOSS,
  KEY_LOSS_PARAMETER,
  KEY_LORA_SCALE,
  KEY_KEEP_SET,
  KEY_VOCAB, /* from here to KEY_RANK: parse_field */
  KEY_SOFTCAP,
  KEY_GRAD,
  KEY_DTYPE,
  KEY_GRAD_HIDDEN_DTYPE,
  KEY_GRAD_WEIGHT_DTYPE,
  KEY_ENTROPY,
  KEY_TAIL,
  KEY_TARGETS,
  KEY_TOPK,
  KEY_MIXED,
  KEY_LORA_RANK,
  KEY_RANK,
  KEY_MODEL,
  KEY_DEMO,
  KEY_JSON
};

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Data:", 1},
    {"input", 'i', "FILE", 0, "look for tensors here, by the names of the options below; may be repeated", 1},
    {"hidden", KEY_ARRAY + FLP_ARRAY_hidden, "FILE:TENSOR", 0,
     "hidden states (..., D) in BF16, F16 or F32; with --demo the number D", 1},
    {"weight", KEY_ARRAY + FLP_ARRAY_weight, "FILE:TENSOR", 0, "weight of the head (V, D), same dtype, or see --mixed",
     1},
    {"bias", KEY_ARRAY + FLP_ARRAY_bias, "FILE:TENSOR", 0, "bias of the head (V), same dtype, or see --mixed", 1},
    {"target", KEY_ARRAY + FLP_ARRAY_target, "FILE:TENSOR", 0, "token ids (...) in I32 or I64", 1},
    {"grad-logprob", KEY_ARRAY + FLP_ARRAY_grad_logprob, "FILE:TENSOR", 0, "upstream gradient of logprob (...) in F32",
     1},
    {"grad-entropy", KEY_ARRAY + FLP_ARRAY_grad_entropy, "FILE:TENSOR", 0, "upstream gradient of entropy (...) in F32",
     1},
    {"list-offsets", KEY_ARRAY + FLP_ARRAY_list_offsets, "FILE:TENSOR", 0,
     "where the lists of columns begin, a list a row, and the last ends (N+1) in I64: of a row only the columns of its "
     "list count, as a sampler's top-p or top-k mask leaves them",
     1},
    {"list-ids", KEY_ARRAY + FLP_ARRAY_list_ids, "FILE:TENSOR", 0,
     "the lists' token ids, one list behind the other, as target is", 1},
    {"lora-a", KEY_ARRAY + FLP_ARRAY_lora_a, "FILE:TENSOR", 0,
     "A (R, D) of a low-rank adapter on the head, R a multiple of 8 up to 512, same dtype; the weight is frozen then",
     1},
    {"lora-b", KEY_ARRAY + FLP_ARRAY_lora_b, "FILE:TENSOR", 0, "B (V, R) of it, same dtype", 1},
    {"old-logprob", KEY_ARRAY + FLP_ARRAY_old_logprob, "FILE:TENSOR", 0,
     "of a loss: logprob of the policy that sampled (...) in F32", 1},
    {"ref-logprob", KEY_ARRAY + FLP_ARRAY_ref_logprob, "FILE:TENSOR", 0,
     "of a loss: logprob of the reference policy (...) in F32", 1},
    {"advantage", KEY_ARRAY + FLP_ARRAY_advantage, "FILE:TENSOR", 0, "of a loss: (...) in F32", 1},
    {"row-weight", KEY_ARRAY + FLP_ARRAY_row_weight, "FILE:TENSOR", 0,
     "of a loss: the weight of each row's part (...) in F32; default 1", 1},
    {"teacher-logprob", KEY_ARRAY + FLP_ARRAY_teacher_logprob, "FILE:TENSOR", 0,
     "of a loss over several targets: their logprobs by the teacher (..., K) in F32", 1},
    {"output", 'o', "FILE", 0,
     "write logprob, entropy, loss, metrics.NAME, top_ids, top_logprob, top_rest, rank, grad_hidden, grad_weight, "
     "grad_bias, grad_lora_a, grad_lora_b here",
     1},
    {NULL, 0, NULL, 0, "Operation:", 2},
    {"temperature", KEY_ARRAY + FLP_ARRAY_temperature_rows, "T", 0,
     "a number > 0, or FILE:TENSOR with one F32 per row; default 1", 2},
    {"scale", KEY_SCALE, "A", 0, "factor of the scores; default 1", 2},
    {"softcap", KEY_SOFTCAP, "X", 0, "scores become X*tanh(score/X), X > 0", 2},
    {"ignore-index", KEY_IGNORE, "ID", 0, "target of rows that are masked; default -100", 2},
    {"mixed", KEY_MIXED, "HOW", 0,
     "how hidden or weight in F32 meets the other in BF16 or F16: round, rounded to it, as a bias in F32 is; split, as "
     "two terms of it, in two products",
     2},
    {"entropy", KEY_ENTROPY, "WHICH", 0, "none or forward (default); backward if a gradient of it is given", 2},
    {"grad", KEY_GRAD, "LIST", 0,
     "any of hidden,weight,bias, and with an adapter of hidden,bias,lora_a,lora_b; default all, if upstream gradients "
     "or "
     "a loss are given",
     2},
    {"grad-hidden-dtype", KEY_GRAD_HIDDEN_DTYPE, "T", 0, "that of hidden (default) or fp32", 2},
    {"grad-weight-dtype", KEY_GRAD_WEIGHT_DTYPE, "T", 0, "that of weight (default) or fp32", 2},
    {"tail", KEY_TAIL, "VALUE", 0,
     "of all elements of the scores' gradient, leave out up to so much of the sum of magnitudes: 2^-20 to 2^-2, as "
     "2^-9, "
     "1/512 or 0.002",
     2},
    {"targets", KEY_TARGETS, "K", 0,
     "logprobs of K columns of each row, 1 to 512: target, logprob, grad_logprob and teacher_logprob are (..., K) then",
     2},
    {"topk", KEY_TOPK, "K", 0, "the best K columns of each row too, 1 to 128: ids, logprobs, the mass of all others",
     2},
    {"rank", KEY_RANK, NULL, 0, "and the rank of each target: how many columns have a higher score", 2},
    {"lora-scale", KEY_LORA_SCALE, "S", 0, "factor of an adapter's part of the scores; default 1, 0 turns it off", 2},
    {"loss", KEY_LOSS, "LOSS", 0, FLP_LOSS_HELP "; one step gives it and its gradients", 2},
    {"loss-parameter", KEY_LOSS_PARAMETER, "NAME=NUMBER", 0, CLI_LOSS_PARAMETER_HELP, 2},
    {"model", KEY_MODEL, "FILE", 0, "take softcap and scale (with --demo sizes too) from a config.json", 2},
    {NULL, 0, NULL, 0, "Execution:", 3},
    CLI_OPTION(RUNG, 3),
    CLI_OPTION(DEVICE, 3),
    CLI_OPTION(BUDGET, 3),
    CLI_OPTION(CHUNK_ROWS, 3),
    CLI_OPTION(CHUNK_VOCAB, 3),
    CLI_OPTION(THREADS, 3),
    CLI_OPTION(STRICT, 3),
    {"quiet", 'q', NULL, 0, "no progress, no warnings", 3},
    {"json", KEY_JSON, NULL, 0, "print one JSON document", 3},
    {NULL, 0, NULL, 0, "Demonstration:", 4},
    {"demo", KEY_DEMO, NULL, 0, "random data at real size; no files needed", 4},
    {"rows", KEY_ROWS, "N", 0, "default 256; a third of them masked", 4},
    {"vocab", KEY_VOCAB, "V", 0, "default 151936", 4},
    {"dtype", KEY_DTYPE, "T", 0, "bf16 (default), fp16 or fp32", 4},
    {"seed", KEY_SEED, "N", 0, "default 1", 4},
    {"keep-set", KEY_KEEP_SET, "MEAN", 0, "draw lists of columns too, of MEAN ids a row on average, from 1 to V", 4},
    {"lora-rank", KEY_LORA_RANK, "R", 0, "draw an adapter of rank R too, a multiple of 8 up to 512", 4},
    {0}};

static flp_status parse_size(int key, const char *text, run_args *args) {
  switch (key) {
    case KEY_IGNORE:
      return cli_parse_integer("--ignore-index", text, INT64_MIN, INT64_MAX, &args->ignore_index);
    case KEY_ROWS:
      return cli_parse_integer("--rows", text, 0, INT32_MAX, &args->rows);
    default:
      return cli_parse_integer("--seed", text, 0, INT64_MAX, &args->seed);
  }
}

static flp_status parse_word(int key, const char *text, run_args *args) {
  switch (key) {
    case KEY_SCALE:
      args->has_scale = 1;
      return cli_parse_fp32("--scale", text, &args->scale);
    case KEY_LOSS:
      args->loss.name = text;
      return FLP_OK;
    case KEY_LOSS_PARAMETER:
      return cli_loss_args_add(&args->loss, text);
    case KEY_LORA_SCALE:
      args->has_lora_scale = 1;
      return cli_parse_fp32("--lora-scale", text, &args->lora_scale);
    default:
      return cli_parse_kept(text, &args->kept);
  }
}

/* Options of fields of the spec. The entropy's gradient is asked for by one that is given. */
static flp_status parse_field(int key, const char *text, run_args *args) {
  static const flp_field_id fields[] = {FLP_FIELD_vocab,
                                        FLP_FIELD_softcap,
                                        FLP_FIELD_grads,
                                        FLP_FIELD_dtype,
                                        FLP_FIELD_grad_hidden_dtype,
                                        FLP_FIELD_grad_weight_dtype,
                                        FLP_FIELD_entropy,
                                        FLP_FIELD_tail,
                                        FLP_FIELD_targets,
                                        FLP_FIELD_topk,
                                        FLP_FIELD_mixed,
                                        FLP_FIELD_lora_rank,
                                        FLP_FIELD_rank};
  flp_field_id field = fields[key - KEY_VOCAB];
  int value;
  args->given |= 1u << field;
  if (field == FLP_FIELD_entropy) FLP_TRY(cli_parse_choice("--entropy", text, CLI_ENTROPY_VALUES, &value));
  if (field == FLP_FIELD_dtype) FLP_TRY(cli_parse_choice("--dtype", text, FLP_OPERAND_DTYPE_WORDS, &value));
  return cli_spec_parse(field, text, &args->spec);
}

static flp_status add_file(run_args *args, const char *path) {
  if (args->file_count == RUN_FILES_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "--input: '%s' is one too many; at most %d files are accepted", path,
                    RUN_FILES_MAX);
  args->files[args->file_count++] = path;
  return FLP_OK;
}

/* The option's name if it has no meaning but with --demo. */
static const char *name_demo_option(int key) {
  switch (key) {
    case KEY_ROWS:
      return "--rows";
    case KEY_VOCAB:
      return "--vocab";
    case KEY_DTYPE:
      return "--dtype";
    case KEY_SEED:
      return "--seed";
    case KEY_KEEP_SET:
      return "--keep-set";
    case KEY_LORA_RANK:
      return "--lora-rank";
    default:
      return NULL;
  }
}

static error_t parse(int key, char *text, struct argp_state *state) {
  run_args *args = state->input;
  if (name_demo_option(key)) args->demo_option = name_demo_option(key);
  if (key >= KEY_ARRAY && key < KEY_ARRAY + FLP_ARRAYS) {
    args->source[key - KEY_ARRAY] = text;
    return 0;
  }
  if (cli_is_option(key)) {
    cli_argp_check(state, cli_option_parse(key, text, 0, &args->options));
    return 0;
  }
  if (key >= KEY_IGNORE && key <= KEY_SEED) {
    cli_argp_check(state, parse_size(key, text, args));
    return 0;
  }
  if (key >= KEY_SCALE && key <= KEY_KEEP_SET) {
    cli_argp_check(state, parse_word(key, text, args));
    return 0;
  }
  if (key >= KEY_VOCAB && key <= KEY_RANK) {
    cli_argp_check(state, parse_field(key, text, args));
    return 0;
  }
  switch (key) {
    case 'i':
      cli_argp_check(state, add_file(args, text));
      return 0;
    case 'o':
      args->output = text;
      return 0;
    case 'q':
      cli_log_quiet();
      args->quiet = 1;
      return 0;
    case KEY_JSON:
      args->json = 1;
      return 0;
    case KEY_DEMO:
      args->demo = 1;
      return 0;
    case KEY_MODEL:
      args->model = text;
      return 0;
    case ARGP_KEY_ARG:
      argp_error(state, "argument '%s' is not accepted; run takes options only", text);
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

const struct argp cli_run_argp = {
    options,
    parse,
    NULL,
    "Computes log-probabilities, entropies and gradients of a language-model head."
    "\vTensors that no option names are looked up in the --input files as hidden, weight (or lm_head.weight, "
    "model.embed_tokens.weight), bias (or lm_head.bias), target (or targets, labels), grad_logprob, grad_entropy, "
    "temperature, list_offsets, list_ids, lora_a (or lora_A.weight) and lora_b (or lora_B.weight); "
    "what a loss reads as old_logprob, ref_logprob, advantage, row_weight, teacher_logprob and "
    "the names of its "
    "vectors.\n\n"
    "Examples:\n"
    "  flpgen run --demo --rows 512\n"
    "  flpgen run -i model.safetensors -i batch.safetensors -o out.safetensors\n\n" CLI_EXIT_HELP,
    NULL,
    NULL,
    NULL};

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
  flp_status status = args.demo ? run_problem_demo(&args, &problem) : run_problem_load(&args, &problem);
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

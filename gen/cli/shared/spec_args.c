/* spec_args.c: the options that name a specialisation. */
#include "gen/cli/shared/spec_args.h"

#include <string.h>

#include "gen/cli/shared/hfconfig.h"
#include "runtime/api/validate.h"
#include "runtime/base/names.h"
#include "runtime/kernel/kernel.h"
#include "runtime/kernel/op.h"
#include "runtime/planner/planner.h"

enum {
  KEY_VOCAB = CLI_KEY_SPEC,
  KEY_HIDDEN,
  KEY_DTYPE,
  KEY_ENTROPY,
  KEY_GRAD,
  KEY_BIAS,
  KEY_SOFTCAP,
  KEY_PER_ROW_TEMPERATURE,
  KEY_TARGET_DTYPE,
  KEY_GRAD_HIDDEN_DTYPE,
  KEY_GRAD_WEIGHT_DTYPE,
  KEY_ACCUMULATE,
  KEY_ALIGNMENT,
  KEY_MODEL,
  KEY_TUNE,
  KEY_OP,
  KEY_KEEP,
  KEY_LOSS,
  KEY_LOSS_PARAMETER,
  KEY_KEEP_SET,
  KEY_TAIL,
  KEY_TARGETS,
  KEY_TOPK,
  KEY_RANK,
  KEY_HIDDEN_DTYPE,
  KEY_WEIGHT_DTYPE,
  KEY_BIAS_DTYPE,
  KEY_MIXED,
  KEY_LORA_RANK
};

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Specialisation:", 1},
    {"op", KEY_OP, "WHICH", 0,
     "head (default): from hidden states and weight; select: from scores that exist already, with --vocab, --dtype, "
     "--entropy, --target-dtype and --alignment alone; scale: gradients that exist already, times a factor, with --vocab "
     "(their columns), --dtype and --alignment alone",
     1},
    {"vocab", KEY_VOCAB, "V", 0, "rows of the head's weight, at least 2", 1},
    {"hidden", KEY_HIDDEN, "D", 0, "columns of hidden states and weight, a multiple of 8", 1},
    {"dtype", KEY_DTYPE, "T", 0, "bf16 (default), fp16 or fp32; with --op select fp64 too", 1},
    {"hidden-dtype", KEY_HIDDEN_DTYPE, "T", 0, "the dtype (default), or with --mixed fp32", 1},
    {"weight-dtype", KEY_WEIGHT_DTYPE, "T", 0, "the dtype (default), or with --mixed fp32; of hidden and weight one",
     1},
    {"bias-dtype", KEY_BIAS_DTYPE, "T", 0,
     "that of the weight (default; with --mixed split the dtype), the dtype, or with --mixed round fp32", 1},
    {"mixed", KEY_MIXED, "HOW", 0,
     "how an fp32 operand meets one of 16 bits: round, rounded to it; split, as two terms of it, in two products", 1},
    {"entropy", KEY_ENTROPY, "WHICH", 0,
     "none (default, or what --loss needs), forward, or backward: with its gradient", 1},
    {"grad", KEY_GRAD, "LIST", 0, "gradients: any of hidden,weight,bias", 1},
    {"bias", KEY_BIAS, NULL, 0, "the head has a bias", 1},
    {"softcap", KEY_SOFTCAP, "X", 0, "scores become X*tanh(score/X), X > 0", 1},
    {"per-row-temperature", KEY_PER_ROW_TEMPERATURE, NULL, 0, "one temperature per row, not one in all", 1},
    {"target-dtype", KEY_TARGET_DTYPE, "T", 0, "int64 (default) or int32", 1},
    {"grad-hidden-dtype", KEY_GRAD_HIDDEN_DTYPE, "T", 0, "the dtype (default) or fp32", 1},
    {"grad-weight-dtype", KEY_GRAD_WEIGHT_DTYPE, "T", 0, "the dtype (default) or fp32", 1},
    {"accumulate-grad-weight", KEY_ACCUMULATE, NULL, 0, "add to an fp32 weight gradient of the caller", 1},
    {"alignment", KEY_ALIGNMENT, "BYTES", 0, "of every operand's base and row stride: 16 (default), 8, 4 or 2", 1},
    {"keep", KEY_KEEP, NULL, 0,
     "a forward pass may keep something for the backward pass: where hidden alone has a gradient and the entropy none, "
     "sums of the weight's rows, 4 bytes an element of hidden (mode direction, D), else exponentials, 2 bytes a score "
     "(mode save, S); needs --grad and bf16",
     1},
    {"keep-set", KEY_KEEP_SET, "MEAN", 0,
     "of each row only the columns of a list count, as a sampler's top-p or top-k mask leaves them (mode listed, L); "
     "where "
     "lists are drawn they have MEAN ids a row on average, a number from 1 to V; kernels are the same for any",
     1},
    {"tail", KEY_TAIL, "VALUE", 0,
     "of all elements of the scores' gradient, the backward pass or step may leave out so much of the sum of "
     "magnitudes: "
     "2^-20 to 2^-2, as 2^-9, 1/512 or 0.002 (mode tail, T); rows whose tail counts are recomputed; needs --grad",
     1},
    {"targets", KEY_TARGETS, "K", 0,
     "of each row the logprobs of K columns, 1 to 512, as the most likely ones of a teacher; with gradients of all; "
     "the normalisation is over all columns; --loss is one over several targets then",
     1},
    {"topk", KEY_TOPK, "K", 0,
     "forward gives the best K columns of each row too, 1 to 128: ids, logprobs and the mass of all others", 1},
    {"rank", KEY_RANK, NULL, 0, "and the rank of each target: how many columns have a higher score", 1},
    {"lora-rank", KEY_LORA_RANK, "R", 0,
     "a low-rank adapter on the head, A (R, D) and B (V, R), R a multiple of 8 up to 512, and a frozen weight; --grad "
     "takes lora_a and lora_b then",
     1},
    {"loss", KEY_LOSS, "LOSS", 0, CLI_LOSS_HELP "; mode stream (P) streams its steps", 1},
    {"loss-parameter", KEY_LOSS_PARAMETER, "NAME=NUMBER", 0, CLI_LOSS_PARAMETER_HELP, 1},
    {"model", KEY_MODEL, "FILE", 0, "read vocab, hidden, dtype, softcap and scale from a Hugging Face config.json", 1},
    {"tune", KEY_TUNE, "TEXT", 0,
     "take these tile configurations, where an architecture leaves a choice, or fail; e.g. "
     "'forward:cooperative,256x192;products:256x128', and stages=4, cluster=2, raster=8 beside a size; kernels: "
     "forward, dz, products, forward_keep; schedules: ping-pong, cooperative",
     1},
    {0}};

static flp_status parse_softcap(const char *text, cli_spec_args *args) {
  double value = 0;
  FLP_TRY(cli_parse_positive("--softcap", text, &value));
  args->spec.softcap = (float)value;
  args->has_softcap = 1;
  return FLP_OK;
}

static flp_status parse_dtype(const char *field, const char *text, const cli_choice *choices, flp_dtype *out) {
  int value = 0;
  FLP_TRY(cli_parse_choice(field, text, choices, &value));
  *out = (flp_dtype)value;
  return FLP_OK;
}

static flp_status parse_enumeration(int key, const char *text, cli_spec_args *args) {
  flp_spec *spec = &args->spec;
  int value = 0;
  switch (key) {
    case KEY_DTYPE:
      args->has_dtype = 1;
      return parse_dtype("--dtype", text, CLI_SCORE_DTYPES, &spec->dtype);
    case KEY_OP:
      FLP_TRY(cli_parse_choice("--op", text, FLP_OP_WORDS, &value));
      spec->op = (flp_op)value;
      return FLP_OK;
    case KEY_TARGET_DTYPE:
      return parse_dtype("--target-dtype", text, CLI_TARGETS, &spec->target_dtype);
    case KEY_GRAD_HIDDEN_DTYPE:
      return parse_dtype("--grad-hidden-dtype", text, CLI_DTYPES, &spec->grad_hidden_dtype);
    case KEY_GRAD_WEIGHT_DTYPE:
      return parse_dtype("--grad-weight-dtype", text, CLI_DTYPES, &spec->grad_weight_dtype);
    case KEY_HIDDEN_DTYPE:
      return parse_dtype("--hidden-dtype", text, CLI_DTYPES, &spec->hidden_dtype);
    case KEY_WEIGHT_DTYPE:
      return parse_dtype("--weight-dtype", text, CLI_DTYPES, &spec->weight_dtype);
    case KEY_BIAS_DTYPE:
      return parse_dtype("--bias-dtype", text, CLI_DTYPES, &spec->bias_dtype);
    case KEY_MIXED:
      FLP_TRY(cli_parse_choice("--mixed", text, FLP_MIXED_WORDS, &value));
      spec->mixed = (flp_mixed)value;
      return FLP_OK;
    case KEY_GRAD:
      return cli_parse_flags("--grad", text, FLP_GRAD_WORDS, &spec->grads);
    default:
      args->has_entropy = 1;
      FLP_TRY(cli_parse_choice("--entropy", text, FLP_ENTROPY_WORDS, &value));
      spec->entropy = (flp_entropy)value;
      return FLP_OK;
  }
}

static flp_status parse_alignment(const char *text, flp_spec *spec) {
  int64_t value = 0;
  FLP_TRY(cli_parse_integer("--alignment", text, 2, 16, &value));
  spec->alignment = (uint32_t)value;
  return FLP_OK;
}

static flp_status parse_tune(const char *text, cli_spec_args *args) {
  flp_tuning tuning;
  args->tune = text;
  return flp_tuning_parse("--tune", text, &tuning);
}

static flp_status parse_training(int key, const char *text, cli_spec_args *args) {
  if (key == KEY_LOSS_PARAMETER) return cli_loss_args_add(&args->loss, text);
  if (key == KEY_LOSS)
    args->loss.name = text;
  else
    args->spec.keep = 1;
  return FLP_OK;
}

static flp_status parse_keep_set(const char *text, cli_spec_args *args) {
  FLP_TRY(cli_parse_kept(text, &args->kept));
  args->spec.listed = 1;
  return FLP_OK;
}

static flp_status parse_lora_rank(const char *text, flp_spec *spec) {
  int64_t value = 0;
  FLP_TRY(cli_parse_integer("--lora-rank", text, 8, FLP_LORA_RANK_MAX, &value));
  spec->lora_rank = (int32_t)value;
  return FLP_OK;
}

static flp_status parse_topk(const char *text, flp_spec *spec) {
  int64_t value = 0;
  FLP_TRY(cli_parse_integer("--topk", text, 1, FLP_TOPK_MAX, &value));
  spec->topk = (int32_t)value;
  return FLP_OK;
}

static error_t parse(int key, char *text, struct argp_state *state) {
  cli_spec_args *args = state->input;
  flp_spec *spec = &args->spec;
  flp_status status = FLP_OK;
  switch (key) {
    case KEY_VOCAB:
      status = cli_parse_integer("--vocab", text, 2, INT32_MAX, &spec->vocab);
      break;
    case KEY_HIDDEN:
      status = cli_parse_integer("--hidden", text, 8, INT32_MAX, &spec->hidden);
      break;
    case KEY_ALIGNMENT:
      status = parse_alignment(text, spec);
      break;
    case KEY_SOFTCAP:
      status = parse_softcap(text, args);
      break;
    case KEY_BIAS:
      spec->has_bias = 1;
      break;
    case KEY_PER_ROW_TEMPERATURE:
      spec->per_row_temperature = 1;
      break;
    case KEY_ACCUMULATE:
      spec->accumulate_grad_weight = 1;
      break;
    case KEY_KEEP:
    case KEY_LOSS:
    case KEY_LOSS_PARAMETER:
      status = parse_training(key, text, args);
      break;
    case KEY_KEEP_SET:
      status = parse_keep_set(text, args);
      break;
    case KEY_TAIL:
      status = cli_parse_tail(text, &spec->tail);
      break;
    case KEY_TARGETS:
      status = cli_parse_targets(text, &spec->targets);
      break;
    case KEY_TOPK:
      status = parse_topk(text, spec);
      break;
    case KEY_RANK:
      spec->rank = 1;
      break;
    case KEY_LORA_RANK:
      status = parse_lora_rank(text, spec);
      break;
    case KEY_MODEL:
      args->model = text;
      break;
    case KEY_TUNE:
      status = parse_tune(text, args);
      break;
    case KEY_DTYPE:
    case KEY_TARGET_DTYPE:
    case KEY_GRAD_HIDDEN_DTYPE:
    case KEY_GRAD_WEIGHT_DTYPE:
    case KEY_HIDDEN_DTYPE:
    case KEY_WEIGHT_DTYPE:
    case KEY_BIAS_DTYPE:
    case KEY_MIXED:
    case KEY_GRAD:
    case KEY_ENTROPY:
    case KEY_OP:
      status = parse_enumeration(key, text, args);
      break;
    default:
      return ARGP_ERR_UNKNOWN;
  }
  cli_argp_check(state, status);
  args->given |= UINT32_C(1) << (key - CLI_KEY_SPEC);
  return 0;
}

const struct argp cli_spec_argp = {options, parse, NULL, NULL, NULL, NULL, NULL};

static int is_one_of(const char *name, const char *const *list) {
  for (; *list; list++)
    if (strcmp(name, *list) == 0) return 1;
  return 0;
}

const char *cli_spec_args_other(const cli_spec_args *args, const char *const *accepted) {
  for (const struct argp_option *o = options; o->name || o->doc; o++)
    if (o->name && args->given >> (o->key - CLI_KEY_SPEC) & 1 && !is_one_of(o->name, accepted)) return o->name;
  return NULL;
}

flp_status cli_spec_args_tune(const cli_spec_args *args, flp_options *out) {
  out->tune = args->tune;
  if (args->tune && out->rung == FLP_RUNG_AUTO) out->rung = FLP_RUNG_JIT;
  if (!args->tune || out->rung < FLP_RUNG_GENERIC) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "--tune: not accepted with --rung %s, whose kernels have one tile configuration",
                  flp_rung_name(out->rung));
}

flp_status cli_spec_check_tiling(const char *field, const char *text, const flp_spec *spec) {
  flp_tuning tuning;
  char accepted[128] = "";
  FLP_TRY(flp_tuning_parse(field, text, &tuning));
  unsigned kinds = flp_kernel_tunable_kinds(spec);
  for (int kind = 0; kind < FLP_KERNEL_KINDS; kind++) {
    size_t used = strlen(accepted);
    if (!(kinds >> kind & 1)) continue;
    snprintf(accepted + used, sizeof accepted - used, "%s%s", used ? ", " : "",
             flp_kernel_kind_name((flp_kernel_kind)kind));
    tuning.of[kind] = (flp_tunables){0};
  }
  if (!flp_tuning_is_set(&tuning)) return FLP_OK;
  char others[FLP_TUNING_TEXT_BYTES];
  flp_tuning_text(&tuning, others);
  return flp_fail(FLP_ERROR_ARGUMENT, "%s: '%s' is not accepted; of this specialisation %s can be tuned", field, others,
                  accepted[0] ? accepted : "no kernel");
}

void cli_spec_set_mode(flp_spec *spec, flp_mode mode) {
  float tail = spec->tail > 0 ? spec->tail : CLI_TAIL_USUAL;
  spec->keep = mode == FLP_MODE_SAVE || mode == FLP_MODE_DIRECTION;
  spec->listed = mode == FLP_MODE_LISTED;
  spec->tail = mode == FLP_MODE_TAIL ? tail : 0;
}

flp_mode cli_spec_mode(const flp_spec *spec) {
  return spec->listed ? FLP_MODE_LISTED : spec->tail > 0 ? FLP_MODE_TAIL : (flp_mode)0;
}

flp_status cli_spec_args_mode(cli_spec_args *args, flp_mode mode) {
  if (args->spec.listed && mode)
    return flp_fail(FLP_ERROR_ARGUMENT, "--mode: '%s' is not accepted beside --keep-set, whose mode is listed",
                    flp_mode_name(mode));
  if (mode == FLP_MODE_LISTED)
    return flp_fail(FLP_ERROR_ARGUMENT, "--mode: 'listed' is not accepted with a shape; --keep-set says it");
  if (args->spec.tail > 0 && mode && mode != FLP_MODE_TAIL)
    return flp_fail(FLP_ERROR_ARGUMENT, "--mode: '%s' is not accepted beside --tail, whose mode is tail",
                    flp_mode_name(mode));
  if (mode == FLP_MODE_TAIL && args->spec.keep)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--keep: not accepted beside --mode tail, whose forward pass keeps lists of columns");
  if (mode == FLP_MODE_STREAM && !args->loss.name)
    return flp_fail(FLP_ERROR_ARGUMENT, "--mode: 'stream' is not accepted without --loss, what its steps minimise");
  if (mode == FLP_MODE_STREAM && args->spec.targets > 1)
    return flp_fail(FLP_ERROR_ARGUMENT, "--mode: 'stream' is not accepted beside --targets, whose steps recompute");
  if (flp_mode_keeps(mode)) cli_spec_set_mode(&args->spec, mode);
  return FLP_OK;
}

flp_mode cli_spec_args_kept(const cli_spec_args *args, flp_mode mode) {
  if (!mode) mode = cli_spec_mode(&args->spec);
  if (mode || !args->spec.keep) return mode;
  return flp_planner_has_direction(&args->spec) ? FLP_MODE_DIRECTION : FLP_MODE_SAVE;
}

flp_status cli_spec_check_direction(const flp_spec *spec) {
  if (flp_planner_has_direction(spec)) return FLP_OK;
  if (spec->grads == FLP_GRAD_HIDDEN)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--mode: 'direction' is not accepted with --entropy backward, whose gradient it "
                    "does not make; save and auto are accepted");
  char grads[FLP_GRADS_TEXT_BYTES];
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "--mode: 'direction' is not accepted with --grad %s; it makes the gradient of hidden alone",
                  flp_grads_text(spec->grads, ",", grads));
}

flp_status cli_spec_args_backward(const cli_spec_args *args, flp_mode mode, int64_t chunk_rows, int64_t chunk_vocab) {
  static const struct {
    int has_rows, has_vocab;
  } chunks[] = {[0] = {1, 1},
                [FLP_MODE_RECOMPUTE_VOCAB] = {0, 1},
                [FLP_MODE_RECOMPUTE_ROWS] = {1, 0},
                [FLP_MODE_RECOMPUTE_SPLIT] = {1, 1},
                [FLP_MODE_SAVE] = {0, 0},
                [FLP_MODE_STREAM] = {1, 0},
                [FLP_MODE_DIRECTION] = {1, 1},
                [FLP_MODE_LISTED] = {0, 0},
                [FLP_MODE_TAIL] = {1, 1}}; /* of the rows that are recomputed */
  if (args->spec.listed && (chunk_rows || chunk_vocab))
    return flp_fail(FLP_ERROR_ARGUMENT, "%s: not accepted beside --keep-set, whose passes have no chunks",
                    chunk_rows ? "--chunk-rows" : "--chunk-vocab");
  const char *field = mode >= FLP_MODE_RECOMPUTE_VOCAB && mode <= FLP_MODE_RECOMPUTE_SPLIT ? "--mode"
                      : chunk_rows                                                         ? "--chunk-rows"
                      : chunk_vocab                                                        ? "--chunk-vocab"
                                                                                           : NULL;
  if (field && !args->spec.grads)
    return flp_fail(FLP_ERROR_ARGUMENT, "%s: not accepted without --grad, as it is of the backward pass", field);
  if (mode == FLP_MODE_DIRECTION) FLP_TRY(cli_spec_check_direction(&args->spec));
  field = chunk_rows && !chunks[mode].has_rows     ? "--chunk-rows"
          : chunk_vocab && !chunks[mode].has_vocab ? "--chunk-vocab"
                                                   : NULL;
  if (!field) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "%s: not accepted in mode %s, which has no such chunks", field,
                  flp_mode_name(mode));
}

flp_status cli_spec_args_one_mode(const cli_spec_args *args) {
  if (!args->loss.name || !args->spec.keep) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "--loss: '%s' is not accepted beside --keep; steps keep nothing",
                  args->loss.name);
}

static flp_status apply_model(cli_spec_args *args) {
  cli_hfconfig config;
  FLP_TRY(cli_hfconfig_read(args->model, &config));
  flp_spec *spec = &args->spec;
  if (spec->vocab == 0) spec->vocab = config.vocab;
  if (spec->hidden == 0) spec->hidden = config.hidden;
  if (!args->has_dtype && config.dtype) spec->dtype = config.dtype;
  if (!args->has_softcap) spec->softcap = (float)config.softcap;
  args->scale = config.scale;
  return FLP_OK;
}

void cli_spec_args_complete(const cli_spec_args *args, flp_spec *spec) {
  if (spec->accumulate_grad_weight && !spec->grad_weight_dtype) spec->grad_weight_dtype = FLP_DTYPE_FP32;
  if (!args->has_entropy && spec->entropy < cli_loss_entropy(spec)) spec->entropy = cli_loss_entropy(spec);
}

flp_status cli_spec_check_kept(double kept, int64_t vocab) {
  if (kept <= (double)vocab) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "--keep-set: expected a number from 1 to the %lld ids of the vocabulary, got %g",
                  (long long)vocab, kept);
}

flp_status cli_spec_args_lists(const cli_spec_args *args) {
  const flp_spec *spec = &args->spec;
  if (!spec->listed) return FLP_OK;
  if (!args->takes_lists)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--keep-set: not accepted here; check, bench, explain, gen, pack build and run --demo accept it");
  if (spec->op != FLP_OP_HEAD)
    return flp_fail(FLP_ERROR_ARGUMENT, "--keep-set: not accepted with --op %s, whose scores exist already",
                    flp_op_name(spec->op));
  if (spec->keep)
    return flp_fail(FLP_ERROR_ARGUMENT, "--keep: not accepted beside --keep-set, whose passes keep nothing");
  if (args->loss.name)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--loss: '%s' is not accepted beside --keep-set; steps take the whole vocabulary", args->loss.name);
  return cli_spec_check_kept(args->kept, spec->vocab);
}

flp_status cli_spec_args_tail(const cli_spec_args *args) {
  const flp_spec *spec = &args->spec;
  if (!(spec->tail > 0)) return FLP_OK;
  if (!args->takes_tail)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--tail: not accepted here; bench, check, explain, gen, pack build, run and tune "
                    "accept it");
  if (spec->op != FLP_OP_HEAD)
    return flp_fail(FLP_ERROR_ARGUMENT, "--tail: not accepted with --op %s, whose gradients are exact",
                    flp_op_name(spec->op));
  if (spec->listed)
    return flp_fail(FLP_ERROR_ARGUMENT, "--tail: not accepted beside --keep-set, whose lists name the columns");
  if (spec->keep)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--keep: not accepted beside --tail, whose forward pass keeps lists of columns");
  if (!spec->grads)
    return flp_fail(FLP_ERROR_ARGUMENT, "--tail: not accepted without --grad, as it is of the backward pass");
  return FLP_OK;
}

flp_status cli_spec_args_targets(const cli_spec_args *args) {
  const flp_spec *spec = &args->spec;
  if (spec->targets <= 1) return FLP_OK;
  if (!args->takes_targets)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--targets: not accepted here; bench, check, explain, gen, pack build, run and tune accept it");
  if (spec->op != FLP_OP_HEAD)
    return flp_fail(FLP_ERROR_ARGUMENT, "--targets: not accepted with --op %s", flp_op_name(spec->op));
  const char *beside = spec->listed ? "--keep-set" : spec->tail > 0 ? "--tail" : spec->keep ? "--keep" : NULL;
  if (!beside) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "--targets: not accepted beside %s; forward and backward recompute", beside);
}

flp_status cli_spec_args_top(const cli_spec_args *args) {
  const flp_spec *spec = &args->spec;
  if (!spec->topk && !spec->rank) return FLP_OK;
  const char *option = spec->topk ? "--topk" : "--rank";
  const struct {
    int set;
    const char *name, *why;
  } others[] = {{spec->listed, "--keep-set", "whose passes see the listed columns alone"},
                {spec->tail > 0, "--tail", "whose forward pass lists columns of its own"},
                {spec->keep, "--keep", "whose forward pass keeps something else"},
                {args->loss.name != NULL, "--loss", "whose steps give no columns"}};
  if (!args->takes_top)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "%s: not accepted here; bench, check, explain, gen, pack build and run accept it", option);
  if (spec->op != FLP_OP_HEAD)
    return flp_fail(FLP_ERROR_ARGUMENT, "%s: not accepted with --op %s", option, flp_op_name(spec->op));
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
    if (others[i].set)
      return flp_fail(FLP_ERROR_ARGUMENT, "%s: not accepted beside %s, %s", option, others[i].name, others[i].why);
  if (spec->vocab == 0 || spec->topk <= spec->vocab) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "--topk: expected 1 to the %lld ids of the vocabulary, got %d",
                  (long long)spec->vocab, spec->topk);
}

flp_status cli_spec_args_lora(const cli_spec_args *args) {
  const flp_spec *spec = &args->spec;
  const struct {
    int set;
    const char *name;
  } others[] = {{spec->listed, "--keep-set"},
                {spec->tail > 0, "--tail"},
                {spec->keep, "--keep"},
                {spec->targets > 1, "--targets"},
                {spec->topk > 0, "--topk"},
                {spec->rank, "--rank"},
                {spec->mixed != FLP_MIXED_NONE, "--mixed"}};
  if (!spec->lora_rank) return FLP_OK;
  if (!args->takes_lora)
    return flp_fail(FLP_ERROR_ARGUMENT, "--lora-rank: not accepted here; bench, check, explain, gen and pack build accept it");
  if (spec->op != FLP_OP_HEAD)
    return flp_fail(FLP_ERROR_ARGUMENT, "--lora-rank: not accepted with --op %s", flp_op_name(spec->op));
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
    if (others[i].set)
      return flp_fail(FLP_ERROR_ARGUMENT, "--lora-rank: not accepted beside %s; forward and backward recompute",
                      others[i].name);
  return FLP_OK;
}

flp_status cli_spec_args_resolve(cli_spec_args *args) {
  if (args->model) FLP_TRY(apply_model(args));
  const flp_spec *spec = &args->spec;
  if (spec->vocab == 0)
    return flp_fail(FLP_ERROR_ARGUMENT, "--vocab is missing; the number of rows of the weight, or --model, is needed");
  if (spec->op != FLP_OP_HEAD && !args->takes_op)
    return flp_fail(FLP_ERROR_ARGUMENT, "--op: '%s' is not accepted here; gen, pack build and check accept it",
                    flp_op_name(spec->op));
  if (flp_op_of(spec->op)->has_head && spec->hidden == 0)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--hidden is missing; the number of columns of the weight, or --model, is needed");
  FLP_TRY(cli_spec_args_lists(args));
  FLP_TRY(cli_spec_args_tail(args));
  FLP_TRY(cli_spec_args_targets(args));
  FLP_TRY(cli_spec_args_top(args));
  FLP_TRY(cli_spec_args_lora(args));
  FLP_TRY(cli_loss_args_resolve(&args->loss, &args->spec));
  cli_spec_args_complete(args, &args->spec);
  flp_spec resolved;
  FLP_TRY(flp_spec_resolve(spec, &resolved));
  args->spec = resolved;
  return FLP_OK;
}

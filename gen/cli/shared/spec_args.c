/* spec_args.c: the options that name a specialisation. */
#include "gen/cli/shared/spec_args.h"

#include <stdio.h>
#include <string.h>

#include "gen/cli/shared/hfconfig.h"
#include "gen/cli/shared/text.h"
#include "runtime/api/validate.h"
#include "runtime/kernel/features.h"
#include "runtime/kernel/kernel.h"
#include "runtime/kernel/op.h"
#include "runtime/planner/planner.h"

/* Options of fields have the keys of their rows, behind them: */
enum { KEY_FIELD = CLI_KEY_SPEC, KEY_LOSS_PARAMETER = KEY_FIELD + FLP_SPEC_FIELD_COUNT, KEY_MODEL, KEY_TUNE };

#define NO_OPTION(type, field)
#define OPTION(type, field, kind, words, usual, step, least, most, feature, shown, option, argument, help) \
  {option, KEY_FIELD + FLP_FIELD_##field, argument, 0, help, 1},
static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Specialisation:", 1},
    FLP_SPEC_FIELDS(OPTION, NO_OPTION){"loss-parameter", KEY_LOSS_PARAMETER, "NAME=NUMBER", 0, CLI_LOSS_PARAMETER_HELP,
                                       1},
    {"model", KEY_MODEL, "FILE", 0, "read vocab, hidden, dtype, softcap and scale from a Hugging Face config.json", 1},
    {"tune", KEY_TUNE, "TEXT", 0,
     "take these tile configurations, of one architecture's kernels, or fail; e.g. "
     "'forward:cooperative,256x192;products:256x128', and stages=4, cluster=2, raster=8 beside a size; kernels: "
     "forward, dz, products or, of portable ones, grad_hidden and grad_weight, forward_keep; schedules: ping-pong, "
     "cooperative, which is the one of portable kernels",
     1},
    {0}};
#undef OPTION
#undef NO_OPTION

static flp_status parse_number(const flp_field *field, const char *name, const char *text, flp_spec *spec) {
  double value = 0;
  float share = 0;
  if (field->kind == FLP_FIELD_SHARE)
    FLP_TRY(cli_parse_tail(text, &share));
  else
    FLP_TRY(cli_parse_positive(name, text, &value));
  flp_field_set_number(field, spec, field->kind == FLP_FIELD_SHARE ? share : (float)value);
  return FLP_OK;
}

flp_status cli_spec_parse(flp_field_id id, const char *text, flp_spec *spec) {
  const flp_field *field = &FLP_SPEC_FIELD[id];
  char name[40];
  int64_t value = 1;
  int word = 0;
  uint32_t flags = 0;
  snprintf(name, sizeof name, "--%s", field->option);
  switch (field->kind) {
    case FLP_FIELD_INTEGER:
      FLP_TRY(cli_parse_integer(name, text, field->least, field->most, &value));
      if (value % field->step == 0) break;
      return flp_fail(FLP_ERROR_ARGUMENT, "%s: expected a multiple of %lld from %lld to %lld, got '%s'", name,
                      (long long)field->step, (long long)field->least, (long long)field->most, text);
    case FLP_FIELD_WORD:
      FLP_TRY(cli_parse_choice(name, text, field->words, &word));
      value = word;
      break;
    case FLP_FIELD_FLAGS:
      FLP_TRY(cli_parse_flags(name, text, field->words, &flags));
      value = flags;
      break;
    case FLP_FIELD_NUMBER:
    case FLP_FIELD_SHARE:
      return parse_number(field, name, text, spec);
    case FLP_FIELD_LOSS:
      return FLP_OK;
    case FLP_FIELD_SWITCH:
    case FLP_FIELD_LISTS:
      break;
  }
  flp_field_set(field, spec, value);
  return FLP_OK;
}

static flp_status parse_tune(const char *text, cli_spec_args *args) {
  flp_tuning tuning;
  args->tune = text;
  return flp_tuning_parse("--tune", text, &tuning);
}

static error_t parse(int key, char *text, struct argp_state *state) {
  cli_spec_args *args = state->input;
  int field = key - KEY_FIELD;
  flp_status status = FLP_OK;
  if (key == KEY_MODEL)
    args->model = text;
  else if (key == KEY_TUNE)
    status = parse_tune(text, args);
  else if (key == KEY_LOSS_PARAMETER)
    status = cli_loss_args_add(text, &args->loss);
  else if (field < 0 || field >= FLP_SPEC_FIELD_COUNT)
    return ARGP_ERR_UNKNOWN;
  else
    status = cli_spec_parse((flp_field_id)field, text, &args->spec);
  if (status == FLP_OK && field == FLP_FIELD_listed) status = cli_parse_kept(text, &args->kept);
  if (field == FLP_FIELD_loss) args->loss.name = text;
  cli_argp_check(state, status);
  args->given |= UINT64_C(1) << field;
  return 0;
}

static const struct argp of_spec = {.options = options, .parser = parse};
const struct argp_child cli_spec_children[] = {{&of_spec, 0, NULL, 1}, {0}};

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

flp_status cli_spec_args_tune(const char *tune, flp_options *out) {
  out->tune = tune;
  if (tune && out->rung == FLP_RUNG_AUTO) out->rung = FLP_RUNG_JIT;
  if (!tune || out->rung < FLP_RUNG_GENERIC) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "--tune: not accepted with --rung %s, whose kernels have one tile configuration",
                  flp_rung_name(out->rung));
}

flp_status cli_spec_check_tiling(const char *field, const char *text, const flp_spec *spec, const char *arch) {
  flp_tuning tuning;
  FLP_TRY(flp_tuning_parse(field, text, &tuning));
  for (int kind = 1; kind < FLP_KERNEL_KINDS; kind++)
    if (flp_kernel_arch_tunes(arch, spec, (flp_kernel_kind)kind)) tuning.of[kind] = (flp_tunables){0};
  if (!flp_tuning_is_set(&tuning)) return FLP_OK;
  char others[FLP_TUNING_TEXT_BYTES], accepted[256];
  flp_tuning_text(&tuning, others);
  flp_kernel_tunable_kinds(arch, spec, accepted, sizeof accepted);
  return flp_fail(FLP_ERROR_ARGUMENT, "%s: '%s' is not accepted; of this specialisation %s can be tuned%s%s", field,
                  others, accepted[0] ? accepted : "no kernel", arch ? " for " : "", arch ? arch : "");
}

void cli_spec_set_mode(flp_spec *spec, flp_mode mode) {
  float tail = spec->tail > 0 ? spec->tail : CLI_TAIL_USUAL;
  spec->keep = mode == FLP_MODE_SAVE || mode == FLP_MODE_DIRECTION;
  spec->listed = mode == FLP_MODE_LISTED;
  spec->tail = mode == FLP_MODE_TAIL ? tail : 0;
}

flp_status cli_spec_args_mode(cli_spec_args *args, flp_mode mode) {
  if (args->spec.listed && mode)
    return flp_fail(FLP_ERROR_ARGUMENT, "--mode: '%s' is not accepted beside --keep-set, whose mode is listed",
                    flp_mode_name(mode));
  if (mode == FLP_MODE_LISTED)
    return flp_fail(FLP_ERROR_ARGUMENT, "--mode: 'listed' is not accepted with a shape; --keep-set says it");
  if (flp_kernel_spec_emits(&args->spec) && mode && mode != FLP_MODE_TAIL)
    return flp_fail(FLP_ERROR_ARGUMENT, "--mode: '%s' is not accepted beside --tail, whose mode is tail",
                    flp_mode_name(mode));
  if (mode == FLP_MODE_STREAM && !args->loss.name)
    return flp_fail(FLP_ERROR_ARGUMENT, "--mode: 'stream' is not accepted without --loss, what its steps minimise");
  if (flp_mode_keeps(mode)) cli_spec_set_mode(&args->spec, mode);
  return FLP_OK;
}

flp_mode cli_spec_args_kept(const cli_spec_args *args, flp_mode mode) {
  if (!mode && args->spec.listed) mode = FLP_MODE_LISTED;
  if (!mode && flp_kernel_spec_emits(&args->spec)) mode = FLP_MODE_TAIL;
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
  if (!cli_spec_args_given(args, FLP_FIELD_dtype) && config.dtype) spec->dtype = config.dtype;
  if (!cli_spec_args_given(args, FLP_FIELD_softcap)) spec->softcap = (float)config.softcap;
  args->scale = config.scale;
  return FLP_OK;
}

void cli_spec_args_complete(const cli_spec_args *args, flp_spec *spec) {
  if (spec->accumulate_grad_weight && !spec->grad_weight_dtype) spec->grad_weight_dtype = FLP_DTYPE_FP32;
  if (!cli_spec_args_given(args, FLP_FIELD_entropy) && spec->entropy < cli_loss_entropy(spec))
    spec->entropy = cli_loss_entropy(spec);
}

flp_status cli_spec_check_kept(double kept, int64_t vocab) {
  if (kept <= (double)vocab) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "--keep-set: expected a number from 1 to the %lld ids of the vocabulary, got %g",
                  (long long)vocab, kept);
}

flp_status cli_spec_args_features(const cli_spec_args *args) {
  flp_spec asked = args->spec;
  if (args->loss.name && !asked.loss) asked.loss = ""; /* not read yet */
  uint32_t features = flp_features_of(&asked);
  for (int i = 0; i < FLP_SPEC_FIELD_COUNT; i++) {
    const flp_field *field = &FLP_SPEC_FIELD[i];
    if (field->feature == FLP_FEATURE_NONE || !(features >> field->feature & 1)) continue;
    if (args->leaves >> field->feature & 1)
      return flp_fail(FLP_ERROR_ARGUMENT, "--%s: not accepted here", field->option);
    if (!(flp_op_of(asked.op)->features >> field->feature & 1))
      return flp_fail(FLP_ERROR_ARGUMENT, "--%s: not accepted with --op %s", field->option, flp_op_name(asked.op));
  }
  return flp_features_check(&asked, FLP_SURFACE_OPTION);
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
  int dtype;
  if (flp_op_of(spec->op)->has_head)
    FLP_TRY(cli_parse_choice("--dtype", flp_dtype_name(spec->dtype), FLP_OPERAND_DTYPE_WORDS, &dtype));
  FLP_TRY(cli_spec_args_features(args));
  if (spec->tail > 0 && !spec->grads)
    return flp_fail(FLP_ERROR_ARGUMENT, "--tail: not accepted without --grad, as it is of the backward pass");
  if (spec->topk > spec->vocab)
    return flp_fail(FLP_ERROR_ARGUMENT, "--topk: expected 1 to the %lld ids of the vocabulary, got %d",
                    (long long)spec->vocab, spec->topk);
  if (spec->listed) FLP_TRY(cli_spec_check_kept(args->kept, spec->vocab));
  FLP_TRY(cli_loss_args_resolve(&args->loss, &args->spec));
  cli_spec_args_complete(args, &args->spec);
  flp_spec resolved;
  FLP_TRY(flp_spec_resolve(spec, &resolved));
  args->spec = resolved;
  return FLP_OK;
}

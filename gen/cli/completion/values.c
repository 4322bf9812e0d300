/* values.c: what options and arguments take, with the words that their parsers accept. */
#include <string.h>

#include "gen/cli/completion/completion.h"
#include "gen/cli/presets/presets.h"
#include "gen/cli/shared/text.h"
#include "runtime/base/fields.h"
#include "runtime/kernel/arch.h"
#include "runtime/loss/loss.h"

/* ---- lists of words that are no cli_choice ---- */

static void add_word(completion_value *out, const char *word) {
  cli_append(out->words, sizeof out->words, " ", "%s", word);
}

static void add_choices(completion_value *out, const cli_choice *choices) {
  for (; choices->name; choices++) add_word(out, choices->name);
}

static void add_modes(completion_value *out, unsigned accepted) {
  if (accepted & 1) add_word(out, "auto");
  for (int mode = 1; mode <= FLP_MODE_TAIL; mode++)
    if (accepted >> mode & 1) add_word(out, flp_mode_name((flp_mode)mode));
}

static void backward_modes(completion_value *out) {
  add_modes(out, CLI_BACKWARD_MODES);
}

static void check_modes(completion_value *out) {
  add_modes(out, CLI_CHECK_MODES);
}

static void tune_modes(completion_value *out) {
  add_modes(out, CLI_TUNE_MODES);
}

static void arches(completion_value *out) {
  flp_arch_list(0, 0, " ", out->words, sizeof out->words);
}

static void planned_arches(completion_value *out) {
  flp_arch_list(FLP_ARCH_PLANNED, 0, " ", out->words, sizeof out->words);
}

static void losses(completion_value *out) {
  for (int i = 0; flp_loss_builtin(i); i++) add_word(out, flp_loss_builtin(i));
}

static flp_status add_preset(void *out, const cli_preset *preset) {
  add_word(out, preset->name);
  return FLP_OK;
}

static void presets(completion_value *out) {
  add_word(out, "all");
  (void)cli_presets_each(NULL, "all", add_preset, out); /* those built in are read without an error */
}

/* ---- options by name, the first row that fits; then by what their argument is called ---- */

static const struct {
  const char *verb, *option; /* verb: NULL for all */
  completion_kind kind;
  const cli_choice *choices;
  void (*write)(completion_value *out);
} by_name[] = {{"run", "dtype", COMPLETION_WORD, FLP_OPERAND_DTYPE_WORDS, NULL},
               {"prove", "dtype", COMPLETION_WORD, FLP_OPERAND_DTYPE_WORDS, NULL},
               {"run", "entropy", COMPLETION_WORD, CLI_ENTROPY_VALUES, NULL},
               {NULL, "emit", COMPLETION_LIST, CLI_EMITS, NULL},
               {NULL, "rung", COMPLETION_WORD, FLP_RUNG_WORDS, NULL},
               {"bench", "data", COMPLETION_WORD, CLI_DATA, NULL},
               {NULL, "require", COMPLETION_WORD, CLI_REQUIRED, NULL},
               {NULL, "effort", COMPLETION_WORD, CLI_EFFORTS, NULL},
               {"tune", "mode", COMPLETION_WORD, NULL, tune_modes},
               {"check", "mode", COMPLETION_WORD, NULL, check_modes},
               {NULL, "mode", COMPLETION_WORD, NULL, backward_modes},
               {"loss", "arch", COMPLETION_WORD, NULL, arches},
               {"gen", "arch", COMPLETION_LIST, NULL, arches},
               {"pack", "arch", COMPLETION_LIST, NULL, arches},
               {NULL, "arch", COMPLETION_WORD, NULL, planned_arches},
               {NULL, "loss", COMPLETION_LOSS, NULL, losses},
               {NULL, "preset", COMPLETION_LIST, NULL, presets}};

static const struct {
  const char *argument;
  completion_kind kind;
} by_argument[] = {{"FILE", COMPLETION_FILE},        {"[FILE...]", COMPLETION_FILE}, {"FILE...", COMPLETION_FILE},
                   {"FILE:TENSOR", COMPLETION_FILE}, {"KEYFILE", COMPLETION_FILE},   {"KEY", COMPLETION_FILE},
                   {"PATH", COMPLETION_FILE},        {"DIR", COMPLETION_DIRECTORY}};

static completion_kind kind_of(const char *argument) {
  for (size_t i = 0; i < sizeof by_argument / sizeof by_argument[0]; i++)
    if (strcmp(by_argument[i].argument, argument) == 0) return by_argument[i].kind;
  return COMPLETION_ANY;
}

void completion_of_option(const completion_command *command, const struct argp_option *option, completion_value *out) {
  *out = (completion_value){.kind = option->arg ? kind_of(option->arg) : COMPLETION_NOTHING};
  for (size_t i = 0; option->arg && i < sizeof by_name / sizeof by_name[0]; i++) {
    if (strcmp(by_name[i].option, option->name) != 0) continue;
    if (by_name[i].verb && strcmp(by_name[i].verb, command->verb) != 0) continue;
    out->kind = by_name[i].kind;
    if (by_name[i].choices) add_choices(out, by_name[i].choices);
    if (by_name[i].write) by_name[i].write(out);
    return;
  }
  for (int i = 0; option->arg && i < FLP_SPEC_FIELD_COUNT; i++) {
    const flp_field *field = &FLP_SPEC_FIELD[i];
    if (!field->words || strcmp(field->option, option->name) != 0) continue;
    out->kind = field->kind == FLP_FIELD_FLAGS ? COMPLETION_LIST : COMPLETION_WORD;
    add_choices(out, field->words);
  }
}

/* ---- arguments, from the text that argp shows for them ---- */

void completion_of_arguments(const completion_command *command, completion_value *out) {
  const char *text = command->argp->args_doc;
  *out = (completion_value){.kind = text ? kind_of(text) : COMPLETION_NOTHING};
  if (!text) return;
  if (strcmp(text, "LOSS") == 0) {
    out->kind = COMPLETION_LOSS;
    losses(out);
  } else if (strchr(text, '|')) { /* "ls|verify|gc" */
    out->kind = COMPLETION_WORD;
    snprintf(out->words, sizeof out->words, "%s", text);
    for (char *at = out->words; (at = strchr(at, '|')); at++) *at = ' ';
  }
}

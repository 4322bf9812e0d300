/* fish.c: a `complete` a verb, an action and an option, for fish. */
#include "gen/cli/completion/completion.h"

static void write_head(FILE *out) {
  fputs(
      "# Completions of flpgen for fish; written by `flpgen completion fish`.\n"
      "function __flpgen_at\n"
      "  set -l words (commandline -opc)\n"
      "  set -l verb \"$words[2]\"\n"
      "  if string match -q -- '-*' \"$verb\"\n",
      out);
  fprintf(out, "    set verb %s\n  else if contains -- \"$verb\"", CLI_VERBS[0].name);
  for (const cli_action *verb = CLI_VERBS; verb->name; verb++)
    if (verb->actions) fprintf(out, " %s", verb->name);
  fputs(
      "\n"
      "    set verb (string trim -- \"$verb $words[3]\")\n"
      "  end\n"
      "  test \"$verb\" = \"$argv[1]\"\n"
      "end\n"
      "function __flpgen_list\n"
      "  set -l given (commandline -tc | string replace -r -- '^--[^=]*=' '' | string split ,)\n"
      "  set -e given[-1]\n"
      "  __fish_append , (for word in $argv; contains -- $word $given; or echo $word; end)\n"
      "end\n"
      "complete -c flpgen -f\n",
      out);
}

/* A text between single quotes. */
static void write_text(FILE *out, const char *text) {
  for (; *text; text++) {
    if (*text == '\'' || *text == '\\') fputc('\\', out);
    fputc(*text, out);
  }
}

static void write_names(FILE *out, const char *at, const cli_action *names) {
  for (; names->name; names++) {
    fprintf(out, "complete -c flpgen -n '__flpgen_at \"%s\"' -a %s -d '", at, names->name);
    write_text(out, names->help);
    fputs("'\n", out);
  }
}

/* What stands around the words of a value. */
static const char *const AROUND[][2] = {[COMPLETION_NOTHING] = {"", ""},
                                        [COMPLETION_ANY] = {" -x", ""},
                                        [COMPLETION_WORD] = {" -x -a '", "'"},
                                        [COMPLETION_LIST] = {" -x -a '(__flpgen_list ", ")'"},
                                        [COMPLETION_LOSS] = {" -x -a '", " (__fish_complete_suffix .lua)'"},
                                        [COMPLETION_FILE] = {" -r -F", ""},
                                        [COMPLETION_DIRECTORY] = {" -x -a '(__fish_complete_directories)'", ""}};

static void write_value(FILE *out, const completion_value *value) {
  fprintf(out, "%s%s%s", AROUND[value->kind][0], value->words, AROUND[value->kind][1]);
}

static void write_option(FILE *out, const completion_command *command, const struct argp_option *option) {
  char help[COMPLETION_HELP_BYTES];
  completion_value value;
  fprintf(out, " -l %s", option->name);
  if (option->key < 128) fprintf(out, " -s %c", option->key);
  completion_of_option(command, option, &value);
  if (!(option->flags & OPTION_ARG_OPTIONAL)) write_value(out, &value);
  fputs(" -d '", out);
  write_text(out, completion_help(option->doc, help));
  fputs("'\n", out);
}

static void write_command(FILE *out, const completion_command *command) {
  const struct argp_option *options[COMPLETION_OPTIONS_MAX];
  completion_value arguments;
  char at[96];
  int count = completion_options(command, options);
  snprintf(at, sizeof at, "complete -c flpgen -n '__flpgen_at \"%s%s%s\"'", command->verb, command->action ? " " : "",
           command->action ? command->action : "");
  for (int i = 0; i < count; i++) {
    fputs(at, out);
    write_option(out, command, options[i]);
  }
  completion_of_arguments(command, &arguments);
  if (arguments.kind == COMPLETION_NOTHING) return;
  fputs(at, out);
  write_value(out, &arguments);
  fputc('\n', out);
}

void completion_write_fish(FILE *out) {
  completion_command commands[COMPLETION_COMMANDS_MAX];
  int count = completion_commands(commands);
  write_head(out);
  write_names(out, "", CLI_VERBS);
  for (const cli_action *verb = CLI_VERBS; verb->name; verb++)
    if (verb->actions) write_names(out, verb->name, verb->actions);
  for (int i = 0; i < count; i++) write_command(out, &commands[i]);
}

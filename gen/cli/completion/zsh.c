/* zsh.c: a function for zsh's completion system, of calls of _describe and _arguments. */
#include "gen/cli/completion/completion.h"

static const char HEAD[] =
    "#compdef flpgen\n"
    "# Completions of flpgen for zsh; written by `flpgen completion zsh`.\n"
    "_flpgen() {\n"
    "  local -a names\n"
    "  local command=$words[2]\n";

static const char TAIL[] =
    "if [[ $funcstack[1] == _flpgen ]]; then\n"
    "  _flpgen \"$@\"\n"
    "else\n"
    "  compdef _flpgen flpgen\n"
    "fi\n";

/* A text between single quotes; what _arguments would read as its own is left out. */
static void write_text(FILE *out, const char *text) {
  for (; *text; text++) {
    if (*text == '\'')
      fputs("'\\''", out);
    else if (*text != '[' && *text != ']' && *text != ':')
      fputc(*text, out);
  }
}

static void write_names(FILE *out, const cli_action *names, const char *what) {
  fputs("    names=(", out);
  for (; names->name; names++) {
    fprintf(out, " '%s:", names->name);
    write_text(out, names->help);
    fputc('\'', out);
  }
  fprintf(out, ")\n    _describe %s names\n    return\n", what);
}

/* What stands around the words of a value. */
static const char *const AROUND[][2] = {[COMPLETION_NOTHING] = {" ", ""},
                                        [COMPLETION_ANY] = {" ", ""},
                                        [COMPLETION_WORD] = {"(", ")"},
                                        [COMPLETION_LIST] = {"_sequence compadd - ", ""},
                                        [COMPLETION_LOSS] = {"{ compadd - ", "; _files -g \"*.lua\" }"},
                                        [COMPLETION_FILE] = {"_files", ""},
                                        [COMPLETION_DIRECTORY] = {"_files -/", ""}};

/* "NAME:ACTION" as _arguments takes it. */
static void write_value(FILE *out, const char *name, const completion_value *value) {
  fputc(':', out);
  write_text(out, name);
  fprintf(out, ":%s%s%s", AROUND[value->kind][0], value->words, AROUND[value->kind][1]);
}

/* One spelling of an option: "*--out=[write it here]:DIR:_files -/". An option may be repeated. */
static void write_spelling(FILE *out, const completion_command *command, const struct argp_option *option,
                           int is_short) {
  char help[COMPLETION_HELP_BYTES];
  completion_value value;
  int is_optional = option->flags & OPTION_ARG_OPTIONAL;
  completion_of_option(command, option, &value);
  if (is_short)
    fprintf(out, " \\\n        '*-%c%s", option->key, option->arg ? "+" : "");
  else
    fprintf(out, " \\\n        '*--%s%s", option->name, option->arg ? is_optional ? "=-" : "=" : "");
  fputc('[', out);
  write_text(out, completion_help(option->doc, help));
  fputc(']', out);
  if (is_optional) fputc(':', out);
  if (option->arg) write_value(out, option->arg, &value);
  fputc('\'', out);
}

static void write_command(FILE *out, const completion_command *command) {
  const struct argp_option *options[COMPLETION_OPTIONS_MAX];
  completion_value arguments;
  int count = completion_options(command, options);
  fprintf(out, "    '%s%s%s')\n      _arguments -s :", command->verb, command->action ? " " : "",
          command->action ? command->action : "");
  for (int i = 0; i < count; i++) {
    write_spelling(out, command, options[i], 0);
    if (options[i]->key < 128) write_spelling(out, command, options[i], 1);
  }
  completion_of_arguments(command, &arguments);
  if (arguments.kind != COMPLETION_NOTHING) {
    fputs(" \\\n        '*", out);
    write_value(out, "argument", &arguments);
    fputc('\'', out);
  }
  fputs("\n      ;;\n", out);
}

static void write_actions(FILE *out, const cli_action *verb) {
  fprintf(out, "  if [[ $command == %s ]]; then\n    if (( CURRENT == 2 )); then\n", verb->name);
  write_names(out, verb->actions, "action");
  fputs("    fi\n    command+=\" $words[2]\"\n    shift words\n    (( CURRENT-- ))\n  fi\n", out);
}

void completion_write_zsh(FILE *out) {
  completion_command commands[COMPLETION_COMMANDS_MAX];
  int count = completion_commands(commands);
  fputs(HEAD, out);
  fputs("  if (( CURRENT == 2 )) && [[ $command != -* ]]; then\n", out);
  write_names(out, CLI_VERBS, "verb");
  fprintf(out,
          "  fi\n  if [[ $command == -* ]]; then\n    command=%s\n  else\n    shift words\n    (( CURRENT-- ))\n  fi\n",
          CLI_VERBS[0].name);
  for (const cli_action *verb = CLI_VERBS; verb->name; verb++)
    if (verb->actions) write_actions(out, verb);
  fputs("  case $command in\n", out);
  for (int i = 0; i < count; i++) write_command(out, &commands[i]);
  fputs("  esac\n}\n", out);
  fputs(TAIL, out);
}

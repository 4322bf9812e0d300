/* bash.c: a function for bash's `complete -F`. It needs nothing but bash 4: no package of completions. */
#include "gen/cli/completion/completion.h"

static const char *const KINDS[] = {
    [COMPLETION_NOTHING] = "nothing",    [COMPLETION_ANY] = "any",   [COMPLETION_WORD] = "word",
    [COMPLETION_LIST] = "list",          [COMPLETION_LOSS] = "loss", [COMPLETION_FILE] = "file",
    [COMPLETION_DIRECTORY] = "directory"};

/* '=' is a word of its own to bash. */
static const char HEAD[] =
    "# Completions of flpgen for bash; written by `flpgen completion bash`.\n"
    "_flpgen() {\n"
    "  local at=$((COMP_CWORD - 1)) current=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} action=${COMP_WORDS[2]}\n"
    "  local is_value= kind= words= options= arguments=nothing argument_words= previous head word left=\n"
    "  COMPREPLY=()\n"
    "  if [[ $current == = ]]; then\n"
    "    current= is_value=1\n"
    "  elif [[ ${COMP_WORDS[at]} == = ]]; then\n"
    "    at=$((at - 1)) is_value=1\n"
    "  fi\n"
    "  previous=${COMP_WORDS[at]}\n"
    "  [[ $verb == -* ]] && verb=gen\n";

static const char TAIL[] =
    "  if [[ $current == -* && ! $is_value ]]; then\n"
    "    kind=word words=$options\n"
    "  elif [[ ! $kind ]]; then\n"
    "    kind=$arguments words=$argument_words\n"
    "  fi\n"
    "  case $kind in\n"
    "    word | loss) mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\") ;;&\n"
    "    list)\n"
    "      head=${current%\"${current##*,}\"}\n"
    "      for word in $words; do [[ ,$head == *,$word,* ]] || left+=\" $word\"; done\n"
    "      mapfile -t COMPREPLY < <(compgen -P \"$head\" -W \"$left\" -- \"${current##*,}\")\n"
    "      ;;\n"
    "    loss) mapfile -t -O \"${#COMPREPLY[@]}\" COMPREPLY < <(compgen -f -X '!*.lua' -- \"$current\") ;;\n"
    "    file) mapfile -t COMPREPLY < <(compgen -f -- \"$current\") ;;&\n"
    "    directory) mapfile -t COMPREPLY < <(compgen -d -- \"$current\") ;;&\n"
    "    file | directory) compopt -o filenames 2>/dev/null ;;\n"
    "  esac\n"
    "  return 0\n"
    "}\n"
    "complete -F _flpgen flpgen\n";

/* The verbs in the place of the first word, or the actions of a verb in that of the second. */
static void write_names(FILE *out, const cli_action *names) {
  for (; names->name; names++) fprintf(out, "%s ", names->name);
}

static void write_verbs(FILE *out) {
  fputs("  if ((COMP_CWORD == 1)); then\n    kind=word words='", out);
  write_names(out, CLI_VERBS);
  fputs("help'\n", out);
  for (const cli_action *verb = CLI_VERBS; verb->name; verb++) {
    if (!verb->actions) continue;
    fprintf(out, "  elif [[ $verb == %s ]] && ((COMP_CWORD == 2)); then\n    kind=word words='", verb->name);
    write_names(out, verb->actions);
    fputs("--help'\n", out);
  }
  fputs("  fi\n", out);
}

static void write_option(FILE *out, const completion_command *command, const struct argp_option *option) {
  completion_value value;
  completion_of_option(command, option, &value);
  if (value.kind == COMPLETION_NOTHING) return;
  fprintf(out, "        --%s", option->name);
  if (option->key < 128) fprintf(out, " | -%c", option->key);
  fprintf(out, ") kind=%s words='%s' ;;\n", KINDS[value.kind], value.words);
}

static void write_command(FILE *out, const completion_command *command) {
  const struct argp_option *options[COMPLETION_OPTIONS_MAX];
  completion_value arguments;
  int count = completion_options(command, options);
  fprintf(out, "    '%s %s')\n      options='", command->verb, command->action ? command->action : "");
  for (int i = 0; i < count; i++) fprintf(out, "%s--%s", i ? " " : "", options[i]->name);
  completion_of_arguments(command, &arguments);
  fprintf(out, "'\n      arguments=%s argument_words='%s'\n      case $previous in\n", KINDS[arguments.kind],
          arguments.words);
  for (int i = 0; i < count; i++) write_option(out, command, options[i]);
  fputs("      esac\n      ;;\n", out);
}

void completion_write_bash(FILE *out) {
  completion_command commands[COMPLETION_COMMANDS_MAX];
  int count = completion_commands(commands);
  fputs(HEAD, out);
  write_verbs(out);
  fputs("  case $verb in\n", out);
  for (const cli_action *verb = CLI_VERBS; verb->name; verb++)
    if (verb->actions) fprintf(out, "    %s) ;;\n", verb->name);
  fputs("    *) action= ;;\n  esac\n  case \"$verb $action\" in\n", out);
  for (int i = 0; i < count; i++) write_command(out, &commands[i]);
  fputs("  esac\n", out);
  fputs(TAIL, out);
}

/* completion.c: `flpgen completion SHELL`: what a shell needs to complete the words of this command. */
#include "gen/cli/completion/completion.h"

#include <stdlib.h>
#include <string.h>

#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/option_args.h"

typedef struct completion_args {
  const char *shell;
  int json;
} completion_args;

/* A line a command, for what is made of all of them, such as manual pages: "pack build", a tab, the help. */
static void write_commands(FILE *out) {
  for (const cli_action *verb = CLI_VERBS; verb->name; verb++) {
    fprintf(out, "%s\t%s\n", verb->name, verb->help);
    for (const cli_action *action = verb->actions; action && action->name; action++)
      fprintf(out, "%s %s\t%s\n", verb->name, action->name, action->help);
  }
}

static const struct {
  const char *name;
  void (*write)(FILE *out);
} shells[] = {{"bash", completion_write_bash},
              {"zsh", completion_write_zsh},
              {"fish", completion_write_fish},
              {"commands", write_commands}};
enum { SHELLS = sizeof shells / sizeof shells[0] };

static const struct argp_option options[] = {
    {"json", CLI_SWITCH(completion_args, json), NULL, 0, "print one JSON document", 0}, {0}};

static const cli_value values[] = {{ARGP_KEY_ARG, CLI_IS_ARGUMENT, CLI_PLACE(completion_args, shell),
                                    .unsaid = "expected one of bash, zsh, fish, commands, got none"},
                                   {0}};

static flp_status print_json(const char *shell, void (*write)(FILE *out)) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *memory = open_memstream(&text, &bytes);
  if (!memory) return flp_fail(FLP_ERROR_MEMORY, "out of memory");
  write(memory);
  int failed = fclose(memory);
  flp_status status = failed ? flp_fail(FLP_ERROR_MEMORY, "out of memory")
                             : cli_json_print(json_pack("{s:s, s:s}", "shell", shell, "script", text));
  free(text);
  return status;
}

static flp_status print(void *input) {
  const completion_args *args = input;
  for (int i = 0; i < SHELLS; i++) {
    if (strcmp(args->shell, shells[i].name) != 0) continue;
    if (args->json) return print_json(args->shell, shells[i].write);
    shells[i].write(stdout);
    return FLP_OK;
  }
  return flp_fail(FLP_ERROR_ARGUMENT, "expected one of bash, zsh, fish, commands, got '%s'", args->shell);
}

const cli_values cli_completion_argp = {
    CLI_OPTIONS(options, cli_values_parse, values),
    .argp.args_doc = "bash|zsh|fish|commands",
    CLI_RUN(completion_args, print),
    .argp.doc =
        "Prints what a shell needs to complete verbs, options, their values and files."
        "\vcommands prints every verb and action with its help, a line each. cmake --install and the Debian packages "
        "put the files of all three shells where these look for them.\n\n"
        "Examples:\n"
        "  source <(flpgen completion bash)\n"
        "  flpgen completion zsh > ~/.zfunc/_flpgen\n"
        "  flpgen completion fish > ~/.config/fish/completions/flpgen.fish\n\n" CLI_EXIT_HELP};

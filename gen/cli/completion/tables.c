/* tables.c: commands and their options, from the table of verbs and from argp's. */
#include <ctype.h>
#include <string.h>

#include "gen/cli/completion/completion.h"
#include "gen/cli/shared/option_args.h"

int completion_commands(completion_command out[COMPLETION_COMMANDS_MAX]) {
  int count = 0;
  for (const cli_action *verb = CLI_VERBS; verb->name; verb++) {
    if (!verb->actions && count < COMPLETION_COMMANDS_MAX)
      out[count++] = (completion_command){verb->name, NULL, verb->help, &verb->argp->argp};
    for (const cli_action *action = verb->actions; action && action->name && count < COMPLETION_COMMANDS_MAX; action++)
      out[count++] = (completion_command){verb->name, action->name, action->help, &action->argp->argp};
  }
  return count;
}

/* Headings have neither name nor key, and aliases are for what was called so once. */
static int is_shown(const struct argp_option *option) {
  return option->name && !(option->flags & (OPTION_HIDDEN | OPTION_ALIAS | OPTION_DOC));
}

static int add_options(const struct argp_option *options, const struct argp_option **out, int count) {
  for (; options && (options->name || options->key || options->doc); options++)
    if (is_shown(options) && count < COMPLETION_OPTIONS_MAX) out[count++] = options;
  return count;
}

static int add_parser(const struct argp *argp, const struct argp_option **out, int count) {
  count = add_options(argp->options, out, count);
  for (const struct argp_child *child = argp->children; child && child->argp; child++)
    count = add_options(child->argp->options, out, count);
  return count;
}

int completion_options(const completion_command *command, const struct argp_option *out[COMPLETION_OPTIONS_MAX]) {
  return add_options(CLI_COMMON_OPTIONS, out, add_parser(command->argp, out, 0));
}

const char *completion_help(const char *doc, char buffer[COMPLETION_HELP_BYTES]) {
  size_t length = strcspn(doc, ";:");
  if (length >= COMPLETION_HELP_BYTES) {
    for (length = COMPLETION_HELP_BYTES - 1; length > 0 && !isspace((unsigned char)doc[length]);) length--;
  }
  memcpy(buffer, doc, length);
  buffer[length] = 0;
  return buffer;
}

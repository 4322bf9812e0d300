/* completion.h: what completions are made of: every command with its options, and what an option takes.
 *
 * All of it is read from the tables that parse: CLI_VERBS, the struct argp of each verb, the words of its values. */
#ifndef FLPGEN_CLI_COMPLETION_H
#define FLPGEN_CLI_COMPLETION_H

#include "gen/cli/verbs.h"

/* What stands behind an option or in the place of an argument. */
typedef enum completion_kind {
  COMPLETION_NOTHING, /* the option takes no value */
  COMPLETION_ANY,     /* a number, a name: nothing to offer */
  COMPLETION_WORD,    /* one of words */
  COMPLETION_LIST,    /* several of words, divided by commas */
  COMPLETION_LOSS,    /* one of words, or a file that ends in .lua */
  COMPLETION_FILE,
  COMPLETION_DIRECTORY
} completion_kind;

enum { COMPLETION_WORDS_BYTES = 1024 };
typedef struct completion_value {
  completion_kind kind;
  char words[COMPLETION_WORDS_BYTES]; /* divided by spaces */
} completion_value;

/* A verb without actions, or an action. */
typedef struct completion_command {
  const char *verb, *action; /* action: NULL of a verb */
  const char *help;
  const struct argp *argp;
} completion_command;

/* ---- tables.c ---- */

enum { COMPLETION_COMMANDS_MAX = 64, COMPLETION_OPTIONS_MAX = 128 };
/* Writes every command to out, in the order of the help. Returns their number. */
int completion_commands(completion_command out[COMPLETION_COMMANDS_MAX]);
/* Writes the options of a command that help shows, of its children and of every verb too. Returns their number. */
int completion_options(const completion_command *command, const struct argp_option *out[COMPLETION_OPTIONS_MAX]);
/* The help of an option up to the first ';' or ':', for one line. Returns buffer. */
enum { COMPLETION_HELP_BYTES = 96 };
const char *completion_help(const char *doc, char buffer[COMPLETION_HELP_BYTES]);

/* ---- values.c ---- */

void completion_of_option(const completion_command *command, const struct argp_option *option, completion_value *out);
/* What the arguments are that are no options; NOTHING where there are none. */
void completion_of_arguments(const completion_command *command, completion_value *out);

/* ---- bash.c, zsh.c, fish.c: write the file that the shell reads ---- */

void completion_write_bash(FILE *out);
void completion_write_zsh(FILE *out);
void completion_write_fish(FILE *out);

#endif

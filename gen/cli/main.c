/* main.c: the flpgen command: finds the verb and hands over. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/shared/common.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/verbs.h"

static void print_help(FILE *out) {
  fputs(
      "Usage: flpgen VERB [OPTION...]\n"
      "  or:  flpgen --vocab V --hidden D --dtype T [OPTION...]\n"
      "Fused log-probabilities of a language-model head: kernels, runs, checks.\n\n"
      "Verbs:\n",
      out);
  for (const cli_action *verb = CLI_VERBS; verb->name; verb++) fprintf(out, "  %-10s  %s\n", verb->name, verb->help);
  fputs(
      "\nOptions:\n"
      "  -h, --help     this text; `flpgen VERB --help` for the options of a verb\n"
      "  -V, --version  version, hash of templates and generator, and LLVM's version\n\n"
      "Every verb takes --json: one JSON document on standard output.\n\n" CLI_EXIT_HELP "\n",
      out);
}

/* What the command printed must have arrived; a write that failed before the last one counts too. */
static int check_output(const char *name, int code) {
  if ((fflush(stdout) == 0 && !ferror(stdout)) || code != CLI_EXIT_OK) return code;
  fprintf(stderr, "%s: standard output: cannot write\n", name);
  return CLI_EXIT_IO;
}

/* Runs a verb with argv[first..] as its arguments and "flpgen VERB" as its name. */
static int run_verb(const cli_action *verb, int argc, char **argv, int first) {
  char name[32];
  snprintf(name, sizeof name, "flpgen %s", verb->name);
  char **shifted = calloc((size_t)(argc - first) + 2, sizeof *shifted);
  if (!shifted) {
    fputs("flpgen: out of memory\n", stderr);
    return CLI_EXIT_UNAVAILABLE;
  }
  shifted[0] = name;
  memcpy(shifted + 1, argv + first, (size_t)(argc - first) * sizeof *shifted);
  int code = cli_verb_run(verb, argc - first + 1, shifted);
  free(shifted);
  return check_output(name, code);
}

int main(int argc, char **argv) {
  argp_err_exit_status = CLI_EXIT_USAGE;
  argp_program_version = cli_version_text();
  cli_log_start();
  cli_json_start();
  if (argc < 2) {
    print_help(stderr);
    return CLI_EXIT_USAGE;
  }
  const char *word = argv[1];
  if (cli_is_help(word) || strcmp(word, "help") == 0) {
    print_help(stdout);
    return check_output("flpgen", CLI_EXIT_OK);
  }
  if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
    puts(argp_program_version);
    return check_output("flpgen", CLI_EXIT_OK);
  }
  if (word[0] == '-') return run_verb(CLI_VERBS, argc, argv, 1);
  for (const cli_action *verb = CLI_VERBS; verb->name; verb++)
    if (strcmp(verb->name, word) == 0) return run_verb(verb, argc, argv, 2);
  argv[0] = (char[]){"flpgen"};
  return cli_action_unknown(argc, argv, "a verb", CLI_VERBS);
}

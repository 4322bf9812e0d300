/* main.c: the flpgen command: finds the verb and hands over. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/shared/common.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/verbs.h"

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *help;
} verbs[] = {
    {"gen", cli_gen, "generate the kernels of one specialisation; the default verb"},
    {"run", cli_run, "log-probabilities and gradients of tensors in files, or of a demo"},
    {"check", cli_check, "compare every rung that this machine offers with fp64"},
    {"bench", cli_bench, "time forward and backward beside matrix products of the same shapes"},
    {"tune", cli_tune, "find, verify and store the fastest kernels for this machine's GPU"},
    {"explain", cli_explain, "cost of naive and of each mode, the plan that would run, and why"},
    {"doctor", cli_doctor, "driver, GPU, libraries, cache, rungs; where settings come from"},
    {"pack", cli_pack, "build, verify, inspect or install a pack: many kernels in one file"},
    {"sign", cli_sign, "sign files with an Ed25519 key, as minisign does"},
    {"verify", cli_verify, "verify minisign signatures of files"},
    {"loss", cli_losses, "list, show or check losses of a row: built in, or Lua files of yours"},
    {"report", cli_report, "one HTML page with charts of tuning and benchmark records"},
    {"cache", cli_cache, "ls, verify or gc the kernel cache"},
};
enum { VERBS = sizeof verbs / sizeof verbs[0] };

static void print_help(FILE *out) {
  fputs(
      "Usage: flpgen VERB [OPTION...]\n"
      "       flpgen --vocab V --hidden D --dtype T [OPTION...]\n"
      "Fused log-probabilities of a language-model head: kernels, runs, checks.\n\n",
      out);
  for (int i = 0; i < VERBS; i++) fprintf(out, "  %-8s %s\n", verbs[i].name, verbs[i].help);
  fputs(
      "\n  -h, --help     this text; `flpgen VERB --help` for the options of a verb\n"
      "  -V, --version  version, hash of templates and generator, and LLVM's version\n\n"
      "Every verb takes --json: one JSON document on standard output.\n\n" CLI_EXIT_HELP "\n",
      out);
}

static int unknown_verb(int argc, char **argv) {
  char names[256] = "";
  size_t used = 0;
  for (int i = 0; i < VERBS; i++)
    used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", verbs[i].name);
  argv[0] = (char[]){"flpgen"};
  return cli_usage_error(argc, argv, "expected a verb, one of %s, got '%s'", names, argv[1]);
}

/* What the command printed must have arrived; a write that failed before the last one counts too. */
static int check_output(const char *name, int code) {
  if ((fflush(stdout) == 0 && !ferror(stdout)) || code != CLI_EXIT_OK) return code;
  fprintf(stderr, "%s: standard output: cannot write\n", name);
  return CLI_EXIT_IO;
}

/* Runs verb i with argv[first..] as its arguments and "flpgen VERB" as its name. */
static int run_verb(int i, int argc, char **argv, int first) {
  char name[32];
  snprintf(name, sizeof name, "flpgen %s", verbs[i].name);
  char **shifted = calloc((size_t)(argc - first) + 2, sizeof *shifted);
  if (!shifted) {
    fputs("flpgen: out of memory\n", stderr);
    return CLI_EXIT_UNAVAILABLE;
  }
  shifted[0] = name;
  memcpy(shifted + 1, argv + first, (size_t)(argc - first) * sizeof *shifted);
  int code = verbs[i].run(argc - first + 1, shifted);
  free(shifted);
  return check_output(name, code);
}

static int is_one_of(const char *text, const char *first, const char *second) {
  return strcmp(text, first) == 0 || strcmp(text, second) == 0;
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
  if (is_one_of(word, "--version", "-V")) {
    puts(argp_program_version);
    return check_output("flpgen", CLI_EXIT_OK);
  }
  if (word[0] == '-') return run_verb(0, argc, argv, 1);
  for (int i = 0; i < VERBS; i++)
    if (strcmp(verbs[i].name, word) == 0) return run_verb(i, argc, argv, 2);
  return unknown_verb(argc, argv);
}

/* main.c: the flpgen command: finds the verb and hands over. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/shared/common.h"
#include "gen/cli/verbs.h"

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *help;
} verbs[] = {
    {"gen", cli_gen, "generate the kernels of one specialisation (the verb if none is given)"},
    {"run", cli_run, "log-probabilities and gradients of tensors in safetensors files; --demo at real size"},
    {"check", cli_check, "compare every rung that this machine offers with fp64"},
    {"bench", cli_bench, "time forward and backward beside bare matrix products of the same shapes"},
    {"tune", cli_tune, "the fastest kernels on this machine's GPU, verified, timed and stored"},
    {"explain", cli_explain, "cost of naive and of each mode, the plan that would run, and why"},
    {"doctor", cli_doctor, "driver, GPU, libraries, cache, rungs, and where every setting comes from"},
    {"pack", cli_pack, "build, verify, inspect or install a pack: many kernels in one file"},
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
      "\n  -?, --help     this text; `flpgen VERB --help` for the options of a verb\n"
      "  -V, --version  version\n\n"
      "Every verb takes --json: one JSON document on standard output.\n\n"
      "Exit status:\n"
      "  0  success\n"
      "  1  a check failed, or the data held bad values\n"
      "  2  bad usage: an argument, a shape, a budget that is too small\n"
      "  3  unavailable: no GPU, driver, library, memory or rung for this\n"
      "  4  a file is unreadable, unwritable or corrupt\n"
      "  5  a template, the generator or flpgen itself failed\n",
      out);
}

static int unknown_verb(const char *name) {
  fprintf(stderr, "flpgen: verb '%s' is not accepted; one of ", name);
  for (int i = 0; i < VERBS; i++) fprintf(stderr, "%s%s", i ? ", " : "", verbs[i].name);
  fputs(" is\n", stderr);
  return CLI_EXIT_USAGE;
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

/* Warnings of the library, such as a fall of the ladder, belong on stderr. */
static void show_log(flp_log_level level, const char *message, void *user) {
  (void)user;
  if (level <= FLP_LOG_WARNING)
    fprintf(stderr, "flpgen: %s: %s\n", level == FLP_LOG_ERROR ? "error" : "warning", message);
}

static int is_one_of(const char *text, const char *first, const char *second) {
  return strcmp(text, first) == 0 || strcmp(text, second) == 0;
}

int main(int argc, char **argv) {
  argp_err_exit_status = CLI_EXIT_USAGE;
  argp_program_version = "flpgen " FLP_VERSION_STRING;
  flp_log_set(show_log, NULL);
  if (argc < 2) {
    print_help(stderr);
    return CLI_EXIT_USAGE;
  }
  const char *word = argv[1];
  if (is_one_of(word, "--help", "-?") || strcmp(word, "help") == 0) {
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
  return unknown_verb(word);
}

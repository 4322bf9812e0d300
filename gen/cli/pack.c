/* pack.c: `flpgen pack build|verify|inspect|install`: finds the action and hands over. */
#include "pack.h"

#include <stdio.h>
#include <string.h>

#include "verbs.h"

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *help;
} actions[] = {
    {"build", cli_pack_build, "pack the kernels of specialisations, caches and packs into one file"},
    {"verify", cli_pack_verify, "check every byte of a pack, and whose signature it bears"},
    {"inspect", cli_pack_inspect, "show what a pack holds"},
    {"install", cli_pack_install, "put the kernels of a pack into a cache"},
};
enum { ACTIONS = sizeof actions / sizeof actions[0] };

static void print_help(FILE *out) {
  fputs(
      "Usage: flpgen pack ACTION [OPTION...]\n"
      "Kernels in one file: made once, signed, and read in place by every process of a job.\n\n",
      out);
  for (int i = 0; i < ACTIONS; i++) fprintf(out, "  %-8s %s\n", actions[i].name, actions[i].help);
  fputs(
      "\n  flpgen pack build --vocab 151936 --hidden 4096 --grad hidden,weight -o qwen.flpp\n"
      "  flpgen pack verify qwen.flpp\n"
      "  FLP_CACHE_PATH=qwen.flpp python train.py     no generator and no cache are needed\n\n"
      "`flpgen pack ACTION --help` tells the options of an action; each takes --json.\n" CLI_EXIT_HELP "\n",
      out);
}

int cli_pack(int argc, char **argv) {
  const char *word = argc > 1 ? argv[1] : "";
  if (strcmp(word, "--help") == 0 || strcmp(word, "-?") == 0) {
    print_help(stdout);
    return CLI_EXIT_OK;
  }
  for (int i = 0; i < ACTIONS; i++) {
    if (strcmp(actions[i].name, word) != 0) continue;
    char name[64];
    snprintf(name, sizeof name, "%s %s", argv[0], word);
    argv[1] = name;
    return actions[i].run(argc - 1, argv + 1);
  }
  if (!word[0])
    print_help(stderr);
  else
    fprintf(stderr, "%s: action '%s' is not accepted; one of build, verify, inspect, install is\n", argv[0], word);
  return CLI_EXIT_USAGE;
}

/* pack.c: `flpgen pack build|verify|inspect|install`: finds the action and hands over. */
#include "gen/cli/pack/pack.h"
#include "gen/cli/verbs.h"

const cli_action CLI_PACK_ACTIONS[] = {
    {"build", cli_pack_build, "pack the kernels of specialisations, caches and packs into one file",
     &cli_pack_build_argp, NULL},
    {"verify", NULL, "check every byte of a pack, and whose signature it bears", &cli_pack_verify_argp, NULL},
    {"inspect", NULL, "show what a pack holds", &cli_pack_inspect_argp, NULL},
    {"install", NULL, "put the kernels of a pack into a cache", &cli_pack_install_argp, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

int cli_pack(int argc, char **argv) {
  return cli_action_run(
      argc, argv, CLI_PACK_ACTIONS,
      "Usage: flpgen pack ACTION [OPTION...]\n"
      "Kernels in one file: made once, signed, and read in place by every process of a\n"
      "job, without generator and cache.\n\n"
      "Actions:\n",
      "\nExamples:\n"
      "  flpgen pack build --vocab 151936 --hidden 4096 --grad hidden -o qwen.flpp\n"
      "  flpgen pack verify qwen.flpp\n"
      "  FLP_CACHE_PATH=qwen.flpp python train.py\n\n"
      "`flpgen pack ACTION --help` shows the options of an action; each takes --json.\n\n" CLI_EXIT_HELP "\n");
}

/* pack.c: `flpgen pack build|verify|inspect|install`: finds the action and hands over. */
#include "gen/cli/pack/pack.h"
#include "gen/cli/verbs.h"

int cli_pack(int argc, char **argv) {
  static const cli_action actions[] = {
      {"build", cli_pack_build, "pack the kernels of specialisations, caches and packs into one file"},
      {"verify", cli_pack_verify, "check every byte of a pack, and whose signature it bears"},
      {"inspect", cli_pack_inspect, "show what a pack holds"},
      {"install", cli_pack_install, "put the kernels of a pack into a cache"},
      {NULL, NULL, NULL}};
  return cli_action_run(
      argc, argv, actions,
      "Usage: flpgen pack ACTION [OPTION...]\n"
      "Kernels in one file: made once, signed, and read in place by every process of a\n"
      "job, without generator and cache.\n\n",
      "\n  flpgen pack build --vocab 151936 --hidden 4096 --grad hidden -o qwen.flpp\n"
      "  flpgen pack verify qwen.flpp\n"
      "  FLP_CACHE_PATH=qwen.flpp python train.py\n\n"
      "`flpgen pack ACTION --help` shows the options of an action; each takes --json.\n\n" CLI_EXIT_HELP "\n");
}

/* verbs.c: the table of verbs: name, function, help, options, actions. */
#include "gen/cli/verbs.h"

const cli_action CLI_VERBS[] = {
    {"gen", cli_gen, "generate the kernels of one specialisation; the default verb", &cli_gen_argp, NULL},
    {"run", cli_run, "log-probabilities and gradients of tensors in files, or of a demo", &cli_run_argp, NULL},
    {"check", cli_check, "compare every rung that this machine offers with fp64", &cli_check_argp, NULL},
    {"bench", cli_bench, "time both passes beside matrix products of the same shapes", &cli_bench_argp, NULL},
    {"tune", cli_tune, "find, verify and store the fastest kernels for this machine's GPU", &cli_tune_argp, NULL},
    {"prove", cli_prove, "prove kernels that have never run on this machine's GPU", &cli_prove_argp, NULL},
    {"explain", cli_explain, "cost of naive and of each mode, the plan that would run, and why", &cli_explain_argp,
     NULL},
    {"doctor", cli_doctor, "driver, GPU, libraries, cache, rungs; where settings come from", &cli_doctor_argp, NULL},
    {"pack", cli_pack, "build, verify, inspect or install packs of many kernels", NULL, CLI_PACK_ACTIONS},
    {"sign", NULL, "sign files with an Ed25519 key, as minisign does", &cli_sign_argp, NULL},
    {"verify", NULL, "verify minisign signatures of files", &cli_verify_argp, NULL},
    {"loss", cli_losses, "list, show or check losses of a row: built in, or Lua files", NULL, CLI_LOSS_ACTIONS},
    {"cache", cli_cache, "ls, verify or gc the kernel cache", &cli_cache_argp, NULL},
    {"completion", NULL, "what a shell needs to complete all this: bash, zsh or fish", &cli_completion_argp, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

/* verbs.h: the verbs of the flpgen command. Each takes argv with argv[0] = "flpgen VERB" and returns an exit code. */
#ifndef FLPGEN_CLI_VERBS_H
#define FLPGEN_CLI_VERBS_H

#include "gen/cli/shared/common.h"

/* All of them, in the order of the help; the first is the one that runs where none is named. */
extern const cli_action CLI_VERBS[];

int cli_gen(int argc, char **argv);
int cli_run(int argc, char **argv);
int cli_check(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_explain(int argc, char **argv);
int cli_doctor(int argc, char **argv);
int cli_tune(int argc, char **argv);
int cli_prove(int argc, char **argv);
int cli_cache(int argc, char **argv);
int cli_pack(int argc, char **argv);
int cli_losses(int argc, char **argv);

/* Their options, and the actions of those that have some. */
extern const cli_values cli_gen_argp, cli_run_argp, cli_check_argp, cli_bench_argp, cli_explain_argp, cli_doctor_argp,
    cli_tune_argp, cli_prove_argp, cli_cache_argp, cli_sign_argp, cli_verify_argp, cli_completion_argp;
extern const cli_action CLI_PACK_ACTIONS[], CLI_LOSS_ACTIONS[];

#endif

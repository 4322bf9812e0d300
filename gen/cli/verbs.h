/* verbs.h: the verbs of the flpgen command. Each takes argv with argv[0] = "flpgen VERB" and returns an exit code. */
#ifndef FLPGEN_CLI_VERBS_H
#define FLPGEN_CLI_VERBS_H

int cli_gen(int argc, char **argv);
int cli_run(int argc, char **argv);
int cli_check(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_explain(int argc, char **argv);
int cli_doctor(int argc, char **argv);
int cli_report(int argc, char **argv);
int cli_tune(int argc, char **argv);
int cli_cache(int argc, char **argv);
int cli_pack(int argc, char **argv);
int cli_losses(int argc, char **argv);
int cli_sign(int argc, char **argv);
int cli_verify(int argc, char **argv);

#endif

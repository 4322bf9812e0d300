/* session.h: what `flpgen check` was asked for, one run of it, and the checks in it that bring their own cases. */
#ifndef FLPGEN_CLI_CHECK_SESSION_H
#define FLPGEN_CLI_CHECK_SESSION_H

#include "gen/cli/check/report.h"
#include "gen/cli/check/run.h"
#include "gen/cli/shared/spec_args.h"

typedef struct check_args {
  cli_spec_args spec;
  check_case given; /* rows, temperature, scale, seed */
  check_how how;    /* rung: AUTO for all */
  check_set set;
  int jobs;      /* kernels that are made at once; 1: none before a case needs it */
  unsigned used; /* a bit for each option that was given, of those that some sets have no use for */
  int has_set, verbose, quiet;
  const char *json; /* file, or "-" */
} check_args;

/* Runs every case and other check of args->set on every rung that this machine offers; adds findings.
 * error: UNAVAILABLE if the rung that was asked for is not offered; MEMORY, DRIVER; that of a loss that cannot be
 * loaded */
flp_status check_session_run(const check_args *args, check_report *report);

/* ---- checks that bring their own cases ---- */

/* What a check is asked for that brings its own cases. */
typedef struct check_part {
  flp_dtype dtype;
  flp_mode mode; /* of check_bits: 0 or listed; of check_mode_bits: S, P, D or T; of check_concurrent: 0 for all */
  float tail;    /* of tail mode; 0: the usual one */
  int targets;   /* of check_bits; 0: one */
  int lora_rank; /* of check_bits and, where not 0, of check_concurrent's cases of an adapter, which are then all */
} check_part;

/* Bit identity of logprob and entropy over repeats, row order, N, budget and gradients, and of gradients over repeats;
 * of all over the order of ids in lists.
 * error: as check_run */
flp_status check_bits(const check_part *of, const check_how *how, check_report *report);
/* Adds the cases that it makes plans for; so do the other check_*_cases. */
void check_bits_cases(const check_part *of, check_list *list);

/* bits.c: bits of save, stream, direction and tail modes over repeats, and their results over budgets.
 * error: as check_run */
flp_status check_mode_bits(const check_part *of, const check_how *how, check_report *report);
void check_mode_cases(const check_part *of, check_list *list);

/* select.c: flp_select over random and adversarial scores. error: as check_run */
flp_status check_select(const check_part *of, const check_how *how, check_report *report);
void check_select_cases(const check_part *of, check_list *list);

/* scale.c: flp_scale over ordinary and odd values and factors. error: as check_run */
flp_status check_scale(const check_part *of, const check_how *how, check_report *report);
void check_scale_cases(const check_part *of, check_list *list);

/* diverge.c: flp_diverge by every built-in loss over ordinary and odd scores. error: as check_run */
flp_status check_diverge(const check_part *of, const check_how *how, check_report *report);
void check_diverge_cases(const check_part *of, check_list *list);

/* loss.c: flp_step of FLP_OP_LOSS by every built-in loss of one target a row. error: as check_run */
flp_status check_loss(const check_part *of, const check_how *how, check_report *report);
void check_loss_cases(const check_part *of, check_list *list);

/* given.c: gradients of a head from a given gradient of raw scores. error: as check_run */
flp_status check_given(const check_part *of, const check_how *how, check_report *report);
void check_given_cases(const check_part *of, check_list *list);

/* concurrent.c: bit identity of every output on several streams at once, beside other work and in CUDA graphs. A
 * deadlock is a finding that failed, and sets report->hung.
 * how: of a GPU; the budget is not used. error: UNAVAILABLE if rung or driver do not offer it; DRIVER, MEMORY */
flp_status check_concurrent(const check_part *of, const check_how *how, check_report *report);
void check_concurrent_cases(const check_part *of, check_list *list);

#endif

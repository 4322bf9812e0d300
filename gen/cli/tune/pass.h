/* pass.h: what is timed. */
#ifndef FLPGEN_CLI_TUNE_PASS_H
#define FLPGEN_CLI_TUNE_PASS_H

#include "gen/cli/tune/session.h"

/* The mode of --keep or --loss that is timed, save, direction or stream; 0: none */
flp_mode tune_session_mode(const tune_session *session);
/* The call that a kind (0: layouts) is timed in: one of that mode where the kind counts in it. */
tune_call tune_session_call(const tune_session *session, flp_kernel_kind kind);
int tune_call_has_gradients(tune_call call);
/* A plan of session->call, on the jit rung alone, with what was chosen and a candidate, or NULL.
 * error: of flp_plan_create; UNAVAILABLE if another rung or architecture would run */
flp_status tune_pass_plan(const tune_session *session, const search_candidate *candidate, flp_plan **out);
/* 1 if the pass of the call that has gradients, or makes what they follow from, is its second. */
int tune_session_gradients_second(const tune_session *session);
/* Its layouts, by pass of the call; and a workspace that holds each of them. error: BUDGET; DRIVER */
flp_status tune_pass_layouts(const tune_session *session, const flp_plan *plan, flp_layout out[TUNE_CALL_PASSES]);
flp_status tune_pass_reserve(tune_session *session, const flp_layout layout[TUNE_CALL_PASSES]);
/* Enqueues one call. error: of flp_execute, flp_step */
flp_status tune_pass_enqueue(tune_session *session, flp_plan *plan, const flp_layout layout[TUNE_CALL_PASSES]);

/* Numbers of a call on the data that is timed: keeps the reference plan's, compares a plan's with them.
 * reason: "" if they agree; *seconds: that the call took. error: MEMORY, DRIVER */
flp_status tune_pass_open(tune_session *session);
void tune_pass_close(tune_session *session);
flp_status tune_pass_reference(tune_session *session);
flp_status tune_pass_compare(tune_session *session, flp_plan *plan, const flp_layout layout[TUNE_CALL_PASSES],
                             double *seconds, char reason[SEARCH_REASON_BYTES]);

#endif

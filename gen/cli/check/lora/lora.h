/* lora.h: checks of a low-rank adapter on the head (spec.lora_rank).
 *
 * The oracle multiplies joined operands: rows [h, u] and columns [W, B], so that one product is h·Wᵀ + u·Bᵀ, one of its
 * gradients [dz·W, G] with G = dz·B, and the other [dzᵀ·h, dzᵀ·u]. */
#ifndef FLPGEN_CLI_CHECK_LORA_H
#define FLPGEN_CLI_CHECK_LORA_H

#include "gen/cli/check/compare.h"

enum { CHECK_LORA_USUAL = 24 }; /* rank of a case that is of no other */

/* ---- data.c ---- */

/* Draws A and B of a problem whose hidden states are there, and projects. error: MEMORY */
flp_status check_lora_create(check_problem *problem, uint64_t seed);
/* u of the hidden states, anew where they have changed. error: MEMORY */
flp_status check_lora_project(check_problem *problem);
/* Lets the oracle multiply the joined operands. */
void check_lora_set_oracle(check_problem *problem);
void check_lora_clear(check_problem *problem);

/* ---- compare.c ---- */

/* Gradients of hidden, A, B and bias; adds findings. error: MEMORY */
flp_status check_compare_lora(const compare_state *state);

/* ---- cases.c ---- */

/* Every pattern; of bf16 more than of the others. */
void check_lora_cases(check_list *list, flp_dtype dtype);
/* What a specification with an adapter is checked with beside the patterns of any. */
void check_lora_given(check_list *list, const check_case *given);

#endif

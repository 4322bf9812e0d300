/* generate.h: what the entry points of gen.h share. */
#ifndef FLPGEN_GENERATE_H
#define FLPGEN_GENERATE_H

#include "gen/target/arch.h"
#include "runtime/kernel/kernel.h"

/* error: ARGUMENT for no kind of kernel; UNSUPPORTED for an architecture without templates */
flp_status gen_generate_check(const flp_kernel_key *key, gen_arch *arch, char *error, size_t capacity);
/* Whether the tunables are for this architecture; which of them can be built is for the templates to decide. */
flp_status gen_generate_check_tune(const flp_tunables *tune, const gen_arch *arch, char *error, size_t capacity);

#endif

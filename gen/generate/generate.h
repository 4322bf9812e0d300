/* generate.h: what the entry points of gen.h share. */
#ifndef FLPGEN_GENERATE_H
#define FLPGEN_GENERATE_H

#include "gen/target/arch.h"
#include "runtime/kernel/kernel.h"

/* error: ARGUMENT for no kind of kernel; UNSUPPORTED for an architecture without templates */
flp_status gen_generate_check(const flp_kernel_key *key, gen_arch *arch, char *error, size_t capacity);
/* Which tunables can be built is for the templates to decide. error: ARGUMENT for no schedule */
flp_status gen_generate_check_tune(const flp_tunables *tune, char *error, size_t capacity);

#endif

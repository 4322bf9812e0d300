/* jit.h: the code generator behind the jit rung, reached with dlopen (provider.h). */
#ifndef FLP_JIT_H
#define FLP_JIT_H

#include "runtime/kernel/provider.h"
#include "runtime/store/store.h"

/* Opens the library that FLP_JIT_LIBRARY names, once for the process and path. *out is borrowed, valid for ever.
 * error: UNAVAILABLE with the reason */
flp_status flp_jit_get(const flp_provider **out);

/* Generates one kernel. image->ptx is this library's own copy. error: the provider's status, with its sentence */
flp_status flp_jit_generate(const flp_provider *provider, const flp_kernel_key *key, const uint8_t *loss,
                            size_t loss_bytes, flp_kernel_image *image);

#endif

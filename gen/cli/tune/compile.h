/* compile.h: where kernels are made. */
#ifndef FLPGEN_CLI_TUNE_COMPILE_H
#define FLPGEN_CLI_TUNE_COMPILE_H

#include "gen/cli/kernels/compile_pool.h"
#include "runtime/store/store.h"

enum { TUNE_COMPILERS_MAX = 8 };

/* Where kernels are made. */
typedef struct tune_compile_pool {
  const char *directory; /* of those that are tried */
  cli_compilers compilers;
} tune_compile_pool;

/* As flp_jit_generate, of a spec's kernel. */
flp_status tune_generate(const flp_spec *spec, const flp_kernel_key *key, flp_kernel_image *image);
/* Generates and compiles kernels of a spec, all at once, so that plans find them made. What fails here fails again, and
 * is reported, when a plan needs it. error: IO */
flp_status tune_compile(tune_compile_pool *compile_pool, const flp_spec *spec, const flp_kernel_key *keys, int count);

#endif

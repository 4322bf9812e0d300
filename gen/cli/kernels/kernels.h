/* kernels.h: generating the kernels of a spec or the shape-generic set, and describing them. */
#ifndef FLPGEN_CLI_KERNELS_H
#define FLPGEN_CLI_KERNELS_H

#include <jansson.h>

#include "gen/cli/shared/common.h"
#include "gen/gen.h"

typedef struct cli_kernel {
  flpgen_result result;
  double seconds;
} cli_kernel;

typedef struct cli_kernels {
  cli_kernel *items;
  int count;
} cli_kernels;

/* Generates one kernel; the program of a loss is options->loss or one that was kept (losses.h).
 * error: COMPILE, UNSUPPORTED with the generator's sentence; ARGUMENT if it refuses the key's tile configuration */
flp_status cli_kernel_generate(const flp_kernel_key *key, const flpgen_options *options, cli_kernel *out);

/* Generates the kernels of a list of keys on every CPU, in the order of the keys.
 * label: of the progress bar, or NULL for none. error: that of the first key that fails */
flp_status cli_kernels_generate(const flp_kernel_key *keys, int count, const flpgen_options *options, const char *label,
                                cli_kernels *out);
void cli_kernels_destroy(cli_kernels *kernels);

/* The keys of every shape-generic kernel, each once. *out is malloc'ed. error: MEMORY */
flp_status cli_kernels_generic_keys(const char *arch, flp_kernel_key **out, int *count);

/* The architecture to generate for when this one is asked for: itself if kernels can be made for it, else the portable
 * one. target: 16 bytes. error: ARGUMENT if arch is no "sm_NN" or older than the portable one */
flp_status cli_kernels_target(const char *arch, char target[16]);

/* A descriptor as JSON, without ptx_version where no PTX was made; and a spec. kept: ids of a row's list, on average, or 0 */
json_t *cli_desc_json(const flp_kernel_desc *desc);
json_t *cli_spec_json(const flp_spec *spec, double scale, double kept);
/* The words of a mask, a list. */
json_t *cli_words_json(const flp_word *words, uint32_t flags);

/* Writes the PTX, descriptor and (if generated) IR of a kernel into a directory. error: IO */
flp_status cli_kernel_write(const cli_kernel *kernel, const char *directory);
/* Stores kernels as cache entries in a directory. error: IO */
flp_status cli_kernels_store(const cli_kernels *kernels, const char *directory);

#endif

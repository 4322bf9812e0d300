/* internal.h: what the reader and the writer of safetensors files share. */
#ifndef FLPGEN_CLI_SAFETENSORS_INTERNAL_H
#define FLPGEN_CLI_SAFETENSORS_INTERNAL_H

#include "gen/cli/tensors/safetensors.h"

/* Returns 1 and the dtype of that name ("BF16"), or 0. */
int cli_tensor_dtype_find(const char *name, cli_tensor_dtype *out);
/* Fills elements and bytes from dtype and shape; 0 if a size is negative or their product does not fit. */
int cli_tensor_measure(cli_tensor *tensor);

#endif

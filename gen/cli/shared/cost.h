/* cost.h: what the operation costs where the scores are materialised, to compare with. */
#ifndef FLPGEN_CLI_COST_H
#define FLPGEN_CLI_COST_H

#include <stdint.h>

#include "runtime/flp.h"

/* Memory beyond inputs and outputs of a plain implementation in fp32 scores, in bytes (doubles: N·V·4 may pass
 * 2^64). */
typedef struct cli_naive {
  double scores;   /* N·V·4 */
  double forward;  /* scores and their log-softmax: 2·N·V·4 */
  double backward; /* and the gradient of the scores: 3·N·V·4; 0 without gradients */
} cli_naive;

cli_naive cli_naive_of(const flp_spec *spec, int64_t n);

/* FLOP of one N·D·V product. */
double cli_product_flops(const flp_spec *spec, int64_t n);

/* Bytes of the inputs and outputs that every implementation has; outputs include the gradients asked for. */
double cli_input_bytes(const flp_spec *spec, int64_t n);
double cli_output_bytes(const flp_spec *spec, int64_t n);

#endif

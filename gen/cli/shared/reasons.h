/* reasons.h: why the rungs above the one that runs were not taken, for people. */
#ifndef FLPGEN_CLI_REASONS_H
#define FLPGEN_CLI_REASONS_H

#include <stddef.h>

#include "runtime/flp.h"

enum { CLI_REASONS_BYTES = 4096 };

/* One line a reason, "tuned, heuristic: no entry", rungs of the same reason together; "" if the best rung runs. */
void cli_reasons_text(const flp_plan *plan, char *out, size_t capacity);

/* Prints such lines, each after the label. */
void cli_reasons_print(const char *text, const char *label);

#endif

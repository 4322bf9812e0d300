/* reasons.h: why the rungs above the one that runs were not taken, for people. */
#ifndef FLPGEN_CLI_REASONS_H
#define FLPGEN_CLI_REASONS_H

#include <stddef.h>

#include "runtime/flp.h"

enum { CLI_REASONS_BYTES = 4096, CLI_REASON_BYTES = 1024 };

/* A reason as the library gives it, without what the reader has not asked for: that a rung was pinned (by a trial of
 * the command), and a file's name twice. Where there is no driver, "no NVIDIA driver (...)". Returns out. */
const char *cli_reason_text(const char *reason, char out[CLI_REASON_BYTES]);
/* The same of an error, whose rung the caller has pinned. */
const char *cli_error_text(const char *detail, char out[CLI_REASON_BYTES]);

/* Reasons by rung, NULL or "" for none, rungs of the same reason together: "tuned, heuristic: no entry", or "no GPU
 * rung: no NVIDIA driver (...)"; divided by the separator. */
void cli_reasons_join(const char *const reasons[FLP_RUNG_EAGER + 1], const char *separator, char *out, size_t capacity);

/* Those of a plan, a line each; "" if the best rung runs. */
void cli_reasons_text(const flp_plan *plan, char *out, size_t capacity);

/* Prints such lines, each after the label, `indent` columns from the left. */
void cli_reasons_print(size_t indent, const char *label, const char *text);

#endif

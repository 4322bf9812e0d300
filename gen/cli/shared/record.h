/* record.h: the JSON document that a check or a benchmark leaves behind as evidence. */
#ifndef FLPGEN_CLI_RECORD_H
#define FLPGEN_CLI_RECORD_H

#include <jansson.h>

#include "runtime/flp.h"

/* The words of a command with blanks between them, as records name it; truncated where the capacity ends. */
void cli_record_join_command(int argc, char **argv, char *out, size_t capacity);

/* {"gpu", "driver", "sources_hash", "command", "date"}: where, with which sources, how and when.
 * gpu: name, "none" without one; cuda_version: cuDriverGetVersion, 0 without a driver. NULL if out of memory. */
json_t *cli_record_create(const char *gpu, int cuda_version, const char *command);

/* Checks before the work whether a record can be written to path; leaves what is there as it is. error: IO */
flp_status cli_record_probe(const char *path);

/* Writes the record to path ("-": standard output), one line for each element of its "rows", and releases it.
 * error: MEMORY, IO */
flp_status cli_record_write(json_t *record, const char *path);

#endif

/* json_out.h: the one JSON document that a verb prints with --json. */
#ifndef FLPGEN_CLI_JSON_OUT_H
#define FLPGEN_CLI_JSON_OUT_H

#include <jansson.h>
#include <stdint.h>

#include "runtime/flp.h"

/* jansson drops a part of a document for which there is no memory, and goes on: a member, the name of one. Called
 * before all else of JSON, this has such a document noticed. */
void cli_json_start(void);
/* json_dumps; NULL as well if any part of any document so far has not had its memory. thread: any */
char *cli_json_dump(const json_t *document, size_t flags);

/* Prints a document to stdout, indented, and releases it. NULL, or one that lacks a part, fails.
 * error: MEMORY; IO if stdout cannot be written */
flp_status cli_json_print(json_t *document);

/* A number, or null where JSON has none (NaN, infinities). */
json_t *cli_json_number(double value);
/* A count of bytes or rows. */
json_t *cli_json_count(uint64_t value);
/* A string; bytes that are not UTF-8 are shown as '?'. */
json_t *cli_json_text(const char *text);

#endif

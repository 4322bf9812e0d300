/* json_out.c: the one JSON document that a verb prints with --json. */
#include "gen/cli/shared/json_out.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/status.h"

static atomic_int lacks_memory;

static void *allocate(size_t bytes) {
  void *memory = malloc(bytes);
  if (!memory) lacks_memory = 1;
  return memory;
}

void cli_json_start(void) {
  json_set_alloc_funcs(allocate, free);
}

char *cli_json_dump(const json_t *document, size_t flags) {
  char *text = document ? json_dumps(document, flags) : NULL;
  if (!lacks_memory) return text;
  free(text);
  return NULL;
}

flp_status cli_json_print(json_t *document) {
  char *text = cli_json_dump(document, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
  json_decref(document);
  if (!text) return flp_fail(FLP_ERROR_MEMORY, "out of memory while building the JSON document");
  int failed = fputs(text, stdout) == EOF;
  free(text);
  failed |= fputc('\n', stdout) == EOF;
  failed |= fflush(stdout) != 0;
  return failed ? flp_fail(FLP_ERROR_IO, "stdout: cannot write the JSON document") : FLP_OK;
}

json_t *cli_json_number(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}

json_t *cli_json_count(uint64_t value) {
  return value <= (uint64_t)INT64_MAX ? json_integer((json_int_t)value) : json_real((double)value);
}

json_t *cli_json_text(const char *text) {
  json_t *string = json_string(text);
  if (string) return string;
  char *copy = strdup(text);
  if (!copy) return NULL;
  for (char *c = copy; *c; c++)
    if ((unsigned char)*c >= 0x80) *c = '?';
  string = json_string(copy);
  free(copy);
  return string;
}

/* record.c: records of measurements: a header with place and method, and rows that a diff can be read by. */
#include "gen/cli/shared/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "gen/cli/shared/common.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/text.h"
#include "runtime/base/status.h"

/* "580.159.04 (CUDA 13.0)": the kernel module's version where the system shows it. */
static void driver_text(int cuda_version, char *out, size_t capacity) {
  char module[64] = "";
  FILE *file = fopen("/sys/module/nvidia/version", "r");
  if (file) {
    if (fgets(module, sizeof module, file)) module[strcspn(module, "\n")] = 0;
    fclose(file);
  }
  int major = cuda_version / 1000, minor = cuda_version % 1000 / 10;
  if (!cuda_version)
    snprintf(out, capacity, "none");
  else if (module[0])
    snprintf(out, capacity, "%s (CUDA %d.%d)", module, major, minor);
  else
    snprintf(out, capacity, "CUDA %d.%d", major, minor);
}

void cli_record_join_command(int argc, char **argv, char *out, size_t capacity) {
  out[0] = 0;
  for (int i = 0; i < argc; i++) cli_append(out, capacity, " ", "%s", argv[i]);
}

json_t *cli_record_create(const char *gpu, int cuda_version, const char *command) {
  char driver[128], date[32];
  driver_text(cuda_version, driver, sizeof driver);
  time_t now = time(NULL);
  struct tm utc;
  strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  return json_pack("{s:o, s:s, s:s, s:o, s:s}", "gpu", cli_json_text(gpu && gpu[0] ? gpu : "none"), "driver", driver,
                   "sources_hash", cli_sources_id(), "command", cli_json_text(command), "date", date);
}

/* Ends with the rows, so that the closing brace can follow them. Returns 0 or -1. */
static int print(FILE *file, json_t *record) {
  json_t *rows = json_incref(json_object_get(record, "rows"));
  json_object_del(record, "rows");
  char *head = cli_json_dump(record, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
  int failed = !head;
  if (head) fprintf(file, "%.*s", (int)(strlen(head) - 2), head); /* without "\n}" */
  free(head);
  fprintf(file, ",\n \"rows\": [");
  for (size_t i = 0; i < json_array_size(rows) && !failed; i++) {
    char *row = cli_json_dump(json_array_get(rows, i), JSON_COMPACT | JSON_REAL_PRECISION(6));
    failed = !row;
    if (row) fprintf(file, "%s\n  %s", i ? "," : "", row);
    free(row);
  }
  json_decref(rows);
  return fprintf(file, "\n ]\n}\n") < 0 || failed || ferror(file) ? -1 : 0;
}

/* The whole record in malloc'ed memory, or NULL if that ran out. */
static char *text_of(json_t *record, size_t *bytes) {
  char *text = NULL;
  FILE *file = open_memstream(&text, bytes);
  int failed = !file || print(file, record) != 0;
  if (file && fclose(file) != 0) failed = 1;
  if (!failed) return text;
  free(text);
  return NULL;
}

static flp_status write_standard(const char *text, size_t bytes) {
  if (fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0) return FLP_OK;
  return flp_fail(FLP_ERROR_IO, "standard output: the record cannot be written");
}

flp_status cli_record_probe(const char *path) {
  struct stat info;
  int is_special = stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
  if (strcmp(path, "-") == 0 || is_special) return FLP_OK; /* a pipe's reader would see its end */
  flp_output out;
  FLP_TRY(cli_output_open(path, &out));
  flp_output_discard(&out);
  return FLP_OK;
}

flp_status cli_record_write(json_t *record, const char *path) {
  size_t bytes = 0;
  char *text = record ? text_of(record, &bytes) : NULL;
  json_decref(record);
  if (!text) return flp_fail(FLP_ERROR_MEMORY, "out of memory while building the record");
  flp_status status = strcmp(path, "-") == 0 ? write_standard(text, bytes) : cli_write_file(path, text, bytes);
  free(text);
  return status;
}

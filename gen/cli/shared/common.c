/* common.c: exit codes, reporting and small formats. */
#include "gen/cli/shared/common.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/reasons.h"
#include "gen/cli/shared/text.h"

int cli_exit_code(flp_status status) {
  static const int codes[] = {
      [FLP_OK] = CLI_EXIT_OK,
      [FLP_ERROR_ARGUMENT] = CLI_EXIT_USAGE,
      [FLP_ERROR_UNSUPPORTED] = CLI_EXIT_UNAVAILABLE,
      [FLP_ERROR_MEMORY] = CLI_EXIT_UNAVAILABLE,
      [FLP_ERROR_WORKSPACE] = CLI_EXIT_USAGE,
      [FLP_ERROR_BUDGET] = CLI_EXIT_USAGE,
      [FLP_ERROR_UNAVAILABLE] = CLI_EXIT_UNAVAILABLE,
      [FLP_ERROR_DRIVER] = CLI_EXIT_UNAVAILABLE,
      [FLP_ERROR_IO] = CLI_EXIT_IO,
      [FLP_ERROR_CORRUPT] = CLI_EXIT_IO,
      [FLP_ERROR_COMPILE] = CLI_EXIT_INTERNAL,
      [FLP_ERROR_DATA] = CLI_EXIT_FAILED,
      [FLP_ERROR_INTERNAL] = CLI_EXIT_INTERNAL,
  };
  size_t index = (size_t)status;
  return index < sizeof codes / sizeof codes[0] ? codes[index] : CLI_EXIT_INTERNAL;
}

void cli_error_print_json(flp_status status, const char *detail) {
  cli_json_print(json_pack("{s:{s:s, s:o, s:i}}", "error", "status", flp_status_name(status), "message",
                           cli_json_text(detail), "exit", cli_exit_code(status)));
}

int cli_finish(const char *verb, int json, flp_status status) {
  if (status == FLP_OK) return CLI_EXIT_OK;
  const char *detail = flp_error_detail();
  char text[CLI_REASON_BYTES];
  detail = detail[0] ? cli_error_text(detail, text) : flp_status_name(status);
  fflush(stdout);
  cli_complain(verb, "%s", detail);
  if (json) cli_error_print_json(status, detail);
  return cli_exit_code(status);
}

void cli_argp_check(struct argp_state *state, flp_status status) {
  if (status != FLP_OK) argp_error(state, "%s", flp_error_detail());
}

cli_short cli_shortly(const char *format, ...) {
  cli_short out;
  va_list list;
  va_start(list, format);
  vsnprintf(out.text, sizeof out.text, format, list);
  va_end(list);
  return out;
}

static cli_short scaled(double value, const char *unit) {
  static const char *const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  int prefix = 0;
  for (; prefix < 6 && fabs(value) >= 999.5; prefix++) value /= 1000.0;
  int decimals = prefix == 0 || fabs(value) >= 99.95 ? 0 : fabs(value) >= 9.995 ? 1 : 2;
  return cli_shortly("%.*f %s%s", decimals, value, prefixes[prefix], unit);
}

cli_short cli_bytes(double bytes) {
  return scaled(bytes, "B");
}

cli_short cli_flops(double flops) {
  return scaled(flops, "FLOP");
}

double cli_seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

uint64_t cli_peak_resident_bytes(void) {
  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return (uint64_t)usage.ru_maxrss * 1024u;
}

/* ---- messages of the library ---- */

static flp_log_level shown = FLP_LOG_WARNING;

/* Warnings, such as a fall of the ladder, and errors. Bad rows are reported by the verbs themselves. */
static void show(flp_log_level level, const char *message, void *user) {
  static const char no_rung[] = "no rung of the device can run: ", bad_rows[] = "bad rows: ";
  char text[CLI_REASON_BYTES];
  (void)user;
  if (level > shown || strncmp(message, bad_rows, sizeof bad_rows - 1) == 0) return;
  const char *kind = level == FLP_LOG_ERROR ? "error" : "warning";
  if (strncmp(message, no_rung, sizeof no_rung - 1) == 0)
    cli_complain("flpgen", "%s: no GPU rung: %s", kind, cli_reason_text(message + sizeof no_rung - 1, text));
  else
    cli_complain("flpgen", "%s: %s", kind, message);
}

void cli_log_start(void) {
  flp_log_set(show, NULL);
}

void cli_log_quiet(void) {
  shown = FLP_LOG_ERROR;
}

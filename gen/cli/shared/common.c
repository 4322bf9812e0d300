/* common.c: exit codes, reporting and small formats. */
#include "gen/cli/shared/common.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "gen/cli/shared/json_out.h"

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

int cli_finish(const char *verb, int json, flp_status status) {
  if (status == FLP_OK) return CLI_EXIT_OK;
  const char *detail = flp_error_detail();
  if (detail[0] == 0) detail = flp_status_name(status);
  fflush(stdout);
  fprintf(stderr, "%s: %s\n", verb, detail);
  if (json) {
    json_t *error = json_pack("{s:{s:s, s:o, s:i}}", "error", "status", flp_status_name(status), "message",
                              cli_json_text(detail), "exit", cli_exit_code(status));
    cli_json_print(error);
  }
  return cli_exit_code(status);
}

static void print_actions(FILE *out, const cli_action *actions, const char *head, const char *tail) {
  fputs(head, out);
  for (; actions->name; actions++) fprintf(out, "  %-8s %s\n", actions->name, actions->help);
  fputs(tail, out);
}

int cli_action_run(int argc, char **argv, const cli_action *actions, const char *head, const char *tail) {
  const char *word = argc > 1 ? argv[1] : "";
  if (strcmp(word, "--help") == 0 || strcmp(word, "-?") == 0) {
    print_actions(stdout, actions, head, tail);
    return CLI_EXIT_OK;
  }
  for (const cli_action *action = actions; action->name; action++) {
    if (strcmp(action->name, word) != 0) continue;
    char name[64];
    snprintf(name, sizeof name, "%s %s", argv[0], word);
    argv[1] = name;
    return action->run(argc - 1, argv + 1);
  }
  if (!word[0]) {
    print_actions(stderr, actions, head, tail);
    return CLI_EXIT_USAGE;
  }
  fprintf(stderr, "%s: action '%s' is not accepted; one of ", argv[0], word);
  for (const cli_action *action = actions; action->name; action++)
    fprintf(stderr, "%s%s", action == actions ? "" : ", ", action->name);
  fputs(" is\n", stderr);
  return CLI_EXIT_USAGE;
}

void cli_argp_check(struct argp_state *state, flp_status status) {
  if (status != FLP_OK) argp_error(state, "%s", flp_error_detail());
}

void cli_argp_json_file(struct argp_state *state, const char *verb, const char *text, const char **json) {
  if (!*json || strcmp(*json, "-") != 0)
    argp_error(state, "argument '%s' is not accepted; %s takes options only", text, verb);
  *json = text;
}

static const char *format_scaled(double value, const char *const *units, int count, char *buffer) {
  int unit = 0;
  while (unit + 1 < count && fabs(value) >= 999.5) {
    value /= 1000.0;
    unit++;
  }
  int decimals = unit == 0 || fabs(value) >= 99.95 ? 0 : fabs(value) >= 9.995 ? 1 : 2;
  snprintf(buffer, CLI_TEXT_BYTES, "%.*f %s", decimals, value, units[unit]);
  return buffer;
}

const char *cli_format_bytes(double bytes, char buffer[CLI_TEXT_BYTES]) {
  static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  return format_scaled(bytes, units, 7, buffer);
}

const char *cli_format_flops(double flops, char buffer[CLI_TEXT_BYTES]) {
  static const char *const units[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"};
  return format_scaled(flops, units, 7, buffer);
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

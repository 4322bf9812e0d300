/* log.c: messages of the library, on stderr. */
#include <string.h>

#include "gen/cli/shared/common.h"
#include "gen/cli/shared/reasons.h"
#include "gen/cli/shared/text.h"

static flp_log_level shown = FLP_LOG_WARNING;

/* Warnings, such as a fall of the ladder, and errors. */
static void show(flp_log_level level, const char *message, void *user) {
  static const char no_rung[] = "no rung of the device can run: ";
  char text[CLI_REASON_BYTES];
  (void)user;
  if (level > shown) return;
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

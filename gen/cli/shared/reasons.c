/* reasons.c: why the rungs above the one that runs were not taken, for people. */
#include "gen/cli/shared/reasons.h"

#include <stdio.h>
#include <string.h>

#include "gen/cli/shared/text.h"
#include "runtime/base/status.h"

static const char no_driver[] = "no NVIDIA driver";

/* ---- one reason ---- */

/* Behind "rung jit is pinned and failed: ", if the reason begins so. */
static const char *skip_pinned(const char *reason) {
  static const char pinned[] = " is pinned and failed: ";
  for (int rung = FLP_RUNG_TUNED; rung <= FLP_RUNG_EAGER; rung++) {
    const char *name = flp_rung_name((flp_rung)rung);
    size_t length = strlen(name);
    if (strncmp(reason, "rung ", 5) == 0 && strncmp(reason + 5, name, length) == 0 &&
        strncmp(reason + 5 + length, pinned, sizeof pinned - 1) == 0)
      return reason + 5 + length + sizeof pinned - 1;
  }
  return reason;
}

const char *cli_reason_text(const char *reason, char out[CLI_REASON_BYTES]) {
  return cli_error_text(skip_pinned(reason), out);
}

const char *cli_error_text(const char *text, char out[CLI_REASON_BYTES]) {
  static const char cannot[] = " cannot be opened: ";
  const char *at = strstr(text, cannot);
  flp_setting driver;
  snprintf(out, CLI_REASON_BYTES, "%s", text);
  if (!at || at == text) return out;
  size_t length = (size_t)(at - text);
  flp_setting_get(FLP_SETTING_CUDA_LIBRARY, &driver);
  if (strlen(driver.value) == length && strncmp(driver.value, text, length) == 0)
    snprintf(out, CLI_REASON_BYTES, "%s (%s: %s)", no_driver, driver.value, at + sizeof cannot - 1);
  return out;
}

/* ---- several ---- */

static int is_same(const char *a, const char *b) {
  return strcmp(a ? a : "", b ? b : "") == 0;
}

/* The first rung is set apart from what stands before the group. */
static void append_group(char *out, size_t capacity, const char *separator, int first, int end, const char *reason) {
  char text[CLI_REASON_BYTES];
  cli_reason_text(reason, text);
  if (strncmp(text, no_driver, sizeof no_driver - 1) == 0)
    cli_append(out, capacity, separator, "no GPU rung");
  else
    for (int i = first; i < end; i++)
      cli_append(out, capacity, i > first ? ", " : separator, "%s", flp_rung_name((flp_rung)i));
  cli_append(out, capacity, "", ": %s", text);
}

void cli_reasons_join(const char *const reasons[FLP_RUNG_EAGER + 1], const char *separator, char *out,
                      size_t capacity) {
  out[0] = 0;
  for (int rung = FLP_RUNG_TUNED; rung <= FLP_RUNG_EAGER;) {
    int end = rung + 1;
    while (end <= FLP_RUNG_EAGER && is_same(reasons[end], reasons[rung])) end++;
    if (!is_same(reasons[rung], "")) append_group(out, capacity, separator, rung, end, reasons[rung]);
    rung = end;
  }
}

void cli_reasons_text(const flp_plan *plan, char *out, size_t capacity) {
  const char *reasons[FLP_RUNG_EAGER + 1] = {NULL};
  for (int rung = FLP_RUNG_TUNED; rung <= FLP_RUNG_EAGER; rung++)
    reasons[rung] = flp_plan_get_reason(plan, (flp_rung)rung);
  cli_reasons_join(reasons, "\n", out, capacity);
}

void cli_reasons_print(size_t indent, const char *label, const char *text) {
  while (*text) {
    size_t length = strcspn(text, "\n");
    cli_print_field(indent, label, "%.*s", (int)length, text);
    text += length + (text[length] == '\n');
  }
}

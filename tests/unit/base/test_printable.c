/* test_printable.c: what text of others keeps, and what it loses, before a terminal sees it. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/printable.h"
#include "runtime/base/status.h"

static const char *printable(const char *text) {
  static char out[64];
  snprintf(out, sizeof out, "%s", text);
  flp_make_printable(out);
  return out;
}

Test(printable, text_stays) {
  static const char *const texts[] = {"",     "a\tb\n~ ",     "\u00e9 \u00a0 \u20ac \U0001f600",
                                      "\xe9", "\xff"};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) cr_expect_str_eq(printable(texts[i]), texts[i]);
}

Test(printable, control_characters_do_not) {
  cr_expect_str_eq(printable("a\33[2Jb\rc\x7f\a"), "a?[2Jb?c??");
  cr_expect_str_eq(printable("\xc2\x9b" "2J\xc2\x80"), "??2J??");
  cr_expect_str_eq(printable("\x9b\x32\xc2\33"), "?2\xc2?");
  cr_expect_str_eq(printable("cut \xe2\x82"), "cut \xe2?");
}

static char logged[64];

static void keep(flp_log_level level, const char *message, void *user) {
  (void)level;
  (void)user;
  snprintf(logged, sizeof logged, "%s", message);
}

Test(printable, messages_of_the_library_are) {
  flp_fail(FLP_ERROR_DATA, "%s", "\33]0;title\a");
  cr_expect_str_eq(flp_error_detail(), "?]0;title?");
  flp_log_set(keep, NULL);
  flp_log(FLP_LOG_WARNING, "%s", "\33c");
  cr_expect_str_eq(logged, "?c");
}

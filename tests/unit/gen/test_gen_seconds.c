/* test_gen_seconds.c: templates and losses whose steps take long each: seconds of a processor end what steps do not. */
#include "tests/unit/support/gen_case.h"

/* 8000 keys in one chain, walked to its end by every step. */
#define CHAIN "local t = {} for i = 1, 8000 do t[i * 8191] = 1 end while true do local x = t[-8191] end"

static void expect_end(const char *error, const char *file, int line) {
  char start[64];
  snprintf(start, sizeof start, "%s:%d: the ", file, line);
  cr_expect_eq(strncmp(error, start, strlen(start)), 0, "%s", error);
  cr_expect(
      strstr(error, " took 10 seconds of a processor without an end") || strstr(error, "00000 steps without an end"),
      "%s", error);
}

Test(gen_seconds, a_template_of_slow_steps_is_stopped, .timeout = 900) {
  static const char text[] = "return function(k, spec)\n" CHAIN "\nend";
  flpgen_result result;
  char error[512];
  cr_expect_eq(gen_case_text(text, strlen(text), &result, error), FLP_ERROR_COMPILE);
  expect_end(error, "portable/forward.lua", 2);
  cr_expect_not_null(strstr(error, "10 seconds"), "twenty million such steps take a minute or more: %s", error);
}

Test(gen_seconds, a_loss_of_slow_steps_is_stopped, .timeout = 900) {
  static const char *const bodies[] = {CHAIN,
                                       "local s = (' '):rep(16000) .. '1' while true do for i = 1, s do break end end"};
  for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
    char text[512], error[512];
    static flpgen_loss loss;
    snprintf(text, sizeof text, "return function(row)\n%s\nreturn row.logprob end", bodies[i]);
    cr_expect_eq(flpgen_loss_trace("x.lua", text, strlen(text), &loss, error, sizeof error), FLP_ERROR_COMPILE);
    expect_end(error, "x.lua", 2);
  }
}

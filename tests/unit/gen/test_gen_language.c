/* test_gen_language.c: what the language of templates and losses takes and refuses, by tests/golden/language. */
#include "tests/unit/support/gen_replay.h"

Test(gen_language, each_is_as_it_was, .timeout = 900) {
  replay_each("language", 17, gen_replay_file, NULL);
}

Test(gen_language, what_is_no_text_is_refused) {
  static char text[(64 << 10) + 1];
  static flpgen_loss loss;
  flpgen_result result;
  char error[512];
  cr_expect_eq(gen_case_text("\x1bLua", 4, &result, error), FLP_ERROR_COMPILE);
  cr_expect_str_eq(error, "portable/forward.lua:1: a template is text, not a binary chunk");
  cr_expect_eq(flpgen_loss_trace("x.lua", "\x1bLua", 4, &loss, error, sizeof error), FLP_ERROR_COMPILE);
  cr_expect_str_eq(error, "x.lua:1: a template is text, not a binary chunk");
  memset(text, '-', sizeof text);
  cr_expect_eq(flpgen_loss_trace("x.lua", text, sizeof text, &loss, error, sizeof error), FLP_ERROR_COMPILE);
  cr_expect_str_eq(error, "x.lua:1: the file has 65537 bytes; up to 65536 are accepted");
  cr_expect_eq(flpgen_loss_builtin("gppo", &loss, error, sizeof error), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(error, "there is no built-in loss 'gppo'");
}

/* A file may stop inside any construction. 1023 tokens and the end fill the list of tokens to its last place, so that
 * the sanitized build sees a step beyond it. */
Test(gen_language, a_file_may_stop_anywhere) {
  static const char *const ends[] = {
      "function", "function f", "function f .", "function f (", "local", "local function", "local x =", "for",
      "for x ,",  "x ,",        "not",          "if",           "while", "until",          "row .",     "row",
      "k .",      "k . lt (",   "x ==",         "x == -",       "abs (", "x . y :",        "return",    "function x x"};
  enum { TOKENS = 1023, MARGIN = 8 };
  for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
    for (int n = TOKENS - MARGIN; n <= TOKENS; n++) {
      char text[4 * TOKENS] = "", error[512];
      for (int j = 0; j < n; j++) strcpy(text + 2 * j, "x ");
      strcat(text, ends[i]);
      flpgen_result result;
      static flpgen_loss loss;
      cr_expect_eq(gen_case_text(text, strlen(text), &result, error), FLP_ERROR_COMPILE, "%s", ends[i]);
      cr_expect_eq(flpgen_loss_trace("x.lua", text, strlen(text), &loss, error, sizeof error), FLP_ERROR_COMPILE);
      cr_expect_str_eq(error, "x.lua:1: syntax error near 'x'");
    }
  }
  char text[4 * TOKENS] = "function ";
  for (int j = 0; j < TOKENS - 1; j++) strcat(text, "x ");
  static flpgen_loss loss;
  char error[512];
  cr_expect_eq(flpgen_loss_trace("x.lua", text, strlen(text), &loss, error, sizeof error), FLP_ERROR_COMPILE);
  cr_expect_str_eq(error, "x.lua:1: '(' expected near 'x'");
}

/* test_modes.c: names of modes: those of flp.h, those that records of release 0.1.0 have, and others. */
#include <criterion/criterion.h>
#include <string.h>

#include "runtime/base/modes.h"

Test(modes, names_are_those_of_the_header) {
  cr_expect_str_eq(flp_mode_name(FLP_MODE_SCORE), "score");
  cr_expect_str_eq(flp_mode_name(FLP_MODE_RECOMPUTE_VOCAB), "recompute-vocab");
  cr_expect_str_eq(flp_mode_name(FLP_MODE_RECOMPUTE_ROWS), "recompute-rows");
  cr_expect_str_eq(flp_mode_name(FLP_MODE_RECOMPUTE_SPLIT), "recompute-split");
  cr_expect_str_eq(flp_mode_name(FLP_MODE_SAVE), "save");
  cr_expect_str_eq(flp_mode_name(FLP_MODE_STREAM), "stream");
  cr_expect_str_eq(flp_mode_name((flp_mode)0), "-");
  cr_expect_str_eq(flp_mode_name((flp_mode)7), "-");
  cr_expect_str_eq(flp_mode_alias((flp_mode)7), "-");
}

Test(modes, names_and_letters_are_found_in_either_case) {
  static const struct {
    const char *text;
    int mode;
  } cases[] = {{"F", 1},   {"r_vocab", 2}, {"R_ROWS", 3},          {"R2", 4}, {"r2", 4},
               {"S", 5},   {"p", 6},       {"RECOMPUTE-SPLIT", 4}, {"-", 0},  {"", 0},
               {"sav", 0}, {"save ", 0},   {"recompute", 0},       {"R", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    cr_expect_eq((int)flp_mode_find(cases[i].text), cases[i].mode, "'%s'", cases[i].text);
  for (int mode = FLP_MODE_SCORE; mode <= FLP_MODE_STREAM; mode++) {
    cr_expect_eq((int)flp_mode_find(flp_mode_name((flp_mode)mode)), mode);
    cr_expect_eq((int)flp_mode_find(flp_mode_alias((flp_mode)mode)), mode);
  }
}

/* test_names.c: every value of an enumeration has one word, and no two share one. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/names.h"

static void expect_words(const flp_word *words, const char *want) {
  char got[256] = "";
  for (const flp_word *word = words; word->name; word++) {
    size_t used = strlen(got);
    snprintf(got + used, sizeof got - used, "%s=%d ", word->name, word->value);
  }
  cr_expect_str_eq(got, want);
}

Test(names, lists_hold_every_value) {
  expect_words(FLP_ENTROPY_WORDS, "none=0 forward=1 backward=2 ");
  expect_words(FLP_GRAD_WORDS, "hidden=1 weight=2 bias=4 lora_a=8 lora_b=16 ");
  expect_words(FLP_PASS_WORDS, "forward=1 combine=2 backward=3 step=4 backward, saved=5 forward, saved=6 "
                                "backward, given=7 ");
  expect_words(FLP_OP_WORDS, "head=0 select=1 scale=2 diverge=3 loss=4 ");
  cr_expect_eq((int)FLP_OP_COUNT, 5);
  cr_expect_str_eq(flp_op_name(FLP_OP_SCALE), "scale");
  expect_words(FLP_RUNG_WORDS, "auto=0 tuned=1 heuristic=2 jit=3 generic=4 eager=5 ");
}

Test(names, dtypes_have_a_word_and_a_size) {
  static const char *const names[] = {"?", "bf16", "fp16", "fp32", "int32", "int64", "fp64", "?"};
  static const size_t bytes[] = {0, 2, 2, 4, 4, 8, 8, 0};
  for (int i = 0; i < 8; i++) {
    cr_expect_str_eq(flp_dtype_name((flp_dtype)i), names[i]);
    cr_expect_eq(flp_dtype_bytes((flp_dtype)i), bytes[i], "dtype %d", i);
  }
}

Test(names, modes_are_named_by_what_they_do) {
  char got[256] = "";
  for (int mode = -1; mode <= 11; mode++) {
    size_t used = strlen(got);
    snprintf(got + used, sizeof got - used, "%s ", flp_mode_name((flp_mode)mode));
  }
  cr_expect_str_eq(got, "- - score recompute-vocab recompute-rows recompute-split save stream direction listed tail "
                        "given - ");
  cr_expect_str_eq(flp_mode_alias((flp_mode)11), "-");
}

Test(names, modes_are_found_by_name_and_letter) {
  for (int mode = FLP_MODE_SCORE; mode <= FLP_MODE_GIVEN; mode++) {
    cr_expect_eq((int)flp_mode_find(flp_mode_name((flp_mode)mode)), mode);
    cr_expect_eq((int)flp_mode_find(flp_mode_alias((flp_mode)mode)), mode);
  }
}

Test(names, modes_that_keep_something_are_two) {
  for (int mode = 0; mode <= FLP_MODE_DIRECTION; mode++)
    cr_expect_eq(flp_mode_keeps((flp_mode)mode), mode == FLP_MODE_SAVE || mode == FLP_MODE_DIRECTION, "mode %d", mode);
}

Test(names, unknown_values_have_none) {
  cr_expect_str_eq(flp_entropy_name((flp_entropy)3), "?");
  cr_expect_str_eq(flp_op_name((flp_op)99), "?");
  cr_expect_str_eq(flp_rung_name((flp_rung)6), "unknown");
}

Test(names, a_mask_of_gradients_is_a_list) {
  char text[FLP_GRADS_TEXT_BYTES];
  cr_expect_str_eq(flp_grads_text(0, ",", text), "");
  cr_expect_str_eq(flp_grads_text(FLP_GRAD_WEIGHT, ",", text), "weight");
  cr_expect_str_eq(flp_grads_text(FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS, "+", text), "hidden+weight+bias");
}

/* test_features.c: every pair of what a head may be asked for: refused in one sentence, or taken. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/api/validate.h"
#include "runtime/kernel/features.h"
#include "tests/unit/support/gen_case.h"
#include "tests/unit/support/words.h"

/* What asks for each; those that others are cases of come first. */
static const char *const words[FLP_FEATURE_NONE] = {
    [FLP_FEATURE_KEEP] = "keep",         [FLP_FEATURE_LISTED] = "listed",
    [FLP_FEATURE_TAIL] = "tail=2^-9",    [FLP_FEATURE_TARGETS] = "targets=4",
    [FLP_FEATURE_TOPK] = "topk=3",       [FLP_FEATURE_RANK] = "rank",
    [FLP_FEATURE_LORA] = "lora=8",       [FLP_FEATURE_MIXED] = "mixed=round hidden=fp32",
    [FLP_FEATURE_LOSS] = "loss=grpo",    [FLP_FEATURE_SLICES] = "mixed=split hidden=fp32",
    [FLP_FEATURE_SCORES] = "loss=cross_entropy",
    [FLP_FEATURE_STATISTICS] = "statistics", [FLP_FEATURE_RAW] = "raw-scores"};

static const struct {
  flp_feature one;
  const char *others, *because;
} apart[] = {
#define B(id) #id " "
#define PAIRS(id, others, because) {FLP_FEATURE_##id, others, because},
    FLP_APART(PAIRS)
#undef PAIRS
#undef B
};

static const char *const names[] = {
#define NAME(id, field, keyword, asked) #id " ",
    FLP_FEATURES(NAME)
#undef NAME
};

enum { APART = sizeof apart / sizeof apart[0] };

/* The row that says why some of these do not go together; APART if they do. */
static size_t row_of(uint32_t features) {
  for (size_t i = 0; i < APART; i++)
    for (int other = 0; features >> apart[i].one & 1 && other < FLP_FEATURE_NONE; other++)
      if (features >> other & 1 && strstr(apart[i].others, names[other])) return i;
  return APART;
}

static void expect_pair(int one, int other) {
  flp_spec spec = words_spec("grads=hidden"), out;
  words_change_spec(&spec, words[one]);
  words_change_spec(&spec, words[other]);
  uint32_t features = flp_features_of(&spec);
  const char *because = row_of(features) < APART ? apart[row_of(features)].because : NULL;
  cr_expect(features >> one & 1 && features >> other & 1, "%s%s", names[one], names[other]);
  flp_status status = flp_spec_resolve(&spec, &out);
  cr_expect_eq(status, because ? FLP_ERROR_ARGUMENT : FLP_OK, "%s%s: %s", names[one], names[other], flp_error_detail());
  if (!because) return;
  cr_expect_not_null(strstr(flp_error_detail(), because), "%s", flp_error_detail());
  cr_expect(strstr(flp_error_detail(), " is set beside spec.") && strstr(flp_error_detail(), "(accepted: 0)"), "%s",
            flp_error_detail());
  cr_expect_eq(flp_features_check(&spec, FLP_SURFACE_OPTION), FLP_ERROR_ARGUMENT);
  cr_expect(strncmp(flp_error_detail(), "--", 2) == 0 && strstr(flp_error_detail(), ": not accepted beside --"), "%s",
            flp_error_detail());
}

Test(features, every_pair) {
  int pairs = 0;
  for (int one = 0; one < FLP_FEATURE_NONE; one++)
    for (int other = one + 1; other < FLP_FEATURE_NONE; other++, pairs++) expect_pair(one, other);
  cr_expect_eq(pairs, FLP_FEATURE_NONE * (FLP_FEATURE_NONE - 1) / 2);
}

Test(features, the_matrix_of_the_manual_is_current) {
  static char text[16384];
  FILE *out = fmemopen(text, sizeof text, "w");
  fprintf(out,
          "# What goes together\n"
          "Every pair of features that is not numbered is accepted, and means both. Written by\n"
          "`tests/unit/kernel/test_features.c` from the rows of `runtime/base/fields.h`, whose names these are.\n\n"
          "| |");
  for (int one = 0; one < FLP_FEATURE_NONE; one++) fprintf(out, " %s|", names[one]);
  fprintf(out, "\n|-|-|-|-|-|-|-|-|-|-|-|-|");
  for (int one = 0; one < FLP_FEATURE_NONE; one++) {
    fprintf(out, "\n| %s|", names[one]);
    for (int other = 0; other < FLP_FEATURE_NONE; other++) {
      flp_spec spec = words_spec("grads=hidden");
      words_change_spec(&spec, words[one]);
      words_change_spec(&spec, words[other]);
      size_t row = row_of(flp_features_of(&spec));
      char number[24] = "✓";
      if (row < APART) snprintf(number, sizeof number, "%zu", row + 1);
      fprintf(out, " %s |", one == other ? "" : number);
    }
  }
  fprintf(out, "\n\n");
  for (size_t i = 0; i < APART; i++)
    fprintf(out, "%zu. not beside %s: %s\n", i + 1, names[apart[i].one], apart[i].because);
  fprintf(out,
          "\nSLICES: an fp32 weight, or `mixed` SPLIT, which kernels take slice by slice. SCORES: a loss that reads\n"
          "`lse` or `mean_score`. Of two that do the same one decides: lists before tails, tails before what is saved.\n"
          "TAIL beside TARGETS or SCORES: gradients are exact. SCORES beside LISTED: those of lists.\n");
  fclose(out);
  gen_case_golden(FLP_TEST_TREE "/docs/together.md", text);
}

Test(features, a_sentence_names_both_and_the_reason) {
  flp_spec spec = words_spec("rank targets=4"), out;
  cr_assert_eq(flp_spec_resolve(&spec, &out), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(), "spec.rank is set beside spec.targets, as it is of one (accepted: 0)");
  cr_assert_eq(flp_features_check(&spec, FLP_SURFACE_OPTION), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(), "--rank: not accepted beside --targets, as it is of one");
}

/* test_features.c: every pair of what a head may be asked for: refused in one sentence, or taken. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/api/validate.h"
#include "runtime/kernel/features.h"

static uint8_t one_target[FLP_LOSS_BYTES_MAX], all_scores[FLP_LOSS_BYTES_MAX];

static void set_loss(flp_spec *spec, const char *name, uint8_t *program) {
  cr_assert_eq(flp_loss_builtin_bytes(name, program, FLP_LOSS_BYTES_MAX, &spec->loss_bytes), FLP_OK);
  spec->loss = program;
}

/* A spec that asks for this too; those that others are cases of come first. */
static void ask(flp_spec *spec, flp_feature feature) {
  if (feature == FLP_FEATURE_KEEP) spec->keep = 1;
  if (feature == FLP_FEATURE_LISTED) spec->listed = 1;
  if (feature == FLP_FEATURE_TAIL) spec->tail = 0x1p-9f;
  if (feature == FLP_FEATURE_TARGETS) spec->targets = 4;
  if (feature == FLP_FEATURE_TOPK) spec->topk = 3;
  if (feature == FLP_FEATURE_RANK) spec->rank = 1;
  if (feature == FLP_FEATURE_LORA) spec->lora_rank = 8;
  if (feature == FLP_FEATURE_MIXED) spec->mixed = FLP_MIXED_ROUND, spec->hidden_dtype = FLP_DTYPE_FP32;
  if (feature == FLP_FEATURE_SLICES) spec->mixed = FLP_MIXED_SPLIT, spec->hidden_dtype = FLP_DTYPE_FP32;
  if (feature == FLP_FEATURE_LOSS) set_loss(spec, "grpo", one_target);
  if (feature == FLP_FEATURE_SCORES) set_loss(spec, "cross_entropy", all_scores);
}

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

/* Why some of these do not go together; NULL if they do. */
static const char *reason(uint32_t features) {
  for (size_t i = 0; i < sizeof apart / sizeof apart[0]; i++)
    for (int other = 0; features >> apart[i].one & 1 && other < FLP_FEATURE_NONE; other++)
      if (features >> other & 1 && strstr(apart[i].others, names[other])) return apart[i].because;
  return NULL;
}

static void expect_pair(int one, int other) {
  flp_spec spec = FLP_SPEC_INIT, out;
  spec.vocab = 1000, spec.hidden = 64, spec.grads = FLP_GRAD_HIDDEN;
  ask(&spec, (flp_feature)one);
  ask(&spec, (flp_feature)other);
  uint32_t features = flp_features_of(&spec);
  const char *because = reason(features);
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

Test(features, a_sentence_names_both_and_the_reason) {
  flp_spec spec = FLP_SPEC_INIT, out;
  spec.vocab = 1000, spec.hidden = 64, spec.grads = FLP_GRAD_HIDDEN, spec.keep = 1, spec.lora_rank = 8;
  cr_assert_eq(flp_spec_resolve(&spec, &out), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(),
                   "spec.keep is set beside spec.lora_rank, whose passes recompute (accepted: 0)");
  cr_assert_eq(flp_features_check(&spec, FLP_SURFACE_OPTION), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(), "--keep: not accepted beside --lora-rank, whose passes recompute");
}

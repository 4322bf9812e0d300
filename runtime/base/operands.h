/* operands.h: dtypes of a head's operands, as they stand in memory and as products take them, of specs whether resolved or
 * not; and whether a call has the whole head. Products take spec.dtype; an operand of another dtype, which is FP32,
 * becomes one or two terms of it (flp_mixed). */
#ifndef FLP_OPERANDS_H
#define FLP_OPERANDS_H

#include "runtime/flp.h"

static inline flp_dtype flp_hidden_dtype(const flp_spec *spec) {
  return spec->hidden_dtype ? spec->hidden_dtype : spec->dtype;
}

static inline flp_dtype flp_weight_dtype(const flp_spec *spec) {
  return spec->weight_dtype ? spec->weight_dtype : spec->dtype;
}

/* Where bias_dtype says nothing. */
static inline flp_dtype flp_usual_bias_dtype(const flp_spec *spec) {
  return spec->mixed == FLP_MIXED_SPLIT ? spec->dtype : flp_weight_dtype(spec);
}

static inline flp_dtype flp_bias_dtype(const flp_spec *spec) {
  return spec->bias_dtype ? spec->bias_dtype : flp_usual_bias_dtype(spec);
}

/* Terms along K of each operand that products take. */
static inline int flp_operand_terms(const flp_spec *spec) {
  return spec->mixed == FLP_MIXED_SPLIT ? 2 : 1;
}

/* 1 if products take terms of the weight that a slice of it has in the workspace. */
static inline int flp_weight_is_sliced(const flp_spec *spec) {
  return flp_weight_dtype(spec) != spec->dtype || spec->mixed == FLP_MIXED_SPLIT;
}

/* 1 if they take terms of hidden that stand in the workspace. */
static inline int flp_hidden_is_made(const flp_spec *spec) {
  return flp_hidden_dtype(spec) != spec->dtype || spec->mixed == FLP_MIXED_SPLIT;
}

/* K, the targets of a row: at least 1, as spec.targets may be 0. */
static inline int64_t flp_spec_targets(const flp_spec *spec) {
  return spec->targets > 1 ? spec->targets : 1;
}

/* 1 if a backward pass of a resolved spec may be given the gradient of raw scores. */
static inline int flp_spec_takes_scores(const flp_spec *spec) {
  int is_plain = !spec->lora_rank && !spec->listed && !flp_hidden_is_made(spec) && !flp_weight_is_sliced(spec);
  return spec->raw_scores && is_plain && flp_spec_targets(spec) == 1 && spec->grads && !(spec->grads & FLP_GRAD_BIAS);
}

/* 1 if resolved arguments cover all of the vocabulary, not a shard of it. */
static inline int flp_args_are_whole(const flp_args *args) {
  return args->vocab_offset == 0 && args->vocab_valid == args->vocab_total;
}

#endif

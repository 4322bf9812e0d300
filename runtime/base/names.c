/* names.c: see names.h. */
#include "runtime/base/names.h"

#include <stdio.h>
#include <strings.h>

#define DTYPE(value, word, bytes) {word, FLP_DTYPE_##value},
#define ENTROPY(value, word) {word, FLP_ENTROPY_##value},
#define GRAD(value, word) {word, FLP_GRAD_##value},
#define MIXED(value, word) {word, FLP_MIXED_##value},
#define OP(value, word) {#word, FLP_OP_##value},
#define PASS(value, word) {word, FLP_PASS_##value},
#define RUNG(value, word) {word, FLP_RUNG_##value},
const flp_word FLP_ENTROPY_WORDS[] = {FLP_ENTROPIES(ENTROPY){NULL, 0}};
const flp_word FLP_GRAD_WORDS[] = {FLP_GRADS(GRAD){NULL, 0}};
const flp_word FLP_MIXED_WORDS[] = {FLP_MIXEDS(MIXED){NULL, 0}};
const flp_word FLP_OP_WORDS[] = {FLP_OPS(OP){NULL, 0}};
const flp_word FLP_PASS_WORDS[] = {FLP_PASSES(PASS){NULL, 0}};
const flp_word FLP_RUNG_WORDS[] = {FLP_RUNGS(RUNG){NULL, 0}};
const flp_word FLP_OPERAND_DTYPE_WORDS[] = {FLP_OPERAND_DTYPES(DTYPE){NULL, 0}};
const flp_word FLP_SCORE_DTYPE_WORDS[] = {FLP_SCORE_DTYPES(DTYPE){NULL, 0}};
const flp_word FLP_TARGET_DTYPE_WORDS[] = {FLP_TARGET_DTYPES(DTYPE){NULL, 0}};
#undef DTYPE
#undef ENTROPY
#undef GRAD
#undef MIXED
#undef OP
#undef PASS
#undef RUNG

const char *flp_word_of(const flp_word *words, int value, const char *none) {
  for (; words->name; words++)
    if (words->value == value) return words->name;
  return none;
}

const char *flp_entropy_name(flp_entropy entropy) {
  return flp_word_of(FLP_ENTROPY_WORDS, (int)entropy, "?");
}

const char *flp_mixed_name(flp_mixed mixed) {
  return flp_word_of(FLP_MIXED_WORDS, (int)mixed, "?");
}

const char *flp_op_name(flp_op op) {
  return flp_word_of(FLP_OP_WORDS, (int)op, "?");
}

const char *flp_pass_name(flp_pass pass) {
  return flp_word_of(FLP_PASS_WORDS, (int)pass, "?");
}

const char *flp_rung_name(flp_rung rung) {
  return flp_word_of(FLP_RUNG_WORDS, (int)rung, "unknown");
}

static const struct {
  const char *name;
  size_t bytes;
} dtypes[] = {
#define DTYPE(value, word, element_bytes) [FLP_DTYPE_##value] = {word, element_bytes},
    FLP_DTYPES(DTYPE)
#undef DTYPE
};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

const char *flp_dtype_name(flp_dtype dtype) {
  size_t i = (size_t)dtype;
  return i < DTYPES && dtypes[i].name ? dtypes[i].name : "?";
}

size_t flp_dtype_bytes(flp_dtype dtype) {
  size_t i = (size_t)dtype;
  return i < DTYPES ? dtypes[i].bytes : 0;
}

static const struct {
  const char *name, *alias;
} modes[] = {{"-", "-"},
#define MODE(value, word, letters) [FLP_MODE_##value] = {word, letters},
             FLP_MODES(MODE)
#undef MODE
};
enum { MODES = sizeof modes / sizeof modes[0] };

const char *flp_mode_name(flp_mode mode) {
  return modes[(size_t)mode < MODES ? mode : 0].name;
}

const char *flp_mode_alias(flp_mode mode) {
  return modes[(size_t)mode < MODES ? mode : 0].alias;
}

flp_mode flp_mode_find(const char *text) {
  for (int mode = 1; mode < MODES; mode++)
    if (strcasecmp(text, modes[mode].name) == 0 || strcasecmp(text, modes[mode].alias) == 0) return (flp_mode)mode;
  return (flp_mode)0;
}

const char *flp_grads_text(uint32_t grads, const char *between, char out[FLP_GRADS_TEXT_BYTES]) {
  size_t used = 0;
  out[0] = 0;
  for (const flp_word *word = FLP_GRAD_WORDS; word->name && used < FLP_GRADS_TEXT_BYTES; word++)
    if (grads & (uint32_t)word->value)
      used += (size_t)snprintf(out + used, FLP_GRADS_TEXT_BYTES - used, "%s%s", used ? between : "", word->name);
  return out;
}

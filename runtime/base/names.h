/* names.h: the words for the enumerations of flp.h, one list each: for messages, keys of kernels, options and JSON.
 *
 * A list is X(value, word, ...) for each value, in the order in which people are shown them. */
#ifndef FLP_NAMES_H
#define FLP_NAMES_H

#include <stddef.h>

#include "runtime/flp.h"

#define FLP_ENTROPY_VALUES(X) X(NONE, "none") X(FORWARD, "forward")
#define FLP_ENTROPIES(X) FLP_ENTROPY_VALUES(X) X(BACKWARD, "backward")
#define FLP_GRADS(X)                                     \
  X(HIDDEN, "hidden") X(WEIGHT, "weight") X(BIAS, "bias") \
  X(LORA_A, "lora_a") X(LORA_B, "lora_b")
#define FLP_OPS(X) X(HEAD, head) X(SELECT, select) X(SCALE, scale) X(DIVERGE, diverge) X(LOSS, loss)
#define FLP_MIXEDS(X) X(NONE, "none") X(ROUND, "round") X(SPLIT, "split")
#define FLP_PASSES(X)                                                                                \
  X(FORWARD, "forward")                                                                              \
  X(COMBINE, "combine") X(BACKWARD, "backward") X(STEP, "step") X(BACKWARD_SAVED, "backward, saved") \
      X(FORWARD_SAVED, "forward, saved") X(BACKWARD_GIVEN, "backward, given")
#define FLP_PASS_LAST FLP_PASS_BACKWARD_GIVEN
#define FLP_RUNGS(X) \
  X(AUTO, "auto") X(TUNED, "tuned") X(HEURISTIC, "heuristic") X(JIT, "jit") X(GENERIC, "generic") X(EAGER, "eager")

/* With the bytes of an element. */
#define FLP_OPERAND_DTYPES(X) X(BF16, "bf16", 2) X(FP16, "fp16", 2) X(FP32, "fp32", 4)
#define FLP_TARGET_DTYPES(X) X(INT32, "int32", 4) X(INT64, "int64", 8)
#define FLP_SCORE_DTYPES(X) FLP_OPERAND_DTYPES(X) X(FP64, "fp64", 8) /* scores that exist already */
#define FLP_DTYPES(X) FLP_SCORE_DTYPES(X) FLP_TARGET_DTYPES(X)

/* With the alias by which the first records name the mode, accepted wherever a mode is read. */
#define FLP_MODES(X)                                                                       \
  X(SCORE, "score", "F")                                                                   \
  X(RECOMPUTE_VOCAB, "recompute-vocab", "R_VOCAB") X(RECOMPUTE_ROWS, "recompute-rows", "R_ROWS") \
  X(RECOMPUTE_SPLIT, "recompute-split", "R2") X(SAVE, "save", "S") X(STREAM, "stream", "P") \
  X(DIRECTION, "direction", "D") X(LISTED, "listed", "L") X(TAIL, "tail", "T") X(GIVEN, "given", "G")

#define FLP_COUNT_ONE(value, word) +1
enum { FLP_OP_COUNT = 0 FLP_OPS(FLP_COUNT_ONE) };
#undef FLP_COUNT_ONE

/* A value and its word. A list of them ends with a NULL name. */
typedef struct flp_word {
  const char *name;
  int value;
} flp_word;

extern const flp_word FLP_ENTROPY_WORDS[], FLP_GRAD_WORDS[], FLP_MIXED_WORDS[], FLP_OP_WORDS[], FLP_PASS_WORDS[],
    FLP_RUNG_WORDS[], FLP_OPERAND_DTYPE_WORDS[], FLP_SCORE_DTYPE_WORDS[], FLP_TARGET_DTYPE_WORDS[];

/* The word of a value among them; none where there is no such value. */
const char *flp_word_of(const flp_word *words, int value, const char *none);

/* The word of a value; "?" where there is none. flp.h declares flp_rung_name and flp_mode_name. */
const char *flp_entropy_name(flp_entropy entropy);
const char *flp_mixed_name(flp_mixed mixed);
const char *flp_op_name(flp_op op);
const char *flp_pass_name(flp_pass pass);
const char *flp_dtype_name(flp_dtype dtype);
/* The mode's alias; "-" where there is none. */
const char *flp_mode_alias(flp_mode mode);
/* The mode of that name or alias, in letters of either case; 0 if there is none. */
flp_mode flp_mode_find(const char *text);

/* 1 if forward keeps something for backward in that mode (flp_args.saved). */
static inline int flp_mode_keeps(flp_mode mode) {
  return mode == FLP_MODE_SAVE || mode == FLP_MODE_DIRECTION || mode == FLP_MODE_TAIL;
}

size_t flp_dtype_bytes(flp_dtype dtype); /* of an element; 0 if unknown */

/* The words of a mask of FLP_GRAD_*, divided by that text: "hidden,weight"; "" for 0. Returns out. */
enum { FLP_GRADS_TEXT_BYTES = 48 };
const char *flp_grads_text(uint32_t grads, const char *between, char out[FLP_GRADS_TEXT_BYTES]);

#endif

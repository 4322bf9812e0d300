/* fields.h: what a call may be asked for, each thing once: the fields of flp_spec, the features among them, and which
 * of these do not go together. Texts, JSON, options of the command, plan ids, checks, refusals and Python's struct are
 * loops over these rows.
 *
 * X(type, field, KIND, words, usual, step, least, most, FEATURE, shown, option, argument, help), in the struct's order
 *   KIND      how it is read and written: see flp_field_kind
 *   words     of names.h, for KINDs that have words, or NULL
 *   usual     the value that texts leave out, of a spec s, beside 0
 *   step, least, most  of an INTEGER: accepted are multiples of step within; and 0, where it has a feature
 *   FEATURE   that it is the field of, or NONE
 *   shown     how a spec's text begins it; NULL: the text leaves it out
 *   option, argument, help  of the command
 * H(type, field): what no text shows and no option sets. */
#ifndef FLP_FIELDS_H
#define FLP_FIELDS_H

#include "runtime/base/names.h"
#include "runtime/base/operands.h"

/* Kernels index rows and columns in 32 bits, tiles past the end included; the same bound keeps every workspace size
 * of the planner below 2^64: 12 bytes · 2^30 rows · 2^30 groups. */
enum { FLP_COUNT_MAX = 1 << 30, FLP_HIDDEN_MAX = 1 << 20 };

/* Of --loss, whatever takes it. */
#define FLP_LOSS_HELP                                                                                      \
  "what a training step minimises: a name of `flpgen loss list`, a file that ends in .lua, or a sum such " \
  "as grpo+k3; divergences, such as forward_kl and jsd, are of --targets K"

/* clang-format off */
#define FLP_SPEC_FIELDS(X, H)                                                                                          \
  X(flp_dtype, dtype, WORD, FLP_SCORE_DTYPE_WORDS, 0, 1, 1, 0, NONE, "", "dtype", "T",                                 \
    "bf16 (default), fp16 or fp32; with --op select fp64 too")                                                         \
  X(int64_t, vocab, INTEGER, NULL, 0, 1, 2, FLP_COUNT_MAX, NONE, "V=", "vocab", "V",                                   \
    "rows of the head's weight, at least 2")                                                                           \
  X(int64_t, hidden, INTEGER, NULL, 0, 8, 8, FLP_HIDDEN_MAX, NONE, "D=", "hidden", "D",                                \
    "columns of hidden states and weight, a multiple of 8")                                                            \
  X(flp_dtype, target_dtype, WORD, FLP_TARGET_DTYPE_WORDS, FLP_DTYPE_INT64, 1, 0, 0, NONE, NULL, "target-dtype", "T",  \
    "int64 (default) or int32")                                                                                        \
  X(flp_entropy, entropy, WORD, FLP_ENTROPY_WORDS, 0, 1, 0, 0, NONE, "entropy=", "entropy", "WHICH",                   \
    "none (default, or what --loss needs), forward, or backward: with its gradient")                                   \
  X(uint32_t, grads, FLAGS, FLP_GRAD_WORDS, 0, 1, 0, 0, NONE, "grads=", "grad", "LIST",                                \
    "gradients: any of hidden,weight,bias")                                                                            \
  X(int32_t, has_bias, SWITCH, NULL, 0, 1, 0, 1, NONE, "bias", "bias", NULL, "the head has a bias")                    \
  X(float, softcap, NUMBER, NULL, 0, 1, 0, 0, NONE, "softcap=", "softcap", "X",                                        \
    "scores become X*tanh(score/X), X > 0")                                                                            \
  X(int32_t, per_row_temperature, SWITCH, NULL, 0, 1, 0, 1, NONE, "per-row-temperature", "per-row-temperature", NULL,  \
    "one temperature per row, not one in all")                                                                         \
  X(flp_dtype, grad_hidden_dtype, WORD, FLP_OPERAND_DTYPE_WORDS, flp_hidden_dtype(s), 1, 0, 0, NONE, NULL,             \
    "grad-hidden-dtype", "T", "the dtype (default) or fp32")                                                           \
  X(flp_dtype, grad_weight_dtype, WORD, FLP_OPERAND_DTYPE_WORDS, flp_weight_dtype(s), 1, 0, 0, NONE, NULL,             \
    "grad-weight-dtype", "T", "the dtype (default) or fp32")                                                           \
  X(int32_t, accumulate_grad_weight, SWITCH, NULL, 0, 1, 0, 1, NONE, "accumulate-grad-weight",                         \
    "accumulate-grad-weight", NULL, "add to an fp32 weight gradient of the caller")                                    \
  X(uint32_t, alignment, INTEGER, NULL, 16, 1, 2, 16, NONE, NULL, "alignment", "BYTES",                                \
    "of every operand's base and row stride: 16 (default), 8, 4 or 2")                                                 \
  X(flp_op, op, WORD, FLP_OP_WORDS, 0, 1, 0, 0, NONE, "op=", "op", "WHICH",                                            \
    "head (default): from hidden states and weight; select: from scores that exist already, with --vocab, --dtype, "   \
    "--entropy, --target-dtype and --alignment alone; scale: gradients that exist already, times a factor, with "      \
    "--vocab (their columns), --dtype and --alignment alone; diverge: how far two rows of fp32 scores are apart, "     \
    "with --vocab, --loss, --dtype (of the gradient) and --alignment alone; loss: of log-probabilities that "          \
    "exist already, with --vocab, --loss and --entropy alone")                                                         \
  X(int32_t, keep, SWITCH, NULL, 0, 1, 0, 1, KEEP, "keep", "keep", NULL,                                               \
    "a forward pass may keep something for the backward pass: where hidden alone has a gradient and the entropy "      \
    "none, sums of the weight's rows, 4 bytes an element of hidden (mode direction, D), else exponentials, 2 bytes a " \
    "score (mode save, S); needs --grad and bf16")                                                                     \
  X(const void *, loss, LOSS, NULL, 0, 1, 0, 0, LOSS, "loss=", "loss", "LOSS",                                         \
    FLP_LOSS_HELP "; mode stream (P) streams its steps")                                                               \
  H(size_t, loss_bytes)                                                                                                \
  X(flp_dtype, grad_bias_dtype, WORD, FLP_OPERAND_DTYPE_WORDS, flp_bias_dtype(s), 1, 0, 0, NONE, NULL,                 \
    "grad-bias-dtype", "T", "that of the bias (default), the dtype or fp32")                                           \
  X(int32_t, listed, LISTS, NULL, 0, 1, 0, 1, LISTED, "listed", "keep-set", "MEAN",                                    \
    "of each row only the columns of a list count, as a sampler's top-p or top-k mask leaves them (mode listed, L); "  \
    "where lists are drawn they have MEAN ids a row on average, a number from 1 to V; kernels are the same for any")   \
  X(float, tail, SHARE, NULL, 0, 1, 0, 0, TAIL, "tail=", "tail", "VALUE",                                              \
    "of all elements of the scores' gradient, the backward pass or step may leave out so much of the sum of "          \
    "magnitudes: 2^-20 to 2^-2, as 2^-9, 1/512 or 0.002 (mode tail, T); rows whose tail counts are recomputed; needs " \
    "--grad")                                                                                                          \
  X(int32_t, targets, INTEGER, NULL, 1, 1, 1, FLP_TARGETS_MAX, TARGETS, "targets=", "targets", "K",                    \
    "of each row the logprobs of K columns, 1 to 512, as the most likely ones of a teacher; with gradients of all; "   \
    "the normalisation is over all columns; --loss is one over several targets then")                                  \
  X(int32_t, topk, INTEGER, NULL, 0, 1, 1, FLP_TOPK_MAX, TOPK, "topk=", "topk", "K",                                   \
    "forward gives the best K columns of each row too, 1 to 128: ids, logprobs and the mass of all others")            \
  X(int32_t, rank, SWITCH, NULL, 0, 1, 0, 1, RANK, "rank", "rank", NULL,                                               \
    "and the rank of each target: how many columns have a higher score")                                               \
  X(flp_dtype, hidden_dtype, WORD, FLP_OPERAND_DTYPE_WORDS, s->dtype, 1, 0, 0, NONE, "hidden=", "hidden-dtype", "T",   \
    "the dtype (default), or with --mixed fp32")                                                                       \
  X(flp_dtype, weight_dtype, WORD, FLP_OPERAND_DTYPE_WORDS, s->dtype, 1, 0, 0, NONE, "weight=", "weight-dtype", "T",   \
    "the dtype (default), or with --mixed fp32; of hidden and weight one")                                             \
  X(flp_dtype, bias_dtype, WORD, FLP_OPERAND_DTYPE_WORDS, flp_usual_bias_dtype(s), 1, 0, 0, NONE, "bias=",             \
    "bias-dtype", "T", "that of the weight (default; with --mixed split the dtype), the dtype, or with --mixed round " \
    "fp32")                                                                                                            \
  X(flp_mixed, mixed, WORD, FLP_MIXED_WORDS, 0, 1, 0, 0, MIXED, "mixed=", "mixed", "HOW",                              \
    "how an fp32 operand meets one of 16 bits: round, rounded to it; split, as two terms of it, in two products")      \
  X(int32_t, lora_rank, INTEGER, NULL, 0, 8, 8, FLP_LORA_RANK_MAX, LORA, "lora=", "lora-rank", "R",                    \
    "a low-rank adapter on the head, A (R, D) and B (V, R), R a multiple of 8 up to 512, and a frozen weight; --grad " \
    "takes lora_a and lora_b then")                                                                                    \
  X(flp_dtype, grad_lora_dtype, WORD, FLP_OPERAND_DTYPE_WORDS, s->dtype, 1, 0, 0, NONE, NULL, "grad-lora-dtype", "T",  \
    "of the gradients of A and B: the dtype (default) or fp32")                                                        \
  X(int32_t, statistics, SWITCH, NULL, 0, 1, 0, 1, STATISTICS, "statistics", "statistics", NULL,                       \
    "of each row the log-sum-exp, the mean of its scores, log of the sum of p^2, and whether the target is the best")  \
  X(int32_t, raw_scores, SWITCH, NULL, 0, 1, 0, 1, RAW, "raw-scores", "raw-scores", NULL,                              \
    "forward stores the raw scores of every column too, hidden times weight and bias, 4 bytes each")

/* What a head may be asked for beside the usual: F(ID, field, keyword of Python or NULL, whether a spec s asks for it).
 * kernel/features.h finds out. */
#define FLP_FEATURES(F)                                            \
  F(KEEP, keep, "save", s->keep)                                   \
  F(LISTED, listed, "keep", s->listed)                             \
  F(TAIL, tail, "tail", s->tail != 0)                              \
  F(TARGETS, targets, "target", s->targets > 1)                    \
  F(TOPK, topk, "topk", s->topk)                                   \
  F(RANK, rank, "rank", s->rank)                                   \
  F(LORA, lora_rank, "lora", s->lora_rank)                         \
  F(STATISTICS, statistics, "statistics", s->statistics)           \
  F(RAW, raw_scores, NULL, s->raw_scores)                          \
  F(MIXED, mixed, "mixed", s->mixed)                               \
  F(SLICES, mixed, "slices", s->mixed && flp_weight_is_sliced(s))  \
  F(LOSS, loss, "loss", s->loss != NULL)                           \
  F(SCORES, loss, "scores", flp_kernel_spec_has_scores_loss(s))

/* What one goes without, and why: A(ID, others, clause). A pair stands once. */
#define FLP_APART(A)                                                                                                   \
  A(LISTED, B(TARGETS) B(RAW), "whose columns are few already")                                                        \
  A(TARGETS, B(RANK) B(SCORES), "as it is of one")
/* clang-format on */

typedef enum flp_feature {
#define FLP_FEATURE_ID(id, field, keyword, asked) FLP_FEATURE_##id,
  FLP_FEATURES(FLP_FEATURE_ID)
#undef FLP_FEATURE_ID
      FLP_FEATURE_NONE /* and how many there are */
} flp_feature;

typedef enum flp_field_kind {
  FLP_FIELD_INTEGER,
  FLP_FIELD_SWITCH, /* 0 or 1 */
  FLP_FIELD_WORD,   /* one of its words */
  FLP_FIELD_FLAGS,  /* any of them */
  FLP_FIELD_NUMBER, /* a float above 0, or 0 for none */
  FLP_FIELD_SHARE,  /* a float that people choose as a power of two */
  FLP_FIELD_LISTS,  /* a switch; its option says how long lists are that are drawn */
  FLP_FIELD_LOSS    /* a program */
} flp_field_kind;

typedef enum flp_field_id {
#define FLP_FIELD_ID(type, field, kind, words, usual, step, least, most, feature, shown, option, argument, help) \
  FLP_FIELD_##field,
#define FLP_FIELD_NO_ID(type, field)
  FLP_SPEC_FIELDS(FLP_FIELD_ID, FLP_FIELD_NO_ID)
#undef FLP_FIELD_ID
#undef FLP_FIELD_NO_ID
      FLP_SPEC_FIELD_COUNT
} flp_field_id;

typedef struct flp_field {
  const char *name, *shown, *option;
  const flp_word *words;
  flp_field_kind kind;
  flp_feature feature;
  uint32_t offset, bytes; /* in flp_spec */
  int64_t step, least, most;
  int64_t (*usual)(const flp_spec *spec);
} flp_field;

/* By flp_field_id. */
extern const flp_field FLP_SPEC_FIELD[FLP_SPEC_FIELD_COUNT];

/* The value of a field that is neither NUMBER, SHARE nor LOSS. */
int64_t flp_field_get(const flp_field *field, const flp_spec *spec);
void flp_field_set(const flp_field *field, flp_spec *spec, int64_t value);
/* That of one that is NUMBER or SHARE. */
float flp_field_number(const flp_field *field, const flp_spec *spec);
void flp_field_set_number(const flp_field *field, flp_spec *spec, float value);
/* Whether a spec has another value than the usual one. */
int flp_field_is_set(const flp_field *field, const flp_spec *spec);
/* The value as the command's option takes it, of a field that is no LOSS; "" of a SWITCH. Returns out. */
enum { FLP_FIELD_TEXT_BYTES = 48 };
const char *flp_field_text(const flp_field *field, const flp_spec *spec, char out[FLP_FIELD_TEXT_BYTES]);
/* A power of two by its exponent, "2^-9"; else the number. Returns out. */
const char *flp_share_text(float share, char out[FLP_FIELD_TEXT_BYTES]);

#endif

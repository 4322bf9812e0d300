/* args.h: what one call passes, each thing once: the fields of flp_args. Checks, the buffers and files of the command and
 * Python's struct are loops over these rows.
 *
 * Rows have the struct's order. S(type, field) is a number, P(type, field, count) several pointers of vectors by row.
 * A(type, field, ROWS, COLUMNS, ELEMENT, base, WAY, passes, asked, must, unasked, elsewhere) is an array, M(...) one with a
 * field_stride behind it:
 *   ROWS, COLUMNS  its shape: see FLP_SIZES
 *   ELEMENT        what it holds: see FLP_ELEMENTS
 *   base           bytes that its base is a multiple of; 0: the element's, of M also spec.alignment
 *   WAY            IN: is read; OUT: is written; SPACE: is for the library. EACH: is written, by each vocab shard its own
 *   passes         a letter for each of forward, combine, backward, step:
 *                    m  must be there, where it has rows      M  must, even without rows
 *                    o  may be there                          x  must not be there
 *                    w  may, of a whole head; must not of a shard
 *                    p  may, of a whole head; must of a shard
 *                    b  must where args.partial is there      l  as the loss says
 *                    u  must, with rows, and g may be there, but neither where args.grad_raw_scores is
 *                    -  is not looked at
 *   asked          whether a spec s has it at all; by no other spec is it taken where a pass looks at it
 *   must, unasked, elsewhere  why it must be there; why not of such a spec; why not in that pass */
#ifndef FLP_ARGS_H
#define FLP_ARGS_H

#include "runtime/base/operands.h"

/* clang-format off */
#define FLP_ARGS_FIELDS(S, A, M, P)                                                                                    \
  S(flp_pass, pass)                                                                                                    \
  S(int64_t, n)                                                                                                        \
  M(const void *, hidden, N, D, HIDDEN, 0, IN, "m-mm", 1, "the pass reads it", "", "")                                 \
  M(const void *, weight, V, D, WEIGHT, 0, IN, "m-mm", 1, "the pass reads it", "", "")                                 \
  A(const void *, bias, V, ONE, BIAS, 0, IN, "m-mm", s->has_bias, "spec.has_bias is 1", "spec.has_bias is 0", "")      \
  A(const void *, target, N, K, TARGET, 0, IN, "mmmm", 1, "every pass needs the targets", "", "")                      \
  A(const float *, temperature_rows, N, ONE, FLOAT, 0, IN, "mmmm", s->per_row_temperature,                             \
    "spec.per_row_temperature is 1", "spec.per_row_temperature is 0", "")                                              \
  S(float, temperature)                                                                                                \
  S(float, scale)                                                                                                      \
  S(int64_t, ignore_index)                                                                                             \
  A(const int32_t *, rows, ROWS, ONE, INT32, 0, IN, "mmmm", 1, "args.row_count is not 0", "", "")                      \
  S(int64_t, row_count)                                                                                                \
  S(int64_t, vocab_offset)                                                                                             \
  S(int64_t, vocab_valid)                                                                                              \
  S(int64_t, vocab_total)                                                                                              \
  A(float *, logprob, N, K, FLOAT, 0, OUT, "wo-o", 1, "", "", "")                                                      \
  A(float *, entropy, N, ONE, FLOAT, 0, OUT, "wo-o", s->entropy != FLP_ENTROPY_NONE, "",                               \
    "spec.entropy is FLP_ENTROPY_NONE", "")                                                                            \
  A(float *, stats, N, FOUR, FLOAT, 16, OUT, "woux", 1, "the backward pass reads it", "", "a step makes its own")      \
  A(float *, partial, N, FOUR, FLOAT, 16, EACH, "pm-x", 1, "the combine pass reads it", "", "a step makes its own")    \
  S(int64_t, shard_count)                                                                                              \
  A(const float *, grad_logprob, N, K, FLOAT, 0, IN, "--gx", 1, "", "", "a step makes its own")                        \
  A(const float *, grad_entropy, N, ONE, FLOAT, 0, IN, "--gx", s->entropy == FLP_ENTROPY_BACKWARD, "",                 \
    "spec.entropy is not FLP_ENTROPY_BACKWARD", "a step makes its own")                                                \
  M(void *, grad_hidden, N, D, GRAD_HIDDEN, 0, EACH, "--mm", s->grads & FLP_GRAD_HIDDEN,                               \
    "spec.grads has FLP_GRAD_HIDDEN", "spec.grads lacks FLP_GRAD_HIDDEN", "")                                          \
  M(void *, grad_weight, V, D, GRAD_WEIGHT, 0, OUT, "--MM", s->grads & FLP_GRAD_WEIGHT,                                \
    "spec.grads has FLP_GRAD_WEIGHT", "spec.grads lacks FLP_GRAD_WEIGHT", "")                                          \
  A(void *, grad_bias, V, ONE, GRAD_BIAS, 0, OUT, "--MM", s->grads & FLP_GRAD_BIAS,                                    \
    "spec.grads has FLP_GRAD_BIAS", "spec.grads lacks FLP_GRAD_BIAS", "")                                              \
  A(void *, workspace, WORKSPACE, ONE, BYTE, 256, SPACE, "mmmm", 1, "args.workspace_bytes is not 0", "", "")           \
  S(size_t, workspace_bytes)                                                                                           \
  S(void *, stream)                                                                                                    \
  A(void *, saved, SAVED, ONE, BYTE, 256, SPACE, "oxgx", s->keep || s->tail > 0, "", "spec.keep and spec.tail are 0",  \
    "only forward and backward pass it on")                                                                            \
  S(size_t, saved_bytes)                                                                                               \
  A(const float *, old_lse, N, ONE, FLOAT, 0, IN, "oxxo", !s->listed, "", "spec.listed is 1",                          \
    "only forward and step choose references")                                                                         \
  A(const float *, old_logprob, N, ONE, FLOAT, 0, IN, "---l", s->loss != NULL, "", "", "")                             \
  A(const float *, ref_logprob, N, ONE, FLOAT, 0, IN, "---l", s->loss != NULL, "", "", "")                             \
  A(const float *, advantage, N, ONE, FLOAT, 0, IN, "---l", s->loss != NULL, "", "", "")                               \
  A(const float *, row_weight, N, ONE, FLOAT, 0, IN, "---l", s->loss != NULL, "", "", "")                              \
  P(const float *, vectors, FLP_LOSS_VECTORS_MAX)                                                                      \
  S(const double *, loss_parameters)                                                                                   \
  A(float *, loss, N, ONE, FLOAT, 0, OUT, "---o", s->loss != NULL, "", "", "")                                         \
  A(float *, metrics, METRICS, N, FLOAT, 0, OUT, "---o", s->loss != NULL, "", "", "")                                  \
  A(const int64_t *, list_offsets, OFFSETS, ONE, INT64, 0, IN, "momm", s->listed, "spec.listed is 1",                  \
    "spec.listed is 0", "")                                                                                            \
  A(const void *, list_ids, IDS, ONE, TARGET, 0, IN, "momm", s->listed, "args.list_count is not 0",                    \
    "spec.listed is 0", "")                                                                                            \
  S(int64_t, list_count)                                                                                               \
  A(float *, tail_report, ONE, FOUR, FLOAT, 0, EACH, "xxoo", s->tail > 0, "", "spec.tail is 0",                        \
    "only backward and step leave anything out")                                                                       \
  A(float *, partial_targets, N, K, FLOAT, 0, EACH, "bbxx", s->targets > 1,                                            \
    "args.partial is given and spec.targets is above 1", "spec.targets is not above 1",                                \
    "only forward and combine pass it on")                                                                             \
  A(const float *, teacher_logprob, N, K, FLOAT, 0, IN, "---l", s->loss != NULL, "", "", "")                           \
  A(void *, top_ids, N, T, TARGET, 0, EACH, "oxxo", s->topk, "", "spec.topk is 0",                                     \
    "only forward and step give it")                                                                                   \
  A(float *, top_logprob, N, T, FLOAT, 0, EACH, "oxxo", s->topk, "", "spec.topk is 0",                                 \
    "only forward and step give it")                                                                                   \
  A(float *, top_rest, N, ONE, FLOAT, 0, OUT, "wxxo", s->topk, "", "spec.topk is 0",                                   \
    "only forward and step give it")                                                                                   \
  A(int32_t *, rank, N, ONE, INT32, 0, EACH, "oxxo", s->rank, "", "spec.rank is 0",                                    \
    "only forward and step give it")                                                                                   \
  M(const void *, lora_a, R, D, DTYPE, 0, IN, "m-mm", s->lora_rank, "spec.lora_rank is not 0", "spec.lora_rank is 0",  \
    "")                                                                                                                \
  M(const void *, lora_b, V, R, DTYPE, 0, IN, "m-mm", s->lora_rank, "spec.lora_rank is not 0", "spec.lora_rank is 0",  \
    "")                                                                                                                \
  S(float, lora_scale)                                                                                                 \
  M(void *, grad_lora_a, R, D, GRAD_LORA, 0, EACH, "--MM", s->grads & FLP_GRAD_LORA_A,                                 \
    "spec.grads has FLP_GRAD_LORA_A", "spec.grads lacks FLP_GRAD_LORA_A", "")                                          \
  M(void *, grad_lora_b, V, R, GRAD_LORA, 0, OUT, "--MM", s->grads & FLP_GRAD_LORA_B,                                  \
    "spec.grads has FLP_GRAD_LORA_B", "spec.grads lacks FLP_GRAD_LORA_B", "")                                          \
  A(const float *, target_score, N, ONE, FLOAT, 0, IN, "oxxx", s->rank, "", "spec.rank is 0",                          \
    "only forward counts what is above it")                                                                            \
  A(float *, statistics, N, FOUR, FLOAT, 16, OUT, "wo-o", s->statistics, "", "spec.statistics is 0", "")               \
  A(float *, partial_statistics, N, FOUR, FLOAT, 16, EACH, "obxx", s->statistics,                                      \
    "spec.statistics is 1", "spec.statistics is 0", "only forward and combine pass it on")                             \
  M(float *, raw_scores, N, V, FLOAT, 0, EACH, "oxxx", s->raw_scores, "", "spec.raw_scores is 0",                      \
    "only forward stores them")                                                                                        \
  M(const void *, grad_raw_scores, N, V, DTYPE, 16, IN, "xxox", flp_spec_takes_scores(s), "",                          \
    "spec has no such gradient (accepted: raw_scores 1, gradients of hidden and weight alone, one target, operands "   \
    "of one dtype, no adapter, no lists)",                                                                             \
    "only backward reads it")                                                                                          \
  A(void *, sums, SUMS, ONE, BYTE, 256, SPACE, "xxox", flp_spec_takes_scores(s), "", "spec takes no grad_raw_scores",  \
    "only backward has them")                                                                                          \
  S(size_t, sums_bytes)                                                                                                \
  S(int64_t, sums_bits)
/* clang-format on */

/* Sizes: X(ID, what a call has, of spec s and args a, the field that says it or ""). K: targets of a row; T: best
 * columns of a row; METRICS: of the loss. */
#define FLP_SIZES(X)                                           \
  X(ONE, 1, "")                                                \
  X(FOUR, 4, "")                                               \
  X(N, a->n, "n")                                              \
  X(V, s->vocab, "vocab")                                      \
  X(D, s->hidden, "hidden")                                    \
  X(K, flp_spec_targets(s), "targets")                         \
  X(T, s->topk, "topk")                                        \
  X(R, s->lora_rank, "lora_rank")                              \
  X(ROWS, a->row_count, "row_count")                           \
  X(OFFSETS, a->n > 0 ? a->n + 1 : 0, "")                      \
  X(IDS, a->list_count, "list_count")                          \
  X(METRICS, 0, "")                                            \
  X(WORKSPACE, (int64_t)a->workspace_bytes, "workspace_bytes") \
  X(SAVED, (int64_t)a->saved_bytes, "saved_bytes")             \
  X(SUMS, (int64_t)a->sums_bytes, "sums_bytes")

/* Elements: X(ID, dtype of a spec s, the field that says it or ""). */
#define FLP_ELEMENTS(X)                                     \
  X(BYTE, (flp_dtype)0, "")                                 \
  X(FLOAT, FLP_DTYPE_FP32, "")                              \
  X(INT32, FLP_DTYPE_INT32, "")                             \
  X(INT64, FLP_DTYPE_INT64, "")                             \
  X(TARGET, s->target_dtype, "target_dtype")                \
  X(DTYPE, s->dtype, "dtype")                               \
  X(HIDDEN, flp_hidden_dtype(s), "hidden_dtype")            \
  X(WEIGHT, flp_weight_dtype(s), "weight_dtype")            \
  X(BIAS, flp_bias_dtype(s), "bias_dtype")                  \
  X(GRAD_HIDDEN, s->grad_hidden_dtype, "grad_hidden_dtype") \
  X(GRAD_WEIGHT, s->grad_weight_dtype, "grad_weight_dtype") \
  X(GRAD_BIAS, s->grad_bias_dtype, "grad_bias_dtype")       \
  X(GRAD_LORA, s->grad_lora_dtype, "grad_lora_dtype")

#define FLP_SIZE_ID(id, value, field) FLP_SIZE_##id,
#define FLP_ELEMENT_ID(id, value, field) FLP_ELEMENT_##id,
typedef enum flp_size { FLP_SIZES(FLP_SIZE_ID) } flp_size;
typedef enum flp_element { FLP_ELEMENTS(FLP_ELEMENT_ID) } flp_element;
#undef FLP_SIZE_ID
#undef FLP_ELEMENT_ID

typedef enum flp_way { FLP_WAY_IN, FLP_WAY_OUT, FLP_WAY_EACH, FLP_WAY_SPACE } flp_way;

/* Vectors are FLP_ARRAY_vectors to FLP_ARRAY_vectors_last. */
typedef enum flp_array_id {
#define FLP_ARRAY_ID(type, field, ...) FLP_ARRAY_##field,
#define FLP_ARRAY_IDS(type, field, count) FLP_ARRAY_##field, FLP_ARRAY_##field##_last = FLP_ARRAY_##field + (count)-1,
#define FLP_ARRAY_NONE(type, field)
  FLP_ARGS_FIELDS(FLP_ARRAY_NONE, FLP_ARRAY_ID, FLP_ARRAY_ID, FLP_ARRAY_IDS)
#undef FLP_ARRAY_ID
#undef FLP_ARRAY_IDS
#undef FLP_ARRAY_NONE
      FLP_ARRAYS
} flp_array_id;

typedef struct flp_array {
  const char *name;
  flp_size rows, columns;
  flp_element element;
  flp_way way;
  uint32_t base;
  uint32_t offset, stride_offset; /* in flp_args; 0: it has no stride */
  const char *passes, *must, *unasked, *elsewhere;
  int (*is_asked)(const flp_spec *spec);
} flp_array;

extern const flp_array FLP_ARRAY[FLP_ARRAYS];

static inline int flp_array_is_written(flp_array_id id) {
  return FLP_ARRAY[id].way == FLP_WAY_OUT || FLP_ARRAY[id].way == FLP_WAY_EACH;
}
/* The letter of a pass: see above. */
static inline char flp_array_letter(flp_array_id id, flp_pass pass) {
  return FLP_ARRAY[id].passes[pass - FLP_PASS_FORWARD];
}
/* Whether that pass of a call reads or writes it. */
static inline int flp_array_is_of(flp_array_id id, flp_pass pass) {
  char letter = flp_array_letter(id, pass);
  return letter != '-' && letter != 'x';
}
flp_dtype flp_array_dtype(flp_array_id id, const flp_spec *spec); /* 0 of bytes */
const void *flp_array_get(flp_array_id id, const flp_args *args);
void flp_array_set(flp_array_id id, flp_args *args, const void *pointer);
/* The size that a call of a spec has, and the field that says it, or "". */
int64_t flp_size_of(flp_size size, const flp_spec *spec, const flp_args *args);
const char *flp_size_field(flp_size size);

#endif

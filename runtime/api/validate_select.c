/* validate_select.c: the checks of specs of operations without a head, and of calls of flp_select, flp_scale and
 * flp_diverge against the plan's resolved spec.
 *
 * Invariant: as in validate_args.c, pointers of arrays over rows are looked at only if n > 0. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "runtime/api/op.h"
#include "runtime/api/validate.h"
#include "runtime/base/number.h"
#include "runtime/base/status.h"
#include "runtime/base/structs.h"
#include "runtime/base/util.h"
#include "runtime/kernel/op.h"
#include "runtime/loss/loss.h"

static int is_zero(const flp_field *field, const flp_spec *spec) {
  if (field->kind == FLP_FIELD_LOSS) return !spec->loss;
  if (field->kind == FLP_FIELD_NUMBER || field->kind == FLP_FIELD_SHARE) return flp_field_number(field, spec) == 0;
  return flp_field_get(field, spec) == 0;
}

/* A spec without a head leaves all other fields at 0. */
static flp_status check_headless(const flp_spec *spec) {
  const uint32_t own = 1u << FLP_FIELD_dtype | 1u << FLP_FIELD_vocab | 1u << FLP_FIELD_target_dtype |
                       1u << FLP_FIELD_entropy | 1u << FLP_FIELD_alignment | 1u << FLP_FIELD_op;
  const flp_op_row *op = flp_op_of(spec->op);
  for (int i = 0; i < FLP_SPEC_FIELD_COUNT; i++) {
    const flp_field *field = &FLP_SPEC_FIELD[i];
    int is_taken = field->feature != FLP_FEATURE_NONE && op->features >> field->feature & 1;
    if (!(own >> i & 1) && !is_taken && !is_zero(field, spec))
      return flp_fail(FLP_ERROR_ARGUMENT, "spec.%s is not 0, but spec.op is %s (accepted: 0)", field->name, op->symbol);
  }
  return FLP_OK;
}

static int is_operand(flp_dtype dtype) {
  return dtype >= FLP_DTYPE_BF16 && dtype <= FLP_DTYPE_FP32;
}

flp_status flp_select_check_spec(const flp_spec *spec) {
  if (spec->dtype != FLP_DTYPE_FP64 && !is_operand(spec->dtype))
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.dtype is %d (accepted: BF16 1, FP16 2, FP32 3, FP64 6)",
                    (int)spec->dtype);
  return check_headless(spec);
}

static flp_status check_operand(const flp_spec *spec) {
  if (is_operand(spec->dtype)) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "spec.dtype is %d (accepted: BF16 1, FP16 2, FP32 3)", (int)spec->dtype);
}

flp_status flp_scale_check_spec(const flp_spec *spec) {
  FLP_TRY(check_operand(spec));
  if (spec->entropy != FLP_ENTROPY_NONE)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.entropy is not NONE, but spec.op is %s (accepted: NONE)",
                    flp_op_of(spec->op)->symbol);
  return check_headless(spec);
}

/* A loss over targets or not, which reads of these inputs alone. */
static flp_status check_own_loss(const flp_spec *spec, int is_over_targets, uint32_t inputs, const char *accepted) {
  flp_loss loss = {.name = "NULL"};
  if (spec->loss) {
    if (flp_loss_read(spec->loss, spec->loss_bytes, &loss) != FLP_OK) return FLP_OK; /* refused later, as of all */
    if (flp_loss_is_over_targets(&loss) == is_over_targets && !(flp_loss_inputs(&loss) & ~inputs)) return FLP_OK;
  }
  return flp_fail(FLP_ERROR_ARGUMENT, "spec.loss is %s, but spec.op is %s (accepted: %s)", loss.name,
                  flp_op_of(spec->op)->symbol, accepted);
}

flp_status flp_diverge_check_spec(const flp_spec *spec) {
  FLP_TRY(flp_scale_check_spec(spec));
  return check_own_loss(spec, 1, 1u << FLP_LOSS_TARGET_LOGPROB | 1u << FLP_LOSS_TEACHER_LOGPROB | 1u << FLP_LOSS_WEIGHT,
                        "a loss over targets that reads target_logprob, teacher_logprob and weight alone");
}

flp_status flp_loss_check_spec(const flp_spec *spec) {
  FLP_TRY(check_operand(spec));
  FLP_TRY(check_headless(spec));
  return check_own_loss(spec, 0, ~(1u << FLP_LOSS_LSE | 1u << FLP_LOSS_MEAN_SCORE),
                        "a loss of one target a row that reads neither lse nor mean_score");
}

static int64_t number_bytes(const flp_spec *spec) {
  return spec->dtype == FLP_DTYPE_FP64 ? sizeof(double) : sizeof(float);
}

static flp_status check_numbers(const flp_select_args *args) {
  if (args->pass != FLP_PASS_FORWARD && args->pass != FLP_PASS_BACKWARD)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.pass is %d (accepted: FORWARD 1, BACKWARD 3)", (int)args->pass);
  if (args->n < 0 || args->n > FLP_COUNT_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.n is %" PRId64 " (accepted: 0 to %d)", args->n, FLP_COUNT_MAX);
  if (args->k < 1 || args->k > FLP_COUNT_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.k is %" PRId64 " (accepted: 1 to %d)", args->k, FLP_COUNT_MAX);
  if (!flp_number_is_positive(args->temperature) || !flp_number_fits(M_LOG2E / args->temperature))
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.temperature is %g (accepted: " FLP_NUMBER_RANGE ", log2(e)/T a normal number of fp32)",
                    args->temperature);
  return FLP_OK;
}

static flp_status check_matrix_of(const flp_spec *spec, flp_dtype dtype, const char *field, const void *base, int64_t n,
                                  int64_t *stride) {
  int64_t element = (int64_t)flp_dtype_bytes(dtype), unit = flp_max(element, spec->alignment);
  FLP_TRY(flp_args_check_extent(field, dtype, n, "vocab", spec->vocab, stride));
  if (n == 0) return FLP_OK;
  if (!base) return flp_fail(FLP_ERROR_ARGUMENT, "args.%s is NULL, but n is %" PRId64, field, n);
  if (*stride * element % unit || (uintptr_t)base % (uintptr_t)unit)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.%s is %p with a stride of %" PRId64 " elements (accepted: multiples of %" PRId64
                    " bytes, the larger of element and spec.alignment)",
                    field, base, *stride, unit);
  return FLP_OK;
}

static flp_status check_matrix(const flp_spec *spec, const char *field, const void *base, int64_t n, int64_t *stride) {
  return check_matrix_of(spec, spec->dtype, field, base, n, stride);
}

static flp_status check_arrays(const flp_spec *spec, const flp_select_args *args) {
  int64_t number = number_bytes(spec);
  const struct {
    const char *name;
    const void *pointer;
    int64_t element;
  } arrays[] = {{"target", args->target, (int64_t)flp_dtype_bytes(spec->target_dtype)},
                {"logprob", args->logprob, number},
                {"entropy", args->entropy, number},
                {"stats", args->stats, number},
                {"grad_logprob", args->grad_logprob, number},
                {"grad_entropy", args->grad_entropy, number}};
  for (size_t i = 0; args->n > 0 && i < sizeof arrays / sizeof arrays[0]; i++)
    FLP_TRY(flp_args_check_base(arrays[i].name, arrays[i].pointer, arrays[i].element, ""));
  return FLP_OK;
}

static flp_status refuse_given(const char *field, const void *pointer, const char *because) {
  return pointer ? flp_fail(FLP_ERROR_ARGUMENT, "args.%s is given, but %s", field, because) : FLP_OK;
}

static flp_status check_pass(const flp_spec *spec, const flp_select_args *args) {
  int backward = args->pass == FLP_PASS_BACKWARD;
  const struct {
    const char *name;
    const void *pointer;
  } needed[] = {{"target", args->target},
                {"logprob", backward ? args->logprob : args->target},
                {"stats", backward ? args->stats : args->target}};
  for (size_t i = 0; args->n > 0 && i < sizeof needed / sizeof needed[0]; i++)
    if (!needed[i].pointer)
      return flp_fail(FLP_ERROR_ARGUMENT, "args.%s is NULL, but n is %" PRId64, needed[i].name, args->n);
  if (spec->entropy == FLP_ENTROPY_NONE) FLP_TRY(refuse_given("entropy", args->entropy, "spec.entropy is NONE"));
  if (spec->entropy != FLP_ENTROPY_BACKWARD)
    FLP_TRY(refuse_given("grad_entropy", args->grad_entropy, "spec.entropy is not BACKWARD"));
  if (backward) return FLP_OK;
  FLP_TRY(refuse_given("grad_logprob", args->grad_logprob, "args.pass is FORWARD"));
  FLP_TRY(refuse_given("grad_entropy", args->grad_entropy, "args.pass is FORWARD"));
  return refuse_given("grad_scores", args->grad_scores, "args.pass is FORWARD");
}

/* A matrix of (n,V) elements. What lies behind the columns of its last row is not its own. */
typedef struct matrix {
  const char *field;
  const void *base;
  int64_t stride;
  flp_dtype dtype;
} matrix;

static uint64_t end_of(const flp_spec *spec, int64_t n, const matrix *m) {
  uint64_t elements = ((uint64_t)n - 1) * (uint64_t)m->stride + (uint64_t)spec->vocab;
  return (uint64_t)(uintptr_t)m->base + elements * flp_dtype_bytes(m->dtype);
}

/* Gradients over part of the scores would be read as scores by other rows. */
static flp_status check_overlap(const flp_spec *spec, int64_t n, const matrix *read, const matrix *written,
                                const char *accepted) {
  if (n == 0) return FLP_OK;
  if (end_of(spec, n, read) <= (uint64_t)(uintptr_t)written->base) return FLP_OK;
  if (end_of(spec, n, written) <= (uint64_t)(uintptr_t)read->base) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "args.%s overlaps args.%s (accepted: %smemory apart)", written->field,
                  read->field, accepted);
}

static flp_status check_select_overlap(const flp_spec *spec, const flp_select_args *args) {
  matrix scores = {"scores", args->scores, args->scores_stride, spec->dtype};
  matrix grads = {"grad_scores", args->grad_scores, args->grad_scores_stride, spec->dtype};
  if (scores.base == grads.base && scores.stride == grads.stride) return FLP_OK;
  return check_overlap(spec, args->n, &scores, &grads, "the very same base and stride, or ");
}

flp_status flp_select_args_resolve(const flp_spec *spec, const flp_select_args *args, flp_select_args *out) {
  flp_select_args resolved;
  memset(out, 0, sizeof *out);
  if (!args) return flp_fail(FLP_ERROR_ARGUMENT, "args is NULL (accepted: a flp_select_args)");
  FLP_TRY(flp_struct_read(FLP_STRUCT_SELECT_ARGS, args, &resolved));
  FLP_TRY(check_numbers(&resolved));
  FLP_TRY(check_pass(spec, &resolved));
  FLP_TRY(check_arrays(spec, &resolved));
  FLP_TRY(check_matrix(spec, "scores", resolved.scores, resolved.n, &resolved.scores_stride));
  if (resolved.pass == FLP_PASS_BACKWARD) {
    FLP_TRY(check_matrix(spec, "grad_scores", resolved.grad_scores, resolved.n, &resolved.grad_scores_stride));
    FLP_TRY(check_select_overlap(spec, &resolved));
  }
  *out = resolved;
  return FLP_OK;
}

static flp_status check_common(uint32_t reserved, int64_t n) {
  if (reserved) return flp_fail(FLP_ERROR_ARGUMENT, "args.reserved is %" PRIu32 " (accepted: 0)", reserved);
  if (n >= 0 && n <= FLP_COUNT_MAX) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "args.n is %" PRId64 " (accepted: 0 to %d)", n, FLP_COUNT_MAX);
}

flp_status flp_scale_args_resolve(const flp_spec *spec, const flp_scale_args *args, flp_scale_args *out) {
  flp_scale_args resolved;
  memset(out, 0, sizeof *out);
  if (!args) return flp_fail(FLP_ERROR_ARGUMENT, "args is NULL (accepted: a flp_scale_args)");
  FLP_TRY(flp_struct_read(FLP_STRUCT_SCALE_ARGS, args, &resolved));
  FLP_TRY(check_common(resolved.reserved, resolved.n));
  if (resolved.n > 0 && !resolved.factor)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.factor is NULL, but n is %" PRId64, resolved.n);
  if (resolved.n > 0) FLP_TRY(flp_args_check_base("factor", resolved.factor, sizeof *resolved.factor, ""));
  FLP_TRY(check_matrix(spec, "values", resolved.values, resolved.n, &resolved.values_stride));
  *out = resolved;
  return FLP_OK;
}

static flp_status check_diverge_scale(const char *field, float scale) {
  if (flp_number_fits((double)scale) && flp_number_fits(M_LOG2E * (double)scale)) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "args.%s is %g (accepted: 0, or magnitudes from " FLP_NUMBER_RANGE ")", field,
                  (double)scale);
}

/* What a gradient beside the divergence's needs, and a call that goes on from another. */
static flp_status check_diverge_beside(const flp_diverge_args *args) {
  if (args->grad_logprob && !args->target)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.target is NULL, but grad_logprob is given");
  if (!args->grad_scores) {
    FLP_TRY(refuse_given("grad_logprob", args->grad_logprob, "grad_scores is NULL"));
    FLP_TRY(refuse_given("grad_entropy", args->grad_entropy, "grad_scores is NULL"));
  }
  if (!args->partial != !args->teacher_partial)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.%s is NULL, but %s is given",
                    args->partial ? "teacher_partial" : "partial", args->partial ? "partial" : "teacher_partial");
  if (args->resumes > 1)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.resumes is %" PRIu32 " (accepted: 0 and 1)", args->resumes);
  if (!args->resumes) return FLP_OK;
  if (!args->state) return flp_fail(FLP_ERROR_ARGUMENT, "args.state is NULL, but resumes is 1");
  return FLP_OK;
}

/* Sums of a shard alone make neither values nor gradients. */
static flp_status check_diverge_shard(const flp_diverge_args *args) {
  if (args->is_shard > 1)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.is_shard is %" PRIu32 " (accepted: 0 and 1)", args->is_shard);
  if (!args->is_shard || args->resumes) return FLP_OK;
  if (!args->partial) return flp_fail(FLP_ERROR_ARGUMENT, "args.partial is NULL, but is_shard is 1 and resumes is 0");
  FLP_TRY(refuse_given("values", args->values, "is_shard is 1 and resumes is 0"));
  return refuse_given("grad_scores", args->grad_scores, "is_shard is 1 and resumes is 0");
}

static flp_status check_diverge_arrays(const flp_spec *spec, flp_diverge_args *args) {
  const struct {
    const char *name;
    const void *pointer;
    int64_t element;
  } arrays[] = {{"upstream", args->upstream, sizeof *args->upstream},
                {"scale_rows", args->scale_rows, sizeof *args->scale_rows},
                {"teacher_scale_rows", args->teacher_scale_rows, sizeof *args->teacher_scale_rows},
                {"values", args->values, sizeof *args->values},
                {"target", args->target, sizeof *args->target},
                {"grad_logprob", args->grad_logprob, sizeof *args->grad_logprob},
                {"grad_entropy", args->grad_entropy, sizeof *args->grad_entropy},
                {"state", args->state, sizeof *args->state},
                {"partial", args->partial, 4 * sizeof *args->partial},
                {"teacher_partial", args->teacher_partial, 4 * sizeof *args->partial}};
  FLP_TRY(check_matrix_of(spec, FLP_DTYPE_FP32, "scores", args->scores, args->n, &args->scores_stride));
  FLP_TRY(check_matrix_of(spec, FLP_DTYPE_FP32, "teacher", args->teacher, args->n, &args->teacher_stride));
  if (args->n == 0) return FLP_OK;
  for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
    FLP_TRY(flp_args_check_base(arrays[i].name, arrays[i].pointer, arrays[i].element, ""));
  FLP_TRY(check_diverge_beside(args));
  FLP_TRY(check_diverge_shard(args));
  if (!args->grad_scores) return FLP_OK;
  FLP_TRY(check_matrix(spec, "grad_scores", args->grad_scores, args->n, &args->grad_scores_stride));
  matrix grads = {"grad_scores", args->grad_scores, args->grad_scores_stride, spec->dtype};
  matrix scores = {"scores", args->scores, args->scores_stride, FLP_DTYPE_FP32};
  matrix teacher = {"teacher", args->teacher, args->teacher_stride, FLP_DTYPE_FP32};
  FLP_TRY(check_overlap(spec, args->n, &scores, &grads, ""));
  return check_overlap(spec, args->n, &teacher, &grads, "");
}

flp_status flp_diverge_args_resolve(const flp_spec *spec, const flp_diverge_args *args, flp_diverge_args *out) {
  flp_diverge_args resolved;
  memset(out, 0, sizeof *out);
  if (!args) return flp_fail(FLP_ERROR_ARGUMENT, "args is NULL (accepted: a flp_diverge_args)");
  FLP_TRY(flp_struct_read(FLP_STRUCT_DIVERGE_ARGS, args, &resolved));
  FLP_TRY(check_common(0, resolved.n));
  FLP_TRY(check_diverge_scale("scale", resolved.scale));
  FLP_TRY(check_diverge_scale("teacher_scale", resolved.teacher_scale));
  FLP_TRY(check_diverge_arrays(spec, &resolved));
  *out = resolved;
  return FLP_OK;
}

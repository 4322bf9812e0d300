/* validate_args.c: the checks of one call's arguments against its plan's resolved spec.
 *
 * Invariants: pointers of arrays over rows are looked at only if n > 0, because an empty tensor's address is NULL in
 * many hosts; nothing behind a pointer is read. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/api/validate.h"
#include "runtime/base/number.h"
#include "runtime/base/status.h"
#include "runtime/base/structs.h"
#include "runtime/kernel/kernel.h"
#include "runtime/kernel/op.h"
#include "runtime/planner/planner.h"

/* One pointer of a pass: whether it must be there, must not, or may be, and what its base is a multiple of. */
typedef enum presence { MAY, MUST, MUST_NOT } presence;

static flp_status check_pointer(const char *field, const void *pointer, presence wanted, const char *because,
                                size_t alignment) {
  if (wanted == MUST && !pointer) return flp_fail(FLP_ERROR_ARGUMENT, "args.%s is NULL, but %s", field, because);
  if (wanted == MUST_NOT && pointer) return flp_fail(FLP_ERROR_ARGUMENT, "args.%s is given, but %s", field, because);
  if ((uintptr_t)pointer % alignment)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.%s is %p (accepted: multiples of %zu bytes)", field, pointer, alignment);
  return FLP_OK;
}

/* A matrix: fills its stride in and checks stride, base and size. width: the field of the spec that has its columns */
static flp_status check_matrix_of(const flp_spec *spec, const char *field, const void *base, int64_t *stride,
                                  int64_t rows, const char *width, int64_t columns, flp_dtype dtype) {
  int64_t element = (int64_t)flp_dtype_bytes(dtype), bytes = 0;
  if (*stride == 0) *stride = columns;
  if (*stride < columns)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.%s_stride is %" PRId64 " (accepted: 0 for dense, or at least spec.%s %" PRId64 ")", field,
                    *stride, width, columns);
  if (__builtin_mul_overflow(*stride, element, &bytes) || __builtin_mul_overflow(bytes, rows, &bytes))
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.%s_stride is %" PRId64 " (accepted: at most 2^63 - 1 bytes in all %" PRId64 " rows)", field,
                    *stride, rows);
  int64_t unit = element > spec->alignment ? element : spec->alignment;
  if (*stride * element % unit)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.%s_stride is %" PRId64 " elements of %s (accepted: multiples of %" PRId64
                    " bytes, the larger of element and spec.alignment)",
                    field, *stride, flp_dtype_name(dtype), unit);
  if ((uintptr_t)base % (uintptr_t)unit)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.%s is %p (accepted: multiples of %" PRId64
                    " bytes, the larger of element and spec.alignment)",
                    field, base, unit);
  return FLP_OK;
}

/* One of rows x D. */
static flp_status check_matrix(const flp_spec *spec, const char *field, const void *base, int64_t *stride, int64_t rows,
                               flp_dtype dtype) {
  return check_matrix_of(spec, field, base, stride, rows, "hidden", spec->hidden, dtype);
}

static flp_status check_shard(const flp_spec *spec, flp_args *args) {
  int64_t end = 0;
  if (args->vocab_offset < 0)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.vocab_offset is %" PRId64 " (accepted: 0 or more)", args->vocab_offset);
  if (args->vocab_valid == 0) args->vocab_valid = spec->vocab;
  if (args->vocab_valid < 1 || args->vocab_valid > spec->vocab)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.vocab_valid is %" PRId64 " (accepted: 0 for all, or 1 to spec.vocab %" PRId64 ")",
                    args->vocab_valid, spec->vocab);
  if (__builtin_add_overflow(args->vocab_offset, args->vocab_valid, &end))
    return flp_fail(FLP_ERROR_ARGUMENT, "args.vocab_offset is %" PRId64 " (accepted: at most 2^63 - 1 - vocab_valid)",
                    args->vocab_offset);
  if (args->vocab_total == 0 && args->pass == FLP_PASS_COMBINE && args->shard_count > 1)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.vocab_total is 0, but a combine of %" PRId64 " shards needs the size of the whole vocabulary",
                    args->shard_count);
  if (args->vocab_total == 0) args->vocab_total = end;
  if (args->vocab_total < end)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.vocab_total is %" PRId64
                    " (accepted: 0, or at least vocab_offset + "
                    "vocab_valid, %" PRId64 ")",
                    args->vocab_total, end);
  return FLP_OK;
}

/* What kernels make of scale and softcap: the factor inside tanh, which they double, and with the temperature the one
 * that gives log2 units. A scale of 0 makes all scores equal. */
static flp_status check_products(const flp_spec *spec, const flp_args *args) {
  double scale = fabs((double)args->scale), cap = (double)spec->softcap;
  if (cap > 0 && !(flp_number_fits(scale / cap) && flp_number_fits(2 * scale / cap)))
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.scale is %g while spec.softcap is %g (accepted: 0, or scales for which 2·scale/softcap is a "
                    "normal number of fp32)",
                    (double)args->scale, cap);
  double top = cap > 0 ? cap : scale;
  const char *unit = cap > 0 ? "softcap" : "scale";
  if (spec->per_row_temperature && !flp_number_fits(top * M_LOG2E))
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "%s.%s is %g (accepted: values for which %s·log2(e) is a normal number of fp32)",
                    cap > 0 ? "spec" : "args", unit, cap > 0 ? cap : (double)args->scale, unit);
  if (!spec->per_row_temperature && !flp_number_fits(top * M_LOG2E / (double)args->temperature))
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.temperature is %g (accepted: values for which %s/T·log2(e) is a normal number of fp32)",
                    (double)args->temperature, unit);
  return FLP_OK;
}

static flp_status check_scales(const flp_spec *spec, const flp_args *args) {
  if (!flp_number_fits((double)args->scale))
    return flp_fail(FLP_ERROR_ARGUMENT, "args.scale is %g (accepted: 0, or magnitudes from " FLP_NUMBER_RANGE ")",
                    (double)args->scale);
  const char *because = spec->per_row_temperature ? "spec.per_row_temperature is 1" : "spec.per_row_temperature is 0";
  presence wanted = !spec->per_row_temperature ? MUST_NOT : args->n > 0 ? MUST : MAY;
  FLP_TRY(check_pointer("temperature_rows", args->temperature_rows, wanted, because, sizeof(float)));
  if (!spec->per_row_temperature && !flp_number_is_positive((double)args->temperature))
    return flp_fail(FLP_ERROR_ARGUMENT, "args.temperature is %g (accepted: " FLP_NUMBER_RANGE ")",
                    (double)args->temperature);
  return check_products(spec, args);
}

static flp_status check_rows(const flp_spec *spec, const flp_args *args) {
  presence wanted = args->n > 0 ? MUST : MAY;
  size_t target_bytes = flp_dtype_bytes(spec->target_dtype);
  FLP_TRY(check_pointer("target", args->target, wanted, "every pass needs the targets", target_bytes));
  if (args->row_count < 0 || args->row_count > FLP_COUNT_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.row_count is %" PRId64 " (accepted: 0 to %d)", args->row_count,
                    FLP_COUNT_MAX);
  FLP_TRY(
      check_pointer("rows", args->rows, args->row_count > 0 ? MUST : MAY, "args.row_count is not 0", sizeof(int32_t)));
  return FLP_OK;
}

/* The adapter, where a pass reads it. */
static flp_status check_lora(const flp_spec *spec, flp_args *args) {
  int has_lora = spec->lora_rank > 0;
  presence wanted = !has_lora ? MUST_NOT : args->n > 0 ? MUST : MAY;
  const char *because = has_lora ? "spec.lora_rank is not 0" : "spec.lora_rank is 0";
  FLP_TRY(check_pointer("lora_a", args->lora_a, wanted, because, 1));
  FLP_TRY(check_pointer("lora_b", args->lora_b, wanted, because, 1));
  if (!has_lora && args->lora_scale != 0)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.lora_scale is %g, but spec.lora_rank is 0 (accepted: 0)",
                    (double)args->lora_scale);
  if (!flp_number_fits((double)args->lora_scale))
    return flp_fail(FLP_ERROR_ARGUMENT, "args.lora_scale is %g (accepted: 0, or magnitudes from " FLP_NUMBER_RANGE ")",
                    (double)args->lora_scale);
  if (!has_lora) return FLP_OK;
  FLP_TRY(check_matrix(spec, "lora_a", args->lora_a, &args->lora_a_stride, spec->lora_rank, spec->dtype));
  return check_matrix_of(spec, "lora_b", args->lora_b, &args->lora_b_stride, spec->vocab, "lora_rank", spec->lora_rank,
                         spec->dtype);
}

static flp_status check_operands(const flp_spec *spec, flp_args *args) {
  presence wanted = args->n > 0 ? MUST : MAY;
  FLP_TRY(check_pointer("hidden", args->hidden, wanted, "the pass reads it", 1));
  FLP_TRY(check_pointer("weight", args->weight, wanted, "the pass reads it", 1));
  FLP_TRY(check_matrix(spec, "hidden", args->hidden, &args->hidden_stride, args->n, spec->hidden_dtype));
  FLP_TRY(check_matrix(spec, "weight", args->weight, &args->weight_stride, spec->vocab, spec->weight_dtype));
  FLP_TRY(check_lora(spec, args));
  const char *because = spec->has_bias ? "spec.has_bias is 1" : "spec.has_bias is 0";
  return check_pointer("bias", args->bias, spec->has_bias ? wanted : MUST_NOT, because,
                       flp_dtype_bytes(spec->bias_dtype));
}

/* logprob, entropy and stats of forward and combine. */
static flp_status check_outputs(const flp_spec *spec, const flp_args *args, presence wanted, const char *because) {
  FLP_TRY(check_pointer("logprob", args->logprob, wanted, because, sizeof(float)));
  FLP_TRY(check_pointer("stats", args->stats, wanted, because, 16));
  if (spec->entropy == FLP_ENTROPY_NONE)
    return check_pointer("entropy", args->entropy, MUST_NOT, "spec.entropy is FLP_ENTROPY_NONE", sizeof(float));
  return check_pointer("entropy", args->entropy, wanted, because, sizeof(float));
}

static int writes_rows(const flp_args *args) {
  return args->logprob || args->entropy || args->stats;
}

static int is_whole(const flp_args *args) {
  return args->vocab_offset == 0 && args->vocab_valid == args->vocab_total;
}

/* Raw scores of several targets go beside partial; with one they are in it. */
static flp_status check_partial_targets(const flp_spec *spec, const flp_args *args) {
  const void *field = args->partial_targets;
  if (flp_spec_targets(spec) == 1)
    return check_pointer("partial_targets", field, MUST_NOT, "spec.targets is not above 1", sizeof(float));
  if (args->pass == FLP_PASS_BACKWARD || args->pass == FLP_PASS_STEP)
    return check_pointer("partial_targets", field, MUST_NOT, "only forward and combine pass it on", sizeof(float));
  if (!args->partial) return check_pointer("partial_targets", field, MUST_NOT, "args.partial is NULL", sizeof(float));
  return check_pointer("partial_targets", field, args->n > 0 ? MUST : MAY,
                       "args.partial is given and spec.targets is above 1", sizeof(float));
}

static int writes_top(const flp_args *args) {
  return args->top_ids || args->top_logprob || args->top_rest || args->rank;
}

/* Best columns and rank, of forward alone. A shard knows neither the mass of the others nor what stands above a target. */
static flp_status check_top(const flp_spec *spec, const flp_args *args) {
  const struct {
    const char *field, *unasked;
    const void *pointer;
    size_t alignment;
    int asked, of_shards;
  } outputs[] = {
      {"top_ids", "spec.topk is 0", args->top_ids, flp_dtype_bytes(spec->target_dtype), spec->topk, 1},
      {"top_logprob", "spec.topk is 0", args->top_logprob, sizeof(float), spec->topk, 1},
      {"top_rest", "spec.topk is 0", args->top_rest, sizeof(float), spec->topk, 0},
      {"rank", "spec.rank is 0", args->rank, sizeof(int32_t), spec->rank, 0},
  };
  for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
    const char *because = outputs[i].unasked;
    if (outputs[i].asked) because = "only forward gives it";
    int may = outputs[i].asked && args->pass == FLP_PASS_FORWARD;
    if (may && !outputs[i].of_shards && !is_whole(args)) {
      because = "the call covers a vocab shard, which does not know the other columns";
      may = 0;
    }
    FLP_TRY(check_pointer(outputs[i].field, outputs[i].pointer, may ? MAY : MUST_NOT, because, outputs[i].alignment));
  }
  if (args->pass != FLP_PASS_FORWARD || spec->topk <= args->vocab_total) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "args.vocab_total is %" PRId64 ", but spec.topk is %d (accepted: %d or more)",
                  args->vocab_total, spec->topk, spec->topk);
}

static flp_status check_forward(const flp_spec *spec, flp_args *args) {
  FLP_TRY(check_operands(spec, args));
  int whole = is_whole(args);
  FLP_TRY(check_outputs(spec, args, whole ? MAY : MUST_NOT,
                        "the call covers a vocab shard, which writes args.partial only"));
  FLP_TRY(check_pointer("partial", args->partial, whole || args->n == 0 ? MAY : MUST,
                        "the call covers a vocab shard, which writes it", 16));
  FLP_TRY(check_partial_targets(spec, args));
  if (args->n == 0 || writes_rows(args) || writes_top(args) || args->partial) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "args.logprob, entropy, stats%s%s and partial are all NULL (accepted: at least one)",
                  spec->topk ? ", top_ids, top_logprob, top_rest" : "", spec->rank ? ", rank" : "");
}

/* Lists of columns. A combine of them leaves the lists alone. */
static flp_status check_lists(const flp_spec *spec, const flp_args *args) {
  if (!spec->listed) {
    FLP_TRY(check_pointer("list_offsets", args->list_offsets, MUST_NOT, "spec.listed is 0", 1));
    FLP_TRY(check_pointer("list_ids", args->list_ids, MUST_NOT, "spec.listed is 0", 1));
    if (args->list_count == 0) return FLP_OK;
    return flp_fail(FLP_ERROR_ARGUMENT, "args.list_count is %" PRId64 ", but spec.listed is 0 (accepted: 0)",
                    args->list_count);
  }
  if (args->pass == FLP_PASS_COMBINE) return FLP_OK;
  if (args->list_count < 0 || args->list_count > INT32_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.list_count is %" PRId64 " (accepted: 0 to %d)", args->list_count,
                    INT32_MAX);
  FLP_TRY(
      check_pointer("list_offsets", args->list_offsets, args->n > 0 ? MUST : MAY, "spec.listed is 1", sizeof(int64_t)));
  return check_pointer("list_ids", args->list_ids, args->list_count > 0 ? MUST : MAY, "args.list_count is not 0",
                       flp_dtype_bytes(spec->target_dtype));
}

/* What forward keeps; how many bytes that are, and whether of a shard, depends on the plan's mode. */
static flp_status check_saved(const flp_spec *spec, const flp_args *args) {
  if (args->pass != FLP_PASS_FORWARD && args->pass != FLP_PASS_STEP)
    FLP_TRY(check_pointer("old_lse", args->old_lse, MUST_NOT, "only forward and step choose references", 1));
  FLP_TRY(check_pointer("old_lse", args->old_lse, spec->listed ? MUST_NOT : MAY, "spec.listed is 1", sizeof(float)));
  if (!args->saved) return FLP_OK;
  if (args->pass != FLP_PASS_FORWARD && args->pass != FLP_PASS_BACKWARD)
    return check_pointer("saved", args->saved, MUST_NOT, "only forward and backward pass it on", 1);
  int keeps = spec->keep || spec->tail > 0;
  return check_pointer("saved", args->saved, keeps ? MAY : MUST_NOT, "spec.keep and spec.tail are 0", 256);
}

/* What the pass left out. */
static flp_status check_report(const flp_spec *spec, const flp_args *args) {
  if (!(spec->tail > 0))
    return check_pointer("tail_report", args->tail_report, MUST_NOT, "spec.tail is 0", sizeof(float));
  int has_gradients = args->pass == FLP_PASS_BACKWARD || args->pass == FLP_PASS_STEP;
  return check_pointer("tail_report", args->tail_report, has_gradients ? MAY : MUST_NOT,
                       "only backward and step leave anything out", sizeof(float));
}

static flp_status check_combine(const flp_spec *spec, flp_args *args) {
  enum { SHARDS_MAX = 65536 }; /* with n <= 2^30 and 16 bytes a row, far below 2^63 bytes */
  if (args->shard_count < 1 || args->shard_count > SHARDS_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.shard_count is %" PRId64 " (accepted: 1 to %d)", args->shard_count,
                    SHARDS_MAX);
  FLP_TRY(check_pointer("partial", args->partial, args->n > 0 ? MUST : MAY, "the combine pass reads it", 16));
  FLP_TRY(check_partial_targets(spec, args));
  FLP_TRY(check_outputs(spec, args, MAY, ""));
  if (args->n > 0 && !writes_rows(args))
    return flp_fail(FLP_ERROR_ARGUMENT, "args.logprob, entropy and stats are all NULL (accepted: at least one)");
  return FLP_OK;
}

static flp_status check_upstream(const flp_spec *spec, const flp_args *args) {
  if (args->n > 0 && !args->grad_logprob && !args->grad_entropy)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.grad_logprob and args.grad_entropy are both NULL (accepted: at least one)");
  FLP_TRY(check_pointer("grad_logprob", args->grad_logprob, MAY, "", sizeof(float)));
  FLP_TRY(check_pointer("grad_entropy", args->grad_entropy, spec->entropy == FLP_ENTROPY_BACKWARD ? MAY : MUST_NOT,
                        "spec.entropy is not FLP_ENTROPY_BACKWARD", sizeof(float)));
  return check_pointer("stats", args->stats, args->n > 0 ? MUST : MAY, "the backward pass reads it", 16);
}

/* The gradients that spec.grads asks for, and no others. */
static flp_status check_gradients(const flp_spec *spec, flp_args *args) {
  const struct {
    const char *field, *asked, *refused;
    uint32_t bit;
    int over_rows;
    flp_dtype dtype;
    const void *pointer;
  } grads[] = {
      {"grad_hidden", "spec.grads has FLP_GRAD_HIDDEN", "spec.grads lacks FLP_GRAD_HIDDEN", FLP_GRAD_HIDDEN, 1,
       spec->dtype, args->grad_hidden},
      {"grad_weight", "spec.grads has FLP_GRAD_WEIGHT", "spec.grads lacks FLP_GRAD_WEIGHT", FLP_GRAD_WEIGHT, 0,
       spec->dtype, args->grad_weight},
      {"grad_bias", "spec.grads has FLP_GRAD_BIAS", "spec.grads lacks FLP_GRAD_BIAS", FLP_GRAD_BIAS, 0,
       spec->grad_bias_dtype, args->grad_bias},
      {"grad_lora_a", "spec.grads has FLP_GRAD_LORA_A", "spec.grads lacks FLP_GRAD_LORA_A", FLP_GRAD_LORA_A, 0,
       spec->grad_lora_dtype, args->grad_lora_a},
      {"grad_lora_b", "spec.grads has FLP_GRAD_LORA_B", "spec.grads lacks FLP_GRAD_LORA_B", FLP_GRAD_LORA_B, 0,
       spec->grad_lora_dtype, args->grad_lora_b},
  };
  for (size_t i = 0; i < sizeof grads / sizeof grads[0]; i++) {
    int asked = (spec->grads & grads[i].bit) != 0;
    presence wanted = !asked ? MUST_NOT : grads[i].over_rows && args->n == 0 ? MAY : MUST;
    FLP_TRY(check_pointer(grads[i].field, grads[i].pointer, wanted, asked ? grads[i].asked : grads[i].refused,
                          flp_dtype_bytes(grads[i].dtype)));
  }
  FLP_TRY(check_matrix(spec, "grad_hidden", args->grad_hidden, &args->grad_hidden_stride, args->n,
                       spec->grad_hidden_dtype));
  FLP_TRY(check_matrix(spec, "grad_weight", args->grad_weight, &args->grad_weight_stride, spec->vocab,
                       spec->grad_weight_dtype));
  if (!spec->lora_rank) return FLP_OK;
  FLP_TRY(check_matrix(spec, "grad_lora_a", args->grad_lora_a, &args->grad_lora_a_stride, spec->lora_rank,
                       spec->grad_lora_dtype));
  return check_matrix_of(spec, "grad_lora_b", args->grad_lora_b, &args->grad_lora_b_stride, spec->vocab, "lora_rank",
                         spec->lora_rank, spec->grad_lora_dtype);
}

static flp_status check_backward(const flp_spec *spec, flp_args *args) {
  FLP_TRY(check_partial_targets(spec, args));
  if (!spec->grads)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.pass is FLP_PASS_BACKWARD, but spec.grads is 0 (accepted: FLP_GRAD_* bits)");
  FLP_TRY(check_operands(spec, args));
  FLP_TRY(check_upstream(spec, args));
  return check_gradients(spec, args);
}

static flp_status check_step(const flp_spec *spec, flp_args *args) {
  static const char because[] = "a step makes its own";
  if (!is_whole(args))
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.vocab_offset is %" PRId64 " and args.vocab_total %" PRId64
                    ", but a step needs the whole head (accepted: 0, and vocab_valid %" PRId64 ")",
                    args->vocab_offset, args->vocab_total, args->vocab_valid);
  FLP_TRY(check_operands(spec, args));
  FLP_TRY(check_partial_targets(spec, args));
  FLP_TRY(check_pointer("stats", args->stats, MUST_NOT, because, 1));
  FLP_TRY(check_pointer("partial", args->partial, MUST_NOT, because, 1));
  FLP_TRY(check_pointer("grad_logprob", args->grad_logprob, MUST_NOT, because, 1));
  FLP_TRY(check_pointer("grad_entropy", args->grad_entropy, MUST_NOT, because, 1));
  FLP_TRY(check_outputs(spec, args, MAY, ""));
  FLP_TRY(check_pointer("loss", args->loss, MAY, "", sizeof(float)));
  FLP_TRY(check_pointer("metrics", args->metrics, MAY, "", sizeof(float)));
  return check_gradients(spec, args);
}

/* Inputs of a program by their names in flp_args; loss.h defines a missing weight or old_logprob. */
static flp_status check_loss_inputs(const flp_loss *loss, const flp_args *args) {
  const float *given[FLP_LOSS_ALL_INPUTS];
  char because[FLP_LOSS_TITLE_BYTES + 32];
  uint32_t needed = args->n > 0 ? flp_loss_inputs(loss) : 0;
  flp_loss_inputs_of(args, given);
  needed &= ~(1u << FLP_LOSS_LOGPROB | 1u << FLP_LOSS_ENTROPY | 1u << FLP_LOSS_OLD_LOGPROB | 1u << FLP_LOSS_WEIGHT);
  for (uint32_t i = FLP_LOSS_OLD_LOGPROB; i < FLP_LOSS_INPUTS_MAX; i++) {
    char field[FLP_LOSS_NAME_BYTES + 16];
    const char *name = i == FLP_LOSS_WEIGHT ? "row_weight" : flp_loss_input_name(loss, i);
    int is_vector = i >= FLP_LOSS_FIRST_VECTOR;
    if (is_vector && i - FLP_LOSS_FIRST_VECTOR >= loss->vector_count) name = "none";
    if (is_vector)
      snprintf(field, sizeof field, "vectors[%u] (%s)", i - FLP_LOSS_FIRST_VECTOR, name);
    else
      snprintf(field, sizeof field, "%s", name);
    snprintf(because, sizeof because, "loss %s reads it", loss->name);
    FLP_TRY(check_pointer(field, given[i], needed >> i & 1 ? MUST : MAY, because, sizeof(float)));
  }
  snprintf(because, sizeof because, "loss %s reads it", loss->name);
  FLP_TRY(check_pointer("teacher_logprob", args->teacher_logprob, needed >> FLP_LOSS_TEACHER_LOGPROB & 1 ? MUST : MAY,
                        because, sizeof(float)));
  if (!args->loss_parameters || flp_loss_check_parameters(loss, args->loss_parameters) == FLP_OK) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "args.loss_parameters: %s", flp_error_detail());
}

static flp_status check_workspace(const flp_args *args) {
  FLP_TRY(check_pointer("workspace", args->workspace, args->workspace_bytes > 0 ? MUST : MAY,
                        "args.workspace_bytes is not 0", 256));
  return FLP_OK;
}

static flp_status check_head(const flp_args *args, int for_step) {
  int is_step = args->pass == FLP_PASS_STEP;
  if (is_step != for_step || args->pass < FLP_PASS_FORWARD || args->pass > FLP_PASS_STEP)
    return flp_fail(
        FLP_ERROR_ARGUMENT, "args.pass is %d (accepted: %s)", (int)args->pass,
        for_step ? "STEP 4; flp_execute runs the others" : "FORWARD 1, COMBINE 2, BACKWARD 3; flp_step runs STEP 4");
  if (args->n < 0 || args->n > FLP_COUNT_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.n is %" PRId64 " (accepted: 0 to %d)", args->n, FLP_COUNT_MAX);
  return FLP_OK;
}

static flp_status resolve(const flp_spec *spec, const flp_args *args, int for_step, flp_args *out) {
  flp_args resolved;
  memset(out, 0, sizeof *out);
  if (!args) return flp_fail(FLP_ERROR_ARGUMENT, "args is NULL (accepted: a flp_args)");
  FLP_TRY(flp_struct_read(FLP_STRUCT_ARGS, args, &resolved));
  FLP_TRY(check_head(&resolved, for_step));
  FLP_TRY(check_shard(spec, &resolved));
  FLP_TRY(check_scales(spec, &resolved));
  FLP_TRY(check_rows(spec, &resolved));
  FLP_TRY(check_workspace(&resolved));
  FLP_TRY(check_lists(spec, &resolved));
  static flp_status (*const passes[])(const flp_spec *, flp_args *) = {[FLP_PASS_FORWARD] = check_forward,
                                                                       [FLP_PASS_COMBINE] = check_combine,
                                                                       [FLP_PASS_BACKWARD] = check_backward,
                                                                       [FLP_PASS_STEP] = check_step};
  FLP_TRY(passes[resolved.pass](spec, &resolved));
  FLP_TRY(check_saved(spec, &resolved));
  FLP_TRY(check_report(spec, &resolved));
  FLP_TRY(check_top(spec, &resolved));
  *out = resolved;
  return FLP_OK;
}

flp_status flp_args_resolve(const flp_spec *spec, const flp_args *args, flp_args *out) {
  return resolve(spec, args, 0, out);
}

flp_status flp_step_resolve(const flp_spec *spec, const flp_loss *loss, const flp_args *args, flp_args *out) {
  FLP_TRY(resolve(spec, args, 1, out));
  return check_loss_inputs(loss, out);
}

/* validate_args.c: the checks of one call's arguments against its plan's resolved spec.
 *
 * Invariants: pointers of arrays over rows are looked at only if n > 0, because an empty tensor's address is NULL in
 * many hosts; nothing behind a pointer is read. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/api/validate.h"
#include "runtime/base/args.h"
#include "runtime/base/number.h"
#include "runtime/base/operands.h"
#include "runtime/base/status.h"
#include "runtime/base/structs.h"

/* ---- arrays, by the rows of args.h ---- */

/* Why an array must not be there; NULL: it may. */
static const char *reason_against(flp_array_id id, const flp_spec *spec, const flp_args *args) {
  const flp_array *array = &FLP_ARRAY[id];
  char letter = flp_array_letter(id, args->pass);
  if (letter == 'x') return array->elsewhere;
  if (!array->is_asked(spec)) return array->unasked;
  if (letter == 'b' && !args->partial) return "args.partial is NULL";
  if ((letter == 'u' || letter == 'g') && args->grad_raw_scores) return "args.grad_raw_scores is given";
  if (letter == 'w' && !flp_args_are_whole(args))
    return "the call covers a vocab shard, which does not know the other columns";
  return NULL;
}

/* Why one must be there; NULL: it may. */
static const char *reason_for(flp_array_id id, const flp_spec *spec, const flp_args *args) {
  const flp_array *array = &FLP_ARRAY[id];
  char letter = flp_array_letter(id, args->pass);
  if (strchr("oxwg", letter)) return NULL;
  int is_head = array->rows == FLP_SIZE_V || array->rows == FLP_SIZE_R; /* whose rows are read for those of hidden */
  int has_rows = flp_size_of(is_head ? FLP_SIZE_N : array->rows, spec, args) > 0;
  if (letter == 'p')
    return has_rows && !flp_args_are_whole(args) ? "the call covers a vocab shard, which writes it" : NULL;
  return letter == 'M' || (strchr("mbu", letter) && has_rows) ? array->must : NULL;
}

/* What a base, and of a matrix the bytes of a row, are a multiple of: a power of two. */
static int64_t unit_of(flp_array_id id, const flp_spec *spec) {
  const flp_array *array = &FLP_ARRAY[id];
  int64_t element = (int64_t)flp_dtype_bytes(flp_array_dtype(id, spec));
  if (array->base) return array->base;
  return array->stride_offset && element < spec->alignment ? spec->alignment : element;
}

flp_status flp_args_check_extent(const char *field, flp_dtype dtype, int64_t rows, const char *of_columns,
                                 int64_t columns, int64_t *stride) {
  int64_t bytes = 0;
  if (*stride == 0) *stride = columns;
  if (*stride < columns)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.%s_stride is %" PRId64 " (accepted: 0 for dense, or at least spec.%s %" PRId64 ")", field,
                    *stride, of_columns, columns);
  if (!__builtin_mul_overflow(*stride, (int64_t)flp_dtype_bytes(dtype), &bytes) &&
      !__builtin_mul_overflow(bytes, rows, &bytes))
    return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "args.%s_stride is %" PRId64 " (accepted: at most 2^63 - 1 bytes in all %" PRId64 " rows)", field,
                  *stride, rows);
}

/* Fills the stride of a matrix in and checks it, also where the matrix itself is not there. */
static flp_status check_stride(flp_array_id id, const flp_spec *spec, flp_args *args) {
  const flp_array *array = &FLP_ARRAY[id];
  flp_dtype dtype = flp_array_dtype(id, spec);
  int64_t columns = flp_size_of(array->columns, spec, args), *stride = (int64_t *)((char *)args + array->stride_offset);
  FLP_TRY(flp_args_check_extent(array->name, dtype, flp_size_of(array->rows, spec, args),
                                flp_size_field(array->columns), columns, stride));
  int64_t unit = unit_of(id, spec);
  if ((*stride * (int64_t)flp_dtype_bytes(dtype) & (unit - 1)) == 0) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "args.%s_stride is %" PRId64 " elements of %s (accepted: multiples of %" PRId64
                  " bytes, the larger of element and spec.alignment)",
                  array->name, *stride, flp_dtype_name(dtype), unit);
}

flp_status flp_args_check_base(const char *field, const void *pointer, int64_t unit, const char *what) {
  if (((uintptr_t)pointer & (uintptr_t)(unit - 1)) == 0) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "args.%s is %p (accepted: multiples of %" PRId64 " bytes%s)", field, pointer,
                  unit, what);
}

static flp_status refuse_null(const char *field, const char *because) {
  return flp_fail(FLP_ERROR_ARGUMENT, "args.%s is NULL, but %s", field, because);
}

static flp_status check_missing(flp_array_id id, const flp_spec *spec, const flp_args *args) {
  const char *because = reason_for(id, spec, args);
  return because && !reason_against(id, spec, args) ? refuse_null(FLP_ARRAY[id].name, because) : FLP_OK;
}

static flp_status check_given(flp_array_id id, const void *pointer, const flp_spec *spec, const flp_args *args) {
  const flp_array *array = &FLP_ARRAY[id];
  const char *against = reason_against(id, spec, args);
  if (against) return flp_fail(FLP_ERROR_ARGUMENT, "args.%s is given, but %s", array->name, against);
  return flp_args_check_base(array->name, pointer, unit_of(id, spec),
                             array->stride_offset ? ", the larger of element and spec.alignment" : "");
}

static int is_of_adapter(flp_array_id id) {
  return FLP_ARRAY[id].rows == FLP_SIZE_R || FLP_ARRAY[id].columns == FLP_SIZE_R;
}

static flp_status check_arrays(const flp_spec *spec, flp_args *args) {
  for (int i = 0; i < FLP_ARRAYS; i++) {
    flp_array_id id = (flp_array_id)i;
    char letter = flp_array_letter(id, args->pass);
    if (letter == '-' || letter == 'l') continue;
    const void *pointer = flp_array_get(id, args);
    FLP_TRY(pointer ? check_given(id, pointer, spec, args) : check_missing(id, spec, args));
    int has_stride = FLP_ARRAY[i].stride_offset && (pointer || letter == 'm' || letter == 'M');
    if (has_stride && (spec->lora_rank || !is_of_adapter(id))) FLP_TRY(check_stride(id, spec, args));
  }
  return FLP_OK;
}

/* ---- numbers ---- */

static flp_status check_count(const char *field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "args.%s is %" PRId64 " (accepted: %" PRId64 " to %" PRId64 ")", field, value,
                  least, most);
}

static flp_status check_shard(const flp_spec *spec, flp_args *args) {
  int is_combine = args->pass == FLP_PASS_COMBINE;
  int64_t end = 0, first = is_combine ? 0 : args->vocab_offset; /* a combine is of no shard */
  if (args->vocab_offset < 0)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.vocab_offset is %" PRId64 " (accepted: 0 or more)", args->vocab_offset);
  if (args->vocab_valid == 0) args->vocab_valid = spec->vocab;
  if (args->vocab_valid < 1 || args->vocab_valid > spec->vocab)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.vocab_valid is %" PRId64 " (accepted: 0 for all, or 1 to spec.vocab %" PRId64 ")",
                    args->vocab_valid, spec->vocab);
  if (__builtin_add_overflow(first, args->vocab_valid, &end))
    return flp_fail(FLP_ERROR_ARGUMENT, "args.vocab_offset is %" PRId64 " (accepted: at most 2^63 - 1 - vocab_valid)",
                    args->vocab_offset);
  if (args->vocab_total == 0 && is_combine && args->shard_count > 1)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.vocab_total is 0, but a combine of %" PRId64 " shards needs the size of the whole vocabulary",
                    args->shard_count);
  if (args->vocab_total == 0) args->vocab_total = end;
  if (args->vocab_total < end)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.vocab_total is %" PRId64 " (accepted: %s, %" PRId64 ")", args->vocab_total,
                    is_combine ? "at least vocab_valid" : "0, or at least vocab_offset + vocab_valid", end);
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
  if (!spec->per_row_temperature && !flp_number_is_positive((double)args->temperature))
    return flp_fail(FLP_ERROR_ARGUMENT, "args.temperature is %g (accepted: " FLP_NUMBER_RANGE ")",
                    (double)args->temperature);
  return check_products(spec, args);
}

static flp_status check_lora_scale(const flp_spec *spec, const flp_args *args) {
  double scale = (double)args->lora_scale;
  if (!spec->lora_rank && args->lora_scale != 0)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.lora_scale is %g, but spec.lora_rank is 0 (accepted: 0)", scale);
  if (flp_number_fits(scale)) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "args.lora_scale is %g (accepted: 0, or magnitudes from " FLP_NUMBER_RANGE ")",
                  scale);
}

/* A combine of lists leaves them alone. */
static flp_status check_list_count(const flp_spec *spec, const flp_args *args) {
  if (spec->listed && args->pass != FLP_PASS_COMBINE) return check_count("list_count", args->list_count, 0, INT32_MAX);
  if (spec->listed || args->list_count == 0) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "args.list_count is %" PRId64 ", but spec.listed is 0 (accepted: 0)",
                  args->list_count);
}

static flp_status check_numbers(const flp_spec *spec, flp_args *args) {
  enum { SHARDS_MAX = 65536 }; /* with n <= 2^30 and 16 bytes a row, far below 2^63 bytes */
  FLP_TRY(check_shard(spec, args));
  FLP_TRY(check_scales(spec, args));
  FLP_TRY(check_count("row_count", args->row_count, 0, FLP_COUNT_MAX));
  return args->pass == FLP_PASS_COMBINE ? check_count("shard_count", args->shard_count, 1, SHARDS_MAX) : FLP_OK;
}

/* ---- what goes beyond one array ---- */

/* Of forward and combine. */
static flp_status check_outputs(const flp_spec *spec, const flp_args *args) {
  int is_combine = args->pass == FLP_PASS_COMBINE, writes = !is_combine && args->partial;
  for (int i = 0; i < FLP_ARRAYS; i++)
    writes |= FLP_ARRAY[i].way == FLP_WAY_OUT && flp_array_is_of((flp_array_id)i, args->pass) &&
              flp_array_get((flp_array_id)i, args);
  writes |= !is_combine && (args->top_ids || args->top_logprob || args->rank || args->raw_scores);
  if (args->n == 0 || writes) return FLP_OK;
  if (is_combine)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.logprob, entropy and stats are all NULL (accepted: at least one)");
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "args.logprob, entropy, stats%s%s%s%s and partial are all NULL (accepted: at least one)",
                  spec->topk ? ", top_ids, top_logprob, top_rest" : "", spec->rank ? ", rank" : "",
                  spec->statistics ? ", statistics" : "",
                  spec->raw_scores ? ", raw_scores" : "");
}

/* Whose size only the plan knows. */
static flp_status check_sums(const flp_spec *spec, const flp_args *args) {
  int64_t all = FLP_SUMS_CONTINUE | FLP_SUMS_LEAVE, most = args->grad_raw_scores && args->n ? all : 0;
  if (args->sums_bits < 0 || args->sums_bits > most)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.sums_bits is %" PRId64 " (accepted: 0%s)", args->sums_bits,
                    most ? ", or bits FLP_SUMS_*, 1 to 3" : "; with rows and grad_raw_scores bits FLP_SUMS_*");
  if (!args->sums_bits || !spec->accumulate_grad_weight) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "args.sums_bits is %" PRId64 ", but spec.accumulate_grad_weight is 1, so that all calls add up "
                  "(accepted: 0)",
                  args->sums_bits);
}

static flp_status check_upstream(const flp_args *args) {
  if (args->n == 0 || args->grad_logprob || args->grad_entropy || args->grad_raw_scores) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "args.grad_logprob and args.grad_entropy are both NULL (accepted: at least one)");
}

static flp_status check_pass(const flp_spec *spec, const flp_args *args) {
  if (flp_array_is_of(FLP_ARRAY_top_ids, args->pass) && spec->topk > args->vocab_total)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.vocab_total is %" PRId64 ", but spec.topk is %d (accepted: %d or more)",
                    args->vocab_total, spec->topk, spec->topk);
  if (args->pass == FLP_PASS_FORWARD && args->rank && !args->target_score && args->n && !flp_args_are_whole(args))
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.target_score is NULL, but args.rank is given and the call covers a vocab shard, which does "
                    "not know the scores of others");
  FLP_TRY(check_sums(spec, args));
  if (args->pass == FLP_PASS_BACKWARD) return check_upstream(args);
  return args->pass == FLP_PASS_STEP ? FLP_OK : check_outputs(spec, args);
}

static flp_status check_loss_input(const char *field, const float *pointer, int is_needed, const char *because) {
  if (is_needed && !pointer) return refuse_null(field, because);
  return flp_args_check_base(field, pointer, sizeof(float), "");
}

/* Inputs of a program by their names in flp_args; loss.h defines a missing weight or old_logprob. is_alone: no pass of
 * the step makes logprob, which must be there, and entropy */
static flp_status check_loss_inputs(const flp_loss *loss, const flp_args *args, int is_alone) {
  const float *given[FLP_LOSS_ALL_INPUTS];
  char because[FLP_LOSS_TITLE_BYTES + 32];
  uint32_t needed = args->n > 0 ? flp_loss_inputs(loss) : 0;
  flp_loss_inputs_of(args, given);
  if (is_alone && args->n > 0) needed |= 1u << FLP_LOSS_LOGPROB; /* stands in for old_logprob, of any program */
  needed &= ~(1u << FLP_LOSS_OLD_LOGPROB | 1u << FLP_LOSS_WEIGHT);
  for (uint32_t i = is_alone ? 0 : FLP_LOSS_OLD_LOGPROB; i < FLP_LOSS_INPUTS_MAX; i++) {
    char field[FLP_LOSS_NAME_BYTES + 16];
    const char *name = i == FLP_LOSS_WEIGHT ? "row_weight" : flp_loss_input_name(loss, i);
    int is_vector = i >= FLP_LOSS_FIRST_VECTOR;
    if (is_vector && i - FLP_LOSS_FIRST_VECTOR >= loss->vector_count) name = "none";
    if (is_vector)
      snprintf(field, sizeof field, "vectors[%u] (%s)", i - FLP_LOSS_FIRST_VECTOR, name);
    else
      snprintf(field, sizeof field, "%s", name);
    const char *reason = i == FLP_LOSS_LOGPROB ? "spec.op is FLP_OP_LOSS" : "loss %s reads it";
    snprintf(because, sizeof because, reason, loss->name);
    FLP_TRY(check_loss_input(field, given[i], (int)(needed >> i & 1), because));
  }
  snprintf(because, sizeof because, "loss %s reads it", loss->name);
  FLP_TRY(check_loss_input("teacher_logprob", args->teacher_logprob, (int)(needed >> FLP_LOSS_TEACHER_LOGPROB & 1),
                           because));
  if (!args->loss_parameters || flp_loss_check_parameters(loss, args->loss_parameters) == FLP_OK) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "args.loss_parameters: %s", flp_error_detail());
}

/* What a plan runs, and of what: before anything is said of arrays. */
static flp_status check_is_run(const flp_spec *spec, const flp_args *args) {
  if (args->pass == FLP_PASS_BACKWARD && !spec->grads)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.pass is FLP_PASS_BACKWARD, but spec.grads is 0 (accepted: FLP_GRAD_* bits)");
  if (args->pass != FLP_PASS_STEP || flp_args_are_whole(args)) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "args.vocab_offset is %" PRId64 " and args.vocab_total %" PRId64
                  ", but a step needs the whole head (accepted: 0, and vocab_valid %" PRId64 ")",
                  args->vocab_offset, args->vocab_total, args->vocab_valid);
}

static flp_status check_head(const flp_args *args, int for_step) {
  int is_step = args->pass == FLP_PASS_STEP;
  if (is_step != for_step || args->pass < FLP_PASS_FORWARD || args->pass > FLP_PASS_STEP)
    return flp_fail(
        FLP_ERROR_ARGUMENT, "args.pass is %d (accepted: %s)", (int)args->pass,
        for_step ? "STEP 4; flp_execute runs the others" : "FORWARD 1, COMBINE 2, BACKWARD 3; flp_step runs STEP 4");
  return check_count("n", args->n, 0, FLP_COUNT_MAX);
}

static flp_status read_args(const flp_args *args, int for_step, flp_args *out) {
  if (!args) return flp_fail(FLP_ERROR_ARGUMENT, "args is NULL (accepted: a flp_args)");
  FLP_TRY(flp_struct_read(FLP_STRUCT_ARGS, args, out));
  return check_head(out, for_step);
}

static flp_status resolve(const flp_spec *spec, const flp_args *args, int for_step, flp_args *out) {
  flp_args resolved;
  memset(out, 0, sizeof *out);
  FLP_TRY(read_args(args, for_step, &resolved));
  FLP_TRY(check_numbers(spec, &resolved));
  FLP_TRY(check_is_run(spec, &resolved));
  FLP_TRY(check_arrays(spec, &resolved));
  FLP_TRY(check_list_count(spec, &resolved));
  FLP_TRY(check_lora_scale(spec, &resolved));
  FLP_TRY(check_pass(spec, &resolved));
  *out = resolved;
  return FLP_OK;
}

flp_status flp_args_resolve(const flp_spec *spec, const flp_args *args, flp_args *out) {
  return resolve(spec, args, 0, out);
}

/* Of a loss without a head: what a step makes of one is given, and derivatives are asked for. */
static flp_status check_loss_alone(const flp_args *args) {
  static const flp_array_id own[] = {FLP_ARRAY_logprob, FLP_ARRAY_entropy,      FLP_ARRAY_loss,
                                     FLP_ARRAY_metrics, FLP_ARRAY_grad_logprob, FLP_ARRAY_grad_entropy};
  for (int i = 0; args->n > 0 && i < FLP_ARRAYS; i++) {
    flp_array_id id = (flp_array_id)i;
    int is_own = flp_array_letter(id, FLP_PASS_STEP) == 'l';
    for (size_t j = 0; j < sizeof own / sizeof own[0]; j++) is_own |= own[j] == id;
    const void *pointer = flp_array_get(id, args);
    if (pointer && !is_own)
      return flp_fail(FLP_ERROR_ARGUMENT, "args.%s is given, but spec.op is FLP_OP_LOSS (accepted: NULL)",
                      FLP_ARRAY[i].name);
    if (is_own) FLP_TRY(flp_args_check_base(FLP_ARRAY[i].name, pointer, sizeof(float), ""));
  }
  return FLP_OK;
}

flp_status flp_step_resolve(const flp_spec *spec, const flp_loss *loss, const flp_args *args, flp_args *out) {
  if (spec->op == FLP_OP_HEAD)
    FLP_TRY(resolve(spec, args, 1, out));
  else {
    flp_args resolved;
    memset(out, 0, sizeof *out);
    FLP_TRY(read_args(args, 1, &resolved));
    FLP_TRY(check_loss_alone(&resolved));
    *out = resolved;
  }
  return check_loss_inputs(loss, out, spec->op == FLP_OP_LOSS);
}

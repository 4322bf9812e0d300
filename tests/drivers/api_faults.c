/* api_faults.c: fields with values that flp.h does not accept, as tables; see api.h. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tests/drivers/api.h"

typedef enum kind { I32, I64, F32, F64 } kind;

enum { VALUES_MAX = 8, COUNT_ABOVE = (1 << 30) + 1 };

typedef struct fault {
  const char *field;
  size_t offset;
  kind kind;
  int count;
  double reals[VALUES_MAX];     /* F32, F64 */
  int64_t integers[VALUES_MAX]; /* I32, I64 */
} fault;

#define COUNT_OF(type, ...) (int)(sizeof((type[]){__VA_ARGS__}) / sizeof(type))
#define INTEGERS_OF(of, type, name, kind, ...) \
  { of "." #name, offsetof(type, name), kind, COUNT_OF(int64_t, __VA_ARGS__), {0}, {__VA_ARGS__} }
#define INTEGERS(of, ...) INTEGERS_OF(#of, flp_##of, __VA_ARGS__)
#define ARGS_INTEGERS(...) INTEGERS_OF("args", flp_args, __VA_ARGS__)
#define SELECT_INTEGERS(...) INTEGERS_OF("args", flp_select_args, __VA_ARGS__)
#define REALS(type, field, name, kind, ...) \
  { field, offsetof(type, name), kind, COUNT_OF(double, __VA_ARGS__), {__VA_ARGS__}, {0} }

/* Sizes of structs that no release has: none, too small, odd, above every limit. */
#define BAD_SIZES 0, 4, 8, 12, 4104, INT32_MAX, UINT32_MAX

static const fault spec_faults[] = {
    INTEGERS(spec, struct_bytes, I32, BAD_SIZES),
    INTEGERS(spec, vocab, I64, 1, 0, -1, COUNT_ABOVE, INT64_MAX, INT64_MIN),
    INTEGERS(spec, dtype, I32, 0, 4, 5, 7, -1, INT32_MIN), INTEGERS(spec, target_dtype, I32, 0, 1, 3, 6, -1, INT32_MAX),
    INTEGERS(spec, entropy, I32, 3, -1, INT32_MAX), INTEGERS(spec, alignment, I32, 0, 1, 3, 5, 12, 24, 32, INT32_MIN),
    INTEGERS(spec, op, I32, FLP_OP_LOSS + 1, -1, INT32_MAX), INTEGERS(spec, grads, I32, 8, 15, -1, INT32_MIN),
    INTEGERS(spec, has_bias, I32, 2, -1, INT32_MIN), INTEGERS(spec, per_row_temperature, I32, 2, -1, INT32_MAX),
    INTEGERS(spec, grad_hidden_dtype, I32, 4, 5, 6, 7, -1), INTEGERS(spec, grad_weight_dtype, I32, 4, 5, 6, 7, -1),
    INTEGERS(spec, accumulate_grad_weight, I32, 2, -1), INTEGERS(spec, keep, I32, 2, -1, INT32_MIN),
    REALS(flp_spec, "spec.softcap", softcap, F32, -1, NAN, INFINITY, -INFINITY, -0x1p-140),
    /* a head alone, from here on; scores that exist already have no hidden size */
    INTEGERS(spec, hidden, I64, 0, 7, 9, 12, -8, INT64_MAX - 7, (1 << 20) + 8, INT64_MIN)};

static const fault options_faults[] = {
    INTEGERS(options, struct_bytes, I32, BAD_SIZES),
    INTEGERS(options, device, I32, -2, 1024, INT32_MIN, INT32_MAX),
    INTEGERS(options, rung, I32, -1, 1, 2, 3, 4, 6), /* of the host: auto and eager alone */
    INTEGERS(options, strict, I32, 2, -1),
    INTEGERS(options, host_fallback, I32, 2, -1),
    INTEGERS(options, chunk_rows, I64, -1, COUNT_ABOVE, INT64_MAX, INT64_MIN),
    INTEGERS(options, chunk_vocab, I64, -1, COUNT_ABOVE, INT64_MAX, INT64_MIN),
    INTEGERS(options, threads, I32, -1, 4097, INT32_MIN, INT32_MAX),
    INTEGERS(options, mode, I32, 1, 8, 12, -1, INT32_MAX)};

static void put(const fault *f, void *base, draw *d) {
  int which = draw_below(d, f->count);
  char *at = (char *)base + f->offset;
  int64_t integer = f->integers[which];
  uint32_t word = (uint32_t)integer;
  float narrow = (float)f->reals[which];
  const void *values[] = {[I32] = &word, [I64] = &integer, [F32] = &narrow, [F64] = &f->reals[which]};
  static const size_t bytes[] = {[I32] = 4, [I64] = 8, [F32] = 4, [F64] = 8};
  memcpy(at, values[f->kind], bytes[f->kind]);
}

const char *api_spoil_spec(draw *d, flp_spec *spec) {
  int count = (int)(sizeof spec_faults / sizeof spec_faults[0]) - (spec->op == FLP_OP_SELECT);
  const fault *f = &spec_faults[draw_below(d, count)];
  put(f, spec, d);
  return f->field;
}

const char *api_spoil_options(draw *d, flp_options *options) {
  const fault *f = &options_faults[draw_below(d, (int)(sizeof options_faults / sizeof options_faults[0]))];
  put(f, options, d);
  return f->field;
}

/* ---- numbers of a call ---- */

static const fault args_faults[] = {ARGS_INTEGERS(struct_bytes, I32, BAD_SIZES),
                                    ARGS_INTEGERS(pass, I32, 0, 5, 6, 7, -1, INT32_MAX),
                                    ARGS_INTEGERS(n, I64, -1, COUNT_ABOVE, INT64_MAX, INT64_MIN),
                                    ARGS_INTEGERS(vocab_valid, I64, -1, 1 << 20, INT64_MAX, INT64_MIN),
                                    ARGS_INTEGERS(vocab_total, I64, -1, INT64_MIN),
                                    ARGS_INTEGERS(row_count, I64, -1, COUNT_ABOVE, INT64_MAX, INT64_MIN),
                                    REALS(flp_args, "args.scale", scale, F32, NAN, INFINITY, -INFINITY)};

static const fault temperature_fault =
    REALS(flp_args, "args.temperature", temperature, F32, 0, -1, NAN, INFINITY, -INFINITY, -0.0);

static const fault operand_faults[] = {ARGS_INTEGERS(hidden_stride, I64, 1, 7, -1, INT64_MAX, INT64_MIN),
                                       ARGS_INTEGERS(weight_stride, I64, 1, 7, -1, INT64_MAX, INT64_MIN),
                                       ARGS_INTEGERS(vocab_offset, I64, -1, INT64_MAX, INT64_MIN)};

static const fault combine_faults[] = {ARGS_INTEGERS(shard_count, I64, 0, -1, 65537, INT64_MAX, INT64_MIN)};

static const fault gradient_faults[] = {ARGS_INTEGERS(grad_hidden_stride, I64, 1, 7, -1, INT64_MAX, INT64_MIN),
                                        ARGS_INTEGERS(grad_weight_stride, I64, 1, 7, -1, INT64_MAX, INT64_MIN)};

#define SOME(table) &(table)[draw_below(d, (int)(sizeof(table) / sizeof(table)[0]))]

static const char *spoil_number(draw *d, const flp_spec *spec, flp_args *args) {
  const fault *f = SOME(args_faults);
  if (!spec->per_row_temperature && draw_one_in(d, 8)) f = &temperature_fault;
  if (args->pass == FLP_PASS_COMBINE ? draw_one_in(d, 4) : 0) f = SOME(combine_faults);
  if (args->pass != FLP_PASS_COMBINE && draw_one_in(d, 4)) f = SOME(operand_faults);
  if (args->pass >= FLP_PASS_BACKWARD && draw_one_in(d, 6)) f = SOME(gradient_faults);
  put(f, args, d);
  return f->field;
}

/* ---- pointers of a call ---- */

typedef struct pointer_fault {
  const char *field;
  size_t offset;
  int looked_at;    /* bits 1 << pass */
  int needed_by;    /* passes that need it, where args have it */
  int forbidden_to; /* passes that refuse it, where args lack it */
} pointer_fault;

enum {
  FORWARD = 1 << FLP_PASS_FORWARD,
  COMBINE = 1 << FLP_PASS_COMBINE,
  BACKWARD = 1 << FLP_PASS_BACKWARD,
  STEP = 1 << FLP_PASS_STEP,
  OPERANDS = FORWARD | BACKWARD | STEP,
  OUTPUTS = FORWARD | COMBINE | STEP,
  GRADS = BACKWARD | STEP,
  ALL = FORWARD | COMBINE | BACKWARD | STEP
};

#define POINTER(name, looked_at, needed, forbidden) \
  { "args." #name, offsetof(flp_args, name), looked_at, needed, forbidden }

static const pointer_fault pointer_faults[] = {POINTER(target, ALL, ALL, 0),
                                               POINTER(hidden, OPERANDS, OPERANDS, 0),
                                               POINTER(weight, OPERANDS, OPERANDS, 0),
                                               POINTER(bias, OPERANDS, OPERANDS, OPERANDS),
                                               POINTER(temperature_rows, ALL, ALL, ALL),
                                               POINTER(partial, OUTPUTS, COMBINE, STEP),
                                               POINTER(stats, ALL, BACKWARD, STEP),
                                               POINTER(grad_hidden, GRADS, GRADS, GRADS),
                                               POINTER(grad_weight, GRADS, GRADS, GRADS),
                                               POINTER(grad_bias, GRADS, GRADS, GRADS),
                                               POINTER(grad_logprob, GRADS, 0, STEP),
                                               POINTER(grad_entropy, GRADS, 0, STEP),
                                               POINTER(old_lse, ALL, 0, COMBINE | BACKWARD),
                                               POINTER(saved, ALL, 0, ALL), /* the eager rung saves nothing */
                                               POINTER(workspace, ALL, ALL, 0),
                                               POINTER(rows, ALL, 0, 0),
                                               POINTER(logprob, OUTPUTS, 0, 0),
                                               POINTER(entropy, OUTPUTS, 0, 0),
                                               POINTER(loss, STEP, 0, 0),
                                               POINTER(metrics, STEP, 0, 0)};

static const char *spoil_pointer(draw *d, flp_args *args) {
  static const char foreign[256] __attribute__((aligned(256)));
  const pointer_fault *f = SOME(pointer_faults);
  const char *pointer;
  int pass = 1 << args->pass;
  memcpy(&pointer, (char *)args + f->offset, sizeof pointer);
  if (!(f->looked_at & pass) || (!pointer && !(f->forbidden_to & pass))) return NULL;
  if (!pointer)
    pointer = foreign;
  else
    pointer = f->needed_by & pass && draw_one_in(d, 2) ? NULL : pointer + 1;
  memcpy((char *)args + f->offset, &pointer, sizeof pointer);
  return f->field;
}

const char *api_spoil_args(draw *d, const flp_spec *spec, flp_args *args) {
  if (args->n == 0 || draw_one_in(d, 2)) return spoil_number(d, spec, args);
  return spoil_pointer(d, args);
}

/* ---- flp_select ---- */

static const fault select_faults[] = {
    SELECT_INTEGERS(struct_bytes, I32, BAD_SIZES),
    SELECT_INTEGERS(pass, I32, 0, 2, 4, 5, -1),
    SELECT_INTEGERS(n, I64, -1, COUNT_ABOVE, INT64_MAX, INT64_MIN),
    SELECT_INTEGERS(k, I64, 0, -1, COUNT_ABOVE, INT64_MAX, INT64_MIN),
    SELECT_INTEGERS(scores_stride, I64, 1, -1, INT64_MAX, INT64_MIN),
    REALS(flp_select_args, "args.temperature", temperature, F64, 0, -1, NAN, INFINITY, -INFINITY, 1e-300, 1e300)};

static const struct {
  const char *field;
  size_t offset;
  int backward; /* 1: of BACKWARD alone */
} select_pointers[] = {{"args.scores", offsetof(flp_select_args, scores), 0},
                       {"args.target", offsetof(flp_select_args, target), 0},
                       {"args.logprob", offsetof(flp_select_args, logprob), 1},
                       {"args.stats", offsetof(flp_select_args, stats), 1},
                       {"args.grad_scores", offsetof(flp_select_args, grad_scores), 1}};

const char *api_spoil_select(draw *d, const flp_spec *spec, flp_select_args *args) {
  if (spec->vocab == 2 && args->n == 0) return NULL; /* a stride of 1 is the only fault left with a doubt */
  if (args->n == 0 || draw_one_in(d, 2)) {
    const fault *f = SOME(select_faults);
    put(f, args, d);
    return f->field;
  }
  int which = draw_below(d, args->pass == FLP_PASS_BACKWARD ? 5 : 2);
  const char *pointer = NULL;
  memcpy(&pointer, (char *)args + select_pointers[which].offset, sizeof pointer);
  pointer = draw_one_in(d, 2) ? NULL : pointer + 1;
  memcpy((char *)args + select_pointers[which].offset, &pointer, sizeof pointer);
  return select_pointers[which].field;
}

void api_expect_refusal(flp_status status, const char *field, const char *call) {
  api_count.refused_calls++;
  API_EXPECT(status == FLP_ERROR_ARGUMENT, "%s with a bad %s: %s, not FLP_ERROR_ARGUMENT", call, field,
             flp_status_name(status));
  API_EXPECT(strstr(flp_error_detail(), field), "%s with a bad %s: the detail does not name it", call, field);
  API_EXPECT(api_outputs_untouched(), "%s with a bad %s was refused, but wrote an output", call, field);
}

/* given.c: gradients of a head from a given gradient of raw scores, on one rung, against double: of all rows in one
 * call, and of rows that come in three calls with sums between them.
 *
 * What is given is exact in dtype, so an element may be off by half a place of its own dtype, the fp32 sums' rounding,
 * and what sums between calls are rounded by. Rows that are left out have no row in what is given. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/call.h"
#include "gen/cli/call/lists.h"
#include "gen/cli/call/normal.h"
#include "gen/cli/check/session.h"
#include "runtime/api/validate.h"
#include "runtime/base/half.h"
#include "runtime/base/status.h"
#include "runtime/base/util.h"

enum { BOTH = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT, CALLS = 3, GAP = 8 };

typedef struct shape {
  const char *name;
  int64_t n, vocab, depth;
  uint32_t grads;
  int left_out; /* every such row; 0: none */
  int wide;     /* 1: gradients in fp32; 2: and added to what grad_weight holds */
} shape;

static const shape shapes[] = {{"given", 67, 1531, 72, BOTH, 0, 0},
                               {"given-several-tiles", 300, 1601, 136, BOTH, 0, 0},
                               {"given-few-columns", 67, 8, 136, BOTH, 0, 0},
                               {"given-N=1", 1, 1531, 72, BOTH, 0, 0},
                               {"given-left-out", 150, 1531, 72, BOTH, 3, 0},
                               {"given-none", 67, 1531, 72, BOTH, 1, 0},
                               {"given-hidden", 67, 1531, 72, FLP_GRAD_HIDDEN, 0, 0},
                               {"given-weight", 150, 1531, 72, FLP_GRAD_WEIGHT, 0, 0},
                               {"given-fp32", 67, 1531, 72, BOTH, 0, 1},
                               {"given-added", 67, 1531, 72, BOTH, 0, 2}};
static const flp_array_id gradients[] = {FLP_ARRAY_grad_hidden, FLP_ARRAY_grad_weight};
static const char *const outputs[][2] = {{"grad_hidden", "grad_weight"}, /* in one call */
                                         {"grad_hidden of calls", "grad_weight of calls"}};

typedef struct problem {
  const shape *s;
  check_case c;
  call_problem call;
  int64_t active; /* rows that are not left out */
  cli_memory memory;
  char *hidden, *weight, *given, *base; /* base: what grad_weight is added to, where it is */
  int64_t *target;
} problem;

static check_case case_of(const shape *s, flp_dtype dtype) {
  check_case c = check_case_default(dtype, s->n, s->vocab, s->depth);
  c.name = s->name;
  c.mode = FLP_MODE_GIVEN;
  c.spec.raw_scores = 1;
  c.spec.grads = s->grads;
  c.spec.target_dtype = FLP_DTYPE_INT64;
  if (!s->wide) return c;
  c.spec.grad_hidden_dtype = c.spec.grad_weight_dtype = FLP_DTYPE_FP32;
  c.spec.accumulate_grad_weight = s->wide > 1;
  return c;
}

/* ---- data ---- */

static int is_left_out(const shape *s, int64_t row) {
  return s->left_out && row % s->left_out == 0;
}

/* Rows before that one which are not left out. */
static int64_t active_before(const shape *s, int64_t row) {
  int64_t count = 0;
  for (int64_t i = 0; i < row; i++) count += !is_left_out(s, i);
  return count;
}

/* (rows, stride) with zeros up to 16 bytes behind a row, and NaN in what is left; sharp: an element in 32 is large. */
static char *drawn(problem *p, flp_dtype dtype, int64_t rows, int64_t columns, int64_t stride, uint64_t seed,
                   int sharp) {
  size_t element = flp_dtype_bytes(dtype), bytes = (size_t)(rows * stride) * element;
  char *out = cli_memory_take_zeros(&p->memory, bytes + 1);
  if (!out) return NULL;
  memset(out, 0xff, bytes);
  int64_t padded = flp_round_up(columns, 16 / (int64_t)element);
  for (int64_t row = 0; row < rows; row++)
    memset(out + (size_t)(row * stride + columns) * element, 0, (size_t)(padded - columns) * element);
  for (int64_t i = 0; i < rows * columns; i++) {
    uint64_t bits = cli_hash(seed ^ (uint64_t)i * 0x9e3779b97f4a7c15u);
    float value = (float)(2 * cli_unit(bits) - 1) * (sharp && bits % 32 ? 0x1p-9f : 1);
    flp_half_narrow(dtype, &value, 1, out + (size_t)(i / columns * stride + i % columns) * element);
  }
  return out;
}

static int64_t stride_of(const problem *p, flp_array_id id) {
  return (int64_t)call_array_of(&p->call, id).stride;
}

static flp_status problem_create(const shape *s, flp_dtype dtype, problem *p) {
  *p = (problem){.s = s, .c = case_of(s, dtype), .active = active_before(s, s->n)};
  flp_spec given = p->c.spec;
  FLP_TRY(flp_spec_resolve(&given, &p->c.spec));
  p->call = call_problem_of(&p->c.spec, s->n);
  p->call.stride = s->depth + GAP;
  p->call.ignore_index = CHECK_IGNORE_INDEX;
  p->hidden = drawn(p, dtype, s->n, s->depth, p->call.stride, 3, 0);
  p->weight = drawn(p, dtype, s->vocab, s->depth, p->call.stride, 4, 0);
  p->given = drawn(p, dtype, s->n, s->vocab, stride_of(p, FLP_ARRAY_grad_raw_scores), 5, 1);
  p->base = drawn(p, FLP_DTYPE_FP32, s->vocab, s->depth, p->call.stride, 6, 0);
  p->target = cli_memory_take_zeros(&p->memory, (size_t)s->n * sizeof *p->target);
  FLP_TRY(cli_memory_status(&p->memory, "a head"));
  for (int64_t i = 0; i < s->n; i++) p->target[i] = is_left_out(s, i) ? CHECK_IGNORE_INDEX : 0;
  if (p->c.spec.accumulate_grad_weight) p->call.weight_base = (const float *)(const void *)p->base;
  p->call.operand[FLP_ARRAY_hidden] = p->hidden;
  p->call.operand[FLP_ARRAY_weight] = p->weight;
  p->call.operand[FLP_ARRAY_grad_raw_scores] = p->given;
  p->call.operand[FLP_ARRAY_target] = p->target;
  return FLP_OK;
}

/* ---- running ---- */

typedef struct run {
  cli_device device;
  call_buffers buffers;
  flp_plan *plan;
  call_result got;
} run;

static int has(const problem *p, flp_array_id id) {
  return call_array_of(&p->call, id).wanted;
}

static flp_status execute_rows(const problem *p, run *r, int64_t first, int64_t last, int64_t bits) {
  call_buffers *b = &r->buffers;
  flp_layout layout = FLP_LAYOUT_INIT;
  FLP_TRY(flp_plan_layout(r->plan, FLP_PASS_BACKWARD_GIVEN, last - first, 0, &layout));
  FLP_TRY(call_make(b, FLP_ARRAY_workspace, (size_t)layout.bytes));
  flp_args args = call_args(b, &p->call, FLP_PASS_BACKWARD, 0);
  args.n = last - first;
  args.hidden = call_row(b, &p->call, FLP_ARRAY_hidden, first);
  args.target = call_row(b, &p->call, FLP_ARRAY_target, first);
  args.grad_raw_scores = call_row(b, &p->call, FLP_ARRAY_grad_raw_scores, active_before(p->s, first));
  if (args.grad_hidden) args.grad_hidden = call_row(b, &p->call, FLP_ARRAY_grad_hidden, first);
  args.sums_bytes = b->at[FLP_ARRAY_sums].bytes;
  args.sums_bits = p->c.spec.accumulate_grad_weight ? 0 : bits;
  FLP_TRY(flp_execute(r->plan, &args));
  return cli_device_synchronise(&r->device);
}

static flp_status execute(const problem *p, int calls, run *r) {
  size_t sums = 0;
  r->buffers = (call_buffers){.device = &r->device, .guarded = 1};
  FLP_TRY(flp_plan_sums(r->plan, &sums));
  FLP_TRY(call_upload(&r->buffers, &p->call));
  FLP_TRY(call_make_outputs(&r->buffers, &p->call));
  if (calls > 1 && sums) FLP_TRY(call_make(&r->buffers, FLP_ARRAY_sums, sums));
  FLP_TRY(cli_device_synchronise(&r->device));
  for (int call = 0; call < calls; call++) {
    int64_t bits = (call ? FLP_SUMS_CONTINUE : 0) | (call + 1 < calls ? FLP_SUMS_LEAVE : 0);
    FLP_TRY(execute_rows(p, r, p->s->n * call / calls, p->s->n * (call + 1) / calls, bits));
  }
  return call_download(&r->buffers, &p->call, &r->got);
}

static flp_status run_problem(const problem *p, const check_how *how, int calls, run *r) {
  flp_options options = check_how_options(how);
  FLP_TRY(cli_device_open(options.device, &r->device));
  FLP_TRY(check_precompile_plan(how->precompile, &p->c.spec, &options, &r->plan));
  return execute(p, calls, r);
}

static void run_clear(run *r) {
  call_result_clear(&r->got);
  call_clear(&r->buffers);
  flp_plan_destroy(r->plan);
  cli_device_close(&r->device);
}

/* ---- comparing ---- */

static double at(const problem *p, const char *from, int64_t row, int64_t column, int64_t stride) {
  return cli_number_at(p->c.spec.dtype, from, row * stride + column);
}

/* What an element of a gradient is before anything is added. */
static double base_of(const problem *p, flp_array_id id, int64_t row, int64_t d) {
  int has_base = id == FLP_ARRAY_grad_weight && p->call.weight_base;
  return has_base ? (double)p->call.weight_base[row * p->call.stride + d] : 0;
}

/* An element of a gradient: the sum, and that of sizes. */
static void element_of(const problem *p, flp_array_id id, int64_t row, int64_t d, double *sum, double *size) {
  int64_t stride = p->call.stride, of_given = stride_of(p, FLP_ARRAY_grad_raw_scores);
  int is_hidden = id == FLP_ARRAY_grad_hidden;
  int64_t active = is_hidden ? active_before(p->s, row) : 0, count = is_hidden ? p->s->vocab : p->s->n;
  *sum = base_of(p, id, row, d);
  *size = fabs(*sum);
  for (int64_t i = 0; i < count; i++) {
    int is_out = is_left_out(p->s, is_hidden ? row : i);
    double dz = is_out      ? 0
                : is_hidden ? at(p, p->given, active, i, of_given)
                            : at(p, p->given, active++, row, of_given);
    double product = is_out ? 0 : dz * at(p, is_hidden ? p->weight : p->hidden, i, d, stride);
    *sum += product;
    *size += fabs(product);
  }
}

static flp_status compare(const problem *p, flp_array_id id, int calls, const run *r, check_metric *out) {
  const call_array array = call_array_of(&p->call, id);
  flp_dtype dtype = flp_array_dtype(id, &p->c.spec);
  int64_t rows = (int64_t)array.rows, stride = (int64_t)array.stride, depth = p->s->depth;
  int digits = dtype == FLP_DTYPE_BF16 ? 8 : dtype == FLP_DTYPE_FP16 ? 11 : 24;
  double of_sums = 0x1p-18 + (calls > 1 && dtype == FLP_DTYPE_BF16 ? 0x1p-15 : 0);
  cli_memory memory = {0};
  check_numbers a = check_numbers_of(&memory, rows * depth);
  flp_status status = cli_memory_status(&memory, "a comparison");
  for (int64_t i = 0; status == FLP_OK && i < rows * depth; i++) {
    double right, size, got = cli_number_at(dtype, call_result_at(&r->got, id), i / depth * stride + i % depth);
    element_of(p, id, i / depth, i % depth, &right, &size);
    double unit = ldexp(fmax(fabs(right), 0x1p-14), 1 - digits);
    check_numbers_set(&a, i, got, right, unit, 0.501 * unit + of_sums * size);
  }
  *out = check_numbers_judge(&a);
  cli_memory_free(&memory);
  return status;
}

static flp_status compare_all(const problem *p, int calls, const check_how *how, const run *r, check_report *report) {
  for (int i = 0; i < 2; i++) {
    check_metric metric;
    if (!has(p, gradients[i])) continue;
    FLP_TRY(compare(p, gradients[i], calls, r, &metric));
    metric.pass &= !r->got.overrun;
    check_report_add(report, &p->c, how->options.rung, outputs[calls > 1][i], metric,
                     r->got.overrun ? "wrote outside of rows" : NULL);
  }
  return FLP_OK;
}

static flp_status check_one(const shape *s, flp_dtype dtype, int calls, const check_how *how, check_report *report) {
  problem p;
  run r = {0};
  flp_status status = problem_create(s, dtype, &p);
  if (status == FLP_OK) status = run_problem(&p, how, calls, &r);
  if (status == FLP_OK) status = compare_all(&p, calls, how, &r, report);
  run_clear(&r);
  cli_memory_free(&p.memory);
  return status;
}

flp_status check_given(const check_part *of, const check_how *how, check_report *report) {
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    FLP_TRY(check_one(&shapes[i], of->dtype, 1, how, report));
    if (shapes[i].n >= CALLS) FLP_TRY(check_one(&shapes[i], of->dtype, CALLS, how, report));
  }
  return FLP_OK;
}

void check_given_cases(const check_part *of, check_list *list) {
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) check_list_add(list, case_of(&shapes[i], of->dtype));
}

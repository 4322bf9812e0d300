/* eager_case.c: a random problem on the host, ready for the eager rung and for the long double oracle. */
#include "tests/unit/support/eager_case.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/api/validate.h"
#include "runtime/base/half.h"
#include "runtime/base/operands.h"

enum { GUARD = 256 };

/* A number from 0 to below - 1. */
static int64_t random_below(uint32_t *state, int64_t below) {
  return (int64_t)((double)below * (0.5 + 0.4999 * test_random(state)));
}

static void *allocate(int64_t bytes) {
  void *memory = NULL;
  cr_assert_eq(posix_memalign(&memory, 256, (size_t)bytes + GUARD), 0);
  return memset(memory, 0xff, (size_t)bytes + GUARD);
}

static void expect_guard(const char *what, const void *memory, uint64_t bytes) {
  for (size_t i = 0; i < GUARD; i++) cr_assert_eq(((const unsigned char *)memory)[bytes + i], 0xff, "behind %s", what);
}

/* Stores value rounded to dtype; returns what was stored. */
static long double store(flp_dtype dtype, void *base, int64_t at, double value) {
  float exact = (float)value, kept;
  char *out = (char *)base + at * flp_half_bytes(dtype);
  flp_half_narrow(dtype, &exact, 1, out);
  flp_half_widen(dtype, out, 1, &kept);
  return (long double)kept;
}

int64_t eager_case_id_at(const eager_case *c, const void *ids, int64_t at) {
  return c->spec.target_dtype == FLP_DTYPE_INT32 ? ((const int32_t *)ids)[at] : ((const int64_t *)ids)[at];
}

static void set_id(const eager_case *c, void *ids, int64_t at, int64_t id) {
  if (c->spec.target_dtype == FLP_DTYPE_INT32)
    ((int32_t *)ids)[at] = (int32_t)id;
  else
    ((int64_t *)ids)[at] = id;
}

void eager_case_set_hidden(eager_case *c, int64_t row, int64_t d, double value) {
  c->reference.hidden[row * c->spec.hidden + d] =
      store(c->spec.hidden_dtype, c->hidden, row * c->args.hidden_stride + d, value);
}

void eager_case_set_weight(eager_case *c, int64_t column, int64_t d, double value) {
  c->reference.weight[column * c->spec.hidden + d] =
      store(c->spec.weight_dtype, c->weight, column * c->args.weight_stride + d, value);
}

void eager_case_set_bias(eager_case *c, int64_t column, double value) {
  c->reference.bias[column] = store(c->spec.bias_dtype, c->bias, column, value);
}

void eager_case_set_target(eager_case *c, int64_t row, int64_t k, int64_t target) {
  set_id(c, c->target, row * flp_spec_targets(&c->spec) + k, target);
}

int64_t eager_case_get_target(const eager_case *c, int64_t row, int64_t k) {
  return eager_case_id_at(c, c->target, row * flp_spec_targets(&c->spec) + k);
}

int64_t eager_case_columns(const eager_case *c) {
  return c->args.vocab_valid ? c->args.vocab_valid : c->spec.vocab;
}

/* ---- random operands ---- */

void eager_case_set_lists(eager_case *c, const int64_t *ids, const int64_t *count) {
  int64_t n = c->args.n, total = 0;
  for (int64_t row = 0; row < n; row++) total += count[row];
  free(c->list_offsets);
  free(c->list_ids);
  c->list_offsets = calloc((size_t)n + 1, sizeof *c->list_offsets);
  c->list_ids = calloc((size_t)total + 1, 8);
  for (int64_t row = 0; row < n; row++) c->list_offsets[row + 1] = c->list_offsets[row] + count[row];
  for (int64_t e = 0; e < total; e++) set_id(c, c->list_ids, e, ids[e]);
  c->args.list_offsets = c->list_offsets;
  c->args.list_ids = c->list_ids;
  c->args.list_count = total;
}

static void random_lists(eager_case *c, int64_t longest, uint32_t *state) {
  int64_t n = c->args.n, at = 0, *ids = calloc((size_t)(n * longest) + 1, 8), *count = calloc((size_t)n + 1, 8);
  for (int64_t row = 0; row < n; row++) {
    count[row] = 1 + random_below(state, longest);
    for (int64_t i = 0; i < count[row]; i++) ids[at + i] = random_below(state, c->spec.vocab);
    if (count[row] > 2) ids[at] = ids[at + count[row] - 1];
    ids[at + random_below(state, count[row])] = eager_case_get_target(c, row, 0);
    at += count[row];
  }
  eager_case_set_lists(c, ids, count);
  free(ids);
  free(count);
}

static void random_targets(eager_case *c, int64_t row, uint32_t *state) {
  int64_t count = flp_spec_targets(&c->spec), vocab = c->spec.vocab;
  for (int64_t k = 0; k < count; k++) {
    int64_t id = random_below(state, vocab);
    if (k == 1 && row % 2) id = eager_case_get_target(c, row, 0);
    if (count > 1 && k == 0 && row % 3 == 0) id = row % 2 ? 0 : vocab - 1;
    if (count > 1 && ((row + k) % 5 == 0 || row % 7 == 3)) id = c->args.ignore_index;
    eager_case_set_target(c, row, k, id);
    c->grad_logprob[row * count + k] = id < 0 ? NAN : (float)test_random(state);
  }
}

/* Elements of a dense matrix of the adapter, in both. */
static void random_adapter(const eager_case *c, void *out, long double *wide, int64_t count, uint32_t *state) {
  for (int64_t i = 0; i < count; i++) wide[i] = store(c->spec.dtype, out, i, 0.5 * test_random(state));
}

static void fill(eager_case *c, uint32_t seed) {
  int64_t n = c->args.n, vocab = c->spec.vocab, depth = c->spec.hidden, rank = c->spec.lora_rank;
  uint32_t state = seed * 2654435761u + 12345u;
  double spread = 2.0 / sqrt((double)depth);
  for (int64_t i = 0; i < n * depth; i++) eager_case_set_hidden(c, i / depth, i % depth, 2 * test_random(&state));
  for (int64_t i = 0; i < vocab * depth; i++)
    eager_case_set_weight(c, i / depth, i % depth, spread * test_random(&state));
  for (int64_t v = 0; c->spec.has_bias && v < vocab; v++) eager_case_set_bias(c, v, test_random(&state));
  for (int64_t i = 0; i < n; i++) {
    random_targets(c, i, &state);
    c->temperature[i] = (float)(1.25 + test_random(&state));
    c->grad_entropy[i] = (float)test_random(&state);
  }
  random_adapter(c, c->lora_a, c->reference.lora_a, rank * depth, &state);
  random_adapter(c, c->lora_b, c->reference.lora_b, vocab * rank, &state);
}

/* ---- memory ---- */

static void *add_output(eager_case *c, eager_output out, int wanted) {
  int at = 0;
  while (c->outputs[at].name) at++;
  if (!wanted) out.bytes = 0;
  out.data = wanted ? allocate((int64_t)out.bytes) : NULL;
  c->outputs[at] = out;
  return out.data;
}

static void *add_values(eager_case *c, const char *name, int wanted, int64_t bytes) {
  return add_output(c, (eager_output){.name = name, .bytes = (size_t)bytes}, wanted);
}

static void allocate_outputs(eager_case *c, int64_t n) {
  const flp_spec *spec = &c->spec;
  const long_problem *p = &c->reference;
  int64_t width = spec->hidden + c->padding, rank = spec->lora_rank, topk = spec->topk, vocab = spec->vocab;
  c->logprob = add_values(c, "logprob", 1, n * 4 * flp_spec_targets(spec));
  c->entropy = add_values(c, "entropy", spec->entropy != FLP_ENTROPY_NONE, n * 4);
  c->stats = add_values(c, "stats", 1, n * 16);
  c->top_ids = add_values(c, "top_ids", topk > 0, n * topk * (spec->target_dtype == FLP_DTYPE_INT32 ? 4 : 8));
  c->top_logprob = add_values(c, "top_logprob", topk > 0, n * topk * 4);
  c->top_rest = add_values(c, "top_rest", topk > 0, n * 4);
  c->rank = add_values(c, "rank", spec->rank, n * 4);
  eager_output grads[] = {
      {"grad_hidden", NULL, 0, FLP_GRAD_HIDDEN, spec->grad_hidden_dtype, n, spec->hidden, width, p->hidden},
      {"grad_weight", NULL, 0, FLP_GRAD_WEIGHT, spec->grad_weight_dtype, vocab, spec->hidden, width, p->weight},
      {"grad_bias", NULL, 0, FLP_GRAD_BIAS, spec->grad_bias_dtype, vocab, 1, 1, p->bias},
      {"grad_lora_a", NULL, 0, FLP_GRAD_LORA_A, spec->grad_lora_dtype, rank, spec->hidden, spec->hidden, p->lora_a},
      {"grad_lora_b", NULL, 0, FLP_GRAD_LORA_B, spec->grad_lora_dtype, vocab, rank, rank, p->lora_b}};
  for (int i = 0; i < 5; i++) {
    int wanted = (spec->grads & grads[i].grad) != 0;
    if (wanted) grads[i].bytes = (size_t)(grads[i].rows * grads[i].stride * flp_half_bytes(grads[i].dtype));
    add_output(c, grads[i], wanted);
  }
}

static void create(eager_case *c, const flp_spec *spec, int64_t n) {
  memset(c, 0, sizeof *c);
  cr_assert_eq(flp_spec_resolve(spec, &c->spec), FLP_OK, "%s", flp_error_detail());
  spec = &c->spec;
  c->padding = 16;
  c->budget = UINT64_C(256) << 20;
  int64_t stride = spec->hidden + c->padding, targets = flp_spec_targets(spec), rank = spec->lora_rank;
  c->hidden = allocate(n * 4 * stride);
  c->weight = allocate(spec->vocab * 4 * stride);
  c->bias = allocate(spec->vocab * 4);
  c->lora_a = allocate(rank * 4 * spec->hidden);
  c->lora_b = allocate(spec->vocab * 4 * rank);
  c->target = allocate(n * targets * 8);
  c->temperature = allocate(n * 4);
  c->grad_logprob = allocate(n * targets * 4);
  c->grad_entropy = allocate(n * 4);
  c->kind = calloc((size_t)n + 1, 1);
  long_problem_create(&c->reference, (int)n, (int)spec->vocab, (int)spec->hidden, (int)targets, (int)rank);
  allocate_outputs(c, n);
  c->args = (flp_args)FLP_ARGS_INIT;
  c->args.n = n;
  c->args.hidden = c->hidden;
  c->args.weight = c->weight;
  c->args.hidden_stride = c->args.weight_stride = c->args.grad_hidden_stride = c->args.grad_weight_stride = stride;
  c->args.target = c->target;
  if (spec->has_bias) c->args.bias = c->bias;
  if (spec->per_row_temperature) c->args.temperature_rows = c->temperature;
  if (rank) c->args.lora_a = c->lora_a, c->args.lora_b = c->lora_b, c->args.lora_scale = 1;
}

void eager_case_create(eager_case *c, const flp_spec *spec, int64_t n, uint32_t seed) {
  create(c, spec, n);
  fill(c, seed);
}

void eager_case_create_listed(eager_case *c, const flp_spec *spec, int64_t n, int64_t longest, uint32_t seed) {
  uint32_t state = (seed + 1) * 2654435761u + 12345u;
  eager_case_create(c, spec, n, seed);
  if (spec->listed) random_lists(c, longest, &state);
}

void eager_case_destroy(eager_case *c) {
  void *const blocks[] = {c->hidden,       c->weight,       c->bias,         c->target,   c->lora_a, c->lora_b,
                          c->temperature,  c->grad_logprob, c->grad_entropy, c->list_ids, c->kind,   c->list_offsets};
  for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) free(blocks[i]);
  for (int i = 0; i < EAGER_OUTPUTS; i++) free(c->outputs[i].data);
  long_problem_destroy(&c->reference);
}

/* ---- passes ---- */

static flp_status layout_of(const eager_case *c, const flp_args *args, uint64_t budget, flp_layout *out) {
  if (!c->spec.listed || args->pass == FLP_PASS_COMBINE)
    return flp_eager_layout(&c->spec, args->pass, args->n, budget, c->threads, out);
  return flp_eager_layout_listed(&c->spec, args->pass, args->n, args->list_count, budget, c->threads, out);
}

flp_status eager_case_run(eager_case *c, const flp_args *args) {
  flp_layout layout = FLP_LAYOUT_INIT;
  flp_status status = layout_of(c, args, c->budget, &layout);
  uint64_t least = layout.smallest_bytes, between = least + (layout.bytes - least) / 2;
  if (status == FLP_OK && c->squeeze) status = layout_of(c, args, c->squeeze == 1 ? least : between, &layout);
  if (status != FLP_OK) return status;
  flp_args resolved, given = *args;
  given.workspace = allocate((int64_t)layout.bytes);
  given.workspace_bytes = layout.bytes;
  status = flp_args_resolve(&c->spec, &given, &resolved);
  if (status == FLP_OK) status = flp_eager_execute(&c->spec, &resolved, c->threads, &c->bad_rows);
  expect_guard("the workspace", given.workspace, layout.bytes);
  free(given.workspace);
  for (int i = 0; i < EAGER_OUTPUTS; i++)
    if (c->outputs[i].data) expect_guard(c->outputs[i].name, c->outputs[i].data, c->outputs[i].bytes);
  return status;
}

const eager_output *eager_case_output(const eager_case *c, uint32_t grad) {
  const eager_output *out = c->outputs;
  while (out->grad != grad) out++;
  return out;
}

/* Where that gradient goes, if the spec asks for it. */
static void *wanted(const eager_case *c, uint32_t grad) {
  return c->spec.grads & grad ? eager_case_output(c, grad)->data : NULL;
}

flp_args eager_case_args(const eager_case *c, flp_pass pass) {
  flp_args args = c->args;
  args.pass = pass;
  args.stats = c->stats;
  if (pass != FLP_PASS_BACKWARD) {
    args.logprob = c->logprob;
    args.entropy = c->entropy;
    if (c->spec.topk) args.top_ids = c->top_ids, args.top_logprob = c->top_logprob, args.top_rest = c->top_rest;
    if (c->spec.rank) args.rank = c->rank;
    return args;
  }
  args.grad_logprob = c->grad_logprob;
  if (c->spec.entropy == FLP_ENTROPY_BACKWARD) args.grad_entropy = c->grad_entropy;
  args.grad_hidden = wanted(c, FLP_GRAD_HIDDEN);
  args.grad_weight = wanted(c, FLP_GRAD_WEIGHT);
  args.grad_bias = wanted(c, FLP_GRAD_BIAS);
  args.grad_lora_a = wanted(c, FLP_GRAD_LORA_A);
  args.grad_lora_b = wanted(c, FLP_GRAD_LORA_B);
  return args;
}

static void run(eager_case *c, flp_pass pass) {
  flp_args args = eager_case_args(c, pass);
  for (int i = 0; i < EAGER_OUTPUTS; i++)
    if (c->outputs[i].data && !c->outputs[i].grad == (pass == FLP_PASS_FORWARD))
      memset(c->outputs[i].data, 0xff, c->outputs[i].bytes);
  cr_assert_eq(eager_case_run(c, &args), FLP_OK, "%s", flp_error_detail());
}

void eager_case_forward(eager_case *c) {
  run(c, FLP_PASS_FORWARD);
}

void eager_case_backward(eager_case *c) {
  run(c, FLP_PASS_BACKWARD);
}

double eager_case_grad(const eager_case *c, uint32_t grad, int64_t row, int64_t d) {
  const eager_output *out = eager_case_output(c, grad);
  float value;
  flp_half_widen(out->dtype, (char *)out->data + (row * out->stride + d) * flp_half_bytes(out->dtype), 1, &value);
  return (double)value;
}

char *eager_case_snapshot(const eager_case *c) {
  size_t bytes = 1, at = 0;
  for (int i = 0; i < EAGER_OUTPUTS; i++) bytes += c->outputs[i].bytes;
  char *out = malloc(bytes);
  for (int i = 0; i < EAGER_OUTPUTS; at += c->outputs[i++].bytes)
    if (c->outputs[i].data) memcpy(out + at, c->outputs[i].data, c->outputs[i].bytes);
  return out;
}

void eager_case_expect_bits(const eager_case *c, const char *snapshot, uint32_t grads, const char *what) {
  for (int i = 0; i < EAGER_OUTPUTS; snapshot += c->outputs[i++].bytes)
    if (c->outputs[i].data && (!c->outputs[i].grad || (c->outputs[i].grad & grads)))
      cr_assert_eq(memcmp(c->outputs[i].data, snapshot, c->outputs[i].bytes), 0, "%s: %s", c->outputs[i].name, what);
}

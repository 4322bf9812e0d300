/* args.c: a problem, and flp_args of its passes: the one place that knows which array goes into which field. */
#include <string.h>

#include "gen/cli/call/call.h"
#include "runtime/kernel/kernel.h"

call_problem call_problem_of(const flp_spec *spec, int64_t n) {
  const flp_args defaults = FLP_ARGS_INIT;
  return (call_problem){.spec = *spec,
                        .n = n,
                        .stride = spec->hidden,
                        .shards = 1,
                        .shard_vocab = spec->vocab,
                        .temperature = (double)defaults.temperature,
                        .scale = (double)defaults.scale,
                        .lora_scale = spec->lora_rank ? 1 : 0,
                        .ignore_index = defaults.ignore_index};
}

int call_has_pass(const call_problem *p, flp_pass pass) {
  if (p->loss || pass == FLP_PASS_STEP) return p->loss && pass == FLP_PASS_STEP;
  return pass == FLP_PASS_FORWARD || (pass == FLP_PASS_BACKWARD && p->spec.grads);
}

static void *at(const call_buffers *b, call_slot slot) {
  return call_buffer_at(&b->at[slot], 0);
}

void *call_row(const call_buffers *b, const call_problem *p, call_slot slot, int64_t row) {
  call_array array = call_array_of(p, slot);
  return call_buffer_at(&b->at[slot], (size_t)row * array.stride * array.element);
}

static void set_lists(const call_buffers *b, const call_problem *p, flp_args *args) {
  args->list_offsets = at(b, CALL_LIST_OFFSETS);
  args->list_ids = at(b, CALL_LIST_IDS);
  args->list_count = p->list_count;
}

/* A shard has its own rows of B and all of A. */
static void set_lora(const call_buffers *b, const call_problem *p, int shard, flp_args *args) {
  if (!p->spec.lora_rank || args->pass == FLP_PASS_COMBINE) return;
  args->lora_a = at(b, CALL_LORA_A);
  args->lora_b = call_row(b, p, CALL_LORA_B, shard * p->shard_vocab);
  args->lora_a_stride = args->grad_lora_a_stride = p->stride;
  args->lora_scale = (float)p->lora_scale;
}

static flp_args base_args(const call_buffers *b, const call_problem *p, flp_pass pass, int shard) {
  int64_t first = shard * p->shard_vocab, left = p->spec.vocab - first;
  flp_args args = FLP_ARGS_INIT;
  args.pass = pass;
  args.n = p->n;
  args.hidden = at(b, CALL_HIDDEN);
  args.weight = call_row(b, p, CALL_WEIGHT, shard * p->shard_vocab);
  args.bias = call_row(b, p, CALL_BIAS, shard * p->shard_vocab);
  args.hidden_stride = args.weight_stride = args.grad_hidden_stride = args.grad_weight_stride = p->stride;
  args.target = at(b, CALL_TARGET);
  args.temperature_rows = at(b, CALL_TEMPERATURE);
  args.temperature = (float)p->temperature;
  args.scale = (float)p->scale;
  args.ignore_index = p->ignore_index;
  args.rows = at(b, CALL_ROWS);
  args.row_count = p->row_count;
  if (pass != FLP_PASS_COMBINE) set_lists(b, p, &args);
  set_lora(b, p, shard, &args);
  args.vocab_offset = first;
  args.vocab_valid = left < p->shard_vocab ? left : p->shard_vocab;
  args.vocab_total = p->spec.vocab;
  args.workspace = at(b, CALL_WORKSPACE);
  args.workspace_bytes = b->at[CALL_WORKSPACE].bytes;
  args.stream = b->stream ? b->stream : b->device->stream;
  return args;
}

static void set_rows(const call_buffers *b, flp_args *args) {
  args->logprob = at(b, CALL_LOGPROB);
  args->entropy = at(b, CALL_ENTROPY);
  if (args->pass != FLP_PASS_STEP) args->stats = at(b, CALL_STATS);
  if (args->pass != FLP_PASS_COMBINE) args->old_lse = at(b, CALL_OLD_LSE);
}

static void set_saved(const call_buffers *b, const call_problem *p, int shard, flp_args *args) {
  size_t own = b->at[CALL_SAVED].bytes / (size_t)p->shards;
  char *start = at(b, CALL_SAVED);
  args->saved = start ? start + (size_t)shard * own : NULL;
  args->saved_bytes = own;
}

static void set_gradients(const call_buffers *b, const call_problem *p, int shard, flp_args *args) {
  args->grad_hidden = call_row(b, p, CALL_GRAD_HIDDEN, shard * p->n);
  args->grad_weight = call_row(b, p, CALL_GRAD_WEIGHT, shard * p->shard_vocab);
  args->grad_bias = call_row(b, p, CALL_GRAD_BIAS, shard * p->shard_vocab);
  args->grad_lora_a = call_row(b, p, CALL_GRAD_LORA_A, shard * p->spec.lora_rank);
  args->grad_lora_b = call_row(b, p, CALL_GRAD_LORA_B, shard * p->shard_vocab);
  args->tail_report = call_row(b, p, CALL_TAIL_REPORT, shard);
}

static void set_top(const call_buffers *b, const call_problem *p, int shard, flp_args *args) {
  args->top_ids = call_row(b, p, CALL_TOP_IDS, shard * p->n);
  args->top_logprob = call_row(b, p, CALL_TOP_LOGPROB, shard * p->n);
  args->top_rest = at(b, CALL_TOP_REST);
  args->rank = at(b, CALL_RANK);
}

static void set_loss(const call_buffers *b, const call_problem *p, flp_args *args) {
  const float *inputs[FLP_LOSS_INPUTS_MAX];
  for (int i = 0; i < FLP_LOSS_INPUTS_MAX; i++) inputs[i] = at(b, (call_slot)(CALL_LOSS_INPUT + i));
  args->old_logprob = inputs[FLP_LOSS_OLD_LOGPROB];
  args->ref_logprob = inputs[FLP_LOSS_REF_LOGPROB];
  args->advantage = inputs[FLP_LOSS_ADVANTAGE];
  args->row_weight = inputs[FLP_LOSS_WEIGHT];
  memcpy(args->vectors, inputs + FLP_LOSS_FIRST_VECTOR, sizeof args->vectors);
  args->teacher_logprob = at(b, CALL_TEACHER);
  args->loss_parameters = p->loss_parameters;
  args->loss = at(b, CALL_LOSS);
  args->metrics = at(b, CALL_METRICS);
}

flp_args call_args(const call_buffers *b, const call_problem *p, flp_pass pass, int shard) {
  flp_args args = base_args(b, p, pass, shard);
  int is_sharded = p->shards > 1 && pass <= FLP_PASS_COMBINE;
  int64_t first = pass == FLP_PASS_COMBINE ? 0 : shard * p->n;
  if (is_sharded) args.partial = call_row(b, p, CALL_PARTIAL, first);
  if (is_sharded) args.partial_targets = call_row(b, p, CALL_PARTIAL_TARGETS, first);
  if (pass == FLP_PASS_COMBINE) args.shard_count = p->shards;
  if (pass != FLP_PASS_BACKWARD && !(is_sharded && pass == FLP_PASS_FORWARD)) set_rows(b, &args);
  if (pass == FLP_PASS_FORWARD || pass == FLP_PASS_BACKWARD) set_saved(b, p, shard, &args);
  if (pass == FLP_PASS_FORWARD) set_top(b, p, shard, &args);
  if (pass == FLP_PASS_STEP) set_loss(b, p, &args);
  if (pass == FLP_PASS_STEP || pass == FLP_PASS_BACKWARD) set_gradients(b, p, shard, &args);
  if (pass != FLP_PASS_BACKWARD) return args;
  args.stats = at(b, CALL_STATS);
  args.grad_logprob = at(b, CALL_GRAD_LOGPROB);
  args.grad_entropy = at(b, CALL_GRAD_ENTROPY);
  return args;
}

flp_status call_execute(flp_plan *plan, const flp_args *args) {
  return args->pass == FLP_PASS_STEP ? flp_step(plan, args) : flp_execute(plan, args);
}

/* args.c: a problem, and flp_args of its passes. */
#include <string.h>

#include "gen/cli/call/call.h"

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

void *call_row(const call_buffers *b, const call_problem *p, flp_array_id id, int64_t row) {
  call_array array = call_array_of(p, id);
  return call_buffer_at(&b->at[id], (size_t)row * array.stride * array.element);
}

/* A shard has its own rows of the head, and of what each shard writes. */
static int64_t first_row(const call_problem *p, flp_array_id id, int shard) {
  const flp_array *array = &FLP_ARRAY[id];
  if (array->rows == FLP_SIZE_V) return shard * p->shard_vocab;
  return array->way == FLP_WAY_EACH ? shard * call_size(p, array->rows) : 0;
}

/* Whether a pass over the whole head, or over one shard of several, takes an array. */
static int is_taken(const call_problem *p, flp_array_id id, flp_pass pass) {
  char letter = flp_array_letter(id, pass);
  if (letter == 'w') return p->shards == 1;
  return flp_array_is_of(id, pass) && ((letter != 'p' && letter != 'b') || p->shards > 1);
}

static void set_array(const call_buffers *b, const call_problem *p, flp_array_id id, int shard, flp_args *args) {
  const flp_array *array = &FLP_ARRAY[id];
  int64_t stride = (int64_t)call_array_of(p, id).stride;
  flp_array_set(id, args, call_row(b, p, id, first_row(p, id, shard)));
  if (array->stride_offset && array->columns != FLP_SIZE_R)
    memcpy((char *)args + array->stride_offset, &stride, sizeof stride);
}

static void set_saved(const call_buffers *b, const call_problem *p, int shard, flp_args *args) {
  size_t own = b->at[FLP_ARRAY_saved].bytes / (size_t)p->shards;
  args->saved = call_buffer_at(&b->at[FLP_ARRAY_saved], (size_t)shard * own);
  args->saved_bytes = own;
}

flp_args call_args(const call_buffers *b, const call_problem *p, flp_pass pass, int shard) {
  int64_t first = shard * p->shard_vocab, left = p->spec.vocab - first;
  flp_args args = FLP_ARGS_INIT;
  args.pass = pass;
  args.n = p->n;
  args.temperature = (float)p->temperature;
  args.scale = (float)p->scale;
  args.ignore_index = p->ignore_index;
  args.row_count = p->row_count;
  args.list_count = p->list_count;
  args.lora_scale = p->spec.lora_rank ? (float)p->lora_scale : 0;
  args.vocab_offset = first;
  args.vocab_valid = left < p->shard_vocab ? left : p->shard_vocab;
  args.vocab_total = p->spec.vocab;
  args.workspace_bytes = b->at[FLP_ARRAY_workspace].bytes;
  args.stream = b->stream ? b->stream : b->device->stream;
  if (pass == FLP_PASS_COMBINE) args.shard_count = p->shards;
  if (pass == FLP_PASS_STEP) args.loss_parameters = p->loss_parameters;
  for (int id = 0; id < FLP_ARRAYS; id++)
    if (is_taken(p, (flp_array_id)id, pass)) set_array(b, p, (flp_array_id)id, shard, &args);
  if (args.saved) set_saved(b, p, shard, &args);
  return args;
}

flp_status call_execute(flp_plan *plan, const flp_args *args) {
  return args->pass == FLP_PASS_STEP ? flp_step(plan, args) : flp_execute(plan, args);
}

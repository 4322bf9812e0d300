/* entropies.c: entropies of rows by a forward plan of their head, and what each slice of the vocabulary sums to. */
#include <stdlib.h>
#include <string.h>

#include "gen/cli/bench/rows.h"
#include "runtime/api/validate.h"
#include "runtime/base/fields.h"

/* Columns of a slice: of the leaves that forward sums. Fewer take more launches, more take longer to draw from. */
enum { SLICE = 768 };

/* Forward alone, with entropy: without what the call that is measured asks for beside it. */
static flp_status forward_spec(const flp_spec *of, flp_spec *out) {
  flp_spec spec = *of;
  for (const flp_field *f = FLP_SPEC_FIELD; f < FLP_SPEC_FIELD + FLP_SPEC_FIELD_COUNT; f++)
    if (f->feature != FLP_FEATURE_NONE && f->feature != FLP_FEATURE_MIXED)
      memset((char *)&spec + f->offset, 0, f->bytes);
  spec.entropy = FLP_ENTROPY_FORWARD;
  spec.grads = 0;
  spec.accumulate_grad_weight = 0;
  spec.loss_bytes = 0;
  return flp_spec_resolve(&spec, out);
}

static flp_status create_plan(const rows_request *request, const cli_device *device, rows_plan *p) {
  flp_options options = FLP_OPTIONS_INIT;
  options.device = request->options->device;
  options.rung = request->options->rung;
  FLP_TRY(flp_plan_create(&p->whole.spec, &options, &p->plan));
  if (flp_plan_get_rung(p->plan) != FLP_RUNG_EAGER || !device->driver) return FLP_OK;
  return flp_fail(FLP_ERROR_UNAVAILABLE,
                  "--data: the entropies of rows take a forward plan, which only the CPU can run: %s",
                  flp_plan_get_reason(p->plan, FLP_RUNG_GENERIC));
}

static flp_status set_problems(const rows_request *request, rows_plan *p) {
  const call_problem *call = request->call;
  flp_spec spec;
  FLP_TRY(forward_spec(&call->spec, &spec));
  p->whole = call_problem_of(&spec, call->n);
  p->whole.scale = call->scale;
  p->whole.temperature = call->temperature;
  p->sliced = p->whole;
  if (spec.vocab <= SLICE) return FLP_OK;
  p->sliced.shards = (int)((spec.vocab + SLICE - 1) / SLICE);
  p->sliced.shard_vocab = SLICE;
  return FLP_OK;
}

static flp_status make_outputs(rows_plan *p) {
  flp_layout layout = FLP_LAYOUT_INIT;
  FLP_TRY(flp_plan_layout(p->plan, FLP_PASS_FORWARD, p->whole.n, 0, &layout));
  FLP_TRY(call_make(&p->buffers, FLP_ARRAY_workspace, (size_t)layout.bytes));
  FLP_TRY(call_make(&p->buffers, FLP_ARRAY_entropy, call_bytes(&p->whole, FLP_ARRAY_entropy)));
  FLP_TRY(call_make(&p->buffers, FLP_ARRAY_target, call_bytes(&p->whole, FLP_ARRAY_target)));
  FLP_TRY(cli_buffer_fill(&p->buffers.at[FLP_ARRAY_target].buffer, 0)); /* any id: no target is drawn yet */
  if (p->sliced.shards == 1) return FLP_OK;
  return call_make(&p->buffers, FLP_ARRAY_partial, call_bytes(&p->sliced, FLP_ARRAY_partial));
}

flp_status rows_plan_create(const rows_request *request, const call_buffers *operands, rows_plan *out) {
  static const flp_array_id borrowed[] = {FLP_ARRAY_hidden, FLP_ARRAY_weight, FLP_ARRAY_bias,
                                          FLP_ARRAY_temperature_rows};
  *out = (rows_plan){.buffers = {.device = operands->device}};
  FLP_TRY(set_problems(request, out));
  FLP_TRY(create_plan(request, operands->device, out));
  for (size_t i = 0; i < sizeof borrowed / sizeof borrowed[0]; i++) call_borrow(&out->buffers, operands, borrowed[i]);
  return make_outputs(out);
}

void rows_plan_destroy(rows_plan *plan) {
  call_clear(&plan->buffers);
  flp_plan_destroy(plan->plan);
  *plan = (rows_plan){0};
}

flp_status rows_plan_entropies(rows_plan *p, float *out) {
  flp_args args = call_args(&p->buffers, &p->whole, FLP_PASS_FORWARD, 0);
  FLP_TRY(call_execute(p->plan, &args));
  return cli_buffer_download(&p->buffers.at[FLP_ARRAY_entropy].buffer, 0, out,
                             call_bytes(&p->whole, FLP_ARRAY_entropy));
}

flp_status rows_plan_partials(rows_plan *p, float **out) {
  size_t bytes = call_bytes(&p->sliced, FLP_ARRAY_partial);
  *out = NULL;
  if (p->sliced.shards == 1) return FLP_OK;
  for (int slice = 0; slice < p->sliced.shards; slice++) {
    flp_args args = call_args(&p->buffers, &p->sliced, FLP_PASS_FORWARD, slice);
    FLP_TRY(call_execute(p->plan, &args));
  }
  *out = malloc(bytes);
  if (!*out) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the sums of slices");
  return cli_buffer_download(&p->buffers.at[FLP_ARRAY_partial].buffer, 0, *out, bytes);
}

/* pass.c: one pass of the eager rung, from workspace to results, and what its plan says as a layout. */
#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/eager/core.h"
#include "runtime/eager/eager.h"

int eager_thread_count(int threads) {
  int available = threads > 0 ? threads : flp_processors();
  return (int)flp_min(available, EAGER_THREADS_MAX);
}

void eager_layout_of(const flp_spec *spec, flp_pass pass, int64_t n, const eager_plan *plan, flp_layout *layout) {
  int64_t rows = flp_min(plan->panel_rows, n);
  int64_t columns = flp_min(plan->chunk_columns, spec->vocab);
  int backward = pass == FLP_PASS_BACKWARD;
  *layout = (flp_layout){.struct_bytes = sizeof *layout,
                         .mode = plan->mode,
                         .products = plan->products,
                         .bytes = plan->bytes,
                         .smallest_bytes = plan->smallest_bytes};
  layout->chunk_rows = rows;
  layout->chunk_vocab = backward ? columns : spec->vocab;
  if (backward && n > 0) {
    int64_t chunks = flp_ceil_div(n, rows) * flp_ceil_div(spec->vocab, columns);
    layout->chunks = plan->mode == FLP_MODE_RECOMPUTE_SPLIT ? 2 * chunks : chunks;
  }
  layout->flops = 2.0 * (double)n * (double)spec->vocab * (double)spec->hidden * plan->products;
}

/* More threads than one per few million operations of a product, half a million of lists, would only wait. */
static int useful_threads(const flp_spec *spec, const flp_args *args, const eager_plan *plan) {
  double work = (double)spec->hidden;
  work *= eager_is_listed(spec, args->pass) ? (double)args->list_count / 5e5
                                            : (double)args->n * (double)spec->vocab / 4e6;
  return work < (double)plan->threads ? 1 + (int)work : plan->threads;
}

static void run_listed(eager_call *call, eager_block *block) {
  const flp_args *args = call->args;
  eager_listed_memory memory;
  eager_listed_carve(call->spec, args->pass, args->n, args->list_count, block, &memory);
  if (args->pass == FLP_PASS_FORWARD)
    eager_listed_forward(call, &memory);
  else
    eager_listed_backward(call, &memory);
}

static void run_pass(eager_call *call, eager_block *block) {
  const flp_spec *spec = call->spec;
  if (eager_is_listed(spec, call->args->pass)) {
    run_listed(call, block);
  } else if (call->args->pass == FLP_PASS_COMBINE) {
    eager_combine(call);
  } else if (call->args->pass == FLP_PASS_FORWARD) {
    eager_forward_memory memory;
    eager_forward_carve(spec, call->plan, block, &memory);
    eager_forward(call, &memory);
  } else {
    eager_backward_memory memory;
    eager_backward_carve(spec, call->plan, call->args->n, block, &memory);
    eager_backward(call, &memory);
  }
}

flp_status eager_pick(const flp_spec *spec, flp_pass pass, int64_t n, int64_t list_count, uint64_t budget_bytes,
                      int threads, eager_plan *out) {
  if (eager_is_listed(spec, pass))
    return eager_listed_pick(spec, pass, n, list_count, budget_bytes, threads, out);
  return eager_plan_pick(spec, pass, n, budget_bytes, threads, out);
}

flp_status eager_execute(const flp_spec *spec, const flp_args *args, const eager_scores *scores, int threads,
                         uint64_t *bad_rows) {
  if (args->n == 0) {
    if (args->pass == FLP_PASS_BACKWARD) eager_backward_fill(spec, args, NULL);
    return FLP_OK;
  }
  eager_plan plan;
  if (eager_pick(spec, args->pass, args->n, args->list_count, args->workspace_bytes, eager_thread_count(threads),
                 &plan) != FLP_OK)
    return flp_fail(FLP_ERROR_WORKSPACE,
                    "workspace_bytes: %zu are too few for %lld rows on the eager rung; %llu or more are accepted",
                    args->workspace_bytes, (long long)args->n, (unsigned long long)plan.smallest_bytes);
  eager_block block = {.base = args->workspace};
  atomic_ullong beyond_limit = 0;
  eager_call call = {.spec = spec, .args = args, .plan = &plan, .scores = scores, .bad_rows = &beyond_limit};
  eager_rows_carve(&block, args->n, &call.rows);
  call.rows.count = eager_rows_classify(spec, args, scores, call.rows.row_class, call.rows.index, bad_rows);
  if (args->pass == FLP_PASS_BACKWARD)
    eager_backward_fill(spec, args, call.rows.row_class);
  else
    eager_rows_fill(spec, args, call.rows.row_class);
  if (args->pass == FLP_PASS_FORWARD) eager_top_fill(spec, args, call.rows.row_class);
  eager_team team;
  eager_blas_enter();
  eager_team_start(&team, useful_threads(spec, args, &plan));
  call.team = &team;
  run_pass(&call, &block);
  eager_team_stop(&team);
  eager_blas_leave();
  *bad_rows += atomic_load(&beyond_limit);
  return FLP_OK;
}

flp_status flp_eager_execute(const flp_spec *spec, const flp_args *args, int threads, uint64_t *bad_rows) {
  return eager_execute(spec, args, NULL, threads, bad_rows);
}

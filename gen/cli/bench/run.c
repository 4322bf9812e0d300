/* run.c: times the passes of a plan and GEMM baselines of the same shapes, interleaved in one run. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gen/cli/bench/bench.h"
#include "gen/cli/shared/progress.h"
#include "runtime/base/operands.h"
#include "runtime/plan/plan.h"
#include "runtime/planner/planner.h"

/* Rounds of bursts that choose the algorithm of a GEMM baseline. */
enum { CHOOSE_ROUNDS = 3 };

/* Host time: batches of calls whose launches together stay well below the driver's queue of about a thousand. */
enum { HOST_BATCHES = 9, HOST_LAUNCHES = 256 };

/* A case: passes that are enqueued one after the other. */
typedef struct timed {
  struct session *session;
  unsigned passes; /* a bit each */
  int is_plain;
} timed;

typedef struct session {
  const bench_args *args;
  bench_result *result;
  cli_device device;
  measure_clock clock;
  flp_plan *plan;
  flp_plan *plain; /* of plain_spec; NULL where that is the spec */
  flp_spec plain_spec;
  cublaslt library; /* zeroed without GEMM baselines */
  bench_data data;
  /* of the current number of rows */
  int64_t n;
  flp_layout layout[FLP_PASS_STEP + 1]; /* by pass */
  flp_layout plain_layout[FLP_PASS_STEP + 1];
  size_t saved_bytes; /* what forward keeps; 0: nothing */
  bench_products baseline;
  timed timed[2][BENCH_CASES]; /* those of plain_spec second */
} session;

static const flp_spec *spec_of(const session *s) {
  return &s->args->spec.spec;
}

/* ---- opening ---- */

/* Operands of one dtype, of which products take no terms; a bias of another stays what it is. */
static int leave_out_mixed(flp_spec *spec) {
  if (!spec->mixed || (spec->has_bias && flp_bias_dtype(spec) != spec->dtype)) return 0;
  spec->mixed = (flp_mixed)0;
  spec->hidden_dtype = spec->weight_dtype = spec->bias_dtype = (flp_dtype)0;
  return 1;
}

/* The same without its tail, several targets, best columns and ranks, statistics, adapter, second dtype: what it is
 * measured beside. 1 where there is something to leave out. */
static int leave_out(flp_spec *spec) {
  const flp_spec given = *spec;
  int had_mixed = leave_out_mixed(spec);
  if (spec->tail > 0) cli_spec_set_mode(spec, (flp_mode)0);
  spec->targets = 1;
  spec->topk = spec->rank = spec->statistics = 0;
  spec->grads &= ~(uint32_t)(FLP_GRAD_LORA_A | FLP_GRAD_LORA_B);
  spec->grad_lora_dtype = (flp_dtype)0;
  spec->lora_rank = 0;
  return given.tail > 0 || given.targets > 1 || flp_planner_has_row_values(&given) || given.lora_rank || had_mixed;
}

/* A loss over several targets has no step of one: nll has, from the same weights. */
static flp_status leave_out_teacher(flp_spec *spec) {
  const flp_loss *loss = cli_loss_of(spec);
  return loss && flp_loss_is_over_targets(loss) ? cli_loss_keep("nll", spec) : FLP_OK;
}

static flp_status open_plain(session *s) {
  s->plain_spec = *spec_of(s);
  if (!leave_out(&s->plain_spec)) return FLP_OK;
  FLP_TRY(leave_out_teacher(&s->plain_spec));
  return flp_plan_create(&s->plain_spec, &s->args->options, &s->plain);
}

static flp_status open_plan(session *s) {
  bench_result *result = s->result;
  FLP_TRY(flp_plan_create(spec_of(s), &s->args->options, &s->plan));
  result->rung = flp_plan_get_rung(s->plan);
  if (result->rung == FLP_RUNG_EAGER)
    return flp_fail(FLP_ERROR_UNAVAILABLE, "the eager rung, which runs on the CPU, is all that is left: %s",
                    flp_plan_get_reason(s->plan, FLP_RUNG_GENERIC));
  FLP_TRY(flp_plan_describe(s->plan, result->description, sizeof result->description));
  return flp_plan_get_id(s->plan, result->plan_id);
}

static flp_status open_library(session *s) {
  if (s->args->no_baseline) return FLP_OK;
  flp_status status = cublaslt_open(&s->library);
  if (status != FLP_OK)
    return flp_fail(status, "%s, or leave the GEMM baselines out with --no-baseline", flp_error_detail());
  snprintf(s->result->cublaslt, sizeof s->result->cublaslt, "%s, version %zu", s->library.path, s->library.version);
  return FLP_OK;
}

static flp_status open_session(session *s, const cli_scratch *caches) {
  FLP_TRY(cli_device_open(s->args->options.device, &s->device));
  snprintf(s->result->device, sizeof s->result->device, "%s", s->device.info.name);
  s->result->driver_version = s->device.driver->version;
  bench_plan_time(caches, s->args, s->result);
  FLP_TRY(open_plan(s));
  FLP_TRY(open_plain(s));
  FLP_TRY(measure_clock_create(s->device.driver, s->device.stream, &s->clock));
  FLP_TRY(open_library(s));
  return bench_data_head(&s->data);
}

static void close_rows(session *s) {
  bench_products_clear(&s->baseline);
  bench_data_clear_rows(&s->data);
}

static void close_session(session *s) {
  close_rows(s);
  bench_data_clear(&s->data);
  cublaslt_close(&s->library);
  measure_clock_destroy(&s->clock);
  flp_plan_destroy(s->plain);
  flp_plan_destroy(s->plan);
  cli_device_close(&s->device);
}

/* ---- what is measured ---- */

static flp_status enqueue_pass(session *s, flp_pass pass) {
  flp_args args = bench_data_args(&s->data, pass, &s->layout[pass]);
  return call_execute(s->plan, &args);
}

/* The same buffers, without those of what is left out. */
static flp_status enqueue_plain_pass(session *s, flp_pass pass) {
  flp_args args = bench_data_args(&s->data, pass, &s->plain_layout[pass]);
  for (int id = 0; id < FLP_ARRAYS; id++)
    if (!FLP_ARRAY[id].is_asked(&s->plain_spec)) flp_array_set((flp_array_id)id, &args, NULL);
  args.saved = NULL;
  args.saved_bytes = 0;
  if (s->data.one_target.data) args.target = s->data.one_target.data;
  if (s->data.narrow[0].data) args.hidden = s->data.narrow[0].data;
  if (s->data.narrow[1].data) args.weight = s->data.narrow[1].data;
  args.lora_scale = 0;
  args.teacher_logprob = NULL;
  if (s->plain_spec.loss != spec_of(s)->loss) args.loss_parameters = NULL;
  return call_execute(s->plain, &args);
}

/* stream: the device's, which the arguments name */
static flp_status enqueue(void *context, CUstream stream) {
  const timed *t = context;
  (void)stream;
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_STEP; pass++)
    if (t->passes >> pass & 1) FLP_TRY((t->is_plain ? enqueue_plain_pass : enqueue_pass)(t->session, (flp_pass)pass));
  return FLP_OK;
}

/* What is timed of the same without, 1 where it is: forward and both, or steps. */
static int has_plain(const session *s, bench_case which) {
  int is_step = spec_of(s)->loss != NULL;
  if (!s->plain || (which == BENCH_BOTH && !s->plain_spec.grads)) return 0;
  return is_step ? which == BENCH_STEP : which == BENCH_FORWARD || which == BENCH_BOTH;
}

static measure_item item_of(session *s, bench_case which, int is_plain) {
  static const unsigned passes[BENCH_CASES] = {[BENCH_FORWARD] = 1u << FLP_PASS_FORWARD,
                                               [BENCH_BACKWARD] = 1u << FLP_PASS_BACKWARD,
                                               [BENCH_BOTH] = 1u << FLP_PASS_FORWARD | 1u << FLP_PASS_BACKWARD,
                                               [BENCH_STEP] = 1u << FLP_PASS_STEP};
  timed *t = &s->timed[is_plain][which];
  *t = (timed){s, passes[which], is_plain};
  return (measure_item){.enqueue = enqueue, .context = t};
}

uint64_t bench_keep_budget(const flp_plan *plan, const flp_options *options) {
  return options->budget_bytes || flp_plan_keeps(plan) != FLP_MODE_SAVE ? 0 : UINT64_MAX;
}

static uint64_t budget_of(const session *s, flp_pass pass) {
  uint64_t bytes = 0;
  flp_options_in_force(&s->args->options, pass, NULL, NULL, &bytes);
  return bytes;
}

/* What forward keeps. error: UNAVAILABLE where that is nothing: recompute mode would be measured in its name */
static flp_status make_saved(session *s) {
  s->saved_bytes = 0;
  if (!call_keeps(&s->data.call)) return FLP_OK;
  FLP_TRY(flp_plan_saved(s->plan, s->n, bench_keep_budget(s->plan, &s->args->options), &s->saved_bytes));
  if (s->saved_bytes) return call_make(&s->data.buffers, FLP_ARRAY_saved, s->saved_bytes);
  return flp_fail(FLP_ERROR_UNAVAILABLE,
                  "--%s: nothing is kept of %lld rows: rung %s has no kernels for it, or the budget of %s, which "
                  "--budget sets, is too small",
                  spec_of(s)->keep ? "keep" : "tail", (long long)s->n, flp_rung_name(s->result->rung),
                  cli_bytes((double)budget_of(s, FLP_PASS_BACKWARD)).text);
}

static flp_status layout_of(const session *s, const flp_plan *plan, flp_pass pass, flp_layout *out) {
  if (spec_of(s)->listed) return flp_plan_layout_listed(plan, pass, s->n, s->data.call.list_count, 0, out);
  return flp_plan_layout(plan, pass, s->n, 0, out);
}

static flp_status find_layout(session *s, flp_pass pass) {
  if (!s->saved_bytes) return layout_of(s, s->plan, pass, &s->layout[pass]);
  flp_pass query = pass == FLP_PASS_FORWARD ? FLP_PASS_FORWARD_SAVED : FLP_PASS_BACKWARD_SAVED;
  return flp_plan_layout(s->plan, query, s->n, bench_keep_budget(s->plan, &s->args->options), &s->layout[pass]);
}

static flp_status make_workspace(session *s) {
  uint64_t most = 0;
  FLP_TRY(make_saved(s));
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_STEP; pass++) {
    flp_layout *plain = &s->plain_layout[pass];
    s->layout[pass] = *plain = (flp_layout)FLP_LAYOUT_INIT;
    if (!call_has_pass(&s->data.call, (flp_pass)pass)) continue;
    FLP_TRY(find_layout(s, (flp_pass)pass));
    if (s->plain && (pass != FLP_PASS_BACKWARD || s->plain_spec.grads))
      FLP_TRY(layout_of(s, s->plain, (flp_pass)pass, plain));
    if (s->layout[pass].bytes > most) most = s->layout[pass].bytes;
    if (plain->bytes > most) most = plain->bytes;
  }
  return call_make(&s->data.buffers, FLP_ARRAY_workspace, (size_t)most);
}

static flp_status make_products(session *s) {
  if (s->plain && !s->library.handle) { /* with baselines they are theirs too */
    FLP_TRY(bench_data_narrow(&s->data, FLP_ARRAY_hidden));
    FLP_TRY(bench_data_narrow(&s->data, FLP_ARRAY_weight));
  }
  measure_options choose = {.burst_ms = s->args->burst_ms, .rounds = CHOOSE_ROUNDS, .seed = (uint64_t)s->args->seed};
  s->baseline = (bench_products){
      .library = s->library.handle ? &s->library : NULL, .data = &s->data, .spec = spec_of(s), .n = s->n};
  return bench_products_create(&s->baseline, 1, &s->clock, &choose);
}

/* ---- results ---- */

static const bench_baseline *add_baseline(session *s, gemm_product which, measure_summary ms, measure_summary first) {
  bench_baseline *baseline = &s->result->baseline[s->result->baseline_count++];
  *baseline = (bench_baseline){.product = which,
                               .n = s->n,
                               .vocab = s->baseline.vocab,
                               .ms = bench_products_scaled(&s->baseline, ms),
                               .tflops = 1e-9 * gemm_flops(&s->baseline.product[which].shape) / ms.median,
                               .algorithm = s->baseline.product[which].chosen,
                               .algorithms = s->baseline.product[which].algorithm_count,
                               .first = s->baseline.product[which].first_algorithm,
                               .first_ms = bench_products_scaled(&s->baseline, first).median};
  return baseline;
}

/* In direction mode forward makes all products, in the budget of both passes. */
static int forward_is_all(const flp_layout *layouts) {
  return layouts[FLP_PASS_FORWARD].mode == FLP_MODE_DIRECTION;
}

/* Whose layout a case is told by. */
static flp_pass pass_of(const flp_layout *layouts, bench_case which) {
  if (which == BENCH_STEP) return FLP_PASS_STEP;
  return which == BENCH_FORWARD || forward_is_all(layouts) ? FLP_PASS_FORWARD : FLP_PASS_BACKWARD;
}

/* plain: of the plan without */
static void add_row(session *s, bench_case which, int plain, measure_summary ms,
                    const bench_baseline *const baseline[GEMM_PRODUCTS]) {
  bench_row *row = &s->result->row[s->result->row_count++];
  const flp_layout *layouts = plain ? s->plain_layout : s->layout;
  const flp_layout *forward = &layouts[FLP_PASS_FORWARD], *backward = &layouts[FLP_PASS_BACKWARD];
  int count[GEMM_PRODUCTS];
  flp_pass pass = pass_of(layouts, which);
  *row = (bench_row){.which = which,
                     .is_plain = plain,
                     .spec = plain ? s->plain_spec : *spec_of(s),
                     .n = s->n,
                     .active = bench_active_rows(s->n, s->args->masked),
                     .list_count = s->data.call.list_count,
                     .layout = layouts[pass],
                     .workspace_bytes = layouts[pass].bytes,
                     .budget_bytes = budget_of(s, forward_is_all(layouts) ? FLP_PASS_FORWARD_SAVED : pass),
                     .ms = ms,
                     .baseline_ms = s->library.handle ? 0 : -1,
                     .first_ms = s->library.handle ? 0 : -1};
  if (which == BENCH_BOTH) row->workspace_bytes = forward->bytes > backward->bytes ? forward->bytes : backward->bytes;
  if (s->saved_bytes && !plain) row->workspace_bytes += s->saved_bytes;
  row->gemms = bench_case_products(which, row->layout.mode, &row->spec, count);
  for (int i = 0; i < GEMM_PRODUCTS; i++) {
    if (!baseline[i]) continue;
    row->baseline_ms += count[i] * baseline[i]->ms.median;
    row->first_ms += count[i] * baseline[i]->first_ms;
  }
}

/* A GEMM baseline by the algorithm that was chosen, and by the first one where that is another. */
static int add_product_items(session *s, gemm_product which, measure_item *items) {
  gemm *product = &s->baseline.product[which];
  items[0] = gemm_item(product);
  if (product->first_algorithm == product->chosen) return 1;
  items[1] = gemm_first_item(product);
  return 2;
}

static cli_buffer *tail_report_of(session *s) {
  return &s->data.buffers.at[FLP_ARRAY_tail_report].buffer;
}

/* What the last call of tail mode left out, for the rows that have gradients. */
static flp_status take_tail_report(session *s, int first) {
  float report[4];
  if (!(spec_of(s)->tail > 0)) return FLP_OK;
  FLP_TRY(cli_buffer_download(tail_report_of(s), 0, report, sizeof report));
  for (int i = first; i < s->result->row_count; i++) {
    bench_row *row = &s->result->row[i];
    if (row->which != BENCH_FORWARD && !row->is_plain) memcpy(row->tail_report, report, sizeof report);
  }
  return FLP_OK;
}

/* The rows of cases beside those of the same without, in turn, for about as long as their bursts took. */
static flp_status measure_beside_plain(session *s, const measure_item *items, int first, int count) {
  enum { PAIRS_LEAST = 10, PAIRS_MOST = 100 };
  bench_row *rows = s->result->row + first;
  for (int i = 0; i < count; i++)
    for (int j = 0; j < count; j++) {
      if (rows[i].is_plain || !rows[j].is_plain || rows[i].which != rows[j].which) continue;
      double both_ms = rows[i].ms.median + rows[j].ms.median;
      double pairs = 2 * (double)s->args->rounds * s->args->burst_ms / (both_ms > 0 ? both_ms : 1);
      rows[i].pairs = (int)fmin(fmax(pairs, PAIRS_LEAST), PAIRS_MOST);
      FLP_TRY(measure_in_turn(&s->clock, &items[i], &items[j], rows[i].pairs, &rows[i].of_plain));
    }
  return FLP_OK;
}

/* Forward is the first item: it leaves the statistics that backward reads. */
static flp_status measure_rows(session *s) {
  enum { MOST = 2 * BENCH_CASES + 2 * GEMM_PRODUCTS };
  measure_item items[MOST];
  measure_summary ms[MOST];
  measure_options options = {s->args->burst_ms, (int)s->args->rounds, (uint64_t)s->args->seed, 0};
  const bench_baseline *baseline[GEMM_PRODUCTS] = {NULL};
  bench_case which[2 * BENCH_CASES];
  int cases = 0, count = 0, items_of[GEMM_PRODUCTS] = {0}, first_row = s->result->row_count;
  for (int i = 0; i < BENCH_CASES; i++)
    if (bench_case_exists((bench_case)i, spec_of(s))) which[cases++] = (bench_case)i;
  for (; count < cases; count++) items[count] = item_of(s, which[count], 0);
  for (int i = 0; i < BENCH_CASES; i++) {
    if (!has_plain(s, (bench_case)i)) continue;
    which[count] = (bench_case)i;
    items[count++] = item_of(s, (bench_case)i, 1);
  }
  if (spec_of(s)->tail > 0) FLP_TRY(cli_buffer_fill(tail_report_of(s), 0));
  int first_product = count;
  for (int i = 0; i < GEMM_PRODUCTS; i++) {
    if (bench_products_has(&s->baseline, (gemm_product)i))
      items_of[i] = add_product_items(s, (gemm_product)i, &items[count]);
    count += items_of[i];
  }
  FLP_TRY(measure_run(&s->clock, items, count, &options, ms));
  const measure_summary *at = &ms[first_product];
  for (int i = 0; i < GEMM_PRODUCTS; at += items_of[i++])
    if (items_of[i]) baseline[i] = add_baseline(s, (gemm_product)i, at[0], at[items_of[i] - 1]);
  for (int i = 0; i < first_product; i++) add_row(s, which[i], i >= cases, ms[i], baseline);
  FLP_TRY(measure_beside_plain(s, items, first_row, first_product));
  return take_tail_report(s, first_row);
}

/* The launches of a layout are those that flp_execute makes: bench has no shard, whose padding would be zeroed too. */
static flp_status measure_host_pass(session *s, flp_pass pass, bench_case which) {
  measure_item item = item_of(s, which, 0);
  bench_host *host = &s->result->host[pass];
  host->launches = s->layout[pass].launches;
  return measure_host(&s->clock, &item, bench_host_calls(host->launches, HOST_LAUNCHES), HOST_BATCHES, &host->us);
}

static flp_status measure_host_time(session *s) {
  s->result->host_rows = s->n;
  if (spec_of(s)->loss) return measure_host_pass(s, FLP_PASS_STEP, BENCH_STEP);
  FLP_TRY(measure_host_pass(s, FLP_PASS_FORWARD, BENCH_FORWARD));
  return spec_of(s)->grads ? measure_host_pass(s, FLP_PASS_BACKWARD, BENCH_BACKWARD) : FLP_OK;
}

/* A first step, whose policy those before it are near. */
static flp_status follow(session *s) {
  FLP_TRY(enqueue_pass(s, FLP_PASS_STEP));
  FLP_TRY(cli_device_synchronise(&s->device));
  return bench_data_follow(&s->data);
}

/* size: which of the numbers of rows */
static flp_status run_rows(session *s, int size) {
  int64_t n = s->args->rows[size];
  s->n = n;
  flp_status status = bench_data_rows(&s->data, n);
  s->result->entropies[size] = s->data.entropies;
  if (status == FLP_OK) status = make_workspace(s);
  if (status == FLP_OK && spec_of(s)->loss) status = follow(s);
  if (status == FLP_OK) status = make_products(s);
  if (status == FLP_OK) status = measure_rows(s);
  /* Host times are of the fewest rows, where the host is least likely to wait for the device. */
  if (status == FLP_OK && (s->result->host_rows == 0 || n < s->result->host_rows)) status = measure_host_time(s);
  if (status == FLP_OK) status = flp_plan_check(s->plan, s->device.stream); /* no row was bad */
  close_rows(s);
  return status;
}

static flp_status run_all(session *s, const cli_scratch *caches) {
  FLP_TRY(open_session(s, caches));
  cli_progress progress;
  cli_progress_start(&progress, "bench", s->args->quiet);
  flp_status status = FLP_OK;
  for (int i = 0; i < s->args->row_count && status == FLP_OK; i++) {
    cli_progress_update(&progress, i, s->args->row_count);
    status = run_rows(s, i);
  }
  cli_progress_end(&progress);
  return status;
}

flp_status bench_run(const bench_args *args, bench_result *out) {
  *out = (bench_result){0};
  session s = {.args = args, .result = out, .data = {.args = args}};
  cli_scratch caches;
  s.data.buffers.device = &s.device;
  bench_plan_begin(&caches, out);
  flp_status status = run_all(&s, &caches);
  flp_failure held = flp_failure_hold(status);
  close_session(&s);
  cli_scratch_close(&caches);
  return flp_failure_restore(&held);
}

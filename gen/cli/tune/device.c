/* device.c: what measures: candidates made and verified, and timed in groups beside the untuned default and the
 * GEMM baselines. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autotune/sensors.h"
#include "gen/cli/tune/pass.h"
#include "runtime/plan/plan.h"

/* A short choice of the GEMM baselines' algorithms will do, and half of the memory: workspace is still to come. */
enum { CHOOSE_ROUNDS = 1, BASELINE_SHARE = 2 };
static const double choose_burst_ms = 5;
/* After a pause clocks are high until the power limit bites, about a second in. */
static const double settle_ms = 1100, settle_bursts = 15;
/* Work that began so soon after the last needs no settling. */
static const double pause_s = 0.25;

volatile sig_atomic_t tune_interrupted;

/* A candidate that is ready. */
typedef struct made {
  tune_session *session;
  flp_plan *plan;
  flp_layout layout[TUNE_CALL_PASSES];
  double call_s; /* that a call took */
} made;

static const flp_spec *spec_of(const tune_session *s) {
  return &s->target->spec;
}

static flp_status enqueue_made(void *context, CUstream stream) {
  const made *m = context;
  (void)stream; /* the device's, which the arguments name */
  return tune_pass_enqueue(m->session, m->plan, m->layout);
}

static flp_status enqueue_reference(void *context, CUstream stream) {
  tune_session *s = context;
  (void)stream;
  return tune_pass_enqueue(s, s->reference, s->layout);
}

/* ---- preparing ---- */

static flp_status make_one(tune_session *s, search_candidate *c) {
  made *out = calloc(1, sizeof *out);
  if (!out) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for a candidate");
  c->handle = out;
  out->session = s;
  FLP_TRY(tune_pass_plan(s, c, &out->plan));
  return tune_pass_layouts(s, out->plan, out->layout);
}

static void release(void *context, search_candidate *c) {
  made *m = c->handle;
  (void)context;
  if (m) flp_plan_destroy(m->plan);
  free(m);
  c->handle = NULL;
}

static flp_status note(void *context, search_candidate *c) {
  tune_session *s = context;
  return s->file ? records_put(s->file, s->record, c) : FLP_OK;
}

static flp_status verify(tune_session *s, search_candidate *c) {
  made *m = c->handle;
  double error = 0;
  c->reason[0] = 0;
  FLP_TRY(tune_pass_reserve(s, m->layout));
  FLP_TRY(tune_check_plan(&s->check, m->plan, s->call, &error, c->reason));
  if (!c->reason[0]) FLP_TRY(tune_pass_compare(s, m->plan, m->layout, &m->call_s, c->reason));
  c->error = error;
  c->status = c->reason[0] ? SEARCH_WRONG : SEARCH_WAITING;
  c->ready = !c->reason[0];
  return FLP_OK;
}

/* A candidate that cannot be made or run has its reason recorded; only a lost device ends the search. */
static flp_status fail_one(tune_session *s, search_candidate *c, flp_status why, const char *detail) {
  char kept[SEARCH_REASON_BYTES];
  snprintf(kept, sizeof kept, "%.240s", detail);
  c->status = SEARCH_FAILED;
  c->ready = 0;
  snprintf(c->reason, sizeof c->reason, "%s", kept);
  release(s, c);
  if (why != FLP_ERROR_DRIVER) return FLP_OK;
  if (cli_device_synchronise(s->device) == FLP_OK) return FLP_OK;
  flp_status status = note(s, c);
  return status == FLP_OK ? flp_fail(FLP_ERROR_DRIVER, "%s", kept) : status;
}

/* Compiles the kernels in which candidates differ from what runs already. */
static flp_status compile(tune_session *s, search_candidate *const *list, int count) {
  flp_kernel_key wanted[SEARCH_GROUP_MAX], keys[FLP_SPEC_KERNELS_MAX];
  int wants = 0;
  for (int i = 0; i < count && i < SEARCH_GROUP_MAX; i++) {
    flp_tuning tuning = {0};
    if (!list[i]->kind || list[i]->is_default) continue;
    tuning.of[list[i]->kind] = list[i]->tune;
    int all = tune_session_keys(s, &tuning, keys);
    for (int j = 0; j < all; j++)
      if (keys[j].kind == list[i]->kind) wanted[wants++] = keys[j];
  }
  return tune_compile(s->compile_pool, spec_of(s), wanted, wants);
}

static flp_status prepare(void *context, search_candidate *const *list, int count) {
  tune_session *s = context;
  double start = cli_seconds_now();
  FLP_TRY(compile(s, list, count));
  double compiled = cli_seconds_now();
  s->spent.compiling += compiled - start;
  for (int i = 0; i < count; i++) {
    search_candidate *c = list[i];
    flp_status status = make_one(s, c);
    if (status == FLP_OK) status = verify(s, c);
    if (status == FLP_ERROR_MEMORY) return status;
    if (status != FLP_OK) FLP_TRY(fail_one(s, c, status, flp_error_detail()));
    if (c->status == SEARCH_WRONG) release(s, c);
  }
  s->spent.verifying += cli_seconds_now() - compiled;
  return FLP_OK;
}

/* ---- timing ---- */

/* The GEMM baselines that the call is made of. */
static int wants_baseline(const tune_session *s, gemm_product product) {
  return bench_products_has(&s->baseline, product) && (product == GEMM_SCORES || tune_call_has_gradients(s->call));
}

/* ms: of the GEMM baselines that the call is made of, in their order */
static void keep_baseline(tune_session *s, const measure_summary *ms) {
  for (int p = 0; p < GEMM_PRODUCTS; p++)
    if (wants_baseline(s, (gemm_product)p)) s->baseline_ms[p] = bench_products_scaled(&s->baseline, *ms++);
}

/* NVML index of the GPU in use (not necessarily 0); -1 if its PCI address is unknown. */
static void read_sensors(const tune_session *s, double *clock_mhz, double *power_w) {
  const flp_driver *driver = s->device->driver;
  char pci[32] = "";
  *clock_mhz = *power_w = -1;
  if (!driver->cuDeviceGetPCIBusId || driver->cuDeviceGetPCIBusId(pci, sizeof pci, s->device->info.handle) != 0) return;
  sensors_read(pci, clock_mhz, power_w);
}

static flp_status time_group(void *context, search_candidate *const *list, int count, int rounds, int is_last,
                             uint64_t seed, search_sample *out) {
  tune_session *s = context;
  /* All is compared with the reference, so that it is timed twice as often. */
  measure_item reference = {enqueue_reference, s, 1e3 * s->call_s}, items[MEASURE_ITEMS_MAX] = {reference, reference};
  measure_summary ms[MEASURE_ITEMS_MAX];
  measure_options options = {s->args->burst_ms, rounds, seed, fmin(settle_ms, settle_bursts * s->args->burst_ms)};
  double start = cli_seconds_now();
  if (start - s->timed_at < pause_s) options.settle_ms = 0;
  int used = 2, at[MEASURE_ITEMS_MAX];
  double clock = -1, power = -1;
  for (int i = 0; i < count; i++) {
    made *m = list[i]->handle;
    at[i] = list[i]->is_default ? 0 : used;
    if (!list[i]->is_default) items[used++] = (measure_item){enqueue_made, m, 1e3 * m->call_s};
  }
  int first_baseline = used;
  for (int p = 0; p < GEMM_PRODUCTS && is_last; p++)
    if (wants_baseline(s, (gemm_product)p)) items[used++] = gemm_item(&s->baseline.product[p]);
  FLP_TRY(measure_run(&s->clock, items, used, &options, ms));
  s->timed_at = cli_seconds_now();
  s->spent.timing += s->timed_at - start;
  read_sensors(s, &clock, &power);
  ms[0] =
      (measure_summary){0.5 * (ms[0].median + ms[1].median), fmin(ms[0].low, ms[1].low), fmax(ms[0].high, ms[1].high)};
  for (int i = 0; i < count; i++) {
    out[i] = (search_sample){ms[at[i]], ms[0]};
    list[i]->clock_mhz = clock;
    list[i]->power_w = power;
  }
  if (is_last) keep_baseline(s, ms + first_baseline);
  return FLP_OK;
}

/* ---- the rest of the table ---- */

static double now(void *context) {
  (void)context;
  return cli_seconds_now();
}

static int stopped(void *context) {
  (void)context;
  return tune_interrupted;
}

static void note_quietly(void *context, search_candidate *c) {
  (void)note(context, c); /* a record that cannot be written fails again, and is reported, when the target ends */
}

static void progress(void *context, double fraction) {
  tune_session *s = context;
  cli_progress_update(&s->progress, (int64_t)(1000 * (s->progress_from + fraction * s->progress_part)), 1000);
}

search_device tune_session_device(tune_session *s) {
  return (search_device){.context = s,
                         .prepare = prepare,
                         .time = time_group,
                         .now = now,
                         .stopped = stopped,
                         .release = release,
                         .note = note_quietly,
                         .progress = progress};
}

/* ---- sessions ---- */

int tune_session_keys(const tune_session *s, const flp_tuning *tuning, flp_kernel_key keys[FLP_SPEC_KERNELS_MAX]) {
  int count = flp_kernel_keys_for(spec_of(s), s->arch, keys);
  flp_tuning_apply(tuning, keys, count);
  return count;
}

static flp_status make_baseline(tune_session *s) {
  measure_options choose = {choose_burst_ms, CHOOSE_ROUNDS, (uint64_t)s->args->seed, 0};
  s->baseline = (bench_products){.library = s->library, .data = &s->data, .spec = spec_of(s), .n = s->args->rows};
  return bench_products_create(&s->baseline, BASELINE_SHARE, &s->clock, &choose);
}

/* What forward keeps. error: UNAVAILABLE where that is nothing: recompute mode would be tuned in its name */
static flp_status make_saved(tune_session *s, const flp_plan *plan) {
  s->keeps = flp_plan_keeps(plan);
  FLP_TRY(flp_plan_saved(plan, s->args->rows, bench_keep_budget(plan, &s->args->options), &s->saved_bytes));
  if (s->saved_bytes) return call_make(&s->data.buffers, FLP_ARRAY_saved, s->saved_bytes);
  return flp_fail(FLP_ERROR_UNAVAILABLE, "--keep: nothing is kept of %lld rows, as %s is too small for it",
                  (long long)s->args->rows, s->args->options.budget_bytes ? "--workspace" : "the budget of plans");
}

static flp_status find_streams(tune_session *s, const flp_plan *plan) {
  flp_layout layout = FLP_LAYOUT_INIT;
  FLP_TRY(flp_plan_layout(plan, FLP_PASS_STEP, s->args->rows, 0, &layout));
  s->streams = layout.mode == FLP_MODE_STREAM;
  return FLP_OK;
}

/* Whether the spec's own pass keeps something or is of stream mode. */
static flp_status find_modes(tune_session *s) {
  flp_plan *plan = NULL;
  flp_options options = s->args->options;
  options.rung = FLP_RUNG_JIT;
  options.tune = "";
  if (!spec_of(s)->keep && !spec_of(s)->loss) return FLP_OK;
  FLP_TRY(flp_plan_create(spec_of(s), &options, &plan));
  flp_status status = spec_of(s)->loss ? find_streams(s, plan) : make_saved(s, plan);
  flp_plan_destroy(plan);
  return status;
}

static void open_data(tune_session *s) {
  s->bench = (bench_args){.spec = CLI_SPEC_ARGS_INIT, .seed = s->args->seed};
  s->bench.spec.spec = *spec_of(s);
  s->bench.spec.spec.tail = 0; /* what is timed is exact */
  s->bench.spec.scale = s->target->scale;
  s->bench.spec.loss = s->args->spec.loss;
  s->data = (bench_data){.args = &s->bench, .buffers = {.device = s->device}};
}

flp_status tune_session_open(tune_session *s) {
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  flp_tuning untuned = {0};
  int clusters = flp_driver_has_clusters(s->device->driver);
  FLP_TRY(tune_head_arch(s->args, s->target, &s->device->info, s->device->driver->version, clusters, &s->arch));
  open_data(s);
  FLP_TRY(measure_clock_create(s->device->driver, s->device->stream, &s->clock));
  FLP_TRY(bench_data_head(&s->data));
  FLP_TRY(bench_data_rows(&s->data, s->args->rows));
  FLP_TRY(tune_pass_open(s));
  FLP_TRY(tune_compile(s->compile_pool, spec_of(s), keys, tune_session_keys(s, &untuned, keys)));
  FLP_TRY(find_modes(s));
  FLP_TRY(make_baseline(s));
  return tune_check_create(s->target, s->args->spec.loss.parameters, &s->data.buffers, &s->check);
}

void tune_session_close(tune_session *s) {
  flp_plan_destroy(s->reference);
  tune_check_clear(&s->check);
  bench_products_clear(&s->baseline);
  bench_data_clear(&s->data);
  if (s->clock.driver) measure_clock_destroy(&s->clock);
  tune_pass_close(s);
  *s = (tune_session){0};
}

flp_status tune_session_begin(tune_session *s, flp_kernel_kind kind) {
  flp_plan_destroy(s->reference);
  s->reference = NULL;
  s->kind = kind;
  s->call = tune_session_call(s, kind);
  FLP_TRY(tune_pass_plan(s, NULL, &s->reference));
  FLP_TRY(tune_pass_layouts(s, s->reference, s->layout));
  FLP_TRY(tune_pass_reserve(s, s->layout));
  if (kind == FLP_KERNEL_FORWARD) FLP_TRY(tune_check_reference(&s->check, s->reference, TUNE_BACKWARD));
  if (kind == FLP_FORWARD(KEEP)) FLP_TRY(tune_check_reference(&s->check, s->reference, s->call));
  FLP_TRY(tune_pass_reference(s));
  return kind == FLP_KERNEL_FORWARD && spec_of(s)->loss ? bench_data_follow(&s->data) : FLP_OK;
}

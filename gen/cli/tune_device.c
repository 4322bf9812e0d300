/* tune_device.c: what measures: plans with candidates, verified, and timed in groups beside the untuned default and the
 * bare products. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../autotune/sensors.h"
#include "../../runtime/half.h"
#include "../../runtime/plan.h"
#include "tune.h"

/* A short choice of the bare products' algorithms will do, and half of the memory: workspace is still to come. */
enum { CHOOSE_ROUNDS = 1, BARE_SHARE = 2 };
static const double choose_burst_ms = 25;
/* After a pause clocks are high until the power limit bites, about a second in. */
static const double settle_ms = 1100, settle_bursts = 15;

volatile sig_atomic_t tune_interrupted;

/* A candidate that is ready. */
typedef struct made {
  tune_session *session;
  flp_plan *plan;
  flp_layout layout; /* of the pass that is timed */
} made;

static const flp_spec *spec_of(const tune_session *s) {
  return &s->target->spec;
}

static flp_pass pass_of(flp_kernel_kind kind) {
  return kind == FLP_KERNEL_FORWARD ? FLP_PASS_FORWARD : FLP_PASS_BACKWARD;
}

/* ---- plans ---- */

/* A plan whose kernels do not load falls to those of a lower architecture or rung, which are cut in one way only. A
 * strict one would not, but waits for every call. */
static flp_status refuse_others(flp_plan **plan) {
  if (flp_plan_get_rung(*plan) == FLP_RUNG_JIT && strcmp((*plan)->arch, "sm_90a") == 0) return FLP_OK;
  char arch[sizeof(*plan)->arch];
  snprintf(arch, sizeof arch, "%s", (*plan)->arch);
  const char *rung = flp_rung_name(flp_plan_get_rung(*plan));
  flp_plan_destroy(*plan);
  *plan = NULL;
  return flp_fail(FLP_ERROR_UNAVAILABLE, "its kernels for sm_90a do not load; those for %s of rung %s would run", arch,
                  rung);
}

static flp_status make_plan(const tune_session *s, flp_kernel_kind kind, const flp_tunables *tune,
                            const search_candidate *layout, flp_plan **out) {
  flp_spec spec = *spec_of(s);
  flp_options options = s->args->options;
  flp_tuning tuning = s->chosen;
  char text[FLP_TUNING_TEXT_BYTES];
  if (kind == FLP_KERNEL_FORWARD && tune) spec.grads = 0; /* only forward is looked at */
  if (tune) tuning.of[kind] = *tune;
  flp_tuning_text(&tuning, text);
  options.rung = FLP_RUNG_JIT;
  options.tune = text[0] ? text : NULL;
  if (layout) {
    options.mode = layout->mode;
    options.chunk_rows = layout->chunk_rows;
    options.chunk_vocab = layout->chunk_vocab;
    if (options.mode == FLP_MODE_R_VOCAB) options.chunk_rows = 0;
    if (options.mode == FLP_MODE_R_ROWS) options.chunk_vocab = 0;
  }
  FLP_TRY(flp_plan_create(&spec, &options, out));
  return refuse_others(out);
}

/* ---- running ---- */

/* Workspace grows with what asks for more. */
static flp_status reserve(tune_session *s, uint64_t bytes) {
  cli_buffer *workspace = &s->data.slot[BENCH_WORKSPACE];
  if (workspace->bytes >= bytes) return FLP_OK;
  FLP_TRY(cli_device_synchronise(s->device));
  cli_buffer_destroy(workspace);
  return bench_data_create(&s->data, BENCH_WORKSPACE, (size_t)bytes);
}

static flp_status execute(tune_session *s, flp_plan *plan, flp_pass pass, const flp_layout *layout) {
  flp_args args = bench_data_args(&s->data, pass, s->args->rows, layout);
  return flp_execute(plan, &args);
}

static flp_status enqueue_made(void *context, CUstream stream) {
  const made *m = context;
  (void)stream; /* the device's, which the arguments name */
  return execute(m->session, m->plan, pass_of(m->session->kind), &m->layout);
}

static flp_status enqueue_reference(void *context, CUstream stream) {
  tune_session *s = context;
  (void)stream;
  return execute(s, s->reference, pass_of(s->kind), &s->layout[pass_of(s->kind)]);
}

/* ---- numbers at full size ---- */

static size_t sample_floats(const tune_session *s) {
  return 2 * TUNE_SAMPLE_ROWS * (size_t)spec_of(s)->hidden;
}

static flp_status download_rows(tune_session *s, float *out) {
  size_t n = (size_t)s->args->rows;
  static const struct {
    bench_slot slot;
    size_t columns;
  } parts[] = {{BENCH_LOGPROB, 1}, {BENCH_ENTROPY, 1}, {BENCH_STATS, 4}};
  for (int i = 0; i < 3; i++) {
    const cli_buffer *buffer = &s->data.slot[parts[i].slot];
    if (buffer->data) FLP_TRY(cli_buffer_download(buffer, 0, out, n * parts[i].columns * sizeof(float)));
    out += n * parts[i].columns;
  }
  return FLP_OK;
}

/* Rows of a gradient, evenly spread, the last among them. */
static flp_status download_some(const cli_buffer *buffer, int64_t rows, int64_t depth, flp_dtype dtype, float *out) {
  size_t width = (size_t)(depth * flp_half_bytes(dtype));
  if (!buffer->data) return FLP_OK;
  char *row = malloc(width);
  flp_status status = row ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "out of host memory for gradients");
  for (int64_t i = 0; i < TUNE_SAMPLE_ROWS && status == FLP_OK; i++) {
    status = cli_buffer_download(buffer, (size_t)(i * (rows - 1) / (TUNE_SAMPLE_ROWS - 1)) * width, row, width);
    if (status == FLP_OK) flp_half_widen(dtype, row, depth, out + i * depth);
  }
  free(row);
  return status;
}

static flp_status download_gradients(tune_session *s, float *out) {
  const flp_spec *spec = spec_of(s);
  FLP_TRY(download_some(&s->data.slot[BENCH_GRAD_HIDDEN], s->args->rows, spec->hidden, spec->grad_hidden_dtype, out));
  return download_some(&s->data.slot[BENCH_GRAD_WEIGHT], spec->vocab, spec->hidden, spec->grad_weight_dtype,
                       out + TUNE_SAMPLE_ROWS * spec->hidden);
}

/* One call of the pass that is timed, from outputs that hold nothing. */
static flp_status run_once(tune_session *s, flp_plan *plan, const flp_layout *layout) {
  int forward = s->kind == FLP_KERNEL_FORWARD;
  const bench_slot slots[] = {forward ? BENCH_LOGPROB : BENCH_GRAD_HIDDEN, forward ? BENCH_ENTROPY : BENCH_GRAD_WEIGHT};
  for (int i = 0; i < 2; i++)
    if (s->data.slot[slots[i]].data) FLP_TRY(cli_buffer_fill(&s->data.slot[slots[i]], 0));
  FLP_TRY(execute(s, plan, pass_of(s->kind), layout));
  return cli_device_synchronise(s->device);
}

/* The candidate's numbers on the data that it is timed on, beside the reference's. */
static flp_status compare_full(tune_session *s, const made *m, search_candidate *c) {
  int forward = s->kind == FLP_KERNEL_FORWARD;
  size_t count = forward ? 6 * (size_t)s->args->rows : sample_floats(s);
  float *got = calloc(count, sizeof *got);
  if (!got) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for results");
  flp_status status = run_once(s, m->plan, &m->layout);
  if (status == FLP_OK) status = forward ? download_rows(s, got) : download_gradients(s, got);
  if (status == FLP_OK && forward) {
    double bytes = check_metric_bits(got, s->row_reference, count * sizeof *got).max_ulp;
    if (bytes > 0)
      snprintf(c->reason, sizeof c->reason, "of %lld rows, forward differs in %.0f bytes from the untuned kernel's",
               (long long)s->args->rows, bytes);
  } else if (status == FLP_OK) {
    double off = tune_distance(got, s->grad_reference, count), allowed = tune_distance_allowed(spec_of(s)->dtype);
    if (!(off <= allowed))
      snprintf(c->reason, sizeof c->reason,
               "of %lld rows, gradients are %.3g (relative L2) from the untuned kernels', "
               "allowed: %.3g",
               (long long)s->args->rows, off, allowed);
  }
  free(got);
  return status;
}

/* ---- preparing ---- */

static flp_status make_one(tune_session *s, search_candidate *c) {
  made *out = calloc(1, sizeof *out);
  if (!out) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for a candidate");
  c->handle = out;
  out->session = s;
  out->layout = (flp_layout)FLP_LAYOUT_INIT;
  const flp_tunables *tune = c->kind && !c->is_default ? &c->tune : NULL;
  FLP_TRY(make_plan(s, c->kind, tune, c->kind || c->is_default ? NULL : c, &out->plan));
  return flp_plan_layout(out->plan, pass_of(s->kind), s->args->rows, 0, &out->layout);
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
  FLP_TRY(reserve(s, m->layout.bytes));
  FLP_TRY(tune_check_plan(&s->check, m->plan, c->kind, &error, c->reason));
  if (!c->reason[0]) FLP_TRY(compare_full(s, m, c));
  c->error = error;
  c->status = c->reason[0] ? SEARCH_WRONG : SEARCH_WAITING;
  c->ready = !c->reason[0];
  return FLP_OK;
}

/* One that cannot be made or run is told so; only a device that is gone ends the search. */
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
  return tune_compile(s->workshop, wanted, wants);
}

static flp_status prepare(void *context, search_candidate *const *list, int count) {
  tune_session *s = context;
  FLP_TRY(compile(s, list, count));
  for (int i = 0; i < count; i++) {
    search_candidate *c = list[i];
    flp_status status = make_one(s, c);
    if (status == FLP_OK) status = verify(s, c);
    if (status == FLP_ERROR_MEMORY) return status;
    if (status != FLP_OK) FLP_TRY(fail_one(s, c, status, flp_error_detail()));
    if (c->status == SEARCH_WRONG) release(s, c);
  }
  return FLP_OK;
}

/* ---- timing ---- */

/* The bare products that the pass is made of. */
static int wants_bare(const tune_session *s, gemm_product product) {
  return bench_products_has(&s->bare, product) && (product == GEMM_SCORES || s->kind != FLP_KERNEL_FORWARD);
}

/* ms: of the bare products that the pass is made of, in their order */
static void keep_bare(tune_session *s, const measure_summary *ms) {
  for (int p = 0; p < GEMM_PRODUCTS; p++)
    if (wants_bare(s, (gemm_product)p)) s->bare_ms[p] = bench_products_scaled(&s->bare, *ms++);
}

/* Of the GPU that works here, which need not be the first of the machine; -1 where its address is not to be had. */
static void read_sensors(const tune_session *s, double *clock_mhz, double *power_w) {
  const flp_driver *driver = s->device->driver;
  char pci[32] = "";
  *clock_mhz = *power_w = -1;
  if (!driver->cuDeviceGetPCIBusId || driver->cuDeviceGetPCIBusId(pci, sizeof pci, s->device->info.handle) != 0) return;
  sensors_read(pci, clock_mhz, power_w);
}

static flp_status time_group(void *context, search_candidate *const *list, int count, int rounds, uint64_t seed,
                             search_sample *out) {
  tune_session *s = context;
  /* All is compared with the reference, so that it is timed twice as often. */
  measure_item items[MEASURE_ITEMS_MAX] = {{enqueue_reference, s}, {enqueue_reference, s}};
  measure_summary ms[MEASURE_ITEMS_MAX];
  measure_options options = {s->args->burst_ms, rounds, seed, fmin(settle_ms, settle_bursts * s->args->burst_ms)};
  int used = 2, at[MEASURE_ITEMS_MAX];
  double clock = -1, power = -1;
  for (int i = 0; i < count; i++) {
    at[i] = list[i]->is_default ? 0 : used;
    if (!list[i]->is_default) items[used++] = (measure_item){enqueue_made, list[i]->handle};
  }
  int first_bare = used;
  for (int p = 0; p < GEMM_PRODUCTS; p++)
    if (wants_bare(s, (gemm_product)p)) items[used++] = gemm_item(&s->bare.product[p]);
  FLP_TRY(measure_run(&s->clock, items, used, &options, ms));
  read_sensors(s, &clock, &power);
  ms[0] =
      (measure_summary){0.5 * (ms[0].median + ms[1].median), fmin(ms[0].low, ms[1].low), fmax(ms[0].high, ms[1].high)};
  for (int i = 0; i < count; i++) {
    out[i] = (search_sample){ms[at[i]], ms[0]};
    list[i]->clock_mhz = clock;
    list[i]->power_w = power;
  }
  keep_bare(s, ms + first_bare);
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
  (void)note(context, c); /* a record that cannot be written is met again, and told, when the target ends */
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
  const char *arches[FLP_LADDER_ARCHES_MAX];
  if (flp_ladder_arches(&s->device->info, spec_of(s), flp_driver_has_clusters(s->device->driver), arches) < 1) return 0;
  int count = flp_kernel_keys_for(spec_of(s), arches[0], keys);
  flp_tuning_apply(tuning, keys, count);
  return count;
}

static flp_status make_bare(tune_session *s) {
  measure_options choose = {choose_burst_ms, CHOOSE_ROUNDS, (uint64_t)s->args->seed, 0};
  s->bare = (bench_products){.library = s->library, .data = &s->data, .spec = spec_of(s), .n = s->args->rows};
  return bench_products_create(&s->bare, BARE_SHARE, &s->clock, &choose);
}

flp_status tune_session_open(tune_session *s) {
  const flp_spec *spec = spec_of(s);
  s->bench = (bench_args){.spec = CLI_SPEC_ARGS_INIT, .seed = s->args->seed};
  s->bench.spec.spec = *spec;
  s->bench.spec.scale = s->target->scale;
  s->data = (bench_data){.args = &s->bench, .device = s->device};
  FLP_TRY(measure_clock_create(s->device->driver, s->device->stream, &s->clock));
  FLP_TRY(bench_data_head(&s->data));
  FLP_TRY(bench_data_rows(&s->data, s->args->rows));
  s->row_reference = calloc(6 * (size_t)s->args->rows, sizeof(float));
  s->grad_reference = calloc(sample_floats(s), sizeof(float));
  if (!s->row_reference || !s->grad_reference) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for results");
  FLP_TRY(make_bare(s));
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  flp_tuning own = {0};
  FLP_TRY(tune_compile(s->workshop, keys, tune_session_keys(s, &own, keys)));
  return tune_check_create(s->target, s->device, &s->data.slot[BENCH_GRAD_WEIGHT], &s->data.slot[BENCH_GRAD_BIAS],
                           &s->check);
}

void tune_session_close(tune_session *s) {
  flp_plan_destroy(s->reference);
  tune_check_clear(&s->check);
  bench_products_clear(&s->bare);
  bench_data_clear(&s->data);
  if (s->clock.driver) measure_clock_destroy(&s->clock);
  free(s->row_reference);
  free(s->grad_reference);
  *s = (tune_session){0};
}

flp_status tune_session_begin(tune_session *s, flp_kernel_kind kind) {
  flp_plan_destroy(s->reference);
  s->reference = NULL;
  s->kind = kind;
  FLP_TRY(make_plan(s, kind, NULL, NULL, &s->reference));
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_BACKWARD; pass++) {
    s->layout[pass] = (flp_layout)FLP_LAYOUT_INIT;
    if (pass == FLP_PASS_COMBINE || (pass == FLP_PASS_BACKWARD && !spec_of(s)->grads)) continue;
    FLP_TRY(flp_plan_layout(s->reference, (flp_pass)pass, s->args->rows, 0, &s->layout[pass]));
    FLP_TRY(reserve(s, s->layout[pass].bytes));
  }
  if (kind == FLP_KERNEL_FORWARD) FLP_TRY(tune_check_reference(&s->check, s->reference));
  FLP_TRY(run_once(s, s->reference, &s->layout[pass_of(kind)]));
  if (kind == FLP_KERNEL_FORWARD) return download_rows(s, s->row_reference);
  return download_gradients(s, s->grad_reference);
}

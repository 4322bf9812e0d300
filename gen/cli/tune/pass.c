/* pass.c: what is timed: plans of a call, their workspace, running them, and their numbers at full size. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/tune/pass.h"
#include "runtime/base/half.h"
#include "runtime/plan/plan.h"

/* What a call is made of. */
static const struct {
  int passes;
  flp_pass pass[TUNE_CALL_PASSES], query[TUNE_CALL_PASSES]; /* query: for its layout */
  int trains;          /* keeps exponentials or directions: of the whole spec, else of the head alone */
  int rows, gradients; /* how many of row_slots; gradients */
} calls[] = {
    [TUNE_FORWARD] = {1, {FLP_PASS_FORWARD}, {FLP_PASS_FORWARD}, 0, 3, 0},
    [TUNE_BACKWARD] = {1, {FLP_PASS_BACKWARD}, {FLP_PASS_BACKWARD}, 0, 0, 1},
    [TUNE_KEEPING] = {1, {FLP_PASS_FORWARD}, {FLP_PASS_FORWARD_SAVED}, 1, 3, 0},
    [TUNE_SAVED] =
        {2, {FLP_PASS_FORWARD, FLP_PASS_BACKWARD}, {FLP_PASS_FORWARD_SAVED, FLP_PASS_BACKWARD_SAVED}, 1, 3, 1},
    [TUNE_STEP] = {1, {FLP_PASS_STEP}, {FLP_PASS_STEP}, 1, 2, 1},
};

static const flp_array_id row_slots[] = {FLP_ARRAY_logprob, FLP_ARRAY_entropy, FLP_ARRAY_stats};

static const flp_spec *spec_of(const tune_session *s) {
  return &s->target->spec;
}

int tune_call_has_gradients(tune_call call) {
  return calls[call].gradients;
}

flp_mode tune_session_mode(const tune_session *s) {
  return s->streams ? FLP_MODE_STREAM : s->saved_bytes ? s->keeps : (flp_mode)0;
}

tune_call tune_session_call(const tune_session *s, flp_kernel_kind kind) {
  if (kind == FLP_KERNEL_FORWARD) return TUNE_FORWARD;
  if (kind == FLP_KERNEL_DZ) return TUNE_BACKWARD; /* the other modes have it for rows that are redone */
  if (s->streams) return TUNE_STEP;
  if (kind == FLP_FORWARD(KEEP)) return TUNE_KEEPING;
  return kind && s->saved_bytes ? TUNE_SAVED : TUNE_BACKWARD; /* no descriptor holds a layout of what is kept */
}

int tune_session_gradients_second(const tune_session *s) {
  return s->call == TUNE_SAVED && s->keeps == FLP_MODE_SAVE;
}

/* ---- plans ---- */

/* A plan without a given tiling whose kernels do not load falls back to a lower architecture or rung, which is not
 * what is tuned. A strict one would not, but waits for every call. */
static flp_status refuse_others(const tune_session *s, flp_plan **plan) {
  if (flp_plan_get_rung(*plan) == FLP_RUNG_JIT && strcmp((*plan)->arch, s->arch) == 0) return FLP_OK;
  char arch[sizeof(*plan)->arch];
  snprintf(arch, sizeof arch, "%s", (*plan)->arch);
  const char *rung = flp_rung_name(flp_plan_get_rung(*plan));
  flp_plan_destroy(*plan);
  *plan = NULL;
  return flp_fail(FLP_ERROR_UNAVAILABLE, "its kernels for %s do not load; those for %s of rung %s would run", s->arch,
                  arch, rung);
}

static void set_layout(flp_options *options, const search_candidate *layout) {
  options->mode = layout->mode;
  options->chunk_rows = layout->mode == FLP_MODE_RECOMPUTE_VOCAB ? 0 : layout->chunk_rows;
  options->chunk_vocab =
      layout->mode == FLP_MODE_RECOMPUTE_ROWS || layout->mode == FLP_MODE_STREAM ? 0 : layout->chunk_vocab;
}

flp_status tune_pass_plan(const tune_session *s, const search_candidate *c, flp_plan **out) {
  flp_spec spec = *spec_of(s);
  flp_options options = s->args->options;
  flp_tuning tuning = s->chosen;
  char text[FLP_TUNING_TEXT_BYTES];
  int has_tiling = c && c->kind && !c->is_default;
  if (!calls[s->call].trains) {
    cli_spec_set_mode(&spec, (flp_mode)0);
    spec.loss = NULL;
    spec.loss_bytes = 0;
  }
  if (has_tiling && s->call == TUNE_FORWARD) spec.grads = 0; /* only forward is looked at */
  if (has_tiling) tuning.of[c->kind] = c->tune;
  flp_tuning_text(&tuning, text);
  options.rung = FLP_RUNG_JIT;
  options.tune = text;
  options.mode = calls[s->call].trains ? tune_session_mode(s) : (flp_mode)0;
  if (c && !c->kind && !c->is_default) set_layout(&options, c);
  FLP_TRY(flp_plan_create(&spec, &options, out));
  return refuse_others(s, out);
}

flp_status tune_pass_layouts(const tune_session *s, const flp_plan *plan, flp_layout out[TUNE_CALL_PASSES]) {
  int keeps = s->call == TUNE_KEEPING || s->call == TUNE_SAVED;
  uint64_t budget = keeps ? bench_keep_budget(plan, &s->args->options) : 0;
  for (int i = 0; i < calls[s->call].passes; i++) {
    out[i] = (flp_layout)FLP_LAYOUT_INIT;
    FLP_TRY(flp_plan_layout(plan, calls[s->call].query[i], s->args->rows, budget, &out[i]));
  }
  return FLP_OK;
}

/* ---- running ---- */

flp_status tune_pass_reserve(tune_session *s, const flp_layout layout[TUNE_CALL_PASSES]) {
  uint64_t bytes = 0;
  for (int i = 0; i < calls[s->call].passes; i++)
    if (layout[i].bytes > bytes) bytes = layout[i].bytes;
  if (s->data.buffers.at[FLP_ARRAY_workspace].bytes >= bytes) return FLP_OK;
  FLP_TRY(cli_device_synchronise(s->device));
  return call_make(&s->data.buffers, FLP_ARRAY_workspace, (size_t)bytes);
}

flp_status tune_pass_enqueue(tune_session *s, flp_plan *plan, const flp_layout layout[TUNE_CALL_PASSES]) {
  for (int i = 0; i < calls[s->call].passes; i++) {
    flp_pass pass = calls[s->call].pass[i];
    flp_args args = bench_data_args(&s->data, pass, &layout[i]);
    if (!calls[s->call].trains) args.saved = NULL;
    FLP_TRY(call_execute(plan, &args));
  }
  return FLP_OK;
}

/* One call, from outputs that hold nothing. *seconds: that it took */
static flp_status run_once(tune_session *s, flp_plan *plan, const flp_layout layout[TUNE_CALL_PASSES],
                           double *seconds) {
  static const flp_array_id arrays[] = {FLP_ARRAY_logprob, FLP_ARRAY_entropy, FLP_ARRAY_grad_hidden,
                                        FLP_ARRAY_grad_weight};
  int first = calls[s->call].rows ? 0 : 2, end = calls[s->call].gradients ? 4 : 2;
  for (int i = first; i < end; i++) FLP_TRY(cli_buffer_fill(&s->data.buffers.at[arrays[i]].buffer, 0));
  FLP_TRY(cli_device_synchronise(s->device));
  double start = cli_seconds_now();
  FLP_TRY(tune_pass_enqueue(s, plan, layout));
  FLP_TRY(cli_device_synchronise(s->device));
  *seconds = cli_seconds_now() - start;
  return FLP_OK;
}

/* ---- numbers at full size ---- */

static size_t sample_floats(const tune_session *s) {
  return 2 * TUNE_SAMPLE_ROWS * (size_t)spec_of(s)->hidden;
}

static flp_status download_rows(tune_session *s, call_result *out) {
  for (int i = 0; i < calls[s->call].rows; i++) FLP_TRY(call_take(&s->data.buffers, &s->data.call, row_slots[i], out));
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

static flp_status download_gradients(const tune_session *s, float *out) {
  const flp_spec *spec = spec_of(s);
  const call_buffer *at = s->data.buffers.at;
  FLP_TRY(download_some(&at[FLP_ARRAY_grad_hidden].buffer, s->args->rows, spec->hidden, spec->grad_hidden_dtype, out));
  return download_some(&at[FLP_ARRAY_grad_weight].buffer, spec->vocab, spec->hidden, spec->grad_weight_dtype,
                       out + TUNE_SAMPLE_ROWS * spec->hidden);
}

flp_status tune_pass_open(tune_session *s) {
  s->grad_reference = calloc(sample_floats(s), sizeof(float));
  return s->grad_reference ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "out of host memory for results");
}

void tune_pass_close(tune_session *s) {
  call_result_clear(&s->row_reference);
  free(s->grad_reference);
}

flp_status tune_pass_reference(tune_session *s) {
  FLP_TRY(run_once(s, s->reference, s->layout, &s->call_s));
  if (s->call == TUNE_FORWARD) {
    call_result_clear(&s->row_reference);
    FLP_TRY(download_rows(s, &s->row_reference));
  }
  return calls[s->call].gradients ? download_gradients(s, s->grad_reference) : FLP_OK;
}

static flp_status compare_rows(tune_session *s, char reason[SEARCH_REASON_BYTES]) {
  call_result got = {0};
  double bytes = 0;
  flp_status status = download_rows(s, &got);
  for (int i = 0; i < calls[s->call].rows && status == FLP_OK; i++) {
    const void *rows = call_result_at(&got, row_slots[i]), *wanted = call_result_at(&s->row_reference, row_slots[i]);
    if (rows) bytes += check_metric_bits(rows, wanted, call_bytes(&s->data.call, row_slots[i])).max_ulp;
  }
  call_result_clear(&got);
  if (bytes > 0)
    snprintf(reason, SEARCH_REASON_BYTES, "of %lld rows, forward differs in %.0f bytes from the untuned kernel's",
             (long long)s->args->rows, bytes);
  return status;
}

static flp_status compare_gradients(tune_session *s, char reason[SEARCH_REASON_BYTES]) {
  size_t count = sample_floats(s);
  if (reason[0] || !calls[s->call].gradients) return FLP_OK;
  float *got = calloc(count, sizeof *got);
  if (!got) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for results");
  flp_status status = download_gradients(s, got);
  double off = tune_distance(got, s->grad_reference, count), allowed = tune_distance_allowed(spec_of(s)->dtype);
  if (!(off <= allowed))
    snprintf(reason, SEARCH_REASON_BYTES,
             "of %lld rows, gradients are %.3g (relative L2) from the untuned kernels', allowed: %.3g",
             (long long)s->args->rows, off, allowed);
  free(got);
  return status;
}

flp_status tune_pass_compare(tune_session *s, flp_plan *plan, const flp_layout layout[TUNE_CALL_PASSES],
                             double *seconds, char reason[SEARCH_REASON_BYTES]) {
  FLP_TRY(run_once(s, plan, layout, seconds));
  FLP_TRY(compare_rows(s, reason));
  return compare_gradients(s, reason);
}

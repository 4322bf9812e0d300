/* child.c: one part of a proof: numbers against fp64 on odd data, beside portable kernels on a problem of some size,
 * the same bits again and again while other streams work and move memory, and times.
 *
 * Invariant: nothing here outlives a wait for the device without the parent's limit, which ends the process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autotune/measure.h"
#include "gen/cli/check/concurrent.h"
#include "gen/cli/check/session.h"
#include "gen/cli/prove/prove.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/text.h"
#include "runtime/base/half.h"
#include "runtime/base/util.h"

enum { OWN, PORTABLE, SIDES };
enum { NON_BLOCKING = 1, TOGETHER = 2, PAIRS = 25, POISON_FIRST = 0x5a };
static const double SLOWER = 0.05; /* the least margin, or the distance of the quartiles */
static const int64_t FEW_ROWS = 67, MORE_ROWS = 150, SMALL_VOCAB = 1100, SMALL_HIDDEN = 72;
static const size_t MOVED_MOST = (size_t)256 << 20, MOVED_LEAST = (size_t)1 << 20;

typedef struct child {
  const prove_args *args;
  prove_part part;
  check_problem problem;
  cli_device device;
  check_timeout timeout;
  check_streams side[SIDES]; /* the architecture's kernels, and portable ones */
  void *reference[STREAM_OUTPUTS], *got;
  cli_buffer moved; /* memory that another stream writes meanwhile */
  CUstream mover;
  prove_result result;
} child;

static check_how how_of(const child *c, const char *arch) {
  check_how how = {.options = FLP_OPTIONS_INIT, .limit_s = c->args->limit_s};
  how.options.device = c->args->options.device;
  how.options.rung = FLP_RUNG_JIT;
  how.options.arch = arch;
  return how;
}

static const char *arch_of(const child *c, int side) {
  return side == PORTABLE || c->args->portable ? FLP_PORTABLE_ARCH : c->args->options.arch;
}

/* ---- against fp64: the cases of flpgen check ---- */

/* The first thing that is wrong, in words; there is one. */
static void say_finding(const check_report *report, char out[FLP_DETAIL_BYTES]) {
  int64_t i = 0;
  while (report->findings[i].metric.pass) i++;
  const check_finding *f = &report->findings[i];
  const check_metric *m = &f->metric;
  snprintf(out, FLP_DETAIL_BYTES, "differs from fp64: %s of case %s, %s", f->output, f->name, f->options);
  if (f->note[0])
    cli_append(out, FLP_DETAIL_BYTES, ": ", "%s", f->note);
  else if (m->max_ulp >= 0)
    cli_append(out, FLP_DETAIL_BYTES, ": ", "%.3g ulp, allowed: %.3g", m->max_ulp, m->bound);
  else
    cli_append(out, FLP_DETAIL_BYTES, ": ", "%.3g (relative L2), allowed: %.3g", m->rel_l2, m->bound);
}

/* Of some rows and columns, none of them a multiple of a tile. */
static flp_status compare_with_fp64(child *c, int64_t rows) {
  check_args args = {.spec = CLI_SPEC_ARGS_INIT, .how = how_of(c, arch_of(c, OWN)), .quiet = 1, .jobs = 1};
  check_report report = {0};
  args.set = CHECK_SET_GIVEN;
  args.spec.spec = c->part.spec;
  args.spec.spec.vocab = flp_min(c->args->vocab, SMALL_VOCAB);
  args.spec.spec.hidden = flp_min(c->args->hidden, SMALL_HIDDEN);
  args.given = check_case_default(c->part.spec.dtype, flp_min(c->args->rows, rows), 0, 0);
  args.given.spec = args.spec.spec;
  args.given.mode = c->part.mode;
  flp_status status = check_session_run(&args, &report);
  if (status == FLP_OK && report.incomplete) status = flp_fail(FLP_ERROR_MEMORY, "out of memory for the findings");
  if (status == FLP_OK && report.count == 0) status = flp_fail(FLP_ERROR_UNAVAILABLE, "nothing was compared");
  for (int64_t i = 0; i < report.count; i++)
    if (report.findings[i].metric.share > c->result.worst) c->result.worst = report.findings[i].metric.share;
  c->result.checks += report.count;
  if (status == FLP_OK && report.failed) say_finding(&report, c->result.reason);
  check_report_clear(&report);
  return status;
}

/* ---- beside portable kernels ---- */

static flp_status download(const child *c, int side, int output, void **out) {
  const cli_buffer *buffer = check_stream_output(&c->side[side], 0, output);
  *out = malloc(buffer->bytes + 1);
  if (!*out) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the result");
  return cli_buffer_download(buffer, 0, *out, buffer->bytes);
}

/* As a share of their norm: gradients are sums of what is rounded to the operands' dtype, with what a tail leaves out
 * or a kept exponential loses; the rest are sums in fp32. */
static double allowed_of(const flp_spec *spec, flp_array_id id) {
  int is_gradient = strncmp(FLP_ARRAY[id].name, "grad_", 5) == 0;
  double rounding = spec->dtype == FLP_DTYPE_BF16 ? 0x1p-7 : spec->dtype == FLP_DTYPE_FP16 ? 0x1p-10 : 0x1p-14;
  return is_gradient ? (spec->keep ? 2 : 1) * rounding + 4 * (double)spec->tail : 0x1p-12;
}

/* Ids and ranks may differ where scores are as good as equal; bits of statistics of what was reduced, too. */
static int is_number(flp_array_id id) {
  return id != FLP_ARRAY_top_ids && id != FLP_ARRAY_rank && id != FLP_ARRAY_stats;
}

/* Gaps between rows, which nobody writes, are 0. */
static flp_status widen(const void *array, flp_dtype dtype, int64_t count, double **out) {
  float poison, bytes, *narrow = malloc((size_t)count * sizeof *narrow + 1);
  memset(&bytes, POISON_FIRST, sizeof bytes);
  flp_half_widen(dtype, &bytes, 1, &poison);
  *out = malloc((size_t)count * sizeof **out + 1);
  if (narrow && *out) flp_half_widen(dtype, array, count, narrow);
  for (int64_t i = 0; narrow && *out && i < count; i++)
    (*out)[i] = memcmp(&narrow[i], &poison, sizeof poison) == 0 ? 0 : (double)narrow[i];
  int failed = !narrow || !*out;
  free(narrow);
  return failed ? flp_fail(FLP_ERROR_MEMORY, "out of host memory for the result") : FLP_OK;
}

static flp_status compare_output(child *c, int output) {
  flp_array_id id = check_stream_outputs[output];
  const flp_spec *spec = &c->problem.c.spec;
  size_t bytes = check_stream_output(&c->side[OWN], 0, output)->bytes;
  if (!bytes || !is_number(id) || c->result.reason[0]) return FLP_OK;
  flp_dtype dtype = flp_array_dtype(id, spec);
  int64_t count = (int64_t)(bytes / flp_dtype_bytes(dtype));
  double *got = NULL, *wanted = NULL;
  void *portable = NULL;
  flp_status status = download(c, PORTABLE, output, &portable);
  if (status == FLP_OK) status = widen(portable, dtype, count, &wanted);
  if (status == FLP_OK) status = widen(c->reference[output], dtype, count, &got);
  if (status == FLP_OK) {
    double allowed = allowed_of(spec, id), norm = check_metric_norm(wanted, count);
    if (!check_metric_tensor(got, wanted, count, allowed * norm).pass)
      snprintf(c->result.reason, sizeof c->result.reason,
               "differs from the portable kernels: %s by %.3g (relative L2), allowed: %.3g", FLP_ARRAY[id].name,
               check_metric_error(got, wanted, count) / norm, allowed);
  }
  free(portable);
  free(wanted);
  free(got);
  return status;
}

/* What a side gives alone. */
static flp_status run_alone(child *c, int side) {
  FLP_TRY(check_streams_poison(&c->side[side], 1, POISON_FIRST));
  FLP_TRY(check_streams_submit(&c->side[side], 0));
  return check_streams_wait(&c->side[side], 1);
}

static flp_status take_references(child *c) {
  size_t most = 0;
  FLP_TRY(run_alone(c, OWN));
  for (int o = 0; o < STREAM_OUTPUTS; o++) {
    size_t bytes = check_stream_output(&c->side[OWN], 0, o)->bytes;
    if (bytes > most) most = bytes;
    FLP_TRY(download(c, OWN, o, &c->reference[o]));
  }
  c->got = malloc(most + 1);
  if (!c->got) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the result");
  if (c->args->portable) return FLP_OK;
  FLP_TRY(run_alone(c, PORTABLE));
  for (int o = 0; o < STREAM_OUTPUTS; o++) FLP_TRY(compare_output(c, o));
  return FLP_OK;
}

/* ---- again and again, under load ---- */

static flp_status move_memory(child *c, int value) {
  for (int i = 0; i < 4; i++) FLP_TRY(cli_buffer_fill_on(&c->moved, c->mover, (uint8_t)(value + i)));
  return FLP_OK;
}

/* What holds poison holds that of this round. */
static int is_same(const child *c, int output, size_t bytes, int poison) {
  const uint8_t *got = c->got, *wanted = c->reference[output];
  if (memcmp(got, wanted, bytes) == 0) return 1;
  for (size_t i = 0; i < bytes; i++)
    if (got[i] != wanted[i] && !(wanted[i] == POISON_FIRST && got[i] == poison)) return 0;
  return 1;
}

static int poison_of(int64_t round) {
  return round % 2 ? 0xff : 0;
}

static flp_status compare_bits(child *c, int stream, int64_t round) {
  for (int o = 0; o < STREAM_OUTPUTS && !c->result.reason[0]; o++) {
    const cli_buffer *output = check_stream_output(&c->side[OWN], stream, o);
    FLP_TRY(cli_buffer_download(output, 0, c->got, output->bytes));
    if (!is_same(c, o, output->bytes, poison_of(round)))
      snprintf(c->result.reason, sizeof c->result.reason,
               "gives other bits under load: %s, in repetition %lld on stream %d of %d",
               FLP_ARRAY[check_stream_outputs[o]].name, (long long)round + 1, stream + 1, TOGETHER);
  }
  return FLP_OK;
}

/* Two streams at once, while memory is written on a third. Poison differs from round to round, so that what is not
 * written shows. */
static flp_status repeat(child *c) {
  for (int64_t round = 0; round < c->args->repeats && !c->result.reason[0]; round++) {
    FLP_TRY(check_streams_poison(&c->side[OWN], TOGETHER, poison_of(round)));
    FLP_TRY(move_memory(c, (int)round));
    for (int i = 0; i < TOGETHER; i++) FLP_TRY(check_streams_submit(&c->side[OWN], i));
    FLP_TRY(check_streams_wait(&c->side[OWN], TOGETHER));
    for (int i = 0; i < TOGETHER; i++) FLP_TRY(compare_bits(c, i, round));
    c->result.repeats = round + 1;
  }
  return check_timeout_wait(&c->timeout, &c->mover, 1, "writes of memory");
}

/* ---- times ---- */

static flp_status enqueue(void *context, CUstream stream) {
  (void)stream; /* the one that both have */
  return check_streams_submit(context, 0);
}

static flp_status time_sides(child *c, measure_clock *clock) {
  const measure_item own = {.enqueue = enqueue, .context = &c->side[OWN]};
  const measure_item portable = {.enqueue = enqueue, .context = &c->side[PORTABLE]};
  measure_summary ratio;
  FLP_TRY(measure_burst(clock, &own, 1, &c->result.ms));
  FLP_TRY(measure_burst(clock, &own, 3, &c->result.ms));
  FLP_TRY(measure_burst(clock, &portable, 3, &c->result.portable_ms));
  c->result.ms /= 3;
  c->result.portable_ms /= 3;
  FLP_TRY(measure_in_turn(clock, &own, &portable, PAIRS, &ratio));
  c->result.ratio = ratio.median;
  c->result.ratio_low = ratio.low;
  c->result.ratio_high = ratio.high;
  /* Neither noise refutes nor what nobody would feel. */
  double margin = ratio.high - ratio.low > SLOWER ? ratio.high - ratio.low : SLOWER;
  if (ratio.median > 1 + margin)
    snprintf(c->result.reason, sizeof c->result.reason,
             "is slower than the portable kernels: %.2f times as long a call, beyond a margin of %.2f", ratio.median,
             margin);
  return FLP_OK;
}

/* Both on one stream, so that events of it are of both. */
static flp_status compare_times(child *c) {
  measure_clock clock = {0};
  CUstream *stream = &c->side[PORTABLE].stream[0].buffers.stream, held = *stream;
  FLP_TRY(measure_clock_create(c->device.driver, c->side[OWN].stream[0].buffers.stream, &clock));
  *stream = c->side[OWN].stream[0].buffers.stream;
  flp_status status = time_sides(c, &clock);
  *stream = held;
  measure_clock_destroy(&clock);
  return status;
}

/* ---- a problem of some size ---- */

static flp_status make_load(child *c) {
  size_t bytes = 16 * (size_t)(c->args->rows + c->args->vocab) * (size_t)c->args->hidden;
  bytes = bytes > MOVED_MOST ? MOVED_MOST : bytes < MOVED_LEAST ? MOVED_LEAST : bytes;
  FLP_TRY(cli_buffer_create(&c->device, bytes, &c->moved));
  const flp_driver *driver = c->device.driver;
  return flp_driver_status(driver, driver->cuStreamCreate(&c->mover, NON_BLOCKING), "cuStreamCreate");
}

static flp_status open_sides(child *c) {
  check_case large = check_case_default(c->part.spec.dtype, c->args->rows, 0, 0);
  large.spec = c->part.spec;
  large.mode = c->part.mode;
  large.rows = CHECK_ROWS_MASKED;
  large.sampled = 1; /* no oracle */
  large.seed = 7;
  FLP_TRY(check_problem_create(&large, &c->problem));
  FLP_TRY(cli_device_open(c->args->options.device, &c->device));
  c->timeout = (check_timeout){.driver = c->device.driver, .limit_s = c->args->limit_s};
  for (int side = OWN; side < (c->args->portable ? PORTABLE : SIDES); side++) {
    check_how how = how_of(c, arch_of(c, side));
    FLP_TRY(check_streams_create(&c->problem, &how, &c->device, &c->timeout, &c->side[side]));
  }
  return make_load(c);
}

static flp_status compare_large(child *c) {
  FLP_TRY(open_sides(c));
  FLP_TRY(take_references(c));
  if (!c->result.reason[0]) FLP_TRY(repeat(c));
  return c->result.reason[0] || c->args->portable ? FLP_OK : compare_times(c);
}

static void clear(child *c) {
  for (int side = OWN; side < SIDES; side++)
    if (c->side[side].device) check_streams_clear(&c->side[side]);
  for (int o = 0; o < STREAM_OUTPUTS; o++) free(c->reference[o]);
  free(c->got);
  cli_buffer_destroy(&c->moved);
  if (c->mover) c->device.driver->cuStreamDestroy_v2(c->mover);
  cli_device_close(&c->device);
  check_problem_clear(&c->problem);
}

/* ---- the whole ---- */

static flp_status find_part(const prove_args *args, prove_part *out) {
  prove_part parts[PROVE_PARTS_MAX];
  int count = args->options.arch ? prove_parts(args->options.arch, args, parts) : 0;
  for (int i = 0; i < count; i++)
    if (strcmp(parts[i].name, args->part) == 0) {
      *out = parts[i];
      return FLP_OK;
    }
  return flp_fail(FLP_ERROR_ARGUMENT, "--part: '%s' is not accepted", args->part);
}

json_t *prove_result_json(const prove_result *r) {
  json_t *out = json_pack("{s:o}", "reason", cli_json_text(r->reason));
#define INTEGER(name) json_object_set_new(out, #name, json_integer((json_int_t)r->name));
#define DOUBLE(name) json_object_set_new(out, #name, cli_json_number(r->name));
  PROVE_NUMBERS(INTEGER, DOUBLE)
  return out;
}

flp_status prove_child(const prove_args *args) {
  static child c;
  c.args = args;
  FLP_TRY(find_part(args, &c.part));
  FLP_TRY(compare_with_fp64(&c, FEW_ROWS));
  if (c.part.has_short && args->rows > FEW_ROWS && !c.result.reason[0]) FLP_TRY(compare_with_fp64(&c, MORE_ROWS));
  flp_status status = c.result.reason[0] ? FLP_OK : compare_large(&c);
  if (c.timeout.hung) return status; /* nothing can be released */
  flp_failure held = flp_failure_hold(status);
  clear(&c);
  FLP_TRY(flp_failure_restore(&held));
  return cli_json_print(prove_result_json(&c.result));
}

/* concurrent.c: bits of every output on several streams at once, beside other work and in CUDA graphs against
 * those of an undisturbed run.
 *
 * The undisturbed run starts from other poison than the rest, so that what is never written differs too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/check/concurrent.h"
#include "gen/cli/check/session.h"
#include "gen/cli/shared/losses.h"
#include "gen/cli/shared/spec_args.h"
#include "runtime/base/names.h"

enum { ROUNDS = 4, POISON_ALONE = 0x5a, POISON = 0xff };
static const double LIMIT_S = 30;

/* ---- situations ---- */

typedef struct situation {
  const char *name;
  int streams, graphs, loaded; /* graphs: replayed, one of each stream; loaded: beside other work */
} situation;

static const situation situations[] = {
    {"streams", 3, 0, 0}, {"beside work", 1, 0, 1},    {"streams beside work", 2, 0, 1},
    {"graph", 1, 1, 0},   {"graphs at once", 2, 1, 0}, {"graphs beside work", 2, 1, 1},
};
enum { SITUATIONS = sizeof situations / sizeof situations[0] };

typedef struct state {
  check_streams streams;
  check_load *load;
  check_report *report;
  flp_rung rung;
  void *reference[STREAM_OUTPUTS], *got; /* got: room for the largest output */
  /* of the current situation */
  check_metric total[STREAM_OUTPUTS], other;
  char note[STREAM_OUTPUTS][96];
  int overlapped; /* rounds in which other work outlasted the streams */
} state;

/* ---- comparing ---- */

static flp_status take_reference(state *s) {
  size_t most = 0;
  FLP_TRY(check_streams_poison(&s->streams, 1, POISON_ALONE));
  FLP_TRY(check_streams_submit(&s->streams, 0));
  FLP_TRY(check_streams_wait(&s->streams, 1));
  for (int o = 0; o < STREAM_OUTPUTS; o++) {
    const cli_buffer *output = check_stream_output(&s->streams, 0, o);
    if (!output->bytes) continue;
    if (output->bytes > most) most = output->bytes;
    s->reference[o] = malloc(output->bytes);
    if (!s->reference[o]) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the result");
    FLP_TRY(cli_buffer_download(output, 0, s->reference[o], output->bytes));
  }
  s->got = malloc(most);
  return s->got ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "out of host memory for the result");
}

static flp_status compare_stream(state *s, int i, int round) {
  for (int o = 0; o < STREAM_OUTPUTS; o++) {
    const cli_buffer *output = check_stream_output(&s->streams, i, o);
    if (!output->bytes) continue;
    FLP_TRY(cli_buffer_download(output, 0, s->got, output->bytes));
    if (memcmp(s->got, s->reference[o], output->bytes) == 0) continue;
    s->total[o].max_ulp += check_metric_bits(s->got, s->reference[o], output->bytes).max_ulp;
    if (s->total[o].pass)
      snprintf(s->note[o], sizeof s->note[o], "differs from an undisturbed run, first in round %d on stream %d",
               round + 1, i + 1);
    s->total[o].pass = 0;
  }
  return FLP_OK;
}

/* ---- running ---- */

/* If other work ended before the streams', the next round has more of it. */
static flp_status note_overlap(state *s) {
  int busy = 0;
  FLP_TRY(check_load_busy(s->load, &busy));
  s->overlapped += busy;
  if (!busy && s->load->depth < LOAD_DEPTH_MOST) s->load->depth *= 2;
  return FLP_OK;
}

static flp_status run_round(state *s, const situation *now, int round) {
  FLP_TRY(check_streams_poison(&s->streams, now->streams, POISON));
  if (now->loaded) FLP_TRY(check_load_enqueue(s->load));
  for (int i = 0; i < now->streams; i++) FLP_TRY(check_streams_submit(&s->streams, i));
  if (now->loaded) FLP_TRY(check_load_enqueue(s->load));
  FLP_TRY(check_streams_wait(&s->streams, now->streams));
  if (now->loaded) FLP_TRY(note_overlap(s));
  for (int i = 0; i < now->streams; i++) FLP_TRY(compare_stream(s, i, round));
  if (!now->loaded) return FLP_OK;
  check_metric other;
  FLP_TRY(check_load_wait(s->load));
  FLP_TRY(check_load_compare(s->load, &other));
  s->other.max_ulp += other.max_ulp;
  s->other.pass &= other.pass;
  return FLP_OK;
}

static void add(const state *s, const situation *now, const char *what, check_metric metric, const char *note) {
  char output[48];
  snprintf(output, sizeof output, "%s: %s", now->name, what);
  check_report_add(s->report, &s->streams.problem->c, s->rung, output, metric, note);
}

static void report_situation(const state *s, const situation *now) {
  for (int o = 0; o < STREAM_OUTPUTS; o++)
    if (s->reference[o])
      add(s, now, FLP_ARRAY[check_stream_outputs[o]].name, s->total[o], s->total[o].pass ? NULL : s->note[o]);
  if (!now->loaded) return;
  char note[128];
  snprintf(note, sizeof note, "other work%s outlasted the checked calls in %d of %d rounds",
           s->load->library.handle ? " and GEMM baselines" : "", s->overlapped, ROUNDS);
  add(s, now, "overlap", (check_metric){.max_ulp = -1, .cosine = 1, .pass = s->overlapped > 0}, note);
  add(s, now, "other work", s->other, s->other.pass ? NULL : "other work differs from its undisturbed run");
}

static flp_status run_situation(state *s, const situation *now) {
  const check_metric same = {.cosine = 1, .pass = 1};
  flp_status status = FLP_OK;
  for (int o = 0; o < STREAM_OUTPUTS; o++) s->total[o] = same;
  s->other = same;
  s->overlapped = 0;
  for (int i = 0; now->graphs && i < now->streams && status == FLP_OK; i++)
    status = check_streams_capture(&s->streams, i);
  for (int round = 0; round < ROUNDS && status == FLP_OK; round++) status = run_round(s, now, round);
  if (s->streams.timeout->hung) return status;
  for (int i = 0; i < now->streams; i++) check_streams_forget(&s->streams, i);
  if (status == FLP_OK) report_situation(s, now);
  return status;
}

static flp_status run_case(state *s, const check_problem *problem, const check_how *how) {
  FLP_TRY(check_streams_create(problem, how, s->load->device, s->load->timeout, &s->streams));
  s->rung = flp_plan_get_rung(s->streams.plan);
  FLP_TRY(take_reference(s));
  for (int i = 0; i < SITUATIONS; i++) FLP_TRY(run_situation(s, &situations[i]));
  return flp_plan_check(s->streams.plan, s->load->device->stream); /* no row was bad */
}

flp_status check_concurrent_case(const check_case *c, const check_how *how, check_load *load, check_report *report) {
  state s = {.load = load, .report = report};
  check_problem problem;
  FLP_TRY(check_problem_create(c, &problem));
  flp_status status = run_case(&s, &problem, how);
  flp_failure held = flp_failure_hold(status);
  for (int o = 0; o < STREAM_OUTPUTS; o++) free(s.reference[o]);
  free(s.got);
  if (!load->timeout->hung) check_streams_clear(&s.streams);
  check_problem_clear(&problem);
  return flp_failure_restore(&held);
}

/* ---- cases ---- */

/* One wave of clusters, and many. */
#define SMALL .no_bias = 1, .n = 700, .vocab = 5000, .hidden = 512
#define WIDE .no_bias = 1, .n = 2048, .vocab = 32768, .hidden = 1024
#define FORWARD .entropy = FLP_ENTROPY_FORWARD
#define SCORES .forward_only = 1, FORWARD
enum { OF_HEAD = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT, OF_ADAPTER = FLP_GRAD_HIDDEN | FLP_GRAD_LORA_A | FLP_GRAD_LORA_B };

/* Both sizes; rows left out, which makes kernels read gathered rows; every way of chunking; and operands that the copy
 * engine cannot take. */
static const check_oddity cases[] = {
    {"concurrent", SMALL, SCORES},
    {"concurrent", SMALL, .grads = OF_HEAD},
    {"concurrent rows", SMALL, .grads = OF_HEAD, .rows = CHECK_ROWS_MASKED, .mode = FLP_MODE_RECOMPUTE_ROWS,
     .chunk_rows = 256},
    {"concurrent twice", SMALL, .grads = OF_HEAD, .rows = CHECK_ROWS_MASKED, .mode = FLP_MODE_RECOMPUTE_SPLIT,
     .chunk_rows = 512, .chunk_vocab = 2304},
    {"concurrent align", SMALL, .grads = OF_HEAD, .alignment = 8},
    {"concurrent", WIDE, SCORES},
    {"concurrent vocab", WIDE, .grads = OF_HEAD, .mode = FLP_MODE_RECOMPUTE_VOCAB, .chunk_vocab = 8448},
    {"concurrent saved", SMALL, FORWARD, .grads = OF_HEAD, .rows = CHECK_ROWS_MASKED, .mode = FLP_MODE_SAVE},
    {"concurrent saved", WIDE, .grads = OF_HEAD, .mode = FLP_MODE_SAVE},
    {"concurrent step", SMALL, .grads = OF_HEAD, .rows = CHECK_ROWS_MASKED, .mode = FLP_MODE_STREAM,
     .loss = "grpo+k3+entropy"},
    {"concurrent step", WIDE, FORWARD, .grads = OF_HEAD, .mode = FLP_MODE_STREAM, .loss = "reinforce"},
    {"concurrent direction", SMALL, FORWARD, .grads = FLP_GRAD_HIDDEN, .rows = CHECK_ROWS_MASKED,
     .mode = FLP_MODE_DIRECTION, .chunk_rows = 256, .chunk_vocab = 3072},
    {"concurrent direction", WIDE, FORWARD, .grads = FLP_GRAD_HIDDEN, .mode = FLP_MODE_DIRECTION},
    {"concurrent tail", SMALL, .grads = OF_HEAD, .rows = CHECK_ROWS_MASKED, .mode = FLP_MODE_TAIL},
    {"concurrent tail", WIDE, FORWARD, .grads = FLP_GRAD_HIDDEN, .mode = FLP_MODE_TAIL},
    {"concurrent tail", SMALL, FORWARD, .grads = OF_HEAD, .rows = CHECK_ROWS_MASKED, .mode = FLP_MODE_TAIL,
     .loss = "grpo+k3"},
    {"concurrent lists", SMALL, .grads = OF_HEAD, .rows = CHECK_ROWS_MASKED, .mode = FLP_MODE_LISTED},
    {"concurrent targets", SMALL, .grads = OF_HEAD, .rows = CHECK_ROWS_MASKED, .targets = 64},
    {"concurrent step", SMALL, FORWARD, .grads = OF_HEAD, .rows = CHECK_ROWS_MASKED, .mode = FLP_MODE_STREAM,
     .loss = "cross_entropy"},
    {"concurrent step", SMALL, FORWARD, .grads = OF_HEAD, .rows = CHECK_ROWS_MASKED, .mode = FLP_MODE_RECOMPUTE_VOCAB,
     .loss = "cross_entropy"},
    {"concurrent lora", SMALL, .grads = OF_ADAPTER, .rows = CHECK_ROWS_MASKED, .chunk_vocab = 2304,
     .adapter = CHECK_LORA_USUAL},
    {"concurrent lora", WIDE, FORWARD, .grads = OF_ADAPTER, .adapter = CHECK_LORA_LARGE},
    {"concurrent lora", WIDE, SCORES, .adapter = CHECK_LORA_LARGE},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static check_case case_at(int i, const check_part *of) {
  const check_oddity *o = &cases[i];
  check_case c = check_make_odd(o, of->dtype);
  c.padding = 0;
  if (o->alignment && of->dtype == FLP_DTYPE_FP32) c.spec.alignment = 4;
  c.spec.tail = of->tail;
  cli_spec_set_mode(&c.spec, o->mode);
  if (c.spec.tail > 0) c.fill = CHECK_FILL_SHARP; /* some rows by their lists, others recomputed */
  c.kept = 20;
  c.spec.targets = o->targets;
  if (c.spec.lora_rank && of->lora_rank) c.spec.lora_rank = of->lora_rank;
  c.sampled = o->vocab > 10000; /* only bits are compared */
  c.seed = 11 + (uint64_t)i;
  return c;
}

static int is_of_bf16(int i) {
  return flp_mode_keeps(cases[i].mode) || cases[i].mode == FLP_MODE_STREAM;
}

static int is_wanted(int i, const check_part *of) {
  if (of->lora_rank && !case_at(i, of).spec.lora_rank) return 0;
  return (of->dtype == FLP_DTYPE_BF16 || !is_of_bf16(i)) && (!of->mode || of->mode == cases[i].mode);
}

static void add_failure(check_report *report, const check_case *c, flp_rung rung) {
  check_report_add(report, c, rung, "run", (check_metric){.max_ulp = -1}, flp_error_detail());
}

void check_concurrent_cases(const check_part *of, check_list *list) {
  check_load_cases(list);
  for (int i = 0; i < CASES; i++) {
    check_case c = case_at(i, of);
    if (!is_wanted(i, of)) continue;
    if (!cases[i].loss || cli_loss_keep(cases[i].loss, &c.spec) == FLP_OK) check_list_add(list, c);
  }
}

/* Save, stream, direction and tail modes exist on some rungs. error: as check_concurrent_case, but for those without */
static flp_status run_one(int i, const check_part *of, const check_how *how, check_load *load, check_report *report) {
  check_case c = case_at(i, of);
  if (cases[i].loss) FLP_TRY(cli_loss_keep(cases[i].loss, &c.spec));
  flp_status status = check_concurrent_case(&c, how, load, report);
  if (is_of_bf16(i) && status == FLP_ERROR_UNAVAILABLE) return FLP_OK;
  if (status == FLP_OK || status == FLP_ERROR_UNAVAILABLE || check_how_ends(how, status)) return status;
  add_failure(report, &c, how->options.rung);
  return FLP_OK;
}

static flp_status run_cases(const check_part *of, const check_how *how, check_load *load, check_report *report) {
  FLP_TRY(check_load_create(how, load->device, load->timeout, load));
  for (int i = 0; i < CASES && !load->timeout->hung; i++)
    if (is_wanted(i, of)) FLP_TRY(run_one(i, of, how, load, report));
  return FLP_OK;
}

flp_status check_concurrent(const check_part *of, const check_how *how, check_report *report) {
  cli_device device;
  FLP_TRY(cli_device_open(how->options.device, &device));
  check_timeout timeout = {.driver = device.driver, .limit_s = how->limit_s > 0 ? how->limit_s : LIMIT_S};
  check_load load = {.device = &device, .timeout = &timeout};
  flp_status status = FLP_ERROR_UNAVAILABLE;
  if (check_timeout_is_offered(device.driver))
    status = run_cases(of, how, &load, report);
  else
    flp_fail(status, "the driver is too old to query streams and capture graphs: CUDA 11.4 or newer is needed");
  flp_failure held = flp_failure_hold(status);
  report->hung |= timeout.hung;
  if (!timeout.hung) {
    check_load_clear(&load);
    cli_device_close(&device);
  }
  return flp_failure_restore(&held);
}

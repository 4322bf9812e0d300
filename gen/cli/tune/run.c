/* run.c: one target: its kinds of kernels in turn, then the layout, then what was chosen into the cache. */
#include <math.h>
#include <string.h>

#include "gen/cli/tune/candidates.h"
#include "gen/cli/tune/outcome.h"
#include "gen/cli/tune/pass.h"
#include "gen/cli/tune/store.h"
#include "runtime/plan/plan.h"

const tune_search tune_searches[TUNE_STEPS] = {{FLP_KERNEL_FORWARD, 1},       {FLP_KERNEL_DZ, 1},
                                               {FLP_FORWARD(KEEP), 1},        {FLP_KERNEL_PRODUCTS, 1},
                                               {FLP_KERNEL_GRAD_HIDDEN, 0.5}, {FLP_KERNEL_GRAD_WEIGHT, 0.5},
                                               {(flp_kernel_kind)0, 0.3}};

/* Seconds that steps are expected to take: as long as those before them, at first as on an H200 with D = 4096. */
typedef struct tune_costs {
  double compile, verify[2]; /* of a candidate; verify: without gradients, with */
  double begin;              /* of a step, before its search */
} tune_costs;
static const tune_costs first_costs = {.compile = 0.2, .verify = {0.05, 0.35}, .begin = 0.3};
/* Bursts that a round of short calls takes, with what sizes them. */
static const double bursts_a_round = 1.4;

typedef struct tuner {
  const tune_args *args;
  const records_run *run;
  tune_session session;
  records_spec record;
  search_options options;
  tune_outcome *out;
  tune_costs costs;
  double start;
} tuner;

static const flp_spec *spec_of(const tuner *t) {
  return &t->session.target->spec;
}

static int needs(const tuner *t, int step) {
  flp_kernel_kind kind = tune_searches[step].kind;
  if (!kind) return spec_of(t)->grads != 0;
  if (kind == FLP_FORWARD(KEEP) && !tune_session_mode(&t->session)) return 0;
  return flp_kernel_arch_tunes(t->session.arch, spec_of(t), kind);
}

/* Seconds for a step that has begun; 0: no limit. Those after it have to begin, too, and to verify the default; what
 * was chosen is stored and planned as a step begins. */
static double share_of(const tuner *t, int step) {
  double left = t->options.budget_s - (cli_seconds_now() - t->start) - t->costs.begin, rest = tune_searches[step].share;
  for (int i = step + 1; i < TUNE_STEPS; i++)
    if (needs(t, i)) {
      rest += tune_searches[i].share;
      left -= t->costs.begin + t->costs.verify[1];
    }
  if (t->options.budget_s <= 0) return 0;
  return fmax(left * tune_searches[step].share / rest, 1e-3);
}

/* ---- candidates ---- */

static flp_status list_candidates(tuner *t, flp_kernel_kind kind, tune_list *out) {
  tune_session *s = &t->session;
  const flp_layout *layout = &s->layout[tune_session_gradients_second(s)];
  tune_work work = {.rows = t->args->rows, .chunk_vocab = layout->chunk_vocab};
  if (s->call == TUNE_STEP || layout->mode == FLP_MODE_DIRECTION) work.chunk_rows = layout->chunk_rows;
  if (kind)
    return tune_list_kernels(kind, s->target, s->arch, &work, &s->device->info, &t->args->included.of[kind], out);
  uint64_t budget;
  FLP_TRY(flp_options_in_force(&t->args->options, FLP_PASS_BACKWARD, NULL, NULL, &budget)); /* a step's too */
  return (s->call == TUNE_STEP ? tune_list_streams : tune_list_layouts)(&s->reference->planner, t->args->rows, budget,
                                                                        out);
}

/* Takes over what an earlier run has found out. */
static flp_status recall(tuner *t, tune_list *list) {
  for (int i = 1; t->args->resume && t->session.file && i < list->count; i++) {
    int found = 0;
    if (list->items[i].status != SEARCH_ILLEGAL)
      FLP_TRY(records_recall(t->session.file, t->run, &t->record, &list->items[i], &found));
  }
  return FLP_OK;
}

/* The whole list in one transaction, so that every candidate has a row whatever happens. */
static flp_status record_list(tuner *t, tune_list *list) {
  if (!t->session.file) return FLP_OK;
  FLP_TRY(records_begin(t->session.file));
  for (int i = 0; i < list->count; i++) FLP_TRY(records_put(t->session.file, &t->record, &list->items[i]));
  return records_commit(t->session.file);
}

/* ---- one search ---- */

static void keep_choice(tuner *t, const search_candidate *c) {
  tune_session *s = &t->session;
  if (c->kind) {
    s->chosen.of[c->kind] = c->is_default ? (flp_tunables){0} : c->tune;
    return;
  }
  if (c->is_default) return; /* the planner chooses it anyway */
  s->mode = c->mode;
  s->chunk_rows = c->chunk_rows;
  s->chunk_vocab = c->chunk_vocab;
}

static void keep_baseline(tuner *t) {
  tune_outcome *out = t->out;
  out->baseline_count = 0;
  for (int p = 0; p < GEMM_PRODUCTS; p++) {
    if (!(t->session.baseline_ms[p].median > 0)) continue;
    out->baseline[out->baseline_count].product = (gemm_product)p;
    out->baseline[out->baseline_count].ms = t->session.baseline_ms[p];
    out->baseline[out->baseline_count++].algorithm = t->session.baseline.product[p].chosen;
  }
}

static void expect_costs(const tuner *t, int index, search_options *options) {
  const tune_session *s = &t->session;
  options->budget_s = share_of(t, index);
  options->sample_s = fmax(s->call_s, 1e-3 * bursts_a_round * t->args->burst_ms);
  options->make_s = t->costs.verify[tune_call_has_gradients(s->call)];
  if (tune_searches[index].kind) options->make_s += t->costs.compile;
}

static void learn_costs(tuner *t, const tune_step *step) {
  int tried = step->result.tried;
  t->costs.verify[tune_call_has_gradients(t->session.call)] = step->spent.verifying / (tried + 1);
  if (step->spent.compiling > 0 && tried > 0) t->costs.compile = step->spent.compiling / tried;
}

static flp_status search_list(tuner *t, tune_list *list, int index, tune_step *step) {
  search_options options = t->options;
  search_device device = tune_session_device(&t->session);
  double start = cli_seconds_now();
  t->session.spent = (tune_spent){0};
  expect_costs(t, index, &options);
  options.seed = (uint64_t)t->args->seed * TUNE_STEPS + (uint64_t)index;
  FLP_TRY(recall(t, list));
  FLP_TRY(record_list(t, list));
  flp_status status = search_run(list->items, list->count, &options, &device, &step->result);
  /* The default is kept by a search, and one that fails may leave more. */
  for (int i = 0; i < list->count; i++)
    if (list->items[i].handle) device.release(device.context, &list->items[i]);
  FLP_TRY(status);
  step->untuned = list->items[0];
  step->chosen = list->items[step->result.chosen];
  step->candidates = list->count;
  for (int i = 0; i < list->count; i++) {
    step->legal += list->items[i].status != SEARCH_ILLEGAL;
    if (list->items[i].is_included) step->included = list->items[i];
  }
  step->seconds = cli_seconds_now() - start;
  step->spent = t->session.spent;
  learn_costs(t, step);
  t->out->stopped |= step->result.stopped;
  keep_choice(t, &step->chosen);
  keep_baseline(t);
  return record_list(t, list);
}

static flp_status run_step(tuner *t, int index, double from, double part) {
  tune_step *step = &t->out->step[t->out->steps];
  tune_list list = {0};
  *step = (tune_step){.kind = tune_searches[index].kind ? flp_kernel_kind_name(tune_searches[index].kind) : "layout"};
  t->session.progress_from = from;
  t->session.progress_part = part;
  double start = cli_seconds_now();
  FLP_TRY(tune_session_begin(&t->session, tune_searches[index].kind));
  step->beginning = cli_seconds_now() - start;
  if (t->out->steps > 0) t->costs.begin = step->beginning; /* the first holds the untuned kernels to the oracle */
  flp_status status = list_candidates(t, tune_searches[index].kind, &list);
  if (status == FLP_OK) status = search_list(t, &list, index, step);
  tune_list_clear(&list);
  if (status == FLP_OK) t->out->steps++;
  return status;
}

static flp_status run_steps(tuner *t) {
  double whole = 0, done = 0;
  for (int i = 0; i < TUNE_STEPS; i++)
    if (needs(t, i)) whole += tune_searches[i].share;
  for (int i = 0; i < TUNE_STEPS; i++) {
    if (!needs(t, i)) continue;
    if (tune_interrupted) {
      t->out->stopped = 1; /* between two searches, which do not know */
      return FLP_OK;
    }
    FLP_TRY(run_step(t, i, done / whole, tune_searches[i].share / whole));
    done += tune_searches[i].share;
  }
  return FLP_OK;
}

/* ---- storing ---- */

/* A plan as a user makes it, from where the kernels were put. */
static flp_status read_plan_id(const tuner *t, const char *directory, char id[17]) {
  flp_options options = t->args->options;
  flp_plan *plan = NULL;
  options.rung = FLP_RUNG_TUNED;
  options.cache_dir = directory;
  flp_status status = flp_plan_create(spec_of(t), &options, &plan);
  if (status == FLP_OK) status = flp_plan_get_id(plan, id);
  flp_plan_destroy(plan);
  return status;
}

static flp_status finish(tuner *t) {
  tune_outcome *out = t->out;
  FLP_TRY(tune_store(&t->session, t->args->out));
  FLP_TRY(read_plan_id(t, t->args->out, out->plan_id));
  if (!t->session.file) return FLP_OK;
  for (int i = 0; i < out->baseline_count; i++) {
    records_baseline baseline = {gemm_product_name(out->baseline[i].product), t->args->rows, out->baseline[i].ms,
                                 out->baseline[i].algorithm};
    FLP_TRY(records_put_baseline(t->session.file, &t->record, &baseline));
  }
  /* What was stopped is stored, and gone on with by --resume. */
  return out->stopped ? FLP_OK : records_finish_spec(t->session.file, &t->record, out->plan_id);
}

/* What the record calls finished counts while its kernels are where this run would put them. */
static flp_status find_done(tuner *t) {
  tune_outcome *out = t->out;
  char stored[17] = "";
  if (!t->session.file || !t->args->resume) return FLP_OK;
  FLP_TRY(records_find_finished(t->session.file, t->run, &t->record, out->plan_id, &out->done_before));
  if (!out->done_before) return FLP_OK;
  if (read_plan_id(t, t->args->out, stored) == FLP_OK && strcmp(stored, out->plan_id) == 0) return FLP_OK;
  out->done_before = 0;
  out->plan_id[0] = 0;
  return FLP_OK;
}

static flp_status run(tuner *t) {
  FLP_TRY(tune_session_open(&t->session));
  t->out->opening = cli_seconds_now() - t->start;
  t->out->mode = tune_session_mode(&t->session);
  t->out->arch = t->session.arch;
  FLP_TRY(run_steps(t));
  return t->out->steps ? finish(t) : FLP_OK;
}

flp_status tune_head_run(const tune_args *args, const tune_head *target, cli_device *device, const cublaslt *library,
                         records *file, const records_run *run_record, tune_compile_pool *compile_pool,
                         tune_outcome *out) {
  *out = (tune_outcome){.target = target};
  tuner t = {.args = args,
             .run = run_record,
             .options = search_options_of(args->effort),
             .out = out,
             .costs = first_costs,
             .start = cli_seconds_now()};
  t.session = (tune_session){
      .args = args, .target = target, .file = file, .device = device, .library = library, .compile_pool = compile_pool};
  t.session.record = &t.record;
  t.record = (records_spec){.spec = &target->spec,
                            .text = target->text,
                            .rows = args->rows,
                            .model = target->model[0] ? target->model : NULL};
  if (args->budget_s >= 0) t.options.budget_s = args->budget_s;
  FLP_TRY(find_done(&t));
  if (out->done_before) return FLP_OK;
  if (file) FLP_TRY(records_begin_spec(file, run_record, &t.record));
  cli_progress_start(&t.session.progress, target->model[0] ? target->model : "tune", args->quiet);
  flp_status status = run(&t);
  flp_failure held = flp_failure_hold(status);
  cli_progress_end(&t.session.progress);
  tune_session_close(&t.session);
  out->seconds = cli_seconds_now() - t.start;
  return flp_failure_restore(&held);
}

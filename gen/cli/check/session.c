/* session.c: the checks of `flpgen check` one after the other, on every rung.
 *
 * Invariant: the device's primary context is held from the first run to the last, since making it takes longer than
 * most runs; it is made anew after a failure of the driver, which may have been its end. */
#include "gen/cli/check/session.h"

#include <stdio.h>
#include <string.h>

#include "gen/cli/check/compare.h"
#include "gen/cli/shared/progress.h"
#include "gen/cli/shared/reasons.h"
#include "runtime/base/names.h"
#include "runtime/kernel/kernel.h"
#include "runtime/plan/plan.h"
#include "runtime/planner/planner.h"

enum { RUNGS = FLP_RUNG_EAGER + 1 };

typedef struct check_session {
  const check_args *args;
  check_report *report;
  check_how how;     /* args->how with what was precompiled */
  cli_device device; /* on the host where there is no GPU or none is needed */
  int offered[RUNGS];
} check_session;

/* A lower rung's kernels exist for every spec, a cache's only for some. */
static int may_lack_kernels(flp_rung rung) {
  return rung == FLP_RUNG_TUNED || rung == FLP_RUNG_HEURISTIC;
}

/* ---- the device ---- */

static void open_device(check_session *session) {
  if (session->how.options.rung != FLP_RUNG_EAGER) cli_device_open(session->how.options.device, &session->device);
}

/* After work that faulted a context fails whatever it is asked. */
static void renew_device(check_session *session, flp_status status) {
  if (status != FLP_ERROR_DRIVER) return;
  cli_device_close(&session->device);
  open_device(session);
}

static void describe_device(check_session *session) {
  const cli_device *device = &session->device;
  check_report *report = session->report;
  snprintf(report->device, sizeof report->device, "%s", device->driver ? device->info.name : "none");
  report->driver_version = device->driver ? device->driver->version : 0;
}

static void add_failure(check_session *session, const check_case *c, flp_rung rung, flp_status status) {
  check_metric failed = {.max_ulp = -1};
  check_report_add(session->report, c, rung, "run", failed, flp_error_detail());
  if (!session->report->hung) renew_device(session, status);
}

static flp_status fail_case(check_session *session, const check_case *c, flp_rung rung, flp_status status) {
  if (check_how_ends(&session->how, status))
    return flp_fail(status, "case %s of %s: %s", c->name, flp_dtype_name(c->spec.dtype), flp_error_detail());
  add_failure(session, c, rung, status);
  return FLP_OK;
}

/* ---- rungs ---- */

/* Which rungs this machine offers, by a small run on each; why not goes into the report. */
static void probe_rungs(check_session *session) {
  flp_rung wanted = session->how.options.rung;
  check_case c = check_case_default(FLP_DTYPE_BF16, 3, 64, 16);
  check_problem problem;
  char reason[RUNGS][CLI_REASON_BYTES] = {""};
  const char *reasons[RUNGS] = {NULL};
  if (check_problem_create(&c, &problem) != FLP_OK) return;
  for (int rung = FLP_RUNG_TUNED; rung < RUNGS; rung++) {
    if (wanted != FLP_RUNG_AUTO && wanted != (flp_rung)rung) continue;
    check_how how = session->how;
    how.options.rung = (flp_rung)rung;
    how.options.budget_bytes = 0;
    call_result result = {0};
    flp_status status = check_run(&problem, &how, &result);
    /* A rung that answers, even wrongly, is offered: the cases will show what is wrong with it. */
    session->offered[rung] = status != FLP_ERROR_UNAVAILABLE || may_lack_kernels((flp_rung)rung);
    if (!session->offered[rung]) reasons[rung] = cli_reason_text(flp_error_detail(), reason[rung]);
    call_result_clear(&result);
    renew_device(session, status);
  }
  check_problem_clear(&problem);
  cli_reasons_join(reasons, "; ", session->report->offered, sizeof session->report->offered);
}

/* What forward keeps exists on some rungs; generic kernels have no losses over several targets, and of the parts of
 * forward one at a time. */
static int is_lacking(const check_case *c, flp_rung rung, flp_status status) {
  unsigned parts = flp_kernel_spec_parts(&c->spec) | (flp_planner_has_top(&c->spec) ? FLP_PART_TOP : 0u) |
                   (flp_kernel_spec_emits(&c->spec) ? FLP_PART_EMIT : 0u) |
                   (flp_kernel_spec_has_exponentials(&c->spec) ? FLP_PART_KEEP : 0u);
  int is_special = flp_kernel_spec_has_targets_loss(&c->spec) || (parts & (parts - 1)) != 0;
  int keeps = flp_mode_keeps(c->mode) || c->spec.keep;
  int lacks = may_lack_kernels(rung) || keeps || (rung == FLP_RUNG_GENERIC && is_special);
  return status == FLP_ERROR_UNAVAILABLE && lacks;
}

/* ---- cases ---- */

static flp_status check_case_on(check_session *session, check_problem *problem, const check_truth *truth,
                                flp_rung rung) {
  const check_case *c = &problem->c;
  check_how how = session->how;
  how.options.rung = rung;
  call_result result = {0}, plain = {0};
  int has_plain = flp_mode_keeps(c->mode) || problem->loss || flp_planner_has_row_values(&c->spec) ||
                  c->spec.raw_scores || c->lora != CHECK_LORA_ON;
  flp_status status = check_run(problem, &how, &result);
  int is_left_out = is_lacking(c, rung, status);
  if (status == FLP_OK) check_problem_follow(problem, &result);
  if (status == FLP_OK && has_plain) {
    status = check_run_plain(problem, &how, &plain);
    /* of another spec, which the cache need not have */
    is_left_out = status == FLP_ERROR_UNAVAILABLE && may_lack_kernels(rung);
  }
  if (status == FLP_OK) {
    check_problem_follow_scores(problem, truth->rows, truth->row_truth, truth->row_count, &result, &plain);
    status = check_compare(problem, truth, &result, has_plain ? &plain : NULL, rung, session->report);
  } else {
    status = is_left_out ? FLP_OK : fail_case(session, c, rung, status);
  }
  call_result_clear(&result);
  call_result_clear(&plain);
  return status;
}

/* The reference of a large shape would take an hour on the CPU; it is run there only if asked for by name. */
static int is_worth(const check_session *session, const check_case *c, int rung) {
  double size = (double)c->n * (double)c->spec.vocab * (double)c->spec.hidden;
  return session->offered[rung] &&
         (rung != FLP_RUNG_EAGER || session->how.options.rung == FLP_RUNG_EAGER || size < 1e12);
}

static flp_status check_one(check_session *session, const check_case *c) {
  check_problem problem;
  check_truth truth;
  FLP_TRY(check_problem_create(c, &problem));
  flp_status status = check_truth_create(&problem, NULL, &truth);
  for (int rung = FLP_RUNG_TUNED; rung < RUNGS && status == FLP_OK; rung++)
    if (is_worth(session, c, rung)) status = check_case_on(session, &problem, &truth, (flp_rung)rung);
  check_truth_clear(&truth);
  check_problem_clear(&problem);
  return status;
}

/* A set's cases are of every dtype and mode, or of the one that was named. */
static int is_wanted(const check_args *args, flp_dtype dtype) {
  return !cli_spec_args_given(&args->spec, FLP_FIELD_dtype) || args->spec.spec.dtype == dtype;
}

static int is_wanted_mode(const check_args *args, flp_mode mode) {
  return !args->given.mode || args->given.mode == mode;
}

/* Beside --targets, --lora-rank, --topk, --rank, --statistics and --raw-scores those with these alone. */
static int is_wanted_case(const check_args *args, const check_case *c) {
  const flp_spec *given = &args->given.spec, *spec = &c->spec;
  return is_wanted(args, spec->dtype) && is_wanted_mode(args, c->mode) && (given->targets <= 1 || spec->targets > 1) &&
         (!given->lora_rank || spec->lora_rank) && (!flp_planner_has_top(given) || flp_planner_has_top(spec)) &&
         (!given->statistics || spec->statistics) && (!given->raw_scores || spec->raw_scores);
}

static void keep_wanted(const check_args *args, check_list *list) {
  int count = 0;
  for (int i = 0; i < list->count; i++)
    if (is_wanted_case(args, &list->cases[i])) list->cases[count++] = list->cases[i];
  list->count = count;
}

/* ---- checks that bring their own cases ---- */

/* In the order in which they run: after a deadlock nothing else can. */
typedef enum part_kind {
  PART_BITS,
  PART_BUDGETS,
  PART_SELECT,
  PART_SCALE,
  PART_DIVERGE,
  PART_LOSS,
  PART_GIVEN,
  PART_CONCURRENT,
  PART_KINDS
} part_kind;

enum { PARTS_MAX = 35 };

static const struct {
  const char *name; /* in reports */
  void (*list)(const check_part *of, check_list *list);
  flp_status (*run)(const check_part *of, const check_how *how, check_report *report);
} kinds[PART_KINDS] = {[PART_BITS] = {"bits", check_bits_cases, check_bits},
                       [PART_BUDGETS] = {"budgets", check_mode_cases, check_mode_bits},
                       [PART_SELECT] = {"select", check_select_cases, check_select},
                       [PART_SCALE] = {"scale", check_scale_cases, check_scale},
                       [PART_DIVERGE] = {"diverge", check_diverge_cases, check_diverge},
                       [PART_LOSS] = {"loss", check_loss_cases, check_loss},
                       [PART_GIVEN] = {"given", check_given_cases, check_given},
                       [PART_CONCURRENT] = {"concurrent", check_concurrent_cases, check_concurrent}};

typedef struct part {
  part_kind kind;
  check_part of;
} part;

static const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32, FLP_DTYPE_FP64};
static const flp_mode modes[] = {FLP_MODE_SAVE, FLP_MODE_STREAM, FLP_MODE_DIRECTION}; /* of bf16 */

typedef struct part_list {
  part items[PARTS_MAX];
  int count;
} part_list;

/* Of the first dtypes, so many, those that are wanted; nothing if another mode is. of: without its dtype */
static void add_parts(const check_args *args, part_list *list, part_kind kind, check_part of, int dtype_count) {
  for (int d = 0; d < dtype_count && is_wanted_mode(args, of.mode); d++) {
    of.dtype = dtypes[d];
    if (is_wanted(args, of.dtype)) list->items[list->count++] = (part){kind, of};
  }
}

/* Beside --targets and --lora-rank what is of these alone; of best columns nothing, of raw scores their gradient. */
static part_list list_parts(const check_args *args) {
  const flp_spec *given = &args->given.spec;
  const check_part any = {.mode = (flp_mode)0}, listed = {.mode = FLP_MODE_LISTED};
  const check_part targets = {.targets = given->targets > 1 ? given->targets : CHECK_TARGETS_USUAL};
  const check_part adapter = {.lora_rank = given->lora_rank ? given->lora_rank : CHECK_LORA_USUAL};
  const check_part tail = {.mode = FLP_MODE_TAIL, .tail = given->tail};
  const check_part concurrent = {
      .dtype = given->dtype, .mode = args->given.mode, .tail = given->tail, .lora_rank = given->lora_rank};
  int all = args->set == CHECK_SET_ALL, quick = args->set == CHECK_SET_QUICK, each = all ? 3 : quick; /* of dtypes */
  int has_dtype = cli_spec_args_given(&args->spec, FLP_FIELD_dtype);
  part_list list = {.count = 0};
  int is_plain = given->targets <= 1 && !given->lora_rank;
  if (is_plain) add_parts(args, &list, PART_GIVEN, any, all || given->raw_scores ? 3 : 0);
  if (given->targets <= 1 && (flp_planner_has_top(given) || given->raw_scores)) return list;
  if (!given->lora_rank) add_parts(args, &list, PART_BITS, targets, each);
  if (given->targets > 1) return list;
  add_parts(args, &list, PART_BITS, adapter, each);
  if (args->set == CHECK_SET_CONCURRENT) list.items[list.count++] = (part){PART_CONCURRENT, concurrent};
  if (given->lora_rank) return list;
  add_parts(args, &list, PART_BITS, any, quick && has_dtype ? 3 : each);
  add_parts(args, &list, PART_BITS, listed, each);
  for (int m = 0; m < 3; m++) add_parts(args, &list, PART_BUDGETS, (check_part){.mode = modes[m]}, all || quick);
  add_parts(args, &list, PART_BUDGETS, tail, each);
  add_parts(args, &list, PART_SELECT, any, all || args->set == CHECK_SET_SELECT ? 4 : 0);
  add_parts(args, &list, PART_SCALE, any, all || args->set == CHECK_SET_SCALE ? 3 : 0);
  add_parts(args, &list, PART_DIVERGE, any, all || args->set == CHECK_SET_DIVERGE ? 3 : 0);
  add_parts(args, &list, PART_LOSS, any, args->set == CHECK_SET_LOSS ? 3 : all);
  if (all) list.items[list.count++] = (part){PART_CONCURRENT, concurrent};
  return list;
}

/* Concurrent work is checked on rungs that make kernels; a cache holds the same ones, and counts where it is asked for
 * by name. A loss over targets has no kernel that runs any. */
static int is_run_on(const check_session *session, part_kind kind, int rung) {
  if (!session->offered[rung] || session->report->hung) return 0;
  if (kind == PART_DIVERGE && rung == FLP_RUNG_GENERIC) return 0;
  if (kind != PART_CONCURRENT || rung == FLP_RUNG_JIT || rung == FLP_RUNG_GENERIC) return 1;
  return rung != FLP_RUNG_EAGER && session->how.options.rung == (flp_rung)rung;
}

static flp_status run_part(check_session *session, const part *p, flp_rung rung) {
  check_how how = session->how;
  how.options.rung = rung;
  how.options.budget_bytes = 0;
  if (p->kind == PART_CONCURRENT) check_precompile_finish(how.precompile); /* nothing else runs beside it */
  flp_status status = kinds[p->kind].run(&p->of, &how, session->report);
  check_case c = check_case_default(p->of.dtype, 0, 0, 0);
  c.name = kinds[p->kind].name;
  c.mode = p->of.mode;
  return status == FLP_OK || is_lacking(&c, rung, status) ? FLP_OK : fail_case(session, &c, rung, status);
}

static flp_status run_parts(check_session *session, const part_list *list) {
  for (int kind = 0; kind < PART_KINDS; kind++)
    for (int rung = FLP_RUNG_TUNED; rung < RUNGS; rung++)
      for (int i = 0; i < list->count; i++)
        if ((int)list->items[i].kind == kind && is_run_on(session, list->items[i].kind, rung))
          FLP_TRY(run_part(session, &list->items[i], (flp_rung)rung));
  return FLP_OK;
}

/* ---- the whole ---- */

/* cases: of the list; those behind them are the parts' own */
static flp_status check_listed(check_session *session, const check_list *list, int cases, const part_list *parts) {
  const check_args *args = session->args;
  cli_progress progress;
  check_precompile_wish wish = {.device = &session->device,
                                .jobs = args->jobs,
                                .jit = session->offered[FLP_RUNG_JIT],
                                .generic = session->offered[FLP_RUNG_GENERIC],
                                .tune = args->how.options.tune,
                                .arch = args->how.options.arch,
                                .tuned_arch = session->how.tuned_arch,
                                .list = list};
  FLP_TRY(check_precompile_start(&wish, &session->how.precompile));
  flp_status status = FLP_OK;
  cli_progress_start(&progress, "check", args->quiet);
  for (int i = 0; i < cases && status == FLP_OK; i++) {
    cli_progress_update(&progress, i, cases);
    status = check_one(session, &list->cases[i]);
  }
  if (status == FLP_OK) status = run_parts(session, parts);
  cli_progress_end(&progress);
  check_precompile_stop(session->how.precompile);
  return status;
}

static flp_status check_all(check_session *session) {
  const check_args *args = session->args;
  const part_list parts = list_parts(args);
  check_list list;
  FLP_TRY(check_list_create(args->set, &args->given, &list));
  if (args->set != CHECK_SET_GIVEN) keep_wanted(args, &list);
  int cases = list.count;
  for (int i = 0; i < parts.count; i++) kinds[parts.items[i].kind].list(&parts.items[i].of, &list);
  flp_status status = list.status;
  if (status == FLP_OK) status = check_listed(session, &list, cases, &parts);
  check_list_clear(&list);
  return status;
}

static flp_status check_offered(check_session *session) {
  const check_report *report = session->report;
  flp_rung rung = session->how.options.rung;
  describe_device(session);
  probe_rungs(session);
  if (rung != FLP_RUNG_AUTO && !session->offered[rung])
    return flp_fail(FLP_ERROR_UNAVAILABLE, "--rung: %s is not offered here; %s", flp_rung_name(rung), report->offered);
  if (session->args->set == CHECK_SET_CONCURRENT && report->driver_version == 0)
    return flp_fail(FLP_ERROR_UNAVAILABLE, "--concurrent needs a GPU; %s", report->offered);
  return check_all(session);
}

/* What --tune is for: the architecture that plans of what was asked for take, or the first one that they would. */
static const char *tuned_arch(const check_session *session) {
  const char *arches[FLP_LADDER_ARCHES_MAX];
  const cli_device *device = &session->device;
  const flp_options *options = &session->how.options;
  const flp_spec *spec = &session->args->given.spec;
  flp_tuning tuning;
  if (!options->tune || !device->driver || flp_tuning_parse("--tune", options->tune, &tuning) != FLP_OK) return NULL;
  int clusters = flp_driver_has_clusters(device->driver), driver = device->driver->version;
  if (flp_ladder_arches_here(&device->info, driver, spec, options->arch, clusters, &tuning, arches)) return arches[0];
  return flp_ladder_arches_here(&device->info, driver, spec, options->arch, clusters, NULL, arches) ? arches[0] : NULL;
}

flp_status check_session_run(const check_args *args, check_report *report) {
  check_session session = {.args = args, .report = report, .how = args->how};
  open_device(&session);
  session.how.tuned_arch = tuned_arch(&session);
  flp_status status = check_offered(&session);
  if (!report->hung) cli_device_close(&session.device);
  return status;
}

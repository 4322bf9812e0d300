/* check.c: `flpgen check`, every rung that this machine offers against the fp64 oracle. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../../runtime/validate.h"
#include "check.h"
#include "progress.h"
#include "record.h"
#include "spec_args.h"
#include "verbs.h"

enum {
  KEY_ROWS = CLI_KEY_FIRST, /* from here to KEY_SEED: parse_value */
  KEY_TEMPERATURE,
  KEY_SCALE,
  KEY_RUNG,
  KEY_DEVICE,
  KEY_THREADS,
  KEY_BUDGET,
  KEY_LIMIT,
  KEY_MODE,
  KEY_SEED,
  KEY_ALL,
  KEY_LARGE,
  KEY_CONCURRENT,
  KEY_QUICK,
  KEY_JSON
};

typedef struct check_args {
  cli_spec_args spec;
  check_case given; /* rows, temperature, scale, seed */
  check_how how;    /* rung: AUTO for all */
  check_set set;
  int has_set, verbose, quiet;
  const char *json; /* file, or "-" */
} check_args;

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "What is checked:", 2},
    {"quick", KEY_QUICK, NULL, 0, "one shape of each dtype, and every adversarial case in bf16 (default)", 2},
    {"all", KEY_ALL, NULL, 0, "every dtype, entropy and gradient mask over ragged shapes, and every adversarial case",
     2},
    {"concurrent", KEY_CONCURRENT, NULL, 0,
     "bits on several streams at once, beside other work and in CUDA graphs; a part of --all where there is a GPU", 2},
    {"large", KEY_LARGE, NULL, 0, "N=8192, V=151936, D=4096 with gradients, on sampled rows and columns", 2},
    {"mode", KEY_MODE, "NAME", 0,
     CLI_MODES_HELP "; beside a set only its cases of this mode; S keeps exponentials, P needs --loss with a shape", 2},
    {"rows", KEY_ROWS, "N", 0, "rows, with --vocab and --hidden; default 67", 2},
    {"temperature", KEY_TEMPERATURE, "T", 0, "with --vocab; per row, from 1/T to T", 2},
    {"scale", KEY_SCALE, "A", 0, "factor of the scores, with --vocab", 2},
    {"seed", KEY_SEED, "S", 0, "of the random data; default 1", 2},
    {NULL, 0, NULL, 0, "Execution:", 3},
    {"rung", KEY_RUNG, "NAME", 0, "only this one: tuned, heuristic, jit, generic or eager; default all", 3},
    {"device", KEY_DEVICE, "N", 0, "CUDA ordinal, default 0", 3},
    {"threads", KEY_THREADS, "N", 0, "CPU threads of the eager rung; default all", 3},
    {"budget", KEY_BUDGET, "BYTES", 0, "workspace of each pass, with or without a suffix K, M, G", 3},
    {"limit", KEY_LIMIT, "SECONDS", 0, "of concurrent work: what takes longer is a deadlock; default 30", 3},
    {"verbose", 'v', NULL, 0, "print every finding, not only those that failed", 3},
    {"quiet", 'q', NULL, 0, "no progress", 3},
    {"json", KEY_JSON, "FILE", OPTION_ARG_OPTIONAL, "write the record here; alone or '-': to standard output", 3},
    {0}};

static flp_status parse_value(int key, const char *text, check_args *args) {
  int64_t value = 0;
  switch (key) {
    case KEY_ROWS:
      return cli_parse_integer("--rows", text, 0, INT32_MAX / 2, &args->given.n);
    case KEY_TEMPERATURE:
      return cli_parse_number("--temperature", text, &args->given.temperature);
    case KEY_SCALE:
      return cli_parse_number("--scale", text, &args->given.scale);
    case KEY_RUNG:
      return cli_parse_rung("--rung", text, &args->how.rung);
    case KEY_BUDGET:
      return cli_parse_bytes("--budget", text, &args->how.budget_bytes);
    case KEY_DEVICE:
      return cli_parse_device(text, &args->how.ordinal);
    case KEY_THREADS:
      FLP_TRY(cli_parse_integer("--threads", text, 1, 4096, &value));
      args->how.threads = (int)value;
      return FLP_OK;
    case KEY_MODE:
      return cli_parse_mode(text, &args->given.mode);
    case KEY_LIMIT:
      FLP_TRY(cli_parse_number("--limit", text, &args->how.limit_s));
      if (args->how.limit_s > 0) return FLP_OK;
      return flp_fail(FLP_ERROR_ARGUMENT, "--limit: '%s' is not accepted; a number > 0 is", text);
    default:
      FLP_TRY(cli_parse_integer("--seed", text, 0, INT64_MAX, &value));
      args->given.seed = (uint64_t)value;
      return FLP_OK;
  }
}

static void set_set(check_args *args, check_set set, struct argp_state *state) {
  if (args->has_set && args->set != set)
    argp_error(state, "one of --quick, --all, --large and --concurrent is accepted, not two");
  args->set = set;
  args->has_set = 1;
}

static error_t parse(int key, char *text, struct argp_state *state) {
  check_args *args = state->input;
  if (key >= KEY_ROWS && key <= KEY_SEED) {
    cli_argp_check(state, parse_value(key, text, args));
    return 0;
  }
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = &args->spec;
      return 0;
    case 'v':
      args->verbose = 1;
      return 0;
    case 'q':
      args->quiet = 1;
      return 0;
    case KEY_QUICK:
      set_set(args, CHECK_SET_QUICK, state);
      return 0;
    case KEY_ALL:
      set_set(args, CHECK_SET_ALL, state);
      return 0;
    case KEY_LARGE:
      set_set(args, CHECK_SET_LARGE, state);
      return 0;
    case KEY_CONCURRENT:
      set_set(args, CHECK_SET_CONCURRENT, state);
      return 0;
    case KEY_JSON:
      args->json = text ? text : "-";
      return 0;
    case ARGP_KEY_ARG:
      cli_argp_json_file(state, "check", text, &args->json);
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

/* ---- running ---- */

enum { RUNGS = FLP_RUNG_EAGER + 1 };

typedef struct check_session {
  check_args *args;
  check_report *report;
  int offered[RUNGS];
} check_session;

/* A lower rung's kernels exist for every spec, a cache's only for some. */
static int may_lack_kernels(flp_rung rung) {
  return rung == FLP_RUNG_TUNED || rung == FLP_RUNG_HEURISTIC;
}

static void add_failure(check_session *session, const check_case *c, flp_rung rung) {
  check_metric failed = {.max_ulp = -1};
  check_report_add(session->report, c, rung, "run", failed, flp_error_detail());
}

static void note_missing(check_report *report, flp_rung rung) {
  size_t used = strlen(report->offered);
  snprintf(report->offered + used, sizeof report->offered - used, "%s%s (%.90s)", used ? "; " : "", flp_rung_name(rung),
           flp_error_detail());
}

/* Which rungs this machine offers, by a small run on each; why not goes into the report. */
static void probe_rungs(check_session *session) {
  check_args *args = session->args;
  check_case c = check_case_default(FLP_DTYPE_BF16, 3, 64, 16);
  check_problem problem;
  if (check_problem_create(&c, &problem) != FLP_OK) return;
  for (int rung = FLP_RUNG_TUNED; rung < RUNGS; rung++) {
    if (args->how.rung != FLP_RUNG_AUTO && args->how.rung != (flp_rung)rung) continue;
    check_how how = args->how;
    how.rung = (flp_rung)rung;
    how.budget_bytes = 0;
    check_result result = {0};
    flp_status status = check_run(&problem, &how, &result);
    /* A rung that answers, even wrongly, is offered: the cases will say what is wrong with it. */
    session->offered[rung] = status != FLP_ERROR_UNAVAILABLE || may_lack_kernels((flp_rung)rung);
    if (status == FLP_ERROR_UNAVAILABLE && !session->offered[rung]) note_missing(session->report, (flp_rung)rung);
    check_result_clear(&result);
  }
  check_problem_clear(&problem);
}

/* Mode S exists on some rungs. */
static int is_lacking(const check_case *c, flp_rung rung, flp_status status) {
  return status == FLP_ERROR_UNAVAILABLE && (may_lack_kernels(rung) || c->mode == FLP_MODE_S);
}

static flp_status check_case_on(check_session *session, check_problem *problem, const check_truth *truth,
                                flp_rung rung) {
  const check_case *c = &problem->c;
  check_how how = session->args->how;
  how.rung = rung;
  check_result result = {0}, plain = {0};
  int has_plain = c->mode == FLP_MODE_S || problem->loss;
  flp_status status = check_run(problem, &how, &result);
  if (is_lacking(c, rung, status)) return FLP_OK;
  if (status == FLP_OK) check_problem_follow(problem, &result);
  if (status == FLP_OK && has_plain) status = check_run_plain(problem, &how, &plain);
  if (status != FLP_OK) {
    check_result_clear(&result);
    add_failure(session, c, rung);
    return status == FLP_ERROR_MEMORY ? status : FLP_OK;
  }
  status = check_compare(problem, truth, &result, has_plain ? &plain : NULL, rung, session->report);
  check_result_clear(&result);
  check_result_clear(&plain);
  return status;
}

/* The reference of a large shape would take an hour on the CPU; it is run there only if asked for by name. */
static int is_worth(const check_session *session, const check_case *c, int rung) {
  double size = (double)c->n * (double)c->spec.vocab * (double)c->spec.hidden;
  return session->offered[rung] && (rung != FLP_RUNG_EAGER || session->args->how.rung == FLP_RUNG_EAGER || size < 1e12);
}

static flp_status check_one(check_session *session, const check_case *c) {
  check_problem problem;
  check_truth truth;
  FLP_TRY(check_problem_create(c, &problem));
  flp_status status = check_truth_create(&problem, &truth);
  for (int rung = FLP_RUNG_TUNED; rung < RUNGS && status == FLP_OK; rung++)
    if (is_worth(session, c, rung)) status = check_case_on(session, &problem, &truth, (flp_rung)rung);
  check_truth_clear(&truth);
  check_problem_clear(&problem);
  return status;
}

/* A set's cases are of every dtype and mode, or of the one that was named. */
static int is_wanted(const check_args *args, flp_dtype dtype) {
  return args->set == CHECK_SET_GIVEN || !args->spec.has_dtype || args->spec.spec.dtype == dtype;
}

static int is_wanted_mode(const check_args *args, flp_mode mode) {
  return args->set == CHECK_SET_GIVEN || !args->given.mode || args->given.mode == mode;
}

static void check_all_bits(check_session *session) {
  static const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32};
  const check_args *args = session->args;
  int count = args->set == CHECK_SET_ALL || args->spec.has_dtype ? 3 : 1;
  for (int rung = FLP_RUNG_TUNED; rung < RUNGS; rung++)
    for (int d = 0; session->offered[rung] && d < count; d++) {
      if (!is_wanted(args, dtypes[d])) continue;
      check_how how = session->args->how;
      how.rung = (flp_rung)rung;
      how.budget_bytes = 0;
      flp_status status = check_bits(dtypes[d], &how, session->report);
      check_case c = check_case_default(dtypes[d], 0, 0, 0);
      c.name = "bits";
      if (status != FLP_OK && !(status == FLP_ERROR_UNAVAILABLE && may_lack_kernels((flp_rung)rung)))
        add_failure(session, &c, (flp_rung)rung);
    }
}

static void check_all_modes(check_session *session) {
  static const flp_mode modes[] = {FLP_MODE_S, FLP_MODE_P};
  for (int rung = FLP_RUNG_TUNED; rung < RUNGS; rung++)
    for (int m = 0; session->offered[rung] && m < 2; m++) {
      if (!is_wanted(session->args, FLP_DTYPE_BF16) || !is_wanted_mode(session->args, modes[m])) continue;
      check_how how = session->args->how;
      how.rung = (flp_rung)rung;
      how.budget_bytes = 0;
      flp_status status = check_mode_bits(modes[m], &how, session->report);
      check_case c = check_case_default(FLP_DTYPE_BF16, 0, 0, 0);
      c.name = "budgets";
      c.mode = modes[m];
      if (status != FLP_OK && !is_lacking(&c, (flp_rung)rung, status)) add_failure(session, &c, (flp_rung)rung);
    }
}

/* Scores that exist already: in every dtype, or the one that was named. */
static void check_all_select(check_session *session) {
  static const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32, FLP_DTYPE_FP64};
  for (int rung = FLP_RUNG_TUNED; rung < RUNGS; rung++)
    for (int d = 0; session->offered[rung] && d < 4; d++) {
      if (!is_wanted(session->args, dtypes[d])) continue;
      check_how how = session->args->how;
      how.rung = (flp_rung)rung;
      flp_status status = check_select(dtypes[d], &how, session->report);
      check_case c = check_case_default(dtypes[d], 0, 0, 0);
      c.name = "select";
      if (status != FLP_OK && !(status == FLP_ERROR_UNAVAILABLE && may_lack_kernels((flp_rung)rung)))
        add_failure(session, &c, (flp_rung)rung);
    }
}

/* Rungs that make kernels; a cache holds the same ones, and counts where it is asked for by name. */
static int is_concurrent_rung(const check_session *session, int rung) {
  if (rung == FLP_RUNG_EAGER || !session->offered[rung]) return 0;
  return rung == FLP_RUNG_JIT || rung == FLP_RUNG_GENERIC || session->args->how.rung == (flp_rung)rung;
}

static void check_all_concurrent(check_session *session) {
  for (int rung = FLP_RUNG_TUNED; rung < RUNGS && !session->report->hung; rung++) {
    if (!is_concurrent_rung(session, rung)) continue;
    check_how how = session->args->how;
    how.rung = (flp_rung)rung;
    flp_status status = check_concurrent(session->args->given.spec.dtype, &how, session->report);
    check_case c = check_case_default(session->args->given.spec.dtype, 0, 0, 0);
    c.name = "concurrent";
    if (status != FLP_OK && !(status == FLP_ERROR_UNAVAILABLE && may_lack_kernels((flp_rung)rung)))
      add_failure(session, &c, (flp_rung)rung);
  }
}

static void check_what_has_no_cases(check_session *session) {
  const check_args *args = session->args;
  int all = args->set == CHECK_SET_ALL, any_mode = args->given.mode == 0;
  if (all || args->set == CHECK_SET_QUICK) {
    if (any_mode) check_all_bits(session);
    check_all_modes(session);
  }
  if ((all && any_mode) || args->set == CHECK_SET_SELECT) check_all_select(session);
  if ((all && any_mode) || args->set == CHECK_SET_CONCURRENT)
    check_all_concurrent(session); /* last: after a deadlock nothing else can run */
}

static flp_status check_cases(check_session *session) {
  check_list list;
  cli_progress progress;
  FLP_TRY(check_list_create(session->args->set, &session->args->given, &list));
  flp_status status = FLP_OK;
  cli_progress_start(&progress, "check", session->args->quiet);
  for (int i = 0; i < list.count && status == FLP_OK; i++) {
    cli_progress_update(&progress, i, list.count);
    const check_case *c = &list.cases[i];
    if (is_wanted(session->args, c->spec.dtype) && is_wanted_mode(session->args, c->mode))
      status = check_one(session, c);
  }
  if (status == FLP_OK) check_what_has_no_cases(session);
  cli_progress_end(&progress);
  check_list_clear(&list);
  return status;
}

static void describe_device(const check_args *args, check_report *report) {
  cli_device device;
  snprintf(report->device, sizeof report->device, "none");
  if (args->how.rung == FLP_RUNG_EAGER || cli_device_open(args->how.ordinal, &device) != FLP_OK) return;
  snprintf(report->device, sizeof report->device, "%s", device.info.name);
  report->driver_version = device.driver ? device.driver->version : 0;
  cli_device_close(&device);
}

/* A spec that keeps exponentials is checked in mode S, one with a loss as a step. error: ARGUMENT */
static flp_status resolve_mode(check_args *args) {
  const char *loss = args->spec.loss.name;
  FLP_TRY(cli_spec_args_mode(&args->spec, &args->given.mode));
  if (loss && args->spec.spec.keep)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--loss: '%s' is not accepted in mode S, whose backward pass takes any gradient", loss);
  if (args->spec.spec.keep) args->given.mode = FLP_MODE_S;
  if (loss) args->given.loss_parameters = args->spec.loss.set_count ? args->spec.loss.parameters : NULL;
  return FLP_OK;
}

/* Takes the shape that was given, if any. error: ARGUMENT */
static flp_status resolve(check_args *args) {
  const flp_spec *spec = &args->spec.spec;
  int has_shape = spec->vocab > 0 || spec->hidden > 0 || args->spec.model;
  if (spec->op == FLP_OP_SELECT) {
    if (has_shape || args->has_set)
      return flp_fail(FLP_ERROR_ARGUMENT, "--op select is not accepted beside a shape or a set; it has its own cases");
    args->set = CHECK_SET_SELECT;
  }
  if (has_shape && args->has_set)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--vocab, --hidden and --model are not accepted beside --quick, --all, --large, --concurrent");
  if (args->set == CHECK_SET_CONCURRENT && args->how.rung == FLP_RUNG_EAGER)
    return flp_fail(FLP_ERROR_ARGUMENT, "--rung: 'eager' is not accepted with --concurrent, it runs on the CPU");
  args->given.spec = *spec;
  if (!has_shape) return FLP_OK;
  args->set = CHECK_SET_GIVEN;
  FLP_TRY(resolve_mode(args));
  FLP_TRY(cli_spec_args_resolve(&args->spec));
  args->given.spec = args->spec.spec;
  if (!(args->given.temperature > 0) || args->given.temperature > 1e30)
    return flp_fail(FLP_ERROR_ARGUMENT, "--temperature: %g is not accepted; a number > 0 and at most 1e30 is",
                    args->given.temperature);
  if (args->spec.model && !(args->given.scale < 1) && !(args->given.scale > 1)) args->given.scale = args->spec.scale;
  return FLP_OK;
}

static flp_status run_check(check_args *args, const char *command, check_report *report) {
  check_session session = {.args = args, .report = report};
  FLP_TRY(resolve(args));
  flp_options how = {.rung = args->how.rung};
  cli_spec_args_tune(&args->spec, &how);
  args->how.rung = how.rung;
  args->how.tune = how.tune;
  describe_device(args, report);
  probe_rungs(&session);
  if (args->how.rung != FLP_RUNG_AUTO && !session.offered[args->how.rung])
    return flp_fail(FLP_ERROR_UNAVAILABLE, "--rung: %s is not offered here: %s", flp_rung_name(args->how.rung),
                    report->offered);
  if (args->set == CHECK_SET_CONCURRENT && report->driver_version == 0)
    return flp_fail(FLP_ERROR_UNAVAILABLE, "--concurrent needs a GPU; not offered here: %s", report->offered);
  FLP_TRY(check_cases(&session));
  if (report->incomplete) return flp_fail(FLP_ERROR_MEMORY, "out of memory for the findings");
  if (report->count == 0)
    return flp_fail(FLP_ERROR_UNAVAILABLE, "nothing was checked: no rung that was asked for has kernels for this");
  if (args->json) FLP_TRY(check_report_write(report, args->json, command));
  if (!args->json || strcmp(args->json, "-") != 0) check_report_print(report, args->verbose);
  return FLP_OK;
}

/* Ends the process without the clean-up that would wait for the device for ever. */
static void leave_hung(int code) {
  fflush(NULL);
  _exit(code);
}

int cli_check(int argc, char **argv) {
  static const struct argp_child children[] = {{&cli_spec_argp, 0, NULL, 1}, {0}};
  static const struct argp argp = {
      options,
      parse,
      NULL,
      "Checks every rung that this machine offers against an fp64 reference.\v"
      "With --vocab and --hidden that one specialisation is checked over random and adversarial data. logprob and "
      "entropy are judged in ulps, gradients by their relative L2 error beside that of an ordinary matrix pipeline; "
      "outputs and workspace are poisoned first. Beside --quick, --all, --large and --concurrent, --dtype leaves the "
      "cases of the other dtypes out.\n\n" CLI_EXIT_HELP,
      children,
      NULL,
      NULL};
  check_args args = {.spec = CLI_SPEC_ARGS_INIT, .given = {.name = "random", .n = 67, .temperature = 1, .scale = 1}};
  args.given.shards = 1;
  args.given.seed = 1;
  char command[1024];
  cli_record_join_command(argc, argv, command, sizeof command);
  argp_parse(&argp, argc, argv, 0, NULL, &args);
  check_report report = {0};
  flp_status status = run_check(&args, command, &report);
  int code = report.failed > 0 ? CLI_EXIT_FAILED : CLI_EXIT_OK;
  if (status != FLP_OK) code = cli_finish("flpgen check", args.json && strcmp(args.json, "-") == 0, status);
  if (report.hung) leave_hung(code);
  check_report_clear(&report);
  return code;
}

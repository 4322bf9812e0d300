/* tune.c: `flpgen tune`, the fastest kernels of specialisations on this machine's GPU, verified, timed and stored. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/record.h"
#include "gen/cli/shared/scratch.h"
#include "gen/cli/shared/text.h"
#include "gen/cli/tune/outcome.h"
#include "gen/cli/verbs.h"
#include "runtime/base/process.h"
#include "runtime/kernel/kernel.h"
#include "runtime/load/tuned.h"
#include "runtime/store/internal.h"

enum { KEY_EFFORT = CLI_KEY_FIRST, KEY_BUDGET, KEY_ROWS, KEY_SEED, KEY_BURST, KEY_WORKSPACE };

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "More than one specialisation:", 2},
    {"shapes", CLI_TEXT(tune_args, shapes), "LIST", 0, "heads as VOCABxHIDDEN, e.g. 151936x4096,128256x2048", 2},
    {"preset", CLI_TEXT(tune_args, preset), "LIST", 0, "heads of popular models by name, or all", 2},
    {"preset-file", CLI_TEXT(tune_args, preset_file), "FILE", 0,
     "take presets from here, not those built in; all of them without --preset", 2},
    {NULL, 0, NULL, 0, "How:", 3},
    {"effort", KEY_EFFORT, "HOW", 0,
     "quick: 24 candidates a kernel, 20 s; normal (default): 120, 60 s; exhaustive: all that are not predicted to take "
     "1.4 times as long as the fastest, no limit",
     3},
    {"budget", KEY_BUDGET, "TIME", 0,
     "for each specialisation from its opening on, in seconds or as 90s, 2m; 0: no limit", 3},
    {"rows", KEY_ROWS, "N", 0, "rows that are timed; default 8192", 3},
    {"workspace", KEY_WORKSPACE, "BYTES", 0, "workspace of each pass: bytes, " FLP_BYTES_FORMS, 3},
    {"mode", CLI_KEY_MODE, "NAME", 0,
     "stream (P): time streamed steps of --loss even where recomputing is predicted to be faster; save (S) or "
     "direction (D): what --keep keeps",
     3},
    {"burst-ms", KEY_BURST, "MS", 0, "least length of a burst of calls; default 75, 40 where the effort is quick", 3},
    {"seed", KEY_SEED, "S", 0, "of the data and of the order; default 1", 3},
    CLI_OPTION(DEVICE, 3),
    CLI_OPTION(ARCH, 3),
    {"no-baseline", CLI_SWITCH(tune_args, no_baseline), NULL, 0, "without the GEMM baseline, which needs cuBLASLt", 3},
    {"no-bare", CLI_SWITCH(tune_args, no_baseline), NULL, OPTION_ALIAS | OPTION_HIDDEN, NULL, 0},
    {"record", CLI_TEXT(tune_args, record), "FILE", 0,
     "SQLite file of every candidate; default tune.sqlite beside the cache entries", 3},
    {"resume", CLI_SWITCH(tune_args, resume), NULL, 0,
     "go on where the record stops: what was done on this GPU is not done again", 3},
    {"out", 'o', "DIR", 0, "store the kernels here, not in the cache of this user", 3},
    {"include", CLI_TEXT(tune_args, include), "TEXT", 0,
     "time these tilings to the end whatever they take, named as by bench --tune", 3},
    {"list", CLI_TEXT(tune_args, list), "FILE", 0, "append what was found as lines of a list for flpgen pack build", 3},
    {"dry-run", CLI_SWITCH(tune_args, dry_run), NULL, 0,
     "only list what would be tried; needs no GPU, assumes an H200", 3},
    {"quiet", 'q', NULL, 0, "no progress, no warnings", 3},
    {"json", CLI_SWITCH(tune_args, json), NULL, 0, "print one JSON document", 3},
    {0}};

/* "90", "90s", "1.5m", "1h" */
static flp_status parse_time(const char *text, void *out) {
  static const struct {
    const char *suffix;
    double seconds;
  } units[] = {{"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}};
  char *end;
  double value = strtod(text, &end);
  for (size_t i = 0; end != text && i < sizeof units / sizeof units[0]; i++)
    if (strcmp(end, units[i].suffix) == 0 && value >= 0 && value < 1e6) {
      *(double *)out = value * units[i].seconds;
      return FLP_OK;
    }
  return flp_fail(FLP_ERROR_ARGUMENT, "--budget: expected seconds, or a time such as 90s, 2m, got '%s'", text);
}

static const cli_value values[] = {
    {KEY_EFFORT, CLI_IS_WORD, CLI_PLACE(tune_args, effort), .words = CLI_EFFORTS},
    {KEY_BUDGET, CLI_IS_OWN, CLI_PLACE(tune_args, budget_s), .parse = parse_time},
    {KEY_ROWS, CLI_IS_INTEGER, CLI_PLACE(tune_args, rows), .least = 1, .most = FLP_COUNT_MAX},
    {KEY_SEED, CLI_IS_INTEGER, CLI_PLACE(tune_args, seed), .most = INT64_MAX},
    {KEY_BURST, CLI_IS_OWN, CLI_PLACE(tune_args, burst_ms), .parse = cli_parse_burst},
    {KEY_WORKSPACE, CLI_IS_BYTES, CLI_PLACE(tune_args, options.budget_bytes)},
    {'o', CLI_IS_TEXT, CLI_PLACE(tune_args, out)},
    {'q', CLI_IS_QUIET, CLI_PLACE(tune_args, quiet)},
    {0}};

/* ---- where things lie ---- */

typedef struct tune_places {
  cli_scratch scratch; /* kernels that are tried, and the driver's cache of them */
  char out[4096], record[4200];
} tune_places;

/* The cache of this user, where the records lie too, is for nobody else. */
static flp_status make_cache(const char *path) {
  int fd;
  FLP_TRY(store_file_open_directory(path, 1, 1, &fd, NULL));
  close(fd);
  return FLP_OK;
}

/* Comes before the device is opened and threads are started (scratch.h). */
static flp_status make_places(tune_args *args, tune_places *places) {
  flp_setting setting;
  FLP_TRY(cli_scratch_open("tune", &places->scratch));
  flp_setting_get(FLP_SETTING_CACHE_DIR, &setting);
  snprintf(places->out, sizeof places->out, "%s", args->out ? args->out : setting.value);
  snprintf(places->record, sizeof places->record, "%s/tune.sqlite", places->out);
  if (!places->out[0])
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "there is no cache directory to store kernels in; --out or FLP_CACHE_DIR names one");
  FLP_TRY(args->out ? cli_make_directory(places->out) : make_cache(places->out));
  args->out = places->out;
  if (!args->record) args->record = places->record;
  args->options.cache_dir = places->scratch.kernels;
  args->options.cache_path = "";
  return FLP_OK;
}

/* ---- running ---- */

static void interrupt(int signal_number) {
  (void)signal_number;
  tune_interrupted = 1;
}

/* The first Ctrl-C ends the search, the second the process. */
static void catch_interrupts(void) {
  struct sigaction action = {.sa_handler = interrupt, .sa_flags = (int)SA_RESETHAND | SA_RESTART};
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
}

typedef struct tune_run {
  const tune_args *args;
  const tune_heads *targets;
  cli_device device;
  cublaslt library;
  tune_compile_pool compile_pool;
  records *file;
  records_run run;
  json_t *outcomes;
  int done;
} tune_run;

/* Before anything is written. */
static flp_status check_arches(const tune_run *r) {
  const char *arch;
  int clusters = flp_driver_has_clusters(r->device.driver), driver = r->device.driver->version;
  for (int i = 0; i < r->targets->count; i++)
    FLP_TRY(tune_head_arch(r->args, &r->targets->items[i], &r->device.info, driver, clusters, &arch));
  return FLP_OK;
}

static flp_status open_run(tune_run *r, const char *command) {
  const tune_args *args = r->args;
  int processors = flp_processors();
  FLP_TRY(cli_device_open(args->options.device, &r->device));
  FLP_TRY(check_arches(r));
  if (!args->no_baseline) {
    flp_status status = cublaslt_open(&r->library);
    if (status != FLP_OK)
      return flp_fail(status, "%s, or leave the GEMM baselines out with --no-baseline", flp_error_detail());
  }
  FLP_TRY(cli_compilers_open(&r->device, processors < TUNE_COMPILERS_MAX ? processors : TUNE_COMPILERS_MAX,
                             &r->compile_pool.compilers));
  FLP_TRY(records_open(args->record, &r->file));
  r->run = (records_run){.command = command,
                         .gpu = r->device.info.name,
                         .sources = flp_sources_id(),
                         .effort = search_effort_name(args->effort),
                         .multiprocessors = r->device.info.multiprocessors,
                         .driver = r->device.driver->version,
                         .seed = args->seed,
                         .budget_s = args->budget_s >= 0 ? args->budget_s : search_options_of(args->effort).budget_s};
  return records_begin_run(r->file, &r->run);
}

/* 1 for what is wrong with one target and leaves files and device fit for the next. */
static int is_of_target(tune_run *r, flp_status status) {
  if (status == FLP_ERROR_IO || status == FLP_ERROR_CORRUPT) return 0;
  return status != FLP_ERROR_DRIVER || cli_device_synchronise(&r->device) == FLP_OK;
}

static flp_status append_line(const tune_run *r, const tune_outcome *outcome) {
  char device[FLP_TUNED_FOR_BYTES], line[TUNE_LINE_BYTES];
  if (!r->args->list || outcome->done_before || !outcome->steps) return FLP_OK;
  flp_tuned_for(&r->device.info, r->device.driver->version, device);
  tune_outcome_line(outcome, r->args->rows, r->args->spec.loss.name, device, line);
  FILE *file = fopen(r->args->list, "ae");
  int failed = !file || fprintf(file, "%s\n", line) < 0;
  if (file) failed |= fclose(file) != 0;
  return failed ? flp_fail(FLP_ERROR_IO, "--list: %s cannot be written: %s", r->args->list, strerror(errno)) : FLP_OK;
}

static flp_status run_one(tune_run *r, const tune_head *target) {
  tune_outcome outcome;
  FLP_TRY(tune_head_run(r->args, target, &r->device, r->args->no_baseline ? NULL : &r->library, r->file, &r->run,
                        &r->compile_pool, &outcome));
  r->done += !outcome.stopped;
  if (r->args->json)
    json_array_append_new(r->outcomes, tune_outcome_json(&outcome));
  else
    tune_outcome_print(&outcome);
  fflush(stdout);
  return append_line(r, &outcome);
}

static void report_failure(tune_run *r, const tune_head *target, const char *detail) {
  cli_complain("flpgen tune", "%s: %s", target->text, detail);
  json_array_append_new(r->outcomes, json_pack("{s:s, s:o}", "spec", target->text, "error", cli_json_text(detail)));
}

/* A failed target is reported and the next one begun; the command ends with the first failure. */
static flp_status run_targets(tune_run *r) {
  flp_failure first = {.status = FLP_OK};
  for (int i = 0; i < r->targets->count && !tune_interrupted; i++) {
    const tune_head *target = &r->targets->items[i];
    flp_status status = run_one(r, target);
    if (status == FLP_OK) continue;
    if (r->targets->count > 1) report_failure(r, target, flp_error_detail());
    flp_fail(status, "%s: %s", target->text, flp_error_detail());
    if (first.status == FLP_OK) first = flp_failure_hold(status);
    if (!is_of_target(r, status)) break;
  }
  FLP_TRY(flp_failure_restore(&first));
  return records_finish_run(r->file, &r->run);
}

static json_t *document(const tune_run *r) {
  return json_pack("{s:o, s:i, s:o, s:o, s:s, s:b, s:O}", "gpu", cli_json_text(r->run.gpu), "driver", r->run.driver,
                   "record", cli_json_text(r->args->record), "stored_in", cli_json_text(r->args->out), "effort",
                   r->run.effort, "stopped", (int)tune_interrupted, "targets", r->outcomes);
}

static flp_status run(tune_args *args, const tune_heads *targets, const tune_places *places, const char *command) {
  tune_run r = {.args = args,
                .targets = targets,
                .outcomes = json_array(),
                .compile_pool = {.directory = places->scratch.kernels}};
  catch_interrupts();
  flp_status status = open_run(&r, command);
  if (status == FLP_OK) status = run_targets(&r);
  flp_failure held = flp_failure_hold(status);
  flp_status printed = FLP_OK;
  if (!args->json && r.run.id)
    cli_print(2, "%d of %d done; kernels in %s, record %s", r.done, targets->count, args->out, args->record);
  if (args->json && (status == FLP_OK || json_array_size(r.outcomes))) {
    printed = cli_json_print(document(&r));
    args->json = 0; /* what failed stands in it */
  }
  flp_failure_restore(&held);
  if (status == FLP_OK) status = printed;
  json_decref(r.outcomes);
  records_close(r.file);
  cli_compilers_close(&r.compile_pool.compilers);
  cublaslt_close(&r.library);
  cli_device_close(&r.device);
  return status;
}

/* What a dry run assumes where no GPU is: an H200. */
static flp_device assumed_device(const tune_args *args) {
  flp_device info = {.name = "H200",
                     .major = 9,
                     .multiprocessors = 132,
                     .l2_bytes = 50 << 20,
                     .clock_khz = 1980000,
                     .memory_clock_khz = 3201000,
                     .memory_bus_bits = 6144};
  const flp_driver *driver;
  flp_device found;
  if (flp_driver_get(&driver) == FLP_OK && flp_device_get(driver, args->options.device, &found) == FLP_OK) info = found;
  return info;
}

/* What is timed has one target. error: ARGUMENT */
static flp_status resolve_loss(tune_args *args) {
  flp_spec *spec = &args->spec.spec;
  FLP_TRY(cli_loss_args_resolve(&args->spec.loss, spec));
  if (spec->loss && spec->targets > 1)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--loss: %s is not accepted here, as what is timed has one target; without --loss "
                    "--targets %d finds the kernels that its steps take",
                    args->spec.loss.name, spec->targets);
  spec->targets = 0;
  return FLP_OK;
}

static flp_status tune(tune_args *args, const char *command) {
  tune_heads targets;
  tune_places places = {.scratch = {.root = ""}};
  if (args->spec.tune)
    return flp_fail(FLP_ERROR_ARGUMENT, "--tune: this verb finds it out; bench times a given tiling");
  FLP_TRY(flp_tuning_parse("--include", args->include, &args->included));
  FLP_TRY(cli_spec_args_features(&args->spec));
  FLP_TRY(cli_spec_args_mode(&args->spec, args->options.mode));
  FLP_TRY(cli_spec_args_one_mode(&args->spec));
  FLP_TRY(resolve_loss(args));
  FLP_TRY(tune_heads_create(args, &targets));
  flp_status status;
  if (args->dry_run) {
    flp_device device = assumed_device(args);
    status = tune_dry_run(args, &targets, &device);
  } else {
    status = make_places(args, &places);
    if (status == FLP_OK) status = run(args, &targets, &places, command);
    cli_scratch_close(&places.scratch);
  }
  tune_heads_clear(&targets);
  return status;
}

const cli_values cli_tune_argp = {
    CLI_OPTIONS(options, cli_values_parse, values),
    .call = offsetof(tune_args, options),
    .modes = CLI_TUNE_MODES,
    .argp.doc =
        "Finds the fastest kernels of specialisations on this machine's GPU and stores them in the cache, where plans "
        "of the same specialisation find them first. Those of the newest architecture that the GPU runs are tuned: "
        "Hopper's own on compute capability 9.0, portable ones elsewhere, and where --arch asks for sm_80."
        "\vEvery candidate is verified before it is timed: forward bits are those of the untuned kernel, gradients are "
        "within the bounds of flpgen check. Survivors are timed in bursts, interleaved with the untuned kernel and the "
        "GEMM baselines; the better third goes on with more rounds. The untuned kernel stays unless another is faster "
        "by more than the measured noise; of those within the noise of the fastest, the one that the cost model puts "
        "first is taken. forward is timed in a forward pass, dz and chunks in a backward pass of recomputing, with "
        "--tail too, whose rows that are recomputed take them, and with --targets, whose dz and products are those of "
        "one target. With --keep forward_keep is timed in a forward pass that keeps something for backward, products "
        "in that and backward together. With --loss both are timed in streamed steps, and so are the rows of its "
        "chunks. Ctrl-C keeps what was found.\n\n"
        "Examples:\n"
        "  flpgen tune --vocab 151936 --hidden 4096 --grad hidden,weight\n"
        "  flpgen tune --preset all --effort quick --list found.txt\n\n" CLI_EXIT_HELP,
    .argp.children = cli_spec_children};

int cli_tune(int argc, char **argv) {
  tune_args args = {.spec = CLI_SPEC_ARGS_INIT,
                    .options = FLP_OPTIONS_INIT,
                    .rows = 8192,
                    .seed = 1,
                    .budget_s = -1,
                    .effort = SEARCH_NORMAL};
  args.spec.leaves =
      1u << FLP_FEATURE_LISTED | 1u << FLP_FEATURE_TOPK | 1u << FLP_FEATURE_RANK | 1u << FLP_FEATURE_LORA;
  char command[1024];
  cli_record_join_command(argc, argv, command, sizeof command);
  cli_parse(&cli_tune_argp, argc, argv, &args);
  if (args.burst_ms <= 0) args.burst_ms = args.effort == SEARCH_QUICK ? 40 : 75;
  flp_status status = tune(&args, command);
  return cli_finish("flpgen tune", args.json, status);
}

/* prove.c: `flpgen prove`: whether kernels of an architecture that has never run on this GPU are right there, and no
 * slower than portable ones. What it finds stays as a stamp in the kernel cache, which plans read. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gen/cli/kernels/kernels.h"
#include "gen/cli/prove/prove.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/progress.h"
#include "gen/cli/shared/record.h"
#include "gen/cli/shared/table.h"
#include "gen/cli/shared/text.h"
#include "gen/cli/verbs.h"
#include "runtime/plan/plan.h"
#include "runtime/store/internal.h"

enum { KEY_ROWS = CLI_KEY_FIRST, KEY_VOCAB, KEY_HIDDEN, KEY_DTYPE, KEY_REPEATS, KEY_LIMIT, KEY_JSON };

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "What is proven:", 2},
    {"arch", CLI_KEY_ARCH, "NAME", 0, "kernels of this architecture; default all that are unproven on this GPU", 2},
    {"dtype", KEY_DTYPE, "NAME", 0, "of these operands alone, which refutes and does not prove: bf16, fp16 or fp32", 2},
    CLI_OPTION(DEVICE, 2),
    {NULL, 0, NULL, 0, "What is timed and repeated, beside odd data of a small shape:", 3},
    {"rows", KEY_ROWS, "N", 0, "rows; default 1024", 3},
    {"vocab", KEY_VOCAB, "V", 0, "default 16384", 3},
    {"hidden", KEY_HIDDEN, "D", 0, "default 512", 3},
    {"repeats", KEY_REPEATS, "N", 0, "calls on two streams at once whose bits are compared; default 200", 3},
    {NULL, 0, NULL, 0, "Execution:", 4},
    {"limit", KEY_LIMIT, "SECONDS", 0, "of one kind and dtype: what takes longer hangs; default 600", 4},
    {"quiet", 'q', NULL, 0, "no progress, no warnings", 4},
    {"json", KEY_JSON, "FILE", OPTION_ARG_OPTIONAL, "write the record here; alone or '-': to standard output", 4},
    {"part", CLI_TEXT(prove_args, part), "NAME", OPTION_HIDDEN, "in this process, this one", 4},
    {"portable", CLI_SWITCH(prove_args, portable), NULL, OPTION_HIDDEN, "of it, the portable kernels", 4},
    {0}};

static const cli_value values[] = {
    {KEY_ROWS, CLI_IS_INTEGER, CLI_PLACE(prove_args, rows), .least = 1, .most = 1 << 20},
    {KEY_VOCAB, CLI_IS_INTEGER, CLI_PLACE(prove_args, vocab), .least = 64, .most = INT32_MAX / 2},
    {KEY_HIDDEN, CLI_IS_INTEGER, CLI_PLACE(prove_args, hidden), .least = 8, .most = 1 << 20},
    {KEY_DTYPE, CLI_IS_WORD, CLI_PLACE(prove_args, dtype), .words = FLP_OPERAND_DTYPE_WORDS},
    {KEY_REPEATS, CLI_IS_INTEGER, CLI_PLACE(prove_args, repeats), .least = 1, .most = 1 << 20},
    {KEY_LIMIT, CLI_IS_POSITIVE, CLI_PLACE(prove_args, limit_s)},
    {'q', CLI_IS_QUIET, CLI_PLACE(prove_args, quiet)},
    {KEY_JSON, CLI_IS_TEXT, CLI_PLACE(prove_args, json), .unsaid = "-"},
    {ARGP_KEY_ARG, CLI_IS_JSON_FILE, CLI_PLACE(prove_args, json)},
    {0}};

typedef struct proving {
  const prove_args *args;
  int driver;
  flp_device device;
  flp_store *store;
  json_t *rows, *verdicts;
  cli_table table;
  int refuted;
} proving;

/* ---- one architecture ---- */

static void add_row(proving *p, const char *arch, const prove_part *part, const prove_result *r) {
  int is_timed = r->ratio > 0;
  cli_table_addf(&p->table, "%s\t%s\t%s\t%lld\t%.2f\t%lld\t%s\t%s\t%s", arch, part->name, part->kinds,
                 (long long)r->checks, r->worst, (long long)r->repeats,
                 is_timed ? cli_shortly("%.3f ms", r->ms).text : "-",
                 is_timed ? cli_shortly("%.2f", r->ratio).text : "-", r->end == PROVE_RIGHT ? "right" : "refuted");
  if (r->reason[0]) cli_table_note(&p->table, "%s", r->reason);
  json_t *row = json_pack("{s:s, s:s, s:s, s:o, s:b}", "arch", arch, "part", part->name, "kinds", part->kinds, "spec",
                          cli_spec_json(&part->spec, 1, 0), "pass", r->end == PROVE_RIGHT);
  json_t *found = prove_result_json(r);
  json_object_update(row, found);
  json_decref(found);
  json_array_append_new(p->rows, row);
}

/* What is wrong is the architecture's fault where the portable kernels do the same well. A process that hung or died
 * refutes in any case: what comes behind it shows whether the GPU lives. error: UNAVAILABLE */
static flp_status judge(proving *p, const char *arch, const prove_part *part, prove_result *r) {
  prove_result portable;
  if (r->end == PROVE_FAILED && (r->status == FLP_ERROR_MEMORY || r->status == FLP_ERROR_IO))
    return flp_fail(r->status, "%s: %s", part->name, r->reason);
  FLP_TRY(prove_spawn(p->args, arch, part, 1, &portable));
  if (portable.end == PROVE_RIGHT) return FLP_OK;
  if (r->end != PROVE_HUNG && r->end != PROVE_DIED)
    return flp_fail(FLP_ERROR_UNAVAILABLE, "nothing is proven: of %s the portable kernels fail here too: %s",
                    part->name, portable.reason);
  cli_append(r->reason, sizeof r->reason, "; ", "the portable kernels do not run since: %.200s", portable.reason);
  return FLP_OK;
}

/* Until a part is refuted. */
static flp_status prove_all(proving *p, const char *arch, const prove_part *parts, int count, flp_proof *out) {
  cli_progress progress;
  flp_status status = FLP_OK;
  cli_progress_start(&progress, "prove", p->args->quiet);
  for (int i = 0; i < count && status == FLP_OK && out->verdict == FLP_VERDICT_PROVEN; i++) {
    prove_result r;
    cli_progress_update(&progress, i, count);
    status = prove_spawn(p->args, arch, &parts[i], 0, &r);
    if (status == FLP_OK && r.end != PROVE_RIGHT) status = judge(p, arch, &parts[i], &r);
    if (status != FLP_OK) break;
    out->ms += r.ms;
    out->portable_ms += r.portable_ms;
    add_row(p, arch, &parts[i], &r);
    if (r.end == PROVE_RIGHT) continue;
    out->verdict = FLP_VERDICT_REFUTED;
    snprintf(out->reason, sizeof out->reason, "%.31s %.200s", parts[i].name, r.reason);
  }
  cli_progress_end(&progress);
  return status;
}

/* Before anything can be the architecture's fault. */
static flp_status check_portable(proving *p, const char *arch, const prove_part *part) {
  prove_result r;
  FLP_TRY(prove_spawn(p->args, arch, part, 1, &r));
  if (r.end == PROVE_RIGHT) return FLP_OK;
  return flp_fail(r.end == PROVE_FAILED ? r.status : FLP_ERROR_UNAVAILABLE,
                  "nothing is proven: the portable kernels fail here: %s: %s", part->name, r.reason);
}

/* Of all dtypes: a proof of one leaves the others unproven, a refutation stands. */
static flp_status leave_stamp(proving *p, const flp_arch *arch, flp_proof *proof) {
  int is_whole = !p->args->dtype, refuted = proof->verdict == FLP_VERDICT_REFUTED;
  flp_proof_of of = flp_unproven_key(&p->device, p->driver, arch);
  proof->time = (int64_t)time(NULL);
  if (is_whole || refuted) FLP_TRY(flp_proof_write(p->store, &of, proof));
  p->refuted |= refuted;
  json_array_append_new(p->verdicts,
                        json_pack("{s:s, s:s, s:o, s:b}", "arch", arch->name, "verdict",
                                  flp_verdict_name(proof->verdict), "reason",
                                  proof->reason[0] ? cli_json_text(proof->reason) : json_null(), "stamp",
                                  is_whole || refuted));
  if (refuted)
    cli_complain("flpgen prove", "%s is refuted on %s: %s; plans take portable kernels", arch->name, p->device.name,
                 proof->reason);
  return FLP_OK;
}

static flp_status prove_arch(proving *p, const flp_arch *arch) {
  prove_part parts[PROVE_PARTS_MAX];
  flp_proof proof = {.verdict = FLP_VERDICT_PROVEN};
  int count = prove_parts(arch->name, p->args, parts);
  if (!count)
    return flp_fail(FLP_ERROR_ARGUMENT, "--arch: '%s' is not accepted; it has no kernels of its own for this",
                    arch->name);
  FLP_TRY(check_portable(p, arch->name, &parts[0]));
  FLP_TRY(prove_all(p, arch->name, parts, count, &proof));
  return leave_stamp(p, arch, &proof);
}

/* ---- the whole ---- */

/* Whether a stamp can be left, before minutes of work. error: IO */
static flp_status open_cache(proving *p) {
  flp_setting cache;
  int directory;
  flp_setting_get(FLP_SETTING_CACHE_DIR, &cache);
  FLP_TRY(store_file_open_directory(cache.value, 1, 1, &directory, NULL));
  int writable = faccessat(directory, ".", W_OK, AT_EACCESS) == 0;
  close(directory);
  if (!writable) return flp_fail(FLP_ERROR_IO, "%s: not writable, and a stamp is to be left there", cache.value);
  return flp_store_open(cache.value, NULL, &p->store);
}

/* No context is made, so that children may have the device to themselves. */
static flp_status open_device(proving *p) {
  const flp_driver *driver;
  FLP_TRY(flp_driver_get(&driver));
  p->driver = driver->version;
  return flp_device_get(driver, p->args->options.device, &p->device);
}

/* error: ARGUMENT, UNAVAILABLE */
static flp_status prove_asked(proving *p, const char *name) {
  const flp_arch *arch = flp_arch_find(name);
  if (!arch->below)
    return flp_fail(FLP_ERROR_ARGUMENT, "--arch: '%s' is not accepted; its kernels are those that others are held to",
                    name);
  if (!flp_arch_runs(arch, p->device.major, p->device.minor))
    return flp_fail(FLP_ERROR_UNAVAILABLE, "--arch: kernels for %s do not run on %s of compute capability %d.%d", name,
                    p->device.name, p->device.major, p->device.minor);
  return prove_arch(p, arch);
}

static flp_status prove_unproven(proving *p) {
  const flp_arch *arch;
  for (int i = 0; (arch = flp_arch_at(i)); i++)
    if (arch->facts & FLP_ARCH_UNPROVEN && flp_arch_runs(arch, p->device.major, p->device.minor))
      FLP_TRY(prove_arch(p, arch));
  return FLP_OK;
}

static void print(proving *p) {
  size_t i;
  json_t *verdict;
  cli_table_finish(&p->table);
  json_array_foreach(p->verdicts, i, verdict) {
    const char *arch = json_string_value(json_object_get(verdict, "arch"));
    const char *found = json_string_value(json_object_get(verdict, "verdict"));
    int has_stamp = json_is_true(json_object_get(verdict, "stamp")), off = flp_arch_has(arch, FLP_ARCH_UNPROVEN);
    cli_print(2, "%s is %s on %s with this driver%s", arch, found, p->device.name,
              !has_stamp                       ? ", of this dtype; a stamp needs all"
              : !off                           ? "; plans take it in any case"
              : strcmp(found, "refuted") == 0 ? ""
                                               : "; plans take it from now on");
  }
  if (json_array_size(p->verdicts) == 0)
    cli_print(2, "%s has no architecture that is to be proven; --arch names another", p->device.name);
}

static flp_status prove(proving *p, const char *command) {
  const prove_args *args = p->args;
  if (args->json) FLP_TRY(cli_record_probe(args->json));
  FLP_TRY(open_device(p));
  FLP_TRY(open_cache(p));
  FLP_TRY(args->options.arch ? prove_asked(p, args->options.arch) : prove_unproven(p));
  if (!args->json || strcmp(args->json, "-") != 0) print(p);
  if (!args->json) return FLP_OK;
  json_t *record = cli_record_create(p->device.name, p->driver, command);
  if (record) {
    json_object_set(record, "verdicts", p->verdicts);
    json_object_set(record, "rows", p->rows);
  }
  return cli_record_write(record, args->json);
}

const cli_values cli_prove_argp = {
    CLI_OPTIONS(options, cli_values_parse, values),
    .call = offsetof(prove_args, options),
    .argp.doc =
        "Finds out whether kernels that have never run on this GPU are right and fast there, and leaves a stamp."
        "\vPlans take such an architecture where a stamp in the kernel cache says that it was proven, on a GPU of this "
        "name with this driver and these sources; else they take portable kernels. Each kind of kernel and dtype is "
        "run in a process of its own, which is ended where it hangs: compared with fp64 and with the portable kernels, "
        "on odd data too, repeated for the same bits while other streams work and move memory, and timed. What "
        "differs, dies, hangs or is slower is refuted, the reason is kept, and the exit status is 1.\n\n"
        "Examples:\n"
        "  flpgen prove\n"
        "  flpgen prove --arch sm_90a --rows 8192 --vocab 151936 --hidden 4096 --json record.json\n\n" CLI_EXIT_HELP};

int cli_prove(int argc, char **argv) {
  prove_args args = {
      .options = FLP_OPTIONS_INIT, .rows = 1024, .vocab = 16384, .hidden = 512, .repeats = 200, .limit_s = 600};
  char command[1024];
  cli_record_join_command(argc, argv, command, sizeof command);
  cli_parse(&cli_prove_argp, argc, argv, &args);
  if (args.part) {
    cli_log_quiet();
    int code = cli_finish(argv[0], 1, prove_child(&args));
    fflush(NULL);
    _exit(code); /* what hangs in the driver cannot be released */
  }
  proving p = {.args = &args, .rows = json_array(), .verdicts = json_array()};
  cli_table_start(&p.table, "arch", "part", "kernels", "checks", "worst / allowed", "repeats", "time", "of portable",
                  "verdict", NULL);
  cli_table_may_move(&p.table, 2, "kernels ");
  flp_status status = prove(&p, command);
  flp_store_close(p.store);
  json_decref(p.rows);
  json_decref(p.verdicts);
  int code = p.refuted ? CLI_EXIT_FAILED : CLI_EXIT_OK;
  return status == FLP_OK ? code : cli_finish(argv[0], args.json && strcmp(args.json, "-") == 0, status);
}

/* doctor.c: `flpgen doctor`, the machine's GPUs and rungs, and the source of every setting. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gen/cli/doctor/paths.h"
#include "gen/cli/doctor/stamps.h"
#include "gen/cli/kernels/kernels.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/reasons.h"
#include "gen/cli/shared/text.h"
#include "gen/cli/verbs.h"
#include "runtime/driver/driver.h"
#include "runtime/eager/eager.h"
#include "runtime/store/internal.h"

#ifndef FLPGEN_LLVM_VERSION
#define FLPGEN_LLVM_VERSION "19"
#endif

enum { KEY_REQUIRE = CLI_KEY_FIRST, DEVICES_MAX = 64, DETAIL_BYTES = 1024 };

/* One thing that works, or the reason why it does not. */
typedef struct finding {
  int works;
  char text[DETAIL_BYTES];
} finding;

/* One directory of entries. */
typedef struct directory {
  char path[1024];
  uint64_t entries, bytes, bad;
  char bad_reason[256];    /* of the first bad entry */
  int exists, is_writable; /* exists: can be used, as a plan would */
  int can_be_made;         /* is not there, and would be made when a kernel is stored */
  char problem[DETAIL_BYTES];
} directory;

typedef struct examination {
  finding driver, generator, eager;
  int driver_version;
  flp_device devices[DEVICES_MAX];
  int device_count;
  doctor_stamp stamps[DOCTOR_STAMPS_MAX];
  int stamp_count;
  char generator_path[1024], sources[17];
  double generator_seconds;
  directory cache, generic;
  doctor_path paths[DOCTOR_PATHS_MAX];
  int path_count;
  finding rungs[FLP_RUNG_EAGER + 1]; /* by flp_rung; [0] unused */
  int any_rung;
  finding plan;   /* what FLP_FORCE and FLP_STRICT leave of them: the rung that is taken, or why none is */
  finding health; /* what doctor's exit status says */
} examination;

enum { REQUIRE_NOTHING }; /* or a rung, or CLI_REQUIRE_GPU */

typedef struct doctor_args {
  int json, require;
} doctor_args;

static void set_finding(finding *out, flp_status status, const char *good) {
  char text[CLI_REASON_BYTES];
  out->works = status == FLP_OK;
  snprintf(out->text, sizeof out->text, "%s", status == FLP_OK ? good : cli_reason_text(flp_error_detail(), text));
}

static void examine_driver(examination *out) {
  const flp_driver *driver = NULL;
  char text[64];
  flp_status status = flp_driver_get(&driver);
  if (status == FLP_OK) {
    out->driver_version = driver->version;
    snprintf(text, sizeof text, "CUDA %d.%d", driver->version / 1000, driver->version % 1000 / 10);
    while (out->device_count < DEVICES_MAX &&
           flp_device_get(driver, out->device_count, &out->devices[out->device_count]) == FLP_OK)
      out->device_count++;
  }
  set_finding(&out->driver, status, text);
}

/* The file of the library that the command has opened. */
static void find_generator(examination *out) {
  Dl_info info;
  void *library = dlopen("libflpgen.so", RTLD_NOW | RTLD_NOLOAD);
  void *function = library ? dlsym(library, "flpgen_generate") : NULL;
  if (function && dladdr(function, &info) && info.dli_fname)
    snprintf(out->generator_path, sizeof out->generator_path, "%s", info.dli_fname);
  if (library) dlclose(library);
}

/* Generates the smallest module, which takes all of the generator. */
static void examine_generator(examination *out) {
  flp_kernel_key key = {
      .kind = FLP_KERNEL_ROWS, .arch = FLP_PORTABLE_ARCH, .dtype = FLP_DTYPE_BF16, .target_dtype = FLP_DTYPE_INT64};
  flp_kernel_key_canonicalise(&key);
  cli_kernel kernel;
  flp_status status = cli_kernel_generate(&key, NULL, &kernel);
  set_finding(&out->generator, status, "LLVM " FLPGEN_LLVM_VERSION);
  find_generator(out);
  if (status != FLP_OK) return;
  if (memcmp(kernel.result.desc.sources, flp_sources_hash(), sizeof kernel.result.desc.sources) != 0)
    snprintf(out->generator.text, sizeof out->generator.text,
             "LLVM " FLPGEN_LLVM_VERSION
             ", built from other sources than this libflp, which will not find its kernels");
  out->generator_seconds = kernel.seconds;
  for (int i = 0; i < 8; i++) snprintf(out->sources + 2 * i, 3, "%02x", kernel.result.desc.sources[i]);
  flpgen_result_clear(&kernel.result);
}

static int count_entry(void *context, const flp_store_item *item) {
  directory *out = context;
  out->entries++;
  out->bytes += item->bytes;
  int is_bad = item->status != FLP_OK || (item->other_sources && !item->writable); /* what nobody makes anew */
  if (!is_bad || out->bad++ != 0) return 1;
  if (item->status == FLP_OK)
    flp_store_made_by(NULL, item->other_sources, out->bad_reason);
  else
    snprintf(out->bad_reason, sizeof out->bad_reason, "%s",
             item->reason ? item->reason : flp_status_name(item->status));
  return 1;
}

static void examine_directory(const char *path, int writable, directory *out) {
  snprintf(out->path, sizeof out->path, "%s", path);
  int fd, absent;
  flp_status status = store_file_open_directory(path, writable, 0, &fd, &absent);
  out->exists = status == FLP_OK;
  if (!out->exists) {
    snprintf(out->problem, sizeof out->problem, "%s", absent ? "not there" : flp_error_detail());
    out->can_be_made = absent && writable && doctor_path_can_be_made(path);
    out->is_writable = out->can_be_made;
    return;
  }
  close(fd);
  out->is_writable = access(path, W_OK) == 0;
  flp_store *store = NULL;
  if (flp_store_open(writable ? path : NULL, writable ? NULL : path, &store) != FLP_OK) return;
  flp_store_each(store, count_entry, out);
  flp_store_close(store);
}

/* Plans a small spec from the caches of every plan, and changes none of them. */
static flp_status plan_small(flp_options options, flp_plan **plan) {
  flp_spec spec = FLP_SPEC_INIT;
  flp_setting cache, list;
  char caches[sizeof cache.value + sizeof list.value + 1];
  spec.vocab = 1024;
  spec.hidden = 64;
  flp_setting_get(FLP_SETTING_CACHE_DIR, &cache);
  flp_setting_get(FLP_SETTING_CACHE_PATH, &list);
  snprintf(caches, sizeof caches, "%s%s%s", list.value, list.value[0] ? ":" : "", cache.value);
  options.cache_dir = "";
  options.cache_path = caches;
  return flp_plan_create(&spec, &options, plan);
}

static void examine_rungs(examination *out, flp_rung first, flp_rung last) {
  for (int rung = first; rung <= (int)last; rung++) {
    flp_options options = FLP_OPTIONS_INIT;
    options.rung = (flp_rung)rung;
    if (rung == FLP_RUNG_EAGER) options.device = FLP_DEVICE_HOST;
    flp_plan *plan = NULL;
    flp_status status = plan_small(options, &plan);
    set_finding(&out->rungs[rung], status, "works");
    flp_plan_destroy(plan);
    out->any_rung |= status == FLP_OK;
  }
}

/* The plan that a program gets which asks for nothing. */
static void examine_plan(examination *out) {
  flp_options options = FLP_OPTIONS_INIT;
  options.host_fallback = 1;
  flp_plan *plan = NULL;
  flp_status status = plan_small(options, &plan);
  set_finding(&out->plan, status, status == FLP_OK ? flp_rung_name(flp_plan_get_rung(plan)) : "");
  flp_plan_destroy(plan);
}

static void examine(examination *out) {
  flp_setting cache, generic;
  flp_setting_get(FLP_SETTING_CACHE_DIR, &cache);
  flp_setting_get(FLP_SETTING_GENERIC_DIR, &generic);
  examine_driver(out);
  out->stamp_count = doctor_stamps_examine(out->devices, out->device_count, out->driver_version, out->stamps);
  examine_generator(out);
  set_finding(&out->eager, FLP_OK, flp_eager_describe());
  /* What a trial generates stays in memory, where plans look first: so rungs that need a cache come before that. */
  examine_rungs(out, FLP_RUNG_TUNED, FLP_RUNG_HEURISTIC);
  examine_plan(out);
  examine_rungs(out, FLP_RUNG_JIT, FLP_RUNG_EAGER);
  examine_directory(cache.value, 1, &out->cache);
  examine_directory(generic.value, 0, &out->generic);
  out->path_count = doctor_paths_examine(out->devices, out->device_count, out->paths);
}

/* ---- as JSON ---- */

static json_t *finding_json(const finding *in) {
  return json_pack("{s:b, s:o}", "works", in->works, "text", cli_json_text(in->text));
}

static json_t *text_or_null(const char *text) {
  return text[0] ? cli_json_text(text) : json_null();
}

static json_t *directory_json(const directory *in) {
  return json_pack("{s:o, s:b, s:b, s:o, s:o, s:o, s:o}", "path", cli_json_text(in->path), "exists", in->exists,
                   "writable", in->is_writable, "entries", cli_json_count(in->entries), "bytes",
                   cli_json_count(in->bytes), "bad", cli_json_count(in->bad), "bad_reason",
                   text_or_null(in->bad_reason));
}

static json_t *devices_json(const examination *in) {
  json_t *list = json_array();
  for (int i = 0; i < in->device_count; i++) {
    const flp_device *device = &in->devices[i];
    json_array_append_new(
        list, json_pack("{s:i, s:o, s:[i,i], s:i, s:i, s:i, s:o}", "ordinal", device->ordinal, "name",
                        cli_json_text(device->name), "compute_capability", device->major, device->minor,
                        "multiprocessors", device->multiprocessors, "shared_bytes", device->shared_bytes_max,
                        "l2_bytes", device->l2_bytes, "memory_bytes", cli_json_count(device->memory_bytes)));
  }
  return list;
}

static json_t *settings_json(void) {
  json_t *list = json_array();
  for (int i = 0; i < FLP_SETTING_COUNT; i++) {
    flp_setting setting;
    flp_setting_get((flp_setting_id)i, &setting);
    json_array_append_new(
        list, json_pack("{s:s, s:o, s:o, s:s, s:s}", "name", setting.name, "value", text_or_null(setting.value),
                        "unset", text_or_null(setting.unset), "source", setting.source, "help", setting.help));
  }
  return list;
}

static flp_status print_json(const examination *in) {
  json_t *rungs = json_object();
  for (int rung = FLP_RUNG_TUNED; rung <= FLP_RUNG_EAGER; rung++)
    json_object_set_new(rungs, flp_rung_name((flp_rung)rung), finding_json(&in->rungs[rung]));
  json_t *generator = finding_json(&in->generator);
  json_object_set_new(generator, "library", cli_json_text(in->generator_path));
  json_object_set_new(generator, "sources", json_string(in->sources));
  json_object_set_new(generator, "seconds", cli_json_number(in->generator_seconds));
  json_t *driver = finding_json(&in->driver);
  json_object_set_new(driver, "version", json_integer(in->driver_version));
  return cli_json_print(json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "version",
                                  flp_version(), "driver", driver, "devices", devices_json(in), "architectures",
                                  doctor_stamps_json(in->stamps, in->stamp_count), "generator", generator,
                                  "eager", finding_json(&in->eager), "cache", directory_json(&in->cache), "generic",
                                  directory_json(&in->generic), "paths", doctor_paths_json(in->paths, in->path_count),
                                  "rungs", rungs, "plan", finding_json(&in->plan), "health", finding_json(&in->health),
                                  "settings", settings_json()));
}

/* ---- for people ---- */

static const char *state_of(const finding *in) {
  return in->works ? "ok" : "no";
}

static int is_all_bad(const directory *in) {
  return in->entries && in->bad == in->entries;
}

static const char *state_of_directory(const directory *in) {
  if (!in->exists) return in->can_be_made ? "ok" : "no";
  return is_all_bad(in) ? "bad" : "ok";
}

static void add_directory(cli_table *table, const char *name, const directory *in) {
  char text[256];
  snprintf(text, sizeof text, "%llu entries, %s, %llu bad, %s", (unsigned long long)in->entries,
           cli_bytes((double)in->bytes).text, (unsigned long long)in->bad, in->is_writable ? "writable" : "read-only");
  const char *what = in->exists ? text : in->can_be_made ? "not there yet; it is made when needed" : in->problem;
  cli_table_add(table, name, state_of_directory(in), what, in->path, NULL);
  if (in->bad) cli_table_note(table, "first bad one: %s", in->bad_reason);
}

static void print_parts(const examination *in) {
  cli_table table;
  char generator[DETAIL_BYTES + 64];
  cli_table_start(&table, "part", "state", "what", "where", NULL);
  cli_table_may_move(&table, 3, "");
  cli_table_add(&table, "flpgen", "ok", flp_version(), NULL);
  cli_table_add(&table, "driver", state_of(&in->driver), in->driver.text, NULL);
  for (int i = 0; i < in->device_count; i++) {
    const flp_device *device = &in->devices[i];
    cli_table_addf(&table, "GPU %d\tok\t%s, sm_%d%d, %d multiprocessors, %s", i, device->name, device->major,
                   device->minor, device->multiprocessors, cli_bytes((double)device->memory_bytes).text);
  }
  doctor_stamps_add(in->stamps, in->stamp_count, &table);
  snprintf(generator, sizeof generator, "%s", in->generator.text);
  if (in->generator.works)
    snprintf(generator, sizeof generator, "%.*s, %.0f ms a small module, sources %s", DETAIL_BYTES, in->generator.text,
             1e3 * in->generator_seconds, in->sources);
  cli_table_add(&table, "generator", state_of(&in->generator), generator, in->generator_path, NULL);
  cli_table_add(&table, "CPU rung", state_of(&in->eager), in->eager.text, NULL);
  add_directory(&table, "cache", &in->cache);
  add_directory(&table, "generic", &in->generic);
  cli_table_finish(&table);
}

/* Rungs, and in one line those that lack a driver. */
static void print_rungs(const examination *in) {
  cli_table table;
  const char *driver = in->driver.works ? "" : in->driver.text;
  cli_table_start(&table, "rung", "state", "for a spec of bf16 V=1024 D=64", NULL);
  for (int rung = FLP_RUNG_TUNED; rung <= FLP_RUNG_EAGER; rung++) {
    const finding *found = &in->rungs[rung];
    if (found->works || strcmp(found->text, driver) != 0)
      cli_table_add(&table, flp_rung_name((flp_rung)rung), state_of(found), found->text, NULL);
  }
  cli_table_finish(&table);
  if (driver[0]) cli_print(2, "no GPU rung: %s", driver);
  cli_print(2, in->plan.works ? "a plan takes rung %s" : "a plan fails: %s", in->plan.text);
}

static void print_settings(void) {
  cli_table table;
  cli_table_start(&table, "setting", "from", "value", "meaning", NULL);
  cli_table_may_move(&table, 3, "");
  for (int i = 0; i < FLP_SETTING_COUNT; i++) {
    flp_setting setting;
    char unset[sizeof setting.unset + 16];
    flp_setting_get((flp_setting_id)i, &setting);
    snprintf(unset, sizeof unset, "(unset: %s)", setting.unset);
    cli_table_add(&table, setting.name, setting.source, setting.value[0] ? setting.value : unset, setting.help, NULL);
  }
  cli_table_finish(&table);
}

static void print_text(const examination *in) {
  print_parts(in);
  puts("");
  doctor_paths_print(in->paths, in->path_count);
  puts("");
  print_rungs(in);
  puts("");
  print_settings();
}

/* ---- what is required ---- */

/* 1 if a cache or a pack holds kernels, or kernels tuned for a device of this machine. */
static int has_kernels(const examination *in, int tuned) {
  for (int i = 0; i < in->path_count; i++)
    if (!in->paths[i].problem[0] &&
        (tuned ? in->paths[i].tuned_here : in->paths[i].entries > in->paths[i].other_sources))
      return 1;
  return 0;
}

/* Packs that are of no use, or a directory that another flp filled, and not a kernel that a plan would take. */
static flp_status check_paths(const examination *in) {
  if (has_kernels(in, 0)) return FLP_OK;
  for (int i = 0; i < in->path_count; i++) {
    const doctor_path *path = &in->paths[i];
    if (path->problem[0] && (path->is_pack || path->other_sources))
      return flp_fail(FLP_ERROR_UNAVAILABLE, "FLP_CACHE_PATH: %s", path->problem);
  }
  return FLP_OK;
}

/* Whether the rung works for the spec that was tried, or has kernels for others. */
static int rung_works(const examination *in, int rung) {
  if (in->rungs[rung].works) return 1;
  return rung <= FLP_RUNG_HEURISTIC && in->device_count && has_kernels(in, rung == FLP_RUNG_TUNED);
}

static int any_gpu_rung(const examination *in) {
  for (int rung = FLP_RUNG_TUNED; rung <= FLP_RUNG_GENERIC; rung++)
    if (in->rungs[rung].works) return 1;
  return 0;
}

/* who: what asks for the rung. error: UNAVAILABLE */
static flp_status require(const examination *in, const char *who, int rung) {
  if (rung == REQUIRE_NOTHING) return FLP_OK;
  if (rung == CLI_REQUIRE_GPU)
    return any_gpu_rung(in) ? FLP_OK
                            : flp_fail(FLP_ERROR_UNAVAILABLE, "%s: no GPU rung works: %s", who,
                                       in->rungs[FLP_RUNG_GENERIC].text);
  if (rung_works(in, rung)) return FLP_OK;
  return flp_fail(FLP_ERROR_UNAVAILABLE, "%s: rung %s does not work: %s", who, flp_rung_name((flp_rung)rung),
                  in->rungs[rung].text);
}

/* What --require, FLP_FORCE and FLP_STRICT ask for. */
static flp_status judge(const examination *in, const doctor_args *args) {
  flp_setting force;
  int forced = FLP_RUNG_AUTO;
  if (!in->any_rung) return flp_fail(FLP_ERROR_UNAVAILABLE, "no rung works");
  FLP_TRY(require(in, "--require", args->require));
  flp_setting_get(FLP_SETTING_FORCE, &force);
  if (force.value[0]) FLP_TRY(cli_parse_choice("FLP_FORCE", force.value, FLP_RUNG_WORDS, &forced));
  if (forced != FLP_RUNG_AUTO) return require(in, "FLP_FORCE", forced);
  FLP_TRY(check_paths(in));
  if (!in->plan.works && !(in->device_count && has_kernels(in, 0))) /* else they may be those that a program needs */
    return flp_fail(FLP_ERROR_UNAVAILABLE, "%s", in->plan.text);
  if (!is_all_bad(&in->generic)) return FLP_OK; /* bad entries of the cache are made anew */
  return flp_fail(FLP_ERROR_CORRUPT, "%s: not one of %llu generic kernels can be used: %s", in->generic.path,
                  (unsigned long long)in->generic.entries, in->generic.bad_reason);
}

static const struct argp_option options[] = {
    {"require", KEY_REQUIRE, "RUNG", 0,
     "fail unless this rung works: tuned, heuristic, jit, generic, eager, or gpu for any but eager", 0},
    {"json", CLI_SWITCH(doctor_args, json), NULL, 0, "print one JSON document", 0},
    {0}};

static const cli_value values[] = {{KEY_REQUIRE, CLI_IS_WORD, CLI_PLACE(doctor_args, require), .words = CLI_REQUIRED},
                                   {0}};

const cli_values cli_doctor_argp = {
    CLI_OPTIONS(options, cli_values_parse, values),
    .argp.doc =
        "Shows what this machine offers: driver, GPUs, generator, caches, rungs and where every setting comes from."
        "\vFails with exit status 3 if no rung works, if --require or FLP_FORCE names one that does not, or if "
        "FLP_STRICT lets no plan be made, or if packs and directories of FLP_CACHE_PATH hold nothing but what cannot "
        "be used or another flp has made, and with 4 if there are generic kernels and none of them can be used. For "
        "tuned and heuristic, and under FLP_STRICT, kernels of any specialisation in a cache or pack count. In JSON, "
        "`health` is what fails.\n\n"
        "Examples:\n"
        "  flpgen doctor\n"
        "  flpgen doctor --require gpu --json\n\n" CLI_EXIT_HELP};

int cli_doctor(int argc, char **argv) {
  doctor_args args = {.json = 0};
  cli_parse(&cli_doctor_argp, argc, argv, &args);
  examination *found = calloc(1, sizeof *found);
  flp_status status = found ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "out of memory");
  flp_log_set(NULL, NULL); /* the tables have it all */
  if (status == FLP_OK) {
    examine(found);
    flp_status health = judge(found, &args);
    set_finding(&found->health, health, "");
    if (args.json)
      status = print_json(found);
    else
      print_text(found);
    if (status == FLP_OK) {
      if (health != FLP_OK) status = flp_fail(health, "%s", found->health.text);
      args.json = 0; /* the document is out */
    }
  }
  free(found);
  return cli_finish(argv[0], args.json, status);
}

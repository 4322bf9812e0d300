/* golden_plan.c: the commands of golden.h about plans: what they are made of and why, and what the API refuses. */
#include <criterion/criterion.h>
#include <glob.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/api/validate.h"
#include "runtime/eager/eager.h"
#include "tests/unit/support/golden.h"
#include "tests/unit/support/kernel_sample.h"
#include "tests/unit/support/words.h"

enum { TEXT_BYTES = 8192 };

/* ---- texts ---- */

/* Puts one in the place of the other, wherever it stands. */
static void replace(char text[TEXT_BYTES], const char *what, const char *with) {
  char rest[TEXT_BYTES];
  for (char *at = text; *what && (at = strstr(at, what)); at += strlen(with)) {
    snprintf(rest, sizeof rest, "%s", at + strlen(what));
    snprintf(at, TEXT_BYTES - (size_t)(at - text), "%s%s", with, rest);
  }
}

typedef struct place {
  const char *name, *path;
} place;

enum { PLACES = 4 };

/* What differs from machine to machine. */
static void find_places(const golden *g, place out[PLACES]) {
  const place all[PLACES] = {{"$PROVIDER", GOLDEN_PROVIDER},
                             {"$CUDA", GOLDEN_CUDA},
                             {"$FLPGEN", GOLDEN_FLPGEN},
                             {"$ROOT", g->s.root}};
  memcpy(out, all, sizeof all);
}

/* Hashes of the sources, and names of entries, which are made of them. */
static void hide_hashes(char text[TEXT_BYTES]) {
  for (char *at = text; *at; at++) {
    size_t digits = strspn(at, "0123456789abcdef");
    if (digits == 16 || digits == 64) memmove(at, at + digits, strlen(at + digits) + 1);
    else if (digits) at += digits - 1;
  }
}

void golden_put(golden *g, const char *before, const char *given) {
  char text[TEXT_BYTES];
  place places[PLACES];
  snprintf(text, sizeof text, "%s", given);
  find_places(g, places);
  for (int i = 0; i < PLACES; i++) replace(text, places[i].path, places[i].name);
  hide_hashes(text);
  fprintf(g->out, "%s%s\n", before, text);
}

static void take_places(const golden *g, const char *words, char out[TEXT_BYTES]) {
  place places[PLACES];
  snprintf(out, TEXT_BYTES, "%s", words);
  find_places(g, places);
  for (int i = 0; i < PLACES; i++) replace(out, places[i].name, places[i].path);
}

/* Ids by the order in which they come. */
static int number_of_id(golden *g, const char *id) {
  int i = 0;
  while (i < g->id_count && strcmp(g->ids[i], id) != 0) i++;
  cr_assert_lt(i, GOLDEN_IDS);
  if (i == g->id_count) snprintf(g->ids[g->id_count++], sizeof g->ids[0], "%s", id);
  return i + 1;
}

/* ---- the scene ---- */

/* An empty cache, and the device of those words. */
static void set_stage(golden *g, const char *words) {
  golden_open(g, words);
  g->logged = 0;
  snprintf(g->device, sizeof g->device, "%s", words);
  g->made = g->s.provider_calls();
}

static void set_environment(golden *g, const char *words) {
  (void)g;
  char *text = strdup(words), *value = strchr(text, '=');
  if (value) *value++ = 0;
  if (value) setenv(text, value, 1);
  else unsetenv(text);
  free(text);
}

/* "NAME": a folder of $ROOT. */
static void path_of(const golden *g, const char *words, char out[512]) {
  snprintf(out, 512, "%s/%.*s", g->s.root, (int)strcspn(words, " "), words);
}

static void fill(golden *g, const char *words) {
  char path[512], arch[WORDS_BYTES] = "sm_80", tune[WORDS_BYTES] = "", device[64], other[WORDS_BYTES];
  stage_filling how = {.arch = arch, .tune = tune, .tuned_for = device};
  path_of(g, words, path);
  words += strcspn(words, " ");
  words_find(words, "arch", arch);
  words_find(words, "tune", tune);
  snprintf(device, sizeof device, "Fake H200/132/%d", (int)words_number(words, "driver", 0));
  if (!words_find(words, "driver", other)) how.tuned_for = NULL;
  how.generic = words_find(words, "generic", other);
  how.chunk_rows = (uint32_t)words_number(words, "chunk_rows", 0);
  how.chunk_vocab = (uint32_t)words_number(words, "chunk_vocab", 0);
  flp_spec resolved;
  cr_assert_eq(flp_spec_resolve(&g->spec, &resolved), FLP_OK, "%s", flp_error_detail());
  stage_fill(path, &resolved, how);
  g->made = g->s.provider_calls();
}

/* "ARCH": a stamp that proves it on the device, or refutes it for the reason behind. */
static void prove(golden *g, const char *words) {
  char arch[16], reason[FLP_PROOF_REASON_BYTES], cache[512];
  const flp_driver *driver;
  flp_device device;
  flp_store *store;
  snprintf(arch, sizeof arch, "%.*s", (int)strcspn(words, " "), words);
  words += strcspn(words, " ");
  snprintf(reason, sizeof reason, "%s", words + (*words == ' '));
  flp_proof proof = {.verdict = reason[0] ? FLP_VERDICT_REFUTED : FLP_VERDICT_PROVEN, .time = 1700000000};
  memcpy(proof.reason, reason, sizeof reason);
  path_of(g, "cache", cache);
  cr_assert(flp_driver_get(&driver) == FLP_OK && flp_device_get(driver, 0, &device) == FLP_OK);
  flp_proof_of of = flp_unproven_key(&device, driver->version, flp_arch_find(arch));
  cr_assert_eq(flp_store_open(cache, NULL, &store), FLP_OK);
  cr_assert_eq(flp_proof_write(store, &of, &proof), FLP_OK, "%s", flp_error_detail());
  flp_store_close(store);
}

/* Another byte in each file of a cache. */
static void spoil(golden *g, const char *words) {
  char pattern[520];
  glob_t files;
  path_of(g, words, pattern);
  strcat(pattern, "/*.flpk");
  cr_assert_eq(glob(pattern, 0, NULL, &files), 0, "%s", pattern);
  for (size_t i = 0; i < files.gl_pathc; i++) {
    FILE *file = fopen(files.gl_pathv[i], "r+");
    cr_assert(file && fseek(file, (long)words_number(words, "at", 0), SEEK_SET) == 0 && fputc('X', file) == 'X');
    fclose(file);
  }
  globfree(&files);
}

static void run_shell(golden *g, const char *words) {
  char line[TEXT_BYTES];
  FILE *shell = popen(words, "r");
  cr_assert_not_null(shell);
  while (fgets(line, sizeof line, shell)) fputs(line, g->out);
  cr_assert_eq(pclose(shell), 0, "%s", words);
}

/* ---- plans ---- */

static void put_tilings(golden *g) {
  char text[FLP_TUNABLES_TEXT_BYTES];
  for (int i = 0; i < g->plan->modules.count; i++) {
    const flp_kernel_key *key = &g->plan->modules.desc[i].key;
    flp_tunables_text(&key->tune, text);
    if (strcmp(text, "own") != 0) fprintf(g->out, "  %s: %s\n", flp_kernel_kind_name(key->kind), text);
  }
  const flp_planner *p = &g->plan->planner;
  if (g->plan->rung == FLP_RUNG_EAGER || (!p->tuned_mode && !p->tuned_step_rows)) return;
  fprintf(g->out, "  prefers %s, %" PRId64 " x %" PRId64 ", steps of %" PRId64 "\n", flp_mode_name(p->tuned_mode),
          p->tuned_rows, p->tuned_vocab, p->tuned_step_rows);
}

/* A line for each part. */
static void put_description(golden *g) {
  char text[TEXT_BYTES], id[17], number[20];
  cr_assert_eq(flp_plan_describe(g->plan, text, sizeof text), FLP_OK);
  cr_assert_eq(flp_plan_get_id(g->plan, id), FLP_OK);
  snprintf(number, sizeof number, "#%d", number_of_id(g, id));
  replace(text, id, number);
  if (g->plan->rung == FLP_RUNG_EAGER) replace(text, flp_eager_describe(), "...");
  cr_expect(g->plan->rung == FLP_RUNG_EAGER || strstr(text, flp_plan_get_reason(g->plan, FLP_RUNG_AUTO)));
  replace(text, "; ", "\n  ");
  golden_put(g, "", text);
}

/* What was logged since the last one but for what is told already, each reason and each kernel that was generated, and
 * what depends on the machine, its BLAS. */
static int is_told(const char *line) {
  static const char *const told[] = {"2 generated kernel ", "2 rung ", "2 the CPU rung multiplies "};
  for (size_t i = 0; i < sizeof told / sizeof told[0]; i++)
    if (strncmp(line, told[i], strlen(told[i])) == 0) return 1;
  return 0;
}

static void put_messages(golden *g) {
  char *text = strdup(stage_messages() + g->logged);
  g->logged += strlen(text);
  for (char *rest = text, *line; (line = strsep(&rest, "\n"));)
    if (*line && !is_told(line)) golden_put(g, "  log ", line);
  free(text);
}

static void plan(golden *g, const char *words) {
  char all[TEXT_BYTES];
  snprintf(all, sizeof all, "rung=auto %s", words);
  g->options = words_options(all);
  g->s.reset();
  flp_status status = flp_plan_create(&g->spec, &g->options, &g->plan);
  if (status == FLP_OK) put_description(g);
  else golden_refused(g, status);
  if (g->plan) put_tilings(g);
  if (!g->s.calls(NULL)) fprintf(g->out, "  no call of the driver\n");
  int made = g->s.provider_calls() - g->made;
  if (made) fprintf(g->out, "  %d generated\n", made);
  g->made += made;
  put_messages(g);
}

/* How often each text stands in the list of the driver's calls. */
static void put_calls(golden *g, const char *words) {
  char *texts = strdup(words), *rest = texts;
  for (char *text; (text = strsep(&rest, " "));) fprintf(g->out, "%s %d\n", text, stage_called(&g->s, text));
  free(texts);
}

/* All that was logged on this stage. */
static void put_log(golden *g, const char *words) {
  (void)words;
  golden_put(g, "", stage_messages());
}

static const flp_plan *present_plan(golden *g) {
  if (!g->plan) cr_assert_eq(flp_plan_create(&g->spec, NULL, &g->plan), FLP_OK, "%s", flp_error_detail());
  return g->plan;
}

/* ---- queries of a plan ---- */

static void query(golden *g, const char *words) {
  char name[64], other[WORDS_BYTES];
  const flp_plan *of = present_plan(g);
  flp_layout l = FLP_LAYOUT_INIT;
  uint64_t budget = words_number(words, "budget", 0);
  int64_t n = (int64_t)words_number(words, "n", 0), count = (int64_t)words_number(words, "list_count", 0);
  snprintf(name, sizeof name, "%.*s", (int)strcspn(words, " "), words);
  flp_pass pass = words_pass(name) ? words_pass(name) : (flp_pass)atoi(name);
  flp_status status = words_find(words, "list_count", other)
                         ? flp_plan_layout_listed(of, pass, n, count, budget, &l)
                                  : flp_plan_layout(of, pass, n, budget, &l);
  if (status != FLP_OK) golden_refused(g, status);
  else
    fprintf(g->out, "%s, %" PRId64 " x %" PRId64 " in %" PRId64 ", products=%d launches=%d bytes=%" PRIu64
            " smallest=%" PRIu64 " saved=%" PRIu64 "\n", flp_mode_name(l.mode), l.chunk_rows, l.chunk_vocab, l.chunks,
            l.products, l.launches, l.bytes, l.smallest_bytes, l.saved_bytes);
}

/* Of the plan, and the most that a plan of its spec can keep. */
static void saved(golden *g, const char *words) {
  size_t bytes = 0, most = 0;
  int64_t n = (int64_t)words_number(words, "n", 0);
  uint64_t budget = words_number(words, "budget", 0);
  flp_status status = flp_plan_saved(present_plan(g), n, budget, &bytes);
  if (status == FLP_OK) status = flp_spec_saved(&g->spec, n, budget, &most);
  if (status == FLP_OK) fprintf(g->out, "saved=%zu, at most %zu\n", bytes, most);
  else golden_refused(g, status);
}

static void names(golden *g, const char *words) {
  char text[FLP_SPEC_TEXT_BYTES], command[FLP_TUNE_COMMAND_BYTES];
  flp_spec spec = g->spec;
  words_change_spec(&spec, words);
  flp_plan_spec_text(&spec, text);
  flp_plan_tune_command(&spec, command);
  fprintf(g->out, "%s\n%s\n", text, command);
}

/* The key of each kernel that the spec asks for, without its zeros. */
static void kernels(golden *g, const char *words) {
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  flp_spec spec = g->spec;
  words_change_spec(&spec, words + strcspn(words, " "));
  char arch[16], bytes[FLP_KEY_BYTES_MAX];
  snprintf(arch, sizeof arch, "%.*s", (int)strcspn(words, " "), words);
  int count = flp_kernel_keys_for(&spec, arch, keys);
  for (int i = 0; i < count; i++) {
    cr_assert_gt(flp_kernel_key_bytes(&keys[i], flp_sources_hash(), "", bytes, sizeof bytes), 0);
    *strstr(bytes, " tune=") = 0;
    fprintf(g->out, "%s", flp_kernel_kind_name(keys[i].kind));
    char *rest = strstr(bytes, "arch=");
    for (char *word; (word = strsep(&rest, " "));) {
      const char *value = strchr(word, '=') + 1;
      if (strcmp(value, "0") != 0 && strcmp(value, "none") != 0) fprintf(g->out, " %s", word);
    }
    fputc('\n', g->out);
  }
}

static int has_several(unsigned parts) {
  return (parts & (parts - 1)) != 0;
}

/* The bytes of a key with all that its kind uses, of sources that never change. */
static void put_key(golden *g, const char *words) {
  static const uint8_t sources[32] = {0x00, 0x01, 0xab, 0xff};
  char kind[32], bytes[FLP_KEY_BYTES_MAX];
  snprintf(kind, sizeof kind, "%.*s", (int)strcspn(words, " "), words);
  const char *device = words[strlen(kind)] ? words + strlen(kind) + 1 : NULL;
  flp_kernel_key key = sample_key(flp_kind_find(kind, strlen(kind)));
  cr_expect_eq(flp_kernel_key_bytes(&key, sources, device, bytes, sizeof bytes), strlen(bytes));
  fprintf(g->out, "%s\n", bytes);
}

/* The facts of each: the first say which fields its key has. */
static void kinds(golden *g, const char *words) {
  static const char *const facts[] = {"target",     "out",         "entropy", "bias",  "bias_grad", "alignment",
                                      "hidden",     "vocab",       "tune",    "loss",  "fp64",      "tiled",
                                      "units",      "chunk_rows",  "chunk_vocab", "linked", "adds", "indexed", "lora"};
  (void)words;
  for (int kind = 1; kind < FLP_KERNEL_KINDS; kind++) {
    if (has_several(flp_kind_parts((flp_kernel_kind)kind))) continue;
    fprintf(g->out, "%s", flp_kernel_kind_name((flp_kernel_kind)kind));
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
      if (flp_kind_of((flp_kernel_kind)kind)->facts >> i & 1) fprintf(g->out, " %s", facts[i]);
    fputc('\n', g->out);
  }
}

/* What kernels that were compiled before rely on: a change here is one of the ABI. Several parts of forward have what
 * each has. */
static void signatures(golden *g, const char *words) {
  char letters[FLP_ABI_PARAMS_MAX + 1];
  (void)words;
  for (int i = 0; i < FLP_ENTRY_ID_COUNT; i++) {
    const flp_abi_entry *entry = flp_abi_of((flp_entry_id)i);
    if (!has_several(entry->parts)) fprintf(g->out, "%s %s\n", entry->name, flp_abi_signature(entry, letters));
  }
}

/* ---- what is taken ---- */

static double field_value(const flp_field *field, const flp_spec *spec) {
  if (field->kind == FLP_FIELD_LOSS) return spec->loss != NULL;
  int is_real = field->kind == FLP_FIELD_NUMBER || field->kind == FLP_FIELD_SHARE;
  return is_real ? (double)flp_field_number(field, spec) : (double)flp_field_get(field, spec);
}

/* What is filled in. */
static void put_spec(golden *g, const flp_spec *given, const flp_spec *spec) {
  fprintf(g->out, "taken:");
  for (int i = 0; i < FLP_SPEC_FIELD_COUNT; i++) {
    const flp_field *field = &FLP_SPEC_FIELD[i];
    double value = field_value(field, spec);
    if (value != field_value(field, given)) fprintf(g->out, " %s=%.10g", field->name, value);
  }
  fputc('\n', g->out);
}

static void put_args(golden *g, const flp_args *given, const flp_args *args) {
  fprintf(g->out, "taken:");
  for (const words_argument *row = WORDS_ARGUMENT; row->name; row++) {
    int64_t before = 0, value = 0;
    size_t bytes = row->type == 'i' || row->type == 'f' ? 4 : 8;
    memcpy(&before, (const char *)given + row->offset, bytes);
    memcpy(&value, (const char *)args + row->offset, bytes);
    if (value != before) fprintf(g->out, " %s=%" PRId64, row->name, value);
  }
  fputc('\n', g->out);
}

/* Words behind " / " change the spec. */
static void resolve_call(golden *g, flp_pass pass, const char *words) {
  char all[TEXT_BYTES];
  flp_spec spec = g->spec, resolved;
  flp_args out;
  snprintf(all, sizeof all, "%s %s", g->args, words);
  char *of_spec = strstr(all, " / ");
  if (of_spec) *of_spec = 0, words_change_spec(&spec, of_spec + 3);
  flp_args args = stage_args(&g->spec, pass, 0);
  words_change_fields(&args, WORDS_ARGUMENT, all);
  flp_status status = flp_spec_resolve(&spec, &resolved);
  if (status == FLP_OK) status = flp_args_resolve(&resolved, &args, &out);
  if (status == FLP_OK) put_args(g, &args, &out);
  else golden_refused(g, status);
}

static void resolve_spec(golden *g, const char *words) {
  flp_spec spec = g->spec, out;
  words_change_spec(&spec, words);
  flp_status status = flp_spec_resolve(&spec, &out);
  if (status == FLP_OK) put_spec(g, &spec, &out);
  else golden_refused(g, status);
}

static void resolve_options(golden *g, const char *words) {
  char all[TEXT_BYTES];
  snprintf(all, sizeof all, "rung=auto %s", words);
  flp_options given = words_options(all), out;
  flp_status status = flp_options_resolve(&given, &out);
  if (status == FLP_OK)
    fprintf(g->out, "taken: device=%d rung=%s strict=%d budget_bytes=%" PRIu64 "\n", out.device,
            flp_rung_name(out.rung), out.strict, out.budget_bytes);
  else golden_refused(g, status);
}

static void resolve(golden *g, const char *words) {
  char what[64];
  snprintf(what, sizeof what, "%.*s", (int)strcspn(words, " "), words);
  words += strlen(what);
  if (strcmp(what, "spec") == 0) resolve_spec(g, words);
  else if (strcmp(what, "options") == 0) resolve_options(g, words);
  else if (golden_resolve_other(g, what, words)) return;
  else resolve_call(g, words_pass(what), words);
}

static void set_args(golden *g, const char *words) {
  snprintf(g->args, sizeof g->args, "%s", words);
}

/* ---- all of them ---- */

int golden_plan_command(golden *g, const char *command, const char *words) {
  static const struct {
    const char *name;
    int drops; /* the present plan */
    void (*run)(golden *g, const char *words);
  } commands[] = {{"stage", 1, set_stage},  {"env", 0, set_environment}, {"fill", 0, fill},
                  {"spoil", 0, spoil},      {"shell", 0, run_shell},     {"plan", 1, plan},
                  {"query", 0, query},      {"saved", 0, saved},         {"names", 0, names},
                  {"kernels", 0, kernels},  {"key", 0, put_key},         {"resolve", 0, resolve},
                  {"args", 0, set_args},    {"log", 0, put_log},         {"calls", 0, put_calls},
                  {"kinds", 0, kinds},      {"signatures", 0, signatures}, {"prove", 0, prove}};
  char text[TEXT_BYTES];
  take_places(g, words, text);
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
    if (strcmp(commands[i].name, command) != 0) continue;
    if (commands[i].drops) golden_drop_plan(g);
    commands[i].run(g, text);
    return 1;
  }
  return golden_other_command(g, command, text);
}

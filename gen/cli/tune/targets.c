/* targets.c: which specialisations are tuned: the one of the options, shapes of a list, presets of popular
 * models. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/kernels/kernels.h"
#include "gen/cli/tune/targets.h"
#include "runtime/api/validate.h"
#include "runtime/base/number.h"

enum { PRESETS_BYTES_MAX = 1 << 20, TARGETS_MOST = 1024 };

/* ---- the preset file ---- */

/* Fields of a preset. Whole numbers are at least `least`. */
static const struct {
  const char *name;
  json_type type;
  int needed;
  double least;
} fields[] = {{"name", JSON_STRING, 1, 0},   {"vocab", JSON_INTEGER, 1, 2}, {"hidden", JSON_INTEGER, 1, 8},
              {"source", JSON_STRING, 1, 0}, {"softcap", JSON_REAL, 0, 0},  {"scale", JSON_REAL, 0, 0},
              {"bias", JSON_TRUE, 0, 0}};
enum { FIELDS = sizeof fields / sizeof fields[0] };

/* What is wrong with a value of field f, or NULL. */
static const char *wrong_value(size_t f, const json_t *value) {
  if (!value) return fields[f].needed ? "missing" : NULL;
  switch (fields[f].type) {
    case JSON_STRING:
      if (!json_is_string(value)) return "no text";
      return json_string_length(value) ? NULL : "empty";
    case JSON_INTEGER:
      if (!json_is_integer(value)) return "no whole number";
      return json_integer_value(value) < (json_int_t)fields[f].least ? "too small" : NULL;
    case JSON_REAL:
      if (!json_is_number(value)) return "no number";
      return flp_number_is_positive(json_number_value(value)) ? NULL : "not from " FLP_NUMBER_RANGE;
    default:
      return json_is_boolean(value) ? NULL : "neither true nor false";
  }
}

static int is_field(const char *name) {
  for (size_t f = 0; f < FIELDS; f++)
    if (strcmp(fields[f].name, name) == 0) return 1;
  return 0;
}

static flp_status check_preset(const char *path, size_t i, json_t *preset) {
  const char *key;
  json_t *value;
  if (!json_is_object(preset)) return flp_fail(FLP_ERROR_CORRUPT, "%s: preset %zu is not an object", path, i);
  json_object_foreach(preset, key, value) {
    if (!is_field(key)) return flp_fail(FLP_ERROR_CORRUPT, "%s: preset %zu: %.64s is not known", path, i, key);
  }
  for (size_t f = 0; f < FIELDS; f++) {
    const char *wrong = wrong_value(f, json_object_get(preset, fields[f].name));
    if (wrong) return flp_fail(FLP_ERROR_CORRUPT, "%s: preset %zu: %s is %s", path, i, fields[f].name, wrong);
  }
  if (strchr(json_string_value(json_object_get(preset, "name")), ','))
    return flp_fail(FLP_ERROR_CORRUPT, "%s: preset %zu: name has a comma, which divides names", path, i);
  return FLP_OK;
}

flp_status tune_presets_read(const char *path, json_t **out) {
  char *text = NULL;
  size_t bytes = 0;
  const char *name = path ? path : "presets";
  json_error_t error;
  if (path) FLP_TRY(cli_read_file(path, PRESETS_BYTES_MAX, &text, &bytes));
  *out = json_loads(text ? text : (const char *)tune_presets_text, JSON_REJECT_DUPLICATES, &error);
  free(text);
  if (!*out) return flp_fail(FLP_ERROR_CORRUPT, "%s: not JSON: %s (line %d)", name, error.text, error.line);
  json_t *presets = json_object_get(*out, "presets");
  flp_status status = FLP_OK;
  if (!json_is_array(presets) || json_array_size(presets) > TARGETS_MOST)
    status = flp_fail(FLP_ERROR_CORRUPT, "%s: presets is no list of at most %d", name, (int)TARGETS_MOST);
  for (size_t i = 0; status == FLP_OK && i < json_array_size(presets); i++)
    status = check_preset(name, i, json_array_get(presets, i));
  if (status != FLP_OK) {
    json_decref(*out);
    *out = NULL;
  }
  return status;
}

/* ---- targets ---- */

/* A name, or as much of the end of a path as fits. */
static void set_model(tune_target *target, const char *model) {
  size_t length = strlen(model), most = sizeof target->model - 1;
  if (length <= most)
    snprintf(target->model, sizeof target->model, "%s", model);
  else
    snprintf(target->model, sizeof target->model, "...%s", model + length - (most - 3));
}

/* What was timed in recompute mode, or over other chunks, is another thing: --resume identifies targets by their
 * text. */
static flp_status set_text(const tune_args *args, tune_target *target) {
  flp_options resolved;
  char workspace[40] = "";
  FLP_TRY(flp_options_resolve(&args->options, &resolved));
  if (resolved.budget_bytes)
    snprintf(workspace, sizeof workspace, " workspace=%llu", (unsigned long long)resolved.budget_bytes);
  cli_spec_text(&target->spec, target->text, sizeof target->text);
  size_t used = strlen(target->text);
  snprintf(target->text + used, sizeof target->text - used, "%s%s",
           args->options.mode == FLP_MODE_STREAM ? " mode=stream" : "", workspace);
  return FLP_OK;
}

static flp_status add(const tune_args *args, tune_targets *out, const flp_spec *given, double scale,
                      const char *model) {
  flp_spec spec = *given;
  cli_spec_args_complete(&args->spec, &spec);
  if (out->count == TARGETS_MOST)
    return flp_fail(FLP_ERROR_ARGUMENT, "at most %d specialisations are accepted", (int)TARGETS_MOST);
  tune_target *target = &out->items[out->count];
  *target = (tune_target){.scale = scale};
  FLP_TRY(flp_spec_resolve(&spec, &target->spec));
  if (!flp_kernel_tunable_kinds(&target->spec))
    return flp_fail(FLP_ERROR_ARGUMENT, "--alignment: expected 16, got %u; other kernels leave nothing to tune",
                    (unsigned)target->spec.alignment);
  FLP_TRY(cli_spec_check_tiling("--include", args->include, &target->spec));
  set_model(target, model ? model : "");
  FLP_TRY(set_text(args, target));
  for (int i = 0; i < out->count; i++)
    if (strcmp(out->items[i].text, target->text) == 0) return FLP_OK; /* heads of the same shape are one */
  out->count++;
  return FLP_OK;
}

static flp_status add_shapes(const tune_args *args, tune_targets *out) {
  char *copy = strdup(args->shapes);
  flp_status status = copy ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "out of memory");
  for (char *word = copy, *next; status == FLP_OK && word; word = next) {
    next = strchr(word, ',');
    if (next) *next++ = 0;
    char *by = strchr(word, 'x');
    flp_spec spec = args->spec.spec;
    if (by) *by++ = 0;
    status = by ? cli_parse_integer("--shapes", word, 2, INT32_MAX, &spec.vocab)
                : flp_fail(FLP_ERROR_ARGUMENT, "--shapes: expected VOCABxHIDDEN, got '%s'", word);
    if (status == FLP_OK) status = cli_parse_integer("--shapes", by, 8, INT32_MAX, &spec.hidden);
    if (status == FLP_OK) status = add(args, out, &spec, args->spec.scale, NULL);
  }
  free(copy);
  return status;
}

static flp_status add_preset(const tune_args *args, const json_t *preset, tune_targets *out) {
  flp_spec spec = args->spec.spec;
  const json_t *scale = json_object_get(preset, "scale");
  const char *name = json_string_value(json_object_get(preset, "name"));
  spec.vocab = json_integer_value(json_object_get(preset, "vocab"));
  spec.hidden = json_integer_value(json_object_get(preset, "hidden"));
  if (!args->spec.has_softcap) spec.softcap = (float)json_number_value(json_object_get(preset, "softcap"));
  if (json_is_true(json_object_get(preset, "bias"))) spec.has_bias = 1;
  flp_status status = add(args, out, &spec, scale ? json_number_value(scale) : args->spec.scale, name);
  return status == FLP_OK ? FLP_OK : flp_fail(status, "preset %.64s: %s", name, flp_error_detail());
}

static flp_status no_preset(const json_t *presets, const char *word) {
  char names[1024] = "";
  size_t i;
  json_t *preset;
  json_array_foreach(presets, i, preset) {
    size_t used = strlen(names);
    snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "",
             json_string_value(json_object_get(preset, "name")));
  }
  return flp_fail(FLP_ERROR_ARGUMENT, "--preset: expected all, or any of %s, got '%.64s'", names, word);
}

/* Those of that name, or of every name. */
static flp_status add_named(const tune_args *args, const json_t *presets, const char *word, tune_targets *out) {
  size_t i;
  json_t *preset;
  int found = 0, all = strcmp(word, "all") == 0;
  json_array_foreach(presets, i, preset) {
    if (!all && strcmp(word, json_string_value(json_object_get(preset, "name"))) != 0) continue;
    found = 1;
    FLP_TRY(add_preset(args, preset, out));
  }
  return found ? FLP_OK : no_preset(presets, word);
}

static flp_status add_presets(const tune_args *args, tune_targets *out) {
  json_t *file = NULL;
  FLP_TRY(tune_presets_read(args->preset_file, &file));
  char *copy = strdup(args->preset ? args->preset : "all");
  flp_status status = copy ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "out of memory");
  for (char *word = copy, *next; status == FLP_OK && word; word = next) {
    next = strchr(word, ',');
    if (next) *next++ = 0;
    status = add_named(args, json_object_get(file, "presets"), word, out);
  }
  free(copy);
  json_decref(file);
  return status;
}

/* One list of heads at a time: the others would be passed over in silence. */
static flp_status check_one_list(const tune_args *args) {
  const cli_spec_args *spec = &args->spec;
  const char *list = args->preset || args->preset_file ? "presets" : args->shapes ? "--shapes" : NULL;
  if (!list) return FLP_OK;
  const char *other = spec->spec.vocab || spec->spec.hidden                 ? "--vocab and --hidden"
                      : spec->model                                         ? "--model"
                      : args->shapes && (args->preset || args->preset_file) ? "--shapes"
                                                                            : NULL;
  if (!other) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "%s beside %s: heads are named by one of these", other, list);
}

flp_status tune_targets_create(const tune_args *args, tune_targets *out) {
  *out = (tune_targets){0};
  FLP_TRY(check_one_list(args));
  out->items = calloc(TARGETS_MOST + 1, sizeof *out->items);
  if (!out->items) return flp_fail(FLP_ERROR_MEMORY, "out of memory");
  flp_status status = FLP_OK;
  if (args->preset || args->preset_file)
    status = add_presets(args, out);
  else if (args->shapes)
    status = add_shapes(args, out);
  else {
    cli_spec_args spec = args->spec;
    status = cli_spec_args_resolve(&spec);
    if (status == FLP_OK) status = add(args, out, &spec.spec, spec.scale, spec.model);
  }
  if (status != FLP_OK) tune_targets_clear(out);
  return status;
}

void tune_targets_clear(tune_targets *targets) {
  free(targets->items);
  *targets = (tune_targets){0};
}

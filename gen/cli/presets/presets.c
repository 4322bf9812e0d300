/* presets.c: heads of published models, built in or in a file of the same form. */
#include "gen/cli/presets/presets.h"
#include "gen/cli/shared/text.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/number.h"

enum { PRESETS_BYTES_MAX = 1 << 20 };

/* ---- the file ---- */

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

static flp_status read_presets(const char *path, json_t **out) {
  char *text = NULL;
  const char *name = path ? path : "presets";
  json_error_t error;
  if (path) FLP_TRY(cli_read_text(path, PRESETS_BYTES_MAX, &text));
  *out = json_loads(text ? text : (const char *)cli_presets_text, JSON_REJECT_DUPLICATES, &error);
  free(text);
  if (!*out) return flp_fail(FLP_ERROR_CORRUPT, "%s: not JSON: %s (line %d)", name, error.text, error.line);
  json_t *presets = json_object_get(*out, "presets");
  flp_status status = FLP_OK;
  if (!json_is_array(presets) || json_array_size(presets) > CLI_PRESETS_MAX)
    status = flp_fail(FLP_ERROR_CORRUPT, "%s: presets is no list of at most %d", name, (int)CLI_PRESETS_MAX);
  for (size_t i = 0; status == FLP_OK && i < json_array_size(presets); i++)
    status = check_preset(name, i, json_array_get(presets, i));
  if (status != FLP_OK) {
    json_decref(*out);
    *out = NULL;
  }
  return status;
}

/* ---- those that are named ---- */

static flp_status no_preset(const json_t *presets, const char *word) {
  char names[1024] = "";
  size_t i;
  json_t *preset;
  json_array_foreach(presets, i, preset)
      cli_append(names, sizeof names, ", ", "%s", json_string_value(json_object_get(preset, "name")));
  return flp_fail(FLP_ERROR_ARGUMENT, "--preset: expected all, or any of %s, got '%.64s'", names, word);
}

static flp_status visit_one(const json_t *in, cli_preset_fn visit, void *context) {
  const json_t *scale = json_object_get(in, "scale");
  cli_preset preset = {.name = json_string_value(json_object_get(in, "name")),
                       .vocab = json_integer_value(json_object_get(in, "vocab")),
                       .hidden = json_integer_value(json_object_get(in, "hidden")),
                       .softcap = (float)json_number_value(json_object_get(in, "softcap")),
                       .scale = scale ? json_number_value(scale) : 0,
                       .has_bias = json_is_true(json_object_get(in, "bias"))};
  flp_status status = visit(context, &preset);
  return status == FLP_OK ? FLP_OK : flp_fail(status, "preset %.64s: %s", preset.name, flp_error_detail());
}

/* Those of that name, or of every name. */
static flp_status visit_named(const json_t *presets, const char *word, cli_preset_fn visit, void *context) {
  size_t i;
  json_t *preset;
  int found = 0, all = strcmp(word, "all") == 0;
  json_array_foreach(presets, i, preset) {
    if (!all && strcmp(word, json_string_value(json_object_get(preset, "name"))) != 0) continue;
    found = 1;
    FLP_TRY(visit_one(preset, visit, context));
  }
  return found ? FLP_OK : no_preset(presets, word);
}

flp_status cli_presets_each(const char *path, const char *names, cli_preset_fn visit, void *context) {
  json_t *file = NULL;
  FLP_TRY(read_presets(path, &file));
  char *copy = strdup(names ? names : "all");
  flp_status status = copy ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "out of memory");
  for (char *rest = copy, *word; status == FLP_OK && (word = strsep(&rest, ","));)
    status = visit_named(json_object_get(file, "presets"), word, visit, context);
  free(copy);
  json_decref(file);
  return status;
}

void cli_preset_apply(const cli_preset *preset, const cli_spec_args *args, flp_spec *spec) {
  spec->vocab = preset->vocab;
  spec->hidden = preset->hidden;
  if (!cli_spec_args_given(args, FLP_FIELD_softcap)) spec->softcap = preset->softcap;
  if (preset->has_bias) spec->has_bias = 1;
}

/* hfconfig.c: reading of Hugging Face config.json files, which are not trusted. */
#include "gen/cli/shared/hfconfig.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/shared/common.h"
#include "runtime/base/number.h"
#include "runtime/base/status.h"

enum { CONFIG_BYTES_MAX = 16 << 20 };

/* A config as two objects: the nested text model, if there is one, and the whole. */
typedef struct config {
  const char *path;
  json_t *root;
  json_t *nested; /* borrowed from root, or NULL */
  const char *nested_name;
} config;

static flp_status load(const char *path, config *out) {
  char *text = NULL;
  size_t bytes = 0;
  *out = (config){.path = path};
  FLP_TRY(cli_read_file(path, CONFIG_BYTES_MAX, &text, &bytes));
  json_error_t error;
  out->root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
  free(text);
  if (!out->root)
    return flp_fail(FLP_ERROR_CORRUPT, "%s: not JSON: %s (line %d, column %d)", path, error.text, error.line,
                    error.column);
  if (!json_is_object(out->root)) return flp_fail(FLP_ERROR_CORRUPT, "%s: not a JSON object", path);
  static const char *const names[] = {"text_config", "llm_config", "language_config"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    json_t *nested = json_object_get(out->root, names[i]);
    if (!nested || json_is_null(nested)) continue;
    if (!json_is_object(nested)) return flp_fail(FLP_ERROR_CORRUPT, "%s: %s is not an object", path, names[i]);
    out->nested = nested;
    out->nested_name = names[i];
    break;
  }
  return FLP_OK;
}

/* A field of the nested model, else of the whole; NULL if absent or null. */
static const json_t *find(const config *file, const char *name) {
  const json_t *value = file->nested ? json_object_get(file->nested, name) : NULL;
  if (!value || json_is_null(value)) value = json_object_get(file->root, name);
  return value && !json_is_null(value) ? value : NULL;
}

/* Reads the first of the names that is there; names end with NULL. */
static flp_status read_size(const config *file, const char *const *names, int64_t *out) {
  const json_t *value = NULL;
  const char *const *name = names;
  while (*name && !(value = find(file, *name))) name++;
  if (!value) return flp_fail(FLP_ERROR_CORRUPT, "%s: %s is missing", file->path, names[0]);
  if (!json_is_integer(value) || json_integer_value(value) < 1)
    return flp_fail(FLP_ERROR_CORRUPT, "%s: %s is not a whole number >= 1", file->path, *name);
  *out = json_integer_value(value);
  return FLP_OK;
}

/* Reads a number > 0 (or, with any_sign, any finite number but 0); leaves *out alone if the field is absent. */
static flp_status read_number(const config *file, const char *name, int any_sign, double *out) {
  const json_t *value = find(file, name);
  if (!value) return FLP_OK;
  double number = json_is_number(value) ? json_number_value(value) : NAN;
  if (!isfinite(number) || fabs(number) > 1e30 || fabs(number) < 1e-30 || (!any_sign && number < 0))
    return flp_fail(FLP_ERROR_CORRUPT, "%s: %s is not a finite number %s 0", file->path, name,
                    any_sign ? "other than" : ">");
  *out = number;
  return FLP_OK;
}

static flp_status read_dtype(const config *file, flp_dtype *out) {
  static const struct {
    const char *name;
    flp_dtype dtype;
  } dtypes[] = {{"bfloat16", FLP_DTYPE_BF16}, {"float16", FLP_DTYPE_FP16}, {"float32", FLP_DTYPE_FP32}};
  const char *field = find(file, "dtype") ? "dtype" : "torch_dtype";
  const json_t *value = find(file, field);
  *out = (flp_dtype)0;
  if (!value) return FLP_OK;
  const char *text = json_string_value(value);
  if (!text) return flp_fail(FLP_ERROR_CORRUPT, "%s: %s is not a string", file->path, field);
  const char *name = strncmp(text, "torch.", 6) == 0 ? text + 6 : text;
  if (strcmp(name, "auto") == 0) return FLP_OK;
  for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
    if (strcmp(dtypes[i].name, name) == 0) {
      *out = dtypes[i].dtype;
      return FLP_OK;
    }
  return flp_fail(FLP_ERROR_CORRUPT, "%s: %s: expected one of bfloat16, float16, float32, got '%s'", file->path, field,
                  text);
}

/* Cohere multiplies scores by logit_scale, Granite divides them by logits_scaling. */
static flp_status read_scale(const config *file, double *out) {
  double divisor = 1.0;
  *out = 1.0;
  FLP_TRY(read_number(file, "logits_scaling", 1, &divisor));
  FLP_TRY(read_number(file, "logit_scale", 1, out));
  *out /= divisor;
  if (flp_number_fits(*out)) return FLP_OK;
  return flp_fail(FLP_ERROR_CORRUPT, "%s: logit_scale / logits_scaling is %g, not from " FLP_NUMBER_RANGE, file->path,
                  *out);
}

flp_status cli_hfconfig_read(const char *path, cli_hfconfig *out) {
  static const char *const vocab_names[] = {"vocab_size", "padded_vocab_size", NULL};
  static const char *const hidden_names[] = {"hidden_size", "n_embd", "d_model", NULL};
  config file;
  *out = (cli_hfconfig){0};
  flp_status status = load(path, &file);
  if (status == FLP_OK) status = read_size(&file, vocab_names, &out->vocab);
  if (status == FLP_OK) status = read_size(&file, hidden_names, &out->hidden);
  if (status == FLP_OK) status = read_dtype(&file, &out->dtype);
  if (status == FLP_OK) status = read_number(&file, "final_logit_softcapping", 0, &out->softcap);
  if (status == FLP_OK) status = read_scale(&file, &out->scale);
  json_decref(file.root);
  return status;
}

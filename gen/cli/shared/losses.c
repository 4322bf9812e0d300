/* losses.c: losses from names and files, their parameters from text, and both as text and JSON. */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/losses.h"
#include "gen/cli/shared/text.h"

enum { FILE_BYTES_MAX = 1 << 20 };

/* ---- loading ---- */

static int is_file(const char *text) {
  size_t length = strlen(text);
  return length > 4 && strcmp(text + length - 4, ".lua") == 0;
}

static flp_status load_file(const char *path, flpgen_loss *out) {
  char *text, error[1024];
  size_t length;
  FLP_TRY(cli_read_file(path, FILE_BYTES_MAX, &text, &length));
  flp_status status = flpgen_loss_trace(path, text, length, out, error, sizeof error);
  free(text);
  return status == FLP_OK ? FLP_OK : flp_fail(status, "%s", error);
}

static flp_status load_builtin(const char *name, flpgen_loss *out) {
  flp_loss program;
  char error[1024];
  FLP_TRY(flp_loss_find(name, &program));
  flp_status status = flpgen_loss_builtin(name, out, error, sizeof error);
  return status == FLP_OK ? FLP_OK : flp_fail(status, "%s", error);
}

static flp_status add_term(cli_loss *out, int is_first, const char *text) {
  flpgen_loss term;
  FLP_TRY(is_file(text) ? load_file(text, &term) : load_builtin(text, &term));
  if (term.formula[0]) cli_append(out->formula, sizeof out->formula, "; ", "%s", term.formula);
  if (term.source[0]) cli_append(out->source, sizeof out->source, "; ", "%s", term.source);
  if (!is_first) return flp_loss_add(&out->program, &term.program);
  out->program = term.program;
  return FLP_OK;
}

flp_status cli_loss_load(const char *text, cli_loss *out) {
  memset(out, 0, sizeof *out);
  if (is_file(text) && access(text, F_OK) == 0) return add_term(out, 1, text); /* its path may hold a '+' */
  char *copy = strdup(text);
  if (!copy) return flp_fail(FLP_ERROR_MEMORY, "out of memory");
  flp_status status = FLP_OK;
  for (char *rest = copy, *term; status == FLP_OK && (term = strsep(&rest, "+"));)
    status = add_term(out, term == copy, term);
  free(copy);
  return status;
}

flp_status cli_loss_set(const flp_loss *loss, const char *field, const char *text,
                        double parameters[FLP_LOSS_PARAMETERS_MAX]) {
  char names[CLI_LOSS_TEXT_BYTES];
  size_t length = strcspn(text, "=");
  for (uint32_t i = 0; i < loss->parameter_count; i++) {
    const char *name = loss->parameters[i].name;
    if (!text[length] || strlen(name) != length || memcmp(name, text, length) != 0) continue;
    FLP_TRY(cli_parse_number(field, text + length + 1, &parameters[i]));
    return flp_loss_check_parameters(loss, parameters);
  }
  return flp_fail(FLP_ERROR_ARGUMENT, "%s: expected NAME=NUMBER of %s, got '%s'", field,
                  cli_loss_parameters_text(loss, names), text);
}

/* ---- as text ---- */

static void add_item(char *out, const char *item) {
  cli_append(out, CLI_LOSS_TEXT_BYTES, ", ", "%s", item);
}

static const char *or_none(char *out) {
  if (!out[0]) strcpy(out, "-");
  return out;
}

const char *cli_loss_inputs_text(const flp_loss *loss, char buffer[CLI_LOSS_TEXT_BYTES]) {
  buffer[0] = 0;
  for (uint32_t i = 0, inputs = flp_loss_inputs(loss); i < FLP_LOSS_ALL_INPUTS; i++)
    if (inputs >> i & 1) add_item(buffer, flp_loss_input_name(loss, i));
  return or_none(buffer);
}

const char *cli_loss_parameters_text(const flp_loss *loss, char buffer[CLI_LOSS_TEXT_BYTES]) {
  buffer[0] = 0;
  for (uint32_t i = 0; i < loss->parameter_count; i++) {
    const flp_loss_parameter *p = &loss->parameters[i];
    cli_append(buffer, CLI_LOSS_TEXT_BYTES, ", ", "%s %g in [%g, %g]", p->name, p->fallback, p->low, p->high);
  }
  return or_none(buffer);
}

const char *cli_loss_metrics_text(const flp_loss *loss, char buffer[CLI_LOSS_TEXT_BYTES]) {
  buffer[0] = 0;
  for (uint32_t i = 0; i < loss->metric_count; i++) add_item(buffer, loss->metrics[i].name);
  return or_none(buffer);
}

const char *cli_loss_gradients_text(const flp_loss *loss, char buffer[CLI_LOSS_TEXT_BYTES]) {
  uint32_t active = flp_loss_is_active(loss);
  buffer[0] = 0;
  if (active & FLP_LOSS_BY_LOGPROB) add_item(buffer, flp_loss_is_over_targets(loss) ? "target_logprob" : "logprob");
  if (active & FLP_LOSS_BY_ENTROPY) add_item(buffer, "entropy");
  if (active & FLP_LOSS_BY_LSE) add_item(buffer, "lse");
  if (active & FLP_LOSS_BY_MEAN) add_item(buffer, "mean_score");
  return or_none(buffer);
}

/* ---- as JSON ---- */

static json_t *inputs_json(const flp_loss *loss) {
  json_t *list = json_array();
  for (uint32_t i = 0, inputs = flp_loss_inputs(loss); i < FLP_LOSS_ALL_INPUTS; i++)
    if (inputs >> i & 1) json_array_append_new(list, cli_json_text(flp_loss_input_name(loss, i)));
  return list;
}

static json_t *parameters_json(const flp_loss *loss) {
  json_t *list = json_array();
  for (uint32_t i = 0; i < loss->parameter_count; i++) {
    const flp_loss_parameter *p = &loss->parameters[i];
    json_array_append_new(
        list, json_pack("{s:s, s:o, s:o, s:o}", "name", p->name, "default", cli_json_number(p->fallback), "min",
                        cli_json_number(p->low), "max", cli_json_number(p->high)));
  }
  return list;
}

static json_t *metrics_json(const flp_loss *loss) {
  json_t *list = json_array();
  for (uint32_t i = 0; i < loss->metric_count; i++) json_array_append_new(list, cli_json_text(loss->metrics[i].name));
  return list;
}

static void add_bytes(json_t *object, const flp_loss *loss) {
  uint8_t bytes[FLP_LOSS_BYTES_MAX], hash[crypto_hash_sha256_BYTES];
  char hex[2 * FLP_LOSS_BYTES_MAX + 1];
  size_t length = flp_loss_write(loss, bytes, sizeof bytes);
  crypto_hash_sha256(hash, bytes, length);
  json_object_set_new(object, "bytes", json_string(sodium_bin2hex(hex, sizeof hex, bytes, length)));
  json_object_set_new(object, "sha256", json_string(sodium_bin2hex(hex, sizeof hex, hash, sizeof hash)));
}

json_t *cli_loss_json(const cli_loss *loss) {
  const flp_loss *program = &loss->program;
  uint32_t active = flp_loss_is_active(program);
  json_t *object = json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:b, s:b, s:i}", "name", program->name, "formula",
                             cli_json_text(loss->formula), "source", cli_json_text(loss->source), "inputs",
                             inputs_json(program), "parameters", parameters_json(program), "metrics",
                             metrics_json(program), "by_logprob", (active & FLP_LOSS_BY_LOGPROB) != 0, "by_entropy",
                             (active & FLP_LOSS_BY_ENTROPY) != 0, "operations", (int)program->node_count);
  if (flp_loss_is_of_scores(program)) {
    json_object_set_new(object, "by_lse", json_boolean(active & FLP_LOSS_BY_LSE));
    json_object_set_new(object, "by_mean_score", json_boolean(active & FLP_LOSS_BY_MEAN));
  }
  add_bytes(object, program);
  return object;
}

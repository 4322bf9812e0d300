/* report.c: findings kept, printed for people and written as a record. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/check/report.h"
#include "gen/cli/shared/common.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/losses.h"
#include "gen/cli/shared/record.h"
#include "gen/cli/shared/table.h"
#include "gen/cli/shared/text.h"
#include "runtime/base/names.h"
#include "runtime/kernel/kernel.h"
#include "runtime/planner/planner.h"

/* Adds words to a text that ends where its capacity does. */
static void append(char *text, size_t capacity, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t capacity, const char *format, ...) {
  size_t used = strlen(text);
  va_list arguments;
  va_start(arguments, format);
  if (used + 1 < capacity) vsnprintf(text + used, capacity - used, format, arguments);
  va_end(arguments);
}

static void describe_options(const check_case *c, char *out, size_t capacity) {
  static const char *const entropies[] = {"", " entropy", " entropy+backward"};
  const flp_spec *spec = &c->spec;
  out[0] = 0;
  append(out, capacity, "%s", entropies[spec->entropy]);
  if (spec->mixed) append(out, capacity, " mixed=%s", flp_mixed_name(spec->mixed));
  if (spec->hidden_dtype == FLP_DTYPE_FP32 && spec->mixed) append(out, capacity, " hidden=fp32");
  if (spec->weight_dtype == FLP_DTYPE_FP32 && spec->mixed) append(out, capacity, " weight=fp32");
  if (spec->bias_dtype == FLP_DTYPE_FP32 && spec->mixed) append(out, capacity, " bias=fp32");
  if (spec->grads) append(out, capacity, " grads=");
  if (spec->grads & FLP_GRAD_HIDDEN) append(out, capacity, "h");
  if (spec->grads & FLP_GRAD_WEIGHT) append(out, capacity, "w");
  if (spec->grads & FLP_GRAD_BIAS) append(out, capacity, "b");
  if (spec->grads & FLP_GRAD_LORA_A) append(out, capacity, "A");
  if (spec->grads & FLP_GRAD_LORA_B) append(out, capacity, "B");
  if (spec->has_bias) append(out, capacity, " bias");
  if (spec->softcap > 0) append(out, capacity, " softcap=%g", (double)spec->softcap);
  if (c->scale < 1 || c->scale > 1) append(out, capacity, " scale=%g", c->scale);
  if (spec->per_row_temperature)
    append(out, capacity, " T-rows=%g", c->temperature);
  else if (c->temperature < 1 || c->temperature > 1)
    append(out, capacity, " T=%g", c->temperature);
  if (c->shards > 1) append(out, capacity, " shards=%d", c->shards);
  if (spec->alignment < 16) append(out, capacity, " align=%" PRIu32, spec->alignment);
  if (spec->accumulate_grad_weight) append(out, capacity, " accumulate");
  const flp_loss *loss = cli_loss_of(spec);
  if (c->mode) append(out, capacity, " mode=%s", flp_mode_name(c->mode));
  if (spec->listed) append(out, capacity, " kept=%g", c->kept);
  if (spec->targets > 1) append(out, capacity, " targets=%d", spec->targets);
  char tail[CLI_TEXT_BYTES];
  if (spec->tail > 0) append(out, capacity, " tail=%s", cli_format_tail(spec->tail, tail));
  if (spec->topk) append(out, capacity, " topk=%d", spec->topk);
  if (spec->rank) append(out, capacity, " rank");
  if (spec->lora_rank) append(out, capacity, " lora=%d", spec->lora_rank);
  if (spec->mixed)
    append(out, capacity, " %s=fp32 mixed=%s", spec->weight_dtype == FLP_DTYPE_FP32 ? "weight" : "hidden",
           flp_mixed_name(spec->mixed));
  if (loss) append(out, capacity, " loss=%s", loss->name);
  memmove(out, out + (out[0] == ' '), strlen(out + (out[0] == ' ')) + 1);
}

void check_report_add(check_report *report, const check_case *c, flp_rung rung, const char *output, check_metric metric,
                      const char *note) {
  if (report->count == report->capacity) {
    int64_t capacity = report->capacity ? 2 * report->capacity : 256;
    check_finding *grown = realloc(report->findings, (size_t)capacity * sizeof *grown);
    if (!grown) {
      report->incomplete = 1;
      return;
    }
    report->findings = grown;
    report->capacity = capacity;
  }
  check_finding *f = &report->findings[report->count++];
  *f = (check_finding){
      .rung = flp_rung_name(rung), .dtype = flp_dtype_name(c->spec.dtype), .output = output, .metric = metric};
  snprintf(f->name, sizeof f->name, "%s", c->name);
  snprintf(f->shape, sizeof f->shape, "%" PRId64 "x%" PRId64 "x%" PRId64, c->n, c->spec.vocab, c->spec.hidden);
  describe_options(c, f->options, sizeof f->options);
  if (note) snprintf(f->note, sizeof f->note, "%s", note);
  if (!metric.pass && !(metric.share > 1)) f->metric.share = INFINITY; /* no number says how far off it is */
  report->failed += !metric.pass;
}

/* ---- for people ---- */

enum { CELL = 24 };

static const char *format_number(double value, char out[CELL]) {
  snprintf(out, CELL, value != 0 && (value < 1e-3 || value >= 1e5) ? "%.1e" : "%.3g", value);
  return out;
}

/* "-" where something is wrong that has no size. */
static const char *format_share(double share, char out[CELL]) {
  if (isinf(share)) return "-";
  if (share == 0) return "0";
  if (share < 0.005) return "<0.01";
  snprintf(out, CELL, share >= 1e5 ? "%.1e" : share > 1 ? "%.4g" : "%.2f", share);
  return out;
}

/* The error where it is the worst share, and what is allowed there, in the unit in which this output is judged. */
static void format_error(const check_metric *m, char error[2 * CELL], char allowed[2 * CELL]) {
  char number[CELL];
  int is_rows = m->max_ulp >= 0, is_bits = is_rows && m->bound == 0;
  double worst = !is_rows ? m->rel_l2 : is_bits || isinf(m->share) ? m->max_ulp : m->share * m->bound;
  error[0] = allowed[0] = 0;
  if (!is_rows && m->bound == 0) return; /* no number was compared */
  snprintf(error, 2 * CELL, "%s%s", format_number(worst, number), is_bits ? " differ" : is_rows ? " ulp" : "");
  snprintf(allowed, 2 * CELL, "%s%s", format_number(m->bound, number), is_rows && !is_bits ? " ulp" : "");
}

static void print_findings(const check_report *report, int every) {
  cli_table table;
  cli_table_start(&table, "case", "rung", "N x V x D", "dtype", "options", "output", "worst error", "allowed",
                  "worst / allowed", "", NULL);
  cli_table_may_move(&table, 4, "");
  cli_table_may_move(&table, 2, "");
  cli_table_may_move(&table, 3, "");
  for (int64_t i = 0; i < report->count; i++) {
    const check_finding *f = &report->findings[i];
    if (!every && f->metric.pass) continue;
    char share[CELL], error[2 * CELL], allowed[2 * CELL];
    format_error(&f->metric, error, allowed);
    cli_table_add(&table, f->name, f->rung, f->shape, f->dtype, f->options, f->output, error, allowed,
                  format_share(f->metric.share, share),
                  f->metric.pass ? "pass"
                  : f->note[0]   ? f->note
                                 : "FAIL",
                  NULL);
  }
  cli_table_finish(&table);
}

static int same_kind(const check_finding *a, const check_finding *b) {
  return strcmp(a->rung, b->rung) == 0 && strcmp(a->dtype, b->dtype) == 0 && strcmp(a->output, b->output) == 0;
}

/* The first finding of its kind stands for all of them. */
static void summarise(const check_report *report, int64_t first, cli_table *table) {
  const check_finding *kind = &report->findings[first], *worst = kind;
  for (int64_t i = 0; i < first; i++)
    if (same_kind(&report->findings[i], kind)) return;
  int64_t count = 0, failed = 0;
  for (int64_t i = first; i < report->count; i++) {
    const check_finding *f = &report->findings[i];
    if (!same_kind(f, kind)) continue;
    count++;
    failed += !f->metric.pass;
    if (f->metric.share > worst->metric.share) worst = f;
  }
  char checks[CELL], fails[CELL], share[CELL], where[sizeof worst->name + sizeof worst->shape] = "";
  snprintf(checks, sizeof checks, "%" PRId64, count);
  snprintf(fails, sizeof fails, "%" PRId64, failed);
  if (worst->metric.share > 0) snprintf(where, sizeof where, "%s %s", worst->name, worst->shape);
  cli_table_add(table, kind->rung, kind->dtype, kind->output, checks, fails, format_share(worst->metric.share, share),
                where, NULL);
}

static void print_verdict(const check_report *report) {
  if (report->count == 0)
    puts("FAIL: nothing was checked");
  else if (report->failed)
    printf("FAIL: %" PRId64 " of %" PRId64 " checks failed\n", report->failed, report->count);
  else
    printf("pass: %" PRId64 " check%s\n", report->count, report->count == 1 ? "" : "s");
}

void check_report_print(const check_report *report, int every) {
  cli_print(2, "device: %s", report->device);
  if (report->offered[0]) cli_print_field(18, "not offered here:", "%s", report->offered);
  cli_table table;
  cli_table_start(&table, "rung", "dtype", "output", "checks", "failed", "worst / allowed", "in case", NULL);
  for (int64_t i = 0; i < report->count; i++) summarise(report, i, &table);
  if (every || report->failed) print_findings(report, every);
  cli_table_finish(&table);
  print_verdict(report);
}

/* ---- the record ---- */

static json_t *finding_json(const check_finding *f) {
  json_t *row = json_object();
  if (!row) return NULL;
  const struct {
    const char *key;
    json_t *value;
  } fields[] = {{"case", cli_json_text(f->name)},
                {"rung", json_string(f->rung)},
                {"shape", json_string(f->shape)},
                {"dtype", json_string(f->dtype)},
                {"options", json_string(f->options)},
                {"output", json_string(f->output)},
                {"worst_share", cli_json_number(f->metric.share)},
                {"max_ulp", f->metric.max_ulp < 0 ? json_null() : cli_json_number(f->metric.max_ulp)},
                {"rel_l2", cli_json_number(f->metric.rel_l2)},
                {"cosine", cli_json_number(f->metric.cosine)},
                {"bound", cli_json_number(f->metric.bound)},
                {"pass", json_boolean(f->metric.pass)},
                {"note", f->note[0] ? cli_json_text(f->note) : NULL}};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
    if (fields[i].value) json_object_set_new(row, fields[i].key, fields[i].value);
  return row;
}

flp_status check_report_write(const check_report *report, const char *path, const char *command) {
  json_t *record = cli_record_create(report->device, report->driver_version, command);
  json_t *rows = json_array();
  for (int64_t i = 0; rows && i < report->count; i++) json_array_append_new(rows, finding_json(&report->findings[i]));
  if (record) {
    json_object_set_new(record, "not_offered", json_string(report->offered));
    json_object_set_new(record, "checks", json_integer(report->count));
    json_object_set_new(record, "failed", json_integer(report->failed));
    json_object_set(record, "rows", rows);
  }
  json_decref(rows);
  return cli_record_write(record, path);
}

void check_report_clear(check_report *report) {
  free(report->findings);
  *report = (check_report){0};
}

/* report.c: findings kept, printed for people and written as a record. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/check/report.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/losses.h"
#include "gen/cli/shared/record.h"
#include "gen/cli/shared/table.h"
#include "gen/cli/shared/text.h"
#include "runtime/base/fields.h"
#include "runtime/base/names.h"

static void describe_options(const check_case *c, char *out, size_t capacity) {
  static const char *const entropies[] = {"", "entropy", "entropy+backward"};
  static const char grads[] = "hwbAB";
  const flp_spec *spec = &c->spec;
  out[0] = 0;
  cli_append(out, capacity, " ", "%s", entropies[spec->entropy]);
  if (spec->mixed) cli_append(out, capacity, " ", "mixed=%s", flp_mixed_name(spec->mixed));
  if (spec->hidden_dtype == FLP_DTYPE_FP32 && spec->mixed) cli_append(out, capacity, " ", "hidden=fp32");
  if (spec->weight_dtype == FLP_DTYPE_FP32 && spec->mixed) cli_append(out, capacity, " ", "weight=fp32");
  if (spec->bias_dtype == FLP_DTYPE_FP32 && spec->mixed) cli_append(out, capacity, " ", "bias=fp32");
  if (spec->grads) cli_append(out, capacity, " ", "grads=");
  for (int i = 0; grads[i]; i++) /* by their bits */
    if (spec->grads >> i & 1) cli_append(out, capacity, "", "%c", grads[i]);
  if (spec->has_bias) cli_append(out, capacity, " ", "bias");
  if (spec->softcap > 0) cli_append(out, capacity, " ", "softcap=%g", (double)spec->softcap);
  if (c->scale < 1 || c->scale > 1) cli_append(out, capacity, " ", "scale=%g", c->scale);
  if (spec->per_row_temperature)
    cli_append(out, capacity, " ", "T-rows=%g", c->temperature);
  else if (c->temperature < 1 || c->temperature > 1)
    cli_append(out, capacity, " ", "T=%g", c->temperature);
  if (c->shards > 1) cli_append(out, capacity, " ", "shards=%d", c->shards);
  if (spec->alignment < 16) cli_append(out, capacity, " ", "align=%" PRIu32, spec->alignment);
  if (spec->accumulate_grad_weight) cli_append(out, capacity, " ", "accumulate");
  const flp_loss *loss = cli_loss_of(spec);
  if (c->mode) cli_append(out, capacity, " ", "mode=%s", flp_mode_name(c->mode));
  if (spec->listed) cli_append(out, capacity, " ", "kept=%g", c->kept);
  if (spec->targets > 1) cli_append(out, capacity, " ", "targets=%d", spec->targets);
  char tail[FLP_FIELD_TEXT_BYTES];
  if (spec->tail > 0) cli_append(out, capacity, " ", "tail=%s", flp_share_text(spec->tail, tail));
  if (spec->topk) cli_append(out, capacity, " ", "topk=%d", spec->topk);
  if (spec->rank) cli_append(out, capacity, " ", "rank");
  if (spec->statistics) cli_append(out, capacity, " ", "statistics");
  if (spec->raw_scores) cli_append(out, capacity, " ", "raw-scores");
  if (spec->lora_rank) cli_append(out, capacity, " ", "lora=%d", spec->lora_rank);
  if (spec->mixed)
    cli_append(out, capacity, " ", "%s=fp32 mixed=%s", spec->weight_dtype == FLP_DTYPE_FP32 ? "weight" : "hidden",
               flp_mixed_name(spec->mixed));
  if (loss) cli_append(out, capacity, " ", "loss=%s", loss->name);
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
  *f = (check_finding){.rung = flp_rung_name(rung), .dtype = flp_dtype_name(c->spec.dtype), .metric = metric};
  snprintf(f->name, sizeof f->name, "%s", c->name);
  snprintf(f->output, sizeof f->output, "%s", output);
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

/* ---- the record: a row a case, as tests/gpu/test_evidence.py says ---- */

enum { NEAR = 256 }; /* rows among which those of a case's other rungs are */

/* Where the findings of the case and rung of first end. */
static int64_t end_of_run(const check_report *report, int64_t first) {
  const check_finding *f = &report->findings[first];
  int64_t end = first + 1;
  for (; end < report->count; end++) {
    const check_finding *next = &report->findings[end];
    if (strcmp(f->name, next->name) != 0 || strcmp(f->rung, next->rung) != 0 || strcmp(f->shape, next->shape) != 0 ||
        strcmp(f->dtype, next->dtype) != 0 || strcmp(f->options, next->options) != 0)
      break;
  }
  return end;
}

/* Of the comparisons of an output that passed in a run, the first of the worst share stands for all. */
static int stands_for_output(const check_finding *run, int64_t count, int64_t at) {
  for (int64_t i = 0; i < count; i++) {
    if (!run[i].metric.pass || strcmp(run[i].output, run[at].output) != 0) continue;
    double share = run[i].metric.share, own = run[at].metric.share;
    if (share > own || (i < at && !(share < own))) return 0;
  }
  return 1;
}

static json_t *row_of(const check_finding *f, int64_t checks) {
  return json_pack("{s:o, s:[], s:s, s:s, s:s, s:I, s:b, s:{}, s:[]}", "case", cli_json_text(f->name), "rungs", "shape",
                   f->shape, "dtype", f->dtype, "options", f->options, "checks", (json_int_t)checks, "pass",
                   f->metric.pass, "outputs", "exact");
}

/* What passed and may have no error is named alone; a failure has every figure. */
static void add_output(json_t *row, const check_finding *f) {
  const check_metric *m = &f->metric;
  if (m->pass && m->bound == 0) {
    json_array_append_new(json_object_get(row, "exact"), json_string(f->output));
  } else {
    json_t *figures = json_object();
    json_object_set_new(figures, "worst_share", cli_json_number(m->share));
    if (m->max_ulp >= 0) json_object_set_new(figures, "max_ulp", cli_json_number(m->max_ulp));
    json_object_set_new(figures, "rel_l2", cli_json_number(m->rel_l2));
    if (!m->pass) json_object_set_new(figures, "cosine", cli_json_number(m->cosine));
    json_object_set_new(figures, "bound", cli_json_number(m->bound));
    json_object_set_new(json_object_get(row, "outputs"), f->output, figures);
  }
  if (!f->note[0]) return;
  if (!json_object_get(row, "notes")) json_object_set_new(row, "notes", json_object());
  json_object_set_new(json_object_get(row, "notes"), f->output, cli_json_text(f->note));
}

/* Takes a row, or names its rung in one that says the same of another. */
static void add_row(json_t *rows, json_t *row, const char *rung) {
  size_t count = json_array_size(rows);
  for (size_t i = count; i > 0 && i + NEAR > count; i--) {
    json_t *before = json_array_get(rows, i - 1), *rungs = json_object_get(before, "rungs");
    json_object_set(row, "rungs", rungs);
    if (!json_equal(row, before)) continue;
    json_array_append_new(rungs, json_string(rung));
    json_decref(row);
    return;
  }
  json_object_set_new(row, "rungs", json_pack("[s]", rung));
  json_array_append_new(rows, row);
}

/* One row of all that passed, and one of each failure. */
static void add_run(json_t *rows, const check_finding *run, int64_t count) {
  json_t *passed = NULL;
  int64_t passes = 0;
  for (int64_t i = 0; i < count; i++) passes += run[i].metric.pass;
  for (int64_t i = 0; i < count; i++) {
    if (!run[i].metric.pass || !stands_for_output(run, count, i)) continue;
    if (!passed) passed = row_of(&run[i], passes);
    add_output(passed, &run[i]);
  }
  if (passed) add_row(rows, passed, run->rung);
  for (int64_t i = 0; i < count; i++) {
    if (run[i].metric.pass) continue;
    json_t *failure = row_of(&run[i], 1);
    add_output(failure, &run[i]);
    add_row(rows, failure, run->rung);
  }
}

flp_status check_report_write(const check_report *report, const char *path, const char *command) {
  json_t *record = cli_record_create(report->device, report->driver_version, command);
  json_t *rows = json_array();
  for (int64_t i = 0, end; rows && i < report->count; i = end) {
    end = end_of_run(report, i);
    add_run(rows, &report->findings[i], end - i);
  }
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

/* result.c: a benchmark as tables for people and as a record. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "gen/cli/bench/bench.h"
#include "gen/cli/kernels/kernels.h"
#include "gen/cli/shared/cost.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/record.h"
#include "gen/cli/shared/table.h"
#include "gen/cli/shared/text.h"
#include "runtime/base/names.h"
#include "runtime/base/operands.h"
#include "runtime/planner/planner.h"

/* The flop of a case with lists: scores of what is listed in each pass, and a product of that for each gradient. */
static double listed_flops(const bench_args *args, const bench_row *row) {
  const flp_spec *spec = &args->spec.spec;
  int backward = 1 + __builtin_popcount(spec->grads & (FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT));
  int products = (row->which != BENCH_BACKWARD) + (row->which == BENCH_FORWARD ? 0 : backward);
  double active = (double)row->list_count * (double)row->active / (double)row->n;
  return 2.0 * products * active * (double)spec->hidden;
}

/* TFLOP/s of the case's products over the rows that are not masked. */
static double tflops_of(const bench_args *args, const bench_row *row) {
  if (row->list_count) return 1e-9 * listed_flops(args, row) / row->ms.median;
  return 1e-9 * row->gemms * cli_product_flops(&args->spec.spec, row->active) / row->ms.median;
}

/* ---- for people ---- */

enum { CELL = 32 };

/* The row that is the same without a tail or several targets, or NULL. */
static const bench_row *plain_of(const bench_result *result, const bench_row *row) {
  for (int i = 0; i < result->row_count; i++) {
    const bench_row *other = &result->row[i];
    if (other->is_plain && !row->is_plain && other->n == row->n && other->which == row->which) return other;
  }
  return NULL;
}

static int has_targets(const bench_args *args) {
  return args->spec.spec.targets > 1;
}

/* "forward", or "forward, one target" of the plain one beside several, "step, nll of one target" beside a step of
 * these, "forward, no adapter" beside one. */
static const char *case_text(const bench_args *args, const bench_row *row, char out[CELL]) {
  const flp_spec *spec = &args->spec.spec;
  const char *plain = has_targets(args) ? spec->loss ? ", nll of one target" : ", one target"
                      : spec->lora_rank ? ", no adapter"
                      : spec->mixed     ? ", one dtype"
                                        : "";
  snprintf(out, CELL, "%s%s", bench_case_name(row->which), row->is_plain ? plain : "");
  return out;
}

static cli_short of_baseline(const bench_row *row, double value) {
  return row->baseline_ms >= 0 ? cli_shortly("%.3f", value) : cli_shortly("-");
}

static void print_rows(const bench_args *args, const bench_result *result) {
  cli_table table;
  cli_table_start(&table, "N", "case", "mode", "ms", "least .. most", "products", "GEMM ms", "ratio", "to first",
                  "TFLOP/s", "workspace", NULL);
  cli_table_may_move(&table, 4, "least .. most ms: ");
  cli_table_may_move(&table, 10, "workspace: ");
  for (int i = 0; i < result->row_count; i++) {
    const bench_row *row = &result->row[i];
    char which[CELL];
    cli_table_addf(&table, "%" PRId64 "\t%s\t%s\t%.3f\t%.3f .. %.3f\t%d\t%s\t%s\t%s\t%.0f\t%s", row->n,
                   case_text(args, row, which), flp_mode_name(row->layout.mode), row->ms.median, row->ms.low,
                   row->ms.high, row->gemms, of_baseline(row, row->baseline_ms).text,
                   of_baseline(row, row->ms.median / row->baseline_ms).text,
                   of_baseline(row, row->ms.median / row->first_ms).text, tflops_of(args, row),
                   cli_bytes((double)row->workspace_bytes).text);
  }
  cli_table_finish(&table);
}

/* Columns that a row reads which is not recomputed; 0 where all are. */
static double columns_a_row(const bench_row *row) {
  double listed = (double)row->active - (double)row->tail_report[2];
  return listed > 0 ? (double)row->tail_report[3] / listed : 0;
}

/* What calls of tail mode left out, and how. */
static void print_tails(const bench_args *args, const bench_result *result) {
  char tail[FLP_FIELD_TEXT_BYTES];
  putchar('\n');
  cli_print(2,
            "tail: at most %s of the gradient of the scores may be left out; cases of mode %s are beside one product",
            flp_share_text(args->spec.spec.tail, tail), flp_mode_name(FLP_MODE_TAIL));
  cli_table table;
  cli_table_start(&table, "N", "case", "left out", "dense rows", "of all", "columns a row", NULL);
  for (int i = 0; i < result->row_count; i++) {
    const bench_row *row = &result->row[i];
    const float *report = row->tail_report;
    if (row->which == BENCH_FORWARD || row->is_plain) continue;
    cli_table_addf(&table, "%" PRId64 "\t%s\t%.3g\t%.0f\t%.3f\t%.1f", row->n, bench_case_name(row->which),
                   report[1] > 0 ? (double)report[0] / (double)report[1] : 0, (double)report[2],
                   row->active > 0 ? (double)report[2] / (double)row->active : 0, columns_a_row(row));
  }
  cli_table_finish(&table);
}

static const char *without_text(const flp_spec *spec) {
  if (spec->tail > 0) return "without a tail";
  if (spec->targets > 1) return spec->loss ? "one target, a step of nll" : "one target";
  if (spec->mixed) return "operands of one dtype";
  if (spec->lora_rank) return "without an adapter";
  return flp_planner_has_top(spec) ? "without best columns" : "without statistics";
}

/* What a tail, several targets, best columns, statistics, an adapter or a second dtype cost beside the same without. */
static void print_of_plain(const bench_args *args, const bench_result *result) {
  const flp_spec *spec = &args->spec.spec;
  putchar('\n');
  cli_print(2, "in turn with the same %s%s, call by call without a pause; median and quartiles of the ratios",
            spec->targets > 1 || spec->mixed ? "of " : "", without_text(spec));
  cli_table table;
  cli_table_start(&table, "N", "case", "ms", "alone ms", "ratio", "quartiles", "pairs", NULL);
  for (int i = 0; i < result->row_count; i++) {
    const bench_row *row = &result->row[i], *plain = plain_of(result, row);
    if (!plain || !row->pairs) continue;
    cli_table_addf(&table, "%" PRId64 "\t%s\t%.3f\t%.3f\t%.4f\t%.3f .. %.3f\t%d", row->n, bench_case_name(row->which),
                   row->ms.median, plain->ms.median, row->of_plain.median, row->of_plain.low, row->of_plain.high,
                   row->pairs);
  }
  cli_table_finish(&table);
}

static void print_baselines(const bench_args *args, const bench_result *result) {
  cli_table table;
  cli_table_start(&table, "N", "GEMM baseline", "ms", "least .. most", "TFLOP/s", "algorithm", "first ms", "", NULL);
  for (int i = 0; i < result->baseline_count; i++) {
    const bench_baseline *baseline = &result->baseline[i];
    int is_scaled = baseline->vocab != args->spec.spec.vocab;
    cli_table_addf(&table, "%" PRId64 "\t%s\t%.3f\t%.3f .. %.3f\t%.0f\t%d of %d\t%.3f\t%s", baseline->n,
                   gemm_product_name(baseline->product), baseline->ms.median, baseline->ms.low, baseline->ms.high,
                   baseline->tflops, baseline->algorithm + 1, baseline->algorithms, baseline->first_ms,
                   is_scaled ? cli_shortly("scaled from %" PRId64 " columns", baseline->vocab).text : "");
  }
  cli_table_finish(&table);
}

static double us_per_launch(const bench_host *host) {
  return host->us.median / host->launches;
}

static void print_host(const bench_result *result) {
  putchar('\n');
  cli_print(2, "host: flp_execute returns, not synchronised, with N=%" PRId64 ", after", result->host_rows);
  cli_table table;
  cli_table_start(&table, "pass", "us", "least .. most", "launches", "us a launch", NULL);
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_STEP; pass++) {
    const bench_host *host = &result->host[pass];
    if (!host->launches) continue;
    cli_table_addf(&table, "%s\t%.1f\t%.1f .. %.1f\t%d\t%.2f", flp_pass_name((flp_pass)pass), host->us.median,
                   host->us.low, host->us.high, host->launches, us_per_launch(host));
  }
  cli_table_finish(&table);
}

/* "data: policy; entropies of 8192 rows: 0.0002 .1, 0.0100 .5, ..." */
void bench_print_entropies(const bench_args *args, const bench_entropies *rows) {
  char text[256] = "";
  for (int i = 0; i < ROWS_QUANTILES; i++)
    cli_append(text, sizeof text, ", ", "%.3g (%g)", rows->quantile[i], ROWS_FRACTIONS[i]);
  cli_print(2, "data: %s; entropies of %" PRId64 " rows in nats (quantiles): %s", rows_kind_name(args->data), rows->n,
            text);
}

static void print_data(const bench_args *args, const bench_result *result) {
  for (int i = 0; i < args->row_count && args->data != CLI_DATA_RANDOM; i++)
    bench_print_entropies(args, &result->entropies[i]);
}

void bench_print(const bench_args *args, const bench_result *result) {
  cli_print(2, "device: %s", result->device);
  cli_print(2, "plan: %s", result->description);
  if (args->spec.kept > 0)
    cli_print(2, "lists: %g ids a row on average; every case beside one product of hidden and the whole weight",
              args->spec.kept);
  const flp_spec *spec = &args->spec.spec;
  if (flp_planner_has_row_values(spec))
    cli_print(2, "forward with topk=%d rank=%d statistics=%d; the same without stands behind, in the same order",
              spec->topk, spec->rank, spec->statistics);
  if (args->masked > 0) cli_print(2, "masked: %g of the rows; GEMM baselines compute all rows", args->masked);
  print_data(args, result);
  putchar('\n');
  print_rows(args, result);
  if (args->spec.spec.tail > 0) print_tails(args, result);
  if (result->row_count && result->row[0].pairs) print_of_plain(args, result);
  if (result->baseline_count) {
    putchar('\n');
    cli_print(2, "cuBLASLt: %s", result->cublaslt);
    print_baselines(args, result);
  }
  print_host(result);
  if (result->plan_warm_ms >= 0)
    printf("plan: %.0f ms with empty caches, %.0f ms with full ones\n", result->plan_cold_ms, result->plan_warm_ms);
  else
    cli_print(2, "plan: its creation was not timed: %s", result->plan_error);
}

/* ---- the record ---- */

typedef struct field {
  const char *key;
  json_t *value;
} field;

/* Adds fields to an object. */
static json_t *set_fields(json_t *object, const field *fields, size_t count) {
  for (size_t i = 0; i < count; i++) json_object_set_new(object, fields[i].key, fields[i].value);
  return object;
}

static json_t *make_object(const field *fields, size_t count) {
  return set_fields(json_object(), fields, count);
}

static json_t *number_or_null(int known, double value) {
  return known ? cli_json_number(value) : json_null();
}

/* By fraction; null where they are not known. */
static json_t *entropies_json(const bench_args *args, const bench_result *result, int64_t n) {
  const bench_entropies *rows = NULL;
  for (int i = 0; i < args->row_count; i++)
    if (result->entropies[i].n == n) rows = &result->entropies[i];
  if (!rows) return json_null();
  json_t *object = json_object();
  for (int i = 0; i < ROWS_QUANTILES; i++) {
    char key[16];
    snprintf(key, sizeof key, "%g", ROWS_FRACTIONS[i]);
    json_object_set_new(object, key, cli_json_number(rows->quantile[i]));
  }
  return object;
}

/* Beside the same without a tail, ...: low and high are quartiles. */
static void add_of_plain(json_t *object, const bench_row *row) {
  const field fields[] = {{"of_plain", cli_json_number(row->of_plain.median)},
                          {"of_plain_low", cli_json_number(row->of_plain.low)},
                          {"of_plain_high", cli_json_number(row->of_plain.high)},
                          {"of_plain_pairs", json_integer(row->pairs)}};
  set_fields(object, fields, sizeof fields / sizeof fields[0]);
}

/* bare: what bare_ms and the ratios are of, also where the case has passes of more products */
static void add_lists(json_t *object, const bench_args *args, const bench_row *row) {
  const field fields[] = {{"listed", json_integer(1)},
                          {"kept", cli_json_number(args->spec.kept)},
                          {"list_ids", json_integer(row->list_count)},
                          {"bare", json_string(gemm_product_name(GEMM_SCORES))}};
  set_fields(object, fields, sizeof fields / sizeof fields[0]);
}

/* The same of a row of tail mode; of one that is exact, that it has none. left: at most tail * sum */
static void add_tail(json_t *object, const bench_row *row) {
  double tail = (double)row->spec.tail;
  json_object_set_new(object, "tail", cli_json_number(tail));
  if (row->is_plain) return;
  json_object_set_new(object, "bare", json_string(gemm_product_name(GEMM_SCORES)));
  if (row->which == BENCH_FORWARD) return;
  double left = (double)row->tail_report[0], sum = (double)row->tail_report[1];
  const field fields[] = {{"left", cli_json_number(left)},
                          {"sum", cli_json_number(sum)},
                          {"bound", cli_json_number(tail * sum)},
                          {"dense_rows", cli_json_number((double)row->tail_report[2])},
                          {"columns", cli_json_number((double)row->tail_report[3])},
                          {"columns_a_row", cli_json_number(columns_a_row(row))}};
  json_object_set_new(object, "tail_report", make_object(fields, sizeof fields / sizeof fields[0]));
}

/* What the case has beside the usual; of a plain one, that it has it not. */
static void add_features(json_t *object, const bench_args *args, const bench_row *row) {
  const flp_spec *spec = &args->spec.spec;
  if (spec->listed) add_lists(object, args, row);
  if (spec->tail > 0) add_tail(object, row);
  if (spec->targets > 1) json_object_set_new(object, "targets", json_integer(row->spec.targets));
  if (flp_planner_has_top(spec)) {
    json_object_set_new(object, "topk", json_integer(row->spec.topk));
    json_object_set_new(object, "rank", json_boolean(row->spec.rank));
  }
  if (spec->statistics) json_object_set_new(object, "statistics", json_boolean(row->spec.statistics));
  if (spec->lora_rank) json_object_set_new(object, "lora_rank", json_integer(row->spec.lora_rank));
}

static json_t *row_json(const bench_args *args, const bench_result *result, const bench_row *row) {
  const flp_spec *spec = &args->spec.spec;
  const flp_loss *loss = cli_loss_of(&row->spec);
  int baseline = row->baseline_ms >= 0;
  const field fields[] = {{"case", json_string(bench_case_name(row->which))},
                          {"N", json_integer(row->n)},
                          {"D", json_integer(spec->hidden)},
                          {"V", json_integer(spec->vocab)},
                          {"dtype", json_string(flp_dtype_name(spec->dtype))},
                          {"hidden_dtype", json_string(flp_dtype_name(flp_hidden_dtype(&row->spec)))},
                          {"weight_dtype", json_string(flp_dtype_name(flp_weight_dtype(&row->spec)))},
                          {"mixed", json_string(flp_mixed_name(row->spec.mixed))},
                          {"entropy", json_string(flp_entropy_name(spec->entropy))},
                          {"grads", cli_words_json(FLP_GRAD_WORDS, row->which == BENCH_FORWARD ? 0 : row->spec.grads)},
                          {"loss", loss ? json_string(loss->name) : json_null()},
                          {"data", json_string(rows_kind_name(args->data))},
                          {"entropies", entropies_json(args, result, row->n)},
                          {"active_rows", json_integer(row->active)},
                          {"gemms", json_integer(row->gemms)},
                          {"ms", cli_json_number(row->ms.median)},
                          {"ms_low", cli_json_number(row->ms.low)},
                          {"ms_high", cli_json_number(row->ms.high)},
                          {"bare_ms", number_or_null(baseline, row->baseline_ms)},
                          {"ratio", number_or_null(baseline, row->ms.median / row->baseline_ms)},
                          {"first_ms", number_or_null(baseline, row->first_ms)},
                          {"first_ratio", number_or_null(baseline, row->ms.median / row->first_ms)},
                          {"tflops", cli_json_number(tflops_of(args, row))},
                          {"extra_bytes", cli_json_count(row->workspace_bytes)},
                          {"budget_bytes", cli_json_count(row->budget_bytes)},
                          {"mode", json_string(flp_mode_name(row->layout.mode))},
                          {"chunks", json_integer(row->layout.chunks)},
                          {"rung", json_string(flp_rung_name(result->rung))}};
  json_t *object = make_object(fields, sizeof fields / sizeof fields[0]);
  add_features(object, args, row);
  if (row->pairs) add_of_plain(object, row);
  return object;
}

static json_t *baseline_json(const bench_baseline *baseline) {
  const field fields[] = {{"product", json_string(gemm_product_name(baseline->product))},
                          {"N", json_integer(baseline->n)},
                          {"measured_vocab", json_integer(baseline->vocab)},
                          {"ms", cli_json_number(baseline->ms.median)},
                          {"ms_low", cli_json_number(baseline->ms.low)},
                          {"ms_high", cli_json_number(baseline->ms.high)},
                          {"tflops", cli_json_number(baseline->tflops)},
                          {"algorithm", json_integer(baseline->algorithm)},
                          {"algorithms", json_integer(baseline->algorithms)},
                          {"first", json_integer(baseline->first)},
                          {"first_ms", cli_json_number(baseline->first_ms)}};
  return make_object(fields, sizeof fields / sizeof fields[0]);
}

/* Fields of a pass that was not measured are null. per_launch: has that one too */
static void add_host(json_t *object, flp_pass pass, const bench_host *host, int per_launch) {
  int known = host->launches > 0;
  const field fields[] = {{"us", number_or_null(known, host->us.median)},
                          {"us_low", number_or_null(known, host->us.low)},
                          {"us_high", number_or_null(known, host->us.high)},
                          {"launches", known ? json_integer(host->launches) : json_null()},
                          {"us_per_launch", number_or_null(known, known ? us_per_launch(host) : 0)}};
  for (int i = 0; i < 4 + per_launch; i++)
    json_object_set(object, cli_shortly("%s_%s", flp_pass_name(pass), fields[i].key).text, fields[i].value);
  for (int i = 0; i < 5; i++) json_decref(fields[i].value);
}

static json_t *host_json(const bench_result *result) {
  json_t *object = json_pack("{s:I}", "rows", (json_int_t)result->host_rows);
  int has_steps = result->host[FLP_PASS_STEP].launches > 0;
  if (!has_steps) add_host(object, FLP_PASS_FORWARD, &result->host[FLP_PASS_FORWARD], 0);
  flp_pass last = has_steps ? FLP_PASS_STEP : FLP_PASS_BACKWARD;
  add_host(object, last, &result->host[last], 1);
  return object;
}

static void fill_record(json_t *record, const bench_args *args, const bench_result *result) {
  json_t *baseline = json_array(), *rows = json_array();
  for (int i = 0; i < result->baseline_count; i++) json_array_append_new(baseline, baseline_json(&result->baseline[i]));
  for (int i = 0; i < result->row_count; i++) json_array_append_new(rows, row_json(args, result, &result->row[i]));
  const measure_summary *host_us = &result->host[args->spec.spec.loss ? FLP_PASS_STEP : FLP_PASS_FORWARD].us;
  const field fields[] = {{"plan_id", json_string(result->plan_id)},
                          {"burst_ms", cli_json_number(args->burst_ms)},
                          {"rounds", json_integer(args->rounds)},
                          {"masked", cli_json_number(args->masked)},
                          {"cublaslt", result->cublaslt[0] ? cli_json_text(result->cublaslt) : json_null()},
                          {"host_us", cli_json_number(host_us->median)},
                          {"host_us_low", cli_json_number(host_us->low)},
                          {"host_us_high", cli_json_number(host_us->high)},
                          {"host_rows", json_integer(result->host_rows)},
                          {"host", host_json(result)},
                          {"plan_cold_ms", number_or_null(result->plan_cold_ms >= 0, result->plan_cold_ms)},
                          {"plan_warm_ms", number_or_null(result->plan_warm_ms >= 0, result->plan_warm_ms)},
                          {"bare", baseline},
                          {"rows", rows}};
  set_fields(record, fields, sizeof fields / sizeof fields[0]);
}

flp_status bench_write(const bench_args *args, const bench_result *result, const char *command, const char *path) {
  json_t *record = cli_record_create(result->device, result->driver_version, command);
  if (record) fill_record(record, args, result);
  return cli_record_write(record, path);
}

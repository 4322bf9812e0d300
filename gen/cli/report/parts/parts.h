/* parts.h: what charts and the page are made of: records read into plain tables; text, tables, marks and lines.
 *
 * Invariants: what is drawn depends on the files alone, so the same files give the same bytes; every text of a file
 * passes report_escape on its way out. A number that a record lacks is NaN. */
#ifndef FLPGEN_CLI_REPORT_PARTS_H
#define FLPGEN_CLI_REPORT_PARTS_H

#include <math.h>
#include <stdio.h>

#include "gen/cli/shared/spec_args.h"
#include "runtime/kernel/kernel.h"

/* ---- what was read; texts are never NULL ---- */

typedef struct report_run {
  int64_t id;
  const char *file, *started, *finished, *command, *gpu, *flp_version, *sources, *effort;
  int64_t multiprocessors, driver, seed;
  double budget_s;
} report_run;

typedef struct report_spec {
  int64_t id;
  int run; /* index of its run */
  const char *text, *dtype, *entropy, *grads, *model;
  int64_t vocab, hidden, rows;
} report_spec;

typedef enum report_status {
  REPORT_ILLEGAL,
  REPORT_PRUNED,
  REPORT_WRONG,
  REPORT_FAILED,
  REPORT_WAITING, /* not looked at: the search ended before */
  REPORT_TIMED,
  REPORT_CHOSEN,
  REPORT_STATUSES
} report_status;

typedef struct report_candidate {
  int spec;  /* index of its spec */
  int order; /* place in the file */
  const char *kind, *tune, *reason;
  flp_tunables tiling; /* of tune; zeros where it cannot be read */
  report_status status;
  int64_t chunk_rows, chunk_vocab, rounds;
  double predicted_ms, error, ms, ms_low, ms_high, clock_mhz, power_w;
  double ratio; /* to the time of the untuned default beside it */
} report_candidate;

typedef struct report_baseline {
  int spec; /* index */
  const char *product;
  int64_t rows;
  double ms, ms_low, ms_high;
} report_baseline;

/* One row of a benchmark record. */
typedef struct report_bench {
  int source;               /* index of its file */
  const char *which, *peer; /* case; "" for flpgen's own record */
  const char *dtype, *entropy, *grads, *loss, *reason;
  const char *variant;     /* of the kernels, in studies of them */
  const char *data, *mode; /* kind of the rows, "" in records before there were kinds; mode of flp's passes */
  int64_t run;             /* of a study, 0 without */
  int64_t rows, hidden, vocab, active, gemms;
  double ms, ms_low, ms_high, baseline_ms, first_ms, extra_bytes;
  double product_ms;     /* of one product of hidden and the whole weight in the same record */
  double median_entropy; /* of the rows, nats */
} report_bench;

/* One file, or one run of a file, and where it came from. */
typedef struct report_source {
  const char *file, *what, *gpu, *driver, *date, *sources, *command;
} report_source;

typedef struct report_data {
  report_run *runs;
  report_spec *specs;
  report_candidate *candidates;
  report_baseline *bares;
  report_bench *benches;
  report_source *sources;
  int run_count, spec_count, candidate_count, baseline_count, bench_count, source_count;
  int left_out;   /* rows of benchmark records that name no case, shape or time */
  void *texts;    /* owned */
  int incomplete; /* memory ran out */
} report_data;

/* ---- data.c: tuning records ---- */

/* Adds the tables of an SQLite file. error: IO, CORRUPT naming what is wrong with it */
flp_status report_data_read(const char *path, report_data *data);
/* Copies a text; NULL becomes "". */
const char *report_data_keep(report_data *data, const char *text);
/* Adds a zeroed item to the end of an array, which may move; where memory runs out nothing but data->incomplete
 * changes. */
void *report_data_grow(report_data *data, void *array, int *count, size_t item_bytes);
#define REPORT_ADD(data, array, count) \
  ((data)->array = report_data_grow(data, (data)->array, &(data)->count, sizeof *(data)->array))
flp_status report_data_check_memory(const report_data *data, const char *path);
/* Tunables of "forward:256x128,..." or, of the kind alone, "256x128,...". Zeros for what is not understood. */
flp_tunables report_data_tiling(const char *kind, const char *tune);
/* The last part of a path. */
const char *report_data_base(const char *path);
void report_data_clear(report_data *data);
/* Puts candidates in the order of their specs; to be called once, after all files are read. */
void report_data_sort(report_data *data);
/* The candidates of a spec: first..end-1. */
void report_data_range(const report_data *data, int spec, int *first, int *end);
const char *report_status_name(report_status status);
/* What a kind of kernel is timed in: "forward pass", "backward pass"; in save, direction and stream modes also
 * "training step", "step". */
const char *report_data_pass(const report_data *data, int spec, const char *kind);
/* Milliseconds of the GEMM baselines of that pass, NaN if one was not timed. */
double report_data_baseline_ms(const report_data *data, int spec, const char *kind);

/* Best candidate of a kind of a spec: the chosen one, else the fastest of those timed longest; -1 without any. */
int report_data_best(const report_data *data, int spec, const char *kind);
/* Kinds in the order of the page; NULL ends it. */
extern const char *const REPORT_KINDS[];
/* "Qwen3-8B · V 151936 · D 4096 · bf16 · N 8192 · loss=grpo+k3". */
enum { REPORT_SHAPE_BYTES = 256 };
const char *report_data_shape(const report_spec *spec, char buffer[REPORT_SHAPE_BYTES]);
/* Distinguishes two records of one shape: "a.sqlite", of one file "a.sqlite, run 2"; "" where no other spec is of
 * this shape. Returns buffer. */
enum { REPORT_RECORD_BYTES = 112 };
const char *report_data_record(const report_data *data, int spec, char buffer[REPORT_RECORD_BYTES]);

/* ---- bench.c: benchmark records, exported searches ---- */

/* Adds the rows of a JSON record. error: IO, CORRUPT */
flp_status report_bench_read(const char *path, report_data *data);
/* Orders passes, then shapes; 0 for those that differ in nothing but who ran, how, when and on which rows. */
int report_bench_compare(const report_bench *a, const report_bench *b);
/* Adds words behind a dot. */
void report_append(char *out, size_t capacity, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* "forward · N 8192 · D 4096 · V 151936 · bf16 · entropy forward", what report_bench_compare compares. */
void report_bench_text(const report_bench *row, char out[REPORT_SHAPE_BYTES]);

/* ---- html.c: text, tables and legends ---- */

/* Text or an attribute's value: markup escaped, bytes that are not UTF-8 or not printable as U+FFFD. */
void report_escape(FILE *out, const char *text);
/* A number of at most that many significant digits without trailing zeros, "–" for NaN. Returns buffer. */
enum { REPORT_NUMBER_BYTES = 32 };
const char *report_number(double value, int digits, char buffer[REPORT_NUMBER_BYTES]);

/* A time or a ratio with that many places, for columns; "–" for NaN. Returns buffer. */
const char *report_places(double value, int places, char buffer[REPORT_NUMBER_BYTES]);

/* A table behind a chart, closed until it is opened. A column whose name begins with '#' holds numbers. */
void report_table_start(FILE *out, const char *caption, int rows, const char *const *columns, int count);
void report_table_row(FILE *out, const char *const *columns, int count, const char *const *cells);
void report_table_finish(FILE *out);

/* A figure: a title, a sentence more, and after its drawings an end. */
void report_figure_start(FILE *out, const char *name, const char *title, const char *about);
void report_figure_finish(FILE *out);
/* What stands in place of a chart for which there are no data. */
void report_figure_missing(FILE *out, const char *name, const char *title, const char *why);
void report_note(FILE *out, const char *text);

/* ---- style.c ---- */

extern const char *const REPORT_STYLE;

#endif

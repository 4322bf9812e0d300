/* bench.h: the parts of `flpgen bench`, divided by the file that implements them.
 *
 * Cases (the passes of a plan) and GEMM baselines of the same shapes are timed in one run, interleaved. */
#ifndef FLPGEN_CLI_BENCH_H
#define FLPGEN_CLI_BENCH_H

#include "autotune/gemm/gemm.h"
#include "gen/cli/bench/kept.h"
#include "gen/cli/bench/rows.h"
#include "gen/cli/call/call.h"
#include "gen/cli/shared/reasons.h"
#include "gen/cli/shared/scratch.h"
#include "gen/cli/shared/spec_args.h"

enum { BENCH_SIZES_MAX = 16 };

/* ---- bench.c: the arguments ---- */

typedef struct bench_args {
  cli_spec_args spec;
  flp_options options;
  int64_t rows[BENCH_SIZES_MAX];
  int row_count;
  double masked; /* fraction of rows whose target is the ignore index, 0 <= masked < 1 */
  double burst_ms;
  int64_t rounds, seed;
  cli_data data;
  int no_baseline, quiet;
  const char *json;       /* file, or "-" */
  const char *peers;      /* as flp.bench takes them, or NULL: no hand-over */
  const char *write_rows; /* file for the operands, or NULL: they are measured on */
} bench_args;

/* What was given, by its option, and cannot be had. */
typedef struct bench_refusal {
  int given;
  const char *option;
} bench_refusal;
/* with: what it is not accepted with, and why. error: ARGUMENT naming the first that was given */
flp_status bench_refuse(const bench_refusal *fields, size_t count, const char *with);

/* ---- peers.c ---- */

/* Replaces this process by `python3 -m flp.bench` (FLP_PYTHON names another interpreter) with the same shapes; args are
 * resolved. Returns on failure only. error: ARGUMENT naming what cannot be handed over, or the command to run by
 * hand */
flp_status bench_peers(const bench_args *args);

/* Whether the words ask for divergences of two heads, --op diverge; and the same for these, whose options Python knows:
 * they are handed over as they are. */
int bench_is_of_two_heads(int argc, char *const *argv);
flp_status bench_two_heads(int argc, char *const *argv);

/* ---- write.c ---- */

/* Writes the operands of the only number of rows to args->write_rows, without a GPU by the CPU; prints what they are.
 * args are resolved. error: ARGUMENT naming what it has no use for; IO; as bench_data_rows */
flp_status bench_write_rows(const bench_args *args);

/* ---- cases.c: pure ---- */

typedef enum bench_case { BENCH_FORWARD, BENCH_BACKWARD, BENCH_BOTH, BENCH_STEP, BENCH_CASES } bench_case;

/* "forward", "backward", "forward+backward", "step" */
const char *bench_case_name(bench_case which);

/* 1 if the spec has that case: a loss has steps alone; else backward needs gradients and, as it may use up what forward
 * kept, comes with forward where anything is kept. */
int bench_case_exists(bench_case which, const flp_spec *spec);

/* How many of each GEMM a case is compared with, by gemm_product: the scores once for each pass, where backward
 * computes them again, and a product for each gradient. Returns their sum.
 * mode: save, stream and direction compute scores once; direction makes both products in forward; listed has none, and
 * tail that of the scores: they are compared with the scores once, whatever the passes */
int bench_case_products(bench_case which, flp_mode mode, const flp_spec *spec, int count[GEMM_PRODUCTS]);

/* Rows left of n when a fraction is masked, and whether a row is: spread evenly. */
int64_t bench_active_rows(int64_t n, double masked);
int bench_row_is_masked(int64_t row, double masked);

/* Calls of so many launches each that together stay below a number of launches; at least 1. */
int64_t bench_host_calls(int launches, int most);

/* Columns of the GEMM baseline's scores that fit into memory: V, or the largest multiple of 1024 below it; 0 if not
 * even that. */
int64_t bench_scores_vocab(const flp_spec *spec, int64_t n, uint64_t free_bytes);

/* ---- result.c: what was measured ---- */

typedef struct bench_row {
  bench_case which;
  int is_plain;                  /* of a spec with a tail, several targets, ...: the same without (run.c) */
  flp_spec spec;                 /* that of the plan, or of the one without */
  int64_t n, active, list_count; /* list_count: ids of all lists, 0 without */
  float tail_report[4];          /* as flp_args has it, of the last call; zeros of what has none */
  flp_layout layout;             /* of the pass that counts most: backward where it has products, else forward */
  uint64_t workspace_bytes;      /* the larger of the passes; with what is kept from one to the other */
  uint64_t budget_bytes;         /* of that pass */
  int gemms;
  measure_summary ms;
  measure_summary
      of_plain; /* beside the same without, in turn (measure_in_turn), over so many pairs: 0 if not measured */
  int pairs;
  double baseline_ms; /* sum of the medians of `gemms` GEMM baselines; < 0 if not measured */
  double first_ms;    /* the same, each by the first algorithm that the library names */
} bench_row;

typedef struct bench_baseline {
  gemm_product product;
  int64_t n, vocab; /* vocab: columns that were measured; times are scaled from them to V */
  measure_summary ms;
  double tflops;
  int algorithm, algorithms; /* which of how many */
  int first;                 /* that the library does not refuse */
  double first_ms;           /* median by that one */
} bench_baseline;

/* Entropies of the rows that were made, nats, by ROWS_FRACTIONS. */
typedef struct bench_entropies {
  int64_t n; /* 0: not known, as those of random rows are not */
  double quantile[ROWS_QUANTILES];
} bench_entropies;

/* What a pass costs the host. */
typedef struct bench_host {
  int launches;       /* of kernels, in one flp_execute; 0: the pass was not measured */
  measure_summary us; /* microseconds until flp_execute returns; medians */
} bench_host;

typedef struct bench_result {
  bench_row row[BENCH_SIZES_MAX * 2 * BENCH_CASES]; /* those of tail mode or several targets, and the plain ones */
  int row_count;
  bench_baseline baseline[BENCH_SIZES_MAX * GEMM_PRODUCTS];
  int baseline_count;
  bench_entropies entropies[BENCH_SIZES_MAX]; /* by number of rows, in their order */
  char device[128], description[CLI_REASONS_BYTES], plan_id[17], cublaslt[CUBLASLT_PATH_BYTES + 64];
  int driver_version;
  flp_rung rung;
  int64_t host_rows;                  /* N of the host times */
  bench_host host[FLP_PASS_STEP + 1]; /* by pass */
  double plan_cold_ms, plan_warm_ms;  /* < 0: not measured, for the reason below */
  char plan_error[256];
} bench_result;

/* Prints the quantiles of the rows' entropies. */
void bench_print_entropies(const bench_args *args, const bench_entropies *rows);
/* Prints tables for people. */
void bench_print(const bench_args *args, const bench_result *result);
/* Writes the record. path: "-" for stdout. error: IO, MEMORY */
flp_status bench_write(const bench_args *args, const bench_result *result, const char *command, const char *path);

/* ---- data.c: buffers and what is in them ---- */

typedef struct bench_data {
  const bench_args *args;
  call_buffers buffers;         /* its device is set */
  call_problem call;            /* of the current number of rows */
  bench_entropies entropies;    /* of the current rows */
  cli_buffer scores, workspace; /* of the GEMM baselines */
  cli_buffer narrow[2];         /* hidden and weight of spec.dtype, for these, where the operand is of another */
  cli_buffer one_target;        /* (n) of several targets the first of each row, for what has one */
} bench_data;

/* Makes what belongs to the head; then, after clearing those before, what belongs to n rows.
 * error: DRIVER, MEMORY; as rows_make */
flp_status bench_data_head(bench_data *data);
flp_status bench_data_rows(bench_data *data, int64_t n);
void bench_data_clear_rows(bench_data *data);
void bench_data_clear(bench_data *data);
/* Makes an array and fills it with normal numbers. error: DRIVER, MEMORY */
flp_status bench_data_normal(bench_data *data, flp_array_id id, double sigma);
/* Fills `narrow` of hidden or weight, if it is of another dtype than products. error: DRIVER, MEMORY */
flp_status bench_data_narrow(bench_data *data, flp_array_id id);
/* Sets what the loss reads of the policies before to what a step has just written, give or take a tenth of a nat: a
 * policy far from them would be clipped, and products of zeros run faster. error: DRIVER, MEMORY */
flp_status bench_data_follow(bench_data *data);
/* The arguments of a pass; workspace_bytes is the layout's. */
flp_args bench_data_args(const bench_data *data, flp_pass pass, const flp_layout *layout);

/* ---- arrays.c ---- */

int64_t bench_data_elements(const bench_data *data, flp_array_id id);
/* Makes an array, one of ids, or one of numbers by row. draw: writes those of a row, from a seed of its own
 * error: DRIVER, MEMORY */
flp_status bench_data_make(bench_data *data, flp_array_id id);
flp_status bench_data_ids(bench_data *data, flp_array_id id, const int64_t *ids);
flp_status bench_data_drawn(bench_data *data, flp_array_id id, uint64_t seed,
                            void (*draw)(uint64_t seed, int64_t count, float *out));

/* ---- ids.c ---- */

/* Makes targets and lists of the rows, by Zipf's law. kept: rows that rows_make has made, whose targets are there and
 * whose lists have their own columns; NULL for random ones. error: DRIVER, MEMORY */
flp_status bench_data_lists(bench_data *data, const bench_kept *kept);
/* Makes several targets of the rows: their own, and others by Zipf's law, each another column. own: (n), or the ignore
 * index. error: DRIVER, MEMORY */
flp_status bench_data_targets(bench_data *data, const int64_t *own);
/* Makes a teacher's log-probabilities of these targets, whose sum over a row's is below 1. error: DRIVER, MEMORY */
flp_status bench_data_teacher(bench_data *data);

/* ---- baseline.c: GEMM baselines over that data ---- */

typedef struct bench_products {
  const cublaslt *library; /* borrowed; NULL: there are none */
  bench_data *data;        /* borrowed, as is spec */
  const flp_spec *spec;
  int64_t n;
  gemm product[GEMM_PRODUCTS];
  int64_t vocab; /* columns that they have, as many as fit into memory */
} bench_products;

/* Makes those that the passes of the spec are made of, and chooses their algorithms; with a library, data and rows set.
 * share: they take up to one part in so many of the memory that is free. error: MEMORY, DRIVER, UNAVAILABLE */
flp_status bench_products_create(bench_products *products, int share, measure_clock *clock,
                                 const measure_options *choose);
/* Leaves what was set. */
void bench_products_clear(bench_products *products);
int bench_products_has(const bench_products *products, gemm_product which);
/* A measured time as it would be of all columns of the head. */
measure_summary bench_products_scaled(const bench_products *products, measure_summary ms);

/* ---- plan.c: how long a plan takes to make ---- */

/* Times a plan with an empty kernel cache and an empty driver cache, then again with what the first one left there.
 * Both caches are temporary. bench_plan_begin opens them as cli_scratch_open does, before the device is opened;
 * cli_scratch_close removes them. Failing to measure is reported in the result, not as an error. */
void bench_plan_begin(cli_scratch *caches, bench_result *result);
void bench_plan_time(const cli_scratch *caches, const bench_args *args, bench_result *result);

/* ---- run.c: the measurement ---- */

/* That of flp_plan_saved, for a plan of these options: without a budget of the user save mode is measured whatever it
 * takes, direction and tail modes, which have chunks, in the plan's own. */
uint64_t bench_keep_budget(const flp_plan *plan, const flp_options *options);
/* error: UNAVAILABLE without a GPU or cuBLASLt; any of flp_plan_create, flp_execute and measure_run */
flp_status bench_run(const bench_args *args, bench_result *out);

#endif

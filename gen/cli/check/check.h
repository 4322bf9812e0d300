/* check.h: the parts of `flpgen check`, divided by the file that implements them.
 *
 * A case says what to compute, a problem holds its data on the host, a run executes it on one rung and gives a result;
 * findings are what comparing a result with the oracle has shown. */
#ifndef FLPGEN_CLI_CHECK_H
#define FLPGEN_CLI_CHECK_H

#include "gen/cli/call/call.h"
#include "gen/cli/shared/common.h"
#include "gen/cli/shared/losses.h"
#include "gen/cli/shared/oracle.h"

/* ---- cases.c: what is computed ---- */

/* Patterns of scores. */
typedef enum check_fill {
  CHECK_FILL_RANDOM,    /* scores of a spread of about 3 */
  CHECK_FILL_EXACT,     /* multiples of 1/8: every product and sum is exact in fp32 */
  CHECK_FILL_SHIFTED,   /* random, all scores near 10^4 */
  CHECK_FILL_EQUAL,     /* all scores of a row equal */
  CHECK_FILL_ONE_HOT,   /* one column 128 above all others */
  CHECK_FILL_NEGATIVE,  /* random, all scores near -16384 */
  CHECK_FILL_HOLES,     /* bias -inf on a quarter of the columns in a block and on every third */
  CHECK_FILL_ALL_HOLES, /* bias -inf everywhere */
  CHECK_FILL_PEAKED,    /* as a trained model's: most targets are likely, up to 1 - 10^-4 */
  CHECK_FILL_UNLIKELY,  /* every target has a probability of about 10^-12 */
  CHECK_FILL_STEEP /* random, but in the last rows a column near the end of the vocabulary is 150 above all others */
} check_fill;

/* Patterns of rows. */
typedef enum check_rows {
  CHECK_ROWS_ALL,
  CHECK_ROWS_MASKED,    /* every third has the ignore index */
  CHECK_ROWS_LIST,      /* a row list, unordered, with repeats and two ids that are no row */
  CHECK_ROWS_BAD,       /* targets out of range and, if per row, temperatures <= 0, NaN and infinite */
  CHECK_ROWS_NAN,       /* NaN and Inf in hidden rows */
  CHECK_ROWS_IDLE,      /* every second row without upstream gradient */
  CHECK_ROWS_LAST_TILE, /* every target among the last columns */
  CHECK_ROWS_NAN_IDLE   /* NaN and Inf in hidden rows without upstream gradient */
} check_rows;

/* What a forward pass is told of an old policy. */
typedef enum check_old {
  CHECK_OLD_NONE,
  CHECK_OLD_NEAR, /* a few nats off */
  CHECK_OLD_FAR   /* 200 nats off, either way, and NaN: everything that was kept is to be redone */
} check_old;

typedef struct check_case {
  const char *name;
  flp_spec spec; /* vocab: of all shards together */
  int64_t n;
  check_fill fill;
  check_rows rows;
  double temperature, scale; /* per row: from 1/temperature to temperature */
  int shards;                /* 1: the whole head in one call */
  int64_t padding;           /* elements between rows of every matrix */
  int64_t chunk_rows, chunk_vocab;
  flp_mode mode; /* 0: the planner's; S keeps exponentials, P streams steps */
  check_old old;
  const double *loss_parameters; /* of spec.loss; NULL: such that every term counts */
  int sampled;                   /* compare some rows and columns alone, as of a large problem */
  uint64_t seed;
} check_case;

typedef struct check_list {
  check_case *cases; /* owned */
  int count, capacity;
  flp_status status; /* of the first case that could not be made; none follows it */
} check_list;

typedef enum check_set {
  CHECK_SET_QUICK,
  CHECK_SET_ALL,
  CHECK_SET_LARGE,
  CHECK_SET_CONCURRENT, /* no cases: check_concurrent */
  CHECK_SET_SELECT,     /* no cases: check_select */
  CHECK_SET_GIVEN
} check_set;

/* Lists the cases of a set. given: spec, rows, temperature, scale and seed of CHECK_SET_GIVEN. error: MEMORY; that of a
 * loss that cannot be loaded */
flp_status check_list_create(check_set set, const check_case *given, check_list *out);
void check_list_clear(check_list *list);
/* Adds a case; if that fails list->status says so. */
void check_list_add(check_list *list, check_case c);
/* A case with everything at its default. */
check_case check_case_default(flp_dtype dtype, int64_t n, int64_t vocab, int64_t hidden);
/* Rows of one shard's weight. */
int64_t check_shard_vocab(const check_case *c);

/* ---- data.c: problems ---- */

enum { CHECK_ACTIVE = 0, CHECK_LEFT_OUT = 1, CHECK_BAD = 2 };

typedef struct check_problem {
  check_case c;                      /* spec resolved */
  int64_t shard_vocab, padded_vocab; /* rows of one shard's weight, of all shards' */
  int64_t stride;                    /* of every matrix */
  size_t shift;                      /* bytes from a 256-byte boundary to the base of every array of dtype */
  void *hidden, *weight, *bias;      /* rows of padding hold NaN */
  void *target;                      /* (n) target dtype */
  float *temperature_rows, *grad_logprob, *grad_entropy; /* (n) */
  float *weight_base; /* (padded vocab, stride) what grad_weight starts from, or NULL */
  int32_t *rows;
  int64_t row_count;
  int has_bad;                            /* a bad row or row id */
  float *old_lse;                         /* (n), or NULL */
  const flp_loss *loss;                   /* of spec.loss, or NULL */
  float *loss_input[FLP_LOSS_INPUTS_MAX]; /* (n) what the loss reads; NULL: not read, or left to its default */
  double loss_parameters[FLP_LOSS_PARAMETERS_MAX];

  /* the oracle's view */
  uint8_t *forward_class, *backward_class; /* (n) CHECK_* */
  int64_t *target_id;
  double *temperature, *g, *e; /* (n) */
  oracle_problem oracle;
} check_problem;

/* error: MEMORY; ARGUMENT if the case's spec is not accepted */
flp_status check_problem_create(const check_case *c, check_problem *out);
/* What a rung gets of it; borrows everything. */
call_problem check_problem_call(const check_problem *problem);
/* The same problem for modes F and R, with the upstream gradients of its loss; borrows everything. */
check_problem check_problem_plain(const check_problem *problem);
void check_problem_clear(check_problem *problem);
/* train.c: draws what a forward pass is told of an old policy and what the loss of a step reads, about what the
 * oracle says of each row; upstream gradients and classes become those of the loss.
 * error: MEMORY; ARGUMENT if the problem is too large for the oracle to see every row and the loss needs it */
flp_status check_problem_train(check_problem *problem);
/* Sets upstream gradients of a loss at the logprob and entropy of a result, which are compared themselves: a
 * ratio to another policy magnifies what they may be off. Classes stay. */
void check_problem_follow(check_problem *problem, const call_result *result);
/* One row's loss at a logprob and entropy, in fp64. */
flp_loss_row check_problem_loss(const check_problem *problem, int64_t row, double logprob, double entropy);
/* Reorders rows: new row i is old row order[i], for i < n. error: MEMORY */
flp_status check_problem_permute(check_problem *problem, const int64_t *order, int64_t n);

/* ---- ahead.c: kernels made before they are needed ---- */

typedef struct check_ahead check_ahead;

/* What is to be made. */
typedef struct check_ahead_wish {
  const cli_device *device;
  int jobs;               /* threads; 1: nothing is made ahead */
  int jit, generic;       /* kernels of these rungs */
  const char *tune;       /* of flp_options, or NULL */
  const check_list *list; /* cases in the order in which they will run */
} check_ahead_wish;

/* Starts to make the kernels of cases on threads of its own. *out is NULL if there is nothing to be made.
 * wish: device and losses of the list outlive *out. error: MEMORY, DRIVER */
flp_status check_ahead_start(const check_ahead_wish *wish, check_ahead **out);
/* As flp_plan_create, with the kernels that were made ahead, for which it waits. ahead: NULL for none */
flp_status check_ahead_plan(check_ahead *ahead, const flp_spec *spec, const flp_options *options, flp_plan **out);
/* Waits until all are made, and lets go of the threads' contexts. NULL is fine, as below. */
void check_ahead_finish(check_ahead *ahead);
/* Waits for kernels that were begun, begins no other, and forgets all. */
void check_ahead_stop(check_ahead *ahead);

/* ---- run.c: execution ---- */

typedef struct check_how {
  flp_rung rung;
  int ordinal;           /* CUDA device; the eager rung runs on the host */
  uint64_t budget_bytes; /* 0: the default */
  int threads;           /* of the eager rung, 0 = all */
  const char *tune;      /* of flp_options, or NULL */
  double limit_s;        /* check_concurrent: of a wait for the device; 0: the default */
  check_ahead *ahead;    /* borrowed, or NULL */
} check_how;

/* The --tune of a spec: NULL where its operands leave no choice, as those of some cases of a set. spec: resolved */
const char *check_how_tune(const check_how *how, const flp_spec *spec);
/* The CUDA device, or the host. */
int check_how_device(const check_how *how);
/* The plan of a problem, or of each of its shards. error: any of flp_plan_create */
flp_status check_how_plan(const check_how *how, const check_problem *problem, flp_plan **out);
/* 1 for a failure that every case would meet: of memory, or of a --tune that is refused. */
int check_how_ends(const check_how *how, flp_status status);
/* Uploads, poisons outputs and workspace, runs forward (or shards and combine) and backward, or a step, downloads.
 * error: UNAVAILABLE if this rung, or its mode S, is not offered here; any of flp_plan_create, flp_execute, flp_step */
flp_status check_run(const check_problem *problem, const check_how *how, call_result *out);
/* The same for check_problem_plain. */
flp_status check_run_plain(const check_problem *problem, const check_how *how, call_result *out);
/* ---- metrics.c: how far off ---- */

typedef struct check_metric {
  double share;   /* worst error over allowed error, at most 1 in what passes; infinite where a number is not finite */
  double max_ulp; /* largest error in units of the row's ulp; -1 where it does not apply */
  double rel_l2, cosine; /* of a reference that is zero: share, and pass */
  double bound;          /* of max_ulp at the worst row, or of rel_l2; 0 for bit identity */
  int pass;
} check_metric;

/* Per-row numbers: error in ulps against an allowance each. A wanted NaN or infinity must be met exactly.
 * unit: value of one ulp; allowed: in the values' unit */
check_metric check_metric_rows(const double *got, const double *wanted, const double *unit, const double *allowed,
                               int64_t count);
/* A tensor: the L2 norm of its error against what is allowed of that, and the least normal fp32 number an element.
 * Where NaN is wanted only NaN will do. */
check_metric check_metric_tensor(const double *got, const double *wanted, int64_t count, double allowed);
/* Gradients: factor times the yardstick's error, plus floor times the norm of what is wanted. */
check_metric check_metric_gradient(const double *got, const double *wanted, const double *yardstick, int64_t count,
                                   double factor, double floor);
/* L2 norms over what is finite: of a tensor, and of a result's error, in which differences below the least normal fp32
 * number count as none and elements of its own NaN as the others do. */
double check_metric_norm(const double *wanted, int64_t count);
double check_metric_error(const double *got, const double *wanted, int64_t count);
/* Bit identity of two arrays; max_ulp is the number of bytes that differ. */
check_metric check_metric_bits(const void *a, const void *b, size_t bytes);
/* One unit in the last place of an fp32 number of this magnitude. */
double check_ulp(double magnitude);

/* ---- report.c: findings ---- */

typedef struct check_finding {
  char name[48], shape[48], options[160];
  const char *rung, *dtype, *output; /* borrowed, static */
  check_metric metric;
  char note[240]; /* why it failed, where a number does not say */
} check_finding;

typedef struct check_report {
  check_finding *findings; /* owned */
  int64_t count, capacity, failed;
  int incomplete;
  int hung; /* the device still works on what was checked: nothing that belongs to it can be released */
  char device[128];
  int driver_version;
  char offered[256]; /* rungs that ran, and why the others did not */
} check_report;

void check_report_add(check_report *report, const check_case *c, flp_rung rung, const char *output, check_metric metric,
                      const char *note);
/* Prints the worst share of the allowed error of every output, and findings: each, or only failures. */
void check_report_print(const check_report *report, int every);
/* Writes the record. path: "-" for stdout. error: IO, MEMORY */
flp_status check_report_write(const check_report *report, const char *path, const char *command);
void check_report_clear(check_report *report);

/* ---- truth.c ---- */

/* What the oracle says of a problem, made once for all rungs. */
typedef struct check_truth {
  int64_t *rows, *columns; /* sampled: active rows in forward, columns */
  int64_t row_count, column_count;
  oracle_row *row_truth; /* of rows */
  int64_t *work;         /* rows active in backward */
  int64_t work_count;
  oracle_row *work_truth; /* of work; NULL if too many: then taken from the stats under test */
} check_truth;

/* whole: the same problem's, whose rows are not evaluated again; or NULL. error: MEMORY */
flp_status check_truth_create(const check_problem *problem, const check_truth *whole, check_truth *out);
void check_truth_clear(check_truth *truth);

/* ---- compare.c, bits.c: the checks ---- */

/* Compares every output of a result; adds findings.
 * plain: NULL, or the same problem's in modes F and R: bits of logprob and entropy are equal, and gradients may be as
 * much worse than its as they may be than the yardstick's. error: MEMORY */
flp_status check_compare(const check_problem *problem, const check_truth *truth, const call_result *result,
                         const call_result *plain, flp_rung rung, check_report *report);

/* Bit identity of one output of two results. */
check_metric check_result_bits(const check_problem *problem, call_slot slot, const call_result *a,
                               const call_result *b);

/* What a check is asked for that brings its own cases. */
typedef struct check_part {
  flp_dtype dtype;
  flp_mode mode; /* of check_mode_bits: S or P; of check_concurrent: 0 for all */
} check_part;

/* Bit identity of logprob and entropy over repeats, row order, N, budget and gradients, and of gradients over repeats.
 * error: as check_run */
flp_status check_bits(const check_part *of, const check_how *how, check_report *report);
/* Adds the cases that it makes plans for; so do the other check_*_cases. */
void check_bits_cases(const check_part *of, check_list *list);

/* modes.c: bits of modes S and P over repeats, and their results over budgets. error: as check_run */
flp_status check_mode_bits(const check_part *of, const check_how *how, check_report *report);
void check_mode_cases(const check_part *of, check_list *list);

/* select.c: flp_select over random and adversarial scores. error: as check_run */
flp_status check_select(const check_part *of, const check_how *how, check_report *report);
void check_select_cases(const check_part *of, check_list *list);

/* concurrent.c: bit identity of every output on several streams at once, beside other work and in CUDA graphs. A
 * deadlock is a finding that failed, and sets report->hung.
 * how: of a GPU; the budget is not used. error: UNAVAILABLE if rung or driver do not offer it; DRIVER, MEMORY */
flp_status check_concurrent(const check_part *of, const check_how *how, check_report *report);
void check_concurrent_cases(const check_part *of, check_list *list);

#endif

/* explain.h: the parts of `flpgen explain`: what each alternative costs, and the plan that would run.
 *
 * Beside this machine's plan there is one of an assumed device: the planner on the descriptors of the kernels that the
 * generator makes for it. */
#ifndef FLPGEN_CLI_EXPLAIN_H
#define FLPGEN_CLI_EXPLAIN_H

#include "gen/cli/kernels/kernels.h"
#include "gen/cli/shared/spec_args.h"
#include "runtime/plan/plan.h"

enum { EXPLAIN_ROWS_MAX = 16, EXPLAIN_ALTERNATIVES_MAX = 8, EXPLAIN_REASON_BYTES = 256 };
enum { EXPLAIN_PASSES = FLP_PASS_LAST + 1 };

typedef struct explain_args {
  cli_spec_args spec;
  flp_options options; /* resolved before use */
  int64_t rows[EXPLAIN_ROWS_MAX];
  int row_count;
  int64_t multiprocessors; /* of the assumed device, as are the next three */
  uint64_t memory_bytes;
  int major, minor;        /* compute capability */
  int json;
} explain_args;

/* ---- assumed.c: the device that is assumed, and its kernels ---- */

typedef struct explain_assumed {
  char arch[16]; /* of the best of the kernels */
  flp_kernel_desc desc[FLP_SPEC_KERNELS_MAX];
  int count;
  const char *lacks[FLP_SPEC_KERNELS_MAX]; /* kinds of which the portable shape-generic kernels have none */
  int lack_count;
  flp_unproven unproven;
} explain_assumed;

/* Generates the kernels that a plan would run on the assumed device, chosen as the ladder chooses, and makes a planner
 * of them. spec: resolved. error: ARGUMENT if the device runs no kernels; the generator's */
flp_status explain_assume(const explain_args *args, explain_assumed *out, flp_planner *planner);

json_t *explain_assumed_json(const explain_args *args, const explain_assumed *assumed);
void explain_assumed_print(const explain_args *args, const explain_assumed *assumed);

/* ---- alternatives.c ---- */

typedef enum explain_fit {
  EXPLAIN_LEAST,  /* nothing fits the budget: shown is the least that would do */
  EXPLAIN_BEYOND, /* beyond the budget, which chunk sizes that were asked for override */
  EXPLAIN_FITS
} explain_fit;

/* One alternative for computing everything that the spec asks for, over n rows. */
typedef struct explain_alternative {
  const char *name;
  int products; /* of 2·N·D·V flop, forward and backward */
  double flops;
  double workspace; /* bytes beyond inputs and outputs, with what is kept: what the planner takes in the budget */
  double least;     /* the least that would do */
  int64_t chunk_rows, chunk_vocab, chunks; /* as in flp_layout; 0 for the naive way */
  double traffic; /* bytes that device memory moves at least: operands once a product, chunks and accumulators; of
                     direction mode the weight once a chunk of rows, of listed mode its rows as often as they are listed */
  explain_fit fit;
} explain_alternative;

/* Ids of the lists of n rows that have so many on average. */
int64_t explain_list_count(double kept, int64_t n);
/* Fills the alternatives for n rows, naive ones first; returns their number. kept: of --keep-set; 0 without */
int explain_alternatives(const flp_planner *planner, double kept, int64_t n, uint64_t forward_budget,
                         uint64_t backward_budget, explain_alternative out[EXPLAIN_ALTERNATIVES_MAX]);

/* Asks the planner for a pass as a plan does: what the plan takes where that is in this mode, else what it would take
 * if it were asked for the mode. */
explain_fit explain_query(const flp_planner *planner, flp_pass pass, flp_mode mode, int64_t n, uint64_t budget,
                          flp_scheme *out);

/* The same of save or direction mode: what it keeps, the larger workspace of its two passes, and the least of all that;
 * the layout of its forward pass. */
typedef struct explain_saved {
  uint64_t kept, workspace, least;
  flp_scheme forward;
} explain_saved;
explain_fit explain_query_saved(const flp_planner *planner, flp_mode mode, int64_t n, uint64_t budget,
                                explain_saved *out);

/* What is shown; borrowed from cli_explain. */
typedef struct explanation {
  const explain_args *args;
  explain_assumed assumed;
  flp_planner planner;   /* of the assumed device */
  const flp_plan *plan;  /* of this machine, or NULL */
  char plan_error[1024]; /* why there is none */
} explanation;

/* ---- modes.c: the layouts, and why save, direction or stream mode is taken or not ---- */

/* The budget of a pass: of this machine's plan, or of the assumed device. unit: bytes */
uint64_t explain_budget(const explanation *in, int assumed, flp_pass pass);
/* 1 if the spec has this pass. */
int explain_has_pass(const explanation *in, int assumed, flp_pass pass);
/* The layout of a pass: of this machine's plan, or of the assumed device. error: BUDGET, UNSUPPORTED, as the planner */
flp_status explain_layout(const explanation *in, int assumed, flp_pass pass, int64_t n, flp_layout *out);
/* The modes that a sentence is on, in order; ends in 0. */
extern const flp_mode explain_modes[];
/* Bytes that save or direction mode keeps of n rows, whether or not the budget holds them; 0 where kernels, gradients
 * or options rule the mode out. */
uint64_t explain_saved_bytes(const explanation *in, int assumed, flp_mode mode, int64_t n);
/* One sentence on such a mode over n rows. 0 if the spec does not ask for the mode. */
int explain_mode_reason(const explanation *in, int assumed, flp_mode mode, int64_t n, char out[EXPLAIN_REASON_BYTES]);

/* ---- out.c ---- */

flp_status explain_print_json(const explanation *in);
void explain_print_text(const explanation *in);

#endif

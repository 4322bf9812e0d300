/* eager_case.h: a random problem on the host, ready for the eager rung and for the long double oracle.
 *
 * Invariants: outputs and workspace are poisoned with 0xff bytes before every pass, and so is what stands behind them,
 * which no pass writes; the oracle's operands are exactly the values that the case holds in its dtype, and every check
 * takes what else counts from spec, args, targets and lists, as the contract of flp.h has it. */
#ifndef FLP_TEST_EAGER_CASE_H
#define FLP_TEST_EAGER_CASE_H

#include "runtime/eager/eager.h"
#include "runtime/flp.h"
#include "tests/unit/support/long_oracle.h"
#include "tests/unit/support/random.h"

enum { EAGER_OUTPUTS = 12 };

/* Masks of gradients: all of a head without a bias, of one with a bias, and of one with an adapter. */
enum {
  HEAD = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT,
  ALL = HEAD | FLP_GRAD_BIAS,
  LORA = FLP_GRAD_HIDDEN | FLP_GRAD_LORA_A | FLP_GRAD_LORA_B
};

/* One output of the spec; data is NULL where it asks for none. */
typedef struct eager_output {
  const char *name;
  void *data;
  size_t bytes;
  uint32_t grad; /* FLP_GRAD_*, 0: of forward; the rest is of gradients */
  flp_dtype dtype;
  int64_t rows, width, stride;
  long double *of; /* the oracle's (rows, width) */
} eager_output;

typedef struct eager_case {
  flp_spec spec; /* resolved */
  flp_args args; /* operands and options of all passes; strides are D + padding */
  int64_t padding;
  int threads;
  uint64_t budget;   /* of the workspace */
  int squeeze;       /* 1: the smallest workspace in its place; 2: one between that and what the budget gives */
  uint64_t bad_rows; /* that passes have counted */
  double product;    /* error of a raw score, which a temperature divides; 0: within the tolerance */
  int exact;         /* 1: scores are exact, and so is the order of the best columns */
  int merged;        /* 1: outputs are those of combine, whose scores are rounded to fp32 */
  eager_output outputs[EAGER_OUTPUTS];
  float *logprob, *entropy, *stats, *top_logprob, *top_rest; /* (n, targets), (n), (n,4), (n,topk), (n) */
  int32_t *rank;
  void *top_ids;
  float *grad_logprob, *grad_entropy; /* (n, targets), (n) */
  void *hidden, *weight, *bias, *target, *lora_a, *lora_b;
  float *temperature;
  int64_t *list_offsets; /* (n + 1) of spec.listed; else NULL */
  void *list_ids;
  uint8_t *kind; /* (n) an eager_row as of the last check */
  long_problem reference;
} eager_case;

typedef enum eager_row {
  EAGER_ROW_ACTIVE,
  EAGER_ROW_LEFT_OUT,  /* 0 in everything of its own */
  EAGER_ROW_BAD,       /* ids or a temperature that are none: NaN, and every pass counts it */
  EAGER_ROW_BAD_LIST,  /* the same of its list */
  EAGER_ROW_NO_TARGET, /* the same of a list without the target, which only the target's shard sees */
  EAGER_ROW_BEYOND,    /* NaN, and the pass that writes logprob counts it */
  EAGER_ROW_NAN        /* NaN, and not counted */
} eager_row;

/* Random operands, targets and upstream gradients; every output of the spec has memory. Of several targets some stand
 * twice, some at the ends of the vocabulary, some are ignored, and of every seventh row all. Lists, where spec.listed
 * asks for them, have 1 to `longest` random ids, in no order, some twice, the row's target among them. */
void eager_case_create(eager_case *c, const flp_spec *spec, int64_t n, uint32_t seed);
void eager_case_create_listed(eager_case *c, const flp_spec *spec, int64_t n, int64_t longest, uint32_t seed);
void eager_case_destroy(eager_case *c);

/* Writes a value in the case's dtype and in the oracle. */
void eager_case_set_hidden(eager_case *c, int64_t row, int64_t d, double value);
void eager_case_set_weight(eager_case *c, int64_t column, int64_t d, double value);
void eager_case_set_bias(eager_case *c, int64_t column, double value);
/* Target k of a row; also outside the vocabulary or the ignore index. */
void eager_case_set_target(eager_case *c, int64_t row, int64_t k, int64_t target);
int64_t eager_case_get_target(const eager_case *c, int64_t row, int64_t k);
/* Sets the lists of spec.listed: count[i] ids of row i, row after row. */
void eager_case_set_lists(eager_case *c, const int64_t *ids, const int64_t *count);
int64_t eager_case_id_at(const eager_case *c, const void *ids, int64_t at); /* one of ids of the target dtype */
int64_t eager_case_columns(const eager_case *c); /* columns of the weight that are real */

/* Poisons, validates, lays out and runs; fails the test if any of it fails. */
void eager_case_forward(eager_case *c);
void eager_case_backward(eager_case *c);
/* The same but for poison, with other args; the workspace is made and freed inside. */
flp_status eager_case_run(eager_case *c, const flp_args *args);
/* The args of a pass, with every output that the spec asks for. */
flp_args eager_case_args(const eager_case *c, flp_pass pass);

/* The output that is this gradient, and an element of it, widened. */
const eager_output *eager_case_output(const eager_case *c, uint32_t grad);
double eager_case_grad(const eager_case *c, uint32_t grad, int64_t row, int64_t d);

/* All outputs in one block, to be freed; and that values and the gradients in grads still have these bits. */
char *eager_case_snapshot(const eager_case *c);
void eager_case_expect_bits(const eager_case *c, const char *snapshot, uint32_t grads, const char *what);

/* ---- eager_check.c ---- */

/* Takes from spec and args what the oracle needs, and finds out what each row is. */
void eager_case_sync(eager_case *c);
/* How many rows a pass over all columns counts as bad, with ids of args.rows that are none. */
uint64_t eager_case_bad_rows(const eager_case *c, flp_pass pass);
/* Whether a backward pass is asked anything of a row. */
int eager_case_has_gradient(const eager_case *c, int64_t row);
/* Compares all outputs of forward, or all gradients, with the oracle. */
void eager_case_check_forward(eager_case *c, double tolerance);
void eager_case_check_backward(eager_case *c, double tolerance);
/* The best of columns [first, first + count) in top_ids and top_logprob, of scores t: (vocab) less lse */
void eager_case_check_top(const eager_case *c, int64_t row, const long double *t, long double lse, int64_t first,
                          int64_t count);

/* ---- eager_passes.c ---- */

/* All passes beside the oracle, also by shards where operands are fp32 and the vocabulary has room for them; and that
 * no bit depends on threads, workspace, mask or the place of a row. */
void eager_case_check_all(eager_case *c, double forward, double backward);

#endif

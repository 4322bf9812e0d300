/* loss.h: a per-row loss as a small program: a list of operations on the values of one row, with its derivatives.
 *
 * A program is made by the generator from a Lua function (gen/loss/loss.c) or taken from the table of built-in ones;
 * here it is checked, stored, added to another and evaluated, without Lua. Nodes are in static single assignment:
 * node i reads nodes before it, so evaluation is one pass and every program ends. Its result is a loss per row and
 * named metrics; its derivatives by logprob, entropy, lse and mean_score follow by dual numbers (forward mode), in the
 * same pass.
 *
 * Numbers. Values enter and leave as float32 and are double in between, on the CPU and in the kernel: a row costs some
 * hundred operations once beside 2·D·V of its scores, and a ratio exp(logprob − old_logprob) then has the accuracy of
 * its operands. No operation is fused or reordered.
 *
 * Derivatives at kinks are torch's: min and max halve between equal operands, clamp(x, low, high) lets x through where
 * low <= x <= high, abs has 0 at 0, comparisons and detach have none. One thing differs on purpose: what a mask (min,
 * max, clamp, where) leaves out contributes 0 even if its own derivative is not finite; in torch 0·inf makes it NaN.
 *
 * A row of weight 0 has loss, metrics and derivatives 0, whatever else it holds and whether the program reads its weight
 * or not: nothing is multiplied by 0, and NaN·0 never formed.
 *
 * A plan carries one (flp_spec.loss, what flp_loss_write gave): its kernel is compiled from it
 * (templates/common/loss.lua) and has the SHA-256 of those bytes in its key; on rung generic the program is the data of
 * a kernel for any (templates/common/loss_any.lua). Parameters are arguments of the kernel, so a schedule of beta
 * compiles nothing. */
#ifndef FLP_LOSS_H
#define FLP_LOSS_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/flp.h"

enum { FLP_LOSS_NODES_MAX = 256, FLP_LOSS_CONSTANTS_MAX = 64, FLP_LOSS_SUMS_MAX = 8 };

/* Version of a program's bytes: of rows alone, over targets, and of rows with values of all their scores. */
enum { FLP_LOSS_FORMAT = 1, FLP_LOSS_FORMAT_TARGETS = 2, FLP_LOSS_FORMAT_SCORES = 3 };

/* What every loss may read of a row; vectors of the host follow them. */
typedef enum flp_loss_input {
  FLP_LOSS_LOGPROB,
  FLP_LOSS_ENTROPY,
  FLP_LOSS_OLD_LOGPROB,
  FLP_LOSS_REF_LOGPROB,
  FLP_LOSS_ADVANTAGE,
  FLP_LOSS_WEIGHT,
  FLP_LOSS_FIRST_VECTOR,
  /* values of each target of a row, behind the last vector that may be; only a program over targets reads them, and it
     reads no logprob of a row */
  FLP_LOSS_TARGET_LOGPROB = FLP_LOSS_INPUTS_MAX,
  FLP_LOSS_TEACHER_LOGPROB,
  /* values of all scores t of a row, in nats, which it has beside its logprob: a program over targets does not read them */
  FLP_LOSS_LSE,        /* log Σ_v exp t_v */
  FLP_LOSS_MEAN_SCORE, /* Σ_v t_v / V */
  FLP_LOSS_ALL_INPUTS
} flp_loss_input;

typedef enum flp_loss_op {
  FLP_LOSS_CONSTANT,  /* operand 0: index of constants */
  FLP_LOSS_INPUT,     /* operand 0: flp_loss_input */
  FLP_LOSS_PARAMETER, /* operand 0: index of parameters */
  FLP_LOSS_NEG,
  FLP_LOSS_ABS,
  FLP_LOSS_EXP,
  FLP_LOSS_EXPM1,
  FLP_LOSS_LOG,
  FLP_LOSS_SQRT,
  FLP_LOSS_DETACH, /* the value without its derivatives */
  FLP_LOSS_ADD,
  FLP_LOSS_SUB,
  FLP_LOSS_MUL,
  FLP_LOSS_DIV,
  FLP_LOSS_MIN, /* NaN if either is */
  FLP_LOSS_MAX,
  FLP_LOSS_CLAMP, /* x, low, high: min(max(x, low), high) */
  FLP_LOSS_LT,    /* from here on conditions, false with NaN */
  FLP_LOSS_LE,
  FLP_LOSS_EQ,
  FLP_LOSS_AND, /* of conditions */
  FLP_LOSS_OR,
  FLP_LOSS_NOT,
  FLP_LOSS_WHERE, /* condition, value if it holds, value if not */
  FLP_LOSS_SUM,   /* of a value of each target, over the targets of a row that are not ignore_index */
  FLP_LOSS_OPS
} flp_loss_op;

typedef struct flp_loss_node {
  uint8_t op;           /* flp_loss_op */
  uint16_t operands[3]; /* nodes before this one, or an index; 0 where the operation has fewer */
} flp_loss_node;

/* A value that is reported for each row beside the loss. */
typedef struct flp_loss_metric {
  char name[FLP_LOSS_NAME_BYTES];
  uint16_t node;
} flp_loss_metric;

typedef struct flp_loss {
  char name[FLP_LOSS_TITLE_BYTES]; /* "grpo", "grpo+k3" */
  uint32_t parameter_count, vector_count, constant_count, node_count, metric_count;
  flp_loss_parameter parameters[FLP_LOSS_PARAMETERS_MAX];
  char vectors[FLP_LOSS_VECTORS_MAX][FLP_LOSS_NAME_BYTES];
  double constants[FLP_LOSS_CONSTANTS_MAX]; /* never NaN */
  flp_loss_node nodes[FLP_LOSS_NODES_MAX];
  uint16_t loss; /* its node */
  flp_loss_metric metrics[FLP_LOSS_METRICS_MAX];
} flp_loss;

/* ---- ops.c: operations ---- */

/* "mul", and how many of the operands are nodes. NULL and 0 for what is no operation. */
const char *flp_loss_op_name(uint32_t op);
int flp_loss_op_arity(uint32_t op);
/* 1 if operand j of the operation is a condition. */
int flp_loss_takes_condition(uint32_t op, int j);
/* 1 if its result is one. */
int flp_loss_gives_condition(uint32_t op);
/* 1 if it gives the same bits on every machine, so that folding constants keeps programs reproducible. */
int flp_loss_is_exact(uint32_t op);
/* One operation on values; conditions are 0 and 1. */
double flp_loss_apply(flp_loss_op op, double a, double b, double c);

/* ---- partials.c ---- */

/* ∂y/∂operand of y = op(v): of torch where y has a kink. */
void flp_loss_partials(uint32_t op, const double v[3], double y, double out[3]);
/* 1 for operations whose partial of 0 leaves its operand out, even one whose own derivative is not finite. */
int flp_loss_is_mask(uint32_t op);

/* ---- loss.c: building ---- */

/* An empty program. error: ARGUMENT if name is no name (a-z, 0-9, _ and +, at most 63 bytes) */
flp_status flp_loss_start(flp_loss *loss, const char *name);
/* Appends a node unless an equal one is there; folds constants where IEEE arithmetic is exact on every machine.
 * error: ARGUMENT for operands that do not fit the operation, or if the program is full */
flp_status flp_loss_append(flp_loss *loss, flp_loss_op op, uint32_t a, uint32_t b, uint32_t c, uint16_t *out);
flp_status flp_loss_constant(flp_loss *loss, double value, uint16_t *out);
/* Declares a parameter or a vector, or finds the equal one of that name. *out: its index. error: ARGUMENT */
flp_status flp_loss_declare_parameter(flp_loss *loss, const flp_loss_parameter *parameter, uint32_t *out);
flp_status flp_loss_declare_vector(flp_loss *loss, const char *name, uint32_t *out);
flp_status flp_loss_declare_metric(flp_loss *loss, const char *name, uint16_t node);
/* Sets the result and drops what neither it nor a metric needs. */
flp_status flp_loss_finish(flp_loss *loss, uint16_t node);
/* sum += term: losses are added, metrics, parameters and vectors joined by name; the name becomes "sum+term".
 * error: ARGUMENT if a metric stands in both, a parameter has other bounds, or the sum is too large */
flp_status flp_loss_add(flp_loss *sum, const flp_loss *term);

/* 1 if the node is a condition. */
int flp_loss_is_condition(const flp_loss *loss, uint32_t node);
/* "logprob", ..., or the name of a vector. */
const char *flp_loss_input_name(const flp_loss *loss, uint32_t input);
/* Bits 1 << flp_loss_input of what the program reads. */
uint32_t flp_loss_inputs(const flp_loss *loss);

/* Bits of what a row has for one target alone, so that no program over targets reads it. */
enum {
  FLP_LOSS_OF_ONE_TARGET = 1 << FLP_LOSS_LOGPROB | 1 << FLP_LOSS_OLD_LOGPROB | 1 << FLP_LOSS_REF_LOGPROB |
                           1 << FLP_LOSS_LSE | 1 << FLP_LOSS_MEAN_SCORE
};

/* 1 if the input is a value of each target. */
static inline int flp_loss_input_is_of_targets(uint32_t input) {
  return input == FLP_LOSS_TARGET_LOGPROB || input == FLP_LOSS_TEACHER_LOGPROB;
}

/* 1 if the row has weight 0, and so a loss of 0 without derivatives. */
static inline int flp_loss_is_weightless(const double inputs[FLP_LOSS_ALL_INPUTS]) {
  return inputs[FLP_LOSS_WEIGHT] >= 0 && inputs[FLP_LOSS_WEIGHT] <= 0;
}

/* 1 if the program is one over targets: it sums values of them. */
int flp_loss_is_over_targets(const flp_loss *loss);

/* 1 if the program reads lse or mean_score; 1 if mean_score. */
int flp_loss_is_of_scores(const flp_loss *loss);
int flp_loss_reads_mean(const flp_loss *loss);

/* What a program's inputs of rows are in a call, by flp_loss_input. */
void flp_loss_inputs_of(const flp_args *args, const float *out[FLP_LOSS_ALL_INPUTS]);

/* Whether each node has a derivative by logprob (bit 0), entropy, lse and mean_score that is not zero by construction. */
enum { FLP_LOSS_BY_LOGPROB = 1, FLP_LOSS_BY_ENTROPY = 2, FLP_LOSS_BY_LSE = 4, FLP_LOSS_BY_MEAN = 8 };
void flp_loss_activity(const flp_loss *loss, uint8_t out[FLP_LOSS_NODES_MAX]);
/* That of the loss itself. */
uint32_t flp_loss_is_active(const flp_loss *loss);

/* What one row gives, in double. */
typedef struct flp_loss_row {
  double loss, grad_logprob, grad_entropy, grad_lse, grad_mean;
  double metrics[FLP_LOSS_METRICS_MAX];
} flp_loss_row;

/* ---- targets.c: programs over targets ----
 *
 * Such a program has values of a row and, where one stems from target_logprob or teacher_logprob, values of each target;
 * sum makes a value of the row of one of each target. Values of level l can be computed once the sums of levels below l are
 * known: with L levels of sums L passes over the targets give the loss, and one more its derivatives.
 *
 * Derivatives. Each node has derivatives by the entropy, by its own target's logprob and by each sum, which counts as a
 * variable of its own; those of the operand of a sum, added up over targets, say how a sum depends on earlier sums and the
 * entropy. Going back through the sums gives the loss's derivative by each sum, and from these those by every logprob. */

/* Bits of what a node of a program over targets depends on; FLP_LOSS_BY_SUM << j: on sum j. */
enum { FLP_LOSS_BY_OWN = 1, FLP_LOSS_BY_H = 2, FLP_LOSS_BY_SUM = 4 };
enum { FLP_LOSS_DIRECTIONS = 2 + FLP_LOSS_SUMS_MAX };

typedef struct flp_loss_plan {
  uint32_t sum_count, level_count;
  uint16_t sums[FLP_LOSS_SUMS_MAX];       /* their nodes, ascending */
  uint8_t per_target[FLP_LOSS_NODES_MAX]; /* 1: the node has a value for each target */
  uint8_t level[FLP_LOSS_NODES_MAX];      /* of a sum that of its operand; what reads the sum is one above */
  uint16_t active[FLP_LOSS_NODES_MAX];    /* bits: derivatives that are not zero by construction */
} flp_loss_plan;

/* 1 if the node has a value for each target. */
int flp_loss_is_per_target(const flp_loss *loss, uint32_t node);
void flp_loss_plan_of(const flp_loss *loss, flp_loss_plan *out);

/* One row of K targets. */
typedef struct flp_loss_targets {
  int64_t count;
  const float *logprob, *teacher_logprob; /* (count); teacher_logprob NULL if the program does not read it */
  const uint8_t *skipped;                 /* (count): 1 for a target that is ignore_index; NULL: none is */
  const double *exact;                    /* (count) in the place of logprob, as for difference quotients; or NULL */
  const double *exact_teacher;            /* (count) in the place of teacher_logprob, or NULL */
  double *detached; /* NULL, or (nodes, count): what detach gives; where exact is given it gives what stands here */
} flp_loss_targets;

/* flp_loss_evaluate_row of a program over targets. out->grad_logprob is 0; grad_targets: (count) or NULL */
void flp_loss_evaluate_targets(const flp_loss *loss, const flp_loss_plan *plan, const flp_loss_targets *targets,
                               const double inputs[FLP_LOSS_ALL_INPUTS], const double *parameters, flp_loss_row *out,
                               float *grad_targets);

/* ---- bytes.c ---- */

enum { FLP_LOSS_BYTES_MAX = 4096 };
/* Serialises; returns bytes written, 0 if capacity is too small. FLP_LOSS_BYTES_MAX always suffices. */
size_t flp_loss_write(const flp_loss *loss, uint8_t *out, size_t capacity);
/* Reads what flp_loss_write wrote, from any source. error: CORRUPT naming the field */
flp_status flp_loss_read(const uint8_t *bytes, size_t length, flp_loss *out);

/* ---- code.c ---- */

/* A program as the data that templates/common/loss_any.lua runs. */
typedef struct flp_loss_code {
  int32_t node_count, result, metric_count, unused;
  int32_t metrics[FLP_LOSS_METRICS_MAX]; /* their nodes */
  int32_t reserved[4];
  struct {
    int32_t op;
    /* bits: of the node by logprob 0, by entropy 1; of operand j by logprob 2 + j, by entropy 5 + j; of the node by lse 11,
       by mean_score 12; of operand j by lse 13 + j, by mean_score 16 + j */
    int32_t active;
    int32_t operands[3];
    int32_t reserved;
    double value; /* of a constant */
  } nodes[FLP_LOSS_NODES_MAX];
} flp_loss_code;

void flp_loss_encode(const flp_loss *loss, flp_loss_code *out);

/* ---- find.c ---- */

/* Name of built-in program i, in alphabetical order; NULL past the last. */
const char *flp_loss_builtin(int i);
/* A built-in program or a sum of them: "grpo", "grpo+k3+entropy". error: ARGUMENT naming the accepted ones */
flp_status flp_loss_find(const char *text, flp_loss *out);

/* One built-in program: a file of builtin/, which tests/unit/gen/test_gen_loss_table.c holds to templates/losses. */
typedef struct flp_loss_builtin_entry {
  const char *name;
  const uint8_t *bytes;
  size_t length;
} flp_loss_builtin_entry;
extern const flp_loss_builtin_entry flp_loss_table[];
extern const size_t flp_loss_table_count;

/* ---- eval.c ---- */

/* inputs: by flp_loss_input; parameters: in the program's order. The program was made here or by flp_loss_read. */
void flp_loss_evaluate_row(const flp_loss *loss, const double inputs[FLP_LOSS_ALL_INPUTS], const double *parameters,
                           flp_loss_row *out);
/* The values of all nodes, whatever the weight. detached: NULL, or values of an earlier call that detach gives in place of
 * its own. */
void flp_loss_values(const flp_loss *loss, const double inputs[FLP_LOSS_ALL_INPUTS], const double *parameters,
                     const double *detached, double out[FLP_LOSS_NODES_MAX]);

/* Arrays of n rows. Inputs that the program does not read may be NULL. The weight may be NULL for 1, and
 * old_logprob for logprob itself, as a constant: the ratio of the policy to itself. */
typedef struct flp_loss_rows {
  int64_t n;
  const float *inputs[FLP_LOSS_ALL_INPUTS];  /* (n) each; those of targets are below */
  const double *parameters;                  /* in the program's order; NULL: their fallbacks */
  float *loss, *grad_logprob, *grad_entropy; /* (n) or NULL */
  float *metrics;                            /* (metric_count, n) or NULL */
  float *grad_lse, *grad_mean;               /* (n) or NULL */
  /* of a program over targets: K; (n,K) each, as flp_loss_targets; grad_logprob is (n,K) then */
  int64_t targets;
  const float *target_logprob, *teacher_logprob;
  const uint8_t *skipped;
} flp_loss_rows;

/* error: ARGUMENT for a missing input or a parameter outside its bounds. thread: any */
flp_status flp_loss_evaluate(const flp_loss *loss, const flp_loss_rows *rows);
/* error: ARGUMENT naming the parameter and its bounds */
flp_status flp_loss_check_parameters(const flp_loss *loss, const double *parameters);

#endif

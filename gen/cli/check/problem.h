/* problem.h: the data of a case on the host, for a rung and for the oracle. */
#ifndef FLPGEN_CLI_CHECK_PROBLEM_H
#define FLPGEN_CLI_CHECK_PROBLEM_H

#include "gen/cli/call/call.h"
#include "gen/cli/call/memory.h"
#include "gen/cli/call/oracle.h"
#include "gen/cli/check/cases/case.h"

enum { CHECK_IGNORE_INDEX = -100 };
enum { CHECK_ACTIVE = 0, CHECK_LEFT_OUT = 1, CHECK_BAD = 2 };

/* lse and mean of a row's scores, in nats, and how far off a rung's may be. */
typedef struct check_scores {
  double lse, mean, slack;
} check_scores;

typedef struct check_problem {
  check_case c;                      /* spec resolved */
  cli_memory memory;                 /* of all arrays */
  int64_t shard_vocab, padded_vocab; /* rows of one shard's weight, of all shards' */
  int64_t stride;                    /* of every matrix */
  size_t shift;                      /* bytes from a 256-byte boundary to the base of every array of dtype */
  void *hidden, *weight, *bias;      /* rows of padding hold NaN */
  void *lora_a, *lora_b;             /* (rank, stride), (padded vocab, rank) of spec.lora_rank, or NULL */
  double lora_scale;
  int64_t targets;                        /* of a row */
  void *target;                           /* (n, targets) target dtype */
  float *grad_logprob;                    /* (n, targets); NaN where one of several targets is ignored */
  float *temperature_rows, *grad_entropy; /* (n) */
  float *weight_base;                     /* (padded vocab, stride) what grad_weight starts from, or NULL */
  int32_t *rows;
  int64_t row_count;
  int64_t *list_offsets; /* (n + 1), or NULL: no lists; as are the next two */
  void *list_ids;        /* (list_count) target dtype */
  int64_t list_count;
  int has_bad;                            /* a bad row or row id */
  float *old_lse, *target_score;          /* (n), or NULL */
  const flp_loss *loss;                   /* of spec.loss, or NULL */
  float *loss_input[FLP_LOSS_INPUTS_MAX]; /* (n) what the loss reads; NULL: not read, or left to its default */
  double loss_parameters[FLP_LOSS_PARAMETERS_MAX];
  flp_loss_plan loss_plan; /* of a loss over several targets, as is the next one */
  float *teacher;          /* (n, targets) what it reads; or NULL */

  /* the oracle's view */
  uint8_t *forward_class, *backward_class; /* (n) CHECK_* */
  int64_t *target_id;                      /* (n, targets) */
  double *g;                               /* (n, targets) */
  double *temperature, *e;                 /* (n) */
  check_scores *scores;                    /* (n) of a loss that reads lse or mean_score; else NULL */
  int is_guessed;                          /* of a step: the oracle has not seen every row */
  double *by_lse, *by_mean;                /* (n) its derivatives; NULL with scores */
  int64_t *column_offsets, *list_columns;  /* its lists, or NULL */
  uint8_t *list_bad;                       /* (n) 1 where a row's list makes it bad; or NULL */
  void *lora_u;                            /* (n, rank) dtype, as oracle_lora_project gives it; NULL: no adapter */
  double *score_error;                     /* (n) likewise */
  oracle_problem oracle;
} check_problem;

/* error: MEMORY; ARGUMENT if the case's spec is not accepted */
flp_status check_problem_create(const check_case *c, check_problem *out);
/* What a rung gets of it; borrows everything. */
call_problem check_problem_call(const check_problem *problem);
/* The same problem for score and recompute modes, with the upstream gradients of its loss; borrows everything. */
check_problem check_problem_plain(const check_problem *problem);
void check_problem_clear(check_problem *problem);
/* train.c: draws what a forward pass gets of an old policy and what the loss of a step reads, about what the
 * oracle gives for each row; upstream gradients and classes become those of the loss.
 * error: MEMORY; ARGUMENT if the problem is too large for the oracle to see every row and the loss needs it */
flp_status check_problem_train(check_problem *problem);
/* Sets upstream gradients of a loss at the logprob and entropy of a result, which are compared themselves: a
 * ratio to another policy magnifies what they may be off. Classes stay. */
void check_problem_follow(check_problem *problem, const call_result *result);
/* The same of a loss over all scores where the oracle has not seen every row, whose lse is then that of the rung's stats;
 * rows: those that it has seen, truth: of these. plain: the rung's, with stats; otherwise nothing is done. */
void check_problem_follow_scores(check_problem *problem, const int64_t *rows, const oracle_row *truth, int64_t count,
                                 const call_result *result, const call_result *plain);
/* One row's loss at the logprobs of its targets and its entropy, in fp64, and at the oracle's lse and mean.
 * grad: (targets) its derivatives by these, of a loss over several; else, or where they are not wanted, NULL */
flp_loss_row check_problem_loss(const check_problem *problem, int64_t row, const double *logprob, double entropy,
                                float *grad);
/* How far its result moves where lse and the mean are as far off as they may be; metric: -1 for the loss. */
double check_problem_loss_slack(const check_problem *problem, int64_t row, const double *logprob, double entropy,
                                int metric);
/* The logprobs of a row's targets that a rung gave. out: (FLP_TARGETS_MAX) */
void check_problem_logprobs(const check_problem *problem, const call_result *result, int64_t row, double *out);
/* Reorders rows: new row i is old row order[i], for i < n. error: MEMORY */
flp_status check_problem_permute(check_problem *problem, const int64_t *order, int64_t n);

/* ---- targets.c: the targets of a problem, one a row or several, and losses over these ---- */

/* Draws all targets but the first of each row, which is there, as the case's pattern has them, and what each is asked
 * for. error: MEMORY */
flp_status check_targets_draw(check_problem *problem, uint64_t seed);

/* What the targets of a row are: one that is not ignored, one of no column, one with an upstream gradient. */
typedef struct check_targets_seen {
  int has_target, has_foreign, has_gradient;
} check_targets_seen;
check_targets_seen check_targets_see(const check_problem *problem, int64_t row);
static inline int check_is_zero(double value) {
  return value >= 0 && value <= 0;
}

/* Writes target and grad_logprob as the rung takes them. */
void check_targets_export(check_problem *problem);

/* Draws the teacher that the loss reads, as the case's pattern has it; of a loss of one target does nothing.
 * error: MEMORY */
flp_status check_teacher_draw(check_problem *problem, uint64_t seed);
/* As check_problem_loss, of a loss over several targets. inputs: of its row */
void check_teacher_loss(const check_problem *problem, int64_t row, const double *logprob,
                        const double inputs[FLP_LOSS_ALL_INPUTS], flp_loss_row *out, float *grad);

/* ---- lists.c: the lists of a problem with listed columns ---- */

/* Draws the lists of a problem whose targets are known, as the rung takes them and for the oracle, and says which rows
 * they make bad. error: MEMORY */
flp_status check_lists_create(check_problem *problem, uint64_t seed);
/* Row i gets the list of row order[i], for i < n. error: MEMORY */
flp_status check_lists_permute(check_problem *problem, const int64_t *order, int64_t n);
/* The ids of every list in the opposite order. */
void check_lists_reverse(check_problem *problem);

#endif

/* case.h: what is computed: a case, and the lists of them. */
#ifndef FLPGEN_CLI_CHECK_CASE_H
#define FLPGEN_CLI_CHECK_CASE_H

#include <stddef.h>

#include "runtime/flp.h"

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
  CHECK_FILL_SHARP,     /* a dozen columns of falling scores carry a row's mass, more of it in later rows */
  CHECK_FILL_STEEP /* random, but in the last rows a column near the end of the vocabulary is 150 above all others */
} check_fill;

/* Patterns of rows. */
typedef enum check_rows {
  CHECK_ROWS_ALL,
  CHECK_ROWS_MASKED,       /* every third has the ignore index */
  CHECK_ROWS_NONE,         /* all have */
  CHECK_ROWS_LIST,         /* a row list, unordered, with repeats and two ids that are no row */
  CHECK_ROWS_BAD,          /* targets out of range and, if per row, temperatures <= 0, NaN and infinite */
  CHECK_ROWS_NAN,          /* NaN and Inf in hidden rows */
  CHECK_ROWS_INACTIVE,     /* every second row without upstream gradient */
  CHECK_ROWS_FEW,          /* all but every 512th row without one */
  CHECK_ROWS_LAST_TILE,    /* every target among the last columns */
  CHECK_ROWS_NAN_INACTIVE, /* NaN and Inf in hidden rows without upstream gradient */
  CHECK_ROWS_BEYOND        /* temperatures next to 0, so scores beyond FLP_SCORE_LIMIT, without upstream gradient */
} check_rows;

/* Patterns of lists, of a spec whose listed is 1. */
typedef enum check_lists {
  CHECK_LISTS_DRAWN,   /* as a sampler's kept sets, in no order; in every second row an id stands twice */
  CHECK_LISTS_BAD,     /* some rows with ids of no column, without the target, or empty */
  CHECK_LISTS_ONE,     /* the target alone: logprob, entropy and gradients are 0 */
  CHECK_LISTS_ALL,     /* all columns, the last first */
  CHECK_LISTS_REPEATS, /* ids up to three times */
  CHECK_LISTS_DESCEND, /* from here on offsets that are no lists, so that every row is bad: one is below that before it */
  CHECK_LISTS_BEFORE, /* the first is -1 */
  CHECK_LISTS_BEHIND  /* the last is beyond the ids */
} check_lists;

/* Patterns of the targets of a spec with several, beside the one of each row that a pattern of rows gives. */
typedef enum check_targets {
  CHECK_TARGETS_DRAWN,   /* by Zipf's law; every fourth row ignores some, every second one has an id twice */
  CHECK_TARGETS_TEACHER, /* the most frequent ids, from the first on: of nearly every row the same */
  CHECK_TARGETS_SAME,    /* the row's own, again and again */
  CHECK_TARGETS_ENDS,    /* the first and the last column in turn */
  CHECK_TARGETS_FEW,     /* the row's own alone, at another place in each; all others are ignored */
  CHECK_TARGETS_BAD      /* drawn, and in two rows of three an id of no column at some place */
} check_targets;
enum { CHECK_TARGETS_USUAL = 20 }; /* of a case that is of no other number */

/* Patterns of the teacher of a loss over several targets. */
typedef enum check_teacher {
  CHECK_TEACHER_DRAWN,   /* 60 to 98 % of the mass on the targets */
  CHECK_TEACHER_CERTAIN, /* all of it on one of them */
  CHECK_TEACHER_MISSING, /* none of it on every second one */
  CHECK_TEACHER_TAILS,   /* next to none on any */
  CHECK_TEACHER_WHOLE    /* nearly all of it on them together */
} check_teacher;

/* The adapter of a spec with lora_rank. */
typedef enum check_lora {
  CHECK_LORA_ON,
  CHECK_LORA_ZERO, /* B is 0; of both of these the head without an adapter has the bits */
  CHECK_LORA_OFF   /* its scale is */
} check_lora;
enum { CHECK_LORA_USUAL = 24, CHECK_LORA_LARGE = 64 }; /* ranks of cases that are of no other */

/* What a forward pass gets of an old policy. */
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
  flp_mode mode; /* 0: the planner's; cli_spec_set_mode has set what asks for it; stream is of steps */
  check_lists lists;
  double kept;           /* of mode listed: ids of a row's list, on average */
  check_targets targets; /* of a spec with several */
  check_teacher teacher; /* of a loss over these */
  check_lora lora;
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
  CHECK_SET_SCALE,      /* no cases: check_scale */
  CHECK_SET_DIVERGE,    /* no cases: check_diverge */
  CHECK_SET_LOSS,       /* no cases: check_loss */
  CHECK_SET_GIVEN
} check_set;

/* Lists the cases of a set. given: spec, rows, temperature, scale and seed of CHECK_SET_GIVEN. error: MEMORY; that of a
 * loss that cannot be loaded */
flp_status check_list_create(check_set set, const check_case *given, check_list *out);
void check_list_clear(check_list *list);
/* Adds a case; if that fails list->status is set. */
void check_list_add(check_list *list, check_case c);
/* A case with everything at its default. */
check_case check_case_default(flp_dtype dtype, int64_t n, int64_t vocab, int64_t hidden);
/* Rows of one shard's weight. */
int64_t check_shard_vocab(const check_case *c);

/* ---- adversarial cases by name ---- */

/* An adversarial case: one oddity each; zeros leave the default. */
typedef struct check_oddity {
  const char *name;
  check_fill fill;
  check_rows rows;
  double temperature, scale;
  float softcap;
  int per_row, shards, forward_only, accumulate, grads_fp32, int32_targets, no_bias;
  int64_t padding, chunk_rows, chunk_vocab, n, vocab, hidden;
  flp_mode mode;
  check_old old;      /* of save, stream and direction modes alone */
  uint32_t alignment; /* also the padding, in bytes, so that rows are no better aligned */
  check_lists lists;  /* of mode listed alone, as is the next one */
  double kept;        /* 0: 20 */
  int targets;        /* of several targets alone; 0: CHECK_TARGETS_USUAL */
  check_targets of_row;
  check_teacher teacher; /* of a loss over these alone */
  uint32_t grads;        /* 0: all */
  flp_entropy entropy;   /* 0: with its gradient */
  int topk;              /* of best columns; -1: the rank alone */
  check_lora lora;       /* of an adapter alone, as is the next one */
  int adapter;           /* its rank; 0: CHECK_LORA_USUAL */
  const char *loss;      /* or NULL */
  flp_mixed mixed;       /* of raw scores alone: with an fp32 weight */
} check_oddity;

/* Names, of which the most are of several tables: "lora-masked" is "masked" where nothing else is called so. */
typedef struct check_oddity_table {
  const char *name;
  const char *const *rows;
  size_t count;
  const char *of_bf16; /* this row and those behind it are of bf16 alone; NULL: all are of every dtype */
} check_oddity_table;

/* Later ones stand apart: data and losses of a case depend on its place. */
extern const check_oddity_table check_odd_first, check_odd_later, check_odd_columns, check_odd_listed,
    check_odd_targeted, check_odd_distilled, check_odd_tailed, check_odd_topped, check_odd_statistics, check_odd_raw,
    check_odd_mixed, check_odd_adapted;
check_oddity check_odd_at(const check_oddity_table *table, size_t i);
/* table: its name, which says what the row's name means where it means several things */
check_oddity check_odd_named(const char *table, const char *name);
/* The case of a row over the gradients of all operands; what is of lists, targets, best columns and an adapter alone is
 * the caller's to set. */
check_case check_make_odd(const check_oddity *oddity, flp_dtype dtype);

/* What a table's cases have of their own; i: the row's place. */
typedef void (*check_set_row_fn)(check_list *list, const check_oddity *o, size_t i, check_case *c);
void check_set_top_row(check_list *list, const check_oddity *o, size_t i, check_case *c);
void check_set_statistics_row(check_list *list, const check_oddity *o, size_t i, check_case *c);
void check_set_raw_row(check_list *list, const check_oddity *o, size_t i, check_case *c);
/* So many best columns, 0: 20, below 0: none, and the rank. */
void check_set_top(check_case *c, int topk);

#endif

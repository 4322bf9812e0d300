/* search.h: finds the fastest of a list of candidates in bounded time: successive halving beside the untuned default.
 *
 * The list is ordered by the cost model; candidates with a prediction far behind the best are pruned. The rest is
 * prepared and verified in small groups and timed in the same group as the default, so the ratio of the two is taken
 * under the same load. Then the better part is timed again with more rounds, until a few finalists share one group.
 *
 * A budget limits the size of groups and the number of finalists. Included candidates, the default and two finalists
 * are timed in any case. If costs are known, only the last pass can exceed the deadline.
 *
 * Invariants: what was not verified is never timed, what was not timed is never chosen. The default is chosen unless
 * another is faster by more than the noise, which is half the spread that the median finalist has over its rounds. Of
 * those that are within the noise of the fastest, the default comes first, then the least predicted time, then the
 * place in the list: an order that is the same on every machine. With the same times, the same is chosen.
 *
 * Everything that touches a device goes through search_device, so tests can simulate one. */
#ifndef FLP_AUTOTUNE_SEARCH_H
#define FLP_AUTOTUNE_SEARCH_H

#include "autotune/measure.h"
#include "runtime/kernel/kernel.h"

typedef enum search_status {
  SEARCH_WAITING = 0, /* not looked at: time ran out */
  SEARCH_ILLEGAL,     /* the template does not build it */
  SEARCH_PRUNED,      /* predicted to be too slow */
  SEARCH_WRONG,       /* its numbers are not those that are promised */
  SEARCH_FAILED,      /* it could not be made or run */
  SEARCH_TIMED,
  SEARCH_CHOSEN
} search_status;

/* "waiting", "illegal", "pruned", "wrong", "failed", "timed", "chosen" */
const char *search_status_name(search_status status);
/* The status of that name, or -1. */
int search_status_of(const char *name);

enum { SEARCH_REASON_BYTES = 256, SEARCH_GROUP_MAX = 16 };

typedef struct search_candidate {
  flp_kernel_kind kind; /* 0: a layout of the backward pass */
  int is_default;       /* the untuned one; the first of the list */
  int is_included;      /* is timed to the end whatever it takes */
  flp_tunables tune;    /* every field set, but for cluster and raster of an illegal one */
  flp_mode mode;        /* layout */
  int64_t chunk_rows, chunk_vocab;
  double predicted_ms;
  search_status status;
  char reason[SEARCH_REASON_BYTES];
  double error; /* of its numbers; < 0: not known */
  int rounds;
  measure_summary ms;
  double ratio;              /* of its time to the default's, in the same group */
  double clock_mhz, power_w; /* while its group ran; < 0: not known */
  int ready;                 /* made and verified in this process */
  void *handle;              /* of the device that measures */
  int64_t id;                /* of its record */
} search_candidate;

typedef struct search_sample {
  measure_summary ms, reference; /* reference: the default in the same group */
} search_sample;

/* The device's functions. All but `context` and the last three are required. */
typedef struct search_device {
  void *context;
  /* Makes candidates, at most SEARCH_GROUP_MAX, which may take seconds, and verifies them: sets ready, or status WRONG
   * or FAILED and the reason.
   * error: only what ends the search */
  flp_status (*prepare)(void *context, search_candidate *const *list, int count);
  /* Times candidates that are ready beside the default, which may be among them. is_last: in the last pass */
  flp_status (*time)(void *context, search_candidate *const *list, int count, int rounds, int is_last, uint64_t seed,
                     search_sample *out);
  /* Seconds on a clock that only goes forward. */
  double (*now)(void *context);
  /* 1 once the search is to end with what it has. */
  int (*stopped)(void *context);
  /* A candidate is not needed for timing any more. */
  void (*release)(void *context, search_candidate *candidate);
  /* Something about a candidate has changed. */
  void (*note)(void *context, search_candidate *candidate);
  /* So much of the work is done; 0 to 1. */
  void (*progress)(void *context, double fraction);
} search_device;

typedef enum search_effort { SEARCH_QUICK, SEARCH_NORMAL, SEARCH_EXHAUSTIVE } search_effort;
const char *search_effort_name(search_effort effort); /* "quick" */

typedef struct search_options {
  double prune_factor; /* predicted more than so many times the least: pruned */
  int most;            /* candidates that are tried, 0: all */
  int group;           /* most candidates of a group of the first pass; 0: the maximum */
  int first_rounds;    /* of the first pass */
  int finalists, final_rounds;
  double budget_s;         /* 0: no limit */
  uint64_t seed;           /* of the order in which a group is timed */
  double make_s, sample_s; /* expected time to make a candidate, and to time it for a round; 0: not known */
} search_options;

/* Those of an effort. */
search_options search_options_of(search_effort effort);

typedef struct search_result {
  int chosen;            /* index */
  double noise;          /* relative */
  double default_ms, ms; /* of the last time that each was timed */
  int tried, timed;
  int stopped, out_of_time;
} search_result;

/* candidates: the first is the default. Candidates that come with status TIMED (of an earlier run) are not timed in
 * the first pass, those that come WRONG, FAILED or ILLEGAL are left alone. error: of the device; MEMORY */
flp_status search_run(search_candidate *candidates, int count, const search_options *options,
                      const search_device *device, search_result *out);

/* ---- pure parts, for tests ---- */

/* Sets WAITING to PRUNED by prediction, the default never. error: MEMORY */
flp_status search_prune(search_candidate *candidates, int count, const search_options *options);

/* Which of the timed candidates is chosen. Only those with at least `rounds` rounds count, unless none has. */
int search_choose(const search_candidate *candidates, int count, double noise, int rounds);

#endif

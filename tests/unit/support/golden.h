/* golden.h: files of golden traces (tests/golden/launch, tests/golden/planner; replay.h has their form). Commands:
 *
 *   > device WORDS     settings of the stand-in driver (fake_cuda.h); without it those of an sm_80
 *   > provider WORDS   settings of the stand-in generator (fake_provider.c)
 *   > spec WORDS       the plan that what follows is for; > options WORDS behind it: its options (words.h)
 *   > forward WORDS    a call (words_call), or combine, backward, step; "uncounted=N": it makes N launches that the
 *                      layout does not count, or where it asks for less than what is counted fewer, N < 0
 *   > layout PASS n=N budget=SIZE     what the planner picks; in its own bytes that is picked again
 *   > prefer mode=NAME rows=N columns=N steps=N      the layout and the rows of steps that tuning preferred
 *   > keeps mode=NAME  what is kept of 100 rows, in that mode where one is named
 *
 * Of plans (golden_plan.c); $ROOT is a folder of the test's own, $PROVIDER, $CUDA and $FLPGEN are libraries:
 *
 *   > stage WORDS      an empty cache, $ROOT/cache, and no generic kernels; > device without these
 *   > env NAME=VALUE   the environment; > env NAME: without it
 *   > prove ARCH REASON      leaves a stamp that proves it here, or refutes it for the reason, if there is one
 *   > fill FOLDER arch=sm_90a driver=13000 tune=TEXT chunk_rows=N chunk_vocab=N, or generic     kernels of the spec
 *                      in $ROOT/FOLDER
 *   > spoil FOLDER at=N      each kernel in it is damaged; > shell COMMAND: what it prints
 *   > plan OPTIONS     a plan: what it says of itself, ids numbered as they come, its tile configurations, how many
 *                      kernels were generated for it, and what was logged
 *   > calls TEXT ...   how often each stands in the driver's calls since then
 *   > query PASS n=N budget=SIZE list_count=N, > saved n=N budget=SIZE     of the present plan, by the API
 *   > names WORDS      how the spec, with these words, is called; > kernels ARCH WORDS: the keys of its kernels;
 *                      > key KIND DEVICE: the bytes of one, tuned for a device where it is named;
 *                      > kinds, > signatures: of all kernels and entries
 *   > resolve spec WORDS, options WORDS or PASS WORDS / WORDS    what a field, an option or an argument (behind the
 *                      " / " and the spec) changes: it is taken or refused; > args WORDS: the arguments of all calls
 *   > select PASS WORDS, > scale WORDS      calls of a plan for these; > check: what it has seen of its data;
 *                      > driver WORDS: of the stand-in, under this plan */
#ifndef FLP_TEST_GOLDEN_H
#define FLP_TEST_GOLDEN_H

#include <stdio.h>

#include "runtime/plan/plan.h"
#include "tests/unit/support/stage.h"

/* A test's own folder, where its libraries are: short and without blanks, wherever the tree lies. */
#define GOLDEN_HERE "/proc/self/cwd"
#define GOLDEN_CUDA GOLDEN_HERE "/libcuda.so.1"
#define GOLDEN_PROVIDER GOLDEN_HERE "/provider.so"
#define GOLDEN_FLPGEN GOLDEN_HERE "/libflpgen.so"

enum { GOLDEN_IDS = 64 };

typedef struct golden golden;
/* A call that a file has made, once more: what is asked of every one. */
typedef void (*golden_call_fn)(golden *g, const flp_args *args);

/* Where a file's commands have led. */
struct golden {
  stage s;
  char device[256];
  flp_spec spec;
  flp_options options;
  flp_plan *plan; /* NULL until the first call of a spec */
  golden_call_fn each;
  FILE *out;

  char args[512]; /* of every call that is resolved */
  char ids[GOLDEN_IDS][17];
  int id_count, made; /* plan ids that came, kernels that the provider has made */
  size_t logged;      /* bytes of the log that are told */
};

/* Compares every file of a folder of tests/golden with what its commands give; or, if `each` is given, calls it after
 * each call that succeeds. Expects at least that many files. */
void golden_check(const char *folder, int least, golden_call_fn each);
void golden_check_file(const char *path, golden_call_fn each);

/* flp_step or flp_execute. */
flp_status golden_run(golden *g, const flp_args *args);

/* ---- between golden.c, golden_plan.c and golden_ops.c ---- */

/* Opens the stage, with an empty cache and that device. */
void golden_open(golden *g, const char *device);
/* Runs a command about plans. Returns 0 if it is none. */
int golden_plan_command(golden *g, const char *command, const char *words);
int golden_other_command(golden *g, const char *command, const char *words);
/* What "resolve" has of select and scale. Returns 0 if it is neither. */
int golden_resolve_other(golden *g, const char *what, const char *words);
/* After which nothing may be held. */
void golden_drop_plan(golden *g);
/* A line: a text without what differs from machine to machine, or a status with its detail. */
void golden_put(golden *g, const char *before, const char *text);
void golden_refused(golden *g, flp_status status);

#endif

/* stage.h: sets the stage for tests of plans: the stand-ins for libcuda and libflpgen, an empty cache, a log that is
 * kept, and images to put into caches. Each Criterion test has a process of its own, so nothing is put back. */
#ifndef FLP_TEST_STAGE_H
#define FLP_TEST_STAGE_H

#include "runtime/store/store.h"
#include "tests/unit/fakes/fake_cuda.h"

typedef struct stage {
  fake_cuda_script_fn script;
  fake_cuda_reset_fn reset;
  fake_cuda_log_fn log;
  fake_cuda_calls_fn calls;
  fake_cuda_launch_count_fn launch_count;
  fake_cuda_launch_at_fn launch_at;
  fake_cuda_held_fn held;
  void (*provider_script)(const char *script);
  int (*provider_calls)(void);
  char root[256], cache[300], generic[300]; /* directories; the last two are in the environment */
} stage;

/* Opens the stand-ins, sets every FLP_* variable, and gives libcuda its script. */
void stage_open(stage *s, const char *cuda_script);

/* Which images go into a cache: for an architecture, NULL for sm_80; tuned for a device and its driver, NULL for none,
 * where the kind can be; with tile configurations, and chunks of dz; or the generic ones. */
typedef struct stage_filling {
  const char *arch, *tuned_for, *tune;
  uint32_t chunk_rows, chunk_vocab;
  int generic;
} stage_filling;

/* Puts an image of every kernel of the spec into a directory, which it makes. */
void stage_fill(const char *directory, const flp_spec *spec, stage_filling how);
void stage_fill_cache(const char *directory, const flp_spec *spec, const char *tuned_for);
void stage_fill_generic(const char *directory, const flp_spec *spec);

/* Messages logged since stage_open, one a line: level digit, space, text. */
const char *stage_messages(void);
/* How often text occurs in them. */
int stage_logged(const char *text);
/* How often text occurs in the stand-in driver's list of calls. */
int stage_called(const stage *s, const char *text);

/* Expects that no memory, module or context of the device is held. */
void stage_expect_nothing_held(const stage *s);

/* A spec of V=1000, D=64 with that mask of gradients; bias if FLP_GRAD_BIAS is in it. */
flp_spec stage_spec(uint32_t grads);

/* Options that pin the jit rung, and chunks and mode as they are given. */
flp_options stage_options(int64_t chunk_rows, flp_mode mode);

/* Creates a plan that must succeed. */
flp_plan *stage_plan(const flp_spec *spec, const flp_options *options);

/* ---- launches ---- */

/* Device addresses that lead nowhere: the stand-in runs no kernel. */
#define STAGE_APART 0x100000000
#define STAGE_AT(k) ((void *)(uintptr_t)(STAGE_APART * (k)))
#define STAGE_STREAM ((void *)0x7)
#define STAGE_PARAMS(type, launch) (*(const type *)(const void *)(launch)->params)

uint64_t stage_address(const void *pointer);

/* Arguments of a pass with every pointer that the spec wants: hidden 1, weight 2, bias 3, target 4, stats 5, logprob 6,
 * grad_logprob 7, grad_hidden 8, grad_weight 9, grad_bias 10, workspace 50; workspace_bytes is left 0. */
flp_args stage_args(const flp_spec *spec, flp_pass pass, int64_t n);

/* flp_plan_workspace that must succeed. */
size_t stage_workspace(const flp_plan *plan, flp_pass pass, int64_t n, uint64_t budget);

/* flp_plan_saved, in the default budget, that must succeed. */
size_t stage_saved(const flp_plan *plan, int64_t n);

/* Forgets what came before and executes; must succeed. */
void stage_execute(stage *s, flp_plan *plan, const flp_args *args);

/* What the stand-in writes into a tensor map. */
typedef struct stage_map {
  uint64_t start, columns, rows, stride_bytes, box_columns, box_rows;
} stage_map;
stage_map stage_read_map(const flp_abi_map *map);

/* Launch `which` of that entry, which must be there. */
const fake_launch *stage_launch(const stage *s, const char *entry, int which);

/* Expects no call that a captured CUDA graph could not hold. */
void stage_expect_capturable(stage *s);

#endif

/* plan.h: a plan inside the library.
 *
 * Invariants: once flp_plan_create has returned, only `last` and errors_seen change, under the lock, and bad_rows,
 * which is atomic. An execute takes the lock to copy a layout, not while it plans or launches, so many threads may
 * share a plan. A device plan holds one reference of the primary context and every function it may launch. */
#ifndef FLP_PLAN_H
#define FLP_PLAN_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/load/images.h"
#include "runtime/load/unproven.h"
#include "runtime/loss/loss.h"
#include "runtime/planner/planner.h"

typedef struct flp_function {
  const flp_abi_entry *abi;
  CUfunction handle; /* NULL if the spec never launches it */
  uint32_t threads, shared_bytes;
  uint32_t cluster;      /* CTAs of a cluster; 0: launched without */
  uint32_t clusters_max; /* that the device holds at once, where there are clusters */
} flp_function;

typedef struct flp_modules {
  int count;
  CUmodule module[FLP_SPEC_KERNELS_MAX];
  flp_kernel_desc desc[FLP_SPEC_KERNELS_MAX];
  flp_function function[FLP_ENTRY_ID_COUNT];
} flp_modules;

enum { FLP_REASON_BYTES = 640, FLP_SPEC_TEXT_BYTES = 240, FLP_TILING_BYTES = 256 };

struct flp_plan {
  flp_spec spec;       /* resolved; its loss is the plan's copy, loss_bytes */
  uint8_t *loss_bytes; /* owned; NULL without a loss */
  flp_loss loss;       /* read from them */
  flp_options options; /* resolved; tune is in tuning, and NULL here, as the cache's places are once it is made */
  flp_tuning tuning;
  const flp_arch *arch_asked; /* of the options; NULL: any */
  flp_unproven unproven;      /* none where the options ask for an architecture */
  int has_tuning; /* the options give tile configurations, if only the defaults */
  char spec_text[FLP_SPEC_TEXT_BYTES];
  flp_rung rung;
  char reason[FLP_RUNG_EAGER + 1][FLP_REASON_BYTES];
  char arch[16];           /* of the kernels; "" on the eager rung */
  char tiling[FLP_TILING_BYTES]; /* human-readable origin of the tile configuration; "" on the eager rung */
  char id[17];

  /* device plans only */
  const flp_driver *driver;
  flp_device device;
  unsigned process;  /* flp_process() of creation: in a forked child none of this may be used */
  CUcontext context; /* retained; NULL on the eager rung */
  flp_modules modules;
  flp_planner planner;
  CUdeviceptr error_word; /* two i32: the first counts bad rows, the second those that a step prepares again */
  CUdeviceptr program;    /* flp_loss_code, where the kernel of the loss runs any; else 0 */

  pthread_mutex_t lock; /* of last and errors_seen */
  struct {
    int64_t n; /* 0: none yet */
    int64_t list_count;
    uint64_t workspace_bytes;
    flp_scheme scheme;
  } last[FLP_PASS_FLAT + 1]; /* by pass, FLP_PASS_DENSE and FLP_PASS_FLAT too: what the last call took, as the next one
                                often asks for the same */
  uint32_t errors_seen;                /* device counter at the last check, wraps */

  _Atomic uint64_t bad_rows; /* eager rung: since the last check; without the lock, which a fork may leave taken */
};

/* ---- loader.c: images -> modules and functions, with the plan's context current ---- */

/* Loads every image and fetches every function; images that are linked meanwhile (linker.h) get their cubins. *fallback
 * is 1 where the failure means that these kernels cannot run here but others may. context: the current one.
 * error: DRIVER with kernel and driver log; *out is then empty */
flp_status flp_loader_load(const flp_driver *driver, CUcontext context, flp_images *images, flp_modules *out,
                           int *fallback);
void flp_loader_unload(const flp_driver *driver, flp_modules *modules);

/* ---- ladder.c: which rung runs ---- */

/* Descends the ladder for a plan whose spec, options and, for a device, driver, device and context are set: fills rung,
 * reasons, arch, modules and id. error: UNAVAILABLE; ARGUMENT if tuning cannot be met; in strict mode, for pinned rungs
 * and with tuning the rung's own */
flp_status flp_ladder_climb(flp_plan *plan);

/* The same where there is no device, for that reason. Takes the eager rung if the options allow. */
flp_status flp_ladder_without_device(flp_plan *plan, const char *reason);

/* The architectures whose kernels every rung of a device tries for a spec, best first: those that the device runs and
 * that have kernels of their own for the spec, then the portable one. Returns their number, 0 if there is none.
 * spec: resolved; asked: that architecture alone, or NULL; clusters: 1 if the driver can launch them
 * (flp_driver_has_clusters); without: those of flp_unproven, 0 where one was asked for; tuning: NULL, or if it is set,
 * only the best one that heeds it is listed */
enum { FLP_LADDER_ARCHES_MAX = FLP_ARCHES_MAX };
int flp_ladder_arches(const flp_device *device, const flp_spec *spec, const char *asked, int clusters,
                      unsigned without, const flp_tuning *tuning, const char *out[FLP_LADDER_ARCHES_MAX]);

/* flp_ladder_arches without what a plan leaves out, by the settings' caches; 0 without memory, too. */
int flp_ladder_arches_here(const flp_device *device, int driver, const flp_spec *spec, const char *asked, int clusters,
                           const flp_tuning *tuning, const char *out[FLP_LADDER_ARCHES_MAX]);

/* How the plan keeps something from forward to backward, where the caller has the memory: SAVE, DIRECTION or 0. */
static inline flp_mode flp_plan_keeps(const flp_plan *plan) {
  return plan->rung != FLP_RUNG_EAGER ? flp_planner_keeps(&plan->planner) : (flp_mode)0;
}

/* Logs what has not been logged with the same words; and that a call of a plan with a tail has no room for lists. */
void flp_log_once(flp_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
void flp_plan_log_exact(const flp_plan *plan);

/* ---- text.c ---- */

/* "bf16 V=151936 D=4096 grads=hidden,weight": what is not as usual, for messages. Returns out. */
const char *flp_plan_spec_text(const flp_spec *spec, char out[FLP_SPEC_TEXT_BYTES]);
/* Of this what the spec's features say: "topk=20 rank"; and of any fields, 1 << flp_field_id each. */
const char *flp_plan_features_text(const flp_spec *spec, char out[FLP_SPEC_TEXT_BYTES]);
const char *flp_plan_fields_text(const flp_spec *spec, uint64_t fields, char out[FLP_SPEC_TEXT_BYTES]);

/* The options of the command that name a resolved spec: "--vocab 151936 --hidden 4096 --dtype bf16 ...". */
enum { FLP_SPEC_OPTIONS_BYTES = 384 };
void flp_plan_spec_options(const flp_spec *spec, char out[FLP_SPEC_OPTIONS_BYTES]);

/* The command that tunes a resolved spec: "flpgen tune --vocab 151936 --hidden 4096 --dtype bf16 ...". */
enum { FLP_TUNE_COMMAND_BYTES = FLP_SPEC_OPTIONS_BYTES + 16 + FLP_LOSS_TITLE_BYTES + 8 };
void flp_plan_tune_command(const flp_spec *spec, char out[FLP_TUNE_COMMAND_BYTES]);

#endif

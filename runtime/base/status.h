/* status.h: how the library's own files report failures, warnings and settings. */
#ifndef FLP_STATUS_H
#define FLP_STATUS_H

#include <stdarg.h>

#include "runtime/base/quantity.h"
#include "runtime/flp.h"

/* Sets this thread's detail sentence, without control characters of what it names, and returns status, for
 * `return flp_fail(...)`. */
flp_status flp_fail(flp_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Clears this thread's detail sentence; called at the top of public functions. */
void flp_detail_clear(void);

enum { FLP_DETAIL_BYTES = 1024 };

/* A status with its detail sentence, held while clean-up, or another attempt, may fail and set a sentence of its own:
 *     flp_failure held = flp_failure_hold(status);
 *     ...
 *     return flp_failure_restore(&held); */
typedef struct flp_failure {
  flp_status status;
  char detail[FLP_DETAIL_BYTES]; /* of a failure */
} flp_failure;

flp_failure flp_failure_hold(flp_status status);
/* Returns the status, and if it is a failure sets its sentence again. */
flp_status flp_failure_restore(const flp_failure *held);

/* Sends one message to the log callback, if any, without control characters too. */
void flp_log(flp_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns from the calling function if the expression is not FLP_OK. */
#define FLP_TRY(expression)                     \
  do {                                          \
    flp_status try_status = (expression);       \
    if (try_status != FLP_OK) return try_status; \
  } while (0)

/* Every setting, in the order of flp.h: its name without FLP_, its default (settings.c), one line of help. */
#define FLP_SETTING_LIST(SETTING)                                                                               \
  SETTING(FORCE, force, "pin a rung: tuned, heuristic, jit, generic or eager")                                  \
  SETTING(STRICT, strict, "1: a fallback to a lower rung is an error")                                          \
  SETTING(BUDGET, budget, "workspace budget of every pass: bytes, " FLP_BYTES_FORMS)                            \
  SETTING(CACHE_DIR, cache_dir, "writable kernel cache")                                                        \
  SETTING(CACHE_PATH, cache_path,                                                                               \
          "read-only kernel caches: directories and packs, separated by ':', searched before the writable one") \
  SETTING(PACK_KEYS, pack_keys,                                                                                 \
          "public keys of 64 hex digits, separated by ',': packs signed by none of them are not used")          \
  SETTING(GENERIC_DIR, generic_dir, "shape-generic kernels")                                                    \
  SETTING(JIT_LIBRARY, jit_library, "path of the code generator, libflpgen.so")                                 \
  SETTING(CUDA_LIBRARY, cuda_library, "path of the CUDA driver library")                                        \
  SETTING(BLAS_LIBRARY, blas_library, "path of an OpenBLAS-like library for the eager rung")

typedef enum flp_setting_id {
#define FLP_SETTING_ID(NAME, function, help) FLP_SETTING_##NAME,
  FLP_SETTING_LIST(FLP_SETTING_ID)
#undef FLP_SETTING_ID
      FLP_SETTING_COUNT
} flp_setting_id;

/* One setting as `flpgen doctor` shows it. */
typedef struct flp_setting {
  const char *name;   /* "FLP_CACHE_DIR" */
  const char *help;   /* one line */
  char value[1024];   /* in force, as the variable may be set to; "" if no value expresses it */
  char unset[96];     /* description of the default; "" if there is a value */
  const char *source; /* "environment" or "default" */
} flp_setting;

/* Reads a setting from the environment or computes its default. */
void flp_setting_get(flp_setting_id id, flp_setting *out);

#endif

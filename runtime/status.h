/* status.h: how the library's own files report failures, warnings and settings. */
#ifndef FLP_STATUS_H
#define FLP_STATUS_H

#include <stdarg.h>

#include "flp.h"

/* Sets this thread's detail sentence and returns status, so that `return flp_fail(...)` reads as one thought. */
flp_status flp_fail(flp_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Clears this thread's detail sentence; called at the top of public functions. */
void flp_detail_clear(void);

/* Sends one message to the log callback, if any. */
void flp_log(flp_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns from the calling function if the expression is not FLP_OK. */
#define FLP_TRY(expression)                     \
  do {                                          \
    flp_status try_status = (expression);       \
    if (try_status != FLP_OK) return try_status; \
  } while (0)

/* One setting as `flpgen doctor` shows it: its value and where that came from. */
typedef struct flp_setting {
  const char *name;   /* "FLP_CACHE_DIR" */
  const char *help;   /* one line */
  char value[1024];   /* in force */
  const char *source; /* "environment" or "default" */
} flp_setting;

enum { FLP_SETTING_COUNT = 10 };
/* Reads setting i (0 <= i < FLP_SETTING_COUNT) from the environment or computes its default. */
void flp_setting_get(int i, flp_setting *out);
/* The same by name; the name must exist. */
void flp_setting_find(const char *name, flp_setting *out);

#endif

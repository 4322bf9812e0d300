/* status.c: status names, the per-thread detail sentence and the log callback.
 *
 * Invariants: the detail belongs to one thread, so it needs no lock; the callback runs under one recursive lock, so
 * after flp_log_set returns no other thread is still inside the callback that was replaced. */
#include "runtime/base/status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/printable.h"
#include "runtime/base/process.h"

static _Thread_local char detail[FLP_DETAIL_BYTES];

static flp_log_fn log_fn;
static void *log_user;

static const char *const status_names[] = {
    [FLP_OK] = "FLP_OK",
    [FLP_ERROR_ARGUMENT] = "FLP_ERROR_ARGUMENT",
    [FLP_ERROR_UNSUPPORTED] = "FLP_ERROR_UNSUPPORTED",
    [FLP_ERROR_MEMORY] = "FLP_ERROR_MEMORY",
    [FLP_ERROR_WORKSPACE] = "FLP_ERROR_WORKSPACE",
    [FLP_ERROR_BUDGET] = "FLP_ERROR_BUDGET",
    [FLP_ERROR_UNAVAILABLE] = "FLP_ERROR_UNAVAILABLE",
    [FLP_ERROR_DRIVER] = "FLP_ERROR_DRIVER",
    [FLP_ERROR_IO] = "FLP_ERROR_IO",
    [FLP_ERROR_CORRUPT] = "FLP_ERROR_CORRUPT",
    [FLP_ERROR_COMPILE] = "FLP_ERROR_COMPILE",
    [FLP_ERROR_DATA] = "FLP_ERROR_DATA",
    [FLP_ERROR_INTERNAL] = "FLP_ERROR_INTERNAL",
};

const char *flp_status_name(flp_status status) {
  size_t i = (size_t)status;
  return i < sizeof status_names / sizeof status_names[0] ? status_names[i] : "unknown flp_status";
}

const char *flp_error_detail(void) {
  return detail;
}

const char *flp_version(void) {
  return FLP_VERSION_STRING;
}

flp_status flp_fail(flp_status status, const char *format, ...) {
  int saved_errno = errno;
  /* Uses a copy: an argument may be flp_error_detail() itself. */
  char text[FLP_DETAIL_BYTES];
  va_list arguments;
  va_start(arguments, format);
  if (vsnprintf(text, sizeof text, format, arguments) < 0) text[0] = 0;
  va_end(arguments);
  flp_make_printable(text);
  memcpy(detail, text, strlen(text) + 1);
  errno = saved_errno;
  return status;
}

void flp_detail_clear(void) {
  detail[0] = 0;
}

flp_failure flp_failure_hold(flp_status status) {
  flp_failure held;
  held.status = status;
  memcpy(held.detail, status == FLP_OK ? "" : detail, status == FLP_OK ? 1 : strlen(detail) + 1);
  return held;
}

flp_status flp_failure_restore(const flp_failure *held) {
  return held->status == FLP_OK ? FLP_OK : flp_fail(held->status, "%s", held->detail);
}

void flp_log(flp_log_level level, const char *format, ...) {
  int saved_errno = errno;
  char text[2 * FLP_DETAIL_BYTES];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (length >= 0) {
    flp_make_printable(text);
    flp_lock(FLP_LOCK_LOG);
    if (log_fn) log_fn(level, text, log_user);
    flp_unlock(FLP_LOCK_LOG);
  }
  errno = saved_errno;
}

void flp_log_set(flp_log_fn fn, void *user) {
  flp_lock(FLP_LOCK_LOG);
  flp_lock(FLP_LOCK_LOG_TARGET);
  log_fn = fn;
  log_user = user;
  flp_unlock(FLP_LOCK_LOG_TARGET);
  flp_unlock(FLP_LOCK_LOG);
}

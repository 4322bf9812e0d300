/* timeout.c: waits for streams with a limit, so that a deadlock is reported and not suffered. */
#include <time.h>

#include "gen/cli/check/concurrent.h"
#include "gen/cli/shared/common.h"

/* cuStreamQuery of a stream with work. */
enum { NOT_READY = 600 };

int check_timeout_is_offered(const flp_driver *driver) {
#define IS_THERE(name, args) &&driver->name
  return 1 FLP_DRIVER_TOOLS(IS_THERE);
#undef IS_THERE
}

flp_status check_timeout_busy(const check_timeout *timeout, CUstream stream, int *busy) {
  CUresult result = timeout->driver->cuStreamQuery(stream);
  *busy = result == NOT_READY;
  return *busy ? FLP_OK : flp_driver_status(timeout->driver, result, "cuStreamQuery");
}

flp_status check_timeout_wait(check_timeout *timeout, const CUstream *streams, int count, const char *what) {
  const struct timespec pause = {.tv_nsec = 50000};
  double start = cli_seconds_now();
  for (int i = 0; i < count; i++) {
    int busy = 1;
    FLP_TRY(check_timeout_busy(timeout, streams[i], &busy));
    while (busy) {
      if (cli_seconds_now() - start > timeout->limit_s) {
        timeout->hung = 1;
        return flp_fail(FLP_ERROR_DRIVER, "deadlock: %s on stream %d of %d still run after %g seconds", what, i + 1,
                        count, timeout->limit_s);
      }
      nanosleep(&pause, NULL);
      FLP_TRY(check_timeout_busy(timeout, streams[i], &busy));
    }
  }
  return FLP_OK;
}

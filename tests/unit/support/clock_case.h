/* clock_case.h: a device whose time stands still until a test moves it: events hold the time at which they are
 * recorded. */
#ifndef FLP_TEST_CLOCK_CASE_H
#define FLP_TEST_CLOCK_CASE_H

#include <criterion/criterion.h>
#include <stdlib.h>

#include "autotune/measure.h"

struct CUevent_st {
  double at;
};

static double now_ms;
static int events_alive;

static inline CUresult clock_create_event(CUevent *out, unsigned flags) {
  (void)flags;
  events_alive++;
  return (*out = calloc(1, sizeof **out)) ? 0 : 2;
}

static inline CUresult clock_destroy_event(CUevent event) {
  free(event);
  events_alive--;
  return 0;
}

static inline CUresult clock_record(CUevent event, CUstream stream) {
  (void)stream;
  event->at = now_ms;
  return 0;
}

static inline CUresult clock_wait(CUevent event) {
  (void)event;
  return 0;
}

static inline CUresult clock_wait_stream(CUstream stream) {
  (void)stream;
  return 0;
}

static inline CUresult clock_elapsed(float *ms, CUevent from, CUevent to) {
  *ms = (float)(to->at - from->at);
  return 0;
}

static inline measure_clock open_clock(void) {
  static const flp_driver driver = {.cuEventCreate = clock_create_event,
                                    .cuEventDestroy_v2 = clock_destroy_event,
                                    .cuEventRecord = clock_record,
                                    .cuEventSynchronize = clock_wait,
                                    .cuStreamSynchronize = clock_wait_stream,
                                    .cuEventElapsedTime = clock_elapsed};
  measure_clock clock;
  cr_assert_eq(measure_clock_create(&driver, NULL, &clock), FLP_OK);
  return clock;
}

#endif

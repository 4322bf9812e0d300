/* late.c: work that a thread begins and does not wait for: copies, products, and what tells of their end.
 *
 * It is done at once, or where SIMT_LATE is a number, the seed, some time later: whenever threads wait, by lot, and one
 * in eight only where nobody else can go on. Work of one queue is done in its order, other in any. So a missing wait
 * shows: what reads too early meets NaN, and what writes too early is read. Nothing may be left when the threads have
 * ended. */
#include "simt.h"

#include <stdio.h>
#include <stdlib.h>

enum { LATE_MAX = 4096, ODDS = 16, LAST = 8 };
static simt_work late[LATE_MAX];
static int late_count;

static uint32_t state; /* of the generator; 0: nothing is late */

void simt_late_begin(void) {
  const char *seed = getenv("SIMT_LATE");
  state = seed && seed[0] ? (uint32_t)atoi(seed) * 2654435761u | 1 : 0;
}

int simt_is_late(void) {
  return state != 0;
}

uint32_t simt_lot(uint32_t below) {
  state ^= state << 13, state ^= state >> 17, state ^= state << 5;
  return state % below;
}

void simt_refuse(const char *what, int64_t value) {
  fprintf(stderr, "simt: %s (%lld)\n", what, (long long)value);
  abort();
}

static void run_for(const simt_work *w) {
  int thread = simt.thread;
  simt.thread = w->thread;
  w->run(w);
  simt.thread = thread;
}

static void do_late(int i) {
  simt_work w = late[i];
  memmove(&late[i], &late[i + 1], sizeof late[0] * (size_t)(--late_count - i));
  run_for(&w);
}

int simt_post(simt_work w) {
  w.thread = simt.thread;
  if (!state) {
    run_for(&w);
    return 0;
  }
  if (late_count == LATE_MAX) simt_refuse("work under way at once", LATE_MAX);
  w.is_last = simt_lot(LAST) == 0;
  late[late_count++] = w;
  return 1;
}

static int is_next(int i) {
  for (int j = 0; late[i].queue && j < i; j++)
    if (late[j].queue == late[i].queue) return 0;
  return 1;
}

int simt_do_some(int must) {
  int done = 0;
  while (late_count > 0 && (must || simt_lot(ODDS) == 0)) {
    int i = (int)simt_lot((uint32_t)late_count);
    while (!is_next(i)) i--;
    if (late[i].is_last && !must) break;
    do_late(i);
    done = 1, must = 0;
  }
  return done;
}

void simt_do_own(void (*run)(const simt_work *)) {
  for (int i = 0; i < late_count;) {
    if (late[i].run == run && late[i].thread == simt.thread)
      do_late(i);
    else
      i++;
  }
}

void simt_late_end(void) {
  if (late_count) simt_refuse("threads end while their work is under way", late_count);
}

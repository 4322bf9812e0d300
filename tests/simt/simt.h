/* simt.h: what simt.c has for words of a GPU in other files: the threads that run, shared memory, ways to wait and to
 * exchange. */
#ifndef SIMT_H
#define SIMT_H

#include <stdint.h>
#include <string.h>

enum { THREADS_MAX = 2048, WARP = 32, WARPGROUP = 128, SHARED_BYTES = 1 << 18, WORDS = 32 };
enum { CTAS_MAX = 8, BARRIERS = 16, RANK_SHIFT = 24 };
enum { BOX_BYTES = 128 }; /* of a row of a box */

/* Threads that wait for each other: a cluster, a CTA, a warpgroup, a warp, or those of a named barrier. */
typedef struct simt_group {
  int live, arrived;
  uint32_t generation;
} simt_group;

/* What a thread waits for: some bits of a word to differ from these. */
typedef struct simt_watch {
  const uint32_t *word; /* NULL: nothing */
  uint32_t mask, bits;
} simt_watch;

typedef struct simt_state {
  void *fibre[THREADS_MAX], *scheduler; /* where each goes on */
  void **left;                          /* who left last: of fibre, or scheduler */
  simt_watch watch[THREADS_MAX];
  char *stacks; /* for as many threads as there may be; kept from launch to launch */
  int running[THREADS_MAX], thread, threads, cluster, first_cta, ctas;
  uint32_t run; /* number of clusters run so far */
  simt_group all, whole[CTAS_MAX], warpgroup[THREADS_MAX / WARPGROUP], warp[THREADS_MAX / WARP];
  simt_group named[CTAS_MAX][BARRIERS];
  unsigned turn[THREADS_MAX];
  uint64_t posted[2][THREADS_MAX][WORDS];
  void (*kernel)(void **);
  void **params;
} simt_state;

#define SIMT_INTERNAL __attribute__((visibility("hidden"))) /* no word: kernels do not call it */

extern SIMT_INTERNAL simt_state simt;
extern SIMT_INTERNAL char simt_shared[CTAS_MAX][SHARED_BYTES];
extern float simt_accumulators[256]; /* of products of warpgroups, in and out: read before anything else runs */

int32_t simt_laneid(void);
void simt_warp_barrier(void);
void simt_mbarrier_arrive(uint32_t address, uint32_t condition);
uint32_t simt_mapa(uint32_t address, uint32_t cta);

/* ---- work that a thread does not wait for (late.c) ---- */

typedef struct simt_work {
  void (*run)(const struct simt_work *);
  int thread, queue; /* in whose place it is done: who posts it; work of one queue in its order, of 0 in any */
  int64_t a, b;
  int32_t x, y;
  uint32_t word[4];
  int is_last; /* it is done when it must */
} simt_work;

/* Returns 1 if it is done later, 0 if it has been done. */
SIMT_INTERNAL int simt_post(simt_work w);
/* Does some of it, by lot or because it must. Returns 0 if none was done. */
SIMT_INTERNAL int simt_do_some(int must);
/* Does all that this thread has posted of one kind. */
SIMT_INTERNAL void simt_do_own(void (*run)(const simt_work *));
/* 1 if work is done later at all; then a number below that one, by lot. */
SIMT_INTERNAL int simt_is_late(void);
SIMT_INTERNAL uint32_t simt_lot(uint32_t below);
/* Before the threads of a launch, and behind those of a cluster. */
SIMT_INTERNAL void simt_late_begin(void);
SIMT_INTERNAL void simt_late_end(void);
SIMT_INTERNAL void simt_tmem_end(void);
/* Ends the process: what a kernel does is no GPU's. */
SIMT_INTERNAL _Noreturn void simt_refuse(const char *what, int64_t value);

/* The swizzle of rows of 128 or 64 bytes. */
static inline uint32_t simt_swizzled(uint32_t address, uint32_t row_bytes) {
  return address ^ (address >> 7 & (row_bytes / 16 - 1)) << 4;
}

/* Lets other threads run until these bits of a word differ. */
SIMT_INTERNAL void simt_wait_while(const uint32_t *word, uint32_t mask, uint32_t bits);
/* Waits until every thread of the group has come. */
SIMT_INTERNAL void simt_wait_for(simt_group *group);
/* Posts this lane's words and waits for those of the warp, which it returns, lane by lane. */
SIMT_INTERNAL uint64_t (*simt_exchange(const uint64_t *words, int count))[WORDS];

/* The CTA of this thread in its cluster. */
static inline int simt_rank(void) {
  return simt.thread / simt.threads;
}

/* Where an address of shared memory leads. */
static inline char *simt_at(uint32_t address) {
  int named = (int)(address >> RANK_SHIFT);
  return simt_shared[named ? named - 1 : simt_rank()] + (address & ((1u << RANK_SHIFT) - 1));
}

static inline uint32_t bits_of(float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  return bits;
}

static inline float float_of(uint32_t bits) {
  float v;
  memcpy(&v, &bits, 4);
  return v;
}

static inline float from_f16(uint32_t bits) {
  uint16_t narrow = (uint16_t)bits;
  _Float16 half;
  memcpy(&half, &narrow, 2);
  return (float)half;
}
static inline float from_bf16(uint32_t bits) {
  return float_of(bits << 16);
}

#endif

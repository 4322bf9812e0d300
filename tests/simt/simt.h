/* simt.h: what simt.c has for words of a GPU in other files: the threads that run, shared memory, ways to wait and to
 * exchange. */
#ifndef SIMT_H
#define SIMT_H

#include <stdint.h>
#include <string.h>

enum { THREADS_MAX = 2048, WARP = 32, WARPGROUP = 128, SHARED_BYTES = 1 << 18, WORDS = 32 };
enum { CTAS_MAX = 8, BARRIERS = 16, RANK_SHIFT = 24 };

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

/* simt.c: what a kernel made for the CPU by compile.py calls: threads of a cluster as fibres, and the words of a GPU;
 * those of Hopper are in hopper.c, those of sm_100f alone in blackwell.c.
 *
 * A fibre runs until it waits for others: at a barrier, or where the lanes of a warp exchange values. It names the word
 * that it watches, enters the next fibre that does not wait, and is not entered again before the word has changed.
 * Values are posted in two arrays by turns: no lane is two exchanges ahead of another. Asynchronous work is done at once,
 * so that a missing wait does not show, or late (late.c): copies and products of sm_90a and newer. Clusters run one
 * after the other. Addresses of shared memory are offsets; one that names a CTA of the cluster has its rank + 1 above
 * bit 24. */
#include "simt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { STACK_BYTES = (1 << 16) + 13 * 64 }; /* no power of two, by which all would share lines of the CPU's caches */

/* Boost.Context's C interface (boost/context/detail/fcontext.hpp), whose C++ headers are not needed for it. */
typedef struct transfer {
  void *from, *data;
} transfer;
transfer jump_fcontext(void *to, void *data);
void *make_fcontext(void *stack_top, size_t bytes, void (*function)(transfer));

simt_state simt;
_Alignas(1024) char simt_shared[CTAS_MAX][SHARED_BYTES];
_Alignas(16) uint32_t simt_result[4]; /* of words that give four values: read before anything else runs */
float simt_accumulators[256];

static void release_if_complete(simt_group *g) {
  if (g->live > 0 && g->arrived == g->live) {
    g->arrived = 0;
    g->generation++;
  }
}

static int waits(int thread) {
  const simt_watch *w = &simt.watch[thread];
  return w->word && (*w->word & w->mask) == w->bits;
}

/* The next thread that does not wait, this one the last; -1 if all do. */
static int next_thread(void) {
  int threads = simt.threads * simt.cluster;
  for (int i = 1; i <= threads; i++) {
    int t = simt.thread + i < threads ? simt.thread + i : simt.thread + i - threads;
    if (simt.running[t] && !waits(t)) return t;
  }
  return -1;
}

/* Who goes on has come from a fibre, or from run_cluster, which takes their place. */
static void go_on(transfer entered) {
  *simt.left = entered.from;
}

/* Lets the next thread run; returns when it is this one's turn again. left: where this one goes on */
static void leave(void **left) {
  simt_do_some(0);
  int next = next_thread();
  while (next < 0 && simt_do_some(1)) next = next_thread();
  if (next == simt.thread) return;
  if (next < 0) {
    fprintf(stderr, "simt: deadlock, %d threads wait\n", simt.all.live);
    abort();
  }
  simt.left = left;
  simt.thread = next;
  go_on(jump_fcontext(simt.fibre[next], NULL));
}

void simt_wait_while(const uint32_t *word, uint32_t mask, uint32_t bits) {
  if ((*word & mask) != bits) return;
  simt.watch[simt.thread] = (simt_watch){word, mask, bits};
  leave(&simt.fibre[simt.thread]);
}

void simt_wait_for(simt_group *g) {
  uint32_t generation = g->generation;
  g->arrived++;
  release_if_complete(g);
  simt_wait_while(&g->generation, UINT32_MAX, generation);
}

static void run_fibre(transfer entered) {
  go_on(entered);
  simt.kernel(simt.params);
  simt_group *warp = &simt.warp[simt.thread / WARP];
  simt.running[simt.thread] = 0;
  simt.all.live--;
  simt.whole[simt_rank()].live--;
  warp->live--;
  release_if_complete(&simt.all);
  release_if_complete(&simt.whole[simt_rank()]);
  release_if_complete(warp);
  if (simt.all.live > 0) leave(&simt.fibre[simt.thread]);
  simt.left = &simt.fibre[simt.thread];
  jump_fcontext(simt.scheduler, NULL);
}

static void run_cluster(void) {
  int threads = simt.threads * simt.cluster;
  simt.run++;
  simt.all = (simt_group){.live = threads};
  memset(simt.named, 0, sizeof simt.named);
  memset(simt.watch, 0, sizeof simt.watch);
  for (int r = 0; r < simt.cluster; r++) simt.whole[r] = (simt_group){.live = simt.threads};
  for (int w = 0; w < threads / WARP; w++) simt.warp[w] = (simt_group){.live = WARP};
  for (int w = 0; w < threads / WARPGROUP; w++) simt.warpgroup[w] = (simt_group){.live = WARPGROUP};
  for (int r = 0; r < simt.cluster; r++) memset(simt_shared[r], 0xff, SHARED_BYTES);
  for (int t = 0; t < threads; t++) {
    simt.fibre[t] = make_fcontext(simt.stacks + (size_t)(t + 1) * STACK_BYTES, STACK_BYTES, run_fibre);
    simt.running[t] = 1;
  }
  simt.thread = threads - 1;
  leave(&simt.scheduler);
  simt_late_end();
  simt_tmem_end();
}

/* Runs a grid. kernel: reads its arguments through params; cluster: CTAs of one, 1 for none */
void simt_launch(void (*kernel)(void **), int ctas, int threads, int cluster, void **params) {
  if (threads * cluster > THREADS_MAX || cluster > CTAS_MAX) abort();
  simt.kernel = kernel;
  simt.params = params;
  simt.ctas = ctas;
  simt.threads = threads;
  simt.cluster = cluster;
  if (!simt.stacks) simt.stacks = malloc((size_t)THREADS_MAX * STACK_BYTES);
  if (!simt.stacks) abort();
  simt_late_begin();
  for (simt.first_cta = 0; simt.first_cta < ctas; simt.first_cta += cluster) run_cluster();
}

/* ---- places, barriers, exchanges ---- */

int32_t simt_tid(void) {
  return simt.thread % simt.threads;
}
int32_t simt_ctaid(void) {
  return simt.first_cta + simt_rank();
}
int32_t simt_nctaid(void) {
  return simt.ctas;
}
int32_t simt_clusterid(void) {
  return simt.first_cta / simt.cluster;
}
int32_t simt_laneid(void) {
  return simt.thread % WARP;
}
int32_t simt_cluster_ctarank(void) {
  return simt_rank();
}
void simt_barrier(void) {
  simt_wait_for(&simt.whole[simt_rank()]);
}
void simt_cluster_barrier(void) {
  simt_wait_for(&simt.all);
}
void simt_warp_barrier(void) {
  simt_wait_for(&simt.warp[simt.thread / WARP]);
}
/* Products of a warpgroup are done for all of its threads, or for none. */
void simt_warpgroup_barrier(void) {
  simt_wait_for(&simt.warpgroup[simt.thread / WARPGROUP]);
}
void simt_nothing(void) {}

/* What a GPU refuses: a vector, or a word of shared memory, that is not at a multiple of its size. */
void simt_expect_aligned(const void *where, int32_t bytes) {
  if ((uintptr_t)where % (uint32_t)bytes == 0) return;
  fprintf(stderr, "simt: a vector at %p, which is no multiple of %d bytes\n", where, bytes);
  abort();
}

/* Barriers by number, for as many threads as each caller passes. */
void simt_bar_arrive(uint32_t id, uint32_t threads) {
  simt_group *g = &simt.named[simt_rank()][id];
  g->live = (int)threads;
  g->arrived++;
  release_if_complete(g);
}
void simt_bar_sync(uint32_t id, uint32_t threads) {
  simt_group *g = &simt.named[simt_rank()][id];
  g->live = (int)threads;
  simt_wait_for(g);
}

uint64_t (*simt_exchange(const uint64_t *words, int count))[WORDS] {
  int t = simt.thread, side = simt.turn[t]++ & 1;
  memcpy(simt.posted[side][t], words, (size_t)count * sizeof *words);
  simt_wait_for(&simt.warp[t / WARP]);
  return &simt.posted[side][t / WARP * WARP];
}

static uint32_t from_lane(uint32_t mine, int lane) {
  uint64_t word = mine;
  return (uint32_t)simt_exchange(&word, 1)[lane][0];
}

static int up(int delta) {
  int lane = simt_laneid();
  return lane >= delta ? lane - delta : lane;
}

#define SHUFFLE(name, lane_of)                                                   \
  int32_t simt_##name##_i32(int32_t all, int32_t v, int32_t by, int32_t clamp) { \
    (void)all, (void)clamp;                                                      \
    return (int32_t)from_lane((uint32_t)v, lane_of);                             \
  }                                                                              \
  float simt_##name##_f32(int32_t all, float v, int32_t by, int32_t clamp) {     \
    (void)all, (void)clamp;                                                      \
    return float_of(from_lane(bits_of(v), lane_of));                             \
  }
SHUFFLE(shfl_bfly, simt_laneid() ^ by)
SHUFFLE(shfl_up, up(by))
SHUFFLE(shfl_idx, by)

/* Of a condition that llc passes only the lowest bit counts. */
uint32_t simt_ballot(int32_t all, int32_t condition) {
  uint64_t word = condition & 1, (*lanes)[WORDS] = simt_exchange(&word, 1);
  uint32_t result = 0;
  (void)all;
  for (int lane = 0; lane < WARP; lane++) result |= (uint32_t)lanes[lane][0] << lane;
  return result;
}
uint32_t simt_or(uint32_t v) {
  uint64_t word = v, (*lanes)[WORDS] = simt_exchange(&word, 1);
  uint32_t result = 0;
  for (int lane = 0; lane < WARP; lane++) result |= (uint32_t)lanes[lane][0];
  return result;
}
_Bool simt_any(int32_t all, int32_t condition) {
  return simt_ballot(all, condition) != 0;
}

/* elect.sync: the lane that is chosen, and whether it is this one. */
void simt_elect(int32_t all) {
  (void)all;
  simt_result[0] = 0, simt_result[1] = simt_laneid() == 0;
}

/* Vectors of so many words in global memory, from or to simt_accumulators. */
void simt_ld_global(const void *from, int32_t words) {
  simt_expect_aligned(from, 4 * words);
  memcpy(simt_accumulators, from, 4 * (size_t)words);
}
void simt_st_global(void *to, int32_t words) {
  simt_expect_aligned(to, 4 * words);
  memcpy(to, simt_accumulators, 4 * (size_t)words);
}

/* ---- shared memory, whose words and vectors stand at multiples of their size ---- */

void *simt_pointer(uint32_t where) {
  return simt_at(where);
}
void simt_expect_shared(uint32_t where, int32_t bytes) {
  simt_expect_aligned(simt_at(where), bytes);
}

#define SHARED_WORD(name, type)                 \
  type simt_ld_##name(uint32_t where) {         \
    type v;                                     \
    simt_expect_shared(where, sizeof v);        \
    memcpy(&v, simt_at(where), sizeof v);       \
    return v;                                   \
  }                                             \
  void simt_st_##name(uint32_t where, type v) { \
    simt_expect_shared(where, sizeof v);        \
    memcpy(simt_at(where), &v, sizeof v);       \
  }
SHARED_WORD(b8, int8_t)
SHARED_WORD(b16, int16_t)
SHARED_WORD(b32, int32_t)
SHARED_WORD(b64, int64_t)
SHARED_WORD(f32, float)
SHARED_WORD(f64, double)

/* Fibres change at barriers alone: nothing comes between the load and the store. */
void simt_shared_or(uint32_t where, int32_t bits) {
  simt_st_b32(where, simt_ld_b32(where) | bits);
}

/* The first bytes of 16, zeros behind them. */
void simt_copy16(uint32_t where, const void *source, int32_t bytes) {
  simt_expect_shared(where, 16);
  simt_expect_aligned(source, 16);
  memset(simt_at(where), 0, 16);
  memcpy(simt_at(where), source, (size_t)bytes);
}

static uint32_t half_at(uint64_t address, int element) {
  uint16_t bits;
  memcpy(&bits, simt_at((uint32_t)address) + 2 * element, 2);
  return bits;
}

static void load_matrices(uint32_t address, int transposed) {
  simt_expect_shared(address, 16);
  uint64_t word = address, (*lanes)[WORDS] = simt_exchange(&word, 1);
  int lane = simt_laneid(), major = lane / 4, minor = lane % 4 * 2;
  for (int m = 0; m < 4; m++) {
    const uint64_t(*rows)[WORDS] = (const uint64_t(*)[WORDS])(lanes + 8 * m);
    simt_result[m] = transposed ? half_at(rows[minor][0], major) | half_at(rows[minor + 1][0], major) << 16
                                : half_at(rows[major][0], minor) | half_at(rows[major][0], minor + 1) << 16;
  }
}
void simt_ldmatrix(uint32_t address) {
  load_matrices(address, 0);
}
void simt_ldmatrix_trans(uint32_t address) {
  load_matrices(address, 1);
}

/* ---- numbers ---- */

static uint32_t bf16_of(float x) {
  uint32_t bits = bits_of(x);
  return isnan(x) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static uint32_t f16_of(float x) {
  _Float16 half = (_Float16)x;
  uint16_t bits;
  memcpy(&bits, &half, 2);
  return bits;
}

uint32_t simt_pack_bf16(float high, float low) {
  return bf16_of(high) << 16 | bf16_of(low);
}
uint32_t simt_pack_f16(float high, float low) {
  return f16_of(high) << 16 | f16_of(low);
}

/* Subnormals become 0. */
static float flush(float x) {
  return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}
float simt_exp2(float x) {
  return flush(exp2f(x));
}
float simt_log2(float x) {
  return log2f(flush(x));
}
float simt_rcp(float x) {
  return flush(1 / flush(x));
}

/* LLVM's call for a rounding to bf16, whose result stands in the low half of the register that returns a float. */
float __truncsfbf2(float x) {
  return float_of(bf16_of(x));
}

/* c + a·b of m16n8k16 for a whole warp: words 0 to 3 of a lane are a, 4 and 5 are b. With g = lane/4, t = lane%4: a rows g
 * and g+8 at k 2t and 2t+1, then the same at k+8; b columns g at the same k; c rows g and g+8, columns 2t and 2t+1. The
 * last lane to come multiplies for all. */
typedef struct warp_product {
  uint32_t words[WARP][6];
  float sums[16][8];
} warp_product;
static warp_product products[2][THREADS_MAX / WARP];

static inline __attribute__((always_inline)) void multiply_warp(warp_product *p, float (*widen)(uint32_t)) {
  double a[16][16], b[16][8]; /* by k: rows of a, columns of b */
  for (int lane = 0; lane < WARP; lane++)
    for (int word = 0; word < 6; word++)
      for (int half = 0; half < 2; half++) {
        int k = lane % 4 * 2 + half + (word < 4 ? word / 2 : word - 4) * 8;
        double value = widen(p->words[lane][word] >> 16 * half & 0xffff);
        if (word < 4)
          a[k][lane / 4 + word % 2 * 8] = value;
        else
          b[k][lane / 4] = value;
      }
  for (int row = 0; row < 16; row++) {
    double sums[8]; /* rounded once, as hopper.c's products are */
    for (int column = 0; column < 8; column++) sums[column] = p->sums[row][column];
    for (int k = 0; k < 16; k++)
      for (int column = 0; column < 8; column++) sums[column] = fma(a[k][row], b[k][column], sums[column]);
    for (int column = 0; column < 8; column++) p->sums[row][column] = (float)sums[column];
  }
}

static inline __attribute__((always_inline)) void multiply(const uint32_t words[6], const float c[4], float (*widen)(uint32_t)) {
  int t = simt.thread, lane = simt_laneid(), row = lane / 4, column = lane % 4 * 2;
  simt_group *warp = &simt.warp[t / WARP];
  warp_product *p = &products[simt.turn[t]++ & 1][t / WARP];
  memcpy(p->words[lane], words, sizeof p->words[lane]);
  memcpy(&p->sums[row][column], c, 2 * sizeof *c);
  memcpy(&p->sums[row + 8][column], c + 2, 2 * sizeof *c);
  if (warp->arrived + 1 == warp->live) multiply_warp(p, widen);
  simt_wait_for(warp);
  memcpy(simt_result, &p->sums[row][column], 2 * sizeof *c);
  memcpy(simt_result + 2, &p->sums[row + 8][column], 2 * sizeof *c);
}

#define MMA(name, widen)                                                                                       \
  void simt_mma_##name(uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, float c0, \
                       float c1, float c2, float c3) {                                                         \
    const uint32_t words[6] = {a0, a1, a2, a3, b0, b1};                                                        \
    const float c[4] = {c0, c1, c2, c3};                                                                       \
    multiply(words, c, widen);                                                                                 \
  }
MMA(bf16, from_bf16)
MMA(f16, from_f16)

/* simt.c: what a kernel made for the CPU by compile.py calls: threads of a CTA as fibres, and the words of a GPU.
 *
 * A fibre runs until it waits for others, at a barrier or where the lanes of a warp exchange values; one that waits is
 * looked at again in the next round. Values are posted in two arrays by turns: no lane is two exchanges ahead of another.
 * Asynchronous copies are done at once, so that a missing wait does not show. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { THREADS_MAX = 1024, WARP = 32, STACK_BYTES = 1 << 16, SHARED_BYTES = 1 << 18, WORDS = 6 };

/* Threads that wait for each other: a CTA, or a warp. */
typedef struct group {
  int live, arrived;
  unsigned generation;
} group;

static struct {
  ucontext_t fibre[THREADS_MAX], scheduler;
  char *stacks;
  int running[THREADS_MAX], thread, threads, cta, ctas;
  group whole, warp[THREADS_MAX / WARP];
  unsigned turn[THREADS_MAX];
  uint64_t posted[2][THREADS_MAX][WORDS];
  void (*kernel)(void **);
  void **params;
} now;

static _Alignas(1024) char shared[SHARED_BYTES];
_Alignas(16) uint32_t simt_result[4]; /* of words that give four values: read before anything else runs */

static void release_if_complete(group *g) {
  if (g->live > 0 && g->arrived == g->live) {
    g->arrived = 0;
    g->generation++;
  }
}

static void wait_for(group *g) {
  unsigned generation = g->generation;
  g->arrived++;
  release_if_complete(g);
  while (g->generation == generation) swapcontext(&now.fibre[now.thread], &now.scheduler);
}

static void run_fibre(void) {
  now.kernel(now.params);
  group *warp = &now.warp[now.thread / WARP];
  now.running[now.thread] = 0;
  now.whole.live--;
  warp->live--;
  release_if_complete(&now.whole);
  release_if_complete(warp);
  setcontext(&now.scheduler);
}

static void run_cta(void) {
  now.whole = (group){.live = now.threads};
  for (int w = 0; w < now.threads / WARP; w++) now.warp[w] = (group){.live = WARP};
  memset(shared, 0xff, sizeof shared);
  for (int t = 0; t < now.threads; t++) {
    getcontext(&now.fibre[t]);
    now.fibre[t].uc_stack.ss_sp = now.stacks + (size_t)t * STACK_BYTES;
    now.fibre[t].uc_stack.ss_size = STACK_BYTES;
    makecontext(&now.fibre[t], run_fibre, 0);
    now.running[t] = 1;
  }
  while (now.whole.live > 0)
    for (int t = 0; t < now.threads; t++)
      if (now.running[t]) {
        now.thread = t;
        swapcontext(&now.scheduler, &now.fibre[t]);
      }
}

/* Runs a grid, a CTA after the other. kernel: reads its arguments through params */
void simt_launch(void (*kernel)(void **), int ctas, int threads, void **params) {
  now.kernel = kernel;
  now.params = params;
  now.ctas = ctas;
  now.threads = threads;
  now.stacks = malloc((size_t)threads * STACK_BYTES);
  if (!now.stacks) abort();
  for (now.cta = 0; now.cta < ctas; now.cta++) run_cta();
  free(now.stacks);
}

/* ---- places, barriers, exchanges ---- */

int32_t simt_tid(void) { return now.thread; }
int32_t simt_ctaid(void) { return now.cta; }
int32_t simt_nctaid(void) { return now.ctas; }
int32_t simt_laneid(void) { return now.thread % WARP; }
void simt_barrier(void) { wait_for(&now.whole); }
void simt_nothing(void) {}

/* Posts this lane's words and waits for those of the warp, which it returns, lane by lane. */
static uint64_t (*exchange(const uint64_t *words, int count))[WORDS] {
  int t = now.thread, side = now.turn[t]++ & 1;
  memcpy(now.posted[side][t], words, (size_t)count * sizeof *words);
  wait_for(&now.warp[t / WARP]);
  return &now.posted[side][t / WARP * WARP];
}

static uint32_t from_lane(uint32_t mine, int lane) {
  uint64_t word = mine;
  return (uint32_t)exchange(&word, 1)[lane][0];
}

static uint32_t bits_of(float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  return bits;
}

static float float_of(uint32_t bits) {
  float v;
  memcpy(&v, &bits, 4);
  return v;
}

static int up(int delta) {
  int lane = simt_laneid();
  return lane >= delta ? lane - delta : lane;
}

#define SHUFFLE(name, lane_of)                                                     \
  int32_t simt_##name##_i32(int32_t all, int32_t v, int32_t by, int32_t clamp) {   \
    (void)all, (void)clamp;                                                        \
    return (int32_t)from_lane((uint32_t)v, lane_of);                               \
  }                                                                                \
  float simt_##name##_f32(int32_t all, float v, int32_t by, int32_t clamp) {       \
    (void)all, (void)clamp;                                                        \
    return float_of(from_lane(bits_of(v), lane_of));                               \
  }
SHUFFLE(shfl_bfly, simt_laneid() ^ by)
SHUFFLE(shfl_up, up(by))
SHUFFLE(shfl_idx, by)

uint32_t simt_ballot(int32_t all, _Bool condition) {
  uint64_t word = condition, (*lanes)[WORDS] = exchange(&word, 1);
  uint32_t result = 0;
  (void)all;
  for (int lane = 0; lane < WARP; lane++) result |= (uint32_t)lanes[lane][0] << lane;
  return result;
}
_Bool simt_any(int32_t all, _Bool condition) { return simt_ballot(all, condition) != 0; }

/* ---- shared memory ---- */

#define SHARED_WORD(name, type)                                                                  \
  type simt_ld_##name(uint32_t at) { type v; memcpy(&v, shared + at, sizeof v); return v; }      \
  void simt_st_##name(uint32_t at, type v) { memcpy(shared + at, &v, sizeof v); }
SHARED_WORD(b8, int8_t)
SHARED_WORD(b16, int16_t)
SHARED_WORD(b32, int32_t)
SHARED_WORD(b64, int64_t)
SHARED_WORD(f32, float)
SHARED_WORD(f64, double)

/* The first bytes of 16, zeros behind them. */
void simt_copy16(uint32_t at, const void *source, int32_t bytes) {
  memset(shared + at, 0, 16);
  memcpy(shared + at, source, (size_t)bytes);
}

static uint32_t half_at(uint64_t address, int element) {
  uint16_t bits;
  memcpy(&bits, shared + address + 2 * element, 2);
  return bits;
}

static void load_matrices(uint32_t address, int transposed) {
  uint64_t word = address, (*lanes)[WORDS] = exchange(&word, 1);
  int lane = simt_laneid(), major = lane / 4, minor = lane % 4 * 2;
  for (int m = 0; m < 4; m++) {
    const uint64_t (*rows)[WORDS] = (const uint64_t(*)[WORDS])(lanes + 8 * m);
    simt_result[m] = transposed ? half_at(rows[minor][0], major) | half_at(rows[minor + 1][0], major) << 16
                                : half_at(rows[major][0], minor) | half_at(rows[major][0], minor + 1) << 16;
  }
}
void simt_ldmatrix(uint32_t address) { load_matrices(address, 0); }
void simt_ldmatrix_trans(uint32_t address) { load_matrices(address, 1); }

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
static float from_f16(uint32_t bits) {
  uint16_t narrow = (uint16_t)bits;
  _Float16 half;
  memcpy(&half, &narrow, 2);
  return (float)half;
}
static float from_bf16(uint32_t bits) { return float_of(bits << 16); }

uint32_t simt_pack_bf16(float high, float low) { return bf16_of(high) << 16 | bf16_of(low); }
uint32_t simt_pack_f16(float high, float low) { return f16_of(high) << 16 | f16_of(low); }

/* Subnormals become 0. */
static float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
float simt_exp2(float x) { return flush(exp2f(x)); }
float simt_log2(float x) { return log2f(flush(x)); }
float simt_rcp(float x) { return flush(1 / flush(x)); }

/* LLVM's call for a rounding to bf16, whose result stands in the low half of the register that returns a float. */
float __truncsfbf2(float x) { return float_of(bf16_of(x)); }

/* c + a·b of m16n8k16: words 0 to 3 are a, 4 and 5 are b. With g = lane/4, t = lane%4: a rows g and g+8 at k 2t and 2t+1,
 * then the same at k+8; b columns g at the same k; c rows g and g+8, columns 2t and 2t+1. */
static void multiply(const uint32_t words[6], const float c[4], float (*widen)(uint32_t)) {
  uint64_t posted[WORDS], (*lanes)[WORDS];
  for (int i = 0; i < WORDS; i++) posted[i] = words[i];
  lanes = exchange(posted, WORDS);
  int g = simt_laneid() / 4, t = simt_laneid() % 4;
  for (int i = 0; i < 4; i++) {
    float sum = c[i];
    for (int k = 0; k < 16; k++) {
      int at = k % 8 / 2, late = k / 8, shift = k % 2 * 16;
      uint32_t a = (uint32_t)lanes[4 * g + at][2 * late + i / 2], b = (uint32_t)lanes[4 * (2 * t + i % 2) + at][4 + late];
      sum = fmaf(widen(a >> shift & 0xffff), widen(b >> shift & 0xffff), sum);
    }
    simt_result[i] = bits_of(sum);
  }
}

#define MMA(name, widen)                                                                                     \
  void simt_mma_##name(uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, float c0, \
                       float c1, float c2, float c3) {                                                       \
    const uint32_t words[6] = {a0, a1, a2, a3, b0, b1};                                                      \
    const float c[4] = {c0, c1, c2, c3};                                                                     \
    multiply(words, c, widen);                                                                               \
  }
MMA(bf16, from_bf16)
MMA(f16, from_f16)

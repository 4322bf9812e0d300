/* simt.c: what a kernel made for the CPU by compile.py calls: threads of a cluster as fibres, and the words of a GPU.
 *
 * A fibre runs until it waits for others: at a barrier, or where the lanes of a warp exchange values; one that waits is
 * looked at again in the next round. Values are posted in two arrays by turns: no lane is two exchanges ahead of another.
 * Asynchronous work is done at once, so that a missing wait does not show. Clusters run one after the other.
 * Addresses of shared memory are offsets; one that names a CTA of the cluster has its rank + 1 above bit 24. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { THREADS_MAX = 1024, WARP = 32, WARPGROUP = 128, STACK_BYTES = 1 << 16, SHARED_BYTES = 1 << 18, WORDS = 32 };
enum { CTAS_MAX = 8, BARRIERS = 16, RANK_SHIFT = 24, STALLED = 1 << 16 };

/* Threads that wait for each other: a cluster, a CTA, a warpgroup, a warp, or those of a named barrier. */
typedef struct group {
  int live, arrived;
  unsigned generation;
} group;

static struct {
  ucontext_t fibre[THREADS_MAX], scheduler;
  char *stacks;
  int running[THREADS_MAX], thread, threads, cluster, first_cta, ctas, moved;
  group all, whole[CTAS_MAX], warpgroup[THREADS_MAX / WARPGROUP], warp[THREADS_MAX / WARP], named[CTAS_MAX][BARRIERS];
  unsigned turn[THREADS_MAX];
  uint64_t posted[2][THREADS_MAX][WORDS];
  uint64_t a_words[THREADS_MAX][WORDS], (*a_lanes[THREADS_MAX])[WORDS]; /* of products from registers */
  void (*kernel)(void **);
  void **params;
} now;

static _Alignas(1024) char shared_of[CTAS_MAX][SHARED_BYTES];
_Alignas(16) uint32_t simt_result[4]; /* of words that give four values: read before anything else runs */
float simt_accumulators[256];         /* likewise, in and out */

static int rank(void) {
  return now.thread / now.threads;
}

/* Where an address of shared memory leads. */
static char *at(uint32_t address) {
  int named = (int)(address >> RANK_SHIFT);
  return shared_of[named ? named - 1 : rank()] + (address & ((1u << RANK_SHIFT) - 1));
}

static void release_if_complete(group *g) {
  if (g->live > 0 && g->arrived == g->live) {
    g->arrived = 0;
    g->generation++;
    now.moved = 1;
  }
}

static void yield(void) {
  swapcontext(&now.fibre[now.thread], &now.scheduler);
}

static void wait_for(group *g) {
  unsigned generation = g->generation;
  g->arrived++;
  release_if_complete(g);
  while (g->generation == generation) yield();
}

static void run_fibre(void) {
  now.kernel(now.params);
  group *warp = &now.warp[now.thread / WARP];
  now.running[now.thread] = 0;
  now.moved = 1;
  now.all.live--;
  now.whole[rank()].live--;
  warp->live--;
  release_if_complete(&now.all);
  release_if_complete(&now.whole[rank()]);
  release_if_complete(warp);
  setcontext(&now.scheduler);
}

static void run_cluster(void) {
  int threads = now.threads * now.cluster, stalled = 0;
  now.all = (group){.live = threads};
  memset(now.named, 0, sizeof now.named);
  for (int r = 0; r < now.cluster; r++) now.whole[r] = (group){.live = now.threads};
  for (int w = 0; w < threads / WARP; w++) now.warp[w] = (group){.live = WARP};
  for (int w = 0; w < threads / WARPGROUP; w++) now.warpgroup[w] = (group){.live = WARPGROUP};
  for (int r = 0; r < now.cluster; r++) memset(shared_of[r], 0xff, SHARED_BYTES);
  for (int t = 0; t < threads; t++) {
    getcontext(&now.fibre[t]);
    now.fibre[t].uc_stack.ss_sp = now.stacks + (size_t)t * STACK_BYTES;
    now.fibre[t].uc_stack.ss_size = STACK_BYTES;
    makecontext(&now.fibre[t], run_fibre, 0);
    now.running[t] = 1;
  }
  while (now.all.live > 0) {
    now.moved = 0;
    for (int t = 0; t < threads; t++)
      if (now.running[t]) {
        now.thread = t;
        swapcontext(&now.scheduler, &now.fibre[t]);
      }
    stalled = now.moved ? 0 : stalled + 1;
    if (stalled > STALLED) {
      fprintf(stderr, "simt: deadlock, %d threads wait\n", now.all.live);
      abort();
    }
  }
}

/* Runs a grid. kernel: reads its arguments through params; cluster: CTAs of one, 1 for none */
void simt_launch(void (*kernel)(void **), int ctas, int threads, int cluster, void **params) {
  if (threads * cluster > THREADS_MAX || cluster > CTAS_MAX) abort();
  now.kernel = kernel;
  now.params = params;
  now.ctas = ctas;
  now.threads = threads;
  now.cluster = cluster;
  now.stacks = malloc((size_t)threads * (size_t)cluster * STACK_BYTES);
  if (!now.stacks) abort();
  for (now.first_cta = 0; now.first_cta < ctas; now.first_cta += cluster) run_cluster();
  free(now.stacks);
}

/* ---- places, barriers, exchanges ---- */

int32_t simt_tid(void) {
  return now.thread % now.threads;
}
int32_t simt_ctaid(void) {
  return now.first_cta + rank();
}
int32_t simt_nctaid(void) {
  return now.ctas;
}
int32_t simt_laneid(void) {
  return now.thread % WARP;
}
int32_t simt_cluster_ctarank(void) {
  return rank();
}
void simt_barrier(void) {
  wait_for(&now.whole[rank()]);
}
void simt_cluster_barrier(void) {
  wait_for(&now.all);
}
void simt_warp_barrier(void) {
  wait_for(&now.warp[now.thread / WARP]);
}
/* Products of a warpgroup are done for all of its threads, or for none. */
void simt_warpgroup_barrier(void) {
  wait_for(&now.warpgroup[now.thread / WARPGROUP]);
}
void simt_nothing(void) {}

/* Barriers by number, for as many threads as each caller says. */
void simt_bar_arrive(uint32_t id, uint32_t threads) {
  group *g = &now.named[rank()][id];
  g->live = (int)threads;
  g->arrived++;
  release_if_complete(g);
}
void simt_bar_sync(uint32_t id, uint32_t threads) {
  group *g = &now.named[rank()][id];
  g->live = (int)threads;
  wait_for(g);
}

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

uint32_t simt_ballot(int32_t all, _Bool condition) {
  uint64_t word = condition, (*lanes)[WORDS] = exchange(&word, 1);
  uint32_t result = 0;
  (void)all;
  for (int lane = 0; lane < WARP; lane++) result |= (uint32_t)lanes[lane][0] << lane;
  return result;
}
uint32_t simt_or(uint32_t v) {
  uint64_t word = v, (*lanes)[WORDS] = exchange(&word, 1);
  uint32_t result = 0;
  for (int lane = 0; lane < WARP; lane++) result |= (uint32_t)lanes[lane][0];
  return result;
}
_Bool simt_any(int32_t all, _Bool condition) {
  return simt_ballot(all, condition) != 0;
}

/* ---- shared memory ---- */

#define SHARED_WORD(name, type)                 \
  type simt_ld_##name(uint32_t where) {         \
    type v;                                     \
    memcpy(&v, at(where), sizeof v);            \
    return v;                                   \
  }                                             \
  void simt_st_##name(uint32_t where, type v) { \
    memcpy(at(where), &v, sizeof v);            \
  }
SHARED_WORD(b8, int8_t)
SHARED_WORD(b16, int16_t)
SHARED_WORD(b32, int32_t)
SHARED_WORD(b64, int64_t)
SHARED_WORD(f32, float)
SHARED_WORD(f64, double)

/* The first bytes of 16, zeros behind them. */
void simt_copy16(uint32_t where, const void *source, int32_t bytes) {
  memset(at(where), 0, 16);
  memcpy(at(where), source, (size_t)bytes);
}

static uint32_t half_at(uint64_t address, int element) {
  uint16_t bits;
  memcpy(&bits, at((uint32_t)address) + 2 * element, 2);
  return bits;
}

static void load_matrices(uint32_t address, int transposed) {
  uint64_t word = address, (*lanes)[WORDS] = exchange(&word, 1);
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
static float from_f16(uint32_t bits) {
  uint16_t narrow = (uint16_t)bits;
  _Float16 half;
  memcpy(&half, &narrow, 2);
  return (float)half;
}
static float from_bf16(uint32_t bits) {
  return float_of(bits << 16);
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

/* c + a·b of m16n8k16: words 0 to 3 are a, 4 and 5 are b. With g = lane/4, t = lane%4: a rows g and g+8 at k 2t and 2t+1,
 * then the same at k+8; b columns g at the same k; c rows g and g+8, columns 2t and 2t+1. */
static void multiply(const uint32_t words[6], const float c[4], float (*widen)(uint32_t)) {
  uint64_t posted[6], (*lanes)[WORDS];
  for (int i = 0; i < 6; i++) posted[i] = words[i];
  lanes = exchange(posted, 6);
  int g = simt_laneid() / 4, t = simt_laneid() % 4;
  for (int i = 0; i < 4; i++) {
    float sum = c[i];
    for (int k = 0; k < 16; k++) {
      int at = k % 8 / 2, late = k / 8, shift = k % 2 * 16;
      uint32_t a = (uint32_t)lanes[4 * g + at][2 * late + i / 2],
               b = (uint32_t)lanes[4 * (2 * t + i % 2) + at][4 + late];
      sum = fmaf(widen(a >> shift & 0xffff), widen(b >> shift & 0xffff), sum);
    }
    simt_result[i] = bits_of(sum);
  }
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

/* ---- Hopper: clusters, mbarriers, tensor copies, products of warpgroups ---- */

/* Eight bytes of shared memory. A phase is over when all have arrived and all bytes have come. */
typedef struct mbarrier {
  uint16_t count, pending;
  int32_t bytes : 31;
  uint32_t phase : 1;
} mbarrier;
_Static_assert(sizeof(mbarrier) == 8, "as on the device");

static void end_phase_if_complete(mbarrier *b) {
  if (b->pending || b->bytes) return;
  b->phase ^= 1;
  b->pending = b->count;
  now.moved = 1;
}

static void arrive(uint32_t address, int32_t expected) {
  mbarrier *b = (mbarrier *)(void *)at(address);
  b->bytes += expected;
  b->pending--;
  end_phase_if_complete(b);
}

static void complete(mbarrier *b, int32_t bytes) {
  b->bytes -= bytes;
  end_phase_if_complete(b);
}

void simt_mbarrier_init(uint32_t address, uint32_t count) {
  mbarrier b = {.count = (uint16_t)count, .pending = (uint16_t)count};
  memcpy(at(address), &b, sizeof b);
}
void simt_mbarrier_expect(uint32_t address, uint32_t bytes) {
  arrive(address, (int32_t)bytes);
}
void simt_mbarrier_arrive(uint32_t address, uint32_t condition) {
  if (condition) arrive(address, 0);
}
void simt_mbarrier_wait(uint32_t address, uint32_t parity) {
  while (((mbarrier *)(void *)at(address))->phase == (parity & 1)) yield();
}

uint32_t simt_mapa(uint32_t address, uint32_t cta) {
  return (address & ((1u << RANK_SHIFT) - 1)) | (cta + 1) << RANK_SHIFT;
}
void simt_st_async(uint32_t address, uint32_t v, uint32_t barrier) {
  memcpy(at(address), &v, 4);
  complete((mbarrier *)(void *)at(barrier), 4);
}
uint32_t simt_atomic_next(uint32_t *word) {
  return (*word)++;
}

/* What the stand-in for cuTensorMapEncodeTiled leaves in a map. Rows of a box have 128 bytes. */
typedef struct tensor_map {
  uint64_t start, columns, rows, stride_bytes, box_columns, box_rows;
} tensor_map;
enum { BOX_BYTES = 128 };

/* The swizzle of rows of 128 or 64 bytes. */
static uint32_t swizzled_rows(uint32_t address, uint32_t row_bytes) {
  return address ^ (address >> 7 & (row_bytes / 16 - 1)) << 4;
}
static uint32_t swizzled(uint32_t address) {
  return swizzled_rows(address, BOX_BYTES);
}

/* One element of a box in shared memory, and whether its place in the matrix exists. */
static int place_in_matrix(const tensor_map *m, int32_t x, int32_t y, uint64_t column, uint64_t row, char **out) {
  int64_t c = x + (int64_t)column, r = y + (int64_t)row;
  *out = (char *)(uintptr_t)m->start + r * (int64_t)m->stride_bytes + c * (int64_t)(BOX_BYTES / m->box_columns);
  return c >= 0 && r >= 0 && c < (int64_t)m->columns && r < (int64_t)m->rows;
}

static void load_box(char *base, uint32_t offset, const tensor_map *m, int32_t x, int32_t y) {
  uint64_t element = BOX_BYTES / m->box_columns;
  for (uint64_t row = 0; row < m->box_rows; row++)
    for (uint64_t column = 0; column < m->box_columns; column++) {
      char *source, *target = base + swizzled(offset + (uint32_t)(row * BOX_BYTES + column * element));
      if (place_in_matrix(m, x, y, column, row, &source))
        memcpy(target, source, element);
      else
        memset(target, 0, element);
    }
}

/* cast: mask of the CTAs that get the box, at the same addresses */
static void tensor_load(uint32_t address, int64_t map, uint32_t barrier, int32_t x, int32_t y, uint32_t cast) {
  const tensor_map *m = (const tensor_map *)(uintptr_t)map;
  for (int r = 0; r < now.cluster; r++) {
    if (!(cast >> r & 1)) continue;
    load_box(shared_of[r], address, m, x, y);
    complete((mbarrier *)(void *)(shared_of[r] + barrier), (int32_t)(m->box_rows * BOX_BYTES));
  }
}
void simt_tensor_load(uint32_t address, int64_t map, uint32_t barrier, int32_t x, int32_t y) {
  tensor_load(address, map, barrier, x, y, 1u << rank());
}
void simt_tensor_cast(uint32_t address, int64_t map, uint32_t barrier, int32_t x, int32_t y, uint16_t cast) {
  tensor_load(address, map, barrier, x, y, cast);
}
void simt_tensor_cast_hint(uint32_t address, int64_t map, uint32_t barrier, int32_t x, int32_t y, uint16_t cast,
                           int64_t hint) {
  (void)hint;
  tensor_load(address, map, barrier, x, y, cast);
}
void simt_tensor_load_hint(uint32_t address, int64_t map, uint32_t barrier, int32_t x, int32_t y, int64_t hint) {
  (void)hint;
  tensor_load(address, map, barrier, x, y, 1u << rank());
}
void simt_tensor_store(int64_t map, uint32_t address, int32_t x, int32_t y) {
  const tensor_map *m = (const tensor_map *)(uintptr_t)map;
  uint64_t element = BOX_BYTES / m->box_columns;
  for (uint64_t row = 0; row < m->box_rows; row++)
    for (uint64_t column = 0; column < m->box_columns; column++) {
      char *target;
      if (place_in_matrix(m, x, y, column, row, &target))
        memcpy(target, shared_of[rank()] + swizzled(address + (uint32_t)(row * BOX_BYTES + column * element)), element);
    }
}

void simt_stmatrix(uint32_t address, uint32_t v0, uint32_t v1, uint32_t v2, uint32_t v3) {
  uint64_t word = address, (*lanes)[WORDS] = exchange(&word, 1);
  const uint32_t values[4] = {v0, v1, v2, v3};
  int lane = simt_laneid();
  for (int m = 0; m < 4; m++) memcpy(at((uint32_t)lanes[8 * m + lane / 4][0]) + lane % 4 * 4, &values[m], 4);
  wait_for(&now.warp[now.thread / WARP]);
}

/* An operand of wgmma through its descriptor: element (i, k), i along M or N. In units of 16 bytes: start in bits 0 to 13,
 * from 64 to 64 of i in bits 16 to 29 (MN-major), from 8 to 8 rows in bits 32 to 45, rows of 128 bytes (1) or 64 (2) in
 * bits 62 and 63. */
static float operand(uint64_t descriptor, int is_mn, int i, int k, float (*widen)(uint32_t)) {
  uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4, leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
  uint32_t stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4, row = (uint32_t)(is_mn ? k : i);
  uint32_t row_bytes = descriptor >> 62 == 2 ? 64 : BOX_BYTES, address = start + row / 8 * stride + row % 8 * row_bytes;
  address += is_mn ? (uint32_t)i / 64 * leading + (uint32_t)i % 64 * 2 : (uint32_t)k * 2;
  uint16_t bits;
  memcpy(&bits, shared_of[rank()] + swizzled_rows(address, row_bytes), 2);
  return widen(bits);
}

/* Products of this thread's two rows: accumulator 4j + 2h + e is row 16·warp + lane/4 + 8h, column 8j + 2(lane%4) + e.
 * add 0: they start from zero */
static void multiply_rows(float rows[2][16], uint64_t b, int b_mn, int columns, int add, float *out,
                          float (*widen)(uint32_t)) {
  for (int j = 0; j < columns / 8; j++)
    for (int e = 0; e < 2; e++) {
      float column[16];
      for (int k = 0; k < 16; k++) column[k] = operand(b, b_mn, 8 * j + simt_laneid() % 4 * 2 + e, k, widen);
      for (int h = 0; h < 2; h++) {
        float sum = add ? out[4 * j + 2 * h + e] : 0;
        for (int k = 0; k < 16; k++) sum = fmaf(rows[h][k], column[k], sum);
        out[4 * j + 2 * h + e] = sum;
      }
    }
}

/* One product m64 x columns x k16 into simt_accumulators from `first` on. */
void simt_wgmma(int64_t a, int64_t b, int32_t is_bf16, int32_t columns, int32_t first, int32_t add, int32_t a_mn,
                int32_t b_mn) {
  float (*widen)(uint32_t) = is_bf16 ? from_bf16 : from_f16, rows[2][16];
  int row = now.thread / WARP % 4 * 16 + simt_laneid() / 4;
  for (int h = 0; h < 2; h++)
    for (int k = 0; k < 16; k++) rows[h][k] = operand((uint64_t)a, a_mn, row + 8 * h, k, widen);
  multiply_rows(rows, (uint64_t)b, b_mn, columns, add, simt_accumulators + first, widen);
}

/* The same with the first operand in registers, laid out as that of mma: all words of all terms, then each product. */
void simt_a_word(int32_t i, uint32_t v) {
  now.a_words[now.thread][i] = v;
}
void simt_a_ready(void) {
  now.a_lanes[now.thread] = exchange(now.a_words[now.thread], WORDS);
}
void simt_wgmma_term(int32_t first_word, int64_t b, int32_t columns, int32_t add, int32_t b_mn) {
  float rows[2][16];
  for (int h = 0; h < 2; h++)
    for (int k = 0; k < 16; k++) {
      uint64_t word = now.a_lanes[now.thread][simt_laneid() / 4 * 4 + k % 8 / 2][first_word + k / 8 * 2 + h];
      rows[h][k] = from_bf16((uint32_t)word >> k % 2 * 16 & 0xffff);
    }
  multiply_rows(rows, (uint64_t)b, b_mn, columns, add, simt_accumulators, from_bf16);
}

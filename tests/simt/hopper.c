/* hopper.c: the words of a GPU (simt.c) that came with Hopper: mbarriers, tensor copies, products of warpgroups. */
#include "simt.h"

#include <math.h>

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
}

static void arrive(uint32_t address, int32_t expected) {
  mbarrier *b = (mbarrier *)(void *)simt_at(address);
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
  memcpy(simt_at(address), &b, sizeof b);
}
void simt_mbarrier_expect(uint32_t address, uint32_t bytes) {
  arrive(address, (int32_t)bytes);
}
void simt_mbarrier_arrive(uint32_t address, uint32_t condition) {
  if (condition) arrive(address, 0);
}
void simt_mbarrier_wait(uint32_t address, uint32_t parity) {
  const uint32_t *words = (const uint32_t *)(const void *)simt_at(address); /* the phase is the last bit of the second */
  simt_wait_while(words + 1, 1u << 31, (parity & 1) << 31);
}

uint32_t simt_mapa(uint32_t address, uint32_t cta) {
  return (address & ((1u << RANK_SHIFT) - 1)) | (cta + 1) << RANK_SHIFT;
}
static void store_async(const simt_work *w) {
  memcpy(simt_at(w->word[0]), &w->word[1], 4);
  complete((mbarrier *)(void *)simt_at(w->word[2]), 4);
}
void simt_st_async(uint32_t address, uint32_t v, uint32_t barrier) {
  if (simt_post((simt_work){.run = store_async, .word = {address, v, barrier}})) memset(simt_at(address), 0xff, 4);
}
uint32_t simt_atomic_next(uint32_t *word) {
  return (*word)++;
}

/* What the stand-in for cuTensorMapEncodeTiled leaves in a map. Rows of a box have 128 bytes. */
typedef struct tensor_map {
  uint64_t start, columns, rows, stride_bytes, box_columns, box_rows;
} tensor_map;
enum { COLUMNS_MAX = 256, OPERANDS_KEPT = 16 };

static uint32_t swizzled(uint32_t address) {
  return simt_swizzled(address, BOX_BYTES);
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

/* Words: address, barrier, CTA. */
static void load(const simt_work *w) {
  const tensor_map *m = (const tensor_map *)(uintptr_t)w->a;
  load_box(simt_shared[w->word[2]], w->word[0], m, w->x, w->y);
  complete((mbarrier *)(void *)simt_at(w->word[1]), (int32_t)(m->box_rows * BOX_BYTES));
}

/* Into the shared memory of a CTA, counted by a barrier of any. */
static void load_into(int cta, uint32_t address, int64_t map, uint32_t barrier, int32_t x, int32_t y) {
  const tensor_map *m = (const tensor_map *)(uintptr_t)map;
  if (simt_post((simt_work){.run = load, .a = map, .x = x, .y = y, .word = {address, barrier, (uint32_t)cta}}))
    memset(simt_shared[cta] + address, 0xff, m->box_rows * BOX_BYTES);
}

/* cast: mask of the CTAs that get the box, at the same addresses */
static void tensor_load(uint32_t address, int64_t map, uint32_t barrier, int32_t x, int32_t y, uint32_t cast) {
  for (int r = 0; r < simt.cluster; r++)
    if (cast >> r & 1) load_into(r, address, map, simt_mapa(barrier, (uint32_t)r), x, y);
}
/* With .cta_group::2 the barrier may be the other CTA's of a pair. */
void simt_tensor_pair(uint32_t address, int64_t map, uint32_t barrier, int32_t x, int32_t y) {
  load_into(simt_rank(), address, map, barrier, x, y);
}
void simt_tensor_pair_hint(uint32_t address, int64_t map, uint32_t barrier, int32_t x, int32_t y, int64_t hint) {
  (void)hint;
  simt_tensor_pair(address, map, barrier, x, y);
}
void simt_tensor_load(uint32_t address, int64_t map, uint32_t barrier, int32_t x, int32_t y) {
  tensor_load(address, map, barrier, x, y, 1u << simt_rank());
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
  tensor_load(address, map, barrier, x, y, 1u << simt_rank());
}
static void store(const simt_work *w) {
  const tensor_map *m = (const tensor_map *)(uintptr_t)w->a;
  const char *base = simt_shared[simt_rank()];
  uint64_t element = BOX_BYTES / m->box_columns;
  for (uint64_t row = 0; row < m->box_rows; row++)
    for (uint64_t column = 0; column < m->box_columns; column++) {
      char *target;
      if (place_in_matrix(m, w->x, w->y, column, row, &target))
        memcpy(target, base + swizzled(w->word[0] + (uint32_t)(row * BOX_BYTES + column * element)), element);
    }
}
void simt_tensor_store(int64_t map, uint32_t address, int32_t x, int32_t y) {
  simt_post((simt_work){.run = store, .a = map, .x = x, .y = y, .word = {address}});
}
void simt_tensor_stores_read(void) {
  simt_do_own(store);
}

void simt_stmatrix(uint32_t address, uint32_t v0, uint32_t v1, uint32_t v2, uint32_t v3) {
  uint64_t word = address, (*lanes)[WORDS] = simt_exchange(&word, 1);
  const uint32_t values[4] = {v0, v1, v2, v3};
  int lane = simt_laneid();
  for (int m = 0; m < 4; m++) memcpy(simt_at((uint32_t)lanes[8 * m + lane / 4][0]) + lane % 4 * 4, &values[m], 4);
  simt_warp_barrier();
}

/* An operand of wgmma through its descriptor: element (i, k), i along M or N. In units of 16 bytes: start in bits 0 to
 * 13, from 64 to 64 of i in bits 16 to 29 (MN-major), from 8 to 8 rows in bits 32 to 45, rows of 128 bytes (1) or 64 (2)
 * in bits 62 and 63. */
static float operand(uint64_t descriptor, int is_mn, int i, int k, float (*widen)(uint32_t)) {
  uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4, leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
  uint32_t stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4, row = (uint32_t)(is_mn ? k : i);
  uint32_t row_bytes = descriptor >> 62 == 2 ? 64 : BOX_BYTES, address = start + row / 8 * stride + row % 8 * row_bytes;
  address += is_mn ? (uint32_t)i / 64 * leading + (uint32_t)i % 64 * 2 : (uint32_t)k * 2;
  uint16_t bits;
  memcpy(&bits, simt_shared[simt_rank()] + simt_swizzled(address, row_bytes), 2);
  return widen(bits);
}

/* The second operand of a product for every thread of a warpgroup: value (k, 2j + e) of lanes that are t modulo 4 is row k,
 * column 8j + 2t + e. It is read once for all of them: none goes on before all have multiplied. */
typedef struct operand_b {
  uint64_t descriptor;
  uint32_t run, generation;
  int is_mn, columns;
  float (*widen)(uint32_t);
  float values[4][16][COLUMNS_MAX / 4];
} operand_b;

static const operand_b *read_b(uint64_t descriptor, int is_mn, int columns, float (*widen)(uint32_t)) {
  static operand_b kept[THREADS_MAX / WARPGROUP][OPERANDS_KEPT];
  int group = simt.thread / WARPGROUP;
  operand_b *b = &kept[group][(descriptor ^ descriptor >> 2 ^ descriptor >> 7) % OPERANDS_KEPT];
  uint32_t generation = simt.warpgroup[group].generation;
  if (b->run == simt.run && b->generation == generation && b->descriptor == descriptor && b->is_mn == is_mn &&
      b->columns == columns && b->widen == widen)
    return b;
  b->descriptor = descriptor, b->run = simt.run, b->generation = generation;
  b->is_mn = is_mn, b->columns = columns, b->widen = widen;
  for (int column = 0; column < columns; column++)
    for (int k = 0; k < 16; k++)
      b->values[column % 8 / 2][k][column / 8 * 2 + column % 2] = operand(descriptor, is_mn, column, k, widen);
  return b;
}

/* Products of this thread's two rows, which are summed before they are rounded, as tensor cores do: the order within them
 * is in no bit. Accumulator 4j + 2h + e is row 16·warp + lane/4 + 8h, column 8j + 2(lane%4) + e. add 0: from zero */
static void multiply_rows(float rows[2][16], const operand_b *b, int add, float *out) {
  const float(*columns)[COLUMNS_MAX / 4] = b->values[simt_laneid() % 4];
  int count = b->columns / 4;
  double sums[2][COLUMNS_MAX / 4] = {0};
  for (int h = 0; h < 2; h++)
    for (int i = 0; add && i < count; i++) sums[h][i] = out[i / 2 * 4 + 2 * h + i % 2];
  for (int k = 0; k < 16; k++)
    for (int i = 0; i < count; i++)
      for (int h = 0; h < 2; h++) sums[h][i] = fma(rows[h][k], columns[k][i], sums[h][i]);
  for (int h = 0; h < 2; h++)
    for (int i = 0; i < count; i++) out[i / 2 * 4 + 2 * h + i % 2] = (float)sums[h][i];
}

/* A product m64 x columns x k16: of two rows of this thread, in registers or behind a descriptor. */
typedef struct product {
  int64_t a, b;
  float rows[2][16];
  int32_t in_registers, columns, first, add, a_mn, b_mn;
  float (*widen)(uint32_t);
} product;

static void multiply(product p, float *sums) {
  int row = simt.thread / WARP % 4 * 16 + simt_laneid() / 4;
  for (int h = 0; h < 2 && !p.in_registers; h++)
    for (int k = 0; k < 16; k++) p.rows[h][k] = operand((uint64_t)p.a, p.a_mn, row + 8 * h, k, p.widen);
  multiply_rows(p.rows, read_b((uint64_t)p.b, p.b_mn, p.columns, p.widen), p.add, sums + p.first);
}

/* Products of a thread that are late: those of one stage after the other, at the latest when they are waited for. Until
 * then no register holds a sum. */
enum { STAGES_MAX = 8, PRODUCTS_MAX = 64 };
typedef struct flight {
  uint32_t run;
  int is_open, stages, count, of_stage[STAGES_MAX]; /* is_open: sums are here, and not in registers */
  product products[PRODUCTS_MAX];
  float sums[256];
} flight;
static flight flights[THREADS_MAX];

static flight *own_flight(void) {
  flight *f = &flights[simt.thread];
  if (f->run != simt.run) f->is_open = f->stages = f->count = 0;
  f->run = simt.run;
  return f;
}

static void begin_product(product p) {
  if (!simt_is_late()) {
    multiply(p, simt_accumulators);
    return;
  }
  flight *f = own_flight();
  if (f->count == PRODUCTS_MAX) simt_refuse("wgmma: products under way at once", PRODUCTS_MAX);
  f->products[f->count++] = p;
}

static void end_stage(flight *f) {
  for (int i = 0; i < f->of_stage[0]; i++) multiply(f->products[i], f->sums);
  f->count -= f->of_stage[0];
  memmove(f->products, f->products + f->of_stage[0], sizeof f->products[0] * (size_t)f->count);
  memmove(f->of_stage, f->of_stage + 1, sizeof f->of_stage[0] * (size_t)--f->stages);
}

/* Behind the products of a stage, if there are any: waits until so many stages are under way. sums: in
 * simt_accumulators */
void simt_wgmma_wait(int32_t sums, int32_t pending) {
  if (!simt_is_late()) return;
  flight *f = own_flight();
  int before = 0;
  for (int i = 0; i < f->stages; i++) before += f->of_stage[i];
  if (!f->is_open) memcpy(f->sums, simt_accumulators, sizeof(float) * (size_t)sums);
  if (f->stages == STAGES_MAX) simt_refuse("wgmma: stages under way at once", STAGES_MAX);
  if (f->count > before) f->of_stage[f->stages++] = f->count - before;
  int left = pending ? (int)simt_lot((uint32_t)pending + 1) : 0;
  while (f->stages > left) end_stage(f);
  f->is_open = pending > 0;
  if (f->is_open)
    memset(simt_accumulators, 0xff, sizeof(float) * (size_t)sums);
  else
    memcpy(simt_accumulators, f->sums, sizeof(float) * (size_t)sums);
}

/* Into simt_accumulators from `first` on. */
void simt_wgmma(int64_t a, int64_t b, int32_t is_bf16, int32_t columns, int32_t first, int32_t add, int32_t a_mn,
                int32_t b_mn) {
  begin_product((product){.a = a,
                          .b = b,
                          .columns = columns,
                          .first = first,
                          .add = add,
                          .a_mn = a_mn,
                          .b_mn = b_mn,
                          .widen = is_bf16 ? from_bf16 : from_f16});
}

/* The same with the first operand in registers, laid out as that of mma: all words of all terms, then each product. */
static uint64_t a_words[THREADS_MAX][WORDS], (*a_lanes[THREADS_MAX])[WORDS];

void simt_a_word(int32_t i, uint32_t v) {
  a_words[simt.thread][i] = v;
}
void simt_a_ready(void) {
  a_lanes[simt.thread] = simt_exchange(a_words[simt.thread], WORDS);
}
void simt_wgmma_term(int32_t first_word, int64_t b, int32_t columns, int32_t add, int32_t b_mn) {
  product p = {.b = b, .in_registers = 1, .columns = columns, .add = add, .b_mn = b_mn, .widen = from_bf16};
  for (int h = 0; h < 2; h++)
    for (int k = 0; k < 16; k++) {
      uint64_t word = a_lanes[simt.thread][simt_laneid() / 4 * 4 + k % 8 / 2][first_word + k / 8 * 2 + h];
      p.rows[h][k] = from_bf16((uint32_t)word >> k % 2 * 16 & 0xffff);
    }
  begin_product(p);
}

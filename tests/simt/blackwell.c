/* blackwell.c: the words of a GPU (simt.c) that sm_100f alone has: tensor memory, and products of one CTA or two into
 * it.
 *
 * Refused is what the PTX ISA refuses: descriptors of another version, shapes, lanes that a warp does not reach,
 * products that a pair's second CTA issues, columns that are not allocated. Fences say nothing here. */
#include "simt.h"

#include <math.h>

enum { LANES = 128, COLUMNS = 512, SUMS_MAX = 256, DEPTH = 16 };

/* Of a CTA. Columns that are allocated begin where those that are not end, so that a forgotten address shows. */
static struct {
  int allocated;
  float sums[LANES][COLUMNS];
} tensor[CTAS_MAX];

static int first_column(int cta) {
  return COLUMNS - tensor[cta].allocated;
}

static void check_columns(const char *what, int cta, int column, int count) {
  if (!tensor[cta].allocated || column < first_column(cta) || column + count > COLUMNS) simt_refuse(what, column);
}

void simt_tmem_alloc(uint32_t address, uint32_t columns) {
  int cta = simt_rank();
  if (simt_laneid() == 0) {
    if (tensor[cta].allocated) simt_refuse("tcgen05.alloc: allocated already", tensor[cta].allocated);
    if (columns < 32 || columns > COLUMNS || columns & (columns - 1)) simt_refuse("tcgen05.alloc: columns", columns);
    tensor[cta].allocated = (int)columns;
    memset(tensor[cta].sums, 0xff, sizeof tensor[cta].sums); /* no numbers */
    uint32_t first = (uint32_t)first_column(cta);
    memcpy(simt_at(address), &first, 4);
  }
  simt_warp_barrier();
}
void simt_tmem_free(uint32_t address, uint32_t columns) {
  int cta = simt_rank();
  if (simt_laneid()) return;
  if ((int)address != first_column(cta) || (int)columns != tensor[cta].allocated)
    simt_refuse("tcgen05.dealloc: not what was allocated", columns);
  tensor[cta].allocated = 0;
}
void simt_tmem_end(void) {
  for (int cta = 0; cta < CTAS_MAX; cta++)
    if (tensor[cta].allocated) simt_refuse("tensor memory is not given back", tensor[cta].allocated);
}

/* ---- products ---- */

/* Element (i, k) of an operand in the shared memory of a CTA through its descriptor, i along M or N. In units of 16
 * bytes: start in bits 0 to 13, from 64 to 64 of i in bits 16 to 29 (MN-major), from 8 to 8 rows in bits 32 to 45;
 * version 1 in bits 46 to 48; rows of 128 bytes, swizzle 2, in bits 61 to 63. */
static float element(int cta, uint64_t d, int is_mn, int i, int k, float (*widen)(uint32_t)) {
  uint32_t start = (uint32_t)(d & 0x3fff) << 4, leading = (uint32_t)(d >> 16 & 0x3fff) << 4;
  uint32_t stride = (uint32_t)(d >> 32 & 0x3fff) << 4, row = (uint32_t)(is_mn ? k : i);
  uint32_t address = start + row / 8 * stride + row % 8 * BOX_BYTES;
  address += is_mn ? (uint32_t)i / 64 * leading + (uint32_t)i % 64 * 2 : (uint32_t)k * 2;
  uint16_t bits;
  memcpy(&bits, simt_shared[cta] + simt_swizzled(address, BOX_BYTES), 2);
  return widen(bits);
}

/* The instruction descriptor, and what of it is taken. */
typedef struct shape {
  int rows, columns, a_mn, b_mn;
  float (*widen)(uint32_t);
} shape;

static shape shape_of(uint32_t described, int ctas) {
  uint32_t a_type = described >> 7 & 7, b_type = described >> 10 & 7;
  shape s = {.rows = (int)(described >> 24 & 31) * 16,
             .columns = (int)(described >> 17 & 63) * 8,
             .a_mn = described >> 15 & 1,
             .b_mn = described >> 16 & 1,
             .widen = a_type ? from_bf16 : from_f16};
  if ((described >> 4 & 3) != 1 || a_type != b_type || a_type > 1) simt_refuse("tcgen05.mma: types", described);
  if (s.rows != LANES * ctas || s.columns < 16 || s.columns > SUMS_MAX || s.columns % 16)
    simt_refuse("tcgen05.mma: shape", described);
  return s;
}

static void check_descriptor(int64_t descriptor) {
  uint64_t d = (uint64_t)descriptor;
  if ((d >> 46 & 7) != 1 || d >> 61 != 2 || d >> 49 & 0xfff) simt_refuse("tcgen05.mma: descriptor", (int64_t)(d >> 32));
}

/* Products are summed before they are rounded, as in hopper.c. */
static void multiply(const simt_work *w) {
  static double b[DEPTH][SUMS_MAX];
  shape s = shape_of(w->word[1], (int)w->word[3]);
  int here = simt_rank(), first = (int)(w->word[0] & 0xffff), each = s.columns / (int)w->word[3];
  for (int c = 0; c < s.columns; c++)
    for (int k = 0; k < DEPTH; k++)
      b[k][c] = element(here + c / each, (uint64_t)w->b, s.b_mn, c % each, k, s.widen);
  for (int r = 0; r < s.rows; r++) {
    float *out = tensor[here + r / LANES].sums[r % LANES] + first;
    double sums[SUMS_MAX] = {0};
    for (int c = 0; w->word[2] && c < s.columns; c++) sums[c] = out[c];
    for (int k = 0; k < DEPTH; k++) {
      double a = element(here + r / LANES, (uint64_t)w->a, s.a_mn, r % LANES, k, s.widen);
      for (int c = 0; c < s.columns; c++) sums[c] = fma(a, b[k][c], sums[c]);
    }
    for (int c = 0; c < s.columns; c++) out[c] = (float)sums[c];
  }
}

/* Products and their commits are done in the order of the CTA that issues them. */
static int own_queue(void) {
  return simt_rank() + 1;
}

void simt_tmem_multiply(uint32_t into, int64_t a, int64_t b, uint32_t described, uint32_t keep, uint32_t ctas) {
  int here = simt_rank();
  shape s = shape_of(described, (int)ctas);
  if (ctas == 2 && here & 1) simt_refuse("tcgen05.mma: issued by the second CTA of a pair", here);
  if (into >> 16) simt_refuse("tcgen05.mma: lanes", into >> 16);
  check_descriptor(a), check_descriptor(b);
  for (int cta = here; cta < here + (int)ctas; cta++)
    check_columns("tcgen05.mma: columns", cta, (int)(into & 0xffff), s.columns);
  simt_work w = {.run = multiply, .queue = own_queue(), .a = a, .b = b, .word = {into, described, keep, ctas}};
  if (!simt_post(w) || keep) return;
  for (int cta = here; cta < here + (int)ctas; cta++) /* what was there is gone */
    for (int lane = 0; lane < LANES; lane++)
      memset(&tensor[cta].sums[lane][into & 0xffff], 0xff, sizeof(float) * (size_t)s.columns);
}

static void commit(const simt_work *w) {
  for (int r = 0; r < simt.cluster; r++)
    if (w->word[1] >> r & 1) simt_mbarrier_arrive(simt_mapa(w->word[0], (uint32_t)r), 1);
}
void simt_tmem_commit_cast(uint32_t address, uint32_t mask) {
  simt_post((simt_work){.run = commit, .queue = own_queue(), .word = {address, mask}});
}
void simt_tmem_commit(uint32_t address) {
  simt_tmem_commit_cast(address, 1u << simt_rank());
}

/* tcgen05.ld.16x256b: register 4j + 2h + e of a lane is row lane/4 + 8h, column 8j + 2(lane%4) + e. A warp reaches 32
 * lanes, those of its number modulo 4. number: of 8 columns each; first: register */
void simt_tmem_load(uint32_t address, int32_t number, int32_t first) {
  int at = (int)(address >> 16), column = (int)(address & 0xffff), cta = simt_rank(), lane = simt_laneid();
  if (at / 32 != simt.thread / WARP % 4 || at % 16) simt_refuse("tcgen05.ld: lanes", at);
  check_columns("tcgen05.ld: columns", cta, column, 8 * number);
  for (int j = 0; j < number; j++)
    for (int h = 0; h < 2; h++)
      for (int e = 0; e < 2; e++)
        simt_accumulators[first + 4 * j + 2 * h + e] =
            tensor[cta].sums[at + lane / 4 + 8 * h][column + 8 * j + 2 * (lane % 4) + e];
}

/* tcgen05.ld and .st of 32x32b: register i of a lane is column i of the row of its number. */
static float *own_row(const char *what, uint32_t address, int32_t number) {
  int at = (int)(address >> 16), column = (int)(address & 0xffff), cta = simt_rank();
  if (at != simt.thread / WARP % 4 * WARP) simt_refuse(what, at);
  check_columns(what, cta, column, number);
  return tensor[cta].sums[at + simt_laneid()] + column;
}
void simt_tmem_load_row(uint32_t address, int32_t number) {
  memcpy(simt_accumulators, own_row("tcgen05.ld.32x32b", address, number), sizeof(float) * (size_t)number);
}
void simt_tmem_store_row(uint32_t address, int32_t number) {
  memcpy(own_row("tcgen05.st.32x32b", address, number), simt_accumulators, sizeof(float) * (size_t)number);
}

/* model.c: what a tiling costs: shares of the time at the power limit, waves, re-reads. See model.h. */
#include "autotune/model.h"

#include <math.h>

/* fp32 operands are three bf16 terms and six products. */
static const double wide_products = 6;
/* Used where the driver names none: H200. */
static const double default_sms = 132, default_clock = 1.98e9, default_l2 = 50 << 20, default_bandwidth = 4.8e12;

/* Costs in multiplications of a tensor core at full clock. A card that multiplies without pause is at
 * its power limit, so moving data slows the clock for everything: costs add up and none is hidden.
 * Fitted by autotune/tuning_records.py to autotune/bench/tune_forward_4096.json, which it misses by 3.6 percent
 * (standard deviation, up to 1.2 times the fastest); `memory` and `shared_products` are from the
 * tiles that were best at ten hidden sizes: there a multiplication takes the same time in all large tiles. */
static const struct {
  double base;               /* the multiplication itself */
  double shared, l2;         /* an element of an operand read by wgmma; copied from L2 */
  double shared_products;    /* the first of these in products */
  double cluster2, cluster4; /* CTAs that wait for each other */
  double half_rows;          /* ping-pong with one wgmma's rows: too short for a turn */
  double ahead;              /* multiplications a step of K that a pipeline should hold ahead: with fewer, squared */
  double epilogue;           /* of tiles whose warpgroups all reduce at once, for each element */
  double panel;              /* hidden rows of a sweep that L2 does not hold, per L2 */
  double again;              /* a sweep over the columns behind the first, a row */
  double memory;             /* bytes a clock from device memory in products, beyond those at no cost */
} share = {1.277, 25.4, 6.6, 4.0, 0.021, 0.111, 0.101, 13900, 245, 0.17, 30, 1.2e-4};
static const double panel_free = 0.5;  /* of L2 */
static const double memory_free = 350; /* bytes a clock */
/* Of portable kernels: a multiprocessor's registers hold this many accumulators of 16-bit operands, and half as many of
 * fp32 ones; a CTA that has half of them to itself leaves the tensor cores idle where its warps wait. */
static const double accumulators = 128 * 256, lone = 0.5;
static const double cta_shared = 1024; /* bytes that a CTA takes beside its own */

typedef struct machine {
  double sms, clock, l2_bytes;
  double bandwidth;    /* bytes a second of device memory */
  double rate;         /* multiplications of 16-bit operands that a multiprocessor does in a clock */
  double shared_bytes; /* of a multiprocessor */
  int is_portable;     /* the kernels */
} machine;

static machine machine_of(const char *arch, const flp_device *device) {
  double bandwidth = 2e3 * device->memory_clock_khz * (device->memory_bus_bits / 8.0); /* two transfers a clock */
  int is_portable = !flp_arch_is_exact(arch);
  const flp_arch *own = is_portable ? flp_arch_of_device(device->major, device->minor) : flp_arch_find(arch);
  return (machine){.is_portable = is_portable,
                   .rate = own->flops_per_clock / 2,
                   .shared_bytes = own->shared_bytes + cta_shared,
                   .sms = device->multiprocessors > 0 ? device->multiprocessors : default_sms,
                   .clock = device->clock_khz > 0 ? 1e3 * device->clock_khz : default_clock,
                   .l2_bytes = device->l2_bytes > 0 ? device->l2_bytes : default_l2,
                   .bandwidth = bandwidth > 0 ? bandwidth : default_bandwidth};
}

/* A product of m x n x k, the tiles of whose second operand are shared by a cluster. */
typedef struct product {
  double m, n, k;
  double element;    /* bytes */
  double unit_tiles; /* tiles that a cluster takes at a time, side by side */
  int pairs;         /* of these, in ping-pong: what does not fill a round goes singly */
  int reduces;       /* every element of a tile goes through an epilogue of many instructions */
  int sweeps;        /* row panels stay while all columns pass by */
} product;

/* CTAs that share a multiprocessor: by registers, and by shared memory. */
static double ctas_of(const machine *m, const product *x, const flp_tunables *t) {
  double tile = (double)t->rows * t->columns, ring = t->stages * 64.0 * (t->rows + t->columns);
  if (!m->is_portable) return 1;
  return fmax(1, floor(fmin(accumulators / (x->element > 2 ? 2 : 1) / tile, m->shared_bytes / (ring + cta_shared))));
}

/* Clocks of one of the CTAs of a multiprocessor for one tile, without effects of other tiles. Fragments of portable
 * kernels cost the same whatever the tile. */
static double portable_clocks(const machine *m, const product *x, const flp_tunables *t) {
  double rows = t->rows, columns = t->columns, per = rows * columns, ctas = ctas_of(m, x, t);
  double cost = share.base + share.l2 * (rows + columns) / per + pow(share.ahead / ((t->stages - 1.0) * per * ctas), 2);
  double held = accumulators / (x->element > 2 ? 2 : 1);
  if (ctas * per <= held / 2) cost += lone;
  if (ctas < 2 && x->reduces) cost += share.epilogue / x->k;
  return ctas * cost * per * x->k / m->rate;
}

/* Clocks of one CTA for one tile, without effects of other tiles. */
static double mapped_clocks(const machine *m, const product *x, const flp_tunables *t) {
  double rows = t->rows, columns = t->columns, per = rows * columns;
  int ping_pong = t->schedule == FLP_SCHEDULE_PING_PONG;
  double shared = x->reduces ? share.shared : share.shared_products;
  double cost = share.base + shared / columns + share.l2 * (rows + columns / t->cluster) / per;
  cost += t->cluster == 2 ? share.cluster2 : t->cluster == 4 ? share.cluster4 : 0;
  cost += pow(share.ahead / ((t->stages - 1.0) * per), 2);
  if (ping_pong && t->rows == 64) cost += share.half_rows;
  if (!ping_pong && x->reduces) cost += share.epilogue / x->k;
  return cost * per * x->k / m->rate;
}

static double tile_clocks(const machine *m, const product *x, const flp_tunables *t) {
  return (m->is_portable ? portable_clocks : mapped_clocks)(m, x, t) * (x->element > 2 ? wide_products : 1);
}

/* Cost factor of operands that are read from device memory more than once. */
static double reread_factor(const machine *m, const product *x, const flp_tunables *t, double panels, double tile) {
  double panel_rows = (double)t->rows * t->cluster, clusters = floor(m->sms * ctas_of(m, x, t) / t->cluster);
  double sweeps = ceil(panels / t->raster), sweep_panels = ceil(panels / sweeps);
  if (x->sweeps) {
    double panel = sweep_panels * panel_rows * x->k * x->element / m->l2_bytes;
    return 1 + share.panel * fmax(0, fmin(panel, 3) - panel_free) + share.again * (sweeps - 1) / x->m;
  }
  /* Units that run at once go along K together: rows of `sweep_panels` panels, and as many columns as clusters are left
   * for. */
  double wave = (sweep_panels * panel_rows + ceil(clusters / sweep_panels) * t->columns) * x->k * x->element;
  return 1 + share.memory * fmax(0, wave / tile - memory_free);
}

/* Rounds of units that clusters take in turn. The last, partial round takes single leaves if units are pairs
 * and all can run at once; behind a whole round it mostly runs in the time that others leave over. */
static double rounds_of(double waves, int pairs) {
  double whole = floor(waves), rest = waves - whole;
  double tail = rest <= 0 ? 0 : pairs && rest <= 0.5 ? 0.5 : 1;
  return whole > 0 ? whole + fmin(tail, rest + 0.5) : tail;
}

/* Units of a product, in rounds of all clusters, and the time of one unit. */
typedef struct units {
  double waves, seconds;
} units;

static units units_of(const machine *m, const product *x, const flp_tunables *t) {
  double panel_rows = (double)t->rows * t->cluster, clusters = floor(m->sms * ctas_of(m, x, t) / t->cluster);
  double tile = tile_clocks(m, x, t);
  double panels = ceil(x->m / panel_rows), across = ceil(x->n / (t->columns * x->unit_tiles));
  return (units){panels * across / clusters, x->unit_tiles * tile * reread_factor(m, x, t, panels, tile) / m->clock};
}

/* unit_columns: that a warpgroup, or both together, reduce before the next unit; 0: one tile */
static double scores_seconds(const machine *m, const flp_spec *spec, int64_t n, int64_t columns, double unit_columns,
                             const flp_tunables *t) {
  double warpgroups = t->schedule == FLP_SCHEDULE_PING_PONG ? 2 : 1, tiles = fmax(unit_columns / t->columns, 1);
  product x = {.m = (double)n,
               .n = (double)columns,
               .k = (double)spec->hidden,
               .reduces = 1,
               .sweeps = 1,
               .element = (double)flp_dtype_bytes(spec->dtype),
               .unit_tiles = warpgroups * tiles,
               .pairs = warpgroups > 1};
  units all = units_of(m, &x, t);
  return rounds_of(all.waves, x.pairs) * all.seconds;
}

/* An exponential for each score on its way to memory. */
static double stores_seconds(const machine *m, const flp_spec *spec, int64_t n) {
  return (double)flp_dtype_bytes(spec->dtype) * (double)n * (double)spec->vocab / m->bandwidth;
}

/* kind: of one of the products; else both in one launch, where the short units of the weight's gradient fill the last
 * round */
static double products_seconds(const machine *m, flp_kernel_kind kind, const flp_spec *spec, int64_t n, int64_t columns,
                               const flp_tunables *t) {
  double element = (double)flp_dtype_bytes(spec->dtype);
  product hidden = {
      .m = (double)n, .n = (double)spec->hidden, .k = (double)columns, .element = element, .unit_tiles = 1};
  product weight = {
      .m = (double)columns, .n = (double)spec->hidden, .k = (double)n, .element = element, .unit_tiles = 1};
  units of_hidden = units_of(m, &hidden, t), of_weight = units_of(m, &weight, t);
  if (kind == FLP_KERNEL_GRAD_WEIGHT) return rounds_of(of_weight.waves, 0) * of_weight.seconds;
  if (kind == FLP_KERNEL_GRAD_HIDDEN || !(spec->grads & FLP_GRAD_WEIGHT))
    return rounds_of(of_hidden.waves, 0) * of_hidden.seconds;
  double before = spec->grads & FLP_GRAD_HIDDEN ? of_hidden.waves * of_hidden.seconds : 0;
  return before + fmax(of_weight.waves + 0.5, 1) * of_weight.seconds;
}

double model_ms(const char *arch, flp_kernel_kind kind, const flp_spec *spec, int64_t n, int64_t chunk_vocab,
                const flp_device *device, const flp_tunables *tune) {
  machine m = machine_of(arch, device);
  int64_t columns = chunk_vocab > 0 && chunk_vocab < spec->vocab ? chunk_vocab : spec->vocab;
  double chunks = (double)spec->vocab / (double)columns;
  double unit = m.is_portable ? FLP_GROUP_COLUMNS : FLP_LEAF_COLUMNS;
  double forward = scores_seconds(&m, spec, n, spec->vocab, unit, tune);
  if (kind == FLP_KERNEL_FORWARD) return 1e3 * forward;
  if (kind == FLP_FORWARD(KEEP)) return 1e3 * (forward + stores_seconds(&m, spec, n));
  if (kind == FLP_KERNEL_DZ) return 1e3 * chunks * scores_seconds(&m, spec, n, columns, 0, tune);
  return 1e3 * chunks * products_seconds(&m, kind, spec, n, columns, tune);
}

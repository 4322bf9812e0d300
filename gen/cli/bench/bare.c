/* bare.c: bare matrix products over a benchmark's data, of the same shapes as a pass is made of. */
#include "gen/cli/bench/bench.h"
#include "runtime/kernel/kernel.h"

/* Workspace as NVIDIA advises for Hopper, twice over; memory that is left alone. */
enum { BARE_WORKSPACE = 64 << 20, MEMORY_RESERVE = 128 << 20 };

static flp_status make_scores(bench_products *p, int share) {
  const flp_driver *driver = p->data->device->driver;
  size_t available = 0, total = 0;
  FLP_TRY(flp_driver_status(driver, driver->cuMemGetInfo_v2(&available, &total), "cuMemGetInfo"));
  size_t usable = available > MEMORY_RESERVE ? (available - MEMORY_RESERVE) / (size_t)share : 0;
  p->vocab = bench_scores_vocab(p->spec, p->n, usable);
  if (p->vocab == 0)
    return flp_fail(FLP_ERROR_MEMORY,
                    "--rows: the scores of %lld rows and 1024 columns for the bare products do not fit into the %zu "
                    "bytes of device memory that are free; fewer rows do, or none with --no-bare",
                    (long long)p->n, available);
  size_t element = flp_dtype_bytes(p->spec->dtype);
  return bench_data_create(p->data, BENCH_BARE_SCORES, (size_t)p->n * (size_t)p->vocab * element);
}

static void set_operands(bench_products *p, gemm_product which) {
  static const bench_slot slots[GEMM_PRODUCTS][3] = {
      [GEMM_SCORES] = {BENCH_HIDDEN, BENCH_WEIGHT, BENCH_BARE_SCORES},
      [GEMM_GRAD_HIDDEN] = {BENCH_BARE_SCORES, BENCH_WEIGHT, BENCH_GRAD_HIDDEN},
      [GEMM_GRAD_WEIGHT] = {BENCH_BARE_SCORES, BENCH_HIDDEN, BENCH_GRAD_WEIGHT}};
  gemm *product = &p->product[which];
  product->a = p->data->slot[slots[which][0]].data;
  product->b = p->data->slot[slots[which][1]].data;
  product->c = p->data->slot[slots[which][2]].data;
  product->workspace = p->data->slot[BENCH_BARE_WORKSPACE].data;
  product->workspace_bytes = p->data->slot[BENCH_BARE_WORKSPACE].bytes;
}

/* Those of all passes of the spec. */
static int is_of_spec(const bench_products *p, gemm_product which) {
  int count[GEMM_PRODUCTS];
  bench_case_products(p->spec->grads ? BENCH_BOTH : BENCH_FORWARD, (flp_mode)0, p->spec, count);
  return count[which] > 0;
}

/* The scores come first: random as they are, they stand for dz in the other two. */
flp_status bench_products_create(bench_products *p, int share, measure_clock *clock, const measure_options *choose) {
  if (!p->library) return FLP_OK;
  if (!p->data->slot[BENCH_BARE_WORKSPACE].data)
    FLP_TRY(bench_data_create(p->data, BENCH_BARE_WORKSPACE, BARE_WORKSPACE));
  FLP_TRY(make_scores(p, share));
  for (int i = 0; i < GEMM_PRODUCTS; i++) {
    if (!is_of_spec(p, (gemm_product)i)) continue;
    gemm_shape shape = gemm_shape_of((gemm_product)i, p->spec, p->n, p->vocab);
    FLP_TRY(gemm_create(p->library, &shape, BARE_WORKSPACE, &p->product[i]));
    set_operands(p, (gemm_product)i);
    FLP_TRY(gemm_choose(&p->product[i], clock, choose));
  }
  return FLP_OK;
}

void bench_products_clear(bench_products *p) {
  for (int i = 0; i < GEMM_PRODUCTS; i++) gemm_destroy(&p->product[i]);
  p->vocab = 0;
}

int bench_products_has(const bench_products *p, gemm_product which) {
  return p->library && is_of_spec(p, which);
}

measure_summary bench_products_scaled(const bench_products *p, measure_summary ms) {
  double scale = (double)p->spec->vocab / (double)p->vocab;
  return (measure_summary){ms.median * scale, ms.low * scale, ms.high * scale};
}

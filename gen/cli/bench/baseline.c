/* baseline.c: GEMM baselines over a benchmark's data, of the same shapes as a pass is made of. */
#include "gen/cli/bench/bench.h"

/* Workspace as NVIDIA advises for Hopper, twice over; memory that is left alone. */
enum { GEMM_WORKSPACE = 64 << 20, MEMORY_RESERVE = 128 << 20 };

static flp_status make_scores(bench_products *p, int share) {
  const flp_driver *driver = p->data->buffers.device->driver;
  size_t available = 0, total = 0;
  FLP_TRY(flp_driver_status(driver, driver->cuMemGetInfo_v2(&available, &total), "cuMemGetInfo"));
  size_t usable = available > MEMORY_RESERVE ? (available - MEMORY_RESERVE) / (size_t)share : 0;
  p->vocab = bench_scores_vocab(p->spec, p->n, usable);
  if (p->vocab == 0)
    return flp_fail(FLP_ERROR_MEMORY,
                    "--rows: the scores of %lld rows and 1024 columns for the GEMM baselines do not fit into the %zu "
                    "bytes of device memory that are free; fewer rows do, or none with --no-baseline",
                    (long long)p->n, available);
  size_t element = flp_dtype_bytes(p->spec->dtype);
  return cli_buffer_create(p->data->buffers.device, (size_t)p->n * (size_t)p->vocab * element, &p->data->scores);
}

/* An operand as products take it. */
static void *operand_of(const bench_products *p, flp_array_id id) {
  const cli_buffer *narrow = &p->data->narrow[id - FLP_ARRAY_hidden];
  return narrow->data ? narrow->data : p->data->buffers.at[id].buffer.data;
}

static void set_operands(bench_products *p, gemm_product which) {
  const call_buffer *at = p->data->buffers.at;
  void *hidden = operand_of(p, FLP_ARRAY_hidden), *weight = operand_of(p, FLP_ARRAY_weight),
       *scores = p->data->scores.data;
  void *const operands[GEMM_PRODUCTS][3] = {
      [GEMM_SCORES] = {hidden, weight, scores},
      [GEMM_GRAD_HIDDEN] = {scores, weight, at[FLP_ARRAY_grad_hidden].buffer.data},
      [GEMM_GRAD_WEIGHT] = {scores, hidden, at[FLP_ARRAY_grad_weight].buffer.data}};
  gemm *product = &p->product[which];
  product->a = operands[which][0];
  product->b = operands[which][1];
  product->c = operands[which][2];
  product->workspace = p->data->workspace.data;
  product->workspace_bytes = p->data->workspace.bytes;
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
  if (!p->data->workspace.data)
    FLP_TRY(cli_buffer_create(p->data->buffers.device, GEMM_WORKSPACE, &p->data->workspace));
  FLP_TRY(bench_data_narrow(p->data, FLP_ARRAY_hidden));
  FLP_TRY(bench_data_narrow(p->data, FLP_ARRAY_weight));
  FLP_TRY(make_scores(p, share));
  for (int i = 0; i < GEMM_PRODUCTS; i++) {
    if (!is_of_spec(p, (gemm_product)i)) continue;
    gemm_shape shape = gemm_shape_of((gemm_product)i, p->spec, p->n, p->vocab);
    FLP_TRY(gemm_create(p->library, &shape, GEMM_WORKSPACE, &p->product[i]));
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

/* test_model.c: the cost model, held to what was measured: autotune/bench/tune_forward_4096.json. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autotune/model.h"
#include "autotune/space.h"
#include "runtime/api/validate.h"

enum { ROWS_MOST = 2000 };

static const flp_device h200 = {
    .name = "H200", .major = 9, .multiprocessors = 132, .l2_bytes = 50 << 20, .clock_khz = 1980000},
                        a100 = {.name = "A100",
                                .major = 8,
                                .multiprocessors = 108,
                                .l2_bytes = 40 << 20,
                                .clock_khz = 1410000,
                                .memory_clock_khz = 1215000,
                                .memory_bus_bits = 5120};

static flp_spec spec_of(int64_t vocab, int64_t hidden, uint32_t grads) {
  flp_spec spec = FLP_SPEC_INIT, resolved;
  spec.vocab = vocab;
  spec.hidden = hidden;
  spec.dtype = FLP_DTYPE_BF16;
  spec.grads = grads;
  spec.keep = grads != 0;
  cr_assert_eq(flp_spec_resolve(&spec, &resolved), FLP_OK);
  return resolved;
}

static const struct {
  const char *arch;
  flp_kernel_kind kind;
  const flp_device *device;
} kernels[] = {{"sm_90a", FLP_KERNEL_FORWARD, &h200},    {"sm_90a", FLP_KERNEL_DZ, &h200},
               {"sm_90a", FLP_KERNEL_PRODUCTS, &h200},   {"sm_90a", FLP_FORWARD(KEEP), &h200},
               {"sm_80", FLP_KERNEL_FORWARD, &a100},     {"sm_80", FLP_KERNEL_DZ, &a100},
               {"sm_80", FLP_KERNEL_GRAD_HIDDEN, &a100}, {"sm_80", FLP_KERNEL_GRAD_WEIGHT, &a100},
               {"sm_80", FLP_FORWARD(KEEP), &a100}};

static flp_tunables own_of(const char *arch, flp_kernel_kind kind, const flp_spec *spec) {
  tile_space *space;
  cr_assert_eq(space_open(kind, spec, arch, &space), FLP_OK, "%s", flp_error_detail());
  flp_tunables defaults = space_default(space);
  space_close(space);
  return defaults;
}

static double forward_ms(const flp_spec *spec, int64_t n, const flp_tunables *tune) {
  return model_ms("sm_90a", FLP_KERNEL_FORWARD, spec, n, 0, &h200, tune);
}

typedef struct measured {
  double ms, ratio, predicted;
} measured;

static int read_record(measured out[ROWS_MOST]) {
  json_error_t error;
  json_t *record = json_load_file(FLP_TEST_TREE "/autotune/bench/tune_forward_4096.json", 0, &error), *row;
  cr_assert(record, "%s", error.text);
  flp_spec spec = spec_of(151936, 4096, 0);
  size_t i;
  json_array_foreach(json_object_get(record, "rows"), i, row) {
    char text[128];
    flp_tuning tuning;
    snprintf(text, sizeof text, "forward:%s", json_string_value(json_object_get(row, "tune")));
    cr_assert_eq(flp_tuning_parse("tune", text, &tuning), FLP_OK);
    cr_assert_lt(i, ROWS_MOST);
    out[i] = (measured){json_number_value(json_object_get(row, "ms")), json_number_value(json_object_get(row, "ratio")),
                        forward_ms(&spec, 8192, &tuning.of[FLP_KERNEL_FORWARD])};
  }
  json_decref(record);
  return (int)i;
}

static int by_prediction(const void *a, const void *b) {
  const measured *x = a, *y = b;
  return (x->predicted > y->predicted) - (x->predicted < y->predicted);
}

Test(model, ranks_what_was_measured) {
  static measured rows[ROWS_MOST];
  int count = read_record(rows), near = 0;
  double fastest = INFINITY, best = INFINITY, squares = 0;
  cr_assert_gt(count, 300);
  for (int i = 0; i < count; i++) fastest = fmin(fastest, rows[i].ratio);
  for (int i = 0; i < count; i++) {
    if (rows[i].ratio > 1.2 * fastest) continue;
    double off = rows[i].predicted / rows[i].ms - 1;
    squares += off * off;
    near++;
  }
  cr_expect_lt(sqrt(squares / near), 0.06, "off by %g", sqrt(squares / near));
  qsort(rows, (size_t)count, sizeof *rows, by_prediction);
  for (int i = 0; i < 16; i++) best = fmin(best, rows[i].ratio);
  cr_expect_lt(best, 1.015 * fastest, "the best of the first 16 is at %g", best / fastest);
}

/* The least time that is predicted for what the templates build, and that of their default. */
static double least_of(const char *arch, flp_kernel_kind kind, const flp_spec *spec, int64_t n,
                       const flp_device *device, double *own) {
  tile_space *space;
  space_points points;
  cr_assert_eq(space_open(kind, spec, arch, &space), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(space_list(space, &points), FLP_OK);
  flp_tunables defaults = space_default(space);
  double least = *own = model_ms(arch, kind, spec, n, 0, device, &defaults);
  for (int i = 0; i < points.count; i++)
    if (points.items[i].legal) least = fmin(least, model_ms(arch, kind, spec, n, 0, device, &points.items[i].tune));
  space_clear(&points);
  space_close(space);
  return least;
}

/* So kernels that are precompiled for a GPU that is not here have the model's tile configuration. */
Test(model, the_templates_default_is_its_first_or_nearly_so) {
  static const int64_t shapes[][2] = {{151936, 1024}, {151936, 4096}, {128256, 8192}, {32000, 4096}, {262144, 1152}};
  static const int64_t rows[] = {256, 1024, 8192, 65536};
  double own_ms;
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
      flp_spec spec = spec_of(shapes[s][0], shapes[s][1], FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT);
      double least = least_of("sm_90a", FLP_KERNEL_FORWARD, &spec, rows[r], &h200, &own_ms);
      cr_expect_leq(own_ms, (rows[r] < 8192 ? 1.25 : 1.04) * least, "V=%d D=%d N=%d: %g ms of %g", (int)shapes[s][0],
                    (int)shapes[s][1], (int)rows[r], own_ms, least);
      for (size_t k = 4; k < sizeof kernels / sizeof *kernels && rows[r] >= 8192; k++) {
        least = least_of("sm_80", kernels[k].kind, &spec, rows[r], &a100, &own_ms);
        cr_expect_leq(own_ms, 1.2 * least, "%s V=%d D=%d N=%d: %g ms of %g", flp_kernel_kind_name(kernels[k].kind),
                      (int)shapes[s][0], (int)shapes[s][1], (int)rows[r], own_ms, least);
      }
    }
}

Test(model, times_grow_with_the_work) {
  flp_spec spec = spec_of(151936, 4096, FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT),
           frozen = spec_of(151936, 4096, FLP_GRAD_HIDDEN);
  for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
    flp_kernel_kind kind = kernels[k].kind;
    const char *arch = kernels[k].arch;
    flp_tunables defaults = own_of(arch, kind, &spec);
    double once = model_ms(arch, kind, &spec, 8192, 50688, kernels[k].device, &defaults),
           twice = model_ms(arch, kind, &spec, 16384, 50688, kernels[k].device, &defaults);
    cr_expect(once > 0 && twice > 1.7 * once && twice < 2.3 * once, "%s: %g, %g", flp_kernel_kind_name(kind), once,
              twice);
  }
  flp_tunables defaults = own_of("sm_90a", FLP_KERNEL_PRODUCTS, &spec);
  cr_expect_lt(model_ms("sm_90a", FLP_KERNEL_PRODUCTS, &frozen, 8192, 50688, &h200, &defaults),
               0.6 * model_ms("sm_90a", FLP_KERNEL_PRODUCTS, &spec, 8192, 50688, &h200, &defaults));
}

/* mma.sync makes half of A100's operations a clock on sm_89, where two CTAs of four warps find no room beside each
 * other; one leaves the tensor cores waiting, a tile of eight warps does not. */
Test(model, portable_kernels_are_as_fast_as_the_gpu_makes_them) {
  flp_spec spec = spec_of(151936, 4096, FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT);
  flp_device ada = a100;
  ada.minor = 9;
  const flp_tunables large = own_of("sm_80", FLP_KERNEL_DZ, &spec),
                     small = {FLP_SCHEDULE_COOPERATIVE, 128, 128, 4, 1, 16};
  double ms[2][2];
  for (int i = 0; i < 2; i++) {
    const flp_device *device = i ? &ada : &a100;
    ms[i][0] = model_ms("sm_80", FLP_KERNEL_DZ, &spec, 8192, 0, device, &large);
    ms[i][1] = model_ms("sm_80", FLP_KERNEL_DZ, &spec, 8192, 0, device, &small);
  }
  cr_expect_float_eq(ms[1][0], 2 * ms[0][0], 1e-6 * ms[1][0], "%g, %g", ms[0][0], ms[1][0]);
  cr_expect(ms[0][1] < 1.1 * ms[0][0] && ms[1][1] > 1.2 * ms[1][0], "%g %g, %g %g", ms[0][0], ms[0][1], ms[1][0],
            ms[1][1]);
  cr_expect_gt(model_ms("sm_80", FLP_KERNEL_DZ, &spec, 8192, 0, &h200, &large),
               model_ms("sm_90a", FLP_KERNEL_DZ, &spec, 8192, 0, &h200, &large));
}

/* 2 bytes a score, at the rate of the device where it is known: 2.5 GB at 4.8 TB/s here. */
Test(model, keeping_costs_what_it_stores_beside_forward) {
  flp_spec spec = spec_of(151936, 4096, FLP_GRAD_HIDDEN);
  flp_device slow = h200;
  slow.memory_clock_khz = 1000000; /* 2 TB/s */
  slow.memory_bus_bits = 8000;
  const flp_tunables tilings[] = {own_of("sm_90a", FLP_FORWARD(KEEP), &spec),
                                  {FLP_SCHEDULE_COOPERATIVE, 128, 128, 4, 1, 16}};
  for (int i = 0; i < 2; i++) {
    double defaults = forward_ms(&spec, 8192, &tilings[i]);
    double keep = model_ms("sm_90a", FLP_FORWARD(KEEP), &spec, 8192, 0, &h200, &tilings[i]);
    cr_expect_float_eq(keep - defaults, 1e3 * 2 * 8192 * 151936.0 / 4.8e12, 1e-6, "%g, %g", defaults, keep);
    cr_expect_float_eq(model_ms("sm_90a", FLP_FORWARD(KEEP), &spec, 8192, 0, &slow, &tilings[i]) - defaults,
                       1e3 * 2 * 8192 * 151936.0 / 2e12, 1e-6);
  }
}

/* test_launch_sums.c: the backward pass makes the launches that its layout names, for every mask of gradients, chunking
 * and budget; golden traces have what they are given, and flpgen check what comes of it. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "tests/unit/support/launch_case.h"
#include "tests/unit/support/rows.h"

/* Returns the mode. */
static flp_mode run(int64_t n, uint64_t budget) {
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, n, budget, &layout), FLP_OK, "%s", flp_error_detail());
  flp_args a = stage_args(&spec, FLP_PASS_BACKWARD, n);
  a.workspace_bytes = layout.bytes;
  stage_execute(&s, plan, &a);
  cr_expect_eq((int)s.launch_count(), layout.launches);
  return layout.mode;
}

static void open_mask(uint32_t grads, const char *words, const char *options, const char *device) {
  static const char *const masks[] = {"",          "hidden",           "weight",           "hidden,weight",
                                      "bias bias", "hidden,bias bias", "weight,bias bias", "hidden,weight,bias bias"};
  char text[128];
  flp_options wanted = words_options(options);
  snprintf(text, sizeof text, "%s grads=%s", words, masks[grads]);
  s.script(device);
  use_plan(text, &wanted);
}

/* Chunk sizes that force each mode, with ragged last chunks. */
static const char *const forced[] = {"", "chunk_vocab=300", "chunk_rows=130", "chunk_rows=256", "chunk_vocab=1000",
                                     "chunk_rows=400", "chunk_rows=100 chunk_vocab=7"};

static const char *const words[] = {"dtype=bf16", "dtype=fp16 grad-weight-dtype=fp32 grad-bias-dtype=fp32",
                                    "dtype=fp32",
                                    "grad-weight-dtype=fp32 grad-bias-dtype=fp32 accumulate-grad-weight"};

TestSuite(launch_sums, .fini = close_plan);

ParameterizedTestParameters(launch_sums, every_mask_and_chunking) {
  return rows_numbered(sizeof words / sizeof words[0]);
}

ParameterizedTest(const int *at, launch_sums, every_mask_and_chunking) {
  stage_open(&s, "");
  for (uint32_t grads = 1; grads < 8; grads++)
    for (int i = 0; i < 14; i++) {
      open_mask(grads, words[*at], forced[i / 2], i % 2 ? "capability=9.0" : "");
      run(333, 0);
      run(1, 0);
    }
}

/* The planner's own choices under every budget, split mode among them. */
Test(launch_sums, under_budgets) {
  int modes[8] = {0};
  stage_open(&s, "");
  for (int i = 2; i < 16; i++) {
    open_mask((uint32_t)i / 2, "V=4000 D=512", "", i % 2 ? "capability=9.0;sms=4" : "sms=4");
    flp_layout layout = FLP_LAYOUT_INIT;
    cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, 1000, 1 << 30, &layout), FLP_OK);
    for (uint64_t budget = layout.smallest_bytes; budget < (64 << 20); budget += budget / 4) modes[run(1000, budget)]++;
  }
  cr_expect(modes[FLP_MODE_RECOMPUTE_VOCAB] && modes[FLP_MODE_RECOMPUTE_ROWS] && modes[FLP_MODE_RECOMPUTE_SPLIT]);
}

/* test_eager_layout.c: what passes of the eager rung take of memory, in which modes, and budgets that are too small. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/support/eager_case.h"
#include "tests/unit/support/words.h"

static flp_status try_layout(const flp_spec *spec, flp_pass pass, int64_t n, uint64_t budget, flp_layout *out) {
  if (spec->listed) return flp_eager_layout_listed(spec, pass, n, 3 * n, budget, 2, out);
  return flp_eager_layout(spec, pass, n, budget, 2, out);
}

static flp_layout layout_of(const flp_spec *spec, flp_pass pass, int64_t n, uint64_t budget) {
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(try_layout(spec, pass, n, budget, &layout), FLP_OK, "%s", flp_error_detail());
  cr_assert_leq(layout.smallest_bytes, layout.bytes);
  cr_assert_leq(layout.bytes, budget);
  return layout;
}

Test(eager_layout, too_small_a_budget_names_the_smallest) {
  flp_spec spec = words_spec("V=5000 grads=hidden,weight");
  for (int i = 0; i < 6; i++) {
    flp_pass pass = (flp_pass)(FLP_PASS_FORWARD + i % 3);
    spec.listed = i >= 3;
    if (spec.listed && pass == FLP_PASS_COMBINE) continue;
    uint64_t least = layout_of(&spec, pass, 1000, UINT64_C(1) << 30).smallest_bytes;
    flp_layout layout = layout_of(&spec, pass, 1000, least);
    cr_assert_eq(layout.bytes, least);
    if (least == 0) continue;
    cr_assert_eq(try_layout(&spec, pass, 1000, least - 1, &layout), FLP_ERROR_BUDGET);
    char text[64];
    snprintf(text, sizeof text, "%llu bytes or more", (unsigned long long)least);
    cr_assert(strstr(flp_error_detail(), text), "%s", flp_error_detail());
  }
}

Test(eager_layout, a_plan_for_its_own_bytes_is_the_same_plan) {
  flp_spec spec = words_spec("V=5000 D=512 grads=hidden,weight");
  for (uint64_t budget = UINT64_C(1) << 21; budget < UINT64_C(1) << 30; budget += budget / 3) {
    flp_layout first = FLP_LAYOUT_INIT;
    if (flp_eager_layout(&spec, FLP_PASS_BACKWARD, 900, budget, 2, &first) != FLP_OK) continue;
    flp_layout second = layout_of(&spec, FLP_PASS_BACKWARD, 900, first.bytes);
    cr_assert_leq(first.bytes, budget);
    cr_assert_eq(memcmp(&first, &second, sizeof first), 0);
  }
}

/* The two modes between which bits are compared in test_eager_cases.c. */
Test(eager_layout, a_large_budget_sweeps_columns_and_a_small_one_rows_and_columns) {
  flp_spec specs[] = {words_spec("V=700 D=520 grads=hidden,weight,bias bias"),
                      words_spec("V=300 D=40 lora=24 grads=hidden,lora_a,lora_b")};
  for (int i = 0; i < 2; i++) {
    flp_layout large = layout_of(&specs[i], FLP_PASS_BACKWARD, 150, UINT64_C(1) << 30);
    flp_layout small = layout_of(&specs[i], FLP_PASS_BACKWARD, 150, large.smallest_bytes);
    cr_expect_eq(large.mode, FLP_MODE_RECOMPUTE_VOCAB);
    cr_expect_eq(small.mode, FLP_MODE_RECOMPUTE_SPLIT);
    if (i == 0) cr_expect_eq(small.products, 4);
  }
}

/* Raw scores of the targets of one panel are all that several targets add. */
Test(eager_layout, memory_grows_by_targets_of_a_panel_never_by_columns) {
  flp_spec one = words_spec("V=300 D=24 grads=hidden,weight"), many = one;
  const flp_pass passes[] = {FLP_PASS_FORWARD, FLP_PASS_BACKWARD, FLP_PASS_COMBINE};
  for (int i = 0; i < 3; i++) {
    uint64_t usual = layout_of(&one, passes[i], 4096, 1 << 28).bytes;
    many.targets = 1;
    cr_expect_eq(layout_of(&many, passes[i], 4096, 1 << 28).bytes, usual);
    many.targets = FLP_TARGETS_MAX;
    uint64_t more = passes[i] == FLP_PASS_FORWARD ? 512 * sizeof(double) * (FLP_TARGETS_MAX - 1) : 0;
    cr_expect_eq(layout_of(&many, passes[i], 4096, 1 << 28).bytes, usual + more, "pass %d", (int)passes[i]);
  }
}

Test(eager_layout, memory_grows_by_12_bytes_a_listed_id_forward_and_24_backward) {
  static const struct {
    flp_pass pass;
    uint32_t grads;
    uint64_t bytes;
    double products;
  } rows[] = {{FLP_PASS_FORWARD, HEAD, 12, 2},
              {FLP_PASS_BACKWARD, HEAD, 24, 6},
              {FLP_PASS_BACKWARD, FLP_GRAD_HIDDEN, 12, 4}};
  const int64_t few = 6400, many = 640000;
  for (int i = 0; i < 3; i++) {
    flp_spec spec = words_spec("V=5000");
    spec.grads = rows[i].grads;
    flp_layout a = FLP_LAYOUT_INIT, b = FLP_LAYOUT_INIT;
    spec.listed = 1;
    cr_assert_eq(flp_eager_layout_listed(&spec, rows[i].pass, 1000, few, UINT64_MAX, 2, &a), FLP_OK);
    cr_assert_eq(flp_eager_layout_listed(&spec, rows[i].pass, 1000, many, UINT64_MAX, 2, &b), FLP_OK);
    cr_expect_eq(b.bytes - a.bytes, rows[i].bytes * (uint64_t)(many - few));
    cr_expect(b.mode == FLP_MODE_LISTED && b.products == 0 && b.chunks == 1 && b.smallest_bytes == b.bytes);
    cr_expect_eq(b.flops, rows[i].products * 64 * (double)many);
  }
}

Test(eager_layout, too_small_a_workspace_is_refused) {
  for (int listed = 0; listed < 2; listed++) {
    flp_spec spec = words_spec("V=50 D=8 grads=hidden,weight");
    eager_case c;
    spec.listed = listed;
    eager_case_create_listed(&c, &spec, 3, 9, 39);
    flp_args args = c.args;
    _Alignas(256) char workspace[1024];
    args.workspace = workspace;
    args.workspace_bytes = listed ? 64 : sizeof workspace;
    args.logprob = c.logprob;
    args.vocab_valid = args.vocab_total = 50;
    uint64_t bad = 0;
    cr_assert_eq(flp_eager_execute(&c.spec, &args, 1, &bad), FLP_ERROR_WORKSPACE);
    eager_case_destroy(&c);
  }
}

/* test_planner.c: what holds for the layouts of every mode: arrays are disjoint, a larger budget is never dearer, a
 * query and the execute after it agree, and the smallest budget is named and exact. Exact layouts are in
 * tests/golden/planner. */
#include <stdio.h>
#include <string.h>

#include "runtime/base/util.h"
#include "tests/unit/support/planner_case.h"

#define FORWARD FLP_PASS_FORWARD
#define BACKWARD FLP_PASS_BACKWARD
#define STEP FLP_PASS_STEP
#define SAVED FLP_PASS_FORWARD_SAVED, FLP_PASS_BACKWARD_SAVED

/* Specs of all modes and features, and their passes. */
static const struct {
  const char *spec;
  flp_pass passes[4];
} rows[] = {
    {"V=151936 D=4096 grads=hidden,weight", {FORWARD, FLP_PASS_COMBINE, BACKWARD}},
    {"V=151936 D=4096 grads=hidden", {BACKWARD}},
    {"dtype=fp16 V=151936 D=1024 grads=hidden,weight,bias bias", {BACKWARD}},
    {"dtype=fp32 V=128256 D=2048 grads=hidden,weight,bias bias", {FORWARD, BACKWARD}},
    {"V=32000 D=4096 grads=weight", {BACKWARD}},
    {"V=50257 D=768 grads=bias bias", {BACKWARD}},
    {"dtype=fp16 V=1000 D=64 grads=hidden,bias bias", {BACKWARD}},
    {"dtype=fp32 V=2 D=8 grads=hidden,weight,bias bias", {BACKWARD}},
    {"V=151936 D=4096 grads=weight,bias bias", {BACKWARD}},
    {"V=1000 D=64 grads=hidden,weight keep", {SAVED, BACKWARD}},
    {"V=50000 D=64 grads=hidden keep entropy=backward", {SAVED, BACKWARD}},
    {"V=50000 D=64 grads=hidden keep", {SAVED, BACKWARD}},
    {"V=151936 D=2048 grads=hidden keep loss=grpo+k3", {SAVED, STEP}},
    {"V=151936 D=2048 grads=hidden,weight loss=grpo+k3", {STEP}},
    {"V=32000 D=512 grads=hidden,weight,bias bias entropy=backward loss=grpo+entropy", {STEP}},
    {"V=32000 D=512 grads=hidden,weight grad-weight-dtype=fp32 loss=cross_entropy", {STEP}},
    {"V=32000 D=512 grads=hidden,weight,bias bias softcap=30 loss=cross_entropy", {STEP}},
    {"V=151936 D=1024 grads=hidden,weight,bias bias entropy=backward tail=2^-9", {SAVED, BACKWARD}},
    {"V=1000 D=64 grads=hidden tail=2^-9", {SAVED, BACKWARD}},
    {"V=151936 D=1024 grads=hidden,weight tail=2^-9 loss=grpo", {SAVED, STEP}},
    {"V=151936 D=4096 targets=64 grads=hidden,weight,bias bias", {FORWARD, FLP_PASS_COMBINE, BACKWARD}},
    {"V=151936 D=4096 targets=64 grads=hidden,weight loss=forward_kl", {STEP}},
    {"V=151936 D=4096 topk=20 rank", {FORWARD}},
    {"V=151936 D=4096 mixed=round weight=fp32 grads=hidden,weight", {FORWARD, BACKWARD}},
    {"V=151936 D=4096 mixed=split hidden=fp32 grads=hidden,weight", {FORWARD, BACKWARD}},
    {"V=32000 D=512 lora=16 grads=hidden,lora_a,lora_b", {FORWARD, BACKWARD}},
    {"V=151936 D=4096 listed", {FORWARD, FLP_PASS_COMBINE}},
    {"V=1000 listed grads=hidden", {BACKWARD}},
    {"V=1000 listed grads=weight", {BACKWARD}},
    {"V=151936 D=4096 listed grads=hidden,weight,bias bias", {FORWARD, BACKWARD}},
};

static const int64_t row_counts[] = {1, 2, 127, 129, 1000, 8192, 100003};

typedef void (*check_fn)(const flp_planner *p, flp_pass pass, int64_t n);

static void check_spec(const char *spec, const flp_pass *passes, check_fn check) {
  for (int mapped = 0; mapped < 2; mapped++) {
    flp_planner p = planner_of(mapped ? MAPPED : "", spec);
    for (int i = 0; i < 4 && passes[i]; i++)
      for (size_t j = 0; j < sizeof row_counts / sizeof row_counts[0]; j++) check(&p, passes[i], row_counts[j]);
  }
}

static void for_each(check_fn check) {
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check_spec(rows[i].spec, rows[i].passes, check);
}

/* ---- what a layout is ---- */

/* In split mode dz lies over column sums, which its row chunks do not use. */
static int may_overlap(const flp_scheme *s, int a, int b) {
  int is_pair = a == FLP_REGION_bias_part && b == FLP_REGION_dz;
  return s->mode == FLP_MODE_RECOMPUTE_SPLIT && is_pair;
}

/* Returns the bytes of all arrays. */
static uint64_t expect_disjoint(const flp_scheme *s) {
  uint64_t all = 0;
  for (int a = 0; a < FLP_REGION_ID_COUNT; a++) {
    if (!s->size[a]) continue;
    cr_expect_eq(s->offset[a] % 256, 0);
    cr_expect_leq(s->offset[a] + s->size[a], s->bytes);
    all += flp_round_up_u64(s->size[a], 256);
    for (int b = 0; b < a; b++) {
      if (!s->size[b] || may_overlap(s, a, b)) continue;
      cr_expect(s->offset[a] >= s->offset[b] + s->size[b] || s->offset[b] >= s->offset[a] + s->size[a],
                "regions %d and %d overlap", a, b);
    }
  }
  return all;
}

/* Chunks of columns begin with a unit of forward_keep; they fit the buffer of exponentials, as does what is redone. */
static void expect_direction(const flp_planner *p, const flp_scheme *s) {
  int64_t vocab = p->spec.vocab, block = flp_min(s->chunk_rows, FLP_KEPT_BLOCK_ROWS);
  int64_t redone = flp_planner_redo_columns(p, s->chunk_rows, s->chunk_vocab);
  cr_expect(s->chunk_vocab == vocab || s->chunk_vocab % p->unit_columns == 0);
  cr_expect_eq(s->size[FLP_REGION_dz], (uint64_t)(s->chunk_rows * flp_planner_dz_stride(s->chunk_vocab)) * 2);
  cr_expect_leq((uint64_t)(block * flp_planner_dz_stride(redone)) * 2, s->size[FLP_REGION_dz]);
  cr_expect(redone == vocab || (redone >= s->chunk_vocab && redone % 64 == 0));
  cr_expect_eq(s->size[FLP_REGION_redo], (uint64_t)flp_ceil_div(s->chunk_rows, FLP_KEPT_BLOCK_ROWS) * 4);
}

/* Behind arrays of lists and of chosen rows stand the sorted lists, and a whole layout of rows that are recomputed. */
static void expect_tail(const flp_planner *p, int64_t n, const flp_scheme *s) {
  flp_scheme dense;
  cr_assert_eq(flp_planner_pick_dense(p, n, s->bytes - s->passes, &dense), FLP_OK);
  uint64_t lists = s->offset[FLP_REGION_tail_score] + flp_round_up_u64(s->size[FLP_REGION_tail_score], 256);
  cr_expect_eq(s->bytes, flp_max_u64(s->passes + dense.bytes, lists));
  cr_expect_eq(s->offset[FLP_REGION_tail_floor], s->passes);
  cr_expect(dense.chunk_rows == s->chunk_rows && dense.chunk_vocab == s->chunk_vocab && dense.chunks == s->chunks);
  for (int r = 0; r < FLP_REGION_ID_COUNT; r++)
    if (s->size[r] && s->offset[r] < s->passes) cr_expect_leq(s->offset[r] + s->size[r], s->passes);
  cr_expect_eq(s->size[FLP_REGION_list_order] > 0, (p->spec.grads & (FLP_GRAD_WEIGHT | FLP_GRAD_BIAS)) != 0);
  cr_expect_eq(s->size[FLP_REGION_tail_entropy] > 0, p->spec.entropy == FLP_ENTROPY_BACKWARD);
}

static void expect_slices(const flp_planner *p, const flp_scheme *s) {
  int terms = p->spec.mixed == FLP_MIXED_SPLIT ? 2 : 1;
  cr_expect(s->slice == p->spec.vocab || s->slice == s->chunk_vocab || s->slice % p->unit_columns == 0);
  cr_expect_eq(s->size[FLP_REGION_operand_weight],
               (uint64_t)(s->slice * p->spec.hidden) * 2 * (uint64_t)terms * (s->ahead ? 2 : 1));
  cr_expect(p->is_mapped || !s->ahead);
}

/* One product makes scores, each gradient takes another, and dz is made twice in split mode. */
static void expect_products(const flp_planner *p, const flp_scheme *s) {
  int hidden = (p->spec.grads & FLP_GRAD_HIDDEN) != 0, weight = (p->spec.grads & FLP_GRAD_WEIGHT) != 0;
  int is_split = s->mode == FLP_MODE_RECOMPUTE_SPLIT;
  cr_expect(!is_split || (hidden && weight));
  cr_expect_eq(s->products, (p->spec.mixed == FLP_MIXED_SPLIT ? 2 : 1) + hidden + weight + is_split);
}

/* Operations on the entries of lists: a score, and each gradient once more. */
static void expect_listed(const flp_planner *p, flp_pass pass, int64_t n, const flp_scheme *s) {
  flp_layout layout;
  flp_planner_describe_listed(p, pass, s, n, ids_of(n), &layout);
  int products = pass == FORWARD ? 1 : 1 + (int)(p->spec.grads & 1) + (int)(p->spec.grads >> 1 & 1);
  cr_expect_eq(layout.flops, 2.0 * (double)ids_of(n) * (double)p->spec.hidden * products);
  cr_expect(layout.mode == FLP_MODE_LISTED && layout.products == 0 && layout.bytes == s->bytes);
  flp_scheme more, fewer, shorter;
  cr_assert_eq(flp_planner_pick_listed(p, pass, n, ids_of(n) + 4097, UINT64_MAX, &more), FLP_OK);
  cr_assert_eq(flp_planner_pick_listed(p, pass, n - (n > 1), ids_of(n), UINT64_MAX, &shorter), FLP_OK);
  cr_assert_eq(flp_planner_pick_listed(p, pass, n, 0, UINT64_MAX, &fewer), FLP_OK);
  cr_expect(more.bytes >= s->bytes && s->bytes >= fewer.bytes && s->bytes >= shorter.bytes);
  cr_expect(fewer.size[FLP_REGION_list_state] && fewer.size[FLP_REGION_list_column], "arrays of empty lists");
}

static void expect_sound(const flp_planner *p, flp_pass pass, int64_t n, const flp_scheme *s) {
  flp_layout layout;
  flp_planner_describe(p, s, n, &layout);
  cr_expect(layout.struct_bytes == sizeof layout && layout.bytes == s->bytes && layout.mode == s->mode);
  cr_expect(layout.smallest_bytes == s->smallest_bytes && layout.saved_bytes == s->saved_bytes);
  cr_expect(layout.chunk_rows == s->chunk_rows && layout.chunk_vocab == s->chunk_vocab);
  cr_expect(layout.chunks == s->chunks && layout.launches == s->launches && layout.products == s->products);
  cr_expect_eq(layout.flops, 2.0 * s->products * (double)n * (double)p->spec.vocab * (double)p->spec.hidden);
  cr_expect(s->chunk_rows >= 1 && s->chunk_rows <= n && s->chunk_vocab >= 1 && s->chunk_vocab <= p->spec.vocab);
  cr_expect(s->chunks >= 1 && s->launches > s->products && s->smallest_bytes <= s->bytes);
  int has_dz = pass == BACKWARD && s->mode != FLP_MODE_LISTED;
  cr_expect(!has_dz || flp_planner_grids_fit(p, s->chunk_rows, s->chunk_vocab));
  if (s->mode == FLP_MODE_RECOMPUTE_ROWS && pass == BACKWARD && !p->chunk_rows)
    cr_expect(s->chunk_rows == n || s->chunk_rows % p->dz_unit_rows == 0);
  if (pass == BACKWARD && s->mode <= FLP_MODE_RECOMPUTE_SPLIT) expect_products(p, s);
  if (pass == FLP_PASS_FORWARD_SAVED && s->mode == FLP_MODE_DIRECTION) expect_direction(p, s);
  if (pass == FLP_PASS_BACKWARD_SAVED && s->mode == FLP_MODE_TAIL) expect_tail(p, n, s);
  if (s->slice) expect_slices(p, s);
  if (s->mode == FLP_MODE_LISTED) expect_listed(p, pass, n, s);
  uint64_t arrays = expect_disjoint(s);
  int has_room = pass == BACKWARD && (p->spec.keep || p->spec.tail != 0); /* for what may have been kept */
  int is_alone = !has_room && !s->passes && s->mode != FLP_MODE_RECOMPUTE_SPLIT;
  if (is_alone) cr_expect_eq(arrays, s->bytes, "nothing else is there");
}

/* ---- budgets ---- */

/* Layouts of backward passes that leave room for what is kept, and steps that take tail mode wherever it fits, are not
 * the cheapest alone. */
static int is_cheapest(const flp_planner *p, flp_pass pass) {
  return (pass == BACKWARD || pass == STEP) && (p->spec.tail != 0 || (pass == BACKWARD && p->spec.keep)) ? 0 : 1;
}

static void check_budgets(const flp_planner *p, flp_pass pass, int64_t n) {
  double last = 1e300;
  int was_tail = 0;
  for (uint64_t budget = 4096; budget < 64 * GIB; budget += budget / 2) {
    flp_scheme s, again;
    flp_status status = try_pick(p, pass, n, budget, 1, &s);
    if (status == FLP_ERROR_BUDGET) cr_expect_gt(s.smallest_bytes + flp_planner_saved(p, n, UINT64_MAX), budget);
    if (status == FLP_ERROR_BUDGET) continue;
    cr_assert_eq(status, FLP_OK, "%s", flp_error_detail());
    cr_expect_leq(s.bytes + s.saved_bytes, budget);
    expect_sound(p, pass, n, &s);
    cr_assert_eq(try_pick(p, pass, n, s.bytes, 0, &again), FLP_OK);
    again.saved_bytes = s.saved_bytes; /* what a query alone tells */
    cr_expect_eq(memcmp(&s, &again, sizeof s), 0, "n %ld budget %lu: mode %d/%d", (long)n, (unsigned long)budget,
                 s.mode, again.mode);
    if (is_cheapest(p, pass)) cr_expect_leq(s.seconds, last);
    cr_expect(s.mode == FLP_MODE_TAIL || !was_tail, "a larger budget gave mode %d", (int)s.mode);
    was_tail = s.mode == FLP_MODE_TAIL;
    last = s.seconds;
  }
  cr_expect(last < 1e300 || flp_planner_saved(p, n, 64 * GIB) == 0);
}

Test(planner, layouts_are_sound_found_again_and_never_dearer_in_a_larger_budget) {
  for_each(check_budgets);
}

static void check_smallest(const flp_planner *p, flp_pass pass, int64_t n) {
  static const char *const names[] = {"", "forward", "combine", "backward", "step", "backward", "forward"};
  flp_scheme any = pick(p, pass, n, UINT64_MAX), s;
  cr_expect_eq(smallest(p, pass, n), any.smallest_bytes);
  cr_assert_eq(try_pick(p, pass, n, any.smallest_bytes, 0, &s), FLP_OK);
  cr_expect_eq(s.bytes, any.smallest_bytes);
  cr_assert_eq(try_pick(p, pass, n, any.smallest_bytes - 1, 0, &s), FLP_ERROR_BUDGET);
  char expected[256], lists[64] = "";
  if (any.mode == FLP_MODE_LISTED) snprintf(lists, sizeof lists, " that list %ld ids", (long)ids_of(n));
  snprintf(expected, sizeof expected,
           "budget: %lu bytes are too few for the %s pass over %ld rows%s; %lu bytes or more are accepted",
           (unsigned long)(any.smallest_bytes - 1), names[pass], (long)n, lists, (unsigned long)any.smallest_bytes);
  cr_expect_str_eq(flp_error_detail(), expected);
}

Test(planner, the_smallest_budget_is_named_and_exact) {
  for_each(check_smallest);
}

/* What is kept counts in a budget, beside the larger of the two workspaces. */
static void check_kept(const flp_planner *p, flp_pass pass, int64_t n) {
  if (pass != FLP_PASS_FORWARD_SAVED) return;
  uint64_t kept = flp_planner_saved_bytes(&p->spec, flp_planner_keeps(p), n);
  uint64_t forward = smallest(p, pass, n), backward = smallest(p, FLP_PASS_BACKWARD_SAVED, n);
  uint64_t least = kept + flp_max_u64(forward, backward);
  cr_expect_eq(flp_planner_saved(p, n, least), kept);
  cr_expect_eq(flp_planner_saved(p, n, least - 1), 0);
  cr_expect_eq(pick(p, pass, n, least).saved_bytes, kept);
  cr_expect_eq(pick(p, FLP_PASS_BACKWARD_SAVED, n, least).saved_bytes, kept);
  cr_expect_eq(flp_planner_saved(p, 0, GIB), 0);
  flp_planner pinned = *p;
  pinned.mode = FLP_MODE_RECOMPUTE_ROWS;
  cr_expect_eq(flp_planner_saved(&pinned, n, UINT64_MAX), 0);
  for (uint64_t budget = least; budget < 4 * least; budget += least / 3) {
    flp_scheme s; /* a backward pass has room for what was kept where the budget does */
    if (p->spec.loss || flp_planner_pick(p, BACKWARD, n, budget, 1, &s) != FLP_OK) continue;
    cr_expect_geq(s.bytes, backward);
  }
}

Test(planner, something_is_kept_where_either_pass_fits_beside_it) {
  for_each(check_kept);
}

/* ---- explicit modes and chunks ---- */

static void check_pinned(const flp_planner *p, flp_pass pass, int64_t n) {
  flp_planner pinned = *p;
  int can_split = (p->spec.grads & 3) == 3;
  if (pass != BACKWARD || p->spec.targets > 1 || p->spec.listed) return;
  for (pinned.mode = FLP_MODE_RECOMPUTE_VOCAB; pinned.mode <= FLP_MODE_RECOMPUTE_SPLIT - !can_split; pinned.mode++) {
    flp_scheme s;
    if (flp_planner_pick(&pinned, pass, n, 4 * GIB, 1, &s) != FLP_OK) continue;
    cr_expect_eq(s.mode, pinned.mode);
    expect_sound(&pinned, pass, n, &s);
  }
}

Test(planner, an_explicit_mode_is_kept) {
  for_each(check_pinned);
}

/* Chunks of any size, in any budget of a query; execute wants their bytes. */
static void check_chunks(const flp_planner *p, flp_pass pass, int64_t n) {
  flp_planner own = *p;
  uint32_t state = (uint32_t)n;
  if (pass <= FLP_PASS_COMBINE || pass == FLP_PASS_BACKWARD_SAVED || p->spec.listed) return;
  for (int round = 0; round < 12; round++) {
    uint32_t r = (state = state * 1664525u + 1013904223u) >> 8;
    own.chunk_rows = round % 3 ? 1 + r % 9000 : 0;
    own.chunk_vocab = round % 3 != 1 ? 1 + r % 90000 : 0;
    flp_scheme s, again;
    if (flp_planner_pick(&own, pass, n, 1, 1, &s) != FLP_OK) continue;
    expect_sound(&own, pass, n, &s);
    cr_assert_eq(flp_planner_pick(&own, pass, n, s.bytes, 0, &again), FLP_OK);
    again.saved_bytes = s.saved_bytes;
    cr_expect_eq(memcmp(&s, &again, sizeof s), 0);
    cr_expect_eq(flp_planner_pick(&own, pass, n, s.smallest_bytes - 1, 0, &again), FLP_ERROR_BUDGET);
  }
}

Test(planner, explicit_chunks_override_the_budget_of_a_query_only) {
  for_each(check_chunks);
}

/* ---- any shape ---- */

Test(planner, properties_hold_for_random_shapes) {
  uint32_t state = 11;
  for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++)
    for (int round = 0; round < 4; round++) {
      uint32_t r[3];
      for (int i = 0; i < 3; i++) r[i] = (state = state * 1664525u + 1013904223u) >> 8;
      static flp_planner p;
      if (round % 2 == 0) p = planner_of(round ? MAPPED : "", rows[row].spec);
      p.spec.vocab = 128 + r[0] % 300000;
      p.spec.hidden = 8 * (1 + r[1] % 512);
      for (int i = 0; i < 4 && rows[row].passes[i]; i++) check_budgets(&p, rows[row].passes[i], 1 + r[2] % 100000);
    }
}

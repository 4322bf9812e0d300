/* targets.c: what K targets a row (spec.targets) add to the layouts of forward, combine and backward in recompute mode:
 * the rows' sorted lists, and what stands by row and target. Chunks are as without; the lists are those of all rows. */
#include <stdint.h>

#include "runtime/base/util.h"
#include "runtime/planner/internal.h"

_Static_assert((int)FLP_TARGET_PLACES == (int)FLP_TARGETS_MAX, "a row's targets fit the kernel that sorts them");
_Static_assert(FLP_TARGET_COLUMNS *FLP_TARGET_BITS % FLP_LEAF_COLUMNS == 0, "no tile of a leaf is in two words");

int flp_planner_has_targets(const flp_spec *spec) {
  return spec->targets > 1;
}

int64_t flp_planner_targets_rows_max(const flp_spec *spec) {
  return flp_planner_has_targets(spec) ? (INT32_MAX - FLP_LIST_BLOCK) / spec->targets : INT32_MAX;
}

int64_t flp_planner_target_words(int64_t vocab) {
  return flp_ceil_div(vocab, (int64_t)FLP_TARGET_COLUMNS * FLP_TARGET_BITS);
}

void planner_put_target_row(const flp_planner *p, flp_scheme *s, int64_t n) {
  planner_put_region(s, FLP_REGION_target_row, n, flp_dtype_bytes(p->spec.target_dtype));
}

/* One is there already in a step that has both. */
static void put_lists(const flp_planner *p, flp_scheme *s, int64_t n) {
  if (s->size[FLP_REGION_target_row]) return;
  planner_put_target_row(p, s, n);
  planner_put_region(s, FLP_REGION_list_column, n * p->spec.targets, 4);
  planner_put_region(s, FLP_REGION_target_place, n * p->spec.targets, 2);
}

void planner_put_targets_forward(const flp_planner *p, flp_scheme *s, int64_t n) {
  if (!flp_planner_has_targets(&p->spec)) return;
  put_lists(p, s, n);
  planner_put_region(s, FLP_REGION_target_block, n * flp_planner_target_words(p->spec.vocab), 4);
  planner_put_region(s, FLP_REGION_target_score, n * p->spec.targets, 4);
  planner_put_region(s, FLP_REGION_target_sums, n, 16);
}

int64_t planner_targets_forward_launches(const flp_planner *p, int64_t chunks) {
  return flp_planner_has_targets(&p->spec) ? 2 + chunks : 0; /* targets_rows, targets_sort; targets_finish */
}

static int orders(const flp_planner *p) {
  return planner_wants(p->spec.grads, FLP_GRAD_BIAS);
}

void planner_put_targets_backward(const flp_planner *p, flp_scheme *s, int64_t n) {
  int64_t entries = n * p->spec.targets;
  if (!flp_planner_has_targets(&p->spec)) return;
  put_lists(p, s, n);
  PLANNER_PUT_EACH(s, n, 4, FLP_REGION_target_weight, FLP_REGION_target_gradient);
  PLANNER_PUT_EACH(s, n, 8, FLP_REGION_target_exact, FLP_REGION_target_offsets);
  planner_put_region(s, FLP_REGION_list_length, n, 4);
  if (!s->size[FLP_REGION_target_score]) {
    planner_put_region(s, FLP_REGION_list_target, n, 4);
    planner_put_region(s, FLP_REGION_list_score, entries, 4);
    planner_put_region(s, FLP_REGION_zy, n, 4); /* list_scores names it */
  }
  if (!orders(p)) return;
  int32_t launches = s->launches; /* planner_targets_backward_launches has those that are made */
  planner_put_region(s, FLP_REGION_target_total, 1, 4);
  planner_put_region(s, FLP_REGION_list_dz, entries, 4);
  planner_put_orders(p, s, entries);
  s->launches = launches;
}

/* Of a stream: nothing scores lists or sorts them again, and each chunk sums up the gradients of its loss. */
int64_t planner_targets_step_launches(const flp_planner *p, int64_t chunks) {
  if (!flp_planner_has_targets(&p->spec)) return 0;
  return 2 * chunks + planner_targets_backward_launches(p, chunks, 2 * chunks) - 1;
}

int64_t planner_targets_backward_launches(const flp_planner *p, int64_t chunks, int64_t bias_chunks) {
  int64_t launches = 3 + chunks; /* targets_rows, targets_sort, list_scores; targets_patch */
  if (!flp_planner_has_targets(&p->spec)) return 0;
  if (!orders(p)) return launches;
  /* list_digits, list_scan, list_place; list_starts; targets_bias; of saved exponentials targets_strike */
  return launches + 3 * flp_planner_list_passes(p->spec.vocab) + 1 + bias_chunks;
}

/* orders.c: entries of lists brought into the order of columns (abi.h, module listed_weight): digits, grids and arrays,
 * of listed columns and of tail mode. */
#include "runtime/base/util.h"
#include "runtime/planner/internal.h"

/* CTAs of list_weight_wide a multiprocessor, which holds 2 or 3 at once: the others come where one is done, as columns
 * differ in length. */
#define WIDE_CTAS 16

int flp_planner_list_passes(int64_t vocab) {
  int passes = 1;
  while (vocab >> (passes * FLP_LIST_DIGIT_BITS)) passes++;
  return passes;
}

int64_t flp_planner_list_blocks(int64_t list_count) {
  return flp_ceil_div(list_count, FLP_LIST_BLOCK);
}

int64_t flp_planner_list_wide(const flp_planner *p, int64_t list_count) {
  int64_t pairs = flp_ceil_div(list_count, FLP_LIST_WIDE) * flp_ceil_div(p->spec.hidden, FLP_LIST_SLICE);
  return flp_min(pairs, (int64_t)p->multiprocessors * WIDE_CTAS);
}

int flp_planner_orders_lists(const flp_spec *spec, int64_t list_count) {
  return planner_wants(spec->grads, FLP_GRAD_WEIGHT | FLP_GRAD_BIAS | FLP_GRAD_LORA_B) && list_count > 0;
}

void planner_put_orders(const flp_planner *p, flp_scheme *s, int64_t list_count) {
  int passes = flp_planner_list_passes(p->spec.vocab);
  PLANNER_PUT_EACH(s, list_count, 4, FLP_REGION_list_row, FLP_REGION_list_order);
  if (passes > 1) planner_put_region(s, FLP_REGION_list_other, list_count, 4);
  planner_put_region(s, FLP_REGION_list_digit, FLP_LIST_DIGITS * flp_planner_list_blocks(list_count), 4);
  planner_put_region(s, FLP_REGION_list_start, p->spec.vocab + 1, 4);
  s->launches += 3 * passes + 3; /* list_digits, list_scan, list_place; list_starts, list_weight, list_weight_wide */
}

/* listed.c: layouts of listed columns: one of the forward pass and one of the backward pass, as nothing is cut into
 * chunks.
 *
 * An array over entries holds one at least, so that a layout of empty lists has every array that its launches name. The
 * backward pass of a frozen head brings no entries into the order of columns, nor does one whose lists are all empty:
 * the gradients of the head are zeros then. */
#include <inttypes.h>
#include <string.h>

#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/planner/internal.h"

/* ---- layouts ---- */

static void put_entries(flp_scheme *s, flp_region region, int64_t list_count) {
  planner_put_region(s, region, flp_max(list_count, 1), 4);
}

/* The lists sorted, and their scores. */
static void put_lists(const flp_planner *p, flp_scheme *s, int64_t n, int64_t list_count) {
  planner_put_rows(s, n);
  planner_put_operands(p, s, n);
  planner_put_lora(p, s, n);
  planner_put_region(s, FLP_REGION_list_state, 1, 4);
  PLANNER_PUT_EACH(s, n, 4, FLP_REGION_list_length, FLP_REGION_list_target);
  put_entries(s, FLP_REGION_list_column, list_count);
  put_entries(s, FLP_REGION_list_score, list_count);
  planner_put_region(s, FLP_REGION_zy, n, 4); /* written with the scores */
}

static void build_forward(const flp_planner *p, int64_t n, int64_t list_count, flp_scheme *s) {
  put_lists(p, s, n, list_count);
  planner_put_part(p, s, n, n);
  planner_put_top(p, s, n, n);
  s->launches = 6 + (p->spec.lora_rank != 0); /* prepare, list_check, list_sort, list_scores, list_reduce, combine */
  if (flp_planner_has_top(&p->spec)) s->launches += 4; /* top_begin, top_listed, top_finish, top_others */
  if (p->spec.statistics) s->launches += 2;          /* statistics_list, statistics */
}

static void build_backward(const flp_planner *p, int64_t n, int64_t list_count, flp_scheme *s) {
  put_lists(p, s, n, list_count);
  planner_put_region(s, FLP_REGION_record, n, 16);
  planner_put_region(s, FLP_REGION_bound, n, 4);
  put_entries(s, FLP_REGION_list_dz, list_count);
  /* prepare, record, list_check, list_sort, list_scores, list_dz; list_hidden, fill */
  s->launches = 6 + 2 * planner_wants(p->spec.grads, FLP_GRAD_HIDDEN);
  if (flp_planner_orders_lists(&p->spec, list_count)) planner_put_orders(p, s, list_count);
  planner_put_lora_lists(p, s, n);
}

/* Forward, loss and backward one after the other, which share what the step's own arrays leave. */
static void build_step(const flp_planner *p, int64_t n, int64_t list_count, flp_scheme *s) {
  flp_scheme forward = {.bytes = 0}, backward = {.bytes = 0};
  build_forward(p, n, list_count, &forward);
  if (p->spec.grads) build_backward(p, n, list_count, &backward);
  planner_put_step_rows(p, s, n);
  s->passes = s->bytes;
  s->bytes += flp_max_u64(forward.bytes, backward.bytes);
  s->launches = forward.launches + backward.launches + 2; /* the loss of active rows, and of idle ones */
}

void flp_planner_describe_listed(const flp_planner *p, flp_pass pass, const flp_scheme *s, int64_t n,
                                 int64_t list_count, flp_layout *out) {
  int gradients = planner_wants(p->spec.grads, FLP_GRAD_HIDDEN) + planner_wants(p->spec.grads, FLP_GRAD_WEIGHT);
  flp_planner_describe(p, s, n, out);
  int sums = 1 + (pass == FLP_PASS_FORWARD ? 0 : gradients) + (pass == FLP_PASS_STEP && p->spec.grads);
  out->flops = 2.0 * (double)list_count * (double)p->spec.hidden * sums;
}

/* ---- the pick ---- */

static flp_status over_budget(flp_pass pass, int64_t n, int64_t list_count, uint64_t budget, uint64_t smallest) {
  return flp_fail(FLP_ERROR_BUDGET,
                  "budget: %" PRIu64 " bytes are too few for the %s pass over %" PRId64 " rows that list %" PRId64
                  " ids; %" PRIu64 " bytes or more are accepted",
                  budget, flp_pass_name(pass), n, list_count, smallest);
}

flp_status flp_planner_pick_listed(const flp_planner *p, flp_pass pass, int64_t n, int64_t list_count, uint64_t budget,
                                   flp_scheme *out) {
  memset(out, 0, sizeof *out);
  out->mode = FLP_MODE_LISTED;
  out->chunk_rows = n;
  out->chunk_vocab = p->spec.vocab;
  if (n == 0) return FLP_OK;
  out->chunks = 1;
  (pass == FLP_PASS_STEP       ? build_step
   : pass == FLP_PASS_BACKWARD ? build_backward
                               : build_forward)(p, n, list_count, out);
  out->smallest_bytes = out->bytes;
  return out->bytes <= budget ? FLP_OK : over_budget(pass, n, list_count, budget, out->bytes);
}

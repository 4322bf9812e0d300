/* lora.c: what a low-rank adapter (spec.lora_rank) adds to the layouts of forward and of backward in recompute mode. Chunks
 * are as without; u and G are of all rows, so that what follows from G is made once, behind all chunks. */
#include "runtime/planner/internal.h"

static int wants_sum(const flp_planner *p) {
  return planner_wants(p->spec.grads, FLP_GRAD_HIDDEN | FLP_GRAD_LORA_A);
}

void planner_put_lora(const flp_planner *p, flp_scheme *s, int64_t n) {
  if (p->spec.lora_rank)
    planner_put_region(s, FLP_REGION_lora_u, n * p->spec.lora_rank, flp_dtype_bytes(p->spec.dtype));
}

int planner_sums_hidden(const flp_planner *p) {
  return p->spec.lora_rank && planner_wants(p->spec.grads, FLP_GRAD_HIDDEN);
}

void planner_put_lora_sums(const flp_planner *p, flp_scheme *s, int64_t n, int is_split_by_rows) {
  int64_t rank = p->spec.lora_rank;
  if (!rank) return;
  if (wants_sum(p)) {
    planner_put_region(s, FLP_REGION_lora_sum, n * rank, 4);
    planner_put_region(s, FLP_REGION_lora_gradient, n * rank, flp_dtype_bytes(p->spec.dtype));
  }
  if (is_split_by_rows && planner_wants(p->spec.grads, FLP_GRAD_LORA_B) && p->spec.grad_lora_dtype != FLP_DTYPE_FP32)
    planner_put_region(s, FLP_REGION_lora_b_acc, p->spec.vocab * rank, 4);
}

void planner_put_lora_kept(const flp_planner *p, flp_scheme *s, int64_t n, int64_t rows) {
  planner_put_lora(p, s, n);
  planner_put_lora_sums(p, s, n, rows < n);
  if (planner_sums_hidden(p)) planner_put_region(s, FLP_REGION_hidden_acc, n * p->spec.hidden, 4);
  if (planner_wants(p->spec.grads, FLP_GRAD_LORA_B))
    planner_put_region(s, FLP_REGION_lora_scaled, rows * p->spec.lora_rank, flp_dtype_bytes(p->spec.dtype));
}

void planner_put_lora_lists(const flp_planner *p, flp_scheme *s, int64_t n) {
  if (!p->spec.lora_rank) return;
  planner_put_lora_sums(p, s, n, 0);
  planner_put_pair(p, s, n);
  if (planner_sums_hidden(p)) planner_put_region(s, FLP_REGION_hidden_acc, n * p->spec.hidden, 4);
  s->launches += (int32_t)planner_lora_launches(p, 0);
  /* list_adapter of B; lora_bound, where it is not counted */
  if (wants_sum(p)) s->launches += p->spec.dtype == FLP_DTYPE_FP16 ? 1 : 2;
}

int64_t planner_lora_kept_launches(const flp_planner *p, int64_t chunks) {
  return planner_lora_launches(p, chunks) + (planner_wants(p->spec.grads, FLP_GRAD_LORA_B) ? chunks : 0);
}

int64_t planner_lora_launches(const flp_planner *p, int64_t chunks) {
  uint32_t grads = p->spec.grads;
  if (!p->spec.lora_rank) return 0;
  int sum = wants_sum(p), b = planner_wants(grads, FLP_GRAD_LORA_B);
  int64_t launches = 1 + chunks * (p->is_mapped ? sum | b : sum + b); /* lora_project; products with dz */
  if (!sum) return launches;
  /* lora_bound, dz_scale; lora_round; what follows */
  return launches + (p->spec.dtype == FLP_DTYPE_FP16 ? 2 : 0) + 1 + planner_wants(grads, FLP_GRAD_HIDDEN) +
         planner_wants(grads, FLP_GRAD_LORA_A);
}

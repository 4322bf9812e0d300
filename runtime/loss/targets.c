/* targets.c: programs over targets: which values are of a row, which of each target, and the value and derivatives of
 * one row (loss.h, "programs over targets"). */
#include <string.h>

#include "runtime/loss/loss.h"

static int is_target_input(const flp_loss_node *node) {
  return node->op == FLP_LOSS_INPUT && flp_loss_input_is_of_targets(node->operands[0]);
}

static uint8_t scope_of(const flp_loss *loss, uint32_t i, const uint8_t *before) {
  const flp_loss_node *node = &loss->nodes[i];
  uint8_t found = (uint8_t)is_target_input(node);
  if (node->op == FLP_LOSS_SUM) return 0;
  for (int j = 0; j < flp_loss_op_arity(node->op); j++) found |= before[node->operands[j]];
  return found;
}

int flp_loss_is_per_target(const flp_loss *loss, uint32_t node) {
  uint8_t per_target[FLP_LOSS_NODES_MAX];
  for (uint32_t i = 0; i <= node; i++) per_target[i] = scope_of(loss, i, per_target);
  return per_target[node];
}

static uint16_t leaf_bits(const flp_loss_node *node) {
  if (node->op != FLP_LOSS_INPUT) return 0;
  if (node->operands[0] == FLP_LOSS_TARGET_LOGPROB) return FLP_LOSS_BY_OWN;
  return node->operands[0] == FLP_LOSS_ENTROPY ? FLP_LOSS_BY_H : 0;
}

void flp_loss_plan_of(const flp_loss *loss, flp_loss_plan *out) {
  memset(out, 0, sizeof *out);
  for (uint32_t i = 0; i < loss->node_count; i++) {
    const flp_loss_node *node = &loss->nodes[i];
    int stops = node->op == FLP_LOSS_DETACH || flp_loss_gives_condition(node->op) || node->op == FLP_LOSS_SUM;
    out->per_target[i] = scope_of(loss, i, out->per_target);
    out->active[i] = leaf_bits(node);
    for (int j = 0; j < flp_loss_op_arity(node->op); j++) {
      uint16_t at = node->operands[j];
      uint8_t level = (uint8_t)(out->level[at] + (loss->nodes[at].op == FLP_LOSS_SUM));
      if (level > out->level[i]) out->level[i] = level;
      if (!stops) out->active[i] = (uint16_t)(out->active[i] | out->active[at]);
    }
    if (node->op != FLP_LOSS_SUM) continue;
    out->active[i] = (uint16_t)(FLP_LOSS_BY_SUM << out->sum_count);
    out->sums[out->sum_count++] = (uint16_t)i;
    if (out->level[i] + 1u > out->level_count) out->level_count = out->level[i] + 1u;
  }
}

/* ---- one row ---- */

/* Directions: own logprob, entropy, each sum. */
typedef struct evaluation {
  const flp_loss *loss;
  const flp_loss_plan *plan;
  const flp_loss_targets *targets;
  const double *inputs, *parameters;
  double values[FLP_LOSS_NODES_MAX];
  double tangents[FLP_LOSS_NODES_MAX][FLP_LOSS_DIRECTIONS];
  double of_sums[FLP_LOSS_SUMS_MAX][FLP_LOSS_DIRECTIONS]; /* of each sum, by what it is made of */
} evaluation;

static double input_of(const evaluation *e, uint32_t input, int64_t k) {
  if (input == FLP_LOSS_TARGET_LOGPROB && e->targets->exact) return e->targets->exact[k];
  if (input == FLP_LOSS_TARGET_LOGPROB) return (double)e->targets->logprob[k];
  if (input == FLP_LOSS_TEACHER_LOGPROB && e->targets->exact_teacher) return e->targets->exact_teacher[k];
  if (input == FLP_LOSS_TEACHER_LOGPROB) return (double)e->targets->teacher_logprob[k];
  return e->inputs[input];
}

static double detached_of(const evaluation *e, uint32_t i, int64_t k) {
  double *kept = &e->targets->detached[(int64_t)i * e->targets->count + k];
  if (!e->targets->exact) *kept = e->values[e->loss->nodes[i].operands[0]];
  return *kept;
}

static double value_of(const evaluation *e, uint32_t i, int64_t k) {
  const flp_loss_node *node = &e->loss->nodes[i];
  const uint16_t *at = node->operands;
  if (node->op == FLP_LOSS_DETACH && e->targets->detached) return detached_of(e, i, k);
  if (node->op == FLP_LOSS_CONSTANT) return e->loss->constants[at[0]];
  if (node->op == FLP_LOSS_INPUT) return input_of(e, at[0], k);
  if (node->op == FLP_LOSS_PARAMETER) return e->parameters[at[0]];
  return flp_loss_apply((flp_loss_op)node->op, e->values[at[0]], e->values[at[1]], e->values[at[2]]);
}

static double tangent_of(const evaluation *e, const flp_loss_node *node, const double partial[3], int direction) {
  double sum = 0;
  for (int j = 0; j < flp_loss_op_arity(node->op); j++) {
    uint16_t at = node->operands[j];
    if (!(e->plan->active[at] >> direction & 1) || (flp_loss_is_mask(node->op) && partial[j] == 0)) continue;
    sum += partial[j] * e->tangents[at][direction];
  }
  return sum;
}

static void compute(evaluation *e, uint32_t i, int64_t k) {
  const flp_loss_node *node = &e->loss->nodes[i];
  const uint16_t *at = node->operands;
  double partial[3], v[3] = {0, 0, 0};
  if (node->op == FLP_LOSS_SUM) return; /* known once its pass is over */
  e->values[i] = value_of(e, i, k);
  if (!e->plan->active[i]) return;
  for (int j = 0; j < flp_loss_op_arity(node->op); j++) v[j] = e->values[at[j]];
  flp_loss_partials(node->op, v, e->values[i], partial);
  for (int d = 0; d < FLP_LOSS_DIRECTIONS; d++)
    if (e->plan->active[i] >> d & 1) e->tangents[i][d] = node->op == FLP_LOSS_INPUT ? 1 : tangent_of(e, node, partial, d);
}

/* Values of the row, or of target k, whose sums are all of lower levels than `levels`. */
static void compute_all(evaluation *e, int per_target, int64_t k, uint32_t levels) {
  for (uint32_t i = 0; i < e->loss->node_count; i++)
    if (e->plan->per_target[i] == per_target && e->plan->level[i] <= levels) compute(e, i, k);
}

static int is_skipped(const evaluation *e, int64_t k) {
  return e->targets->skipped && e->targets->skipped[k];
}

static void add_to_sums(evaluation *e, uint32_t level) {
  for (uint32_t j = 0; j < e->plan->sum_count; j++) {
    uint16_t sum = e->plan->sums[j], of = e->loss->nodes[sum].operands[0];
    if (e->plan->level[sum] != level) continue;
    e->values[sum] += e->values[of];
    for (int d = 1; d < FLP_LOSS_DIRECTIONS; d++)
      if (e->plan->active[of] >> d & 1) e->of_sums[j][d] += e->tangents[of][d];
  }
}

/* The loss's derivative by each sum, as a variable that others depend on, and by the entropy. */
static double resolve(const evaluation *e, double by_sum[FLP_LOSS_SUMS_MAX]) {
  const flp_loss_plan *plan = e->plan;
  uint32_t result = e->loss->loss;
  double by_entropy = plan->active[result] & FLP_LOSS_BY_H ? e->tangents[result][1] : 0;
  for (uint32_t j = 0; j < plan->sum_count; j++)
    by_sum[j] = plan->active[result] >> (2 + j) & 1 ? e->tangents[result][2 + j] : 0;
  for (uint32_t j = plan->sum_count; j-- > 0;) {
    uint16_t active = plan->active[e->loss->nodes[plan->sums[j]].operands[0]];
    for (uint32_t i = 0; i < j; i++)
      if (active >> (2 + i) & 1) by_sum[i] += by_sum[j] * e->of_sums[j][2 + i];
    if (active & FLP_LOSS_BY_H) by_entropy += by_sum[j] * e->of_sums[j][1];
  }
  return by_entropy;
}

static double gradient_of_target(const evaluation *e, const double by_sum[FLP_LOSS_SUMS_MAX]) {
  double sum = 0;
  for (uint32_t j = 0; j < e->plan->sum_count; j++) {
    uint16_t of = e->loss->nodes[e->plan->sums[j]].operands[0];
    if (e->plan->active[of] & FLP_LOSS_BY_OWN) sum += by_sum[j] * e->tangents[of][0];
  }
  return sum;
}

void flp_loss_evaluate_targets(const flp_loss *loss, const flp_loss_plan *plan, const flp_loss_targets *targets,
                               const double inputs[FLP_LOSS_ALL_INPUTS], const double *parameters, flp_loss_row *out,
                               float *grad_targets) {
  evaluation e = {.loss = loss, .plan = plan, .targets = targets, .inputs = inputs, .parameters = parameters};
  double by_sum[FLP_LOSS_SUMS_MAX];
  *out = (flp_loss_row){0};
  for (int64_t k = 0; grad_targets && k < targets->count; k++) grad_targets[k] = 0;
  if (flp_loss_is_weightless(inputs)) return;
  for (uint32_t j = 0; j < plan->sum_count; j++) e.tangents[plan->sums[j]][2 + j] = 1;
  for (uint32_t level = 0; level < plan->level_count; level++) {
    compute_all(&e, 0, 0, level);
    for (int64_t k = 0; k < targets->count; k++) {
      if (is_skipped(&e, k)) continue;
      compute_all(&e, 1, k, level);
      add_to_sums(&e, level);
    }
  }
  compute_all(&e, 0, 0, plan->level_count);
  out->loss = e.values[loss->loss];
  out->grad_entropy = resolve(&e, by_sum);
  for (uint32_t i = 0; i < loss->metric_count; i++) out->metrics[i] = e.values[loss->metrics[i].node];
  for (int64_t k = 0; grad_targets && k < targets->count; k++) {
    if (is_skipped(&e, k)) continue;
    compute_all(&e, 1, k, plan->level_count);
    grad_targets[k] = (float)gradient_of_target(&e, by_sum);
  }
}

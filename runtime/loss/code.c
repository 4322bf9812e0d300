/* code.c: a loss program as data for a kernel that runs any (templates/common/loss_any.lua). */
#include <string.h>

#include "runtime/loss/loss.h"

/* The activity of a node and of its operands, as bits. */
static int32_t active_bits(const flp_loss *loss, const uint8_t *activity, uint32_t i) {
  const flp_loss_node *node = &loss->nodes[i];
  uint32_t first = FLP_LOSS_BY_LOGPROB | FLP_LOSS_BY_ENTROPY;
  uint32_t bits = (activity[i] & first) | (activity[i] & ~first) << 9;
  for (int j = 0; j < flp_loss_op_arity(node->op); j++) {
    uint8_t operand = activity[node->operands[j]];
    bits |= (uint32_t)((operand & FLP_LOSS_BY_LOGPROB) != 0) << (2 + j);
    bits |= (uint32_t)((operand & FLP_LOSS_BY_ENTROPY) != 0) << (5 + j);
    bits |= (uint32_t)((operand & FLP_LOSS_BY_LSE) != 0) << (13 + j);
    bits |= (uint32_t)((operand & FLP_LOSS_BY_MEAN) != 0) << (16 + j);
  }
  return (int32_t)bits;
}

void flp_loss_encode(const flp_loss *loss, flp_loss_code *out) {
  uint8_t activity[FLP_LOSS_NODES_MAX];
  flp_loss_activity(loss, activity);
  memset(out, 0, sizeof *out);
  out->node_count = (int32_t)loss->node_count;
  out->result = loss->loss;
  out->metric_count = (int32_t)loss->metric_count;
  for (uint32_t i = 0; i < loss->metric_count; i++) out->metrics[i] = loss->metrics[i].node;
  for (uint32_t i = 0; i < loss->node_count; i++) {
    const flp_loss_node *node = &loss->nodes[i];
    out->nodes[i].op = node->op;
    out->nodes[i].active = active_bits(loss, activity, i);
    for (int j = 0; j < 3; j++) out->nodes[i].operands[j] = node->operands[j];
    if (node->op == FLP_LOSS_CONSTANT) out->nodes[i].value = loss->constants[node->operands[0]];
  }
}

/* bytes.c: the serialised form of a loss program, version 1, or 2 of one over targets, 3 of one that reads lse or
 * mean_score, and the check of one that came from outside.
 *
 * Layout, little-endian, no padding: 4 "FLPL", u32 version, u32 length of all, 64 name, u32 parameter_count,
 * vector_count, constant_count, node_count, metric_count, loss, parameters {32 name; f64 fallback, low, high}, vectors
 * {32 name}, constants f64, nodes {u16 op; u16 operands[3]}, metrics {32 name; u32 node}.
 * Invariants: what is read back writes the same bytes; whoever holds a program that was read may evaluate, print and
 * compile it without further checks. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "runtime/base/status.h"
#include "runtime/loss/loss.h"

static const char magic[4] = {'F', 'L', 'P', 'L'};

/* ---- writing ---- */

static void put_f64(flp_writer *w, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  flp_put_u64(w, bits);
}

static void put_node(flp_writer *w, const flp_loss_node *node) {
  flp_put_u16(w, node->op);
  for (int j = 0; j < 3; j++) flp_put_u16(w, node->operands[j]);
}

static uint32_t version_of(const flp_loss *loss) {
  if (flp_loss_is_over_targets(loss)) return FLP_LOSS_FORMAT_TARGETS;
  return flp_loss_is_of_scores(loss) ? FLP_LOSS_FORMAT_SCORES : FLP_LOSS_FORMAT;
}

size_t flp_loss_write(const flp_loss *loss, uint8_t *out, size_t capacity) {
  if (capacity < 12) return 0;
  flp_writer w = {out, out + capacity, 0};
  flp_put_bytes(&w, magic, sizeof magic);
  flp_put_u32(&w, version_of(loss));
  flp_put_u32(&w, 0); /* the length, once it is known */
  flp_put_string(&w, loss->name, sizeof loss->name);
  const uint32_t counts[] = {loss->parameter_count, loss->vector_count, loss->constant_count,
                             loss->node_count,      loss->metric_count, loss->loss};
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) flp_put_u32(&w, counts[i]);
  for (uint32_t i = 0; i < loss->parameter_count; i++) {
    const flp_loss_parameter *p = &loss->parameters[i];
    flp_put_string(&w, p->name, sizeof p->name);
    put_f64(&w, p->fallback);
    put_f64(&w, p->low);
    put_f64(&w, p->high);
  }
  for (uint32_t i = 0; i < loss->vector_count; i++) flp_put_string(&w, loss->vectors[i], sizeof loss->vectors[i]);
  for (uint32_t i = 0; i < loss->constant_count; i++) put_f64(&w, loss->constants[i]);
  for (uint32_t i = 0; i < loss->node_count; i++) put_node(&w, &loss->nodes[i]);
  for (uint32_t i = 0; i < loss->metric_count; i++) {
    flp_put_string(&w, loss->metrics[i].name, sizeof loss->metrics[i].name);
    flp_put_u32(&w, loss->metrics[i].node);
  }
  if (w.full) return 0;
  flp_writer head = {out + 8, out + 12, 0};
  flp_put_u32(&head, (uint32_t)(w.at - out));
  return (size_t)(w.at - out);
}

/* ---- reading: bytes first, then each field against what it may hold ---- */

static double get_f64(flp_reader *r) {
  uint64_t bits = flp_get_u64(r);
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* A node that the struct keeps in 16 bits; what does not fit becomes the largest, which is no node. */
static uint16_t get_node(flp_reader *r) {
  uint32_t value = flp_get_u32(r);
  return value > UINT16_MAX ? UINT16_MAX : (uint16_t)value;
}

static flp_status bad(const char *field, uint32_t i, uint64_t value, const char *accepted) {
  return flp_fail(FLP_ERROR_CORRUPT, "loss: %s %" PRIu32 " is %" PRIu64 ", accepted: %s", field, i, value, accepted);
}

static flp_status check_count(const char *field, uint32_t count, uint32_t least, uint32_t most) {
  if (count >= least && count <= most) return FLP_OK;
  return flp_fail(FLP_ERROR_CORRUPT, "loss: %s is %" PRIu32 ", accepted: %" PRIu32 " to %" PRIu32, field, count, least,
                  most);
}

static flp_status check_counts(const flp_loss *loss) {
  FLP_TRY(check_count("parameter_count", loss->parameter_count, 0, FLP_LOSS_PARAMETERS_MAX));
  FLP_TRY(check_count("vector_count", loss->vector_count, 0, FLP_LOSS_VECTORS_MAX));
  FLP_TRY(check_count("constant_count", loss->constant_count, 0, FLP_LOSS_CONSTANTS_MAX));
  FLP_TRY(check_count("node_count", loss->node_count, 1, FLP_LOSS_NODES_MAX));
  return check_count("metric_count", loss->metric_count, 0, FLP_LOSS_METRICS_MAX);
}

static flp_status check_parameter(const flp_loss *loss, uint32_t i) {
  const flp_loss_parameter *p = &loss->parameters[i];
  if (!flp_is_name(p->name, sizeof p->name, ""))
    return flp_fail(FLP_ERROR_CORRUPT, "loss: the name of parameter %" PRIu32 " is not a terminated name", i);
  if (!isfinite(p->fallback) || !(p->low <= p->fallback && p->fallback <= p->high))
    return flp_fail(FLP_ERROR_CORRUPT, "loss: parameter %s is %g, not in its bounds [%g, %g]", p->name, p->fallback,
                    p->low, p->high);
  for (uint32_t j = 0; j < i; j++)
    if (strcmp(loss->parameters[j].name, p->name) == 0)
      return flp_fail(FLP_ERROR_CORRUPT, "loss: parameter %s stands twice", p->name);
  return FLP_OK;
}

static flp_status check_vector(const flp_loss *loss, uint32_t i) {
  const char *name = loss->vectors[i];
  if (!flp_is_name(name, FLP_LOSS_NAME_BYTES, ""))
    return flp_fail(FLP_ERROR_CORRUPT, "loss: the name of vector %" PRIu32 " is not a terminated name", i);
  for (uint32_t j = 0; j < FLP_LOSS_FIRST_VECTOR + i; j++)
    if (strcmp(flp_loss_input_name(loss, j), name) == 0)
      return flp_fail(FLP_ERROR_CORRUPT, "loss: vector %s stands twice", name);
  return FLP_OK;
}

/* An input behind the last vector that may be. */
static int is_behind_vectors(const flp_loss_node *node) {
  return node->op == FLP_LOSS_INPUT && node->operands[0] >= FLP_LOSS_TARGET_LOGPROB &&
         node->operands[0] < FLP_LOSS_ALL_INPUTS;
}

static flp_status check_node(const flp_loss *loss, uint32_t i) {
  const flp_loss_node *node = &loss->nodes[i];
  if (node->op >= FLP_LOSS_OPS) return bad("operation of node", i, node->op, "0 to 24");
  int arity = flp_loss_op_arity(node->op), is_leaf = arity == 0;
  uint32_t most = node->op == FLP_LOSS_CONSTANT ? loss->constant_count
                  : node->op == FLP_LOSS_INPUT  ? FLP_LOSS_FIRST_VECTOR + loss->vector_count
                  : is_leaf                     ? loss->parameter_count
                                                : i;
  for (int j = 0; j < 3; j++) {
    uint16_t operand = node->operands[j];
    if (j >= (is_leaf ? 1 : arity)) {
      if (operand) return bad("unused operand of node", i, operand, "0");
    } else if (operand >= most && !is_behind_vectors(node)) {
      return bad("operand of node", i, operand, is_leaf ? "an index of what the loss has" : "an earlier node");
    } else if (!is_leaf && flp_loss_is_condition(loss, operand) != flp_loss_takes_condition(node->op, j)) {
      return bad("operand of node", i, operand, "a number where numbers, a condition where conditions are");
    }
  }
  return FLP_OK;
}

static flp_status check_result(const flp_loss *loss, const char *what, uint16_t node) {
  if (node < loss->node_count && !flp_loss_is_condition(loss, node) && !flp_loss_is_per_target(loss, node))
    return FLP_OK;
  return flp_fail(FLP_ERROR_CORRUPT, "loss: %s is node %u, accepted: a number of the row among %" PRIu32 " nodes", what,
                  (unsigned)node, loss->node_count);
}

static flp_status check_metric(const flp_loss *loss, uint32_t i) {
  const flp_loss_metric *metric = &loss->metrics[i];
  if (!flp_is_name(metric->name, sizeof metric->name, ""))
    return flp_fail(FLP_ERROR_CORRUPT, "loss: the name of metric %" PRIu32 " is not a terminated name", i);
  for (uint32_t j = 0; j < i; j++)
    if (strcmp(loss->metrics[j].name, metric->name) == 0)
      return flp_fail(FLP_ERROR_CORRUPT, "loss: metric %s stands twice", metric->name);
  return check_result(loss, metric->name, metric->node);
}

/* Sums are of values of targets; and a program over targets reads no value that a row has for one target alone. */
static flp_status check_sums(const flp_loss *loss) {
  uint32_t sums = 0;
  for (uint32_t i = 0; i < loss->node_count; i++) {
    if (loss->nodes[i].op != FLP_LOSS_SUM) continue;
    uint16_t operand = loss->nodes[i].operands[0];
    if (!flp_loss_is_per_target(loss, operand)) return bad("operand of sum", i, operand, "a value of each target");
    sums++;
  }
  FLP_TRY(check_count("the number of sums", sums, 0, FLP_LOSS_SUMS_MAX));
  FLP_TRY(check_count("the number of inputs", (uint32_t)__builtin_popcount(flp_loss_inputs(loss)), 0, FLP_LOSS_INPUTS_MAX));
  if (!flp_loss_is_over_targets(loss) || !(flp_loss_inputs(loss) & FLP_LOSS_OF_ONE_TARGET)) return FLP_OK;
  return flp_fail(FLP_ERROR_CORRUPT, "loss: it reads values of targets and of one target; one of the two is accepted");
}

static flp_status check(const flp_loss *loss) {
  if (!flp_is_name(loss->name, sizeof loss->name, "+"))
    return flp_fail(FLP_ERROR_CORRUPT, "loss: its name is not a terminated name");
  for (uint32_t i = 0; i < loss->parameter_count; i++) FLP_TRY(check_parameter(loss, i));
  for (uint32_t i = 0; i < loss->vector_count; i++) FLP_TRY(check_vector(loss, i));
  for (uint32_t i = 0; i < loss->constant_count; i++)
    if (isnan(loss->constants[i])) return flp_fail(FLP_ERROR_CORRUPT, "loss: constant %" PRIu32 " is NaN", i);
  for (uint32_t i = 0; i < loss->node_count; i++) FLP_TRY(check_node(loss, i));
  FLP_TRY(check_sums(loss));
  for (uint32_t i = 0; i < loss->metric_count; i++) FLP_TRY(check_metric(loss, i));
  return check_result(loss, "its result", loss->loss);
}

static flp_status get_body(flp_reader *r, flp_loss *loss) {
  flp_get_bytes(r, loss->name, sizeof loss->name);
  uint32_t *const counts[] = {&loss->parameter_count, &loss->vector_count, &loss->constant_count, &loss->node_count,
                              &loss->metric_count};
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) *counts[i] = flp_get_u32(r);
  loss->loss = get_node(r);
  FLP_TRY(check_counts(loss));
  for (uint32_t i = 0; i < loss->parameter_count; i++) {
    flp_loss_parameter *p = &loss->parameters[i];
    flp_get_bytes(r, p->name, sizeof p->name);
    p->fallback = get_f64(r);
    p->low = get_f64(r);
    p->high = get_f64(r);
  }
  for (uint32_t i = 0; i < loss->vector_count; i++) flp_get_bytes(r, loss->vectors[i], sizeof loss->vectors[i]);
  for (uint32_t i = 0; i < loss->constant_count; i++) loss->constants[i] = get_f64(r);
  for (uint32_t i = 0; i < loss->node_count; i++) {
    uint16_t op = flp_get_u16(r);
    loss->nodes[i].op = (uint8_t)(op < UINT8_MAX ? op : UINT8_MAX);
    for (int j = 0; j < 3; j++) loss->nodes[i].operands[j] = flp_get_u16(r);
  }
  for (uint32_t i = 0; i < loss->metric_count; i++) {
    flp_get_bytes(r, loss->metrics[i].name, sizeof loss->metrics[i].name);
    loss->metrics[i].node = get_node(r);
  }
  return FLP_OK;
}

flp_status flp_loss_read(const uint8_t *bytes, size_t length, flp_loss *out) {
  flp_reader r = {bytes, bytes + length, 0};
  char got[sizeof magic];
  memset(out, 0, sizeof *out);
  flp_get_bytes(&r, got, sizeof got);
  uint32_t version = flp_get_u32(&r), stated = flp_get_u32(&r);
  if (r.short_of_bytes) return flp_fail(FLP_ERROR_CORRUPT, "loss: %zu bytes are too few", length);
  if (memcmp(got, magic, sizeof magic) != 0)
    return flp_fail(FLP_ERROR_CORRUPT, "loss: the bytes do not begin with FLPL");
  if (version < FLP_LOSS_FORMAT || version > FLP_LOSS_FORMAT_SCORES)
    return flp_fail(FLP_ERROR_CORRUPT, "loss: version is %" PRIu32 ", accepted: %d to %d", version, FLP_LOSS_FORMAT,
                    FLP_LOSS_FORMAT_SCORES);
  if (stated != length)
    return flp_fail(FLP_ERROR_CORRUPT, "loss: length is %" PRIu32 ", there are %zu bytes", stated, length);
  flp_loss loss;
  memset(&loss, 0, sizeof loss);
  FLP_TRY(get_body(&r, &loss));
  if (r.short_of_bytes || r.at != r.end)
    return flp_fail(FLP_ERROR_CORRUPT, "loss: %zu bytes do not fit its counts", length);
  FLP_TRY(check(&loss));
  if (version != version_of(&loss))
    return flp_fail(FLP_ERROR_CORRUPT,
                    "loss: version is %" PRIu32 ", accepted: %d of a program over targets, %d of one that reads lse or "
                    "mean_score, else %d",
                    version, FLP_LOSS_FORMAT_TARGETS, FLP_LOSS_FORMAT_SCORES, FLP_LOSS_FORMAT);
  memcpy(out, &loss, sizeof loss);
  return FLP_OK;
}

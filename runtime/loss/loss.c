/* loss.c: building programs: nodes met once, constants folded, sums. */
#include "runtime/loss/loss.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "runtime/base/status.h"

static const char *const input_names[FLP_LOSS_FIRST_VECTOR] = {"logprob",     "entropy",   "old_logprob",
                                                               "ref_logprob", "advantage", "weight"};
/* From FLP_LOSS_TARGET_LOGPROB on. */
static const char *const other_names[FLP_LOSS_ALL_INPUTS - FLP_LOSS_TARGET_LOGPROB] = {
    "target_logprob", "teacher_logprob", "lse", "mean_score"};

int flp_loss_is_condition(const flp_loss *loss, uint32_t node) {
  return flp_loss_gives_condition(loss->nodes[node].op);
}

const char *flp_loss_input_name(const flp_loss *loss, uint32_t input) {
  if (input >= FLP_LOSS_TARGET_LOGPROB) return other_names[input - FLP_LOSS_TARGET_LOGPROB];
  return input < FLP_LOSS_FIRST_VECTOR ? input_names[input] : loss->vectors[input - FLP_LOSS_FIRST_VECTOR];
}

uint32_t flp_loss_inputs(const flp_loss *loss) {
  uint32_t inputs = 0;
  for (uint32_t i = 0; i < loss->node_count; i++)
    if (loss->nodes[i].op == FLP_LOSS_INPUT) inputs |= 1u << loss->nodes[i].operands[0];
  return inputs;
}

int flp_loss_is_over_targets(const flp_loss *loss) {
  return (flp_loss_inputs(loss) & (1u << FLP_LOSS_TARGET_LOGPROB | 1u << FLP_LOSS_TEACHER_LOGPROB)) != 0;
}

int flp_loss_is_of_scores(const flp_loss *loss) {
  return (flp_loss_inputs(loss) & (1u << FLP_LOSS_LSE | 1u << FLP_LOSS_MEAN_SCORE)) != 0;
}

int flp_loss_reads_mean(const flp_loss *loss) {
  return (flp_loss_inputs(loss) >> FLP_LOSS_MEAN_SCORE & 1) != 0;
}

static int stops_derivatives(uint32_t op) {
  return op == FLP_LOSS_DETACH || flp_loss_gives_condition(op);
}

/* Sums stand for what they are made of: the logprob of every target. */
static uint32_t is_active_over_targets(const flp_loss *loss) {
  flp_loss_plan plan;
  flp_loss_plan_of(loss, &plan);
  uint32_t found = 0, open = plan.active[loss->loss];
  for (uint32_t j = plan.sum_count; j-- > 0;)
    if (open & (uint32_t)FLP_LOSS_BY_SUM << j) open |= plan.active[loss->nodes[plan.sums[j]].operands[0]];
  if (open & FLP_LOSS_BY_OWN) found |= FLP_LOSS_BY_LOGPROB;
  if (open & FLP_LOSS_BY_H) found |= FLP_LOSS_BY_ENTROPY;
  return found;
}

static uint8_t input_activity(uint32_t input) {
  return input == FLP_LOSS_LOGPROB      ? FLP_LOSS_BY_LOGPROB
         : input == FLP_LOSS_ENTROPY    ? FLP_LOSS_BY_ENTROPY
         : input == FLP_LOSS_LSE        ? FLP_LOSS_BY_LSE
         : input == FLP_LOSS_MEAN_SCORE ? FLP_LOSS_BY_MEAN
                                        : 0;
}

void flp_loss_activity(const flp_loss *loss, uint8_t out[FLP_LOSS_NODES_MAX]) {
  for (uint32_t i = 0; i < loss->node_count; i++) {
    const flp_loss_node *node = &loss->nodes[i];
    out[i] = 0;
    if (node->op == FLP_LOSS_INPUT) out[i] = input_activity(node->operands[0]);
    if (stops_derivatives(node->op)) continue;
    for (int j = 0; j < flp_loss_op_arity(node->op); j++) out[i] = (uint8_t)(out[i] | out[node->operands[j]]);
  }
}

uint32_t flp_loss_is_active(const flp_loss *loss) {
  uint8_t activity[FLP_LOSS_NODES_MAX];
  if (flp_loss_is_over_targets(loss)) return is_active_over_targets(loss);
  flp_loss_activity(loss, activity);
  return activity[loss->loss];
}

/* ---- building ---- */

static flp_status full(const char *what, int most) {
  return flp_fail(FLP_ERROR_ARGUMENT, "a loss may have at most %d %s", most, what);
}

flp_status flp_loss_start(flp_loss *loss, const char *name) {
  memset(loss, 0, sizeof *loss);
  if (strlen(name) < sizeof loss->name) memcpy(loss->name, name, strlen(name));
  if (!flp_is_name(loss->name, sizeof loss->name, "+"))
    return flp_fail(FLP_ERROR_ARGUMENT, "'%s' is no name of a loss (a-z, 0-9 and _, at most %d)", name,
                    FLP_LOSS_TITLE_BYTES - 1);
  return FLP_OK;
}

flp_status flp_loss_constant(flp_loss *loss, double value, uint16_t *out) {
  if (isnan(value)) return flp_fail(FLP_ERROR_ARGUMENT, "a constant of a loss may not be NaN");
  uint32_t i = 0;
  while (i < loss->constant_count && memcmp(&loss->constants[i], &value, sizeof value) != 0) i++;
  if (i == FLP_LOSS_CONSTANTS_MAX) return full("constants", FLP_LOSS_CONSTANTS_MAX);
  if (i == loss->constant_count) loss->constants[loss->constant_count++] = value;
  return flp_loss_append(loss, FLP_LOSS_CONSTANT, i, 0, 0, out);
}

static int is_constant(const flp_loss *loss, uint32_t node, double *out) {
  if (loss->nodes[node].op != FLP_LOSS_CONSTANT) return 0;
  *out = loss->constants[loss->nodes[node].operands[0]];
  return 1;
}

/* Whether the node is a constant, or an operand of another; *value and *out show which. */
static int folds(const flp_loss *loss, flp_loss_op op, const uint32_t *operands, double *value, uint16_t *out) {
  double v[3] = {0, 0, 0};
  int constants = 0, arity = flp_loss_op_arity(op);
  for (int j = 0; j < arity; j++) constants += is_constant(loss, operands[j], &v[j]);
  if (flp_loss_is_exact(op) && constants == arity) {
    *value = flp_loss_apply(op, v[0], v[1], v[2]);
    return !isnan(*value) ? 1 : 0;
  }
  int keeps_left = (op == FLP_LOSS_MUL || op == FLP_LOSS_DIV) && is_constant(loss, operands[1], &v[1]) && v[1] == 1;
  int keeps_right = op == FLP_LOSS_MUL && is_constant(loss, operands[0], &v[0]) && v[0] == 1;
  if (keeps_left || keeps_right) *out = (uint16_t)operands[keeps_left ? 0 : 1];
  return keeps_left || keeps_right ? 2 : 0;
}

static flp_status check_sum(const flp_loss *loss, uint32_t operand) {
  uint32_t sums = 0;
  if (!flp_loss_is_per_target(loss, operand))
    return flp_fail(FLP_ERROR_ARGUMENT, "sum: expected a value of each target, got one of the row");
  for (uint32_t i = 0; i < loss->node_count; i++) sums += loss->nodes[i].op == FLP_LOSS_SUM;
  return sums < FLP_LOSS_SUMS_MAX ? FLP_OK : full("sums", FLP_LOSS_SUMS_MAX);
}

flp_status flp_loss_append(flp_loss *loss, flp_loss_op op, uint32_t a, uint32_t b, uint32_t c, uint16_t *out) {
  const uint32_t operands[3] = {a, b, c};
  flp_loss_node node = {.op = (uint8_t)op};
  for (int j = 0; j < 3; j++) node.operands[j] = (uint16_t)operands[j];
  for (int j = 0; j < flp_loss_op_arity(op); j++) {
    if (operands[j] >= loss->node_count)
      return flp_fail(FLP_ERROR_ARGUMENT, "%s: there is no such value", flp_loss_op_name(op));
    int wants = flp_loss_takes_condition(op, j);
    if (flp_loss_is_condition(loss, operands[j]) != wants)
      return flp_fail(FLP_ERROR_ARGUMENT, "%s: expected a %s, got a %s", flp_loss_op_name(op),
                      wants ? "condition" : "number", wants ? "number" : "condition");
  }
  double value;
  int folded = folds(loss, op, operands, &value, out);
  if (folded) return folded == 1 ? flp_loss_constant(loss, value, out) : FLP_OK;
  if (op == FLP_LOSS_SUM) FLP_TRY(check_sum(loss, a));
  for (uint32_t i = 0; i < loss->node_count; i++)
    if (loss->nodes[i].op == node.op && memcmp(loss->nodes[i].operands, node.operands, sizeof node.operands) == 0) {
      *out = (uint16_t)i;
      return FLP_OK;
    }
  if (loss->node_count == FLP_LOSS_NODES_MAX) return full("operations", FLP_LOSS_NODES_MAX);
  *out = (uint16_t)loss->node_count;
  loss->nodes[loss->node_count++] = node;
  return FLP_OK;
}

/* Copies a name into a field of FLP_LOSS_NAME_BYTES that is zero. */
static flp_status set_name(char *field, const char *name, const char *what) {
  if (strlen(name) < FLP_LOSS_NAME_BYTES) memcpy(field, name, strlen(name));
  if (!flp_is_name(field, FLP_LOSS_NAME_BYTES, ""))
    return flp_fail(FLP_ERROR_ARGUMENT, "'%s' is no name of a %s (a-z, 0-9 and _, at most %d)", name, what,
                    FLP_LOSS_NAME_BYTES - 1);
  return FLP_OK;
}

flp_status flp_loss_declare_parameter(flp_loss *loss, const flp_loss_parameter *given, uint32_t *out) {
  flp_loss_parameter parameter;
  memset(&parameter, 0, sizeof parameter);
  FLP_TRY(set_name(parameter.name, given->name, "parameter"));
  parameter.fallback = given->fallback;
  parameter.low = given->low;
  parameter.high = given->high;
  if (!isfinite(given->fallback) || !(given->low <= given->fallback && given->fallback <= given->high))
    return flp_fail(FLP_ERROR_ARGUMENT, "parameter '%s': default %g is not in [%g, %g]", given->name, given->fallback,
                    given->low, given->high);
  for (*out = 0; *out < loss->parameter_count; ++*out) {
    const flp_loss_parameter *other = &loss->parameters[*out];
    if (strcmp(other->name, parameter.name) != 0) continue;
    if (memcmp(other, &parameter, sizeof parameter) == 0) return FLP_OK;
    return flp_fail(FLP_ERROR_ARGUMENT, "parameter '%s' has two defaults or bounds (accepted: the same, or two names)",
                    given->name);
  }
  if (loss->parameter_count == FLP_LOSS_PARAMETERS_MAX) return full("parameters", FLP_LOSS_PARAMETERS_MAX);
  loss->parameters[loss->parameter_count++] = parameter;
  return FLP_OK;
}

flp_status flp_loss_declare_vector(flp_loss *loss, const char *name, uint32_t *out) {
  char field[FLP_LOSS_NAME_BYTES] = "";
  FLP_TRY(set_name(field, name, "vector"));
  for (int i = 0; i < FLP_LOSS_FIRST_VECTOR; i++)
    if (strcmp(input_names[i], name) == 0)
      return flp_fail(FLP_ERROR_ARGUMENT, "vector '%s': every row has that already", name);
  for (uint32_t i = FLP_LOSS_TARGET_LOGPROB; i < FLP_LOSS_ALL_INPUTS; i++)
    if (strcmp(flp_loss_input_name(loss, i), name) == 0)
      return flp_fail(FLP_ERROR_ARGUMENT, "vector '%s': every %s has that already", name,
                      flp_loss_input_is_of_targets(i) ? "target" : "row");
  for (*out = 0; *out < loss->vector_count; ++*out)
    if (strcmp(loss->vectors[*out], name) == 0) return FLP_OK;
  if (loss->vector_count == FLP_LOSS_VECTORS_MAX) return full("vectors", FLP_LOSS_VECTORS_MAX);
  memcpy(loss->vectors[loss->vector_count++], field, sizeof field);
  return FLP_OK;
}

flp_status flp_loss_declare_metric(flp_loss *loss, const char *name, uint16_t node) {
  flp_loss_metric metric;
  memset(&metric, 0, sizeof metric);
  metric.node = node;
  FLP_TRY(set_name(metric.name, name, "metric"));
  if (flp_loss_is_condition(loss, node))
    return flp_fail(FLP_ERROR_ARGUMENT, "metric '%s': expected a number, got a condition", name);
  if (flp_loss_is_per_target(loss, node))
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "metric '%s' has a value for each target; a value of the row, such as a sum, is accepted",
                    name);
  for (uint32_t i = 0; i < loss->metric_count; i++)
    if (strcmp(loss->metrics[i].name, name) == 0) return flp_fail(FLP_ERROR_ARGUMENT, "metric '%s' stands twice", name);
  if (loss->metric_count == FLP_LOSS_METRICS_MAX) return full("metrics", FLP_LOSS_METRICS_MAX);
  loss->metrics[loss->metric_count++] = metric;
  return FLP_OK;
}

/* Appends the nodes of another program to one that has its parameters and vectors under these indices. */
static flp_status graft(flp_loss *loss, const flp_loss *from, const uint8_t *wanted, const uint32_t *parameters,
                        const uint32_t *vectors, uint16_t node_of[FLP_LOSS_NODES_MAX]) {
  for (uint32_t i = 0; i < from->node_count; i++) {
    const flp_loss_node *node = &from->nodes[i];
    if (wanted && !wanted[i]) continue;
    uint32_t at[3] = {node->operands[0], 0, 0};
    for (int j = 0; j < flp_loss_op_arity(node->op); j++) at[j] = node_of[node->operands[j]];
    if (node->op == FLP_LOSS_PARAMETER) at[0] = parameters[at[0]];
    if (node->op == FLP_LOSS_INPUT && at[0] >= FLP_LOSS_FIRST_VECTOR && at[0] < FLP_LOSS_TARGET_LOGPROB)
      at[0] = FLP_LOSS_FIRST_VECTOR + vectors[at[0] - FLP_LOSS_FIRST_VECTOR];
    if (node->op == FLP_LOSS_CONSTANT)
      FLP_TRY(flp_loss_constant(loss, from->constants[at[0]], &node_of[i]));
    else
      FLP_TRY(flp_loss_append(loss, (flp_loss_op)node->op, at[0], at[1], at[2], &node_of[i]));
  }
  return FLP_OK;
}

/* A row of K targets has no logprob of its own; and a description has room for so many inputs. */
static flp_status check_inputs(const flp_loss *loss) {
  uint32_t read = flp_loss_inputs(loss), input = 0;
  if (__builtin_popcount(read) > FLP_LOSS_INPUTS_MAX) return full("inputs", FLP_LOSS_INPUTS_MAX);
  read &= FLP_LOSS_OF_ONE_TARGET;
  if (!flp_loss_is_over_targets(loss) || !read) return FLP_OK;
  while (!(read >> input & 1)) input++;
  return flp_fail(FLP_ERROR_ARGUMENT, "loss '%s' reads values of targets and %s, which a row has for one target alone",
                  loss->name, flp_loss_input_name(loss, input));
}

flp_status flp_loss_finish(flp_loss *loss, uint16_t result) {
  static const uint32_t same[] = {0, 1, 2, 3, 4, 5, 6, 7};
  uint8_t wanted[FLP_LOSS_NODES_MAX] = {0};
  uint16_t node_of[FLP_LOSS_NODES_MAX];
  if (flp_loss_is_condition(loss, result))
    return flp_fail(FLP_ERROR_ARGUMENT, "the loss is a condition; a number is accepted");
  if (flp_loss_is_per_target(loss, result))
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "the loss has a value for each target; a value of the row, such as a sum, is accepted");
  wanted[result] = 1;
  for (uint32_t i = 0; i < loss->metric_count; i++) wanted[loss->metrics[i].node] = 1;
  for (uint32_t i = loss->node_count; i-- > 0;)
    for (int j = 0; wanted[i] && j < flp_loss_op_arity(loss->nodes[i].op); j++) wanted[loss->nodes[i].operands[j]] = 1;
  const flp_loss whole = *loss;
  loss->node_count = loss->constant_count = 0;
  memset(loss->nodes, 0, sizeof loss->nodes);
  memset(loss->constants, 0, sizeof loss->constants);
  FLP_TRY(graft(loss, &whole, wanted, same, same, node_of));
  loss->loss = node_of[result];
  for (uint32_t i = 0; i < loss->metric_count; i++) loss->metrics[i].node = node_of[whole.metrics[i].node];
  return check_inputs(loss);
}

flp_status flp_loss_add(flp_loss *sum, const flp_loss *term) {
  uint32_t parameters[FLP_LOSS_PARAMETERS_MAX], vectors[FLP_LOSS_VECTORS_MAX];
  uint16_t node_of[FLP_LOSS_NODES_MAX], result;
  char name[2 * FLP_LOSS_TITLE_BYTES];
  snprintf(name, sizeof name, "%s+%s", sum->name, term->name);
  if (strlen(name) >= FLP_LOSS_TITLE_BYTES)
    return flp_fail(FLP_ERROR_ARGUMENT, "loss '%s': the name is longer than %d letters", name,
                    FLP_LOSS_TITLE_BYTES - 1);
  for (uint32_t i = 0; i < term->parameter_count; i++)
    FLP_TRY(flp_loss_declare_parameter(sum, &term->parameters[i], &parameters[i]));
  for (uint32_t i = 0; i < term->vector_count; i++)
    FLP_TRY(flp_loss_declare_vector(sum, term->vectors[i], &vectors[i]));
  FLP_TRY(graft(sum, term, NULL, parameters, vectors, node_of));
  for (uint32_t i = 0; i < term->metric_count; i++)
    FLP_TRY(flp_loss_declare_metric(sum, term->metrics[i].name, node_of[term->metrics[i].node]));
  FLP_TRY(flp_loss_append(sum, FLP_LOSS_ADD, sum->loss, node_of[term->loss], 0, &result));
  memset(sum->name, 0, sizeof sum->name);
  memcpy(sum->name, name, strlen(name));
  return flp_loss_finish(sum, result);
}

void flp_loss_inputs_of(const flp_args *args, const float *out[FLP_LOSS_ALL_INPUTS]) {
  memset(out, 0, FLP_LOSS_ALL_INPUTS * sizeof *out);
  out[FLP_LOSS_LOGPROB] = args->logprob;
  out[FLP_LOSS_ENTROPY] = args->entropy;
  out[FLP_LOSS_OLD_LOGPROB] = args->old_logprob;
  out[FLP_LOSS_REF_LOGPROB] = args->ref_logprob;
  out[FLP_LOSS_ADVANTAGE] = args->advantage;
  out[FLP_LOSS_WEIGHT] = args->row_weight;
  memcpy(&out[FLP_LOSS_FIRST_VECTOR], args->vectors, sizeof args->vectors);
}

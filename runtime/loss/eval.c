/* eval.c: a program's value and derivatives, row by row, in double. */
#include <math.h>

#include "runtime/base/status.h"
#include "runtime/loss/loss.h"

void flp_loss_values(const flp_loss *loss, const double inputs[FLP_LOSS_ALL_INPUTS], const double *parameters,
                     const double *detached, double out[FLP_LOSS_NODES_MAX]) {
  for (uint32_t i = 0; i < loss->node_count; i++) {
    const flp_loss_node *node = &loss->nodes[i];
    const uint16_t *at = node->operands;
    if (node->op == FLP_LOSS_CONSTANT)
      out[i] = loss->constants[at[0]];
    else if (node->op == FLP_LOSS_INPUT)
      out[i] = inputs[at[0]];
    else if (node->op == FLP_LOSS_PARAMETER)
      out[i] = parameters[at[0]];
    else if (node->op == FLP_LOSS_DETACH && detached)
      out[i] = detached[i];
    else /* operands that the operation lacks are 0: node 0, which is there */
      out[i] = flp_loss_apply((flp_loss_op)node->op, out[at[0]], out[at[1]], out[at[2]]);
  }
}

/* Derivative of every node by one input, bit of activity. */
static double derivative(const flp_loss *loss, const double *values, const uint8_t *activity, unsigned bit) {
  double tangents[FLP_LOSS_NODES_MAX];
  for (uint32_t i = 0; i <= loss->loss; i++) {
    const flp_loss_node *node = &loss->nodes[i];
    const uint16_t *at = node->operands;
    tangents[i] = node->op == FLP_LOSS_INPUT; /* of the one input that is active */
    if (!(activity[i] & bit) || node->op == FLP_LOSS_INPUT) continue;
    double partial[3], v[3] = {values[at[0]], values[at[1]], values[at[2]]}, sum = 0;
    flp_loss_partials(node->op, v, values[i], partial);
    for (int j = 0; j < flp_loss_op_arity(node->op); j++) {
      if (!(activity[at[j]] & bit) || (flp_loss_is_mask(node->op) && partial[j] == 0)) continue;
      sum += partial[j] * tangents[at[j]];
    }
    tangents[i] = sum;
  }
  return activity[loss->loss] & bit ? tangents[loss->loss] : 0;
}

static void evaluate_row(const flp_loss *loss, const uint8_t *activity, const double inputs[FLP_LOSS_ALL_INPUTS],
                         const double *parameters, flp_loss_row *out) {
  double values[FLP_LOSS_NODES_MAX];
  *out = (flp_loss_row){0};
  if (flp_loss_is_weightless(inputs)) return;
  flp_loss_values(loss, inputs, parameters, NULL, values);
  out->loss = values[loss->loss];
  out->grad_logprob = derivative(loss, values, activity, FLP_LOSS_BY_LOGPROB);
  out->grad_entropy = derivative(loss, values, activity, FLP_LOSS_BY_ENTROPY);
  out->grad_lse = derivative(loss, values, activity, FLP_LOSS_BY_LSE);
  out->grad_mean = derivative(loss, values, activity, FLP_LOSS_BY_MEAN);
  for (uint32_t i = 0; i < loss->metric_count; i++) out->metrics[i] = values[loss->metrics[i].node];
}

void flp_loss_evaluate_row(const flp_loss *loss, const double inputs[FLP_LOSS_ALL_INPUTS], const double *parameters,
                           flp_loss_row *out) {
  uint8_t activity[FLP_LOSS_NODES_MAX];
  flp_loss_activity(loss, activity);
  evaluate_row(loss, activity, inputs, parameters, out);
}

flp_status flp_loss_check_parameters(const flp_loss *loss, const double *parameters) {
  for (uint32_t i = 0; i < loss->parameter_count; i++) {
    const flp_loss_parameter *p = &loss->parameters[i];
    if (!isfinite(parameters[i]) || parameters[i] < p->low || parameters[i] > p->high)
      return flp_fail(FLP_ERROR_ARGUMENT, "%s of loss %s is %g; a finite number from %g to %g is accepted", p->name,
                      loss->name, parameters[i], p->low, p->high);
  }
  return FLP_OK;
}

static const float *array_of(const flp_loss_rows *rows, uint32_t input) {
  if (input == FLP_LOSS_TARGET_LOGPROB) return rows->target_logprob;
  return input == FLP_LOSS_TEACHER_LOGPROB ? rows->teacher_logprob : rows->inputs[input];
}

/* The value of an input where its array is missing. error: ARGUMENT unless it has one */
static flp_status check_inputs(const flp_loss *loss, const flp_loss_rows *rows) {
  uint32_t missing = flp_loss_inputs(loss) & ~(1u << FLP_LOSS_WEIGHT | 1u << FLP_LOSS_OLD_LOGPROB);
  if (flp_loss_inputs(loss) >> FLP_LOSS_OLD_LOGPROB & 1 && !rows->inputs[FLP_LOSS_OLD_LOGPROB])
    missing |= 1u << FLP_LOSS_LOGPROB; /* which stands in for it */
  for (uint32_t i = 0; i < FLP_LOSS_ALL_INPUTS; i++)
    if (missing >> i & 1 && !array_of(rows, i) && rows->n > 0)
      return flp_fail(FLP_ERROR_ARGUMENT, "%s is NULL; loss %s needs an array of %lld", flp_loss_input_name(loss, i),
                      loss->name, (long long)(rows->n * (flp_loss_input_is_of_targets(i) ? rows->targets : 1)));
  return FLP_OK;
}

static void load_row(const flp_loss_rows *rows, int64_t row, double out[FLP_LOSS_ALL_INPUTS]) {
  for (int i = 0; i < FLP_LOSS_ALL_INPUTS; i++) out[i] = rows->inputs[i] ? (double)rows->inputs[i][row] : 0;
  if (!rows->inputs[FLP_LOSS_WEIGHT]) out[FLP_LOSS_WEIGHT] = 1;
  if (!rows->inputs[FLP_LOSS_OLD_LOGPROB]) out[FLP_LOSS_OLD_LOGPROB] = out[FLP_LOSS_LOGPROB];
}

static void hand_out(const flp_loss *loss, const flp_loss_rows *rows, int64_t row, const flp_loss_row *result) {
  if (rows->loss) rows->loss[row] = (float)result->loss;
  if (rows->grad_entropy) rows->grad_entropy[row] = (float)result->grad_entropy;
  if (rows->grad_lse) rows->grad_lse[row] = (float)result->grad_lse;
  if (rows->grad_mean) rows->grad_mean[row] = (float)result->grad_mean;
  for (uint32_t i = 0; rows->metrics && i < loss->metric_count; i++)
    rows->metrics[(int64_t)i * rows->n + row] = (float)result->metrics[i];
}

static void evaluate_rows(const flp_loss *loss, const flp_loss_rows *rows, const double *parameters) {
  double inputs[FLP_LOSS_ALL_INPUTS];
  uint8_t activity[FLP_LOSS_NODES_MAX];
  flp_loss_activity(loss, activity);
  for (int64_t row = 0; row < rows->n; row++) {
    flp_loss_row result;
    load_row(rows, row, inputs);
    evaluate_row(loss, activity, inputs, parameters, &result);
    hand_out(loss, rows, row, &result);
    if (rows->grad_logprob) rows->grad_logprob[row] = (float)result.grad_logprob;
  }
}

static void evaluate_targets(const flp_loss *loss, const flp_loss_rows *rows, const double *parameters) {
  double inputs[FLP_LOSS_ALL_INPUTS];
  flp_loss_plan plan;
  flp_loss_plan_of(loss, &plan);
  for (int64_t row = 0; row < rows->n; row++) {
    flp_loss_row result;
    int64_t at = row * rows->targets;
    flp_loss_targets targets = {.count = rows->targets,
                                .logprob = rows->target_logprob + at,
                                .teacher_logprob = rows->teacher_logprob ? rows->teacher_logprob + at : NULL,
                                .skipped = rows->skipped ? rows->skipped + at : NULL};
    load_row(rows, row, inputs);
    flp_loss_evaluate_targets(loss, &plan, &targets, inputs, parameters, &result,
                              rows->grad_logprob ? rows->grad_logprob + at : NULL);
    hand_out(loss, rows, row, &result);
  }
}

flp_status flp_loss_evaluate(const flp_loss *loss, const flp_loss_rows *rows) {
  double parameters[FLP_LOSS_PARAMETERS_MAX];
  if (rows->n < 0) return flp_fail(FLP_ERROR_ARGUMENT, "n is %lld (accepted: 0 or more)", (long long)rows->n);
  for (uint32_t i = 0; i < loss->parameter_count; i++)
    parameters[i] = rows->parameters ? rows->parameters[i] : loss->parameters[i].fallback;
  FLP_TRY(flp_loss_check_parameters(loss, parameters));
  FLP_TRY(check_inputs(loss, rows));
  if (flp_loss_is_over_targets(loss))
    evaluate_targets(loss, rows, parameters);
  else
    evaluate_rows(loss, rows, parameters);
  return FLP_OK;
}

/* rows.c: seeded rows for the check of a loss, and whether a number can be a derivative. */
#include <math.h>

#include "gen/cli/call/normal.h"
#include "gen/cli/loss/loss.h"

/* ---- rows ---- */

static double uniform(uint64_t *state) {
  return cli_unit(cli_hash((*state)++));
}

static double normal(uint64_t *state) {
  double radius = sqrt(-2 * log(1 - uniform(state)));
  return radius * cos(6.283185307179586 * uniform(state));
}

/* A number near the fallback, inside the bounds. */
static double draw_parameter(const flp_loss_parameter *p, uint64_t *state) {
  double low = p->low > p->fallback - 1 ? p->low : p->fallback - 1;
  double high = p->high < p->fallback + 1 ? p->high : p->fallback + 1;
  return low + (high - low) * uniform(state);
}

/* An operation that may have a kink, at a row. */
typedef struct kink {
  const flp_loss *loss;
  double *inputs;
  const double *parameters;
  uint32_t node;
  int bound; /* of clamp: operand 1 or 2 */
} kink;

/* What changes its sign at the kink, for a logprob; NAN if the operation has none. */
static double side(const kink *k, double logprob) {
  double values[FLP_LOSS_NODES_MAX];
  const uint16_t *at = k->loss->nodes[k->node].operands;
  k->inputs[FLP_LOSS_LOGPROB] = logprob;
  flp_loss_values(k->loss, k->inputs, k->parameters, NULL, values);
  switch (k->loss->nodes[k->node].op) {
    case FLP_LOSS_ABS:
      return values[at[0]];
    case FLP_LOSS_MIN:
    case FLP_LOSS_MAX:
    case FLP_LOSS_LT:
    case FLP_LOSS_LE:
    case FLP_LOSS_EQ:
      return values[at[0]] - values[at[1]];
    case FLP_LOSS_CLAMP:
      return values[at[0]] - values[at[k->bound]];
    default:
      return NAN;
  }
}

/* A logprob from -12 to 0 at the kink, by bisection; NAN if there is none. */
static double find_kink(const kink *k) {
  enum { STEPS = 48, HALVINGS = 60 };
  for (int step = 0; step < STEPS; step++) {
    double low = -12.0 * (step + 1) / STEPS, high = -12.0 * step / STEPS, at_low = side(k, low);
    if (!(at_low * side(k, high) < 0)) continue;
    for (int n = 0; n < HALVINGS; n++) {
      double middle = (low + high) / 2;
      *(at_low * side(k, middle) > 0 ? &low : &high) = middle;
    }
    return high;
  }
  return NAN;
}

/* Moves logprob beside a kink of some operation from a random one on; leaves it if there is none. Not upon it: there
 * rounding can make equal what is not, ratio·A and clamp(ratio)·A, and so half a derivative. */
static void move_to_kink(const flp_loss *loss, uint64_t *state, double *inputs, const double *parameters) {
  const double start = inputs[FLP_LOSS_LOGPROB];
  uint32_t first = (uint32_t)(uniform(state) * loss->node_count);
  kink k = {loss, inputs, parameters, first, uniform(state) < 0.5 ? 1 : 2};
  double found = NAN;
  for (uint32_t i = 0; i < loss->node_count && isnan(found); i++) {
    k.node = (first + i) % loss->node_count;
    found = find_kink(&k);
  }
  float towards = uniform(state) < 0.5 ? -INFINITY : 0;
  inputs[FLP_LOSS_LOGPROB] = isnan(found) ? start : (double)nextafterf(nextafterf((float)found, towards), towards);
}

void cli_loss_draw(const flp_loss *loss, uint64_t seed, int i, const double *given, double inputs[FLP_LOSS_ALL_INPUTS],
                   double parameters[FLP_LOSS_PARAMETERS_MAX]) {
  enum { ORDINARY, TIED = 5, FAR, IDLE, KINKED, KINDS };
  uint64_t state = cli_hash(seed) + ((uint64_t)i << 32);
  int kind = i % KINDS, is_weighted = flp_loss_inputs(loss) >> FLP_LOSS_WEIGHT & 1;
  double spread = kind == TIED ? 0 : kind == FAR ? 8 : 0.3;
  double logprob = -12 * uniform(&state);
  inputs[FLP_LOSS_LOGPROB] = logprob;
  inputs[FLP_LOSS_TARGET_LOGPROB] = inputs[FLP_LOSS_TEACHER_LOGPROB] = 0;
  inputs[FLP_LOSS_ENTROPY] = 8 * uniform(&state);
  inputs[FLP_LOSS_OLD_LOGPROB] = fmin(logprob + spread * normal(&state), 0);
  inputs[FLP_LOSS_REF_LOGPROB] = fmin(logprob + spread * normal(&state), 0);
  inputs[FLP_LOSS_ADVANTAGE] = kind == IDLE && i & 1 ? 0 : normal(&state);
  inputs[FLP_LOSS_WEIGHT] = kind == IDLE && is_weighted && !(i & 1) ? 0 : uniform(&state);
  for (int j = FLP_LOSS_FIRST_VECTOR; j < FLP_LOSS_INPUTS_MAX; j++) inputs[j] = normal(&state);
  for (uint32_t j = 0; j < loss->parameter_count; j++)
    parameters[j] = i / KINDS % 2 ? draw_parameter(&loss->parameters[j], &state) : given[j];
  inputs[FLP_LOSS_LSE] = 12 * uniform(&state) - 2;
  inputs[FLP_LOSS_MEAN_SCORE] = inputs[FLP_LOSS_LSE] - 12 * uniform(&state);
  for (int j = 0; j < FLP_LOSS_ALL_INPUTS; j++) inputs[j] = (double)(float)inputs[j];
  if (kind == KINKED) move_to_kink(loss, &state, inputs, parameters);
}

/* ---- derivatives ---- */

/* Difference quotient of one side, extrapolated: its error is of the order of the step's square. */
static double one_sided(cli_loss_fn f, const void *context, double x, double at_x, double step) {
  double whole = (f(x + step, context) - at_x) / step, half = (f(x + step / 2, context) - at_x) / (step / 2);
  return 2 * half - whole;
}

/* The difference in units of what is allowed; without end where it is no number. */
static double error_of(double a, double b, double slack) {
  double error = fabs(a - b) / (slack + 1e-5 * fmax(fabs(a), fabs(b)));
  return isnan(error) ? INFINITY : error;
}

double cli_loss_derivative_error(cli_loss_fn f, const void *context, double x, double claimed, double *nearest) {
  double at_x = f(x, context), slack = 1e-7 * (1 + fabs(at_x)), scale = fmax(1, fabs(x));
  double left_before = NAN, right_before = NAN, least = INFINITY;
  *nearest = NAN;
  for (double h = 1e-3; h > 1e-6; h /= 10) {
    double left = one_sided(f, context, x, at_x, -h * scale), right = one_sided(f, context, x, at_x, h * scale);
    double both = (left + right) / 2;
    least = fmin(least, error_of(claimed, both, slack));
    least = fmin(least, fmin(error_of(claimed, left, slack), error_of(claimed, right, slack)));
    /* a jump has quotients that grow; those of a kink stay */
    int is_kink = error_of(left, left_before, slack) <= 1 && error_of(right, right_before, slack) <= 1;
    if (is_kink && fmin(left, right) <= claimed && claimed <= fmax(left, right)) return 0;
    if (isnan(*nearest) || fabs(both - claimed) < fabs(*nearest - claimed)) *nearest = both;
    left_before = left;
    right_before = right;
  }
  return least;
}

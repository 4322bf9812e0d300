/* partials.c: derivatives of operations by their operands. */
#include "runtime/loss/loss.h"

/* Share of the left of two operands where the first of them wins, loses or equals the other. NaN: it has all of it. */
static double share(int loses, int ties) {
  return loses ? 0 : ties ? 0.5 : 1;
}

int flp_loss_is_mask(uint32_t op) {
  return op == FLP_LOSS_MIN || op == FLP_LOSS_MAX || op == FLP_LOSS_CLAMP || op == FLP_LOSS_WHERE;
}

/* ∂y/∂a of y = op(a). */
static double partial_of_one(uint32_t op, double a, double y) {
  switch (op) {
    case FLP_LOSS_NEG:
      return -1;
    case FLP_LOSS_ABS:
      return (a > 0) - (a < 0);
    case FLP_LOSS_EXP:
      return y;
    case FLP_LOSS_EXPM1:
      return y + 1;
    case FLP_LOSS_LOG:
      return 1 / a;
    default: /* sqrt */
      return 0.5 / y;
  }
}

static void set(double out[3], double a, double b, double c) {
  out[0] = a;
  out[1] = b;
  out[2] = c;
}

/* Partial derivatives of min(max(a, low), high). If the bounds cross, the upper one holds. NaN is neither between
 * bounds nor beyond one. */
static void clamp_partials(double a, double low, double high, double out[3]) {
  int is_between = a >= low && a <= high;
  int is_low = a < low && low < high;
  int is_high = a > high || high < low;
  set(out, is_between, is_low, is_high);
}

void flp_loss_partials(uint32_t op, const double v[3], double y, double out[3]) {
  double a = v[0], b = v[1], c = v[2];
  switch (op) {
    case FLP_LOSS_ADD:
      return set(out, 1, 1, 0);
    case FLP_LOSS_SUB:
      return set(out, 1, -1, 0);
    case FLP_LOSS_MUL:
      return set(out, b, a, 0);
    case FLP_LOSS_DIV:
      return set(out, 1 / b, -y / b, 0);
    case FLP_LOSS_MIN:
      return set(out, share(a > b, a == b), share(b > a, a == b), 0);
    case FLP_LOSS_MAX:
      return set(out, share(a < b, a == b), share(b < a, a == b), 0);
    case FLP_LOSS_CLAMP:
      return clamp_partials(a, b, c, out);
    case FLP_LOSS_WHERE:
      return set(out, 0, a != 0, a == 0);
    default:
      return set(out, partial_of_one(op, a, y), 0, 0);
  }
}

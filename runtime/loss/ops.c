/* ops.c: the operations of a loss program: what they are called, take and give, and their values. */
#include <math.h>
#include <string.h>

#include "runtime/loss/loss.h"

enum { NUMBER = 'n', CONDITION = 'c' };

/* Exact ones give the same bits on every machine, so that folding them keeps programs reproducible. */
static const struct {
  const char *name, *operands; /* a letter a node */
  char result;
  int is_exact;
} ops[FLP_LOSS_OPS] = {
    [FLP_LOSS_CONSTANT] = {"constant", "", NUMBER, 0},
    [FLP_LOSS_INPUT] = {"input", "", NUMBER, 0},
    [FLP_LOSS_PARAMETER] = {"parameter", "", NUMBER, 0},
    [FLP_LOSS_NEG] = {"neg", "n", NUMBER, 1},
    [FLP_LOSS_ABS] = {"abs", "n", NUMBER, 1},
    [FLP_LOSS_EXP] = {"exp", "n", NUMBER, 0},
    [FLP_LOSS_EXPM1] = {"expm1", "n", NUMBER, 0},
    [FLP_LOSS_LOG] = {"log", "n", NUMBER, 0},
    [FLP_LOSS_SQRT] = {"sqrt", "n", NUMBER, 1},
    [FLP_LOSS_DETACH] = {"detach", "n", NUMBER, 1},
    [FLP_LOSS_ADD] = {"add", "nn", NUMBER, 1},
    [FLP_LOSS_SUB] = {"sub", "nn", NUMBER, 1},
    [FLP_LOSS_MUL] = {"mul", "nn", NUMBER, 1},
    [FLP_LOSS_DIV] = {"div", "nn", NUMBER, 1},
    [FLP_LOSS_MIN] = {"min", "nn", NUMBER, 1},
    [FLP_LOSS_MAX] = {"max", "nn", NUMBER, 1},
    [FLP_LOSS_CLAMP] = {"clamp", "nnn", NUMBER, 1},
    [FLP_LOSS_LT] = {"lt", "nn", CONDITION, 0},
    [FLP_LOSS_LE] = {"le", "nn", CONDITION, 0},
    [FLP_LOSS_EQ] = {"eq", "nn", CONDITION, 0},
    [FLP_LOSS_AND] = {"and", "cc", CONDITION, 0},
    [FLP_LOSS_OR] = {"or", "cc", CONDITION, 0},
    [FLP_LOSS_NOT] = {"not", "c", CONDITION, 0},
    [FLP_LOSS_WHERE] = {"where", "cnn", NUMBER, 0},
    [FLP_LOSS_SUM] = {"sum", "n", NUMBER, 0},
};

const char *flp_loss_op_name(uint32_t op) {
  return op < FLP_LOSS_OPS ? ops[op].name : NULL;
}

int flp_loss_op_arity(uint32_t op) {
  return op < FLP_LOSS_OPS ? (int)strlen(ops[op].operands) : 0;
}

int flp_loss_takes_condition(uint32_t op, int j) {
  return ops[op].operands[j] == CONDITION;
}

int flp_loss_gives_condition(uint32_t op) {
  return ops[op].result == CONDITION;
}

int flp_loss_is_exact(uint32_t op) {
  return ops[op].is_exact;
}

/* ---- values ---- */

static double lesser(double a, double b) {
  return a < b || isnan(a) ? a : b;
}

static double greater(double a, double b) {
  return a > b || isnan(a) ? a : b;
}

static double apply_one(flp_loss_op op, double a) {
  switch (op) {
    case FLP_LOSS_NEG:
      return -a;
    case FLP_LOSS_ABS:
      return fabs(a);
    case FLP_LOSS_EXP:
      return exp(a);
    case FLP_LOSS_EXPM1:
      return expm1(a);
    case FLP_LOSS_LOG:
      return log(a);
    case FLP_LOSS_SQRT:
      return sqrt(a);
    case FLP_LOSS_NOT:
      return a == 0;
    default: /* detach */
      return a;
  }
}

static double apply_two(flp_loss_op op, double a, double b) {
  switch (op) {
    case FLP_LOSS_ADD:
      return a + b;
    case FLP_LOSS_SUB:
      return a - b;
    case FLP_LOSS_MUL:
      return a * b;
    case FLP_LOSS_DIV:
      return a / b;
    case FLP_LOSS_MIN:
      return lesser(a, b);
    case FLP_LOSS_MAX:
      return greater(a, b);
    case FLP_LOSS_LT:
      return a < b;
    case FLP_LOSS_LE:
      return a <= b;
    case FLP_LOSS_EQ:
      return a == b;
    case FLP_LOSS_AND:
      return a != 0 && b != 0;
    default: /* or */
      return a != 0 || b != 0;
  }
}

double flp_loss_apply(flp_loss_op op, double a, double b, double c) {
  if (op == FLP_LOSS_WHERE) return a != 0 ? b : c;
  if (op == FLP_LOSS_CLAMP) return lesser(greater(a, b), c);
  return flp_loss_op_arity(op) == 1 ? apply_one(op, a) : apply_two(op, a, b);
}

/* loss_case.h: loss programs that must be found and built. */
#ifndef FLP_TEST_LOSS_CASE_H
#define FLP_TEST_LOSS_CASE_H

#include <criterion/criterion.h>

#include "runtime/loss/loss.h"

static inline flp_loss find(const char *text) {
  flp_loss loss;
  cr_assert_eq(flp_loss_find(text, &loss), FLP_OK, "%s", flp_error_detail());
  return loss;
}

static inline uint16_t append(flp_loss *loss, flp_loss_op op, uint32_t a, uint32_t b, uint32_t c) {
  uint16_t node;
  cr_assert_eq(flp_loss_append(loss, op, a, b, c, &node), FLP_OK, "%s", flp_error_detail());
  return node;
}

#endif

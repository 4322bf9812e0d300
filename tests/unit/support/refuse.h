/* refuse.h: calls that are refused, with which sentence. */
#ifndef FLP_TEST_REFUSE_H
#define FLP_TEST_REFUSE_H

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/api/validate.h"

/* Addresses that are aligned but lead nowhere: the checks never look behind them. */
#define AT(k) ((void *)(uintptr_t)(0x10000 * (k)))

static inline void expect_refused(flp_status status, const char *sentence) {
  cr_expect_eq(status, FLP_ERROR_ARGUMENT, "%s: %s", flp_status_name(status), sentence);
  cr_expect_str_eq(flp_error_detail(), sentence);
}

/* The same of a part of the sentence. */
static inline void expect_refused_with(flp_status status, const char *part) {
  cr_expect_eq(status, FLP_ERROR_ARGUMENT, "%s: %s", flp_status_name(status), part);
  cr_expect_not_null(strstr(flp_error_detail(), part), "%s, not %s", flp_error_detail(), part);
}

#endif

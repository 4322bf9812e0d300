/* refuse.h: rows of what the API refuses, with which sentence, and of what it takes. */
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

static inline flp_status resolve_spec(flp_spec spec) {
  flp_spec out;
  return flp_spec_resolve(&spec, &out);
}

/* Of a spec that must resolve. */
static inline flp_status resolve_args(flp_spec spec, const flp_args *args) {
  flp_spec resolved;
  flp_args out;
  cr_assert_eq(flp_spec_resolve(&spec, &resolved), FLP_OK, "%s", flp_error_detail());
  return flp_args_resolve(&resolved, args, &out);
}

/* good_spec() and good_args(pass), which the file of the test has, but for an assignment to spec and args. */
#define SPEC_WITH(assignment)      \
  ({                               \
    flp_spec spec = good_spec();   \
    assignment;                    \
    resolve_spec(spec);            \
  })
#define ARGS_WITH(pass_, assignment)             \
  ({                                             \
    flp_spec spec = good_spec();                 \
    flp_args args = good_args(FLP_PASS_##pass_); \
    assignment;                                  \
    resolve_args(spec, &args);                   \
  })
#define REFUSE_SPEC(assignment, sentence) expect_refused(SPEC_WITH(assignment), sentence)
#define ACCEPT_SPEC(assignment) cr_expect_eq(SPEC_WITH(assignment), FLP_OK, "%s", flp_error_detail())
#define REFUSE(pass, assignment, sentence) expect_refused(ARGS_WITH(pass, assignment), sentence)
#define ACCEPT(pass, assignment) cr_expect_eq(ARGS_WITH(pass, assignment), FLP_OK, "%s", flp_error_detail())

/* The same row of each value of a field, of which the sentence names field and value. row: REFUSE_SPEC, or another of an
 * assignment and a sentence */
#define REFUSE_EACH(row, field, accepted, ...)                                                      \
  do {                                                                                              \
    static const int64_t each[] = {__VA_ARGS__};                                                    \
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {                                     \
      char text[256];                                                                               \
      snprintf(text, sizeof text, #field " is %" PRId64 " (accepted: " accepted ")", each[i]);      \
      row(field = (__typeof__(field))each[i], text);                                                \
    }                                                                                               \
  } while (0)

#endif

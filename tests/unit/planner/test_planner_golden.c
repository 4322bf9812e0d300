/* test_planner_golden.c: exact layouts of every pass, mode and feature, as tests/golden/planner has them. */
#include <criterion/criterion.h>

#include "tests/unit/support/golden.h"

Test(planner_golden, layouts_are_as_they_were) {
  golden_check("planner", 10, NULL);
}

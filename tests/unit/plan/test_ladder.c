/* test_ladder.c: the architectures whose kernels a plan tries, best first. What becomes of them is in
 * tests/golden/plan. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/plan/plan.h"
#include "tests/unit/support/words.h"

Test(ladder, architectures_are_listed_best_first) {
  static const struct {
    int major, minor, clusters;
    const char *spec, *wanted;
  } rows[] = {{9, 0, 1, "", "sm_90a sm_80 "},           {9, 0, 0, "dtype=fp16", "sm_80 "},
              {9, 0, 1, "dtype=fp32", "sm_90a sm_80 "}, {9, 0, 1, "alignment=8", "sm_80 "},
              {10, 0, 1, "", "sm_100f sm_80 "},         {10, 3, 1, "", "sm_100f sm_80 "},
              {10, 0, 1, "dtype=fp32", "sm_80 "},       {11, 0, 1, "", "sm_80 "},
              {8, 0, 1, "", "sm_80 "},                  {7, 5, 1, "", ""}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    flp_device device = {.major = rows[i].major, .minor = rows[i].minor};
    flp_spec spec = words_spec(rows[i].spec);
    const char *arches[FLP_LADDER_ARCHES_MAX];
    char got[64] = "";
    int count = flp_ladder_arches(&device, &spec, NULL, rows[i].clusters, 0, NULL, arches);
    for (int j = 0; j < count; j++) snprintf(got + strlen(got), sizeof got - strlen(got), "%s ", arches[j]);
    cr_expect_str_eq(got, rows[i].wanted, "row %zu", i);
  }
}

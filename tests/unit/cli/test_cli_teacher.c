/* test_cli_teacher.c: teachers and ids of several targets as bench, check and run draw them. */
#include <criterion/criterion.h>
#include <math.h>

#include "gen/cli/call/teacher.h"
#include "runtime/flp.h"

Test(teacher, its_targets_have_less_than_the_whole_mass) {
  static const int64_t counts[] = {1, 2, 8, 64, FLP_TARGETS_MAX};
  float values[FLP_TARGETS_MAX];
  for (int c = 0; c < 5; c++) {
    double least = 1, most = 0;
    for (uint64_t seed = 0; seed < 2000; seed++) {
      double sum = 0, low = 0, high = -INFINITY;
      cli_teacher_draw(seed, counts[c], values);
      for (int64_t k = 0; k < counts[c]; k++) {
        sum += exp((double)values[k]);
        low = fmin(low, (double)values[k]);
        high = fmax(high, (double)values[k]);
      }
      cr_assert(high < 0 && high - low < log(50), "seed %d: %g to %g", (int)seed, low, high);
      least = fmin(least, sum);
      most = fmax(most, sum);
    }
    cr_expect(least > 0.5999 && least < 0.61, "%g of %ld", least, (long)counts[c]);
    cr_expect(most > 0.97 && most < 0.9801, "%g of %ld", most, (long)counts[c]);
  }
}

Test(teacher, a_seed_gives_the_same_everywhere_and_another_one_does_not) {
  float one[8], again[8], other[8];
  cli_teacher_draw(5, 8, one);
  cli_teacher_draw(5, 8, again);
  cli_teacher_draw(6, 8, other);
  cr_expect_arr_eq(one, again, sizeof one);
  for (int k = 0; k < 8; k++) cr_expect(one[k] < other[k] || one[k] > other[k]);
}

Test(teacher, ids_are_apart_while_there_are_any) {
  int64_t ids[6] = {3, 4, 0};
  cr_expect_eq(cli_id_apart(2, ids, 3, 5), 2);
  cr_expect_eq(cli_id_apart(3, ids, 3, 5), 1, "over the end of the vocabulary");
  ids[3] = 1, ids[4] = 2;
  cr_expect_eq(cli_id_apart(4, ids, 5, 5), 4, "none is left");
}

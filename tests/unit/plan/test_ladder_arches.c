/* test_ladder_arches.c: the best architecture serves every sort of operation with kernels of the real generator, as
 * tests/golden/generated has it. */
#include <criterion/criterion.h>

#include "tests/unit/support/golden.h"

Test(ladder_arches, every_operation_takes_the_best_one_that_serves_it, .timeout = 900) {
  golden_check("generated", 1, NULL);
}

/* test_scale.c: flp_scale on the CPU. What it refuses and launches is in tests/golden/api/scale.txt. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "runtime/base/half.h"
#include "tests/unit/support/stage.h"
#include "tests/unit/support/words.h"

Test(scale, eager) {
  flp_spec spec = words_spec("op=scale V=3 D=0 alignment=2");
  flp_options host = words_options("rung=auto device=host");
  flp_plan *plan = stage_plan(&spec, &host);
  float given[] = {1, -2, NAN, 7, 0.3f, INFINITY, -0.0f, 5}; /* a gap behind each row of three */
  uint16_t values[8], before[8];
  float factors[] = {1, 1.0f / 3};
  flp_half_narrow(FLP_DTYPE_BF16, given, 8, values);
  memcpy(before, values, sizeof before);
  flp_scale_args a = FLP_SCALE_ARGS_INIT;
  a.n = 2;
  a.values = values;
  a.values_stride = 4;
  a.factor = &factors[0];
  cr_assert_eq(flp_scale(plan, &a), FLP_OK, "%s", flp_error_detail());
  cr_expect_arr_eq(values, before, sizeof before);
  a.factor = &factors[1];
  cr_assert_eq(flp_scale(plan, &a), FLP_OK);
  for (int i = 0; i < 8; i++) {
    float was = flp_half_from_bf16(before[i]), is = flp_half_from_bf16(values[i]);
    float want = i % 4 == 3 ? was : flp_half_from_bf16(flp_half_to_bf16(was * factors[1]));
    cr_expect(isnan(was) ? isnan(is) : is == want, "%d: %g", i, (double)is);
  }
  flp_plan_destroy(plan);
}

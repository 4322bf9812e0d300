/* test_eager_faults.c: the eager rung where threads cannot be created: fewer of them compute the same bits, and a pass
 * allocates nothing beside its workspace. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/faults/faults.h"
#include "tests/unit/support/eager_case.h"
#include "tests/unit/support/words.h"

enum { ROWS = 200, THREADS = 4 };

static eager_case c;
static float logprob[ROWS];

/* Enough scores that every thread has work. */
static void start(int listed) {
  flp_spec spec = words_spec("dtype=fp32 V=2000 D=128 grads=hidden,weight");
  spec.listed = listed;
  eager_case_create_listed(&c, &spec, ROWS, 200, 1);
  c.threads = THREADS;
  eager_case_forward(&c);
  memcpy(logprob, c.logprob, sizeof logprob);
  eager_case_backward(&c);
}

static flp_status forward_and_backward(void) {
  eager_case_forward(&c);
  eager_case_backward(&c);
  return FLP_OK;
}

static float *grad_weight;
static size_t grad_bytes;

static void check(flp_status status, const char *failed) {
  cr_assert_eq(status, FLP_OK);
  cr_assert_arr_eq(c.logprob, logprob, sizeof logprob, "%s", failed);
  cr_assert_arr_eq(eager_case_output(&c, FLP_GRAD_WEIGHT)->data, grad_weight, grad_bytes, "%s", failed);
}

static void run(int listed) {
  static const faults_operation operation = {"an eager pass", NULL, forward_and_backward, check, 0};
  start(listed);
  const eager_output *out = eager_case_output(&c, FLP_GRAD_WEIGHT);
  grad_bytes = out->bytes;
  grad_weight = memcpy(malloc(grad_bytes), out->data, grad_bytes);
  cr_expect_geq(faults_each(&operation, FAULTS_THREAD, 0), 2);
  free(grad_weight);
  eager_case_destroy(&c);
}

Test(eager_faults, threads) {
  for (int listed = 0; listed < 2; listed++) run(listed);
}

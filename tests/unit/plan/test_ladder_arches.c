/* test_ladder_arches.c: the architecture whose kernels a plan takes: the best one serves every sort of operation with
 * kernels of the real generator, and where its kernels do not load a warning or, in strict mode, an error says so. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/loss/loss.h"
#include "runtime/plan/plan.h"
#include "tests/unit/support/stage.h"

enum {
  WHOLE = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS,
  ADAPTER = FLP_GRAD_HIDDEN | FLP_GRAD_BIAS | FLP_GRAD_LORA_A | FLP_GRAD_LORA_B
};

static const char hopper[] = "capability=9.0";

typedef struct operation {
  const char *name;
  flp_spec spec;
  const char *loss; /* NULL: none */
} operation;

#define OF(type, mask, ...)                                                                                     \
  {                                                                                                             \
    .dtype = FLP_DTYPE_##type, .entropy = FLP_ENTROPY_FORWARD, .grads = mask, .struct_bytes = sizeof(flp_spec), \
    __VA_ARGS__                                                                                                 \
  }

static const operation operations[] = {
    {"scores", OF(BF16, 0), NULL},
    {"dense", OF(BF16, WHOLE), NULL},
    {"dense fp16", OF(FP16, WHOLE), NULL},
    {"dense fp32", OF(FP32, WHOLE), NULL},
    {"keep", OF(BF16, WHOLE, .keep = 1), NULL},
    {"loss", OF(BF16, FLP_GRAD_HIDDEN), "grpo"},
    {"cross_entropy", OF(BF16, FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT), "cross_entropy"},
    {"tail", OF(BF16, WHOLE, .tail = 0x1p-9f), NULL},
    {"targets", OF(BF16, WHOLE, .targets = 20), NULL},
    {"topk", OF(BF16, WHOLE, .topk = 20, .rank = 1), NULL},
    {"listed", OF(BF16, WHOLE, .listed = 1), NULL}, /* all of whose kernels are portable */
    {"mixed", OF(BF16, WHOLE, .weight_dtype = FLP_DTYPE_FP32, .mixed = FLP_MIXED_ROUND), NULL},
    {"mixed split", OF(BF16, WHOLE, .hidden_dtype = FLP_DTYPE_FP32, .mixed = FLP_MIXED_SPLIT), NULL},
    {"lora", OF(BF16, ADAPTER, .lora_rank = 24), NULL},
    {"lora fp16", OF(FP16, FLP_GRAD_LORA_B, .lora_rank = 64), NULL},
    {"lora fp32", OF(FP32, ADAPTER, .lora_rank = 8), NULL},
    {"lora scores", OF(BF16, 0, .lora_rank = 16), NULL},
    {"lora loss", OF(BF16, FLP_GRAD_HIDDEN | FLP_GRAD_LORA_A | FLP_GRAD_LORA_B, .lora_rank = 24), "grpo"},
};

/* A spec whose loss lasts until the next one. */
static flp_spec spec_of(const operation *o) {
  static uint8_t program[FLP_LOSS_BYTES_MAX];
  flp_spec spec = o->spec;
  spec.vocab = 1000;
  spec.hidden = 64;
  spec.target_dtype = FLP_DTYPE_INT64;
  spec.alignment = 16;
  spec.has_bias = (spec.grads & FLP_GRAD_BIAS) != 0;
  if (!o->loss) return spec;
  cr_assert_eq(flp_loss_builtin_bytes(o->loss, program, sizeof program, &spec.loss_bytes), FLP_OK);
  spec.loss = program;
  return spec;
}

Test(ladder_arches, every_operation_takes_the_best_one_that_serves_it, .timeout = 900) {
  stage s;
  stage_open(&s, hopper);
  setenv("FLP_JIT_LIBRARY", FLP_TEST_FLPGEN_LIBRARY, 1);
  for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
    const operation *o = &operations[i];
    flp_spec spec = spec_of(o);
    flp_plan *plan;
    cr_assert_eq(flp_plan_create(&spec, NULL, &plan), FLP_OK, "%s: %s", o->name, flp_error_detail());
    cr_expect_leq(flp_plan_get_rung(plan), FLP_RUNG_JIT, "%s", o->name);
    cr_expect_str_eq(plan->arch, spec.listed ? "sm_80" : "sm_90a", "%s took %s", o->name, plan->arch);
    flp_plan_destroy(plan);
  }
  cr_expect_eq(stage_logged("are not taken"), 0, "%s", stage_messages());
}

/* ---- kernels that are there, but do not load ---- */

static flp_spec half_mapped(void) {
  flp_spec spec = stage_spec(FLP_GRAD_HIDDEN);
  spec.vocab = 4000;
  return spec;
}

static const char apart[] = "modules forward and dz are for different architectures";

Test(ladder_arches, an_architecture_whose_kernels_fail_is_said_once) {
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = half_mapped();
  s.provider_script("portable=dz");
  for (int i = 0; i < 2; i++) {
    flp_plan *plan = stage_plan(&spec, NULL);
    cr_expect_str_eq(plan->arch, "sm_80");
    cr_expect_eq(flp_plan_get_rung(plan), i ? FLP_RUNG_HEURISTIC : FLP_RUNG_JIT);
    flp_plan_destroy(plan);
  }
  char text[200];
  snprintf(text, sizeof text, "1 kernels for sm_90a are not taken on rung jit: %s", apart);
  cr_expect_eq(stage_logged(text), 1, "%s", stage_messages());
}

Test(ladder_arches, strict_mode_takes_no_lower_architecture) {
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = half_mapped();
  s.provider_script("portable=dz");
  flp_options options = FLP_OPTIONS_INIT;
  options.strict = 1;
  flp_plan *plan = NULL;
  cr_expect_eq(flp_plan_create(&spec, &options, &plan), FLP_ERROR_CORRUPT);
  char text[200];
  snprintf(text, sizeof text, "rung jit failed: %s", apart);
  cr_expect_str_eq(flp_error_detail(), text);
  cr_expect_eq(stage_logged("not taken on rung"), 0, "%s", stage_messages());
}

/* What a cache lacks is made for the same architecture: no fallback. */
Test(ladder_arches, kernels_that_a_cache_lacks_are_no_warning) {
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = half_mapped();
  flp_options options = FLP_OPTIONS_INIT;
  options.strict = 1;
  flp_plan *plan = stage_plan(&spec, &options);
  cr_expect_str_eq(plan->arch, "sm_90a");
  cr_expect_eq(stage_logged("not taken on rung"), 0, "%s", stage_messages());
  flp_plan_destroy(plan);
}

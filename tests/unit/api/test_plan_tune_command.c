/* test_plan_tune_command.c: the `flpgen tune` that a plan advises, option by option. */
#include <criterion/criterion.h>

#include "runtime/loss/loss.h"
#include "runtime/plan/plan.h"
#include "tests/unit/support/stage.h"

Test(plan_tune_command, names_every_option_of_a_spec) {
  char text[FLP_TUNE_COMMAND_BYTES];
  flp_spec spec = stage_spec(0);
  flp_plan_tune_command(&spec, text);
  cr_expect_str_eq(text, "flpgen tune --vocab 1000 --hidden 64 --dtype bf16");
  spec = (flp_spec){.vocab = INT32_MAX,
                    .hidden = INT32_MAX,
                    .dtype = FLP_DTYPE_FP16,
                    .target_dtype = FLP_DTYPE_INT32,
                    .entropy = FLP_ENTROPY_BACKWARD,
                    .grads = 7,
                    .has_bias = 1,
                    .softcap = 1.17549435e-38f,
                    .per_row_temperature = 1,
                    .grad_hidden_dtype = FLP_DTYPE_FP32,
                    .grad_weight_dtype = FLP_DTYPE_FP32,
                    .accumulate_grad_weight = 1,
                    .alignment = 2};
  spec.struct_bytes = sizeof spec;
  flp_plan_tune_command(&spec, text);
  cr_expect_str_eq(text,
                   "flpgen tune --vocab 2147483647 --hidden 2147483647 --dtype fp16 --target-dtype int32 --entropy "
                   "backward --grad hidden,weight,bias --bias --softcap 1.17549435e-38 --per-row-temperature "
                   "--grad-hidden-dtype fp32 --grad-weight-dtype fp32 --accumulate-grad-weight --alignment 2");
}

Test(plan_tune_command, names_what_is_trained) {
  char text[FLP_TUNE_COMMAND_BYTES];
  uint8_t program[FLP_LOSS_BYTES_MAX];
  flp_spec spec = stage_spec(FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT);
  spec.keep = 1;
  flp_plan_tune_command(&spec, text);
  cr_expect_str_eq(text, "flpgen tune --vocab 1000 --hidden 64 --dtype bf16 --grad hidden,weight --keep");
  spec.keep = 0;
  spec.loss = program;
  cr_assert_eq(flp_loss_builtin_bytes("grpo+k3", program, sizeof program, &spec.loss_bytes), FLP_OK);
  flp_plan_tune_command(&spec, text);
  cr_expect_str_eq(text, "flpgen tune --vocab 1000 --hidden 64 --dtype bf16 --grad hidden,weight --loss grpo+k3");
  flp_loss own;
  uint16_t logprob;
  cr_assert_eq(flp_loss_start(&own, "mine"), FLP_OK);
  cr_assert_eq(flp_loss_append(&own, FLP_LOSS_INPUT, FLP_LOSS_LOGPROB, 0, 0, &logprob), FLP_OK);
  cr_assert_eq(flp_loss_finish(&own, logprob), FLP_OK);
  spec.loss_bytes = flp_loss_write(&own, program, sizeof program);
  flp_plan_tune_command(&spec, text);
  cr_expect_str_eq(text, "flpgen tune --vocab 1000 --hidden 64 --dtype bf16 --grad hidden,weight --loss FILE");
}

/* test_hfconfig.c: Hugging Face configs of several families, and malformed ones with their exact reasons. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gen/cli/shared/hfconfig.h"
#include "runtime/base/status.h"

static flp_status read_text(const char *text, size_t length, cli_hfconfig *out) {
  char path[512];
  snprintf(path, sizeof path, FLP_TEST_SCRATCH "/hfconfig-%ld-case", (long)getpid());
  FILE *file = fopen(path, "wb");
  cr_assert_not_null(file);
  cr_assert_eq(fwrite(text, 1, length, file), length);
  fclose(file);
  flp_status status = cli_hfconfig_read(path, out);
  unlink(path);
  return status;
}

static const char *reason(void) {
  const char *detail = flp_error_detail(), *end = strstr(detail, "-case: ");
  return end ? end + strlen("-case: ") : detail;
}

static cli_hfconfig read_good(const char *text) {
  cli_hfconfig config;
  cr_assert_eq(read_text(text, strlen(text), &config), FLP_OK, "%s: %s", text, flp_error_detail());
  return config;
}

Test(hfconfig, plain_model) {
  cli_hfconfig config = read_good("{\"vocab_size\":151936,\"hidden_size\":4096,\"torch_dtype\":\"bfloat16\"}");
  cr_expect_eq(config.vocab, 151936);
  cr_expect_eq(config.hidden, 4096);
  cr_expect_eq(config.dtype, FLP_DTYPE_BF16);
  cr_expect_eq(config.softcap, 0.0);
  cr_expect_eq(config.scale, 1.0);
}

Test(hfconfig, nested_text_model_stands_before_the_whole) {
  static const char *const names[] = {"text_config", "llm_config", "language_config"};
  for (int i = 0; i < 3; i++) {
    char text[256];
    snprintf(text, sizeof text,
             "{\"vocab_size\":10,\"hidden_size\":16,\"torch_dtype\":\"float16\","
             "\"%s\":{\"vocab_size\":262208,\"hidden_size\":3840,\"final_logit_softcapping\":30.0}}",
             names[i]);
    cli_hfconfig config = read_good(text);
    cr_expect_eq(config.vocab, 262208);
    cr_expect_eq(config.hidden, 3840);
    cr_expect_eq(config.softcap, 30.0);
    cr_expect_eq(config.dtype, FLP_DTYPE_FP16, "what the nested model lacks, the whole has");
  }
}

Test(hfconfig, scales) {
  cr_expect_eq(read_good("{\"vocab_size\":8,\"hidden_size\":8,\"logits_scaling\":16.0}").scale, 0.0625);
  cr_expect_eq(read_good("{\"vocab_size\":8,\"hidden_size\":8,\"logit_scale\":0.25}").scale, 0.25);
  cr_expect_eq(read_good("{\"vocab_size\":8,\"hidden_size\":8,\"logit_scale\":null}").scale, 1.0);
}

Test(hfconfig, other_names_and_dtypes) {
  cr_expect_eq(read_good("{\"vocab_size\":8,\"n_embd\":768}").hidden, 768);
  cr_expect_eq(read_good("{\"vocab_size\":8,\"d_model\":512}").hidden, 512);
  cr_expect_eq(read_good("{\"padded_vocab_size\":65024,\"hidden_size\":8}").vocab, 65024);
  cr_expect_eq(read_good("{\"vocab_size\":8,\"hidden_size\":8,\"dtype\":\"float32\"}").dtype, FLP_DTYPE_FP32);
  cr_expect_eq(read_good("{\"vocab_size\":8,\"hidden_size\":8,\"dtype\":\"torch.bfloat16\"}").dtype, FLP_DTYPE_BF16);
  cr_expect_eq(read_good("{\"vocab_size\":8,\"hidden_size\":8,\"torch_dtype\":\"auto\"}").dtype, 0);
  cr_expect_eq(read_good("{\"vocab_size\":8,\"hidden_size\":8}").dtype, 0);
  cr_expect_eq(read_good("{\"vocab_size\":8,\"hidden_size\":8,\"final_logit_softcapping\":null}").softcap, 0.0);
}

Test(hfconfig, malformed) {
  static const struct {
    const char *text, *expected;
  } cases[] = {
      {"[]", "not a JSON object"},
      {"{}", "vocab_size is missing"},
      {"{\"vocab_size\":null,\"hidden_size\":8}", "vocab_size is missing"},
      {"{\"vocab_size\":8}", "hidden_size is missing"},
      {"{\"vocab_size\":\"8\",\"hidden_size\":8}", "vocab_size is not a whole number >= 1"},
      {"{\"vocab_size\":8.5,\"hidden_size\":8}", "vocab_size is not a whole number >= 1"},
      {"{\"vocab_size\":-8,\"hidden_size\":8}", "vocab_size is not a whole number >= 1"},
      {"{\"vocab_size\":8,\"hidden_size\":[8]}", "hidden_size is not a whole number >= 1"},
      {"{\"vocab_size\":8,\"hidden_size\":8,\"text_config\":3}", "text_config is not an object"},
      {"{\"vocab_size\":8,\"hidden_size\":8,\"torch_dtype\":\"int8\"}",
       "torch_dtype: expected one of bfloat16, float16, float32, got 'int8'"},
      {"{\"vocab_size\":8,\"hidden_size\":8,\"dtype\":16}", "dtype is not a string"},
      {"{\"vocab_size\":8,\"hidden_size\":8,\"final_logit_softcapping\":-1}",
       "final_logit_softcapping is not a finite number > 0"},
      {"{\"vocab_size\":8,\"hidden_size\":8,\"final_logit_softcapping\":0}",
       "final_logit_softcapping is not a finite number > 0"},
      {"{\"vocab_size\":8,\"hidden_size\":8,\"final_logit_softcapping\":\"x\"}",
       "final_logit_softcapping is not a finite number > 0"},
      {"{\"vocab_size\":8,\"hidden_size\":8,\"logit_scale\":1e20,\"logits_scaling\":1e-20}",
       "logit_scale / logits_scaling is 1e+40, not from 1.18e-38 to 3.4e38"},
      {"{\"vocab_size\":8,\"hidden_size\":8,\"logits_scaling\":0}",
       "logits_scaling is not a finite number other than 0"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    cli_hfconfig config;
    cr_expect_eq(read_text(cases[i].text, strlen(cases[i].text), &config), FLP_ERROR_CORRUPT, "%s", cases[i].text);
    cr_expect_str_eq(reason(), cases[i].expected, "%s: %s", cases[i].text, reason());
  }
}

Test(hfconfig, every_truncation_is_refused) {
  const char *text = "{\"vocab_size\":151936,\"text_config\":{\"hidden_size\":4096,\"dtype\":\"bfloat16\"}}";
  cli_hfconfig config;
  for (size_t length_left = 0; length_left < strlen(text); length_left++) {
    cr_expect_eq(read_text(text, length_left, &config), FLP_ERROR_CORRUPT, "%zu bytes", length_left);
    cr_expect_eq(strncmp(reason(), "not JSON: ", 10), 0, "%zu bytes: %s", length_left, reason());
  }
}

Test(hfconfig, files_that_are_none) {
  cli_hfconfig config;
  cr_expect_eq(cli_hfconfig_read("/nonexistent/config.json", &config), FLP_ERROR_IO);
  cr_expect_str_eq(flp_error_detail(), "/nonexistent/config.json: cannot open: No such file or directory");
  cr_expect_eq(cli_hfconfig_read("/tmp", &config), FLP_ERROR_IO);
  cr_expect_str_eq(flp_error_detail(), "/tmp: cannot read: not a regular file");
}

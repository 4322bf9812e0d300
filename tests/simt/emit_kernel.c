/* emit_kernel.c: one kernel by its key, for tests of what no specification asks for alone: emit_kernel FIELD=VALUE...
 *
 * Fields: kind, arch, dtype, target_dtype and out_dtype by name, entropy, bias, bias_grad, softcap, lora, alignment,
 * hidden, vocab, tune (as in flpgen's --tune behind the name of a kernel), program (hexadecimal bytes of a loss), ptx (0 leaves it
 * out). Prints the descriptor as JSON, with "ir", "ptx" and, of a program, "code" as the kernel for any loss reads it; a
 * refusal goes to standard error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/kernels/kernels.h"
#include "gen/cli/shared/json_out.h"

static const char *find(char **fields, const char *name, const char *fallback) {
  size_t length = strlen(name);
  for (; *fields; fields++)
    if (strncmp(*fields, name, length) == 0 && (*fields)[length] == '=') return *fields + length + 1;
  return fallback;
}

static uint32_t number(char **fields, const char *name, const char *fallback) {
  return (uint32_t)strtoul(find(fields, name, fallback), NULL, 10);
}

static flp_kernel_kind kind_named(const char *name) {
  for (int kind = FLP_KERNEL_ROWS; kind < FLP_KERNEL_KINDS; kind++)
    if (strcmp(flp_kernel_kind_name((flp_kernel_kind)kind), name) == 0) return (flp_kernel_kind)kind;
  return (flp_kernel_kind)0;
}

static flp_dtype dtype_named(const char *name) {
  for (int dtype = FLP_DTYPE_BF16; dtype <= FLP_DTYPE_FP64; dtype++)
    if (strcmp(flp_dtype_name((flp_dtype)dtype), name) == 0) return (flp_dtype)dtype;
  return (flp_dtype)0;
}

static flp_kernel_key key_of(char **fields) {
  flp_kernel_key key = {
      .kind = kind_named(find(fields, "kind", "")),
      .dtype = dtype_named(find(fields, "dtype", "bf16")),
      .target_dtype = dtype_named(find(fields, "target_dtype", "int64")),
      .out_dtype = dtype_named(find(fields, "out_dtype", "bf16")),
      .entropy = number(fields, "entropy", "0"),
      .bias = number(fields, "bias", "0"),
      .bias_grad = number(fields, "bias_grad", "0"),
      .softcap = number(fields, "softcap", "0"),
      .lora = number(fields, "lora", "0"),
      .weight_form = number(fields, "weight_form", "0"),
      .alignment = number(fields, "alignment", "16"),
      .hidden = number(fields, "hidden", "0"),
      .vocab = number(fields, "vocab", "0"),
  };
  snprintf(key.arch, sizeof key.arch, "%s", find(fields, "arch", "sm_80"));
  return key;
}

static json_t *hex(const uint8_t *bytes, size_t length) {
  char *text = calloc(2 * length + 1, 1);
  for (size_t i = 0; text && i < length; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
  json_t *string = json_string(text ? text : "");
  free(text);
  return string;
}

/* The program as data; null if there is none. */
static json_t *code_of(const char *program) {
  uint8_t bytes[FLP_LOSS_BYTES_MAX];
  size_t length = strlen(program) / 2;
  flp_loss loss;
  flp_loss_code code;
  for (size_t i = 0; i < length && i < sizeof bytes; i++) sscanf(program + 2 * i, "%2hhx", &bytes[i]);
  if (!length || length > sizeof bytes || flp_loss_read(bytes, length, &loss) != FLP_OK) return json_null();
  flp_loss_encode(&loss, &code);
  return hex((const uint8_t *)&code, sizeof code);
}

int main(int argc, char **argv) {
  (void)argc;
  flp_kernel_key key = key_of(argv + 1);
  flpgen_options options = {.want_ir = 1, .ir_only = number(argv + 1, "ptx", "1") == 0};
  flp_tuning tuning;
  cli_kernel kernel;
  char tune[FLP_TUNABLES_TEXT_BYTES];
  snprintf(tune, sizeof tune, "forward:%s", find(argv + 1, "tune", "own"));
  flp_status status = flp_tuning_parse("tune", strstr(tune, ":own") ? "" : tune, &tuning);
  key.tune = tuning.of[FLP_KERNEL_FORWARD]; /* whatever the kind, these are read alike */
  if (status != FLP_OK || cli_kernel_generate(&key, &options, &kernel) != FLP_OK) {
    fprintf(stderr, "%s\n", flp_error_detail());
    return 1;
  }
  json_t *document = cli_desc_json(&kernel.result.desc);
  json_object_set_new(document, "ir", cli_json_text(kernel.result.ir));
  if (kernel.result.ptx) json_object_set_new(document, "ptx", cli_json_text(kernel.result.ptx));
  json_object_set_new(document, "code", code_of(find(argv + 1, "program", "")));
  flpgen_result_clear(&kernel.result);
  return cli_json_print(document) != FLP_OK;
}

/* fuzz_safetensors.c: any bytes as a safetensors file, and as the header of one: refused with a reason, or every byte
 * of every tensor can be read, and the tensors are found by name.
 *
 * As a header the input ends at its first 0; the byte behind it says how many bytes of data follow. */
#include "gen/cli/tensors/safetensors.h"
#include "tests/fuzz/fuzz.h"

static void read_tensor(const cli_safetensors *file, const cli_tensor *tensor) {
  char shape[CLI_TENSOR_TEXT_BYTES];
  const volatile uint8_t *data = tensor->data;
  for (size_t i = 0; i < tensor->bytes; i++) (void)data[i];
  FUZZ_PROMISE(strlen(cli_tensor_shape_text(tensor, shape)) < sizeof shape);
  FUZZ_PROMISE(tensor->bytes == tensor->elements * cli_tensor_dtype_bytes(tensor->dtype));
  FUZZ_PROMISE(cli_safetensors_find(file, tensor->name) == tensor);
}

static void read_file(const char *path) {
  cli_safetensors *file = NULL;
  flp_status status = cli_safetensors_open(path, &file);
  if (status != FLP_OK) {
    FUZZ_PROMISE(!file);
    fuzz_expect_refusal(status, FUZZ_BIT(FLP_ERROR_CORRUPT));
    return;
  }
  for (size_t i = 0; i < cli_safetensors_count(file); i++) read_tensor(file, cli_safetensors_get(file, i));
  cli_safetensors_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  static const uint8_t zeros[255];
  fuzz_file whole = fuzz_file_create(bytes, length);
  read_file(whole.path);
  fuzz_file_close(&whole);
  const uint8_t *end = length ? memchr(bytes, 0, length) : NULL;
  uint64_t header = end ? (uint64_t)(end - bytes) : length;
  fuzz_file framed = fuzz_file_create((const uint8_t *)&header, sizeof header);
  fuzz_file_append(&framed, bytes, header);
  fuzz_file_append(&framed, zeros, header + 1 < length ? bytes[header + 1] : 0);
  read_file(framed.path);
  fuzz_file_close(&framed);
  return 0;
}

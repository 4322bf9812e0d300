/* dtype.c: the element types of safetensors files. */
#include <stdio.h>
#include <string.h>

#include "gen/cli/tensors/internal.h"

static const struct {
  const char *name;
  size_t bytes;
  flp_dtype dtype;
} dtypes[CLI_TENSOR_DTYPE_COUNT] = {
    [CLI_TENSOR_F64] = {"F64", 8, 0},
    [CLI_TENSOR_F32] = {"F32", 4, FLP_DTYPE_FP32},
    [CLI_TENSOR_F16] = {"F16", 2, FLP_DTYPE_FP16},
    [CLI_TENSOR_BF16] = {"BF16", 2, FLP_DTYPE_BF16},
    [CLI_TENSOR_I64] = {"I64", 8, FLP_DTYPE_INT64},
    [CLI_TENSOR_I32] = {"I32", 4, FLP_DTYPE_INT32},
    [CLI_TENSOR_I16] = {"I16", 2, 0},
    [CLI_TENSOR_I8] = {"I8", 1, 0},
    [CLI_TENSOR_U64] = {"U64", 8, 0},
    [CLI_TENSOR_U32] = {"U32", 4, 0},
    [CLI_TENSOR_U16] = {"U16", 2, 0},
    [CLI_TENSOR_U8] = {"U8", 1, 0},
    [CLI_TENSOR_BOOL] = {"BOOL", 1, 0},
    [CLI_TENSOR_F8_E4M3] = {"F8_E4M3", 1, 0},
    [CLI_TENSOR_F8_E5M2] = {"F8_E5M2", 1, 0},
    [CLI_TENSOR_F8_E8M0] = {"F8_E8M0", 1, 0},
};

const char *cli_tensor_dtype_name(cli_tensor_dtype dtype) {
  return dtype < CLI_TENSOR_DTYPE_COUNT ? dtypes[dtype].name : "?";
}

size_t cli_tensor_dtype_bytes(cli_tensor_dtype dtype) {
  return dtype < CLI_TENSOR_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

flp_dtype cli_tensor_dtype_flp(cli_tensor_dtype dtype) {
  return dtype < CLI_TENSOR_DTYPE_COUNT ? dtypes[dtype].dtype : (flp_dtype)0;
}

cli_tensor_dtype cli_tensor_dtype_of(flp_dtype dtype) {
  for (int i = 0; i < CLI_TENSOR_DTYPE_COUNT; i++)
    if (dtypes[i].dtype == dtype) return (cli_tensor_dtype)i;
  return CLI_TENSOR_F32;
}

int cli_tensor_dtype_find(const char *name, cli_tensor_dtype *out) {
  for (int i = 0; i < CLI_TENSOR_DTYPE_COUNT; i++)
    if (strcmp(dtypes[i].name, name) == 0) {
      *out = (cli_tensor_dtype)i;
      return 1;
    }
  return 0;
}

const char *cli_tensor_shape_text(const cli_tensor *tensor, char buffer[CLI_TENSOR_TEXT_BYTES]) {
  size_t used = 0;
  buffer[used++] = '(';
  for (int i = 0; i < tensor->rank; i++)
    used += (size_t)snprintf(buffer + used, CLI_TENSOR_TEXT_BYTES - used, "%s%lld", i ? ", " : "",
                             (long long)tensor->shape[i]);
  memcpy(buffer + used, ")", 2);
  return buffer;
}

int cli_tensor_measure(cli_tensor *tensor) {
  uint64_t elements = 1, bytes;
  for (int i = 0; i < tensor->rank; i++) {
    if (tensor->shape[i] < 0) return 0;
    if (__builtin_mul_overflow(elements, (uint64_t)tensor->shape[i], &elements)) return 0;
  }
  if (__builtin_mul_overflow(elements, (uint64_t)cli_tensor_dtype_bytes(tensor->dtype), &bytes)) return 0;
  if (bytes > SIZE_MAX || bytes > (uint64_t)INT64_MAX) return 0;
  tensor->elements = elements;
  tensor->bytes = (size_t)bytes;
  return 1;
}

/* test_safetensors.c: round trips, and every truncation and change of a good file. What is said of bad headers is in
 * tests/golden/texts. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gen/cli/tensors/safetensors.h"

enum { PATH_BYTES = 512, FILE_BYTES = 4096 };

static void scratch_path(char out[PATH_BYTES], const char *name) {
  snprintf(out, PATH_BYTES, FLP_TEST_SCRATCH "/safetensors-%ld-%s", (long)getpid(), name);
}

static void write_bytes(const char *path, const void *bytes, size_t length) {
  FILE *file = fopen(path, "wb");
  cr_assert_not_null(file);
  cr_assert_eq(fwrite(bytes, 1, length, file), length);
  fclose(file);
}

/* A file of this header and so many bytes of data. */
static size_t compose(uint8_t out[FILE_BYTES], const char *header, size_t data_bytes) {
  size_t length = strlen(header);
  for (int i = 0; i < 8; i++) out[i] = (uint8_t)((uint64_t)length >> (8 * i));
  memcpy(out + 8, header, length);
  memset(out + 8 + length, 0x5a, data_bytes);
  return 8 + length + data_bytes;
}

static flp_status open_bytes(const void *bytes, size_t length, cli_safetensors **out) {
  char path[PATH_BYTES];
  scratch_path(path, "case");
  write_bytes(path, bytes, length);
  flp_status status = cli_safetensors_open(path, out);
  unlink(path);
  return status;
}

/* The detail without the path in front of it. */
static const char *reason(void) {
  const char *detail = flp_error_detail(), *end = strstr(detail, "-case: ");
  return end ? end + strlen("-case: ") : detail;
}

Test(safetensors, round_trip) {
  const float wide[] = {1.5f, -2.0f, 0.25f, 8.0f, 3.0f, -0.0f};
  const uint16_t narrow[] = {0x3f80, 0xc000};
  const int64_t ids[] = {-100, 7, INT64_MAX};
  const cli_tensor tensors[] = {
      {.name = "narrow", .dtype = CLI_TENSOR_BF16, .rank = 1, .shape = {2}, .data = narrow},
      {.name = "wide", .dtype = CLI_TENSOR_F32, .rank = 2, .shape = {2, 3}, .data = wide},
      {.name = "empty", .dtype = CLI_TENSOR_F16, .rank = 2, .shape = {0, 4}, .data = NULL},
      {.name = "scalar", .dtype = CLI_TENSOR_F32, .rank = 0, .data = wide},
      {.name = "ids", .dtype = CLI_TENSOR_I64, .rank = 1, .shape = {3}, .data = ids},
  };
  char path[PATH_BYTES];
  scratch_path(path, "round");
  cr_assert_eq(cli_safetensors_write(path, tensors, 5), FLP_OK, "%s", flp_error_detail());
  cli_safetensors *file = NULL;
  cr_assert_eq(cli_safetensors_open(path, &file), FLP_OK, "%s", flp_error_detail());
  unlink(path);
  cr_expect_eq(cli_safetensors_count(file), 5);
  cr_expect_str_eq(cli_safetensors_path(file), path);
  for (size_t i = 0; i < 5; i++) {
    const cli_tensor *got = cli_safetensors_find(file, tensors[i].name);
    cr_assert_not_null(got, "%s", tensors[i].name);
    cr_expect_eq(got->dtype, tensors[i].dtype);
    cr_expect_eq(got->rank, tensors[i].rank);
    cr_expect_arr_eq(got->shape, tensors[i].shape, sizeof got->shape);
    cr_expect_eq(got->bytes, got->elements * cli_tensor_dtype_bytes(got->dtype));
    cr_expect_eq(memcmp(got->data, tensors[i].data ? tensors[i].data : "", got->bytes), 0);
    if (got->bytes) cr_expect_eq((uintptr_t)got->data % cli_tensor_dtype_bytes(got->dtype), 0, "aligned");
  }
  cr_expect_null(cli_safetensors_find(file, "absent"));
  cr_expect_null(cli_safetensors_get(file, 5));
  cli_safetensors_close(file);
}

Test(safetensors, the_same_bytes_whatever_the_order) {
  const float values[] = {1.0f, 2.0f};
  cli_tensor tensors[] = {{.name = "b", .dtype = CLI_TENSOR_F32, .rank = 1, .shape = {2}, .data = values},
                          {.name = "a", .dtype = CLI_TENSOR_F32, .rank = 1, .shape = {1}, .data = values}};
  uint8_t bytes[2][FILE_BYTES];
  size_t length[2];
  for (int turn = 0; turn < 2; turn++) {
    char path[PATH_BYTES];
    scratch_path(path, "order");
    cr_assert_eq(cli_safetensors_write(path, tensors, 2), FLP_OK);
    FILE *file = fopen(path, "rb");
    length[turn] = fread(bytes[turn], 1, FILE_BYTES, file);
    fclose(file);
    unlink(path);
    cli_tensor swapped = tensors[0];
    tensors[0] = tensors[1];
    tensors[1] = swapped;
  }
  cr_expect_eq(length[0], length[1]);
  cr_expect_arr_eq(bytes[0], bytes[1], length[0]);
}

#define TENSOR(name, dtype, shape, offsets) \
  "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

Test(safetensors, deep_nesting_is_refused) {
  enum { DEPTH = 100000, LENGTH = 8 + 5 + DEPTH };
  uint8_t *bytes = malloc(LENGTH);
  cr_assert_not_null(bytes);
  memset(bytes, 0, 8);
  for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)((uint32_t)(LENGTH - 8) >> (8 * i));
  memcpy(bytes + 8, "{\"a\":", 5);
  memset(bytes + 13, '[', DEPTH);
  cli_safetensors *file = NULL;
  cr_expect_eq(open_bytes(bytes, LENGTH, &file), FLP_ERROR_CORRUPT);
  cr_expect_null(file);
  free(bytes);
}

Test(safetensors, header_lengths) {
  uint8_t bytes[16] = {0};
  cli_safetensors *file = NULL;
  bytes[8] = '{';
  bytes[9] = '}';
  cr_expect_eq(open_bytes(bytes, 16, &file), FLP_ERROR_CORRUPT);
  cr_expect_str_eq(reason(), "the header does not begin with '{'", "length 0");
  memset(bytes, 0xff, 8);
  cr_expect_eq(open_bytes(bytes, 16, &file), FLP_ERROR_CORRUPT);
  cr_expect_str_eq(reason(), "header length is 18446744073709551615; at most 100000000 is accepted");
  memset(bytes, 0, 8);
  bytes[0] = 9;
  cr_expect_eq(open_bytes(bytes, 16, &file), FLP_ERROR_CORRUPT);
  cr_expect_str_eq(reason(), "header length is 9, but the file has 16 bytes; it is truncated");
  bytes[0] = 2;
  cr_expect_eq(open_bytes(bytes, 10, &file), FLP_OK, "the smallest file");
  cr_expect_eq(cli_safetensors_count(file), 0);
  cli_safetensors_close(file);
}

Test(safetensors, every_truncation_is_refused) {
  uint8_t bytes[FILE_BYTES];
  const char *header = "{" TENSOR("a", "F32", "[2,2]", "[0,16]") "," TENSOR("b", "I64", "[1]", "[16,24]") "}";
  size_t length = compose(bytes, header, 24);
  for (size_t length_left = 0; length_left < length; length_left++) {
    cli_safetensors *file = NULL;
    cr_expect_eq(open_bytes(bytes, length_left, &file), FLP_ERROR_CORRUPT, "%zu bytes", length_left);
    cr_expect_null(file);
  }
  cli_safetensors *whole = NULL;
  cr_expect_eq(open_bytes(bytes, length, &whole), FLP_OK);
  cli_safetensors_close(whole);
}

/* Every single-byte change of a header either still describes the data or is refused; none may crash. */
Test(safetensors, every_byte_flip_is_survived) {
  uint8_t bytes[FILE_BYTES];
  const char *header = "{" TENSOR("a", "F32", "[2,2]", "[0,16]") "," TENSOR("b", "I64", "[1]", "[16,24]") "}";
  size_t length = compose(bytes, header, 24), refused = 0, tried = 0;
  static const uint8_t flips[] = {0x01, 0x08, 0x10, 0x80};
  for (size_t at = 0; at < length - 24; at++)
    for (size_t flip = 0; flip < sizeof flips; flip++) {
      cli_safetensors *file = NULL;
      bytes[at] ^= flips[flip];
      flp_status status = open_bytes(bytes, length, &file);
      bytes[at] ^= flips[flip];
      cr_expect(status == FLP_OK || status == FLP_ERROR_CORRUPT, "byte %zu", at);
      uint64_t sum = 0;
      for (size_t i = 0; file && i < cli_safetensors_count(file); i++) sum += cli_safetensors_get(file, i)->bytes;
      cr_expect(!file || sum == 24, "byte %zu: tensors cover the data", at);
      refused += status != FLP_OK;
      tried++;
      cli_safetensors_close(file);
    }
  cr_expect_gt(refused, tried * 3 / 4);
}

Test(safetensors, files_that_are_none) {
  cli_safetensors *file = NULL;
  cr_expect_eq(cli_safetensors_open("/nonexistent/x.safetensors", &file), FLP_ERROR_IO);
  cr_expect_str_eq(flp_error_detail(), "/nonexistent/x.safetensors: cannot open: No such file or directory");
  cr_expect_eq(cli_safetensors_open("/tmp", &file), FLP_ERROR_IO);
  cr_expect_str_eq(flp_error_detail(), "/tmp: cannot read: not a regular file");
  cr_expect_eq(cli_safetensors_open("/dev/null", &file), FLP_ERROR_IO);
  cr_expect_str_eq(flp_error_detail(), "/dev/null: cannot read: not a regular file");
  cr_expect_eq(open_bytes("", 0, &file), FLP_ERROR_CORRUPT);
  cr_expect_str_eq(reason(), "0 bytes; a safetensors file has at least 10");
  cr_expect_null(file);
  cli_safetensors_close(NULL);
}

Test(safetensors, bad_writes) {
  const float value = 1.0f;
  const cli_tensor twice[] = {{.name = "a", .dtype = CLI_TENSOR_F32, .rank = 1, .shape = {1}, .data = &value},
                              {.name = "a", .dtype = CLI_TENSOR_F32, .rank = 1, .shape = {1}, .data = &value}};
  char path[PATH_BYTES];
  scratch_path(path, "bad");
  cr_expect_eq(cli_safetensors_write(path, twice, 2), FLP_ERROR_ARGUMENT);
  const cli_tensor huge = {.name = "h", .dtype = CLI_TENSOR_F32, .rank = 2, .shape = {INT64_MAX, 4}, .data = &value};
  cr_expect_eq(cli_safetensors_write(path, &huge, 1), FLP_ERROR_ARGUMENT);
  cr_expect_eq(cli_safetensors_write("/nonexistent/x", twice, 1), FLP_ERROR_IO);
  cr_expect_str_eq(flp_error_detail(), "/nonexistent/x: cannot write: No such file or directory");
  cr_expect_eq(access(path, F_OK), -1, "nothing is left behind");
}

/* write.c: writing of safetensors files. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/shared/common.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/tensors/internal.h"
#include "runtime/base/status.h"

enum { HEADER_ALIGNMENT = 8 };

/* Widest elements first, then by name, so that files are the same whatever the order of the caller. */
static int compare_layout(const void *a, const void *b) {
  const cli_tensor *x = a, *y = b;
  size_t wide_x = cli_tensor_dtype_bytes(x->dtype), wide_y = cli_tensor_dtype_bytes(y->dtype);
  if (wide_x != wide_y) return wide_x > wide_y ? -1 : 1;
  return strcmp(x->name, y->name);
}

static flp_status fail_memory(const char *path) {
  return flp_fail(FLP_ERROR_MEMORY, "%s: out of memory", path);
}

/* One entry of the header: {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}. */
static json_t *describe(const cli_tensor *tensor, uint64_t begin) {
  json_t *shape = json_array();
  for (int i = 0; i < tensor->rank; i++)
    if (json_array_append_new(shape, json_integer(tensor->shape[i])) != 0) {
      json_decref(shape);
      return NULL;
    }
  return json_pack("{s:s, s:o, s:[I,I]}", "dtype", cli_tensor_dtype_name(tensor->dtype), "shape", shape, "data_offsets",
                   (json_int_t)begin, (json_int_t)(begin + tensor->bytes));
}

/* The header text, padded with blanks so that the data starts at a multiple of 8. */
static flp_status make_header(const char *path, const cli_tensor *tensors, size_t count, char **out, size_t *bytes) {
  json_t *header = json_object();
  uint64_t offset = 0;
  flp_status status = header ? FLP_OK : fail_memory(path);
  for (size_t i = 0; status == FLP_OK && i < count; i++) {
    if (json_object_get(header, tensors[i].name))
      status = flp_fail(FLP_ERROR_ARGUMENT, "%s: tensor '%s' appears twice", path, tensors[i].name);
    else if (json_object_set_new(header, tensors[i].name, describe(&tensors[i], offset)) != 0)
      status = fail_memory(path);
    offset += tensors[i].bytes;
  }
  char *text = status == FLP_OK ? cli_json_dump(header, JSON_COMPACT) : NULL;
  if (status == FLP_OK && !text) status = fail_memory(path);
  json_decref(header);
  if (status != FLP_OK) return status;
  size_t length = strlen(text), padded = (length + HEADER_ALIGNMENT - 1) / HEADER_ALIGNMENT * HEADER_ALIGNMENT;
  *out = malloc(padded);
  if (*out) {
    memset(*out, ' ', padded);
    memcpy(*out, text, length);
    *bytes = padded;
  }
  free(text);
  return *out ? FLP_OK : fail_memory(path);
}

static flp_status write_file(const char *path, const char *header, size_t header_bytes, const cli_tensor *tensors,
                             size_t count) {
  flp_output out;
  uint8_t length[8];
  for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)header_bytes >> (8 * i));
  FLP_TRY(cli_output_open(path, &out));
  flp_output_write(&out, length, sizeof length);
  flp_output_write(&out, header, header_bytes);
  for (size_t i = 0; i < count; i++) flp_output_write(&out, tensors[i].data, tensors[i].bytes);
  return flp_output_close(&out);
}

flp_status cli_safetensors_write(const char *path, const cli_tensor *tensors, size_t count) {
  cli_tensor *sorted = calloc(count + 1, sizeof *sorted);
  if (!sorted) return fail_memory(path);
  flp_status status = FLP_OK;
  for (size_t i = 0; i < count; i++) {
    sorted[i] = tensors[i];
    if (status == FLP_OK && !cli_tensor_measure(&sorted[i]))
      status =
          flp_fail(FLP_ERROR_ARGUMENT, "%s: tensor '%s': the product of its shape overflows", path, tensors[i].name);
  }
  qsort(sorted, count, sizeof *sorted, compare_layout);
  char *header = NULL;
  size_t header_bytes = 0;
  if (status == FLP_OK) status = make_header(path, sorted, count, &header, &header_bytes);
  if (status == FLP_OK) status = write_file(path, header, header_bytes, sorted, count);
  free(header);
  free(sorted);
  return status;
}

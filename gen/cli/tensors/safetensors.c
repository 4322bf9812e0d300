/* safetensors.c: reads safetensors files, which are not trusted.
 *
 * Invariant: a file that opens has tensors whose data lies inside the mapping, in ascending order, without overlap. */
#include "gen/cli/tensors/safetensors.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gen/cli/shared/common.h"
#include "gen/cli/tensors/internal.h"
#include "runtime/base/status.h"

enum { LENGTH_BYTES = 8 };

struct cli_safetensors {
  char *path;
  const uint8_t *map;
  size_t map_bytes;
  json_t *header; /* owns the names */
  cli_tensor *tensors;
  size_t count;
};

#define FAIL(file, format, ...) flp_fail(FLP_ERROR_CORRUPT, "%s: " format, (file)->path, __VA_ARGS__)

static flp_status map_file(cli_safetensors *file) {
  int fd;
  size_t bytes;
  FLP_TRY(cli_open_file(file->path, &fd, &bytes));
  flp_status status = FLP_OK;
  if (bytes < LENGTH_BYTES + 2) {
    status = FAIL(file, "%zu bytes; a safetensors file has at least 10", bytes);
  } else {
    void *map = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
      status = flp_fail(FLP_ERROR_IO, "%s: cannot map: %s", file->path, strerror(errno));
    } else {
      file->map = map;
      file->map_bytes = bytes;
    }
  }
  close(fd);
  return status;
}

/* Such a length would be beyond any file's. */
static int begins_as_text(const cli_safetensors *file) {
  for (int i = 0; i < LENGTH_BYTES; i++)
    if (!isprint(file->map[i]) && !isspace(file->map[i])) return 0;
  return 1;
}

static flp_status read_header(cli_safetensors *file, size_t *data_start) {
  uint64_t length = 0;
  for (int i = LENGTH_BYTES; i-- > 0;) length = length << 8 | file->map[i];
  if (begins_as_text(file)) return FAIL(file, "%s", "no safetensors file: it begins as text");
  if (length > CLI_SAFETENSORS_HEADER_MAX)
    return FAIL(file, "header length is %llu; at most %llu is accepted", (unsigned long long)length,
                (unsigned long long)CLI_SAFETENSORS_HEADER_MAX);
  if (length > file->map_bytes - LENGTH_BYTES)
    return FAIL(file, "header length is %llu, but the file has %zu bytes; it is truncated", (unsigned long long)length,
                file->map_bytes);
  const char *text = (const char *)file->map + LENGTH_BYTES;
  if (length == 0 || text[0] != '{') return FAIL(file, "%s", "the header does not begin with '{'");
  json_error_t error;
  file->header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
  if (!file->header) return FAIL(file, "the header is not JSON: %s (byte %d)", error.text, error.position);
  if (!json_is_object(file->header)) return FAIL(file, "%s", "the header is not a JSON object");
  *data_start = LENGTH_BYTES + (size_t)length;
  return FLP_OK;
}

/* Reads a whole number that is not negative; jansson has rejected what does not fit 64 bits. */
static int read_count(const json_t *value, int64_t *out) {
  if (!json_is_integer(value) || json_integer_value(value) < 0) return 0;
  *out = json_integer_value(value);
  return 1;
}

static flp_status read_shape(const cli_safetensors *file, const json_t *entry, cli_tensor *tensor) {
  const json_t *shape = json_object_get(entry, "shape");
  if (!json_is_array(shape)) return FAIL(file, "tensor '%s': shape is not an array", tensor->name);
  size_t rank = json_array_size(shape);
  if (rank > CLI_TENSOR_RANK_MAX)
    return FAIL(file, "tensor '%s': shape has %zu dimensions; at most %d are accepted", tensor->name, rank,
                CLI_TENSOR_RANK_MAX);
  tensor->rank = (int)rank;
  for (size_t i = 0; i < rank; i++)
    if (!read_count(json_array_get(shape, i), &tensor->shape[i]))
      return FAIL(file, "tensor '%s': shape[%zu] is not a whole number >= 0", tensor->name, i);
  if (!cli_tensor_measure(tensor)) return FAIL(file, "tensor '%s': the product of its shape overflows", tensor->name);
  return FLP_OK;
}

static flp_status read_offsets(const cli_safetensors *file, const json_t *entry, size_t data_start,
                               cli_tensor *tensor) {
  const json_t *offsets = json_object_get(entry, "data_offsets");
  int64_t begin, end;
  if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !read_count(json_array_get(offsets, 0), &begin) ||
      !read_count(json_array_get(offsets, 1), &end))
    return FAIL(file, "tensor '%s': data_offsets is not a pair of whole numbers >= 0", tensor->name);
  if (end < begin)
    return FAIL(file, "tensor '%s': data_offsets [%lld, %lld] run backwards", tensor->name, (long long)begin,
                (long long)end);
  uint64_t available = file->map_bytes - data_start;
  if ((uint64_t)end > available)
    return FAIL(file, "tensor '%s': data_offsets [%lld, %lld] leave the %llu bytes of data; the file is truncated",
                tensor->name, (long long)begin, (long long)end, (unsigned long long)available);
  if ((uint64_t)(end - begin) != tensor->bytes)
    return FAIL(file, "tensor '%s': data_offsets span %lld bytes, but dtype and shape need %zu", tensor->name,
                (long long)(end - begin), tensor->bytes);
  tensor->data = file->map + data_start + begin;
  return FLP_OK;
}

static flp_status read_tensor(const cli_safetensors *file, const char *name, const json_t *entry, size_t data_start,
                              cli_tensor *tensor) {
  tensor->name = name;
  if (!json_is_object(entry)) return FAIL(file, "tensor '%s': its entry is not an object", name);
  const char *dtype = json_string_value(json_object_get(entry, "dtype"));
  if (!dtype) return FAIL(file, "tensor '%s': dtype is not a string", name);
  if (!cli_tensor_dtype_find(dtype, &tensor->dtype))
    return FAIL(file, "tensor '%s': dtype '%s' is unknown", name, dtype);
  FLP_TRY(read_shape(file, entry, tensor));
  return read_offsets(file, entry, data_start, tensor);
}

/* By first byte; empty tensors before the one that starts at the same byte. */
static int compare_data(const void *a, const void *b) {
  const cli_tensor *x = a, *y = b;
  if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
  return strcmp(x->name, y->name);
}

static flp_status check_cover(const cli_safetensors *file, size_t data_start) {
  const uint8_t *next = file->map + data_start;
  for (size_t i = 0; i < file->count; i++) {
    const cli_tensor *tensor = &file->tensors[i];
    if ((const uint8_t *)tensor->data < next)
      return FAIL(file, "tensor '%s' overlaps tensor '%s'", tensor->name, file->tensors[i - 1].name);
    if ((const uint8_t *)tensor->data > next)
      return FAIL(file, "%zu bytes before tensor '%s' belong to no tensor",
                  (size_t)((const uint8_t *)tensor->data - next), tensor->name);
    next += tensor->bytes;
  }
  size_t left = (size_t)(file->map + file->map_bytes - next);
  if (left) return FAIL(file, "the last %zu bytes belong to no tensor", left);
  return FLP_OK;
}

static flp_status check_metadata(const cli_safetensors *file, const json_t *metadata) {
  if (!json_is_object(metadata)) return FAIL(file, "%s", "__metadata__ is not an object");
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)metadata, key, value) if (!json_is_string(value)) return FAIL(
      file, "__metadata__ field '%s' is not a string", key);
  return FLP_OK;
}

static flp_status read_tensors(cli_safetensors *file, size_t data_start) {
  file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors);
  if (!file->tensors) return flp_fail(FLP_ERROR_MEMORY, "%s: out of memory", file->path);
  const char *name;
  json_t *entry;
  json_object_foreach(file->header, name, entry) {
    if (strcmp(name, "__metadata__") == 0)
      FLP_TRY(check_metadata(file, entry));
    else
      FLP_TRY(read_tensor(file, name, entry, data_start, &file->tensors[file->count++]));
  }
  qsort(file->tensors, file->count, sizeof *file->tensors, compare_data);
  return check_cover(file, data_start);
}

flp_status cli_safetensors_open(const char *path, cli_safetensors **out) {
  *out = NULL;
  cli_safetensors *file = calloc(1, sizeof *file);
  if (file) file->path = strdup(path);
  if (!file || !file->path) {
    free(file);
    return flp_fail(FLP_ERROR_MEMORY, "%s: out of memory", path);
  }
  size_t data_start = 0;
  flp_status status = map_file(file);
  if (status == FLP_OK) status = read_header(file, &data_start);
  if (status == FLP_OK) status = read_tensors(file, data_start);
  if (status == FLP_OK)
    *out = file;
  else
    cli_safetensors_close(file);
  return status;
}

void cli_safetensors_close(cli_safetensors *file) {
  if (!file) return;
  if (file->map) munmap((void *)(uintptr_t)file->map, file->map_bytes);
  json_decref(file->header);
  free(file->tensors);
  free(file->path);
  free(file);
}

const char *cli_safetensors_path(const cli_safetensors *file) {
  return file->path;
}

size_t cli_safetensors_count(const cli_safetensors *file) {
  return file->count;
}

const cli_tensor *cli_safetensors_get(const cli_safetensors *file, size_t i) {
  return i < file->count ? &file->tensors[i] : NULL;
}

const cli_tensor *cli_safetensors_find(const cli_safetensors *file, const char *name) {
  for (size_t i = 0; i < file->count; i++)
    if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
  return NULL;
}

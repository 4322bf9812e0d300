/* safetensors.h: reading (mmap) and writing of safetensors files.
 *
 * A file is 8 bytes of header length (little-endian), that many bytes of JSON {name: {dtype, shape, data_offsets}},
 * then the tensors' bytes, which the offsets cover from first to last without gap or overlap. Files are not trusted:
 * each rule is checked before data is read, and a failure names the file and the reason.
 * source: https://github.com/huggingface/safetensors, README and tensor.rs */
#ifndef FLPGEN_CLI_SAFETENSORS_H
#define FLPGEN_CLI_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/flp.h"

typedef enum cli_tensor_dtype {
  CLI_TENSOR_F64,
  CLI_TENSOR_F32,
  CLI_TENSOR_F16,
  CLI_TENSOR_BF16,
  CLI_TENSOR_I64,
  CLI_TENSOR_I32,
  CLI_TENSOR_I16,
  CLI_TENSOR_I8,
  CLI_TENSOR_U64,
  CLI_TENSOR_U32,
  CLI_TENSOR_U16,
  CLI_TENSOR_U8,
  CLI_TENSOR_BOOL,
  CLI_TENSOR_F8_E4M3,
  CLI_TENSOR_F8_E5M2,
  CLI_TENSOR_F8_E8M0,
  CLI_TENSOR_DTYPE_COUNT
} cli_tensor_dtype;

const char *cli_tensor_dtype_name(cli_tensor_dtype dtype); /* "BF16" */
size_t cli_tensor_dtype_bytes(cli_tensor_dtype dtype);
/* The flp dtype of the same layout, or 0. */
flp_dtype cli_tensor_dtype_flp(cli_tensor_dtype dtype);
/* The other way; dtype must be one of flp.h. */
cli_tensor_dtype cli_tensor_dtype_of(flp_dtype dtype);

enum {
  CLI_TENSOR_RANK_MAX = 8,
  CLI_TENSOR_TEXT_BYTES = 8 * 22 + 3 /* "(d0, d1, ...)" */
};
/* Headers of real checkpoints stay far below this; it is the limit of the reference implementation. */
#define CLI_SAFETENSORS_HEADER_MAX ((uint64_t)100000000)

typedef struct cli_tensor {
  const char *name; /* borrowed from the file, or from the caller when writing */
  cli_tensor_dtype dtype;
  int rank;
  int64_t shape[CLI_TENSOR_RANK_MAX];
  uint64_t elements;
  const void *data; /* borrowed; aligned only as the file happens to be */
  size_t bytes;
} cli_tensor;

/* "(256, 4096)". Returns buffer. */
const char *cli_tensor_shape_text(const cli_tensor *tensor, char buffer[CLI_TENSOR_TEXT_BYTES]);

typedef struct cli_safetensors cli_safetensors;

/* Maps a file and checks all of it. error: IO, CORRUPT, MEMORY as "PATH: reason" */
flp_status cli_safetensors_open(const char *path, cli_safetensors **out);
/* Tensors die with their file. NULL is fine. */
void cli_safetensors_close(cli_safetensors *file);
const char *cli_safetensors_path(const cli_safetensors *file);
size_t cli_safetensors_count(const cli_safetensors *file);
/* In the order of their bytes. */
const cli_tensor *cli_safetensors_get(const cli_safetensors *file, size_t i);
/* NULL if there is none of that name. */
const cli_tensor *cli_safetensors_find(const cli_safetensors *file, const char *name);

/* Writes tensors to a new file (temporary file, rename), widest elements first so that all of them are aligned.
 * tensors: name, dtype, rank, shape and data are read
 * error:   IO; ARGUMENT for a repeated name, a shape whose bytes overflow; MEMORY */
flp_status cli_safetensors_write(const char *path, const cli_tensor *tensors, size_t count);

#endif

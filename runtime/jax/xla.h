/* xla.h: the part of XLA's FFI that a handler of plain buffers needs, as its C interface lays it out.
 *
 * Declared here, as runtime/driver declares CUDA's, for one library must serve every XLA of the range: jaxlib carries
 * the header (xla/ffi/api/c_api.h), but each release renames parts of it, and Debian has none. Fields, numbers and
 * order are those of the FFI's versions 0.1 to 0.4, which differ in none of what stands here; tests/install/test_jax.py
 * compares every offset with the header of the jaxlib that is installed.
 *
 * Structs open with their size in bytes and may be larger than here. */
#ifndef FLP_JAX_XLA_H
#define FLP_JAX_XLA_H

#include <stddef.h>
#include <stdint.h>

enum { XLA_VERSION_MAJOR = 0, XLA_VERSION_MINOR = 4 }; /* the newest that this file was compared with */

typedef enum xla_type {
  XLA_S32 = 4,
  XLA_S64 = 5,
  XLA_U8 = 6,
  XLA_F16 = 10,
  XLA_F32 = 11,
  XLA_F64 = 12,
  XLA_BF16 = 16
} xla_type;

enum { XLA_ATTRIBUTE_ARRAY = 1, XLA_ATTRIBUTE_SCALAR = 3, XLA_ATTRIBUTE_STRING = 4 };
enum { XLA_BUFFER = 1 }; /* kind of an argument or a result */
enum { XLA_STAGE_INITIALIZE = 2, XLA_STAGE_EXECUTE = 3 };
enum { XLA_EXTENSION_METADATA = 1 };
enum { XLA_TRAIT_COMMAND_BUFFER = 1 }; /* launches the same work each time, so it may be captured in a CUDA graph */

/* absl::StatusCode */
typedef enum xla_code {
  XLA_INVALID_ARGUMENT = 3,
  XLA_NOT_FOUND = 5,
  XLA_RESOURCE_EXHAUSTED = 8,
  XLA_UNIMPLEMENTED = 12,
  XLA_INTERNAL = 13,
  XLA_UNAVAILABLE = 14,
  XLA_DATA_LOSS = 15
} xla_code;

typedef struct xla_extension {
  size_t struct_bytes;
  int type;
  struct xla_extension *next;
} xla_extension;

typedef struct xla_version {
  size_t struct_bytes;
  xla_extension *extension;
  int major, minor;
} xla_version;

typedef struct xla_metadata {
  size_t struct_bytes;
  xla_version version; /* out: of the interface that the handler uses */
  uint32_t traits;     /* out */
} xla_metadata;

typedef struct xla_metadata_extension {
  xla_extension base;
  xla_metadata *metadata;
} xla_metadata_extension;

typedef struct xla_buffer {
  size_t struct_bytes;
  xla_extension *extension;
  int type;
  void *data;
  int64_t rank;
  int64_t *dims;
} xla_buffer;

typedef struct xla_span {
  const char *data;
  size_t bytes; /* no 0 at the end */
} xla_span;

typedef struct xla_scalar {
  int type;
  void *value;
} xla_scalar;

typedef struct xla_array {
  int type;
  size_t count;
  const void *values;
} xla_array;

/* Arguments, or results. */
typedef struct xla_list {
  size_t struct_bytes;
  xla_extension *extension;
  int64_t count;
  int *kinds;
  void **values;
} xla_list;

typedef struct xla_attributes {
  size_t struct_bytes;
  xla_extension *extension;
  int64_t count;
  int *kinds;
  xla_span **names;
  void **values;
} xla_attributes;

typedef struct xla_error xla_error;
typedef struct xla_context xla_context;

typedef struct xla_error_create_args {
  size_t struct_bytes;
  xla_extension *extension;
  const char *message;
  int code;
} xla_error_create_args;

typedef struct xla_stream_args {
  size_t struct_bytes;
  xla_extension *extension;
  xla_context *context;
  void *stream; /* out: CUstream */
} xla_stream_args;

typedef struct xla_ordinal_args {
  size_t struct_bytes;
  xla_extension *extension;
  xla_context *context;
  int32_t ordinal; /* out: CUDA's, of the process */
} xla_ordinal_args;

typedef void (*xla_unused)(void);

typedef struct xla_api {
  size_t struct_bytes;
  xla_extension *extension;
  xla_version version;
  const void *internal;
  xla_error *(*error_create)(xla_error_create_args *);
  xla_unused error_message, error_destroy, handler_register;
  xla_error *(*stream_get)(xla_stream_args *);
  xla_unused others[12];
  xla_error *(*ordinal_get)(xla_ordinal_args *);
} xla_api;

typedef struct xla_call_frame {
  size_t struct_bytes;
  xla_extension *extension;
  const xla_api *api;
  xla_context *context;
  int stage;
  xla_list arguments;
  xla_list results;
  xla_attributes attributes;
} xla_call_frame;

#endif

/* jax_layout.c: runtime/jax/xla.h against the header of the jaxlib that is installed; compiles if they agree. */
#include <xla/ffi/api/c_api.h>

#include "runtime/jax/xla.h"

#define SAME(ours, field, theirs, name)                                                                           \
  _Static_assert(offsetof(ours, field) == offsetof(theirs, name), #ours "." #field " is not " #theirs "." #name); \
  _Static_assert(sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->name), #ours "." #field " has another size")
#define EQUAL(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is not " #theirs)
#define OPENS(ours, theirs)                      \
  SAME(ours, struct_bytes, theirs, struct_size); \
  SAME(ours, extension, theirs, extension_start)

OPENS(xla_version, XLA_FFI_Api_Version);
SAME(xla_version, major, XLA_FFI_Api_Version, major_version);
SAME(xla_version, minor, XLA_FFI_Api_Version, minor_version);
EQUAL(XLA_VERSION_MAJOR, XLA_FFI_API_MAJOR);

SAME(xla_metadata, struct_bytes, XLA_FFI_Metadata, struct_size);
SAME(xla_metadata, version, XLA_FFI_Metadata, api_version);
SAME(xla_metadata, traits, XLA_FFI_Metadata, traits);
SAME(xla_metadata_extension, base, XLA_FFI_Metadata_Extension, extension_base);
SAME(xla_metadata_extension, metadata, XLA_FFI_Metadata_Extension, metadata);
SAME(xla_metadata_extension, base.type, XLA_FFI_Metadata_Extension, extension_base.type);

OPENS(xla_buffer, XLA_FFI_Buffer);
SAME(xla_buffer, type, XLA_FFI_Buffer, dtype);
SAME(xla_buffer, data, XLA_FFI_Buffer, data);
SAME(xla_buffer, rank, XLA_FFI_Buffer, rank);
SAME(xla_buffer, dims, XLA_FFI_Buffer, dims);

SAME(xla_span, data, XLA_FFI_ByteSpan, ptr);
SAME(xla_span, bytes, XLA_FFI_ByteSpan, len);
SAME(xla_array, type, XLA_FFI_Array, dtype);
SAME(xla_array, count, XLA_FFI_Array, size);
SAME(xla_array, values, XLA_FFI_Array, data);
SAME(xla_scalar, type, XLA_FFI_Scalar, dtype);
SAME(xla_scalar, value, XLA_FFI_Scalar, value);

OPENS(xla_list, XLA_FFI_Args);
SAME(xla_list, count, XLA_FFI_Args, size);
SAME(xla_list, kinds, XLA_FFI_Args, types);
SAME(xla_list, values, XLA_FFI_Args, args);
SAME(xla_list, count, XLA_FFI_Rets, size);
SAME(xla_list, kinds, XLA_FFI_Rets, types);
SAME(xla_list, values, XLA_FFI_Rets, rets);

OPENS(xla_attributes, XLA_FFI_Attrs);
SAME(xla_attributes, count, XLA_FFI_Attrs, size);
SAME(xla_attributes, kinds, XLA_FFI_Attrs, types);
SAME(xla_attributes, names, XLA_FFI_Attrs, names);
SAME(xla_attributes, values, XLA_FFI_Attrs, attrs);

OPENS(xla_error_create_args, XLA_FFI_Error_Create_Args);
SAME(xla_error_create_args, message, XLA_FFI_Error_Create_Args, message);
SAME(xla_error_create_args, code, XLA_FFI_Error_Create_Args, errc);

OPENS(xla_stream_args, XLA_FFI_Stream_Get_Args);
SAME(xla_stream_args, context, XLA_FFI_Stream_Get_Args, ctx);
SAME(xla_stream_args, stream, XLA_FFI_Stream_Get_Args, stream);
OPENS(xla_ordinal_args, XLA_FFI_DeviceOrdinal_Get_Args);
SAME(xla_ordinal_args, context, XLA_FFI_DeviceOrdinal_Get_Args, ctx);
SAME(xla_ordinal_args, ordinal, XLA_FFI_DeviceOrdinal_Get_Args, device_ordinal);

OPENS(xla_api, XLA_FFI_Api);
SAME(xla_api, version, XLA_FFI_Api, api_version);
SAME(xla_api, error_create, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME(xla_api, stream_get, XLA_FFI_Api, XLA_FFI_Stream_Get);
SAME(xla_api, ordinal_get, XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get);

OPENS(xla_call_frame, XLA_FFI_CallFrame);
SAME(xla_call_frame, api, XLA_FFI_CallFrame, api);
SAME(xla_call_frame, context, XLA_FFI_CallFrame, ctx);
SAME(xla_call_frame, stage, XLA_FFI_CallFrame, stage);
SAME(xla_call_frame, arguments, XLA_FFI_CallFrame, args);
SAME(xla_call_frame, results, XLA_FFI_CallFrame, rets);
SAME(xla_call_frame, attributes, XLA_FFI_CallFrame, attrs);

EQUAL(XLA_S32, XLA_FFI_DataType_S32);
EQUAL(XLA_S64, XLA_FFI_DataType_S64);
EQUAL(XLA_U8, XLA_FFI_DataType_U8);
EQUAL(XLA_F16, XLA_FFI_DataType_F16);
EQUAL(XLA_F32, XLA_FFI_DataType_F32);
EQUAL(XLA_F64, XLA_FFI_DataType_F64);
EQUAL(XLA_BF16, XLA_FFI_DataType_BF16);
EQUAL(XLA_ATTRIBUTE_ARRAY, XLA_FFI_AttrType_ARRAY);
EQUAL(XLA_ATTRIBUTE_SCALAR, XLA_FFI_AttrType_SCALAR);
EQUAL(XLA_ATTRIBUTE_STRING, XLA_FFI_AttrType_STRING);
EQUAL(XLA_BUFFER, XLA_FFI_ArgType_BUFFER);
EQUAL(XLA_BUFFER, XLA_FFI_RetType_BUFFER);
EQUAL(XLA_STAGE_INITIALIZE, XLA_FFI_ExecutionStage_INITIALIZE);
EQUAL(XLA_STAGE_EXECUTE, XLA_FFI_ExecutionStage_EXECUTE);
EQUAL(XLA_EXTENSION_METADATA, XLA_FFI_Extension_Metadata);
EQUAL(XLA_TRAIT_COMMAND_BUFFER, XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);
EQUAL(XLA_INVALID_ARGUMENT, XLA_FFI_Error_Code_INVALID_ARGUMENT);
EQUAL(XLA_NOT_FOUND, XLA_FFI_Error_Code_NOT_FOUND);
EQUAL(XLA_RESOURCE_EXHAUSTED, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
EQUAL(XLA_UNIMPLEMENTED, XLA_FFI_Error_Code_UNIMPLEMENTED);
EQUAL(XLA_INTERNAL, XLA_FFI_Error_Code_INTERNAL);
EQUAL(XLA_UNAVAILABLE, XLA_FFI_Error_Code_UNAVAILABLE);
EQUAL(XLA_DATA_LOSS, XLA_FFI_Error_Code_DATA_LOSS);

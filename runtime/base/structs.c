/* structs.c: the sizes of public structs. See structs.h. */
#include "runtime/base/structs.h"

#include <inttypes.h>
#include <string.h>

#include "runtime/base/status.h"

/* Sizes count words of 8 bytes. A size above the limit is uninitialised memory. */
enum { WORD = 8, STRUCT_BYTES_MAX = 4096 };

#define VALUE(id, type, name, INIT, first)                                                        \
  static const type init_##type = INIT;                                                           \
  _Static_assert(sizeof(type) >= (first) && sizeof(type) % WORD == 0, "a struct grows in words"); \
  _Static_assert(sizeof(type) <= STRUCT_BYTES_MAX && offsetof(type, struct_bytes) == 0, "see structs.h");
FLP_STRUCTS(VALUE)
#undef VALUE

static const struct {
  const char *name, *type;
  const void *init;
  uint32_t first, bytes;
} structs[] = {
#define ROW(id, type, name, INIT, first) [FLP_STRUCT_##id] = {name, #type, &init_##type, first, sizeof(type)},
    FLP_STRUCTS(ROW)
#undef ROW
};

static uint32_t bytes_of(const void *given) {
  uint32_t bytes;
  memcpy(&bytes, given, sizeof bytes);
  return bytes;
}

static flp_status refuse_size(flp_struct_id id, uint32_t bytes) {
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "%s.struct_bytes is %" PRIu32 " (accepted: multiples of %d from %" PRIu32
                  " to %d; the %s of this library has %" PRIu32 ", start from its _INIT value)",
                  structs[id].name, bytes, WORD, structs[id].first, STRUCT_BYTES_MAX, structs[id].type,
                  structs[id].bytes);
}

/* Fields that this release lacks have no effect while they are 0. */
static flp_status check_beyond(flp_struct_id id, const void *given, uint32_t bytes) {
  for (uint32_t i = structs[id].bytes; i < bytes; i++)
    if (((const unsigned char *)given)[i])
      return flp_fail(FLP_ERROR_ARGUMENT,
                      "%s.struct_bytes is %" PRIu32 " and its byte %" PRIu32
                      " is not 0, but the %s of this library has %" PRIu32 " (accepted: 0 in all bytes beyond them)",
                      structs[id].name, bytes, i, structs[id].type, structs[id].bytes);
  return FLP_OK;
}

flp_status flp_struct_check(flp_struct_id id, const void *given) {
  uint32_t bytes = bytes_of(given);
  if (bytes == structs[id].bytes) return FLP_OK;
  if (bytes < structs[id].first || bytes > STRUCT_BYTES_MAX || bytes % WORD) return refuse_size(id, bytes);
  return check_beyond(id, given, bytes);
}

/* Bytes that a caller's struct and this release's have both. */
static uint32_t shared_bytes(flp_struct_id id, const void *given) {
  uint32_t bytes = bytes_of(given);
  return bytes < structs[id].bytes ? bytes : structs[id].bytes;
}

flp_status flp_struct_read(flp_struct_id id, const void *given, void *out) {
  FLP_TRY(flp_struct_check(id, given));
  uint32_t shared = shared_bytes(id, given), own = structs[id].bytes;
  memcpy(out, given, shared);
  memcpy((char *)out + shared, (const char *)structs[id].init + shared, own - shared);
  memcpy(out, &own, sizeof own);
  return FLP_OK;
}

void flp_struct_write(flp_struct_id id, const void *value, void *given) {
  size_t head = sizeof(uint32_t);
  memcpy((char *)given + head, (const char *)value + head, shared_bytes(id, given) - head);
}

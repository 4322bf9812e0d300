/* bytes.h: little-endian cursors over a buffer, for formats without padding. Both stop at its end and stay there. */
#ifndef FLP_BYTES_H
#define FLP_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct flp_writer {
  uint8_t *at, *end;
  int full;
} flp_writer;

typedef struct flp_reader {
  const uint8_t *at, *end;
  int short_of_bytes;
} flp_reader;

static inline void flp_put_bytes(flp_writer *w, const void *bytes, size_t count) {
  if (w->full || (size_t)(w->end - w->at) < count) {
    w->full = 1;
    return;
  }
  memcpy(w->at, bytes, count);
  w->at += count;
}

static inline void flp_put_u16(flp_writer *w, uint16_t value) {
  const uint8_t bytes[2] = {(uint8_t)value, (uint8_t)(value >> 8)};
  flp_put_bytes(w, bytes, sizeof bytes);
}

static inline void flp_put_u32(flp_writer *w, uint32_t value) {
  uint8_t bytes[4];
  for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)(value >> 8 * i);
  flp_put_bytes(w, bytes, sizeof bytes);
}

static inline void flp_put_u64(flp_writer *w, uint64_t value) {
  flp_put_u32(w, (uint32_t)(value & UINT32_MAX));
  flp_put_u32(w, (uint32_t)(value >> 32));
}

/* A fixed field: the string, truncated to end in a zero, then zeros. */
static inline void flp_put_string(flp_writer *w, const char *string, size_t field_bytes) {
  char field[64] = {0};
  memcpy(field, string, strnlen(string, field_bytes - 1));
  flp_put_bytes(w, field, field_bytes);
}

/* The next `count` bytes where they lie, or NULL. */
static inline const uint8_t *flp_take_bytes(flp_reader *r, size_t count) {
  if (r->short_of_bytes || (size_t)(r->end - r->at) < count) {
    r->short_of_bytes = 1;
    return NULL;
  }
  const uint8_t *taken = r->at;
  r->at += count;
  return taken;
}

static inline void flp_get_bytes(flp_reader *r, void *out, size_t count) {
  const uint8_t *taken = flp_take_bytes(r, count);
  if (taken)
    memcpy(out, taken, count);
  else
    memset(out, 0, count);
}

static inline uint16_t flp_get_u16(flp_reader *r) {
  uint8_t bytes[2];
  flp_get_bytes(r, bytes, sizeof bytes);
  return (uint16_t)(bytes[0] | bytes[1] << 8);
}

static inline uint32_t flp_get_u32(flp_reader *r) {
  uint8_t bytes[4];
  flp_get_bytes(r, bytes, sizeof bytes);
  uint32_t value = 0;
  for (int i = 0; i < 4; i++) value |= (uint32_t)bytes[i] << 8 * i;
  return value;
}

static inline uint64_t flp_get_u64(flp_reader *r) {
  uint64_t low = flp_get_u32(r);
  return low | (uint64_t)flp_get_u32(r) << 32;
}

/* A fixed field holds a non-empty string of a-z, 0-9, _ and the letters of `also`, ended and padded with zeros. */
static inline int flp_is_name(const char *field, size_t field_bytes, const char *also) {
  size_t length = strnlen(field, field_bytes);
  if (length == 0 || length == field_bytes) return 0;
  for (size_t i = 0; i < length; i++) {
    char c = field[i];
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || strchr(also, c))) return 0;
  }
  for (size_t i = length; i < field_bytes; i++)
    if (field[i]) return 0;
  return 1;
}

#endif

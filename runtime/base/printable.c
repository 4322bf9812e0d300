/* printable.c: see printable.h. */
#include "runtime/base/printable.h"

#include <stddef.h>
#include <string.h>

/* Bytes of the character of UTF-8 that begins here; 1 where none does. */
static size_t character_bytes(const char *at) {
  unsigned first = (unsigned char)at[0];
  size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 1;
  for (size_t i = 1; i < bytes; i++)
    if (((unsigned char)at[i] & 0xc0) != 0x80) return 1;
  return bytes;
}

/* Terminals take U+0080 to U+009F, and some these bytes by themselves, for control characters too. */
static int is_control(const char *at, size_t bytes) {
  unsigned first = (unsigned char)at[0];
  if (bytes == 2) return first == 0xc2 && (unsigned char)at[1] < 0xa0;
  return bytes == 1 && (first < ' ' || (first >= 0x7f && first < 0xa0)) && first != '\n' && first != '\t';
}

void flp_make_printable(char *text) {
  for (size_t bytes; *text; text += bytes) {
    bytes = character_bytes(text);
    if (is_control(text, bytes)) memset(text, '?', bytes);
  }
}

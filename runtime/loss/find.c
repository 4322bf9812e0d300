/* find.c: built-in loss programs by name, and sums of them. */
#include <stdio.h>
#include <string.h>

#include "runtime/base/status.h"
#include "runtime/loss/loss.h"

const char *flp_loss_builtin(int i) {
  return i >= 0 && (size_t)i < flp_loss_table_count ? flp_loss_table[i].name : NULL;
}

static flp_status unknown(const char *name, size_t length) {
  char names[256] = "";
  int used = 0;
  for (size_t i = 0; i < flp_loss_table_count && used < (int)sizeof names; i++)
    used += snprintf(names + used, sizeof names - (size_t)used, "%s%s", i ? ", " : "", flp_loss_table[i].name);
  return flp_fail(FLP_ERROR_ARGUMENT, "loss '%.*s' is not accepted; one of %s, or a sum such as grpo+k3, is",
                  (int)length, name, names);
}

static flp_status find_one(const char *name, size_t length, flp_loss *out) {
  for (size_t i = 0; i < flp_loss_table_count; i++) {
    const flp_loss_builtin_entry *entry = &flp_loss_table[i];
    if (strlen(entry->name) == length && memcmp(entry->name, name, length) == 0)
      return flp_loss_read(entry->bytes, entry->length, out);
  }
  return unknown(name, length);
}

flp_status flp_loss_find(const char *text, flp_loss *out) {
  size_t length = strcspn(text, "+");
  FLP_TRY(find_one(text, length, out));
  while (text[length]) {
    flp_loss term;
    text += length + 1;
    length = strcspn(text, "+");
    FLP_TRY(find_one(text, length, &term));
    FLP_TRY(flp_loss_add(out, &term));
  }
  return FLP_OK;
}

flp_status flp_loss_builtin_bytes(const char *name, void *out, size_t capacity, size_t *out_bytes) {
  flp_loss loss;
  uint8_t bytes[FLP_LOSS_BYTES_MAX];
  flp_detail_clear();
  if (!name || !out_bytes)
    return flp_fail(FLP_ERROR_ARGUMENT, "%s is NULL (accepted: %s)", name ? "out_bytes" : "name",
                    name ? "where to put the size" : "the name of a loss");
  *out_bytes = 0;
  FLP_TRY(flp_loss_find(name, &loss));
  *out_bytes = flp_loss_write(&loss, bytes, sizeof bytes);
  if (!out) return FLP_OK;
  if (capacity < *out_bytes)
    return flp_fail(FLP_ERROR_ARGUMENT, "capacity is %zu, but loss %s has %zu bytes", capacity, name, *out_bytes);
  memcpy(out, bytes, *out_bytes);
  return FLP_OK;
}

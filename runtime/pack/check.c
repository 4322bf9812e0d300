/* check.c: all checks of a pack that need no GPU, before it is shipped or used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/status.h"
#include "runtime/pack/internal.h"

static flp_status bad(const flp_pack_entry *entry, const char *what, const char *which) {
  return flp_fail(FLP_ERROR_CORRUPT, "key %.*s: %s%s", (int)entry->key_bytes, entry->key, what, which);
}

/* ---- code has the entries of its descriptor ---- */

/* PTX defines a kernel as ".entry NAME(", with or without a space before the parenthesis. */
static int has_entry(const char *ptx, const char *symbol) {
  static const char word[] = ".entry ";
  size_t length = strlen(symbol);
  for (const char *at = ptx; (at = strstr(at, word)) != NULL;) {
    at += sizeof word - 1;
    if (strncmp(at, symbol, length) == 0 && strchr("( \t\r\n", at[length])) return 1;
  }
  return 0;
}

static flp_status check_ptx(const flp_pack_entry *entry, const flp_kernel_image *image) {
  for (uint32_t i = 0; i < image->desc.entry_count; i++) {
    char symbol[64];
    snprintf(symbol, sizeof symbol, "flp_%s", image->desc.entries[i].name);
    if (!has_entry(image->ptx, symbol)) return bad(entry, "its PTX has no entry ", symbol);
  }
  return FLP_OK;
}

/* The names in a cubin include those of its entries. */
static flp_status check_cubin(const flp_pack_entry *entry, const flp_kernel_desc *desc, const uint8_t *code,
                              size_t bytes) {
  for (uint32_t i = 0; i < desc->entry_count; i++) {
    char symbol[64];
    int length = snprintf(symbol, sizeof symbol, "flp_%s", desc->entries[i].name);
    if (!memmem(code, bytes, symbol, (size_t)length + 1)) return bad(entry, "its cubin has no entry ", symbol);
  }
  return FLP_OK;
}

static flp_status check_code(const flp_pack *pack, int fd, const flp_pack_entry *entry, flp_kernel_desc *desc) {
  flp_kernel_image image;
  FLP_TRY(flp_pack_load(pack, fd, entry, &image));
  *desc = image.desc;
  flp_status status = check_ptx(entry, &image);
  flp_kernel_image_clear(&image);
  for (uint32_t i = 1; i < entry->image_count && status == FLP_OK; i++) {
    uint8_t *code;
    size_t bytes;
    FLP_TRY(flp_pack_unpack_cubin(pack, fd, entry->images[i].blob, &code, &bytes));
    status = check_cubin(entry, desc, code, bytes);
    free(code);
  }
  return status;
}

/* ---- a portable kernel for each kernel of one capability ---- */

static int has_key(const flp_pack *pack, const flp_kernel_key *key, const uint8_t *sources) {
  char text[FLP_KEY_BYTES_MAX];
  size_t bytes = flp_kernel_key_bytes(key, sources, "", text, sizeof text);
  return bytes && flp_pack_find(pack, text, bytes);
}

/* One kernel of products stands for one of each product elsewhere; it does not record which of them a spec needs. That of
 * an adapter's stands for entries of module lora. */
static int has_product(const flp_pack *pack, flp_kernel_key key, const uint8_t *sources) {
  static const flp_kernel_kind kinds[] = {FLP_KERNEL_GRAD_HIDDEN, FLP_KERNEL_GRAD_WEIGHT};
  int is_lora = key.kind == FLP_KERNEL_LORA_PRODUCTS;
  for (int i = 0; i < 4; i++) {
    key.kind = is_lora ? FLP_KERNEL_LORA : kinds[i & 1];
    key.out_dtype = i & 2 ? FLP_DTYPE_FP32 : key.dtype;
    if (has_key(pack, &key, sources)) return 1;
  }
  return 0;
}

static flp_status check_portable(const flp_pack *pack, const flp_pack_entry *entry, const flp_kernel_desc *desc) {
  flp_kernel_key key = desc->key;
  if (!flp_arch_is_exact(key.arch)) return FLP_OK;
  snprintf(key.arch, sizeof key.arch, "%s", FLP_PORTABLE_ARCH);
  key.tune = (flp_tunables){0};
  key.kind = flp_kind_of_any_rows(key.kind);
  int is_products = key.kind == FLP_KERNEL_PRODUCTS || key.kind == FLP_KERNEL_LORA_PRODUCTS;
  int found = is_products ? has_product(pack, key, desc->sources) : has_key(pack, &key, desc->sources);
  return found ? FLP_OK : bad(entry, "there is no kernel for " FLP_PORTABLE_ARCH " beside it", "");
}

/* ---- all entries ---- */

flp_status flp_pack_check(const flp_pack *pack, int fd, flp_pack_step_fn step, void *context) {
  for (uint32_t i = 0; i < pack->entry_count; i++) {
    if (step) step(context, i, pack->entry_count);
    flp_kernel_desc desc;
    FLP_TRY(check_code(pack, fd, &pack->entries[i], &desc));
    FLP_TRY(check_portable(pack, &pack->entries[i], &desc));
  }
  if (step) step(context, pack->entry_count, pack->entry_count);
  return FLP_OK;
}

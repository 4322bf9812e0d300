/* items.c: the kernels to pack, each once, and where existing ones come from. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gen/cli/pack/pack.h"
#include "runtime/store/internal.h"

/* ---- the list ---- */

cli_pack_item *cli_pack_get(const cli_pack_items *items, const char *key) {
  for (size_t i = 0; i < items->count; i++)
    if (strcmp(items->items[i].key, key) == 0) return &items->items[i];
  return NULL;
}

int cli_pack_has(const cli_pack_items *items, const flp_kernel_key *key) {
  char name[FLP_KEY_BYTES_MAX + 1];
  return flp_kernel_key_bytes(key, flp_sources_hash(), "", name, sizeof name) && cli_pack_get(items, name);
}

static flp_status grow(cli_pack_items *items) {
  if (items->count < items->capacity) return FLP_OK;
  size_t capacity = items->capacity ? 2 * items->capacity : 64;
  cli_pack_item *grown = realloc(items->items, capacity * sizeof *grown);
  if (!grown) return flp_fail(FLP_ERROR_MEMORY, "out of memory for %zu kernels", capacity);
  items->items = grown;
  items->capacity = capacity;
  return FLP_OK;
}

int cli_pack_is_same(const flp_kernel_desc *a, const flp_kernel_desc *b) {
  uint8_t left[FLP_DESC_BYTES_MAX], right[FLP_DESC_BYTES_MAX];
  size_t left_bytes = flp_kernel_desc_write(a, left, sizeof left);
  size_t right_bytes = flp_kernel_desc_write(b, right, sizeof right);
  return left_bytes == right_bytes && memcmp(left, right, left_bytes) == 0;
}

flp_status cli_pack_add(cli_pack_items *items, const char *key, const flp_kernel_desc *desc, const char *ptx,
                        size_t ptx_bytes) {
  const cli_pack_item *there = cli_pack_get(items, key);
  if (there) {
    if (cli_pack_is_same(&there->desc, desc) && there->ptx_bytes == ptx_bytes &&
        memcmp(there->ptx, ptx, ptx_bytes) == 0)
      return FLP_OK;
    return flp_fail(FLP_ERROR_ARGUMENT, "kernel %s was given twice, with different code", key);
  }
  if (strlen(key) > FLP_KEY_BYTES_MAX) return flp_fail(FLP_ERROR_INTERNAL, "the key of a kernel is too long");
  FLP_TRY(grow(items));
  cli_pack_item *item = &items->items[items->count];
  memset(item, 0, sizeof *item);
  item->ptx = malloc(ptx_bytes + 1);
  if (!item->ptx) return flp_fail(FLP_ERROR_MEMORY, "out of memory for PTX of %zu bytes", ptx_bytes);
  memcpy(item->ptx, ptx, ptx_bytes);
  item->ptx[ptx_bytes] = 0;
  item->ptx_bytes = ptx_bytes;
  item->desc = *desc;
  strcpy(item->key, key);
  items->count++;
  return FLP_OK;
}

const cli_pack_cubin *cli_pack_get_cubin(const cli_pack_item *item, uint32_t capability, uint32_t driver) {
  for (uint32_t i = 0; i < item->cubin_count; i++)
    if (item->cubins[i].capability == capability && item->cubins[i].driver == driver) return &item->cubins[i];
  return NULL;
}

flp_status cli_pack_add_cubin(cli_pack_item *item, const cli_pack_cubin *cubin) {
  const cli_pack_cubin *there = cli_pack_get_cubin(item, cubin->capability, cubin->driver);
  if (there) {
    if (there->bytes == cubin->bytes && memcmp(there->code, cubin->code, cubin->bytes) == 0) return FLP_OK;
    return flp_fail(FLP_ERROR_ARGUMENT, "kernel %s was given twice, with different cubins", item->key);
  }
  cli_pack_cubin *grown = realloc(item->cubins, (item->cubin_count + 1) * sizeof *grown);
  if (grown) item->cubins = grown;
  uint8_t *code = grown ? malloc(cubin->bytes) : NULL;
  if (!code) return flp_fail(FLP_ERROR_MEMORY, "out of memory for a cubin of %zu bytes", cubin->bytes);
  memcpy(code, cubin->code, cubin->bytes);
  item->cubins[item->cubin_count] = *cubin;
  item->cubins[item->cubin_count++].code = code;
  return FLP_OK;
}

void cli_pack_items_clear(cli_pack_items *items) {
  for (size_t i = 0; i < items->count; i++) {
    for (uint32_t j = 0; j < items->items[i].cubin_count; j++) free(items->items[i].cubins[j].code);
    free(items->items[i].cubins);
    free(items->items[i].ptx);
  }
  free(items->items);
  *items = (cli_pack_items){0};
}

/* ---- from directories and packs ---- */

static flp_status add_entry_file(cli_pack_items *items, int directory, const char *path, const char *name,
                                 uint64_t *left_out) {
  uint8_t *bytes;
  size_t length;
  struct stat stat;
  int absent;
  char key[FLP_KEY_BYTES_MAX + 1];
  flp_kernel_image image = {.ptx = NULL};
  flp_status status = store_file_read(directory, name, &bytes, &length, &stat, &absent);
  if (status == FLP_OK && absent) return FLP_OK; /* removed since it was listed */
  if (status == FLP_OK) status = store_entry_decode(bytes, length, key, &image);
  free(bytes);
  if (status != FLP_OK) return flp_fail(status, "%s/%s: %s", path, name, flp_error_detail());
  if (!flp_store_other_sources(key))
    status = cli_pack_add(items, key, &image.desc, image.ptx, image.ptx_bytes);
  else
    ++*left_out;
  flp_kernel_image_clear(&image);
  return status;
}

static flp_status add_directory(cli_pack_items *items, const char *path, uint64_t *left_out) {
  int directory;
  char **names = NULL;
  size_t count = 0;
  FLP_TRY(store_file_open_directory(path, 0, 0, &directory, NULL));
  flp_status status = store_file_list(directory, &names, &count);
  for (size_t i = 0; status == FLP_OK && i < count; i++)
    if (store_file_classify(names[i]) == STORE_FILE_ENTRY)
      status = add_entry_file(items, directory, path, names[i], left_out);
  store_file_free_names(names, count);
  close(directory);
  return status;
}

static flp_status add_cubins(const cli_pack_file *file, const flp_pack_entry *entry, cli_pack_item *item) {
  for (uint32_t i = 1; i < entry->image_count; i++) {
    cli_pack_cubin cubin = {.capability = entry->images[i].capability, .driver = entry->images[i].driver};
    FLP_TRY(flp_pack_unpack_cubin(file->pack, file->fd, entry->images[i].blob, &cubin.code, &cubin.bytes));
    flp_status status = cli_pack_add_cubin(item, &cubin);
    free(cubin.code);
    FLP_TRY(status);
  }
  return FLP_OK;
}

static flp_status add_pack_entry(cli_pack_items *items, const cli_pack_file *file, const flp_pack_entry *entry,
                                 uint64_t *left_out) {
  flp_kernel_image image;
  char key[FLP_KEY_BYTES_MAX + 1] = "";
  memcpy(key, entry->key, entry->key_bytes);
  FLP_TRY(flp_pack_load(file->pack, file->fd, entry, &image));
  int current = !flp_store_other_sources(key);
  flp_status status = current ? cli_pack_add(items, key, &image.desc, image.ptx, image.ptx_bytes) : FLP_OK;
  flp_kernel_image_clear(&image);
  if (!current) ++*left_out;
  if (status != FLP_OK || !current) return status;
  return add_cubins(file, entry, cli_pack_get(items, key));
}

static flp_status add_pack(cli_pack_items *items, const char *path, uint64_t *left_out) {
  cli_pack_file file;
  FLP_TRY(cli_pack_file_open(path, &file));
  flp_status status = cli_pack_file_verify(&file, "");
  for (uint32_t i = 0; status == FLP_OK && i < file.pack->entry_count; i++)
    status = add_pack_entry(items, &file, &file.pack->entries[i], left_out);
  cli_pack_file_close(&file);
  return status;
}

flp_status cli_pack_add_from(cli_pack_items *items, const char *path, uint64_t *left_out) {
  return store_pack_is(path) ? add_pack(items, path, left_out) : add_directory(items, path, left_out);
}

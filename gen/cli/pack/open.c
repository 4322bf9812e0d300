/* open.c: a pack opened by the command, verified in full, and as JSON. */
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gen/cli/kernels/kernels.h"
#include "gen/cli/pack/pack.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/progress.h"

flp_status cli_pack_file_open(const char *path, cli_pack_file *out) {
  *out = (cli_pack_file){.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
  if (out->fd < 0)
    return flp_fail(FLP_ERROR_IO, "%s: cannot open: %s", path,
                    errno == ELOOP ? "it is a link, which is not followed" : strerror(errno));
  flp_status status = flp_pack_open(out->fd, path, &out->pack);
  if (status == FLP_OK) {
    status = cli_pack_read_manifest(out->pack, &out->manifest);
    if (status != FLP_OK) flp_fail(status, "%s: %s", path, flp_error_detail());
  }
  if (status != FLP_OK) cli_pack_file_close(out);
  return status;
}

void cli_pack_file_close(cli_pack_file *file) {
  json_decref(file->manifest);
  flp_pack_close(file->pack);
  if (file->fd >= 0) close(file->fd);
  *file = (cli_pack_file){.fd = -1};
}

const char *cli_pack_file_other(const cli_pack_file *file, char out[FLP_STORE_MADE_BYTES]) {
  const char *sources = json_string_value(json_object_get(file->manifest, "sources"));
  if (strcmp(sources, flp_sources_id()) == 0) return NULL;
  return flp_store_made_by(json_string_value(json_object_get(file->manifest, "flp")), sources, out);
}

static void show(void *context, uint32_t done, uint32_t all) {
  cli_progress_update(context, done, all);
}

flp_status cli_pack_file_verify(const cli_pack_file *file, const char *keys) {
  cli_progress progress;
  cli_progress_start(&progress, "verifying", 0);
  flp_status status = flp_pack_check(file->pack, file->fd, show, &progress);
  cli_progress_end(&progress);
  if (status == FLP_OK) status = flp_pack_trusts(file->pack, keys);
  return status == FLP_OK ? FLP_OK : flp_fail(status, "%s: %s", file->path, flp_error_detail());
}

/* ---- as JSON ---- */

static json_t *hex_json(const uint8_t *bytes, size_t count) {
  char hex[2 * FLP_PACK_DIGEST + 1];
  sodium_bin2hex(hex, sizeof hex, bytes, count);
  return json_string(hex);
}

static json_t *image_json(const flp_pack *pack, const flp_pack_image *image) {
  const flp_pack_blob *blob = &pack->blobs[image->blob];
  json_t *object =
      json_pack("{s:s, s:o, s:o, s:o}", "code", image->code == FLP_PACK_PTX ? "ptx" : "cubin", "sha256",
                hex_json(blob->sha256, FLP_PACK_DIGEST), "stored_bytes", cli_json_count(blob->stored_bytes),
                "unpacked_bytes", cli_json_count(blob->unpacked_bytes));
  if (image->code == FLP_PACK_PTX) return object;
  char arch[16];
  snprintf(arch, sizeof arch, "sm_%u", image->capability);
  json_object_set_new(object, "arch", json_string(arch));
  json_object_set_new(object, "driver", json_integer(image->driver));
  return object;
}

static json_t *entry_json(const flp_pack *pack, const flp_pack_entry *entry) {
  char key[FLP_KEY_BYTES_MAX + 1] = "";
  memcpy(key, entry->key, entry->key_bytes);
  json_t *images = json_array();
  for (uint32_t i = 0; i < entry->image_count; i++) json_array_append_new(images, image_json(pack, &entry->images[i]));
  flp_kernel_desc desc;
  json_t *kernel =
      flp_kernel_desc_read(entry->desc, entry->desc_bytes, &desc) == FLP_OK ? cli_desc_json(&desc) : json_null();
  return json_pack("{s:o, s:o, s:o}", "key", cli_json_text(key), "kernel", kernel, "images", images);
}

json_t *cli_pack_file_json(const cli_pack_file *file) {
  const flp_pack *pack = file->pack;
  json_t *entries = json_array();
  for (uint32_t i = 0; i < pack->entry_count; i++) json_array_append_new(entries, entry_json(pack, &pack->entries[i]));
  return json_pack("{s:o, s:o, s:o, s:o, s:O, s:i, s:o}", "file", cli_json_text(file->path), "bytes",
                   cli_json_count(pack->file_bytes), "digest", hex_json(pack->digest, FLP_PACK_DIGEST), "signed_by",
                   pack->is_signed ? hex_json(pack->signer, FLP_PACK_KEY) : json_null(), "manifest", file->manifest,
                   "blobs", (int)pack->blob_count, "entries", entries);
}

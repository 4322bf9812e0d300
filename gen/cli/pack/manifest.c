/* manifest.c: the manifest of a pack, in JSON: its purpose, for people and for programs that choose a pack.
 *
 * Invariant: everything but the name and flp, the version of the command that made it, follows from the kernels; verify
 * checks that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/pack/pack.h"
#include "gen/cli/shared/json_out.h"

#define MANIFEST_FORMAT "flp-pack/1"

/* Adds a text to an array unless it is there. */
static void add_once(json_t *array, const char *text) {
  size_t i;
  json_t *there;
  json_array_foreach(array, i, there) if (strcmp(json_string_value(there), text) == 0) return;
  json_array_append_new(array, cli_json_text(text));
}

static int by_text(const void *left, const void *right) {
  json_t *const *a = left, *const *b = right;
  return strcmp(json_string_value(*a), json_string_value(*b));
}

/* The same texts by ascending bytes. Releases the array. */
static json_t *sorted(json_t *array) {
  size_t count = json_array_size(array), i;
  json_t *text, *out = json_array(), **list = calloc(count + 1, sizeof *list);
  if (!list) {
    json_decref(out);
    return array; /* whoever makes the document finds memory short as well */
  }
  json_array_foreach(array, i, text) list[i] = text;
  qsort(list, count, sizeof *list, by_text);
  for (i = 0; i < count; i++) json_array_append(out, list[i]);
  free(list);
  json_decref(array);
  return out;
}

/* What a pack holds, from each kernel in turn. */
typedef struct summary {
  json_t *arches, *dtypes, *shapes, *devices, *cubins;
  json_int_t kernels;
} summary;

void cli_pack_shape(const flp_kernel_key *key, char out[CLI_PACK_SHAPE_BYTES]) {
  long long vocab = key->vocab, hidden = key->hidden;
  if (flp_kind_has(key->kind, FLP_KIND_LOSS))
    snprintf(out, CLI_PACK_SHAPE_BYTES, "loss %02x%02x%02x%02x", key->loss[0], key->loss[1], key->loss[2], key->loss[3]);
  else if (vocab && !flp_kind_has(key->kind, FLP_KIND_HIDDEN))
    snprintf(out, CLI_PACK_SHAPE_BYTES, "%lld", vocab);
  else if (vocab)
    snprintf(out, CLI_PACK_SHAPE_BYTES, "%lld x %lld", vocab, hidden);
  else if (hidden)
    snprintf(out, CLI_PACK_SHAPE_BYTES, "any x %lld", hidden);
  else
    snprintf(out, CLI_PACK_SHAPE_BYTES, "any");
}

static void add_kernel(summary *s, const char *key_text, const flp_kernel_desc *desc) {
  char shape[CLI_PACK_SHAPE_BYTES];
  const char *tuned = strstr(key_text, " tuned=");
  s->kernels++;
  add_once(s->arches, desc->key.arch);
  add_once(s->dtypes, flp_dtype_name(desc->key.dtype));
  if (desc->key.vocab) {
    cli_pack_shape(&desc->key, shape);
    add_once(s->shapes, shape);
  }
  if (tuned && tuned[7]) add_once(s->devices, tuned + 7);
}

static void add_cubin(summary *s, uint32_t capability, uint32_t driver) {
  char text[64];
  snprintf(text, sizeof text, "sm_%u, driver %u", capability, driver);
  add_once(s->cubins, text);
}

static summary start(void) {
  return (summary){json_array(), json_array(), json_array(), json_array(), json_array(), 0};
}

/* Releases the summary. */
static json_t *finish(summary *s, const uint8_t sources[32], const char *name) {
  char hex[65];
  for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", sources[i]);
  return json_pack("{s:s, s:o, s:s, s:I, s:o, s:o, s:o, s:o, s:o}", "format", MANIFEST_FORMAT, "name",
                   name ? cli_json_text(name) : json_string(""), "sources", hex, "kernels", s->kernels, "arches",
                   sorted(s->arches), "dtypes", sorted(s->dtypes), "shapes", sorted(s->shapes), "tuned_for",
                   sorted(s->devices), "cubins", sorted(s->cubins));
}

flp_status cli_pack_manifest(const cli_pack_items *items, const char *name, char **out) {
  summary s = start();
  for (size_t i = 0; i < items->count; i++) {
    const cli_pack_item *item = &items->items[i];
    add_kernel(&s, item->key, &item->desc);
    for (uint32_t j = 0; j < item->cubin_count; j++) add_cubin(&s, item->cubins[j].capability, item->cubins[j].driver);
  }
  json_t *document = finish(&s, items->count ? items->items[0].desc.sources : flp_sources_hash(), name);
  json_object_set_new(document, "flp", json_string(flp_version()));
  *out = cli_json_dump(document, JSON_COMPACT | JSON_SORT_KEYS);
  json_decref(document);
  return *out ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "out of memory for a manifest");
}

/* ---- reading ---- */

/* The manifest that the pack's own table calls for. NULL if memory ran out; error: CORRUPT in *status */
static json_t *expected(const flp_pack *pack, const char *name, flp_status *status) {
  summary s = start();
  flp_kernel_desc desc, first = {.entry_count = 0};
  *status = FLP_OK;
  for (uint32_t i = 0; i < pack->entry_count && *status == FLP_OK; i++) {
    const flp_pack_entry *entry = &pack->entries[i];
    char key[FLP_KEY_BYTES_MAX + 1] = "";
    memcpy(key, entry->key, entry->key_bytes);
    *status = flp_kernel_desc_read(entry->desc, entry->desc_bytes, &desc);
    if (*status != FLP_OK) break;
    if (i == 0) first = desc;
    if (memcmp(first.sources, desc.sources, sizeof first.sources) != 0)
      *status = flp_fail(FLP_ERROR_CORRUPT, "kernels of different sources are in one pack: %s", key);
    add_kernel(&s, key, &desc);
    for (uint32_t j = 1; j < entry->image_count; j++)
      add_cubin(&s, entry->images[j].capability, entry->images[j].driver);
  }
  return finish(&s, first.sources, name);
}

flp_status cli_pack_read_manifest(const flp_pack *pack, json_t **out) {
  json_error_t error;
  *out = json_loadb(pack->manifest, pack->manifest_bytes, JSON_REJECT_DUPLICATES, &error);
  if (!json_is_object(*out)) {
    json_decref(*out);
    *out = NULL;
    return flp_fail(FLP_ERROR_CORRUPT, "the manifest is no JSON object: %s", error.text);
  }
  const char *name = json_string_value(json_object_get(*out, "name"));
  flp_status status;
  json_t *wanted = expected(pack, name, &status);
  if (status == FLP_OK && !wanted) status = flp_fail(FLP_ERROR_MEMORY, "out of memory for a manifest");
  const char *field;
  json_t *value;
  if (status == FLP_OK)
    json_object_foreach(wanted, field, value) if (status == FLP_OK && !json_equal(value, json_object_get(*out, field)))
        status = flp_fail(FLP_ERROR_CORRUPT, "the manifest's %s differs from that of the entries", field);
  json_decref(wanted);
  if (status == FLP_OK) return FLP_OK;
  json_decref(*out);
  *out = NULL;
  return status;
}

/* out.c: kernels as JSON, as text, as files and as cache entries. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/kernels/kernels.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/losses.h"
#include "runtime/base/fields.h"
#include "runtime/store/store.h"

static json_t *hex_json(const uint8_t *bytes, size_t count) {
  char text[2 * 32 + 1];
  for (size_t i = 0; i < count; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
  return json_string(text);
}

static json_t *entries_json(const flp_kernel_desc *desc) {
  json_t *entries = json_array();
  for (uint32_t i = 0; i < desc->entry_count; i++) {
    const flp_kernel_entry *entry = &desc->entries[i];
    char symbol[64];
    snprintf(symbol, sizeof symbol, "flp_%s", entry->name);
    json_array_append_new(
        entries, json_pack("{s:s, s:s, s:s, s:i, s:i}", "name", entry->name, "symbol", symbol, "signature",
                           entry->signature, "threads", (int)entry->threads, "shared_bytes", (int)entry->shared_bytes));
  }
  return entries;
}

static json_t *key_json(const flp_kernel_key *key) {
  return json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:b, s:b, s:b, s:b, s:i, s:i, s:I, s:I, s:o}", "kind",
                   flp_kernel_kind_name(key->kind), "arch", key->arch, "dtype", flp_dtype_name(key->dtype),
                   "target_dtype", key->target_dtype ? flp_dtype_name(key->target_dtype) : "none", "out_dtype",
                   key->out_dtype ? flp_dtype_name(key->out_dtype) : "none", "entropy", (int)key->entropy, "bias",
                   (int)key->bias, "bias_grad", (int)key->bias_grad, "softcap", (int)key->softcap, "lora", (int)key->lora,
                   "weight_form", (int)key->weight_form, "alignment", (int)key->alignment, "hidden",
                   (json_int_t)key->hidden, "vocab", (json_int_t)key->vocab, "loss",
                   flp_kind_has(key->kind, FLP_KIND_LOSS) ? hex_json(key->loss, sizeof key->loss) : json_null());
}

json_t *cli_desc_json(const flp_kernel_desc *desc) {
  char ptx_version[32];
  snprintf(ptx_version, sizeof ptx_version, "%u.%u", desc->ptx_major, desc->ptx_minor);
  return json_pack("{s:o, s:s*, s:o, s:{s:i, s:i, s:i, s:i, s:i, s:i, s:i}, s:I, s:I, s:o}", "key", key_json(&desc->key),
                   "ptx_version", desc->ptx_major ? ptx_version : NULL, "entries", entries_json(desc), "tile", "rows", (int)desc->tile_rows,
                   "columns", (int)desc->tile_columns, "depth", (int)desc->tile_depth, "stages", (int)desc->stages,
                   "unit_columns", (int)desc->unit_columns, "raster", (int)desc->raster, "cluster", (int)desc->cluster,
                   "chunk_rows", (json_int_t)desc->chunk_rows, "chunk_vocab", (json_int_t)desc->chunk_vocab, "sources",
                   hex_json(desc->sources, sizeof desc->sources));
}

json_t *cli_words_json(const flp_word *words, uint32_t flags) {
  json_t *list = json_array();
  for (; words->name; words++)
    if (flags & (uint32_t)words->value) json_array_append_new(list, json_string(words->name));
  return list;
}

static json_t *field_json(const flp_field *field, const flp_spec *spec) {
  int64_t value = field->kind == FLP_FIELD_LOSS ? 0 : flp_field_get(field, spec);
  const flp_loss *loss = cli_loss_of(spec);
  int is_set = flp_field_is_set(field, spec);
  switch (field->kind) {
    case FLP_FIELD_SWITCH:
    case FLP_FIELD_LISTS:
      return json_boolean(value);
    case FLP_FIELD_WORD:
      return json_string(flp_word_of(field->words, (int)(value ? value : field->usual(spec)), "?"));
    case FLP_FIELD_FLAGS:
      return cli_words_json(field->words, (uint32_t)value);
    case FLP_FIELD_NUMBER:
    case FLP_FIELD_SHARE:
      return is_set ? cli_json_number((double)flp_field_number(field, spec)) : json_null();
    case FLP_FIELD_LOSS:
      return loss ? json_string(loss->name) : json_null();
    default:
      return json_integer(is_set ? value : field->usual(spec));
  }
}

json_t *cli_spec_json(const flp_spec *spec, double scale, double kept) {
  json_t *json = json_object();
  for (int i = 0; i < FLP_SPEC_FIELD_COUNT; i++) {
    const char *name = FLP_SPEC_FIELD[i].name;
    json_object_set_new(json, i == FLP_FIELD_has_bias ? "bias" : name, field_json(&FLP_SPEC_FIELD[i], spec));
  }
  json_object_set_new(json, "scale", cli_json_number(scale));
  json_object_set_new(json, "kept", spec->listed ? cli_json_number(kept) : json_null());
  return json;
}

/* Writes DIR/<kind>.<arch>.<suffix>. */
static flp_status write_text(const cli_kernel *kernel, const char *directory, const char *suffix, const char *text,
                             size_t bytes) {
  const flp_kernel_key *key = &kernel->result.desc.key;
  char name[128], *path = NULL;
  snprintf(name, sizeof name, "%s.%s.%s", flp_kernel_kind_name(key->kind), key->arch, suffix);
  FLP_TRY(cli_join_path(directory, name, &path));
  flp_status status = cli_write_file(path, text, bytes);
  free(path);
  return status;
}

static flp_status write_descriptor(const cli_kernel *kernel, const char *directory) {
  json_t *document = cli_desc_json(&kernel->result.desc);
  char *text = cli_json_dump(document, JSON_INDENT(2));
  json_decref(document);
  if (!text) return flp_fail(FLP_ERROR_MEMORY, "%s: out of memory", directory);
  size_t length = strlen(text);
  text[length] = '\n'; /* in place of the final 0; write_text takes a length */
  flp_status status = write_text(kernel, directory, "json", text, length + 1);
  free(text);
  return status;
}

flp_status cli_kernel_write(const cli_kernel *kernel, const char *directory) {
  const flpgen_result *result = &kernel->result;
  FLP_TRY(write_text(kernel, directory, "ptx", result->ptx, result->ptx_bytes));
  if (result->ir) FLP_TRY(write_text(kernel, directory, "ll", result->ir, strlen(result->ir)));
  if (result->opt_ir) FLP_TRY(write_text(kernel, directory, "opt.ll", result->opt_ir, strlen(result->opt_ir)));
  return write_descriptor(kernel, directory);
}

static flp_status store_one(flp_store *store, const flpgen_result *result) {
  char key[FLP_KEY_BYTES_MAX];
  size_t length = flp_kernel_key_bytes(&result->desc.key, result->desc.sources, "", key, sizeof key);
  if (length == 0) return flp_fail(FLP_ERROR_INTERNAL, "the key of a kernel takes more than %zu bytes", sizeof key);
  flp_kernel_image image = {.desc = result->desc, .ptx = result->ptx, .ptx_bytes = result->ptx_bytes};
  return flp_store_put(store, key, length, &image);
}

flp_status cli_kernels_store(const cli_kernels *kernels, const char *directory) {
  flp_store *store = NULL;
  FLP_TRY(flp_store_open(directory, NULL, &store));
  flp_status status = FLP_OK;
  for (int i = 0; status == FLP_OK && i < kernels->count; i++) status = store_one(store, &kernels->items[i].result);
  flp_store_close(store);
  return status;
}

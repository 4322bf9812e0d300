/* out.c: kernels as JSON, as text, as files and as cache entries. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/kernels/kernels.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/losses.h"
#include "runtime/kernel/op.h"
#include "runtime/base/operands.h"
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
  return json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:b, s:b, s:b, s:i, s:I, s:I, s:o}", "kind",
                   flp_kernel_kind_name(key->kind), "arch", key->arch, "dtype", flp_dtype_name(key->dtype),
                   "target_dtype", key->target_dtype ? flp_dtype_name(key->target_dtype) : "none", "out_dtype",
                   key->out_dtype ? flp_dtype_name(key->out_dtype) : "none", "entropy", (int)key->entropy, "bias",
                   (int)key->bias, "bias_grad", (int)key->bias_grad, "softcap", (int)key->softcap, "alignment",
                   (int)key->alignment, "hidden", (json_int_t)key->hidden, "vocab", (json_int_t)key->vocab, "loss",
                   flp_kind_has(key->kind, FLP_KIND_LOSS) ? hex_json(key->loss, sizeof key->loss) : json_null());
}

json_t *cli_desc_json(const flp_kernel_desc *desc) {
  char ptx_version[32];
  snprintf(ptx_version, sizeof ptx_version, "%u.%u", desc->ptx_major, desc->ptx_minor);
  return json_pack("{s:o, s:s, s:o, s:{s:i, s:i, s:i, s:i, s:i, s:i, s:i}, s:I, s:I, s:o}", "key", key_json(&desc->key),
                   "ptx_version", ptx_version, "entries", entries_json(desc), "tile", "rows", (int)desc->tile_rows,
                   "columns", (int)desc->tile_columns, "depth", (int)desc->tile_depth, "stages", (int)desc->stages,
                   "unit_columns", (int)desc->unit_columns, "raster", (int)desc->raster, "cluster", (int)desc->cluster,
                   "chunk_rows", (json_int_t)desc->chunk_rows, "chunk_vocab", (json_int_t)desc->chunk_vocab, "sources",
                   hex_json(desc->sources, sizeof desc->sources));
}

static json_t *grads_json(uint32_t grads) {
  json_t *list = json_array();
  for (const cli_choice *choice = FLP_GRAD_WORDS; choice->name; choice++)
    if (grads & (uint32_t)choice->value) json_array_append_new(list, json_string(choice->name));
  return list;
}

json_t *cli_spec_json(const flp_spec *spec, double scale, double kept) {
  const flp_loss *loss = cli_loss_of(spec);
  json_t *json = json_pack(
      "{s:s, s:I, s:I, s:s, s:s, s:s, s:o, s:b, s:o, s:b, s:s, s:s, s:b, s:i, s:b, s:o, s:o, s:i, s:o, s:o, s:i, s:i, "
      "s:b, s:s, s:s, s:s, s:s}",
      "op", flp_op_name(spec->op), "vocab", (json_int_t)spec->vocab, "hidden", (json_int_t)spec->hidden, "dtype",
      flp_dtype_name(spec->dtype), "target_dtype", flp_dtype_name(spec->target_dtype), "entropy",
      flp_entropy_name(spec->entropy), "grads", grads_json(spec->grads), "bias", spec->has_bias, "softcap",
      spec->softcap > 0 ? cli_json_number((double)spec->softcap) : json_null(), "per_row_temperature",
      spec->per_row_temperature, "grad_hidden_dtype", flp_dtype_name(spec->grad_hidden_dtype), "grad_weight_dtype",
      flp_dtype_name(spec->grad_weight_dtype), "accumulate_grad_weight", spec->accumulate_grad_weight, "alignment",
      (int)spec->alignment, "keep", spec->keep, "loss", loss ? json_string(loss->name) : json_null(), "scale",
      cli_json_number(scale), "listed", spec->listed, "kept", spec->listed ? cli_json_number(kept) : json_null(),
      "tail", spec->tail > 0 ? cli_json_number((double)spec->tail) : json_null(), "targets",
      (int)flp_spec_targets(spec), "topk", spec->topk, "rank", spec->rank, "hidden_dtype",
      flp_dtype_name(flp_hidden_dtype(spec)), "weight_dtype", flp_dtype_name(flp_weight_dtype(spec)), "bias_dtype",
      flp_dtype_name(flp_bias_dtype(spec)), "mixed", flp_mixed_name(spec->mixed));
  if (spec->lora_rank) json_object_set_new(json, "lora_rank", json_integer(spec->lora_rank));
  return json;
}

static void mixed_text(const flp_spec *spec, char *out, size_t capacity) {
  out[0] = 0;
  if (!spec->mixed) return;
  const char *wide = flp_hidden_dtype(spec) != spec->dtype   ? " hidden=fp32"
                     : flp_weight_dtype(spec) != spec->dtype ? " weight=fp32"
                                                             : " bias=fp32";
  snprintf(out, capacity, "%s mixed=%s", wide, flp_mixed_name(spec->mixed));
}

const char *cli_spec_text(const flp_spec *spec, char *buffer, size_t capacity) {
  char softcap[48] = "", tail[CLI_TEXT_BYTES] = "", targets[24] = "", topk[24] = "", mixed[48], lora[24] = "";
  const flp_loss *loss = cli_loss_of(spec);
  if (!flp_op_of(spec->op)->has_head) {
    snprintf(buffer, capacity, "%s %s V=%lld entropy=%s", flp_op_name(spec->op), flp_dtype_name(spec->dtype),
             (long long)spec->vocab, flp_entropy_name(spec->entropy));
    return buffer;
  }
  char grads[FLP_GRADS_TEXT_BYTES];
  if (spec->softcap > 0) snprintf(softcap, sizeof softcap, " softcap=%g", (double)spec->softcap);
  if (spec->tail > 0) cli_format_tail(spec->tail, tail);
  if (spec->targets > 1) snprintf(targets, sizeof targets, " targets=%d", spec->targets);
  if (spec->topk) snprintf(topk, sizeof topk, " topk=%d", spec->topk);
  mixed_text(spec, mixed, sizeof mixed);
  if (spec->lora_rank) snprintf(lora, sizeof lora, " lora=%d", spec->lora_rank);
  snprintf(buffer, capacity, "%s%s V=%lld D=%lld entropy=%s grad=%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s",
           flp_dtype_name(spec->dtype), mixed, (long long)spec->vocab, (long long)spec->hidden,
           flp_entropy_name(spec->entropy), spec->grads ? flp_grads_text(spec->grads, ",", grads) : "none",
           spec->has_bias ? " bias" : "", softcap, spec->per_row_temperature ? " per-row-temperature" : "",
           spec->keep ? " keep" : "", spec->listed ? " listed" : "", tail[0] ? " tail=" : "", tail, targets, topk,
           spec->rank ? " rank" : "", lora, loss ? " loss=" : "", loss ? loss->name : "",
           spec->accumulate_grad_weight ? " accumulate-grad-weight" : "");
  return buffer;
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

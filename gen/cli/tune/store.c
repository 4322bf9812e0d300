/* store.c: winners into a kernel cache: under the keys that plans of the same specialisation look for first.
 *
 * The key of a tuned entry names the device and no tunables; which they are stands in the descriptor. A kernel whose
 * template's default stays is stored too: the rung takes all of a plan's kernels or none. */
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "autotune/space.h"
#include "gen/cli/tune/pass.h"
#include "gen/cli/tune/store.h"
#include "runtime/load/jit.h"
#include "runtime/plan/plan.h"
#include "runtime/store/store.h"

static flp_status key_bytes(const flp_kernel_key *key, const uint8_t *sources, const char *tuned_for,
                            char out[FLP_KEY_BYTES_MAX]) {
  if (flp_kernel_key_bytes(key, sources, tuned_for, out, FLP_KEY_BYTES_MAX)) return FLP_OK;
  return flp_fail(FLP_ERROR_INTERNAL, "the key of kernel %s is too long", flp_kernel_kind_name(key->kind));
}

/* The kernel as the generator made it while candidates were tried. */
static flp_status find_made(flp_store *made, const flp_spec *spec, const flp_kernel_key *key, flp_kernel_image *image) {
  const flp_provider *provider;
  char bytes[FLP_KEY_BYTES_MAX];
  int found = 0;
  FLP_TRY(flp_jit_get(&provider));
  FLP_TRY(key_bytes(key, provider->sources_hash(), "", bytes));
  FLP_TRY(flp_store_get(made, bytes, strlen(bytes), image, &found));
  return found ? FLP_OK : tune_generate(spec, key, image);
}

tune_chunks tune_chunks_of(const flp_spec *spec, int64_t rows, flp_mode mode, int64_t chunk_rows, int64_t chunk_vocab) {
  tune_chunks chunks = {0, 0, 0};
  if (mode == FLP_MODE_STREAM && chunk_rows < rows) chunks.step = (uint32_t)chunk_rows;
  if (mode != FLP_MODE_RECOMPUTE_VOCAB && mode != FLP_MODE_RECOMPUTE_ROWS && mode != FLP_MODE_RECOMPUTE_SPLIT)
    return chunks;
  if (mode == FLP_MODE_RECOMPUTE_VOCAB && chunk_vocab >= spec->vocab) return chunks;
  if (mode == FLP_MODE_RECOMPUTE_ROWS && chunk_rows >= rows) return chunks;
  if (mode != FLP_MODE_RECOMPUTE_VOCAB) chunks.rows = (uint32_t)chunk_rows;
  if (mode != FLP_MODE_RECOMPUTE_ROWS) chunks.vocab = (uint32_t)chunk_vocab;
  return chunks;
}

static void put_layout(const tune_session *s, flp_kernel_desc *desc) {
  tune_chunks chunks = tune_chunks_of(&s->target->spec, s->args->rows, s->mode, s->chunk_rows, s->chunk_vocab);
  if (desc->key.kind == FLP_FORWARD(KEEP)) desc->chunk_rows = chunks.step;
  if (desc->key.kind != FLP_KERNEL_DZ) return;
  desc->chunk_rows = chunks.rows;
  desc->chunk_vocab = chunks.vocab;
}

/* Whether the target's kernel of that kind was searched: forward_keep is not where steps run in recompute mode. */
static int was_searched(const tune_session *s, const flp_kernel_key *key) {
  return flp_kind_has(key->kind, FLP_KIND_TUNE) && (key->kind != FLP_FORWARD(KEEP) || tune_session_mode(s));
}

static flp_status store_one(const tune_session *s, flp_store *made, flp_store *out, const flp_kernel_key *key,
                            const char *device) {
  flp_kernel_key tiling = *key;
  flp_kernel_image image;
  char bytes[FLP_KEY_BYTES_MAX];
  memset(&image, 0, sizeof image);
  flp_tuning_apply(&s->chosen, &tiling, 1);
  flp_status status = find_made(made, &s->target->spec, &tiling, &image);
  put_layout(s, &image.desc);
  if (status == FLP_OK) status = key_bytes(key, flp_sources_hash(), was_searched(s, key) ? device : "", bytes);
  if (status == FLP_OK) status = flp_store_put(out, bytes, strlen(bytes), &image);
  flp_kernel_image_clear(&image);
  return status;
}

static flp_status store_all(const tune_session *s, flp_store *made, flp_store *out) {
  static const flp_tuning untuned;
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  char device[FLP_TUNED_FOR_BYTES];
  flp_tuned_for(&s->device->info, s->device->driver->version, device);
  int count = tune_session_keys(s, &untuned, keys);
  for (int i = 0; i < count; i++) FLP_TRY(store_one(s, made, out, &keys[i], device));
  return FLP_OK;
}

flp_status tune_store(const tune_session *s, const char *directory) {
  flp_store *made = NULL, *out = NULL;
  flp_setting setting;
  flp_setting_get(FLP_SETTING_CACHE_DIR, &setting);
  flp_status status = flp_store_open(s->compile_pool->directory, NULL, &made);
  if (status == FLP_OK) status = flp_store_open(directory ? directory : setting.value, NULL, &out);
  if (status == FLP_OK) status = store_all(s, made, out);
  flp_store_close(made);
  flp_store_close(out);
  return status;
}

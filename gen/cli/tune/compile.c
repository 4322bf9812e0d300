/* compile.c: kernels compiled side by side before plans ask for them. */
#include <string.h>

#include "gen/cli/tune/compile.h"
#include "runtime/base/status.h"
#include "runtime/load/jit.h"

flp_status tune_generate(const flp_spec *spec, const flp_kernel_key *key, flp_kernel_image *image) {
  const flp_provider *provider;
  int is_loss = flp_kind_has(key->kind, FLP_KIND_LOSS);
  FLP_TRY(flp_jit_get(&provider));
  return flp_jit_generate(provider, key, is_loss ? spec->loss : NULL, is_loss ? spec->loss_bytes : 0, image);
}

typedef struct batch {
  const flp_driver *driver;
  flp_store *store;
  const flp_spec *spec;
  const flp_kernel_key *keys;
} batch;

/* Generates, stores and compiles one kernel. */
static void compile(void *argument, int i) {
  const batch *all = argument;
  const flp_kernel_key *key = &all->keys[i];
  const flp_provider *provider;
  flp_kernel_image image;
  char bytes[FLP_KEY_BYTES_MAX];
  memset(&image, 0, sizeof image);
  if (flp_jit_get(&provider) != FLP_OK) return;
  if (!flp_kernel_key_bytes(key, provider->sources_hash(), "", bytes, sizeof bytes)) return;
  if (tune_generate(all->spec, key, &image) == FLP_OK) {
    flp_store_put(all->store, bytes, strlen(bytes), &image);
    cli_precompile(all->driver, all->store, &image);
  }
  flp_kernel_image_clear(&image);
}

flp_status tune_compile(tune_compile_pool *compile_pool, const flp_spec *spec, const flp_kernel_key *keys, int count) {
  cli_pool pool;
  batch all = {.driver = compile_pool->compilers.driver, .spec = spec, .keys = keys};
  if (!compile_pool->compilers.count || count < 2) return FLP_OK;
  FLP_TRY(flp_store_open(compile_pool->directory, NULL, &all.store));
  flp_status status = cli_pool_start(&compile_pool->compilers, count, compile, &all, &pool);
  if (status == FLP_OK) {
    cli_pool_finish(&pool);
    cli_pool_stop(&pool);
  }
  flp_store_close(all.store);
  return status;
}

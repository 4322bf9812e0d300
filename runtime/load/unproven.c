/* unproven.c: see unproven.h. */
#include "runtime/load/unproven.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/status.h"

/* Looks in one cache; what is NULL is as the settings say. error: MEMORY */
static flp_status find_in(const char *cache_dir, const char *cache_path, const flp_proof_of *of, flp_proof *out) {
  flp_setting writable, read_only;
  flp_store *store;
  flp_setting_get(FLP_SETTING_CACHE_DIR, &writable);
  flp_setting_get(FLP_SETTING_CACHE_PATH, &read_only);
  FLP_TRY(flp_store_open(cache_dir ? cache_dir : writable.value, cache_path ? cache_path : read_only.value, &store));
  flp_proof_find(store, of, out);
  flp_store_close(store);
  return FLP_OK;
}

flp_proof_of flp_unproven_key(const flp_device *device, int driver, const flp_arch *arch) {
  return (flp_proof_of){
      .gpu = device->name, .arch = arch->name, .capability = device->major * 10 + device->minor, .driver = driver};
}

flp_status flp_unproven_proof(const flp_device *device, int driver, const char *cache_dir, const char *cache_path,
                              const flp_arch *arch, flp_proof *out) {
  flp_proof_of of = flp_unproven_key(device, driver, arch);
  *out = (flp_proof){.verdict = FLP_VERDICT_NONE};
  if (cache_dir || cache_path) FLP_TRY(find_in(cache_dir, cache_path, &of, out));
  return out->verdict ? FLP_OK : find_in(NULL, NULL, &of, out);
}

static int is_tried(const flp_arch *arch, const flp_device *device, const flp_spec *spec, int clusters) {
  const unsigned off = FLP_ARCH_PLANNED | FLP_ARCH_UNPROVEN;
  return (arch->facts & off) == off && flp_arch_runs(arch, device->major, device->minor) &&
         (clusters || !(arch->facts & FLP_ARCH_CLUSTERS)) && (!spec || flp_kernel_arch_serves(arch->name, spec));
}

static void say(const flp_arch *arch, const flp_device *device, const flp_proof *proof, char out[FLP_UNPROVEN_BYTES]) {
  const char *gpu = device->name[0] ? device->name : "such a GPU";
  if (proof->verdict == FLP_VERDICT_REFUTED)
    snprintf(out, FLP_UNPROVEN_BYTES, "kernels for %s are off on %.64s, flpgen prove has refuted them: %.200s",
             arch->name, gpu, proof->reason);
  else
    snprintf(out, FLP_UNPROVEN_BYTES,
             "kernels for %s are off on %.64s until `flpgen prove --arch %s` has passed there: they are generated, and "
             "have never run on one",
             arch->name, gpu, arch->name);
}

flp_status flp_unproven_find(const flp_device *device, const flp_spec *spec, int clusters, int driver,
                             const char *cache_dir, const char *cache_path, flp_unproven *out) {
  const flp_arch *arch;
  *out = (flp_unproven){.arches = 0};
  for (int i = 0; (arch = flp_arch_at(i)); i++) {
    flp_proof proof;
    if (!is_tried(arch, device, spec, clusters)) continue;
    FLP_TRY(flp_unproven_proof(device, driver, cache_dir, cache_path, arch, &proof));
    if (proof.verdict == FLP_VERDICT_PROVEN) continue;
    out->arches |= 1u << i;
    say(arch, device, &proof, out->reason);
  }
  return FLP_OK;
}

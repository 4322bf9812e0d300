/* fake_ir_provider.c: libflpgen with the LLVM IR of each kernel in the place of its PTX, for a driver that runs it
 * (fake_cuda.c, run=). The environment variable FAKE_IR_LIBRARY is the path of libflpgen.so; with FAKE_IR_ANY_LOSS set
 * it gives the kernel of any loss for each, as rung generic does; FAKE_IR_TEMPLATES is a folder of templates in the
 * place of the library's. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/gen.h"
#include "runtime/kernel/provider.h"

typedef flp_status (*generate_fn)(const flp_kernel_key *, const flpgen_options *, flpgen_result *, char *, size_t);

static void *library;
static const flp_provider *real;

static void *symbol(const char *name) {
  void *found = library ? dlsym(library, name) : NULL;
  if (!found) fprintf(stderr, "fake_ir_provider: FAKE_IR_LIBRARY has no %s\n", name);
  return found;
}

static flp_status generate(const flp_kernel_key *key, const uint8_t *loss, size_t loss_bytes, flp_kernel_desc *desc,
                           char **ptx, size_t *ptx_bytes, char *error, size_t error_capacity) {
  generate_fn make;
  flp_kernel_key own = *key;
  void *found = symbol("flpgen_generate");
  flp_loss program;
  if (loss && flp_loss_read(loss, loss_bytes, &program) != FLP_OK) return FLP_ERROR_CORRUPT;
  int any = getenv("FAKE_IR_ANY_LOSS") != NULL;
  if (any) memset(own.loss, 0, sizeof own.loss);
  flpgen_options options = {
      .ir_only = 1, .loss = loss && !any ? &program : NULL, .template_dir = getenv("FAKE_IR_TEMPLATES")};
  flpgen_result result;
  memcpy(&make, &found, sizeof make);
  flp_status status = make(&own, &options, &result, error, error_capacity);
  *ptx = NULL;
  *ptx_bytes = 0;
  if (status != FLP_OK) return status;
  *desc = result.desc;
  desc->ptx_major = 7;
  *ptx = result.ir;
  *ptx_bytes = strlen(result.ir);
  return FLP_OK;
}

static void free_ir(char *ir) {
  free(ir);
}

static const uint8_t *sources_hash(void) {
  return real->sources_hash();
}

FLP_API const flp_provider *flp_provider_get(uint32_t version);

const flp_provider *flp_provider_get(uint32_t version) {
  static const flp_provider provider = {FLP_PROVIDER_VERSION, generate, free_ir, sources_hash};
  const char *path = getenv("FAKE_IR_LIBRARY");
  flp_provider_get_fn get;
  library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  void *found = symbol(FLP_PROVIDER_SYMBOL);
  if (!found) return NULL;
  memcpy(&get, &found, sizeof get);
  real = get(version);
  return real ? &provider : NULL;
}

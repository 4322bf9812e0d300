/* stage.c: see stage.h. */
#include "tests/unit/support/stage.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/kernel/provider.h"
#include "tests/unit/support/kernel_sample.h"

static char messages[65536];
static const flp_provider *provider;

static void keep(flp_log_level level, const char *message, void *user) {
  (void)user;
  size_t used = strlen(messages);
  snprintf(messages + used, sizeof messages - used, "%d %s\n", (int)level, message);
}

static void find(void *library, const char *name, void *out) {
  void *address = library ? dlsym(library, name) : NULL;
  if (!address) {
    fprintf(stderr, "stage: no %s: %s\n", name, dlerror());
    abort();
  }
  memcpy(out, &address, sizeof address);
}

static void set_environment(stage *s) {
  snprintf(s->root, sizeof s->root, "%s", sample_directory());
  snprintf(s->cache, sizeof s->cache, "%s/cache", s->root);
  snprintf(s->generic, sizeof s->generic, "%s/generic", s->root);
  const char *const variables[][2] = {{"FLP_CUDA_LIBRARY", FLP_TEST_FAKE_CUDA},
                                      {"FLP_JIT_LIBRARY", FLP_TEST_FAKE_PROVIDER},
                                      {"FLP_CACHE_DIR", s->cache},
                                      {"FLP_GENERIC_DIR", s->generic}};
  const char *const absent[] = {"FLP_CACHE_PATH", "FLP_PACK_KEYS", "FLP_FORCE",
                                "FLP_STRICT",     "FLP_BUDGET",    "FAKE_CUDA"};
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) setenv(variables[i][0], variables[i][1], 1);
  for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++) unsetenv(absent[i]);
}

void stage_open(stage *s, const char *cuda_script) {
  memset(s, 0, sizeof *s);
  set_environment(s);
  void *cuda = dlopen(FLP_TEST_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  void *generator = dlopen(FLP_TEST_FAKE_PROVIDER, RTLD_NOW | RTLD_LOCAL);
  find(cuda, "fake_cuda_script", &s->script);
  find(cuda, "fake_cuda_reset", &s->reset);
  find(cuda, "fake_cuda_log", &s->log);
  find(cuda, "fake_cuda_calls", &s->calls);
  find(cuda, "fake_cuda_launch_count", &s->launch_count);
  find(cuda, "fake_cuda_launch_at", &s->launch_at);
  find(cuda, "fake_cuda_held", &s->held);
  find(generator, "fake_provider_script", &s->provider_script);
  find(generator, "fake_provider_calls", &s->provider_calls);
  void (*set_sources)(const uint8_t *);
  find(generator, "fake_provider_set_sources", &set_sources);
  set_sources(flp_sources_hash());
  s->provider_script("");
  flp_provider_get_fn get;
  find(generator, FLP_PROVIDER_SYMBOL, &get);
  provider = get(FLP_PROVIDER_VERSION);
  s->script(cuda_script);
  messages[0] = 0;
  flp_log_set(keep, NULL);
}

static void put(flp_store *store, const flp_kernel_key *key, const stage_filling *how) {
  flp_kernel_image image = {.ptx = NULL};
  flp_kernel_key made = how->generic ? flp_kernel_key_generic(key, how->arch) : *key, named = made;
  flp_tuning tuning;
  char error[256], bytes[FLP_KEY_BYTES_MAX];
  const char *tuned_for = flp_kind_has(key->kind, FLP_KIND_TUNE) ? how->tuned_for : "";
  if (flp_tuning_parse("tune", how->tune, &tuning) != FLP_OK) abort();
  flp_tuning_apply(&tuning, &made, 1);
  size_t length = flp_kernel_key_bytes(&named, flp_sources_hash(), tuned_for, bytes, sizeof bytes);
  flp_status status =
      provider->generate(&made, NULL, 0, &image.desc, &image.ptx, &image.ptx_bytes, error, sizeof error);
  int is_dz = key->kind == FLP_KERNEL_DZ;
  if (is_dz) image.desc.chunk_rows = how->chunk_rows, image.desc.chunk_vocab = how->chunk_vocab;
  if (status != FLP_OK || flp_store_put(store, bytes, length, &image) != FLP_OK) {
    fprintf(stderr, "stage: cannot put %s: %s\n", bytes, flp_error_detail());
    abort();
  }
  flp_kernel_image_clear(&image);
}

void stage_fill(const char *directory, const flp_spec *spec, stage_filling how) {
  flp_store *store;
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  mkdir(directory, 0700);
  if (flp_store_open(directory, NULL, &store) != FLP_OK) abort();
  if (!how.arch) how.arch = "sm_80";
  int count = flp_kernel_keys_for(spec, how.arch, keys);
  for (int i = 0; i < count; i++) put(store, &keys[i], &how);
  flp_store_close(store);
}

void stage_fill_cache(const char *directory, const flp_spec *spec, const char *tuned_for) {
  stage_fill(directory, spec, (stage_filling){.tuned_for = tuned_for});
}

void stage_fill_generic(const char *directory, const flp_spec *spec) {
  stage_fill(directory, spec, (stage_filling){.generic = 1});
}

const char *stage_messages(void) {
  return messages;
}

static int count_in(const char *log, const char *text) {
  int count = 0;
  for (; (log = strstr(log, text)); log++) count++;
  return count;
}

int stage_logged(const char *text) {
  return count_in(messages, text);
}

int stage_called(const stage *s, const char *text) {
  return count_in(s->log(), text);
}

void stage_expect_nothing_held(const stage *s) {
  size_t bytes;
  int modules, contexts;
  s->held(&bytes, &modules, &contexts);
  cr_expect(!bytes && !modules && !contexts, "%zu bytes, %d modules, %d contexts are held", bytes, modules, contexts);
}

flp_spec stage_spec(uint32_t grads) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.vocab = 1000;
  spec.hidden = 64;
  spec.grads = grads;
  spec.has_bias = (grads & FLP_GRAD_BIAS) != 0;
  return spec;
}

flp_options stage_options(int64_t chunk_rows, flp_mode mode) {
  flp_options options = FLP_OPTIONS_INIT;
  options.rung = FLP_RUNG_JIT;
  options.chunk_rows = chunk_rows;
  options.mode = mode;
  return options;
}

flp_plan *stage_plan(const flp_spec *spec, const flp_options *options) {
  flp_plan *plan = NULL;
  if (flp_plan_create(spec, options, &plan) != FLP_OK) {
    fprintf(stderr, "stage: no plan: %s\n", flp_error_detail());
    abort();
  }
  return plan;
}

uint64_t stage_address(const void *pointer) {
  return (uint64_t)(uintptr_t)pointer;
}

flp_args stage_args(const flp_spec *spec, flp_pass pass, int64_t n) {
  flp_args a = FLP_ARGS_INIT;
  a.pass = pass;
  a.n = n;
  a.hidden = STAGE_AT(1);
  a.weight = STAGE_AT(2);
  if (spec->has_bias) a.bias = STAGE_AT(3);
  a.target = STAGE_AT(4);
  a.stats = STAGE_AT(5);
  a.stream = STAGE_STREAM;
  a.workspace = STAGE_AT(50);
  if (pass != FLP_PASS_BACKWARD) {
    a.logprob = STAGE_AT(6);
    return a;
  }
  a.grad_logprob = STAGE_AT(7);
  if (spec->grads & FLP_GRAD_HIDDEN) a.grad_hidden = STAGE_AT(8);
  if (spec->grads & FLP_GRAD_WEIGHT) a.grad_weight = STAGE_AT(9);
  if (spec->grads & FLP_GRAD_BIAS) a.grad_bias = STAGE_AT(10);
  return a;
}

size_t stage_workspace(const flp_plan *plan, flp_pass pass, int64_t n, uint64_t budget) {
  size_t bytes;
  cr_assert_eq(flp_plan_workspace(plan, pass, n, budget, &bytes), FLP_OK, "%s", flp_error_detail());
  return bytes;
}

size_t stage_saved(const flp_plan *plan, int64_t n) {
  size_t bytes;
  cr_assert_eq(flp_plan_saved(plan, n, 0, &bytes), FLP_OK, "%s", flp_error_detail());
  return bytes;
}

void stage_execute(stage *s, flp_plan *plan, const flp_args *args) {
  s->reset();
  cr_assert_eq(flp_execute(plan, args), FLP_OK, "%s", flp_error_detail());
}

stage_map stage_read_map(const flp_abi_map *map) {
  stage_map text;
  memcpy(&text, map, sizeof text);
  return text;
}

const fake_launch *stage_launch(const stage *s, const char *entry, int which) {
  for (size_t i = 0; i < s->launch_count(); i++)
    if (strcmp(s->launch_at(i)->entry, entry) == 0 && which-- == 0) return s->launch_at(i);
  cr_assert_fail("no launch of %s", entry);
  return NULL;
}

void stage_expect_capturable(stage *s) {
  static const char *const forbidden[] = {"cuMemAlloc", "cuMemFree", "cuStreamSynchronize",
                                          "cuModule",   "cuMemcpy",  "cuFuncSetAttr",
                                          "cuEvent",    "cuDevice",  "cuInit"};
  for (size_t i = 0; i < sizeof forbidden / sizeof forbidden[0]; i++)
    cr_expect_null(strstr(s->log(), forbidden[i]), "%s in\n%s", forbidden[i], s->log());
}

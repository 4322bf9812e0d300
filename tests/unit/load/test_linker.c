/* test_linker.c: kernels that are linked in a thread while others load, and their machine code in the cache. Which
 * plans link what, and what they keep, is in tests/golden/plan/linked.txt. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/driver/compile.h"
#include "runtime/load/linker.h"
#include "runtime/plan/plan.h"
#include "tests/unit/support/kernel_sample.h"
#include "tests/unit/support/stage.h"
#include "tests/unit/support/store_fixture.h"

enum { TWO = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT, MODULES = 5 };

/* In place of libc's: no thread starts where a test forbids it. */
static int no_threads;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
  typedef int (*create_fn)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  create_fn create;
  void *found = dlsym(RTLD_NEXT, "pthread_create");
  memcpy(&create, &found, sizeof create);
  return no_threads ? EAGAIN : create(thread, attributes, start, argument);
}

/* Makes and destroys a plan of five modules, as one more process would. */
static void run_plan(stage *s, const char *script) {
  flp_spec spec = stage_spec(TWO);
  s->script(script);
  flp_plan *plan = stage_plan(&spec, NULL);
  static const flp_kernel_kind kinds[MODULES] = {FLP_KERNEL_ROWS, FLP_KERNEL_FORWARD, FLP_KERNEL_DZ,
                                                 FLP_KERNEL_GRAD_HIDDEN, FLP_KERNEL_GRAD_WEIGHT};
  cr_assert_eq(plan->modules.count, MODULES);
  for (int i = 0; i < MODULES; i++) cr_expect_eq(plan->modules.desc[i].key.kind, kinds[i]);
  flp_plan_destroy(plan);
  stage_expect_nothing_held(s);
}

/* What the last plan did: linked rows (1), took its kept code (2), or compiled all as it loaded (0). */
static void expect_way(stage *s, int way) {
  cr_expect_eq(s->calls("cuLinkComplete"), way == 1);
  cr_expect_eq(stage_called(s, "cuModuleLoadDataEx cubin"), way != 0);
  cr_expect_eq(s->calls("cuModuleLoadDataEx"), MODULES);
}

/* 1 if the kept code of an image is taken. */
static int is_taken(flp_store *store, const flp_kernel_image *image) {
  flp_kernel_image copy = *image;
  copy.cubin = NULL;
  flp_store_get_cubin(store, &copy);
  free(copy.cubin);
  return copy.cubin != NULL;
}

/* The cache as a plan on the stand-in's device opens it, and the rows kernel of run_plan's. */
static void open_rows(const stage *s, flp_store **store, flp_kernel_image *image) {
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  flp_spec spec = stage_spec(TWO);
  char key[FLP_KEY_BYTES_MAX];
  int found;
  cr_assert_eq(flp_store_open(s->cache, NULL, store), FLP_OK);
  flp_store_set_device(*store, 80, 13000);
  flp_kernel_keys_for(&spec, "sm_80", keys);
  size_t bytes = flp_kernel_key_bytes(&keys[0], flp_sources_hash(), "", key, sizeof key);
  cr_assert(flp_store_get(*store, key, bytes, image, &found) == FLP_OK && found);
}

Test(linker, kept_code_is_of_one_ptx_device_and_driver) {
  stage s;
  stage_open(&s, "");
  run_plan(&s, "link=1");
  expect_way(&s, 1);
  flp_store *store;
  flp_kernel_image image, other = sample_image(FLP_KERNEL_ROWS, 100, 1);
  open_rows(&s, &store, &image);
  cr_expect(is_taken(store, &image));
  cr_expect_not(is_taken(store, &other), "of other PTX");
  flp_store_set_device(store, 80, 12080);
  cr_expect_not(is_taken(store, &image), "of another driver");
  flp_store_set_device(store, 90, 13000);
  cr_expect_not(is_taken(store, &image), "of another device");
  flp_store_close(store);
}

Test(linker, without_a_thread_nothing_is_linked) {
  stage s;
  stage_open(&s, "");
  no_threads = 1;
  run_plan(&s, "link=1");
  expect_way(&s, 0);
  cr_expect_eq(sample_count(s.cache, ".flpc"), 0);
  cr_expect_eq(stage_logged("1 "), 0, "%s", stage_messages());
}

Test(linker, nothing_is_linked_alone) {
  stage s;
  stage_open(&s, "link=1");
  const flp_driver *driver;
  CUcontext context;
  flp_images images = {.count = 2,
                       .image = {sample_image(FLP_KERNEL_ROWS, 100, 1), sample_image(FLP_KERNEL_FORWARD, 100, 2)}};
  flp_linking linkings[FLP_SPEC_KERNELS_MAX];
  cr_assert_eq(flp_driver_get(&driver), FLP_OK);
  cr_assert_eq(driver->cuDevicePrimaryCtxRetain(&context, 40), 0);
  cr_assert_eq(flp_store_open(s.cache, NULL, &images.store), FLP_OK);
  flp_store_set_device(images.store, 80, 13000);
  images.image[1].cubin = strdup("code");
  flp_linker_start(driver, context, &images, linkings);
  cr_expect_not(linkings[0].is_running, "the other one needs no compiler");
  free(images.image[1].cubin);
  images.image[1].cubin = NULL;
  flp_linker_start(driver, context, &images, linkings);
  cr_expect(linkings[0].is_running);
  cr_expect_not(linkings[1].is_running);
  flp_linker_finish(linkings);
  cr_expect_not_null(images.image[0].cubin);
  cr_expect_null(images.image[1].cubin);
  flp_images_clear(&images);
}

/* ---- damaged files ---- */

/* The path of the one file of machine code in a cache. */
static void find_kept(const stage *s, char out[700]) {
  glob_t files;
  snprintf(out, 700, "%s/*.flpc", s->cache);
  cr_assert_eq(glob(out, 0, NULL, &files), 0);
  snprintf(out, 700, "%s", files.gl_pathv[0]);
  globfree(&files);
}

static size_t read_file(const char *path, uint8_t *out, size_t capacity) {
  FILE *file = fopen(path, "r");
  cr_assert_not_null(file);
  size_t length = fread(out, 1, capacity, file);
  fclose(file);
  return length;
}

Test(linker, no_damage_goes_unnoticed) {
  stage s;
  stage_open(&s, "link=1");
  static uint8_t bytes[1 << 16];
  char path[700];
  run_plan(&s, "link=1");
  find_kept(&s, path);
  size_t length = read_file(path, bytes, sizeof bytes);
  cr_assert(length > 300 && length < sizeof bytes);

  flp_store *store;
  flp_kernel_image image;
  open_rows(&s, &store, &image);
  cr_assert(is_taken(store, &image));
  for (size_t i = 0; i < length; i++) {
    bytes[i] ^= 0x20;
    fixture_write_file(path, bytes, length);
    cr_expect_not(is_taken(store, &image), "byte %zu", i);
    bytes[i] ^= 0x20;
  }
  for (size_t length_left = 0; length_left < length; length_left += 7) {
    fixture_write_file(path, bytes, length_left);
    cr_expect_not(is_taken(store, &image), "%zu bytes", length_left);
  }
  cr_expect_eq(stage_logged("is compiled anew: "), 1, "logged once: %s", stage_messages());

  run_plan(&s, "link=1");
  expect_way(&s, 1);
  cr_expect(is_taken(store, &image), "written over");
  cr_assert_eq(unlink(path), 0);
  cr_assert_eq(symlink("/etc/hostname", path), 0);
  cr_expect_not(is_taken(store, &image), "links are not followed");
  flp_store_close(store);
}

/* ---- levels ---- */

/* 1 if a kernel is asked for at level 1, 0 if at the driver's own. */
static int asked_level(flp_kernel_kind kind, const char *arch, flp_dtype dtype, int softcap) {
  flp_compile call;
  flp_kernel_desc desc = {.key = {.kind = kind, .dtype = dtype, .softcap = (uint32_t)softcap}};
  strcpy(desc.key.arch, arch);
  flp_compile_open(&call, &desc);
  enum { LEVEL = 7 };
  for (unsigned i = 0; i < call.option_count; i++)
    if (call.options[i] == LEVEL) return (int)(uintptr_t)call.values[i];
  return 0;
}

Test(linker, only_hoppers_forward_is_compiled_at_level_1) {
  cr_expect_eq(asked_level(FLP_KERNEL_FORWARD, "sm_90a", FLP_DTYPE_BF16, 0), 1);
  cr_expect_eq(asked_level(FLP_KERNEL_FORWARD, "sm_90a", FLP_DTYPE_FP16, 0), 1);
  cr_expect_eq(asked_level(FLP_KERNEL_FORWARD, "sm_90a", FLP_DTYPE_FP32, 0), 0);
  cr_expect_eq(asked_level(FLP_KERNEL_FORWARD, "sm_90a", FLP_DTYPE_BF16, 1), 0);
  cr_expect_eq(asked_level(FLP_KERNEL_FORWARD, "sm_80", FLP_DTYPE_BF16, 0), 0);
  cr_expect_eq(asked_level(FLP_KERNEL_DZ, "sm_90a", FLP_DTYPE_BF16, 0), 0);
}

/* test_linker.c: kernels that are linked in a thread while others load, and their machine code in the cache. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

static int cubins_loaded(stage *s) {
  int count = 0;
  for (const char *at = s->log(); (at = strstr(at, "cuModuleLoadDataEx cubin")) != NULL; at++) count++;
  return count;
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
  size_t bytes;
  int modules, contexts;
  s->held(&bytes, &modules, &contexts);
  cr_expect(bytes == 0 && modules == 0 && contexts == 0, "%zu bytes, %d modules, %d contexts", bytes, modules,
            contexts);
}

/* What the last plan did: linked rows (1), took its kept code (2), or compiled all as it loaded (0). */
static void expect_way(stage *s, int way) {
  cr_expect_eq(s->calls("cuLinkComplete"), way == 1);
  cr_expect_eq(cubins_loaded(s), way != 0);
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

Test(linker, rows_are_linked_while_the_others_load) {
  stage s;
  stage_open(&s, "");
  run_plan(&s, "link=1;meet=2");
  expect_way(&s, 1);
  cr_expect_not_null(strstr(s.log(), "cuLinkAddData_v2 rows\n"));
  cr_expect_eq(s.calls("cuCtxPushCurrent_v2"), s.calls("cuCtxPopCurrent_v2"));
  cr_expect_eq(sample_count(s.cache, ".flpc"), 1);
  cr_expect_eq(sample_count(s.cache, ".tmp-"), 0);
  run_plan(&s, "link=1");
  expect_way(&s, 2);
  cr_expect_eq(stage_logged("1 "), 0, "%s", stage_messages());
}

Test(linker, kept_code_is_of_one_ptx_device_and_driver) {
  stage s;
  stage_open(&s, "");
  static const char *const scripts[] = {"link=1", "link=1;capability=8.6"};
  for (int i = 0; i < 2; i++) {
    run_plan(&s, scripts[i]);
    expect_way(&s, 1);
    cr_expect_eq(sample_count(s.cache, ".flpc"), i + 1);
  }
  for (int i = 0; i < 2; i++) {
    run_plan(&s, scripts[i]);
    expect_way(&s, 2);
  }
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

Test(linker, what_cannot_be_linked_is_compiled_as_it_loads) {
  static const char *const scripts[] = {
      "",
      "link=1;fail:cuLinkCreate_v2=221",
      "link=1;fail:cuLinkAddData_v2=218",
      "link=1;fail:cuLinkComplete=2",
      "link=1;fail:cuCtxPushCurrent_v2=201@2",
      "link=1;linklog=ptxas info : (C7504) Potential Performance Loss: 'setmaxnreg' ignored",
      "link=2",
  };
  stage s;
  stage_open(&s, "");
  for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
    run_plan(&s, scripts[i]);
    cr_expect_eq(s.calls("cuModuleLoadDataEx"), MODULES, "%s", scripts[i]);
    cr_expect_eq(cubins_loaded(&s), 0, "%s", scripts[i]);
  }
  no_threads = 1;
  run_plan(&s, "link=1");
  expect_way(&s, 0);
  cr_expect_eq(sample_count(s.cache, ".flpc"), 0);
  cr_expect_eq(stage_logged("1 "), 0, "%s", stage_messages());
}

Test(linker, without_a_cache_to_keep_it_nothing_is_linked) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(TWO);
  char file[600];
  stage_fill_cache(s.cache, &spec, "");
  setenv("FLP_CACHE_PATH", s.cache, 1);
  snprintf(file, sizeof file, "%s/file", s.root);
  cr_assert_eq(fclose(fopen(file, "w")), 0);
  strcat(file, "/cache");
  setenv("FLP_CACHE_DIR", file, 1);
  run_plan(&s, "link=1");
  expect_way(&s, 0);
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

Test(linker, code_under_another_name_is_not_taken) {
  stage s;
  stage_open(&s, "link=1");
  char from[700], to[700], command[1500];
  run_plan(&s, "link=1;capability=8.6");
  find_kept(&s, from);
  snprintf(command, sizeof command, "cp '%s' '%s'/foreign", from, s.root);
  cr_assert_eq(system(command), 0);
  cr_assert_eq(unlink(from), 0);
  run_plan(&s, "link=1");
  find_kept(&s, to);
  snprintf(command, sizeof command, "cp '%s'/foreign '%s'", s.root, to);
  cr_assert_eq(system(command), 0);
  run_plan(&s, "link=1");
  expect_way(&s, 1);
  cr_expect_eq(stage_logged("is compiled anew: machine code: is of another key: flp-cubin/1 kind=rows arch=sm_80 "
                            "capability=86 driver=13000"),
               1, "%s", stage_messages());
}

Test(linker, code_that_cannot_be_kept_is_used_all_the_same) {
  stage s;
  stage_open(&s, "link=1");
  char path[700];
  run_plan(&s, "link=1");
  find_kept(&s, path);
  cr_assert_eq(unlink(path), 0);
  cr_assert_eq(mkdir(path, 0700), 0);
  for (int i = 0; i < 2; i++) {
    run_plan(&s, "link=1");
    expect_way(&s, 1);
  }
  cr_expect_eq(stage_logged("machine code is not kept: "), 1, "%s", stage_messages());
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
  stage s;
  stage_open(&s, "capability=9.0");
  flp_spec spec = stage_spec(TWO);
  flp_plan *plan = stage_plan(&spec, NULL);
  cr_assert_str_eq(plan->arch, "sm_90a");
  cr_expect_not_null(strstr(s.log(), "cuModuleLoadDataEx level=1\n"), "%s", s.log());
  int asked = 0;
  for (const char *at = s.log(); (at = strstr(at, "level=")) != NULL; at++) asked++;
  cr_expect_eq(asked, 1, "one module of four: %s", s.log());
  flp_plan_destroy(plan);
}

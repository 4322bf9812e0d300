/* test_loader.c: modules and functions of images whose descriptors nobody held to the rules of desc.c. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/plan/plan.h"
#include "tests/unit/support/stage.h"

/* An image of one kernel that has this entry. */
static flp_images images_of(const char *entry) {
  flp_images images = {.count = 1};
  flp_kernel_image *image = &images.image[0];
  image->desc.key.kind = FLP_KERNEL_FORWARD;
  image->desc.entry_count = 1;
  snprintf(image->desc.entries[0].name, sizeof image->desc.entries[0].name, "%s", entry);
  image->desc.entries[0].threads = 128;
  image->ptx_bytes = (size_t)asprintf(&image->ptx, "flp_%s", entry);
  return images;
}

static flp_status load(const char *entry, flp_modules *out, int *fallback) {
  const flp_driver *driver;
  cr_assert_eq(flp_driver_get(&driver), FLP_OK, "%s", flp_error_detail());
  flp_images images = images_of(entry);
  cr_assert_eq(flp_store_open(NULL, NULL, &images.store), FLP_OK);
  CUcontext context;
  cr_assert(driver->cuDevicePrimaryCtxRetain(&context, 0) == 0 && driver->cuCtxPushCurrent_v2(context) == 0);
  flp_status status = flp_loader_load(driver, context, &images, out, fallback);
  flp_images_clear(&images);
  return status;
}

Test(loader, functions_lie_where_their_entries_are) {
  stage s;
  flp_modules modules;
  int fallback;
  stage_open(&s, "");
  cr_assert_eq(load("forward", &modules, &fallback), FLP_OK, "%s", flp_error_detail());
  for (int i = 0; i < FLP_ENTRY_ID_COUNT; i++)
    cr_expect_eq(modules.function[i].handle != NULL, i == FLP_ENTRY_forward, "%d", i);
  cr_expect_str_eq(modules.function[FLP_ENTRY_forward].abi->name, "forward");
  const flp_driver *driver;
  cr_assert_eq(flp_driver_get(&driver), FLP_OK);
  flp_loader_unload(driver, &modules);
}

Test(loader, an_entry_that_is_none_is_refused) {
  stage s;
  flp_modules modules;
  int fallback = 0;
  stage_open(&s, "");
  cr_assert_eq(load("backdoor", &modules, &fallback), FLP_ERROR_CORRUPT);
  cr_expect_str_eq(flp_error_detail(), "entry backdoor is not one that this library launches");
  cr_expect_eq(fallback, 1, "a bad image, not a bad device");
  for (int i = 0; i < FLP_SPEC_KERNELS_MAX; i++) {
    const unsigned char *bytes = (const unsigned char *)&modules.desc[i];
    for (size_t at = 0; at < sizeof modules.desc[i]; at++) cr_assert_eq(bytes[at], 0, "desc %d, byte %zu", i, at);
  }
}

/* test_driver.c: opening libcuda and reading a device, against the stand-in. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/driver/driver.h"
#include "tests/unit/support/stage.h"

static const flp_driver *open_driver(void) {
  const flp_driver *driver;
  cr_assert_eq(flp_driver_get(&driver), FLP_OK, "%s", flp_error_detail());
  return driver;
}

Test(driver, opens_once_for_the_process_and_path) {
  stage s;
  stage_open(&s, "driver=12080");
  const flp_driver *first = open_driver();
  cr_expect_eq(first, open_driver());
  cr_expect_eq(first->version, 12080);
  cr_expect_eq(s.calls("cuInit"), 1);
}

Test(driver, a_library_that_is_not_there) {
  stage s;
  stage_open(&s, "");
  setenv("FLP_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1);
  const flp_driver *driver = (const flp_driver *)1;
  cr_expect_eq(flp_driver_get(&driver), FLP_ERROR_UNAVAILABLE);
  cr_expect_null(driver);
  const char *start = "/nowhere/libcuda.so.1 cannot be opened: ";
  cr_expect_eq(strncmp(flp_error_detail(), start, strlen(start)), 0, "%s", flp_error_detail());
  setenv("FLP_CUDA_LIBRARY", FLP_TEST_FAKE_CUDA, 1);
  open_driver(); /* a failure is not remembered */
}

Test(driver, a_library_that_is_no_driver) {
  stage s;
  stage_open(&s, "");
  setenv("FLP_CUDA_LIBRARY", FLP_TEST_FAKE_PROVIDER, 1);
  const flp_driver *driver;
  cr_expect_eq(flp_driver_get(&driver), FLP_ERROR_UNAVAILABLE);
  char expected[512];
  snprintf(expected, sizeof expected, "%s has no symbol cuInit: it is not a CUDA driver of version 11.2 or newer",
           FLP_TEST_FAKE_PROVIDER);
  cr_expect_str_eq(flp_error_detail(), expected);
}

static void expect_no_start(const char *script, const char *detail) {
  stage s;
  stage_open(&s, script);
  const flp_driver *driver;
  cr_expect_eq(flp_driver_get(&driver), FLP_ERROR_UNAVAILABLE, "%s", script);
  cr_expect_str_eq(flp_error_detail(), detail);
}

Test(driver, a_driver_that_does_not_start_gives_the_reason) {
  expect_no_start("fail:cuInit=100", "cuInit failed: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected");
  expect_no_start("fail:cuInit=803",
                  "cuInit failed: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): system has unsupported "
                  "display driver / cuda driver combination");
  expect_no_start("fail:cuInit=4711", "cuInit failed: CUDA_ERROR_UNKNOWN (4711): no description");
  expect_no_start("fail:cuDeviceGetCount=3",
                  "cuDeviceGetCount failed: CUDA_ERROR_NOT_INITIALIZED (3): initialization "
                  "error");
  expect_no_start("devices=0", FLP_TEST_FAKE_CUDA " reports no CUDA device");
}

Test(driver, device_facts) {
  stage s;
  stage_open(&s, "devices=2;capability=8.6;name=Card;sms=84;shared=101376;memory=1000000;clock=1695000");
  flp_device device;
  cr_assert_eq(flp_device_get(open_driver(), 1, &device), FLP_OK, "%s", flp_error_detail());
  cr_expect_str_eq(device.name, "Card");
  cr_expect_eq(device.ordinal, 1);
  cr_expect_eq(device.handle, 41);
  cr_expect_eq(device.major, 8);
  cr_expect_eq(device.minor, 6);
  cr_expect_eq(device.multiprocessors, 84);
  cr_expect_eq(device.shared_bytes_max, 101376);
  cr_expect_eq(device.memory_bytes, 1000000);
  cr_expect_eq(device.clock_khz, 1695000);
  cr_expect_eq(device.memory_bus_bits, 6144);
}

Test(driver, a_device_that_does_not_exist) {
  stage s;
  stage_open(&s, "devices=2");
  flp_device device;
  cr_expect_eq(flp_device_get(open_driver(), 2, &device), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(), "device is 2, but the driver has 2 (accepted: 0 to 1)");
  cr_expect_eq(flp_device_get(open_driver(), -1, &device), FLP_ERROR_ARGUMENT);
}

Test(driver, fallback_codes) {
  static const int yes[] = {200, 209, 218, 221, 222, 223, 300}, no[] = {0, 1, 2, 100, 201, 301, 500, 700, 719, 999};
  for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) cr_expect(flp_driver_is_fallback(yes[i]), "%d", yes[i]);
  for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) cr_expect_not(flp_driver_is_fallback(no[i]), "%d", no[i]);
}

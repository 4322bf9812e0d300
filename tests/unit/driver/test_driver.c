/* test_driver.c: opening libcuda and reading a device, against the stand-in. Libraries that are none and drivers that
 * do not start are in tests/golden/plan/no_device.txt. */
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

Test(driver, fallback_codes) {
  static const int yes[] = {200, 209, 218, 221, 222, 223, 300}, no[] = {0, 1, 2, 100, 201, 301, 500, 700, 719, 999};
  for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) cr_expect(flp_driver_is_fallback(yes[i]), "%d", yes[i]);
  for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) cr_expect_not(flp_driver_is_fallback(no[i]), "%d", no[i]);
}

/* test_launch_regions.c: every kernel gets its workspace arrays from the call's layout, whatever the launch fills in:
 * all entries, with every array there, and with one missing after the other; and arguments from its flp_args. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/launch/launch.h"

enum { WORKSPACE = 1 << 20, GIVEN_BYTES = 4096 };

static _Alignas(64) char given[GIVEN_BYTES];
static void *passed[FLP_ABI_PARAMS_MAX];     /* where the driver was pointed at */
static uint64_t address[FLP_ABI_PARAMS_MAX]; /* of a region: what stood there */
static const flp_abi_entry *launched;
static int launches;
static flp_args args = FLP_ARGS_INIT;

static CUresult launch(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                       unsigned threads_z, unsigned shared, CUstream stream, void **fields, void **extra) {
  (void)function, (void)x, (void)y, (void)z, (void)threads_x, (void)threads_y, (void)threads_z;
  (void)shared, (void)stream, (void)extra;
  launches++;
  int i = 0;
  for (const flp_abi_param *p = flp_abi_first(launched); p; p = flp_abi_next(launched, p), i++) {
    passed[i] = fields[i];
    if (p->source >= FLP_ABI_REGION) memcpy(&address[i], fields[i], sizeof address[i]);
  }
  return 0;
}

#define NAME(name, ...) #name,
static const char *const region_names[] = {FLP_REGION_LIST(NAME)};
#undef NAME

/* A call whose layout has each region at its number times 256. */
static flp_call call_of(flp_plan *plan, flp_driver *driver) {
  memset(plan, 0, sizeof *plan);
  memset(driver, 0, sizeof *driver);
  driver->cuLaunchKernel = launch;
  plan->driver = driver;
  strcpy(plan->spec_text, "a spec");
  for (int i = 0; i < FLP_ENTRY_ID_COUNT; i++)
    plan->modules.function[i] = (flp_function){.abi = flp_abi_of((flp_entry_id)i), .threads = 32};
  args.workspace = (void *)(uintptr_t)WORKSPACE;
  flp_call call = {.plan = plan, .args = &args};
  for (int i = 0; i < FLP_REGION_ID_COUNT; i++) {
    call.scheme.offset[i] = 256 * (uint64_t)i;
    call.scheme.size[i] = 256;
  }
  return call;
}

static void expect_bound(const flp_abi_param *param, int i, uint64_t want) {
  const char *fields = param->source == FLP_ABI_GIVEN ? given : (const char *)&args;
  if (param->source <= FLP_ABI_ARG)
    cr_expect_eq(passed[i], fields + param->place, "flp_%s: %s", launched->name, param->name);
  else if (param->source >= FLP_ABI_REGION)
    cr_expect_eq(address[i], want, "flp_%s: %s", launched->name, param->name);
}

/* One entry without one of its regions, parameter number i. */
static void expect_without(flp_call *call, int id, const flp_abi_param *param, int i) {
  call->scheme.size[param->place] = 0;
  int before = launches;
  flp_status status = flp_launch(call, (flp_entry_id)id, given, 1);
  call->scheme.size[param->place] = 256;
  if (param->source == FLP_ABI_REGION_OR_NULL) {
    cr_expect_eq(status, FLP_OK);
    expect_bound(param, i, 0);
    return;
  }
  char want[256];
  snprintf(want, sizeof want, "flp_%s for a spec: the layout of the pass has no array '%s'", launched->name,
           param->name);
  cr_expect_eq(status, FLP_ERROR_INTERNAL, "flp_%s ran without %s", launched->name, param->name);
  cr_expect_str_eq(flp_error_detail(), want);
  cr_expect_eq(launches, before);
}

/* With every array there; then with one missing after the other. */
static int check_entry(flp_call *call, int id) {
  int regions = 0, i = 0;
  launched = call->plan->modules.function[id].abi;
  cr_assert_eq(flp_launch(call, (flp_entry_id)id, given, 1), FLP_OK, "%s", flp_error_detail());
  for (const flp_abi_param *p = flp_abi_first(launched); p; p = flp_abi_next(launched, p))
    expect_bound(p, i++, WORKSPACE + 256 * (uint64_t)p->place);
  i = 0;
  for (const flp_abi_param *param = flp_abi_first(launched); param; param = flp_abi_next(launched, param), i++) {
    if (param->source < FLP_ABI_REGION) continue;
    regions++;
    expect_without(call, id, param, i);
    cr_expect_str_eq(region_names[param->place], param->name, "flp_%s", launched->name);
  }
  return regions;
}

Test(launch_regions, every_parameter_comes_from_the_launch_the_call_or_the_layout) {
  static flp_plan plan;
  flp_driver driver;
  flp_call call = call_of(&plan, &driver);
  int regions = 0;
  for (int id = 0; id < FLP_ENTRY_ID_COUNT; id++) regions += check_entry(&call, id);
  cr_expect(launches > FLP_ENTRY_ID_COUNT && regions > 50, "there are %d", regions);
}

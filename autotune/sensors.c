/* sensors.c: clock and power through NVML. See sensors.h. */
#include "autotune/sensors.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

/* nvmlClockType_t */
enum { NVML_CLOCK_SM = 1 };

typedef void *nvml_device;

static struct {
  int (*init)(void);
  int (*by_pci)(const char *, nvml_device *);
  int (*clock)(nvml_device, int, unsigned *);
  int (*power)(nvml_device, unsigned *);
  int usable;
} nvml;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int find(void *library, const char *name, void *out) {
  void *address = dlsym(library, name);
  memcpy(out, &address, sizeof address);
  return address != NULL;
}

/* The library stays open: other code of the process may use it. */
static void open_library(void) {
  void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return;
  nvml.usable = find(library, "nvmlInit_v2", &nvml.init) &&
                find(library, "nvmlDeviceGetHandleByPciBusId_v2", &nvml.by_pci) &&
                find(library, "nvmlDeviceGetClockInfo", &nvml.clock) &&
                find(library, "nvmlDeviceGetPowerUsage", &nvml.power) && nvml.init() == 0;
}

void sensors_read(const char *pci, double *clock_mhz, double *power_w) {
  nvml_device device = NULL;
  unsigned clock = 0, power = 0;
  *clock_mhz = *power_w = -1;
  pthread_once(&once, open_library);
  if (!nvml.usable) return;
  if (nvml.by_pci(pci, &device)) return;
  if (nvml.clock(device, NVML_CLOCK_SM, &clock) == 0) *clock_mhz = clock;
  if (nvml.power(device, &power) == 0) *power_w = 1e-3 * power;
}

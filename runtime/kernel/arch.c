/* arch.c: see arch.h. */
#include "runtime/kernel/arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/names.h"

#define KIND(kind) (1u << FLP_KERNEL_##kind)
/* Every kind but those that stand in place of two. */
#define PORTABLE_KINDS (((2u << FLP_KERNEL_FORWARD) - 1) & ~KIND(PRODUCTS) & ~KIND(LORA_PRODUCTS) & ~1u)

/* Generated for that target from the portable templates, for people who want it. kib: shared memory. flops: a clock of
 * mma.sync with sums in fp32, as NVIDIA's white papers have them: 2048 on A100 and Orin, 1024 on A40, L40S, L4 and RTX PRO
 * 6000, half of that on GeForce cards of the same capability. Clock and bandwidth: A100. */
#define PORTABLE(arch_name, number, kib, flops)                                      \
  .name = arch_name, .capability = number, .kinds = PORTABLE_KINDS, .templates = "", \
  .shared_bytes = (kib) << 10, .flops_per_clock = flops, .clock = 1.41e9, .bandwidth = 1.55e12

static const flp_arch arches[] = {
    {PORTABLE(FLP_PORTABLE_ARCH, 80, 163, 2048), .facts = FLP_ARCH_PLANNED},
    {PORTABLE("sm_86", 86, 99, 1024)},
    {PORTABLE("sm_87", 87, 163, 2048)},
    {PORTABLE("sm_89", 89, 99, 1024)},
    {PORTABLE("sm_90", 90, 227, 2048)},
    /* Operands whose addresses are multiples of 16 bytes, as the copy engine asks. wgmma makes 4096 operations a clock.
     * Clock and bandwidth: H200. Level 1 saves a fifth of the time that a first logprob waits for forward, and its code
     * is as fast, measured without a softcap; tests/ptx holds it to the budget of the default level, 4. */
    {.name = "sm_90a",
     .capability = 90,
     .kinds = KIND(FORWARD) | KIND(DZ) | KIND(PRODUCTS) | KIND(DZ_LORA) | KIND(LORA_PRODUCTS),
     .below = FLP_PORTABLE_ARCH,
     .alignment = 16,
     .element = 4,
     .templates = "sm_90a/",
     .shared_bytes = 227 << 10,
     .facts = FLP_ARCH_PLANNED | FLP_ARCH_CLUSTERS | FLP_ARCH_QUICK_FORWARD | FLP_ARCH_SHORT_FORWARD,
     .flops_per_clock = 4096,
     .clock = 1.98e9,
     .bandwidth = 4.8e12},
    {PORTABLE("sm_100", 100, 227, 2048)},
    /* tcgen05 makes 8192 operations a clock. Clock and bandwidth: B200, as NVIDIA states them. */
    {.name = "sm_100f",
     .capability = 100,
     .kinds = KIND(FORWARD) | KIND(DZ) | KIND(PRODUCTS) | KIND(DZ_LORA) | KIND(LORA_PRODUCTS),
     .below = FLP_PORTABLE_ARCH,
     .alignment = 16,
     .element = 2,
     .templates = "sm_100f/",
     .like = "sm_90a",
     .shared_bytes = 227 << 10,
     .facts = FLP_ARCH_PLANNED | FLP_ARCH_CLUSTERS | FLP_ARCH_SHORT_FORWARD | FLP_ARCH_UNPROVEN,
     .flops_per_clock = 8192,
     .clock = 1.85e9,
     .bandwidth = 8e12},
    {PORTABLE("sm_103", 103, 227, 2048)},
    {PORTABLE("sm_120", 120, 99, 1024)},
};
enum { ARCHES = sizeof arches / sizeof arches[0] };
_Static_assert((int)ARCHES <= (int)FLP_ARCHES_MAX, "lists of architectures hold every row");

const flp_arch *flp_arch_at(int i) {
  return i >= 0 && i < ARCHES ? &arches[i] : NULL;
}

const flp_arch *flp_arch_find(const char *name) {
  for (int i = 0; i < ARCHES; i++)
    if (strcmp(arches[i].name, name) == 0) return &arches[i];
  return NULL;
}

int flp_arch_has(const char *name, unsigned facts) {
  const flp_arch *arch = flp_arch_find(name);
  return arch && (arch->facts & facts) == facts;
}

int flp_arch_is_exact(const char *name) {
  size_t length = strlen(name);
  return length > 0 && !(name[length - 1] >= '0' && name[length - 1] <= '9');
}

int flp_arch_runs(const flp_arch *arch, int major, int minor) {
  int least = arch->capability % 10, is_same = major == arch->capability / 10;
  if (!flp_arch_is_exact(arch->name)) return is_same ? minor >= least : major > arch->capability / 10;
  return is_same && (arch->name[strlen(arch->name) - 1] == 'f' ? minor >= least : minor == least);
}

const flp_arch *flp_arch_of_device(int major, int minor) {
  const flp_arch *found = flp_arch_find(FLP_PORTABLE_ARCH);
  for (int i = 0; i < ARCHES; i++)
    if (!flp_arch_is_exact(arches[i].name) && flp_arch_runs(&arches[i], major, minor)) found = &arches[i];
  return found;
}

/* NN of "sm_NN", "sm_NNa" or "sm_NNf"; -1 for other names. */
static int capability_of(const char *name) {
  if (strncmp(name, "sm_", 3) != 0) return -1;
  char *end;
  long number = strtol(name + 3, &end, 10);
  size_t digits = (size_t)(end - (name + 3));
  int suffix = (*end == 'a' || *end == 'f') && end[1] == 0;
  return digits >= 2 && digits <= 3 && name[3] >= '1' && name[3] <= '9' && (*end == 0 || suffix) ? (int)number : -1;
}

const flp_arch *flp_arch_serving(const char *name) {
  const flp_arch *own = flp_arch_find(name), *portable = flp_arch_find(FLP_PORTABLE_ARCH);
  if (own) return own;
  return capability_of(name) >= portable->capability ? portable : NULL;
}

int flp_arch_makes(const flp_arch *arch, flp_kernel_kind kind) {
  return arch->kinds >> flp_kind_base(kind) & 1;
}

const char *flp_arch_of_kind(const char *name, flp_kernel_kind kind, uint32_t alignment, flp_dtype dtype) {
  for (const flp_arch *arch; (arch = flp_arch_find(name)) && arch->below; name = arch->below)
    if (flp_arch_makes(arch, kind) && alignment >= arch->alignment && flp_dtype_bytes(dtype) <= arch->element) break;
  return name;
}

const char *flp_arch_list(unsigned facts, unsigned none, const char *between, char *out, size_t capacity) {
  size_t used = 0;
  out[0] = 0;
  for (int i = 0; i < ARCHES && used < capacity; i++)
    if ((arches[i].facts & facts) == facts && !(arches[i].facts & none))
      used += (size_t)snprintf(out + used, capacity - used, "%s%s", used ? between : "", arches[i].name);
  return out;
}

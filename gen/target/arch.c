/* arch.c: what LLVM calls the architectures of runtime/kernel/arch.c.
 *
 * An architecture newer than LLVM 19 knows is given the newest older target, which its driver accepts. */
#include "gen/target/arch.h"

#include <string.h>

#include "gen/gen.h"
#include "runtime/kernel/arch.h"

/* features: the lowest PTX version that the cpu accepts */
static const struct {
  const char *name, *cpu, *features;
} targets[] = {
    {"sm_80", "sm_80", "+ptx70"},  {"sm_86", "sm_86", "+ptx71"},  {"sm_87", "sm_87", "+ptx74"},
    {"sm_89", "sm_89", "+ptx78"},  {"sm_90", "sm_90", "+ptx78"},  {"sm_90a", "sm_90a", "+ptx81"},
    {"sm_100", "sm_90", "+ptx78"}, {"sm_103", "sm_90", "+ptx78"}, {"sm_120", "sm_90", "+ptx78"},
};
enum { TARGETS = sizeof targets / sizeof targets[0] };

bool gen_arch_find(const char *name, gen_arch *out) {
  const flp_arch *arch = flp_arch_find(name);
  for (size_t i = 0; arch && i < TARGETS; i++)
    if (strcmp(targets[i].name, name) == 0) {
      *out = (gen_arch){arch->name, targets[i].cpu, targets[i].features, arch->templates};
      return true;
    }
  return false;
}

bool flpgen_arch_supported(const char *name) {
  gen_arch arch;
  return gen_arch_find(name, &arch);
}

/* arch.c: what LLVM calls the architectures of runtime/kernel/arch.c.
 *
 * An architecture newer than LLVM 19 knows is given the newest older target, which its driver accepts. */
#include "gen/target/arch.h"

#include <string.h>

#include "gen/gen.h"
#include "runtime/kernel/arch.h"

/* features: the lowest PTX version that the cpu accepts. header: of what is LLVM's PTX for an older cpu, and inline
 * PTX: families of architectures came with version 8.8. */
static const struct {
  const char *name, *cpu, *features, *header;
} targets[] = {
    {"sm_80", "sm_80", "+ptx70", NULL},   {"sm_86", "sm_86", "+ptx71", NULL},
    {"sm_87", "sm_87", "+ptx74", NULL},   {"sm_89", "sm_89", "+ptx78", NULL},
    {"sm_90", "sm_90", "+ptx78", NULL},   {"sm_90a", "sm_90a", "+ptx81", NULL},
    {"sm_100", "sm_90", "+ptx78", NULL},  {"sm_100f", "sm_90", "+ptx78", ".version 8.8\n.target sm_100f\n"},
    {"sm_103", "sm_90", "+ptx78", NULL},  {"sm_120", "sm_90", "+ptx78", NULL},
};
enum { TARGETS = sizeof targets / sizeof targets[0] };

bool gen_arch_find(const char *name, gen_arch *out) {
  const flp_arch *arch = flp_arch_find(name);
  for (size_t i = 0; arch && i < TARGETS; i++)
    if (strcmp(targets[i].name, name) == 0) {
      const flp_arch *like = arch->like ? flp_arch_find(arch->like) : NULL;
      *out = (gen_arch){arch->name,       targets[i].cpu,
                        targets[i].features, targets[i].header,
                        {arch->templates, like ? like->templates : ""}};
      return true;
    }
  return false;
}

bool flpgen_arch_supported(const char *name) {
  gen_arch arch;
  return gen_arch_find(name, &arch);
}

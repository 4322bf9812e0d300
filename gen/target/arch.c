/* arch.c: the architectures that templates exist for, as data.
 *
 * An architecture newer than LLVM 19 knows is given the newest older target, which its driver accepts. */
#include "gen/target/arch.h"

#include <stdio.h>
#include <string.h>

static const gen_arch arches[] = {
    {"sm_80", "sm_80", "+ptx70", ""},  {"sm_86", "sm_86", "+ptx71", ""},  {"sm_87", "sm_87", "+ptx74", ""},
    {"sm_89", "sm_89", "+ptx78", ""},  {"sm_90", "sm_90", "+ptx78", ""},  {"sm_90a", "sm_90a", "+ptx81", "sm_90a/"},
    {"sm_100", "sm_90", "+ptx78", ""}, {"sm_103", "sm_90", "+ptx78", ""}, {"sm_120", "sm_90", "+ptx78", ""},
};

const gen_arch *gen_arch_find(const char *name) {
  for (size_t i = 0; i < sizeof arches / sizeof arches[0]; i++)
    if (strcmp(arches[i].name, name) == 0) return &arches[i];
  return NULL;
}

void gen_arch_list(char *out, size_t capacity) {
  size_t used = 0;
  out[0] = 0;
  for (size_t i = 0; i < sizeof arches / sizeof arches[0] && used < capacity; i++) {
    int n = snprintf(out + used, capacity - used, "%s%s", i ? ", " : "", arches[i].name);
    used += n > 0 ? (size_t)n : 0;
  }
}

/* arch.h: what LLVM calls the architectures of runtime/kernel/arch.h. */
#ifndef FLPGEN_ARCH_H
#define FLPGEN_ARCH_H

#include <stdbool.h>

typedef struct gen_arch {
  const char *name;     /* as in the key: "sm_80" */
  const char *cpu;      /* what LLVM calls it, or the newest older one that LLVM knows */
  const char *features; /* lowest PTX version that the cpu accepts */
  const char *header;   /* what PTX for it begins with in the place of what LLVM writes; NULL: LLVM knows it */
  const char *folders[2]; /* of templates that replace portable ones of the same name, the first first; "": none */
} gen_arch;

/* False if kernels cannot be made for it. */
bool gen_arch_find(const char *name, gen_arch *out);

#endif

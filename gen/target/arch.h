/* arch.h: the architectures that templates exist for. */
#ifndef FLPGEN_ARCH_H
#define FLPGEN_ARCH_H

#include <stddef.h>

typedef struct gen_arch {
  const char *name;     /* as in the key: "sm_80" */
  const char *cpu;      /* what LLVM calls it, or the newest older one that LLVM knows */
  const char *features; /* lowest PTX version that the cpu accepts */
  const char *folder;   /* templates that replace the portable ones of the same name: "" or "sm_90a/" */
} gen_arch;

/* NULL if the architecture has no templates. */
const gen_arch *gen_arch_find(const char *name);
/* "sm_80, sm_86, ..." for messages. */
void gen_arch_list(char *out, size_t capacity);

#endif

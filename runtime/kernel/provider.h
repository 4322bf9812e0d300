/* provider.h: the table through which libflp reaches the code generator, if libflpgen.so can be opened.
 *
 * libflpgen exports one symbol, flp_provider_get. Ownership: ptx is malloc'ed by the provider and freed with its
 * free_ptx, so that the two libraries may use different allocators. */
#ifndef FLP_PROVIDER_H
#define FLP_PROVIDER_H

#include "runtime/kernel/kernel.h"

enum { FLP_PROVIDER_VERSION = 2 };

typedef struct flp_provider {
  uint32_t version; /* FLP_PROVIDER_VERSION */
  /* Generates one kernel.
   * key:    canonical; arch as the kernel is to be targeted ("sm_80")
   * loss:   of kind LOSS the program's bytes (flp_loss_write), else NULL
   * out:    desc filled; *ptx NUL-terminated text of *ptx_bytes bytes (the NUL not counted)
   * error:  COMPILE or UNSUPPORTED, with one sentence (template file and line) in error[error_capacity]
   * thread: safe; each call owns its Lua state and LLVM context */
  flp_status (*generate)(const flp_kernel_key *key, const uint8_t *loss, size_t loss_bytes, flp_kernel_desc *desc,
                         char **ptx, size_t *ptx_bytes, char *error, size_t error_capacity);
  void (*free_ptx)(char *ptx);
  /* Hash of the templates and generator that generate() uses (32 bytes, borrowed). */
  const uint8_t *(*sources_hash)(void);
} flp_provider;

typedef const flp_provider *(*flp_provider_get_fn)(uint32_t version); /* NULL if the version is not served */
#define FLP_PROVIDER_SYMBOL "flp_provider_get"

#endif

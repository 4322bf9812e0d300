/* internal.h: what the pack*.c files share. */
#ifndef FLP_PACK_INTERNAL_H
#define FLP_PACK_INTERNAL_H

#include "runtime/pack/pack.h"

/* Reads exactly these bytes of a file, leaving its position alone. error: IO; CORRUPT if it ends before */
flp_status pack_read_at(int fd, const char *name, uint64_t offset, uint8_t *out, size_t bytes);

/* Reads an entry's descriptor. error: CORRUPT if it does not read, or its key is not the entry's */
flp_status pack_read_desc(const flp_pack_entry *entry, flp_kernel_desc *out);

/* What follows " tuned=" at the end of an entry's key, or "". error: CORRUPT if the key has no such part */
enum { PACK_TUNED_BYTES = 256 };
flp_status pack_tuned_for(const flp_pack_entry *entry, char out[PACK_TUNED_BYTES]);

#endif

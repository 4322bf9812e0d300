/* kernel.h: the identity of a kernel (its key) and what a launch must know about it (its descriptor).
 *
 * Invariants: a key is canonical (fields that a kind does not use are 0), so equal kernels have equal key bytes; a
 * descriptor's serialised form is little-endian, versioned and checked field by field when it is read. */
#ifndef FLP_KERNEL_H
#define FLP_KERNEL_H

#include "abi.h"
#include "flp.h"

enum { FLP_KEY_FORMAT = 1, FLP_DESC_FORMAT = 2 };

typedef enum flp_kernel_kind {
  FLP_KERNEL_ROWS = 1,        /* prepare, combine, merge, record, dz_scale, bias_reduce, fill */
  FLP_KERNEL_FORWARD = 2,     /* forward */
  FLP_KERNEL_DZ = 3,          /* dz */
  FLP_KERNEL_GRAD_HIDDEN = 4, /* grad_hidden */
  FLP_KERNEL_GRAD_WEIGHT = 5, /* grad_weight */
  FLP_KERNEL_PRODUCTS = 6     /* products_map: in place of the two before it, on sm_90a */
} flp_kernel_kind;

typedef struct flp_kernel_key {
  flp_kernel_kind kind;
  char arch[16];          /* "sm_80", "sm_90a", ... */
  flp_dtype dtype;        /* of operands */
  flp_dtype target_dtype; /* ROWS */
  flp_dtype out_dtype;    /* GRAD_HIDDEN, GRAD_WEIGHT */
  uint32_t entropy;       /* FORWARD: accumulate the weighted sum; DZ: upstream entropy gradients */
  uint32_t bias;          /* FORWARD, DZ: add the bias if its pointer is not null */
  uint32_t bias_grad;     /* DZ: column sums if bias_part is not null */
  uint32_t softcap;       /* FORWARD, DZ */
  uint32_t alignment;     /* all but ROWS: 16, or one element for element-wise copies */
  int64_t hidden;         /* all but ROWS: D, 0 for any */
  int64_t vocab;          /* FORWARD, DZ: V, 0 for any */
} flp_kernel_key;

/* Zeroes the fields that key->kind does not use. */
void flp_kernel_key_canonicalise(flp_kernel_key *key);

/* The kernels that a resolved spec needs on an architecture: ROWS, FORWARD and, by its gradients, DZ, GRAD_HIDDEN,
 * GRAD_WEIGHT (where the architecture has it for this spec, PRODUCTS in place of these two), in that order, each for
 * that architecture or, where it has none of its own, for the one below.
 * Returns their number (2 to FLP_SPEC_KERNELS_MAX). */
enum { FLP_SPEC_KERNELS_MAX = 5 };
int flp_kernel_keys_for(const flp_spec *spec, const char *arch, flp_kernel_key out[FLP_SPEC_KERNELS_MAX]);

/* 1 if at least one of those kernels is the architecture's own. Some have only a part of the kernels: sm_90a has
 * FORWARD, DZ and PRODUCTS of 16-bit operands whose addresses are multiples of 16 bytes, as the copy engine asks; the
 * rest are sm_80's, which run there as well. */
int flp_kernel_arch_serves(const char *arch, const flp_spec *spec);

/* The shape-generic kernel that can stand in for this one: hidden and vocab any, entropy, bias and bias_grad on. */
flp_kernel_key flp_kernel_key_generic(const flp_kernel_key *key, const char *arch);

/* Writes the key's bytes, e.g. "flp-key/1 kind=forward arch=sm_80 dtype=bf16 ... sources=<64 hex> tuned=<device>".
 * tuned_for: "" or "<device name>/<SM count>/<driver>" for an entry tuned on one device
 * Returns the length without the terminating 0, or 0 if capacity is too small. FLP_KEY_BYTES_MAX always suffices. */
enum { FLP_KEY_BYTES_MAX = 512 };
size_t flp_kernel_key_bytes(const flp_kernel_key *key, const uint8_t sources[32], const char *tuned_for, char *out,
                            size_t capacity);

/* Names for messages and files. */
const char *flp_kernel_kind_name(flp_kernel_kind kind); /* "forward" */
const char *flp_dtype_name(flp_dtype dtype);            /* "bf16"; "?" if unknown */
size_t flp_dtype_bytes(flp_dtype dtype);                /* 2; 0 if unknown */

enum { FLP_ENTRIES_MAX = 8 };

typedef struct flp_kernel_entry {
  char name[32];      /* abi.h entry; the PTX symbol is "flp_" + name */
  char signature[40]; /* abi.h signature that the kernel was built for */
  uint32_t threads;   /* of a CTA */
  uint32_t shared_bytes; /* dynamic shared memory */
} flp_kernel_entry;

typedef struct flp_kernel_desc {
  flp_kernel_key key;
  uint8_t sources[32];   /* hash of templates + generator */
  uint32_t ptx_major, ptx_minor;
  uint32_t entry_count;
  flp_kernel_entry entries[FLP_ENTRIES_MAX];
  /* tunables; 0 where the kind has none */
  uint32_t tile_rows, tile_columns, tile_depth, stages; /* products: tile_rows is M, tile_columns N, tile_depth K */
  uint32_t unit_columns; /* FORWARD: columns of one unit = one group of partials */
  uint32_t raster;       /* row bands that neighbouring CTAs walk before the next columns */
  uint32_t cluster;      /* entries named ..._map: CTAs of a cluster, along the rows; else 0 */
} flp_kernel_desc;

/* Launch grid of an entry that has one CTA a tile: tiles in x, never over 2^31-1 (checked by the planner). */

/* Serialises; returns bytes written, 0 if capacity is too small. FLP_DESC_BYTES_MAX always suffices. */
enum { FLP_DESC_BYTES_MAX = 2048 };
size_t flp_kernel_desc_write(const flp_kernel_desc *desc, uint8_t *out, size_t capacity);

/* error: CORRUPT naming the field: bad version, length, unterminated string, count, or a signature that differs from
 * this library's abi.h */
flp_status flp_kernel_desc_read(const uint8_t *bytes, size_t length, flp_kernel_desc *out);

/* Hash of templates and generator that this library was built beside (the generated header flp_sources.h). */
const uint8_t *flp_sources_hash(void);

#endif

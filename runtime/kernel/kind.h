/* kind.h: the kinds of kernels, one row each: what names a kernel of that kind, what its module holds, how it is made.
 * Forward has a row for each set of parts.
 *
 * A module is the PTX of one kernel of this list; its entries are what is launched. */
#ifndef FLP_KIND_H
#define FLP_KIND_H

#include "runtime/flp.h"
#include "runtime/kernel/abi.h"

typedef enum flp_kernel_kind {
  FLP_KERNEL_ROWS = 1,      /* what is done a row at a time around the products */
  FLP_KERNEL_DZ,            /* the gradient of scores, in chunks */
  FLP_KERNEL_GRAD_HIDDEN,   /* the gradient of hidden from that */
  FLP_KERNEL_GRAD_WEIGHT,   /* the gradient of weight */
  FLP_KERNEL_PRODUCTS,      /* both of these in one, where an architecture has it */
  FLP_KERNEL_SELECT,        /* scores that exist already */
  FLP_KERNEL_KEPT,          /* what turns exponentials that forward kept into gradients */
  FLP_KERNEL_LOSS,          /* a loss program */
  FLP_KERNEL_LISTED,        /* listed columns: scores, their gradient, and that of hidden */
  FLP_KERNEL_LISTED_WEIGHT, /* and those of weight and bias */
  FLP_KERNEL_EMITTED,       /* what stands before and behind a forward that lists: the floors, and lists in order */
  FLP_KERNEL_TAIL,          /* which rows lists serve, and the gradients of what they list */
  FLP_KERNEL_TARGETS,       /* K targets a row: what stands around forward, and their gradients */
  FLP_KERNEL_LOSS_TARGETS,  /* a loss program over the targets of a row */
  FLP_KERNEL_TOP,           /* what makes best columns and ranks of what forward lists and counts */
  FLP_KERNEL_LOSS_SCORES,   /* a loss program that reads values of all scores of a row: lse, mean_score */
  FLP_KERNEL_MEAN,          /* and what makes these, and gradients of what they give */
  FLP_KERNEL_OPERANDS,      /* operands of another dtype, as products take them */
  FLP_KERNEL_DZ_LORA,       /* dz of a head with an adapter */
  FLP_KERNEL_LORA,          /* what stands around products of one: h·Aᵀ, and the gradients that follow from dz·B */
  FLP_KERNEL_LORA_PRODUCTS, /* dz·B and dzᵀ·u in one, where an architecture has it */
  FLP_KERNEL_STATISTICS,    /* what makes statistics of rows of what forward sums */
  FLP_KERNEL_SCALE,         /* gradients that exist already, times a factor */
  FLP_KERNEL_DIVERGE,       /* how far two rows of scores that exist already are apart, by a loss program */
  FLP_KERNEL_FORWARD        /* scores, reduced to partials of each row; FLP_KERNEL_FORWARD + its parts (abi.h) */
} flp_kernel_kind;
enum { FLP_KERNEL_KINDS = FLP_KERNEL_FORWARD + FLP_FORWARD_SETS };

/* Forward with one part. */
#define FLP_FORWARD(part) ((flp_kernel_kind)(FLP_KERNEL_FORWARD + FLP_PART_##part))

/* Facts of a kind. The first ones say which fields of flp_kernel_key it uses. */
enum {
  FLP_KIND_TARGET = 1 << 0,
  FLP_KIND_OUT = 1 << 1,
  FLP_KIND_ENTROPY = 1 << 2,
  FLP_KIND_BIAS = 1 << 3, /* with softcap: both change the scores */
  FLP_KIND_BIAS_GRAD = 1 << 4,
  FLP_KIND_ALIGNMENT = 1 << 5,
  FLP_KIND_HIDDEN = 1 << 6,
  FLP_KIND_VOCAB = 1 << 7,
  FLP_KIND_TUNE = 1 << 8, /* templates leave a choice of its tile configuration (tune.lua) */
  FLP_KIND_LOSS = 1 << 9,
  FLP_KIND_FP64 = 1 << 10,        /* its operands may be FP64 */
  FLP_KIND_TILED = 1 << 11,       /* its descriptor has tile_rows and tile_columns */
  FLP_KIND_UNITS = 1 << 12,       /* and unit_columns */
  FLP_KIND_CHUNK_ROWS = 1 << 13,  /* its descriptor may prefer chunks of rows */
  FLP_KIND_CHUNK_VOCAB = 1 << 14, /* and of columns */
  FLP_KIND_LINKED = 1 << 15,      /* its relocatable code is as good (linker.h) */
  FLP_KIND_ADDS = 1 << 16,        /* uses the field bias: adds the mean score's part to its result (abi.h) */
  FLP_KIND_INDEXED = 1 << 17,     /* finds rows by their index beside kernels with tensor maps, too */
  FLP_KIND_LORA = 1 << 18,        /* reads rows of the head by itself, and of an adapter */
  FLP_KIND_MIXED = 1 << 19        /* and of a weight of another dtype */
};

enum { FLP_ENTRIES_MAX = 9, FLP_NO_ENTRY = FLP_ENTRY_ID_COUNT };

/* An entry that the module of a kind defines: with operands by pointer, or in its place one with operands through tensor
 * maps; FLP_NO_ENTRY where there is no such form. Plans need it if the spec asks for one of these gradients (0: always),
 * and its operands have this dtype (0: any). of_lora: there for a key of a head with an adapter alone. */
typedef struct flp_kind_entry {
  int plain, mapped, of_lora;
  uint32_t grads;
  flp_dtype dtype;
} flp_kind_entry;

typedef struct flp_kind {
  const char *name; /* for keys, messages and files; of its template, too */
  unsigned facts;
  int entry_count;
  const flp_kind_entry *entries;
} flp_kind;

/* Forward for forward with any parts, else the same kind; and the parts, FLP_PART_... */
flp_kernel_kind flp_kind_base(flp_kernel_kind kind);
unsigned flp_kind_parts(flp_kernel_kind kind);
/* The kind that does the same for any number of rows: the same one, but of forward's form for few rows; and 1 if it is
 * another one, so that a plan can do without this. */
flp_kernel_kind flp_kind_of_any_rows(flp_kernel_kind kind);
int flp_kind_is_optional(flp_kernel_kind kind);
/* The row of a kind; for what is no kind one without facts and entries, named "?". */
const flp_kind *flp_kind_of(flp_kernel_kind kind);
/* 1 if all of these facts hold. */
int flp_kind_has(flp_kernel_kind kind, unsigned facts);
/* The kind of that name; 0 if there is none. */
flp_kernel_kind flp_kind_find(const char *name, size_t length);
/* The entry of the kind that is this one in either form, by the name of abi.h; NULL if it is none of that kind. */
const flp_kind_entry *flp_kind_entry_find(flp_kernel_kind kind, const char *name);
/* Name of an entry; "" for FLP_NO_ENTRY. */
const char *flp_entry_name(int entry);
/* Names of the kinds that have these facts, of forward with at most one part: "dz:, products: or forward:" with suffix
 * ":". Returns out. */
const char *flp_kind_list(unsigned facts, const char *suffix, char *out, size_t capacity);

#endif

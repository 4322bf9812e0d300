/* arch.h: the architectures that there are kernels for, one row each. What LLVM calls them is in gen/target/arch.c.
 *
 * Kernels for an architecture without a suffix run on every newer GPU, those for one that ends in "a" on that
 * capability alone, in "f" on its family: that major number, from that minor one on. A row may have kernels of its own
 * for some kinds and dtypes only; another one then serves for the rest. */
#ifndef FLP_ARCH_H
#define FLP_ARCH_H

#include "runtime/kernel/kind.h"

/* The architecture whose kernels run on every GPU that is supported at all. */
#define FLP_PORTABLE_ARCH "sm_80"

typedef struct flp_arch {
  const char *name;      /* as in keys of kernels */
  int capability;        /* 10·major + minor of the GPUs that it is made for */
  unsigned kinds;        /* 1 << kind of those that it has kernels of its own for, of forward with any parts */
  const char *below;     /* the architecture that serves for the other kinds; NULL if there are none */
  uint32_t alignment;    /* least alignment of operands that its own kernels take; below serves for others */
  uint32_t element;      /* and the most bytes of their elements */
  const char *templates; /* folder of the templates that replace portable ones: "" or "sm_90a/" */
  const char *like;      /* the architecture whose templates serve where that folder has none; NULL: none */
  unsigned facts;
  uint32_t shared_bytes; /* most shared memory of a CTA */
  /* for the planner: floating-point operations a clock of one multiprocessor, and where the driver names none, its clock
   * (Hz) and the bandwidth of device memory (bytes/s) */
  double flops_per_clock, clock, bandwidth;
} flp_arch;

/* Facts of an architecture. */
enum {
  FLP_ARCH_PLANNED = 1,       /* plans try its kernels; else they are made for `flpgen gen --arch` alone */
  FLP_ARCH_CLUSTERS = 2,      /* its own kernels are launched in clusters, their operands come through tensor maps */
  FLP_ARCH_QUICK_FORWARD = 4, /* level 1 of the driver's compiler is right for its forward of 16-bit operands */
  FLP_ARCH_SHORT_FORWARD = 8, /* and that has a form for few rows, part short (abi.h) */
  FLP_ARCH_UNPROVEN = 16 /* never run where it is sold: plans try its kernels where `flpgen prove` has passed */
};

enum { FLP_ARCHES_MAX = 16 };

/* Row i, in ascending order: plans try the last one that runs first. NULL behind the last. */
const flp_arch *flp_arch_at(int i);
/* The row of that name; NULL if there is none. */
const flp_arch *flp_arch_find(const char *name);
/* 1 if an architecture of that name has these facts. */
int flp_arch_has(const char *name, unsigned facts);
/* 1 if code for that name runs on no newer capability, or only on those of its family; of names without a row, too. */
int flp_arch_is_exact(const char *name);
/* 1 if kernels of that row run on GPUs of this compute capability. */
int flp_arch_runs(const flp_arch *arch, int major, int minor);
/* The newest row without a suffix that runs on GPUs of this compute capability: how fast portable kernels are there. */
const flp_arch *flp_arch_of_device(int major, int minor);
/* The row whose kernels serve where this architecture is asked for: its own, or the portable one for what has none, from
 * sm_80 on. NULL for what is older, or no name of an architecture. */
const flp_arch *flp_arch_serving(const char *name);
/* 1 if it has kernels of its own of that kind. */
int flp_arch_makes(const flp_arch *arch, flp_kernel_kind kind);
/* The name of the architecture whose kernel of that kind serves for this one. alignment: of operands, in bytes; dtype:
 * theirs, as products take them */
const char *flp_arch_of_kind(const char *name, flp_kernel_kind kind, uint32_t alignment, flp_dtype dtype);
/* Names of the rows that have these facts and none of those, divided by that text. Returns out. */
const char *flp_arch_list(unsigned facts, unsigned none, const char *between, char *out, size_t capacity);

#endif

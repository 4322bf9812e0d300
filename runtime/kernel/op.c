/* op.c: see op.h. */
#include "runtime/kernel/op.h"

#include "runtime/kernel/features.h"
#include "runtime/kernel/kernel.h"

/* ---- head ---- */

/* 1 if one kernel makes both products of a chunk there. */
static int makes_both(const flp_spec *spec, const char *arch) {
  const flp_arch *maker = flp_arch_find(flp_arch_of_kind(arch, FLP_KERNEL_PRODUCTS, spec->alignment, spec->dtype));
  return maker && flp_arch_makes(maker, FLP_KERNEL_PRODUCTS);
}

static int has_rows_loss(const flp_spec *spec) {
  return spec->loss && !flp_kernel_spec_has_targets_loss(spec) && !flp_kernel_spec_has_scores_loss(spec);
}

#define OF(feature) (1u << FLP_FEATURE_##feature)
enum { HIDDEN = FLP_GRAD_HIDDEN, WEIGHT = FLP_GRAD_WEIGHT, BIAS = FLP_GRAD_BIAS, ANY = INT32_MAX };
enum { SLICED = OF(LISTED) | OF(MIXED), SHORT = FLP_ARCH_SHORT_FORWARD };
enum { TOP = OF(TOPK) | OF(RANK), BY_COLUMN = WEIGHT | BIAS | FLP_GRAD_LORA_B };
static const flp_op_kernel head_kernels[] = {
    {.kind = FLP_KERNEL_ROWS},
    {.kind = FLP_KERNEL_FORWARD, .none = OF(LISTED)},
    {.kind = FLP_KERNEL_FORWARD,
     .parts = FLP_PART_SHORT,
     .none = SLICED,
     .facts = SHORT,
     .also = flp_kernel_spec_is_short},
    {.kind = FLP_KERNEL_DZ, .none = OF(LISTED) | OF(LORA), .grads = ANY},
    {.kind = FLP_KERNEL_PRODUCTS, .none = OF(LISTED), .grads = HIDDEN | WEIGHT, .products = FLP_PRODUCTS_TOGETHER},
    {.kind = FLP_KERNEL_GRAD_HIDDEN, .none = OF(LISTED), .grads = HIDDEN, .products = FLP_PRODUCTS_APART},
    {.kind = FLP_KERNEL_GRAD_WEIGHT, .none = OF(LISTED), .grads = WEIGHT, .products = FLP_PRODUCTS_APART},
    {.kind = FLP_KERNEL_FORWARD, .parts = FLP_PART_KEEP, .also = flp_kernel_spec_has_exponentials},
    {.kind = FLP_KERNEL_FORWARD,
     .parts = FLP_PART_KEEP | FLP_PART_TOP,
     .any = TOP,
     .also = flp_kernel_spec_has_exponentials},
    {.kind = FLP_KERNEL_KEPT, .also = flp_kernel_spec_has_exponentials},
    {.kind = FLP_KERNEL_LOSS, .also = has_rows_loss},
    {.kind = FLP_KERNEL_LISTED, .all = OF(LISTED)},
    {.kind = FLP_KERNEL_LISTED, .grads = HIDDEN | FLP_GRAD_LORA_A, .also = flp_kernel_spec_emits},
    {.kind = FLP_KERNEL_LISTED, .all = OF(TARGETS), .grads = ANY},
    {.kind = FLP_KERNEL_LISTED_WEIGHT, .all = OF(LISTED), .grads = BY_COLUMN},
    {.kind = FLP_KERNEL_LISTED_WEIGHT, .grads = BY_COLUMN, .also = flp_kernel_spec_emits},
    {.kind = FLP_KERNEL_LISTED_WEIGHT, .all = OF(TARGETS), .grads = BIAS},
    {.kind = FLP_KERNEL_FORWARD, .parts = FLP_PART_EMIT, .also = flp_kernel_spec_emits},
    {.kind = FLP_KERNEL_FORWARD,
     .parts = FLP_PART_EMIT | FLP_PART_TOP,
     .any = TOP,
     .also = flp_kernel_spec_emits},
    {.kind = FLP_KERNEL_EMITTED, .also = flp_kernel_spec_emits},
    {.kind = FLP_KERNEL_TAIL, .also = flp_kernel_spec_emits},
    {.kind = FLP_KERNEL_TARGETS, .all = OF(TARGETS)},
    {.kind = FLP_KERNEL_LOSS_TARGETS, .also = flp_kernel_spec_has_targets_loss},
    {.kind = FLP_KERNEL_FORWARD, .parts = FLP_PART_TOP, .any = TOP, .none = OF(LISTED)},
    {.kind = FLP_KERNEL_FORWARD,
     .parts = FLP_PART_TOP | FLP_PART_SHORT,
     .any = TOP,
     .none = SLICED,
     .facts = SHORT,
     .also = flp_kernel_spec_is_short},
    {.kind = FLP_KERNEL_TOP, .any = TOP},
    {.kind = FLP_KERNEL_LOSS_SCORES, .all = OF(SCORES)},
    {.kind = FLP_KERNEL_MEAN, .all = OF(SCORES)},
    {.kind = FLP_KERNEL_STATISTICS, .all = OF(STATISTICS)},
    {.kind = FLP_KERNEL_OPERANDS, .all = OF(MIXED)},
    {.kind = FLP_KERNEL_DZ_LORA, .all = OF(LORA), .none = OF(LISTED), .grads = ANY},
    {.kind = FLP_KERNEL_LORA, .all = OF(LORA)},
    {.kind = FLP_KERNEL_LORA_PRODUCTS,
     .all = OF(LORA),
     .none = OF(LISTED),
     .grads = ANY & ~BIAS,
     .products = FLP_PRODUCTS_TOGETHER},
};
#undef OF

/* ---- select ---- */

static const flp_op_kernel select_kernels[] = {{.kind = FLP_KERNEL_SELECT}};

/* ---- scale ---- */

static const flp_op_kernel scale_kernels[] = {{.kind = FLP_KERNEL_SCALE}};

/* ---- diverge ---- */

static const flp_op_kernel diverge_kernels[] = {{.kind = FLP_KERNEL_DIVERGE}};

/* ---- loss ---- */

static const flp_op_kernel loss_kernels[] = {{.kind = FLP_KERNEL_LOSS}};

/* ---- all ---- */

#define OP_ROW(op, head, features, list) \
  [FLP_OP_##op] = {"FLP_OP_" #op, head, features, sizeof list / sizeof list[0], list}
static const flp_op_row ops[] = {
    OP_ROW(HEAD, 1, UINT32_MAX, head_kernels),
    OP_ROW(SELECT, 0, 0, select_kernels),
    OP_ROW(SCALE, 0, 0, scale_kernels),
    OP_ROW(DIVERGE, 0, 1u << FLP_FEATURE_LOSS, diverge_kernels),
    OP_ROW(LOSS, 0, 1u << FLP_FEATURE_LOSS, loss_kernels),
};
_Static_assert(sizeof ops / sizeof ops[0] == FLP_OP_COUNT, "a row for every operation of names.h");

const flp_op_row *flp_op_of(flp_op op) {
  return &ops[op];
}

int flp_op_wants(const flp_op_kernel *kernel, const flp_spec *spec, const char *arch) {
  uint32_t features = flp_features_of(spec);
  if ((features & kernel->all) != kernel->all || features & kernel->none) return 0;
  if (kernel->any && !(features & kernel->any)) return 0;
  if (kernel->grads && !(spec->grads & kernel->grads)) return 0;
  if (kernel->products && makes_both(spec, arch) != (kernel->products == FLP_PRODUCTS_TOGETHER)) return 0;
  arch = flp_arch_of_kind(arch, kernel->kind, spec->alignment, spec->dtype);
  if (kernel->facts && !flp_arch_has(arch, kernel->facts)) return 0;
  return !kernel->also || kernel->also(spec);
}

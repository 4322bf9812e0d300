/* op.c: see op.h. */
#include "runtime/kernel/op.h"

#include "runtime/kernel/kernel.h"
#include "runtime/base/operands.h"

/* ---- head ---- */

/* 1 if one kernel makes both products of a chunk there. */
static int makes_both(const flp_spec *spec, const char *arch) {
  const flp_arch *maker = flp_arch_find(flp_arch_of_kind(arch, FLP_KERNEL_PRODUCTS, spec->alignment));
  return maker && (maker->kinds >> FLP_KERNEL_PRODUCTS & 1);
}

static int wants_dense(const flp_spec *spec, const char *arch) {
  (void)arch;
  return !spec->listed;
}

static int wants_targets(const flp_spec *spec, const char *arch) {
  (void)arch;
  return spec->targets > 1;
}

static int wants_lora(const flp_spec *spec, const char *arch) {
  (void)arch;
  return spec->lora_rank > 0;
}

static int wants_dz_lora(const flp_spec *spec, const char *arch) {
  return wants_lora(spec, arch) && spec->grads != 0;
}

static int wants_lora_products(const flp_spec *spec, const char *arch) {
  return wants_lora(spec, arch) && (spec->grads & ~(uint32_t)FLP_GRAD_BIAS) && makes_both(spec, arch);
}

static int wants_forward(const flp_spec *spec, const char *arch) {
  return wants_dense(spec, arch) && !wants_targets(spec, arch) && !flp_weight_is_sliced(spec) &&
         !wants_lora(spec, arch);
}

static int wants_forward_columns(const flp_spec *spec, const char *arch) {
  (void)arch;
  return flp_weight_is_sliced(spec);
}

static int wants_operands(const flp_spec *spec, const char *arch) {
  (void)arch;
  return spec->mixed != FLP_MIXED_NONE;
}

static int wants_products(const flp_spec *spec, const char *arch) {
  return wants_dense(spec, arch) && (spec->grads & (FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT)) && makes_both(spec, arch);
}

static int wants_grad_hidden(const flp_spec *spec, const char *arch) {
  return wants_dense(spec, arch) && (spec->grads & FLP_GRAD_HIDDEN) && !makes_both(spec, arch);
}

static int wants_grad_weight(const flp_spec *spec, const char *arch) {
  return wants_dense(spec, arch) && (spec->grads & FLP_GRAD_WEIGHT) && !makes_both(spec, arch);
}

static int wants_dz(const flp_spec *spec, const char *arch) {
  return spec->grads != 0 && wants_dense(spec, arch) && !wants_lora(spec, arch);
}

static int wants_tail(const flp_spec *spec, const char *arch) {
  (void)arch;
  return spec->tail > 0;
}

static int wants_listed(const flp_spec *spec, const char *arch) {
  return spec->listed || (wants_tail(spec, arch) && (spec->grads & FLP_GRAD_HIDDEN)) ||
         (wants_targets(spec, arch) && spec->grads);
}

static int wants_listed_weight(const flp_spec *spec, const char *arch) {
  if (wants_targets(spec, arch)) return (spec->grads & FLP_GRAD_BIAS) != 0;
  return (spec->listed || wants_tail(spec, arch)) && (spec->grads & (FLP_GRAD_WEIGHT | FLP_GRAD_BIAS));
}

static int wants_keep(const flp_spec *spec, const char *arch) {
  (void)arch;
  return flp_kernel_spec_keeps(spec);
}

static int wants_top(const flp_spec *spec, const char *arch) {
  (void)arch;
  return spec->topk > 0 || spec->rank;
}

static int wants_loss(const flp_spec *spec, const char *arch) {
  (void)arch;
  return spec->loss != NULL && !flp_kernel_spec_has_targets_loss(spec) && !flp_kernel_spec_has_scores_loss(spec);
}

static int wants_loss_targets(const flp_spec *spec, const char *arch) {
  (void)arch;
  return flp_kernel_spec_has_targets_loss(spec);
}

static int wants_loss_scores(const flp_spec *spec, const char *arch) {
  (void)arch;
  return flp_kernel_spec_has_scores_loss(spec);
}

static const flp_op_kernel head_kernels[] = {
    {FLP_KERNEL_ROWS, NULL},
    {FLP_KERNEL_FORWARD, wants_forward},
    {FLP_KERNEL_DZ, wants_dz},
    {FLP_KERNEL_PRODUCTS, wants_products},
    {FLP_KERNEL_GRAD_HIDDEN, wants_grad_hidden},
    {FLP_KERNEL_GRAD_WEIGHT, wants_grad_weight},
    {FLP_KERNEL_KEEP, wants_keep},
    {FLP_KERNEL_KEPT, wants_keep},
    {FLP_KERNEL_LOSS, wants_loss},
    {FLP_KERNEL_LISTED, wants_listed},
    {FLP_KERNEL_LISTED_WEIGHT, wants_listed_weight},
    {FLP_KERNEL_EMIT, wants_tail},
    {FLP_KERNEL_EMITTED, wants_tail},
    {FLP_KERNEL_TAIL, wants_tail},
    {FLP_KERNEL_FORWARD_TARGETS, wants_targets},
    {FLP_KERNEL_TARGETS, wants_targets},
    {FLP_KERNEL_LOSS_TARGETS, wants_loss_targets},
    {FLP_KERNEL_FORWARD_TOP, wants_top},
    {FLP_KERNEL_TOP, wants_top},
    {FLP_KERNEL_LOSS_SCORES, wants_loss_scores},
    {FLP_KERNEL_MEAN, wants_loss_scores},
    {FLP_KERNEL_OPERANDS, wants_operands},
    {FLP_KERNEL_FORWARD_COLUMNS, wants_forward_columns},
    {FLP_KERNEL_FORWARD_LORA, wants_lora},
    {FLP_KERNEL_DZ_LORA, wants_dz_lora},
    {FLP_KERNEL_LORA, wants_lora},
    {FLP_KERNEL_LORA_PRODUCTS, wants_lora_products},
};

/* ---- select ---- */

static const flp_op_kernel select_kernels[] = {{FLP_KERNEL_SELECT, NULL}};

/* ---- scale ---- */

static const flp_op_kernel scale_kernels[] = {{FLP_KERNEL_SCALE, NULL}};

/* ---- all ---- */

#define OP_ROW(op, head, list) [FLP_OP_##op] = {"FLP_OP_" #op, head, sizeof list / sizeof list[0], list}
static const flp_op_row ops[] = {
    OP_ROW(HEAD, 1, head_kernels),
    OP_ROW(SELECT, 0, select_kernels),
    OP_ROW(SCALE, 0, scale_kernels),
};
_Static_assert(sizeof ops / sizeof ops[0] == FLP_OP_COUNT, "a row for every operation of names.h");

const flp_op_row *flp_op_of(flp_op op) {
  return &ops[op];
}

/* parts.c: specialisations that together have every kind of kernel that an architecture has of its own: forward with
 * each of its parts, and what makes gradients. */
#include <stdio.h>
#include <string.h>

#include "gen/cli/prove/prove.h"
#include "gen/cli/shared/spec_args.h"
#include "gen/cli/shared/text.h"
#include "runtime/api/validate.h"

#define SPEC .struct_bytes = sizeof(flp_spec), .target_dtype = FLP_DTYPE_INT64, .alignment = 16
#define HEAD .grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT
#define ADAPTER .grads = FLP_GRAD_HIDDEN | FLP_GRAD_LORA_A | FLP_GRAD_LORA_B

static const struct {
  const char *name;
  flp_mode mode;
  flp_spec spec;
} rows[] = {
    {"scores", (flp_mode)0, {SPEC}},
    {"gradients", (flp_mode)0, {SPEC, HEAD | FLP_GRAD_BIAS, .has_bias = 1, .entropy = FLP_ENTROPY_BACKWARD}},
    {"kept", FLP_MODE_SAVE, {SPEC, HEAD}},
    {"tail", FLP_MODE_TAIL, {SPEC, HEAD, .tail = CLI_TAIL_USUAL}},
    {"targets", (flp_mode)0, {SPEC, HEAD, .targets = CHECK_TARGETS_USUAL}},
    {"best", (flp_mode)0, {SPEC, .topk = 20, .rank = 1}},
    {"slices", (flp_mode)0, {SPEC, HEAD, .weight_dtype = FLP_DTYPE_FP32, .mixed = FLP_MIXED_ROUND}},
    {"statistics", (flp_mode)0, {SPEC, .statistics = 1}},
    {"raw", (flp_mode)0, {SPEC, .raw_scores = 1}},
    {"adapter", (flp_mode)0, {SPEC, ADAPTER, .lora_rank = CHECK_LORA_USUAL}},
};

/* The architecture's own kernels of a specialisation. */
static void list_kinds(const char *arch, prove_part *out) {
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  int count = flp_kernel_keys_for(&out->spec, arch, keys);
  for (int i = 0; i < count; i++) {
    if (strncmp(keys[i].arch, arch, sizeof keys[i].arch) != 0) continue;
    cli_append(out->kinds, sizeof out->kinds, ", ", "%s", flp_kernel_kind_name(keys[i].kind));
    out->has_short |= flp_kind_parts(keys[i].kind) & FLP_PART_SHORT ? 1 : 0;
  }
}

/* 0 if there is none: of a dtype that has no such kernels. */
static int make_part(const char *arch, const prove_args *args, size_t row, flp_dtype dtype, prove_part *out) {
  flp_spec spec = rows[row].spec;
  spec.dtype = dtype;
  spec.vocab = args->vocab;
  spec.hidden = args->hidden;
  cli_spec_set_mode(&spec, rows[row].mode);
  *out = (prove_part){.mode = rows[row].mode};
  if (flp_spec_resolve(&spec, &out->spec) != FLP_OK || !flp_kernel_arch_serves(arch, &out->spec)) return 0;
  snprintf(out->name, sizeof out->name, "%s/%s", rows[row].name, flp_dtype_name(dtype));
  list_kinds(arch, out);
  return 1;
}

int prove_parts(const char *arch, const prove_args *args, prove_part out[PROVE_PARTS_MAX]) {
  static const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32};
  int count = 0;
  for (int d = 0; d < 3; d++)
    for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++)
      if (!args->dtype || args->dtype == (int)dtypes[d])
        count += make_part(arch, args, row, dtypes[d], &out[count]);
  return count;
}

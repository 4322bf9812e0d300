/* test_cli_prove.c: what `flpgen prove` proves of an architecture: every kind of kernel of its own, in each dtype. */
#include <criterion/criterion.h>
#include <string.h>

#include "gen/cli/prove/prove.h"

static int has_kind(const char *arch, const prove_part *part, flp_kernel_kind kind) {
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  int count = flp_kernel_keys_for(&part->spec, arch, keys);
  for (int i = 0; i < count; i++)
    if (keys[i].kind == kind && strcmp(keys[i].arch, arch) == 0) return 1;
  return 0;
}

/* Forward with several parts is proven by each part. */
static int is_asked(const flp_arch *arch, flp_kernel_kind kind) {
  unsigned parts = flp_kind_parts(kind);
  return flp_arch_makes(arch, kind) && (parts & (parts - 1)) == 0;
}

static void expect_all(const flp_arch *arch, flp_dtype dtype) {
  const prove_args args = {.rows = 2048, .vocab = 32768, .hidden = 1024, .dtype = (int)dtype};
  prove_part parts[PROVE_PARTS_MAX];
  int count = prove_parts(arch->name, &args, parts), kinds = 0;
  for (int kind = 1; kind < FLP_KERNEL_KINDS; kind++) {
    int found = 0;
    for (int i = 0; i < count; i++) found |= has_kind(arch->name, &parts[i], (flp_kernel_kind)kind);
    cr_expect(found || dtype != FLP_DTYPE_BF16 || !is_asked(arch, (flp_kernel_kind)kind), "%s of %s in no part",
              flp_kernel_kind_name((flp_kernel_kind)kind), arch->name);
    kinds += found;
  }
  cr_expect_gt(kinds, 8, "%s %d", arch->name, (int)dtype);
}

Test(cli_prove, every_kind_of_kernel_is_in_some_part) {
  const flp_arch *arch;
  int own = 0;
  for (int i = 0; (arch = flp_arch_at(i)); i++) {
    if (!arch->below || !(arch->facts & FLP_ARCH_PLANNED)) continue;
    own++;
    expect_all(arch, FLP_DTYPE_BF16); /* keep is of bf16 alone */
    expect_all(arch, FLP_DTYPE_FP16);
  }
  cr_expect_gt(own, 0);
}

/* Names are words of a command, and say which one it is. */
Test(cli_prove, parts_have_names_of_their_own) {
  const prove_args all = {.rows = 20, .vocab = 140, .hidden = 24};
  const prove_args half = {.vocab = 140, .hidden = 24, .dtype = FLP_DTYPE_FP16};
  prove_part parts[PROVE_PARTS_MAX];
  int count = prove_parts("sm_90a", &all, parts);
  for (int i = 0; i < count; i++) {
    cr_expect(strchr(parts[i].name, '/') && parts[i].kinds[0] && !strchr(parts[i].name, ' '), "%s", parts[i].name);
    for (int j = 0; j < i; j++) cr_expect_str_neq(parts[i].name, parts[j].name);
  }
  cr_expect_gt(count, prove_parts("sm_90a", &half, parts));
  cr_expect_str_eq(parts[0].name, "scores/fp16");
  cr_expect_str_eq(parts[0].kinds, "forward, forward_short");
  cr_expect(parts[0].has_short);
}

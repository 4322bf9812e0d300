/* test_tables.c: the tables of architectures, kinds and operations are complete: every row says what its readers rely
 * on. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/api/op.h"
#include "runtime/kernel/kernel.h"
#include "runtime/kernel/op.h"

#define ALL_KINDS (((2u << FLP_KERNEL_FORWARD) - 1) & ~1u)

static flp_kernel_kind kind_at(int i) {
  return (flp_kernel_kind)i;
}

/* ---- kinds ---- */

Test(tables, every_kind_has_a_name_entries_and_facts) {
  for (int i = 1; i < FLP_KERNEL_KINDS; i++) {
    const flp_kind *kind = flp_kind_of(kind_at(i));
    cr_assert_str_neq(kind->name, "?", "kind %d", i);
    cr_expect_eq(flp_kind_find(kind->name, strlen(kind->name)), kind_at(i), "%s", kind->name);
    cr_expect(kind->entry_count >= 1 && kind->entry_count <= FLP_ENTRIES_MAX, "%s", kind->name);
    cr_expect_neq(kind->facts, 0, "%s", kind->name);
    cr_expect(!flp_kind_has(kind_at(i), FLP_KIND_UNITS) || flp_kind_has(kind_at(i), FLP_KIND_TILED), "%s", kind->name);
    cr_expect(!flp_kind_has(kind_at(i), FLP_KIND_TUNE) || flp_kind_has(kind_at(i), FLP_KIND_TILED), "%s", kind->name);
  }
}

Test(tables, what_is_no_kind_has_nothing) {
  static const int bad[] = {0, -1, FLP_KERNEL_KINDS, 1 << 20};
  for (int i = 0; i < 4; i++) {
    cr_expect_str_eq(flp_kind_of(kind_at(bad[i]))->name, "?");
    cr_expect_eq(flp_kind_of(kind_at(bad[i]))->entry_count, 0);
    cr_expect_eq(flp_kind_has(kind_at(bad[i]), FLP_KIND_TUNE), 0);
  }
  cr_expect_eq(flp_kind_find("forwar", 6), 0);
  cr_expect_eq(flp_kind_find("forward_", 8), 0);
  cr_expect_eq(flp_kind_find("?", 1), 0);
}

/* Every entry of abi.h is launched from the module of one kind, in one form. */
Test(tables, every_entry_belongs_to_one_kind) {
  for (int entry = 0; entry < FLP_NO_ENTRY; entry++) {
    const char *name = flp_entry_name(entry);
    int owners = 0;
    const flp_abi_entry *abi = flp_abi_find(name);
    cr_assert_not_null(abi, "%s", name);
    cr_expect_eq((int)abi->id, entry, "%s", name);
    for (int i = 1; i < FLP_KERNEL_KINDS; i++) {
      const flp_kind_entry *found = flp_kind_entry_find(kind_at(i), name);
      owners += found != NULL;
      cr_expect(!found || (found->plain == entry) != (found->mapped == entry), "%s", name);
    }
    cr_expect_eq(owners, 1, "%s has %d kinds", name, owners);
  }
  cr_expect_str_eq(flp_entry_name(FLP_NO_ENTRY), "");
  cr_expect_str_eq(flp_entry_name(-1), "");
  cr_expect_null(flp_kind_entry_find(FLP_KERNEL_ROWS, "forward"));
  cr_expect_null(flp_kind_entry_find(FLP_KERNEL_ROWS, "no_entry"));
}

Test(tables, tunable_kinds_fit_their_text) {
  char text[256];
  cr_expect_leq(FLP_SPEC_KERNELS_MAX / 2 * FLP_TUNABLES_TEXT_BYTES + 64, FLP_TUNING_TEXT_BYTES);
  cr_expect_str_eq(flp_kind_list(FLP_KIND_TUNE, ":", text, sizeof text),
                   "dz:, grad_hidden:, grad_weight:, products:, dz_lora:, lora_products:, forward:, forward_keep:, "
                   "forward_emit:, forward_targets:, forward_top:, forward_columns:, forward_statistics:, "
                   "forward_raw:, forward_lora: or forward_short:");
  cr_expect_str_eq(flp_kind_list(FLP_KIND_CHUNK_ROWS, "", text, sizeof text), "dz or forward_keep");
}

/* ---- architectures ---- */

static void expect_row(const flp_arch *arch, const flp_arch *before) {
  const char *name = arch->name;
  cr_expect_eq(flp_arch_find(name), arch, "%s stands twice", name);
  cr_expect(!before || arch->capability >= before->capability, "%s is out of order", name);
  cr_expect(arch->capability >= 80 && arch->kinds && !(arch->kinds & ~ALL_KINDS), "%s", name);
  cr_expect(arch->flops_per_clock > 0 && arch->clock > 0 && arch->bandwidth > 0, "%s has no rates", name);
  cr_expect(flp_arch_runs(arch, arch->capability / 10, arch->capability % 10), "%s", name);
  if (!(arch->facts & FLP_ARCH_PLANNED)) cr_expect_eq(arch->facts, 0, "%s: facts that nothing reads", name);
  size_t length = strlen(arch->templates);
  cr_expect(length == 0 || arch->templates[length - 1] == '/', "%s: folder %s", name, arch->templates);
  struct stat info;
  char folder[512];
  snprintf(folder, sizeof folder, "%s/templates/%s", FLP_TEST_TREE, arch->templates);
  cr_expect(stat(folder, &info) == 0 && S_ISDIR(info.st_mode), "%s", folder);
}

Test(tables, a_devices_rates_are_those_of_its_architecture) {
  static const struct {
    int major, minor;
    const char *name;
  } rows[] = {{8, 0, "sm_80"}, {8, 6, "sm_86"}, {8, 8, "sm_87"}, {8, 9, "sm_89"},
              {9, 0, "sm_90"}, {10, 0, "sm_100"}, {12, 1, "sm_120"}, {7, 5, "sm_80"}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
    cr_expect_str_eq(flp_arch_of_device(rows[i].major, rows[i].minor)->name, rows[i].name);
}

Test(tables, every_architecture_is_complete) {
  const flp_arch *arch, *before = NULL;
  int rows = 0;
  for (; (arch = flp_arch_at(rows)); rows++, before = arch) expect_row(arch, before);
  cr_expect(rows >= 2 && rows <= FLP_ARCHES_MAX);
  cr_expect_null(flp_arch_at(-1));
  cr_expect_null(flp_arch_find("sm_8"));
}

/* Whatever is asked for, some architecture has the kernel, and where one runs, so does what serves for it. */
Test(tables, every_kind_is_served_on_every_architecture) {
  const flp_arch *arch;
  for (int i = 0; (arch = flp_arch_at(i)); i++)
    for (int kind = 1; kind < FLP_KERNEL_KINDS; kind++)
      for (int point = 0; point < 4 * 3; point++) {
        uint32_t alignment = 2u << point / 3;
        flp_dtype dtype = (flp_dtype)(FLP_DTYPE_BF16 + point % 3);
        if (kind == FLP_KERNEL_PRODUCTS || kind == FLP_KERNEL_LORA_PRODUCTS) continue; /* in place of two others */
        const flp_arch *maker = flp_arch_find(flp_arch_of_kind(arch->name, kind_at(kind), alignment, dtype));
        cr_assert_not_null(maker, "%s", arch->name);
        cr_expect(flp_arch_makes(maker, kind_at(kind)), "%s of %s", flp_kernel_kind_name(kind_at(kind)), arch->name);
        cr_expect_leq(maker->alignment, alignment);
        cr_expect(!maker->below || flp_dtype_bytes(dtype) <= maker->element, "%s", maker->name);
        cr_expect(flp_arch_runs(maker, arch->capability / 10, arch->capability % 10), "%s", maker->name);
      }
}

/* The two products are one kernel or two, never both. */
Test(tables, products_are_made_together_or_apart) {
  const flp_arch *arch;
  for (int i = 0; (arch = flp_arch_at(i)); i++) {
    int together = arch->kinds >> FLP_KERNEL_PRODUCTS & 1, hidden = arch->kinds >> FLP_KERNEL_GRAD_HIDDEN & 1,
        weight = arch->kinds >> FLP_KERNEL_GRAD_WEIGHT & 1;
    cr_expect(hidden == weight && !(together && hidden), "%s", arch->name);
  }
}

Test(tables, the_portable_architecture_is_the_first_and_makes_all) {
  const flp_arch *portable = flp_arch_find(FLP_PORTABLE_ARCH);
  cr_assert_eq(portable, flp_arch_at(0));
  cr_expect(!flp_arch_is_exact(FLP_PORTABLE_ARCH) && !portable->below && !portable->alignment);
  cr_expect_eq(portable->facts, FLP_ARCH_PLANNED);
  cr_expect_eq(portable->kinds, ALL_KINDS & ~(1u << FLP_KERNEL_PRODUCTS | 1u << FLP_KERNEL_LORA_PRODUCTS));
}

Test(tables, what_serves_where_an_architecture_is_asked_for) {
  static const struct {
    const char *asked, *serving;
  } cases[] = {{"sm_80", "sm_80"},   {"sm_89", "sm_89"}, {"sm_88", "sm_80"},   {"sm_90a", "sm_90a"},
               {"sm_121", "sm_80"},  {"sm_75", NULL},    {"sm_130a", "sm_80"}, {"sm_101f", "sm_80"},
               {"sm_90b", NULL},     {"sm_9", NULL},     {"sm_1000", NULL},    {"sm_080", NULL},
               {"compute_90", NULL}, {"", NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const flp_arch *arch = flp_arch_serving(cases[i].asked);
    cr_expect_str_eq(arch ? arch->name : "none", cases[i].serving ? cases[i].serving : "none", "%s", cases[i].asked);
  }
}

Test(tables, a_suffix_is_for_one_capability_or_family) {
  const flp_arch *hopper = flp_arch_find("sm_90a"), *portable = flp_arch_find("sm_80");
  const flp_arch *family = flp_arch_find("sm_100f");
  cr_expect(flp_arch_runs(family, 10, 0) && flp_arch_runs(family, 10, 3) && !flp_arch_runs(family, 11, 0));
  cr_expect(!flp_arch_runs(family, 12, 0) && !flp_arch_runs(family, 9, 0) && flp_arch_is_exact("sm_100f"));
  cr_expect(flp_arch_runs(hopper, 9, 0) && !flp_arch_runs(hopper, 9, 1) && !flp_arch_runs(hopper, 10, 0));
  cr_expect(flp_arch_runs(portable, 8, 0) && flp_arch_runs(portable, 12, 1) && !flp_arch_runs(portable, 7, 5));
  cr_expect(flp_arch_is_exact("sm_130a") && !flp_arch_is_exact("sm_130") && !flp_arch_is_exact(""));
}

Test(tables, lists_name_rows_by_their_facts) {
  char text[128];
  const flp_arch *arch;
  int names = 1, rows = 0;
  flp_arch_list(FLP_ARCH_PLANNED, 0, ",", text, sizeof text);
  cr_expect_eq(strncmp(text, "sm_80,sm_90a", 12), 0, "%s", text);
  for (const char *comma = text; (comma = strchr(comma, ',')); comma++) names++;
  for (int i = 0; (arch = flp_arch_at(i)); i++) rows += (arch->facts & FLP_ARCH_PLANNED) != 0;
  cr_expect_eq(names, rows, "%s", text);
  cr_expect_str_eq(flp_arch_list(FLP_ARCH_PLANNED, FLP_ARCH_UNPROVEN, ",", text, sizeof text), "sm_80,sm_90a");
  cr_expect_eq(strncmp(flp_arch_list(FLP_ARCH_CLUSTERS, 0, " or ", text, sizeof text), "sm_90a", 6), 0, "%s", text);
  cr_expect(flp_arch_has("sm_90a", FLP_ARCH_CLUSTERS | FLP_ARCH_PLANNED) && !flp_arch_has("sm_90", FLP_ARCH_CLUSTERS));
  cr_expect(!flp_arch_has("sm_80", FLP_ARCH_CLUSTERS | FLP_ARCH_PLANNED) && !flp_arch_has("none", 0));
}

/* ---- operations ---- */

Test(tables, every_operation_is_complete) {
  unsigned kinds = 0;
  for (int i = 0; i < FLP_OP_COUNT; i++) {
    const flp_op_row *op = flp_op_of((flp_op)i);
    const flp_op_calls *calls = flp_op_calls_of((flp_op)i);
    cr_assert(op->symbol && op->kernels && op->kernel_count > 0, "operation %d", i);
    cr_expect_eq(strncmp(op->symbol, "FLP_OP_", 7), 0, "%s", op->symbol);
    cr_expect_str_neq(flp_op_name((flp_op)i), "?", "%s", op->symbol);
    cr_expect_eq(FLP_OP_WORDS[i].value, i, "%s", op->symbol);
    cr_expect(calls->call && calls->check_spec && calls->layout, "%s", op->symbol);
    cr_expect(calls->passes & (1u << FLP_PASS_FORWARD | 1u << FLP_PASS_STEP), "%s", op->symbol);
    for (int j = 0; j < op->kernel_count; j++) {
      cr_expect_neq(flp_kind_of(op->kernels[j].kind)->facts, 0, "%s", op->symbol);
      kinds |= 1u << op->kernels[j].kind;
    }
  }
  cr_expect_eq(kinds, ALL_KINDS, "a kind that no operation needs");
}

/* Whatever a spec of a head asks for, its kernels fit a plan, none twice, and each runs where it is asked for. */
Test(tables, kernels_of_every_spec_fit_a_plan) {
  static const uint8_t program[] = "any bytes";
  const flp_arch *arch;
  for (int i = 0; (arch = flp_arch_at(i)); i++)
    for (unsigned point = 0; point < 8 * 3 * 2 * 2 * 2 * 2 * 2; point++) {
      flp_spec spec = FLP_SPEC_INIT;
      flp_kernel_key keys[FLP_SPEC_KERNELS_MAX + 1];
      spec.grads = point % 8;
      spec.dtype = (flp_dtype)(FLP_DTYPE_BF16 + point / 8 % 3);
      spec.keep = (int)(point / 24 % 2);
      spec.loss = point / 48 % 2 ? program : NULL;
      spec.loss_bytes = spec.loss ? sizeof program : 0;
      spec.alignment = point / 96 % 2 ? 4 : 16;
      spec.tail = point / 192 % 2 ? 0.125f : 0;
      spec.topk = point / 384 && !spec.tail && !spec.keep ? 20 : 0;
      int count = flp_kernel_keys_for(&spec, arch->name, keys);
      uint8_t seen[FLP_KERNEL_KINDS] = {0};
      cr_assert(count >= 1 && count <= FLP_SPEC_KERNELS_MAX, "%d kernels", count);
      for (int j = 0; j < count; j++) {
        cr_expect(!seen[keys[j].kind]++, "%s twice", flp_kernel_kind_name(keys[j].kind));
        cr_expect(flp_arch_makes(flp_arch_find(keys[j].arch), keys[j].kind), "%s of %s",
                  flp_kernel_kind_name(keys[j].kind), keys[j].arch);
      }
    }
}

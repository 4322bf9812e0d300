/* test_abi.c: the tables of abi.h describe their structs and stay within the descriptor's limits. */
#include <criterion/criterion.h>
#include <string.h>

#include "runtime/kernel/abi.h"
#include "runtime/kernel/kernel.h"

/* What a kernel built yesterday was compiled against, the signatures, is in tests/golden/plan/kernels.txt: cached
 * kernels of others are refused as they load. */
static const struct {
  const char *name;
  size_t struct_bytes;
} entries[] = {
#define ENTRY(entry, LIST) {#entry, sizeof(flp_##entry##_params)},
    FLP_ENTRY_LIST(ENTRY)
#undef ENTRY
};
enum { ENTRIES = sizeof entries / sizeof entries[0] };

static size_t type_bytes(flp_abi_type type) {
  if (type == FLP_ABI_MAP) return 128;
  return type == FLP_ABI_I32 || type == FLP_ABI_F32 ? 4 : 8;
}

static void expect_offsets(const flp_abi_entry *entry, size_t struct_bytes) {
  size_t end = 0, alignment = strchr(entry->signature, 'm') ? 64 : 8;
  for (uint32_t p = 0; p < entry->param_count; p++) {
    const flp_abi_param *param = &entry->params[p];
    size_t bytes = type_bytes(param->type);
    cr_expect_geq(param->offset, end, "%s.%s overlaps its predecessor", entry->name, param->name);
    cr_expect_eq(param->offset % (bytes > 64 ? 64 : bytes), 0, "%s.%s is misaligned", entry->name, param->name);
    size_t widest = bytes > 64 ? 64 : 8;
    cr_expect_lt(param->offset - end, widest, "%s.%s leaves a hole wider than alignment", entry->name, param->name);
    end = param->offset + bytes;
  }
  cr_expect_leq(end, struct_bytes, "%s", entry->name);
  cr_expect_lt(struct_bytes - end, alignment, "%s has fields that its table lacks", entry->name);
}

/* The table of an entry agrees with its struct and its signature, and fits a launch and a descriptor. */
Test(abi, tables_describe_their_structs) {
  const flp_kernel_entry *desc_entry = NULL;
  for (int i = 0; i < ENTRIES; i++) {
    const flp_abi_entry *entry = flp_abi_find(entries[i].name);
    cr_assert_not_null(entry, "%s", entries[i].name);
    cr_expect_eq((int)entry->id, i, "%s", entry->name);
    cr_assert_eq(entry->param_count, strlen(entry->signature), "%s", entry->name);
    cr_expect_leq(entry->param_count, FLP_ABI_PARAMS_MAX, "%s", entry->name);
    cr_expect_lt(strlen(entry->signature), sizeof desc_entry->signature, "%s", entry->name);
    cr_expect_lt(strlen(entry->name), sizeof desc_entry->name, "%s", entry->name);
    for (uint32_t a = 0; a < entry->param_count; a++) {
      cr_expect_eq((char)entry->params[a].type, entry->signature[a], "%s.%s", entry->name, entry->params[a].name);
      for (uint32_t b = a + 1; b < entry->param_count; b++)
        cr_expect_str_neq(entry->params[a].name, entry->params[b].name, "%s", entry->name);
    }
    expect_offsets(entry, entries[i].struct_bytes);
  }
}

Test(abi, find_knows_only_whole_names) {
  cr_expect_null(flp_abi_find(""));
  cr_expect_null(flp_abi_find("forwar"));
  cr_expect_null(flp_abi_find("forward "));
  cr_expect_null(flp_abi_find("flp_forward"));
  cr_expect_not_null(flp_abi_find("dz"));
}

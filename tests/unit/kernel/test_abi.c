/* test_abi.c: the tables of abi.h describe their structs and stay within the descriptor's limits. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/kernel/abi.h"
#include "runtime/kernel/kernel.h"

/* What a kernel built yesterday was compiled against, the signatures, is in tests/golden/plan/kernels.txt: cached
 * kernels of others are refused as they load. */
static const struct {
  const char *name;
  size_t struct_bytes;
} entries[] = {
#define ENTRY(entry) {#entry, sizeof(flp_##entry##_params)},
    FLP_ENTRY_LIST(ENTRY) FLP_FORWARD_ENTRIES(ENTRY)
#undef ENTRY
};
enum { ENTRIES = sizeof entries / sizeof entries[0] };

static size_t type_bytes(flp_abi_type type) {
  if (type == FLP_ABI_MAP) return 128;
  return type == FLP_ABI_I32 || type == FLP_ABI_F32 ? 4 : 8;
}

static void expect_offsets(const flp_abi_entry *entry, size_t struct_bytes) {
  char letters[FLP_ABI_PARAMS_MAX + 1];
  size_t end = 0, alignment = strchr(flp_abi_signature(entry, letters), 'm') ? 64 : 8;
  for (const flp_abi_param *param = flp_abi_first(entry); param; param = flp_abi_next(entry, param)) {
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

/* The table of an entry agrees with its struct and its signature, and fits a launch and a descriptor: that of forward
 * with all parts, of which scores are kept or listed, never both. */
Test(abi, tables_describe_their_structs) {
  const flp_kernel_entry *desc_entry = NULL;
  char letters[FLP_ABI_PARAMS_MAX + 1];
  for (int i = 0; i < ENTRIES; i++) {
    int sets = strncmp(entries[i].name, "forward", 7) == 0 ? FLP_FORWARD_SETS : 1;
    const flp_abi_entry *entry = flp_abi_of((flp_entry_id)(flp_abi_find(entries[i].name)->id + sets - 1));
    cr_expect_eq(flp_abi_find(entry->name), entry, "%s", entry->name);
    cr_expect_leq(strlen(flp_abi_signature(entry, letters)), FLP_ABI_PARAMS_MAX, "%s", entry->name);
    cr_expect_lt(strlen(letters), sizeof desc_entry->signature, "%s", entry->name);
    size_t both = sets > 1 ? strlen("_emit") : 0;
    cr_expect_lt(strlen(entry->name) - both, sizeof desc_entry->name, "%s", entry->name);
    const char *letter = letters;
    for (const flp_abi_param *a = flp_abi_first(entry); a; a = flp_abi_next(entry, a)) {
      cr_expect_eq((char)a->type, *letter++, "%s.%s", entry->name, a->name);
      for (const flp_abi_param *b = flp_abi_next(entry, a); b; b = flp_abi_next(entry, b))
        cr_expect_str_neq(a->name, b->name, "%s", entry->name);
    }
    expect_offsets(entry, entries[i].struct_bytes);
  }
}

/* Parts come behind what forward has without any, in their order; one parameter that several have comes once. */
Test(abi, forward_has_the_parameters_of_its_parts) {
  char none[FLP_ABI_PARAMS_MAX + 1], keep[FLP_ABI_PARAMS_MAX + 1], both[FLP_ABI_PARAMS_MAX + 1], want[96];
  flp_abi_signature(flp_abi_find("forward"), none);
  flp_abi_signature(flp_abi_find("forward_keep"), keep);
  snprintf(want, sizeof want, "%sipfpl", none);
  cr_expect_str_eq(keep, want);
  flp_abi_signature(flp_abi_find("forward_keep_top"), both);
  snprintf(want, sizeof want, "%sippippppp", keep);
  cr_expect_str_eq(both, want);
  cr_expect_null(flp_abi_find("forward_top_keep"));
  cr_expect_eq(flp_abi_find("forward_keep_top")->parts, FLP_PART_KEEP | FLP_PART_TOP);
}

Test(abi, find_knows_only_whole_names) {
  cr_expect_null(flp_abi_find(""));
  cr_expect_null(flp_abi_find("forwar"));
  cr_expect_null(flp_abi_find("forward "));
  cr_expect_null(flp_abi_find("flp_forward"));
  cr_expect_not_null(flp_abi_find("dz"));
}

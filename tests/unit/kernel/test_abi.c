/* test_abi.c: the tables of abi.h describe their structs and stay within the descriptor's limits. */
#include <criterion/criterion.h>
#include <string.h>

#include "runtime/kernel/abi.h"
#include "runtime/kernel/kernel.h"

/* Written out a second time on purpose: what a kernel built yesterday was compiled against. A change here is a change
 * of the kernel ABI, and cached kernels of the old one must be refused (their signatures are compared at load). */
static const struct {
  const char *name, *signature;
  size_t struct_bytes;
} expected[] = {
    {"prepare", "ppffpllllllpppppppppppp", sizeof(flp_prepare_params)},
    {"forward", "plplpppppfiiiiiiplp", sizeof(flp_forward_params)},
    {"combine", "pliipppppiifippppp", sizeof(flp_combine_params)},
    {"forward_map", "mmmppppfiiiiiplpp", sizeof(flp_forward_map_params)},
    {"dz_map", "mmmmpppppfiiiiiippp", sizeof(flp_dz_map_params)},
    {"products_map", "mmmmpppiiiiiipplpliplplip", sizeof(flp_products_map_params)},
    {"gather", "plppiiiiplp", sizeof(flp_gather_params)},
    {"merge", "pllpppfipppp", sizeof(flp_merge_params)},
    {"record", "ppppppiifipp", sizeof(flp_record_params)},
    {"dz_scale", "ppp", sizeof(flp_dz_scale_params)},
    {"dz", "plplppppppfiiiiiiiplpp", sizeof(flp_dz_params)},
    {"grad_hidden", "plplpppiiiiiiipplpliii", sizeof(flp_grad_hidden_params)},
    {"grad_weight", "plplpppiiiiiiipplpliii", sizeof(flp_grad_weight_params)},
    {"bias_reduce", "ppiiiiippiii", sizeof(flp_bias_reduce_params)},
    {"fill", "pplili", sizeof(flp_fill_params)},
    {"select", "plpiildpppp", sizeof(flp_select_params)},
    {"scale", "pliip", sizeof(flp_scale_params)},
    {"select_grad", "plpiildpppppl", sizeof(flp_select_grad_params)},
    {"loss_targets", "pppppppppppddddddddpilpplppiippppp", sizeof(flp_loss_targets_params)},
    {"loss_rows", "ppppppppppppppddddddddlppiipppppp", sizeof(flp_loss_rows_params)},
    {"forward_keep", "plplpppppfiiiiiiplpipfpl", sizeof(flp_forward_keep_params)},
    {"forward_keep_map", "mmmppppfiiiiiplppipfm", sizeof(flp_forward_keep_map_params)},
    {"keep_reference", "ppppiip", sizeof(flp_keep_reference_params)},
    {"keep_finish", "pppppppiiiiiplpp", sizeof(flp_keep_finish_params)},
    {"keep_expand", "plppppppiiiiip", sizeof(flp_keep_expand_params)},
    {"keep_gather", "plpppiiipl", sizeof(flp_keep_gather_params)},
    {"direction_strike", "ppiiiipl", sizeof(flp_direction_strike_params)},
    {"direction_finish", "pppfppppiiip", sizeof(flp_direction_finish_params)},
    {"direction_rows", "pppppppplipli", sizeof(flp_direction_rows_params)},
    {"list_check", "pllp", sizeof(flp_list_check_params)},
    {"list_sort", "pplllppppppppp", sizeof(flp_list_sort_params)},
    {"list_scores", "plplpppppppfiipp", sizeof(flp_list_scores_params)},
    {"list_reduce", "pppppppl", sizeof(flp_list_reduce_params)},
    {"list_dz", "pppppppppip", sizeof(flp_list_dz_params)},
    {"list_hidden", "ppppppppliplippi", sizeof(flp_list_hidden_params)},
    {"list_digits", "ppipip", sizeof(flp_list_digits_params)},
    {"list_scan", "pip", sizeof(flp_list_scan_params)},
    {"list_place", "ppipipp", sizeof(flp_list_place_params)},
    {"list_starts", "ppipip", sizeof(flp_list_starts_params)},
    {"list_weight", "pppppiippliplipiii", sizeof(flp_list_weight_params)},
    {"list_weight_wide", "pppppiippliplipiiip", sizeof(flp_list_weight_wide_params)},
    {"forward_emit", "plplpppppfiiiiiiplpppppif", sizeof(flp_forward_emit_params)},
    {"forward_emit_map", "mmmppppfiiiiiplppppppif", sizeof(flp_forward_emit_map_params)},
    {"emit_floor", "plpppppppfiiifppp", sizeof(flp_emit_floor_params)},
    {"emit_sort", "pppfpppipppp", sizeof(flp_emit_sort_params)},
    {"tail_target", "plplppppiiip", sizeof(flp_tail_target_params)},
    {"tail_mean", "pliip", sizeof(flp_tail_mean_params)},
    {"tail_rows", "ppppippppppifppppp", sizeof(flp_tail_rows_params)},
    {"tail_choose", "ppppfipppppppp", sizeof(flp_tail_choose_params)},
    {"tail_entries", "ppppippppppifppppp", sizeof(flp_tail_entries_params)},
    {"forward_targets", "plplpppppfiiiiiiplppppppii", sizeof(flp_forward_targets_params)},
    {"forward_targets_map", "mmmppppfiiiiiplpppppppii", sizeof(flp_forward_targets_map_params)},
    {"targets_rows", "pilllpppppp", sizeof(flp_targets_rows_params)},
    {"targets_sort", "pilllpppfiipppppppppp", sizeof(flp_targets_sort_params)},
    {"targets_finish", "pillpplppppfipppp", sizeof(flp_targets_finish_params)},
    {"targets_patch", "ppppipppppppfiiiiiplpp", sizeof(flp_targets_patch_params)},
    {"targets_bias", "ppppiiiip", sizeof(flp_targets_bias_params)},
    {"forward_top", "plplpppppfiiiiiiplpiippippppp", sizeof(flp_forward_top_params)},
    {"forward_top_map", "mmmppppfiiiiiplppiippippppp", sizeof(flp_forward_top_map_params)},
    {"top_target", "plplppppiiip", sizeof(flp_top_target_params)},
    {"top_begin", "ppppfiiiiipppppp", sizeof(flp_top_begin_params)},
    {"top_floor", "piiiiippipppppp", sizeof(flp_top_floor_params)},
    {"top_redo", "plplpppfiiiiiippipp", sizeof(flp_top_redo_params)},
    {"top_finish", "pppiiiilppipppppppp", sizeof(flp_top_finish_params)},
    {"loss_scores", "ppppppppppppppddddddddlppiippppppppppp", sizeof(flp_loss_scores_params)},
    {"mean_sums", "plppppiiip", sizeof(flp_mean_sums_params)},
    {"mean_fold", "piip", sizeof(flp_mean_fold_params)},
    {"score_rows", "pplppppiiiippp", sizeof(flp_score_rows_params)},
    {"score_record", "ppppppppiiifipppppp", sizeof(flp_score_record_params)},
    {"score_target", "pppppiipl", sizeof(flp_score_target_params)},
    {"score_add", "pplppl", sizeof(flp_score_add_params)},
    {"score_hidden", "ppppipl", sizeof(flp_score_hidden_params)},
    {"score_head", "piiplp", sizeof(flp_score_head_params)},
    {"top_others", "lpipppp", sizeof(flp_top_others_params)},
    {"operand_terms", "plipliiii", sizeof(flp_operand_terms_params)},
    {"forward_columns", "plplpppppfiiiiiiplpi", sizeof(flp_forward_columns_params)},
    {"forward_columns_map", "mmmppppfiiiiiplppiplpii", sizeof(flp_forward_columns_map_params)},
    {"forward_lora", "plplpppppfiiiiiiplpppli", sizeof(flp_forward_lora_params)},
    {"forward_lora_map", "mmmppppfiiiiiplppmmi", sizeof(flp_forward_lora_map_params)},
    {"dz_lora", "plplppppppfiiiiiiiplppppli", sizeof(flp_dz_lora_params)},
    {"dz_lora_map", "mmmmpppppfiiiiiipppmmi", sizeof(flp_dz_lora_map_params)},
    {"lora_project", "plplppfiiiiiip", sizeof(flp_lora_project_params)},
    {"lora_bound", "ppfip", sizeof(flp_lora_bound_params)},
    {"lora_round", "ppfipp", sizeof(flp_lora_round_params)},
    {"lora_rows", "plplpppiiiiiiipplpliii", sizeof(flp_lora_rows_params)},
    {"lora_columns", "plplpppiiiiiiipplpliii", sizeof(flp_lora_columns_params)},
    {"lora_products_map", "mmmmpppiiiiiipplpliplplip", sizeof(flp_lora_products_map_params)},
};
enum { EXPECTED_COUNT = sizeof expected / sizeof expected[0] };

static size_t type_bytes(flp_abi_type type) {
  if (type == FLP_ABI_MAP) return 128;
  return type == FLP_ABI_I32 || type == FLP_ABI_F32 ? 4 : 8;
}

Test(abi, signatures_are_pinned) {
  for (size_t i = 0; i < EXPECTED_COUNT; i++) {
    const flp_abi_entry *entry = flp_abi_find(expected[i].name);
    cr_assert_not_null(entry, "entry %s is missing", expected[i].name);
    cr_expect_str_eq(entry->name, expected[i].name);
    cr_expect_str_eq(entry->signature, expected[i].signature, "%s is \"%s\"", entry->name, entry->signature);
  }
}

Test(abi, every_entry_has_its_own_number) {
#define NUMBER(entry, LIST) cr_expect_eq(flp_abi_find(#entry)->id, FLP_ENTRY_##entry, #entry);
  FLP_ENTRY_LIST(NUMBER)
#undef NUMBER
  cr_expect_eq((int)FLP_ENTRY_ID_COUNT, (int)EXPECTED_COUNT);
}

Test(abi, list_holds_no_other_entry) {
#define COUNT(entry, LIST) +1
  cr_expect_eq(0 FLP_ENTRY_LIST(COUNT), EXPECTED_COUNT);
#undef COUNT
}

Test(abi, parameters_agree_with_signature) {
  for (size_t i = 0; i < EXPECTED_COUNT; i++) {
    const flp_abi_entry *entry = flp_abi_find(expected[i].name);
    cr_assert_not_null(entry);
    cr_assert_eq(entry->param_count, strlen(entry->signature), "%s", entry->name);
    for (uint32_t p = 0; p < entry->param_count; p++)
      cr_expect_eq((char)entry->params[p].type, entry->signature[p], "%s.%s", entry->name, entry->params[p].name);
  }
}

Test(abi, offsets_rise_and_stay_inside_the_struct) {
  for (size_t i = 0; i < EXPECTED_COUNT; i++) {
    const flp_abi_entry *entry = flp_abi_find(expected[i].name);
    cr_assert_not_null(entry);
    size_t end = 0;
    for (uint32_t p = 0; p < entry->param_count; p++) {
      const flp_abi_param *param = &entry->params[p];
      size_t bytes = type_bytes(param->type);
      cr_expect_geq(param->offset, end, "%s.%s overlaps its predecessor", entry->name, param->name);
      cr_expect_eq(param->offset % (bytes > 64 ? 64 : bytes), 0, "%s.%s is misaligned", entry->name, param->name);
      size_t widest = bytes > 64 ? 64 : 8;
      cr_expect_lt(param->offset - end, widest, "%s.%s leaves a hole wider than alignment", entry->name, param->name);
      end = param->offset + bytes;
    }
    cr_expect_leq(end, expected[i].struct_bytes, "%s", entry->name);
    size_t alignment = strchr(entry->signature, 'm') ? 64 : 8;
    cr_expect_lt(expected[i].struct_bytes - end, alignment, "%s has fields that its table lacks", entry->name);
  }
}

Test(abi, names_are_unique_within_an_entry) {
  for (size_t i = 0; i < EXPECTED_COUNT; i++) {
    const flp_abi_entry *entry = flp_abi_find(expected[i].name);
    cr_assert_not_null(entry);
    for (uint32_t a = 0; a < entry->param_count; a++)
      for (uint32_t b = a + 1; b < entry->param_count; b++)
        cr_expect_str_neq(entry->params[a].name, entry->params[b].name, "%s", entry->name);
  }
}

Test(abi, entries_fit_launch_and_descriptor) {
  const flp_kernel_entry *desc_entry = NULL;
  for (size_t i = 0; i < EXPECTED_COUNT; i++) {
    const flp_abi_entry *entry = flp_abi_find(expected[i].name);
    cr_assert_not_null(entry);
    cr_expect_leq(entry->param_count, FLP_ABI_PARAMS_MAX, "%s", entry->name);
    cr_expect_lt(strlen(entry->signature), sizeof desc_entry->signature, "%s", entry->name);
    cr_expect_lt(strlen(entry->name), sizeof desc_entry->name, "%s", entry->name);
  }
}

/* One field of each type, filled by name and read back through the table, as a launch does. */
Test(abi, table_reads_the_field_of_that_name) {
  flp_forward_given params = {.hidden = 0x1122334455667788u, .hidden_stride = -7, .cap_in = 0.5f, .bands = 42};
  const flp_abi_entry *entry = flp_abi_find("forward");
  cr_assert_not_null(entry);
  unsigned seen = 0;
  for (uint32_t p = 0; p < entry->param_count; p++) {
    const char *name = entry->params[p].name;
    if (entry->params[p].source != FLP_ABI_GIVEN) continue;
    const char *field = (const char *)&params + entry->params[p].place;
    if (strcmp(name, "hidden") == 0) seen += memcmp(field, &params.hidden, sizeof params.hidden) == 0;
    if (strcmp(name, "hidden_stride") == 0) seen += memcmp(field, &params.hidden_stride, 8) == 0;
    if (strcmp(name, "cap_in") == 0) seen += memcmp(field, &params.cap_in, 4) == 0;
    if (strcmp(name, "bands") == 0) seen += memcmp(field, &params.bands, 4) == 0;
  }
  cr_expect_eq(seen, 4);
}

Test(abi, find_knows_only_whole_names) {
  cr_expect_null(flp_abi_find(""));
  cr_expect_null(flp_abi_find("forwar"));
  cr_expect_null(flp_abi_find("forward "));
  cr_expect_null(flp_abi_find("flp_forward"));
  cr_expect_not_null(flp_abi_find("dz"));
}

/* abi.c: the tables behind abi.h, expanded from its lists. */
#include "runtime/kernel/abi.h"

#include <string.h>

#define LETTER_ptr "p"
#define LETTER_i64 "l"
#define LETTER_i32 "i"
#define LETTER_f32 "f"
#define LETTER_f64 "d"
#define LETTER_map "m"
#define TYPE_ptr FLP_ABI_PTR
#define TYPE_i64 FLP_ABI_I64
#define TYPE_i32 FLP_ABI_I32
#define TYPE_f32 FLP_ABI_F32
#define TYPE_f64 FLP_ABI_F64
#define TYPE_map FLP_ABI_MAP

/* offsetof needs the entry's struct name, so each list is expanded inside a typedef of that struct. */
#define ROW(type, name) {#name, TYPE_##type, (uint32_t)offsetof(STRUCT, name)},
#define SIGNATURE(type, name) LETTER_##type

#define STRUCT flp_prepare_params
static const flp_abi_param prepare_params[] = {FLP_PREPARE_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_forward_params
static const flp_abi_param forward_params[] = {FLP_FORWARD_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_forward_map_params
static const flp_abi_param forward_map_params[] = {FLP_FORWARD_MAP_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_gather_params
static const flp_abi_param gather_params[] = {FLP_GATHER_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_combine_params
static const flp_abi_param combine_params[] = {FLP_COMBINE_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_merge_params
static const flp_abi_param merge_params[] = {FLP_MERGE_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_record_params
static const flp_abi_param record_params[] = {FLP_RECORD_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_dz_scale_params
static const flp_abi_param dz_scale_params[] = {FLP_DZ_SCALE_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_dz_params
static const flp_abi_param dz_params[] = {FLP_DZ_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_dz_map_params
static const flp_abi_param dz_map_params[] = {FLP_DZ_MAP_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_products_map_params
static const flp_abi_param products_map_params[] = {FLP_PRODUCTS_MAP_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_grad_hidden_params
static const flp_abi_param grad_hidden_params[] = {FLP_PRODUCT_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_grad_weight_params
static const flp_abi_param grad_weight_params[] = {FLP_PRODUCT_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_bias_reduce_params
static const flp_abi_param bias_reduce_params[] = {FLP_BIAS_REDUCE_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_fill_params
static const flp_abi_param fill_params[] = {FLP_FILL_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_select_params
static const flp_abi_param select_params[] = {FLP_SELECT_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_select_grad_params
static const flp_abi_param select_grad_params[] = {FLP_SELECT_GRAD_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_loss_rows_params
static const flp_abi_param loss_rows_params[] = {FLP_LOSS_ROWS_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_forward_keep_params
static const flp_abi_param forward_keep_params[] = {FLP_FORWARD_KEEP_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_forward_keep_map_params
static const flp_abi_param forward_keep_map_params[] = {FLP_FORWARD_KEEP_MAP_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_keep_reference_params
static const flp_abi_param keep_reference_params[] = {FLP_KEEP_REFERENCE_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_keep_finish_params
static const flp_abi_param keep_finish_params[] = {FLP_KEEP_FINISH_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_keep_expand_params
static const flp_abi_param keep_expand_params[] = {FLP_KEEP_EXPAND_PARAMS(ROW)};
#undef STRUCT
#define STRUCT flp_keep_gather_params
static const flp_abi_param keep_gather_params[] = {FLP_KEEP_GATHER_PARAMS(ROW)};
#undef STRUCT

#define ENTRY(entry, LIST) \
  {FLP_ENTRY_##entry, #entry, entry##_params, sizeof entry##_params / sizeof entry##_params[0], "" LIST(SIGNATURE)},
static const flp_abi_entry entries[] = {FLP_ENTRY_LIST(ENTRY)};

const flp_abi_entry *flp_abi_find(const char *name) {
  for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
    if (strcmp(entries[i].name, name) == 0) return &entries[i];
  return NULL;
}

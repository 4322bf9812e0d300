/* kind.c: see kind.h. */
#include "runtime/kernel/kind.h"

#include <stdio.h>
#include <string.h>

enum {
  LORA_ROWS = FLP_GRAD_HIDDEN | FLP_GRAD_LORA_A, /* gradients that follow from dz·B */
  LORA_COLUMNS = FLP_GRAD_LORA_A | FLP_GRAD_LORA_B,
  ANY_GRAD = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS | FLP_GRAD_LORA_A | FLP_GRAD_LORA_B
};

/* ---- entries ---- */

#define PLAIN(entry) FLP_ENTRY_##entry, FLP_NO_ENTRY, 0
#define OF_LORA(entry) FLP_ENTRY_##entry, FLP_NO_ENTRY, 1
#define MAPPED(entry) FLP_NO_ENTRY, FLP_ENTRY_##entry##_map, 0
#define EITHER(entry) FLP_ENTRY_##entry, FLP_ENTRY_##entry##_map, 0

static const flp_kind_entry rows_entries[] = {
    {PLAIN(prepare), 0, 0},
    {PLAIN(gather), 0, 0},
    {PLAIN(combine), 0, 0},
    {PLAIN(merge), 0, 0},
    {PLAIN(record), ANY_GRAD, 0},
    {PLAIN(dz_scale), ANY_GRAD, FLP_DTYPE_FP16},
    {PLAIN(bias_reduce), FLP_GRAD_BIAS, 0},
    {PLAIN(fill), FLP_GRAD_HIDDEN, 0},
};
static const flp_kind_entry dz_entries[] = {{EITHER(dz), 0, 0}};
static const flp_kind_entry grad_hidden_entries[] = {{PLAIN(grad_hidden), 0, 0}};
static const flp_kind_entry grad_weight_entries[] = {{PLAIN(grad_weight), 0, 0}};
static const flp_kind_entry products_entries[] = {{MAPPED(products), 0, 0}};
static const flp_kind_entry select_entries[] = {{PLAIN(select), 0, 0}, {PLAIN(select_grad), 0, 0}};
static const flp_kind_entry scale_entries[] = {{PLAIN(scale), 0, 0}};
static const flp_kind_entry kept_entries[] = {{PLAIN(keep_reference), 0, 0},   {PLAIN(keep_finish), 0, 0},
                                              {PLAIN(keep_expand), 0, 0},      {PLAIN(keep_gather), 0, 0},
                                              {PLAIN(direction_strike), 0, 0}, {PLAIN(direction_finish), 0, 0},
                                              {PLAIN(direction_rows), 0, 0}};
static const flp_kind_entry listed_entries[] = {
    {PLAIN(list_check), 0, 0},  {PLAIN(list_sort), 0, 0},      {PLAIN(list_scores), 0, 0},
    {PLAIN(list_reduce), 0, 0}, {PLAIN(list_dz), ANY_GRAD, 0}, {PLAIN(list_hidden), FLP_GRAD_HIDDEN, 0},
    {OF_LORA(list_adapter), LORA_ROWS, 0}};
static const flp_kind_entry listed_weight_entries[] = {{PLAIN(list_digits), 0, 0}, {PLAIN(list_scan), 0, 0},
                                                       {PLAIN(list_place), 0, 0},  {PLAIN(list_starts), 0, 0},
                                                       {PLAIN(list_weight), 0, 0}, {PLAIN(list_weight_wide), 0, 0}};
static const flp_kind_entry emitted_entries[] = {{PLAIN(emit_floor), 0, 0}, {PLAIN(emit_sort), 0, 0}};
static const flp_kind_entry tail_entries[] = {
    {PLAIN(tail_target), 0, 0},
    {PLAIN(tail_mean), FLP_GRAD_HIDDEN, 0},
    {PLAIN(tail_rows), 0, 0},
    {PLAIN(tail_choose), 0, 0},
    {PLAIN(tail_entries), 0, 0}};
static const flp_kind_entry targets_entries[] = {
    {PLAIN(targets_rows), 0, 0},
    {PLAIN(targets_sort), 0, 0},
    {PLAIN(targets_finish), 0, 0},
    {PLAIN(targets_strike), FLP_GRAD_BIAS, 0},
    {PLAIN(targets_patch), ANY_GRAD, 0},
    {PLAIN(targets_bias), FLP_GRAD_BIAS, 0}};
static const flp_kind_entry top_entries[] = {{PLAIN(top_target), 0, 0}, {PLAIN(top_begin), 0, 0},
                                             {PLAIN(top_floor), 0, 0},  {PLAIN(top_redo), 0, 0},
                                             {PLAIN(top_listed), 0, 0},
                                             {PLAIN(top_finish), 0, 0}, {PLAIN(top_others), 0, 0}};
static const flp_kind_entry operand_terms_entries[] = {{PLAIN(operand_terms), 0, 0}};
static const flp_kind_entry dz_lora_entries[] = {{EITHER(dz_lora), 0, 0}};
static const flp_kind_entry lora_entries[] = {{PLAIN(lora_project), 0, 0},
                                              {PLAIN(lora_bound), LORA_ROWS, 0},
                                              {PLAIN(lora_round), LORA_ROWS, 0},
                                              {PLAIN(lora_factor), FLP_GRAD_LORA_B, FLP_DTYPE_BF16},
                                              {PLAIN(lora_rows), LORA_ROWS, 0},
                                              {PLAIN(lora_columns), LORA_COLUMNS, 0}};
static const flp_kind_entry lora_products_entries[] = {{MAPPED(lora_products), 0, 0}};
static const flp_kind_entry loss_rows_entries[] = {{PLAIN(loss_rows), 0, 0}};
static const flp_kind_entry mean_entries[] = {
    {PLAIN(mean_sums), 0, 0},
    {PLAIN(mean_fold), 0, 0},
    {PLAIN(score_rows), 0, 0},
    {PLAIN(score_record), ANY_GRAD, 0},
    {PLAIN(score_target), ANY_GRAD, 0},
    {PLAIN(score_add), ANY_GRAD, 0},
    {PLAIN(score_list), ANY_GRAD, 0},
    {PLAIN(score_hidden), FLP_GRAD_HIDDEN, 0},
    {PLAIN(score_head), FLP_GRAD_WEIGHT | FLP_GRAD_BIAS, 0}};
static const flp_kind_entry loss_scores_entries[] = {{PLAIN(loss_scores), 0, 0}};
static const flp_kind_entry loss_targets_entries[] = {{PLAIN(loss_targets), 0, 0}};
static const flp_kind_entry forward_entries[] = {
#define SET_ENTRY(set, name) [set] = {FLP_ENTRY_forward + (set), FLP_ENTRY_forward_map + (set), 0, 0, 0},
    FLP_FORWARD_NAMES(SET_ENTRY, "forward")
#undef SET_ENTRY
};

/* ---- kinds ---- */

#define SCORES                                                                                                \
  (FLP_KIND_ENTROPY | FLP_KIND_BIAS | FLP_KIND_ALIGNMENT | FLP_KIND_HIDDEN | FLP_KIND_VOCAB | FLP_KIND_TUNE | \
   FLP_KIND_TILED)
#define PRODUCT (FLP_KIND_ALIGNMENT | FLP_KIND_HIDDEN | FLP_KIND_TILED)

/* X(kind, name, facts) */
#define KINDS(X)                                                                                              \
  X(ROWS, rows, FLP_KIND_TARGET | FLP_KIND_LINKED)                                                            \
  X(DZ, dz, SCORES | FLP_KIND_BIAS_GRAD | FLP_KIND_CHUNK_ROWS | FLP_KIND_CHUNK_VOCAB)                         \
  X(GRAD_HIDDEN, grad_hidden, PRODUCT | FLP_KIND_OUT | FLP_KIND_ADDS)                                         \
  X(GRAD_WEIGHT, grad_weight, PRODUCT | FLP_KIND_OUT | FLP_KIND_ADDS)                                         \
  X(PRODUCTS, products, PRODUCT | FLP_KIND_TUNE | FLP_KIND_ADDS)                                              \
  X(SELECT, select, FLP_KIND_TARGET | FLP_KIND_ENTROPY | FLP_KIND_ALIGNMENT | FLP_KIND_VOCAB | FLP_KIND_FP64) \
  X(KEPT, kept, FLP_KIND_ENTROPY | FLP_KIND_ALIGNMENT)                                                        \
  X(LOSS, loss_rows, FLP_KIND_LOSS | FLP_KIND_LINKED)                                                         \
  X(LISTED, listed, FLP_KIND_TARGET | FLP_KIND_ALIGNMENT | FLP_KIND_LORA | FLP_KIND_MIXED)                    \
  X(LISTED_WEIGHT, listed_weight, FLP_KIND_ALIGNMENT | FLP_KIND_LORA)                                         \
  X(EMITTED, emitted, FLP_KIND_LINKED)                                                                        \
  X(TAIL, tail, FLP_KIND_ALIGNMENT | FLP_KIND_LORA | FLP_KIND_MIXED)                                          \
  X(TARGETS, targets, FLP_KIND_TARGET)                                                                        \
  X(LOSS_TARGETS, loss_targets, FLP_KIND_LOSS | FLP_KIND_TARGET | FLP_KIND_LINKED)                            \
  X(TOP, top, FLP_KIND_TARGET | FLP_KIND_ALIGNMENT | FLP_KIND_LORA | FLP_KIND_MIXED)                          \
  X(LOSS_SCORES, loss_scores, FLP_KIND_LOSS | FLP_KIND_LINKED)                                                \
  X(MEAN, mean, FLP_KIND_ALIGNMENT)                                                                           \
  X(OPERANDS, operand_terms, FLP_KIND_ALIGNMENT)                                                              \
  X(DZ_LORA, dz_lora, SCORES | FLP_KIND_BIAS_GRAD)                                                            \
  X(LORA, lora, FLP_KIND_ALIGNMENT | FLP_KIND_OUT | FLP_KIND_TILED | FLP_KIND_INDEXED)                        \
  X(LORA_PRODUCTS, lora_products, PRODUCT | FLP_KIND_TUNE)                                                    \
  X(SCALE, scale, FLP_KIND_ALIGNMENT)

static const flp_kind kinds[FLP_KERNEL_KINDS] = {{"?", 0, 0, NULL},
#define KIND_ROW(kind, name, facts) \
  [FLP_KERNEL_##kind] = {#name, facts, sizeof name##_entries / sizeof name##_entries[0], name##_entries},
                                                 KINDS(KIND_ROW)
#undef KIND_ROW
#define SET_ROW(set, name)                                                                              \
  [FLP_KERNEL_FORWARD + (set)] = {name, SCORES | FLP_KIND_UNITS | ((set)&FLP_PART_KEEP ? FLP_KIND_CHUNK_ROWS : 0), 1, \
                                  &forward_entries[set]},
                                                 FLP_FORWARD_NAMES(SET_ROW, "forward")
#undef SET_ROW
};

#define FITS(kind, name, facts) \
  _Static_assert(sizeof name##_entries / sizeof name##_entries[0] <= FLP_ENTRIES_MAX, "entries of a descriptor");
KINDS(FITS)
#undef FITS

flp_kernel_kind flp_kind_base(flp_kernel_kind kind) {
  return kind > FLP_KERNEL_FORWARD ? FLP_KERNEL_FORWARD : kind;
}

unsigned flp_kind_parts(flp_kernel_kind kind) {
  return kind > FLP_KERNEL_FORWARD ? (unsigned)(kind - FLP_KERNEL_FORWARD) : 0;
}

const flp_kind *flp_kind_of(flp_kernel_kind kind) {
  return &kinds[(size_t)kind < FLP_KERNEL_KINDS ? (size_t)kind : 0];
}

int flp_kind_has(flp_kernel_kind kind, unsigned facts) {
  return (flp_kind_of(kind)->facts & facts) == facts;
}

flp_kernel_kind flp_kind_find(const char *name, size_t length) {
  for (int kind = 1; kind < FLP_KERNEL_KINDS; kind++)
    if (strlen(kinds[kind].name) == length && memcmp(kinds[kind].name, name, length) == 0) return (flp_kernel_kind)kind;
  return (flp_kernel_kind)0;
}

const char *flp_entry_name(int entry) {
  return entry >= 0 && entry < FLP_NO_ENTRY ? flp_abi_of((flp_entry_id)entry)->name : "";
}

const flp_kind_entry *flp_kind_entry_find(flp_kernel_kind kind, const char *name) {
  const flp_kind *row = flp_kind_of(kind);
  const flp_abi_entry *abi = flp_abi_find(name);
  for (int i = 0; abi && i < row->entry_count; i++)
    if (row->entries[i].plain == (int)abi->id || row->entries[i].mapped == (int)abi->id) return &row->entries[i];
  return NULL;
}

/* Forward with several parts has the facts that it has with one. */
static int is_listed(int kind, unsigned facts) {
  unsigned parts = flp_kind_parts((flp_kernel_kind)kind);
  return !(parts & (parts - 1)) && flp_kind_has((flp_kernel_kind)kind, facts);
}

const char *flp_kind_list(unsigned facts, const char *suffix, char *out, size_t capacity) {
  int left = 0;
  size_t used = 0;
  for (int kind = 1; kind < FLP_KERNEL_KINDS; kind++) left += is_listed(kind, facts);
  out[0] = 0;
  for (int kind = 1; kind < FLP_KERNEL_KINDS && used < capacity; kind++) {
    if (!is_listed(kind, facts)) continue;
    const char *between = used == 0 ? "" : left == 1 ? " or " : ", ";
    used += (size_t)snprintf(out + used, capacity - used, "%s%s%s", between, kinds[kind].name, suffix);
    left--;
  }
  return out;
}

/* kind.c: see kind.h. */
#include "runtime/kernel/kind.h"

#include <stdio.h>
#include <string.h>

enum {
  LORA_ROWS = FLP_GRAD_HIDDEN | FLP_GRAD_LORA_A, /* gradients that follow from dz·B */
  LORA_COLUMNS = FLP_GRAD_LORA_A | FLP_GRAD_LORA_B,
  ANY_GRAD = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS | FLP_GRAD_LORA_A | FLP_GRAD_LORA_B
};

/* ---- kinds and their entries ---- */

/* An entry with operands by pointer, through tensor maps, or in either form, whatever the spec; by pointer for these
 * gradients, and for operands of that dtype or an adapter. */
#define PLAIN(entry) {FLP_ENTRY_##entry, FLP_NO_ENTRY, 0, 0, 0},
#define MAPPED(entry) {FLP_NO_ENTRY, FLP_ENTRY_##entry##_map, 0, 0, 0},
#define EITHER(entry) {FLP_ENTRY_##entry, FLP_ENTRY_##entry##_map, 0, 0, 0},
#define WITH(entry, grads) {FLP_ENTRY_##entry, FLP_NO_ENTRY, 0, grads, 0},
#define TYPED(entry, grads, dtype) {FLP_ENTRY_##entry, FLP_NO_ENTRY, 0, grads, dtype},
#define OF_LORA(entry, grads) {FLP_ENTRY_##entry, FLP_NO_ENTRY, 1, grads, 0},

#define SCORES                                                                                                \
  (FLP_KIND_ENTROPY | FLP_KIND_BIAS | FLP_KIND_ALIGNMENT | FLP_KIND_HIDDEN | FLP_KIND_VOCAB | FLP_KIND_TUNE | \
   FLP_KIND_TILED)
#define PRODUCT (FLP_KIND_ALIGNMENT | FLP_KIND_HIDDEN | FLP_KIND_TUNE | FLP_KIND_TILED)

/* X(kind, name, facts, entries) */
#define KINDS(X)                                                                                                      \
  X(ROWS, rows, FLP_KIND_TARGET | FLP_KIND_LINKED,                                                                    \
    PLAIN(prepare) PLAIN(gather) PLAIN(combine) PLAIN(merge) WITH(record, ANY_GRAD)                                   \
    TYPED(dz_scale, ANY_GRAD, FLP_DTYPE_FP16) WITH(bias_reduce, FLP_GRAD_BIAS) WITH(fill, FLP_GRAD_HIDDEN))           \
  X(DZ, dz, SCORES | FLP_KIND_BIAS_GRAD | FLP_KIND_CHUNK_ROWS | FLP_KIND_CHUNK_VOCAB, EITHER(dz))                     \
  X(GRAD_HIDDEN, grad_hidden, PRODUCT | FLP_KIND_OUT | FLP_KIND_ADDS, PLAIN(grad_hidden))                             \
  X(GRAD_WEIGHT, grad_weight, PRODUCT | FLP_KIND_OUT | FLP_KIND_ADDS, PLAIN(grad_weight))                             \
  X(PRODUCTS, products, PRODUCT | FLP_KIND_ADDS, MAPPED(products))                                                    \
  X(SELECT, select, FLP_KIND_TARGET | FLP_KIND_ENTROPY | FLP_KIND_ALIGNMENT | FLP_KIND_VOCAB | FLP_KIND_FP64,         \
    PLAIN(select) PLAIN(select_grad))                                                                                 \
  X(KEPT, kept, FLP_KIND_ENTROPY | FLP_KIND_ALIGNMENT,                                                                \
    PLAIN(keep_reference) PLAIN(keep_finish) PLAIN(keep_expand) PLAIN(keep_gather) PLAIN(direction_strike)            \
    PLAIN(direction_finish) PLAIN(direction_rows))                                                                    \
  X(LOSS, loss_rows, FLP_KIND_LOSS | FLP_KIND_LINKED, PLAIN(loss_rows))                                               \
  X(LISTED, listed, FLP_KIND_TARGET | FLP_KIND_ALIGNMENT | FLP_KIND_LORA | FLP_KIND_MIXED,                            \
    PLAIN(list_check) PLAIN(list_sort) PLAIN(list_scores) PLAIN(list_reduce) WITH(list_dz, ANY_GRAD)                  \
    WITH(list_hidden, FLP_GRAD_HIDDEN) OF_LORA(list_adapter, LORA_ROWS))                                              \
  X(LISTED_WEIGHT, listed_weight, FLP_KIND_ALIGNMENT | FLP_KIND_LORA,                                                 \
    PLAIN(list_digits) PLAIN(list_scan) PLAIN(list_place) PLAIN(list_starts) PLAIN(list_weight)                       \
    PLAIN(list_weight_wide))                                                                                          \
  X(EMITTED, emitted, FLP_KIND_LINKED, PLAIN(emit_floor) PLAIN(flat_rows) PLAIN(flat_gate) PLAIN(emit_sort))         \
  X(TAIL, tail, FLP_KIND_ALIGNMENT | FLP_KIND_LORA | FLP_KIND_MIXED,                                                  \
    PLAIN(tail_target) WITH(tail_mean, FLP_GRAD_HIDDEN) PLAIN(tail_rows) PLAIN(tail_choose) PLAIN(tail_entries))      \
  X(TARGETS, targets, FLP_KIND_TARGET,                                                                                \
    PLAIN(targets_rows) PLAIN(targets_sort) PLAIN(targets_finish) WITH(targets_strike, FLP_GRAD_BIAS)                 \
    WITH(targets_patch, ANY_GRAD) WITH(targets_bias, FLP_GRAD_BIAS))                                                  \
  X(LOSS_TARGETS, loss_targets, FLP_KIND_LOSS | FLP_KIND_TARGET | FLP_KIND_LINKED, PLAIN(loss_targets))               \
  X(TOP, top, FLP_KIND_TARGET | FLP_KIND_ALIGNMENT | FLP_KIND_LORA | FLP_KIND_MIXED,                                  \
    PLAIN(top_target) PLAIN(top_begin) PLAIN(top_floor) PLAIN(top_redo) PLAIN(top_listed) PLAIN(top_finish)           \
    PLAIN(top_others))                                                                                                \
  X(LOSS_SCORES, loss_scores, FLP_KIND_LOSS | FLP_KIND_LINKED, PLAIN(loss_scores))                                    \
  X(MEAN, mean, FLP_KIND_ALIGNMENT,                                                                                   \
    PLAIN(mean_sums) PLAIN(mean_fold) PLAIN(score_rows) WITH(score_record, ANY_GRAD) WITH(score_target, ANY_GRAD)     \
    WITH(score_add, ANY_GRAD) WITH(score_list, ANY_GRAD) WITH(score_hidden, FLP_GRAD_HIDDEN)                          \
    WITH(score_head, FLP_GRAD_WEIGHT | FLP_GRAD_BIAS))                                                                \
  X(OPERANDS, operand_terms, FLP_KIND_ALIGNMENT, PLAIN(operand_terms))                                                \
  X(DZ_LORA, dz_lora, SCORES | FLP_KIND_BIAS_GRAD, EITHER(dz_lora))                                                   \
  X(LORA, lora, FLP_KIND_ALIGNMENT | FLP_KIND_OUT | FLP_KIND_TILED | FLP_KIND_INDEXED,                                \
    PLAIN(lora_project) WITH(lora_bound, LORA_ROWS) WITH(lora_round, LORA_ROWS)                                       \
    TYPED(lora_factor, FLP_GRAD_LORA_B, FLP_DTYPE_BF16) WITH(lora_rows, LORA_ROWS) WITH(lora_columns, LORA_COLUMNS))  \
  X(LORA_PRODUCTS, lora_products, PRODUCT, MAPPED(lora_products))                                                     \
  X(STATISTICS, statistics, FLP_KIND_LINKED, PLAIN(statistics) PLAIN(statistics_merge) PLAIN(statistics_list))        \
  X(SCALE, scale, FLP_KIND_ALIGNMENT, PLAIN(scale))                                                                   \
  X(DIVERGE, diverge, FLP_KIND_LOSS | FLP_KIND_OUT | FLP_KIND_ALIGNMENT, PLAIN(diverge))

#define ENTRIES(kind, name, facts, entries)                 \
  static const flp_kind_entry name##_entries[] = {entries}; \
  _Static_assert(sizeof name##_entries / sizeof name##_entries[0] <= FLP_ENTRIES_MAX, "entries of a descriptor");
KINDS(ENTRIES)
#undef ENTRIES
static const flp_kind_entry forward_entries[] = {
#define SET_ENTRY(set, name) [set] = {FLP_ENTRY_forward + (set), FLP_ENTRY_forward_map + (set), 0, 0, 0},
    FLP_FORWARD_NAMES(SET_ENTRY, "forward")
#undef SET_ENTRY
};

static const flp_kind kinds[FLP_KERNEL_KINDS] = {{"?", 0, 0, NULL},
#define KIND_ROW(kind, name, facts, entries) \
  [FLP_KERNEL_##kind] = {#name, facts, sizeof name##_entries / sizeof name##_entries[0], name##_entries},
                                                 KINDS(KIND_ROW)
#undef KIND_ROW
#define SET_ROW(set, name)                                                                              \
  [FLP_KERNEL_FORWARD + (set)] = {name, SCORES | FLP_KIND_UNITS | ((set)&FLP_PART_KEEP ? FLP_KIND_CHUNK_ROWS : 0), 1, \
                                  &forward_entries[set]},
                                                 FLP_FORWARD_NAMES(SET_ROW, "forward")
#undef SET_ROW
};

flp_kernel_kind flp_kind_base(flp_kernel_kind kind) {
  return kind > FLP_KERNEL_FORWARD ? FLP_KERNEL_FORWARD : kind;
}

unsigned flp_kind_parts(flp_kernel_kind kind) {
  return kind > FLP_KERNEL_FORWARD ? (unsigned)(kind - FLP_KERNEL_FORWARD) : 0;
}

flp_kernel_kind flp_kind_of_any_rows(flp_kernel_kind kind) {
  return (flp_kernel_kind)(kind - (flp_kind_parts(kind) & FLP_PART_SHORT));
}

int flp_kind_is_optional(flp_kernel_kind kind) {
  return flp_kind_of_any_rows(kind) != kind;
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

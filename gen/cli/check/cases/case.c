/* case.c: a case, lists of them, and what the adversarial ones of `flpgen check` are, by name. */
#include "gen/cli/check/cases/case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/half.h"
#include "runtime/base/status.h"

enum { ALL_GRADS = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS, ADAPTER = FLP_GRAD_LORA_A | FLP_GRAD_LORA_B };

check_case check_case_default(flp_dtype dtype, int64_t n, int64_t vocab, int64_t hidden) {
  check_case c = {.name = "random", .spec = FLP_SPEC_INIT, .n = n, .temperature = 1, .scale = 1, .shards = 1};
  c.spec.dtype = dtype;
  c.spec.vocab = vocab;
  c.spec.hidden = hidden;
  c.seed = 1;
  return c;
}

int64_t check_shard_vocab(const check_case *c) {
  return (c->spec.vocab + c->shards - 1) / c->shards;
}

void check_list_add(check_list *list, check_case c) {
  if (list->status != FLP_OK) return;
  if (list->count == list->capacity) {
    int capacity = list->capacity ? 2 * list->capacity : 64;
    check_case *grown = realloc(list->cases, (size_t)capacity * sizeof *grown);
    if (!grown) {
      list->status = flp_fail(FLP_ERROR_MEMORY, "out of host memory for the list of cases");
      return;
    }
    list->cases = grown;
    list->capacity = capacity;
  }
  list->cases[list->count++] = c;
}

void check_list_clear(check_list *list) {
  free(list->cases);
  *list = (check_list){0};
}

/* ---- adversarial cases ---- */

/* What several tables have beside their own. */
#define MASKED .rows = CHECK_ROWS_MASKED, .n = 200
#define COLD_AND_WARM .temperature = 1e3, .per_row = 1, .softcap = 20
#define BAD_ROWS .rows = CHECK_ROWS_BAD, .temperature = 2, .per_row = 1
#define IN_ROWS .mode = FLP_MODE_RECOMPUTE_ROWS, .chunk_rows = 64, .n = 300
#define IN_BOTH(rows, columns) .mode = FLP_MODE_RECOMPUTE_SPLIT, .chunk_rows = rows, .chunk_vocab = columns, .n = 300

/* Each by name; those of one table alone, where the name has another meaning elsewhere, by TABLE/NAME. */
static const check_oddity catalog[] = {
    {.name = "random"},
    {.name = "shifted", .fill = CHECK_FILL_SHIFTED},
    {.name = "exact", .fill = CHECK_FILL_EXACT, .temperature = 8},
    {.name = "equal", .fill = CHECK_FILL_EQUAL, .temperature = 8},
    {.name = "one-hot", .fill = CHECK_FILL_ONE_HOT},
    {.name = "negative", .fill = CHECK_FILL_NEGATIVE},
    {.name = "holes", .fill = CHECK_FILL_HOLES},
    {.name = "all-holes", .fill = CHECK_FILL_ALL_HOLES, .forward_only = 1},
    {.name = "T=1e-3", .temperature = 1e-3},
    {.name = "T=1e3", .temperature = 1e3},
    {.name = "T-per-row", .temperature = 1e3, .per_row = 1},
    {.name = "T-rows", COLD_AND_WARM},
    {.name = "last-tile", .rows = CHECK_ROWS_LAST_TILE, .vocab = 1537},
    {.name = "bad-rows", .rows = CHECK_ROWS_BAD},
    {.name = "bad-T", BAD_ROWS, .int32_targets = 1},
    {.name = "bad", BAD_ROWS},
    {.name = "nan-rows", .rows = CHECK_ROWS_NAN},
    {.name = "nan", .rows = CHECK_ROWS_NAN},
    {.name = "masked", MASKED},
    {.name = "row-list", .rows = CHECK_ROWS_LIST, .n = 200},
    {.name = "idle-rows", .rows = CHECK_ROWS_INACTIVE, .n = 200},
    {.name = "idle", .rows = CHECK_ROWS_INACTIVE, .n = 200},
    {.name = "shards", .shards = 3, .grads_fp32 = 1, .int32_targets = 1},
    {.name = "shards-masked", .shards = 2, .rows = CHECK_ROWS_MASKED, .grads_fp32 = 1, .softcap = 20},
    {.name = "accumulate", .accumulate = 1},
    {.name = "fp32-grads", .grads_fp32 = 1, .n = 130},
    {.name = "strides", .padding = 24},
    {.name = "align-8", .alignment = 8},
    {.name = "align-4", .alignment = 4},
    {.name = "align-2", .alignment = 2},
    {.name = "softcap", .softcap = 30},
    {.name = "softcap-tight", .softcap = 1.5f, .scale = 2, .temperature = 0.5},
    {.name = "scale", .scale = -0.625, .temperature = 1.5},
    {.name = "int32", .int32_targets = 1},
    {.name = "chunked-vocab", .chunk_vocab = 512, .n = 150, .vocab = 3001},
    {.name = "chunked-rows", .chunk_rows = 64, .n = 300},
    {.name = "vocab-masked", .chunk_vocab = 768, .n = 300, .rows = CHECK_ROWS_MASKED},
    {.name = "rows-accumulate", .chunk_rows = 128, .n = 300, .rows = CHECK_ROWS_MASKED, .accumulate = 1},
    {.name = "rows-fp32-grads", .chunk_rows = 128, .n = 300, .grads_fp32 = 1},
    {.name = "R2", IN_BOTH(128, 512)},
    {.name = "R2-masked", IN_BOTH(64, 768), .rows = CHECK_ROWS_MASKED, .accumulate = 1},
    {.name = "peaked", .fill = CHECK_FILL_PEAKED},
    {.name = "unlikely", .fill = CHECK_FILL_UNLIKELY},
    {.name = "steep", .fill = CHECK_FILL_STEEP, .n = 1100, .vocab = 1601, .hidden = 16},
    {.name = "nan-idle", .rows = CHECK_ROWS_NAN_INACTIVE},
    {.name = "steep-nan-idle", .fill = CHECK_FILL_STEEP, .rows = CHECK_ROWS_NAN_INACTIVE},
    {.name = "old-lse", .old = CHECK_OLD_NEAR},
    {.name = "old-lse-far", .old = CHECK_OLD_FAR, .fill = CHECK_FILL_PEAKED},
    {.name = "N=0", .n = -1},
    {.name = "N=1", .n = 1},
    {.name = "V=2", .vocab = 2},
    {.name = "V=129", .vocab = 129, .n = 129},
    {.name = "T=1e-7", .temperature = 1e-7, .forward_only = 1},
    {.name = "T=1e-12", .temperature = 1e-12, .forward_only = 1},
    {.name = "T-beyond", .rows = CHECK_ROWS_BEYOND, .temperature = 2, .per_row = 1},
    {.name = "softcap-flat", .softcap = 2, .temperature = 1e6},
    {.name = "softcap-flatter", .softcap = 2, .temperature = 1e9},
    {.name = "columns", .chunk_vocab = 3072, .n = 150, .vocab = 7001},
    {.name = "columns-rows", .chunk_vocab = 3072, .chunk_rows = 128, .n = 300, .vocab = 7001, .grads_fp32 = 1},
    {.name = "columns-masked",
     .chunk_vocab = 3072,
     .chunk_rows = 256,
     .n = 700,
     .vocab = 6145,
     .rows = CHECK_ROWS_MASKED},
    {.name = "columns-steep", .fill = CHECK_FILL_STEEP, .chunk_vocab = 3072, .n = 1100, .vocab = 7001, .hidden = 16},
    {.name = "columns-peaked",
     .fill = CHECK_FILL_PEAKED,
     .chunk_vocab = 3072,
     .chunk_rows = 64,
     .n = 130,
     .vocab = 6500},
    {.name = "columns-softcap", .softcap = 3, .chunk_vocab = 6144, .n = 130, .vocab = 7001},
    {.name = "columns-shards", .shards = 2, .chunk_vocab = 3072, .n = 130, .vocab = 9000, .grads_fp32 = 1},
    {.name = "lists"},
    {.name = "lists-wide", .n = 300, .kept = 40}, /* columns that most rows list, and several blocks of entries */
    {.name = "lists-long", .n = 33, .kept = 700, .vocab = 2900},
    {.name = "lists-bad", .lists = CHECK_LISTS_BAD},
    {.name = "lists-one", .lists = CHECK_LISTS_ONE},
    {.name = "lists-all", .lists = CHECK_LISTS_ALL},
    {.name = "lists-repeat", .lists = CHECK_LISTS_REPEATS},
    {.name = "lists-descend", .lists = CHECK_LISTS_DESCEND},
    {.name = "lists-before", .lists = CHECK_LISTS_BEFORE},
    {.name = "lists-behind", .lists = CHECK_LISTS_BEHIND},
    {.name = "lists-masked-bad", .lists = CHECK_LISTS_BAD, MASKED, .int32_targets = 1},
    {.name = "lists-V=300001", .n = 5, .vocab = 300001, .hidden = 8},
    {.name = "listed/one-hot", .fill = CHECK_FILL_ONE_HOT},
    {.name = "listed/T-per-row", COLD_AND_WARM},
    {.name = "listed/masked", MASKED, .grads_fp32 = 1},
    {.name = "shards-bad", .shards = 2, .lists = CHECK_LISTS_BAD, .grads_fp32 = 1, .softcap = 20},
    {.name = "shards-one", .shards = 3, .lists = CHECK_LISTS_ONE, .grads_fp32 = 1},
    {.name = "weight", .grads = FLP_GRAD_WEIGHT},
    {.name = "bias", .grads = FLP_GRAD_BIAS},
    {.name = "listed/N=1", .n = 1, .kept = 300},
    {.name = "listed/V=2", .vocab = 2, .kept = 1.5},
    {.name = "targets"},
    {.name = "targets-2", .targets = 2},
    {.name = "targets-64", .targets = 64, .n = 130},
    {.name = "targets-512", .targets = 512, .n = 33, .vocab = 2900},
    {.name = "targets-teacher",
     .of_row = CHECK_TARGETS_TEACHER,
     .targets = 64,
     .fill = CHECK_FILL_SHARP,
     .hidden = 264},
    {.name = "targets-same", .of_row = CHECK_TARGETS_SAME},
    {.name = "targets-ends", .of_row = CHECK_TARGETS_ENDS},
    {.name = "targets-few", .of_row = CHECK_TARGETS_FEW},
    {.name = "targets-bad", .of_row = CHECK_TARGETS_BAD},
    {.name = "targets-masked-bad", .of_row = CHECK_TARGETS_BAD, MASKED, .int32_targets = 1},
    {.name = "targets-V=2", .vocab = 2, .targets = 5},
    {.name = "targets-N=1", .n = 1, .targets = 300},
    {.name = "targets-peaked", .fill = CHECK_FILL_PEAKED, .of_row = CHECK_TARGETS_FEW},
    {.name = "targeted/masked", MASKED, .grads_fp32 = 1},
    {.name = "targeted/T-per-row", COLD_AND_WARM},
    {.name = "masked-all", .rows = CHECK_ROWS_NONE},
    {.name = "targeted/shards-bad", .shards = 2, .of_row = CHECK_TARGETS_BAD, .grads_fp32 = 1, .softcap = 20},
    {.name = "shards-ends", .shards = 3, .of_row = CHECK_TARGETS_ENDS, .grads_fp32 = 1},
    {.name = "targeted/chunked-vocab", .chunk_vocab = 512, .n = 150, .vocab = 3001, .targets = 64},
    {.name = "distill", .loss = "forward_kl"},
    {.name = "distill-reverse", .loss = "reverse_kl", MASKED},
    {.name = "distill-between", .loss = "jsd", .of_row = CHECK_TARGETS_TEACHER, .targets = 64},
    {.name = "certain", .loss = "forward_kl", .of_row = CHECK_TARGETS_TEACHER, .teacher = CHECK_TEACHER_CERTAIN},
    {.name = "missing", .loss = "jsd", .of_row = CHECK_TARGETS_TEACHER, .teacher = CHECK_TEACHER_MISSING},
    {.name = "tails", .loss = "reverse_kl", .of_row = CHECK_TARGETS_TEACHER, .teacher = CHECK_TEACHER_TAILS},
    {.name = "whole", .loss = "reverse_kl", .of_row = CHECK_TARGETS_TEACHER, .teacher = CHECK_TEACHER_WHOLE},
    {.name = "distill-bad", .loss = "forward_kl", .of_row = CHECK_TARGETS_BAD, .int32_targets = 1},
    {.name = "distill-sum", .loss = "forward_kl+reverse_kl", .rows = CHECK_ROWS_INACTIVE, .targets = 2},
    {.name = "distill-peaked", .loss = "jsd", .fill = CHECK_FILL_PEAKED},
    {.name = "distill-few", .loss = "reverse_kl", .of_row = CHECK_TARGETS_FEW},
    {.name = "distill-holes", .loss = "reverse_kl", .fill = CHECK_FILL_HOLES},
    {.name = "distill-nan", .loss = "forward_kl", .rows = CHECK_ROWS_NAN},
    {.name = "distill-T-rows", .loss = "forward_kl", COLD_AND_WARM},
    {.name = "distill-row-list", .loss = "jsd", .rows = CHECK_ROWS_LIST, .n = 200},
    {.name = "distill-accumulate", .loss = "forward_kl", .accumulate = 1},
    {.name = "distill-hidden", .loss = "jsd", .grads = FLP_GRAD_HIDDEN},
    {.name = "distill-N=0", .loss = "forward_kl", .n = -1},
    {.name = "distill-N=1", .loss = "forward_kl", .n = 1, .targets = 300},
    {.name = "distill-nan-idle", .loss = "jsd", .rows = CHECK_ROWS_NAN_INACTIVE},
    {.name = "sharp", .n = 130},
    {.name = "sharp-hidden", .grads = FLP_GRAD_HIDDEN},
    {.name = "sharp-wide", .n = 300, .vocab = 4099},
    {.name = "sharp-cold", .temperature = 0.25},
    {.name = "sharp-warm", .temperature = 4},
    {.name = "sharp-T-rows", .temperature = 3, .per_row = 1},
    {.name = "sharp-softcap", .softcap = 20},
    {.name = "sharp-scale", .scale = -0.625, .temperature = 0.5},
    {.name = "sharp-list", .rows = CHECK_ROWS_LIST, .n = 200},
    {.name = "sharp-bad", .rows = CHECK_ROWS_BAD, .int32_targets = 1},
    {.name = "sharp-shards", .shards = 3, .grads_fp32 = 1, .n = 130},
    {.name = "sharp-old-far", .old = CHECK_OLD_FAR},
    {.name = "flat", .temperature = 1e3, .vocab = 9001, .n = 130}, /* no list holds a row */
    {.name = "top"},
    {.name = "top-1", .topk = 1},
    {.name = "top-128", .topk = 128, .n = 130},
    {.name = "top-sharp", .fill = CHECK_FILL_SHARP, .hidden = 264},
    {.name = "top-masked", MASKED, .int32_targets = 1},
    {.name = "top-shards", .shards = 3, .int32_targets = 1},
    {.name = "top-wide", .n = 300, .vocab = 4099, .topk = 50},
    {.name = "rank", .topk = -1},
    {.name = "top-all", .vocab = 100, .topk = 100},
    {.name = "top-grads", .grads = ALL_GRADS},
    {.name = "top-steep", .fill = CHECK_FILL_STEEP, .n = 130},
    {.name = "top-few", .fill = CHECK_FILL_HOLES, .vocab = 40}, /* above -inf */
    {.name = "top-all-holes", .fill = CHECK_FILL_ALL_HOLES},
    {.name = "top-bad", BAD_ROWS, .int32_targets = 1},
    {.name = "top-softcap", .softcap = 1.5f, .scale = 2, .temperature = 0.5},
    {.name = "top-small-shards", .shards = 3, .vocab = 50}, /* of fewer columns than are asked for */
    {.name = "top-N=1", .n = 1, .topk = 7},
    {.name = "top-V=2", .vocab = 2, .topk = 2},
    {.name = "statistics"},
    {.name = "raw"},
    {.name = "no-bias", .no_bias = 1},
    {.name = "raw-top", .topk = 20},
    {.name = "raw-lora", .adapter = CHECK_LORA_USUAL},
    {.name = "raw-mixed", .mixed = FLP_MIXED_ROUND, .vocab = 4099},
    {.name = "raw-split", .mixed = FLP_MIXED_SPLIT, .padding = 24},
    {.name = "mixed", .chunk_vocab = 700},
    {.name = "mixed-peaked", .fill = CHECK_FILL_PEAKED, .chunk_vocab = 700},
    {.name = "mixed-masked", MASKED, .int32_targets = 1},
    {.name = "mixed-shards", .shards = 3, .n = 130},
    {.name = "mixed-accumulate", .accumulate = 1, .softcap = 20},
    {.name = "mixed-strides", .padding = 24, .vocab = 4099},
    {.name = "lora"},
    {.name = "lora-zero", .lora = CHECK_LORA_ZERO},
    {.name = "lora-off", .lora = CHECK_LORA_OFF},
    {.name = "lora-8", .adapter = 8, .n = 200, .grads = FLP_GRAD_HIDDEN | ADAPTER},
    {.name = "lora-136", .adapter = 136, .grads = FLP_GRAD_HIDDEN | ADAPTER},
    {.name = "lora-512", .adapter = 512, .n = 40, .vocab = 700},
    {.name = "lora-shards", .shards = 3, .grads_fp32 = 1},
    {.name = "lora-rows", IN_ROWS},
    {.name = "lora-columns", .mode = FLP_MODE_RECOMPUTE_VOCAB, .chunk_vocab = 512, .n = 150, .vocab = 3001},
    {.name = "lora-step", .loss = "grpo+entropy", MASKED},
    {.name = "lora-softcap", .softcap = 1.5f, .scale = 2, .temperature = 0.5},
    {.name = "lora-rows-wide", IN_ROWS, .grads_fp32 = 1},
    {.name = "lora-rows-masked", IN_ROWS, .rows = CHECK_ROWS_MASKED},
    {.name = "lora-zero-step", .lora = CHECK_LORA_ZERO, .loss = "grpo"},
    {.name = "given/sharp", .fill = CHECK_FILL_SHARP},
    {.name = "given/sharp-masked", .fill = CHECK_FILL_SHARP, .rows = CHECK_ROWS_MASKED},
    {.name = "given/sharp-bad", .fill = CHECK_FILL_SHARP, .rows = CHECK_ROWS_BAD},
    {.name = "given/sharp-nan", .fill = CHECK_FILL_SHARP, .rows = CHECK_ROWS_NAN},
    {.name = "given/targets-teacher", .of_row = CHECK_TARGETS_TEACHER},
};

/* clang-format off */
static const char *const oddities[] = {
    "shifted", "exact", "equal", "one-hot", "negative", "holes", "all-holes", "T=1e-3", "T=1e3",
    "T-per-row", "last-tile", "bad-rows", "bad-T", "nan-rows", "masked", "row-list", "idle-rows", "shards",
    "shards-masked", "accumulate", "fp32-grads", "strides", "align-8", "align-4", "align-2", "softcap",
    "softcap-tight", "scale", "int32", "chunked-vocab", "chunked-rows", "vocab-masked", "rows-accumulate",
    "rows-fp32-grads", "R2", "R2-masked", "peaked", "unlikely", "steep", "nan-idle", "steep-nan-idle",
    "old-lse", "old-lse-far", "N=0", "N=1", "V=2", "V=129"};

/* Those that came later stand behind all others: data and losses of a case depend on its place. */
static const char *const later[] = {
    "T=1e-7", "T=1e-12", "T-beyond", "softcap-flat", "softcap-flatter"};

/* Chunks of columns, and rows that are redone in them; direction mode alone. */
static const char *const columns[] = {
    "columns", "columns-rows", "columns-masked", "columns-steep", "columns-peaked", "columns-softcap",
    "columns-shards"};

/* Mode listed: lists of every pattern, and what else there is beside lists that are drawn. */
static const char *const listed[] = {
    "lists", "lists-wide", "lists-long", "lists-bad", "lists-one", "lists-all", "lists-repeat",
    "lists-descend", "lists-before", "lists-behind", "lists-masked-bad", "lists-V=300001", "shifted",
    "exact", "equal", "one-hot", "holes", "all-holes", "T=1e-3", "T=1e3", "T-per-row", "T-beyond",
    "bad-rows", "bad-T", "nan-rows", "nan-idle", "masked", "row-list", "idle-rows", "peaked", "shards",
    "shards-bad", "shards-one", "accumulate", "strides", "align-8", "align-4", "align-2", "softcap",
    "scale", "weight", "bias", "N=0", "N=1", "V=2"};

/* Several targets a row: every pattern of theirs, and what else there is beside targets that are drawn. */
static const char *const targeted[] = {
    "targets", "targets-2", "targets-64", "targets-512", "targets-teacher", "targets-same", "targets-ends",
    "targets-few", "targets-bad", "targets-masked-bad", "targets-V=2", "targets-N=1", "targets-peaked",
    "shifted", "nan-rows", "masked", "shards", "R2", "exact", "equal", "one-hot", "holes", "all-holes",
    "T=1e-3", "T=1e3", "T-per-row", "T-beyond", "last-tile", "bad-rows", "bad-T", "nan-idle", "masked-all",
    "row-list", "idle-rows", "peaked", "unlikely", "shards-bad", "shards-ends", "accumulate", "strides",
    "align-8", "align-4", "align-2", "softcap", "softcap-tight", "scale", "chunked-vocab", "chunked-rows",
    "weight", "bias", "N=0"};

/* Steps of losses over several targets: every pattern of a teacher. */
static const char *const distilled[] = {
    "distill", "distill-reverse", "distill-between", "distill-certain", "distill-missing", "distill-tails",
    "distill-whole", "distill-bad", "distill-sum", "distill-peaked", "distill-few", "distill-holes",
    "distill-nan", "distill-T-rows", "distill-row-list", "distill-accumulate", "distill-hidden",
    "distill-N=0", "distill-N=1", "distill-nan-idle"};

/* Tail mode: rows with lists, and what else there is beside them; the cases above have flat rows. */
static const char *const tailed[] = {
    "sharp", "sharp-hidden", "sharp-weight", "sharp-bias", "sharp-wide", "sharp-cold", "sharp-warm",
    "sharp-T-rows", "sharp-softcap", "sharp-scale", "sharp-masked", "sharp-list", "sharp-idle", "sharp-bad",
    "sharp-nan", "sharp-nan-idle", "sharp-shards", "sharp-accumulate", "sharp-fp32-grads", "sharp-strides",
    "sharp-align-8", "sharp-align-4", "sharp-align-2", "sharp-old-lse", "sharp-old-far", "sharp-N=1",
    "masked-all", "flat"};

/* Best columns and ranks, of 20 columns where nothing else is said. */
static const char *const topped[] = {
    "top", "top-1", "top-128", "top-sharp", "top-equal", "top-exact", "top-nan", "top-masked", "top-shards",
    "top-wide", "rank", "top-all", "top-grads", "top-shifted", "top-one-hot", "top-negative", "top-peaked",
    "top-unlikely", "top-steep", "top-holes", "top-few", "top-all-holes", "top-last-tile", "top-T=1e-3",
    "top-T=1e3", "top-T-rows", "top-T-beyond", "top-bad", "top-bad-rows", "top-row-list", "top-masked-all",
    "top-softcap", "top-scale", "top-strides", "top-align-8", "top-align-2", "top-small-shards", "top-N=0",
    "top-N=1", "top-V=2"};

/* What scores are as a whole. */
static const char *const statistics[] = {
    "statistics", "statistics-equal", "statistics-exact", "statistics-nan", "statistics-masked",
    "statistics-shards", "statistics-shifted", "statistics-one-hot", "statistics-negative",
    "statistics-peaked", "statistics-unlikely", "statistics-steep", "statistics-holes",
    "statistics-all-holes", "statistics-last-tile", "statistics-T=1e-3", "statistics-T=1e3",
    "statistics-T-rows", "statistics-T-beyond", "statistics-bad", "statistics-row-list",
    "statistics-masked-all", "statistics-softcap", "statistics-scale", "statistics-strides",
    "statistics-align-2", "statistics-N=0", "statistics-N=1", "statistics-V=2"};

/* Raw scores of every column. */
static const char *const raw[] = {
    "raw", "raw-no-bias", "raw-nan", "raw-masked", "raw-row-list", "raw-shards", "raw-shifted", "raw-last-tile",
    "raw-softcap", "raw-scale", "raw-T-rows", "raw-strides", "raw-align-2", "raw-N=0", "raw-N=1", "raw-V=2",
    "raw-top", "raw-lora", "raw-equal", "raw-exact", "raw-one-hot", "raw-negative", "raw-steep", "raw-holes",
    "raw-all-holes", "raw-T=1e-3", "raw-T-beyond", "raw-bad", "raw-masked-all", "raw-align-8", "raw-shards-masked",
    "raw-V=129", "raw-mixed", "raw-split"};

/* Operands of two dtypes. A weight in slices has no modes beside score and recompute-vocab. */
static const char *const mixed[] = {
    "mixed", "mixed-shifted", "mixed-negative", "mixed-peaked", "mixed-one-hot", "mixed-holes", "mixed-nan",
    "mixed-masked", "mixed-bad", "mixed-row-list", "mixed-shards", "mixed-accumulate", "mixed-T=1e-3",
    "mixed-strides", "mixed-align-4", "mixed-N=1"};

/* An adapter on the head. */
static const char *const adapted[] = {
    "lora", "lora-zero", "lora-off", "lora-8", "lora-136", "lora-512", "lora-shifted", "lora-one-hot",
    "lora-holes", "lora-masked", "lora-nan", "lora-nan-idle", "lora-T=1e-3", "lora-T-rows", "lora-bad",
    "lora-strides", "lora-shards", "lora-N=1", "lora-N=0", "lora-rows", "lora-columns", "lora-step",
    "lora-equal", "lora-exact", "lora-negative", "lora-peaked", "lora-unlikely", "lora-T=1e3",
    "lora-T-beyond", "lora-masked-all", "lora-row-list", "lora-idle", "lora-last-tile", "lora-softcap",
    "lora-scale", "lora-align-8", "lora-align-2", "lora-shards-masked", "lora-rows-wide",
    "lora-rows-masked", "lora-zero-step", "lora-V=2", "lora-V=129"};

/* clang-format on */

#define TABLE(rows, of_bf16) \
  { #rows, rows, sizeof rows / sizeof rows[0], of_bf16 }
const check_oddity_table check_odd_first = TABLE(oddities, NULL);
const check_oddity_table check_odd_later = TABLE(later, NULL);
const check_oddity_table check_odd_columns = TABLE(columns, NULL);
const check_oddity_table check_odd_listed = TABLE(listed, "lists-descend");
const check_oddity_table check_odd_targeted = TABLE(targeted, "exact");
const check_oddity_table check_odd_distilled = TABLE(distilled, "distill-peaked");
const check_oddity_table check_odd_tailed = TABLE(tailed, NULL);
const check_oddity_table check_odd_topped = TABLE(topped, "top-all");
const check_oddity_table check_odd_statistics = TABLE(statistics, NULL);
const check_oddity_table check_odd_raw = TABLE(raw, "raw-mixed");
const check_oddity_table check_odd_mixed = TABLE(mixed, NULL);
const check_oddity_table check_odd_adapted = TABLE(adapted, "lora-equal");

/* The name of a table comes first, then what a name says by itself, then what it says behind its first part. */
static const check_oddity *find(const char *table, const char *name) {
  char own[64];
  snprintf(own, sizeof own, "%s/%s", table, name);
  for (size_t i = 0; i < sizeof catalog / sizeof catalog[0]; i++)
    if (strcmp(catalog[i].name, own) == 0) return &catalog[i];
  for (size_t i = 0; i < sizeof catalog / sizeof catalog[0]; i++)
    if (strcmp(catalog[i].name, name) == 0) return &catalog[i];
  return find("", strchr(name, '-') + 1);
}

check_oddity check_odd_named(const char *table, const char *name) {
  check_oddity odd = *find(table, name);
  odd.name = name;
  return odd;
}

check_oddity check_odd_at(const check_oddity_table *table, size_t i) {
  return check_odd_named(table->name, table->rows[i]);
}

check_case check_make_odd(const check_oddity *o, flp_dtype dtype) {
  int64_t n = o->n > 0 ? o->n : o->n < 0 ? 0 : 67;
  check_case c = check_case_default(dtype, n, o->vocab ? o->vocab : 1531, o->hidden ? o->hidden : 72);
  c.name = o->name;
  c.fill = o->fill;
  c.rows = o->rows;
  if (o->temperature > 0) c.temperature = o->temperature;
  if (o->scale < 0 || o->scale > 0) c.scale = o->scale;
  if (o->shards) c.shards = o->shards;
  c.padding = o->alignment ? (int64_t)o->alignment / flp_half_bytes(dtype) : o->padding;
  c.chunk_rows = o->chunk_rows;
  c.chunk_vocab = o->chunk_vocab;
  c.mode = o->mode;
  c.old = o->old;
  c.spec.softcap = o->softcap;
  c.spec.per_row_temperature = o->per_row;
  c.spec.entropy = o->entropy ? o->entropy : FLP_ENTROPY_BACKWARD;
  c.spec.grads = o->forward_only ? 0 : o->grads ? o->grads : (uint32_t)ALL_GRADS;
  c.spec.has_bias = !o->no_bias;
  c.spec.lora_rank = o->adapter;
  c.spec.accumulate_grad_weight = o->accumulate;
  if (o->grads_fp32 || o->accumulate) c.spec.grad_weight_dtype = FLP_DTYPE_FP32;
  if (o->grads_fp32) c.spec.grad_hidden_dtype = c.spec.grad_bias_dtype = FLP_DTYPE_FP32;
  if (o->int32_targets) c.spec.target_dtype = FLP_DTYPE_INT32;
  if (o->alignment) c.spec.alignment = o->alignment;
  return c;
}

/* ---- what rows of tables have of their own ---- */

void check_set_top(check_case *c, int topk) {
  c->spec.topk = topk < 0 ? 0 : topk ? topk : 20;
  c->spec.rank = 1;
}

/* Every second row without an entropy. */
static void set_forward(const check_oddity *o, size_t i, check_case *c) {
  c->spec.grads = o->grads;
  if (i % 2) c->spec.entropy = FLP_ENTROPY_NONE;
}

void check_set_top_row(check_list *list, const check_oddity *o, size_t i, check_case *c) {
  (void)list;
  set_forward(o, i, c);
  check_set_top(c, o->topk);
}

void check_set_statistics_row(check_list *list, const check_oddity *o, size_t i, check_case *c) {
  (void)list;
  set_forward(o, i, c);
  c->spec.statistics = 1;
}

void check_set_raw_row(check_list *list, const check_oddity *o, size_t i, check_case *c) {
  (void)list;
  set_forward(o, i, c);
  c->spec.raw_scores = 1;
  c->spec.mixed = o->mixed;
  if (o->mixed) c->spec.weight_dtype = FLP_DTYPE_FP32;
  if (o->topk) check_set_top(c, o->topk);
}

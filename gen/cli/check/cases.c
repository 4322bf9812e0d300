/* cases.c: the cases: a matrix of specialisations over ragged shapes, and the adversarial ones by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/check/case.h"
#include "gen/cli/shared/losses.h"
#include "gen/cli/shared/spec_args.h"
#include "runtime/api/validate.h"
#include "runtime/base/half.h"
#include "runtime/base/names.h"

enum { ALL_GRADS = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS };

static const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32};

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

/* Every entropy mode with no gradient, that of hidden, and all. */
static void add_matrix(check_list *list, flp_dtype dtype, int64_t n, int64_t vocab, int64_t hidden) {
  static const uint32_t grads[] = {0, FLP_GRAD_HIDDEN, ALL_GRADS};
  for (int entropy = FLP_ENTROPY_NONE; entropy <= FLP_ENTROPY_BACKWARD; entropy++)
    for (int g = 0; g < 3; g++) {
      check_case c = check_case_default(dtype, n, vocab, hidden);
      c.spec.entropy = (flp_entropy)entropy;
      c.spec.grads = grads[g];
      c.spec.has_bias = grads[g] == ALL_GRADS;
      check_list_add(list, c);
    }
}

/* One oddity each; zeros leave the default. */
typedef struct oddity {
  const char *name;
  check_fill fill;
  check_rows rows;
  double temperature, scale;
  float softcap;
  int per_row, shards, forward_only, accumulate, grads_fp32, int32_targets;
  int64_t padding, chunk_rows, chunk_vocab, n, vocab, hidden;
  flp_mode mode;
  check_old old;      /* of save, stream and direction modes alone */
  uint32_t alignment; /* also the padding, in bytes, so that rows are no better aligned */
  check_lists lists;  /* of mode listed alone, as is the next one */
  double kept;        /* 0: 20 */
  int targets;        /* of several targets alone; 0: CHECK_TARGETS_USUAL */
  check_targets of_row;
  uint32_t grads; /* 0: all */
  int topk;       /* of best columns; -1: the rank alone */
} oddity;

static const oddity oddities[] = {
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
    {.name = "last-tile", .rows = CHECK_ROWS_LAST_TILE, .vocab = 1537},
    {.name = "bad-rows", .rows = CHECK_ROWS_BAD},
    {.name = "bad-T", .rows = CHECK_ROWS_BAD, .temperature = 2, .per_row = 1, .int32_targets = 1},
    {.name = "nan-rows", .rows = CHECK_ROWS_NAN},
    {.name = "masked", .rows = CHECK_ROWS_MASKED, .n = 200},
    {.name = "row-list", .rows = CHECK_ROWS_LIST, .n = 200},
    {.name = "idle-rows", .rows = CHECK_ROWS_INACTIVE, .n = 200},
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
    {.name = "R2", .mode = FLP_MODE_RECOMPUTE_SPLIT, .chunk_rows = 128, .chunk_vocab = 512, .n = 300},
    {.name = "R2-masked",
     .mode = FLP_MODE_RECOMPUTE_SPLIT,
     .chunk_rows = 64,
     .chunk_vocab = 768,
     .n = 300,
     .rows = CHECK_ROWS_MASKED,
     .accumulate = 1},
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
};

/* Those that came later stand behind all others: data and losses of a case depend on its place. */
static const oddity later[] = {
    {.name = "T=1e-7", .temperature = 1e-7, .forward_only = 1},
    {.name = "T=1e-12", .temperature = 1e-12, .forward_only = 1},
    {.name = "T-beyond", .rows = CHECK_ROWS_BEYOND, .temperature = 2, .per_row = 1},
    {.name = "softcap-flat", .softcap = 2, .temperature = 1e6},
    {.name = "softcap-flatter", .softcap = 2, .temperature = 1e9},
};

typedef struct oddity_table {
  const oddity *rows;
  size_t count;
} oddity_table;

/* Chunks of columns, and rows that are redone in them; direction mode alone. */
static const oddity columns[] = {
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
};

/* Mode listed: lists of every pattern, and what else there is beside lists that are drawn. */
static const oddity listed[] = {
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
    {.name = "lists-masked-bad", .lists = CHECK_LISTS_BAD, .rows = CHECK_ROWS_MASKED, .n = 200, .int32_targets = 1},
    {.name = "lists-V=300001", .n = 5, .vocab = 300001, .hidden = 8},
    {.name = "shifted", .fill = CHECK_FILL_SHIFTED},
    {.name = "exact", .fill = CHECK_FILL_EXACT, .temperature = 8},
    {.name = "equal", .fill = CHECK_FILL_EQUAL, .temperature = 8},
    {.name = "one-hot", .fill = CHECK_FILL_ONE_HOT, .lists = CHECK_LISTS_ALL}, /* or all columns of a row were equal */
    {.name = "holes", .fill = CHECK_FILL_HOLES},
    {.name = "all-holes", .fill = CHECK_FILL_ALL_HOLES, .forward_only = 1},
    {.name = "T=1e-3", .temperature = 1e-3},
    {.name = "T=1e3", .temperature = 1e3},
    {.name = "T-per-row", .temperature = 1e3, .per_row = 1, .softcap = 20},
    {.name = "T-beyond", .rows = CHECK_ROWS_BEYOND, .temperature = 2, .per_row = 1},
    {.name = "bad-rows", .rows = CHECK_ROWS_BAD},
    {.name = "bad-T", .rows = CHECK_ROWS_BAD, .temperature = 2, .per_row = 1, .int32_targets = 1},
    {.name = "nan-rows", .rows = CHECK_ROWS_NAN},
    {.name = "nan-idle", .rows = CHECK_ROWS_NAN_INACTIVE},
    {.name = "masked", .rows = CHECK_ROWS_MASKED, .n = 200, .grads_fp32 = 1},
    {.name = "row-list", .rows = CHECK_ROWS_LIST, .n = 200},
    {.name = "idle-rows", .rows = CHECK_ROWS_INACTIVE, .n = 200},
    {.name = "peaked", .fill = CHECK_FILL_PEAKED},
    {.name = "shards", .shards = 3, .grads_fp32 = 1, .int32_targets = 1},
    {.name = "shards-bad", .shards = 2, .lists = CHECK_LISTS_BAD, .grads_fp32 = 1, .softcap = 20},
    {.name = "shards-one", .shards = 3, .lists = CHECK_LISTS_ONE, .grads_fp32 = 1},
    {.name = "accumulate", .accumulate = 1},
    {.name = "strides", .padding = 24},
    {.name = "align-8", .alignment = 8},
    {.name = "align-4", .alignment = 4},
    {.name = "align-2", .alignment = 2},
    {.name = "softcap", .softcap = 30},
    {.name = "scale", .scale = -0.625, .temperature = 1.5},
    {.name = "weight", .grads = FLP_GRAD_WEIGHT},
    {.name = "bias", .grads = FLP_GRAD_BIAS},
    {.name = "N=0", .n = -1},
    {.name = "N=1", .n = 1, .kept = 300},
    {.name = "V=2", .vocab = 2, .kept = 1.5},
};

/* Several targets a row: every pattern of theirs, and what else there is beside targets that are drawn. */
static const oddity targeted[] = {
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
    {.name = "targets-masked-bad",
     .of_row = CHECK_TARGETS_BAD,
     .rows = CHECK_ROWS_MASKED,
     .n = 200,
     .int32_targets = 1},
    {.name = "targets-V=2", .vocab = 2, .targets = 5},
    {.name = "targets-N=1", .n = 1, .targets = 300},
    {.name = "targets-peaked", .fill = CHECK_FILL_PEAKED, .of_row = CHECK_TARGETS_FEW},
    {.name = "shifted", .fill = CHECK_FILL_SHIFTED},
    {.name = "nan-rows", .rows = CHECK_ROWS_NAN},
    {.name = "masked", .rows = CHECK_ROWS_MASKED, .n = 200, .grads_fp32 = 1},
    {.name = "shards", .shards = 3, .grads_fp32 = 1, .int32_targets = 1},
    {.name = "R2", .mode = FLP_MODE_RECOMPUTE_SPLIT, .chunk_rows = 128, .chunk_vocab = 512, .n = 300},
    {.name = "exact", .fill = CHECK_FILL_EXACT, .temperature = 8}, /* from here on of bf16 alone */
    {.name = "equal", .fill = CHECK_FILL_EQUAL, .temperature = 8},
    {.name = "one-hot", .fill = CHECK_FILL_ONE_HOT},
    {.name = "holes", .fill = CHECK_FILL_HOLES},
    {.name = "all-holes", .fill = CHECK_FILL_ALL_HOLES, .forward_only = 1},
    {.name = "T=1e-3", .temperature = 1e-3},
    {.name = "T=1e3", .temperature = 1e3},
    {.name = "T-per-row", .temperature = 1e3, .per_row = 1, .softcap = 20},
    {.name = "T-beyond", .rows = CHECK_ROWS_BEYOND, .temperature = 2, .per_row = 1},
    {.name = "last-tile", .rows = CHECK_ROWS_LAST_TILE, .vocab = 1537},
    {.name = "bad-rows", .rows = CHECK_ROWS_BAD},
    {.name = "bad-T", .rows = CHECK_ROWS_BAD, .temperature = 2, .per_row = 1, .int32_targets = 1},
    {.name = "nan-idle", .rows = CHECK_ROWS_NAN_INACTIVE},
    {.name = "masked-all", .rows = CHECK_ROWS_NONE},
    {.name = "row-list", .rows = CHECK_ROWS_LIST, .n = 200},
    {.name = "idle-rows", .rows = CHECK_ROWS_INACTIVE, .n = 200},
    {.name = "peaked", .fill = CHECK_FILL_PEAKED},
    {.name = "unlikely", .fill = CHECK_FILL_UNLIKELY},
    {.name = "shards-bad", .shards = 2, .of_row = CHECK_TARGETS_BAD, .grads_fp32 = 1, .softcap = 20},
    {.name = "shards-ends", .shards = 3, .of_row = CHECK_TARGETS_ENDS, .grads_fp32 = 1},
    {.name = "accumulate", .accumulate = 1},
    {.name = "strides", .padding = 24},
    {.name = "align-8", .alignment = 8},
    {.name = "align-4", .alignment = 4},
    {.name = "align-2", .alignment = 2},
    {.name = "softcap", .softcap = 30},
    {.name = "softcap-tight", .softcap = 1.5f, .scale = 2, .temperature = 0.5},
    {.name = "scale", .scale = -0.625, .temperature = 1.5},
    {.name = "chunked-vocab", .chunk_vocab = 512, .n = 150, .vocab = 3001, .targets = 64},
    {.name = "chunked-rows", .chunk_rows = 64, .n = 300},
    {.name = "weight", .grads = FLP_GRAD_WEIGHT},
    {.name = "bias", .grads = FLP_GRAD_BIAS},
    {.name = "N=0", .n = -1},
};

/* Tail mode: rows with lists, and what else there is beside them; the cases above have flat rows. */
static const oddity tailed[] = {
    {.name = "sharp", .n = 130},
    {.name = "sharp-hidden", .grads = FLP_GRAD_HIDDEN},
    {.name = "sharp-weight", .grads = FLP_GRAD_WEIGHT},
    {.name = "sharp-bias", .grads = FLP_GRAD_BIAS},
    {.name = "sharp-wide", .n = 300, .vocab = 4099},
    {.name = "sharp-cold", .temperature = 0.25},
    {.name = "sharp-warm", .temperature = 4},
    {.name = "sharp-T-rows", .temperature = 3, .per_row = 1},
    {.name = "sharp-softcap", .softcap = 20},
    {.name = "sharp-scale", .scale = -0.625, .temperature = 0.5},
    {.name = "sharp-masked", .rows = CHECK_ROWS_MASKED, .n = 200},
    {.name = "sharp-list", .rows = CHECK_ROWS_LIST, .n = 200},
    {.name = "sharp-idle", .rows = CHECK_ROWS_INACTIVE, .n = 200},
    {.name = "sharp-bad", .rows = CHECK_ROWS_BAD, .int32_targets = 1},
    {.name = "sharp-nan", .rows = CHECK_ROWS_NAN},
    {.name = "sharp-nan-idle", .rows = CHECK_ROWS_NAN_INACTIVE},
    {.name = "sharp-shards", .shards = 3, .grads_fp32 = 1, .n = 130},
    {.name = "sharp-accumulate", .accumulate = 1},
    {.name = "sharp-fp32-grads", .grads_fp32 = 1, .n = 130},
    {.name = "sharp-strides", .padding = 24},
    {.name = "sharp-align-8", .alignment = 8},
    {.name = "sharp-align-4", .alignment = 4},
    {.name = "sharp-align-2", .alignment = 2},
    {.name = "sharp-old-lse", .old = CHECK_OLD_NEAR},
    {.name = "sharp-old-far", .old = CHECK_OLD_FAR},
    {.name = "sharp-N=1", .n = 1},
    {.name = "masked-all", .rows = CHECK_ROWS_NONE},
    {.name = "flat", .temperature = 1e3, .vocab = 9001, .n = 130}, /* no list holds a row */
};

/* Best columns and ranks, of 20 columns where nothing else is said. */
static const oddity topped[] = {
    {.name = "top"},
    {.name = "top-1", .topk = 1},
    {.name = "top-128", .topk = 128, .n = 130},
    {.name = "top-sharp", .fill = CHECK_FILL_SHARP, .hidden = 264},
    {.name = "top-equal", .fill = CHECK_FILL_EQUAL, .temperature = 8},
    {.name = "top-exact", .fill = CHECK_FILL_EXACT, .temperature = 8},
    {.name = "top-nan", .rows = CHECK_ROWS_NAN},
    {.name = "top-masked", .rows = CHECK_ROWS_MASKED, .n = 200, .int32_targets = 1},
    {.name = "top-shards", .shards = 3, .int32_targets = 1},
    {.name = "top-wide", .n = 300, .vocab = 4099, .topk = 50},
    {.name = "rank", .topk = -1},
    {.name = "top-all", .vocab = 100, .topk = 100},
    {.name = "top-grads", .grads = ALL_GRADS},
    {.name = "top-shifted", .fill = CHECK_FILL_SHIFTED},
    {.name = "top-one-hot", .fill = CHECK_FILL_ONE_HOT},
    {.name = "top-negative", .fill = CHECK_FILL_NEGATIVE},
    {.name = "top-peaked", .fill = CHECK_FILL_PEAKED},
    {.name = "top-unlikely", .fill = CHECK_FILL_UNLIKELY},
    {.name = "top-steep", .fill = CHECK_FILL_STEEP, .n = 130},
    {.name = "top-holes", .fill = CHECK_FILL_HOLES},
    {.name = "top-few", .fill = CHECK_FILL_HOLES, .vocab = 40}, /* above -inf */
    {.name = "top-all-holes", .fill = CHECK_FILL_ALL_HOLES},
    {.name = "top-last-tile", .rows = CHECK_ROWS_LAST_TILE, .vocab = 1537},
    {.name = "top-T=1e-3", .temperature = 1e-3},
    {.name = "top-T=1e3", .temperature = 1e3},
    {.name = "top-T-rows", .temperature = 1e3, .per_row = 1, .softcap = 20},
    {.name = "top-T-beyond", .rows = CHECK_ROWS_BEYOND, .temperature = 2, .per_row = 1},
    {.name = "top-bad", .rows = CHECK_ROWS_BAD, .temperature = 2, .per_row = 1, .int32_targets = 1},
    {.name = "top-bad-rows", .rows = CHECK_ROWS_BAD},
    {.name = "top-row-list", .rows = CHECK_ROWS_LIST, .n = 200},
    {.name = "top-masked-all", .rows = CHECK_ROWS_NONE},
    {.name = "top-softcap", .softcap = 1.5f, .scale = 2, .temperature = 0.5},
    {.name = "top-scale", .scale = -0.625, .temperature = 1.5},
    {.name = "top-strides", .padding = 24},
    {.name = "top-align-8", .alignment = 8},
    {.name = "top-align-2", .alignment = 2},
    {.name = "top-small-shards", .shards = 3, .vocab = 50}, /* of fewer columns than are asked for */
    {.name = "top-N=0", .n = -1},
    {.name = "top-N=1", .n = 1, .topk = 7},
    {.name = "top-V=2", .vocab = 2, .topk = 2},
};

/* Those before it are of every dtype. */
static const char LISTED_OF_BF16[] = "lists-descend", TARGETED_OF_BF16[] = "exact", TOPPED_OF_BF16[] = "top-all";

static const oddity_table first_table = {oddities, sizeof oddities / sizeof oddities[0]};
static const oddity_table columns_table = {columns, sizeof columns / sizeof columns[0]};
static const oddity_table tailed_table = {tailed, sizeof tailed / sizeof tailed[0]};
static const oddity_table later_table = {later, sizeof later / sizeof later[0]};

static check_case make_odd(const oddity *o, flp_dtype dtype) {
  check_case c = check_case_default(dtype,
                                    o->n > 0   ? o->n
                                    : o->n < 0 ? 0
                                               : 67,
                                    o->vocab ? o->vocab : 1531, o->hidden ? o->hidden : 72);
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
  c.spec.entropy = FLP_ENTROPY_BACKWARD;
  c.spec.grads = o->forward_only ? 0 : o->grads ? o->grads : (uint32_t)ALL_GRADS;
  c.spec.has_bias = 1;
  c.spec.accumulate_grad_weight = o->accumulate;
  if (o->grads_fp32 || o->accumulate) c.spec.grad_weight_dtype = FLP_DTYPE_FP32;
  if (o->grads_fp32) c.spec.grad_hidden_dtype = c.spec.grad_bias_dtype = FLP_DTYPE_FP32;
  if (o->int32_targets) c.spec.target_dtype = FLP_DTYPE_INT32;
  if (o->alignment) c.spec.alignment = o->alignment;
  return c;
}

static void add_oddities(check_list *list, const oddity_table *table, flp_dtype dtype) {
  for (size_t i = 0; i < table->count; i++) {
    const oddity *o = &table->rows[i];
    if ((!o->alignment || o->alignment >= flp_half_bytes(dtype)) && !o->old) check_list_add(list, make_odd(o, dtype));
  }
}

/* ---- save, stream and direction modes ---- */

static void set_loss(check_list *list, check_case *c, const char *name) {
  if (list->status == FLP_OK) list->status = cli_loss_keep(name, &c->spec);
  if (list->status != FLP_OK) return;
  flp_entropy least = cli_loss_entropy(&c->spec);
  if (c->spec.entropy < least) c->spec.entropy = least;
}

enum { LOSSES_MOST = 64 };

/* Of one target a row; in mode tail no other column's score counts. */
static int has_turn(const check_case *c, const flp_loss *loss) {
  return !flp_loss_is_over_targets(loss) && !(c->mode == FLP_MODE_TAIL && flp_loss_is_of_scores(loss));
}

/* Built-in loss i in turn, of those that the case takes; beside an entropy bonus, if it goes with one, or without. */
static void set_builtin(check_list *list, check_case *c, int i, int bonus) {
  if (list->status != FLP_OK) return; /* looking for a loss leaves a message of its own */
  const char *of_rows[LOSSES_MOST];
  int count = 0;
  char name[64];
  flp_loss sum;
  for (int b = 0; flp_loss_builtin(b) && count < LOSSES_MOST; b++)
    if (flp_loss_find(flp_loss_builtin(b), &sum) == FLP_OK && has_turn(c, &sum))
      of_rows[count++] = flp_loss_builtin(b);
  const char *own = of_rows[i % count];
  snprintf(name, sizeof name, "%s+entropy", own);
  set_loss(list, c, bonus && flp_loss_find(name, &sum) == FLP_OK ? name : own);
}

/* Plain: what was kept is multiplied as it is; else it is turned into gradients of the scores first. */
static void add_mode(check_list *list, check_case c, flp_mode mode, int plain, int turn) {
  c.mode = mode;
  if (plain) {
    c.spec.entropy = FLP_ENTROPY_FORWARD;
    c.spec.grads &= ~(uint32_t)FLP_GRAD_BIAS;
  }
  if (mode == FLP_MODE_DIRECTION) {
    c.spec.grads = FLP_GRAD_HIDDEN;
    c.spec.grad_weight_dtype = c.spec.grad_bias_dtype = (flp_dtype)0;
    c.spec.accumulate_grad_weight = 0;
  }
  cli_spec_set_mode(&c.spec, mode);
  /* of a row that is not a number, a loss without ratios knows that it has no weight */
  int is_nan = c.rows == CHECK_ROWS_NAN_INACTIVE || c.rows == CHECK_ROWS_BEYOND;
  if (!c.spec.keep && is_nan) set_loss(list, &c, "nll");
  if (!c.spec.keep && !is_nan) set_builtin(list, &c, turn, !plain);
  if (mode == FLP_MODE_STREAM && flp_spec_takes_capped_mean(&c.spec)) set_loss(list, &c, "nll"); /* takes no such loss */
  check_list_add(list, c);
}

/* Whole heads that are not split along the vocabulary; chunks of rows are those of stream mode. */
static int fits_modes(const oddity *o, flp_dtype dtype) {
  if (o->shards || o->forward_only || o->mode || o->chunk_vocab) return 0;
  return !o->alignment || o->alignment >= flp_half_bytes(dtype);
}

/* both: each oddity in both forms, else in turn. Steps of the other dtypes take recompute mode, which is not pinned
 * then. */
static void add_modes(check_list *list, const oddity_table *table, flp_dtype dtype, int both) {
  int turn = 0;
  for (size_t i = 0; i < table->count; i++) {
    if (!fits_modes(&table->rows[i], dtype)) continue;
    check_case c = make_odd(&table->rows[i], dtype);
    for (int plain = 0; plain < 2; plain++) {
      if (!both && plain != turn % 2) continue;
      if (dtype == FLP_DTYPE_BF16 && !c.chunk_rows) add_mode(list, c, FLP_MODE_SAVE, plain, 0);
      add_mode(list, c, dtype == FLP_DTYPE_BF16 ? FLP_MODE_STREAM : (flp_mode)0,
               dtype == FLP_DTYPE_BF16 ? !plain : plain, turn);
    }
    turn++;
  }
}

/* Shards and all chunks too. */
static void add_directions(check_list *list, const oddity_table *table) {
  for (size_t i = 0; i < table->count; i++) {
    const oddity *o = &table->rows[i];
    if (o->forward_only || o->mode || o->accumulate) continue;
    add_mode(list, make_odd(o, FLP_DTYPE_BF16), FLP_MODE_DIRECTION, 1, 0);
  }
}

static void add_all_directions(check_list *list) {
  add_directions(list, &first_table);
  add_directions(list, &later_table);
  add_directions(list, &columns_table);
}

/* ---- mode tail ---- */

/* In three forms: with a gradient of the entropy and all others, without, and as a step of a loss. */
enum { TAIL_FORMS = 3, TAIL_STEP = 2 };

static void add_tail(check_list *list, const oddity *o, flp_dtype dtype, int form, int turn) {
  check_case c = make_odd(o, dtype);
  if (o >= tailed && o < tailed + sizeof tailed / sizeof tailed[0] && !(o->temperature > 100)) {
    c.fill = CHECK_FILL_SHARP;
    c.spec.hidden = 264; /* so that a score by chance is no rival */
  }
  c.mode = FLP_MODE_TAIL;
  cli_spec_set_mode(&c.spec, c.mode);
  if (form == 1) {
    c.spec.entropy = FLP_ENTROPY_FORWARD;
    if (c.spec.grads != FLP_GRAD_BIAS) c.spec.grads &= ~(uint32_t)FLP_GRAD_BIAS;
  }
  /* of a row that is not a number, a loss without ratios knows that it has no weight */
  int is_nan = c.rows == CHECK_ROWS_NAN_INACTIVE || c.rows == CHECK_ROWS_BEYOND;
  if (form == TAIL_STEP && is_nan) set_loss(list, &c, "nll");
  if (form == TAIL_STEP && !is_nan) set_builtin(list, &c, turn, turn % 2);
  check_list_add(list, c);
}

/* all: each oddity in all forms, else in turn. Shards have no steps. */
static void add_tails(check_list *list, const oddity_table *table, flp_dtype dtype, int all) {
  int turn = 0;
  for (size_t i = 0; i < table->count; i++) {
    const oddity *o = &table->rows[i];
    if (o->forward_only || o->mode || (o->alignment && o->alignment < flp_half_bytes(dtype))) continue;
    for (int form = 0; form < TAIL_FORMS; form++) {
      int wanted = all || form == (o->shards ? turn % TAIL_STEP : turn % TAIL_FORMS);
      if (wanted && !(form == TAIL_STEP && o->shards)) add_tail(list, o, dtype, form, turn);
    }
    turn++;
  }
}

static void add_all_tails(check_list *list, flp_dtype dtype, int all) {
  add_tails(list, &first_table, dtype, 0);
  add_tails(list, &later_table, dtype, 0);
  add_tails(list, &tailed_table, dtype, all);
}

/* ---- mode listed ---- */

static void set_listed(check_case *c, double kept, check_lists lists) {
  c->mode = FLP_MODE_LISTED;
  cli_spec_set_mode(&c->spec, c->mode);
  c->kept = kept > (double)c->spec.vocab ? (double)c->spec.vocab : kept;
  c->lists = lists;
}

/* Every entropy mode with no gradient, that of hidden, and all: of bf16 each with each, else one with each. */
static void add_listed_matrix(check_list *list, flp_dtype dtype) {
  check_list matrix = {0};
  add_matrix(&matrix, dtype, 67, 1531, 72);
  for (int i = 0; i < matrix.count; i++) {
    if (dtype != FLP_DTYPE_BF16 && i % 4) continue; /* on the diagonal */
    set_listed(&matrix.cases[i], 20, CHECK_LISTS_DRAWN);
    check_list_add(list, matrix.cases[i]);
  }
  if (matrix.status != FLP_OK && list->status == FLP_OK) list->status = matrix.status;
  check_list_clear(&matrix);
}

static void add_listed(check_list *list, flp_dtype dtype) {
  for (size_t i = 0; i < sizeof listed / sizeof listed[0]; i++) {
    const oddity *o = &listed[i];
    if (dtype != FLP_DTYPE_BF16 && strcmp(o->name, LISTED_OF_BF16) == 0) return;
    check_case c = make_odd(o, dtype);
    set_listed(&c, o->kept > 0 ? o->kept : 20, o->lists);
    check_list_add(list, c);
  }
}

/* ---- several targets ---- */

/* Every entropy mode with no gradient, that of hidden, and all: of bf16 each with each, else one with each. */
static void add_targeted_matrix(check_list *list, flp_dtype dtype) {
  static const int counts[] = {CHECK_TARGETS_USUAL, 2, 64};
  check_list matrix = {0};
  add_matrix(&matrix, dtype, 67, 1531, 72);
  for (int i = 0; i < matrix.count; i++) {
    if (dtype != FLP_DTYPE_BF16 && i % 4) continue; /* on the diagonal */
    matrix.cases[i].spec.targets = counts[i % 3];
    check_list_add(list, matrix.cases[i]);
  }
  if (matrix.status != FLP_OK && list->status == FLP_OK) list->status = matrix.status;
  check_list_clear(&matrix);
}

static void add_targeted(check_list *list, flp_dtype dtype) {
  for (size_t i = 0; i < sizeof targeted / sizeof targeted[0]; i++) {
    const oddity *o = &targeted[i];
    if (dtype != FLP_DTYPE_BF16 && strcmp(o->name, TARGETED_OF_BF16) == 0) return;
    check_case c = make_odd(o, dtype);
    c.spec.targets = o->targets ? o->targets : CHECK_TARGETS_USUAL;
    c.targets = o->of_row;
    check_list_add(list, c);
  }
}

/* ---- best columns and ranks ---- */

static void set_top(check_case *c, int topk) {
  c->spec.topk = topk < 0 ? 0 : topk ? topk : 20;
  c->spec.rank = c->shards == 1;
}

static void add_tops(check_list *list, flp_dtype dtype) {
  for (size_t i = 0; i < sizeof topped / sizeof topped[0]; i++) {
    const oddity *o = &topped[i];
    if (dtype != FLP_DTYPE_BF16 && strcmp(o->name, TOPPED_OF_BF16) == 0) return;
    check_case c = make_odd(o, dtype);
    c.spec.grads = o->grads;
    if (i % 2) c.spec.entropy = FLP_ENTROPY_NONE;
    set_top(&c, o->topk);
    check_list_add(list, c);
  }
}

/* ---- operands of two dtypes ---- */

/* An fp32 weight, then an fp32 hidden, rounded and split, over patterns in turn. A weight in slices has no modes beside
 * score and recompute-vocab. */
static void add_mixed(check_list *list, flp_dtype dtype, int all) {
  static const oddity patterns[] = {
      {.name = "mixed", .chunk_vocab = 700},
      {.name = "mixed-shifted", .fill = CHECK_FILL_SHIFTED},
      {.name = "mixed-negative", .fill = CHECK_FILL_NEGATIVE},
      {.name = "mixed-peaked", .fill = CHECK_FILL_PEAKED, .chunk_vocab = 700},
      {.name = "mixed-one-hot", .fill = CHECK_FILL_ONE_HOT},
      {.name = "mixed-holes", .fill = CHECK_FILL_HOLES},
      {.name = "mixed-nan", .rows = CHECK_ROWS_NAN},
      {.name = "mixed-masked", .rows = CHECK_ROWS_MASKED, .n = 200, .int32_targets = 1},
      {.name = "mixed-bad", .rows = CHECK_ROWS_BAD, .temperature = 2, .per_row = 1},
      {.name = "mixed-row-list", .rows = CHECK_ROWS_LIST, .n = 200},
      {.name = "mixed-shards", .shards = 3, .n = 130},
      {.name = "mixed-accumulate", .accumulate = 1, .softcap = 20},
      {.name = "mixed-T=1e-3", .temperature = 1e-3},
      {.name = "mixed-strides", .padding = 24, .vocab = 4099},
      {.name = "mixed-align-4", .alignment = 4},
      {.name = "mixed-N=1", .n = 1},
  };
  enum { FORMS = 4 };
  for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++)
    for (int form = 0; form < FORMS; form++) {
      if (!all && form != (int)(i % FORMS)) continue;
      check_case c = make_odd(&patterns[i], dtype);
      *(form / 2 ? &c.spec.hidden_dtype : &c.spec.weight_dtype) = FLP_DTYPE_FP32;
      c.spec.mixed = form % 2 ? FLP_MIXED_SPLIT : FLP_MIXED_ROUND;
      check_list_add(list, c);
    }
}

static void add_mixed_large(check_list *list, const check_case *given) {
  check_case c = check_case_default(given->spec.dtype, 8192, 151936, 4096);
  if (c.spec.dtype == FLP_DTYPE_FP32) return;
  c.name = "large";
  c.rows = CHECK_ROWS_MASKED;
  c.spec.entropy = FLP_ENTROPY_BACKWARD;
  c.spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  c.sampled = 1;
  c.spec.weight_dtype = FLP_DTYPE_FP32;
  for (int mixed = FLP_MIXED_ROUND; mixed <= FLP_MIXED_SPLIT; mixed++) {
    c.spec.mixed = (flp_mixed)mixed;
    check_list_add(list, c);
  }
}

static void add_targeted_large(check_list *list, const check_case *given) {
  check_case c = check_case_default(given->spec.dtype, 8192, 151936, 4096);
  c.name = "large";
  c.rows = CHECK_ROWS_MASKED;
  c.spec.entropy = FLP_ENTROPY_BACKWARD;
  c.spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  c.sampled = 1;
  c.spec.targets = 64;
  check_list_add(list, c);
}

static void add_top_large(check_list *list, const check_case *given) {
  check_case c = check_case_default(given->spec.dtype, 8192, 151936, 4096);
  c.name = "large";
  c.rows = CHECK_ROWS_MASKED;
  c.sampled = 1;
  set_top(&c, 20);
  check_list_add(list, c);
}

/* Rows of which no list holds enough, at a size where that is many. */
static void add_tail_large(check_list *list, const check_case *given) {
  check_case c = check_case_default(given->spec.dtype, 8192, 151936, 4096);
  c.name = "large";
  c.rows = CHECK_ROWS_MASKED;
  c.spec.entropy = FLP_ENTROPY_BACKWARD;
  c.spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  c.sampled = 1;
  c.mode = FLP_MODE_TAIL;
  cli_spec_set_mode(&c.spec, c.mode);
  check_list_add(list, c);
}

static void add_listed_large(check_list *list, const check_case *given) {
  check_case c = check_case_default(given->spec.dtype, 8192, 151936, 4096);
  c.name = "large";
  c.rows = CHECK_ROWS_MASKED;
  c.spec.entropy = FLP_ENTROPY_BACKWARD;
  c.spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  c.sampled = 1;
  set_listed(&c, 20, CHECK_LISTS_DRAWN);
  check_list_add(list, c);
}

/* A shape of which the oracle sees samples. */
static int is_big(const check_case *given) {
  return (double)given->n * (double)given->spec.vocab * (double)given->spec.hidden > 2e9;
}

/* Patterns that any specification can carry, for a shape small enough that the oracle sees all of it. */
static void add_given(check_list *list, const check_case *given) {
  static const struct {
    const char *name;
    check_fill fill;
    check_rows rows;
  } patterns[] = {
      {"random", CHECK_FILL_RANDOM, CHECK_ROWS_ALL},         {"masked", CHECK_FILL_RANDOM, CHECK_ROWS_MASKED},
      {"shifted", CHECK_FILL_SHIFTED, CHECK_ROWS_ALL},       {"one-hot", CHECK_FILL_ONE_HOT, CHECK_ROWS_ALL},
      {"negative", CHECK_FILL_NEGATIVE, CHECK_ROWS_ALL},     {"bad-rows", CHECK_FILL_RANDOM, CHECK_ROWS_BAD},
      {"nan-rows", CHECK_FILL_RANDOM, CHECK_ROWS_NAN},       {"row-list", CHECK_FILL_RANDOM, CHECK_ROWS_LIST},
      {"idle-rows", CHECK_FILL_RANDOM, CHECK_ROWS_INACTIVE}, {"last-tile", CHECK_FILL_RANDOM, CHECK_ROWS_LAST_TILE},
      {"peaked", CHECK_FILL_PEAKED, CHECK_ROWS_ALL},         {"unlikely", CHECK_FILL_UNLIKELY, CHECK_ROWS_ALL},
      {"steep", CHECK_FILL_STEEP, CHECK_ROWS_ALL},           {"holes", CHECK_FILL_HOLES, CHECK_ROWS_ALL},
      {"T-beyond", CHECK_FILL_RANDOM, CHECK_ROWS_BEYOND}};
  size_t count = is_big(given) ? 2 : sizeof patterns / sizeof patterns[0];
  for (size_t i = 0; i < count; i++) {
    check_case c = *given;
    c.name = patterns[i].name;
    c.fill = patterns[i].fill;
    c.rows = patterns[i].rows;
    if (c.spec.listed && c.fill == CHECK_FILL_ONE_HOT) c.lists = CHECK_LISTS_ALL; /* or a row's columns were equal */
    if (c.fill == CHECK_FILL_HOLES && !c.spec.has_bias) continue;
    if (c.rows == CHECK_ROWS_BEYOND && (!c.spec.per_row_temperature || c.spec.loss)) continue;
    check_list_add(list, c);
  }
}

/* What a specification of its own is checked with beside its own rows. */
typedef enum given_kind { GIVEN_LISTS, GIVEN_TAIL, GIVEN_TARGETS, GIVEN_TOP, GIVEN_KINDS } given_kind;

static const struct {
  given_kind kind;
  const char *name;
  check_fill fill;
  check_rows rows;
  check_lists lists;
  check_targets targets;
} given_patterns[] = {
    {GIVEN_LISTS, "lists-bad", .lists = CHECK_LISTS_BAD},
    {GIVEN_LISTS, "lists-one", .lists = CHECK_LISTS_ONE},
    {GIVEN_LISTS, "lists-all", .lists = CHECK_LISTS_ALL},
    {GIVEN_LISTS, "lists-repeat", .lists = CHECK_LISTS_REPEATS},
    {GIVEN_LISTS, "lists-descend", .lists = CHECK_LISTS_DESCEND},
    {GIVEN_LISTS, "lists-before", .lists = CHECK_LISTS_BEFORE},
    {GIVEN_LISTS, "lists-behind", .lists = CHECK_LISTS_BEHIND},
    {GIVEN_TAIL, "sharp", .fill = CHECK_FILL_SHARP}, /* rows with lists, rows that no list holds, no row */
    {GIVEN_TAIL, "sharp-masked", .fill = CHECK_FILL_SHARP, .rows = CHECK_ROWS_MASKED},
    {GIVEN_TAIL, "sharp-bad", .fill = CHECK_FILL_SHARP, .rows = CHECK_ROWS_BAD},
    {GIVEN_TAIL, "sharp-nan", .fill = CHECK_FILL_SHARP, .rows = CHECK_ROWS_NAN},
    {GIVEN_TAIL, "equal", .fill = CHECK_FILL_EQUAL},
    {GIVEN_TAIL, "masked-all", .rows = CHECK_ROWS_NONE},
    {GIVEN_TARGETS, "targets-teacher", .targets = CHECK_TARGETS_TEACHER},
    {GIVEN_TARGETS, "targets-same", .targets = CHECK_TARGETS_SAME},
    {GIVEN_TARGETS, "targets-ends", .targets = CHECK_TARGETS_ENDS},
    {GIVEN_TARGETS, "targets-few", .targets = CHECK_TARGETS_FEW},
    {GIVEN_TARGETS, "targets-bad", .targets = CHECK_TARGETS_BAD},
    {GIVEN_TOP, "equal", .fill = CHECK_FILL_EQUAL},
    {GIVEN_TOP, "exact", .fill = CHECK_FILL_EXACT},
    {GIVEN_TOP, "sharp", .fill = CHECK_FILL_SHARP},
};

static void add_given_patterns(check_list *list, const check_case *given) {
  const flp_spec *spec = &given->spec;
  const int is_given[GIVEN_KINDS] = {[GIVEN_LISTS] = spec->listed,
                                     [GIVEN_TAIL] = spec->tail > 0,
                                     [GIVEN_TARGETS] = spec->targets > 1,
                                     [GIVEN_TOP] = spec->topk || spec->rank};
  if (is_big(given)) return;
  for (size_t i = 0; i < sizeof given_patterns / sizeof given_patterns[0]; i++) {
    if (!is_given[given_patterns[i].kind]) continue;
    check_case c = *given;
    c.name = given_patterns[i].name;
    if (given_patterns[i].fill) c.fill = given_patterns[i].fill;
    if (given_patterns[i].rows) c.rows = given_patterns[i].rows;
    if (given_patterns[i].lists) c.lists = given_patterns[i].lists;
    if (given_patterns[i].targets) c.targets = given_patterns[i].targets;
    check_list_add(list, c);
  }
}

static void add_large(check_list *list, const check_case *given) {
  check_case c = check_case_default(given->spec.dtype, 8192, 151936, 4096);
  c.name = "large";
  c.spec.entropy = FLP_ENTROPY_BACKWARD;
  c.spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  c.rows = CHECK_ROWS_MASKED;
  check_list_add(list, c);
  if (c.spec.dtype != FLP_DTYPE_BF16) return;
  c.sampled = 1;
  add_mode(list, c, FLP_MODE_SAVE, 0, 0);
  add_mode(list, c, FLP_MODE_SAVE, 1, 0);
  add_mode(list, c, FLP_MODE_DIRECTION, 1, 0);
  c.mode =
      FLP_MODE_STREAM; /* losses whose derivatives need no reference of every row; grad_weight's sum is the caller's */
  c.spec.accumulate_grad_weight = 1;
  c.spec.grad_weight_dtype = FLP_DTYPE_FP32;
  c.spec.entropy = FLP_ENTROPY_FORWARD;
  set_loss(list, &c, "reinforce");
  check_list_add(list, c);
  set_loss(list, &c, "reinforce+entropy");
  check_list_add(list, c);
}

static void add_all(check_list *list) {
  static const int64_t shapes[][3] = {{1, 2, 8}, {5, 131, 40}, {130, 1000, 72}, {67, 4099, 264}};
  for (int d = 0; d < 3; d++) {
    for (int s = 0; s < 4; s++) add_matrix(list, dtypes[d], shapes[s][0], shapes[s][1], shapes[s][2]);
    add_oddities(list, &first_table, dtypes[d]);
    add_modes(list, &first_table, dtypes[d], dtypes[d] == FLP_DTYPE_BF16);
  }
  for (int d = 0; d < 3; d++) {
    add_oddities(list, &later_table, dtypes[d]);
    add_modes(list, &later_table, dtypes[d], dtypes[d] == FLP_DTYPE_BF16);
  }
  add_all_directions(list);
  for (int d = 0; d < 3; d++) {
    add_listed_matrix(list, dtypes[d]);
    add_listed(list, dtypes[d]);
  }
  for (int d = 0; d < 3; d++) add_all_tails(list, dtypes[d], dtypes[d] == FLP_DTYPE_BF16);
  for (int d = 0; d < 3; d++) {
    add_targeted_matrix(list, dtypes[d]);
    add_targeted(list, dtypes[d]);
  }
  for (int d = 0; d < 3; d++) add_tops(list, dtypes[d]);
  for (int d = 0; d < 2; d++) add_mixed(list, dtypes[d], dtypes[d] == FLP_DTYPE_BF16);
  for (int d = 0; d < 3; d++) check_lora_cases(list, dtypes[d]);
}

static void add_quick(check_list *list) {
  for (int d = 0; d < 3; d++) {
    check_case c = check_case_default(dtypes[d], 67, 1531, 72);
    c.spec.entropy = FLP_ENTROPY_BACKWARD;
    c.spec.grads = ALL_GRADS;
    c.spec.has_bias = 1;
    check_list_add(list, c);
  }
  add_oddities(list, &first_table, FLP_DTYPE_BF16);
  add_modes(list, &first_table, FLP_DTYPE_BF16, 0);
  add_oddities(list, &later_table, FLP_DTYPE_BF16);
  add_modes(list, &later_table, FLP_DTYPE_BF16, 0);
  add_all_directions(list);
  add_listed(list, FLP_DTYPE_BF16);
  add_all_tails(list, FLP_DTYPE_BF16, 0);
  add_targeted(list, FLP_DTYPE_BF16);
  add_tops(list, FLP_DTYPE_BF16);
  add_mixed(list, FLP_DTYPE_BF16, 0);
  check_lora_cases(list, FLP_DTYPE_BF16);
}

flp_status check_list_create(check_set set, const check_case *given, check_list *out) {
  *out = (check_list){0};
  if (set == CHECK_SET_QUICK) add_quick(out);
  if (set == CHECK_SET_ALL) add_all(out);
  if (set == CHECK_SET_LARGE) {
    add_large(out, given);
    add_listed_large(out, given);
    add_tail_large(out, given);
    add_targeted_large(out, given);
    add_top_large(out, given);
    add_mixed_large(out, given);
  }
  if (set == CHECK_SET_GIVEN) {
    add_given(out, given);
    add_given_patterns(out, given);
    check_lora_given(out, given);
  }
  for (int i = 0; i < out->count; i++)
    if (out->cases[i].spec.tail > 0 && given->spec.tail > 0) out->cases[i].spec.tail = given->spec.tail;
  for (int i = 0; i < out->count; i++)
    if (out->cases[i].spec.targets == CHECK_TARGETS_USUAL && given->spec.targets > 1)
      out->cases[i].spec.targets = given->spec.targets;
  for (int i = 0; i < out->count; i++)
    if (out->cases[i].spec.topk && given->spec.topk && given->spec.topk <= out->cases[i].spec.vocab)
      out->cases[i].spec.topk = given->spec.topk;
  for (int i = 0; i < out->count; i++)
    if (out->cases[i].spec.lora_rank == CHECK_LORA_USUAL && given->spec.lora_rank)
      out->cases[i].spec.lora_rank = given->spec.lora_rank;
  for (int i = 0; i < out->count; i++) out->cases[i].seed = given->seed + (uint64_t)i;
  flp_status status = out->status;
  if (status != FLP_OK) check_list_clear(out);
  return status;
}

void check_list_clear(check_list *list) {
  free(list->cases);
  *list = (check_list){0};
}

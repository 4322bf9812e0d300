/* lora_cases.c: patterns of scores, rows and calls over an adapter, each with the gradients of all, of some or of none. */
#include <string.h>

#include "gen/cli/check/case.h"
#include "gen/cli/shared/losses.h"
#include "runtime/base/half.h"

enum {
  ADAPTER = FLP_GRAD_LORA_A | FLP_GRAD_LORA_B,
  ALL = FLP_GRAD_HIDDEN | FLP_GRAD_BIAS | ADAPTER,
  FROZEN = FLP_GRAD_HIDDEN | ADAPTER
};

/* One each; zeros leave the default. */
typedef struct pattern {
  const char *name;
  check_fill fill;
  check_rows rows;
  check_lora lora;
  double temperature, scale;
  float softcap;
  int per_row, shards, rank, wide; /* wide: gradients in fp32 */
  int64_t padding, chunk_rows, chunk_vocab, n, vocab;
  flp_mode mode;
  uint32_t grads, alignment;
  const char *loss;
} pattern;

static const pattern patterns[] = {
    {.name = "lora"},
    {.name = "lora-zero", .lora = CHECK_LORA_ZERO},
    {.name = "lora-off", .lora = CHECK_LORA_OFF},
    {.name = "lora-8", .rank = 8, .n = 200, .grads = FROZEN},
    {.name = "lora-136", .rank = 136, .grads = FROZEN},
    {.name = "lora-512", .rank = 512, .n = 40, .vocab = 700},
    {.name = "lora-shifted", .fill = CHECK_FILL_SHIFTED},
    {.name = "lora-one-hot", .fill = CHECK_FILL_ONE_HOT},
    {.name = "lora-holes", .fill = CHECK_FILL_HOLES},
    {.name = "lora-masked", .rows = CHECK_ROWS_MASKED, .n = 200},
    {.name = "lora-nan", .rows = CHECK_ROWS_NAN},
    {.name = "lora-nan-idle", .rows = CHECK_ROWS_NAN_INACTIVE},
    {.name = "lora-T=1e-3", .temperature = 1e-3},
    {.name = "lora-T-rows", .temperature = 1e3, .per_row = 1, .softcap = 20},
    {.name = "lora-bad", .rows = CHECK_ROWS_BAD, .temperature = 2, .per_row = 1},
    {.name = "lora-strides", .padding = 24},
    {.name = "lora-shards", .shards = 3, .wide = 1},
    {.name = "lora-N=1", .n = 1},
    {.name = "lora-N=0", .n = -1},
    {.name = "lora-rows", .mode = FLP_MODE_RECOMPUTE_ROWS, .chunk_rows = 64, .n = 300},
    {.name = "lora-columns", .mode = FLP_MODE_RECOMPUTE_VOCAB, .chunk_vocab = 512, .n = 150, .vocab = 3001},
    {.name = "lora-step", .loss = "grpo+entropy", .rows = CHECK_ROWS_MASKED, .n = 200},
    {.name = "lora-equal", .fill = CHECK_FILL_EQUAL, .temperature = 8}, /* from here on of bf16 alone */
    {.name = "lora-exact", .fill = CHECK_FILL_EXACT, .temperature = 8},
    {.name = "lora-negative", .fill = CHECK_FILL_NEGATIVE},
    {.name = "lora-peaked", .fill = CHECK_FILL_PEAKED},
    {.name = "lora-unlikely", .fill = CHECK_FILL_UNLIKELY},
    {.name = "lora-T=1e3", .temperature = 1e3},
    {.name = "lora-T-beyond", .rows = CHECK_ROWS_BEYOND, .temperature = 2, .per_row = 1},
    {.name = "lora-masked-all", .rows = CHECK_ROWS_NONE},
    {.name = "lora-row-list", .rows = CHECK_ROWS_LIST, .n = 200},
    {.name = "lora-idle", .rows = CHECK_ROWS_INACTIVE, .n = 200},
    {.name = "lora-last-tile", .rows = CHECK_ROWS_LAST_TILE, .vocab = 1537},
    {.name = "lora-softcap", .softcap = 1.5f, .scale = 2, .temperature = 0.5},
    {.name = "lora-scale", .scale = -0.625, .temperature = 1.5},
    {.name = "lora-align-8", .alignment = 8},
    {.name = "lora-align-2", .alignment = 2},
    {.name = "lora-shards-masked", .shards = 2, .rows = CHECK_ROWS_MASKED, .wide = 1, .softcap = 20},
    {.name = "lora-rows-wide", .mode = FLP_MODE_RECOMPUTE_ROWS, .chunk_rows = 64, .n = 300, .wide = 1},
    {.name = "lora-rows-masked",
     .mode = FLP_MODE_RECOMPUTE_ROWS,
     .chunk_rows = 64,
     .n = 300,
     .rows = CHECK_ROWS_MASKED},
    {.name = "lora-zero-step", .lora = CHECK_LORA_ZERO, .loss = "grpo"},
    {.name = "lora-V=2", .vocab = 2},
    {.name = "lora-V=129", .vocab = 129, .n = 129},
};

static const char OF_BF16[] = "lora-equal";

static check_case make_case(const pattern *p, flp_dtype dtype) {
  int64_t n = p->n > 0 ? p->n : p->n < 0 ? 0 : 67;
  check_case c = check_case_default(dtype, n, p->vocab ? p->vocab : 1531, 72);
  c.name = p->name;
  c.fill = p->fill;
  c.rows = p->rows;
  c.lora = p->lora;
  if (p->temperature > 0) c.temperature = p->temperature;
  if (p->scale < 0 || p->scale > 0) c.scale = p->scale;
  if (p->shards) c.shards = p->shards;
  c.padding = p->alignment ? (int64_t)p->alignment / flp_half_bytes(dtype) : p->padding;
  c.chunk_rows = p->chunk_rows;
  c.chunk_vocab = p->chunk_vocab;
  c.mode = p->mode;
  c.spec.lora_rank = p->rank ? p->rank : CHECK_LORA_USUAL;
  c.spec.grads = p->grads ? p->grads : (uint32_t)ALL;
  c.spec.has_bias = (c.spec.grads & FLP_GRAD_BIAS) != 0;
  c.spec.entropy = FLP_ENTROPY_BACKWARD;
  c.spec.softcap = p->softcap;
  c.spec.per_row_temperature = p->per_row;
  if (p->wide) c.spec.grad_lora_dtype = c.spec.grad_hidden_dtype = c.spec.grad_bias_dtype = FLP_DTYPE_FP32;
  if (p->alignment) c.spec.alignment = p->alignment;
  return c;
}

/* Forms beside that of all gradients: of A, of B, and scores alone. */
static void add_forms(check_list *list, check_case c) {
  static const uint32_t masks[] = {FLP_GRAD_LORA_A, FLP_GRAD_LORA_B, 0};
  for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
    c.spec.grads = masks[i];
    c.spec.entropy = i ? FLP_ENTROPY_FORWARD : FLP_ENTROPY_BACKWARD;
    check_list_add(list, c);
  }
}

void check_lora_cases(check_list *list, flp_dtype dtype) {
  int is_whole = dtype == FLP_DTYPE_BF16;
  for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
    const pattern *p = &patterns[i];
    if (!is_whole && strcmp(p->name, OF_BF16) == 0) return;
    if (p->alignment && p->alignment < flp_half_bytes(dtype)) continue;
    check_case c = make_case(p, dtype);
    if (p->loss && list->status == FLP_OK) list->status = cli_loss_keep(p->loss, &c.spec);
    check_list_add(list, c);
    if (i == 0) add_forms(list, c);
  }
}

void check_lora_given(check_list *list, const check_case *given) {
  check_case c = *given;
  if (!given->spec.lora_rank) return;
  c.name = "lora-zero";
  c.lora = CHECK_LORA_ZERO;
  check_list_add(list, c);
  c.name = "lora-off";
  c.lora = CHECK_LORA_OFF;
  check_list_add(list, c);
}

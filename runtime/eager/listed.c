/* listed.c: listed columns: the sizes of a pass, each row's list and its scores, and a forward pass over them.
 *
 * Invariants: a list is sorted before anything is summed over it, and a score sums its D products in one order, in
 * double; so no result depends on the order of a list, on threads or on other rows. */
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/eager/core.h"

/* ---- sizes ---- */

void eager_listed_carve(const flp_spec *spec, flp_pass pass, int64_t n, int64_t list_count, eager_block *block,
                        eager_listed_memory *out) {
  uint64_t entries = (uint64_t)list_count;
  *out = (eager_listed_memory){0};
  out->lists.column = eager_block_take(block, entries, sizeof(int32_t));
  out->lists.value = eager_block_take(block, entries, sizeof(double));
  uint64_t adapted = (uint64_t)n * (uint64_t)spec->lora_rank;
  if (adapted) out->lists.u = eager_block_take(block, adapted, sizeof(float));
  if (pass != FLP_PASS_BACKWARD) return;
  out->length = eager_block_take(block, (uint64_t)n, sizeof(int32_t));
  if (eager_lora_wants_sums(spec)) out->sums = eager_block_take(block, adapted, sizeof(double));
  if (!(spec->grads & EAGER_LISTED_BY_COLUMN)) return;
  out->start = eager_block_take(block, (uint64_t)spec->vocab + 2, sizeof(int32_t));
  out->place_row = eager_block_take(block, entries, sizeof(int32_t));
  out->place_value = eager_block_take(block, entries, sizeof(double));
}

flp_status eager_listed_pick(const flp_spec *spec, flp_pass pass, int64_t n, int64_t list_count, uint64_t budget_bytes,
                             int threads, eager_plan *out) {
  eager_block block = {0};
  eager_rows rows;
  eager_listed_memory memory;
  if (n > 0) {
    eager_rows_carve(&block, n, &rows);
    eager_listed_carve(spec, pass, n, list_count, &block, &memory);
  }
  *out = (eager_plan){.mode = FLP_MODE_LISTED,
                      .threads = threads,
                      .panel_rows = n,
                      .chunk_columns = spec->vocab,
                      .bytes = block.used,
                      .smallest_bytes = block.used};
  if (block.used <= budget_bytes && block.used != UINT64_MAX) return FLP_OK;
  return flp_fail(FLP_ERROR_BUDGET,
                  "budget: %llu bytes are too few for %lld rows with lists of %lld ids in all on the eager rung; %llu "
                  "bytes or more are accepted",
                  (unsigned long long)budget_bytes, (long long)n, (long long)list_count,
                  (unsigned long long)block.used);
}

/* ---- lists ---- */

/* Restores the heap whose root `at` may be too small. */
static void sift_down(int32_t *heap, int64_t at, int64_t count) {
  int32_t value = heap[at];
  for (int64_t child; (child = 2 * at + 1) < count; at = child) {
    if (child + 1 < count && heap[child + 1] > heap[child]) child++;
    if (heap[child] <= value) break;
    heap[at] = heap[child];
  }
  heap[at] = value;
}

/* A heap sort: in place, as a pass allocates nothing. Samplers give most lists in order. */
static void sort(int32_t *column, int64_t count) {
  int64_t ordered = 1;
  while (ordered < count && column[ordered - 1] <= column[ordered]) ordered++;
  if (ordered >= count) return;
  for (int64_t at = count / 2; at-- > 0;) sift_down(column, at, count);
  for (int64_t last = count - 1; last > 0; last--) {
    int32_t largest = column[0];
    column[0] = column[last];
    column[last] = largest;
    sift_down(column, 0, last);
  }
}

/* Puts this shard's columns of the row's list into column, ascending, each once. Returns their number. */
static int64_t take_columns(const flp_spec *spec, const flp_args *args, int64_t row, int32_t *column) {
  int64_t count = 0, unique = 0;
  for (int64_t e = args->list_offsets[row]; e < args->list_offsets[row + 1]; e++) {
    int64_t local = eager_id_at(spec, args->list_ids, e) - args->vocab_offset;
    if (local >= 0 && local < args->vocab_valid) column[count++] = (int32_t)local;
  }
  sort(column, count);
  for (int64_t i = 0; i < count; i++)
    if (i == 0 || column[i] != column[i - 1]) column[unique++] = column[i];
  return unique;
}

/* Place of a column in an ascending list, or -1. */
static int64_t find_column(const int32_t *column, int64_t count, int64_t wanted) {
  int64_t first = 0, last = count;
  while (first < last) {
    int64_t middle = first + (last - first) / 2;
    if (column[middle] < wanted)
      first = middle + 1;
    else
      last = middle;
  }
  return first < count && column[first] == wanted ? first : -1;
}

/* ---- scores ---- */

/* value += u·b of each entry. */
static void add_adapter(const eager_call *call, const float *u, const eager_list *list) {
  float b[FLP_LORA_RANK_MAX];
  for (int64_t i = 0; i < list->count; i++) {
    eager_list_widen_b(call, list->column[i], b);
    list->value[i] += eager_dot(u, b, call->spec->lora_rank);
  }
}

void eager_list_widen_b(const eager_call *call, int64_t column, float *out) {
  const flp_spec *spec = call->spec;
  eager_widen_part(spec, spec->dtype, call->args->lora_b, column * call->args->lora_b_stride, spec->lora_rank, out);
}

/* value = h·w + b of each entry, block by block of D, so that nothing larger than a block is widened. */
static void score(const eager_call *call, int64_t row, const eager_list *list) {
  const flp_spec *spec = call->spec;
  const flp_args *args = call->args;
  float hidden[EAGER_DEPTH_BLOCK], weight[EAGER_DEPTH_BLOCK], bias = 0;
  for (int64_t i = 0; i < list->count; i++) {
    if (spec->has_bias) eager_widen_part(spec, spec->bias_dtype, args->bias, list->column[i], 1, &bias);
    list->value[i] = (double)bias;
  }
  for (int64_t begin = 0; begin < spec->hidden; begin += EAGER_DEPTH_BLOCK) {
    int64_t width = flp_min(spec->hidden - begin, EAGER_DEPTH_BLOCK);
    eager_widen_part(spec, spec->hidden_dtype, args->hidden, row * args->hidden_stride + begin, width, hidden);
    for (int64_t i = 0; i < list->count; i++) {
      eager_widen_part(spec, spec->weight_dtype, args->weight, list->column[i] * args->weight_stride + begin, width,
                       weight);
      list->value[i] += eager_dot(hidden, weight, width);
    }
  }
}

void eager_list_read(const eager_call *call, const eager_lists *lists, int64_t row, eager_list *out) {
  int64_t target = eager_row_target(call->spec, call->args, row, 0), begin = call->args->list_offsets[row];
  out->column = lists->column + begin;
  out->value = lists->value + begin;
  out->count = take_columns(call->spec, call->args, row, lists->column + begin);
  out->target = target < 0 ? -1 : find_column(out->column, out->count, target);
  score(call, row, out);
  if (!lists->u) return;
  float *u = lists->u + row * call->spec->lora_rank;
  eager_lora_project_row(call, row, u);
  add_adapter(call, u, out);
}

/* ---- forward ---- */

typedef struct forward_job {
  const eager_call *call;
  const eager_lists *lists;
} forward_job;

/* Best columns and the rank, of a row by itself. list: its scores t */
static void finish_top(const eager_call *call, int64_t row, const eager_list *list, double target,
                       eager_partial whole) {
  eager_top_entry best[FLP_TOPK_MAX];
  int32_t above = 0;
  eager_top top = {.topk = call->spec->topk, .panel_rows = 1, .workers = 1, .best = best, .above = &above,
                   .target = &target};
  eager_top_clear(call, &top, 1);
  for (int64_t i = 0; i < list->count; i++)
    eager_top_add(call, &top, 0, 0, list->column[i], &list->value[i], 1);
  eager_top_finish(call, &top, 0, row, whole);
}

static void forward_row(void *context, int64_t active, int worker) {
  (void)worker;
  const forward_job *job = context;
  const eager_call *call = job->call;
  int64_t row = call->rows.index[active];
  eager_scale scale = eager_row_scale(call->spec, call->args, row);
  eager_list list;
  eager_list_read(call, job->lists, row, &list);
  double target = list.target < 0 ? -INFINITY : list.value[list.target];
  for (int64_t i = 0; i < list.count; i++) list.value[i] = eager_score(&scale, list.value[i]);
  eager_partial whole = eager_partial_of(list.value, list.count);
  if (call->args->partial) eager_partial_write(call, row, whole, &target);
  eager_row_finish(call, row, &scale, whole, &target);
  eager_statistics_write(call, row, whole, (double)list.count, eager_is_best(call, &scale, whole, &target));
  if (call->spec->topk || call->spec->rank)
    finish_top(call, row, &list,
               eager_top_target(call->args, row, list.target < 0 ? target : eager_score(&scale, target)), whole);
}

void eager_listed_forward(const eager_call *call, const eager_listed_memory *memory) {
  forward_job job = {.call = call, .lists = &memory->lists};
  eager_team_run(call->team, call->rows.count, forward_row, &job);
}

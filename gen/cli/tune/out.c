/* out.c: what tuning has found, for people and as JSON; and what would be tried, without a GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/table.h"
#include "gen/cli/shared/text.h"
#include "gen/cli/tune/candidates.h"
#include "gen/cli/tune/outcome.h"
#include "gen/cli/tune/store.h"
#include "runtime/plan/plan.h"

static const char *layout_text(const search_candidate *c, char out[FLP_TUNABLES_TEXT_BYTES]) {
  snprintf(out, FLP_TUNABLES_TEXT_BYTES, "%s, chunks of %lld x %lld", flp_mode_name(c->mode), (long long)c->chunk_rows,
           (long long)c->chunk_vocab);
  return out;
}

static const char *tiling_text(const search_candidate *c, char out[FLP_TUNABLES_TEXT_BYTES]) {
  if (!c->kind) return layout_text(c, out);
  flp_tunables_text(&c->tune, out);
  return out;
}

static json_t *step_json(const tune_step *step) {
  char chosen[FLP_TUNABLES_TEXT_BYTES], untuned[FLP_TUNABLES_TEXT_BYTES];
  const search_candidate *included = &step->included;
  json_t *also = json_null();
  if (included->kind) {
    char tiling[FLP_TUNABLES_TEXT_BYTES];
    also = json_pack("{s:s, s:s, s:o, s:s}", "cut", tiling_text(included, tiling), "status",
                     search_status_name(included->status), "ratio",
                     included->rounds ? cli_json_number(included->ratio) : json_null(), "reason", included->reason);
  }
  const tune_spent *spent = &step->spent;
  json_t *seconds = json_pack("{s:o, s:o, s:o, s:o}", "beginning", cli_json_number(step->beginning), "compiling",
                              cli_json_number(spent->compiling), "verifying", cli_json_number(spent->verifying),
                              "timing", cli_json_number(spent->timing));
  return json_pack("{s:s, s:s, s:s, s:b, s:o, s:o, s:o, s:o, s:i, s:i, s:i, s:i, s:b, s:o, s:o, s:o}", "kind",
                   step->kind, "chosen", tiling_text(&step->chosen, chosen), "default",
                   tiling_text(&step->untuned, untuned), "is_default", step->chosen.is_default, "ms",
                   cli_json_number(step->result.ms), "default_ms", cli_json_number(step->result.default_ms), "ratio",
                   cli_json_number(step->chosen.ratio), "noise", cli_json_number(step->result.noise), "candidates",
                   step->candidates, "legal", step->legal, "tried", step->result.tried, "timed", step->result.timed,
                   "out_of_time", step->result.out_of_time, "seconds", cli_json_number(step->seconds), "spent_s",
                   seconds, "included", also);
}

json_t *tune_outcome_json(const tune_outcome *outcome) {
  json_t *all = json_array(), *baseline = json_array();
  for (int i = 0; i < outcome->steps; i++) json_array_append_new(all, step_json(&outcome->step[i]));
  for (int i = 0; i < outcome->baseline_count; i++)
    json_array_append_new(baseline, json_pack("{s:s, s:o}", "product", gemm_product_name(outcome->baseline[i].product),
                                              "ms", cli_json_number(outcome->baseline[i].ms.median)));
  return json_pack("{s:s, s:o, s:o, s:o, s:o, s:s, s:b, s:b, s:o, s:o}", "spec", outcome->target->text, "model",
                   outcome->target->model[0] ? cli_json_text(outcome->target->model) : json_null(), "mode",
                   outcome->mode ? json_string(flp_mode_name(outcome->mode)) : json_null(), "steps", all, "bare",
                   baseline, "plan", outcome->plan_id, "done_before", outcome->done_before, "stopped", outcome->stopped,
                   "seconds", cli_json_number(outcome->seconds), "opening_s", cli_json_number(outcome->opening));
}

void tune_outcome_line(const tune_outcome *outcome, int64_t rows, const char *loss, const char *device,
                       char out[TUNE_LINE_BYTES]) {
  const flp_spec *spec = &outcome->target->spec;
  flp_tuning tuning = {0};
  char tilings[FLP_TUNING_TEXT_BYTES];
  tune_chunks chunks = {0, 0, 0};
  flp_plan_spec_options(spec, out);
  for (int i = 0; i < outcome->steps; i++) {
    const search_candidate *c = &outcome->step[i].chosen;
    if (c->is_default) continue;
    if (c->kind) tuning.of[c->kind] = c->tune;
    if (!c->kind) chunks = tune_chunks_of(spec, rows, c->mode, c->chunk_rows, c->chunk_vocab);
  }
  if (!flp_arch_is_exact(outcome->arch)) cli_append(out, TUNE_LINE_BYTES, " ", "--arch %s", outcome->arch);
  if (loss) cli_append(out, TUNE_LINE_BYTES, " ", "--loss '%s'", loss);
  flp_tuning_text(&tuning, tilings);
  if (tilings[0]) cli_append(out, TUNE_LINE_BYTES, " ", "--tune '%s'", tilings);
  if (chunks.rows || chunks.vocab) cli_append(out, TUNE_LINE_BYTES, " ", "--chunks %ux%u", chunks.rows, chunks.vocab);
  if (chunks.step) cli_append(out, TUNE_LINE_BYTES, " ", "--step-rows %u", chunks.step);
  cli_append(out, TUNE_LINE_BYTES, " ", "--tuned-for '%s'", device);
}

static void print_step(cli_table *table, const tune_step *step) {
  char tiling[FLP_TUNABLES_TEXT_BYTES];
  cli_table_addf(table, "%s\t%s\t%.3f ms\t%.3f ms\t%s\t%d of %d", step->kind, tiling_text(&step->chosen, tiling),
                 step->result.ms, step->result.default_ms,
                 step->chosen.is_default ? "stays" : cli_shortly("%+.1f %%", 100 * (1 / step->chosen.ratio - 1)).text,
                 step->result.timed, step->legal);
}

static void print_target(const tune_head *target) {
  cli_print(2, "%s%s%s", target->model, target->model[0] ? ": " : "", target->text);
}

void tune_outcome_print(const tune_outcome *outcome) {
  print_target(outcome->target);
  if (outcome->done_before) {
    printf("tuned before, according to the record; plan %s\n", outcome->plan_id);
    return;
  }
  cli_table table;
  cli_table_start(&table, "kernel", "tiling", "pass", "untuned", "faster", "timed", NULL);
  cli_table_may_move(&table, 1, "");
  for (int i = 0; i < outcome->steps; i++) print_step(&table, &outcome->step[i]);
  cli_table_finish(&table);
  const flp_spec *spec = &outcome->target->spec;
  if (spec->loss && !outcome->mode && flp_kernel_arch_tunes(outcome->arch, spec, FLP_FORWARD(KEEP)))
    cli_print(2, "steps over so many rows recompute, where forward_keep counts for nothing; --mode stream times it");
  for (int i = 0; i < outcome->baseline_count; i++)
    printf("GEMM baseline, %s: %.3f ms\n", gemm_product_name(outcome->baseline[i].product),
           outcome->baseline[i].ms.median);
  if (outcome->plan_id[0]) printf("stored; plan %s, %.0f s\n", outcome->plan_id, outcome->seconds);
  if (outcome->stopped) puts("stopped before the end: --resume goes on from here");
}

/* ---- without a GPU ---- */

static int by_prediction(const void *a, const void *b) {
  const search_candidate *x = a, *y = b;
  return (x->predicted_ms > y->predicted_ms) - (x->predicted_ms < y->predicted_ms);
}

/* Adds what would be tried of a kernel. */
static flp_status dry_kind(const tune_args *args, const tune_head *target, const char *arch, const flp_device *device,
                           flp_kernel_kind kind, json_t *searches) {
  tune_list list;
  char tiling[FLP_TUNABLES_TEXT_BYTES];
  search_options options = search_options_of(args->effort);
  tune_work work = {.rows = args->rows};
  flp_status status = tune_list_kernels(kind, target, arch, &work, device, &args->included.of[kind], &list);
  if (status != FLP_OK) return status;
  int illegal = 0, tried = 0;
  for (int i = 0; i < list.count; i++) illegal += list.items[i].status == SEARCH_ILLEGAL;
  status = search_prune(list.items, list.count, &options);
  json_t *items = json_array();
  qsort(list.items, (size_t)list.count, sizeof *list.items, by_prediction);
  for (int i = 0; status == FLP_OK && i < list.count; i++) {
    const search_candidate *c = &list.items[i];
    if (c->status != SEARCH_WAITING) continue;
    tried++;
    json_array_append_new(items, json_pack("{s:s, s:o, s:b}", "cut", tiling_text(c, tiling), "predicted_ms",
                                           cli_json_number(c->predicted_ms), "is_default", c->is_default));
  }
  json_t *object = json_pack("{s:s, s:i, s:i, s:i, s:o}", "kind", flp_kernel_kind_name(kind), "candidates", list.count,
                             "illegal", illegal, "pruned", list.count - illegal - tried, "tried", items);
  tune_list_clear(&list);
  json_array_append_new(searches, object);
  return status;
}

static void dry_print(const tune_head *target, const json_t *kinds) {
  static const char *const counted[] = {"candidates", "illegal", "pruned"};
  size_t i;
  json_t *kind;
  cli_table table;
  print_target(target);
  cli_table_start(&table, "kernel", "candidates", "not built", "pruned", "tried", "first", NULL);
  cli_table_may_move(&table, 5, "first ");
  json_array_foreach(kinds, i, kind) {
    const json_t *tried = json_object_get(kind, "tried"), *first = json_array_get(tried, 0);
    long long count[3];
    for (int c = 0; c < 3; c++) count[c] = json_integer_value(json_object_get(kind, counted[c]));
    cli_table_addf(&table, "%s\t%lld\t%lld\t%lld\t%zu\t%s", json_string_value(json_object_get(kind, "kind")), count[0],
                   count[1], count[2], json_array_size(tried), json_string_value(json_object_get(first, "cut")));
  }
  cli_table_finish(&table);
}

flp_status tune_dry_run(const tune_args *args, const tune_heads *targets, const flp_device *device) {
  json_t *all = json_array();
  flp_status status = FLP_OK;
  for (int i = 0; i < targets->count && status == FLP_OK; i++) {
    const tune_head *target = &targets->items[i];
    const char *arch;
    json_t *searches = json_array();
    status = tune_head_arch(args, target, device, 0, 1, &arch);
    for (int k = 0; k < TUNE_STEPS && status == FLP_OK; k++) {
      flp_kernel_kind kind = tune_searches[k].kind;
      if (kind && flp_kernel_arch_tunes(arch, &target->spec, kind))
        status = dry_kind(args, target, arch, device, kind, searches);
    }
    if (!args->json && status == FLP_OK) dry_print(target, searches);
    json_array_append_new(all, json_pack("{s:s, s:o, s:o}", "spec", target->text, "model", cli_json_text(target->model),
                                         "kinds", searches));
  }
  if (args->json && status == FLP_OK) return cli_json_print(json_pack("{s:b, s:o}", "dry_run", 1, "targets", all));
  json_decref(all);
  return status;
}

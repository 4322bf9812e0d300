/* out.c: an explanation as tables or as JSON. */
#include <stdio.h>

#include "gen/cli/explain/explain.h"
#include "gen/cli/shared/cost.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/reasons.h"
#include "gen/cli/shared/table.h"
#include "gen/cli/shared/text.h"
#include "runtime/base/names.h"
#include "runtime/plan/plan.h"

/* ---- as JSON ---- */

static json_t *alternative_json(const explain_alternative *alternative) {
  return json_pack("{s:s, s:i, s:f, s:f, s:f, s:I, s:I, s:I, s:f, s:b}", "name", alternative->name, "products",
                   alternative->products, "flops", alternative->flops, "workspace_bytes", alternative->workspace,
                   "least_bytes", alternative->least, "chunk_rows", (json_int_t)alternative->chunk_rows, "chunk_vocab",
                   (json_int_t)alternative->chunk_vocab, "chunks", (json_int_t)alternative->chunks, "traffic_bytes",
                   alternative->traffic, "fits", alternative->fit == EXPLAIN_FITS);
}

static json_t *layout_json(const explanation *in, int assumed, flp_pass pass, int64_t n) {
  flp_layout layout;
  if (explain_layout(in, assumed, pass, n, &layout) != FLP_OK)
    return json_pack("{s:s, s:o}", "pass", flp_pass_name(pass), "error", cli_json_text(flp_error_detail()));
  return json_pack("{s:s, s:s, s:I, s:I, s:I, s:i, s:i, s:o, s:o, s:f}", "pass", flp_pass_name(pass), "mode",
                   flp_mode_name(layout.mode), "chunk_rows", (json_int_t)layout.chunk_rows, "chunk_vocab",
                   (json_int_t)layout.chunk_vocab, "chunks", (json_int_t)layout.chunks, "products", layout.products,
                   "launches", layout.launches, "workspace_bytes", cli_json_count(layout.bytes), "smallest_bytes",
                   cli_json_count(layout.smallest_bytes), "flops", layout.flops);
}

static json_t *layouts_json(const explanation *in, int assumed, int64_t n) {
  json_t *list = json_array();
  for (int pass = FLP_PASS_FORWARD; pass < EXPLAIN_PASSES; pass++)
    if (explain_has_pass(in, assumed, (flp_pass)pass))
      json_array_append_new(list, layout_json(in, assumed, (flp_pass)pass, n));
  return list;
}

/* Save, direction, tail and stream modes, where the spec asks for them: what they keep, and why they are taken or not. */
static json_t *modes_json(const explanation *in, int assumed, int64_t n) {
  json_t *list = json_array();
  char reason[EXPLAIN_REASON_BYTES];
  for (const flp_mode *mode = explain_modes; *mode; mode++) {
    if (!explain_mode_reason(in, assumed, *mode, n, reason)) continue;
    json_t *saved = flp_mode_keeps(*mode) ? cli_json_count(explain_saved_bytes(in, assumed, *mode, n)) : json_null();
    json_array_append_new(list, json_pack("{s:s, s:o, s:o}", "mode", flp_mode_name(*mode), "saved_bytes", saved, "why",
                                          cli_json_text(reason)));
  }
  return list;
}

static json_t *rows_json(const explanation *in, int64_t n) {
  explain_alternative alternatives[EXPLAIN_ALTERNATIVES_MAX];
  int count = explain_alternatives(&in->planner, in->args->spec.kept, n, explain_budget(in, 1, FLP_PASS_FORWARD),
                                   explain_budget(in, 1, FLP_PASS_BACKWARD), alternatives);
  json_t *list = json_array();
  for (int i = 0; i < count; i++) json_array_append_new(list, alternative_json(&alternatives[i]));
  const flp_spec *spec = &in->planner.spec;
  return json_pack("{s:I, s:f, s:f, s:f, s:o, s:o, s:o, s:o, s:o}", "rows", (json_int_t)n, "product_flops",
                   cli_product_flops(spec, n), "input_bytes", cli_input_bytes(spec, n), "output_bytes",
                   cli_output_bytes(spec, n), "ways", list, "layouts", in->plan ? layouts_json(in, 0, n) : json_null(),
                   "assumed_layouts", layouts_json(in, 1, n), "modes", in->plan ? modes_json(in, 0, n) : json_null(),
                   "assumed_modes", modes_json(in, 1, n));
}

/* Tile configurations of the kernels that run, as --tune takes them; "" for defaults. */
static json_t *tune_json(const flp_plan *plan) {
  flp_tuning tuning = {0};
  char text[FLP_TUNING_TEXT_BYTES];
  for (int i = 0; i < plan->modules.count; i++) {
    const flp_kernel_key *key = &plan->modules.desc[i].key;
    tuning.of[key->kind] = key->tune;
  }
  flp_tuning_text(&tuning, text);
  return json_string(text);
}

static json_t *plan_json(const flp_plan *plan) {
  char text[CLI_REASONS_BYTES] = "", id[17] = "";
  flp_plan_describe(plan, text, sizeof text);
  flp_plan_get_id(plan, id);
  json_t *reasons = json_object();
  for (int rung = FLP_RUNG_TUNED; rung <= FLP_RUNG_EAGER; rung++)
    json_object_set_new(reasons, flp_rung_name((flp_rung)rung),
                        cli_json_text(flp_plan_get_reason(plan, (flp_rung)rung)));
  return json_pack("{s:s, s:o, s:o, s:o, s:s, s:o, s:o}", "rung", flp_rung_name(flp_plan_get_rung(plan)), "cut",
                   plan->tiling[0] ? cli_json_text(plan->tiling) : json_null(), "tune", tune_json(plan), "description",
                   cli_json_text(text), "id", id, "reasons", reasons, "unproven",
                   plan->unproven.arches ? cli_json_text(plan->unproven.reason) : json_null());
}

static json_t *budgets_json(const explanation *in, int assumed) {
  return json_pack("{s:o, s:o}", "forward", cli_json_count(explain_budget(in, assumed, FLP_PASS_FORWARD)), "backward",
                   cli_json_count(explain_budget(in, assumed, FLP_PASS_BACKWARD)));
}

flp_status explain_print_json(const explanation *in) {
  json_t *rows = json_array();
  for (int i = 0; i < in->args->row_count; i++) json_array_append_new(rows, rows_json(in, in->args->rows[i]));
  return cli_json_print(json_pack("{s:o, s:o, s:o, s:i, s:o, s:o, s:o, s:o}", "spec",
                                  cli_spec_json(&in->planner.spec, in->args->spec.scale, in->args->spec.kept),
                                  "budget_bytes", budgets_json(in, 0), "assumed_budget_bytes", budgets_json(in, 1),
                                  "assumed_multiprocessors",
                                  in->planner.multiprocessors, "assumed", explain_assumed_json(in->args, &in->assumed),
                                  "plan", in->plan ? plan_json(in->plan) : json_null(), "plan_error",
                                  in->plan ? json_null() : cli_json_text(in->plan_error), "rows", rows));
}

/* ---- for people ---- */

static void print_alternatives(const explanation *in, int64_t n) {
  explain_alternative alternatives[EXPLAIN_ALTERNATIVES_MAX];
  int count = explain_alternatives(&in->planner, in->args->spec.kept, n, explain_budget(in, 1, FLP_PASS_FORWARD),
                                   explain_budget(in, 1, FLP_PASS_BACKWARD), alternatives);
  cli_table table;
  cli_table_start(&table, "way, on the assumed GPU", "products", "work", "chunks", "workspace", "least", "traffic",
                  NULL);
  for (int i = 0; i < count; i++) {
    const explain_alternative *alternative = &alternatives[i];
    cli_short bytes = cli_bytes(alternative->workspace);
    /* where nothing fits there is no workspace to name, but the least that would do */
    cli_table_addf(&table, "%s\t%d\t%s\t%s\t%s%s\t%s\t%s", alternative->name, alternative->products,
                   cli_flops(alternative->flops).text,
                   alternative->chunks ? cli_shortly("%lld", (long long)alternative->chunks).text : "",
                   alternative->fit == EXPLAIN_LEAST ? "does not fit" : bytes.text,
                   alternative->fit == EXPLAIN_BEYOND ? ", over budget" : "",
                   alternative->chunks ? cli_bytes(alternative->least).text : "", cli_bytes(alternative->traffic).text);
  }
  cli_table_finish(&table);
}

static void add_layout(const explanation *in, cli_table *table, int assumed, flp_pass pass, int64_t n) {
  flp_layout layout;
  if (explain_layout(in, assumed, pass, n, &layout) != FLP_OK) {
    cli_table_add(table, flp_pass_name(pass), "none", NULL);
    return;
  }
  cli_table_addf(table, "%s\t%s\t%lld\t%lld\t%lld\t%d\t%d\t%s\t%s", flp_pass_name(pass), flp_mode_name(layout.mode),
                 (long long)layout.chunk_rows, (long long)layout.chunk_vocab, (long long)layout.chunks, layout.products,
                 layout.launches, cli_bytes((double)layout.bytes).text, cli_bytes((double)layout.smallest_bytes).text);
}

/* Why a pass has no layout: a sentence each, below the table. */
static void print_layout_errors(const explanation *in, int assumed, int64_t n) {
  flp_layout layout;
  for (int pass = FLP_PASS_FORWARD; pass < EXPLAIN_PASSES; pass++)
    if (explain_has_pass(in, assumed, (flp_pass)pass) &&
        explain_layout(in, assumed, (flp_pass)pass, n, &layout) != FLP_OK)
      cli_print(2, "%s: %s", flp_pass_name((flp_pass)pass), flp_error_detail());
}

static void print_layouts(const explanation *in, int assumed, int64_t n) {
  cli_table table;
  cli_table_start(&table, "pass", "mode", "chunk rows", "chunk vocab", "chunks", "products", "launches", "workspace",
                  "least", NULL);
  cli_table_may_move(&table, 6, "launches: ");
  for (int pass = FLP_PASS_FORWARD; pass < EXPLAIN_PASSES; pass++)
    if (explain_has_pass(in, assumed, (flp_pass)pass)) add_layout(in, &table, assumed, (flp_pass)pass, n);
  cli_table_finish(&table);
  print_layout_errors(in, assumed, n);
}

static void print_modes(const explanation *in, int64_t n) {
  char reason[EXPLAIN_REASON_BYTES];
  for (int on_assumed = in->plan ? 0 : 1; on_assumed < 2; on_assumed++)
    for (const flp_mode *mode = explain_modes; *mode; mode++)
      if (explain_mode_reason(in, on_assumed, *mode, n, reason))
        cli_print(2, "%s: mode %s: %s", on_assumed ? "assumed GPU" : "this machine", flp_mode_name(*mode), reason);
}

static void print_plan(const explanation *in) {
  if (!in->plan) {
    cli_print(2, "no plan on this machine: %s", in->plan_error);
    return;
  }
  char reasons[CLI_REASONS_BYTES];
  cli_reasons_text(in->plan, reasons, sizeof reasons);
  printf("plan on this machine: rung %s\n", flp_rung_name(flp_plan_get_rung(in->plan)));
  if (in->plan->tiling[0]) cli_print(4, "  tile configuration: %s", in->plan->tiling);
  cli_reasons_print(13, "  not taken:", reasons);
  if (in->plan->unproven.arches) cli_print(4, "  %s", in->plan->unproven.reason);
}

static void print_lists(const explanation *in, int64_t n) {
  const flp_spec *spec = &in->planner.spec;
  int64_t ids = explain_list_count(in->args->spec.kept, n);
  double size = 8.0 * (double)(n + 1) + (double)flp_dtype_bytes(spec->target_dtype) * (double)ids;
  cli_print(2, "lists: %g ids a row on average, %lld in all: %s", in->args->spec.kept, (long long)ids,
            cli_bytes(size).text);
}

void explain_print_text(const explanation *in) {
  const flp_spec *spec = &in->planner.spec;
  char text[FLP_SPEC_TEXT_BYTES];
  cli_print(2, "%s", flp_plan_spec_text(spec, text));
  cli_print(2, "budget: forward %s, backward %s on the assumed GPU, %s on this machine",
            cli_bytes((double)explain_budget(in, 1, FLP_PASS_FORWARD)).text,
            cli_bytes((double)explain_budget(in, 1, FLP_PASS_BACKWARD)).text,
            cli_bytes((double)explain_budget(in, 0, FLP_PASS_BACKWARD)).text);
  puts("");
  print_plan(in);
  puts("");
  explain_assumed_print(in->args, &in->assumed);
  for (int i = 0; i < in->args->row_count; i++) {
    int64_t n = in->args->rows[i];
    puts("");
    cli_print(2, "N = %lld: one product 2*N*D*V = %s; inputs %s, outputs %s", (long long)n,
              cli_flops(cli_product_flops(spec, n)).text, cli_bytes(cli_input_bytes(spec, n)).text,
              cli_bytes(cli_output_bytes(spec, n)).text);
    if (spec->listed) print_lists(in, n);
    print_alternatives(in, n);
    if (in->plan) puts("\nplan on this machine");
    if (in->plan) print_layouts(in, 0, n);
    printf("\nplan on a GPU of %d multiprocessors\n", in->planner.multiprocessors);
    print_layouts(in, 1, n);
    print_modes(in, n);
  }
}

/* generate.c: the entry points of gen.h: one generation from key to result, and everything it owned freed. */
#include "gen/gen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/generate/generate.h"
#include "gen/generate/template.h"
#include "gen/lang/budget.h"
#include "gen/sources/sources.h"
#include "gen/target/emit.h"

static void state_close(gen_state *g) {
  if (g->lua) lua_close(g->lua);
  gen_emit_close(g);
  free(g->region_parent);
  free(g->text);
}

static flp_status run_template(gen_state *g, char *error, size_t capacity) {
  g->lua = gen_budget_open(g);
  if (!g->lua) return FLP_ERROR_MEMORY;
  lua_pushcfunction(g->lua, gen_template_main);
  return gen_template_call(g, 0, error, capacity);
}

flp_status gen_generate_check(const flp_kernel_key *key, gen_arch *arch, char *error, size_t capacity) {
  if (!flp_kind_of(key->kind)->facts) {
    snprintf(error, capacity, "key.kind: %d is no kernel kind (1 to %d)", (int)key->kind, FLP_KERNEL_KINDS - 1);
    return FLP_ERROR_ARGUMENT;
  }
  char name[sizeof key->arch + 1], list[128];
  snprintf(name, sizeof name, "%.*s", (int)sizeof key->arch, key->arch);
  if (gen_arch_find(name, arch)) return FLP_OK;
  flp_arch_list(0, 0, ", ", list, sizeof list);
  snprintf(error, capacity, "key.arch: no templates for '%s'; there are for %s", name, list);
  return FLP_ERROR_UNSUPPORTED;
}

flp_status gen_generate_check_tune(const flp_tunables *tune, char *error, size_t capacity) {
  if (tune->schedule <= FLP_SCHEDULE_COOPERATIVE) return FLP_OK;
  snprintf(error, capacity, "key.tune.schedule: %u is no schedule (0 to 2)", (unsigned)tune->schedule);
  return FLP_ERROR_ARGUMENT;
}

static int is_of_kind(const flp_loss *loss, flp_kernel_kind kind) {
  if (flp_loss_is_over_targets(loss)) return kind == FLP_KERNEL_LOSS_TARGETS || kind == FLP_KERNEL_DIVERGE;
  return kind == (flp_loss_is_of_scores(loss) ? FLP_KERNEL_LOSS_SCORES : FLP_KERNEL_LOSS);
}

flp_status flpgen_generate(const flp_kernel_key *key, const flpgen_options *options, flpgen_result *out, char *error,
                           size_t error_capacity) {
  char sink[8];
  if (!error || error_capacity == 0) {
    error = sink;
    error_capacity = sizeof sink;
  }
  error[0] = 0;
  memset(out, 0, sizeof *out);
  flp_kernel_key canonical = *key;
  flp_kernel_key_canonicalise(&canonical);
  gen_arch target;
  gen_state g = {.key = &canonical,
                 .desc = &out->desc,
                 .template_dir = options ? options->template_dir : NULL,
                 .loss = options ? options->loss : NULL,
                 .arch = &target};
  out->desc.key = canonical;
  flp_status status = gen_generate_check(key, &target, error, error_capacity);
  int takes_loss = flp_kind_has(key->kind, FLP_KIND_LOSS), needs_loss = takes_loss && !flp_kernel_runs_any_loss(&canonical);
  if (status == FLP_OK && (g.loss ? !takes_loss : needs_loss)) {
    snprintf(error, error_capacity,
             "options.loss: needed with key.kind loss_rows or loss_scores and a digest in key.loss, or loss_targets or "
             "diverge, and with no other kind");
    status = FLP_ERROR_ARGUMENT;
  }
  if (status == FLP_OK && g.loss && !is_of_kind(g.loss, key->kind)) {
    snprintf(error, error_capacity,
             "options.loss: a program over targets is for key.kind loss_targets or diverge, one that reads lse or "
             "mean_score for loss_scores, any other for loss_rows");
    status = FLP_ERROR_ARGUMENT;
  }
  if (status == FLP_OK) status = gen_generate_check_tune(&canonical.tune, error, error_capacity);
  if (status == FLP_OK) status = gen_sources_hash(g.template_dir, out->desc.sources, error, error_capacity);
  if (status == FLP_OK) status = gen_emit_open(&g);
  if (status == FLP_OK) status = run_template(&g, error, error_capacity);
  if (status == FLP_OK) status = gen_emit_run(&g, options, out, error, error_capacity);
  state_close(&g);
  if (status == FLP_ERROR_MEMORY && !error[0]) snprintf(error, error_capacity, "out of memory");
  if (status != FLP_OK) flpgen_result_clear(out);
  return status;
}

void flpgen_result_clear(flpgen_result *result) {
  if (!result) return;
  free(result->ptx);
  free(result->ir);
  free(result->opt_ir);
  memset(result, 0, sizeof *result);
}

flp_status flpgen_sources_hash(const flpgen_options *options, uint8_t out[32]) {
  char error[256];
  return gen_sources_hash(options ? options->template_dir : NULL, out, error, sizeof error);
}

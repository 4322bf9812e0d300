/* heads.c: which specialisations are tuned: the one of the options, shapes of a list, presets of popular
 * models. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/presets/presets.h"
#include "gen/cli/shared/text.h"
#include "gen/cli/tune/heads.h"
#include "runtime/api/validate.h"
#include "runtime/plan/plan.h"
#include "runtime/planner/planner.h"

enum { TARGETS_MOST = CLI_PRESETS_MAX };

/* A name, or as much of the end of a path as fits. */
static void set_model(tune_head *target, const char *model) {
  size_t length = strlen(model), most = sizeof target->model - 1;
  if (length <= most)
    snprintf(target->model, sizeof target->model, "%s", model);
  else
    snprintf(target->model, sizeof target->model, "...%s", model + length - (most - 3));
}

/* What was timed in another mode, or over other chunks, is another thing: --resume identifies targets by their text.
 * "keep" alone says save. */
static flp_status set_text(const tune_args *args, tune_head *target) {
  flp_options resolved;
  FLP_TRY(flp_options_resolve(&args->options, &resolved));
  flp_plan_spec_text(&target->spec, target->text);
  int is_directed = args->options.mode != FLP_MODE_SAVE && flp_planner_has_direction(&target->spec);
  const char *mode = args->options.mode == FLP_MODE_STREAM ? "stream" : is_directed ? "direction" : NULL;
  if (args->options.arch) cli_append(target->text, sizeof target->text, " ", "arch=%s", args->options.arch);
  if (mode) cli_append(target->text, sizeof target->text, " ", "mode=%s", mode);
  if (resolved.budget_bytes)
    cli_append(target->text, sizeof target->text, " ", "workspace=%llu", (unsigned long long)resolved.budget_bytes);
  return FLP_OK;
}

static flp_status add(const tune_args *args, tune_heads *out, const flp_spec *given, double scale, const char *model) {
  flp_spec spec = *given;
  cli_spec_args_complete(&args->spec, &spec);
  if (out->count == TARGETS_MOST)
    return flp_fail(FLP_ERROR_ARGUMENT, "at most %d specialisations are accepted", (int)TARGETS_MOST);
  tune_head *target = &out->items[out->count];
  *target = (tune_head){.scale = scale};
  FLP_TRY(flp_spec_resolve(&spec, &target->spec));
  FLP_TRY(cli_spec_check_tiling("--include", args->include, &target->spec, args->options.arch));
  if (args->options.mode == FLP_MODE_DIRECTION) FLP_TRY(cli_spec_check_direction(&target->spec));
  set_model(target, model ? model : "");
  FLP_TRY(set_text(args, target));
  for (int i = 0; i < out->count; i++)
    if (strcmp(out->items[i].text, target->text) == 0) return FLP_OK; /* heads of the same shape are one */
  out->count++;
  return FLP_OK;
}

static flp_status add_shapes(const tune_args *args, tune_heads *out) {
  char *copy = strdup(args->shapes);
  flp_status status = copy ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "out of memory");
  for (char *rest = copy, *word; status == FLP_OK && (word = strsep(&rest, ","));) {
    char *by = strchr(word, 'x');
    flp_spec spec = args->spec.spec;
    if (by) *by++ = 0;
    status = by ? cli_parse_integer("--shapes", word, 2, INT32_MAX, &spec.vocab)
                : flp_fail(FLP_ERROR_ARGUMENT, "--shapes: expected VOCABxHIDDEN, got '%s'", word);
    if (status == FLP_OK) status = cli_parse_integer("--shapes", by, 8, INT32_MAX, &spec.hidden);
    if (status == FLP_OK) status = add(args, out, &spec, args->spec.scale, NULL);
  }
  free(copy);
  return status;
}

typedef struct adding {
  const tune_args *args;
  tune_heads *out;
} adding;

static flp_status add_preset(void *context, const cli_preset *preset) {
  const adding *a = context;
  flp_spec spec = a->args->spec.spec;
  cli_preset_apply(preset, &a->args->spec, &spec);
  return add(a->args, a->out, &spec, preset->scale > 0 ? preset->scale : a->args->spec.scale, preset->name);
}

static flp_status add_presets(const tune_args *args, tune_heads *out) {
  adding a = {args, out};
  return cli_presets_each(args->preset_file, args->preset, add_preset, &a);
}

/* One list of heads at a time: the others would be passed over in silence. */
static flp_status check_one_list(const tune_args *args) {
  const cli_spec_args *spec = &args->spec;
  const char *list = args->preset || args->preset_file ? "presets" : args->shapes ? "--shapes" : NULL;
  if (!list) return FLP_OK;
  const char *other = spec->spec.vocab || spec->spec.hidden                 ? "--vocab and --hidden"
                      : spec->model                                         ? "--model"
                      : args->shapes && (args->preset || args->preset_file) ? "--shapes"
                                                                            : NULL;
  if (!other) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "%s beside %s: heads are named by one of these", other, list);
}

flp_status tune_heads_create(const tune_args *args, tune_heads *out) {
  *out = (tune_heads){0};
  FLP_TRY(check_one_list(args));
  out->items = calloc(TARGETS_MOST + 1, sizeof *out->items);
  if (!out->items) return flp_fail(FLP_ERROR_MEMORY, "out of memory");
  flp_status status = FLP_OK;
  if (args->preset || args->preset_file)
    status = add_presets(args, out);
  else if (args->shapes)
    status = add_shapes(args, out);
  else {
    cli_spec_args spec = args->spec;
    status = cli_spec_args_resolve(&spec);
    if (status == FLP_OK) status = add(args, out, &spec.spec, spec.scale, spec.model);
  }
  if (status != FLP_OK) tune_heads_clear(out);
  return status;
}

flp_status tune_head_arch(const tune_args *args, const tune_head *target, const flp_device *device, int driver,
                          int clusters, const char **out) {
  const char *arches[FLP_LADDER_ARCHES_MAX], *asked = args->options.arch;
  *out = NULL;
  if (!flp_ladder_arches_here(device, driver, &target->spec, asked, clusters, NULL, arches))
    return flp_fail(FLP_ERROR_UNAVAILABLE, "%s of compute capability %d.%d runs no kernels%s%s for %s", device->name,
                    device->major, device->minor, asked ? " of " : "", asked ? asked : "", target->text);
  *out = arches[0];
  return FLP_OK;
}

void tune_heads_clear(tune_heads *targets) {
  free(targets->items);
  *targets = (tune_heads){0};
}

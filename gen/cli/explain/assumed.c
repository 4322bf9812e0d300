/* assumed.c: the device that explain assumes: which kernels a plan would take there, and how they divide
 * work. */
#include <stdio.h>
#include <string.h>

#include "gen/cli/explain/explain.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/table.h"
#include "gen/cli/shared/text.h"

/* Clocks of an H200: they compare layouts, they predict no time. */
static flp_device device_of(const explain_args *args) {
  return (flp_device){.major = args->major,
                      .minor = args->minor,
                      .multiprocessors = (int)args->multiprocessors,
                      .clock_khz = 1700000,
                      .memory_clock_khz = 3201000,
                      .memory_bus_bits = 6144};
}

static flp_status generate(const flp_spec *spec, const flp_tuning *tuning, const char *arch, explain_assumed *out) {
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  const flpgen_options descriptors = {.ir_only = 1}; /* PTX is not needed, and takes ten times as long */
  int count = flp_kernel_keys_for(spec, arch, keys);
  cli_kernels kernels;
  flp_tuning_apply(tuning, keys, count);
  FLP_TRY(cli_kernels_generate(keys, count, &descriptors, NULL, &kernels));
  for (int i = 0; i < count; i++) out->desc[i] = kernels.items[i].result.desc;
  out->count = count;
  snprintf(out->arch, sizeof out->arch, "%s", arch);
  cli_kernels_destroy(&kernels);
  return FLP_OK;
}

/* Without a compiler a plan takes rung generic, if that has every kernel of the spec. */
static flp_status find_lacks(const flp_spec *spec, explain_assumed *out) {
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX], *all;
  int count, needed = flp_kernel_keys_for(spec, FLP_PORTABLE_ARCH, keys);
  FLP_TRY(cli_kernels_generic_keys(FLP_PORTABLE_ARCH, &all, &count));
  for (int i = 0; i < needed; i++) {
    flp_kernel_key generic = flp_kernel_key_generic(&keys[i], FLP_PORTABLE_ARCH);
    int has = 0;
    for (int j = 0; j < count && !has; j++) has = memcmp(&all[j], &generic, sizeof generic) == 0;
    if (!has) out->lacks[out->lack_count++] = flp_kernel_kind_name(keys[i].kind);
  }
  free(all);
  return FLP_OK;
}

flp_status explain_assume(const explain_args *args, explain_assumed *out, flp_planner *planner) {
  const flp_spec *spec = &args->spec.spec;
  flp_device device = device_of(args);
  const char *arches[FLP_LADDER_ARCHES_MAX];
  flp_tuning tuning;
  FLP_TRY(flp_tuning_parse("--tune", args->spec.tune, &tuning));
  FLP_TRY(flp_unproven_find(&device, spec, 1, 0, NULL, NULL, &out->unproven));
  int count = flp_ladder_arches(&device, spec, NULL, 1, out->unproven.arches, &tuning, arches);
  if (!count && flp_ladder_arches(&device, spec, NULL, 1, out->unproven.arches, NULL, arches))
    return cli_spec_check_tiling("--tune", args->spec.tune, spec, arches[0]);
  const flp_arch *least = flp_arch_find(FLP_PORTABLE_ARCH);
  flp_status status = flp_fail(FLP_ERROR_ARGUMENT,
                               "--capability: %d.%d is not accepted, no kernels run there; %d.%d or newer is",
                               args->major, args->minor, least->capability / 10, least->capability % 10);
  for (int i = 0; i < count && (i == 0 || (status != FLP_OK && status != FLP_ERROR_MEMORY)); i++)
    status = generate(spec, &tuning, arches[i], out); /* out of memory, another's kernels would be a wrong answer */
  FLP_TRY(status);
  FLP_TRY(find_lacks(spec, out));
  flp_planner_init(planner, spec, &args->options, &device, out->desc, out->count);
  return FLP_OK;
}

json_t *explain_assumed_json(const explain_args *args, const explain_assumed *assumed) {
  char capability[16];
  snprintf(capability, sizeof capability, "%d.%d", args->major, args->minor);
  json_t *kernels = json_array(), *lacks = json_array();
  for (int i = 0; i < assumed->lack_count; i++) json_array_append_new(lacks, json_string(assumed->lacks[i]));
  for (int i = 0; i < assumed->count; i++) json_array_append_new(kernels, cli_desc_json(&assumed->desc[i]));
  return json_pack("{s:s, s:I, s:s, s:o, s:o, s:o}", "capability", capability, "multiprocessors",
                   (json_int_t)args->multiprocessors, "arch", assumed->arch, "kernels", kernels, "generic_lacks",
                   lacks, "unproven",
                   assumed->unproven.arches ? cli_json_text(assumed->unproven.reason) : json_null());
}

/* ---- for people ---- */

static cli_short number(uint32_t value) {
  return value ? cli_shortly("%u", value) : cli_shortly("%s", "");
}

static void add_kernel(cli_table *table, const flp_kernel_desc *desc) {
  cli_table_addf(
      table, "%s\t%s\t%s\t%s\t%s\t%s\t%s", flp_kernel_kind_name(desc->key.kind), desc->key.arch,
      desc->entry_count > 1 ? cli_shortly("%u entries", desc->entry_count).text : desc->entries[0].name,
      desc->tile_rows ? cli_shortly("%u x %u x %u", desc->tile_rows, desc->tile_columns, desc->tile_depth).text : "",
      number(desc->stages).text, number(desc->cluster).text, number(desc->unit_columns).text);
}

void explain_assumed_print(const explain_args *args, const explain_assumed *assumed) {
  cli_print(2, "assumed GPU: %lld multiprocessors, compute capability %d.%d; a plan would take kernels of %s there",
            (long long)args->multiprocessors, args->major, args->minor, assumed->arch);
  if (assumed->unproven.arches) cli_print(2, "%s", assumed->unproven.reason);
  cli_table table;
  cli_table_start(&table, "kernel", "for", "entry", "tile M x N x K", "stages", "cluster", "partial columns", NULL);
  for (int i = 0; i < assumed->count; i++) add_kernel(&table, &assumed->desc[i]);
  cli_table_finish(&table);
  char lacks[512] = "all of them";
  if (assumed->lack_count) snprintf(lacks, sizeof lacks, "all but");
  for (int i = 0; i < assumed->lack_count; i++) cli_append(lacks, sizeof lacks, " ", "%s", assumed->lacks[i]);
  cli_print(2, "rung generic, which needs no compiler, has %s", lacks);
}

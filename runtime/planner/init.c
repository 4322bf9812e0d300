/* init.c: what the planner must know of kernels and device: tiles from descriptors, rates from clocks. */
#include "runtime/loss/loss.h"
#include "runtime/planner/internal.h"

/* fp32 operands take six bf16 products. */
static const double fp32_products = 6;

/* Whether both warpgroups of a mapped kernel of scores share a tile, rather than having one each: asked for, or the template's
 * choice. */
static int is_cooperative(const flp_kernel_key *key) {
  return key->tune.schedule ? key->tune.schedule == FLP_SCHEDULE_COOPERATIVE : key->dtype == FLP_DTYPE_FP32;
}

/* The layouts that tuning put into the descriptors of dz and of forward with part keep. Layouts of the options come
 * first. */
static void set_preference(flp_planner *p, const flp_kernel_desc *desc) {
  if (p->chunk_rows || p->chunk_vocab) return;
  if (desc->key.kind == FLP_FORWARD(KEEP)) p->tuned_step_rows = desc->chunk_rows;
  if (desc->key.kind != FLP_KERNEL_DZ) return;
  uint32_t two = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  flp_mode mode = desc->chunk_rows && desc->chunk_vocab ? FLP_MODE_RECOMPUTE_SPLIT
                  : desc->chunk_vocab                   ? FLP_MODE_RECOMPUTE_VOCAB
                  : desc->chunk_rows                    ? FLP_MODE_RECOMPUTE_ROWS
                                                        : (flp_mode)0;
  if ((!planner_is_free(p) && p->mode != mode) || (mode == FLP_MODE_RECOMPUTE_SPLIT && (p->spec.grads & two) != two))
    return;
  p->tuned_mode = mode;
  p->tuned_rows = desc->chunk_rows;
  p->tuned_vocab = desc->chunk_vocab;
}

static void set_forward(flp_planner *p, const flp_kernel_desc *desc, int64_t panel_rows) {
  unsigned parts = flp_kind_parts(desc->key.kind);
  if (flp_kind_is_optional(desc->key.kind)) return; /* layouts hold for both forms */
  p->least_rows = p->least_rows ? flp_min(p->least_rows, panel_rows) : panel_rows;
  if (parts & FLP_PART_KEEP) {
    p->keep_rows = flp_max(p->keep_rows, panel_rows);
    p->keep_columns = desc->unit_columns * (flp_kernel_is_mapped(desc) && !is_cooperative(&desc->key) ? 2 : 1);
  }
  if (parts & FLP_PART_EMIT) p->emit_rows = panel_rows;
  if (parts == flp_kernel_spec_parts(&p->spec)) {
    p->forward_rows = panel_rows;
    p->unit_columns = desc->unit_columns;
  }
}

static void set_tiles(flp_planner *p, const flp_kernel_desc *desc) {
  int64_t panel_rows = flp_kernel_panel_rows(desc);
  p->is_mapped |= flp_kernel_is_mapped(desc);
  switch (flp_kind_base(desc->key.kind)) {
    case FLP_KERNEL_FORWARD:
      set_forward(p, desc, panel_rows);
      break;
    case FLP_KERNEL_DZ:
    case FLP_KERNEL_DZ_LORA:
      p->dz_rows = desc->tile_rows;
      p->dz_columns = desc->tile_columns;
      p->dz_unit_rows = panel_rows;
      p->dz_unit_tiles = is_cooperative(&desc->key) ? 1 : 2;
      p->dz_cluster = desc->cluster > 1 ? (int)desc->cluster : 1;
      break;
    case FLP_KERNEL_GRAD_HIDDEN:
      p->hidden_rows = desc->tile_rows;
      p->hidden_columns = desc->tile_columns;
      break;
    case FLP_KERNEL_GRAD_WEIGHT:
      p->weight_rows = desc->tile_rows;
      p->weight_columns = desc->tile_columns;
      break;
    case FLP_KERNEL_PRODUCTS:
      p->hidden_rows = p->weight_rows = panel_rows;
      p->hidden_columns = p->weight_columns = desc->tile_columns;
      break;
    case FLP_KERNEL_LORA_PRODUCTS:
      p->lora_rows = panel_rows;
      p->lora_columns = desc->tile_columns;
      break;
    default: /* no matrix product, or one that is little beside those */
      break;
  }
}

/* The fastest architecture that the kernels are for decides how long products take, of portable ones the GPU's own.
 * Layouts are compared with each other, so what the main loop loses cancels. */
static const flp_arch *fastest(const flp_device *device, const flp_kernel_desc *descs, int count) {
  const flp_arch *best = flp_arch_of_device(device->major, device->minor);
  for (int i = 0; i < count; i++) {
    const flp_arch *arch = flp_arch_find(descs[i].key.arch);
    if (arch && arch->flops_per_clock > best->flops_per_clock) best = arch;
  }
  return best;
}

static void set_rates(flp_planner *p, const flp_device *device, const flp_arch *arch) {
  double clock = device->clock_khz > 0 ? device->clock_khz * 1e3 : arch->clock;
  p->flop_rate = arch->flops_per_clock * clock / (p->spec.dtype == FLP_DTYPE_FP32 ? fp32_products : 1);
  /* Two transfers a clock and bus line. */
  p->bandwidth = 2e3 * device->memory_clock_khz * (device->memory_bus_bits / 8.0);
  if (!(p->bandwidth > 0)) p->bandwidth = arch->bandwidth;
}

/* Whether exponentials, times the slope of a softcap, are a gradient but for a factor a row, and nothing sums
 * columns. */
static void set_forms(flp_planner *p) {
  const flp_spec *spec = &p->spec;
  flp_loss loss;
  int sums_columns = (spec->grads & FLP_GRAD_BIAS) != 0;
  p->saved_expands = sums_columns || spec->entropy == FLP_ENTROPY_BACKWARD;
  int has_loss = spec->loss && flp_loss_read(spec->loss, spec->loss_bytes, &loss) == FLP_OK;
  p->step_entropy = has_loss && (flp_loss_is_active(&loss) & FLP_LOSS_BY_ENTROPY);
  p->step_scores = has_loss && flp_loss_is_of_scores(&loss);
  p->step_mean = has_loss && flp_loss_reads_mean(&loss);
  p->mean_passes = p->step_mean && flp_kernel_spec_passes_for_mean(spec);
  p->step_expands = sums_columns || p->step_entropy || (p->step_scores && spec->softcap > 0);
}

void flp_planner_init(flp_planner *out, const flp_spec *spec, const flp_options *options, const flp_device *device,
                      const flp_kernel_desc *descs, int count) {
  *out = (flp_planner){.spec = *spec,
                       .forward_rows = 1,
                       .unit_columns = 1,
                       .dz_rows = 1,
                       .dz_columns = 1,
                       .dz_unit_rows = 1,
                       .dz_unit_tiles = 1,
                       .dz_cluster = 1,
                       .hidden_rows = 1,
                       .hidden_columns = 1,
                       .weight_rows = 1,
                       .weight_columns = 1,
                       .chunk_rows = options->chunk_rows,
                       .chunk_vocab = options->chunk_vocab,
                       .mode = options->mode,
                       .multiprocessors = device->multiprocessors > 0 ? device->multiprocessors : 1};
  for (int i = 0; i < count; i++) {
    set_tiles(out, &descs[i]);
    set_preference(out, &descs[i]);
  }
  set_forms(out);
  set_rates(out, device, fastest(device, descs, count));
}

/* kernels.c: generating the kernels of a list of keys, and the list of the shape-generic ones. */
#include "gen/cli/kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

#include "gen/cli/kernels/parallel.h"
#include "gen/cli/shared/losses.h"
#include "gen/cli/shared/option_args.h"
#include "runtime/api/validate.h"
#include "runtime/kernel/op.h"

enum { ERROR_BYTES = 1024 };

flp_status cli_kernel_generate(const flp_kernel_key *key, const flpgen_options *options, cli_kernel *out) {
  double start = cli_seconds_now();
  char error[ERROR_BYTES] = "";
  flpgen_options own = options ? *options : (flpgen_options){.loss = NULL};
  own.template_dir = cli_templates();
  if (flp_kind_has(key->kind, FLP_KIND_LOSS) && !own.loss) own.loss = cli_loss_kept(key->loss);
  flp_status status = flpgen_generate(key, &own, &out->result, error, sizeof error);
  out->seconds = cli_seconds_now() - start;
  if (status == FLP_OK) return FLP_OK;
  flp_fail(status, "%s", error);
  return flp_tuning_status("--tune", key, status);
}

typedef struct batch {
  const flp_kernel_key *keys;
  const flpgen_options *options;
  cli_kernel *items;
} batch;

static flp_status generate_one(void *context, size_t i) {
  const batch *b = context;
  return cli_kernel_generate(&b->keys[i], b->options, &b->items[i]);
}

flp_status cli_kernels_generate(const flp_kernel_key *keys, int count, const flpgen_options *options, const char *label,
                                cli_kernels *out) {
  *out = (cli_kernels){.items = calloc((size_t)count + 1, sizeof *out->items), .count = count};
  if (!out->items) return flp_fail(FLP_ERROR_MEMORY, "out of memory for %d kernels", count);
  batch all = {keys, options, out->items};
  flp_status status = cli_parallel(generate_one, &all, (size_t)count, label);
  if (status != FLP_OK) cli_kernels_destroy(out);
  return status;
}

void cli_kernels_destroy(cli_kernels *kernels) {
  for (int i = 0; kernels->items && i < kernels->count; i++) flpgen_result_clear(&kernels->items[i].result);
  free(kernels->items);
  *kernels = (cli_kernels){0};
}

/* Adds a key unless it is there already. The list has room. */
static void add_key(flp_kernel_key *keys, int *count, const flp_kernel_key *key) {
  for (int i = 0; i < *count; i++)
    if (memcmp(&keys[i], key, sizeof *key) == 0) return;
  keys[(*count)++] = *key;
}

/* What a head has beside what all have: of the parts of forward one at a time. Kernels are the same for any number of
 * targets and columns and any rank. */
static const flp_spec forms[] = {
    {.op = FLP_OP_HEAD},
    {.tail = CLI_TAIL_USUAL},
    {.targets = 2},
    {.topk = 1},
    {.statistics = 1},
    {.raw_scores = 1},
    {.lora_rank = 8},
    {.weight_dtype = FLP_DTYPE_FP32, .mixed = FLP_MIXED_ROUND},
    {.listed = 1},
    {.listed = 1, .lora_rank = 8},
    {.listed = 1, .weight_dtype = FLP_DTYPE_FP32, .mixed = FLP_MIXED_ROUND},
    {.listed = 1, .weight_dtype = FLP_DTYPE_FP32, .mixed = FLP_MIXED_SPLIT},
    {.listed = 1, .hidden_dtype = FLP_DTYPE_FP32, .mixed = FLP_MIXED_SPLIT},
};

/* Every value of a field that a generic kernel is specialised for. */
static const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32};
static const flp_dtype targets[] = {FLP_DTYPE_INT64, FLP_DTYPE_INT32};
enum {
  FORMS = sizeof forms / sizeof forms[0],
  DTYPES = 3,
  TARGETS = 2,
  CAPS = 2,
  OUTS = 2,
  ALIGNMENTS = 4,
  POINTS = DTYPES * TARGETS * CAPS * OUTS * ALIGNMENTS * FORMS,
  OP_POINTS = 4 * TARGETS * 2 /* dtypes of scores, targets, 16-byte loads or not */
};

/* Adds the key's generic form unless it is there already. */
static void add_generic(flp_kernel_key *out, int *count, const flp_kernel_key *given) {
  flp_kernel_key key;
  memset(&key, 0, sizeof key); /* padding too: keys are compared as bytes */
  flp_kernel_key generic = flp_kernel_key_generic(given, given->arch);
  memcpy(&key, &generic, sizeof key);
  add_key(out, count, &key);
}

/* The generic kernels of an operation that has no head. */
static void add_op_keys(flp_op op, const char *arch, flp_kernel_key *out, int *count) {
  for (int i = 0; i < OP_POINTS; i++) {
    flp_spec spec = FLP_SPEC_INIT;
    spec.op = op;
    spec.vocab = 2;
    spec.dtype = (flp_dtype)FLP_SCORE_DTYPE_WORDS[i % 4].value;
    spec.target_dtype = targets[i / 4 % TARGETS];
    if (i / 8) spec.alignment = (uint32_t)flp_dtype_bytes(spec.dtype);
    flp_spec resolved; /* dtypes that the operation does not take are left out */
    flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
    int needed = flp_spec_resolve(&spec, &resolved) == FLP_OK ? flp_kernel_keys_for(&resolved, arch, keys) : 0;
    for (int j = 0; j < needed; j++) add_generic(out, count, &keys[j]);
  }
}

/* The generic kernels of every loss, and of what reads values of all scores of a row. */
static void add_loss_keys(const char *arch, flp_kernel_key *out, int *count) {
  static const flp_kernel_kind kinds[] = {FLP_KERNEL_LOSS, FLP_KERNEL_LOSS_SCORES};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    flp_kernel_key key = {.kind = kinds[i], .dtype = FLP_DTYPE_FP32};
    strncpy(key.arch, arch, sizeof key.arch - 1);
    add_generic(out, count, &key);
  }
  for (int i = 0; i < DTYPES * 2; i++) {
    flp_kernel_key key = {.kind = FLP_KERNEL_MEAN, .dtype = dtypes[i % DTYPES], .alignment = i < DTYPES ? 16 : 2};
    strncpy(key.arch, arch, sizeof key.arch - 1);
    add_generic(out, count, &key);
  }
}

/* Point i of the lattice as a spec; 0 if its alignment is below the element size. */
static int spec_at(int i, flp_spec *spec) {
  *spec = forms[i % FORMS];
  spec->vocab = 2;
  spec->hidden = 8;
  spec->entropy = FLP_ENTROPY_BACKWARD;
  spec->has_bias = 1;
  spec->grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS;
  if (spec->lora_rank) spec->grads ^= FLP_GRAD_WEIGHT | FLP_GRAD_LORA_A | FLP_GRAD_LORA_B;
  int is_plain = i % FORMS == 0;
  i /= FORMS;
  spec->dtype = dtypes[i % DTYPES];
  spec->keep = is_plain && spec->dtype == FLP_DTYPE_BF16;
  i /= DTYPES;
  spec->target_dtype = targets[i % TARGETS];
  i /= TARGETS;
  spec->softcap = i % CAPS ? 30.0f : 0.0f;
  i /= CAPS;
  spec->grad_hidden_dtype = spec->grad_weight_dtype = i % OUTS ? FLP_DTYPE_FP32 : spec->dtype;
  i /= OUTS;
  spec->alignment = 16u >> i;
  return spec->alignment >= flp_dtype_bytes(spec->dtype) && !(spec->mixed && spec->dtype == FLP_DTYPE_FP32);
}

/* The generic kernels of products that add what a mean score gives to gradients of 16 bits. */
static void add_mean_keys(const char *arch, flp_kernel_key *out, int *count) {
  static const flp_kernel_kind kinds[] = {FLP_KERNEL_GRAD_HIDDEN, FLP_KERNEL_GRAD_WEIGHT, FLP_KERNEL_PRODUCTS};
  for (int i = 0; i < 3 * 2 * 2; i++) {
    flp_dtype dtype = dtypes[i / 3 % 2];
    flp_kernel_key key = {
        .kind = kinds[i % 3], .dtype = dtype, .out_dtype = dtype, .bias = 1, .alignment = i < 6 ? 16 : 2};
    const flp_arch *given = flp_arch_find(arch),
                   *maker = flp_arch_find(flp_arch_of_kind(arch, key.kind, key.alignment, dtype));
    int makes_both = flp_arch_makes(given, FLP_KERNEL_PRODUCTS);
    if (!flp_arch_makes(maker, key.kind) || maker != given || makes_both != (key.kind == FLP_KERNEL_PRODUCTS)) continue;
    strncpy(key.arch, arch, sizeof key.arch - 1);
    add_generic(out, count, &key);
  }
}

static void add_generic_keys(const char *arch, flp_kernel_key *out, int *count) {
  for (int i = 0; i < POINTS; i++) {
    flp_spec spec;
    flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
    int needed = spec_at(i, &spec) ? flp_kernel_keys_for(&spec, arch, keys) : 0;
    for (int j = 0; j < needed; j++) add_generic(out, count, &keys[j]);
  }
  add_mean_keys(arch, out, count);
}

flp_status cli_kernels_generic_keys(const char *arch, flp_kernel_key **out, int *count) {
  int is_portable = strcmp(arch, FLP_PORTABLE_ARCH) == 0;
  *count = 0;
  *out = calloc((POINTS * (1 + FLP_ARCHES_MAX) + OP_POINTS * FLP_OP_COUNT) * FLP_SPEC_KERNELS_MAX + 1, sizeof **out);
  if (!*out) return flp_fail(FLP_ERROR_MEMORY, "out of memory");
  add_generic_keys(arch, *out, count);
  for (int op = 0; op < FLP_OP_COUNT; op++)
    if (!flp_op_of((flp_op)op)->has_head) add_op_keys((flp_op)op, arch, *out, count);
  add_loss_keys(arch, *out, count);
  /* Beside the portable kernels those of other architectures that plans take by themselves. */
  const flp_arch *other;
  for (int i = 0; is_portable && (other = flp_arch_at(i)); i++)
    if ((other->facts & (FLP_ARCH_PLANNED | FLP_ARCH_UNPROVEN)) == FLP_ARCH_PLANNED && other->below)
      add_generic_keys(other->name, *out, count);
  return FLP_OK;
}

flp_status cli_kernels_target(const char *arch, char target[16]) {
  const flp_arch *serving = flp_arch_serving(arch);
  if (!serving)
    return flp_fail(
        FLP_ERROR_ARGUMENT,
        "--arch: expected " FLP_PORTABLE_ARCH " or newer, e.g. " FLP_PORTABLE_ARCH ", sm_90, sm_100, got '%s'", arch);
  memset(target, 0, 16);
  strncpy(target, flpgen_arch_supported(serving->name) ? serving->name : FLP_PORTABLE_ARCH, 15);
  return FLP_OK;
}

/* inputs.c: the tensors of `flpgen run`, found in safetensors files and checked to fit together. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gen/cli/call/lists.h"
#include "gen/cli/run/run.h"
#include "gen/cli/shared/hfconfig.h"
#include "gen/cli/shared/text.h"
#include "runtime/api/validate.h"
#include "runtime/base/operands.h"
#include "runtime/kernel/features.h"

enum { NAMES_MAX = 4 };

/* What an operand is called in files, first choice first, and in messages. */
static const struct {
  const char *option;
  const char *names[NAMES_MAX];
  int required;
} operands[FLP_ARRAYS] = {
    [FLP_ARRAY_hidden] = {"hidden", {"hidden", "hidden_states"}, 1},
    [FLP_ARRAY_weight] = {"weight", {"weight", "lm_head.weight", "model.embed_tokens.weight"}, 1},
    [FLP_ARRAY_bias] = {"bias", {"bias", "lm_head.bias"}, 0},
    [FLP_ARRAY_target] = {"target", {"target", "targets", "labels"}, 1},
    [FLP_ARRAY_temperature_rows] = {"temperature", {"temperature"}, 0},
    [FLP_ARRAY_grad_logprob] = {"grad-logprob", {"grad_logprob"}, 0},
    [FLP_ARRAY_grad_entropy] = {"grad-entropy", {"grad_entropy"}, 0},
    [FLP_ARRAY_list_offsets] = {"list-offsets", {"list_offsets"}, 0},
    [FLP_ARRAY_list_ids] = {"list-ids", {"list_ids"}, 0},
    [FLP_ARRAY_lora_a] = {"lora-a", {"lora_a", "lora_A.weight", "base_model.model.lm_head.lora_A.weight"}, 0},
    [FLP_ARRAY_lora_b] = {"lora-b", {"lora_b", "lora_B.weight", "base_model.model.lm_head.lora_B.weight"}, 0},
    [FLP_ARRAY_old_logprob] = {"old-logprob", {"old_logprob"}, 0},
    [FLP_ARRAY_ref_logprob] = {"ref-logprob", {"ref_logprob"}, 0},
    [FLP_ARRAY_advantage] = {"advantage", {"advantage", "advantages"}, 0},
    [FLP_ARRAY_row_weight] = {"row-weight", {"row_weight"}, 0},
    [FLP_ARRAY_teacher_logprob] = {"teacher-logprob", {"teacher_logprob"}, 0},
};

const char *run_operand_option(flp_array_id id) {
  return operands[id].option;
}

static int is_vector(flp_array_id id) {
  return id >= FLP_ARRAY_vectors && id <= FLP_ARRAY_vectors_last;
}

static int is_operand(flp_array_id id) {
  return operands[id].option || is_vector(id);
}

int run_loss_input(flp_array_id id) {
  if (id == FLP_ARRAY_teacher_logprob) return FLP_LOSS_TEACHER_LOGPROB;
  int is_input = id >= FLP_ARRAY_old_logprob && id <= FLP_ARRAY_vectors_last;
  return is_input ? FLP_LOSS_OLD_LOGPROB + (int)(id - FLP_ARRAY_old_logprob) : -1;
}

/* A tensor and the file it was found in. */
typedef struct found {
  const cli_tensor *tensor;
  const char *path;
} found;

/* Opens a file once, however often it is named. */
static flp_status open_file(run_problem *problem, const char *path, cli_safetensors **out) {
  for (int i = 0; i < problem->file_count; i++)
    if (strcmp(cli_safetensors_path(problem->files[i]), path) == 0) {
      *out = problem->files[i];
      return FLP_OK;
    }
  FLP_TRY(cli_safetensors_open(path, out));
  problem->files[problem->file_count++] = *out; /* room for every input and one a operand */
  return FLP_OK;
}

static const cli_tensor *find_default(const run_problem *problem, const cli_safetensors *file, flp_array_id id) {
  const cli_tensor *tensor = NULL;
  if (is_vector(id)) return cli_safetensors_find(file, problem->loss->vectors[id - FLP_ARRAY_vectors]);
  for (int i = 0; !tensor && i < NAMES_MAX && operands[id].names[i]; i++)
    tensor = cli_safetensors_find(file, operands[id].names[i]);
  return tensor;
}

/* The first few names of a file, for messages. */
static void list_names(const cli_safetensors *file, char *out, size_t capacity) {
  size_t count = cli_safetensors_count(file);
  out[0] = 0;
  for (size_t i = 0; i < count && i < 8; i++) cli_append(out, capacity, ", ", "%s", cli_safetensors_get(file, i)->name);
  if (count > 8) cli_append(out, capacity, ", ", "... (%zu in all)", count);
}

/* Finds what "FILE:TENSOR" or "FILE" names. */
static flp_status find_source(run_problem *problem, flp_array_id id, const char *source, found *out) {
  char *path = strdup(source);
  if (!path) return flp_fail(FLP_ERROR_MEMORY, "out of memory");
  char *colon = strrchr(path, ':');
  const char *name = NULL;
  if (colon && access(path, F_OK) != 0) {
    *colon = 0;
    name = colon + 1;
  }
  cli_safetensors *file = NULL;
  flp_status status = open_file(problem, path, &file);
  if (status == FLP_OK) {
    out->path = cli_safetensors_path(file);
    out->tensor = name ? cli_safetensors_find(file, name) : find_default(problem, file, id);
    char names[512];
    list_names(file, names, sizeof names);
    if (!out->tensor)
      status = flp_fail(FLP_ERROR_ARGUMENT, "--%s: %s has no tensor '%s'; it has %s", operands[id].option, path,
                        name ? name : operands[id].names[0], names[0] ? names : "none");
  }
  free(path);
  return status;
}

/* What the loss does not read is not looked for. */
static int is_read(const run_problem *problem, flp_array_id id) {
  int input = run_loss_input(id);
  return input < 0 || (problem->loss && flp_loss_inputs(problem->loss) >> input & 1);
}

/* Read, and without the default that a weight and an old policy have. */
static int needs_input(const run_problem *problem, flp_array_id id) {
  return run_loss_input(id) >= 0 && id != FLP_ARRAY_row_weight && id != FLP_ARRAY_old_logprob && is_read(problem, id);
}

static flp_status find_operand(run_problem *problem, const run_args *args, flp_array_id id, found *out) {
  *out = (found){NULL, NULL};
  if (!is_read(problem, id)) return FLP_OK;
  const char *source = args->source[id];
  if (source) return find_source(problem, id, source, out);
  for (int i = 0; !out->tensor && i < args->files.count; i++) {
    cli_safetensors *file = NULL;
    FLP_TRY(open_file(problem, args->files.text[i], &file));
    out->tensor = find_default(problem, file, id);
    out->path = args->files.text[i];
  }
  if (!out->tensor && needs_input(problem, id)) {
    const char *name = flp_loss_input_name(problem->loss, (uint32_t)run_loss_input(id));
    return flp_fail(FLP_ERROR_ARGUMENT, "%s is missing; loss %s reads it: a tensor '%s' in an --input file is needed",
                    name, problem->loss->name, name);
  }
  if (!out->tensor && operands[id].required)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--%s is missing; a tensor '%s' in an --input file, or --%s FILE:TENSOR, is needed",
                    operands[id].option, operands[id].names[0], operands[id].option);
  return FLP_OK;
}

/* what: shape or dtype; is: the tensor's; format: what would be accepted */
static flp_status fail_tensor(flp_array_id id, const found *in, const char *what, const char *is, const char *format,
                              ...) __attribute__((format(printf, 5, 6)));
static flp_status fail_tensor(flp_array_id id, const found *in, const char *what, const char *is, const char *format,
                              ...) {
  char accepted[96];
  va_list list;
  va_start(list, format);
  vsnprintf(accepted, sizeof accepted, format, list);
  va_end(list);
  return flp_fail(FLP_ERROR_ARGUMENT, "%s: tensor '%s' of %s has %s %s; %s is accepted", operands[id].option,
                  in->tensor->name, in->path, what, is, accepted);
}

#define fail_shape(id, in, ...) \
  fail_tensor(id, in, "shape", cli_tensor_shape_text((in)->tensor, (char[CLI_TENSOR_TEXT_BYTES]){0}), __VA_ARGS__)
#define fail_dtype(id, in, ...) fail_tensor(id, in, "dtype", cli_tensor_dtype_name((in)->tensor->dtype), __VA_ARGS__)

/* Of two operands that go together one alone. error: ARGUMENT */
static flp_status check_pair(flp_array_id a, flp_array_id b, const found in[FLP_ARRAYS]) {
  if (!in[a].tensor == !in[b].tensor) return FLP_OK;
  flp_array_id missing = in[a].tensor ? b : a, there = in[a].tensor ? a : b;
  return flp_fail(
      FLP_ERROR_ARGUMENT, "--%s is missing beside %s; a tensor '%s' in an --input file, or --%s FILE:TENSOR, is needed",
      operands[missing].option, operands[there].option, operands[missing].names[0], operands[missing].option);
}

static int is_narrow(cli_tensor_dtype dtype) {
  return dtype == CLI_TENSOR_BF16 || dtype == CLI_TENSOR_F16;
}

/* One dtype, or with --mixed F32 and one of 16 bits, which products have then. */
static flp_status check_dtypes(const run_args *args, run_problem *problem, const found *hidden, const found *weight) {
  cli_tensor_dtype h = hidden->tensor->dtype, w = weight->tensor->dtype;
  if (!is_narrow(h) && h != CLI_TENSOR_F32) return fail_dtype(FLP_ARRAY_hidden, hidden, "BF16, F16 or F32");
  int are_mixed = (is_narrow(h) && w == CLI_TENSOR_F32) || (h == CLI_TENSOR_F32 && is_narrow(w));
  if (w != h && !(args->spec.mixed && are_mixed)) {
    return fail_dtype(FLP_ARRAY_weight, weight, "%s, as hidden has, or with --mixed %s,", cli_tensor_dtype_name(h),
                      is_narrow(h) ? "F32" : "BF16 or F16");
  }
  flp_spec *spec = &problem->spec;
  spec->hidden_dtype = cli_tensor_dtype_flp(h);
  spec->weight_dtype = cli_tensor_dtype_flp(w);
  spec->dtype = is_narrow(h) ? spec->hidden_dtype : spec->weight_dtype;
  spec->mixed = args->spec.mixed;
  return FLP_OK;
}

/* That of the products, or with --mixed round F32; and with --mixed some operand has another than others. */
static flp_status check_bias(const run_args *args, run_problem *problem, const found *bias) {
  flp_spec *spec = &problem->spec;
  const char *own = cli_tensor_dtype_name(cli_tensor_dtype_of(spec->dtype));
  if (bias->tensor) {
    flp_dtype dtype = cli_tensor_dtype_flp(bias->tensor->dtype);
    int is_wide = args->spec.mixed == FLP_MIXED_ROUND && dtype == FLP_DTYPE_FP32;
    const char *more = spec->dtype == FLP_DTYPE_FP32 ? "" : ", or with --mixed round F32,";
    if (dtype != spec->dtype && !is_wide) return fail_dtype(FLP_ARRAY_bias, bias, "%s%s", own, more);
    spec->bias_dtype = dtype;
  }
  int is_mixed = spec->hidden_dtype != spec->weight_dtype || (bias->tensor && spec->bias_dtype != spec->dtype);
  if (args->spec.mixed && !is_mixed)
    return flp_fail(FLP_ERROR_ARGUMENT, "--mixed: '%s' is not accepted, as all operands have dtype %s",
                    flp_mixed_name(args->spec.mixed), own);
  return FLP_OK;
}

/* hidden (..., D) and weight (V, D) decide D, V and N. */
static flp_status check_matrices(run_problem *problem, const found *hidden, const found *weight) {
  const cli_tensor *h = hidden->tensor, *w = weight->tensor;
  if (h->rank < 2) return fail_shape(FLP_ARRAY_hidden, hidden, "(..., D) of at least two dimensions");
  if (w->rank != 2) return fail_shape(FLP_ARRAY_weight, weight, "(V, D)");
  int64_t columns = h->shape[h->rank - 1];
  if (w->shape[1] != columns) {
    return fail_shape(FLP_ARRAY_weight, weight, "(V, %lld), as hidden has D = %lld,", (long long)columns,
                      (long long)columns);
  }
  problem->spec.hidden = columns;
  problem->spec.vocab = w->shape[0];
  problem->n = columns > 0 ? (int64_t)(h->elements / (uint64_t)columns) : 0;
  return FLP_OK;
}

/* Whether a tensor has an element for each target, those of a row side by side. */
static int is_by_target(const run_problem *problem, const cli_tensor *tensor) {
  int64_t targets = flp_spec_targets(&problem->spec);
  int has_rows = targets == 1 || (tensor->rank >= 2 && tensor->shape[tensor->rank - 1] == targets);
  return has_rows && tensor->elements == (uint64_t)(problem->n * targets);
}

static flp_status check_target(run_problem *problem, const found *target) {
  const cli_tensor *tensor = target->tensor;
  flp_dtype dtype = cli_tensor_dtype_flp(tensor->dtype);
  if (dtype != FLP_DTYPE_INT32 && dtype != FLP_DTYPE_INT64) return fail_dtype(FLP_ARRAY_target, target, "I32 or I64");
  int64_t targets = flp_spec_targets(&problem->spec);
  if (!is_by_target(problem, tensor) && targets > 1)
    return fail_shape(FLP_ARRAY_target, target, "(..., %lld) of %lld rows, as --targets and hidden say,",
                      (long long)targets, (long long)problem->n);
  if (!is_by_target(problem, tensor))
    return fail_shape(FLP_ARRAY_target, target, "one of %lld elements, a row of hidden each,", (long long)problem->n);
  problem->spec.target_dtype = dtype;
  problem->rank = tensor->rank;
  memcpy(problem->shape, tensor->shape, sizeof problem->shape);
  return FLP_OK;
}

/* A vector of `count` elements of one dtype. */
static flp_status check_vector(flp_array_id id, const found *in, cli_tensor_dtype dtype, int64_t count,
                               const char *what) {
  if (!in->tensor) return FLP_OK;
  if (in->tensor->dtype != dtype) return fail_dtype(id, in, "%s", cli_tensor_dtype_name(dtype));
  if (in->tensor->elements != (uint64_t)count)
    return fail_shape(id, in, "one of %lld elements, a %s each,", (long long)count, what);
  return FLP_OK;
}

/* Both or neither, and not beside a loss: without them it would be that of the whole vocabulary. */
static flp_status check_lists(run_problem *problem, const found in[FLP_ARRAYS]) {
  const found *offsets = &in[FLP_ARRAY_list_offsets], *ids = &in[FLP_ARRAY_list_ids];
  const cli_tensor *o = offsets->tensor, *i = ids->tensor;
  if (!o && !i) return FLP_OK;
  if (problem->loss)
    return flp_fail(
        FLP_ERROR_ARGUMENT, "%s: tensor '%s' of %s is not accepted beside --loss; steps take the whole vocabulary",
        operands[o ? FLP_ARRAY_list_offsets : FLP_ARRAY_list_ids].option, (o ? o : i)->name, (o ? offsets : ids)->path);
  FLP_TRY(check_pair(FLP_ARRAY_list_offsets, FLP_ARRAY_list_ids, in));
  if (o->dtype != CLI_TENSOR_I64) return fail_dtype(FLP_ARRAY_list_offsets, offsets, "I64");
  if (o->elements != (uint64_t)problem->n + 1)
    return fail_shape(FLP_ARRAY_list_offsets, offsets, "one of %lld elements, one more than rows of hidden,",
                      (long long)problem->n + 1);
  if (cli_tensor_dtype_flp(i->dtype) != problem->spec.target_dtype)
    return fail_dtype(FLP_ARRAY_list_ids, ids, "%s, as target has,",
                      problem->spec.target_dtype == FLP_DTYPE_INT32 ? "I32" : "I64");
  problem->list_count = (int64_t)i->elements;
  problem->spec.listed = 1;
  return FLP_OK;
}

/* One of them: as many rows as rank says, or of that many columns. */
static flp_status check_lora_shape(flp_array_id id, const found *in, const found *hidden, const int64_t shape[2],
                                   const char *rule) {
  if (in->tensor->dtype != hidden->tensor->dtype)
    return fail_dtype(id, in, "%s, as hidden has,", cli_tensor_dtype_name(hidden->tensor->dtype));
  if (in->tensor->rank != 2 || in->tensor->shape[0] != shape[0] || in->tensor->shape[1] != shape[1])
    return fail_shape(id, in, "(%lld, %lld), %s,", (long long)shape[0], (long long)shape[1], rule);
  return FLP_OK;
}

/* A (R, D) and B (V, R): both or neither. */
static flp_status check_lora(run_problem *problem, const found in[FLP_ARRAYS]) {
  const found *a = &in[FLP_ARRAY_lora_a], *b = &in[FLP_ARRAY_lora_b], *hidden = &in[FLP_ARRAY_hidden];
  if (!a->tensor && !b->tensor) return FLP_OK;
  FLP_TRY(check_pair(FLP_ARRAY_lora_a, FLP_ARRAY_lora_b, in));
  int64_t rank = a->tensor->rank == 2 ? a->tensor->shape[0] : 0;
  if (rank < 8 || rank > FLP_LORA_RANK_MAX || rank % 8)
    return fail_shape(FLP_ARRAY_lora_a, a, "(R, D), R a multiple of 8 from 8 to 512,");
  const int64_t of_a[2] = {rank, problem->spec.hidden}, of_b[2] = {problem->spec.vocab, rank};
  FLP_TRY(check_lora_shape(FLP_ARRAY_lora_a, a, hidden, of_a, "D as hidden has"));
  FLP_TRY(check_lora_shape(FLP_ARRAY_lora_b, b, hidden, of_b, "V as weight and R as lora-a has"));
  problem->spec.lora_rank = (int32_t)rank;
  return FLP_OK;
}

static flp_status check_teacher(const run_problem *problem, const found *in) {
  if (!in->tensor) return FLP_OK;
  if (in->tensor->dtype != CLI_TENSOR_F32) return fail_dtype(FLP_ARRAY_teacher_logprob, in, "F32");
  if (is_by_target(problem, in->tensor)) return FLP_OK;
  return fail_shape(FLP_ARRAY_teacher_logprob, in, "(..., %lld) of %lld rows, as target has,",
                    (long long)flp_spec_targets(&problem->spec), (long long)problem->n);
}

/* Elements of a vector over rows; grad_logprob has one a target. */
static int64_t count_of(const run_problem *problem, flp_array_id id) {
  return problem->n * (FLP_ARRAY[id].columns == FLP_SIZE_K ? flp_spec_targets(&problem->spec) : 1);
}

static flp_status check_all(const run_args *args, run_problem *problem, const found in[FLP_ARRAYS]) {
  FLP_TRY(check_dtypes(args, problem, &in[FLP_ARRAY_hidden], &in[FLP_ARRAY_weight]));
  FLP_TRY(check_matrices(problem, &in[FLP_ARRAY_hidden], &in[FLP_ARRAY_weight]));
  FLP_TRY(check_target(problem, &in[FLP_ARRAY_target]));
  FLP_TRY(check_bias(args, problem, &in[FLP_ARRAY_bias]));
  cli_tensor_dtype bias = in[FLP_ARRAY_bias].tensor ? in[FLP_ARRAY_bias].tensor->dtype : CLI_TENSOR_F32;
  FLP_TRY(check_vector(FLP_ARRAY_bias, &in[FLP_ARRAY_bias], bias, problem->spec.vocab, "row of weight"));
  FLP_TRY(check_lists(problem, in));
  FLP_TRY(check_lora(problem, in));
  FLP_TRY(check_teacher(problem, &in[FLP_ARRAY_teacher_logprob]));
  for (int i = 0; i < FLP_ARRAYS; i++)
    if (FLP_ARRAY[i].element == FLP_ELEMENT_FLOAT && i != FLP_ARRAY_teacher_logprob)
      FLP_TRY(
          check_vector((flp_array_id)i, &in[i], CLI_TENSOR_F32, count_of(problem, (flp_array_id)i),
                       FLP_ARRAY[i].columns == FLP_SIZE_K && problem->spec.targets > 1 ? "target" : "row of hidden"));
  for (int i = 0; i < FLP_ARRAYS; i++)
    if (in[i].tensor) problem->operand[i] = in[i].tensor->data;
  return FLP_OK;
}

/* Infinity and NaN too: they are refused as numbers, not looked for as files. */
static int is_number(const char *text) {
  char *end;
  strtod(text, &end);
  return end != text && !*end;
}

/* error: ARGUMENT for what has no place beside a loss or without one */
static flp_status check_loss_sources(const run_args *args) {
  for (int i = 0; i < FLP_ARRAYS; i++) {
    int of_loss = run_loss_input((flp_array_id)i) >= 0;
    int is_upstream = i == FLP_ARRAY_grad_logprob || i == FLP_ARRAY_grad_entropy;
    if (!args->source[i] || !(of_loss || is_upstream) || of_loss == (args->loss.name != NULL)) continue;
    return flp_fail(FLP_ERROR_ARGUMENT, "--%s: '%s' is not accepted %s --loss%s", operands[i].option, args->source[i],
                    of_loss ? "without" : "beside", of_loss ? "" : ", which makes its own");
  }
  return FLP_OK;
}

flp_status run_problem_loss(run_args *args, run_problem *problem) {
  const char *teacher = args->source[FLP_ARRAY_teacher_logprob];
  FLP_TRY(check_loss_sources(args));
  problem->spec.targets = args->spec.targets;
  FLP_TRY(cli_loss_args_resolve(&args->loss, &problem->spec));
  problem->loss = cli_loss_of(&problem->spec);
  if (!teacher || is_read(problem, FLP_ARRAY_teacher_logprob)) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "--teacher-logprob: '%s' is not accepted beside --loss %s, which does not read it", teacher,
                  problem->loss->name);
}

flp_status run_problem_load(run_args *args, run_problem *out) {
  *out = (run_problem){.spec = FLP_SPEC_INIT, .temperature = 1.0, .ignore_index = args->ignore_index};
  found in[FLP_ARRAYS] = {{NULL, NULL}};
  const char *temperature = args->source[FLP_ARRAY_temperature_rows];
  int scalar = temperature && is_number(temperature);
  if (args->demo_option[0])
    return flp_fail(FLP_ERROR_ARGUMENT, "%s: is accepted with --demo only; tensors have their own", args->demo_option);
  flp_status status = run_problem_loss(args, out);
  if (status == FLP_OK && scalar) status = cli_parse_positive("--temperature", temperature, &out->temperature);
  for (int i = 0; status == FLP_OK && i < FLP_ARRAYS; i++)
    if (is_operand((flp_array_id)i) && (i != FLP_ARRAY_temperature_rows || !scalar))
      status = find_operand(out, args, (flp_array_id)i, &in[i]);
  if (status == FLP_OK) status = check_all(args, out, in);
  if (status == FLP_OK) status = run_problem_resolve(args, out);
  return status;
}

void run_problem_clear(run_problem *problem) {
  for (int i = 0; i < problem->file_count; i++) cli_safetensors_close(problem->files[i]);
  for (int i = 0; i < FLP_ARRAYS; i++) free(problem->memory[i]);
  *problem = (run_problem){.n = 0};
}

/* error: ARGUMENT */
static flp_status check_adapter(const run_args *args, const run_problem *problem) {
  const uint32_t own = FLP_GRAD_LORA_A | FLP_GRAD_LORA_B, grads = args->spec.grads;
  int has_adapter = problem->spec.lora_rank > 0;
  if (!has_adapter && args->has_lora_scale)
    return flp_fail(FLP_ERROR_ARGUMENT, "--lora-scale: not accepted without an adapter, --lora-a and --lora-b");
  if (!has_adapter && (grads & own))
    return flp_fail(FLP_ERROR_ARGUMENT, "--grad: '%s' is not accepted without an adapter, --lora-a and --lora-b",
                    grads & FLP_GRAD_LORA_A ? "lora_a" : "lora_b");
  if (has_adapter && (grads & FLP_GRAD_WEIGHT))
    return flp_fail(FLP_ERROR_ARGUMENT, "--grad: 'weight' is not accepted beside an adapter, whose weight is frozen");
  return FLP_OK;
}

/* Gradients that are made where --grad says nothing. */
static uint32_t all_gradients(const flp_spec *spec) {
  uint32_t head = spec->lora_rank ? FLP_GRAD_LORA_A | FLP_GRAD_LORA_B : FLP_GRAD_WEIGHT;
  return FLP_GRAD_HIDDEN | head | (spec->has_bias ? (uint32_t)FLP_GRAD_BIAS : 0u);
}

static flp_status resolve_gradients(const run_args *args, run_problem *problem) {
  flp_spec *spec = &problem->spec;
  int upstream = problem->operand[FLP_ARRAY_grad_logprob] || problem->operand[FLP_ARRAY_grad_entropy] || problem->loss;
  FLP_TRY(check_adapter(args, problem));
  if (run_given(args, FLP_FIELD_grads) && !upstream)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--grad: there is no upstream gradient; --grad-logprob, --grad-entropy or both, or --loss, "
                    "are needed");
  if (run_given(args, FLP_FIELD_grads) && (args->spec.grads & FLP_GRAD_BIAS) && !spec->has_bias)
    return flp_fail(FLP_ERROR_ARGUMENT, "--grad: 'bias' is not accepted without a bias");
  if (upstream) spec->grads = run_given(args, FLP_FIELD_grads) ? args->spec.grads : all_gradients(spec);
  spec->entropy = args->spec.entropy;
  if (problem->operand[FLP_ARRAY_grad_entropy]) {
    if (run_given(args, FLP_FIELD_entropy) && args->spec.entropy == FLP_ENTROPY_NONE)
      return flp_fail(FLP_ERROR_ARGUMENT, "--entropy: 'none' is not accepted with a gradient of the entropy");
    spec->entropy = FLP_ENTROPY_BACKWARD;
  }
  if (spec->entropy < cli_loss_entropy(spec)) spec->entropy = cli_loss_entropy(spec);
  spec->tail = args->spec.tail;
  if (args->spec.tail > 0 && !upstream)
    return flp_fail(
        FLP_ERROR_ARGUMENT,
        "--tail: there is no upstream gradient; --grad-logprob, --grad-entropy or both, or --loss, are needed");
  spec->topk = args->spec.topk;
  spec->rank = args->spec.rank;
  if (args->spec.topk > spec->vocab)
    return flp_fail(FLP_ERROR_ARGUMENT, "--topk: expected 1 to the %lld ids of the vocabulary, got %d",
                    (long long)spec->vocab, args->spec.topk);
  spec->grad_hidden_dtype = args->spec.grad_hidden_dtype;
  spec->grad_weight_dtype = args->spec.grad_weight_dtype;
  return flp_features_check(spec, FLP_SURFACE_OPTION);
}

flp_status run_problem_resolve(const run_args *args, run_problem *problem) {
  cli_hfconfig model = {.scale = 1.0};
  if (args->model) FLP_TRY(cli_hfconfig_read(args->model, &model));
  flp_spec *spec = &problem->spec;
  problem->scale = args->has_scale ? args->scale : model.scale;
  spec->softcap = run_given(args, FLP_FIELD_softcap) ? args->spec.softcap : (float)model.softcap;
  spec->has_bias = problem->operand[FLP_ARRAY_bias] != NULL;
  spec->per_row_temperature = problem->operand[FLP_ARRAY_temperature_rows] != NULL;
  FLP_TRY(resolve_gradients(args, problem));
  flp_spec resolved;
  FLP_TRY(flp_spec_resolve(spec, &resolved));
  *spec = resolved;
  return FLP_OK;
}

int64_t run_problem_first(const run_problem *problem, int64_t row) {
  int64_t count = flp_spec_targets(&problem->spec);
  for (int64_t at = row * count; at < (row + 1) * count; at++)
    if (run_problem_target(problem, at) != problem->ignore_index) return at;
  return -1;
}

int64_t run_problem_target(const run_problem *problem, int64_t at) {
  return cli_id_at(problem->spec.target_dtype, problem->operand[FLP_ARRAY_target], at);
}

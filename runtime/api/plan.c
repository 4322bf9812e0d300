/* plan.c: creates, checks and destroys plans, and answers their workspace queries. */
#include "runtime/plan/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/api/execute.h"
#include "runtime/api/op.h"
#include "runtime/api/validate.h"
#include "runtime/base/operands.h"
#include "runtime/base/process.h"
#include "runtime/base/quantity.h"
#include "runtime/base/status.h"
#include "runtime/base/structs.h"
#include "runtime/eager/eager.h"
#include "runtime/kernel/op.h"

/* ---- creation ---- */

static flp_status make_error_word(flp_plan *plan) {
  enum { ERROR_WORD_BYTES = 2 * sizeof(int32_t) };
  const flp_driver *driver = plan->driver;
  FLP_TRY(flp_driver_status(driver, driver->cuMemAlloc_v2(&plan->error_word, ERROR_WORD_BYTES), "cuMemAlloc"));
  FLP_TRY(flp_driver_status(driver, driver->cuMemsetD8Async(plan->error_word, 0, ERROR_WORD_BYTES, NULL),
                            "cuMemsetD8Async"));
  return flp_driver_status(driver, driver->cuStreamSynchronize(NULL), "cuStreamSynchronize");
}

/* The loss as data, where no kernel was compiled for it. */
static flp_status make_program(flp_plan *plan) {
  const flp_driver *driver = plan->driver;
  flp_loss_code code;
  int wanted = 0;
  for (int i = 0; i < plan->modules.count; i++) wanted |= flp_kernel_runs_any_loss(&plan->modules.desc[i].key);
  if (!wanted) return FLP_OK;
  flp_loss_encode(&plan->loss, &code);
  FLP_TRY(flp_driver_status(driver, driver->cuMemAlloc_v2(&plan->program, sizeof code), "cuMemAlloc"));
  FLP_TRY(flp_driver_status(driver, driver->cuMemcpyHtoDAsync_v2(plan->program, &code, sizeof code, NULL),
                            "cuMemcpyHtoDAsync"));
  return flp_driver_status(driver, driver->cuStreamSynchronize(NULL), "cuStreamSynchronize");
}

static void release_device(flp_plan *plan) {
  const flp_driver *driver = plan->driver;
  if (!plan->context || plan->process != flp_process()) return; /* the context is the parent's, and lives on there */
  CUcontext popped;
  if (driver->cuCtxPushCurrent_v2(plan->context) == 0) {
    flp_loader_unload(driver, &plan->modules);
    if (plan->error_word) driver->cuMemFree_v2(plan->error_word);
    if (plan->program) driver->cuMemFree_v2(plan->program);
    driver->cuCtxPopCurrent_v2(&popped);
  }
  driver->cuDevicePrimaryCtxRelease_v2(plan->device.handle);
  plan->context = NULL;
  plan->error_word = plan->program = 0;
}

/* The work of creation that needs the context current. */
static flp_status fill_device_plan(flp_plan *plan) {
  FLP_TRY(flp_ladder_climb(plan));
  if (plan->rung == FLP_RUNG_EAGER) return FLP_OK;
  flp_planner_init(&plan->planner, &plan->spec, &plan->options, &plan->device, plan->modules.desc, plan->modules.count);
  FLP_TRY(make_program(plan));
  return make_error_word(plan);
}

static flp_status create_in_context(flp_plan *plan) {
  const flp_driver *driver = plan->driver;
  FLP_TRY(flp_driver_status(driver, driver->cuCtxPushCurrent_v2(plan->context), "cuCtxPushCurrent"));
  flp_status status = fill_device_plan(plan);
  CUcontext popped;
  CUresult result = driver->cuCtxPopCurrent_v2(&popped);
  if (status == FLP_OK) status = flp_driver_status(driver, result, "cuCtxPopCurrent");
  if (status == FLP_OK && plan->rung == FLP_RUNG_EAGER) release_device(plan);
  return status;
}

static flp_status create_on_device(flp_plan *plan) {
  flp_status status = flp_driver_get(&plan->driver);
  if (status == FLP_ERROR_UNAVAILABLE) return flp_ladder_without_device(plan, flp_error_detail());
  FLP_TRY(status);
  FLP_TRY(flp_device_get(plan->driver, plan->options.device, &plan->device));
  CUcontext context = NULL;
  status = flp_driver_status(plan->driver, plan->driver->cuDevicePrimaryCtxRetain(&context, plan->device.handle),
                             "cuDevicePrimaryCtxRetain");
  if (status != FLP_OK)
    return plan->options.host_fallback ? flp_ladder_without_device(plan, flp_error_detail()) : status;
  plan->context = context;
  plan->process = flp_process();
  return create_in_context(plan);
}

static flp_status fill_plan(flp_plan *plan) {
  if (plan->options.device == FLP_DEVICE_HOST)
    return flp_ladder_without_device(plan, "options.device is FLP_DEVICE_HOST");
  if (plan->options.rung == FLP_RUNG_EAGER) return flp_ladder_without_device(plan, "rung eager is pinned");
  return create_on_device(plan);
}

/* A weight in slices meets all rows, a slice at a time. */
static flp_status check_slices(const flp_spec *spec, const flp_options *options) {
  if (!flp_op_of(spec->op)->has_head || !flp_weight_is_sliced(spec)) return FLP_OK;
  const char *what = flp_weight_dtype(spec) != spec->dtype ? "an fp32 weight" : "two terms of hidden";
  if (options->mode && options->mode != FLP_MODE_RECOMPUTE_VOCAB && options->mode != FLP_MODE_TAIL)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "options.mode is %d, %s, but spec.mixed is %s with %s (accepted: 0, FLP_MODE_RECOMPUTE_VOCAB 2)",
                    (int)options->mode, flp_mode_name(options->mode), flp_mixed_name(spec->mixed), what);
  if (!options->chunk_rows) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "options.chunk_rows is %" PRId64 ", but spec.mixed is %s with %s (accepted: 0, or chunk_vocab)",
                  options->chunk_rows, flp_mixed_name(spec->mixed), what);
}

static flp_status check_mode(const flp_spec *spec, const flp_options *options) {
  FLP_TRY(check_slices(spec, options));
  uint32_t two = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  if (options->mode && spec->listed)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "options.mode is %d, %s, but spec.listed is 1 (accepted: 0; plans of listed columns have one mode)",
                    (int)options->mode, flp_mode_name(options->mode));
  if (options->mode == FLP_MODE_TAIL && !flp_kernel_spec_emits(spec))
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "options.mode is FLP_MODE_TAIL, but spec.tail is %g and spec.targets %d (accepted: 2^-20 to 2^-2, one "
                    "target, and no loss that reads lse or mean_score)",
                    (double)spec->tail, spec->targets);
  if (options->mode == FLP_MODE_RECOMPUTE_SPLIT && (spec->grads & two) != two)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "options.mode is FLP_MODE_RECOMPUTE_SPLIT, but spec.grads is %u (accepted: gradients of both "
                    "hidden and weight)",
                    (unsigned)spec->grads);
  if (options->mode == FLP_MODE_DIRECTION && !flp_planner_has_direction(spec))
    return flp_fail(
        FLP_ERROR_ARGUMENT,
        "options.mode is FLP_MODE_DIRECTION, but spec.keep is %d, spec.grads %u and spec.entropy %s (accepted: "
        "keep 1, the gradient of hidden alone, and an entropy without a gradient)",
        spec->keep, (unsigned)spec->grads, flp_entropy_name(spec->entropy));
  if (options->mode == FLP_MODE_SAVE && !spec->keep)
    return flp_fail(FLP_ERROR_ARGUMENT, "options.mode is FLP_MODE_SAVE, but spec.keep is 0 (accepted: 1)");
  if (options->mode == FLP_MODE_STREAM && flp_spec_passes_for_mean(spec))
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "options.mode is FLP_MODE_STREAM, but spec.softcap is %g, spec.lora_rank %d, and the loss reads "
                    "mean_score (accepted: mode 0, or a recompute mode)",
                    (double)spec->softcap, spec->lora_rank);
  if (options->mode != FLP_MODE_STREAM || (spec->loss && flp_kernel_spec_keeps(spec))) return FLP_OK;
  return flp_fail(
      FLP_ERROR_ARGUMENT,
      "options.mode is FLP_MODE_STREAM, but spec.loss is %s, spec.grads %u, spec.tail %g and spec.dtype %s (accepted: a "
      "loss, gradients, no tail and bf16)",
      spec->loss ? "given" : "NULL", (unsigned)spec->grads, (double)spec->tail, flp_dtype_name(spec->dtype));
}

static flp_status read_tuning(const flp_options *options, flp_tuning *out) {
  FLP_TRY(flp_tuning_parse("options.tune", options->tune, out));
  if (options->rung < FLP_RUNG_GENERIC || !flp_tuning_is_set(out)) return FLP_OK;
  return flp_fail(
      FLP_ERROR_ARGUMENT,
      "options.tune is \"%s\", but rung %s is pinned, whose kernels have one tile configuration (accepted: NULL, "
      "\"\", or rung auto, tuned, heuristic, jit)",
      options->tune, flp_rung_name(options->rung));
}

_Static_assert((int)FLP_LOSS_FORMAT_TARGETS == (int)FLP_TARGETS_LOSS_VERSION &&
                   (int)FLP_LOSS_FORMAT_SCORES == (int)FLP_SCORES_LOSS_VERSION,
               "kernels go by the version");

static flp_status copy_loss(flp_plan *plan) {
  flp_spec *spec = &plan->spec;
  if (!spec->loss) return FLP_OK;
  plan->loss_bytes = malloc(spec->loss_bytes);
  if (!plan->loss_bytes) return flp_fail(FLP_ERROR_MEMORY, "no memory for a loss of %zu bytes", spec->loss_bytes);
  memcpy(plan->loss_bytes, spec->loss, spec->loss_bytes);
  spec->loss = plan->loss_bytes;
  FLP_TRY(flp_loss_read(plan->loss_bytes, spec->loss_bytes, &plan->loss));
  if (spec->targets <= 1 || flp_loss_is_over_targets(&plan->loss)) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "spec.targets is %d, but spec.loss is %s, a loss of one target (accepted: 1, or a loss over targets, such "
                  "as forward_kl)",
                  (int)spec->targets, plan->loss.name);
}

flp_status flp_plan_create(const flp_spec *spec, const flp_options *options, flp_plan **out) {
  flp_detail_clear();
  if (!out) return flp_fail(FLP_ERROR_ARGUMENT, "out is NULL (accepted: where to put the plan)");
  *out = NULL;
  flp_spec resolved_spec;
  flp_options resolved_options;
  FLP_TRY(flp_spec_resolve(spec, &resolved_spec));
  FLP_TRY(flp_options_resolve(options, &resolved_options));
  FLP_TRY(check_mode(&resolved_spec, &resolved_options));
  flp_tuning tuning;
  FLP_TRY(read_tuning(&resolved_options, &tuning));
  flp_plan *plan = calloc(1, sizeof *plan);
  if (!plan) return flp_fail(FLP_ERROR_MEMORY, "no memory for a plan");
  pthread_mutex_init(&plan->lock, NULL);
  plan->spec = resolved_spec;
  flp_status status = copy_loss(plan);
  plan->options = resolved_options;
  plan->options.tune = plan->options.arch = NULL; /* the caller's memory */
  plan->tuning = tuning;
  plan->arch_asked = resolved_options.arch ? flp_arch_find(resolved_options.arch) : NULL;
  plan->has_tuning = resolved_options.tune != NULL;
  flp_plan_spec_text(&plan->spec, plan->spec_text);
  if (status == FLP_OK) status = fill_plan(plan);
  if (status != FLP_OK) {
    flp_plan_destroy(plan);
    return status;
  }
  plan->options.cache_dir = plan->options.cache_path = NULL; /* the caller's memory */
  flp_detail_clear();                                        /* the fallbacks on the way are in the plan's reasons */
  *out = plan;
  return FLP_OK;
}

void flp_plan_destroy(flp_plan *plan) {
  if (!plan) return;
  release_device(plan);
  pthread_mutex_destroy(&plan->lock);
  free(plan->loss_bytes);
  free(plan);
}

/* ---- queries ---- */

static uint64_t budget_of(const flp_plan *plan, flp_pass pass, uint64_t budget_bytes) {
  return flp_pass_budget(budget_bytes ? budget_bytes : plan->options.budget_bytes, pass, plan->device.memory_bytes);
}

static flp_status check_query(const flp_plan *plan, flp_pass pass, int64_t n) {
  if (!plan) return flp_fail(FLP_ERROR_ARGUMENT, "plan is NULL (accepted: a plan of flp_plan_create)");
  if (pass < FLP_PASS_FORWARD || pass > FLP_PASS_LAST)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "pass is %d (accepted: FORWARD 1, COMBINE 2, BACKWARD 3, STEP 4, BACKWARD_SAVED 5, "
                    "FORWARD_SAVED 6, BACKWARD_GIVEN 7)",
                    (int)pass);
  if (!flp_op_of(plan->spec.op)->has_head) FLP_TRY(flp_op_check_pass(plan, pass));
  int keeps = pass == FLP_PASS_BACKWARD_SAVED || pass == FLP_PASS_FORWARD_SAVED;
  if (keeps && !flp_plan_keeps(plan))
    return flp_fail(FLP_ERROR_ARGUMENT, "pass is %s, but this plan keeps nothing (accepted: FORWARD 1, BACKWARD 3)",
                    pass == FLP_PASS_FORWARD_SAVED ? "FORWARD_SAVED" : "BACKWARD_SAVED");
  if (pass == FLP_PASS_STEP && !plan->spec.loss)
    return flp_fail(FLP_ERROR_ARGUMENT, "pass is STEP, but spec.loss is NULL (accepted: a loss program)");
  FLP_TRY(flp_op_check_pass(plan, pass));
  if (pass == FLP_PASS_BACKWARD_GIVEN) FLP_TRY(flp_plan_check_given(plan));
  if (pass == FLP_PASS_BACKWARD && flp_op_of(plan->spec.op)->has_head && !plan->spec.grads)
    return flp_fail(FLP_ERROR_ARGUMENT, "pass is FLP_PASS_BACKWARD, but spec.grads is 0 (accepted: FLP_GRAD_* bits)");
  if (n < 0 || n > FLP_COUNT_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "n is %" PRId64 " (accepted: 0 to %d)", n, FLP_COUNT_MAX);
  return FLP_OK;
}

/* Layouts of passes over lists grow with these. */
static flp_status check_lists(const flp_plan *plan, flp_pass pass) {
  if (!plan->spec.listed || pass == FLP_PASS_COMBINE) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "pass is %s, but spec.listed is 1 (accepted: COMBINE 2; flp_plan_layout_listed takes FORWARD 1, "
                  "BACKWARD 3 and STEP 4)",
                  pass == FLP_PASS_FORWARD ? "FORWARD" : pass == FLP_PASS_STEP ? "STEP" : "BACKWARD");
}

flp_status flp_head_layout(const flp_plan *plan, flp_pass pass, int64_t n, uint64_t budget_bytes, flp_layout *layout) {
  uint64_t budget = budget_of(plan, pass, budget_bytes);
  if (plan->rung == FLP_RUNG_EAGER)
    return flp_eager_layout(&plan->spec, pass, n, budget, plan->options.threads, layout);
  flp_scheme scheme;
  FLP_TRY(flp_planner_pick(&plan->planner, pass, n, budget, 1, &scheme));
  flp_planner_describe(&plan->planner, &scheme, n, layout);
  return FLP_OK;
}

flp_status flp_plan_layout(const flp_plan *plan, flp_pass pass, int64_t n, uint64_t budget_bytes, flp_layout *layout) {
  flp_layout found;
  flp_detail_clear();
  FLP_TRY(check_query(plan, pass, n));
  FLP_TRY(check_lists(plan, pass));
  if (!layout) return flp_fail(FLP_ERROR_ARGUMENT, "layout is NULL (accepted: a flp_layout)");
  FLP_TRY(flp_struct_check(FLP_STRUCT_LAYOUT, layout));
  FLP_TRY(flp_op_calls_of(plan->spec.op)->layout(plan, pass, n, budget_bytes, &found));
  flp_struct_write(FLP_STRUCT_LAYOUT, &found, layout);
  return FLP_OK;
}

static flp_status check_listed_query(const flp_plan *plan, flp_pass pass, int64_t n, int64_t list_count) {
  FLP_TRY(check_query(plan, pass, n));
  if (!plan->spec.listed)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "the plan's spec.listed is 0 (accepted: 1; flp_plan_layout serves other plans)");
  if (pass != FLP_PASS_FORWARD && pass != FLP_PASS_BACKWARD && pass != FLP_PASS_STEP)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "pass is COMBINE (accepted: FORWARD 1, BACKWARD 3, STEP 4; flp_plan_layout takes COMBINE)");
  if (list_count < 0 || list_count > INT32_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "list_count is %" PRId64 " (accepted: 0 to %d)", list_count, INT32_MAX);
  return FLP_OK;
}

static flp_status listed_layout(const flp_plan *plan, flp_pass pass, int64_t n, int64_t list_count,
                                uint64_t budget_bytes, flp_layout *layout) {
  uint64_t budget = budget_of(plan, pass, budget_bytes);
  if (plan->rung == FLP_RUNG_EAGER)
    return flp_eager_layout_listed(&plan->spec, pass, n, list_count, budget, plan->options.threads, layout);
  flp_scheme scheme;
  FLP_TRY(flp_planner_pick_listed(&plan->planner, pass, n, list_count, budget, &scheme));
  flp_planner_describe_listed(&plan->planner, pass, &scheme, n, list_count, layout);
  return FLP_OK;
}

flp_status flp_plan_layout_listed(const flp_plan *plan, flp_pass pass, int64_t n, int64_t list_count,
                                  uint64_t budget_bytes, flp_layout *layout) {
  flp_layout found;
  flp_detail_clear();
  FLP_TRY(check_listed_query(plan, pass, n, list_count));
  if (!layout) return flp_fail(FLP_ERROR_ARGUMENT, "layout is NULL (accepted: a flp_layout)");
  FLP_TRY(flp_struct_check(FLP_STRUCT_LAYOUT, layout));
  FLP_TRY(listed_layout(plan, pass, n, list_count, budget_bytes, &found));
  flp_struct_write(FLP_STRUCT_LAYOUT, &found, layout);
  return FLP_OK;
}

flp_status flp_plan_workspace(const flp_plan *plan, flp_pass pass, int64_t n, uint64_t budget_bytes,
                              size_t *out_bytes) {
  flp_layout layout = FLP_LAYOUT_INIT;
  if (!out_bytes) {
    flp_detail_clear();
    return flp_fail(FLP_ERROR_ARGUMENT, "out_bytes is NULL (accepted: where to put the size)");
  }
  *out_bytes = 0;
  FLP_TRY(flp_plan_layout(plan, pass, n, budget_bytes, &layout));
  *out_bytes = layout.bytes;
  return FLP_OK;
}

/* ---- values that only the device sees ---- */

static flp_status read_error_word(flp_plan *plan, CUstream stream, uint32_t *word) {
  const flp_driver *driver = plan->driver;
  char what[FLP_SPEC_TEXT_BYTES + 64];
  snprintf(what, sizeof what, "work before cuStreamSynchronize for %s", plan->spec_text);
  FLP_TRY(flp_driver_status(driver, driver->cuCtxPushCurrent_v2(plan->context), "cuCtxPushCurrent"));
  CUresult result = driver->cuMemcpyDtoHAsync_v2(word, plan->error_word, sizeof *word, stream);
  if (result == 0) result = driver->cuStreamSynchronize(stream);
  CUcontext popped;
  CUresult pop = driver->cuCtxPopCurrent_v2(&popped);
  FLP_TRY(flp_driver_status(driver, result, what));
  return flp_driver_status(driver, pop, "cuCtxPopCurrent");
}

/* The device counter only grows: what was seen is subtracted here, so that a check on one stream never clears what
 * another stream is about to count. */
static flp_status take_bad_rows(flp_plan *plan, CUstream stream, uint64_t *bad) {
  if (plan->rung == FLP_RUNG_EAGER) {
    *bad = atomic_exchange(&plan->bad_rows, 0);
    return FLP_OK;
  }
  FLP_TRY(flp_process_check("plan", plan->process));
  pthread_mutex_lock(&plan->lock);
  uint32_t word = plan->errors_seen;
  flp_status status = read_error_word(plan, stream, &word);
  if (status == FLP_OK) {
    *bad = word - plan->errors_seen;
    plan->errors_seen = word;
  }
  pthread_mutex_unlock(&plan->lock);
  return status;
}

static flp_status fail_for(const flp_plan *plan, uint64_t bad) {
  static const char bad_lists[] =
      ", lists without their target or with ids outside [0, vocab_total), or list_offsets that do not ascend within "
      "[0, list_count]";
  int listed = plan->spec.listed;
  return flp_fail(
      FLP_ERROR_DATA,
      "%" PRIu64
      " %s bad since the last check: targets outside [0, vocab_total), "
      "temperatures not finite and > 0, largest scores beyond 2^30 in units of ln 2, %srow ids outside [0, n)%s",
      bad, bad == 1 ? "row or row id was" : "rows or row ids were", listed ? "" : "or ", listed ? bad_lists : "");
}

flp_status flp_plan_check(flp_plan *plan, void *stream) {
  flp_detail_clear();
  if (!plan) return flp_fail(FLP_ERROR_ARGUMENT, "plan is NULL (accepted: a plan of flp_plan_create)");
  uint64_t bad = 0;
  FLP_TRY(take_bad_rows(plan, stream, &bad));
  return bad ? fail_for(plan, bad) : FLP_OK;
}

flp_status flp_plan_count_bad(flp_plan *plan, uint64_t bad) {
  uint64_t before = atomic_fetch_add(&plan->bad_rows, bad);
  if (plan->options.strict) return flp_plan_check(plan, NULL);
  if (!bad || before) return FLP_OK;
  (void)fail_for(plan, bad);
  flp_log(FLP_LOG_WARNING, "bad rows: %s; their results are NaN, and flp_plan_check (in Python flp.check()) will fail",
          flp_error_detail());
  flp_detail_clear();
  return FLP_OK;
}

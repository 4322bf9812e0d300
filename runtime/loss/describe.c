/* describe.c: the description of a loss program, for callers that have only its bytes. */
#include <string.h>

#include "runtime/base/status.h"
#include "runtime/base/structs.h"
#include "runtime/loss/loss.h"

_Static_assert(FLP_LOSS_INPUTS_MAX == FLP_LOSS_FIRST_VECTOR + FLP_LOSS_VECTORS_MAX, "a place for every input");

static void fill(const flp_loss *loss, flp_loss_description *out) {
  uint32_t inputs = flp_loss_inputs(loss);
  out->parameter_count = (int32_t)loss->parameter_count;
  out->vector_count = (int32_t)loss->vector_count;
  out->metric_count = (int32_t)loss->metric_count;
  memcpy(out->name, loss->name, sizeof out->name);
  memcpy(out->parameters, loss->parameters, sizeof out->parameters);
  memcpy(out->vectors, loss->vectors, sizeof out->vectors);
  for (uint32_t i = 0; i < loss->metric_count; i++)
    memcpy(out->metrics[i], loss->metrics[i].name, sizeof out->metrics[i]);
  for (uint32_t i = 0; i < FLP_LOSS_ALL_INPUTS; i++) /* at most FLP_LOSS_INPUTS_MAX of them */
    if (inputs >> i & 1) strcpy(out->inputs[out->input_count++], flp_loss_input_name(loss, i));
}

flp_status flp_loss_describe(const void *bytes, size_t length, flp_loss_description *out) {
  flp_loss loss;
  flp_loss_description stated = FLP_LOSS_DESCRIPTION_INIT;
  flp_detail_clear();
  if (!bytes || !out)
    return flp_fail(FLP_ERROR_ARGUMENT, "%s is NULL (accepted: %s)", bytes ? "out" : "bytes",
                    bytes ? "a flp_loss_description" : "a loss program");
  FLP_TRY(flp_struct_check(FLP_STRUCT_LOSS_DESCRIPTION, out));
  flp_status status = flp_loss_read(bytes, length, &loss);
  if (status == FLP_OK) fill(&loss, &stated);
  flp_struct_write(FLP_STRUCT_LOSS_DESCRIPTION, &stated, out);
  return status;
}

/* export.c: a loss from a Lua file as the bytes that flp_spec.loss takes, for hosts that know no flp_loss. */
#include <stdio.h>

#include "gen/gen.h"
#include "runtime/base/printable.h"

static flp_status add_terms(flp_loss *program, const char *terms) {
  flp_loss term;
  flp_status status = flp_loss_find(terms, &term);
  return status == FLP_OK ? flp_loss_add(program, &term) : status;
}

flp_status flpgen_loss_bytes(const char *file, const char *text, size_t length, const char *terms, void *out,
                             size_t capacity, size_t *out_bytes, char *error, size_t error_capacity) {
  flpgen_loss traced;
  *out_bytes = 0;
  flp_status status = flpgen_loss_trace(file, text, length, &traced, error, error_capacity);
  if (status != FLP_OK) {
    flp_make_printable(error); /* a message of the file's own */
    return status;
  }
  if (terms && terms[0]) status = add_terms(&traced.program, terms);
  if (status != FLP_OK) {
    snprintf(error, error_capacity, "%s", flp_error_detail());
    return status;
  }
  *out_bytes = flp_loss_write(&traced.program, out, capacity);
  if (*out_bytes) return FLP_OK;
  snprintf(error, error_capacity, "capacity is %zu, which is too small; %d always suffices", capacity,
           FLP_LOSS_BYTES_MAX);
  return FLP_ERROR_ARGUMENT;
}

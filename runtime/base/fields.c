/* fields.c: see fields.h. */
#include "runtime/base/fields.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The rows are the struct, field by field. */
typedef struct mirror {
  uint32_t struct_bytes;
#define FIELD(type, field, kind, words, usual, step, least, most, feature, shown, option, argument, help) type field;
#define HIDDEN(type, field) type field;
  FLP_SPEC_FIELDS(FIELD, HIDDEN)
#undef FIELD
#undef HIDDEN
} mirror;
#define FIELD(type, field, ...) HIDDEN(type, field)
#define HIDDEN(type, field) \
  _Static_assert(offsetof(mirror, field) == offsetof(flp_spec, field), "the rows have the order of flp_spec");
FLP_SPEC_FIELDS(FIELD, HIDDEN)
#undef FIELD
#undef HIDDEN
_Static_assert(sizeof(mirror) == sizeof(flp_spec), "every field of flp_spec has a row");

#define NOT(type, field)
#define FIELD(type, field, kind, words, usual, ...) \
  static int64_t usual_##field(const flp_spec *s) { \
    (void)s;                                        \
    return (int64_t)(usual);                        \
  }
FLP_SPEC_FIELDS(FIELD, NOT)
#undef FIELD

const flp_field FLP_SPEC_FIELD[FLP_SPEC_FIELD_COUNT] = {
#define FIELD(type, field, kind, words, usual, step, least, most, feature, shown, option, argument, help) \
  {#field, shown, option, words, FLP_FIELD_##kind, FLP_FEATURE_##feature, offsetof(flp_spec, field), sizeof(type), \
   step, least, most, usual_##field},
    FLP_SPEC_FIELDS(FIELD, NOT)
#undef FIELD
};
#undef NOT

static int is_number(const flp_field *field) {
  return field->kind == FLP_FIELD_NUMBER || field->kind == FLP_FIELD_SHARE;
}

int64_t flp_field_get(const flp_field *field, const flp_spec *spec) {
  const char *at = (const char *)spec + field->offset;
  int64_t wide;
  int32_t value;
  if (field->bytes == sizeof wide) {
    memcpy(&wide, at, sizeof wide);
    return wide;
  }
  memcpy(&value, at, sizeof value);
  return field->kind == FLP_FIELD_FLAGS ? (int64_t)(uint32_t)value : value;
}

void flp_field_set(const flp_field *field, flp_spec *spec, int64_t value) {
  int32_t narrow = (int32_t)value;
  memcpy((char *)spec + field->offset, field->bytes == sizeof value ? (void *)&value : (void *)&narrow, field->bytes);
}

float flp_field_number(const flp_field *field, const flp_spec *spec) {
  float value;
  memcpy(&value, (const char *)spec + field->offset, sizeof value);
  return value;
}

void flp_field_set_number(const flp_field *field, flp_spec *spec, float value) {
  memcpy((char *)spec + field->offset, &value, sizeof value);
}

int flp_field_is_set(const flp_field *field, const flp_spec *spec) {
  if (field->kind == FLP_FIELD_LOSS) return spec->loss != NULL;
  if (is_number(field)) return flp_field_number(field, spec) > 0;
  int64_t value = flp_field_get(field, spec);
  return value != 0 && value != field->usual(spec);
}

const char *flp_share_text(float share, char out[FLP_FIELD_TEXT_BYTES]) {
  int exponent = 0;
  if (frexpf(share, &exponent) == 0.5f)
    snprintf(out, FLP_FIELD_TEXT_BYTES, "2^%d", exponent - 1);
  else
    snprintf(out, FLP_FIELD_TEXT_BYTES, "%.9g", (double)share);
  return out;
}

const char *flp_field_text(const flp_field *field, const flp_spec *spec, char out[FLP_FIELD_TEXT_BYTES]) {
  out[0] = 0;
  switch (field->kind) {
    case FLP_FIELD_INTEGER:
      snprintf(out, FLP_FIELD_TEXT_BYTES, "%" PRId64, flp_field_get(field, spec));
      break;
    case FLP_FIELD_WORD:
      snprintf(out, FLP_FIELD_TEXT_BYTES, "%s", flp_word_of(field->words, (int)flp_field_get(field, spec), "?"));
      break;
    case FLP_FIELD_FLAGS:
      flp_grads_text((uint32_t)flp_field_get(field, spec), ",", out);
      break;
    case FLP_FIELD_NUMBER:
      snprintf(out, FLP_FIELD_TEXT_BYTES, "%.9g", (double)flp_field_number(field, spec));
      break;
    case FLP_FIELD_SHARE:
      flp_share_text(flp_field_number(field, spec), out);
      break;
    case FLP_FIELD_LISTS:
      snprintf(out, FLP_FIELD_TEXT_BYTES, "1"); /* kernels are the same for lists of any length */
      break;
    case FLP_FIELD_SWITCH:
    case FLP_FIELD_LOSS:
      break;
  }
  return out;
}

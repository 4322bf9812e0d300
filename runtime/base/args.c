/* args.c: see args.h. */
#include "runtime/base/args.h"

#include <stddef.h>
#include <string.h>

/* The rows are the struct, field by field. */
typedef struct mirror {
  uint32_t struct_bytes;
#define NUMBER(type, field) type field;
#define ARRAY(type, field, ...) type field;
#define MATRIX(type, field, ...) \
  type field;                    \
  int64_t field##_stride;
#define VECTORS(type, field, count) type field[count];
  FLP_ARGS_FIELDS(NUMBER, ARRAY, MATRIX, VECTORS)
#undef NUMBER
#undef ARRAY
#undef MATRIX
#undef VECTORS
} mirror;
#define ROW(type, field, ...) \
  _Static_assert(offsetof(mirror, field) == offsetof(flp_args, field), "the rows have the order of flp_args");
FLP_ARGS_FIELDS(ROW, ROW, ROW, ROW)
#undef ROW
_Static_assert(sizeof(mirror) == sizeof(flp_args), "every field of flp_args has a row");

#define NONE(type, field, ...)
#define ASKED(type, field, rows, columns, element, base, way, passes, asked, ...) \
  static int asks_for_##field(const flp_spec *s) {                                \
    (void)s;                                                                      \
    return (asked) != 0;                                                          \
  }
FLP_ARGS_FIELDS(NONE, ASKED, ASKED, NONE)
#undef ASKED

static int has_loss(const flp_spec *spec) {
  return spec->loss != NULL;
}

const flp_array FLP_ARRAY[FLP_ARRAYS] = {
#define ROW(stride, field, rows, columns, element, base, way, passes, must, unasked, elsewhere)                \
  [FLP_ARRAY_##field] = {#field, FLP_SIZE_##rows, FLP_SIZE_##columns, FLP_ELEMENT_##element, FLP_WAY_##way,    \
                         base, offsetof(flp_args, field), stride, passes, must, unasked, elsewhere,            \
                         asks_for_##field},
#define ARRAY(type, field, rows, columns, element, base, way, passes, asked, ...) \
  ROW(0, field, rows, columns, element, base, way, passes, __VA_ARGS__)
#define MATRIX(type, field, rows, columns, element, base, way, passes, asked, ...) \
  ROW(offsetof(flp_args, field##_stride), field, rows, columns, element, base, way, passes, __VA_ARGS__)
#define VECTORS(type, field, count)                                                                                 \
  [FLP_ARRAY_##field... FLP_ARRAY_##field##_last] = {#field, FLP_SIZE_N, FLP_SIZE_ONE, FLP_ELEMENT_FLOAT, FLP_WAY_IN, \
                                                     0, offsetof(flp_args, field), 0, "---l", "", "", "", has_loss},
    FLP_ARGS_FIELDS(NONE, ARRAY, MATRIX, VECTORS)
#undef ROW
#undef ARRAY
#undef MATRIX
#undef VECTORS
};
#undef NONE

flp_dtype flp_array_dtype(flp_array_id id, const flp_spec *s) {
#define ELEMENT(id, dtype, field) \
  case FLP_ELEMENT_##id:          \
    return dtype;
  switch (FLP_ARRAY[id].element) { FLP_ELEMENTS(ELEMENT) }
#undef ELEMENT
  return (flp_dtype)0;
}

/* Where the pointer lies; those of vectors follow one another. */
static size_t place_of(flp_array_id id) {
  size_t vector = id > FLP_ARRAY_vectors && id <= FLP_ARRAY_vectors_last ? id - FLP_ARRAY_vectors : 0;
  return FLP_ARRAY[id].offset + vector * sizeof(void *);
}

const void *flp_array_get(flp_array_id id, const flp_args *args) {
  const void *pointer;
  memcpy(&pointer, (const char *)args + place_of(id), sizeof pointer);
  return pointer;
}

void flp_array_set(flp_array_id id, flp_args *args, const void *pointer) {
  memcpy((char *)args + place_of(id), &pointer, sizeof pointer);
}

const char *flp_size_field(flp_size size) {
#define FIELD(id, value, field) field,
  static const char *const fields[] = {FLP_SIZES(FIELD)};
#undef FIELD
  return fields[size];
}

int64_t flp_size_of(flp_size size, const flp_spec *s, const flp_args *a) {
#define SIZE(id, value, field) \
  case FLP_SIZE_##id:          \
    return value;
  switch (size) { FLP_SIZES(SIZE) }
#undef SIZE
  return 0;
}

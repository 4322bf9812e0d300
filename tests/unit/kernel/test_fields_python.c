/* test_fields_python.c: runtime/python/flp/_library/_fields.py says what runtime/base/fields.h and args.h say.
 *
 * FLP_GOLDEN_UPDATE=1 writes the file anew; the difference is then reviewed like code. */
#include <stdarg.h>

#include "runtime/base/args.h"
#include "runtime/kernel/features.h"
#include "tests/unit/support/gen_case.h"

static char text[1 << 16];

static void add(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + strlen(text), sizeof text - strlen(text), format, arguments);
  va_end(arguments);
}

static const char *ctype(const char *type) {
  static const char *const names[][2] = {{"int64_t", "c_int64"}, {"int32_t", "c_int32"}, {"uint32_t", "c_uint32"},
                                         {"float", "c_float"},   {"size_t", "c_size_t"}};
  if (strchr(type, '*')) return strstr(type, "double") ? "POINTER(c_double)" : "c_void_p";
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (strcmp(names[i][0], type) == 0) return names[i][1];
  return "c_int"; /* an enumeration */
}

static const flp_spec usual = FLP_SPEC_INIT;

static void add_fields(void) {
  add("# Fields of flp_spec behind struct_bytes: name, type, value of FLP_SPEC_INIT.\nSPEC = (\n");
#define FIELD(type, field, ...) add("    (\"%s\", %s, %g),\n", #field, ctype(#type), (double)(intptr_t)usual.field);
#define HIDDEN(type, field) add("    (\"%s\", %s, 0),\n", #field, ctype(#type));
  FLP_SPEC_FIELDS(FIELD, HIDDEN)
#undef FIELD
#undef HIDDEN
  add(")\n");
}

static const flp_args first = FLP_ARGS_INIT;

static void add_args(void) {
  add("\n# Fields of flp_args behind struct_bytes, likewise.\nARGS = (\n");
#define NUMBER(type, field) add("    (\"%s\", %s, %g),\n", #field, ctype(#type), (double)(intptr_t)first.field);
#define ARRAY(type, field, ...) add("    (\"%s\", c_void_p, 0),\n", #field);
#define MATRIX(type, field, ...)   \
  ARRAY(type, field, __VA_ARGS__) \
  add("    (\"%s_stride\", c_int64, 0),\n", #field);
#define VECTORS(type, field, count) add("    (\"%s\", c_void_p * %d, 0),\n", #field, count);
  FLP_ARGS_FIELDS(NUMBER, ARRAY, MATRIX, VECTORS)
#undef NUMBER
#undef ARRAY
#undef MATRIX
#undef VECTORS
  add(")\n");
}

/* The field of a spec that asks for an array, where that is one alone: "s->listed"; else "". */
static const char *field_of(const char *asked) {
  int end = 0;
  int is_field = sscanf(asked, "s->%*[a-z_]%n", &end) == 0 && end > 0 && asked[end] == 0;
  return is_field ? asked + strlen("s->") : "";
}

static void add_arrays(void) {
  const flp_spec *s = &usual;
  add("\n# Arrays of flp_args: name, its dimensions, what it holds, the field of flp_spec that alone asks for it.\n"
      "ARRAYS = (\n");
#define NONE(type, field, ...)
#define ARRAY(type, field, rows, columns, element, base, way, passes, asked, ...) \
  add("    (\"%s\", \"%s\", \"%s\", \"%s\", \"%s\"),\n", #field, #rows, #columns, #element, field_of(#asked));
#define VECTORS(type, field, count) ARRAY(type, field, N, ONE, FLOAT, 0, IN, "", "")
  FLP_ARGS_FIELDS(NONE, ARRAY, ARRAY, VECTORS)
#undef NONE
#undef ARRAY
#undef VECTORS
  add(")\n\n# The field that says a dimension.\nSIZES = {\n");
#define SIZE(id, value, field) \
  if (*(field)) add("    \"%s\": \"%s\",\n", #id, field);
  FLP_SIZES(SIZE)
#undef SIZE
  add("}\n\n# The field that says what is held, or the dtype that it always has.\nELEMENTS = {\n");
#define ELEMENT(id, dtype, field)                              \
  if (*(field)) add("    \"%s\": \"%s\",\n", #id, field); \
  if (!*(field)) add("    \"%s\": %d,\n", #id, (int)(dtype));
  FLP_ELEMENTS(ELEMENT)
#undef ELEMENT
  add("}\n");
}

static void add_pairs(void) {
  const char *keywords[] = {
#define KEYWORD(id, field, keyword, asked) keyword,
      FLP_FEATURES(KEYWORD)
#undef KEYWORD
  };
  add("\n# What does not go together, by the keywords of calls: one, what it goes without, why.\nAPART = (\n");
#define B(id) \
  if (keywords[FLP_FEATURE_##id]) add("\"%s\", ", keywords[FLP_FEATURE_##id]);
#define PAIRS(id, others, because)                        \
  if (keywords[FLP_FEATURE_##id]) {                       \
    add("    (\"%s\", (", keywords[FLP_FEATURE_##id]);    \
    others add("), \"%s\"),\n", because);                \
  }
  FLP_APART(PAIRS)
#undef PAIRS
#undef B
  add(")\n");
}

Test(fields_python, is_current) {
  add("\"\"\"What runtime/base/fields.h and args.h say of a call, written by "
      "tests/unit/kernel/test_fields_python.c.\"\"\"\n"
      "from ctypes import POINTER, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p\n\n");
  add_fields();
  add_args();
  add_arrays();
  add_pairs();
  for (char *at; (at = strstr(text, ", ), "));) memmove(at + 1, at + 2, strlen(at + 2) + 1);
  gen_case_golden(FLP_TEST_TREE "/runtime/python/flp/_library/_fields.py", text);
}

/* test_gen_loss_table.c: runtime/loss/table.c holds exactly the programs that templates/losses give now.
 *
 * FLP_GOLDEN_UPDATE=1 writes the file anew; the difference is then reviewed like code. */
#include <stdarg.h>

#include "tests/unit/support/gen_case.h"

enum { TEXT_MAX = 1 << 18 };
static char text[TEXT_MAX], rows[TEXT_MAX]; /* of the file, and of the table at its end */

static void add(char *to, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(to + strlen(to), TEXT_MAX - strlen(to), format, arguments);
  va_end(arguments);
}

static void add_program(const char *file) {
  char name[64], error[512];
  uint8_t bytes[FLP_LOSS_BYTES_MAX];
  flpgen_loss loss;
  snprintf(name, sizeof name, "%.*s", (int)strcspn(file, "."), file);
  cr_assert_eq(flpgen_loss_builtin(name, &loss, error, sizeof error), FLP_OK, "%s", error);
  size_t length = flp_loss_write(&loss.program, bytes, sizeof bytes);
  cr_assert_gt(length, 0);
  add(text, "\nstatic const uint8_t %s[] = {", name);
  for (size_t i = 0; i < length; i++) add(text, "%s%u,", i % 32 == 0 ? "\n  " : "", bytes[i]);
  add(text, "\n};\n");
  add(rows, "  {\"%s\", %s, sizeof %s},\n", name, name, name);
}

Test(gen_loss_table, is_current) {
  add(text,
      "/* table.c: the built-in loss programs, written by tests/unit/gen/test_gen_loss_table.c from "
      "templates/losses;\n"
      " * checked in, so that libflp has them without the generator. */\n"
      "/* clang-format off */\n"
      "#include \"runtime/loss/loss.h\"\n");
  int count = gen_case_each(FLP_TEST_TREE "/templates/losses", add_program);
  add(text, "\nconst flp_loss_builtin_entry flp_loss_table[] = {\n%s};\nconst int flp_loss_table_count = %d;\n", rows,
      count);
  gen_case_golden(FLP_TEST_TREE "/runtime/loss/table.c", text);
}

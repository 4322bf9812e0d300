/* test_gen_loss_table.c: runtime/loss_table.c holds exactly the programs that templates/losses give now.
 *
 * FLP_GOLDEN_UPDATE=1 writes the file anew; the difference is then reviewed like code. */
#include <dirent.h>

#include "gen_case.h"

#define TABLE FLP_TEST_TREE "/runtime/loss_table.c"
enum { TEXT_MAX = 1 << 18 };

static void add_bytes(char *text, const uint8_t *bytes, size_t length) {
  size_t used = strlen(text);
  for (size_t i = 0; i < length; i++)
    used += (size_t)snprintf(text + used, TEXT_MAX - used, "%s%u,", i % 32 == 0 ? "\n  " : "", bytes[i]);
}

static void add_program(char *text, char *rows, const char *file) {
  char name[64], error[512];
  uint8_t bytes[FLP_LOSS_BYTES_MAX];
  flpgen_loss loss;
  snprintf(name, sizeof name, "%.*s", (int)strcspn(file, "."), file);
  cr_assert_eq(flpgen_loss_builtin(name, &loss, error, sizeof error), FLP_OK, "%s", error);
  size_t length = flp_loss_write(&loss.program, bytes, sizeof bytes);
  cr_assert_gt(length, 0);
  snprintf(text + strlen(text), TEXT_MAX - strlen(text), "\nstatic const uint8_t %s[] = {", name);
  add_bytes(text, bytes, length);
  snprintf(text + strlen(text), TEXT_MAX - strlen(text), "\n};\n");
  snprintf(rows + strlen(rows), TEXT_MAX - strlen(rows), "  {\"%s\", %s, sizeof %s},\n", name, name, name);
}

static int is_template(const struct dirent *entry) {
  size_t n = strlen(entry->d_name);
  return n > 4 && strcmp(entry->d_name + n - 4, ".lua") == 0;
}

/* The whole text of the file; malloc'ed. */
static char *table_text(void) {
  struct dirent **list;
  char *text = calloc(1, TEXT_MAX), *rows = calloc(1, TEXT_MAX);
  int count = scandir(FLP_TEST_TREE "/templates/losses", &list, is_template, alphasort);
  cr_assert(text && rows && count > 0);
  snprintf(text, TEXT_MAX,
           "/* loss_table.c: the built-in loss programs, written by tests/unit/test_gen_loss_table.c from "
           "templates/losses;\n"
           " * checked in, so that libflp has them without the generator. */\n"
           "/* clang-format off */\n"
           "#include \"loss.h\"\n");
  for (int i = 0; i < count; i++) {
    add_program(text, rows, list[i]->d_name);
    free(list[i]);
  }
  free(list);
  snprintf(text + strlen(text), TEXT_MAX - strlen(text),
           "\nconst flp_loss_builtin_entry flp_loss_table[] = {\n%s};\nconst int flp_loss_table_count = %d;\n", rows,
           count);
  free(rows);
  return text;
}

Test(gen_loss_table, is_current) {
  char *text = table_text();
  const char *update = getenv("FLP_GOLDEN_UPDATE");
  if (update && strcmp(update, "1") == 0) {
    FILE *file = fopen(TABLE, "wb");
    cr_assert_not_null(file);
    fputs(text, file);
    fclose(file);
  }
  size_t length;
  char *got = gen_case_read(TABLE, &length);
  cr_assert_not_null(got);
  cr_expect(strcmp(got, text) == 0,
            "runtime/loss_table.c is not what templates/losses give; FLP_GOLDEN_UPDATE=1 writes it");
  free(got);
  free(text);
}

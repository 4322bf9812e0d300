/* test_gen_loss_table.c: runtime/loss/builtin holds exactly the programs that templates/losses give now.
 *
 * FLP_GOLDEN_UPDATE=1 writes them anew; `flpgen loss show` tells what has changed. */
#include "tests/unit/support/gen_case.h"

static void is_current(const char *file) {
  char name[64], path[4096], error[512];
  uint8_t bytes[FLP_LOSS_BYTES_MAX];
  const char *update = getenv("FLP_GOLDEN_UPDATE");
  flpgen_loss loss;
  snprintf(name, sizeof name, "%.*s", (int)strcspn(file, "."), file);
  snprintf(path, sizeof path, "%s/runtime/loss/builtin/%s", FLP_TEST_TREE, name);
  cr_assert_eq(flpgen_loss_builtin(name, &loss, error, sizeof error), FLP_OK, "%s", error);
  size_t length = flp_loss_write(&loss.program, bytes, sizeof bytes), held = 0;
  if (update && strcmp(update, "1") == 0) {
    FILE *out = fopen(path, "wb");
    cr_assert(out && fwrite(bytes, 1, length, out) == length && fclose(out) == 0, "%s", path);
  }
  char *program = gen_case_read(path, &held);
  cr_expect(program && held == length && memcmp(program, bytes, length) == 0, "%s: FLP_GOLDEN_UPDATE=1 writes it anew",
            path);
  free(program);
}

Test(gen_loss_table, is_current) {
  int count = gen_case_each(FLP_TEST_TREE "/templates/losses", is_current);
  cr_expect_null(flp_loss_builtin(count), "%d losses are known", count);
}

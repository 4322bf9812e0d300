/* test_gen_golden.c: the IR of small kernels, as the template builds it, compared byte for byte with tests/golden.
 *
 * FLP_GOLDEN_UPDATE=1 writes the files anew; the difference is then reviewed like code. */
#include <dirent.h>

#include "gen_case.h"

static void check_file(const char *name) {
  char path[4096], error[512];
  size_t length, golden_length;
  snprintf(path, sizeof path, "%s/tests/golden/%s", FLP_TEST_TREE, name);
  char *text = gen_case_read(path, &length);
  flpgen_result result;
  cr_assert_eq(gen_case_text(text, length, &result, error), FLP_OK, "%s: %s", name, error);
  memcpy(path + strlen(path) - 4, ".ll", 4);
  const char *update = getenv("FLP_GOLDEN_UPDATE");
  if (update && strcmp(update, "1") == 0) {
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file, "%s", path);
    fputs(result.ir, file);
    fclose(file);
  }
  char *golden = gen_case_read(path, &golden_length);
  cr_assert_not_null(golden, "%s is missing; FLP_GOLDEN_UPDATE=1 writes it", path);
  cr_expect(strcmp(golden, result.ir) == 0, "%s differs from what %s builds now:\n%s", path, name, result.ir);
  free(golden);
  free(text);
  flpgen_result_clear(&result);
}

static int is_template(const struct dirent *entry) {
  size_t n = strlen(entry->d_name);
  return n > 4 && strcmp(entry->d_name + n - 4, ".lua") == 0;
}

Test(gen_golden, ir_is_as_it_was) {
  struct dirent **list;
  int count = scandir(FLP_TEST_TREE "/tests/golden", &list, is_template, alphasort);
  cr_assert_geq(count, 5);
  for (int i = 0; i < count; i++) {
    check_file(list[i]->d_name);
    free(list[i]);
  }
  free(list);
}

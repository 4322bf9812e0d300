/* test_output.c: files that are written whole or not at all, whoever else writes in their directory. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/output.h"

#define FORESEEN ".tmp-0101010101010101"

/* Names that another process foresees: every number is the same. */
ssize_t getrandom(void *bytes, size_t length, unsigned flags) {
  (void)flags;
  memset(bytes, 1, length);
  return (ssize_t)length;
}

static char directory[64], path[128];

static void start(void) {
  strcpy(directory, "/tmp/flp-output-XXXXXX");
  cr_assert_not_null(mkdtemp(directory));
  cr_assert_eq(chdir(directory), 0);
  snprintf(path, sizeof path, "%s/out", directory);
}

/* At the end of every test: what fails in a fini fails no test. */
static void stop(void) {
  static const char *const names[] = {"out", "victim", FORESEEN};
  for (int i = 0; i < 3; i++) (void)unlink(names[i]);
  cr_expect_eq(rmdir(directory), 0, "nothing else is left");
}

static void put(const char *name, const char *text) {
  FILE *file = fopen(name, "w");
  cr_assert(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static int holds(const char *name, const char *text) {
  char got[64] = "";
  FILE *file = fopen(name, "r");
  size_t length = file ? fread(got, 1, sizeof got - 1, file) : 0;
  if (file) fclose(file);
  return length == strlen(text) && strcmp(got, text) == 0;
}

Test(output, is_there_when_it_is_whole, .init = start) {
  flp_output out;
  put("out", "old");
  cr_assert_eq(flp_output_open(AT_FDCWD, path, 0640, &out), FLP_OK);
  flp_output_write(&out, "new ", 4);
  cr_expect(holds("out", "old"));
  flp_output_write(&out, "text", 4);
  cr_assert_eq(flp_output_close(&out), FLP_OK);
  cr_expect(holds("out", "new text"));
  struct stat info;
  mode_t mask = umask(0);
  cr_assert_eq(stat("out", &info), 0);
  cr_expect_eq(info.st_mode & 0777, 0640 & ~mask);
  stop();
}

Test(output, leaves_what_is_there_when_it_is_discarded, .init = start) {
  flp_output out;
  put("out", "old");
  cr_assert_eq(flp_output_open(AT_FDCWD, path, 0640, &out), FLP_OK);
  put("out", "of another process");
  flp_output_discard(&out);
  cr_expect(holds("out", "of another process"));
  cr_expect_neq(access(FORESEEN, F_OK), 0);
  stop();
}

Test(output, follows_no_link_at_its_temporary_name, .init = start) {
  flp_output out;
  put("victim", "precious");
  cr_assert_eq(symlink("victim", FORESEEN), 0);
  cr_expect_eq(flp_output_open(AT_FDCWD, path, 0666, &out), FLP_ERROR_IO);
  cr_expect_not_null(strstr(flp_error_detail(), "/out: cannot write: File exists"), "%s", flp_error_detail());
  cr_expect(holds("victim", "precious"));
  stop();
}

/* A link under the file's own name is replaced, not followed. */
Test(output, follows_no_link_at_its_own_name, .init = start) {
  flp_output out;
  put("victim", "precious");
  cr_assert_eq(symlink("victim", "out"), 0);
  cr_assert_eq(flp_output_open(AT_FDCWD, "out", 0666, &out), FLP_OK);
  flp_output_write(&out, "new", 3);
  cr_assert_eq(flp_output_close(&out), FLP_OK);
  cr_expect(holds("out", "new") && holds("victim", "precious"));
  stop();
}

Test(output, of_two_writers_with_one_name_the_second_is_refused, .init = start) {
  flp_output first, second;
  cr_assert_eq(flp_output_open(AT_FDCWD, path, 0666, &first), FLP_OK);
  cr_expect_eq(flp_output_open(AT_FDCWD, path, 0666, &second), FLP_ERROR_IO);
  flp_output_write(&first, "whole", 5);
  cr_assert_eq(flp_output_close(&first), FLP_OK);
  cr_expect(holds("out", "whole"));
  stop();
}

Test(output, leaves_nothing_behind_where_it_cannot_be_put, .init = start) {
  flp_output out;
  cr_assert_eq(mkdir("out", 0700), 0);
  cr_assert_eq(flp_output_open(AT_FDCWD, path, 0666, &out), FLP_OK);
  cr_expect_eq(flp_output_close(&out), FLP_ERROR_IO);
  cr_expect_not_null(strstr(flp_error_detail(), "/out: cannot replace: Is a directory"), "%s", flp_error_detail());
  cr_expect_eq(access(FORESEEN, F_OK), -1);
  cr_expect_eq(rmdir("out"), 0);
  cr_expect_eq(flp_output_open(AT_FDCWD, "no/such/out", 0666, &out), FLP_ERROR_IO);
  cr_expect_not_null(strstr(flp_error_detail(), "no/such/out: cannot write: No such file"), "%s", flp_error_detail());
  stop();
}

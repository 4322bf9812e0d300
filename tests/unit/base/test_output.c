/* test_output.c: files that are written whole or not at all, whoever else writes in their directory, by
 * tests/golden/base/output.txt.
 *
 *   > new                 a fresh folder, to be the working directory
 *   > put NAME TEXT       a file of another process
 *   > link NAME TARGET    > mkdir NAME
 *   > open K PATH         begins output K, 0 or 1, with mode 0640
 *   > write K TEXT
 *   > close K             > discard K
 *   > ls                  modes, names and texts */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/output.h"
#include "tests/unit/support/kernel_sample.h"
#include "tests/unit/support/replay.h"

/* Names that another process foresees, .tmp-0101010101010101: every number is the same. */
ssize_t getrandom(void *bytes, size_t length, unsigned flags) {
  (void)flags;
  memset(bytes, 1, length);
  return (ssize_t)length;
}

static flp_output outputs[2];
static char paths[2][64];

static void put(const char *name, const char *text) {
  FILE *file = fopen(name, "w");
  cr_assert(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static flp_status start(int k, const char *path) {
  snprintf(paths[k], sizeof paths[k], "%s", path);
  return flp_output_open(AT_FDCWD, paths[k], 0640, &outputs[k]);
}

static void put_failure(flp_status status, FILE *out) {
  if (status != FLP_OK) fprintf(out, "%s: %s\n", flp_status_name(status), flp_error_detail());
}

static void list(FILE *out) {
  struct dirent **names;
  int count = scandir(".", &names, NULL, alphasort);
  for (int i = 0; i < count; free(names[i]), i++) {
    const char *name = names[i]->d_name;
    char text[64] = "";
    struct stat info;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
    cr_assert_eq(lstat(name, &info), 0);
    int fd = open(name, O_RDONLY);
    if (S_ISREG(info.st_mode)) cr_assert_geq(read(fd, text, sizeof text - 1), 0);
    close(fd);
    const char *kind = S_ISDIR(info.st_mode) ? "folder" : S_ISLNK(info.st_mode) ? "link" : text;
    fprintf(out, "%03o %s: %s\n", (unsigned)info.st_mode & 0777, name, kind);
  }
  free(names);
}

static void run(void *context, const char *command, const char *words, FILE *out) {
  (void)context;
  char text[64], *rest = text;
  snprintf(text, sizeof text, "%s", words);
  const char *first = strsep(&rest, " ");
  int k = *first == '1';
  if (strcmp(command, "new") == 0) cr_assert_eq(chdir(sample_directory()), 0);
  else if (strcmp(command, "put") == 0) put(first, rest);
  else if (strcmp(command, "link") == 0) cr_assert_eq(symlink(rest, first), 0);
  else if (strcmp(command, "mkdir") == 0) cr_assert_eq(mkdir(first, 0700), 0);
  else if (strcmp(command, "open") == 0) put_failure(start(k, rest), out);
  else if (strcmp(command, "write") == 0) flp_output_write(&outputs[k], rest, strlen(rest));
  else if (strcmp(command, "close") == 0) put_failure(flp_output_close(&outputs[k]), out);
  else if (strcmp(command, "discard") == 0) flp_output_discard(&outputs[k]);
  else if (strcmp(command, "ls") == 0) list(out);
  else cr_assert_fail("%s is no command", command);
}

Test(output, is_as_it_was) {
  umask(022);
  replay_file("base/output.txt", 1, run, NULL);
}

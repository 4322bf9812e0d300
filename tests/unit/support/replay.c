/* replay.c: see replay.h. */
#include "tests/unit/support/replay.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 110 };

/* Takes a command's further lines off the rest, and echoes them. Returns the whole, to be freed. */
static char *whole_command(const char *line, char **rest, FILE *echo) {
  char *whole = NULL;
  size_t bytes;
  FILE *out = open_memstream(&whole, &bytes);
  fputs(line, out);
  while (*rest && **rest == '|') {
    const char *next = strsep(rest, "\n");
    fprintf(echo, "%s\n", next);
    fprintf(out, "\n%s", next + 1 + (next[1] == ' '));
  }
  fclose(out);
  return whole;
}

static void run_command(const char *line, replay_fn run, void *context, FILE *out) {
  char command[32];
  int length = 0;
  cr_assert_eq(sscanf(line, "> %31s%n", command, &length), 1, "%s", line);
  run(context, command, line + length + (line[length] == ' '), out);
}

/* The file's commands, each followed by what it gives. */
static char *replay(char *text, replay_fn run, void *context) {
  char *made = NULL;
  size_t bytes = 0;
  int was_output = 0;
  FILE *out = open_memstream(&made, &bytes);
  for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
    if (*line != '>' && *line != '#') continue;
    fprintf(out, "%s%s\n", was_output ? "\n" : "", line);
    char *whole = whole_command(line, &rest, out);
    fflush(out);
    size_t before = bytes;
    if (*line == '>') run_command(whole, run, context, out);
    fflush(out);
    was_output = bytes > before;
    free(whole);
  }
  fclose(out);
  return made;
}

static char *read_file(const char *path) {
  size_t bytes = 1 << 20;
  FILE *file = fopen(path, "rb");
  cr_assert_not_null(file, "%s", path);
  char *text = calloc(1, bytes + 1);
  cr_assert_lt(fread(text, 1, bytes, file), bytes);
  fclose(file);
  return text;
}

static void expect_same(const char *path, const char *expected, const char *got) {
  int line = 1;
  const char *begin = expected;
  for (; *expected == *got && *got; expected++, got++)
    if (*got == '\n') begin = expected + 1, line++;
  if (*expected == *got) return;
  const char *made = got - (expected - begin);
  cr_expect_fail("%s:%d: expected\n  %.*s\ngot\n  %.*s\nFLP_GOLDEN_UPDATE=1 writes it anew", path, line,
                 (int)strcspn(begin, "\n"), begin, (int)strcspn(made, "\n"), made);
}

void replay_file(const char *name, int compares, replay_fn run, void *context) {
  char path[1024];
  const char *update = getenv("FLP_GOLDEN_UPDATE");
  snprintf(path, sizeof path, "%s/tests/golden/%s", FLP_TEST_TREE, name);
  char *text = read_file(path), *commands = strdup(text), *made = replay(commands, run, context);
  if (compares && update && strcmp(update, "1") == 0) {
    FILE *file = fopen(path, "wb");
    cr_assert(file && fputs(made, file) >= 0 && fclose(file) == 0, "%s", path);
  } else if (compares) {
    expect_same(path, text, made);
  }
  free(text);
  free(commands);
  free(made);
}

static int is_text(const struct dirent *entry) {
  size_t length = strlen(entry->d_name);
  return length > 4 && strcmp(entry->d_name + length - 4, ".txt") == 0;
}

void replay_each(const char *folder, int least, void (*each)(const char *name, void *context), void *context) {
  char path[1024], name[300];
  struct dirent **files;
  snprintf(path, sizeof path, "%s/tests/golden/%s", FLP_TEST_TREE, folder);
  int count = scandir(path, &files, is_text, alphasort);
  cr_assert_geq(count, least, "%s", path);
  for (int i = 0; i < count; i++) {
    snprintf(name, sizeof name, "%s/%s", folder, files[i]->d_name);
    each(name, context);
    free(files[i]);
  }
  free(files);
}

void replay_wrap(FILE *out, const char *text) {
  int used = 0;
  for (const char *word = text; *word;) {
    int length = (int)strcspn(word, " ");
    if (used && used + 1 + length > WIDTH) used = fprintf(out, "\n    ") - 1;
    else if (used) used += fprintf(out, " ");
    used += fprintf(out, "%.*s", length, word);
    word += length;
    word += strspn(word, " ");
  }
  fprintf(out, "\n");
}

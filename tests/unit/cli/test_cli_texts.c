/* test_cli_texts.c: texts and bytes that are read, and what is said of them, by tests/golden/texts.
 *
 *   > mode TEXT            the mode of that name or letter
 *   > tuning TEXT          tile configurations, as --tune takes them
 *   > descriptor KIND AT BYTES   a sound descriptor, but for these bytes, in hexadecimal; AT: a part + bytes
 *   > program AT BYTES     the same of a loss, ppo+k3
 *   > config TEXT          a config.json
 *   > tensors N HEADER     a safetensors file with so many bytes behind its header
 *   > lines WIDTH TEXT     the lines of a text, its columns, and the least that fit
 *   > table WIDTH          lines of cells, divided by ;, of columns that may move, with a label, and notes */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gen/cli/shared/hfconfig.h"
#include "gen/cli/shared/table.h"
#include "gen/cli/shared/text.h"
#include "gen/cli/tensors/safetensors.h"
#include "runtime/base/names.h"
#include "runtime/loss/loss.h"
#include "tests/unit/support/kernel_sample.h"
#include "tests/unit/support/loss_case.h"
#include "tests/unit/support/replay.h"

static char path[512];

/* A message without the path in front of it. What jansson says of text that is no JSON is its own. */
static void print_reason(FILE *out) {
  const char *detail = flp_error_detail(),
             *end = strncmp(detail, path, strlen(path)) ? detail : detail + strlen(path) + 2;
  const char *json = strstr(end, "not JSON: ");
  fprintf(out, "%.*s\n", json ? (int)(json - end + 8) : (int)strlen(end), end);
}

static void write_file(const void *bytes, size_t length) {
  snprintf(path, sizeof path, FLP_TEST_SCRATCH "/text-%ld", (long)getpid());
  FILE *file = fopen(path, "wb");
  cr_assert(file && fwrite(bytes, 1, length, file) == length && fclose(file) == 0, "%s", path);
}

static void print_mode(char *words, FILE *out) {
  fprintf(out, "%s\n", flp_mode_name(flp_mode_find(words)));
}

static void print_tuning(char *words, FILE *out) {
  flp_tuning tuning;
  char text[FLP_TUNABLES_TEXT_BYTES];
  if (flp_tuning_parse("tune", words, &tuning) != FLP_OK) return print_reason(out);
  for (int kind = 1; kind < FLP_KERNEL_KINDS; kind++) {
    flp_tunables_text(&tuning.of[kind], text);
    if (strcmp(text, "own") != 0) fprintf(out, "%s %s\n", flp_kernel_kind_name((flp_kernel_kind)kind), text);
  }
}

typedef struct part {
  const char *name;
  size_t at;
} part;

/* words: "key+4 736d" */
static void overwrite(uint8_t *bytes, const part *parts, const char *words) {
  char name[32];
  size_t more = 0;
  int used = 0;
  cr_assert_geq(sscanf(words, "%31[a-z]+%zu %n", name, &more, &used), 1, "%s", words);
  words = used ? words + used : strchr(words, ' ') + 1;
  while (strcmp(parts->name, name) != 0) cr_assert_not_null((++parts)->name, "%s", name);
  for (uint8_t *to = bytes + parts->at + more; sscanf(words, "%2hhx", to) == 1; to++) words += 2;
}

static void print_descriptor(char *words, FILE *out) {
  static const part parts[] = {{"start", 0},   {"key", 8},   {"tune", 84}, {"count", 180},
                               {"entry", 184}, {"end", 320}, {NULL, 0}};
  const char *name = strsep(&words, " ");
  int kind = 1;
  while (strcmp(flp_kernel_kind_name((flp_kernel_kind)kind), name) != 0) kind++;
  uint8_t bytes[FLP_DESC_BYTES_MAX];
  flp_kernel_desc desc = sample_desc((flp_kernel_kind)kind), got;
  size_t length = flp_kernel_desc_write(&desc, bytes, sizeof bytes);
  overwrite(bytes, parts, words);
  cr_expect_eq(flp_kernel_desc_read(bytes, length, &got), FLP_ERROR_CORRUPT, "%s", words);
  print_reason(out);
}

static void print_program(char *words, FILE *out) {
  enum { BODY = 100, PARAMETER = 56, NODE = 8 };
  uint8_t bytes[FLP_LOSS_BYTES_MAX];
  flp_loss loss = find("ppo+k3"), got;
  size_t length = flp_loss_write(&loss, bytes, sizeof bytes), where = 0, sub = 0;
  size_t constants = BODY + loss.parameter_count * PARAMETER, nodes = constants + 8 * loss.constant_count;
  while (loss.nodes[where].op != FLP_LOSS_WHERE) where++;
  while (loss.nodes[sub].op != FLP_LOSS_SUB) sub++;
  const part parts[] = {{"start", 0},
                        {"name", 12},
                        {"counts", 76},
                        {"parameter", BODY},
                        {"second", BODY + PARAMETER},
                        {"constants", constants},
                        {"nodes", nodes},
                        {"where", nodes + NODE * where},
                        {"sub", nodes + NODE * sub},
                        {"metrics", nodes + NODE * loss.node_count},
                        {NULL, 0}};
  overwrite(bytes, parts, words);
  cr_expect_eq(flp_loss_read(bytes, length, &got), FLP_ERROR_CORRUPT, "%s", words);
  print_reason(out);
}

static void print_config(char *words, FILE *out) {
  cli_hfconfig c;
  write_file(words, strlen(words));
  if (*words == '/') snprintf(path, sizeof path, "%s", words);
  flp_status status = cli_hfconfig_read(path, &c);
  if (status == FLP_OK)
    fprintf(out, "V=%lld D=%lld %s softcap=%g scale=%g\n", (long long)c.vocab, (long long)c.hidden,
            flp_dtype_name(c.dtype), c.softcap, c.scale);
  else
    print_reason(out);
  if (*words != '/') cr_expect_eq(status == FLP_OK || status == FLP_ERROR_CORRUPT, 1, "%s", words);
}

static void print_tensors(char *words, FILE *out) {
  static uint8_t bytes[4096];
  char *header = words;
  size_t data = strtoul(words, &header, 10), length = strlen(++header);
  for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)length >> (8 * i));
  cr_assert_lt(8 + length + data, sizeof bytes);
  memcpy(bytes + 8, header, length);
  write_file(bytes, 8 + length + data);
  cli_safetensors *file = NULL;
  flp_status status = cli_safetensors_open(path, &file);
  cr_expect(file ? status == FLP_OK : status == FLP_ERROR_CORRUPT, "%s", header);
  if (!file) print_reason(out);
  for (size_t i = 0; file && i < cli_safetensors_count(file); i++) {
    char shape[CLI_TENSOR_TEXT_BYTES];
    const cli_tensor *tensor = cli_safetensors_get(file, i);
    fprintf(out, "%s %s %s\n", tensor->name, cli_tensor_dtype_name(tensor->dtype),
            cli_tensor_shape_text(tensor, shape));
  }
  cli_safetensors_close(file);
}

static void print_lines(char *words, FILE *out) {
  char *end = words;
  size_t width = strtoul(words, &end, 10);
  const char *text = *end ? end + 1 : end, *rest = text;
  for (cli_text_line line; cli_text_next(&rest, width, &line);) {
    cr_assert_leq(line.columns, width);
    fprintf(out, "[%.*s]\n", (int)line.bytes, line.text);
  }
  fprintf(out, "%zu columns, least %zu, within words %zu\n", cli_text_columns(text), cli_text_least(text, 0),
          cli_text_least(text, 1));
}

static void add_line(cli_table *table, char *line, int is_first) {
  int column, used = 0;
  char *cells[5] = {0};
  if (sscanf(line, "move %d \"%n", &column, &used) == 1 && used) {
    line[strlen(line) - 1] = 0;
    return cli_table_may_move(table, column, line + used);
  }
  if (strncmp(line, "note ", 5) == 0) return cli_table_note(table, "%s", line + 5);
  for (int i = 0; i < 5 && line; i++) {
    cells[i] = line;
    if ((line = strstr(line, "; "))) *line = 0, line += 2;
  }
  if (is_first)
    cli_table_start(table, cells[0], cells[1], cells[2], cells[3], NULL);
  else
    cli_table_add(table, cells[0], cells[1], cells[2], cells[3], NULL);
}

static void print_table(char *words, FILE *out) {
  FILE *file = tmpfile();
  cr_assert_not_null(file);
  setenv("COLUMNS", strsep(&words, "\n"), 1);
  fflush(stdout);
  int standard = dup(STDOUT_FILENO);
  dup2(fileno(file), STDOUT_FILENO);
  cli_table table;
  for (int i = 0; words; i++) add_line(&table, strsep(&words, "\n"), i == 0);
  cli_table_finish(&table);
  fflush(stdout);
  dup2(standard, STDOUT_FILENO);
  close(standard);
  rewind(file);
  for (int c; (c = fgetc(file)) != EOF;) fputc(c, out);
  fclose(file);
}

static void run(void *context, const char *command, const char *given, FILE *out) {
  (void)context;
  static const struct {
    const char *name;
    void (*print)(char *words, FILE *out);
  } commands[] = {{"mode", print_mode},       {"tuning", print_tuning}, {"descriptor", print_descriptor},
                  {"program", print_program}, {"config", print_config}, {"tensors", print_tensors},
                  {"lines", print_lines},     {"table", print_table}};
  size_t i = 0;
  while (strcmp(commands[i].name, command) != 0) cr_assert_lt(++i, sizeof commands / sizeof commands[0], "%s", command);
  char *words = strdup(given);
  commands[i].print(words, out);
  free(words);
  unlink(path);
}

static void each(const char *name, void *context) {
  replay_file(name, 1, run, context);
}

Test(cli_texts, are_as_they_were) {
  replay_each("texts", 6, each, NULL);
}

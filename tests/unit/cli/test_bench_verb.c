/* test_bench_verb.c: `flpgen bench` on the stand-ins for libcuda, libflpgen and cuBLASLt, whose times are always the same:
 * tests/golden/bench has what it records, launches and says.
 *
 *   > device WORDS           settings of the stand-in for libcuda (fake_cuda.h)
 *   > set NAME=VALUE         a variable of the environment
 *   > bench WORDS            with an empty cache: of its record each case, GEMM baseline and host time, what is null and
 *                            the most usual values left out; the kernels that were launched more than a dozen times;
 *                            lines of stdout between its tables. Or the exit code, and stderr */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gen/cli/tensors/safetensors.h"
#include "gen/cli/verbs.h"
#include "tests/unit/support/kernel_sample.h"
#include "tests/unit/support/replay.h"
#include "tests/unit/support/stage.h"

static stage at;
static char cache[300]; /* of this command */

/* Runs the verb with short bursts and these words; stdout and stderr go to files. Returns the exit code. */
static int run(const char *words) {
  static int serial;
  char line[1024], json[450], path[400], *argv[64] = {"flpgen bench", "--burst-ms=1", "--rounds=3", "-q"};
  int argc = 4;
  snprintf(json, sizeof json, "--json=%s/record.json", at.root);
  if (!strstr(words, "--write-rows")) argv[argc++] = json; /* which leaves no record */
  snprintf(line, sizeof line, "%s", words);
  for (char *rest = line; (argv[argc] = strtok_r(rest, " ", &rest));) argc++;
  for (int fd = 1; fd <= 2; fd++) {
    snprintf(path, sizeof path, "%s/%d", at.root, fd);
    cr_assert_not_null(freopen(path, "w", fd == 1 ? stdout : stderr));
  }
  snprintf(cache, sizeof cache, "%s/cache%d", at.root, ++serial);
  setenv("FLP_CACHE_DIR", cache, 1);
  at.reset();
  int code = cli_bench(argc, argv);
  fflush(NULL);
  return code;
}

/* What it said, with ~ for the folder of this test and libraries by their names. */
static char *printed(int fd) {
  static char text[32768];
  const char *const folders[][2] = {{at.root, "~"}, {FLP_TEST_FAKE_CUBLASLT, "libfake_cublaslt.so"}};
  char path[400];
  snprintf(path, sizeof path, "%s/%d", at.root, fd);
  FILE *file = fopen(path, "r");
  cr_assert_not_null(file);
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  fclose(file);
  for (int i = 0; i < 2; i++)
    for (char *found; (found = strstr(text, folders[i][0]));) {
      size_t length = strlen(folders[i][0]), shown = strlen(folders[i][1]);
      memcpy(found, folders[i][1], shown);
      memmove(found + shown, found + length, strlen(found + length) + 1);
    }
  return text;
}

/* ---- records ---- */

static double number(json_t *object, const char *key) {
  json_t *value = json_object_get(object, key);
  cr_assert(json_is_number(value), "%s", key);
  return json_number_value(value);
}

/* What most cases have, in the record's own form. */
static int is_usual(const char *key, const char *text) {
  static const char *const usual[] = {"data=\"random\"",    "chunks=1",       "grads=[]",     "dtype=\"bf16\"",
                                      "rung=\"jit\"",       "entropy=\"none\"", "mixed=\"none\"", "hidden_dtype=\"bf16\"",
                                      "weight_dtype=\"bf16\"", "algorithms=2",   "algorithm=0",  "first=0"};
  char pair[128];
  snprintf(pair, sizeof pair, "%s=%s", key, text);
  for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
    if (strcmp(pair, usual[i]) == 0) return 1;
  return 0;
}

/* The least and the most stand around the value. */
static void expect_spread(json_t *object, const char *key) {
  char low[64], high[64];
  snprintf(low, sizeof low, "%s_low", key);
  snprintf(high, sizeof high, "%s_high", key);
  if (!json_object_get(object, low)) return;
  double value = number(object, key);
  cr_expect(value > 0 && number(object, low) <= value && value <= number(object, high), "%s", key);
}

static void add_value(FILE *out, json_t *object, const char *key, json_t *value) {
  if (json_is_null(value)) return;
  expect_spread(object, key);
  char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
  if (strcmp(key, "entropies") == 0) fprintf(out, " %s=%zu", key, json_object_size(value));
  else if (!is_usual(key, text)) fprintf(out, " %s=%s", key, json_is_string(value) ? json_string_value(value) : text);
  free(text);
}

/* Fields that are not written: names, what is least and most, and times of the host, which are what they are. */
static int is_left_out(const char *key) {
  static const char *const parts[] = {"_us", "_low", "_high"};
  for (int i = 0; i < 3; i++)
    if (strstr(key, parts[i])) return 1;
  return strcmp(key, "case") == 0 || strcmp(key, "product") == 0;
}

static void write_object(FILE *out, const char *name, json_t *object) {
  char *text = NULL;
  size_t bytes;
  const char *key;
  json_t *value;
  FILE *words = open_memstream(&text, &bytes);
  fprintf(words, "%s", name);
  json_object_foreach(object, key, value)
    if (!is_left_out(key)) add_value(words, object, key, value);
  fclose(words);
  replay_wrap(out, text);
  free(text);
}

static void write_array(FILE *out, json_t *array, const char *name) {
  size_t i;
  json_t *object;
  json_array_foreach(array, i, object) write_object(out, json_string_value(json_object_get(object, name)), object);
}

/* Each pass that there is has launches, a time, and that of a launch. */
static void expect_host(json_t *record) {
  static const char *const passes[] = {"forward", "backward", "step"};
  json_t *host = json_object_get(record, "host");
  for (int i = 0; i < 3; i++) {
    char launches[32], us[32], each[32];
    snprintf(launches, sizeof launches, "%s_launches", passes[i]);
    snprintf(us, sizeof us, "%s_us", passes[i]);
    snprintf(each, sizeof each, "%s_us_per_launch", passes[i]);
    if (json_is_null(json_object_get(host, us))) cr_expect(json_is_null(json_object_get(host, launches)));
    if (!json_is_number(json_object_get(host, us))) continue;
    expect_spread(host, us);
    if (json_object_get(host, each))
      cr_expect_float_eq(number(host, each) * number(host, launches), number(host, us), 1e-3 * number(host, us));
  }
}

static void expect_head(json_t *record, const char *words) {
  const char *const texts[] = {"gpu", "driver", "date", "sources_hash", "plan_id", "command"};
  const size_t lengths[] = {9, 0, 0, 64, 16, 0};
  for (int i = 0; i < 6; i++) {
    const char *text = json_string_value(json_object_get(record, texts[i]));
    cr_assert(text && *text && (!lengths[i] || strlen(text) == lengths[i]), "%s", texts[i]);
    if (i == 5) cr_expect(strstr(text, "flpgen bench --burst-ms=1") && strstr(text, words), "%s", text);
  }
  cr_expect(number(record, "plan_cold_ms") > 0 && number(record, "plan_warm_ms") > 0 && number(record, "host_us") > 0);
  cr_expect_eq(number(record, "host_rows"), number(json_object_get(record, "host"), "rows"));
}

static void write_record(FILE *out, const char *words) {
  char path[400];
  json_error_t error;
  snprintf(path, sizeof path, "%s/record.json", at.root);
  json_t *record = json_load_file(path, 0, &error), *rows = json_object_get(record, "rows");
  cr_assert_not_null(record, "%s", error.text);
  expect_head(record, words);
  write_array(out, rows, "case");
  write_array(out, json_object_get(record, "bare"), "product");
  write_object(out, "host", json_object_get(record, "host"));
  expect_host(record);
  json_decref(record);
  unlink(path);
}

/* ---- launches and lines ---- */

static int by_name(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void write_launches(FILE *out) {
  static const char *names[16384];
  size_t count = at.launch_count(), bytes;
  char *text = NULL;
  FILE *words = open_memstream(&text, &bytes);
  for (size_t i = 0; i < count; i++) names[i] = at.launch_at(i)->entry;
  qsort(names, count, sizeof *names, by_name);
  fprintf(words, "launches");
  for (size_t i = 0, begin = 0; i < count; begin = ++i) {
    while (i + 1 < count && strcmp(names[i], names[i + 1]) == 0) i++;
    fprintf(words, " %s", names[begin]);
    cr_expect_gt(i + 1 - begin, 12, "%s", names[begin]);
  }
  fclose(words);
  if (count) replay_wrap(out, text);
  free(text);
}

/* Lines of notes, and rows with a comma: what else rows and heads of tables say is in the record. */
static void write_lines(FILE *out) {
  static const char *const others[] = {"N ", "pass ", "forward ", "backward ", "step "};
  static const char *const absent[] = {"device: ", "plan: ", "cuBLASLt: ", "host: "};
  for (char *rest = printed(1), *line; (line = strsep(&rest, "\n"));) {
    int is_other = !*line || (*line >= '0' && *line <= '9');
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
      is_other |= strncmp(line, others[i], strlen(others[i])) == 0;
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
      if (strncmp(line, absent[i], strlen(absent[i])) == 0) is_other = 1, *line = 0;
    if (strncmp(line, "data: ", 6) == 0) line[strcspn(line, "(")] = 0; /* the stand-in computes no entropies */
    if (!is_other || strchr(line, ',') || strstr(line, "scaled")) replay_wrap(out, line);
  }
}

/* ---- commands ---- */

/* Neither memory, modules, contexts, caches nor a changed environment. */
static void expect_nothing_left(void) {
  size_t bytes;
  int modules, contexts;
  char command[600];
  at.held(&bytes, &modules, &contexts);
  cr_expect(bytes == 0 && modules == 0 && contexts == 0);
  cr_expect_str_eq(getenv("FLP_CACHE_DIR"), cache);
  cr_expect_str_eq(getenv("FLP_CACHE_PATH"), "/kept");
  snprintf(command, sizeof command, "test -z \"$(ls -d '%s'/flpgen-bench-* 2>/dev/null)\"", at.root);
  cr_expect_eq(system(command), 0, "the temporary caches are removed");
}

static void open_stage(void) {
  stage_open(&at, "");
  setenv("FLP_CUBLASLT_LIBRARY", FLP_TEST_FAKE_CUBLASLT, 1);
  setenv("FAKE_CUBLASLT", "", 1);
  setenv("TMPDIR", at.root, 1);
  setenv("FLP_CACHE_PATH", "/kept", 1);
}

static void set_variable(const char *words) {
  char name[64];
  snprintf(name, sizeof name, "%.*s", (int)strcspn(words, "="), words);
  const char *value = words + strlen(name) + 1;
  if (strcmp(value, "fake_cuda") == 0) value = FLP_TEST_FAKE_CUDA;
  if (strcmp(value, "fake_cublaslt") == 0) value = FLP_TEST_FAKE_CUBLASLT;
  setenv(name, value, 1);
}

static void command(void *context, const char *name, const char *words, FILE *out) {
  (void)context;
  if (strcmp(name, "device") == 0) at.script(words);
  else if (strcmp(name, "set") == 0) set_variable(words);
  else {
    cr_assert_str_eq(name, "bench");
    int code = run(words);
    if (code == 0) {
      write_record(out, words);
      write_launches(out);
      write_lines(out);
      expect_nothing_left();
    } else {
      fprintf(out, "exit %d\n%s", code, printed(2));
    }
  }
}

static void check_file(const char *name, void *context) {
  open_stage();
  replay_file(name, 1, command, context);
}

Test(bench_verb, records_launches_and_lines_are_as_they_were) {
  replay_each("bench", 4, check_file, NULL);
}

/* ---- what is in no record ---- */

static void expect_success(const char *words) {
  open_stage();
  cr_assert_eq(run(words), 0, "%s", printed(2));
}

/* All outputs are asked for: what gives best columns and ranks is timed. */
Test(bench_verb, best_columns_have_all_their_outputs) {
  expect_success("--vocab 3000 --hidden 64 --topk 20 --rank --rows 40");
  flp_top_finish_params finish = STAGE_PARAMS(flp_top_finish_params, stage_launch(&at, "top_finish", 0));
  cr_expect(finish.top_ids && finish.top_logprob && finish.top_rest && finish.rank);
}

Test(bench_verb, the_plain_plan_beside_mixed_operands_reads_its_own) {
  expect_success("--vocab 1000 --hidden 64 --weight-dtype fp32 --mixed round --rows 40");
  flp_operand_terms_params terms = STAGE_PARAMS(flp_operand_terms_params, stage_launch(&at, "operand_terms", 0));
  flp_forward_params forward = STAGE_PARAMS(flp_forward_params, stage_launch(&at, "forward", 0));
  cr_expect_neq(forward.weight, terms.source);
}

/* The stand-in leaves memory as it is: what is written is what was uploaded. */
Test(bench_verb, rows_are_written_instead_of_measured) {
  static const struct {
    const char *name;
    cli_tensor_dtype dtype;
    int64_t shape[2];
  } tensors[] = {{"hidden", CLI_TENSOR_BF16, {40, 64}},
                 {"weight", CLI_TENSOR_BF16, {2000, 64}},
                 {"bias", CLI_TENSOR_BF16, {2000}},
                 {"target", CLI_TENSOR_I64, {40}}};
  cli_safetensors *file = NULL;
  cr_assert_eq(chdir(sample_directory()), 0);
  expect_success("--vocab 2000 --hidden 64 --rows 40 --data text --bias --write-rows rows.safetensors");
  cr_assert_eq(cli_safetensors_open("rows.safetensors", &file), FLP_OK);
  cr_expect_eq(cli_safetensors_count(file), 4);
  for (int i = 0; i < 4; i++) {
    const cli_tensor *got = cli_safetensors_find(file, tensors[i].name);
    cr_assert(got && got->dtype == tensors[i].dtype, "%s", tensors[i].name);
    cr_expect_arr_eq(got->shape, tensors[i].shape, sizeof tensors[i].shape, "%s", tensors[i].name);
  }
  cli_safetensors_close(file);
  cr_expect_not_null(strstr(printed(1), "data: text; entropies of 40 rows in nats (quantiles): "));
  cr_expect_eq(at.launch_count() > 0, 1);
}

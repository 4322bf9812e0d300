/* fuzz_settings.c: any text as a value of a setting or of an option: refused by name, or read and written back as the
 * same value. The first byte picks what the text is a value of. */
#include <inttypes.h>

#include "runtime/base/names.h"
#include "runtime/kernel/kernel.h"
#include "runtime/store/store.h"
#include "tests/fuzz/fuzz.h"

static void expect_argument(flp_status status) {
  fuzz_expect_refusal(status, FUZZ_BIT(FLP_ERROR_ARGUMENT));
}

static void read_bytes(const char *text) {
  uint64_t bytes = 1, again = 0;
  char decimal[32];
  flp_status status = flp_bytes_parse("FLP_BUDGET", text, 1, &bytes);
  if (status != FLP_OK) {
    FUZZ_PROMISE(bytes == 0);
    expect_argument(status);
    return;
  }
  FUZZ_PROMISE(bytes >= 1 && bytes <= INT64_MAX);
  snprintf(decimal, sizeof decimal, "%" PRIu64, bytes);
  FUZZ_PROMISE(flp_bytes_parse("FLP_BUDGET", decimal, 1, &again) == FLP_OK && again == bytes);
}

static void read_tune(const char *text) {
  flp_tuning tuning, again;
  char written[FLP_TUNING_TEXT_BYTES];
  flp_status status = flp_tuning_parse("--tune", text, &tuning);
  if (status != FLP_OK) {
    expect_argument(status);
    return;
  }
  flp_tuning_text(&tuning, written);
  FUZZ_PROMISE(flp_tuning_parse("--tune", written, &again) == FLP_OK);
  FUZZ_PROMISE(memcmp(&tuning, &again, sizeof tuning) == 0);
}

static void read_mode(const char *text) {
  flp_mode mode = flp_mode_find(text);
  FUZZ_PROMISE(!mode || flp_mode_find(flp_mode_name(mode)) == mode);
}

static void read_key(const char *text) {
  flp_kernel_key key;
  uint8_t sources[32];
  char written[FLP_KEY_BYTES_MAX + 1];
  if (!flp_kernel_key_read(text, &key, sources)) return;
  const char *tuned = strstr(text, " tuned=");
  size_t length = flp_kernel_key_bytes(&key, sources, tuned ? tuned + strlen(" tuned=") : "", written, sizeof written);
  FUZZ_PROMISE(length == strlen(text) && memcmp(written, text, length) == 0);
}

/* Sets one variable and asks for all options that are in force. */
static void read_setting(const char *name, const char *text) {
  flp_rung rung;
  int32_t strict;
  uint64_t budget;
  if (setenv(name, text, 1) != 0) abort();
  flp_status status = flp_options_in_force(NULL, FLP_PASS_FORWARD, &rung, &strict, &budget);
  unsetenv(name);
  if (status != FLP_OK)
    expect_argument(status);
  else
    FUZZ_PROMISE(rung <= FLP_RUNG_EAGER && (strict == 0 || strict == 1) && budget >= 1);
}

static void read_force(const char *text) {
  read_setting("FLP_FORCE", text);
}

static void read_strict(const char *text) {
  read_setting("FLP_STRICT", text);
}

static void read_budget(const char *text) {
  read_setting("FLP_BUDGET", text);
}

static int visit(void *context, const flp_store_item *item) {
  FUZZ_PROMISE(item->file && item->key && (item->status == FLP_OK || item->reason));
  return ++*(int *)context < 100;
}

static void read_cache_path(const char *text) {
  flp_store *store = NULL;
  int visited = 0;
  if (flp_store_open("", text, &store) != FLP_OK) return;
  if (flp_store_each(store, visit, &visited) != FLP_OK) FUZZ_PROMISE(flp_error_detail()[0]);
  flp_store_close(store);
}

static const struct {
  char first;
  void (*read)(const char *text);
} values[] = {{'b', read_bytes}, {'t', read_tune},   {'m', read_mode},   {'k', read_key},
              {'f', read_force}, {'s', read_strict}, {'B', read_budget}, {'p', read_cache_path}};

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  if (!length) return 0;
  char *text = fuzz_text(bytes + 1, length - 1);
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
    if (values[i].first == (char)bytes[0]) values[i].read(text);
  free(text);
  return 0;
}

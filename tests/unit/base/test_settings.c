/* test_settings.c: settings, by tests/golden/base/settings.txt, the detail sentence and the log callback.
 *
 *   > set NAME VALUE       a variable of the environment; > unset NAME
 *   > long NAME COUNT      one of so many bytes
 *   > each VALUE           sets every setting so, or unsets it: what each is then from
 *   > show NAME            a setting's value, where it is from, and what holds where it is unset */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/api/validate.h"
#include "runtime/base/status.h"
#include "tests/unit/support/replay.h"

static flp_setting read_setting(flp_setting_id id) {
  flp_setting setting;
  flp_setting_get(id, &setting);
  return setting;
}

/* ---- settings ---- */

static FILE *shown;

static void put_warning(flp_log_level level, const char *message, void *user) {
  (void)user;
  if (level == FLP_LOG_WARNING) fprintf(shown, "warning: %s\n", message);
}

static void show_each(const char *value) {
  for (int i = 0; i < FLP_SETTING_COUNT; i++) {
    flp_setting setting = read_setting((flp_setting_id)i);
    setenv(setting.name, value, 1);
    setting = read_setting((flp_setting_id)i);
    cr_expect_gt(strlen(setting.help), 0);
    int is_value = *value && strcmp(setting.value, value) == 0;
    fprintf(shown, "%s, %s%s\n", setting.name, setting.source, is_value ? ", as it was set" : "");
    unsetenv(setting.name);
  }
}

static void show(const char *name) {
  for (int i = 0; i < FLP_SETTING_COUNT; i++) {
    flp_setting setting = read_setting((flp_setting_id)i);
    if (strcmp(setting.name, name) != 0) continue;
    if (strlen(setting.value) > 100) fprintf(shown, "%zu bytes", strlen(setting.value));
    else fprintf(shown, "\"%s\"", setting.value);
    fprintf(shown, ", %s%s%s\n", setting.source, *setting.unset ? "; unset: " : "", setting.unset);
  }
}

static void set_long(const char *name, const char *count) {
  char value[1100] = "";
  memset(value, '/', (size_t)atoi(count));
  setenv(name, value, 1);
}

static void run(void *context, const char *command, const char *words, FILE *out) {
  (void)context;
  char name[64], value[64] = "";
  sscanf(words, "%63s %63s", name, value);
  shown = out;
  if (strcmp(command, "set") == 0) setenv(name, value, 1);
  else if (strcmp(command, "unset") == 0) unsetenv(name);
  else if (strcmp(command, "each") == 0) show_each(words);
  else if (strcmp(command, "show") == 0) show(name);
  else if (strcmp(command, "long") == 0) set_long(name, value);
  else cr_assert_fail("%s is no command", command);
}

Test(settings, are_as_they_were) {
  flp_log_set(put_warning, NULL);
  replay_file("base/settings.txt", 1, run, NULL);
}

Test(settings, what_is_shown_as_a_value_may_be_set) {
  flp_options resolved;
  for (int i = 0; i < FLP_SETTING_COUNT; i++) {
    flp_setting before = read_setting((flp_setting_id)i);
    cr_expect_neq(before.value[0] == 0, before.unset[0] == 0, "%s: either a value or what holds without", before.name);
    if (!before.value[0]) continue;
    setenv(before.name, before.value, 1);
    cr_expect_str_eq(read_setting((flp_setting_id)i).value, before.value);
    cr_expect_eq(flp_options_resolve(NULL, &resolved), FLP_OK, "%s: %s", before.name, flp_error_detail());
  }
}

Test(settings, without_a_home_the_user_database_knows) {
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  const char *value = read_setting(FLP_SETTING_CACHE_DIR).value;
  cr_expect(value[0] == 0 || strstr(value, "/.cache/flp"), "%s", value);
}

Test(settings, neighbours_are_found_beside_the_library) {
  char own[512], expected[1024];
  ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
  cr_assert_gt(length, 0);
  own[length] = 0;
  *strrchr(own, '/') = 0;
  flp_setting jit = read_setting(FLP_SETTING_JIT_LIBRARY), generic = read_setting(FLP_SETTING_GENERIC_DIR);
  snprintf(expected, sizeof expected, "%s/libflpgen.so", own);
  cr_expect_str_eq(jit.value, access(expected, F_OK) == 0 ? expected : "libflpgen.so");
  cr_expect(strncmp(generic.value, own, strlen(own)) == 0, "%s", generic.value);
  cr_expect_not_null(strstr(generic.value, "share/flp/generic"));
}

/* ---- status and detail ---- */

Test(status, numbers_and_names_are_pinned) {
  static const char *const names[] = {"FLP_OK",
                                      "FLP_ERROR_ARGUMENT",
                                      "FLP_ERROR_UNSUPPORTED",
                                      "FLP_ERROR_MEMORY",
                                      "FLP_ERROR_WORKSPACE",
                                      "FLP_ERROR_BUDGET",
                                      "FLP_ERROR_UNAVAILABLE",
                                      "FLP_ERROR_DRIVER",
                                      "FLP_ERROR_IO",
                                      "FLP_ERROR_CORRUPT",
                                      "FLP_ERROR_COMPILE",
                                      "FLP_ERROR_DATA",
                                      "FLP_ERROR_INTERNAL"};
  for (int i = 0; i < 13; i++) cr_expect_str_eq(flp_status_name((flp_status)i), names[i]);
  cr_expect_str_eq(flp_status_name((flp_status)13), "unknown flp_status");
  cr_expect_str_eq(flp_status_name((flp_status)-1), "unknown flp_status");
  cr_expect_str_eq(flp_version(), FLP_VERSION_STRING);
}

Test(status, detail_may_quote_itself) {
  cr_expect_str_empty(flp_error_detail());
  cr_expect_eq(flp_fail(FLP_ERROR_IO, "disk %d", 7), FLP_ERROR_IO);
  flp_fail(FLP_ERROR_IO, "cache: %s", flp_error_detail());
  cr_expect_str_eq(flp_error_detail(), "cache: disk 7");
  flp_detail_clear();
  cr_expect_str_empty(flp_error_detail());
}

Test(status, detail_is_cut_at_its_capacity) {
  char text[3000];
  memset(text, 't', sizeof text);
  text[sizeof text - 1] = 0;
  flp_fail(FLP_ERROR_IO, "%s", text);
  cr_expect_eq(strlen(flp_error_detail()), 1023);
}

Test(status, a_failure_outlives_what_fails_after_it) {
  flp_fail(FLP_ERROR_IO, "first");
  flp_failure held = flp_failure_hold(FLP_ERROR_IO);
  flp_fail(FLP_ERROR_DATA, "second");
  cr_expect_eq(flp_failure_restore(&held), FLP_ERROR_IO);
  cr_expect_str_eq(flp_error_detail(), "first");
  held = flp_failure_hold(FLP_OK);
  flp_fail(FLP_ERROR_DATA, "third");
  cr_expect_eq(flp_failure_restore(&held), FLP_OK);
  cr_expect_str_eq(flp_error_detail(), "third", "success has no sentence of its own");
}

static void *fail_elsewhere(void *unused) {
  (void)unused;
  cr_expect_str_empty(flp_error_detail());
  flp_fail(FLP_ERROR_DATA, "there");
  return NULL;
}

Test(status, detail_belongs_to_one_thread) {
  flp_fail(FLP_ERROR_IO, "here");
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
  pthread_join(thread, NULL);
  cr_expect_str_eq(flp_error_detail(), "here");
}

/* ---- log ---- */

typedef struct log_state {
  atomic_int calls, inside, overlaps, after_close;
  atomic_int closed;
} log_state;

static void count_call(flp_log_level level, const char *message, void *user) {
  (void)level;
  (void)message;
  log_state *s = user;
  if (atomic_fetch_add(&s->inside, 1)) atomic_fetch_add(&s->overlaps, 1);
  if (atomic_load(&s->closed)) atomic_fetch_add(&s->after_close, 1);
  atomic_fetch_add(&s->calls, 1);
  atomic_fetch_sub(&s->inside, 1);
}

static atomic_int stop;

static void *log_much(void *unused) {
  (void)unused;
  while (!atomic_load(&stop)) flp_log(FLP_LOG_INFO, "message %d", 1);
  return NULL;
}

Test(log, callback_is_never_entered_after_it_was_replaced) {
  static log_state states[200];
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) cr_assert_eq(pthread_create(&threads[i], NULL, log_much, NULL), 0);
  int calls = 0;
  for (int i = 0; i < 200; i++) {
    flp_log_set(count_call, &states[i]);
    usleep(100);
    flp_log_set(NULL, NULL);
    atomic_store(&states[i].closed, 1);
  }
  atomic_store(&stop, 1);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < 200; i++) {
    cr_expect_eq(states[i].after_close, 0);
    cr_expect_eq(states[i].overlaps, 0);
    calls += states[i].calls;
  }
  cr_expect_gt(calls, 0);
}

static void log_again(flp_log_level level, const char *message, void *user) {
  int *depth = user;
  if ((*depth)++ == 0) flp_log(level, "again: %s", message);
}

Test(log, callback_may_log) {
  int depth = 0;
  flp_log_set(log_again, &depth);
  flp_log(FLP_LOG_ERROR, "once");
  cr_expect_eq(depth, 2);
}

/* spawn.c: a part of a proof in a process of its own, which may hang for ever or die. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gen/cli/prove/prove.h"

extern char **environ;

enum { ANSWER_BYTES = 1 << 16, REAP_S = 10, WORDS_MAX = 24 };

/* What a process is told: words of a command. */
typedef struct words {
  char text[WORDS_MAX][64];
  char *argv[WORDS_MAX + 1];
  int count;
} words;

static void add(words *all, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(words *all, const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(all->text[all->count], sizeof all->text[0], format, values);
  va_end(values);
  all->argv[all->count] = all->text[all->count];
  all->argv[++all->count] = NULL;
}

static void list_words(const prove_args *args, const char *arch, const prove_part *part, int portable, words *out) {
  out->count = 0;
  add(out, "flpgen");
  add(out, "prove");
  add(out, "--arch=%s", arch);
  add(out, "--part=%s", part->name);
  add(out, "--device=%d", args->options.device);
  add(out, "--rows=%lld", (long long)args->rows);
  add(out, "--vocab=%lld", (long long)args->vocab);
  add(out, "--hidden=%lld", (long long)args->hidden);
  add(out, "--repeats=%lld", (long long)args->repeats);
  add(out, "--limit=%.9g", args->limit_s);
  if (portable) add(out, "--portable");
}

/* *answers: a pipe with its standard output */
static flp_status start(words *all, pid_t *child, int *answers) {
  int ends[2];
  posix_spawn_file_actions_t actions;
  if (pipe2(ends, O_CLOEXEC) != 0) return flp_fail(FLP_ERROR_INTERNAL, "no pipe: %s", strerror(errno));
  int failed = posix_spawn_file_actions_init(&actions);
  if (!failed) {
    failed = posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    if (!failed) failed = posix_spawn(child, "/proc/self/exe", &actions, NULL, all->argv, environ);
    posix_spawn_file_actions_destroy(&actions);
  }
  close(ends[1]);
  *answers = ends[0];
  if (!failed) return FLP_OK;
  close(ends[0]);
  return flp_fail(FLP_ERROR_INTERNAL, "/proc/self/exe cannot be run: %s", strerror(failed));
}

/* Reads until it ends, or for so long. Returns 0 if it did not end. */
static int read_answer(int answers, double limit_s, char out[ANSWER_BYTES]) {
  double end = cli_seconds_now() + limit_s;
  size_t used = 0;
  for (;;) {
    double left = end - cli_seconds_now();
    struct pollfd wait = {.fd = answers, .events = POLLIN};
    out[used] = 0;
    if (left <= 0) return 0;
    if (poll(&wait, 1, left > 1e6 ? -1 : (int)(1e3 * left) + 1) <= 0) continue;
    ssize_t got = read(answers, out + used, ANSWER_BYTES - 1 - used);
    if (got == 0 || (got < 0 && errno != EINTR)) return 1;
    used += got > 0 ? (size_t)got : 0;
  }
}

/* A process that waits within the driver may outlive SIGKILL. Returns 0 if it does. */
static int reap(pid_t child, int *state) {
  const struct timespec pause = {.tv_nsec = 20000000};
  double end = cli_seconds_now() + REAP_S;
  for (pid_t got = 0; cli_seconds_now() < end; nanosleep(&pause, NULL)) {
    got = waitpid(child, state, WNOHANG);
    if (got == child) return 1;
    if (got < 0 && errno != EINTR) return 0;
  }
  return 0;
}

/* What a child said that lived to its end. */
static int take_answer(const char *text, prove_result *out) {
  json_t *answer = json_loads(text, 0, NULL), *error = json_object_get(answer, "error");
  const char *reason = json_string_value(json_object_get(error ? error : answer, error ? "message" : "reason"));
  if (!answer) return 0;
  snprintf(out->reason, sizeof out->reason, "%s", reason ? reason : "");
  out->end = error ? PROVE_FAILED : out->reason[0] ? PROVE_WRONG : PROVE_RIGHT;
  out->status = FLP_ERROR_INTERNAL;
  for (int status = FLP_OK; error && status <= FLP_ERROR_INTERNAL; status++)
    if (strcmp(flp_status_name((flp_status)status), json_string_value(json_object_get(error, "status"))) == 0)
      out->status = (flp_status)status;
#define INTEGER(name) out->name = (int64_t)json_number_value(json_object_get(answer, #name));
#define DOUBLE(name) out->name = json_number_value(json_object_get(answer, #name));
  PROVE_NUMBERS(INTEGER, DOUBLE)
  json_decref(answer);
  return 1;
}

flp_status prove_spawn(const prove_args *args, const char *arch, const prove_part *part, int portable,
                       prove_result *out) {
  static char answer[ANSWER_BYTES];
  words all;
  pid_t child;
  int answers = -1, state = 0;
  *out = (prove_result){.end = PROVE_RIGHT};
  list_words(args, arch, part, portable, &all);
  FLP_TRY(start(&all, &child, &answers));
  int ended = read_answer(answers, args->limit_s, answer);
  close(answers);
  if (!ended) kill(child, SIGKILL);
  int reaped = reap(child, &state);
  if (!ended) {
    out->end = PROVE_HUNG;
    snprintf(out->reason, sizeof out->reason, "hangs: no end within %g seconds%s", args->limit_s,
             reaped ? "" : ", and SIGKILL does not end it");
  } else if (reaped && WIFSIGNALED(state)) {
    out->end = PROVE_DIED;
    snprintf(out->reason, sizeof out->reason, "dies: %s", strsignal(WTERMSIG(state)));
  } else if (!take_answer(answer, out)) {
    out->end = PROVE_DIED;
    snprintf(out->reason, sizeof out->reason, "dies: its process ended without an answer");
  }
  return FLP_OK;
}

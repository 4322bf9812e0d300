/* scratch.c: see scratch.h.
 *
 * Invariant: a directory that another process names is never used, and so never removed: its name has this process's
 * id, which stays the same when the command starts itself anew. */
#include "scratch.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../runtime/status.h"

enum { TEMPORARY_BYTES_MAX = 200 };
static const char variable[] = "CUDA_CACHE_PATH", driver_name[] = "/driver";
static char **command;

void cli_scratch_set_command(char **argv) {
  command = argv;
}

static flp_status make_root(const char *verb, char root[256]) {
  const char *given = getenv("TMPDIR"), *temporary = given && given[0] ? given : "/tmp";
  if (strlen(temporary) > TEMPORARY_BYTES_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "TMPDIR is a path of %zu bytes (accepted: up to %d)", strlen(temporary),
                    TEMPORARY_BYTES_MAX);
  snprintf(root, 256, "%s/flpgen-%s-%ld-XXXXXX", temporary, verb, (long)getpid());
  if (mkdtemp(root)) return FLP_OK;
  root[0] = 0;
  return flp_fail(FLP_ERROR_IO, "no temporary directory in %s: %s", temporary, strerror(errno));
}

/* Writes the directory that this process made for the driver's cache before it started anew; 0 if it did not. */
static int find_root(const char *verb, char root[256]) {
  char own[64];
  const char *path = getenv(variable);
  size_t length = path ? strlen(path) : 0, tail = sizeof driver_name - 1;
  if (length <= tail || length - tail >= 256 || strcmp(path + length - tail, driver_name) != 0) return 0;
  snprintf(root, 256, "%.*s", (int)(length - tail), path);
  int own_length = snprintf(own, sizeof own, "/flpgen-%s-%ld-", verb, (long)getpid());
  const char *last = strrchr(root, '/');
  if (last && strncmp(last, own, (size_t)own_length) == 0) return 1;
  root[0] = 0;
  return 0;
}

static flp_status check_root(const char *root) {
  struct stat stat;
  if (lstat(root, &stat) == 0 && S_ISDIR(stat.st_mode) && stat.st_uid == geteuid() && !(stat.st_mode & 077))
    return FLP_OK;
  return flp_fail(FLP_ERROR_IO, "%s is not the temporary directory that this command made", root);
}

/* The environment with the variable set to value; NULL if memory ran out. */
static char **make_environment(char *value) {
  size_t count = 0, kept = 0, name_bytes = sizeof variable - 1;
  while (environ[count]) count++;
  char **out = calloc(count + 2, sizeof *out);
  for (size_t i = 0; out && i < count; i++)
    if (strncmp(environ[i], variable, name_bytes) != 0 || environ[i][name_bytes] != '=') out[kept++] = environ[i];
  if (out) out[kept] = value;
  return out;
}

/* Returns only if that failed, which leaves the driver's cache as it is. */
static void start_anew(const char *root) {
  char value[320];
  snprintf(value, sizeof value, "%s=%s%s", variable, root, driver_name);
  char **environment = make_environment(value);
  fflush(NULL);
  if (environment) execve("/proc/self/exe", command, environment);
  flp_log(FLP_LOG_WARNING, "the driver's cache of machine code is not set apart: %s", strerror(errno));
  free(environment);
}

flp_status cli_scratch_open(const char *verb, cli_scratch *out) {
  *out = (cli_scratch){.root = ""};
  char root[256];
  int is_anew = find_root(verb, root);
  FLP_TRY(is_anew ? check_root(root) : make_root(verb, root));
  if (!is_anew && command) start_anew(root);
  snprintf(out->root, sizeof out->root, "%s", root);
  snprintf(out->kernels, sizeof out->kernels, "%s/kernels", root);
  return FLP_OK;
}

static int remove_one(const char *path, const struct stat *stat, int kind, struct FTW *walk) {
  (void)stat;
  (void)kind;
  (void)walk;
  return remove(path);
}

void cli_scratch_close(cli_scratch *scratch) {
  if (scratch->root[0]) nftw(scratch->root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
  scratch->root[0] = 0;
}

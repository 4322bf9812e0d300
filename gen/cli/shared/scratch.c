/* scratch.c: see scratch.h. */
#include "gen/cli/shared/scratch.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/status.h"

enum { TEMPORARY_BYTES_MAX = 200 };

static flp_status make_root(const char *verb, char root[256]) {
  const char *given = getenv("TMPDIR"), *temporary = given && given[0] ? given : "/tmp";
  if (strlen(temporary) > TEMPORARY_BYTES_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "TMPDIR is a path of %zu bytes (accepted: up to %d)", strlen(temporary),
                    TEMPORARY_BYTES_MAX);
  snprintf(root, 256, "%s/flpgen-%s-XXXXXX", temporary, verb);
  if (mkdtemp(root)) return FLP_OK;
  root[0] = 0;
  return flp_fail(FLP_ERROR_IO, "no temporary directory in %s: %s", temporary, strerror(errno));
}

/* Whether this is the only thread of the process: no other one reads the environment then. */
static int is_only_thread(void) {
  int threads = 0;
  DIR *tasks = opendir("/proc/self/task");
  for (struct dirent *task = tasks ? readdir(tasks) : NULL; task; task = readdir(tasks))
    threads += task->d_name[0] != '.';
  if (tasks) closedir(tasks);
  return threads == 1;
}

/* The driver reads where its cache lies from the environment alone, when it is opened. */
static void set_driver_cache(const char *root) {
  char path[272];
  snprintf(path, sizeof path, "%s/driver", root);
  if (!is_only_thread() || setenv("CUDA_CACHE_PATH", path, 1) != 0)
    flp_log(FLP_LOG_WARNING, "the driver's cache of machine code is not set apart: other threads run, or no memory");
}

flp_status cli_scratch_open(const char *verb, cli_scratch *out) {
  *out = (cli_scratch){.root = ""};
  FLP_TRY(make_root(verb, out->root));
  set_driver_cache(out->root);
  snprintf(out->kernels, sizeof out->kernels, "%s/kernels", out->root);
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

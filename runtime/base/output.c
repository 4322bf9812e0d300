/* output.c: see output.h. */
#include "runtime/base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* Opens the directory of a path; *name: the path's end. Returns -1 on failure. */
static int open_parent(int directory, const char *path, const char **name) {
  char parent[4096];
  const char *slash = strrchr(path, '/');
  size_t length = slash ? (size_t)(slash - path) + 1 : 0; /* with the slash: "/" is a directory too */
  *name = path + length;
  if (length >= sizeof parent) {
    errno = ENAMETOOLONG;
    return -1;
  }
  memcpy(parent, path, length);
  parent[length] = 0;
  return openat(directory, length ? parent : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static int create_temporary(flp_output *out, mode_t mode) {
  uint64_t number;
  if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) return -1;
  snprintf(out->temporary, sizeof out->temporary, FLP_OUTPUT_TEMPORARY "%016" PRIx64, number);
  return openat(out->directory, out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
}

flp_status flp_output_open(int directory, const char *path, mode_t mode, flp_output *out) {
  *out = (flp_output){.path = path};
  out->directory = open_parent(directory, path, &out->name);
  out->fd = out->directory >= 0 ? create_temporary(out, mode) : -1;
  if (out->fd >= 0) return FLP_OK;
  int cause = errno;
  if (out->directory >= 0) close(out->directory);
  return flp_fail(FLP_ERROR_IO, "%s: cannot write: %s", path, strerror(cause));
}

void flp_output_write(flp_output *out, const void *bytes, size_t length) {
  const char *at = bytes;
  while (length > 0 && !out->cause) {
    ssize_t put = write(out->fd, at, length);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      out->cause = errno;
      return;
    }
    at += put;
    length -= (size_t)put;
  }
}

/* What was written reaches its name; a file that cannot is removed. Returns what failed. */
static const char *put_in_place(flp_output *out) {
  const char *step = "write";
  if (!out->cause && renameat(out->directory, out->temporary, out->directory, out->name) != 0) {
    out->cause = errno;
    step = "replace";
  }
  if (out->cause) (void)unlinkat(out->directory, out->temporary, 0);
  close(out->directory);
  return step;
}

void flp_output_discard(flp_output *out) {
  out->cause = ECANCELED;
  (void)flp_output_close(out);
}

flp_status flp_output_close(flp_output *out) {
  int is_file = out->directory >= 0;
  if (is_file && !out->cause && fsync(out->fd) != 0) out->cause = errno;
  /* Network file systems may report a full disk only here. */
  if (close(out->fd) != 0 && !out->cause) out->cause = errno;
  const char *step = is_file ? put_in_place(out) : "write";
  return out->cause ? flp_fail(FLP_ERROR_IO, "%s: cannot %s: %s", out->path, step, strerror(out->cause)) : FLP_OK;
}

/* files.c: whole-file reads, atomic whole-file writes, directories. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gen/cli/shared/common.h"

static flp_status fail_file(const char *path, const char *action) {
  return flp_fail(FLP_ERROR_IO, "%s: cannot %s: %s", path, action, strerror(errno));
}

static flp_status read_all(int fd, const char *path, char *out, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t got = read(fd, out + done, bytes - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_file(path, "read");
    if (got == 0) return flp_fail(FLP_ERROR_IO, "%s: cannot read: it ended after %zu of %zu bytes", path, done, bytes);
    done += (size_t)got;
  }
  return FLP_OK;
}

flp_status cli_open_file(const char *path, int *fd, size_t *bytes) {
  *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (*fd < 0) return fail_file(path, "open");
  struct stat info;
  flp_status status = FLP_OK;
  if (fstat(*fd, &info) != 0)
    status = fail_file(path, "stat");
  else if (!S_ISREG(info.st_mode))
    status = flp_fail(FLP_ERROR_IO, "%s: cannot read: not a regular file", path);
  *bytes = (size_t)info.st_size;
  if (status != FLP_OK) close(*fd);
  return status;
}

flp_status cli_read_file(const char *path, size_t limit, char **out, size_t *bytes) {
  int fd;
  *out = NULL;
  FLP_TRY(cli_open_file(path, &fd, bytes));
  flp_status status = FLP_OK;
  if (*bytes > limit)
    status = flp_fail(FLP_ERROR_CORRUPT, "%s: %zu bytes; at most %zu are accepted", path, *bytes, limit);
  if (status == FLP_OK) {
    *out = malloc(*bytes + 1);
    status = *out ? read_all(fd, path, *out, *bytes) : flp_fail(FLP_ERROR_MEMORY, "%s: out of memory", path);
  }
  close(fd);
  if (status == FLP_OK) {
    (*out)[*bytes] = 0;
  } else {
    free(*out);
    *out = NULL;
  }
  return status;
}

flp_status cli_read_text(const char *path, size_t limit, char **out) {
  size_t bytes;
  FLP_TRY(cli_read_file(path, limit, out, &bytes));
  size_t length = strlen(*out);
  if (length == bytes) return FLP_OK;
  explicit_bzero(*out, bytes); /* it may be a private key */
  free(*out);
  *out = NULL;
  return flp_fail(FLP_ERROR_CORRUPT, "%s: byte %zu is 0; text has none", path, length);
}

/* *fd: of what has this name and is no regular file, a device or a pipe; else -1 */
static flp_status open_special(const char *path, int *fd) {
  struct stat info;
  *fd = -1;
  if (stat(path, &info) != 0 || S_ISREG(info.st_mode)) return FLP_OK;
  *fd = open(path, O_WRONLY | O_CLOEXEC);
  if (*fd < 0) return fail_file(path, "write");
  if (fstat(*fd, &info) == 0 && !S_ISREG(info.st_mode)) return FLP_OK;
  close(*fd); /* another process has put a file there since */
  *fd = -1;
  return FLP_OK;
}

flp_status cli_output_open(const char *path, flp_output *out) {
  int fd;
  FLP_TRY(open_special(path, &fd));
  if (fd < 0) return flp_output_open(AT_FDCWD, path, 0644, out);
  *out = (flp_output){.path = path, .directory = -1, .fd = fd};
  return FLP_OK;
}

flp_status cli_write_file(const char *path, const void *bytes, size_t length) {
  flp_output out;
  FLP_TRY(cli_output_open(path, &out));
  flp_output_write(&out, bytes, length);
  return flp_output_close(&out);
}

flp_status cli_make_directory(const char *path) {
  if (path[0] == 0) return flp_fail(FLP_ERROR_ARGUMENT, "directory: expected a path, got ''");
  char *copy = strdup(path);
  if (!copy) return flp_fail(FLP_ERROR_MEMORY, "%s: out of memory", path);
  flp_status status = FLP_OK;
  for (char *slash = copy + 1; status == FLP_OK; slash++) {
    slash += strcspn(slash, "/");
    int last = *slash == 0;
    *slash = 0;
    if (mkdir(copy, 0755) != 0 && errno != EEXIST) status = fail_file(copy, "create the directory");
    if (last) break;
    *slash = '/';
  }
  struct stat info;
  if (status == FLP_OK && (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)))
    status = flp_fail(FLP_ERROR_IO, "%s: cannot create the directory: a file of that name is there", path);
  free(copy);
  return status;
}

flp_status cli_join_path(const char *directory, const char *name, char **out) {
  size_t length = strlen(directory);
  const char *slash = length && directory[length - 1] == '/' ? "" : "/";
  if (asprintf(out, "%s%s%s", directory, slash, name) >= 0) return FLP_OK;
  *out = NULL;
  return flp_fail(FLP_ERROR_MEMORY, "%s: out of memory", directory);
}

/* file.c: cache directories, checked when they are opened, and files that are written whole or not at all.
 *
 * Invariants: no link is followed in the last part of a path; a directory that another user could write is refused,
 * because a PTX file is code; a file under its final name is complete, whatever moment the writer was killed at. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/output.h"
#include "runtime/base/status.h"
#include "runtime/store/internal.h"

/* ---- directories ---- */

/* Makes path and its parents, mode 0700. Existing directories stay as they are; the open that follows checks the
 * result. */
static void make_directories(const char *path) {
  char part[4096];
  size_t length = strlen(path);
  if (length >= sizeof part) return;
  for (size_t i = 1; i <= length; i++) {
    if (path[i] != '/' && path[i] != 0) continue;
    memcpy(part, path, i);
    part[i] = 0;
    (void)mkdir(part, 0700);
  }
}

/* A directory or a pack that another user could write is not read, because its content is run. */
static flp_status check_owner(const char *path, int writable, int fd) {
  struct stat st;
  if (fstat(fd, &st) != 0) return flp_fail(FLP_ERROR_IO, "%s: %s", path, strerror(errno));
  uid_t user = geteuid();
  if (st.st_uid != user && (writable || st.st_uid != 0))
    return flp_fail(FLP_ERROR_IO, "%s: owned by user %u, accepted: user %u%s", path, (unsigned)st.st_uid,
                    (unsigned)user, writable ? "" : " or root");
  if (st.st_mode & (S_IWGRP | S_IWOTH))
    return flp_fail(FLP_ERROR_IO, "%s: mode %04o lets other users write, accepted: %s", path,
                    (unsigned)(st.st_mode & 07777), S_ISDIR(st.st_mode) ? "0700 or 0755" : "0600 or 0644");
  return FLP_OK;
}

flp_status store_file_open_directory(const char *path, int writable, int create, int *fd, int *absent) {
  *fd = -1;
  if (absent) *absent = 0;
  if (create) make_directories(path);
  int opened = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (opened < 0) {
    int reason = errno; /* of a link ENOTDIR, as of a plain file */
    struct stat st;
    if (absent) *absent = reason == ENOENT;
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
      return flp_fail(FLP_ERROR_IO, "%s: a link, which is not followed", path);
    return flp_fail(FLP_ERROR_IO, "%s: %s", path, strerror(reason));
  }
  flp_status status = check_owner(path, writable, opened);
  if (status != FLP_OK) {
    close(opened);
    return status;
  }
  *fd = opened;
  return FLP_OK;
}

flp_status store_file_open_pack(const char *path, int *fd, struct stat *stat) {
  *fd = -1;
  int opened = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (opened < 0) return flp_fail(FLP_ERROR_IO, "%s: %s", path, strerror(errno));
  flp_status status =
      fstat(opened, stat) == 0 ? check_owner(path, 0, opened) : flp_fail(FLP_ERROR_IO, "%s: %s", path, strerror(errno));
  if (status == FLP_OK && !S_ISREG(stat->st_mode)) status = flp_fail(FLP_ERROR_IO, "%s: not a regular file", path);
  if (status != FLP_OK) {
    close(opened);
    return status;
  }
  *fd = opened;
  return FLP_OK;
}

/* ---- whole files ---- */

static flp_status read_all(int fd, const char *name, uint8_t *out, size_t length) {
  size_t done = 0;
  while (done < length) {
    ssize_t got = read(fd, out + done, length - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return flp_fail(FLP_ERROR_IO, "%s: read: %s", name, strerror(errno));
    if (got == 0) return flp_fail(FLP_ERROR_CORRUPT, "%s: ends after %zu of %zu bytes", name, done, length);
    done += (size_t)got;
  }
  return FLP_OK;
}

static flp_status read_open_file(int fd, const char *name, const struct stat *st, uint8_t **bytes, size_t *length) {
  if (!S_ISREG(st->st_mode)) return flp_fail(FLP_ERROR_CORRUPT, "%s: not a regular file", name);
  if (st->st_size < 1 || st->st_size > STORE_ENTRY_BYTES_MAX)
    return flp_fail(FLP_ERROR_CORRUPT, "%s: %jd bytes, accepted: 1 to %d", name, (intmax_t)st->st_size,
                    STORE_ENTRY_BYTES_MAX);
  size_t size = (size_t)st->st_size;
  uint8_t *out = malloc(size);
  if (!out) return flp_fail(FLP_ERROR_MEMORY, "%s: no memory for %zu bytes", name, size);
  flp_status status = read_all(fd, name, out, size);
  if (status != FLP_OK) {
    free(out);
    return status;
  }
  *bytes = out;
  *length = size;
  return FLP_OK;
}

flp_status store_file_read(int directory, const char *name, uint8_t **bytes, size_t *length, struct stat *stat,
                           int *absent) {
  *bytes = NULL;
  *length = 0;
  *absent = 0;
  memset(stat, 0, sizeof *stat);
  /* O_NONBLOCK: a FIFO under an entry's name must not make the process wait. */
  int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    int reason = errno;
    *absent = reason == ENOENT;
    if (*absent) return FLP_OK;
    if (reason != ELOOP) return flp_fail(FLP_ERROR_IO, "%s: %s", name, strerror(reason));
    (void)fstatat(directory, name, stat, AT_SYMLINK_NOFOLLOW);
    return flp_fail(FLP_ERROR_CORRUPT, "%s: a link, which is not followed", name);
  }
  flp_status status = fstat(fd, stat) == 0 ? read_open_file(fd, name, stat, bytes, length)
                                           : flp_fail(FLP_ERROR_IO, "%s: %s", name, strerror(errno));
  close(fd);
  return status;
}

/* Who may enter the directory may read its files, as far as the umask allows: 0600 in one of mode 0700. */
static mode_t mode_of_files(int directory) {
  struct stat st;
  return fstat(directory, &st) == 0 ? 0600 | (st.st_mode & 0044) : 0600;
}

flp_status store_file_write(int directory, const char *name, const uint8_t *bytes, size_t length) {
  flp_output out;
  FLP_TRY(flp_output_open(directory, name, mode_of_files(directory), &out));
  flp_output_write(&out, bytes, length);
  FLP_TRY(flp_output_close(&out));
  (void)fsync(directory); /* a name lost in a power failure costs a compilation, not a wrong answer */
  return FLP_OK;
}

void store_file_quarantine(int directory, const char *name, const struct stat *stat) {
  enum { BAD_MAX = 100 };
  char bad[STORE_HEX + 32];
  struct stat now;
  if (fstatat(directory, name, &now, AT_SYMLINK_NOFOLLOW) != 0 || now.st_dev != stat->st_dev ||
      now.st_ino != stat->st_ino || now.st_mtim.tv_sec != stat->st_mtim.tv_sec ||
      now.st_mtim.tv_nsec != stat->st_mtim.tv_nsec)
    return;
  for (int i = 0; i < BAD_MAX; i++) {
    snprintf(bad, sizeof bad, "%.*s.bad-%d", STORE_HEX, name, i);
    if (fstatat(directory, bad, &now, AT_SYMLINK_NOFOLLOW) == 0) continue;
    (void)renameat(directory, name, directory, bad);
    return;
  }
  (void)unlinkat(directory, name, 0); /* a hundred specimens are enough */
}

/* ---- names ---- */

store_file_kind store_file_classify(const char *name) {
  if (strncmp(name, FLP_OUTPUT_TEMPORARY, sizeof FLP_OUTPUT_TEMPORARY - 1) == 0) return STORE_FILE_TEMPORARY;
  size_t hex = strspn(name, "0123456789abcdef");
  if (hex != STORE_HEX) return STORE_FILE_OTHER;
  if (strcmp(name + hex, ".flpk") == 0) return STORE_FILE_ENTRY;
  if (strcmp(name + hex, ".flpc") == 0) return STORE_FILE_CUBIN;
  if (strcmp(name + hex, ".flps") == 0) return STORE_FILE_PROOF;
  if (strcmp(name + hex, ".lock") == 0) return STORE_FILE_LOCK;
  if (strncmp(name + hex, ".bad-", 5) == 0) return STORE_FILE_BAD;
  return STORE_FILE_OTHER;
}

static int by_bytes(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Appends a copy of name; the array doubles at powers of two. */
static int append_name(char ***names, size_t *count, const char *name) {
  if ((*count & (*count - 1)) == 0) {
    char **grown = realloc(*names, (*count ? 2 * *count : 1) * sizeof **names);
    if (!grown) return -1;
    *names = grown;
  }
  char *copy = strdup(name);
  if (!copy) return -1;
  (*names)[(*count)++] = copy;
  return 0;
}

flp_status store_file_list(int directory, char ***names, size_t *count) {
  *names = NULL;
  *count = 0;
  int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* closedir closes it */
  DIR *stream = fd < 0 ? NULL : fdopendir(fd);
  if (!stream) {
    flp_status status = flp_fail(FLP_ERROR_IO, "cache directory: %s", strerror(errno));
    if (fd >= 0) close(fd);
    return status;
  }
  flp_status status = FLP_OK;
  errno = 0; /* at its end readdir leaves it as it is */
  for (struct dirent *entry; status == FLP_OK && (entry = readdir(stream)) != NULL; errno = 0)
    if (store_file_classify(entry->d_name) != STORE_FILE_OTHER && append_name(names, count, entry->d_name) != 0)
      status = flp_fail(FLP_ERROR_MEMORY, "no memory for the names of %zu cache files", *count);
  if (status == FLP_OK && errno) status = flp_fail(FLP_ERROR_IO, "cache directory: %s", strerror(errno));
  closedir(stream);
  if (status != FLP_OK) {
    store_file_free_names(*names, *count);
    *names = NULL;
    *count = 0;
    return status;
  }
  if (*count) qsort(*names, *count, sizeof **names, by_bytes);
  return FLP_OK;
}

void store_file_free_names(char **names, size_t count) {
  for (size_t i = 0; i < count; i++) free(names[i]);
  free(names);
}

/* faults.c: see faults.h. The linker leads calls of NAME to __wrap_NAME, and __real_NAME to NAME. */
#include "tests/unit/faults/faults.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* With sanitizers the linker lets shared libraries see wrappers, which must not be hidden then. */
#pragma GCC visibility push(default)

static atomic_uint armed; /* kinds that count */
static atomic_int left;   /* calls up to the one that fails */
static _Atomic(const char *) failed;
static int wanted_error;

void faults_arm(unsigned kinds, int k, int error) {
  wanted_error = error;
  atomic_store(&failed, NULL);
  atomic_store(&left, k);
  atomic_store(&armed, kinds);
}

const char *faults_disarm(void) {
  atomic_store(&armed, 0);
  return atomic_load(&failed);
}

/* Whether this call is the one that fails; sets errno. */
static int fails(faults_kind kind, const char *name, int error) {
  if (!(atomic_load(&armed) & kind) || atomic_fetch_sub(&left, 1) != 1) return 0;
  atomic_store(&failed, name);
  errno = wanted_error > 0 ? wanted_error : error;
  return 1;
}

/* A function of fixed parameters: gives `value` where it is to fail. */
#define WRAP(kind, error, value, type, name, parameters, ...)                \
  type __real_##name parameters;                                             \
  type __wrap_##name parameters;                                             \
  type __wrap_##name parameters {                                            \
    return fails(kind, #name, error) ? (value) : __real_##name(__VA_ARGS__); \
  }

WRAP(FAULTS_MEMORY, ENOMEM, NULL, void *, malloc, (size_t n), n)
WRAP(FAULTS_MEMORY, ENOMEM, NULL, void *, calloc, (size_t n, size_t each), n, each)
WRAP(FAULTS_MEMORY, ENOMEM, NULL, void *, realloc, (void *old, size_t n), old, n)
WRAP(FAULTS_MEMORY, ENOMEM, NULL, char *, strdup, (const char *text), text)
WRAP(FAULTS_MEMORY, ENOMEM, NULL, void *, aligned_alloc, (size_t grain, size_t n), grain, n)
WRAP(FAULTS_MEMORY, ENOMEM, NULL, char *, getcwd, (char *out, size_t n), out, n)
WRAP(FAULTS_MEMORY, ENOMEM, NULL, char *, realpath, (const char *path, char *out), path, out)
WRAP(FAULTS_OPEN, EIO, NULL, DIR *, fdopendir, (int fd), fd)
WRAP(FAULTS_WRITE, EIO, -1, ssize_t, write, (int fd, const void *bytes, size_t n), fd, bytes, n)
WRAP(FAULTS_WRITE, EIO, -1, int, fsync, (int fd), fd)
WRAP(FAULTS_CREATE, EIO, -1, int, mkdir, (const char *path, mode_t mode), path, mode)
WRAP(FAULTS_WRITE, EIO, -1, int, renameat, (int a, const char *from, int b, const char *to), a, from, b, to)
WRAP(FAULTS_WRITE, EIO, -1, int, unlinkat, (int directory, const char *path, int flags), directory, path, flags)
WRAP(FAULTS_CREATE, EIO, -1, ssize_t, getrandom, (void *out, size_t n, unsigned flags), out, n, flags)
WRAP(FAULTS_STAT, EIO, -1, int, fstat, (int fd, struct stat *out), fd, out)
WRAP(FAULTS_STAT, EIO, -1, int, lstat, (const char *path, struct stat *out), path, out)
WRAP(FAULTS_STAT, EIO, -1, int, fstatat, (int directory, const char *path, struct stat *out, int flags), directory,
     path, out, flags)
WRAP(FAULTS_LOCK, EIO, -1, int, flock, (int fd, int operation), fd, operation)
WRAP(FAULTS_THREAD, EAGAIN, EAGAIN, int, pthread_create,
     (pthread_t * thread, const pthread_attr_t *how, void *(*work)(void *), void *argument), thread, how, work,
     argument)
WRAP(FAULTS_START, EIO, -1, int, sodium_init, (void))
WRAP(FAULTS_START, EINVAL, -1, int, sched_getaffinity, (pid_t process, size_t n, cpu_set_t *out), process, n, out)
WRAP(FAULTS_START, 0, 0, int, dladdr1, (const void *address, Dl_info *info, void **extra, int flags), address, info,
     extra, flags)
WRAP(FAULTS_START, EIO, EIO, int, getpwuid_r,
     (uid_t user, struct passwd *out, char *buffer, size_t n, struct passwd **found), user, out, buffer, n, found)

/* The end of the file, or an error. */
#define WRAP_READ(name, parameters, ...)                                    \
  ssize_t __real_##name parameters;                                         \
  ssize_t __wrap_##name parameters;                                         \
  ssize_t __wrap_##name parameters {                                        \
    if (!fails(FAULTS_READ, #name, EIO)) return __real_##name(__VA_ARGS__); \
    return wanted_error == FAULTS_END ? 0 : -1;                             \
  }
WRAP_READ(read, (int fd, void *out, size_t n), fd, out, n)
WRAP_READ(pread, (int fd, void *out, size_t n, off_t at), fd, out, n, at)

/* The descriptor is gone even where close reports an error. */
int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd) {
  int failing = fails(FAULTS_WRITE, "close", EIO), reason = errno, result = __real_close(fd);
  if (failing) errno = reason;
  return failing ? -1 : result;
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return fails(FAULTS_OPEN, "open", EIO) ? -1 : __real_open(path, flags, mode);
}

int __real_openat(int directory, const char *path, int flags, ...);
int __wrap_openat(int directory, const char *path, int flags, ...);
int __wrap_openat(int directory, const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return fails(FAULTS_OPEN, "openat", EIO) ? -1 : __real_openat(directory, path, flags, mode);
}

int __wrap_asprintf(char **out, const char *format, ...);
int __wrap_asprintf(char **out, const char *format, ...) {
  if (fails(FAULTS_MEMORY, "asprintf", ENOMEM)) return -1;
  va_list arguments;
  va_start(arguments, format);
  int length = vasprintf(out, format, arguments);
  va_end(arguments);
  return length;
}

/* ---- loops ---- */

static int open_descriptors(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  cr_assert_not_null(folder);
  while (readdir(folder)) count++;
  closedir(folder);
  return count;
}

static void expect_accepted(const faults_operation *o, int k, const char *failed, flp_status status) {
  if (status == FLP_OK) return;
  const char *detail = flp_error_detail(), *status_name = flp_status_name(status);
  cr_assert_not_null(failed, "%s, where nothing fails: %s: %s", o->name, status_name, detail);
  cr_assert(o->accepted >> status & 1, "%s: call %d (%s): %s: %s", o->name, k, failed, status_name, detail);
  cr_assert_neq(detail[0], 0, "%s: call %d (%s): %s without a reason", o->name, k, failed, status_name);
}

int faults_each(const faults_operation *operation, unsigned kinds, int error) {
  enum { CALLS_MAX = 10000 };
  const char *name;
  int k = 0;
  do {
    if (operation->prepare) operation->prepare();
    int before = open_descriptors();
    faults_arm(kinds, ++k, error);
    flp_status status = operation->run();
    name = faults_disarm();
    cr_assert_eq(open_descriptors(), before, "%s: call %d (%s) leaves a descriptor", operation->name, k, name);
    expect_accepted(operation, k, name, status);
    if (operation->check) operation->check(status, name);
  } while (name && k < CALLS_MAX);
  cr_assert_null(name, "%s never ends", operation->name);
  return k - 1;
}

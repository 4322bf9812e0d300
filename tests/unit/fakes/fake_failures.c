/* fake_failures.c: preloaded into a command, it fails the k-th call of a kind.
 *
 *   FAKE_FAILURES=KIND:K:ERRNO     K counts from 1; the kinds are below, ERRNO is a number; "K+": and all after it
 *                 KIND:K:kill      SIGKILL in place of the call; tear: a write has then put half of its bytes
 *   FAKE_FAILURES_COUNTS=FILE      writes a line "KIND COUNT" a kind, when the process ends
 *
 * Calls count from the constructor on, of all threads, but not those that print to stderr: there a refusal says why.
 * Those that change files are also of kind change; of these, with an errno, only such fail as take room, as on a full
 * disk. Programs that the command starts are left alone. The loader's and stdio's own calls do not pass through here:
 * fopen, fread, fwrite, fflush and their like stand for those. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define KINDS(KIND) \
  KIND(malloc)      \
  KIND(open)        \
  KIND(read)        \
  KIND(write)       \
  KIND(fwrite)      \
  KIND(fflush)      \
  KIND(fsync)       \
  KIND(close)       \
  KIND(rename)      \
  KIND(unlink)      \
  KIND(mkdir)       \
  KIND(stat)        \
  KIND(mmap)        \
  KIND(thread)      \
  KIND(change)

enum {
#define ID(name) KIND_##name,
  KINDS(ID)
#undef ID
      KIND_COUNT
};
static const char *const names[] = {
#define NAME(name) #name,
    KINDS(NAME)
#undef NAME
};

static atomic_long calls[KIND_COUNT];
static long fails_at, fails_until;
static int fails_kind, fails_errno;
static enum { FAIL, KILL, TEAR } action;
static char counts_path[4096];
static atomic_int is_on;
static _Thread_local int is_resolving; /* what dlsym asks for is not the command's */

static void read_failure(const char *text) {
  char name[16] = "", how[16] = "", more = 0;
  if (!text || sscanf(text, "%15[a-z]:%ld%c", name, &fails_at, &more) != 3) return;
  for (int kind = 0; kind < KIND_COUNT; kind++)
    if (strcmp(name, names[kind]) == 0) fails_kind = kind;
  fails_until = more == '+' ? LONG_MAX : fails_at;
  snprintf(how, sizeof how, "%s", strrchr(text, ':') + 1);
  action = strcmp(how, "kill") == 0 ? KILL : strcmp(how, "tear") == 0 ? TEAR : FAIL;
  fails_errno = atoi(how);
}

__attribute__((constructor)) static void start(void) {
  const char *counts = getenv("FAKE_FAILURES_COUNTS");
  read_failure(getenv("FAKE_FAILURES"));
  if (counts) strncpy(counts_path, counts, sizeof counts_path - 1);
  unsetenv("LD_PRELOAD");
  is_on = 1;
}

__attribute__((destructor)) static void report(void) {
  is_on = 0;
  FILE *file = counts_path[0] ? fopen(counts_path, "we") : NULL;
  if (!file) return;
  for (int kind = 0; kind < KIND_COUNT; kind++) fprintf(file, "%s %ld\n", names[kind], (long)calls[kind]);
  fclose(file);
}

/* Counts a call. Returns 1 if it is to fail. */
static int fails(int kind) {
  if (!is_on || is_resolving) return 0;
  long number = atomic_fetch_add(&calls[kind], 1) + 1;
  if (kind != fails_kind || number < fails_at || number > fails_until) return 0;
  if (action == KILL) raise(SIGKILL);
  errno = fails_errno;
  return 1;
}

/* The same of a call that changes files. */
static int change_fails(int kind, int takes_room) {
  int is_full = fails(KIND_change) && takes_room && action == FAIL;
  return fails(kind) || is_full;
}

static int stream_fails(int kind, FILE *file) {
  if (file == stderr || !fails(kind)) return 0;
  file->_flags |= 0x20; /* what ferror reads in glibc */
  return 1;
}

static void *next(const char *name) {
  is_resolving = 1;
  void *found = dlsym(RTLD_NEXT, name);
  is_resolving = 0;
  if (!found) abort();
  return found;
}
#define NEXT(name) ((__typeof__(&name))next(#name))

/* A function that fails so where the condition holds, and is the next library's otherwise. */
#define WRAP(type, name, parameters, arguments, failure, condition) \
  type name parameters {                                            \
    return (condition) ? failure : NEXT(name) arguments;            \
  }

/* ---- memory: dlsym may ask for some, so glibc's own names are called ---- */

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

void *malloc(size_t bytes) {
  return fails(KIND_malloc) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
  return fails(KIND_malloc) ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes) {
  return bytes && fails(KIND_malloc) ? NULL : __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
  return fails(KIND_malloc) ? NULL : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes) {
  void *memory = fails(KIND_malloc) ? NULL : __libc_memalign(alignment, bytes);
  if (!memory) return ENOMEM;
  *out = memory;
  return 0;
}

/* ---- opening; a mode follows where a file may be made ---- */

#define OPEN(name, parameters, arguments)                                                     \
  int name parameters {                                                                       \
    va_list list;                                                                             \
    va_start(list, flags);                                                                    \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, mode_t) : 0;                 \
    va_end(list);                                                                             \
    int failed = flags & O_CREAT ? change_fails(KIND_open, 1) : fails(KIND_open);             \
    return failed ? -1 : NEXT(name) arguments;                                                \
  }
OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
OPEN(openat, (int directory, const char *path, int flags, ...), (directory, path, flags, mode))
OPEN(openat64, (int directory, const char *path, int flags, ...), (directory, path, flags, mode))
WRAP(FILE *, fopen, (const char *path, const char *how), (path, how), NULL, fails(KIND_open))
WRAP(FILE *, fopen64, (const char *path, const char *how), (path, how), NULL, fails(KIND_open))
WRAP(DIR *, opendir, (const char *path), (path), NULL, fails(KIND_open))
WRAP(DIR *, fdopendir, (int fd), (fd), NULL, fails(KIND_open))

/* ---- reading and writing ---- */

#define READ_AT (int fd, void *bytes, size_t length, off_t at)
#define WRITE_AT (int fd, const void *bytes, size_t length, off_t at)
WRAP(ssize_t, read, (int fd, void *bytes, size_t length), (fd, bytes, length), -1, fails(KIND_read))
WRAP(ssize_t, pread, READ_AT, (fd, bytes, length, at), -1, fails(KIND_read))
WRAP(ssize_t, pread64, READ_AT, (fd, bytes, length, at), -1, fails(KIND_read))
WRAP(size_t, fread, (void *bytes, size_t size, size_t count, FILE *file), (bytes, size, count, file), 0,
     stream_fails(KIND_read, file))
WRAP(struct dirent *, readdir, (DIR *directory), (directory), NULL, fails(KIND_read))
WRAP(ssize_t, pwrite, WRITE_AT, (fd, bytes, length, at), -1, fails(KIND_write))
WRAP(ssize_t, pwrite64, WRITE_AT, (fd, bytes, length, at), -1, fails(KIND_write))
WRAP(int, ftruncate, (int fd, off_t length), (fd, length), -1, fails(KIND_write))
WRAP(int, ftruncate64, (int fd, off_t length), (fd, length), -1, fails(KIND_write))

ssize_t write(int fd, const void *bytes, size_t length) {
  if (fd == STDERR_FILENO) return NEXT(write)(fd, bytes, length);
  if (change_fails(KIND_write, 1)) return -1;
  if (action == TEAR && calls[fails_kind] == fails_at) {
    (void)!NEXT(write)(fd, bytes, length / 2);
    raise(SIGKILL);
  }
  return NEXT(write)(fd, bytes, length);
}

/* ---- streams ---- */

WRAP(size_t, fwrite, (const void *bytes, size_t size, size_t count, FILE *file), (bytes, size, count, file), 0,
     stream_fails(KIND_fwrite, file))
WRAP(int, fputs, (const char *text, FILE *file), (text, file), EOF, stream_fails(KIND_fwrite, file))
WRAP(int, puts, (const char *text), (text), EOF, stream_fails(KIND_fwrite, stdout))
WRAP(int, fputc, (int byte, FILE *file), (byte, file), EOF, stream_fails(KIND_fwrite, file))
WRAP(int, putchar, (int byte), (byte), EOF, stream_fails(KIND_fwrite, stdout))
WRAP(int, vfprintf, (FILE *file, const char *format, va_list list), (file, format, list), -1,
     stream_fails(KIND_fwrite, file))
WRAP(int, fflush, (FILE *file), (file), EOF, stream_fails(KIND_fflush, file ? file : stdout))

int fprintf(FILE *file, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vfprintf(file, format, arguments);
  va_end(arguments);
  return length;
}

int printf(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vfprintf(stdout, format, arguments);
  va_end(arguments);
  return length;
}

/* The descriptor is gone, as after an error that the kernel reports there. */
#define CLOSE(name, type, failed, failure)                  \
  int name(type closed) {                                   \
    int is_lost = (failed), cause = errno;                  \
    int result = NEXT(name)(closed);                        \
    if (!is_lost) return result;                            \
    errno = cause;                                          \
    return failure;                                         \
  }
CLOSE(fclose, FILE *, fails(KIND_close), EOF)
CLOSE(close, int, change_fails(KIND_close, 0), -1)

/* ---- names ---- */

#define FROM_TO (int from_directory, const char *from, int to_directory, const char *to)
#define STAT_AT (int directory, const char *path, struct stat *out, int flags)
WRAP(int, fsync, (int fd), (fd), -1, change_fails(KIND_fsync, 1))
WRAP(int, fdatasync, (int fd), (fd), -1, fails(KIND_fsync))
WRAP(int, rename, (const char *from, const char *to), (from, to), -1, change_fails(KIND_rename, 0))
WRAP(int, renameat, FROM_TO, (from_directory, from, to_directory, to), -1, change_fails(KIND_rename, 0))
WRAP(int, unlink, (const char *path), (path), -1, fails(KIND_unlink))
WRAP(int, unlinkat, (int directory, const char *path, int flags), (directory, path, flags), -1,
     change_fails(KIND_unlink, 0))
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), -1, change_fails(KIND_mkdir, 1))
WRAP(int, mkdirat, (int directory, const char *path, mode_t mode), (directory, path, mode), -1, fails(KIND_mkdir))
WRAP(int, stat, (const char *path, struct stat *out), (path, out), -1, fails(KIND_stat))
WRAP(int, fstat, (int fd, struct stat *out), (fd, out), -1, fails(KIND_stat))
WRAP(int, lstat, (const char *path, struct stat *out), (path, out), -1, fails(KIND_stat))
WRAP(int, fstatat, STAT_AT, (directory, path, out, flags), -1, fails(KIND_stat))

/* ---- pages and threads ---- */

WRAP(void *, mmap, (void *address, size_t length, int protection, int flags, int fd, off_t at),
     (address, length, protection, flags, fd, at), MAP_FAILED, fails(KIND_mmap))
WRAP(int, pthread_create,
     (pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *), void *argument),
     (thread, attributes, work, argument), fails_errno, fails(KIND_thread))

/* fake_failures.c: preloaded into a command, it fails the k-th call of a kind with an errno, once.
 *
 *   FAKE_FAILURES=KIND:K:ERRNO     K counts from 1; the kinds are below, ERRNO is a number
 *   FAKE_FAILURES_COUNTS=FILE      writes a line "KIND COUNT" a kind, when the process ends
 *
 * Calls count from the constructor on, of all threads, but not those that print to stderr: there a refusal says why.
 * Programs that the command starts are left alone. The loader's and stdio's own calls do not pass through here, so
 * fopen, fread, fwrite, fflush and their like stand for those. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
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
  KIND(thread)

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
static long fails_at;
static int fails_kind, fails_errno;
static char counts_path[4096];
static atomic_int is_on;
static _Thread_local int is_resolving; /* what dlsym asks for is not the command's */

__attribute__((constructor)) static void start(void) {
  const char *text = getenv("FAKE_FAILURES"), *counts = getenv("FAKE_FAILURES_COUNTS");
  for (int kind = 0; text && kind < KIND_COUNT; kind++) {
    size_t length = strlen(names[kind]);
    if (strncmp(text, names[kind], length) != 0 || text[length] != ':') continue;
    fails_kind = kind;
    fails_at = strtol(text + length + 1, (char **)&text, 10);
    fails_errno = atoi(text + 1);
    break;
  }
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
  if (atomic_fetch_add(&calls[kind], 1) + 1 != fails_at || kind != fails_kind) return 0;
  errno = fails_errno;
  return 1;
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

#define OPEN(name)                                                                                    \
  int name(const char *path, int flags, ...) {                                                        \
    va_list arguments;                                                                                \
    va_start(arguments, flags);                                                                       \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, mode_t) : 0;                    \
    va_end(arguments);                                                                                \
    return fails(KIND_open) ? -1 : ((int (*)(const char *, int, ...))next(#name))(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                                  \
  int name(int directory, const char *path, int flags, ...) {                                                         \
    va_list arguments;                                                                                                \
    va_start(arguments, flags);                                                                                       \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, mode_t) : 0;                                    \
    va_end(arguments);                                                                                                \
    return fails(KIND_open) ? -1 : ((int (*)(int, const char *, int, ...))next(#name))(directory, path, flags, mode); \
  }
OPENAT(openat)
OPENAT(openat64)

FILE *fopen(const char *path, const char *how) {
  return fails(KIND_open) ? NULL : NEXT(fopen)(path, how);
}

FILE *fopen64(const char *path, const char *how) {
  return fails(KIND_open) ? NULL : ((FILE * (*)(const char *, const char *)) next("fopen64"))(path, how);
}

DIR *opendir(const char *path) {
  return fails(KIND_open) ? NULL : NEXT(opendir)(path);
}

DIR *fdopendir(int fd) {
  return fails(KIND_open) ? NULL : NEXT(fdopendir)(fd);
}

/* ---- reading and writing ---- */

ssize_t read(int fd, void *bytes, size_t length) {
  return fails(KIND_read) ? -1 : NEXT(read)(fd, bytes, length);
}

ssize_t pread(int fd, void *bytes, size_t length, off_t at) {
  return fails(KIND_read) ? -1 : NEXT(pread)(fd, bytes, length, at);
}

ssize_t pread64(int fd, void *bytes, size_t length, off_t at) {
  return fails(KIND_read) ? -1 : ((__typeof__(&pread))next("pread64"))(fd, bytes, length, at);
}

size_t fread(void *bytes, size_t size, size_t count, FILE *file) {
  return stream_fails(KIND_read, file) ? 0 : NEXT(fread)(bytes, size, count, file);
}

struct dirent *readdir(DIR *directory) {
  return fails(KIND_read) ? NULL : NEXT(readdir)(directory);
}

ssize_t write(int fd, const void *bytes, size_t length) {
  return fd != STDERR_FILENO && fails(KIND_write) ? -1 : NEXT(write)(fd, bytes, length);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) {
  return fails(KIND_write) ? -1 : NEXT(pwrite)(fd, bytes, length, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t at) {
  return fails(KIND_write) ? -1 : ((__typeof__(&pwrite))next("pwrite64"))(fd, bytes, length, at);
}

int ftruncate(int fd, off_t length) {
  return fails(KIND_write) ? -1 : NEXT(ftruncate)(fd, length);
}

int ftruncate64(int fd, off_t length) {
  return fails(KIND_write) ? -1 : ((__typeof__(&ftruncate))next("ftruncate64"))(fd, length);
}

/* ---- streams ---- */

size_t fwrite(const void *bytes, size_t size, size_t count, FILE *file) {
  return stream_fails(KIND_fwrite, file) ? 0 : NEXT(fwrite)(bytes, size, count, file);
}

int fputs(const char *text, FILE *file) {
  return stream_fails(KIND_fwrite, file) ? EOF : NEXT(fputs)(text, file);
}

int puts(const char *text) {
  return stream_fails(KIND_fwrite, stdout) ? EOF : NEXT(puts)(text);
}

int fputc(int byte, FILE *file) {
  return stream_fails(KIND_fwrite, file) ? EOF : NEXT(fputc)(byte, file);
}

int putchar(int byte) {
  return stream_fails(KIND_fwrite, stdout) ? EOF : NEXT(putchar)(byte);
}

int vfprintf(FILE *file, const char *format, va_list arguments) {
  return stream_fails(KIND_fwrite, file) ? -1 : NEXT(vfprintf)(file, format, arguments);
}

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

int fflush(FILE *file) {
  return stream_fails(KIND_fflush, file ? file : stdout) ? EOF : NEXT(fflush)(file);
}

/* The descriptor is gone, as after an error that the kernel reports there. */
int fclose(FILE *file) {
  int failed = fails(KIND_close), cause = errno, result = NEXT(fclose)(file);
  if (!failed) return result;
  errno = cause;
  return EOF;
}

int close(int fd) {
  int failed = fails(KIND_close), cause = errno, result = NEXT(close)(fd);
  if (!failed) return result;
  errno = cause;
  return -1;
}

/* ---- names ---- */

int fsync(int fd) {
  return fails(KIND_fsync) ? -1 : NEXT(fsync)(fd);
}

int fdatasync(int fd) {
  return fails(KIND_fsync) ? -1 : NEXT(fdatasync)(fd);
}

int rename(const char *from, const char *to) {
  return fails(KIND_rename) ? -1 : NEXT(rename)(from, to);
}

int renameat(int from_directory, const char *from, int to_directory, const char *to) {
  return fails(KIND_rename) ? -1 : NEXT(renameat)(from_directory, from, to_directory, to);
}

int unlink(const char *path) {
  return fails(KIND_unlink) ? -1 : NEXT(unlink)(path);
}

int unlinkat(int directory, const char *path, int flags) {
  return fails(KIND_unlink) ? -1 : NEXT(unlinkat)(directory, path, flags);
}

int mkdir(const char *path, mode_t mode) {
  return fails(KIND_mkdir) ? -1 : NEXT(mkdir)(path, mode);
}

int mkdirat(int directory, const char *path, mode_t mode) {
  return fails(KIND_mkdir) ? -1 : NEXT(mkdirat)(directory, path, mode);
}

int stat(const char *path, struct stat *out) {
  return fails(KIND_stat) ? -1 : NEXT(stat)(path, out);
}

int fstat(int fd, struct stat *out) {
  return fails(KIND_stat) ? -1 : NEXT(fstat)(fd, out);
}

int lstat(const char *path, struct stat *out) {
  return fails(KIND_stat) ? -1 : NEXT(lstat)(path, out);
}

int fstatat(int directory, const char *path, struct stat *out, int flags) {
  return fails(KIND_stat) ? -1 : NEXT(fstatat)(directory, path, out, flags);
}

/* ---- pages and threads ---- */

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t at) {
  return fails(KIND_mmap) ? MAP_FAILED : NEXT(mmap)(address, length, protection, flags, fd, at);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *), void *argument) {
  return fails(KIND_thread) ? fails_errno : NEXT(pthread_create)(thread, attributes, work, argument);
}

/* fuzz.h: what harnesses share: their one function, inputs as files and as texts, and what a refusal must look like. */
#ifndef FLP_TEST_FUZZ_H
#define FLP_TEST_FUZZ_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/status.h"
#include "runtime/flp.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

/* A promise that is broken ends the process where it is broken. */
#define FUZZ_PROMISE(condition)         \
  do {                                  \
    if (!(condition)) __builtin_trap(); \
  } while (0)

/* A failure has one of the promised statuses (a bit each) and says why. */
static inline void fuzz_expect_refusal(flp_status status, unsigned accepted) {
  FUZZ_PROMISE(status != FLP_OK && accepted >> status & 1);
  FUZZ_PROMISE(flp_error_detail()[0]);
}
#define FUZZ_BIT(status) (1u << (status))

/* The input as a text of malloc'ed memory; it ends at its first 0. */
static inline char *fuzz_text(const uint8_t *bytes, size_t length) {
  char *text = malloc(length + 1);
  if (!text) abort();
  if (length) memcpy(text, bytes, length);
  text[length] = 0;
  return text;
}

/* The input as a file of memory. */
typedef struct fuzz_file {
  int fd;
  char path[32];
} fuzz_file;

static inline void fuzz_file_append(fuzz_file *file, const void *bytes, size_t length) {
  if (length && write(file->fd, bytes, length) != (ssize_t)length) abort();
}

static inline fuzz_file fuzz_file_create(const uint8_t *bytes, size_t length) {
  fuzz_file file = {.fd = memfd_create("fuzz", MFD_CLOEXEC)};
  if (file.fd < 0) abort();
  snprintf(file.path, sizeof file.path, "/proc/self/fd/%d", file.fd);
  fuzz_file_append(&file, bytes, length);
  return file;
}

static inline void fuzz_file_close(fuzz_file *file) {
  close(file->fd);
}

#endif

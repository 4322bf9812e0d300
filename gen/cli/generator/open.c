/* open.c: the functions of gen.h for the command, which opens libflpgen when a verb first needs it. Without the library
 * the other verbs work: an image with libflp, packs and `flpgen doctor` needs no LLVM.
 *
 * Invariant: the library stays open, as its code may run on another thread. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "gen/gen.h"

#define LIBRARY "libflpgen.so"

/* As gen.h declares them. */
static struct {
  flp_status (*generate)(const flp_kernel_key *, const flpgen_options *, flpgen_result *, char *, size_t);
  void (*result_clear)(flpgen_result *);
  bool (*arch_supported)(const char *);
  flp_status (*space_open)(const flp_kernel_key *, const flpgen_options *, flpgen_space **, char *, size_t);
  void (*space_close)(flpgen_space *);
  const flpgen_axes *(*space_axes)(const flpgen_space *);
  flp_status (*space_ask)(flpgen_space *, const flp_tunables *, flpgen_tile *, char *, size_t);
  flp_status (*loss_trace)(const char *, const char *, size_t, flpgen_loss *, char *, size_t);
  flp_status (*loss_builtin)(const char *, flpgen_loss *, char *, size_t);
  flp_status (*provider_templates)(const char *, uint8_t *, char *, size_t);
} library;

static const struct {
  const char *name;
  void *function; /* a pointer of library */
} functions[] = {{"flpgen_generate", &library.generate},
                 {"flpgen_result_clear", &library.result_clear},
                 {"flpgen_arch_supported", &library.arch_supported},
                 {"flpgen_space_open", &library.space_open},
                 {"flpgen_space_close", &library.space_close},
                 {"flpgen_space_axes", &library.space_axes},
                 {"flpgen_space_ask", &library.space_ask},
                 {"flpgen_loss_trace", &library.loss_trace},
                 {"flpgen_loss_builtin", &library.loss_builtin},
                 {"flpgen_provider_templates", &library.provider_templates}};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char problem[512]; /* "" if the library is open */

/* The loader looks beside the command: its RUNPATH has the library's folder. */
static void open_library(void) {
  void *opened = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (!opened) {
    const char *reason = dlerror();
    snprintf(problem, sizeof problem, "the generator is not here: %s", reason ? reason : LIBRARY);
    return;
  }
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    void *found = dlsym(opened, functions[i].name);
    memcpy(functions[i].function, &found, sizeof found);
    if (!found && !problem[0])
      snprintf(problem, sizeof problem, LIBRARY " has no %s: it is not of this version", functions[i].name);
  }
}

/* Opens the library once. error: UNAVAILABLE, the reason in error */
static flp_status open_once(char *error, size_t capacity) {
  pthread_once(&once, open_library);
  if (!problem[0]) return FLP_OK;
  snprintf(error, capacity, "%s", problem);
  return FLP_ERROR_UNAVAILABLE;
}

flp_status flpgen_generate(const flp_kernel_key *key, const flpgen_options *options, flpgen_result *out, char *error,
                           size_t error_capacity) {
  memset(out, 0, sizeof *out);
  flp_status status = open_once(error, error_capacity);
  return status == FLP_OK ? library.generate(key, options, out, error, error_capacity) : status;
}

void flpgen_result_clear(flpgen_result *result) {
  if (library.result_clear) library.result_clear(result); /* else nothing was generated */
}

bool flpgen_arch_supported(const char *name) {
  char error[sizeof problem];
  return open_once(error, sizeof error) == FLP_OK && library.arch_supported(name);
}

flp_status flpgen_space_open(const flp_kernel_key *key, const flpgen_options *options, flpgen_space **out, char *error,
                             size_t error_capacity) {
  *out = NULL;
  flp_status status = open_once(error, error_capacity);
  return status == FLP_OK ? library.space_open(key, options, out, error, error_capacity) : status;
}

void flpgen_space_close(flpgen_space *space) {
  if (space) library.space_close(space);
}

const flpgen_axes *flpgen_space_axes(const flpgen_space *space) {
  return library.space_axes(space);
}

flp_status flpgen_space_ask(flpgen_space *space, const flp_tunables *tune, flpgen_tile *out, char *error,
                            size_t error_capacity) {
  return library.space_ask(space, tune, out, error, error_capacity);
}

flp_status flpgen_loss_trace(const char *file, const char *text, size_t length, flpgen_loss *out, char *error,
                             size_t error_capacity) {
  flp_status status = open_once(error, error_capacity);
  return status == FLP_OK ? library.loss_trace(file, text, length, out, error, error_capacity) : status;
}

flp_status flpgen_loss_builtin(const char *name, flpgen_loss *out, char *error, size_t error_capacity) {
  flp_status status = open_once(error, error_capacity);
  return status == FLP_OK ? library.loss_builtin(name, out, error, error_capacity) : status;
}

flp_status flpgen_provider_templates(const char *template_dir, uint8_t hash[32], char *error, size_t error_capacity) {
  flp_status status = open_once(error, error_capacity);
  return status == FLP_OK ? library.provider_templates(template_dir, hash, error, error_capacity) : status;
}

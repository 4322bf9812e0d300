/* places.c: where a copy of cuBLASLt may lie.
 *
 * PyTorch and others bring a copy in wheels, <site-packages>/nvidia/<part>/lib, which no loader path names. */
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autotune/gemm/cublaslt.h"

static void add(cublaslt_places *places, const char *name) {
  if (places->count == CUBLASLT_PLACES_MAX) return;
  char *copy = strdup(name);
  if (copy) places->name[places->count++] = copy;
}

/* Adds <prefix><directory>/libcublasLt.so.13, then .12, wherever the pattern leads; later names first, so that of two
 * Pythons the newer one is asked first. */
static void add_matches(cublaslt_places *places, const char *prefix, const char *directory) {
  for (int version = 13; version >= 12; version--) {
    char pattern[PATH_MAX];
    glob_t found;
    int length = snprintf(pattern, sizeof pattern, "%s%s/libcublasLt.so.%d", prefix, directory, version);
    if (length < 0 || (size_t)length >= sizeof pattern || glob(pattern, 0, NULL, &found) != 0) continue;
    for (size_t i = found.gl_pathc; i > 0; i--) add(places, found.gl_pathv[i - 1]);
    globfree(&found);
  }
}

static void add_environment(cublaslt_places *places, const char *prefix) {
  add_matches(places, prefix, "/lib/python3*/site-packages/nvidia/*/lib");
  add_matches(places, prefix, "/lib/python3*/dist-packages/nvidia/*/lib");
}

/* The environment of the python3 that a shell would run: <prefix>/bin/python3. The name is not resolved at first, for
 * a virtual environment's is a link out of it. */
static void add_python_of_path(cublaslt_places *places) {
  const char *path = secure_getenv("PATH");
  char *copy = strdup(path ? path : ""), *rest = copy;
  for (char *directory; copy && (directory = strtok_r(rest, ":", &rest));) {
    char name[PATH_MAX], real[PATH_MAX];
    int length = snprintf(name, sizeof name, "%s/python3", directory);
    if (length < 0 || (size_t)length >= sizeof name || access(name, X_OK) != 0) continue;
    char *prefix = strrchr(directory, '/');
    if (prefix && strcmp(prefix, "/bin") == 0) {
      *prefix = 0;
      add_environment(places, directory);
    }
    if (realpath(name, real) && (prefix = strstr(real, "/bin/python")) != NULL) {
      *prefix = 0;
      add_environment(places, real);
    }
    break;
  }
  free(copy);
}

void cublaslt_places_find(cublaslt_places *out) {
  *out = (cublaslt_places){0};
  const char *given = secure_getenv("FLP_CUBLASLT_LIBRARY");
  if (given && given[0]) {
    add(out, given);
    return;
  }
  add(out, "libcublasLt.so.13");
  add(out, "libcublasLt.so.12");
  static const char *const variables[] = {"VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME"};
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
    const char *prefix = secure_getenv(variables[i]);
    if (!prefix || prefix[0] != '/') continue;
    add_environment(out, prefix);
    add_matches(out, prefix, "/lib64");
    add_matches(out, prefix, "/lib");
  }
  add_python_of_path(out);
  add_matches(out, "/usr/local/cuda", "/lib64");
  add_environment(out, "/usr/local");
  add_environment(out, "/usr");
  const char *home = secure_getenv("HOME");
  char local[PATH_MAX];
  if (home && home[0] == '/' && snprintf(local, sizeof local, "%s/.local", home) < (int)sizeof local)
    add_environment(out, local);
}

void cublaslt_places_clear(cublaslt_places *places) {
  for (int i = 0; i < places->count; i++) free(places->name[i]);
  *places = (cublaslt_places){0};
}

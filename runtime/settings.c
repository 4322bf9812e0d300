/* settings.c: the settings of flp.h as one table: name, help, and how the default is found.
 *
 * Invariants: an empty variable counts as unset; a value too long to be held is refused with a warning rather than cut;
 * privileged programs (set-user-ID) ignore the environment, since settings name code to load. */
#include <dlfcn.h>
#include <link.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "status.h"

enum { VALUE_BYTES = sizeof((flp_setting *)0)->value };

typedef void (*default_fn)(char value[VALUE_BYTES]);

/* Writes a value of parts; leaves it empty if it does not fit, for half a path is another path. */
static void set(char value[VALUE_BYTES], const char *first, const char *second) {
  int length = snprintf(value, VALUE_BYTES, "%s%s", first, second);
  if (length < 0 || length >= VALUE_BYTES) value[0] = 0;
}

/* ---- where this library lies ---- */

/* Writes the real directory of the file that this code was loaded from; "" if unknown. */
static void own_directory(char out[VALUE_BYTES]) {
  static const char anchor; /* any address of this library */
  out[0] = 0;
  Dl_info info;
  struct link_map *map = NULL;
  if (!dladdr1(&anchor, &info, (void **)&map, RTLD_DL_LINKMAP) || !map) return;
  /* A program that holds this code itself has no name there, and its argv[0] may be any. */
  char *real = realpath(map->l_name[0] ? map->l_name : "/proc/self/exe", NULL);
  if (!real) return;
  char *slash = strrchr(real, '/');
  if (slash) {
    *slash = 0;
    set(out, real, "");
  }
  free(real);
}

/* ---- defaults ---- */

static void default_force(char value[VALUE_BYTES]) {
  set(value, "auto", "");
}

static void default_strict(char value[VALUE_BYTES]) {
  set(value, "0", "");
}

static void default_budget(char value[VALUE_BYTES]) {
  set(value, "256M forward, 1G backward", "");
}

/* $XDG_CACHE_HOME/flp if that is absolute (the XDG specification ignores others), else ~/.cache/flp, else none. */
static void default_cache_dir(char value[VALUE_BYTES]) {
  const char *xdg = secure_getenv("XDG_CACHE_HOME"), *home = secure_getenv("HOME");
  if (xdg && xdg[0] == '/') {
    set(value, xdg, "/flp");
    return;
  }
  if (home && home[0] == '/') {
    set(value, home, "/.cache/flp");
    return;
  }
  char buffer[4096];
  struct passwd record, *found = NULL;
  if (getpwuid_r(geteuid(), &record, buffer, sizeof buffer, &found) == 0 && found && found->pw_dir[0] == '/')
    set(value, found->pw_dir, "/.cache/flp");
}

static void default_none(char value[VALUE_BYTES]) {
  value[0] = 0;
}

/* The library lies in <prefix>/lib or <prefix>/lib/<triplet>, or in a wheel beside share/: the nearest one wins. */
static void default_generic_dir(char value[VALUE_BYTES]) {
  static const char *const candidates[] = {"/../share/flp/generic", "/share/flp/generic", "/../../share/flp/generic"};
  char own[VALUE_BYTES];
  own_directory(own);
  if (!own[0]) return;
  for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
    set(value, own, candidates[i]);
    if (access(value, F_OK) == 0) return;
  }
  set(value, own, candidates[0]);
}

static void default_jit_library(char value[VALUE_BYTES]) {
  char own[VALUE_BYTES];
  own_directory(own);
  set(value, own, "/libflpgen.so");
  if (!own[0] || access(value, F_OK) != 0) set(value, "libflpgen.so", ""); /* the loader's path */
}

static void default_cuda_library(char value[VALUE_BYTES]) {
  set(value, "libcuda.so.1", "");
}

static void default_blas_library(char value[VALUE_BYTES]) {
  set(value, "libopenblas.so.0", "");
}

/* ---- the table, in the order of flp.h ---- */

static const struct {
  const char *name, *help;
  default_fn find_default;
} settings[FLP_SETTING_COUNT] = {
    {"FLP_FORCE", "pin a rung: tuned, heuristic, jit, generic or eager", default_force},
    {"FLP_STRICT", "1: a fall to a lower rung is an error", default_strict},
    {"FLP_BUDGET", "workspace budget of every pass: bytes, or with suffix K, M, G", default_budget},
    {"FLP_CACHE_DIR", "writable kernel cache", default_cache_dir},
    {"FLP_CACHE_PATH", "read-only kernel caches: directories and packs, separated by ':', searched before the writable one",
     default_none},
    {"FLP_PACK_KEYS", "public keys of 64 hex digits, separated by ',': packs signed by none of them are not used",
     default_none},
    {"FLP_GENERIC_DIR", "shape-generic kernels", default_generic_dir},
    {"FLP_JIT_LIBRARY", "path of the code generator, libflpgen.so", default_jit_library},
    {"FLP_CUDA_LIBRARY", "path of the CUDA driver library", default_cuda_library},
    {"FLP_BLAS_LIBRARY", "path of an OpenBLAS-like library for the eager rung", default_blas_library},
};

void flp_setting_get(int i, flp_setting *out) {
  memset(out, 0, sizeof *out);
  if (i < 0 || i >= FLP_SETTING_COUNT) i = 0;
  out->name = settings[i].name;
  out->help = settings[i].help;
  const char *given = secure_getenv(settings[i].name);
  if (given && given[0]) {
    set(out->value, given, "");
    out->source = "environment";
    if (out->value[0]) return;
    flp_log(FLP_LOG_WARNING, "%s is ignored: its value has %zu bytes, accepted: up to %d", settings[i].name,
            strlen(given), VALUE_BYTES - 1);
  }
  settings[i].find_default(out->value);
  out->source = "default";
}

void flp_setting_find(const char *name, flp_setting *out) {
  int i = 0;
  while (i + 1 < FLP_SETTING_COUNT && strcmp(settings[i].name, name) != 0) i++;
  flp_setting_get(i, out);
}

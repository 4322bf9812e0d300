/* settings.c: the settings of flp.h as one table: name, help, and how the default is found.
 *
 * Invariants: a value is shown only if the variable may be set to it; an empty variable counts as unset; a value too
 * long to be held is refused with a warning rather than truncated; privileged programs (set-user-ID) ignore the
 * environment, since settings name code to load. */
#include <dirent.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <link.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "runtime/base/status.h"

enum { VALUE_BYTES = sizeof((flp_setting *)0)->value };

typedef void (*default_fn)(flp_setting *out);

/* Joins parts to a value; leaves it empty if it does not fit, because half a path is another path. */
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
  /* A program that links this code statically has no name there, and its argv[0] may be anything. */
  char *real = realpath(map->l_name[0] ? map->l_name : "/proc/self/exe", NULL);
  if (!real && !map->l_name[0] && !getauxval(AT_SECURE)) /* no /proc: what the kernel was asked to run */
    real = realpath((const char *)getauxval(AT_EXECFN), NULL);
  if (!real) return;
  char *slash = strrchr(real, '/');
  if (slash) {
    *slash = 0;
    set(out, real, "");
  }
  free(real);
}

/* ---- defaults ----
 * Each fills in value, or describes in unset what holds without one. */

static void default_force(flp_setting *out) {
  snprintf(out->unset, sizeof out->unset, "the best rung that runs");
}

static void default_strict(flp_setting *out) {
  set(out->value, "0", "");
}

static void default_budget(flp_setting *out) {
  snprintf(out->unset, sizeof out->unset,
           "%" PRIu64 "M forward, 1/20 of the GPU's memory backward (host: %" PRIu64 "G)",
           flp_pass_budget(0, FLP_PASS_FORWARD, 0) >> 20, flp_pass_budget(0, FLP_PASS_BACKWARD, 0) >> 30);
}

/* $XDG_CACHE_HOME/flp if that is absolute (the XDG specification ignores others), else ~/.cache/flp, else none. */
static void find_cache_dir(char value[VALUE_BYTES]) {
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

static void default_cache_dir(flp_setting *out) {
  find_cache_dir(out->value);
  if (!out->value[0]) snprintf(out->unset, sizeof out->unset, "no cache is written");
}

static void default_pack_keys(flp_setting *out) {
  snprintf(out->unset, sizeof out->unset, "every sound pack is used");
}

/* The folder of this name in share/flp. The library lies in <prefix>/lib or <prefix>/lib/<triplet>, or beside share/: the
 * first that is there wins. 0 if none is there; *out is then where it would be first, or "". */
static int find_shared(const char *name, char out[VALUE_BYTES]) {
  static const char *const above[] = {"/../share/flp/", "/share/flp/", "/../../share/flp/"};
  char own[VALUE_BYTES], base[VALUE_BYTES], first[VALUE_BYTES] = "";
  own_directory(own);
  for (size_t i = 0; own[0] && i < sizeof above / sizeof above[0]; i++) {
    set(base, own, above[i]);
    set(out, base, name);
    if (out[0] && access(out, F_OK) == 0) return 1;
    if (i == 0) set(first, out, "");
  }
  set(out, first, "");
  return 0;
}

static void default_generic_dir(flp_setting *out) {
  (void)find_shared("generic", out->value);
}

static int is_pack(const struct dirent *entry) {
  const char *dot = strrchr(entry->d_name, '.');
  return entry->d_name[0] != '.' && dot && strcmp(dot, ".flpp") == 0 && !strchr(entry->d_name, ':');
}

/* Adds a pack to the list. One that does not fit is left out, with a warning, as a value that is too long is. */
static void add_pack(char list[VALUE_BYTES], const char *folder, const char *name) {
  size_t used = strlen(list);
  int length = snprintf(list + used, VALUE_BYTES - used, "%s%s/%s", used ? ":" : "", folder, name);
  if (length >= 0 && (size_t)length < VALUE_BYTES - used) return;
  list[used] = 0;
  flp_log(FLP_LOG_WARNING,
          "%s/%s is not used: the names of the packs there take more than %d bytes; FLP_CACHE_PATH may name it instead",
          folder, name, VALUE_BYTES - 1);
}

/* The packs that were installed beside the library, by name. */
static void default_cache_path(flp_setting *out) {
  char folder[VALUE_BYTES];
  struct dirent **names = NULL;
  snprintf(out->unset, sizeof out->unset, "none");
  int count = find_shared("packs", folder) && !strchr(folder, ':') ? scandir(folder, &names, is_pack, alphasort) : 0;
  for (int i = 0; i < count; i++) {
    add_pack(out->value, folder, names[i]->d_name);
    free(names[i]);
  }
  free(names);
  if (out->value[0]) out->unset[0] = 0;
}

/* Beside this library, or in a folder of its own, as Debian has it; else on the loader's path. */
static void default_jit_library(flp_setting *out) {
  static const char *const candidates[] = {"/libflpgen.so", "/flp/libflpgen.so"};
  char own[VALUE_BYTES];
  own_directory(own);
  for (size_t i = 0; own[0] && i < sizeof candidates / sizeof candidates[0]; i++) {
    set(out->value, own, candidates[i]);
    if (access(out->value, F_OK) == 0) return;
  }
  set(out->value, "libflpgen.so", "");
}

static void default_cuda_library(flp_setting *out) {
  set(out->value, "libcuda.so.1", "");
}

static void default_blas_library(flp_setting *out) {
  set(out->value, "libopenblas.so.0", "");
}

/* ---- the table, in the order of flp.h ---- */

static const struct {
  const char *name, *help;
  default_fn find_default;
} settings[FLP_SETTING_COUNT] = {
#define SETTING(NAME, function, help) [FLP_SETTING_##NAME] = {"FLP_" #NAME, help, default_##function},
    FLP_SETTING_LIST(SETTING)
#undef SETTING
};

void flp_setting_get(flp_setting_id id, flp_setting *out) {
  memset(out, 0, sizeof *out);
  out->name = settings[id].name;
  out->help = settings[id].help;
  const char *given = secure_getenv(out->name);
  if (given && given[0]) {
    set(out->value, given, "");
    out->source = "environment";
    if (out->value[0]) return;
    /* Trusted keys have no default to fall back to: without them every pack would be trusted (store/pack.c). */
    int is_keys = id == FLP_SETTING_PACK_KEYS;
    flp_log(FLP_LOG_WARNING, "%s has %zu bytes, accepted: up to %d; %s", out->name, strlen(given), VALUE_BYTES - 1,
            is_keys ? "no pack is used" : "its default holds");
    if (is_keys) {
      snprintf(out->unset, sizeof out->unset, "too long, so that no pack is used");
      return;
    }
  }
  settings[id].find_default(out);
  out->source = "default";
}

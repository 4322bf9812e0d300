/* gen_case.h: what the tests of the generator share: one template text in, one result out, and ptxas on the result.
 *
 * Functions are static inline because every executable links the same helper objects, with and without libflpgen. */
#ifndef FLP_TEST_GEN_CASE_H
#define FLP_TEST_GEN_CASE_H

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gen/gen.h"
#include "tests/unit/support/kernel_sample.h"

static const char *gen_case_arch = "sm_80";

static inline flp_kernel_key gen_case_key(flp_kernel_kind kind) {
  flp_kernel_key key = sample_key(kind);
  key.out_dtype = FLP_DTYPE_BF16;
  key.softcap = 0;
  memset(key.loss, 0, sizeof key.loss);
  snprintf(key.arch, sizeof key.arch, "%s", gen_case_arch);
  flp_kernel_key_canonicalise(&key);
  return key;
}

/* name: of a file in the folder, or in one of its folders, which is made if it is not there. */
static inline void gen_case_write(const char *folder, const char *name, const char *text, size_t length) {
  char path[6000];
  snprintf(path, sizeof path, "%s/%.*s", folder, strchr(name, '/') ? (int)strcspn(name, "/") : 0, name);
  mkdir(path, 0700);
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "wb");
  cr_assert_not_null(file, "%s", path);
  cr_assert_eq(fwrite(text, 1, length, file), length);
  fclose(file);
}

/* A fresh scratch folder of this process. */
static inline const char *gen_case_folder(const char *name) {
  static char path[5000];
  snprintf(path, sizeof path, "%s/gen-%ld-%s", FLP_TEST_SCRATCH, (long)getpid(), name);
  cr_assert_eq(mkdir(path, 0700), 0, "%s", path);
  return path;
}

static inline void gen_case_remove(const char *folder) {
  char command[5100];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  cr_assert_eq(system(command), 0);
}

/* Generates what must be generated. */
static inline flpgen_result gen_case_generate(const flp_kernel_key *key, const flpgen_options *options) {
  flpgen_result result;
  char error[512];
  cr_assert_eq(flpgen_generate(key, options, &result, error, sizeof error), FLP_OK, "%s: %s", key->arch, error);
  return result;
}

/* Expects that it is refused, with that sentence. */
static inline void gen_case_refused(const flp_kernel_key *key, const flpgen_options *options, flp_status status,
                                    const char *sentence) {
  flpgen_result result;
  char error[512];
  cr_expect_eq(flpgen_generate(key, options, &result, error, sizeof error), status, "%s", sentence);
  cr_expect_str_eq(error, sentence);
}

/* Generates from this text as portable/forward.lua. error has room for 512 bytes. */
static inline flp_status gen_case_text(const char *text, size_t length, flpgen_result *out, char error[512]) {
  static int serial;
  char name[32];
  snprintf(name, sizeof name, "%d", serial++);
  const char *folder = gen_case_folder(name);
  gen_case_write(folder, "portable/forward.lua", text, length);
  flp_kernel_key key = gen_case_key(FLP_KERNEL_FORWARD);
  flpgen_options options = {.template_dir = folder, .want_ir = 1, .want_opt_ir = 1};
  flp_status status = flpgen_generate(&key, &options, out, error, 512);
  gen_case_remove(folder);
  return status;
}

/* Generates a forward kernel of 128 threads with this body. */
static inline flp_status gen_case_body(const char *body, flpgen_result *out, char error[512]) {
  static char text[16384];
  int n = snprintf(text, sizeof text,
                   "return function(k, spec)\nk.kernel {entry = \"forward\", threads = 128, body = function(p)\n%s\n"
                   "end}\nend\n",
                   body);
  cr_assert(n > 0 && (size_t)n < sizeof text);
  return gen_case_text(text, (size_t)n, out, error);
}

/* Path of ptxas, or NULL. */
static inline const char *gen_case_ptxas(void) {
  static const char *const places[] = {"/usr/local/cuda/bin/ptxas", "/usr/bin/ptxas", "/usr/local/bin/ptxas"};
  const char *named = getenv("FLP_PTXAS");
  if (named && access(named, X_OK) == 0) return named;
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
    if (access(places[i], X_OK) == 0) return places[i];
  return NULL;
}

/* Assembles; report gets the output of ptxas -v. Returns its exit status. */
static inline int gen_case_assemble(const char *ptx, size_t bytes, const char *arch, char *report, size_t capacity) {
  char path[4096], command[9000];
  snprintf(path, sizeof path, "%s/gen-%ld.ptx", FLP_TEST_SCRATCH, (long)getpid());
  FILE *file = fopen(path, "wb");
  cr_assert_not_null(file);
  cr_assert_eq(fwrite(ptx, 1, bytes, file), bytes);
  fclose(file);
  snprintf(command, sizeof command, "'%s' -v -arch=%s -o /dev/null '%s' 2>&1", gen_case_ptxas(), arch, path);
  FILE *pipe = popen(command, "r");
  cr_assert_not_null(pipe);
  size_t n = fread(report, 1, capacity - 1, pipe);
  report[n] = 0;
  int status = pclose(pipe);
  unlink(path);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Reads a whole file into malloc'ed, NUL-terminated memory; NULL if it cannot be opened. */
static inline char *gen_case_read(const char *path, size_t *length) {
  FILE *file = fopen(path, "rb");
  if (!file) return NULL;
  char *text = malloc(1 << 20);
  *length = fread(text, 1, (1 << 20) - 1, file);
  text[*length] = 0;
  fclose(file);
  return text;
}

static inline int gen_case_is_template(const struct dirent *entry) {
  size_t n = strlen(entry->d_name);
  return n > 4 && strcmp(entry->d_name + n - 4, ".lua") == 0;
}

/* Calls check with the name of every *.lua file of a folder, in alphabetical order. Returns their number. */
static inline int gen_case_each(const char *folder, void (*check)(const char *name)) {
  struct dirent **list;
  int count = scandir(folder, &list, gen_case_is_template, alphasort);
  cr_assert_geq(count, 0, "%s", folder);
  for (int i = 0; i < count; i++) {
    check(list[i]->d_name);
    free(list[i]);
  }
  free(list);
  return count;
}

/* Compares a text with a file of the tree; with FLP_GOLDEN_UPDATE=1 writes it first. */
static inline void gen_case_golden(const char *path, const char *text) {
  const char *update = getenv("FLP_GOLDEN_UPDATE");
  if (update && strcmp(update, "1") == 0) {
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file, "%s", path);
    fputs(text, file);
    fclose(file);
  }
  size_t length;
  char *golden = gen_case_read(path, &length);
  cr_assert_not_null(golden, "%s is missing; FLP_GOLDEN_UPDATE=1 writes it", path);
  cr_expect(strcmp(golden, text) == 0, "%s differs from what is made now:\n%s", path, text);
  free(golden);
}

#endif

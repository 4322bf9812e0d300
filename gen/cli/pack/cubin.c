/* cubin.c: cubins made by ptxas, so that a cold start spends no time in the driver's compiler.
 *
 * Invariant: every ptxas runs in a directory of its own with names that never change, so that a cubin depends on the
 * PTX and on the version of ptxas alone; PTX that several entries share is assembled once. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gen/cli/kernels/parallel.h"
#include "gen/cli/pack/pack.h"

enum { TEXT_BYTES = 4096, CAPABILITIES_MAX = 16 };

/* One ptxas and the directory that it runs in. */
typedef struct assembler {
  const char *program;
  char directory[64];
} assembler;

/* The child of run: becomes ptxas, or reports why not. Calls only what a forked process with threads may call; the
 * function of posix_spawn that changes the directory is glibc 2.29's, and the wheel runs on 2.28. */
static _Noreturn void become(const assembler *a, char *const *argv, int report) {
  int in = open("/dev/null", O_RDONLY);
  int out = chdir(a->directory) == 0 ? open("log", O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
  if (in >= 0 && out >= 0 && dup2(in, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0 &&
      dup2(out, STDERR_FILENO) >= 0)
    execvp(a->program, argv);
  int failed = errno;
  while (write(report, &failed, sizeof failed) < 0 && errno == EINTR) continue;
  _exit(127);
}

/* *failed: the errno of what kept the child from becoming ptxas, or 0 */
static flp_status start_child(const assembler *a, char *const *argv, pid_t *child, int *failed) {
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) return flp_fail(FLP_ERROR_IO, "--cubin: no pipe: %s", strerror(errno));
  *child = fork();
  if (*child == 0) become(a, argv, report[1]);
  int why = errno;
  (void)close(report[1]);
  ssize_t got = -1;
  do got = *child > 0 ? read(report[0], failed, sizeof *failed) : 0;
  while (got < 0 && errno == EINTR);
  (void)close(report[0]);
  if (got != sizeof *failed) *failed = 0;
  return *child > 0 ? FLP_OK
                    : flp_fail(FLP_ERROR_UNAVAILABLE, "--cubin: %s cannot be run: %s", a->program, strerror(why));
}

/* Runs ptxas in its directory, its output in the file "log" there. *code is its exit code, or 128 and up. */
static flp_status run(const assembler *a, char *const *argv, int *code) {
  pid_t child = 0;
  int failed = 0, state = 0;
  FLP_TRY(start_child(a, argv, &child, &failed));
  while (waitpid(child, &state, 0) < 0)
    if (errno != EINTR) return flp_fail(FLP_ERROR_INTERNAL, "--cubin: waiting for %s: %s", a->program, strerror(errno));
  if (failed) return flp_fail(FLP_ERROR_UNAVAILABLE, "--cubin: %s cannot be run: %s", a->program, strerror(failed));
  *code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  return FLP_OK;
}

static void path_of(const assembler *a, const char *name, char out[96]) {
  snprintf(out, 96, "%s/%s", a->directory, name);
}

/* The first bytes of ptxas's output, without the line's end. */
static void read_log(const assembler *a, char out[TEXT_BYTES]) {
  char path[96];
  path_of(a, "log", path);
  FILE *file = fopen(path, "re");
  size_t got = file ? fread(out, 1, TEXT_BYTES - 1, file) : 0;
  while (got && out[got - 1] == '\n') got--;
  out[got] = 0;
  if (file) fclose(file);
}

static flp_status start(assembler *a) {
  const char *given = secure_getenv("FLP_PTXAS");
  a->program = given && given[0] ? given : "ptxas";
  strcpy(a->directory, "/tmp/flpgen-cubin-XXXXXX");
  if (mkdtemp(a->directory)) return FLP_OK;
  return flp_fail(FLP_ERROR_IO, "/tmp: cannot make a directory: %s", strerror(errno));
}

static void finish(const assembler *a) {
  static const char *const names[] = {"log", "kernel.ptx", "kernel.cubin"};
  char path[96];
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    path_of(a, names[i], path);
    (void)unlink(path);
  }
  (void)rmdir(a->directory);
}

static flp_status read_release(const assembler *a, uint32_t *driver) {
  char program[] = "ptxas", version[] = "--version", log[TEXT_BYTES];
  char *argv[] = {program, version, NULL};
  int code = 0;
  unsigned major = 0, minor = 0;
  FLP_TRY(run(a, argv, &code));
  read_log(a, log);
  const char *release = strstr(log, "release ");
  if (code != 0 || !release || sscanf(release, "release %u.%u", &major, &minor) != 2 || major < 11 || major > 99)
    return flp_fail(FLP_ERROR_UNAVAILABLE, "--cubin: %s does not print its release; ptxas 11 or newer is needed",
                    a->program);
  *driver = major * 1000 + minor % 100 * 10;
  return FLP_OK;
}

/* *driver: the oldest driver that loads what this ptxas makes, as 13000 */
static flp_status find_driver(uint32_t *driver) {
  assembler a;
  FLP_TRY(start(&a));
  flp_status status = read_release(&a, driver);
  finish(&a);
  return status;
}

static flp_status assemble(const assembler *a, const cli_pack_item *item, const char *arch, cli_pack_cubin *out) {
  char path[96], target[32], program[] = "ptxas", input[] = "kernel.ptx", o[] = "-o", output[] = "kernel.cubin";
  path_of(a, "kernel.ptx", path);
  FLP_TRY(cli_write_file(path, item->ptx, item->ptx_bytes));
  snprintf(target, sizeof target, "-arch=%s", arch);
  char *argv[] = {program, target, input, o, output, NULL};
  int code = 0;
  FLP_TRY(run(a, argv, &code));
  if (code != 0) {
    char log[TEXT_BYTES];
    read_log(a, log);
    const flp_kernel_key *key = &item->desc.key;
    return flp_fail(FLP_ERROR_COMPILE, "ptxas %s ended with %d for kernel %s of %s: %.300s", target, code,
                    flp_kernel_kind_name(key->kind), key->arch, log);
  }
  char *bytes = NULL;
  path_of(a, "kernel.cubin", path);
  FLP_TRY(cli_read_file(path, FLP_PACK_CODE_BYTES_MAX, &bytes, &out->bytes));
  out->code = (uint8_t *)bytes;
  return FLP_OK;
}

/* What ptxas is to make of a kernel for a capability; 0 if it does not run there. */
static int target_of(const flp_kernel_desc *desc, uint32_t capability, char out[32]) {
  const char *name = desc->key.arch, *suffix = flp_arch_is_exact(name) ? name + strlen(name) - 1 : "";
  const flp_arch *arch = flp_arch_find(name);
  if (!arch || !flp_arch_runs(arch, (int)capability / 10, (int)capability % 10)) return 0;
  snprintf(out, 32, "sm_%u%s", capability, suffix);
  return 1;
}

/* 1 if a kernel for that capability alone stands beside this one: plans try it first, and should it not load, there is
 * PTX. */
static int gives_way(const cli_pack_items *items, const flp_kernel_desc *desc, uint32_t capability) {
  flp_kernel_key key = desc->key;
  memset(key.arch, 0, sizeof key.arch);
  snprintf(key.arch, sizeof key.arch, "sm_%ua", capability);
  if (strncmp(key.arch, desc->key.arch, sizeof key.arch) == 0) return 0;
  if (key.kind == FLP_KERNEL_GRAD_HIDDEN || key.kind == FLP_KERNEL_GRAD_WEIGHT) key.kind = FLP_KERNEL_PRODUCTS;
  flp_kernel_key_canonicalise(&key);
  return cli_pack_has(items, &key);
}

static flp_status read_capabilities(const char *text, uint32_t out[CAPABILITIES_MAX], int *count) {
  *count = 0;
  for (const char *at = text; *at;) {
    unsigned number = 0;
    int used = 0;
    if (sscanf(at, "sm_%3u%n", &number, &used) != 1 || number < 80 || (at[used] && at[used] != ','))
      return flp_fail(FLP_ERROR_ARGUMENT, "--cubin: expected a list of GPUs, e.g. sm_90,sm_100, got '%s'", text);
    if (*count == CAPABILITIES_MAX)
      return flp_fail(FLP_ERROR_ARGUMENT, "--cubin: '%s' has too many names; at most %d are accepted", text,
                      CAPABILITIES_MAX);
    out[(*count)++] = number;
    at += used + (at[used] == ',');
  }
  return FLP_OK;
}

/* ---- many ---- */

/* What one ptxas is to make, for every entry of the same PTX. */
typedef struct job {
  const cli_pack_item *item; /* the first of them */
  cli_pack_cubin cubin;
  char target[32];
} job;

typedef struct jobs {
  job *list;
  size_t count;
} jobs;

static flp_status assemble_job(void *context, size_t i) {
  job *made = &((jobs *)context)->list[i];
  assembler a;
  FLP_TRY(start(&a));
  flp_status status = assemble(&a, made->item, made->target, &made->cubin);
  finish(&a);
  return status;
}

static job *find_job(const jobs *all, const cli_pack_item *item, uint32_t capability) {
  for (size_t i = 0; i < all->count; i++) {
    const cli_pack_item *other = all->list[i].item;
    if (all->list[i].cubin.capability == capability && other->ptx_bytes == item->ptx_bytes &&
        memcmp(other->ptx, item->ptx, item->ptx_bytes) == 0)
      return &all->list[i];
  }
  return NULL;
}

static void add_jobs(jobs *all, const cli_pack_items *items, uint32_t capability, uint32_t driver) {
  for (size_t i = 0; i < items->count; i++) {
    job added = {.item = &items->items[i], .cubin = {.capability = capability, .driver = driver}};
    const flp_kernel_desc *desc = &added.item->desc;
    if (!target_of(desc, capability, added.target) || gives_way(items, desc, capability)) continue;
    if (cli_pack_get_cubin(added.item, capability, driver)) continue; /* it came with one, out of another pack */
    if (!find_job(all, added.item, capability)) all->list[all->count++] = added;
  }
}

/* Gives every entry its copies. */
static flp_status hand_out(const jobs *all, cli_pack_items *items, const uint32_t *capabilities, int count) {
  for (size_t i = 0; i < items->count; i++)
    for (int j = 0; j < count; j++) {
      const job *made = find_job(all, &items->items[i], capabilities[j]);
      if (made) FLP_TRY(cli_pack_add_cubin(&items->items[i], &made->cubin));
    }
  return FLP_OK;
}

flp_status cli_pack_make_cubins(cli_pack_items *items, const char *capabilities) {
  uint32_t list[CAPABILITIES_MAX], driver = 0;
  int count;
  FLP_TRY(read_capabilities(capabilities, list, &count));
  FLP_TRY(find_driver(&driver));
  jobs all = {.list = calloc(items->count * (size_t)count + 1, sizeof *all.list)};
  if (!all.list) return flp_fail(FLP_ERROR_MEMORY, "out of memory for %zu cubins", items->count * (size_t)count);
  for (int i = 0; i < count; i++) add_jobs(&all, items, list[i], driver);
  flp_status status = cli_parallel(assemble_job, &all, all.count, "assembling");
  if (status == FLP_OK) status = hand_out(&all, items, list, count);
  for (size_t i = 0; i < all.count; i++) free(all.list[i].cubin.code);
  free(all.list);
  return status;
}

/* fake_cuda.c: a scripted stand-in for libcuda: answers like a driver, remembers every call, fails where its script
 * asks for it. See fake_cuda.h. It runs no kernel without run= in its script. Here is what all calls share: what is
 * held, the count and the log of calls. The parts, fake_cuda_*.inc, in the order in which they build on each other:
 *   script    what the settings are and how they are read; unproven= in the file of that name
 *   device    the driver, its errors, devices, the context
 *   compute   results and times of launches (compute=)
 *   run       kernels on the CPU (run=)
 *   module    modules and their functions
 *   link      the linker (link=)
 *   launch    launches and tensor maps
 *   memory    memory, streams and events
 *   graph     what work leaves in memory (fill=), when it is done (busy=), and capturing it */
#include "tests/unit/fakes/fake_cuda.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The kernel ABI, to decode launches; a stand-in links nothing of the library under test. */
#include "runtime/kernel/abi.c"
#include "runtime/driver/driver.h"
#include "runtime/kernel/arch.h"

enum { MODULE_FUNCTIONS_MAX = 16 };

typedef void (*fake_run_fn)(int ctas, int threads, int cluster, void **params);

struct CUfunc_st {
  char name[64];
  fake_run_fn run;  /* run= */
  const char *text; /* compute=1: of its module, as are the next */
  double ms;
  int wrong, spoilt;
};
struct CUmod_st {
  char *text;
  void *library;                                    /* run= */
  struct CUfunc_st functions[MODULE_FUNCTIONS_MAX]; /* compute=1, run= */
};
struct CUctx_st {
  int retained;
};
/* Work of a stream that is being captured is kept; what was launched has `pending` queries to go until it is done. */
struct CUstream_st {
  int capturing, pending;
  fake_launch *captured;
  size_t captured_count;
};
struct CUevent_st {
  double at; /* compute=1: milliseconds */
};

enum { LAUNCHES_MAX = 16384, FUNCTIONS_MAX = 256, NAMES_MAX = 64, BLOCKS_MAX = 4096, STREAMS_MAX = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  char name[48];
  int calls;
} counts[NAMES_MAX];
static char *log_text;
static size_t log_used, log_capacity;
static fake_launch *launches;
static size_t launch_count;
static struct CUctx_st context;
static int modules_held, links_held, compiling, captures_open, effects;
static CUstream streams[STREAMS_MAX];
static struct {
  void *start;
  size_t bytes;
} blocks[BLOCKS_MAX];
static _Thread_local int depth;

static void forget_calls(void) {
  memset(counts, 0, sizeof counts);
  log_used = 0;
  if (log_text) log_text[0] = 0;
  launch_count = 0;
  effects = compiling = 0;
}

#include "tests/unit/fakes/fake_cuda_script.inc"

void fake_cuda_script(const char *script) {
  pthread_mutex_lock(&lock);
  started = 1;
  read_script(script);
  pthread_mutex_unlock(&lock);
}

void fake_cuda_reset(void) {
  pthread_mutex_lock(&lock);
  start();
  forget_calls();
  pthread_mutex_unlock(&lock);
}

const char *fake_cuda_log(void) {
  return log_text ? log_text : "";
}

size_t fake_cuda_launch_count(void) {
  return launch_count;
}

const fake_launch *fake_cuda_launch_at(size_t i) {
  return i < launch_count ? &launches[i] : NULL;
}

int fake_cuda_calls(const char *function) {
  int total = 0;
  for (int i = 0; i < NAMES_MAX && counts[i].name[0]; i++)
    if (!function || strcmp(counts[i].name, function) == 0) total += counts[i].calls;
  return total;
}

void fake_cuda_held(size_t *bytes, int *modules, int *contexts) {
  if (links_held) abort();
  *bytes = 0;
  for (int i = 0; i < BLOCKS_MAX; i++) *bytes += blocks[i].bytes;
  *modules = modules_held;
  *contexts = context.retained;
}

/* ---- log ---- */

static void write_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void write_log(const char *format, ...) {
  if (log_capacity - log_used < 2048) {
    log_capacity = 2 * log_capacity + 65536;
    log_text = realloc(log_text, log_capacity);
    if (!log_text) abort();
  }
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(log_text + log_used, log_capacity - log_used, format, arguments);
  va_end(arguments);
  if (length > 0) log_used += (size_t)length;
}

static int count_call(const char *name) {
  int i = 0;
  while (counts[i].name[0] && strcmp(counts[i].name, name) != 0) i++;
  if (i == NAMES_MAX - 1) abort();
  snprintf(counts[i].name, sizeof counts[i].name, "%s", name);
  return ++counts[i].calls;
}

static int is_forbidden_in_capture(const char *name);

/* Opens a call: takes the lock, remembers the call, and returns how it is to end. */
static CUresult begin(const char *name, int needs_context) {
  pthread_mutex_lock(&lock);
  start();
  int call = count_call(name);
  if (now.compute) log_used = 0;
  write_log("%s\n", name);
  for (int i = 0; i < now.fail_count; i++) {
    const failure *f = &now.fails[i];
    if (strcmp(f->name, name) == 0 && call >= f->from && call <= f->to) return f->code;
  }
  if (is_forbidden_in_capture(name)) return 900;
  return needs_context && depth == 0 ? 201 : 0;
}

static CUresult end(CUresult result) {
  pthread_mutex_unlock(&lock);
  return result;
}

/* Adds words to the line of the call that is open. */
#define DETAIL(...)         \
  do {                      \
    log_used--;             \
    write_log(__VA_ARGS__); \
  } while (0)

#include "tests/unit/fakes/fake_cuda_device.inc"
#include "tests/unit/fakes/fake_cuda_compute.inc"
#include "tests/unit/fakes/fake_cuda_run.inc"
#include "tests/unit/fakes/fake_cuda_module.inc"
#include "tests/unit/fakes/fake_cuda_link.inc"
#include "tests/unit/fakes/fake_cuda_launch.inc"
#include "tests/unit/fakes/fake_cuda_memory.inc"
#include "tests/unit/fakes/fake_cuda_graph.inc"

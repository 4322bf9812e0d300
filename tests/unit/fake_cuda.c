/* fake_cuda.c: a scripted stand-in for libcuda: answers like a driver, remembers every call, fails where told to.
 * See fake_cuda.h. It runs no kernel unless it is told to (run=). */
#include "fake_cuda.h"

#include <dlfcn.h>
#include <elf.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The kernel ABI, to decode launches; a stand-in links nothing of the library under test. */
#include "abi.c"
#include "driver.h"

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

enum { FAILS_MAX = 16, COSTS_MAX = 32, PATTERNS_MAX = 8, LAUNCHES_MAX = 8192, FUNCTIONS_MAX = 64, NAMES_MAX = 64, BLOCKS_MAX = 4096,
       STREAMS_MAX = 64 };

typedef struct failure {
  char name[48];
  int code, from, to; /* calls counted from 1 */
} failure;

typedef struct settings {
  int devices, major, minor, sms, driver, shared, max_threads, clock, bad_rows, clusters, busy, fill, spoil, no_cubin;
  int compute, jitter, interrupt, interrupt_load, link, meet;
  struct {
    char pattern[64];
    double ms;
  } costs[COSTS_MAX];
  char wrong[PATTERNS_MAX][64], spoilt[PATTERNS_MAX][64], refuse[PATTERNS_MAX][64];
  int cost_count, wrong_count, spoilt_count, refuse_count;
  char run[512], compiler[512]; /* folder of libraries, "" for none */
  size_t memory;
  char name[128], info_log[512], error_log[512], link_log[512];
  failure fails[FAILS_MAX];
  int fail_count;
} settings;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t met = PTHREAD_COND_INITIALIZER;
static settings now;
static int started;
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

/* ---- script ---- */

static void set_failure(const char *name, const char *value) {
  if (now.fail_count == FAILS_MAX) abort();
  failure *f = &now.fails[now.fail_count++];
  snprintf(f->name, sizeof f->name, "%s", name);
  f->code = atoi(value);
  f->from = 1;
  f->to = INT32_MAX;
  const char *at = strchr(value, '@');
  if (!at) return;
  f->from = atoi(at + 1);
  if (!strchr(at, '+')) f->to = f->from;
}

static void add_cost(const char *value) {
  const char *colon = strrchr(value, ':');
  if (now.cost_count == COSTS_MAX || !colon) abort();
  snprintf(now.costs[now.cost_count].pattern, sizeof now.costs[0].pattern, "%.*s", (int)(colon - value), value);
  now.costs[now.cost_count++].ms = atof(colon + 1);
}

static void add_pattern(char patterns[][64], int *count, const char *value) {
  if (*count == PATTERNS_MAX) abort();
  snprintf(patterns[(*count)++], 64, "%s", value);
}

static void set_text(char *out, size_t capacity, const char *value) {
  snprintf(out, capacity, "%s", value);
  for (char *c = out; *c; c++)
    if (*c == '|') *c = '\n';
}

static void set_one(char *setting) {
  char *value = strchr(setting, '=');
  if (!value) return;
  *value++ = 0;
  const struct {
    const char *name;
    int *field;
  } numbers[] = {{"devices", &now.devices}, {"sms", &now.sms},     {"driver", &now.driver},
                 {"shared", &now.shared},   {"clock", &now.clock}, {"maxthreads", &now.max_threads},
                 {"badrows", &now.bad_rows}, {"clusters", &now.clusters}, {"busy", &now.busy}, {"fill", &now.fill},
                 {"spoil", &now.spoil},     {"nocubin", &now.no_cubin}, {"compute", &now.compute},
                 {"jitter", &now.jitter},   {"interrupt", &now.interrupt}, {"interruptload", &now.interrupt_load},
                 {"link", &now.link},       {"meet", &now.meet}};
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
    if (strcmp(numbers[i].name, setting) == 0) *numbers[i].field = atoi(value);
  if (strcmp(setting, "memory") == 0) now.memory = strtoull(value, NULL, 10);
  if (strcmp(setting, "capability") == 0) sscanf(value, "%d.%d", &now.major, &now.minor);
  if (strcmp(setting, "name") == 0) set_text(now.name, sizeof now.name, value);
  if (strcmp(setting, "infolog") == 0) set_text(now.info_log, sizeof now.info_log, value);
  if (strcmp(setting, "errorlog") == 0) set_text(now.error_log, sizeof now.error_log, value);
  if (strcmp(setting, "linklog") == 0) set_text(now.link_log, sizeof now.link_log, value);
  if (strcmp(setting, "run") == 0) set_text(now.run, sizeof now.run, value);
  if (strcmp(setting, "compiler") == 0) set_text(now.compiler, sizeof now.compiler, value);
  if (strcmp(setting, "cost") == 0) add_cost(value);
  if (strcmp(setting, "wrong") == 0) add_pattern(now.wrong, &now.wrong_count, value);
  if (strcmp(setting, "spoilt") == 0) add_pattern(now.spoilt, &now.spoilt_count, value);
  if (strcmp(setting, "refuse") == 0) add_pattern(now.refuse, &now.refuse_count, value);
  if (strncmp(setting, "fail:", 5) == 0) set_failure(setting + 5, value);
}

static void forget_calls(void) {
  memset(counts, 0, sizeof counts);
  log_used = 0;
  if (log_text) log_text[0] = 0;
  launch_count = 0;
  effects = compiling = 0;
}

static void read_script(const char *script) {
  now = (settings){.devices = 1,
                   .major = 8,
                   .sms = 132,
                   .driver = 13000,
                   .shared = 232448,
                   .max_threads = 1024,
                   .clock = 1980000,
                   .clusters = 66,
                   .memory = (size_t)1 << 37,
                   .name = "Fake H200"};
  forget_calls();
  char *copy = strdup(script ? script : ""), *rest = copy;
  for (char *setting; copy && (setting = strtok_r(rest, ";\n", &rest));) set_one(setting);
  free(copy);
}

static void start(void) {
  if (started) return;
  started = 1;
  const char *script = getenv("FAKE_CUDA");
  FILE *file = script && script[0] == '/' ? fopen(script, "r") : NULL;
  char text[4096] = "";
  if (file) {
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
  }
  read_script(file ? text : script);
}

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

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...) {
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

/* Opens a call: takes the lock, remembers the call, and says how it is to end. */
static CUresult begin(const char *name, int needs_context) {
  pthread_mutex_lock(&lock);
  start();
  int call = count_call(name);
  if (now.compute) log_used = 0;
  say("%s\n", name);
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
#define DETAIL(...)   \
  do {                \
    log_used--;       \
    say(__VA_ARGS__); \
  } while (0)

/* ---- driver and device ---- */

CUresult cuInit(unsigned flags) {
  (void)flags;
  return end(begin("cuInit", 0));
}

CUresult cuDriverGetVersion(int *version) {
  CUresult result = begin("cuDriverGetVersion", 0);
  *version = now.driver;
  return end(result);
}

static const struct {
  int code;
  const char *name, *text;
} errors[] = {
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "PTX JIT compilation was disabled"},
    {300, "CUDA_ERROR_INVALID_SOURCE", "device kernel image is invalid"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"}};

static int find_error(CUresult code) {
  for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
    if (errors[i].code == code) return (int)i;
  return -1;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
  int i = find_error(error);
  *text = i < 0 ? NULL : errors[i].text;
  return i < 0 ? 1 : 0;
}

CUresult cuGetErrorName(CUresult error, const char **name) {
  int i = find_error(error);
  *name = i < 0 ? NULL : errors[i].name;
  return i < 0 ? 1 : 0;
}

CUresult cuDeviceGetCount(int *count) {
  CUresult result = begin("cuDeviceGetCount", 0);
  *count = now.devices;
  return end(result);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  CUresult result = begin("cuDeviceGet", 0);
  *device = ordinal + 40; /* a handle is no ordinal */
  return end(result);
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device) {
  (void)device;
  CUresult result = begin("cuDeviceGetName", 0);
  snprintf(name, (size_t)bytes, "%s", now.name);
  return end(result);
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  CUresult result = begin("cuDeviceGetAttribute", 0);
  if (device < 40 || device >= 40 + now.devices) return end(result ? result : 101);
  switch (attribute) {
    case 75:
      *value = now.major;
      break;
    case 76:
      *value = now.minor;
      break;
    case 16:
      *value = now.sms;
      break;
    case 97:
      *value = now.shared;
      break;
    case 38:
      *value = 50 << 20;
      break;
    case 13:
      *value = now.clock;
      break;
    case 36:
      *value = 3201000;
      break;
    case 37:
      *value = 6144;
      break;
    default:
      return end(1);
  }
  return end(result);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  (void)device;
  CUresult result = begin("cuDeviceTotalMem_v2", 0);
  *bytes = now.memory;
  return end(result);
}

/* ---- contexts ---- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
  (void)device;
  CUresult result = begin("cuDevicePrimaryCtxRetain", 0);
  *out = result ? NULL : &context;
  if (!result) context.retained++;
  return end(result);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  (void)device;
  CUresult result = begin("cuDevicePrimaryCtxRelease_v2", 0);
  if (!result) context.retained--;
  return end(result);
}

/* There is one context; what is created is current, as with a driver. */
CUresult cuDeviceGetPCIBusId(char *out, int capacity, CUdevice device) {
  CUresult result = begin("cuDeviceGetPCIBusId", 0);
  if (result == 0) snprintf(out, (size_t)capacity, "0000:%02x:00.0", (unsigned)device);
  return end(result);
}

CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device) {
  CUresult result = begin("cuCtxCreate_v2", 0);
  (void)flags;
  (void)device;
  *out = result ? NULL : &context;
  if (!result) depth++;
  return end(result);
}

CUresult cuCtxDestroy_v2(CUcontext created) {
  CUresult result = begin("cuCtxDestroy_v2", 0);
  return end(created == &context ? result : 201);
}

CUresult cuCtxPushCurrent_v2(CUcontext pushed) {
  CUresult result = begin("cuCtxPushCurrent_v2", 0);
  if (!result && (pushed != &context || context.retained < 1)) result = 201;
  if (!result) depth++;
  return end(result);
}

CUresult cuCtxPopCurrent_v2(CUcontext *popped) {
  CUresult result = begin("cuCtxPopCurrent_v2", 1);
  *popped = &context;
  if (!result) depth--;
  return end(result);
}

#include "fake_cuda_compute.inc"
#include "fake_cuda_run.inc"

/* ---- modules ---- */

/* The text in which entries are looked for: PTX as it is, a cubin with line ends for zeros. Like the driver, it knows
 * from an ELF file's own head and sections alone how far it may read. */
static char *module_text(const void *image) {
  Elf64_Ehdr head;
  if (strncmp(image, ELFMAG, SELFMAG) != 0) return strdup(image);
  memcpy(&head, image, sizeof head);
  size_t bytes = head.e_shoff + (size_t)head.e_shnum * head.e_shentsize;
  for (unsigned i = 0; i < head.e_shnum; i++) {
    Elf64_Shdr section;
    memcpy(&section, (const char *)image + head.e_shoff + i * sizeof section, sizeof section);
    size_t end = section.sh_type == SHT_NOBITS ? 0 : section.sh_offset + section.sh_size;
    if (end > bytes) bytes = end;
  }
  char *text = malloc(bytes + 1);
  if (!text) return NULL;
  for (size_t i = 0; i < bytes; i++) text[i] = ((const char *)image)[i] ? ((const char *)image)[i] : '\n';
  text[bytes] = 0;
  return text;
}

/* meet=: waits until so many calls that compile have begun. 0, or 999 if that does not come */
static CUresult meet(void) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 20;
  pthread_mutex_lock(&lock);
  start();
  compiling++;
  pthread_cond_broadcast(&met);
  int late = 0;
  while (compiling < now.meet && !late) late = pthread_cond_timedwait(&met, &lock, &until);
  pthread_mutex_unlock(&lock);
  return late ? 999 : 0;
}

#include "fake_cuda_link.inc"

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values) {
  int is_cubin = strncmp(image, ELFMAG, SELFMAG) == 0;
  CUresult alone = is_cubin ? 0 : meet(), result = begin("cuModuleLoadDataEx", 1);
  if (!result) result = alone;
  if (is_cubin && !result) result = (CUresult)now.no_cubin;
  DETAIL("%s", is_cubin ? " cubin" : "");
  size_t info = 0, error = 0;
  for (unsigned i = 0; i < count; i++)
    if (options[i] == 7) say(" level=%d", (int)(uintptr_t)values[i]);
  say("\n");
  for (unsigned i = 0; i < count; i++) {
    if (options[i] == 4) info = (size_t)(uintptr_t)values[i];
    if (options[i] == 6) error = (size_t)(uintptr_t)values[i];
  }
  for (unsigned i = 0; i < count; i++) {
    if (options[i] == 3 && info) snprintf(values[i], info, "%s", now.info_log);
    if (options[i] == 5 && error && result) snprintf(values[i], error, "%s", now.error_log);
  }
  *module = NULL;
  if (now.interrupt_load > 0 && --now.interrupt_load == 0) raise(SIGINT);
  if (!result && matches_any(image, now.refuse, now.refuse_count)) result = 218;
  if (!result) {
    *module = calloc(1, sizeof **module);
    if (!*module || !((*module)->text = module_text(image))) abort();
    if (now.run[0] && !((*module)->library = library_of(image))) abort();
    modules_held++;
  }
  return end(result);
}

CUresult cuModuleUnload(CUmodule module) {
  CUresult result = begin("cuModuleUnload", 1);
  if (!result) {
    free(module->text);
    free(module);
    modules_held--;
  }
  return end(result);
}

/* Functions live for ever, one a name: enough for a test process. */
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  static struct CUfunc_st functions[FUNCTIONS_MAX];
  CUresult result = begin("cuModuleGetFunction", 1);
  DETAIL(" %s\n", name);
  if (!result && !strstr(module->text, name)) result = 500;
  if (result) return end(result);
  int i = 0;
  if (now.compute || now.run[0]) {
    while (i < MODULE_FUNCTIONS_MAX - 1 && module->functions[i].name[0]) i++;
    struct CUfunc_st *own = &module->functions[i];
    snprintf(own->name, sizeof own->name, "%s", name);
    own->text = module->text;
    if (now.run[0] && !(own->run = run_of(module, name))) return end(500);
    own->ms = cost_of(module->text, name);
    own->wrong = matches_any(module->text, now.wrong, now.wrong_count);
    own->spoilt = matches_any(module->text, now.spoilt, now.spoilt_count);
    *function = own;
    return end(0);
  }
  while (functions[i].name[0] && strcmp(functions[i].name, name) != 0) i++;
  if (i == FUNCTIONS_MAX - 1) abort();
  snprintf(functions[i].name, sizeof functions[i].name, "%s", name);
  *function = &functions[i];
  return end(0);
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
  CUresult result = begin("cuFuncSetAttribute", 1);
  DETAIL(" %s %d=%d\n", function->name, attribute, value);
  return end(result);
}

CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
  (void)function;
  CUresult result = begin("cuFuncGetAttribute", 1);
  *value = attribute == 0 ? now.max_threads : 0;
  return end(result);
}

static void say_params(const flp_abi_entry *entry, const fake_launch *launch) {
  for (uint32_t i = 0; i < entry->param_count; i++) {
    const flp_abi_param *p = &entry->params[i];
    if (p->type == FLP_ABI_MAP) continue;
    const uint8_t *at = launch->params + p->offset;
    long long whole = 0;
    float real = 0;
    if (p->type == FLP_ABI_I32) {
      int32_t value;
      memcpy(&value, at, 4);
      whole = value;
    } else {
      memcpy(p->type == FLP_ABI_F32 ? (void *)&real : (void *)&whole, at, p->type == FLP_ABI_F32 ? 4 : 8);
    }
    if (p->type == FLP_ABI_F32)
      say(" %s=%.9g", p->name, (double)real);
    else
      say(p->type == FLP_ABI_PTR ? " %s=0x%llx" : " %s=%lld", p->name, whole);
  }
}

static size_t param_bytes(flp_abi_type type) {
  if (type == FLP_ABI_MAP) return sizeof(flp_abi_map);
  return type == FLP_ABI_I32 || type == FLP_ABI_F32 ? 4 : 8;
}

static void start_work(CUstream stream, const fake_launch *launch);

/* The rest of a launch that has begun; cluster 1: none. */
static CUresult take_launch(CUresult result, CUfunction function, const flp_launch_config *c, unsigned cluster,
                            void **params, void **extra) {
  const flp_abi_entry *entry = flp_abi_find(function->name + 4);
  const unsigned *g = c->grid, *b = c->block;
  unsigned shared = c->shared_bytes;
  CUstream stream = c->stream;
  if (g[0] == 0 || g[0] > INT32_MAX || g[1] != 1 || g[2] != 1 || b[0] == 0 || b[0] > 1024 || b[1] != 1 || b[2] != 1 ||
      extra || !entry || cluster == 0 || g[0] % cluster)
    result = 1;
  if (!launches) launches = calloc(LAUNCHES_MAX, sizeof *launches);
  if (!launches || (launch_count == LAUNCHES_MAX && !now.fill && !now.compute)) abort();
  if (launch_count == LAUNCHES_MAX) launch_count = 0; /* long runs look at memory, not at launches */
  if (result) return end(result);
  fake_launch *launch = &launches[launch_count++];
  *launch = (fake_launch){.grid = g[0], .block = b[0], .shared = shared, .cluster = cluster, .stream = stream};
  snprintf(launch->entry, sizeof launch->entry, "%s", entry->name);
  for (uint32_t i = 0; i < entry->param_count; i++) {
    if (entry->params[i].offset + param_bytes(entry->params[i].type) > sizeof launch->params) abort();
    memcpy(launch->params + entry->params[i].offset, params[i], param_bytes(entry->params[i].type));
  }
  if (now.run[0]) {
    function->run((int)g[0], (int)b[0], (int)cluster, params);
    return end(0);
  }
  if (now.compute) { /* thousands of launches: no log */
    take_job(function, launch);
    spend(function);
    return end(0);
  }
  DETAIL(" %s grid=%u block=%u shared=%u stream=%p", function->name, g[0], b[0], shared, (void *)stream);
  if (cluster > 1) say(" cluster=%u", cluster);
  say_params(entry, launch);
  say("\n");
  if (now.bad_rows && strcmp(entry->name, "prepare") == 0) {
    flp_prepare_params p;
    memcpy(&p, launch->params, sizeof p);
    *(int32_t *)(uintptr_t)p.error_word += now.bad_rows;
  }
  start_work(stream, launch);
  return end(0);
}

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void **params, void **extra) {
  const flp_launch_config config = {
      .grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared_bytes = shared, .stream = stream};
  return take_launch(begin("cuLaunchKernel", 1), function, &config, 1, params, extra);
}

/* The one attribute that is known: the dimensions of a cluster. */
static unsigned cluster_of(const flp_launch_config *config) {
  const flp_launch_attribute *a = config->attributes;
  if (config->attribute_count != 1 || a->id != FLP_LAUNCH_CLUSTER_DIMENSION || a->value[1] != 1 || a->value[2] != 1)
    return 0;
  return a->value[0];
}

CUresult cuLaunchKernelEx(const flp_launch_config *config, CUfunction function, void **params, void **extra) {
  return take_launch(begin("cuLaunchKernelEx", 1), function, config, cluster_of(config), params, extra);
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const flp_launch_config *config) {
  (void)function;
  CUresult result = begin("cuOccupancyMaxActiveClusters", 1);
  if (cluster_of(config) == 0) result = 1;
  *clusters = now.clusters;
  return end(result);
}

/* Holds the caller to the rules of the real one, and makes the map the plain list of what it was given. */
CUresult cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *start, const uint64_t *extent,
                                const uint64_t *stride, const uint32_t *box, const uint32_t *step, int interleave,
                                int swizzle, int promotion, int fill) {
  CUresult result = begin("cuTensorMapEncodeTiled", 0);
  (void)promotion;
  if ((uintptr_t)map % 64 || (uintptr_t)start % 16 || rank != 2 || (type != 6 && type != 7 && type != 9) || interleave || fill)
    result = 1;
  if (!extent[0] || !extent[1] || stride[0] % 16 || stride[0] >> 40 || step[0] != 1 || step[1] != 1) result = 1;
  if (!box[0] || box[0] > 256 || !box[1] || box[1] > 256 || (swizzle == 3 && box[0] * (type == 7 ? 4 : 2) > 128)) result = 1;
  const uint64_t given[] = {(uint64_t)(uintptr_t)start, extent[0], extent[1], stride[0], box[0], box[1]};
  memset(map, 0, 128);
  memcpy(map, given, sizeof given);
  DETAIL(" start=%p extent=%llu,%llu stride=%llu box=%u,%u\n", start, (unsigned long long)extent[0],
         (unsigned long long)extent[1], (unsigned long long)stride[0], box[0], box[1]);
  return end(result);
}

#include "fake_cuda_memory.inc"
#include "fake_cuda_graph.inc"

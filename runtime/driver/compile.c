/* compile.c: see compile.h. */
#include "runtime/driver/compile.h"

#include <stdint.h>
#include <string.h>

#include "runtime/base/status.h"

/* CUjit_option numbers; pinned by the driver's ABI. */
enum {
  JIT_INFO_LOG_BUFFER = 3,
  JIT_INFO_LOG_BUFFER_SIZE_BYTES = 4,
  JIT_ERROR_LOG_BUFFER = 5,
  JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
  JIT_OPTIMIZATION_LEVEL = 7
};

/* A first logprob waits for forward, for which some architectures need no more than level 1 (arch.c). */
static int is_level_1_enough(const flp_kernel_key *key) {
  int is_plain = key->kind == FLP_KERNEL_FORWARD || key->kind == FLP_FORWARD(SHORT);
  return is_plain && flp_arch_has(key->arch, FLP_ARCH_QUICK_FORWARD) &&
         key->dtype != FLP_DTYPE_FP32 && !key->softcap;
}

static void add_option(flp_compile *call, int option, void *value) {
  call->options[call->option_count] = option;
  call->values[call->option_count++] = value;
}

void flp_compile_open(flp_compile *call, const flp_kernel_desc *desc) {
  memset(call, 0, sizeof *call);
  /* Numbers are passed by value in the pointer's place; a driver that fills a log leaves the last byte alone. */
  void *const size = (void *)(uintptr_t)(FLP_COMPILE_LOG_BYTES - 1), *const level = (void *)(uintptr_t)1;
  add_option(call, JIT_INFO_LOG_BUFFER, call->info);
  add_option(call, JIT_INFO_LOG_BUFFER_SIZE_BYTES, size);
  add_option(call, JIT_ERROR_LOG_BUFFER, call->error);
  add_option(call, JIT_ERROR_LOG_BUFFER_SIZE_BYTES, size);
  if (is_level_1_enough(&desc->key)) add_option(call, JIT_OPTIMIZATION_LEVEL, level);
}

static int is_doubtful(const char *line) {
  return strstr(line, "(C75") || (strstr(line, "wgmma") && strstr(line, "serialized")) ||
         (strstr(line, "setmaxnreg") && strstr(line, "ignored"));
}

/* Takes the next line that is not empty from *rest; 0 at the end. */
static int next_line(const char **rest, char line[FLP_COMPILE_LOG_BYTES]) {
  *rest += strspn(*rest, "\n");
  size_t length = strcspn(*rest, "\n");
  memcpy(line, *rest, length);
  line[length] = 0;
  *rest += length;
  return length > 0;
}

int flp_compile_is_doubtful(const flp_compile *call) {
  char line[FLP_COMPILE_LOG_BYTES];
  for (const char *rest = call->info; next_line(&rest, line);)
    if (is_doubtful(line)) return 1;
  return 0;
}

void flp_compile_warn(const flp_compile *call, const char *kernel) {
  char line[FLP_COMPILE_LOG_BYTES];
  for (const char *rest = call->info; next_line(&rest, line);)
    if (is_doubtful(line)) flp_log(FLP_LOG_WARNING, "kernel %s: the PTX compiler reports: %s", kernel, line);
}

const char *flp_compile_error(flp_compile *call) {
  char *text = call->error + strspn(call->error, " \n\r\t");
  text[strcspn(text, "\n\r")] = 0;
  return text;
}

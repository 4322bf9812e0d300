/* compile.h: options of the driver's PTX compiler, and its messages. */
#ifndef FLP_COMPILE_H
#define FLP_COMPILE_H

#include "runtime/kernel/kernel.h"

enum { FLP_COMPILE_LOG_BYTES = 8192, FLP_COMPILE_OPTIONS_MAX = 5 };

/* One call that compiles. It must not move once it is open. */
typedef struct flp_compile {
  char info[FLP_COMPILE_LOG_BYTES], error[FLP_COMPILE_LOG_BYTES];
  unsigned option_count;
  int options[FLP_COMPILE_OPTIONS_MAX]; /* CUjit_option */
  void *values[FLP_COMPILE_OPTIONS_MAX];
} flp_compile;

/* Empties the logs and sets the options for a kernel, which are the same in every process: the driver's cache
 * distinguishes code by them. */
void flp_compile_open(flp_compile *call, const flp_kernel_desc *desc);

/* 1 if the compiler reports serialised wgmma or an ignored setmaxnreg: the code is right, but slow. */
int flp_compile_is_doubtful(const flp_compile *call);

/* Warns of the lines that make it doubtful. kernel: its name */
void flp_compile_warn(const flp_compile *call, const char *kernel);

/* The first line of substance of the error log, or "". Truncates the log there. */
const char *flp_compile_error(flp_compile *call);

#endif

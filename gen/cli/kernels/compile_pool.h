/* compile_pool.h: a pool of threads that compile kernels, each in its own CUDA context.
 *
 * The driver compiles the PTX of one context one after the other, whatever the number of threads, and its linker,
 * which does not, makes code in which wgmma is serialised. So every thread loads a kernel once in a context of its own;
 * the driver's cache then has the machine code, and the plan that loads it for good finds it there. */
#ifndef FLPGEN_CLI_COMPILERS_H
#define FLPGEN_CLI_COMPILERS_H

#include <pthread.h>

#include "gen/cli/call/device.h"
#include "runtime/store/store.h"

enum { CLI_COMPILERS_MAX = 64 };

typedef struct cli_compilers {
  const flp_driver *driver;
  CUdevice device;
  CUcontext context[CLI_COMPILERS_MAX]; /* made by the thread that needs it first */
  int count;
} cli_compilers;

/* As many as there is memory for on the device, at most `most`; none where the driver cannot. Makes nothing yet.
 * error: DRIVER */
flp_status cli_compilers_open(const cli_device *device, int most, cli_compilers *out);
/* To be called when no pool is at work. A zeroed one is fine. */
void cli_compilers_close(cli_compilers *compilers);

/* Does task i of a list, with a context current. It runs beside other tasks. */
typedef void (*cli_pool_task)(void *argument, int i);

typedef struct cli_pool cli_pool;

typedef struct cli_pool_worker {
  cli_pool *pool;
  CUcontext *context; /* in the compilers */
  pthread_t thread;
} cli_pool_worker;

/* A list of tasks under way. It must not move. */
struct cli_pool {
  cli_compilers *compilers; /* borrowed */
  cli_pool_task task;
  void *argument;    /* borrowed */
  char *done;        /* (count) owned */
  int count, next;   /* next: task to be begun */
  int started, left; /* threads, and those that still take tasks */
  cli_pool_worker member[CLI_COMPILERS_MAX];
  pthread_mutex_t lock;
  pthread_cond_t changed;
};

/* Starts to do tasks 0 to count-1, in that order, and returns. A pool of no threads does none. error: MEMORY */
flp_status cli_pool_start(cli_compilers *compilers, int count, cli_pool_task task, void *argument, cli_pool *out);
/* Waits until task i is done. Returns 0 if no thread is left to do it. */
int cli_pool_wait(cli_pool *pool, int i);
/* Waits for all of them, and ends the threads. */
void cli_pool_finish(cli_pool *pool);
/* Waits for tasks that were begun, begins no other, and forgets all. */
void cli_pool_stop(cli_pool *pool);

/* Compiles a kernel, once, in the context that is current, into the driver's cache, or into the store as
 * flp_linker_start would. What fails here fails again, with its reason, when a plan loads it. */
void cli_precompile(const flp_driver *driver, const flp_store *store, flp_kernel_image *image);

#endif

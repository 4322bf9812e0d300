/* fake_cuda.h: what tests may ask of the stand-in for libcuda (fake_cuda.c), through dlsym.
 *
 * A script is a list of settings divided by ';' or new lines, given to fake_cuda_script, or to the process in the
 * environment variable FAKE_CUDA, as text or as the path of a file:
 *   devices=1 capability=8.0 name=Fake sms=132 driver=13000 shared=232448 memory=<bytes> clock=<kHz>
 *   clusters=66          how many clusters of any kernel fit the device
 *   unproven=sm_90a      this process takes that architecture for one that has never run where it is sold
 *   maxthreads=1024      what cuFuncGetAttribute returns for every function
 *   infolog=, errorlog=  text for the logs of cuModuleLoadDataEx ('|' starts a new line)
 *   badrows=3            what each launch of flp_prepare adds to the error word
 *   busy=3               cuStreamQuery reports so many times that work launched on a stream is not done
 *   nocubin=209          cuModuleLoadDataEx fails so for machine code, not for PTX
 *   link=1               cuLinkCreate works (by default it fails with 801), but not with run=; with 2, what it makes is for
 *                        another machine; linklog=  is its info log
 *   meet=2               what compiles PTX waits until so many such calls have begun, and fails with 999 if that does not come
 *   fill=1               kernels that write 16-bit or row outputs fill them with a constant, graphs when they are
 *                        launched; with spoil=7 the seventh output of them with another
 *   run=<folder>         modules are LLVM IR (fake_ir_provider.c), whose kernels run on the CPU: `compiler=<command> M.ll M.so`
 *                        makes libraries of them, kept in the folder (tests/simt/compile.py); taken=<file> gets a line
 *                        for each entry that is taken from one
 *   compute=1            kernels that multiply compute their pass, and each launch of one takes 1 ms of a device's
 *                        clock that events read (fake_cuda_compute.inc); then, by kind and text of the key:
 *   cost=forward/128x256:0.8   milliseconds; the last that fits counts    jitter=30   so much noise, in units of 1e-4;
 *                        with run=, cost=forward_map:0.8 is of modules with that text
 *   wrong=forward/stages=3     its numbers are wrong    refuse=dz/64x64   it does not load: 218
 *   spoilt=forward_keep/       what it keeps is wrong, and with it gradients
 *   interrupt=500        SIGINT comes with the 500th launch    interruptload=50   or the 50th module
 *   fail:cuX=222         every call of cuX fails; with @2 only the second, with @2+ the second and all after it
 * Calls that need a current context fail with 201 without one; those that may not be made while a
 * stream is captured fail with 900 then; device memory is malloc'ed, so arenas work on it. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef struct fake_launch {
  char entry[48]; /* without "flp_" */
  unsigned grid, block, shared, cluster; /* cluster: 1 without */
  void *stream;
  uint8_t params[1280]; /* the entry's struct of abi.h */
} fake_launch;

/* Forgets calls and launches and goes back to the defaults, then reads the script. */
typedef void (*fake_cuda_script_fn)(const char *script);
/* Forgets calls and launches, keeps the settings. */
typedef void (*fake_cuda_reset_fn)(void);
/* One line a call, in order. Borrowed until the next call. */
typedef const char *(*fake_cuda_log_fn)(void);
/* Calls of one function, or of all with NULL. */
typedef int (*fake_cuda_calls_fn)(const char *function);
typedef size_t (*fake_cuda_launch_count_fn)(void);
typedef const fake_launch *(*fake_cuda_launch_at_fn)(size_t i);
/* What is held now: bytes allocated, modules loaded, contexts retained. Aborts if the linker still is. */
typedef void (*fake_cuda_held_fn)(size_t *bytes, int *modules, int *contexts);

#endif

/* driver.h: the CUDA driver API, opened with dlopen (FLP_CUDA_LIBRARY or libcuda.so.1), as one table of functions.
 *
 * No CUDA header is used: types that cross the ABI are declared here with the driver's documented sizes. */
#ifndef FLP_DRIVER_H
#define FLP_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/flp.h"

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUlinkState_st *CUlinkState;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

/* CUlaunchAttribute: the values are a union of 64 bytes, of which a cluster's dimensions take the first 12. */
typedef struct flp_launch_attribute {
  unsigned id, padding;
  unsigned value[16];
} flp_launch_attribute;
enum { FLP_LAUNCH_CLUSTER_DIMENSION = 4 };

/* CUlaunchConfig. */
typedef struct flp_launch_config {
  unsigned grid[3], block[3], shared_bytes;
  CUstream stream;
  flp_launch_attribute *attributes;
  unsigned attribute_count;
} flp_launch_config;

#define FLP_DRIVER_FUNCTIONS(F)                                                                              \
  F(cuInit, (unsigned))                                                                                      \
  F(cuDriverGetVersion, (int *))                                                                             \
  F(cuGetErrorString, (CUresult, const char **))                                                             \
  F(cuGetErrorName, (CUresult, const char **))                                                               \
  F(cuDeviceGetCount, (int *))                                                                               \
  F(cuDeviceGet, (CUdevice *, int))                                                                          \
  F(cuDeviceGetName, (char *, int, CUdevice))                                                                \
  F(cuDeviceGetAttribute, (int *, int, CUdevice))                                                            \
  F(cuDeviceTotalMem_v2, (size_t *, CUdevice))                                                               \
  F(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                       \
  F(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                                \
  F(cuCtxPushCurrent_v2, (CUcontext))                                                                        \
  F(cuCtxPopCurrent_v2, (CUcontext *))                                                                       \
  F(cuModuleLoadDataEx, (CUmodule *, const void *, unsigned, int *, void **))                                \
  F(cuModuleUnload, (CUmodule))                                                                              \
  F(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                             \
  F(cuFuncSetAttribute, (CUfunction, int, int))                                                              \
  F(cuFuncGetAttribute, (int *, int, CUfunction))                                                            \
  F(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,       \
                     CUstream, void **, void **))                                                            \
  F(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                  \
  F(cuMemFree_v2, (CUdeviceptr))                                                                             \
  F(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                                      \
  F(cuMemFreeAsync, (CUdeviceptr, CUstream))                                                                 \
  F(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                                         \
  F(cuMemsetD2D8Async, (CUdeviceptr, size_t, unsigned char, size_t, size_t, CUstream))                       \
  F(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                                           \
  F(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                                     \
  F(cuMemGetInfo_v2, (size_t *, size_t *))                                                                   \
  F(cuStreamCreate, (CUstream *, unsigned))                                                                  \
  F(cuStreamDestroy_v2, (CUstream))                                                                          \
  F(cuStreamSynchronize, (CUstream))                                                                         \
  F(cuEventCreate, (CUevent *, unsigned))                                                                    \
  F(cuEventDestroy_v2, (CUevent))                                                                            \
  F(cuEventRecord, (CUevent, CUstream))                                                                      \
  F(cuEventSynchronize, (CUevent))                                                                           \
  F(cuEventElapsedTime, (float *, CUevent, CUevent))

/* The last four save time (linker.h). The others are needed to launch kernels in clusters only: a driver older than CUDA
 * 12.0 lacks some of them. */
#define FLP_DRIVER_OPTIONAL(F)                                                                                \
  F(cuLaunchKernelEx, (const flp_launch_config *, CUfunction, void **, void **))                              \
  F(cuOccupancyMaxActiveClusters, (int *, CUfunction, const flp_launch_config *))                             \
  F(cuTensorMapEncodeTiled, (void *, int, uint32_t, void *, const uint64_t *, const uint64_t *,               \
                             const uint32_t *, const uint32_t *, int, int, int, int))                         \
  F(cuLinkCreate_v2, (unsigned, int *, void **, CUlinkState *))                                               \
  F(cuLinkAddData_v2, (CUlinkState, int, void *, size_t, const char *, unsigned, int *, void **))             \
  F(cuLinkComplete, (CUlinkState, void **, size_t *))                                                         \
  F(cuLinkDestroy, (CUlinkState))

/* What tools need to query and to capture what the library enqueues, and to compile; the library calls none of it. A
 * driver older than CUDA 11.4 lacks some. */
#define FLP_DRIVER_TOOLS(F)                                               \
  F(cuStreamQuery, (CUstream))                                            \
  F(cuStreamBeginCapture_v2, (CUstream, int))                             \
  F(cuStreamEndCapture, (CUstream, CUgraph *))                            \
  F(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, uint64_t))      \
  F(cuGraphLaunch, (CUgraphExec, CUstream))                               \
  F(cuGraphExecDestroy, (CUgraphExec))                                    \
  F(cuGraphDestroy, (CUgraph))                                            \
  F(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))                    \
  F(cuCtxDestroy_v2, (CUcontext))                                         \
  F(cuDeviceGetPCIBusId, (char *, int, CUdevice))

typedef struct flp_driver {
#define FLP_DRIVER_FIELD(name, args) CUresult(*name) args;
  FLP_DRIVER_FUNCTIONS(FLP_DRIVER_FIELD)
  FLP_DRIVER_OPTIONAL(FLP_DRIVER_FIELD) /* NULL where the driver lacks it, as are the next */
  FLP_DRIVER_TOOLS(FLP_DRIVER_FIELD)
#undef FLP_DRIVER_FIELD
  int version; /* cuDriverGetVersion, e.g. 13000 */
} flp_driver;

/* Opens the driver once for the process and initialises it. *out is borrowed, valid for ever.
 * error: UNAVAILABLE with the reason (library missing, symbol missing, cuInit failed, no device) */
flp_status flp_driver_get(const flp_driver **out);

typedef struct flp_device {
  int ordinal;
  CUdevice handle;
  char name[128];
  int major, minor;        /* compute capability */
  int multiprocessors;
  int shared_bytes_max;    /* dynamic shared memory that one CTA may opt in to */
  int l2_bytes;
  int clock_khz;        /* of the multiprocessors; 0 if the driver does not report it */
  int memory_clock_khz; /* 0 if the driver does not report it */
  int memory_bus_bits;  /* 0 if the driver does not report it */
  uint64_t memory_bytes;
} flp_device;

/* error: ARGUMENT if the ordinal does not exist; DRIVER */
flp_status flp_device_get(const flp_driver *driver, int ordinal, flp_device *out);

/* All memory of a device; 0 where there is none of that ordinal. unit: bytes */
uint64_t flp_device_memory(int ordinal);

/* Turns a CUresult into a status with detail "cuX failed: CUDA_ERROR_Y (n): text". OK for 0. what: the call's name
 * plus, for a launch, kernel and spec. */
flp_status flp_driver_status(const flp_driver *driver, CUresult result, const char *what);

/* 1 if every function that kernels in clusters are launched with is there. */
int flp_driver_has_clusters(const flp_driver *driver);

/* 1 for results that mean "this PTX cannot run here" (209, 218, 221, 222, 223, 200, 300): the next rung is tried. */
int flp_driver_is_fallback(CUresult result);

#endif

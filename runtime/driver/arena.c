/* arena.c: flp_arena: blocks from the driver (or malloc), split into segments that are taken and given back.
 *
 * Invariants: the segments of a block cover it from first to last byte in address order, each a multiple of GRAIN; two
 * free neighbours of one stream are always one segment; a free segment is reused only on the stream on which it
 * was last freed, because nothing orders the old work before another stream's. So within one stream reuse needs
 * no event, and `reserved - allocated` is exactly the sum of the free segments. */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include "runtime/base/structs.h"
#include "runtime/base/util.h"
#include "runtime/driver/driver.h"

enum {
  GRAIN = 256,          /* alignment that the kernels' 16-byte and bulk copies want, and flp.h promises */
  BLOCK_GRAIN = 2 << 20 /* the driver maps device memory in pages of 2 MiB, so less would waste memory */
};

typedef struct segment {
  struct segment *next, *previous; /* in the same block, by address */
  uint64_t address, bytes;
  CUstream stream; /* free: whose later work may have it */
  int taken;
} segment;

typedef struct block {
  struct block *next;
  segment *first;
  uint64_t bytes;
  int ordered; /* came from cuMemAllocAsync, so it goes back in stream order */
} block;

struct flp_arena {
  pthread_mutex_t lock;     /* of a device arena; those of the host share FLP_LOCK_HOST_ARENAS, for which forks wait */
  unsigned process;         /* of the creator: a device arena cannot be used in a forked child */
  const flp_driver *driver; /* NULL on the host */
  flp_device device;
  CUcontext context;
  block *blocks;
  flp_arena_stats stats;
};

static void lock(flp_arena *arena) {
  if (arena->driver)
    pthread_mutex_lock(&arena->lock);
  else
    flp_lock(FLP_LOCK_HOST_ARENAS);
}

static void unlock(flp_arena *arena) {
  if (arena->driver)
    pthread_mutex_unlock(&arena->lock);
  else
    flp_unlock(FLP_LOCK_HOST_ARENAS);
}

static int is_parents(const flp_arena *arena) {
  return arena->driver && arena->process != flp_process();
}

/* error: UNAVAILABLE */
static flp_status check_process(const flp_arena *arena) {
  return is_parents(arena) ? flp_process_check("arena", arena->process) : FLP_OK;
}

static void raise_to(uint64_t *peak, uint64_t value) {
  if (value > *peak) *peak = value;
}

/* ---- memory from below; the caller has made the context current ---- */

static flp_status host_memory(uint64_t bytes, uint64_t *address) {
  void *memory = aligned_alloc(GRAIN, bytes);
  if (!memory) return flp_fail(FLP_ERROR_MEMORY, "arena: no host memory for a block of %" PRIu64 " bytes", bytes);
  *address = (uint64_t)(uintptr_t)memory;
  return FLP_OK;
}

static flp_status device_memory(const flp_driver *driver, uint64_t bytes, CUstream stream, block *b,
                                uint64_t *address) {
  enum { NOT_SUPPORTED = 801 }; /* a device without memory pools, e.g. some vGPUs */
  CUresult result = driver->cuMemAllocAsync(address, bytes, stream);
  b->ordered = result == 0;
  if (result == NOT_SUPPORTED)
    return flp_driver_status(driver, driver->cuMemAlloc_v2(address, bytes), "cuMemAlloc (arena)");
  return flp_driver_status(driver, result, "cuMemAllocAsync (arena)");
}

static flp_status return_memory(flp_arena *arena, const block *b, CUstream stream) {
  const flp_driver *driver = arena->driver;
  if (!driver) {
    free((void *)(uintptr_t)b->first->address);
    return FLP_OK;
  }
  if (b->ordered)
    return flp_driver_status(driver, driver->cuMemFreeAsync(b->first->address, stream), "cuMemFreeAsync (arena)");
  return flp_driver_status(driver, driver->cuMemFree_v2(b->first->address), "cuMemFree (arena)");
}

static flp_status enter(flp_arena *arena) {
  if (!arena->driver) return FLP_OK;
  return flp_driver_status(arena->driver, arena->driver->cuCtxPushCurrent_v2(arena->context), "cuCtxPushCurrent");
}

static void leave(flp_arena *arena) {
  CUcontext popped;
  if (arena->driver) (void)arena->driver->cuCtxPopCurrent_v2(&popped);
}

/* ---- segments ---- */

/* Splits a segment so that it has bytes; the rest becomes a free segment behind it. */
static flp_status split(segment *s, uint64_t bytes) {
  if (s->bytes == bytes) return FLP_OK;
  segment *rest = calloc(1, sizeof *rest);
  if (!rest) return flp_fail(FLP_ERROR_MEMORY, "arena: no host memory for a segment");
  *rest = (segment){s->next, s, s->address + bytes, s->bytes - bytes, s->stream, 0};
  if (s->next) s->next->previous = rest;
  s->next = rest;
  s->bytes = bytes;
  return FLP_OK;
}

/* Joins s with the segment behind it, if both are free for the same stream. */
static void join_next(segment *s) {
  segment *next = s->next;
  if (!next || s->taken || next->taken || s->stream != next->stream) return;
  s->bytes += next->bytes;
  s->next = next->next;
  if (s->next) s->next->previous = s;
  free(next);
}

/* The smallest free segment of the stream that holds bytes; NULL if there is none. */
static segment *best_fit(const flp_arena *arena, uint64_t bytes, CUstream stream) {
  segment *best = NULL;
  for (const block *b = arena->blocks; b; b = b->next)
    for (segment *s = b->first; s; s = s->next)
      if (!s->taken && s->stream == stream && s->bytes >= bytes && (!best || s->bytes < best->bytes)) best = s;
  return best;
}

static segment *find_taken(const flp_arena *arena, uint64_t address) {
  for (const block *b = arena->blocks; b; b = b->next)
    for (segment *s = b->first; s; s = s->next)
      if (s->taken && s->address == address) return s;
  return NULL;
}

/* ---- blocks ---- */

static void free_block(block *b) {
  for (segment *s = b->first, *next; s; s = next) {
    next = s->next;
    free(s);
  }
  free(b);
}

/* Gives *link's block back to the driver and unlinks it. */
static flp_status drop_block(flp_arena *arena, block **link, CUstream stream) {
  block *b = *link;
  FLP_TRY(return_memory(arena, b, stream));
  *link = b->next;
  arena->stats.reserved_bytes -= b->bytes;
  free_block(b);
  return FLP_OK;
}

/* Frees blocks that are wholly free on this stream and too small for the next allocation,
 * so that the arena stays one growing block. */
static flp_status drop_outgrown(flp_arena *arena, CUstream stream) {
  for (block **link = &arena->blocks; *link;) {
    const segment *s = (*link)->first;
    if (!s->next && !s->taken && s->stream == stream)
      FLP_TRY(drop_block(arena, link, stream));
    else
      link = &(*link)->next;
  }
  return FLP_OK;
}

/* Adds a block with one free segment of at least bytes. */
static flp_status grow(flp_arena *arena, uint64_t bytes, CUstream stream) {
  FLP_TRY(drop_outgrown(arena, stream));
  uint64_t size = flp_round_up_u64(bytes, BLOCK_GRAIN), address = 0;
  block *b = calloc(1, sizeof *b);
  segment *s = calloc(1, sizeof *s);
  flp_status status = b && s ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "arena: no host memory for a block");
  if (status == FLP_OK)
    status = arena->driver ? device_memory(arena->driver, size, stream, b, &address) : host_memory(size, &address);
  if (status != FLP_OK) {
    free(s);
    free(b);
    return status;
  }
  *s = (segment){NULL, NULL, address, size, stream, 0};
  b->first = s;
  b->bytes = size;
  b->next = arena->blocks;
  arena->blocks = b;
  flp_arena_stats *stats = &arena->stats;
  /* Memory that is reserved and free but does not fit this request is the fragmentation at this allocation. */
  stats->fragmentation_bytes = stats->reserved_bytes - stats->allocated_bytes;
  stats->reserved_bytes += size;
  stats->driver_allocations++;
  raise_to(&stats->peak_fragmentation_bytes, stats->fragmentation_bytes);
  raise_to(&stats->peak_reserved_bytes, stats->reserved_bytes);
  return FLP_OK;
}

/* ---- the public functions ---- */

static flp_status open_device(flp_arena *arena, int ordinal) {
  FLP_TRY(flp_driver_get(&arena->driver));
  FLP_TRY(flp_device_get(arena->driver, ordinal, &arena->device));
  return flp_driver_status(arena->driver,
                           arena->driver->cuDevicePrimaryCtxRetain(&arena->context, arena->device.handle),
                           "cuDevicePrimaryCtxRetain");
}

flp_status flp_arena_create(int device, flp_arena **out) {
  flp_detail_clear();
  if (!out) return flp_fail(FLP_ERROR_ARGUMENT, "out is NULL (accepted: where to store the arena)");
  *out = NULL;
  flp_arena *arena = calloc(1, sizeof *arena);
  if (!arena) return flp_fail(FLP_ERROR_MEMORY, "no memory for an arena");
  arena->process = flp_process();
  flp_status status = device == FLP_DEVICE_HOST ? FLP_OK : open_device(arena, device);
  if (status != FLP_OK) {
    free(arena);
    return status;
  }
  pthread_mutex_init(&arena->lock, NULL);
  *out = arena;
  return FLP_OK;
}

/* In a forked child: frees host memory, unless a thread of the parent was using it. */
static void forget(flp_arena *arena) {
  if (pthread_mutex_trylock(&arena->lock) != 0) return;
  for (block *b = arena->blocks, *next; b; b = next) {
    next = b->next;
    free_block(b);
  }
  pthread_mutex_unlock(&arena->lock);
  pthread_mutex_destroy(&arena->lock);
  free(arena);
}

void flp_arena_destroy(flp_arena *arena) {
  if (!arena) return;
  if (is_parents(arena)) {
    forget(arena);
    return;
  }
  int inside = enter(arena) == FLP_OK;
  for (block *b = arena->blocks, *next; b; b = next) {
    next = b->next;
    /* Frees without stream order: no stream is given here and the callers' may be gone. As before flp_plan_destroy,
     * the caller has synchronised; cuMemFree does not wait for memory that came from cuMemAllocAsync. */
    b->ordered = 0;
    (void)return_memory(arena, b, NULL);
    free_block(b);
  }
  if (inside) leave(arena);
  if (arena->driver) (void)arena->driver->cuDevicePrimaryCtxRelease_v2(arena->device.handle);
  pthread_mutex_destroy(&arena->lock);
  free(arena);
}

/* The caller holds the lock, the context is current. */
static flp_status take(flp_arena *arena, uint64_t bytes, CUstream stream, void **out) {
  segment *s = best_fit(arena, bytes, stream);
  if (!s) {
    FLP_TRY(grow(arena, bytes, stream));
    s = best_fit(arena, bytes, stream);
  }
  FLP_TRY(split(s, bytes));
  s->taken = 1;
  arena->stats.allocated_bytes += bytes;
  raise_to(&arena->stats.peak_allocated_bytes, arena->stats.allocated_bytes);
  *out = (void *)(uintptr_t)s->address;
  return FLP_OK;
}

/* The host eager rung runs to completion, so there every stream is the same one. */
static CUstream stream_of(const flp_arena *arena, void *stream) {
  return arena->driver ? (CUstream)stream : NULL;
}

flp_status flp_arena_take(flp_arena *arena, size_t bytes, void *stream, void **out) {
  flp_detail_clear();
  if (!arena || !out) return flp_fail(FLP_ERROR_ARGUMENT, "%s is NULL", arena ? "out" : "arena");
  *out = NULL;
  FLP_TRY(check_process(arena));
  if (bytes == 0) return FLP_OK; /* a plan without workspace needs no memory */
  if (bytes > (size_t)INT64_MAX - BLOCK_GRAIN)
    return flp_fail(FLP_ERROR_ARGUMENT, "bytes is %zu (accepted: 0 to 2^63 - 2 MiB - 1)", bytes);
  lock(arena);
  flp_status status = enter(arena);
  if (status == FLP_OK) {
    status = take(arena, flp_round_up_u64(bytes, GRAIN), stream_of(arena, stream), out);
    leave(arena);
  }
  unlock(arena);
  return status;
}

flp_status flp_arena_give_back(flp_arena *arena, void *memory, void *stream) {
  flp_detail_clear();
  if (!arena) return flp_fail(FLP_ERROR_ARGUMENT, "arena is NULL");
  if (!memory) return FLP_OK;
  FLP_TRY(check_process(arena));
  flp_status status = FLP_OK;
  lock(arena);
  segment *s = find_taken(arena, (uint64_t)(uintptr_t)memory);
  if (s) {
    s->taken = 0;
    s->stream = stream_of(arena, stream);
    arena->stats.allocated_bytes -= s->bytes;
    join_next(s);
    if (s->previous) join_next(s->previous);
  } else {
    status =
        flp_fail(FLP_ERROR_ARGUMENT, "memory is %p (accepted: what flp_arena_take gave and nobody gave back)", memory);
  }
  unlock(arena);
  return status;
}

/* The caller holds the lock. */
static flp_status end_phase(flp_arena *arena, CUstream stream) {
  if (arena->stats.allocated_bytes)
    return flp_fail(FLP_ERROR_ARGUMENT, "arena: %" PRIu64 " bytes are still taken (accepted: 0 at the end of a phase)",
                    arena->stats.allocated_bytes);
  FLP_TRY(enter(arena));
  flp_status status = FLP_OK;
  while (arena->blocks && status == FLP_OK) status = drop_block(arena, &arena->blocks, stream);
  leave(arena);
  if (status == FLP_OK) {
    arena->stats.fragmentation_bytes = 0;
    arena->stats.phases++;
  }
  return status;
}

flp_status flp_arena_end_phase(flp_arena *arena, void *stream) {
  flp_detail_clear();
  if (!arena) return flp_fail(FLP_ERROR_ARGUMENT, "arena is NULL");
  FLP_TRY(check_process(arena));
  lock(arena);
  flp_status status = end_phase(arena, stream_of(arena, stream));
  unlock(arena);
  return status;
}

flp_status flp_arena_get_stats(const flp_arena *arena, flp_arena_stats *stats) {
  flp_detail_clear();
  if (!arena || !stats) return flp_fail(FLP_ERROR_ARGUMENT, "%s is NULL", arena ? "stats" : "arena");
  FLP_TRY(flp_struct_check(FLP_STRUCT_ARENA_STATS, stats));
  FLP_TRY(check_process(arena));
  flp_arena *locked = (flp_arena *)(uintptr_t)arena; /* reading the statistics changes nothing else */
  lock(locked);
  flp_struct_write(FLP_STRUCT_ARENA_STATS, &arena->stats, stats);
  unlock(locked);
  return FLP_OK;
}

void flp_arena_reset_peaks(flp_arena *arena) {
  if (!arena || is_parents(arena)) return;
  lock(arena);
  flp_arena_stats *stats = &arena->stats;
  stats->peak_reserved_bytes = stats->reserved_bytes;
  stats->peak_allocated_bytes = stats->allocated_bytes;
  stats->peak_fragmentation_bytes = stats->fragmentation_bytes;
  unlock(arena);
}

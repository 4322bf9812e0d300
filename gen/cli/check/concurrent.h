/* concurrent.h: the parts of `flpgen check --concurrent`: waiting with a timeout, streams that execute one
 * problem side by side, and other work that holds multiprocessors meanwhile.
 *
 * Invariant: nothing here waits for the device without a limit, except for copies from streams that were seen to be
 * done. After a limit has passed watch.hung is set and nothing may be cleaned up: freeing memory or destroying streams
 * would wait for ever. */
#ifndef FLPGEN_CLI_CHECK_CONCURRENT_H
#define FLPGEN_CLI_CHECK_CONCURRENT_H

#include "autotune/gemm/gemm.h"
#include "gen/cli/check/report.h"
#include "gen/cli/check/run.h"

/* ---- streams.c: waiting with a limit ---- */

typedef struct check_timeout {
  const flp_driver *driver;
  double limit_s;
  int hung; /* a limit has passed */
} check_timeout;

/* 1 if the driver has every function that timeouts and capturing need. */
int check_timeout_is_offered(const flp_driver *driver);

/* Whether a stream still has work. error: DRIVER, e.g. if its work faulted */
flp_status check_timeout_busy(const check_timeout *timeout, CUstream stream, int *busy);

/* Waits until all streams are done. what: the work, for the message
 * error: DRIVER if one is not within the limit, watch->hung is 1 then; as check_timeout_busy */
flp_status check_timeout_wait(check_timeout *timeout, const CUstream *streams, int count, const char *what);

/* ---- streams.c: one problem on one plan, executed on several streams ---- */

enum { CHECK_STREAMS = 3, STREAM_OUTPUTS = 13 };

typedef struct check_stream {
  CUgraphExec graph;    /* of what check_streams_submit would enqueue; NULL: not captured */
  call_buffers buffers; /* on a stream of its own; operands are shared */
} check_stream;

typedef struct check_streams {
  const check_problem *problem; /* without shards; borrowed, as are the next two */
  cli_device *device;
  check_timeout *timeout;
  flp_plan *plan;
  call_problem call;
  call_buffers operands;
  size_t workspace_bytes[FLP_PASS_STEP + 1]; /* by pass */
  check_stream stream[CHECK_STREAMS];
} check_streams;

/* Makes the plan, the operands and every stream. *out is to be cleared, also on failure.
 * error: UNAVAILABLE if the rung, or what forward keeps on it, is not offered here; any of flp_plan_create; DRIVER */
flp_status check_streams_create(const check_problem *problem, const check_how *how, cli_device *device,
                                check_timeout *timeout, check_streams *out);
void check_streams_clear(check_streams *all);

/* An output of a stream; empty if it is not asked for. */
extern const flp_array_id check_stream_outputs[STREAM_OUTPUTS];
const cli_buffer *check_stream_output(const check_streams *all, int i, int output);
/* Sets every byte that streams 0 to count-1 write, workspaces too, and waits. error: DRIVER */
flp_status check_streams_poison(check_streams *all, int count, int value);
/* Enqueues the passes of a stream: its graph if there is one, else flp_execute or flp_step. error: DRIVER; as these */
flp_status check_streams_submit(check_streams *all, int i);
/* Waits for streams 0 to count-1. error: as check_timeout_wait */
flp_status check_streams_wait(check_streams *all, int count);
/* Captures the passes of a stream as a graph; then forgets it. error: DRIVER, as flp_execute */
flp_status check_streams_capture(check_streams *all, int i);
void check_streams_forget(check_streams *all, int i);

/* ---- load.c: other work ---- */

/* Depth: twice 64 calls of four launches stay below the driver's queue of about a thousand a stream. Beyond it a launch
 * waits for the device, without a limit. */
enum { LOAD_PIECES = 2, LOAD_DEPTH_LEAST = 8, LOAD_DEPTH_MOST = 64 };

/* A forward pass over constant data on a stream of its own. */
typedef struct load_piece {
  flp_plan *plan;
  call_problem call;
  call_buffers buffers;
  void *reference; /* logprob undisturbed */
} load_piece;

typedef struct check_load {
  cli_device *device; /* borrowed, as is the next */
  check_timeout *timeout;
  load_piece piece[LOAD_PIECES];
  cublaslt library; /* zeroed where there is none */
  gemm product;
  CUstream product_stream;
  cli_buffer operand[4]; /* of the product: a, b, c, workspace */
  int depth;             /* calls of each piece that check_load_enqueue makes */
} check_load;

/* Makes the pieces, and a GEMM baseline where cuBLASLt is at hand, and runs each once. *out is to be cleared, also on
 * failure. error: as check_streams_create */
flp_status check_load_create(const check_how *how, cli_device *device, check_timeout *timeout, check_load *out);
void check_load_clear(check_load *load);
/* As check_bits_cases. */
void check_load_cases(check_list *list);
/* Enqueues depth calls of every piece in turn. */
flp_status check_load_enqueue(check_load *load);
/* 1 if any of it still runs. */
flp_status check_load_busy(const check_load *load, int *busy);
flp_status check_load_wait(check_load *load);
/* Compares what the pieces gave with what they gave undisturbed. error: DRIVER, MEMORY */
flp_status check_load_compare(check_load *load, check_metric *out);

/* ---- concurrent.c ---- */

/* One case in every situation. load: borrowed; its depth grows until its work outlasts the streams'
 * error: as check_streams_create; DRIVER with load->watch->hung set after a deadlock */
flp_status check_concurrent_case(const check_case *c, const check_how *how, check_load *load, check_report *report);

#endif

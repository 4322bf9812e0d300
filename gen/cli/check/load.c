/* load.c: other work for the device: a forward pass that holds a few multiprocessors, one that wants them all,
 * and, where cuBLASLt is at hand, a GEMM baseline, each on a stream of its own. Its data are constant: only bits
 * matter. */
#include <stdlib.h>

#include "gen/cli/check/concurrent.h"
#include "runtime/base/status.h"

enum { NON_BLOCKING = 1, CONSTANT = 0x3c /* as bf16: 0x3c3c, about 0.011 */ };

typedef struct piece_shape {
  int64_t n, vocab, hidden;
} piece_shape;

/* Few long units, then more units than multiprocessors. */
static const piece_shape shapes[LOAD_PIECES] = {{256, 3072, 4096}, {2048, 16384, 1024}};
static const piece_shape product_shape = {2048, 8192, 1024};
enum { PRODUCT_WORKSPACE = 32 << 20 };

/* ---- making ---- */

static flp_status make_filled(cli_device *device, size_t bytes, uint8_t value, cli_buffer *out) {
  FLP_TRY(cli_buffer_create(device, bytes, out));
  return cli_buffer_fill(out, value);
}

static flp_status make_stream(const check_load *load, CUstream *out) {
  const flp_driver *driver = load->device->driver;
  return flp_driver_status(driver, driver->cuStreamCreate(out, NON_BLOCKING), "cuStreamCreate");
}

static check_case case_of(const piece_shape *shape) {
  return check_case_default(FLP_DTYPE_BF16, shape->n, shape->vocab, shape->hidden);
}

void check_load_cases(check_list *list) {
  for (int i = 0; i < LOAD_PIECES; i++) check_list_add(list, case_of(&shapes[i]));
}

static flp_status make_buffers(load_piece *piece) {
  static const struct {
    flp_array_id id;
    uint8_t value;
  } arrays[] = {{FLP_ARRAY_hidden, CONSTANT},
                {FLP_ARRAY_weight, CONSTANT},
                {FLP_ARRAY_target, 0 /* the column */},
                {FLP_ARRAY_logprob, 0xff}};
  call_buffers *b = &piece->buffers;
  for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
    FLP_TRY(call_make(b, arrays[i].id, call_bytes(&piece->call, arrays[i].id)));
    FLP_TRY(cli_buffer_fill(&b->at[arrays[i].id].buffer, arrays[i].value));
  }
  flp_layout layout;
  FLP_TRY(call_layout(b, &piece->call, piece->plan, FLP_PASS_FORWARD, piece->call.n, &layout));
  return call_make(b, FLP_ARRAY_workspace, (size_t)layout.bytes);
}

static flp_status make_piece(const check_load *load, const check_how *how, const piece_shape *shape,
                             load_piece *piece) {
  flp_spec spec = case_of(shape).spec;
  flp_options options = FLP_OPTIONS_INIT;
  options.device = load->device->ordinal;
  options.rung = how->options.rung;
  piece->call = call_problem_of(&spec, shape->n);
  piece->buffers.device = load->device;
  FLP_TRY(check_precompile_plan(how->precompile, &spec, &options, &piece->plan));
  FLP_TRY(make_stream(load, &piece->buffers.stream));
  return make_buffers(piece);
}

static flp_status make_product(check_load *load) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.hidden = product_shape.hidden;
  gemm_shape shape = gemm_shape_of(GEMM_SCORES, &spec, product_shape.n, product_shape.vocab);
  const size_t bytes[] = {(size_t)(shape.m * shape.k) * 2, (size_t)(shape.n * shape.k) * 2,
                          (size_t)(shape.m * shape.n) * 2, PRODUCT_WORKSPACE};
  FLP_TRY(make_stream(load, &load->product_stream));
  for (int i = 0; i < 4; i++) FLP_TRY(make_filled(load->device, bytes[i], CONSTANT, &load->operand[i]));
  FLP_TRY(gemm_create(&load->library, &shape, PRODUCT_WORKSPACE, &load->product));
  load->product.a = load->operand[0].data;
  load->product.b = load->operand[1].data;
  load->product.c = load->operand[2].data;
  load->product.workspace = load->operand[3].data;
  load->product.workspace_bytes = PRODUCT_WORKSPACE;
  return FLP_OK;
}

/* GEMM baselines are welcome, not needed. */
static flp_status open_product(check_load *load) {
  flp_status status = cublaslt_open(&load->library);
  if (status == FLP_OK) status = make_product(load);
  if (status == FLP_OK || status == FLP_ERROR_DRIVER) return status;
  cublaslt_close(&load->library);
  load->library = (cublaslt){0};
  return FLP_OK;
}

static flp_status enqueue(const load_piece *piece) {
  flp_args args = call_args(&piece->buffers, &piece->call, FLP_PASS_FORWARD, 0);
  return call_execute(piece->plan, &args);
}

static flp_status download(load_piece *piece, void **out) {
  int overrun = 0;
  return call_buffer_take(&piece->buffers.at[FLP_ARRAY_logprob], call_bytes(&piece->call, FLP_ARRAY_logprob), out,
                          &overrun);
}

/* One call of each, alone: kernels are loaded on their first call, and that may synchronise. */
static flp_status run_once(check_load *load) {
  for (int i = 0; i < LOAD_PIECES; i++) {
    load_piece *piece = &load->piece[i];
    FLP_TRY(enqueue(piece));
    FLP_TRY(check_load_wait(load));
    FLP_TRY(download(piece, &piece->reference));
  }
  if (load->library.handle) FLP_TRY(gemm_enqueue(&load->product, load->product_stream));
  return check_load_wait(load);
}

flp_status check_load_create(const check_how *how, cli_device *device, check_timeout *timeout, check_load *out) {
  *out = (check_load){.device = device, .timeout = timeout, .depth = LOAD_DEPTH_LEAST};
  for (int i = 0; i < LOAD_PIECES; i++) FLP_TRY(make_piece(out, how, &shapes[i], &out->piece[i]));
  FLP_TRY(open_product(out));
  FLP_TRY(cli_device_synchronise(device)); /* the buffers are filled */
  return run_once(out);
}

void check_load_clear(check_load *load) {
  if (!load->device) return;
  const flp_driver *driver = load->device->driver;
  for (int i = 0; i < LOAD_PIECES; i++) {
    load_piece *piece = &load->piece[i];
    call_clear(&piece->buffers);
    if (piece->buffers.stream) driver->cuStreamDestroy_v2(piece->buffers.stream);
    flp_plan_destroy(piece->plan);
    free(piece->reference);
  }
  if (load->product.library) gemm_destroy(&load->product);
  for (int i = 0; i < 4; i++) cli_buffer_destroy(&load->operand[i]);
  if (load->product_stream) driver->cuStreamDestroy_v2(load->product_stream);
  cublaslt_close(&load->library);
  *load = (check_load){0};
}

/* ---- running ---- */

flp_status check_load_enqueue(check_load *load) {
  for (int call = 0; call < load->depth; call++) {
    for (int i = 0; i < LOAD_PIECES; i++) FLP_TRY(enqueue(&load->piece[i]));
    if (load->library.handle) FLP_TRY(gemm_enqueue(&load->product, load->product_stream));
  }
  return FLP_OK;
}

static int list_streams(const check_load *load, CUstream out[LOAD_PIECES + 1]) {
  int count = 0;
  for (int i = 0; i < LOAD_PIECES; i++)
    if (load->piece[i].buffers.stream) out[count++] = load->piece[i].buffers.stream;
  if (load->product_stream) out[count++] = load->product_stream;
  return count;
}

flp_status check_load_busy(const check_load *load, int *busy) {
  CUstream streams[LOAD_PIECES + 1];
  int count = list_streams(load, streams);
  *busy = 0;
  for (int i = 0; i < count && !*busy; i++) FLP_TRY(check_timeout_busy(load->timeout, streams[i], busy));
  return FLP_OK;
}

flp_status check_load_wait(check_load *load) {
  CUstream streams[LOAD_PIECES + 1];
  int count = list_streams(load, streams);
  return check_timeout_wait(load->timeout, streams, count, "the other work's calls");
}

flp_status check_load_compare(check_load *load, check_metric *out) {
  *out = (check_metric){.cosine = 1, .pass = 1};
  for (int i = 0; i < LOAD_PIECES; i++) {
    void *got = NULL;
    flp_status status = download(&load->piece[i], &got);
    check_metric piece = {.pass = 1};
    if (status == FLP_OK)
      piece = check_metric_bits(got, load->piece[i].reference, call_bytes(&load->piece[i].call, FLP_ARRAY_logprob));
    free(got);
    FLP_TRY(status);
    out->max_ulp += piece.max_ulp;
    out->pass &= piece.pass;
  }
  return FLP_OK;
}

/* backward.h: what the files of the backward pass share: its chunks, and where products go. */
#ifndef FLP_LAUNCH_BACKWARD_H
#define FLP_LAUNCH_BACKWARD_H

#include "runtime/launch/launch.h"

/* One dz chunk and what is made of it. first, last: among the chunks that add to the same gradient. */
typedef struct backward_chunk {
  flp_row_range rows;
  flp_column_range columns;
  uint32_t grads; /* FLP_GRAD_*: products to make */
  int first, last;
  CUdeviceptr count; /* active rows */
  CUdeviceptr dz;    /* of its first row and column */
  int64_t dz_stride;
  CUdeviceptr bias_part; /* 0: no column sums */
  int64_t gathered_from; /* active row in row 0 of the gathered rows, where there are */
  CUdeviceptr factor;    /* of active rows, which the gathered rows have been multiplied by; 0: there are none */
} backward_chunk;

static inline int64_t backward_rows(const backward_chunk *c) {
  return c->rows.end - c->rows.begin;
}

static inline int64_t backward_columns(const backward_chunk *c) {
  return c->columns.end - c->columns.begin;
}

/* What a chunk's dz is multiplied by, without tensor maps: by its rows (grad_hidden, lora_rows) or its columns. */
typedef struct backward_product {
  flp_kernel_kind kind;
  flp_entry_id entry;
  CUdeviceptr operand;
  int64_t stride;
  CUdeviceptr index; /* 0: the operand's rows are the chunk's active ones, one after the other */
  int64_t depth;     /* columns of the operand */
} backward_product;

/* Where a product goes. */
typedef struct backward_sink {
  CUdeviceptr acc;
  int64_t acc_stride;
  CUdeviceptr out;
  int64_t out_stride;
  int read_acc, write_acc, write_out;
} backward_sink;

/* The descriptor of the module that makes dz. */
static inline const flp_kernel_desc *backward_dz_desc(const flp_call *call) {
  return flp_call_desc(call, call->plan->spec.lora_rank ? FLP_KERNEL_DZ_LORA : FLP_KERNEL_DZ);
}

/* ---- targets.c ---- */

/* No saved exponentials there, where column sums are made of them. */
flp_status backward_launch_strike(const flp_call *call, const backward_chunk *chunk);
/* dz of a chunk at the rows' targets, and its column sums if it has bias_part. */
flp_status backward_launch_targets(const flp_call *call, const backward_chunk *chunk);

/* ---- mean.c ---- */

/* Adds to a chunk's dz what the mean of scores has of it, where that takes a pass. */
flp_status backward_launch_mean(const flp_call *call, const backward_chunk *chunk);

/* ---- chunk.c ---- */

flp_status backward_launch_record(const flp_call *call, flp_row_range rows);
/* The dz of a chunk, and its column sums if it has bias_part. */
flp_status backward_launch_dz(const flp_call *call, const backward_chunk *chunk);
flp_status backward_launch_product(const flp_call *call, const backward_chunk *chunk, const backward_product *product,
                                   const backward_sink *to);
flp_status backward_launch_products(const flp_call *call, const backward_chunk *chunk);
flp_status backward_launch_bias_reduce(const flp_call *call, const backward_chunk *chunk);

/* Where direction mode sums up what grad_hidden follows from: (n,D) fp32 by active row, behind references and slopes. */
CUdeviceptr backward_direction_sums(const flp_call *call);

/* Whether chunks of rows follow each other, each adding to all of the head's gradients. */
int backward_is_by_rows(const flp_call *call);

/* ---- lora.c ---- */

/* dz·B and dzᵀ·u of a chunk of a head with an adapter. */
flp_status backward_launch_lora_products(const flp_call *call, const backward_chunk *chunk);

/* ---- backward_map.c: where operands come through tensor maps and rows have been gathered ---- */

flp_status backward_launch_dz_map(const flp_call *call, const backward_chunk *chunk);

/* Both products of a chunk in one launch, or one of them. hidden, weight: where they go, NULL if not wanted */
flp_status backward_launch_products_map(const flp_call *call, const backward_chunk *chunk, const backward_sink *hidden,
                                        const backward_sink *weight);

/* dz·B and dzᵀ·u likewise. u: of the chunk's rows */
flp_status backward_launch_lora_products_map(const flp_call *call, const backward_chunk *chunk, CUdeviceptr u,
                                             const backward_sink *sum, const backward_sink *b);

#endif

/* eager.h: the multi-threaded CPU reference: every pass, option and dtype of flp.h on host pointers.
 *
 * It is the lowest rung of the ladder and the simplest form of the contract: scores of a bounded block of rows in
 * fp32 (products through OpenBLAS when it can be opened, plain C otherwise), reductions in double. Results do not
 * depend on the number of threads. */
#ifndef FLP_EAGER_H
#define FLP_EAGER_H

#include "runtime/loss/loss.h"

/* Workspace bytes of one pass, exact. unit: budget bytes; a smaller budget means smaller blocks.
 * error: BUDGET naming the smallest that would do */
flp_status flp_eager_layout(const flp_spec *spec, flp_pass pass, int64_t n, uint64_t budget_bytes, int threads,
                            flp_layout *layout);

/* The same of a forward or backward pass over lists of list_count ids in all (spec.listed): one layout for all budgets,
 * 12 bytes an id, 24 in a backward pass with gradients of weight or bias. */
flp_status flp_eager_layout_listed(const flp_spec *spec, flp_pass pass, int64_t n, int64_t list_count,
                                   uint64_t budget_bytes, int threads, flp_layout *layout);

/* Bytes of args.sums: fp32 of each element of a 16-bit gradient of the weight. */
uint64_t flp_eager_sums_bytes(const flp_spec *spec);

/* Runs one pass to completion. spec and args have been validated (validate.h); strides are filled in (never 0).
 * bad_rows: added to, the rows and row ids that the contract makes NaN or skips */
flp_status flp_eager_execute(const flp_spec *spec, const flp_args *args, int threads, uint64_t *bad_rows);

/* One training step, FLP_PASS_STEP: forward, the loss of each row, backward. As flp_eager_execute. */
flp_status flp_eager_step(const flp_spec *spec, const flp_loss *loss, const flp_args *args, int threads,
                          uint64_t *bad_rows);

/* The loss alone, of args.logprob and entropy, with its derivatives. error: as flp_loss_evaluate */
flp_status flp_eager_loss(const flp_loss *loss, const flp_args *args);

enum { FLP_EAGER_TEXT_BYTES = 640 };

/* "OpenBLAS 0.3.21 for Zen (libopenblas.so.0), 16 threads" or "plain C (<why not OpenBLAS>), 16 threads", in at most
 * FLP_EAGER_TEXT_BYTES. Borrowed. */
const char *flp_eager_describe(void);
/* What multiplies, which bits of results depend on: the first part of that. Borrowed. */
const char *flp_eager_products(void);
/* Hash of what this machine's products of a depth, exp2, log2 and tanh give for operands that are always the same. It
 * differs where bits of scores do.
 * error: MEMORY */
flp_status flp_eager_fingerprint(int64_t depth, uint8_t out[32]);

#endif

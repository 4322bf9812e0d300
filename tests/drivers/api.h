/* api.h: the parts of the random driver of the C API (api_driver.c).
 *
 * A try is a spec with options, its plan, and calls of every pass. What is valid by flp.h is compared with sums in
 * double; what is not must be refused with a status and a sentence that names the field, and write nothing.
 * Every buffer is a heap block of exactly the bytes that flp.h names, so that a sanitizer sees what goes beyond. */
#ifndef FLP_TEST_API_H
#define FLP_TEST_API_H

#include "runtime/loss/loss.h"
#include "tests/drivers/draw.h"

enum { API_SHARDS_MAX = 3, API_BLOCKS_MAX = 512 };

typedef struct api_counts {
  long tries, specs, refused_specs, plans, calls, refused_calls, queries, values;
} api_counts;
extern api_counts api_count;

/* Prints what went wrong with the last detail and how to repeat the try, and ends the process with status 1. */
_Noreturn void api_failed(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define API_EXPECT(condition, ...)             \
  do {                                         \
    if (!(condition)) api_failed(__VA_ARGS__); \
  } while (0)

/* ---- blocks.c: buffers of exact size ---- */

/* bytes at `offset` bytes behind a multiple of 256, filled with the byte. NULL for 0 bytes.
 * Freed by api_blocks_free. */
void *api_block(size_t bytes, size_t offset, int fill);
/* The same, and watched: an output, which a refused call leaves alone. */
void *api_output(size_t bytes, size_t offset);
enum { API_POISON = 0xA5 };
/* 1 if all outputs hold poison only. */
int api_outputs_untouched(void);
void api_outputs_poison(void);
/* 1 if the bytes are poison. */
int api_is_poison(const void *bytes, size_t count);
void api_blocks_free(void);

/* ---- faults.c: fields made wrong, one at a time ---- */

/* Puts a value that flp.h does not accept into one field and returns its name as details have it; NULL: nothing is to
 * be spoilt. The copy that is spoilt is the caller's. */
const char *api_spoil_spec(draw *d, flp_spec *spec);
const char *api_spoil_options(draw *d, flp_options *options);
const char *api_spoil_args(draw *d, const flp_spec *spec, flp_args *args);
const char *api_spoil_select(draw *d, const flp_spec *spec, flp_select_args *args);
/* A refused call: status, a detail with the field's name, no output written. */
void api_expect_refusal(flp_status status, const char *field, const char *call);

/* ---- case.c: operands ---- */

/* Numbers of one problem in double, as the library's dtypes hold them. */
typedef struct api_case {
  draw *d;
  flp_spec spec; /* as given */
  flp_options options;
  flp_plan *plan;
  flp_loss loss; /* of spec.loss */
  int wild;      /* numbers that no tolerance is known for */
  int shards;    /* each has spec.vocab rows of weight, the last vocab_valid real ones */
  int64_t n, depth, vocab, valid, total;
  double *hidden, *weight, *bias; /* (n, depth), (shards·vocab, depth), (shards·vocab) */
  int64_t *target;
  double *temperature; /* (n) */
  uint8_t *listed;     /* (n) is in the list of rows */
  int bad_ids;         /* of that list */
  flp_args shard_args[API_SHARDS_MAX];
} api_case;

/* Draws operands of a plan; everything in them is one of the blocks. */
void api_case_draw(api_case *c);
/* Bytes of an element. */
size_t api_bytes_of(flp_dtype dtype);
/* The flp_dtype that a gradient is stored in. */
flp_dtype api_grad_dtype(flp_dtype asked, flp_dtype operand);
double api_element(flp_dtype dtype, const void *base, int64_t index);
/* Rounded to dtype where it is stored. */
double api_store(flp_dtype dtype, void *base, int64_t index, double value);

/* ---- truth.c: the operation in double ---- */

typedef enum api_class { API_ACTIVE, API_LEFT_OUT, API_BAD } api_class;

/* g, e: upstream gradients, NULL for a forward pass and for one that is not given. */
api_class api_class_of(const api_case *c, int64_t row, const float *g, const float *e, int is_backward);
/* Bad rows and bad ids of the list: what flp_plan_check reports. */
int api_bad_count(const api_case *c, const float *g, const float *e, int is_backward);
void api_compare_rows(const api_case *c, const float *logprob, const float *entropy);
/* Gradients of Σ g·logprob + e·entropy in the args' outputs, of the columns of one shard. */
void api_compare_gradients(const api_case *c, const flp_args *args, int shard, const double *g, const double *e,
                           const api_class *class, const float *weight_base);

/* ---- passes ---- */

/* Forward, combine, backward and step of a head. */
void api_run_head(api_case *c);
/* Forward and backward of scores that exist already. */
void api_run_select(api_case *c);
/* Sizes, names, descriptions, settings, log, arena; with a plan of any op. */
void api_run_queries(draw *d, const flp_plan *plan, const flp_spec *spec);
/* A spec and options that flp.h accepts on the host. */
void api_draw_spec(draw *d, flp_spec *spec, flp_options *options);

#endif

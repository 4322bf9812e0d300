/* flp.h: fused log-probabilities of a language-model head, forward and backward.
 *
 * The operation. Hidden states h (N,D), head W (V,D), optional bias b (V), targets y (N), temperature T
 * (one number or one per row), optional softcap c, logit scale a:
 *
 *     z = a·(h Wᵀ + b);   z ← c·tanh(z/c) if softcap;   t = z / T
 *     logprob_i = t_{i,y_i} − log Σ_v exp t_{i,v}          entropy_i = −Σ_v p_{i,v} log p_{i,v}
 *
 * The (N,V) scores never exist in memory beyond one bounded chunk, forward or backward.
 *
 * Read this header from top to bottom: the first page is all that scoring needs.
 *
 *     flp_spec spec = FLP_SPEC_INIT;                      what to specialise for
 *     spec.vocab = 151936; spec.hidden = 4096; spec.dtype = FLP_DTYPE_BF16;
 *     flp_plan *plan;
 *     flp_plan_create(&spec, NULL, &plan);                picks kernels, loads them; the slow part
 *     size_t bytes;
 *     flp_plan_workspace(plan, FLP_PASS_FORWARD, n, 0, &bytes);      exact
 *     flp_args args = FLP_ARGS_INIT;                      pointers and run-time values
 *     args.n = n; args.hidden = h; args.weight = w; args.target = y; args.logprob = out;
 *     args.workspace = ws; args.workspace_bytes = bytes; args.stream = stream;
 *     flp_execute(plan, &args);                           enqueues; never allocates, never synchronises
 *     flp_plan_destroy(plan);
 *
 * Conventions. Functions return flp_status; on failure flp_error_detail() has one sentence naming the field,
 * the value and what is accepted. `**out` comes last and is set to NULL on failure. Sizes end in _bytes, strides
 * count elements. `create` and `destroy` own, `get` borrows; destroying NULL is fine. The library never prints,
 * exits or aborts.
 *
 * ABI. The soname is libflp.so.0 for every release 0.x: a program runs with the release that it was built with and
 * with every later 0.x, so find_package(flp 0.1) takes these too. Functions, numbers of enums and places of fields stay.
 * Structs open with struct_bytes and grow at their end, by fields whose INIT value is 0; always start from the *_INIT
 * value. A library takes the structs of any release: fields that an older program lacks have their INIT value, or are
 * not written. Of a newer program it takes those whose fields beyond its own are 0; else the call fails with ARGUMENT.
 * Functions have versions, FLP_0 and later: the loader refuses a program that needs a newer one than its library has.
 *
 * Fork. A child may use all of the library, whatever other threads of its parent were doing: no lock stays taken and no
 * thread is waited for that does not exist. Plans and arenas of host memory that the parent made go on working. CUDA
 * does not outlive a fork: plans and arenas of a GPU that the parent made are UNAVAILABLE in the child, where
 * destroying them frees host memory and calls no CUDA; so are new ones, if the parent had opened libcuda by then. fork
 * itself waits for threads that are opening libcuda or libflpgen, never for the log callback. Threads of the library
 * block all signals but faults. */
#ifndef FLP_H
#define FLP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FLP_VERSION_MAJOR 0
#define FLP_VERSION_MINOR 1
#define FLP_VERSION_PATCH 0
#define FLP_VERSION_STRING "0.1.0"

/* For the *_INIT values below, which name the fields that are not 0, in C and in C++11 or later; decltype of one needs
 * C++20. */
#ifdef __cplusplus
#define FLP_SET_(field) flp_init_.field
#define FLP_INIT_(type, ...) \
  []() -> type {             \
    type flp_init_ = {};     \
    __VA_ARGS__;             \
    return flp_init_;        \
  }()
#else
#define FLP_SET_(field) .field
#define FLP_INIT_(type, ...) \
  { __VA_ARGS__ }
#endif

#if defined(__GNUC__)
#define FLP_API __attribute__((visibility("default")))
#else
#define FLP_API
#endif

/* ---- status ---------------------------------------------------------------------------------------------------- */

/* Numbers are pinned: append only. */
typedef enum flp_status {
  FLP_OK = 0,
  FLP_ERROR_ARGUMENT = 1,    /* a field has a value that is not accepted; the detail names both */
  FLP_ERROR_UNSUPPORTED = 2, /* well formed, but no rung of this build computes it */
  FLP_ERROR_MEMORY = 3,      /* host memory ran out */
  FLP_ERROR_WORKSPACE = 4,   /* args.workspace_bytes is less than the smallest layout needs */
  FLP_ERROR_BUDGET = 5,      /* no layout fits the budget; the detail names the smallest that would do */
  FLP_ERROR_UNAVAILABLE = 6, /* no usable GPU, driver or kernel, and host fallback was not asked for */
  FLP_ERROR_DRIVER = 7,      /* a CUDA call failed; the detail names it, the kernel and the spec */
  FLP_ERROR_IO = 8,          /* a file could not be read or written */
  FLP_ERROR_CORRUPT = 9,     /* a file is not what it claims to be */
  FLP_ERROR_COMPILE = 10,    /* a template or the code generator failed */
  FLP_ERROR_DATA = 11,       /* the device met bad values: target ids, row ids, temperatures or scores */
  FLP_ERROR_INTERNAL = 12    /* a bug in flp */
} flp_status;

/* Name of a status, e.g. "FLP_ERROR_BUDGET"; never NULL. thread: any */
FLP_API const char *flp_status_name(flp_status status);

/* One sentence on the last failure of this thread; "" if there was none. Valid until the thread's next call. */
FLP_API const char *flp_error_detail(void);

/* Version of the library that is loaded, e.g. "0.1.0". */
FLP_API const char *flp_version(void);

/* 64 hexadecimal digits: SHA-256 over the templates and the generator that this library was built beside. Records of
 * measurements carry it. */
FLP_API const char *flp_sources_id(void);

/* ---- what to compute: flp_spec --------------------------------------------------------------------------------- */

typedef enum flp_dtype {
  FLP_DTYPE_BF16 = 1,
  FLP_DTYPE_FP16 = 2,
  FLP_DTYPE_FP32 = 3,
  FLP_DTYPE_INT32 = 4,
  FLP_DTYPE_INT64 = 5,
  FLP_DTYPE_FP64 = 6 /* of scores that exist already (FLP_OP_SELECT), of nothing else */
} flp_dtype;

typedef enum flp_entropy {
  FLP_ENTROPY_NONE = 0,
  FLP_ENTROPY_FORWARD = 1, /* value only */
  FLP_ENTROPY_BACKWARD = 2 /* value, and its gradient in the backward pass */
} flp_entropy;

/* How an fp32 operand meets one of 16 bits, in products of these 16 bits that are summed in fp32. Neither makes a copy of
 * the weight: at most a slice of it, within the workspace. */
typedef enum flp_mixed {
  FLP_MIXED_NONE = 0,
  FLP_MIXED_ROUND = 1, /* rounded to nearest even: the bits that the rounded operand gives. One product, errors of 2^-9
                          (bf16) or 2^-12 (fp16) of each element, infinite beyond fp16's largest */
  FLP_MIXED_SPLIT = 2  /* two terms, the rounded operand and its rounded rest: two products, errors of 2^-17 (bf16) or 2^-22
                          (fp16, or 2^-25 in absolute terms) of each element */
} flp_mixed;

typedef enum flp_op {
  FLP_OP_HEAD = 0,    /* from hidden states and head: flp_execute */
  FLP_OP_SELECT = 1,  /* from scores that exist already: flp_select */
  FLP_OP_SCALE = 2,   /* gradients that exist already, times a factor: flp_scale */
  FLP_OP_DIVERGE = 3, /* how far two rows of scores that exist already are apart: flp_diverge */
  FLP_OP_LOSS = 4     /* from log-probabilities that exist already: flp_step */
} flp_op;

enum { FLP_TARGETS_MAX = 512, FLP_TOPK_MAX = 128, FLP_LORA_RANK_MAX = 512 };

/* Bits of flp_spec.grads. */
enum { FLP_GRAD_HIDDEN = 1, FLP_GRAD_WEIGHT = 2, FLP_GRAD_BIAS = 4, FLP_GRAD_LORA_A = 8, FLP_GRAD_LORA_B = 16 };

/* The specialisation. Everything here may be folded into a kernel; values of one call are in flp_args. */
typedef struct flp_spec {
  uint32_t struct_bytes;
  flp_dtype dtype;        /* of hidden, weight, bias and, unless stated otherwise, their gradients; of mixed operands the
                             one of 16 bits, which products take */
  int64_t vocab;          /* V, rows of the weight of this process (a shard counts its own rows), >= 2 */
  int64_t hidden;         /* D, columns of hidden and weight; a multiple of 8, >= 8 */
  flp_dtype target_dtype; /* INT32 or INT64 */
  flp_entropy entropy;
  uint32_t grads;                 /* needs-grad mask: FLP_GRAD_*; 0 scores only */
  int32_t has_bias;               /* 0 or 1 */
  float softcap;                  /* c > 0, a normal number, or 0 for none */
  int32_t per_row_temperature;    /* 0: flp_args.temperature; 1: flp_args.temperature_rows */
  flp_dtype grad_hidden_dtype;    /* 0 means hidden_dtype; else dtype or FP32 */
  flp_dtype grad_weight_dtype;    /* 0 means weight_dtype; else dtype or FP32 */
  int32_t accumulate_grad_weight; /* 1: grad_weight (must be FP32) is added to, as Megatron's main_grad is */
  uint32_t alignment; /* bytes that every operand's base and row stride are a multiple of: 16 (default), or a power
                         of two down to the element size; below 16 kernels without 16-byte copies are used */
  flp_op op;          /* SELECT: dtype is that of the scores, FP64 too; hidden, grads, has_bias, softcap,
                         per_row_temperature, accumulate_grad_weight and the gradients' dtypes stay 0 */
  int32_t keep;       /* 1: a forward pass may keep something for the backward pass (FLP_MODE_SAVE, FLP_MODE_DIRECTION,
                         flp_args.saved); needs grads and dtype BF16 */
  const void *loss;   /* of flp_step: a program (flp_loss_builtin_bytes, flpgen loss show --bytes), which is copied */
  size_t loss_bytes;
  flp_dtype grad_bias_dtype; /* 0 means bias_dtype; else dtype or FP32 */
  int32_t listed;            /* 1: of each row only the columns count that flp_args.list_ids names, as a sampler's kept
                                set does (FLP_MODE_LISTED) */
  float tail; /* 0: exact gradients. 2^-20 to 2^-2: what backward and step may leave out (FLP_MODE_TAIL): of all elements
                 of the scores' gradient dz, Σ|dz left out| <= tail·Σ|dz|, always, and the same of √Σ over rows of
                 (Σ|dz| of the row)²; needs grads */
  int32_t targets; /* K, ids that each row is asked for: 0, which is 1, to FLP_TARGETS_MAX. Above 1, args.target, logprob
                      and grad_logprob are (N,K) */
  int32_t topk;    /* forward and steps give the best columns of each row, so many: 0 to FLP_TOPK_MAX, at most the whole
                      vocabulary */
  int32_t rank;    /* 1: forward gives the rank of the target */
  flp_dtype hidden_dtype; /* 0 means dtype; else dtype, or FP32 with mixed */
  flp_dtype weight_dtype; /* 0 means dtype; else dtype, or FP32 with mixed: of hidden and weight one */
  flp_dtype bias_dtype;   /* 0 means weight_dtype, with SPLIT dtype; else dtype, or FP32 with mixed ROUND */
  flp_mixed mixed;        /* how FP32 operands are multiplied where dtype is BF16 or FP16; keep keeps nothing then where the
                             weight is FP32 or mixed is SPLIT */
  int32_t lora_rank; /* r of a low-rank adapter on the head (flp_args.lora_a): 0 for none, or a multiple of 8 up to
                        FLP_LORA_RANK_MAX. The weight is frozen then: no FLP_GRAD_WEIGHT */
  flp_dtype grad_lora_dtype; /* of the gradients of A and B: 0 means dtype; else dtype or FP32 */
  int32_t statistics;        /* 1: forward gives what a row's scores are as a whole */
  int32_t raw_scores;        /* 1: forward gives the raw scores of every column */
} flp_spec;

#define FLP_SPEC_INIT                                                                              \
  FLP_INIT_(flp_spec, FLP_SET_(struct_bytes) = sizeof(flp_spec), FLP_SET_(dtype) = FLP_DTYPE_BF16, \
            FLP_SET_(target_dtype) = FLP_DTYPE_INT64, FLP_SET_(alignment) = 16)

/* ---- how to run it: flp_options -------------------------------------------------------------------------------- */

/* The fallback ladder, best first. */
typedef enum flp_rung {
  FLP_RUNG_AUTO = 0,
  FLP_RUNG_TUNED = 1,     /* cache entry tuned for this exact device */
  FLP_RUNG_HEURISTIC = 2, /* cache entry for the architecture */
  FLP_RUNG_JIT = 3,       /* generated now, through libflpgen */
  FLP_RUNG_GENERIC = 4,   /* shape-generic PTX that ships with the library */
  FLP_RUNG_EAGER = 5      /* multi-threaded CPU reference on host pointers */
} flp_rung;

enum { FLP_DEVICE_HOST = -1 };

/* How the matrix products are ordered. Commands and records name a mode "score", "recompute-vocab", "recompute-rows",
 * "recompute-split", "save", "stream", "direction", "listed" or "tail". They accept the aliases F, R_VOCAB, R_ROWS, R2,
 * S, P, D, L and T too, in the same order. */
typedef enum flp_mode {
  FLP_MODE_SCORE = 1,           /* scoring: one product */
  FLP_MODE_RECOMPUTE_VOCAB = 2, /* recompute by vocab chunks: 1 + 3 products */
  FLP_MODE_RECOMPUTE_ROWS = 3,  /* recompute by row chunks: 1 + 3, frozen head 1 + 2 */
  FLP_MODE_RECOMPUTE_SPLIT = 4, /* dh by row chunks, dW by vocab chunks: 1 + 4, no accumulator */
  FLP_MODE_SAVE = 5,   /* saved exponentials: 1 + 2, frozen head 1 + 1; 2·N·V bytes from forward to backward */
  FLP_MODE_STREAM = 6, /* streamed: forward, loss and both products of a chunk of rows at a time: 3, frozen head 2 */
  FLP_MODE_DIRECTION = 7, /* frozen head, any upstream gradient: 2, as forward makes the direction of dh of each row, a
                             sum of the weight's rows; 4·N·D bytes from forward to backward */
  FLP_MODE_LISTED = 8, /* listed columns (spec.listed): no product, each row reads the weight's rows that it lists */
  FLP_MODE_TAIL = 9, /* tail-bounded (spec.tail): 1, and little more where rows are sharp: forward lists the columns of
                        each row that carry its mass, backward reads those; rows whose tail counts are recomputed */
  FLP_MODE_GIVEN = 10  /* backward of a given gradient of raw scores: a product for each gradient */
} flp_mode;

typedef struct flp_options {
  uint32_t struct_bytes;
  int32_t device;         /* CUDA ordinal, default 0; FLP_DEVICE_HOST: pointers are host memory, eager rung */
  flp_rung rung;          /* pin a rung; AUTO also honours the environment variable FLP_FORCE */
  int32_t strict;         /* 1: a lower rung and device-side bad data are errors (a cache miss that JIT makes
                             good is none); flp_execute synchronises, so no graph capture; also FLP_STRICT=1 */
  int32_t host_fallback;  /* 1: with no usable GPU, plan for host pointers instead of failing UNAVAILABLE */
  uint64_t budget_bytes;  /* 0: FLP_BUDGET, or else 256 MiB forward; backward and step 1/20 of the GPU's memory, in
                             steps of 64 MiB and at least 256, on the host 1 GiB */
  int64_t chunk_rows;     /* rows of one backward chunk, overriding the budget (RECOMPUTE_ROWS, STREAM, DIRECTION); 0: the
                             planner chooses */
  int64_t chunk_vocab;    /* 0: the planner chooses; else vocab columns of one backward chunk (RECOMPUTE_VOCAB,
                             DIRECTION); with both set and no mode, the cheapest mode that recomputes in chunks of these
                             sizes */
  int32_t threads;        /* eager rung: CPU threads, 0 = all */
  flp_mode mode;          /* 0: the planner chooses; else RECOMPUTE_VOCAB, RECOMPUTE_ROWS or RECOMPUTE_SPLIT for the
                             backward pass of a GPU plan (SPLIT where both hidden and weight need gradients), SAVE or
                             DIRECTION (a frozen head's) for what its forward pass keeps, STREAM for its step, or TAIL
                             of spec.tail, which is what the planner chooses there */
  const char *tune;       /* tile configurations, of the newest architecture that has the kernels which it names, e.g.
                             "forward:cooperative,256x192,stages=4;dz:raster=8": the plan's kernels have these, or the
                             plan fails; one that host_fallback makes for the host has none. "": defaults of the
                             templates; NULL: these too where a rung is pinned, else those of the nearest shape tuned on
                             this device, if any was */
  const char *cache_dir;  /* of this plan, in place of FLP_CACHE_DIR; "": none is written; NULL: that setting */
  const char *cache_path; /* of this plan, in place of FLP_CACHE_PATH; "": none; NULL: that setting */
  const char *arch;       /* kernels of this architecture alone, e.g. "sm_80" on any newer GPU; NULL: the GPU's own, or
                             else sm_80's */
} flp_options;

#define FLP_OPTIONS_INIT FLP_INIT_(flp_options, FLP_SET_(struct_bytes) = sizeof(flp_options))

/* ---- plans ----------------------------------------------------------------------------------------------------- */

typedef struct flp_plan flp_plan;

/* Chooses and loads every kernel that the spec needs, in the device's primary context.
 * options: NULL for the defaults
 * error:   ARGUMENT names a bad field, of tune also what a template, a GPU or a pinned rung refuses; UNAVAILABLE if
 *          no rung can run, with tune none above generic; COMPILE, DRIVER with their cause in strict mode or with tune
 * thread:  safe; may compile (seconds) when the cache is cold */
FLP_API flp_status flp_plan_create(const flp_spec *spec, const flp_options *options, flp_plan **out);

/* Unloads the kernels. The caller has synchronised with the plan's work. NULL is fine. */
FLP_API void flp_plan_destroy(flp_plan *plan);

/* What runs, and why the rungs above it do not: one paragraph of text, truncated to capacity; 4096 bytes hold any.
 * error: ARGUMENT if buffer is NULL or capacity 0 */
FLP_API flp_status flp_plan_describe(const flp_plan *plan, char *buffer, size_t capacity);

/* The rung that runs. */
FLP_API flp_rung flp_plan_get_rung(const flp_plan *plan);

/* Why this rung was not taken; "" for the one that runs and those below it. Of FLP_RUNG_AUTO: why kernels of the GPU's
 * own architecture are off until `flpgen prove` has passed; "" if none are. Borrowed from the plan. */
FLP_API const char *flp_plan_get_reason(const flp_plan *plan, flp_rung rung);

/* Name of a rung: "tuned", "heuristic", "jit", "generic", "eager". */
FLP_API const char *flp_rung_name(flp_rung rung);

/* Name of a mode: "score", "recompute-vocab", "recompute-rows", "recompute-split", "save", "stream", "direction",
 * "listed", "tail", "given"; "-" for 0. thread: any */
FLP_API const char *flp_mode_name(flp_mode mode);

/* 16 hexadecimal digits that are equal on two ranks if and only if they run the same kernels. */
FLP_API flp_status flp_plan_get_id(const flp_plan *plan, char out[17]);

typedef enum flp_pass {
  FLP_PASS_FORWARD = 1,  /* logprob, entropy, stats; or partial for a vocab shard */
  FLP_PASS_COMBINE = 2,  /* partials of all shards -> logprob, entropy, stats */
  FLP_PASS_BACKWARD = 3, /* gradients, from stats or from what forward saved */
  FLP_PASS_STEP = 4,     /* loss and gradients in one: flp_step */
  /* For flp_plan_layout and flp_plan_workspace: of save, direction or tail mode, in a budget that counts what forward
     keeps too; flp_execute takes args.saved instead. The workspace of BACKWARD holds these modes as well, where the
     budget does */
  FLP_PASS_BACKWARD_SAVED = 5,
  FLP_PASS_FORWARD_SAVED = 6,
  /* The same of a backward pass that is given the gradient of raw scores, args.grad_raw_scores */
  FLP_PASS_BACKWARD_GIVEN = 7
} flp_pass;

/* What one pass over n rows does and takes. */
typedef struct flp_layout {
  uint32_t struct_bytes;
  flp_mode mode;
  int64_t chunk_rows;  /* rows of one chunk (SCORE, RECOMPUTE_ROWS, STREAM, DIRECTION, and dh in RECOMPUTE_SPLIT), else n */
  int64_t chunk_vocab; /* vocab columns of one chunk (RECOMPUTE_VOCAB, DIRECTION, and dW in RECOMPUTE_SPLIT), else V */
  int64_t chunks;      /* chunks in all: of rows in SCORE and STREAM, of exponentials in DIRECTION, of dz in backward */
  int32_t products;        /* matrix products of 2·N·D·V flop in this pass; of TAIL those that every row takes */
  int32_t launches;        /* kernel launches in this pass */
  uint64_t bytes;          /* workspace, exact */
  uint64_t smallest_bytes; /* workspace of the smallest layout of any mode */
  double flops;
  uint64_t saved_bytes; /* save, direction and tail mode: what forward keeps beside the workspace; else 0 */
} flp_layout;

#define FLP_LAYOUT_INIT FLP_INIT_(flp_layout, FLP_SET_(struct_bytes) = sizeof(flp_layout))

/* Picks the fastest layout of a pass whose workspace fits, in modes that keep something with what forward keeps.
 * unit:  budget in bytes, 0 for the plan's (of these modes that of backward); layout->bytes is what flp_execute needs
 *        for the same layout
 * error: BUDGET naming the smallest budget that would do; ARGUMENT if n < 0 */
FLP_API flp_status flp_plan_layout(const flp_plan *plan, flp_pass pass, int64_t n, uint64_t budget_bytes,
                                   flp_layout *layout);

/* Workspace bytes of the layout that flp_plan_layout picks; exact. */
FLP_API flp_status flp_plan_workspace(const flp_plan *plan, flp_pass pass, int64_t n, uint64_t budget_bytes,
                                      size_t *out_bytes);

/* flp_plan_layout of a pass over n rows whose lists have list_count ids in all, for a plan whose spec.listed is 1;
 * combine has flp_plan_layout and flp_plan_workspace. On a GPU memory grows with list_count, by 8 bytes an id forward,
 * 12 backward, 25 where weight or bias needs a gradient; chunks is 1 and products 0.
 * error: ARGUMENT if the plan has no lists or a count is out of range; BUDGET naming the smallest that would do */
FLP_API flp_status flp_plan_layout_listed(const flp_plan *plan, flp_pass pass, int64_t n, int64_t list_count,
                                          uint64_t budget_bytes, flp_layout *layout);

/* Whether to take save, direction or tail mode: the bytes that a forward pass over n rows keeps, where they and the
 * workspace of either pass fit the budget; else 0, for recompute mode. A frozen head (spec.grads is HIDDEN) whose entropy
 * needs no gradient keeps two numbers and a direction a row, 4·n·D bytes (DIRECTION), any other a reference a row and the
 * exponentials, 2·n·V (SAVE); options.mode SAVE has the latter of a frozen head too. With spec.tail a row keeps its
 * partial and a list of at most 1024 columns, 8 KiB (TAIL). With the same budget, FORWARD_SAVED and BACKWARD_SAVED give the
 * workspaces. 0 too where spec.keep and spec.tail are 0, options ask for another mode, or the rung has no kernels for it
 * (flp_plan_describe has the reason).
 * unit:  budget in bytes, 0 for the plan's backward budget; UINT64_MAX for these modes whatever they take
 * error: ARGUMENT if n < 0 */
FLP_API flp_status flp_plan_saved(const flp_plan *plan, int64_t n, uint64_t budget_bytes, size_t *out_bytes);

/* Bytes of args.sums of a backward pass that is given the gradient of raw scores; 0: the gradient's own memory has
 * them, or there is no such gradient. Of the CPU rung 4 an element of 16 bits, of kernels 1 an element of bfloat16.
 * error: ARGUMENT if spec.raw_scores is 0 or the head is none that such a pass takes */
FLP_API flp_status flp_plan_sums(const flp_plan *plan, size_t *out_bytes);

/* The most that flp_plan_saved of any plan of this spec can give: where it is 0, a plan without keep and tail serves,
 * and kernels of these modes need not be made.
 * unit:  as flp_plan_saved; the default is that of flp_options_in_force without options
 * error: ARGUMENT if n < 0, or names a bad field of the spec or a setting */
FLP_API flp_status flp_spec_saved(const flp_spec *spec, int64_t n, uint64_t budget_bytes, size_t *out_bytes);

/* ---- one call: flp_args ---------------------------------------------------------------------------------------- */

/* Pointers are device memory (host memory on the eager rung). Strides count elements between rows; 0 means dense. */
typedef struct flp_args {
  uint32_t struct_bytes;
  flp_pass pass;
  int64_t n; /* N >= 0 */

  /* operands of forward and backward */
  const void *hidden; /* (N,D) hidden_dtype */
  int64_t hidden_stride;
  const void *weight; /* (V,D) weight_dtype */
  int64_t weight_stride;
  const void *bias;              /* (V) bias_dtype, iff spec.has_bias */
  const void *target;            /* (N), or (N,K) with spec.targets, target_dtype; global vocabulary ids */
  const float *temperature_rows; /* (N), iff spec.per_row_temperature; each as temperature is */
  float temperature;             /* T > 0, a normal number, as c/T or a/T is */
  float scale;                   /* a: 0, or a normal number, as a/c is with softcap */
  int64_t ignore_index;          /* rows with this target: logprob 0, entropy 0, no gradient, no matrix work */
  const int32_t *rows;           /* (row_count) ids of the only rows to compute, as a set; NULL: all */
  int64_t row_count;

  /* vocab shard; zeros mean the whole head */
  int64_t vocab_offset; /* global id of weight row 0; combine leaves it */
  int64_t vocab_valid;  /* weight rows that are real; the rest is padding. 0 means V */
  int64_t vocab_total;  /* ids of the whole vocabulary. 0 means vocab_offset + vocab_valid; combine over more than one
                           shard needs it */

  /* forward and combine: outputs; each may be NULL */
  float *logprob; /* (N), or (N,K), nats, <= 0; 0 for a target that is ignore_index */
  float *entropy; /* (N) nats */
  float *stats;   /* (N,4) for backward, 16-byte aligned: row maximum (log2 units), log2 of the sum, logprob (of
                     several targets the largest), entropy */
  /* forward: out (N,4) of one shard, 16-byte aligned; a shard of a larger vocabulary gives nothing else. combine: in
     (shard_count,N,4), rank order. Columns: maximum, sum and weighted sum in log2 units, raw target score (−inf where
     the target is on another shard) */
  float *partial;
  int64_t shard_count;

  /* backward: upstream gradients (N), either may be NULL; outputs as spec.grads asks */
  const float *grad_logprob; /* or (N,K) */
  const float *grad_entropy;
  void *grad_hidden; /* (N,D) grad_hidden_dtype; inactive rows are zeroed */
  int64_t grad_hidden_stride;
  void *grad_weight; /* (V,D) grad_weight_dtype; before the last chunk of rows is done it holds parts of sums */
  int64_t grad_weight_stride;
  void *grad_bias; /* (V) grad_bias_dtype */

  void *workspace; /* 256-byte aligned */
  size_t workspace_bytes;
  void *stream; /* CUstream; NULL is the legacy default stream; ignored on the eager rung */

  /* save, direction and tail mode: forward writes, backward of the same rows, targets and temperatures reads: once in save
     mode, where it may overwrite it, any number of times in the others. NULL: recomputes, as does backward in a workspace
     too small for it. A vocab shard in direction and tail mode alone. 256-byte aligned, as many bytes as flp_plan_saved
     returns */
  void *saved;
  size_t saved_bytes;
  const float *old_lse; /* forward and step: (N) nats, log Σ exp t of a policy near this one; NULL: a reference from the
                           first columns of the vocabulary. Decides what is redone, not a bit of a result elsewhere; in tail
                           mode what is listed, where every value keeps the bound */

  /* step: what the loss reads; the rest may be NULL, and so may row_weight (1) and old_logprob (this policy's own) */
  const float *old_logprob, *ref_logprob, *advantage, *row_weight; /* (N) */
  const float *vectors[8];                                         /* (N) each, in the program's order */
  const double *loss_parameters; /* host memory, in the program's order; NULL: its defaults */
  float *loss;                   /* (N) or NULL; inactive rows 0 */
  float *metrics;                /* (metrics of the program, N) or NULL */

  /* spec.listed, every pass but combine: the only columns of the vocabulary that count. Row i has the global ids
     list_ids[list_offsets[i]] to list_ids[list_offsets[i + 1] - 1], in any order; an id that stands twice counts once.
     The target must be among them. A vocab shard takes the ids that are its own from the whole lists. */
  const int64_t *list_offsets; /* (N + 1), ascending, 0 <= list_offsets[i] <= list_count */
  const void *list_ids;        /* (list_count) target_dtype */
  int64_t list_count;          /* 0 to 2^31 - 1 */

  /* backward and step of spec.tail: (4) out or NULL: Σ|dz| that was left out, from above; Σ|dz| in all, from below; rows
     that were recomputed, all of a step whose rows are so flat that it is exact; columns that the others read. Zeros
     where no lists were made */
  float *tail_report;

  /* spec.targets above 1. Of a vocab shard's forward out (N,K), of combine in (shard_count,N,K): the raw score of each
     target, −inf where it is on another shard */
  float *partial_targets;
  const float *teacher_logprob; /* step: (N,K) nats, of the same ids; what a loss over targets reads */

  /* spec.topk and spec.rank, forward and step: outputs; each may be NULL. Rows that are not computed get −1, 0, 0 and −1, bad ones
     and those whose logprob is NaN −1, NaN, NaN and −1; behind the last column above −inf stand −1 and −inf */
  void *top_ids;      /* (N,topk) target_dtype, global ids; falling scores, of equal ones any, always the same */
  float *top_logprob; /* (N,topk) nats; of a shard of a larger vocabulary t in nats, not normalised */
  float *top_rest;    /* (N) the mass of all other columns, 0 to 1; not of such a shard */
  int32_t *rank;      /* (N) how many columns have a score above the target's; of such a shard how many of its own, −1
                         where it finds the row bad */

  /* spec.lora_rank, every pass but combine: a low-rank adapter on the head, z = a·(h Wᵀ + u Bᵀ + b) with u = s·(h Aᵀ), which
     is rounded once, to dtype. Where B or s is 0, logprob, entropy and stats have the bits of a plan without it.
     A vocab shard has its own rows of B and all of A; its grad_lora_a, as its grad_hidden, is its part of a sum over shards */
  const void *lora_a; /* A (r,D) dtype */
  int64_t lora_a_stride;
  const void *lora_b; /* B (V,r) dtype */
  int64_t lora_b_stride;
  float lora_scale;  /* s: a normal number, or 0: the adapter is off */
  void *grad_lora_a; /* (r,D) grad_lora_dtype, as spec.grads asks */
  int64_t grad_lora_a_stride;
  void *grad_lora_b; /* (V,r) grad_lora_dtype; rows of padding become 0 */
  int64_t grad_lora_b_stride;

  /* rank of a vocab shard, forward: (N) t·log2(e) of targets that other shards have, which a pass of spec.listed gives
     as the maximum of a list of the target alone */
  const float *target_score;

  /* spec.statistics, forward, combine and step: out (N,4) or NULL, 16-byte aligned: log Σ exp t and the mean of t in
     nats, log Σ p², and 1 where no column's score is above the target's (of several targets one's), else 0; bad rows
     NaN, NaN, NaN, 0. Of a vocab shard's forward out (N,4), of combine in (shard_count,N,4), what combine makes them
     of: Σ t and Σ 4^(t − maximum) in log2 units, the number of its columns, whether its best is the target */
  float *statistics;
  float *partial_statistics;

  /* spec.raw_scores, forward: (N,V) out or NULL: hidden·weightᵀ + bias, before scale, softcap and temperature, in the
     columns of this shard; rows that are not computed, and columns behind vocab_valid, stay as they are */
  float *raw_scores;
  int64_t raw_scores_stride;

  /* spec.raw_scores, backward: (N,V) in spec.dtype, 16-byte aligned, or NULL: the gradient of raw scores in the place
     of upstream gradients and stats, which must be NULL then; grad_hidden and grad_weight are its products with weight
     and hidden. Row i is that of the i-th row that is not left out; others are not read. Behind its V columns a row
     holds zeros up to a multiple of 16 bytes. Of one target a row, of operands of one dtype, without an adapter, lists
     and FLP_GRAD_BIAS */
  const void *grad_raw_scores;
  int64_t grad_raw_scores_stride;
  /* With grad_raw_scores, of rows that come in several calls: FLP_SUMS_* bits, and what sums of grad_weight take beside
     it between these calls, 256-byte aligned, as many bytes as flp_plan_sums gives, or NULL where that is 0. What
     grad_weight holds behind a call that leaves sums is for the next call alone */
  void *sums;
  size_t sums_bytes;
  int64_t sums_bits;
} flp_args;

/* Bits of flp_args.sums_bits: the call adds to the sums that the call before left; it leaves sums for another one. */
#define FLP_SUMS_CONTINUE 1
#define FLP_SUMS_LEAVE 2

#define FLP_ARGS_INIT                                                                               \
  FLP_INIT_(flp_args, FLP_SET_(struct_bytes) = sizeof(flp_args), FLP_SET_(pass) = FLP_PASS_FORWARD, \
            FLP_SET_(temperature) = 1.0f, FLP_SET_(scale) = 1.0f, FLP_SET_(ignore_index) = -100)

/* Enqueues one pass on args->stream.
 * Rows with an id outside [0, vocab_total) (and not ignore_index) or a temperature that is no such number get NaN
 * in every output of their own, contribute nothing to grad_weight and grad_bias, and are counted in the device error
 * word. A NaN or Inf in a hidden row stays in that row (and in grad_weight).
 * Scores over T are told apart up to 2^30 in units of ln 2, 7.4e8 nats, where one bit of float32 is 44 nats. A row whose
 * largest score is above that, or not above -2^30 (so a row without a score above -inf), gives NaN, in its gradients
 * and in grad_weight too, and is counted, on every rung. The other scores of a row may be as low as they like.
 * Several targets (spec.targets): a row without one that is not ignore_index is left out as a row without a target is;
 * an id outside the vocabulary makes its whole row NaN. In a row whose largest score is beyond 2^30 the targets that are
 * ignore_index give 0 as ever. The gradients of targets that are the same column add up.
 * Listed columns: a row whose list lacks its target or holds an id outside [0, vocab_total) gives NaN in every output
 * of its own, adds nothing to grad_weight and grad_bias, and is counted; so does every row where list_offsets are not
 * ascending within [0, list_count]. A row with NaN in stats gives NaN in its grad_hidden and adds nothing elsewhere.
 * error:  ARGUMENT names the field; WORKSPACE if no layout fits workspace_bytes; DRIVER if a launch failed;
 *         DATA in strict mode only (strict synchronises)
 * thread: safe on one plan; asynchronous on stream; allocates and loads nothing, can be captured in a CUDA graph */
FLP_API flp_status flp_execute(flp_plan *plan, const flp_args *args);

/* What decides the bits of log-probabilities, entropies, ranks and best columns that the plan's FORWARD gives, as
 * "sm_90a on 9.0: bf16 V=151936 D=4096 scale=1 temperature=1 code=0f5a3c91d2b84e67": the architecture of kernels and
 * GPU, or "cpu"; operands, scales and temperature; a hash of the code, on the CPU of its products too. Where the words
 * are equal, in other programs and on other machines too, rows with equal operands have equal bits, whatever else is in
 * a call. They say nothing of gradients, whose bits depend on the mode and on other rows.
 * args:  a call's, of which its scales and temperature are read; NULL: FLP_ARGS_INIT
 * error: ARGUMENT if the plan is not of FLP_OP_HEAD; MEMORY on the eager rung */
enum { FLP_CONTRACT_BYTES = 384 };
FLP_API flp_status flp_plan_contract(const flp_plan *plan, const flp_args *args, char out[FLP_CONTRACT_BYTES]);

/* ---- loss and gradients in one: flp_step ----------------------------------------------------------------------- */

/* Bytes of a built-in loss program, or a sum of them: "grpo", "grpo+k3+entropy". Its rows' losses are summed by weight.
 * out: NULL asks for the size alone. error: ARGUMENT naming the accepted ones, or a capacity that is too small */
FLP_API flp_status flp_loss_builtin_bytes(const char *name, void *out, size_t capacity, size_t *out_bytes);

enum {
  FLP_LOSS_TITLE_BYTES = 64,
  FLP_LOSS_NAME_BYTES = 32,
  FLP_LOSS_PARAMETERS_MAX = 8,
  FLP_LOSS_VECTORS_MAX = 8,
  FLP_LOSS_METRICS_MAX = 8,
  FLP_LOSS_INPUTS_MAX = 14
};

/* A number that the caller may set for a step. An array holds it, so it never grows. */
typedef struct flp_loss_parameter {
  char name[FLP_LOSS_NAME_BYTES];
  double fallback, low, high; /* low <= fallback <= high; the bounds may be infinite */
} flp_loss_parameter;

/* Parameters, vectors and metrics in the order in which flp_args has them. */
typedef struct flp_loss_description {
  uint32_t struct_bytes;
  int32_t parameter_count;
  int32_t vector_count;
  int32_t input_count;
  int32_t metric_count;
  char name[FLP_LOSS_TITLE_BYTES]; /* "grpo+k3" */
  flp_loss_parameter parameters[FLP_LOSS_PARAMETERS_MAX];
  char vectors[FLP_LOSS_VECTORS_MAX][FLP_LOSS_NAME_BYTES];
  /* the values of a row that it reads: of logprob, entropy, old_logprob, ref_logprob, advantage, weight, vectors, lse and
     mean_score; of a loss over targets target_logprob and teacher_logprob, but none of one target or of all scores */
  char inputs[FLP_LOSS_INPUTS_MAX][FLP_LOSS_NAME_BYTES];
  char metrics[FLP_LOSS_METRICS_MAX][FLP_LOSS_NAME_BYTES];
} flp_loss_description;

#define FLP_LOSS_DESCRIPTION_INIT FLP_INIT_(flp_loss_description, FLP_SET_(struct_bytes) = sizeof(flp_loss_description))

/* The description of a program. error: ARGUMENT; CORRUPT naming what is wrong with the bytes. thread: any */
FLP_API flp_status flp_loss_describe(const void *bytes, size_t length, flp_loss_description *out);

/* Enqueues one training step of the plan's spec.loss: logprob and entropy of every row, its loss, and the gradients of
 * the sum of losses that spec.grads asks for. With spec.targets above 1 the loss is one over targets, logprob is (N,K),
 * teacher_logprob what the loss reads, and the mode recompute. Else stream mode: rows pass in chunks through forward,
 * loss and both products, so that nothing of size N·V and no second product h·Wᵀ exist; recompute mode where that cannot
 * be (fp16 and fp32 operands, a budget that holds no chunk) or is no gain (few rows, few columns); with spec.tail tail
 * mode, where the budget holds it, else recompute mode. args->pass is STEP; logprob, entropy,
 * loss and metrics may be NULL; grad_logprob, grad_entropy and stats stay NULL. Bits of logprob, entropy are those of
 * forward. A row whose row_weight is 0 has loss 0 and metrics 0 and adds nothing to a gradient, whatever it holds, NaN and
 * infinities in its hidden, scores and inputs too; nor does any row whose loss has no gradient. A bad id or temperature is
 * bad at weight 0 too: NaN in the row's own outputs, and counted. Gradients overflow on no rung and in no mode before a
 * row's loss, its derivatives or the gradients' dtype do: at weight 1 a ratio exp(d) may have d up to 88. The gradients
 * exist before a factor that comes later is known, such as a loss scale. fp16 holds 6e-8 to 65504:
 * put that factor into row_weight (and vectors that stand for weights), or ask for gradients in FP32
 * (spec.grad_hidden_dtype, grad_weight_dtype, grad_bias_dtype), multiply those in float and round once.
 * Of a plan whose spec.op is FLP_OP_LOSS only the loss program runs, in one launch: logprob and, where the program
 * reads it, entropy are there and are read; grad_logprob and grad_entropy, each (N) or NULL, are written: the loss's
 * derivatives. All other arrays but those of the loss stay NULL, the workspace too. The program reads neither several
 * targets nor values of all scores; spec.entropy is FORWARD where it reads the entropy; any spec.vocab and dtype that
 * are accepted give the same.
 * error, thread: as flp_execute; ARGUMENT too for an input that the program reads and is not there */
FLP_API flp_status flp_step(flp_plan *plan, const flp_args *args);

/* ---- scores that exist already: flp_select --------------------------------------------------------------------- */

/* One call of a plan whose spec.op is FLP_OP_SELECT. "Numbers" are float, or double where spec.dtype is FP64.
 *     t = z / T;   logprob_ij = t_{i,y_ij} − log Σ_v exp t_{i,v};   entropy as in flp_execute */
typedef struct flp_select_args {
  uint32_t struct_bytes;
  flp_pass pass;      /* FORWARD or BACKWARD */
  int64_t n;          /* N >= 0 rows */
  int64_t k;          /* K >= 1 targets a row, a few: BACKWARD takes K² steps beside V */
  const void *scores; /* z (N,V) dtype */
  int64_t scores_stride;
  const void *target;   /* (N,K) target_dtype */
  double temperature;   /* T > 0, T and log2(e)/T normal numbers of fp32 */
  int64_t ignore_index; /* targets that give 0 and no gradient; rows of nothing else are not read */

  /* numbers: outputs of FORWARD, each may be NULL; BACKWARD reads logprob and stats */
  void *logprob; /* (N,K) nats */
  void *entropy; /* (N) nats; NULL without spec.entropy */
  void *stats;   /* (N,3): reference, log2 of the sum, entropy */

  /* numbers: upstream gradients of BACKWARD, either may be NULL */
  const void *grad_logprob; /* (N,K) */
  const void *grad_entropy; /* (N); NULL unless spec.entropy is BACKWARD */
  void *grad_scores;        /* (N,V) dtype; may be scores itself, which it then overwrites */
  int64_t grad_scores_stride;

  void *stream;
} flp_select_args;

#define FLP_SELECT_ARGS_INIT                                                                                      \
  FLP_INIT_(flp_select_args, FLP_SET_(struct_bytes) = sizeof(flp_select_args), FLP_SET_(pass) = FLP_PASS_FORWARD, \
            FLP_SET_(k) = 1, FLP_SET_(temperature) = 1.0, FLP_SET_(ignore_index) = INT64_MIN)

/* Enqueues one pass over scores; needs no workspace. Scores are read once, and in BACKWARD written once.
 * A target outside [0, V) that is not ignore_index gives NaN, in its row's gradient too where its upstream gradient is
 * not 0, and is counted in the device error word. A row with a NaN gives NaN. One whose largest score is beyond 2^30, as
 * for flp_execute, gives NaN and is counted; FP64 has no such limit, but a row with no score above -inf (to the kernels:
 * -2^1000) gives NaN.
 * error:  ARGUMENT names the field; DRIVER if the launch failed; DATA in strict mode only (strict synchronises)
 * thread: as flp_execute
 * source: https://www.tylerromero.com/posts/2025-02-selective-log-softmax/ */
FLP_API flp_status flp_select(flp_plan *plan, const flp_select_args *args);

/* ---- gradients that were made for an upstream gradient of 1: flp_scale ------------------------------------------ */

/* One call of a plan whose spec.op is FLP_OP_SCALE: a matrix, spec.vocab columns wide, times a factor. spec.dtype is BF16,
 * FP16 or FP32. */
typedef struct flp_scale_args {
  uint32_t struct_bytes;
  uint32_t reserved; /* 0 */
  int64_t n;         /* N >= 0 rows */
  void *values;      /* (N,V) dtype, overwritten */
  int64_t values_stride;
  const float *factor; /* (1), where the values are: the host need not know it */
  void *stream;
} flp_scale_args;

#define FLP_SCALE_ARGS_INIT FLP_INIT_(flp_scale_args, FLP_SET_(struct_bytes) = sizeof(flp_scale_args))

/* Enqueues values *= factor, in float, rounded once to dtype; needs no workspace. A factor of 1 leaves the values unread:
 * the call then takes microseconds whatever their size, which is what a step's gradients (flp_step) cost a trainer that
 * back-propagates its loss as it is.
 * error:  ARGUMENT names the field; DRIVER if the launch failed
 * thread: as flp_execute */
FLP_API flp_status flp_scale(flp_plan *plan, const flp_scale_args *args);

/* ---- two rows of scores that exist already: flp_diverge --------------------------------------------------------- */

enum { FLP_DIVERGE_VALUES = 6, FLP_DIVERGE_STATE = 64 };

/* One call of a plan whose spec.op is FLP_OP_DIVERGE: spec.loss is a loss over targets, whose targets are all columns,
 * spec.dtype that of grad_scores: BF16, FP16 or FP32.
 *     q = softmax a·x, the student's;  p = softmax b·y, the teacher's;  D = loss(log p, log q) at row weight 1
 * No rounded a·x is formed: scores that are large lose nothing. */
typedef struct flp_diverge_args {
  uint32_t struct_bytes;
  uint32_t is_shard;   /* 1: the columns are those of one shard of a vocabulary; partial is there, or resumes is 1 */
  int64_t n;           /* N >= 0 rows */
  const float *scores; /* x (N,V), in nats where a is 1 */
  int64_t scores_stride;
  const float *teacher; /* y (N,V) */
  int64_t teacher_stride;
  float scale, teacher_scale; /* a and b: 0, or normal numbers, of either sign */
  const float *scale_rows, *teacher_scale_rows; /* (N) in their place, or NULL */
  const double *loss_parameters; /* host memory, in the program's order; NULL: its defaults. Of a built-in loss
                                    rest_weight is best 0: of all columns there is no rest */
  const float *upstream;         /* (N) what D's gradient is multiplied by; NULL: 1 */
  float *values;     /* (N,6) or NULL: D, log Σ exp a·x, log Σ exp b·y, the entropy of q in nats, Σ min(p, q), and 1
                        where both have the same best column, of equal ones the first, else 0 */
  void *grad_scores; /* (N,V) dtype, or NULL: upstream·∂D/∂x; memory apart from the scores */
  int64_t grad_scores_stride;
  void *stream;
  const int64_t *target; /* (N) a column of each row, or NULL; one that is no column has no logprob */
  const float *grad_logprob, *grad_entropy; /* (N) or NULL: upstream gradients of log q of the target and of the entropy
                                               of q, whose gradients are added to grad_scores */
  double *state;    /* (N,FLP_DIVERGE_STATE) or NULL: what a call leaves of each row: both log-sum-exps in log2 units;
                       sums over columns, the library's own; in the last two words the best columns of x and y */
  uint32_t resumes; /* 1: state is what a call with the same scores, scales and parameters left, so that its sums are
                       not made again; of a shard all words but the first and last two are sums over all shards */
  /* (N,4), 16-byte aligned, or NULL both: flp_args.partial of the forward passes that gave x and y as raw_scores,
     without a softcap, with scale a or b and temperature 1; of a shard merged over all shards: the largest maximum, and
     the sums, each times 2 to its maximum less that one. x and y are read once less then */
  const float *partial, *teacher_partial;
} flp_diverge_args;

#define FLP_DIVERGE_ARGS_INIT \
  FLP_INIT_(flp_diverge_args, FLP_SET_(struct_bytes) = sizeof(flp_diverge_args), FLP_SET_(scale) = 1.0f, \
            FLP_SET_(teacher_scale) = 1.0f)

/* Enqueues one pass over both; needs no workspace. Of equal rows the gradient is 0, of a mixture of both, as jsd, up to
 * rounding in float32. A row whose largest score of either is beyond 2^30, as for flp_execute, gives NaN, and counts in
 * the device error word where values are asked for; one with a NaN gives NaN; where upstream is 0, as grad_logprob and
 * grad_entropy are, the gradient is 0 whatever the row holds. A loss of log q and of the entropy beside D takes two
 * calls, and no score is read more often than by one: values and state, then, with their gradients, grad_scores.
 * So does a vocabulary in shards: state of each, then, with their sums, values and grad_scores of its columns.
 * error:  ARGUMENT names the field; UNSUPPORTED for a shard on the eager rung, or of a loss with sums in sums; MEMORY on
 *         the eager rung; DRIVER if the launch failed; DATA in strict mode only
 * thread: as flp_execute
 * source: generalised divergences of two distributions, arXiv:2306.13649 */
FLP_API flp_status flp_diverge(flp_plan *plan, const flp_diverge_args *args);

/* Synchronises the stream and reports the rows that held bad ids, temperatures or scores since the last check.
 * error: DATA with the count; DRIVER */
FLP_API flp_status flp_plan_check(flp_plan *plan, void *stream);

/* ---- workspace without an allocator: flp_arena ----------------------------------------------------------------- */

/* One growing block that serves the heads of actor, reference, critic and reward model in turn. */
typedef struct flp_arena flp_arena;

/* All in bytes. As the RLHF memory study defines them, at each allocation from the driver: reserved is what the arena
 * holds, allocated is what callers hold, fragmentation is what is reserved, not allocated and too scattered to serve
 * the request that made the arena grow. source: arXiv:2410.15651, section 3. */
typedef struct flp_arena_stats {
  uint32_t struct_bytes;
  uint64_t reserved_bytes, allocated_bytes, fragmentation_bytes;
  uint64_t peak_reserved_bytes, peak_allocated_bytes, peak_fragmentation_bytes;
  uint64_t driver_allocations; /* calls that grew the arena */
  uint64_t phases;             /* phases ended */
} flp_arena_stats;

#define FLP_ARENA_STATS_INIT FLP_INIT_(flp_arena_stats, FLP_SET_(struct_bytes) = sizeof(flp_arena_stats))

/* device: CUDA ordinal, or FLP_DEVICE_HOST. */
FLP_API flp_status flp_arena_create(int device, flp_arena **out);
/* The caller has synchronised with the work that uses the arena's memory. NULL is fine. */
FLP_API void flp_arena_destroy(flp_arena *arena);
/* Hands out bytes, 256-byte aligned, usable by work queued on stream from now on. */
FLP_API flp_status flp_arena_take(flp_arena *arena, size_t bytes, void *stream, void **out);
/* Takes memory back; the arena reuses it for later work on the same stream. error: ARGUMENT for a foreign pointer. */
FLP_API flp_status flp_arena_give_back(flp_arena *arena, void *memory, void *stream);
/* Returns every block to the driver, ordered after the work on stream. error: ARGUMENT if memory is still taken. */
FLP_API flp_status flp_arena_end_phase(flp_arena *arena, void *stream);
FLP_API flp_status flp_arena_get_stats(const flp_arena *arena, flp_arena_stats *stats);
/* Starts the peaks anew from the current values. */
FLP_API void flp_arena_reset_peaks(flp_arena *arena);

/* ---- settings and log ---------------------------------------------------------------------------------------------
 * Read from the environment when a plan is created:
 *   FLP_FORCE        tuned|heuristic|jit|generic|eager   pin a rung
 *   FLP_STRICT       1                                   a fallback is an error
 *   FLP_BUDGET       bytes, as flp_bytes_parse has them  workspace budget of every pass
 *   FLP_CACHE_DIR    writable cache, default $XDG_CACHE_HOME/flp or ~/.cache/flp
 *   FLP_CACHE_PATH   read-only cache directories and packs, separated by ':', searched before the writable one;
 *                    default: the packs in <prefix>/share/flp/packs beside the library, searched behind it
 *   FLP_PACK_KEYS    Ed25519 public keys in hex, separated by ',': packs signed by none of them are not used
 *   FLP_GENERIC_DIR  shape-generic kernels, default <prefix>/share/flp/generic beside the library
 *   FLP_JIT_LIBRARY  path of libflpgen.so, default beside libflp, then the loader's path
 *   FLP_CUDA_LIBRARY path of libcuda, default libcuda.so.1
 *   FLP_BLAS_LIBRARY path of an OpenBLAS-like library for the eager rung, default libopenblas.so.0 */

/* What holds for a plan that is made now with these options: options first, then FLP_FORCE, FLP_STRICT and FLP_BUDGET,
 * then the defaults. For what runs beside the library under the same settings, as torch code of the Python binding
 * does.
 * options: NULL for the defaults, of device 0; each out may be NULL
 * rung:    AUTO where none is pinned
 * unit:    budget of the workspace of this pass in bytes, never 0
 * error:   ARGUMENT naming a bad field or setting, in the words of flp_plan_create
 * thread:  any; reads the environment, so no other thread may change it meanwhile */
FLP_API flp_status flp_options_in_force(const flp_options *options, flp_pass pass, flp_rung *rung, int32_t *strict,
                                        uint64_t *budget_bytes);

/* Reads an amount of memory as FLP_BUDGET has it: decimal, a fraction too, with or without a suffix K, M, G, T or KiB,
 * MiB, GiB, TiB (1024 each): "4096", "64K", "1.5GiB". A fraction of a byte is dropped. name: for the error
 * unit:   bytes, least to below 2^63
 * error:  ARGUMENT with name, text and what is accepted; *out_bytes is 0 then
 * thread: any */
FLP_API flp_status flp_bytes_parse(const char *name, const char *text, uint64_t least, uint64_t *out_bytes);

typedef enum flp_log_level { FLP_LOG_ERROR = 0, FLP_LOG_WARNING = 1, FLP_LOG_INFO = 2 } flp_log_level;

typedef void (*flp_log_fn)(flp_log_level level, const char *message, void *user);

/* Sets where messages go; NULL drops them (the default). Each fallback is logged once per reason. thread: any */
FLP_API void flp_log_set(flp_log_fn fn, void *user);

#ifdef __cplusplus
}
#endif
#endif

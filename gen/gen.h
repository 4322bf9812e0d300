/* gen.h: libflpgen, from a kernel key through a Lua template and LLVM IR to PTX and a descriptor. */
#ifndef FLPGEN_GEN_H
#define FLPGEN_GEN_H

#include <stdbool.h>

#include "runtime/kernel/kernel.h"
#include "runtime/loss/loss.h"

typedef struct flpgen_options {
  const char *template_dir; /* NULL: the templates embedded in the library */
  int want_ir;              /* also return the IR as the template built it */
  int want_opt_ir;          /* also return the IR after LLVM's passes */
  int ir_only;              /* the IR as the template built it, and no PTX: desc has version 0.0 of it */
  const flp_loss *loss;     /* key.kind LOSS: the program, whose digest is key.loss, or NULL for any; else NULL */
} flpgen_options;

typedef struct flpgen_result {
  flp_kernel_desc desc;
  char *ptx, *ir, *opt_ir; /* NUL-terminated, owned; NULL what was not asked for */
  size_t ptx_bytes;
} flpgen_result;

/* Generates one kernel; the same input gives the same bytes.
 * options: NULL for the defaults
 * error:   COMPILE with "file.lua:LINE: message" in error; UNSUPPORTED for an architecture without a template
 * thread:  safe; each call owns its Lua state and LLVM context */
FLP_API flp_status flpgen_generate(const flp_kernel_key *key, const flpgen_options *options, flpgen_result *out,
                                   char *error, size_t error_capacity);
FLP_API void flpgen_result_clear(flpgen_result *result);

/* 1 if kernels can be made for an architecture of that name. thread: any */
FLP_API bool flpgen_arch_supported(const char *name);

/* ---- tile configurations ---- */

/* What the templates know of one kernel's tile configurations. Nothing is built for it: an answer takes microseconds. */
typedef struct flpgen_space flpgen_space;

/* A configuration as it would be built. */
typedef struct flpgen_tile {
  flp_tunables tune;     /* every field set */
  uint32_t shared_bytes; /* of a CTA */
} flpgen_tile;

/* Values of each tunable that are worth a look, ascending; the kernel's default may be another. */
enum { FLPGEN_AXIS_MAX = 16 };
typedef struct flpgen_axis {
  uint32_t values[FLPGEN_AXIS_MAX];
  int count;
} flpgen_axis;
typedef struct flpgen_axes {
  flpgen_axis schedule, rows, columns, stages, cluster, raster;
} flpgen_axes;

/* key: its tunables do not matter. options: as for flpgen_generate, of which template_dir counts
 * error:   as flpgen_generate; UNSUPPORTED for a kernel that leaves no choice
 * thread:  safe; a space serves one thread at a time */
FLP_API flp_status flpgen_space_open(const flp_kernel_key *key, const flpgen_options *options, flpgen_space **out,
                                     char *error, size_t error_capacity);
FLP_API void flpgen_space_close(flpgen_space *space);                    /* NULL is fine */
FLP_API const flpgen_axes *flpgen_space_axes(const flpgen_space *space); /* borrowed */
/* The configuration that a key with these tunables gives; 0 in a field is the kernel's default. out: may be NULL
 * error: COMPILE with the template's refusal in error, the one that flpgen_generate would give */
FLP_API flp_status flpgen_space_ask(flpgen_space *space, const flp_tunables *tune, flpgen_tile *out, char *error,
                                    size_t error_capacity);

/* ---- losses ---- */

/* A per-row loss as its file describes it. */
typedef struct flpgen_loss {
  flp_loss program;
  char formula[160], source[96]; /* for people; "" if the file has none */
} flpgen_loss;

/* Runs a Lua file once, on symbolic values of a row; the same text gives the same program.
 * file:  names the text in errors, and the loss unless the text does
 * error: COMPILE with "file:LINE: message" in error
 * thread: safe */
FLP_API flp_status flpgen_loss_trace(const char *file, const char *text, size_t length, flpgen_loss *out, char *error,
                                     size_t error_capacity);
/* The same as bytes, as flp_spec.loss takes them. terms: built-in losses to add ("k3+entropy"), NULL or "" for none.
 * error: as flpgen_loss_trace; ARGUMENT for unknown terms, a sum that is no loss, or a small capacity */
FLP_API flp_status flpgen_loss_bytes(const char *file, const char *text, size_t length, const char *terms, void *out,
                                     size_t capacity, size_t *out_bytes, char *error, size_t error_capacity);
/* The same of a file that the library carries. error: ARGUMENT if there is none of that name */
FLP_API flp_status flpgen_loss_builtin(const char *name, flpgen_loss *out, char *error, size_t error_capacity);

/* SHA-256 over the templates (embedded, or those of template_dir) and the generator version. */
FLP_API flp_status flpgen_sources_hash(const flpgen_options *options, uint8_t out[32]);
/* Lets plans of this process have kernels of the templates of a folder, which keeps to them. hash: theirs, as above
 * error: IO, the reason in error. thread: before the first plan */
FLP_API flp_status flpgen_provider_templates(const char *template_dir, uint8_t hash[32], char *error,
                                             size_t error_capacity);

#endif

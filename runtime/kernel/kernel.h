/* kernel.h: the identity of a kernel (its key) and what a launch must know about it (its descriptor).
 *
 * Invariants: a key is canonical (fields that a kind does not use are 0), so equal kernels have equal key bytes; a
 * descriptor's serialised form is little-endian, versioned and checked field by field when it is read. */
#ifndef FLP_KERNEL_H
#define FLP_KERNEL_H

#include "runtime/base/names.h"
#include "runtime/flp.h"
#include "runtime/kernel/arch.h"
#include "runtime/kernel/kind.h"

enum { FLP_KEY_FORMAT = 5, FLP_DESC_FORMAT = 9 };

/* How two warpgroups of a CTA divide the work. */
typedef enum flp_schedule {
  FLP_SCHEDULE_PING_PONG = 1,  /* a tile each, in turn: one multiplies while the other works on its results */
  FLP_SCHEDULE_COOPERATIVE = 2 /* half the rows of one tile each */
} flp_schedule;

/* The tile configuration of a kernel, where it is tunable; 0 in a field is the template's default. It decides the
 * time that a kernel takes, and in the forward pass not one bit of what it computes. */
typedef struct flp_tunables {
  uint32_t schedule;      /* flp_schedule */
  uint32_t rows, columns; /* of a tile */
  uint32_t stages;        /* of the pipeline from memory */
  uint32_t cluster;       /* CTAs along the rows that share what they load */
  uint32_t raster;        /* raster width: the most row panels that go over the columns together */
} flp_tunables;

enum flp_weight_form { /* of rows of the weight that kernels read by themselves */
  FLP_KEY_WIDE = 1,    /* f32, where the operand dtype is another */
  FLP_KEY_TERMS = 2    /* scores have two terms, of the weight or of hidden */
};

typedef struct flp_kernel_key {
  flp_kernel_kind kind;
  char arch[16];          /* "sm_80", ... (arch.h) */
  flp_dtype dtype;        /* of operands; LOSS: FP32 */
  flp_dtype target_dtype; /* ROWS, SELECT, LISTED */
  flp_dtype out_dtype;    /* GRAD_HIDDEN, GRAD_WEIGHT, LORA */
  uint32_t entropy;       /* FORWARD: accumulate the weighted sum; DZ: upstream entropy gradients; SELECT: both */
  uint32_t bias;          /* FORWARD, DZ: add the bias if its pointer is not null; products: see FLP_KIND_ADDS */
  uint32_t bias_grad;     /* DZ: column sums if bias_part is not null */
  uint32_t softcap;       /* FORWARD, DZ */
  uint32_t lora;          /* LISTED, LISTED_WEIGHT, TAIL, TOP: of a head with an adapter */
  uint32_t weight_form;   /* LISTED, TAIL, TOP: how rows of the weight stand, flp_weight_form */
  uint32_t alignment;     /* all but ROWS and LOSS: 16, or one element for element-wise copies */
  int64_t hidden;         /* FORWARD, DZ and the products: D, of scores from two terms 2·D; 0 for any;
                             LORA_PRODUCTS: the adapter's rank */
  int64_t vocab;          /* FORWARD, DZ, SELECT: V, 0 for any */
  flp_tunables tune;      /* FORWARD, DZ and the products */
  uint8_t loss[32];       /* LOSS: SHA-256 of the program's bytes (flp_loss_write); 0: any program, as data */
} flp_kernel_key;

/* Tunables by kind of kernel. */
typedef struct flp_tuning {
  flp_tunables of[FLP_KERNEL_KINDS];
} flp_tuning;

/* Zeroes the fields that the kind does not use. */
void flp_kernel_key_canonicalise(flp_kernel_key *key);

/* 1 if the spec's loss is a program over targets, as the version of its bytes says (loss.h). */
enum { FLP_TARGETS_LOSS_VERSION = 2, FLP_SCORES_LOSS_VERSION = 3 };
int flp_kernel_spec_has_targets_loss(const flp_spec *spec);
/* 1 if it is one that reads lse or mean_score. */
int flp_kernel_spec_has_scores_loss(const flp_spec *spec);
/* 1 if the mean of a row's scores, where a loss reads it, takes a pass, as it is not hidden times one vector. */
int flp_kernel_spec_passes_for_mean(const flp_spec *spec);
/* 1 if forward lists the columns that spec.tail keeps. Where it does not gradients are exact, which any tail allows. */
int flp_kernel_spec_emits(const flp_spec *spec);
/* 1 if a resolved spec wants kernels that save exponentials: for save, direction or stream mode, with gradients, in
 * bf16; one that lists columns keeps these instead. */
int flp_kernel_spec_keeps(const flp_spec *spec);
/* 1 if a resolved spec wants a form of forward for few rows, which are a scorer's. */
int flp_kernel_spec_is_short(const flp_spec *spec);
/* 1 if a step that lists columns has the order of stream mode beside it, for rows that are flat; and the least columns
 * of which some are a sample. */
enum { FLP_FLAT_VOCAB = 6144 };
int flp_kernel_spec_flat(const flp_spec *spec);
/* 1 if it wants those kernels for either reason. */
int flp_kernel_spec_has_exponentials(const flp_spec *spec);
/* The parts that every forward kernel of a resolved spec has: those that say what scores are, and which are held. */
unsigned flp_kernel_spec_parts(const flp_spec *spec);

/* The kernels that a resolved spec needs on an architecture, in the order of op.c, each for that architecture or, where it
 * has none of its own, for the one below (arch.h). Returns their number (1 to FLP_SPEC_KERNELS_MAX). */
enum { FLP_SPEC_KERNELS_MAX = 16 };
int flp_kernel_keys_for(const flp_spec *spec, const char *arch, flp_kernel_key out[FLP_SPEC_KERNELS_MAX]);

/* Sets the tunables of those keys. */
void flp_tuning_apply(const flp_tuning *tuning, flp_kernel_key *keys, int count);

/* 1 if plans of a resolved spec have a tunable kernel of that kind (0: of any) on an architecture; NULL: on some. */
int flp_kernel_arch_tunes(const char *arch, const flp_spec *spec, flp_kernel_kind kind);
/* Names of those kinds: "forward, dz", "" for none. Returns out. */
const char *flp_kernel_tunable_kinds(const char *arch, const flp_spec *spec, char *out, size_t capacity);
/* 1 if all those tile configurations would be of kernels there: of each kind that they name there is one, or none on
 * any architecture. */
int flp_kernel_arch_heeds(const char *arch, const flp_spec *spec, const flp_tuning *tuning);
/* Which of some architectures tile configurations are for: the newest that heeds them; -1 if none does. */
int flp_kernel_heeding_arch(const char *const *arches, int count, const flp_spec *spec, const flp_tuning *tuning);

/* 1 if at least one of those kernels is the architecture's own (arch.h). */
int flp_kernel_arch_serves(const char *arch, const flp_spec *spec);

/* The shape-generic kernel that can replace this one: hidden and vocab any, entropy, bias and bias_grad on, tiling as
 * its template chooses; of a loss the one for any. */
flp_kernel_key flp_kernel_key_generic(const flp_kernel_key *key, const char *arch);

/* 1 if the kernel runs any loss, as data. */
int flp_kernel_runs_any_loss(const flp_kernel_key *key);

/* Writes the key's bytes, e.g. "flp-key/3 kind=forward arch=sm_80 dtype=bf16 ... tune=<tunables> sources=<64 hex>
 * tuned=<device>". tuned_for: "" or "<device name>/<SM count>/<driver>" for an entry tuned on one device. Returns the
 * length without the terminating 0, or 0 if capacity is too small. FLP_KEY_BYTES_MAX always suffices. */
enum { FLP_KEY_BYTES_MAX = 720 };
size_t flp_kernel_key_bytes(const flp_kernel_key *key, const uint8_t sources[32], const char *tuned_for, char *out,
                            size_t capacity);

/* Reads what flp_kernel_key_bytes wrote, whatever it was tuned for. 0: the text is not exactly that. key_text.c */
int flp_kernel_key_read(const char *text, flp_kernel_key *out, uint8_t sources[32]);

/* ---- tunables.c: tunables as text ---- */

/* Reads e.g. "forward:cooperative,256x192,stages=4;products:raster=16": kinds divided by ';', and of each any of
 * ping-pong or cooperative, ROWSxCOLUMNS, stages=N, cluster=N, raster=N. The template decides what can be built.
 * text: NULL or "" for the templates' defaults. field: names the text in errors. error: ARGUMENT */
flp_status flp_tuning_parse(const char *field, const char *text, flp_tuning *out);

/* 1 if it gives a tile configuration for some kind; 0 if it leaves all to defaults. */
int flp_tuning_is_set(const flp_tuning *tuning);

/* 1 if one of them is not the template's own choice. */
int flp_tunables_are_set(const flp_tunables *tunables);

/* Writes them as flp_tuning_parse reads those of a kind, "own" where every field is 0. */
enum { FLP_TUNABLES_TEXT_BYTES = 96 };
void flp_tunables_text(const flp_tunables *tunables, char out[FLP_TUNABLES_TEXT_BYTES]);

/* Writes those of the kinds that are not all 0, as flp_tuning_parse reads them; "" for none. */
enum { FLP_TUNING_TEXT_BYTES = 14 * FLP_TUNABLES_TEXT_BYTES + 256 };
void flp_tuning_text(const flp_tuning *tuning, char out[FLP_TUNING_TEXT_BYTES]);

/* Turns COMPILE into ARGUMENT if the caller chose the tile configuration: the default
 * one always builds. The detail names field, kernel, tiling and reason then; else
 * the status stays as it was. field: where the tiling was given,
 * "options.tune" */
flp_status flp_tuning_status(const char *field, const flp_kernel_key *key, flp_status status);

/* "forward", for messages and files; "?" if unknown. */
static inline const char *flp_kernel_kind_name(flp_kernel_kind kind) {
  return flp_kind_of(kind)->name;
}

typedef struct flp_kernel_entry {
  char name[64];      /* abi.h entry; the PTX symbol is "flp_" + name */
  char signature[64]; /* abi.h signature that the kernel was built for */
  uint32_t threads;   /* of a CTA */
  uint32_t shared_bytes; /* dynamic shared memory */
} flp_kernel_entry;

typedef struct flp_kernel_desc {
  flp_kernel_key key;
  uint8_t sources[32];   /* hash of templates + generator */
  uint32_t ptx_major, ptx_minor;
  uint32_t entry_count;
  flp_kernel_entry entries[FLP_ENTRIES_MAX];
  /* tunables; 0 where the kind has none */
  uint32_t tile_rows, tile_columns, tile_depth, stages; /* products: tile_rows is M, tile_columns N, tile_depth K */
  uint32_t unit_columns; /* FORWARD: columns of one unit = one group of partials */
  uint32_t raster;       /* raster width: the most row panels before the next columns */
  uint32_t cluster;      /* entries named ..._map: CTAs of a cluster, along the rows; else 0 */
  /* DZ: the backward layout that was measured to be the fastest; 0: no preference. Columns alone ask
   * for recompute-vocab, rows alone for recompute-rows, both for recompute-split, in chunks of that size or, where the
   * budget has no room, smaller ones.
   * FORWARD with part keep: rows of a chunk of stream mode, likewise; no columns. */
  uint32_t chunk_rows, chunk_vocab;
} flp_kernel_desc;

/* Launch grid of an entry that has one CTA a tile: tiles in x, never over 2^31-1 (checked by the planner). */

/* Serialises; returns bytes written, 0 if capacity is too small. FLP_DESC_BYTES_MAX always suffices. */
enum { FLP_DESC_BYTES_MAX = 2048 };
size_t flp_kernel_desc_write(const flp_kernel_desc *desc, uint8_t *out, size_t capacity);

/* 1 if the kernel takes its operands through tensor maps, and is launched in clusters. */
int flp_kernel_is_mapped(const flp_kernel_desc *desc);
/* Rows of the tiles of a cluster, or of one tile. */
int64_t flp_kernel_panel_rows(const flp_kernel_desc *desc);

/* error: CORRUPT naming the field: bad version, length, unterminated string, count, or a signature that differs from
 * this library's abi.h */
flp_status flp_kernel_desc_read(const uint8_t *bytes, size_t length, flp_kernel_desc *out);

/* Hash of templates and generator that this library was built beside (the generated header flp_sources.h). */
const uint8_t *flp_sources_hash(void);
/* 64 hexadecimal digits: hash of libflp's own C. */
const char *flp_runtime_id(void);

#endif

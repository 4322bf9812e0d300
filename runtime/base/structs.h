/* structs.h: the structs of flp.h as callers of another release have them.
 *
 * A struct grows at its end and nowhere else, so its size identifies the release that the caller was compiled against.
 * A smaller one is read over the INIT value of the fields that it lacks, and is written as far as it goes. A larger one
 * is accepted while the bytes beyond those known here are 0. Fields are added in whole words of 8 bytes, padding
 * included: what a compiler leaves in padding need not be 0. */
#ifndef FLP_STRUCTS_H
#define FLP_STRUCTS_H

#include "runtime/flp.h"

/* X(id, type, what messages call it, name of its INIT value, bytes in release 0.1.0, which never change) */
#define FLP_STRUCTS(X)                                                              \
  X(SPEC, flp_spec, "spec", FLP_SPEC_INIT, 88)                                      \
  X(OPTIONS, flp_options, "options", FLP_OPTIONS_INIT, 64)                          \
  X(ARGS, flp_args, "args", FLP_ARGS_INIT, 392)                                     \
  X(SELECT_ARGS, flp_select_args, "args", FLP_SELECT_ARGS_INIT, 128)                \
  X(SCALE_ARGS, flp_scale_args, "args", FLP_SCALE_ARGS_INIT, 48)                    \
  X(DIVERGE_ARGS, flp_diverge_args, "args", FLP_DIVERGE_ARGS_INIT, 120)              \
  X(LAYOUT, flp_layout, "layout", FLP_LAYOUT_INIT, 72)                              \
  X(LOSS_DESCRIPTION, flp_loss_description, "out", FLP_LOSS_DESCRIPTION_INIT, 1496) \
  X(ARENA_STATS, flp_arena_stats, "stats", FLP_ARENA_STATS_INIT, 72)

typedef enum flp_struct_id {
#define FLP_STRUCT_ID(id, type, name, INIT, first) FLP_STRUCT_##id,
  FLP_STRUCTS(FLP_STRUCT_ID)
#undef FLP_STRUCT_ID
} flp_struct_id;

/* Writes a caller's struct as this release has it, struct_bytes included. given: not NULL, and not out itself.
 * error: ARGUMENT names the struct and the sizes */
flp_status flp_struct_read(flp_struct_id id, const void *given, void *out);

/* Whether flp_struct_write can write to a caller's struct. error: as flp_struct_read */
flp_status flp_struct_check(flp_struct_id id, const void *given);

/* Writes value, a struct of this release, to a caller's struct that was checked: the fields that it has, except
 * struct_bytes. */
void flp_struct_write(flp_struct_id id, const void *value, void *given);

#endif

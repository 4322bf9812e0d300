/* structs.h: the structs of flp.h as callers of another release have them.
 *
 * A struct grows at its end and nowhere else, so its size identifies the release that the caller was compiled against.
 * A smaller one is read over the INIT value of the fields that it lacks, and is written as far as it goes. A larger one
 * is accepted while the bytes beyond those known here are 0. Fields are added in whole words of 8 bytes, padding
 * included: what a compiler leaves in padding need not be 0. */
#ifndef FLP_STRUCTS_H
#define FLP_STRUCTS_H

#include "runtime/flp.h"

typedef enum flp_struct_id {
  FLP_STRUCT_SPEC,
  FLP_STRUCT_OPTIONS,
  FLP_STRUCT_ARGS,
  FLP_STRUCT_SELECT_ARGS,
  FLP_STRUCT_LAYOUT,
  FLP_STRUCT_LOSS_DESCRIPTION,
  FLP_STRUCT_ARENA_STATS
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

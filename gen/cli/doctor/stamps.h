/* stamps.h: architectures that have never run where they are sold, and what `flpgen prove` has found here. */
#ifndef FLPGEN_CLI_DOCTOR_STAMPS_H
#define FLPGEN_CLI_DOCTOR_STAMPS_H

#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/table.h"
#include "runtime/load/unproven.h"

enum { DOCTOR_STAMPS_MAX = 128 };

typedef struct doctor_stamp {
  int device;
  const char *arch;
  flp_proof proof;
} doctor_stamp;

/* Those of every device. Returns their number. */
int doctor_stamps_examine(const flp_device *devices, int count, int driver, doctor_stamp out[DOCTOR_STAMPS_MAX]);
json_t *doctor_stamps_json(const doctor_stamp *stamps, int count);
/* A row each: name, state, what is known and how to prove it. */
void doctor_stamps_add(const doctor_stamp *stamps, int count, cli_table *table);

#endif

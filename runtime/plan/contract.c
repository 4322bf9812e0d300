/* contract.c: what decides the bits of a plan's scores, in words that two programs can compare. */
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/fields.h"
#include "runtime/base/status.h"
#include "runtime/base/structs.h"
#include "runtime/eager/eager.h"
#include "runtime/plan/plan.h"

/* The fields of a spec that scores, and sums of their exponentials, depend on; all others add outputs or gradients. */
static const uint64_t deciding =
    1ull << FLP_FIELD_dtype | 1ull << FLP_FIELD_vocab | 1ull << FLP_FIELD_hidden | 1ull << FLP_FIELD_has_bias |
    1ull << FLP_FIELD_softcap | 1ull << FLP_FIELD_per_row_temperature | 1ull << FLP_FIELD_listed |
    1ull << FLP_FIELD_hidden_dtype | 1ull << FLP_FIELD_weight_dtype | 1ull << FLP_FIELD_bias_dtype |
    1ull << FLP_FIELD_mixed | 1ull << FLP_FIELD_lora_rank;
_Static_assert(FLP_SPEC_FIELD_COUNT <= 64, "a bit a field");

/* A hash of the code: libflp's own, and the kernels' or what the CPU multiplies with. */
static flp_status hash_code(const flp_plan *plan, uint8_t out[crypto_hash_sha256_BYTES]) {
  uint8_t below[32];
  const char *products = plan->rung == FLP_RUNG_EAGER ? flp_eager_products() : "";
  if (plan->rung == FLP_RUNG_EAGER)
    FLP_TRY(flp_eager_fingerprint(plan->spec.hidden, below));
  else
    memcpy(below, flp_sources_hash(), sizeof below);
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
  crypto_hash_sha256_update(&state, (const unsigned char *)flp_runtime_id(), strlen(flp_runtime_id()));
  crypto_hash_sha256_update(&state, (const unsigned char *)products, strlen(products));
  crypto_hash_sha256_update(&state, below, sizeof below);
  crypto_hash_sha256_final(&state, out);
  return FLP_OK;
}

static void add_number(char out[FLP_CONTRACT_BYTES], const char *name, float value) {
  size_t used = strlen(out);
  snprintf(out + used, FLP_CONTRACT_BYTES - used, " %s=%.9g", name, (double)value);
}

flp_status flp_plan_contract(const flp_plan *plan, const flp_args *args, char out[FLP_CONTRACT_BYTES]) {
  char path[32] = "cpu", fields[FLP_SPEC_TEXT_BYTES];
  uint8_t code[crypto_hash_sha256_BYTES];
  flp_args given = FLP_ARGS_INIT;
  flp_detail_clear();
  if (!plan || !out) return flp_fail(FLP_ERROR_ARGUMENT, "%s is NULL", plan ? "out" : "plan");
  if (plan->spec.op != FLP_OP_HEAD)
    return flp_fail(FLP_ERROR_ARGUMENT, "the plan's spec.op is %d (accepted: FLP_OP_HEAD 0)", (int)plan->spec.op);
  if (args) FLP_TRY(flp_struct_read(FLP_STRUCT_ARGS, args, &given));
  FLP_TRY(hash_code(plan, code));
  if (plan->rung != FLP_RUNG_EAGER)
    snprintf(path, sizeof path, "%s on %d.%d", plan->arch, plan->device.major, plan->device.minor);
  snprintf(out, FLP_CONTRACT_BYTES, "%s: %s", path, flp_plan_fields_text(&plan->spec, deciding, fields));
  add_number(out, "scale", given.scale);
  if (!plan->spec.per_row_temperature) add_number(out, "temperature", given.temperature);
  if (plan->spec.lora_rank) add_number(out, "lora_scale", given.lora_scale);
  size_t used = strlen(out);
  snprintf(out + used, FLP_CONTRACT_BYTES - used, " code=%02x%02x%02x%02x%02x%02x%02x%02x", code[0], code[1], code[2],
           code[3], code[4], code[5], code[6], code[7]);
  return FLP_OK;
}

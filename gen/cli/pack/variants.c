/* variants.c: other specialisations of a model, beside the tuned one. */
#include "gen/cli/pack/pack.h"

void cli_pack_variants(const cli_pack_spec *given, cli_pack_spec out[CLI_PACK_VARIANTS]) {
  const uint32_t grads[] = {0, given->spec.grads & FLP_GRAD_HIDDEN, given->spec.grads};
  enum { GRADS = sizeof grads / sizeof grads[0] };
  _Static_assert(2 * GRADS == CLI_PACK_VARIANTS, "without entropy and with");
  for (int i = 0; i < CLI_PACK_VARIANTS; i++) {
    cli_pack_spec *variant = &out[i];
    flp_spec *spec = &variant->spec;
    *variant = *given;
    spec->grads = grads[i % GRADS];
    spec->entropy = i < GRADS ? FLP_ENTROPY_NONE : spec->grads ? FLP_ENTROPY_BACKWARD : FLP_ENTROPY_FORWARD;
    if (!spec->grads) spec->tail = 0;
    spec->keep =
        spec->grads && spec->dtype == FLP_DTYPE_BF16 && !spec->listed && !(spec->tail > 0) && spec->targets <= 1;
    spec->loss = NULL;
    spec->loss_bytes = 0;
  }
}

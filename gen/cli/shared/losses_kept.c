/* losses_kept.c: the losses that a command line names, kept until the program ends: specs borrow their bytes, and kernels
 * are generated from them. */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/shared/losses.h"

typedef struct kept {
  struct kept *next;
  flp_loss program;
  uint8_t bytes[FLP_LOSS_BYTES_MAX], digest[crypto_hash_sha256_BYTES];
  size_t length;
} kept;

static kept *first;

static kept *find(const uint8_t digest[crypto_hash_sha256_BYTES]) {
  for (kept *at = first; at; at = at->next)
    if (memcmp(at->digest, digest, sizeof at->digest) == 0) return at;
  return NULL;
}

flp_status cli_loss_keep(const char *text, flp_spec *spec) {
  cli_loss loss;
  FLP_TRY(cli_loss_load(text, &loss));
  uint8_t bytes[FLP_LOSS_BYTES_MAX], digest[crypto_hash_sha256_BYTES];
  size_t length = flp_loss_write(&loss.program, bytes, sizeof bytes);
  crypto_hash_sha256(digest, bytes, length);
  kept *there = find(digest);
  if (!there) {
    there = calloc(1, sizeof *there);
    if (!there) return flp_fail(FLP_ERROR_MEMORY, "out of memory for a loss");
    *there = (kept){.next = first, .program = loss.program, .length = length};
    memcpy(there->bytes, bytes, length);
    memcpy(there->digest, digest, sizeof digest);
    first = there;
  }
  spec->loss = there->bytes;
  spec->loss_bytes = length;
  return FLP_OK;
}

const flp_loss *cli_loss_kept(const uint8_t digest[32]) {
  const kept *there = find(digest);
  return there ? &there->program : NULL;
}

const flp_loss *cli_loss_of(const flp_spec *spec) {
  for (const kept *at = first; at; at = at->next)
    if (at->bytes == spec->loss) return &at->program;
  return NULL;
}

flp_entropy cli_loss_entropy(const flp_spec *spec) {
  const flp_loss *loss = cli_loss_of(spec);
  if (!loss) return FLP_ENTROPY_NONE;
  if (flp_loss_is_active(loss) & FLP_LOSS_BY_ENTROPY && spec->grads) return FLP_ENTROPY_BACKWARD;
  return flp_loss_inputs(loss) >> FLP_LOSS_ENTROPY & 1 ? FLP_ENTROPY_FORWARD : FLP_ENTROPY_NONE;
}

flp_status cli_loss_args_add(const char *text, void *place) {
  cli_loss_args *args = place;
  if (args->set_count == FLP_LOSS_PARAMETERS_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "--loss-parameter: '%s' is one too many; at most %d are accepted", text,
                    FLP_LOSS_PARAMETERS_MAX);
  args->sets[args->set_count++] = text;
  return FLP_OK;
}

/* error: ARGUMENT naming --loss and --targets */
static flp_status check_targets(const flp_loss *program, const flp_spec *spec) {
  int is_over_targets = flp_loss_is_over_targets(program);
  if (spec->op != FLP_OP_HEAD || is_over_targets == (spec->targets > 1)) return FLP_OK; /* else the library refuses */
  if (is_over_targets)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--loss: %s is a loss over several targets a row; --targets K, from 2 to %d, is needed beside it",
                    program->name, FLP_TARGETS_MAX);
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "--targets: not accepted beside --loss %s, a loss of one target; a loss over several, such as "
                  "forward_kl, is",
                  program->name);
}

flp_status cli_loss_args_resolve(cli_loss_args *args, flp_spec *spec) {
  if (!args->name) {
    if (args->set_count == 0) return FLP_OK;
    return flp_fail(FLP_ERROR_ARGUMENT, "--loss-parameter: '%s' is not accepted without --loss", args->sets[0]);
  }
  FLP_TRY(cli_loss_keep(args->name, spec));
  const flp_loss *program = cli_loss_of(spec);
  FLP_TRY(check_targets(program, spec));
  for (uint32_t i = 0; i < program->parameter_count; i++) args->parameters[i] = program->parameters[i].fallback;
  for (int i = 0; i < args->set_count; i++)
    FLP_TRY(cli_loss_set(program, "--loss-parameter", args->sets[i], args->parameters));
  return FLP_OK;
}

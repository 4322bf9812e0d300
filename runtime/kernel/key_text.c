/* key_text.c: reads key bytes back into a key.
 *
 * Invariant: a text is accepted only if the key that was read writes the very same text, so there is one reading of
 * it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/kernel/kernel.h"

enum { WORD = 16, KIND = 64 };

/* A dtype by its name in keys; "none" and what is unknown are 0, which writes as "none". */
static flp_dtype dtype_of(const char *name) {
  for (int dtype = FLP_DTYPE_BF16; dtype <= FLP_DTYPE_FP64; dtype++)
    if (strcmp(flp_dtype_name((flp_dtype)dtype), name) == 0) return (flp_dtype)dtype;
  return (flp_dtype)0;
}

static int read_tune(const flp_kernel_key *key, const char *text, flp_tunables *out) {
  char whole[FLP_TUNABLES_TEXT_BYTES + KIND];
  flp_tuning tuning;
  *out = (flp_tunables){0};
  if (strcmp(text, "own") == 0) return 1;
  snprintf(whole, sizeof whole, "%s:%s", flp_kernel_kind_name(key->kind), text);
  if (flp_tuning_parse("tune", whole, &tuning) != FLP_OK) return 0;
  *out = tuning.of[key->kind];
  return 1;
}

static void read_digest(const char hex[65], uint8_t out[32]) {
  for (int i = 0; i < 32; i++) {
    unsigned byte = 0;
    sscanf(hex + 2 * i, "%2x", &byte);
    out[i] = (uint8_t)byte;
  }
}

int flp_kernel_key_read(const char *text, flp_kernel_key *out, uint8_t sources[32]) {
  char kind[KIND], dtype[WORD], target[WORD], written[WORD], tune[FLP_TUNABLES_TEXT_BYTES], loss[65] = "",
      hex[65] = "";
  char again[FLP_KEY_BYTES_MAX];
  int format = 0, end = 0;
  memset(out, 0, sizeof *out);
  _Static_assert(FLP_TUNABLES_TEXT_BYTES == 96 && sizeof out->arch == 16, "the widths below");
  int fields = sscanf(text,
                      "flp-key/%9d kind=%63s arch=%15s dtype=%15s target=%15s out=%15s entropy=%9" SCNu32
                      " bias=%9" SCNu32 " bias_grad=%9" SCNu32 " softcap=%9" SCNu32 " lora=%9" SCNu32
                      " weight=%9" SCNu32 " alignment=%9" SCNu32
                      " hidden=%18" SCNd64 " vocab=%18" SCNd64 " tune=%95s loss=%64[0-9a-fno] sources=%64[0-9a-f] tuned=%n",
                      &format, kind, out->arch, dtype, target, written, &out->entropy, &out->bias, &out->bias_grad,
                      &out->softcap, &out->lora, &out->weight_form, &out->alignment, &out->hidden, &out->vocab, tune,
                      loss, hex, &end);
  if (fields != 18 || !end) return 0;
  out->kind = flp_kind_find(kind, strlen(kind));
  out->dtype = dtype_of(dtype);
  out->target_dtype = dtype_of(target);
  out->out_dtype = dtype_of(written);
  if (!out->kind || !read_tune(out, tune, &out->tune)) return 0;
  read_digest(hex, sources);
  if (flp_kind_has(out->kind, FLP_KIND_LOSS)) read_digest(loss, out->loss);
  flp_kernel_key_canonicalise(out);
  return flp_kernel_key_bytes(out, sources, text + end, again, sizeof again) > 0 && strcmp(again, text) == 0;
}

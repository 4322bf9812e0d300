/* trust.c: the trusted keys of a verb: those of --trust, else FLP_PACK_KEYS. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/pack/pack.h"

flp_status cli_pack_trust_add(const char *text, void *place) {
  cli_pack_trust *trust = place;
  cli_public_key key;
  char hex[CLI_KEY_TEXT], *grown = NULL;
  FLP_TRY(cli_key_read_public(text, &key));
  cli_key_hex(key.bytes, hex);
  if (asprintf(&grown, "%s%s%s", trust->keys ? trust->keys : "", trust->keys ? "," : "", hex) < 0)
    return flp_fail(FLP_ERROR_MEMORY, "out of memory");
  free(trust->keys);
  trust->keys = grown;
  return FLP_OK;
}

flp_status cli_pack_trust_finish(cli_pack_trust *trust) {
  if (trust->keys) return FLP_OK;
  const char *given = secure_getenv("FLP_PACK_KEYS"); /* of any length here */
  trust->keys = strdup(given ? given : "");
  return trust->keys ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "out of memory");
}

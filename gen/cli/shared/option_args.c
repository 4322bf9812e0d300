/* option_args.c: see option_args.h. */
#include "gen/cli/shared/option_args.h"

#include "runtime/base/fields.h"

flp_status cli_option_parse(int key, const char *text, unsigned modes, flp_options *out) {
  enum { ORDINAL_MOST = 4096, THREADS_MOST = 4096 };
  int64_t value = 1;
  switch ((cli_option_key)key) {
    case CLI_KEY_BUDGET:
      return cli_parse_bytes("--budget", text, &out->budget_bytes);
    case CLI_KEY_MODE:
      return cli_parse_mode_of(text, modes, &out->mode);
    case CLI_KEY_CHUNK_ROWS:
      return cli_parse_integer("--chunk-rows", text, 1, FLP_COUNT_MAX, &out->chunk_rows);
    case CLI_KEY_CHUNK_VOCAB:
      return cli_parse_integer("--chunk-vocab", text, 1, FLP_COUNT_MAX, &out->chunk_vocab);
    case CLI_KEY_RUNG:
      return cli_parse_rung("--rung", text, &out->rung);
    case CLI_KEY_DEVICE:
      FLP_TRY(cli_parse_integer("--device", text, 0, ORDINAL_MOST, &value));
      out->device = (int32_t)value;
      return FLP_OK;
    case CLI_KEY_THREADS:
      FLP_TRY(cli_parse_integer("--threads", text, 1, THREADS_MOST, &value));
      out->threads = (int32_t)value;
      return FLP_OK;
    case CLI_KEY_STRICT:
    case CLI_KEY_OPTION_END:
      out->strict = 1;
      return FLP_OK;
  }
  return FLP_OK;
}

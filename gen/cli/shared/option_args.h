/* option_args.h: the options of flp_options, a row each. A verb names those that it takes in its own list, CLI_OPTION(RUNG, 3),
 * or one with help of its own, and gives their keys to cli_option_parse. */
#ifndef FLPGEN_CLI_OPTION_ARGS_H
#define FLPGEN_CLI_OPTION_ARGS_H

#include "gen/cli/shared/common.h"

typedef enum cli_option_key {
  CLI_KEY_BUDGET = CLI_KEY_OPTION,
  CLI_KEY_MODE,
  CLI_KEY_CHUNK_ROWS,
  CLI_KEY_CHUNK_VOCAB,
  CLI_KEY_RUNG,
  CLI_KEY_DEVICE,
  CLI_KEY_THREADS,
  CLI_KEY_STRICT,
  CLI_KEY_OPTION_END
} cli_option_key;

#define CLI_OPTION(ID, group) \
  { CLI_OPTION_##ID, group }
#define CLI_OPTION_BUDGET "budget", CLI_KEY_BUDGET, "BYTES", 0, "workspace of each pass: bytes, " FLP_BYTES_FORMS
#define CLI_OPTION_CHUNK_ROWS "chunk-rows", CLI_KEY_CHUNK_ROWS, "N", 0, "rows of one backward chunk"
#define CLI_OPTION_CHUNK_VOCAB "chunk-vocab", CLI_KEY_CHUNK_VOCAB, "N", 0, "vocab columns of one backward chunk"
#define CLI_OPTION_RUNG "rung", CLI_KEY_RUNG, "NAME", 0, "auto (default), tuned, heuristic, jit, generic or eager"
#define CLI_OPTION_DEVICE "device", CLI_KEY_DEVICE, "N", 0, "CUDA ordinal, default 0"
#define CLI_OPTION_THREADS "threads", CLI_KEY_THREADS, "N", 0, "CPU threads of the eager rung; default all"
#define CLI_OPTION_STRICT "strict", CLI_KEY_STRICT, NULL, 0, "fail where a lower rung would run"

static inline int cli_is_option(int key) {
  return key >= CLI_KEY_OPTION && key < CLI_KEY_OPTION_END;
}
/* parse.c: sets a field as its option says. modes: of --mode, as cli_parse_mode_of takes them. error: ARGUMENT naming the option */
flp_status cli_option_parse(int key, const char *text, unsigned modes, flp_options *out);

#endif

/* option_args.h: options of verbs, a row each: the field that an option sets, and what it accepts.
 *
 * Those that are a switch or take any text have no row: their keys say the field, CLI_SWITCH(gen_args, json). Those of
 * flp_options stand here; a verb names the ones that it takes in its own list, CLI_OPTION(RUNG, 3), or one with help of
 * its own. */
#ifndef FLPGEN_CLI_OPTION_ARGS_H
#define FLPGEN_CLI_OPTION_ARGS_H

#include "gen/cli/shared/common.h"

typedef enum cli_option_key {
  CLI_KEY_BUDGET = CLI_KEY_OPTION,
  CLI_KEY_MODE,
  CLI_KEY_CHUNK_ROWS,
  CLI_KEY_CHUNK_VOCAB,
  CLI_KEY_RUNG,
  CLI_KEY_ARCH,
  CLI_KEY_DEVICE,
  CLI_KEY_THREADS,
  CLI_KEY_STRICT,
  CLI_KEY_TEMPLATES,
  CLI_KEY_OPTION_END
} cli_option_key;

#define CLI_OPTION(ID, group) \
  { CLI_OPTION_##ID, group }
#define CLI_OPTION_BUDGET "budget", CLI_KEY_BUDGET, "BYTES", 0, "workspace of each pass: bytes, " FLP_BYTES_FORMS
#define CLI_OPTION_CHUNK_ROWS "chunk-rows", CLI_KEY_CHUNK_ROWS, "N", 0, "rows of one backward chunk"
#define CLI_OPTION_CHUNK_VOCAB "chunk-vocab", CLI_KEY_CHUNK_VOCAB, "N", 0, "vocab columns of one backward chunk"
#define CLI_OPTION_RUNG "rung", CLI_KEY_RUNG, "NAME", 0, "auto (default), tuned, heuristic, jit, generic or eager"
#define CLI_OPTION_ARCH "arch", CLI_KEY_ARCH, "NAME", 0, "kernels of this one alone; sm_80's run on any newer GPU"
#define CLI_OPTION_DEVICE "device", CLI_KEY_DEVICE, "N", 0, "CUDA ordinal, default 0"
#define CLI_OPTION_THREADS "threads", CLI_KEY_THREADS, "N", 0, "CPU threads of the eager rung; default all"
#define CLI_TEMPLATES_HELP "take templates from here, not those built in"
#define CLI_OPTION_TEMPLATES "template-dir", CLI_KEY_TEMPLATES, "DIR", 0, CLI_TEMPLATES_HELP ", and generate all kernels"
#define CLI_OPTION_STRICT "strict", CLI_KEY_STRICT, NULL, 0, "fail where a lower rung would run"

/* Keys that say the field; argp takes 23 bits. */
enum { CLI_KEYS_SWITCH = 0x100000, CLI_KEYS_TEXT = 0x200000, CLI_KEYS_PLACES = 0x100000 };
#define CLI_SWITCH(type, field) (CLI_KEYS_SWITCH + (int)offsetof(type, field)) /* an int, which becomes 1 */
#define CLI_TEXT(type, field) (CLI_KEYS_TEXT + (int)offsetof(type, field))     /* a const char * */

typedef enum cli_value_kind {
  CLI_VALUES_END,
  CLI_IS_SWITCH,    /* an int, which becomes 1 */
  CLI_IS_QUIET,     /* the same, and the library is quiet */
  CLI_IS_TEXT,      /* a const char *; where the option stands alone, the row's unsaid */
  CLI_IS_INTEGER,   /* of any width, least to most */
  CLI_IS_FP32,      /* a double, as cli_parse_fp32 */
  CLI_IS_POSITIVE,  /* a double, as cli_parse_positive */
  CLI_IS_BYTES,     /* a uint64_t */
  CLI_IS_WORD,      /* one of words */
  CLI_IS_FLAGS,     /* any of words */
  CLI_IS_LIST,      /* a cli_texts: it may be repeated, up to most times */
  CLI_IS_OWN,       /* as parse says; place: of what it is given */
  CLI_IS_ARGUMENTS, /* of ARGP_KEY_ARGS: a char **, all of them, the last NULL */
  CLI_IS_ARGUMENT,  /* of ARGP_KEY_ARG: a const char *; unsaid: what is said where it is missing */
  CLI_IS_JSON_FILE  /* of ARGP_KEY_ARG: the file of a bare --json: so argp hands an optional value over */
} cli_value_kind;

enum { CLI_TEXTS_MAX = 256 };
typedef struct cli_texts {
  const char *text[CLI_TEXTS_MAX];
  int count;
} cli_texts;

typedef struct cli_value {
  int key;
  cli_value_kind kind;
  size_t place, bytes; /* in the verb's arguments: CLI_PLACE */
  int64_t least, most;
  const cli_choice *words;
  const char *unsaid;
  flp_status (*parse)(const char *text, void *place);
} cli_value;
#define CLI_PLACE(type, field) .place = offsetof(type, field), .bytes = sizeof(((type *)0)->field)

/* The options of a verb. Its arguments begin with cli_spec_args if argp has those children. */
struct cli_values {
  struct argp argp;      /* its parser is cli_values_parse, or calls it */
  const cli_value *rows; /* the last is {0} */
  size_t call;           /* where its flp_options are, if it takes any of them */
  unsigned modes;        /* of --mode, as cli_parse_mode_of takes them */
  flp_status (*run)(void *input); /* of a verb whose arguments begin as zeros: CLI_RUN; else NULL */
  size_t bytes, json;             /* its arguments, and where among them the switch of --json is */
};
#define CLI_OPTIONS(of_argp, reads, values) .argp.options = of_argp, .argp.parser = reads, .rows = values
#define CLI_RUN(type, function) .run = function, .bytes = sizeof(type), .json = offsetof(type, json)

static inline int cli_is_option(int key) {
  return key >= CLI_KEY_OPTION && key < CLI_KEY_OPTION_END;
}
/* The parser of argp, whose input is the verb's arguments; for cli_parse and cli_parse_line. */
error_t cli_values_parse(int key, char *text, struct argp_state *state);
/* The folder of --template-dir, or NULL. */
const char *cli_templates(void);
/* Lets plans have the templates of --template-dir, if that was given, and pins the generator's rung.
 * error: ARGUMENT beside another rung; IO; UNAVAILABLE without that generator */
flp_status cli_templates_use(flp_options *options);
/* flp_sources_id, or that of generator and those templates. */
const char *cli_sources_id(void);
/* "--rows", the option of a key. */
const char *cli_values_name(const cli_values *values, int key, char out[CLI_TEXT_BYTES]);

#endif

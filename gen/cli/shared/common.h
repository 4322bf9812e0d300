/* common.h: what every verb shares: exit codes, parsing of argument values, reporting of errors, small formats.
 *
 * Convention: a verb does its work in functions that return flp_status with a detail sentence (status.h) and ends in
 * cli_finish, the one place that writes an error. A sentence names the field, its value and what is accepted. */
#ifndef FLPGEN_CLI_COMMON_H
#define FLPGEN_CLI_COMMON_H

#include <argp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "runtime/base/names.h"
#include "runtime/base/output.h"
#include "runtime/base/status.h"
#include "runtime/flp.h"

/* Documented in every --help; pinned. */
enum cli_exit {
  CLI_EXIT_OK = 0,
  CLI_EXIT_FAILED = 1,      /* a check failed, or the data held bad values */
  CLI_EXIT_USAGE = 2,       /* a bad argument or shape; a budget that is too small */
  CLI_EXIT_UNAVAILABLE = 3, /* no GPU, driver, library or rung for this */
  CLI_EXIT_IO = 4,          /* a file could not be read or written, or is not what it claims to be */
  CLI_EXIT_INTERNAL = 5     /* a template, the generator or flpgen itself failed */
};
#define CLI_EXIT_HELP                                                    \
  "Exit status:\n"                                                       \
  "  0  success\n"                                                       \
  "  1  a check failed, or the data held bad values\n"                   \
  "  2  wrong usage: an argument, a shape, a budget that is too small\n" \
  "  3  unavailable: no GPU, driver, library, memory or rung for this\n" \
  "  4  a file is unreadable, unwritable or corrupt\n"                   \
  "  5  a template, the generator or flpgen itself failed"

int cli_exit_code(flp_status status);

/* Writes "VERB: detail" to stderr if status is a failure and, if json, {"error": {...}} to stdout. Returns the exit
 * code. */
int cli_finish(const char *verb, int json, flp_status status);
/* Prints {"error": {...}} to stdout. */
void cli_error_print_json(flp_status status, const char *detail);

/* ---- usage.c ---- */

typedef struct cli_values cli_values; /* the options of a verb: option_args.h */

/* Parses the arguments of a verb, beside the options that every verb has: -h, --help, --usage, -V. Ends the process
 * after help, and after wrong usage with exit status 2; with --json the error is on stdout too, as by cli_finish. */
void cli_parse(const cli_values *values, int argc, char **argv, void *input);
/* -h, --help, --usage, -V. */
extern const struct argp_option CLI_COMMON_OPTIONS[];
/* Parses further words of the verb that cli_parse was called for, such as a line of a file. */
void cli_parse_line(const cli_values *values, int argc, char **argv, void *input);

/* Writes "NAME: message", NAME being argv[0], and with --json among the words the error as JSON. Returns 2. */
int cli_usage_error(int argc, char **argv, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* What --version prints: GNU's first line, then what decides which kernels are the same. */
const char *cli_version_text(void);

/* 1 for -h, --help and -?. */
int cli_is_help(const char *word);
/* 1 if the word names the action; "ls" and "list" are the same. */
int cli_is_action(const char *word, const char *name);

/* A verb, or an action of one such as `flpgen pack ACTION`; a list of them ends with a NULL name. */
typedef struct cli_action {
  const char *name;
  int (*run)(int argc, char **argv); /* NULL: argp has what runs */
  const char *help;
  const cli_values *argp;           /* its own options; NULL of a verb that has actions */
  const struct cli_action *actions; /* NULL of one that has none */
} cli_action;
/* Parses the arguments of a verb and runs it, once in a process. Returns the exit code. */
int cli_verb_run(const cli_action *verb, int argc, char **argv);
/* Runs the action that argv[1] names, with "VERB ACTION" as its argv[0], or prints the help: head, a line an action,
 * tail. Returns the exit code. */
int cli_action_run(int argc, char **argv, const cli_action *actions, const char *head, const char *tail);
/* Wrong usage: argv[1] is none of them. what: "an action" */
int cli_action_unknown(int argc, char **argv, const char *what, const cli_action *actions);

/* Messages of the library go to stderr: warnings and errors, or errors alone. */

void cli_log_start(void);
void cli_log_quiet(void);

/* Ends an argp parser callback on a value that was not accepted: prints the detail and exits 2. */
void cli_argp_check(struct argp_state *state, flp_status status);

/* Keys of options without a short form start here; spec_args.h and option_args.h have ranges of their own. */
enum { CLI_KEY_FIRST = 0x1000, CLI_KEY_SPEC = 0x2000, CLI_KEY_OPTION = 0x3000 };

/* Parse one value of a field; the whole text must be used. error: ARGUMENT */
flp_status cli_parse_integer(const char *field, const char *text, int64_t least, int64_t most, int64_t *out);
flp_status cli_parse_number(const char *field, const char *text, double *out);   /* finite */
flp_status cli_parse_fp32(const char *field, const char *text, double *out);     /* 0, or normal in fp32 */
flp_status cli_parse_positive(const char *field, const char *text, double *out); /* above 0, normal in fp32 */
/* Of --mode: a name or letter of those whose bits (1 << mode; 1 for auto, which is 0) are in accepted. */
flp_status cli_parse_mode_of(const char *text, unsigned accepted, flp_mode *out);
enum {
  /* score has no backward pass */
  CLI_BACKWARD_MODES = ((1u << (FLP_MODE_DIRECTION + 1)) - 1) & ~(1u << FLP_MODE_SCORE),
  CLI_CHECK_MODES = CLI_BACKWARD_MODES | 1u << FLP_MODE_LISTED | 1u << FLP_MODE_TAIL, /* whose cases are chosen by it */
  CLI_TUNE_MODES = 1u << FLP_MODE_SAVE | 1u << FLP_MODE_STREAM | 1u << FLP_MODE_DIRECTION
};
#define CLI_MODES_HELP                                                                                                 \
  "auto (default), recompute-vocab (R_VOCAB), recompute-rows (R_ROWS), recompute-split (R2), save (S), stream (P) or " \
  "direction (D)"
flp_status cli_parse_kept(const char *text, void *out); /* of --keep-set: a double >= 1 */
/* Of --tail, as flp_spec.tail has it: a number, a quotient or a power. */
#define CLI_TAIL_LEAST 0x1p-20
#define CLI_TAIL_MOST 0x1p-2
#define CLI_TAIL_USUAL 0x1p-9f /* half a unit of bf16; what mode tail stands for */
flp_status cli_parse_tail(const char *text, float *out);
flp_status cli_parse_burst(const char *text, void *out); /* of --burst-ms: a double */

/* A word of a fixed list; the list ends with a NULL name. */
typedef flp_word cli_choice;
flp_status cli_parse_choice(const char *field, const char *text, const cli_choice *choices, int *out);
/* Words separated by commas; *out is the union of their bits. */
flp_status cli_parse_flags(const char *field, const char *text, const cli_choice *choices, uint32_t *out);
/* Integers separated by commas. */
flp_status cli_parse_integers(const char *field, const char *text, int64_t least, int64_t most, int capacity,
                              int64_t *out, int *count);

extern const cli_choice CLI_ENTROPY_VALUES[]; /* without a gradient */

/* Of --emit: what a kernel is shown as. */
enum { CLI_EMIT_IR = 1, CLI_EMIT_OPT = 2, CLI_EMIT_PTX = 4 };
extern const cli_choice CLI_EMITS[];
extern const cli_choice CLI_EFFORTS[]; /* of tune */

/* Operands of bench: random, or with rows as sharp as those of a trained model. */
typedef enum cli_data { CLI_DATA_RANDOM, CLI_DATA_POLICY, CLI_DATA_TEXT, CLI_DATA_BASE } cli_data;
extern const cli_choice CLI_DATA[];

/* Of doctor's --require: a rung, or any but eager. */
enum { CLI_REQUIRE_GPU = FLP_RUNG_EAGER + 1 };
extern const cli_choice CLI_REQUIRED[];

/* A short text by value, which lives as long as the expression that it stands in: cli_bytes(n).text. */
enum { CLI_TEXT_BYTES = 32 };
typedef struct cli_short {
  char text[CLI_TEXT_BYTES];
} cli_short;
cli_short cli_shortly(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "1.24 GB", "256 B": decimal units. "94 TFLOP". */
cli_short cli_bytes(double bytes);
cli_short cli_flops(double flops);

/* Opens a regular file to read, of so many bytes. error: IO */
flp_status cli_open_file(const char *path, int *fd, size_t *bytes);
/* Reads a whole one, at most limit bytes; *out is malloc'ed and NUL-terminated. error: IO, CORRUPT */
flp_status cli_read_file(const char *path, size_t limit, char **out, size_t *bytes);

/* Reads a file of text so, which no byte 0 ends early. error: IO, CORRUPT */
flp_status cli_read_text(const char *path, size_t limit, char **out);

/* Begins a file as flp_output_open does; what has its name and is no regular file, a device or a pipe, is written
 * itself. Only the user may write the file, or plans would not take kernels from it. error: IO */
flp_status cli_output_open(const char *path, flp_output *out);
/* Writes a whole file so. error: IO */
flp_status cli_write_file(const char *path, const void *bytes, size_t length);
/* Creates a directory and its parents unless they are there. error: IO */
flp_status cli_make_directory(const char *path);
/* "a/b" in malloc'ed memory. error: MEMORY */
flp_status cli_join_path(const char *directory, const char *name, char **out);

double cli_seconds_now(void);
/* Largest resident set of this process so far. */
uint64_t cli_peak_resident_bytes(void);

#endif

/* usage.c: what every verb does alike with its arguments: help, and wrong usage, with --json as JSON too. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/text.h"
#include "runtime/base/printable.h"

/* ---- whether JSON is asked for ---- */

/* 1 if the verb's --json may name a file: then the document goes there. */
static int takes_file(const struct argp *argp) {
  for (const struct argp_option *option = argp->options; option && (option->name || option->doc); option++)
    if (option->name && strcmp(option->name, "json") == 0) return option->flags & OPTION_ARG_OPTIONAL;
  return 0;
}

/* Whether the words ask for JSON on standard output. Whole options may be shortened; "--j" is the least. */
static int wants_json(int argc, char **argv, int may_name_file) {
  for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
    size_t length = strcspn(argv[i], "=");
    if (length < 3 || strncmp(argv[i], "--json", length) != 0) continue;
    const char *file = argv[i][length]                                          ? argv[i] + length + 1
                       : may_name_file && i + 1 < argc && argv[i + 1][0] != '-' ? argv[i + 1]
                                                                                : "-";
    if (strcmp(file, "-") == 0) return 1;
  }
  return 0;
}

/* ---- wrong usage ---- */

int cli_usage_error(int argc, char **argv, const char *format, ...) {
  char text[1024];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  cli_complain(argv[0], "%s", text);
  if (wants_json(argc, argv, 0)) cli_error_print_json(FLP_ERROR_ARGUMENT, text);
  return CLI_EXIT_USAGE;
}

/* What argp and getopt write to stderr before they end the process, kept to be made printable, and for the JSON
 * document. */
static struct {
  FILE *file, *standard; /* file: NULL while nothing is kept */
  char *text;            /* NULL without memory for it */
  size_t bytes;
  const char *name; /* of the verb */
  int is_wanted;    /* JSON */
  int is_registered;
} kept;

static void stop_keeping(void) {
  stderr = kept.standard;
  fclose(kept.file);
  kept.file = NULL;
  if (kept.text) flp_make_printable(kept.text);
  fputs(kept.text ? kept.text : "out of memory for a message\n", stderr);
}

/* At the end of the process. */
static void print_kept(void) {
  if (!kept.file) return;
  stop_keeping();
  if (!kept.text) return;
  size_t length = strlen(kept.name), from = 0;
  kept.text[strcspn(kept.text, "\n")] = 0; /* the second line says how to get help */
  if (strncmp(kept.text, kept.name, length) == 0 && strncmp(kept.text + length, ": ", 2) == 0) from = length + 2;
  if (kept.is_wanted && kept.bytes) cli_error_print_json(FLP_ERROR_ARGUMENT, kept.text + from);
  free(kept.text);
}

/* argp and getopt end the process at wrong usage; what they return is a failure of their own: no memory. */
static void parse_words(const struct argp *argp, int argc, char **argv, unsigned flags, void *input) {
  kept.text = NULL;
  FILE *memory = open_memstream(&kept.text, &kept.bytes);
  if (memory) {
    if (!kept.is_registered) atexit(print_kept);
    kept.is_registered = 1;
    kept.standard = stderr;
    kept.file = stderr = memory;
  }
  error_t failed = argp_parse(argp, argc, argv, flags, NULL, input);
  if (memory) {
    stop_keeping();
    free(kept.text);
  }
  if (failed)
    exit(cli_finish(kept.name, kept.is_wanted,
                    flp_fail(FLP_ERROR_MEMORY, "reading the arguments: %s",
                             failed == ENOMEM ? "out of memory" : strerror(failed))));
}

/* ---- the options of every verb ---- */

const char *cli_version_text(void) {
  static char text[160];
  snprintf(text, sizeof text, "flpgen " FLP_VERSION_STRING "\nsources %s\nLLVM " FLPGEN_LLVM_VERSION, flp_sources_id());
  return text;
}

enum { KEY_USAGE = CLI_KEY_FIRST - 1 };

const struct argp_option CLI_COMMON_OPTIONS[] = {{"help", 'h', NULL, 0, "print this help", -1},
                                                 {NULL, '?', NULL, OPTION_ALIAS | OPTION_HIDDEN, NULL, 0},
                                                 {"usage", KEY_USAGE, NULL, 0, "print a short form of it", -1},
                                                 {"version", 'V', NULL, 0, "print the version", -1},
                                                 {0}};

static error_t parse(int key, char *text, struct argp_state *state) {
  (void)text;
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = state->input;
      return 0;
    case 'h':
    case '?':
      argp_state_help(state, state->out_stream, ARGP_HELP_STD_HELP);
      return 0;
    case KEY_USAGE:
      argp_state_help(state, state->out_stream, ARGP_HELP_USAGE | ARGP_HELP_EXIT_OK);
      return 0;
    case 'V':
      fprintf(state->out_stream, "%s\n", argp_program_version);
      exit(CLI_EXIT_OK);
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

void cli_parse(const cli_values *values, int argc, char **argv, void *input) {
  const struct argp_child children[] = {{&values->argp, 0, NULL, 0}, {0}};
  const struct argp whole = {CLI_COMMON_OPTIONS, parse, NULL, NULL, children, NULL, NULL};
  kept.is_wanted = wants_json(argc, argv, takes_file(&values->argp));
  kept.name = argv[0];
  parse_words(&whole, argc, argv, ARGP_NO_HELP, input);
}

void cli_parse_line(const cli_values *values, int argc, char **argv, void *input) {
  parse_words(&values->argp, argc, argv, ARGP_NO_HELP, input);
}

/* ---- verbs that have actions ---- */

static void print_actions(FILE *out, const cli_action *actions, const char *head, const char *tail) {
  fputs(head, out);
  for (; actions->name; actions++) fprintf(out, "  %-8s %s\n", actions->name, actions->help);
  fputs(tail, out);
}

int cli_is_action(const char *word, const char *name) {
  static const char *const listing[] = {"ls", "list"};
  int is_listing = strcmp(name, listing[0]) == 0 || strcmp(name, listing[1]) == 0;
  return strcmp(word, name) == 0 || (is_listing && (strcmp(word, listing[0]) == 0 || strcmp(word, listing[1]) == 0));
}

int cli_is_help(const char *word) {
  return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "-?") == 0;
}

int cli_action_unknown(int argc, char **argv, const char *what, const cli_action *actions) {
  char names[256] = "";
  for (; actions->name; actions++) cli_append(names, sizeof names, ", ", "%s", actions->name);
  return cli_usage_error(argc, argv, "expected %s, one of %s, got '%s'", what, names, argv[1]);
}

int cli_verb_run(const cli_action *verb, int argc, char **argv) {
  if (verb->run) return verb->run(argc, argv);
  int json;
  static void *input; /* for as long as the process, with what options put there */
  input = calloc(1, verb->argp->bytes);
  if (!input) return cli_finish(argv[0], 0, flp_fail(FLP_ERROR_MEMORY, "out of memory"));
  cli_parse(verb->argp, argc, argv, input);
  memcpy(&json, (const char *)input + verb->argp->json, sizeof json);
  return cli_finish(argv[0], json, verb->argp->run(input));
}

int cli_action_run(int argc, char **argv, const cli_action *actions, const char *head, const char *tail) {
  const char *word = argc > 1 ? argv[1] : "";
  if (cli_is_help(word)) {
    print_actions(stdout, actions, head, tail);
    return CLI_EXIT_OK;
  }
  for (const cli_action *action = actions; action->name; action++) {
    if (!cli_is_action(word, action->name)) continue;
    char name[64];
    snprintf(name, sizeof name, "%s %s", argv[0], action->name);
    argv[1] = name;
    return cli_verb_run(action, argc - 1, argv + 1);
  }
  if (word[0]) return cli_action_unknown(argc, argv, "an action", actions);
  print_actions(stderr, actions, head, tail);
  return CLI_EXIT_USAGE;
}

/* report.c: `flpgen report`, one HTML page from tuning and benchmark records. */
#include "gen/cli/report/page.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/text.h"
#include "gen/cli/verbs.h"
#include "runtime/base/status.h"

enum { KEY_OUT = CLI_KEY_FIRST, KEY_NOTE, KEY_LANDSCAPES, KEY_JSON, FILES_MAX = 1024 };

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Page:", 2},
    {"out", KEY_OUT, "FILE", 0, "the page; default report.html, replaced if it is there; '-' for standard output", 2},
    {"note", KEY_NOTE, "TEXT", 0, "a sentence at the top of the page", 2},
    {"landscapes", KEY_LANDSCAPES, "N", 0, "landscapes of tunables drawn at most, default 40", 2},
    {"json", KEY_JSON, NULL, 0, "print one JSON document that lists what was drawn", 2},
    {0}};

typedef struct arguments {
  report_options options;
  const char *files[FILES_MAX];
  int file_count;
} arguments;

static error_t parse(int key, char *text, struct argp_state *state) {
  arguments *args = state->input;
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = &args->options.spec;
      return 0;
    case KEY_OUT:
      args->options.out = text;
      return 0;
    case KEY_NOTE:
      args->options.note = text;
      return 0;
    case KEY_LANDSCAPES:
      cli_argp_check(state, cli_parse_integer("--landscapes", text, 0, 10000, &args->options.landscapes));
      return 0;
    case KEY_JSON:
      args->options.json = 1;
      return 0;
    case ARGP_KEY_ARG:
      if (args->file_count == FILES_MAX) argp_error(state, "more than %d files are not accepted", FILES_MAX);
      args->files[args->file_count++] = text;
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

/* A database is recognised by its first bytes; everything else must be JSON. */
static flp_status is_database(const char *path, int *out) {
  static const char magic[] = "SQLite format 3";
  char head[sizeof magic] = "";
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return flp_fail(FLP_ERROR_IO, "%s: cannot open: %m", path);
  ssize_t got = read(fd, head, sizeof head);
  close(fd);
  if (got < 0) return flp_fail(FLP_ERROR_IO, "%s: cannot read: %m", path);
  *out = got == (ssize_t)sizeof head && memcmp(head, magic, sizeof magic) == 0;
  return FLP_OK;
}

static flp_status read_files(const arguments *args, report_data *data) {
  for (int i = 0; i < args->file_count; i++) {
    int database = 0;
    FLP_TRY(is_database(args->files[i], &database));
    FLP_TRY(database ? report_data_read(args->files[i], data) : report_bench_read(args->files[i], data));
  }
  report_data_sort(data);
  return FLP_OK;
}

static flp_status write_page(const char *page, size_t bytes, const report_options *given) {
  if (strcmp(given->out, "-") != 0) return cli_write_file(given->out, page, bytes);
  if (fwrite(page, 1, bytes, stdout) == bytes && fflush(stdout) == 0) return FLP_OK;
  return flp_fail(FLP_ERROR_IO, "standard output: cannot write");
}

static flp_status print_summary(const report_data *data, const report_options *given, size_t bytes) {
  if (given->json)
    return cli_json_print(json_pack("{s:o, s:o, s:i, s:i, s:i, s:i}", "out", cli_json_text(given->out), "bytes",
                                    cli_json_count(bytes), "files", data->source_count, "specs", data->spec_count,
                                    "candidates", data->candidate_count, "bench_rows", data->bench_count));
  if (strcmp(given->out, "-") != 0)
    cli_print(2, "%s: tuned shapes: %d; candidates: %d; benchmark rows: %d", given->out, data->spec_count,
              data->candidate_count, data->bench_count);
  return FLP_OK;
}

static flp_status draw(arguments *args, report_data *data) {
  report_options *given = &args->options;
  if (given->spec.spec.vocab || given->spec.spec.hidden || given->spec.model)
    FLP_TRY(cli_spec_args_resolve(&given->spec));
  else if (args->file_count == 0)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "expected records to draw, or --vocab and --hidden for the chart of memory, got none");
  FLP_TRY(read_files(args, data));
  char *page = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&page, &bytes);
  if (!out) return flp_fail(FLP_ERROR_MEMORY, "out of memory for the page");
  flp_status status = report_page(out, data, given);
  int failed = ferror(out);
  failed |= fclose(out) != 0;
  if (status == FLP_OK && failed) status = flp_fail(FLP_ERROR_MEMORY, "out of memory for the page");
  if (status == FLP_OK) status = write_page(page, bytes, given);
  free(page);
  return status == FLP_OK ? print_summary(data, given, bytes) : status;
}

static const struct argp_child children[] = {{&cli_spec_argp, 0, NULL, 1}, {0}};
const struct argp cli_report_argp = {
    options,
    parse,
    "[FILE...]",
    "Draws one HTML page, complete in itself, from the records of flpgen tune (SQLite) and of flpgen bench or "
    "python -m flp.bench (JSON): best against GEMM baselines and peers, time against sharpness of the rows where some "
    "were made with --data, landscape per tunable, rejected candidates, roofline, memory against rows. No GPU is "
    "needed."
    "\vThe specialisation is the one of the chart of memory; by default the first of the records. The same files "
    "give the same bytes.\n\n"
    "Examples:\n"
    "  flpgen report ~/.cache/flp/tune.sqlite bench.json\n"
    "  flpgen report --vocab 151936 --hidden 4096 --grad hidden,weight --out plan.html\n\n" CLI_EXIT_HELP,
    children,
    NULL,
    NULL};

int cli_report(int argc, char **argv) {
  arguments args = {.options = {.spec = CLI_SPEC_ARGS_INIT, .out = "report.html", .landscapes = 40}};
  cli_parse(&cli_report_argp, argc, argv, &args);
  report_data data;
  memset(&data, 0, sizeof data);
  int to_standard = strcmp(args.options.out, "-") == 0;
  flp_status status =
      args.options.json && to_standard
          ? flp_fail(FLP_ERROR_ARGUMENT, "--json and --out=- are not accepted together; both write to standard output")
          : draw(&args, &data);
  int code = cli_finish(argv[0], args.options.json, status);
  report_data_clear(&data);
  return code;
}

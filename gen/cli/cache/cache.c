/* cache.c: `flpgen cache ls|verify|gc`, the kernel cache as its directories and files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gen/cli/shared/common.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/table.h"
#include "gen/cli/shared/text.h"
#include "gen/cli/verbs.h"
#include "runtime/store/internal.h"

enum { KEY_KEEP = CLI_KEY_FIRST };

typedef struct cache_args {
  const char *action, *directory;
  uint64_t keep;
  int json, has_keep;
} cache_args;

static const struct argp_option options[] = {
    {"keep", KEY_KEEP, "SIZE", 0,
     "gc: the most bytes to keep of what plans take, " FLP_BYTES_FORMS "; default all of that", 0},
    {"dir", CLI_TEXT(cache_args, directory), "DIR", 0,
     "look at this directory in place of FLP_CACHE_DIR and FLP_CACHE_PATH", 0},
    {"json", CLI_SWITCH(cache_args, json), NULL, 0, "print one JSON document", 0},
    {0}};

static flp_status parse_keep(const char *text, void *place) {
  cache_args *args = place;
  args->has_keep = 1;
  return flp_bytes_parse("--keep", text, 0, &args->keep);
}

static const cli_value values[] = {{KEY_KEEP, CLI_IS_OWN, .parse = parse_keep},
                                   {ARGP_KEY_ARG, CLI_IS_ARGUMENT, CLI_PLACE(cache_args, action),
                                    .unsaid = "expected an action, one of ls, verify, gc, got none"},
                                   {0}};

static error_t parse(int key, char *text, struct argp_state *state) {
  const cache_args *args = state->input;
  error_t error = cli_values_parse(key, text, state);
  if (key == ARGP_KEY_END && args->has_keep && strcmp(args->action, "gc") != 0)
    argp_error(state, "--keep: is accepted by gc only, not by '%s'", args->action);
  return error;
}

/* Totals over the entries. */
typedef struct listing {
  cli_table table;
  json_t *entries; /* NULL when a table is made */
  uint64_t count, bytes, bad, others; /* others: of other sources */
  char made[FLP_STORE_MADE_BYTES];    /* by whom, the first of them */
} listing;

/* The value of " name=" in key text; "-" if absent. */
static const char *key_field(const char *key, const char *name, char *out, size_t capacity) {
  char pattern[32];
  snprintf(pattern, sizeof pattern, " %s=", name);
  const char *at = strstr(key, pattern);
  snprintf(out, capacity, "-");
  if (!at) return out;
  at += strlen(pattern);
  snprintf(out, capacity, "%.*s", (int)strcspn(at, " "), at);
  return out;
}

static void start_table(cli_table *table) {
  cli_table_start(table, "file", "kernel", "arch", "dtype", "vocab x hidden", "tuned for", "size", "modified", "state",
                  NULL);
  cli_table_may_move(table, 5, "tuned for ");
  cli_table_may_move(table, 0, "file ");
}

static void add_table_row(listing *list, const flp_store_item *item) {
  int is_cubin = strncmp(item->key, "flp-cubin/", 10) == 0; /* machine code that was made here of an entry */
  int is_stamp = strncmp(item->key, "flp-proof/", 10) == 0; /* of flpgen prove */
  char file[32], kind[48], arch[32], dtype[32], shape[80], tuned[64], vocab[32], hidden[32], when[32] = "";
  snprintf(file, sizeof file, "%.16s...", item->file); /* of 64 digits; --json has them all */
  key_field(item->key, "vocab", vocab, sizeof vocab);
  key_field(item->key, "hidden", hidden, sizeof hidden);
  snprintf(shape, sizeof shape, "%s x %s", strcmp(vocab, "0") ? vocab : "any", strcmp(hidden, "0") ? hidden : "any");
  key_field(item->key, "kind", kind, 32);
  if (is_cubin) strcat(kind, " cubin");
  if (is_stamp) strcpy(kind, "stamp");
  time_t modified = (time_t)item->modified;
  struct tm parts;
  if (localtime_r(&modified, &parts)) strftime(when, sizeof when, "%Y-%m-%d %H:%M", &parts);
  cli_table_add(&list->table, file, kind, key_field(item->key, "arch", arch, sizeof arch),
                key_field(item->key, "dtype", dtype, sizeof dtype),
                item->key[0] && !is_cubin && !is_stamp ? shape : "-",
                key_field(item->key, "tuned", tuned, sizeof tuned), cli_bytes((double)item->bytes).text, when,
                item->status != FLP_OK ? "bad" : item->other_sources ? "no use" : "ok", NULL);
  if (item->status != FLP_OK) cli_table_note(&list->table, "%s", item->reason ? item->reason : "");
}

static json_t *item_json(const flp_store_item *item) {
  return json_pack("{s:o, s:o, s:b, s:o, s:I, s:o, s:s, s:o, s:b}", "directory", cli_json_text(item->directory), "file",
                   cli_json_text(item->file), "writable", item->writable, "bytes", cli_json_count(item->bytes),
                   "modified", (json_int_t)item->modified, "key", cli_json_text(item->key), "status",
                   flp_status_name(item->status), "reason", cli_json_text(item->reason ? item->reason : ""),
                   "other_sources", item->other_sources != NULL);
}

static int visit(void *context, const flp_store_item *item) {
  listing *list = context;
  list->count++;
  list->bytes += item->bytes;
  list->bad += item->status != FLP_OK;
  if (item->other_sources && list->others++ == 0) flp_store_made_by(NULL, item->other_sources, list->made);
  if (list->entries)
    json_array_append_new(list->entries, item_json(item));
  else
    add_table_row(list, item);
  return 1;
}

static flp_status open_store(const cache_args *args, flp_store **out) {
  flp_setting writable, path;
  flp_setting_get(FLP_SETTING_CACHE_DIR, &writable);
  flp_setting_get(FLP_SETTING_CACHE_PATH, &path);
  if (!args->directory) return flp_store_open(writable.value, path.value, out);
  int fd;
  FLP_TRY(store_file_open_directory(args->directory, 1, 0, &fd, NULL));
  close(fd);
  return flp_store_open(args->directory, NULL, out);
}

/* ls and verify visit the entries once; verify fails if an entry is bad. */
static flp_status list_entries(const cache_args *args, int verify) {
  flp_store *store = NULL;
  FLP_TRY(open_store(args, &store));
  listing list = {.entries = args->json ? json_array() : NULL};
  if (!args->json) start_table(&list.table);
  flp_status status = flp_store_each(store, visit, &list);
  flp_store_close(store);
  if (args->json && status == FLP_OK) {
    status =
        cli_json_print(json_pack("{s:I, s:o, s:I, s:I, s:o}", "entries_count", (json_int_t)list.count, "bytes",
                                 cli_json_count(list.bytes), "bad", (json_int_t)list.bad, "other_sources",
                                 (json_int_t)list.others, "entries", list.entries));
  } else if (args->json) {
    json_decref(list.entries);
  } else {
    cli_table_finish(&list.table);
    printf("%llu entries, %s, %llu bad\n", (unsigned long long)list.count, cli_bytes((double)list.bytes).text,
           (unsigned long long)list.bad);
    if (list.others) cli_print(2, "%llu of no use here: %s", (unsigned long long)list.others, list.made);
  }
  if (status == FLP_OK && verify && list.bad)
    status = flp_fail(FLP_ERROR_CORRUPT, "%llu of %llu entries are bad", (unsigned long long)list.bad,
                      (unsigned long long)list.count);
  return status;
}

static flp_status collect(const cache_args *args) {
  flp_store *store = NULL;
  uint64_t files = 0, bytes = 0;
  FLP_TRY(open_store(args, &store));
  flp_status status = flp_store_collect(store, args->has_keep ? args->keep : UINT64_MAX, &files, &bytes);
  flp_store_close(store);
  FLP_TRY(status);
  if (args->json)
    return cli_json_print(
        json_pack("{s:o, s:o}", "removed_files", cli_json_count(files), "removed_bytes", cli_json_count(bytes)));
  printf("removed %llu files, %s\n", (unsigned long long)files, cli_bytes((double)bytes).text);
  return FLP_OK;
}

const cli_values cli_cache_argp = {
    CLI_OPTIONS(options, parse, values),
    .argp.args_doc = "ls|verify|gc",
    .argp.doc =
        "Lists, verifies or cleans the kernel cache."
        "\vEntries are kernels, as `cubin` machine code that was made of them here, and as `stamp` what prove has "
        "found, which gc keeps. verify reads every entry and fails if one is bad. What flp of other sources made is "
        "sound and of no use; gc removes it, quarantined and stale files, then the oldest entries of the writable "
        "directory. list is ls.\n\n"
        "Examples:\n"
        "  flpgen cache ls\n"
        "  flpgen cache gc --keep 1G\n\n" CLI_EXIT_HELP};

int cli_cache(int argc, char **argv) {
  cache_args args = {.action = NULL};
  cli_parse(&cli_cache_argp, argc, argv, &args);
  flp_status status;
  int listed = 0; /* the JSON document has been printed */
  if (cli_is_action(args.action, "ls")) {
    status = list_entries(&args, 0);
  } else if (strcmp(args.action, "verify") == 0) {
    status = list_entries(&args, 1);
    listed = status == FLP_ERROR_CORRUPT;
  } else if (strcmp(args.action, "gc") == 0) {
    status = collect(&args);
  } else {
    status = flp_fail(FLP_ERROR_ARGUMENT, "expected an action, one of ls, verify, gc, got '%s'", args.action);
  }
  return cli_finish(argv[0], args.json && !listed, status);
}

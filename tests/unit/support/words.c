/* words.c: see words.h. */
#include "tests/unit/support/words.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/fields.h"
#include "runtime/base/args.h"
#include "runtime/plan/plan.h"
#include "tests/unit/support/stage.h"

/* The fields of flp_args, by their rows in args.h; of several pointers only the first two. */
#define FIELD(name, kind) {#name, kind, offsetof(flp_args, name)},
#define KIND(type) _Generic((type)0, float: 'f', int64_t: 'l', size_t: 'l', flp_pass: 'i', default: 'p')
#define NUMBER(type, name) FIELD(name, KIND(type))
#define ARRAY(type, name, ...) FIELD(name, 'p')
#define MATRIX(type, name, ...) FIELD(name, 'p') FIELD(name##_stride, 'l')
#define VECTOR(i) {"vector" #i, 'p', offsetof(flp_args, vectors) + (i) * sizeof(const float *)},
#define VECTORS(type, name, count) VECTOR(0) VECTOR(1)
const words_argument WORDS_ARGUMENT[] = {
    FLP_ARGS_FIELDS(NUMBER, ARRAY, MATRIX, VECTORS)
    {NULL, 0, 0}};

/* The next word of a text, or NULL. */
static const char *next_word(const char *text, char word[WORDS_BYTES]) {
  text += strspn(text, " ");
  size_t length = strcspn(text, " ");
  if (!length) return NULL;
  snprintf(word, WORDS_BYTES, "%.*s", (int)length, text);
  return text + length;
}

/* What stands behind "name=", "" for the name alone, or NULL; a name may end with its '=' itself. */
static const char *value_of(const char *word, const char *name) {
  size_t length = name ? strlen(name) : 0;
  if (!length || strncmp(word, name, length) != 0) return NULL;
  if (name[length - 1] == '=' || word[length] == 0) return word + length;
  return word[length] == '=' ? word + length + 1 : NULL;
}

int words_find(const char *text, const char *name, char out[WORDS_BYTES]) {
  char word[WORDS_BYTES];
  while ((text = next_word(text, word))) {
    const char *value = value_of(word, name);
    if (value) snprintf(out, WORDS_BYTES, "%s", value);
    if (value) return 1;
  }
  return 0;
}

static uint64_t number_of(const char *text) {
  char *end;
  uint64_t number = (uint64_t)strtoll(text, &end, 10);
  const char *suffix = *end ? strchr("KMG", *end) : NULL;
  return suffix ? number << (10 * (suffix - "KMG" + 1)) : number;
}

uint64_t words_number(const char *text, const char *name, uint64_t absent) {
  char value[WORDS_BYTES];
  return words_find(text, name, value) ? number_of(value) : absent;
}

/* ---- specs ---- */

static void unknown(const char *word, const char *of) {
  fprintf(stderr, "words: %s is no word of %s\n", word, of);
  abort();
}

/* Of a word, or a number that no word may have. */
static int word_value(const flp_word *words, const char *name, size_t length) {
  if (name[strspn(name, "-0123456789")] == 0) return atoi(name);
  for (; words->name; words++)
    if (strlen(words->name) == length && strncmp(words->name, name, length) == 0) return words->value;
  unknown(name, "its field");
  return 0;
}

static int64_t flags_of(const flp_word *words, const char *text) {
  int64_t flags = 0;
  for (size_t length; (length = strcspn(text, ",")); text += length + (text[length] == ','))
    flags |= word_value(words, text, length);
  return flags;
}

static void set_loss(flp_spec *spec, const char *name) {
  spec->loss_bytes = 0;
  spec->loss = NULL;
  if (strcmp(name, "none") == 0) return;
  static uint8_t program[FLP_LOSS_BYTES_MAX];
  if (flp_loss_builtin_bytes(name, program, sizeof program, &spec->loss_bytes) != FLP_OK) abort();
  spec->loss = program;
}

static void set_field(flp_spec *spec, const flp_field *field, const char *value) {
  int power;
  switch (field->kind) {
    case FLP_FIELD_INTEGER: flp_field_set(field, spec, (int64_t)number_of(value)); break;
    case FLP_FIELD_SWITCH:
    case FLP_FIELD_LISTS: flp_field_set(field, spec, *value ? (int64_t)number_of(value) : 1); break;
    case FLP_FIELD_WORD: flp_field_set(field, spec, word_value(field->words, value, strlen(value))); break;
    case FLP_FIELD_FLAGS: flp_field_set(field, spec, flags_of(field->words, value)); break;
    case FLP_FIELD_NUMBER: flp_field_set_number(field, spec, strtof(value, NULL)); break;
    case FLP_FIELD_SHARE:
      flp_field_set_number(field, spec, sscanf(value, "2^%d", &power) == 1 ? ldexpf(1, power) : strtof(value, NULL));
      break;
    case FLP_FIELD_LOSS: set_loss(spec, value); break;
  }
}

/* The first field that the text names so, else the first that an option does, else that of the struct. */
static const flp_field *field_of(const char *word, const char **value) {
  for (int by = 0; by < 3; by++)
    for (int i = 0; i < FLP_SPEC_FIELD_COUNT; i++) {
      const flp_field *field = &FLP_SPEC_FIELD[i];
      *value = value_of(word, by == 0 ? field->shown : by == 1 ? field->option : field->name);
      if (*value && (by || (**value != 0) == (strchr(field->shown, '=') != NULL))) return field;
    }
  unknown(word, "a spec");
  return NULL;
}

void words_change_spec(flp_spec *spec, const char *text) {
  char word[WORDS_BYTES];
  const char *value;
  while ((text = next_word(text, word))) {
    const flp_field *field = field_of(word, &value);
    set_field(spec, field, value);
  }
}

flp_spec words_spec(const char *text) {
  flp_spec spec = stage_spec(0);
  words_change_spec(&spec, text);
  return spec;
}

/* ---- options ---- */

#define OPTION(name, type) {#name, type, offsetof(flp_options, name)}
static const words_argument options[] = {
    OPTION(device, 'i'),        OPTION(rung, 'i'),        OPTION(strict, 'i'),     OPTION(host_fallback, 'i'),
    OPTION(budget_bytes, 'l'),  OPTION(chunk_rows, 'l'),  OPTION(chunk_vocab, 'l'), OPTION(threads, 'i'),
    OPTION(mode, 'i'),          OPTION(tune, 's'),        OPTION(cache_dir, 's'),  OPTION(cache_path, 's'),
    OPTION(arch, 's')};

static int option_value(const char *name, const char *value) {
  if (strcmp(name, "rung") == 0) return word_value(FLP_RUNG_WORDS, value, strlen(value));
  if (strcmp(value, "host") == 0) return FLP_DEVICE_HOST;
  if (strcmp(name, "mode") == 0 && flp_mode_find(value)) return (int)flp_mode_find(value);
  return *value ? atoi(value) : 1;
}

static void set_option(flp_options *out, const words_argument *row, const char *value) {
  static char texts[sizeof options / sizeof options[0]][WORDS_BYTES];
  char *field = (char *)out + row->offset, *text = texts[row - options];
  int number = row->type == 'i' ? option_value(row->name, value) : 0;
  int64_t wide = (int64_t)number_of(value);
  if (row->type == 'i') memcpy(field, &number, sizeof number);
  if (row->type == 'l') memcpy(field, &wide, sizeof wide);
  if (row->type != 's') return;
  snprintf(text, WORDS_BYTES, "%s", value);
  memcpy(field, &text, sizeof text);
}

flp_options words_options(const char *text) {
  flp_options out = stage_options(0, (flp_mode)0);
  char word[WORDS_BYTES];
  const char *value = NULL;
  while ((text = next_word(text, word))) {
    size_t i = 0;
    while (i < sizeof options / sizeof options[0] && !(value = value_of(word, options[i].name))) i++;
    if (!value) unknown(word, "the options");
    set_option(&out, &options[i], value);
  }
  return out;
}

/* ---- calls ---- */

/* By flp_pass. */
static const char *const pass_names[] = {"recomputed", "forward",        "combine",      "backward",
                                         "step",       "backward_saved", "forward_saved", "backward_given"};

const char *words_pass_name(flp_pass pass) {
  return pass_names[pass];
}

flp_pass words_pass(const char *name) {
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_LAST; pass++)
    if (strcmp(pass_names[pass], name) == 0) return (flp_pass)pass;
  return (flp_pass)0;
}

static const words_argument *row_of(const words_argument *rows, const char *word) {
  while (rows->name && !value_of(word, rows->name)) rows++;
  return rows->name ? rows : NULL;
}

/* An address of the row's own, or that of the row that the value names, and bytes behind it: "scores+2000". */
static void *address_of(const words_argument *rows, const words_argument *row, char *value) {
  char *offset = strchr(value, '+');
  if (offset) *offset++ = 0;
  if (*value) row = row_of(rows, value);
  return (char *)STAGE_AT(100 + (row - rows)) + (offset ? atoll(offset) : 0);
}

static void set_argument(void *out, const words_argument *rows, const words_argument *row, char *value) {
  char *field = (char *)out + row->offset;
  void *address = row->type == 'p' && value ? address_of(rows, row, value) : NULL;
  int64_t number = value ? (int64_t)number_of(value) : 0;
  int narrow = (int)number;
  double wide = value ? strtod(value, NULL) : 0;
  float real = (float)wide;
  if (row->type == 'p') memcpy(field, &address, sizeof address);
  if (row->type == 'l') memcpy(field, &number, sizeof number);
  if (row->type == 'i') memcpy(field, &narrow, sizeof narrow);
  if (row->type == 'f') memcpy(field, &real, sizeof real);
  if (row->type == 'd') memcpy(field, &wide, sizeof wide);
}

/* 1 if a word is no field, but says something else of a call. */
static int is_setting(const char *word) {
  static const char *const settings[] = {"budget", "workspace", "smallest", "of", "uncounted"};
  for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
    if (value_of(word, settings[i])) return 1;
  return 0;
}

void words_change_fields(void *out, const words_argument *rows, const char *text) {
  char word[WORDS_BYTES], name[WORDS_BYTES];
  while ((text = next_word(text, word))) {
    int is_none = word[0] == '-';
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word + is_none, "=+"), word + is_none);
    const words_argument *row = row_of(rows, name);
    char *value = word + is_none + strlen(name);
    if (is_setting(word)) continue;
    if (!row) unknown(word, "a call");
    set_argument(out, rows, row, is_none ? NULL : value + (*value == '='));
  }
}

static flp_status set_workspace(const flp_plan *plan, const char *text, flp_args *a) {
  char other[WORDS_BYTES];
  flp_layout layout = FLP_LAYOUT_INIT;
  uint64_t budget = words_number(text, "budget", 0);
  int keeps = a->saved && a->saved_bytes;
  flp_pass pass = a->grad_raw_scores            ? FLP_PASS_BACKWARD_GIVEN
                  : !keeps                      ? a->pass
                  : a->pass == FLP_PASS_FORWARD ? FLP_PASS_FORWARD_SAVED
                                                : FLP_PASS_BACKWARD_SAVED;
  if (words_find(text, "of", other)) pass = words_pass(other);
  flp_status status = plan->spec.listed && pass != FLP_PASS_COMBINE
                          ? flp_plan_layout_listed(plan, pass, a->n, a->list_count, budget, &layout)
                          : flp_plan_layout(plan, pass, a->n, budget, &layout);
  a->workspace_bytes = words_find(text, "smallest", other) ? layout.smallest_bytes : layout.bytes;
  a->workspace_bytes = words_number(text, "workspace", a->workspace_bytes);
  if (!a->workspace_bytes) a->workspace = NULL;
  return words_find(text, "workspace", other) ? FLP_OK : status;
}

flp_status words_call(const flp_plan *plan, const flp_spec *spec, flp_pass pass, const char *text, flp_args *out) {
  *out = stage_args(spec, pass == FLP_PASS_STEP ? FLP_PASS_BACKWARD : pass, 0);
  out->pass = pass;
  if (pass == FLP_PASS_STEP) out->stats = NULL, out->grad_logprob = NULL;
  words_change_fields(out, WORDS_ARGUMENT, text);
  if (out->saved && !out->saved_bytes)
    out->saved_bytes = flp_planner_saved_bytes(&plan->spec, flp_plan_keeps(plan), out->n);
  return set_workspace(plan, text, out);
}

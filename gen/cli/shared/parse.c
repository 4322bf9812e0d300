/* parse.c: parsing of argument values, each failure naming the field, the value and what is accepted. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autotune/search.h"
#include "gen/cli/shared/common.h"
#include "gen/cli/shared/text.h"
#include "runtime/base/names.h"
#include "runtime/base/number.h"

#define ENTROPY(value, word) {word, FLP_ENTROPY_##value},
const cli_choice CLI_ENTROPY_VALUES[] = {FLP_ENTROPY_VALUES(ENTROPY){NULL, 0}};
const cli_choice CLI_EMITS[] = {{"ir", CLI_EMIT_IR}, {"opt", CLI_EMIT_OPT}, {"ptx", CLI_EMIT_PTX}, {NULL, 0}};
const cli_choice CLI_EFFORTS[] = {
    {"quick", SEARCH_QUICK}, {"normal", SEARCH_NORMAL}, {"exhaustive", SEARCH_EXHAUSTIVE}, {NULL, 0}};
const cli_choice CLI_DATA[] = {{"random", CLI_DATA_RANDOM},
                               {"policy", CLI_DATA_POLICY},
                               {"text", CLI_DATA_TEXT},
                               {"base", CLI_DATA_BASE},
                               {NULL, 0}};
const cli_choice CLI_REQUIRED[] = {{"gpu", CLI_REQUIRE_GPU},
                                   {"tuned", FLP_RUNG_TUNED},
                                   {"heuristic", FLP_RUNG_HEURISTIC},
                                   {"jit", FLP_RUNG_JIT},
                                   {"generic", FLP_RUNG_GENERIC},
                                   {"eager", FLP_RUNG_EAGER},
                                   {NULL, 0}};

flp_status cli_parse_integer(const char *field, const char *text, int64_t least, int64_t most, int64_t *out) {
  char *end;
  errno = 0;
  long long value = strtoll(text, &end, 10);
  if (end == text || *end || errno || value < least || value > most)
    return flp_fail(FLP_ERROR_ARGUMENT, "%s: expected a whole number from %lld to %lld, got '%s'", field,
                    (long long)least, (long long)most, text);
  *out = value;
  return FLP_OK;
}

flp_status cli_parse_number(const char *field, const char *text, double *out) {
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end || !isfinite(value))
    return flp_fail(FLP_ERROR_ARGUMENT, "%s: expected a finite number, got '%s'", field, text);
  *out = value;
  return FLP_OK;
}

flp_status cli_parse_fp32(const char *field, const char *text, double *out) {
  FLP_TRY(cli_parse_number(field, text, out));
  if (flp_number_fits(*out)) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "%s: expected 0 or a magnitude from " FLP_NUMBER_RANGE ", got '%s'", field, text);
}

flp_status cli_parse_positive(const char *field, const char *text, double *out) {
  FLP_TRY(cli_parse_number(field, text, out));
  if (flp_number_is_positive(*out)) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "%s: expected a number from " FLP_NUMBER_RANGE ", got '%s'", field, text);
}

static flp_status find_choice(const char *field, const char *text, size_t length, const cli_choice *choices, int *out) {
  for (const cli_choice *choice = choices; choice->name; choice++)
    if (strlen(choice->name) == length && memcmp(choice->name, text, length) == 0) {
      *out = choice->value;
      return FLP_OK;
    }
  char names[256] = "";
  for (; choices->name; choices++) cli_append(names, sizeof names, ", ", "%s", choices->name);
  return flp_fail(FLP_ERROR_ARGUMENT, "%s: expected one of %s, got '%.*s'", field, names, (int)length, text);
}

flp_status cli_parse_choice(const char *field, const char *text, const cli_choice *choices, int *out) {
  return find_choice(field, text, strlen(text), choices, out);
}

flp_status cli_parse_flags(const char *field, const char *text, const cli_choice *choices, uint32_t *out) {
  uint32_t flags = 0;
  for (const char *word = text;; word++) {
    size_t length = strcspn(word, ",");
    int value = 0;
    FLP_TRY(find_choice(field, word, length, choices, &value));
    flags |= (uint32_t)value;
    word += length;
    if (*word == 0) break;
  }
  *out = flags;
  return FLP_OK;
}

flp_status cli_parse_integers(const char *field, const char *text, int64_t least, int64_t most, int capacity,
                              int64_t *out, int *count) {
  char *copy = strdup(text);
  if (!copy) return flp_fail(FLP_ERROR_MEMORY, "out of memory");
  flp_status status = FLP_OK;
  *count = 0;
  for (char *rest = copy, *word; status == FLP_OK && (word = strsep(&rest, ","));) {
    if (*count == capacity)
      status =
          flp_fail(FLP_ERROR_ARGUMENT, "%s: '%s' has too many numbers; at most %d are accepted", field, text, capacity);
    else
      status = cli_parse_integer(field, word, least, most, &out[*count]);
    *count += status == FLP_OK;
  }
  free(copy);
  return status;
}

flp_status cli_parse_mode_of(const char *text, unsigned accepted, flp_mode *out) {
  cli_choice choices[FLP_MODE_TAIL + 2] = {{NULL, 0}};
  int count = 0;
  for (int mode = 0; mode <= FLP_MODE_TAIL; mode++)
    if (accepted >> mode & 1) choices[count++] = (cli_choice){mode ? flp_mode_name((flp_mode)mode) : "auto", mode};
  flp_mode named = flp_mode_find(text);
  if (named && accepted >> named & 1) text = flp_mode_name(named);
  int value = 0;
  FLP_TRY(cli_parse_choice("--mode", text, choices, &value));
  *out = (flp_mode)value;
  return FLP_OK;
}

flp_status cli_parse_kept(const char *text, void *place) {
  double *out = place;
  FLP_TRY(cli_parse_number("--keep-set", text, out));
  if (*out >= 1) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "--keep-set: expected a number from 1 to the ids of the vocabulary, got '%s'",
                  text);
}

/* "0.002", "1/512" or "2^-9"; 0 for what is none of these. */
static double read_fraction(const char *text) {
  char *end;
  double value = strtod(text, &end), other = 1;
  char sign = end == text ? 0 : *end;
  if (sign == '/' || sign == '^') {
    const char *second = end + 1;
    other = strtod(second, &end);
    if (end == second) return 0;
  }
  if (end == text || *end) return 0;
  return sign == '^' ? pow(value, other) : value / other;
}

flp_status cli_parse_tail(const char *text, float *out) {
  double value = read_fraction(text);
  if (value >= CLI_TAIL_LEAST && value <= CLI_TAIL_MOST) {
    *out = (float)value;
    return FLP_OK;
  }
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "--tail: expected a number from 2^-20 to 2^-2, such as 2^-9, 1/512 or 0.002, got '%s'", text);
}

flp_status cli_parse_burst(const char *text, void *place) {
  double *out = place;
  FLP_TRY(cli_parse_number("--burst-ms", text, out));
  if (*out > 0 && *out <= 60000) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "--burst-ms: expected a number > 0 and at most 60000, got '%s'", text);
}

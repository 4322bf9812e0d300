/* tunables.c: tile configurations as text: reading it for keys, writing it into key bytes.
 *
 * Invariant: what is written is read back as the same tunables. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/status.h"
#include "runtime/kernel/kernel.h"

/* Every number is a count of rows, columns, stages, CTAs or row panels; none of them ever needs more. */
enum { LARGEST = 1024 };

static const char *const schedules[] = {
    [FLP_SCHEDULE_PING_PONG] = "ping-pong", [FLP_SCHEDULE_COOPERATIVE] = "cooperative"};
enum { SCHEDULES = sizeof schedules / sizeof schedules[0] };

/* The numbers that have a name of their own. */
static const struct {
  const char *name;
  size_t offset;
} numbers[] = {
    {"stages", offsetof(flp_tunables, stages)},
    {"cluster", offsetof(flp_tunables, cluster)},
    {"raster", offsetof(flp_tunables, raster)},
};
enum { NUMBERS = sizeof numbers / sizeof numbers[0] };

static const uint32_t *number_of(const flp_tunables *t, int i) {
  return (const uint32_t *)((const char *)t + numbers[i].offset);
}

/* A stretch of the text. */
typedef struct piece {
  const char *at;
  size_t length;
} piece;

/* Takes the piece up to the next divider off the text; 0 behind the last. */
static int next_piece(const char **text, char divider, piece *out) {
  if (!*text) return 0;
  const char *end = strchr(*text, divider);
  *out = (piece){*text, end ? (size_t)(end - *text) : strlen(*text)};
  *text = end ? end + 1 : NULL;
  return 1;
}

static int is_word(piece p, const char *word) {
  return strlen(word) == p.length && memcmp(p.at, word, p.length) == 0;
}

/* A number from 1 to LARGEST, all of the piece. */
static int read_number(piece p, uint32_t *out) {
  uint32_t value = 0;
  for (size_t i = 0; i < p.length; i++) {
    if (p.at[i] < '0' || p.at[i] > '9' || value > LARGEST) return 0;
    value = value * 10 + (uint32_t)(p.at[i] - '0');
  }
  *out = value;
  return p.length > 0 && value >= 1 && value <= LARGEST;
}

static int read_tile(piece p, flp_tunables *out) {
  const char *by = memchr(p.at, 'x', p.length);
  if (!by) return 0;
  piece rows = {p.at, (size_t)(by - p.at)}, columns = {by + 1, p.length - rows.length - 1};
  return read_number(rows, &out->rows) && read_number(columns, &out->columns);
}

static int read_item(piece p, flp_tunables *out) {
  for (uint32_t i = 1; i < SCHEDULES; i++)
    if (is_word(p, schedules[i])) {
      out->schedule = i;
      return 1;
    }
  for (int i = 0; i < NUMBERS; i++) {
    size_t name = strlen(numbers[i].name);
    if (p.length <= name || memcmp(p.at, numbers[i].name, name) != 0 || p.at[name] != '=') continue;
    return read_number((piece){p.at + name + 1, p.length - name - 1}, (uint32_t *)((char *)out + numbers[i].offset));
  }
  return read_tile(p, out);
}

/* The kind of that name, if templates leave a choice of it; else 0. */
static int kind_of(piece p) {
  flp_kernel_kind kind = flp_kind_find(p.at, p.length);
  return flp_kind_has(kind, FLP_KIND_TUNE) ? (int)kind : 0;
}

static flp_status parse_kind(const char *field, piece p, flp_tuning *out) {
  char text[256];
  snprintf(text, sizeof text, "%.*s", (int)(p.length < sizeof text ? p.length : sizeof text - 1), p.at);
  const char *items = strchr(text, ':');
  int kind = items ? kind_of((piece){text, (size_t)(items - text)}) : 0;
  char accepted[256];
  if (!kind)
    return flp_fail(FLP_ERROR_ARGUMENT, "%s: '%s' does not begin with a kernel (accepted: %s)", field, text,
                    flp_kind_list(FLP_KIND_TUNE, ":", accepted, sizeof accepted));
  items++;
  for (piece item; next_piece(&items, ',', &item);)
    if (!read_item(item, &out->of[kind]))
      return flp_fail(
          FLP_ERROR_ARGUMENT,
          "%s: '%.*s' of %s is not known (accepted: ping-pong, cooperative, a tile such as 128x192, stages=N, "
          "cluster=N, raster=N; N from 1 to %d)",
          field, (int)item.length, item.at, flp_kernel_kind_name((flp_kernel_kind)kind), LARGEST);
  return FLP_OK;
}

flp_status flp_tuning_parse(const char *field, const char *text, flp_tuning *out) {
  memset(out, 0, sizeof *out);
  if (!text || !text[0]) return FLP_OK;
  for (piece kind; next_piece(&text, ';', &kind);) FLP_TRY(parse_kind(field, kind, out));
  return FLP_OK;
}

int flp_tuning_is_set(const flp_tuning *tuning) {
  static const flp_tuning none;
  return memcmp(tuning, &none, sizeof none) != 0;
}

int flp_tunables_are_set(const flp_tunables *tunables) {
  static const flp_tunables none;
  return memcmp(tunables, &none, sizeof none) != 0;
}

void flp_tunables_text(const flp_tunables *t, char out[FLP_TUNABLES_TEXT_BYTES]) {
  size_t used = 0;
  if (t->schedule && t->schedule < SCHEDULES)
    used += (size_t)snprintf(out, FLP_TUNABLES_TEXT_BYTES, "%s,", schedules[t->schedule]);
  if (t->rows || t->columns)
    used +=
        (size_t)snprintf(out + used, FLP_TUNABLES_TEXT_BYTES - used, "%" PRIu32 "x%" PRIu32 ",", t->rows, t->columns);
  for (int i = 0; i < NUMBERS; i++)
    if (*number_of(t, i))
      used += (size_t)snprintf(out + used, FLP_TUNABLES_TEXT_BYTES - used, "%s=%" PRIu32 ",", numbers[i].name,
                               *number_of(t, i));
  if (used)
    out[used - 1] = 0; /* the last comma */
  else
    snprintf(out, FLP_TUNABLES_TEXT_BYTES, "own");
}

void flp_tuning_text(const flp_tuning *tuning, char out[FLP_TUNING_TEXT_BYTES]) {
  char one[FLP_TUNABLES_TEXT_BYTES];
  size_t used = 0;
  out[0] = 0;
  for (int kind = 1; kind < FLP_KERNEL_KINDS && used < FLP_TUNING_TEXT_BYTES; kind++) {
    if (!flp_tunables_are_set(&tuning->of[kind])) continue;
    flp_tunables_text(&tuning->of[kind], one);
    used += (size_t)snprintf(out + used, FLP_TUNING_TEXT_BYTES - used, "%s%s:%s", used ? ";" : "",
                             flp_kernel_kind_name((flp_kernel_kind)kind), one);
  }
}

flp_status flp_tuning_status(const char *field, const flp_kernel_key *key, flp_status status) {
  char tiling[FLP_TUNING_TEXT_BYTES];
  flp_tuning tuning = {0};
  tuning.of[key->kind] = key->tune;
  if (status != FLP_ERROR_COMPILE || !flp_tuning_is_set(&tuning)) return status;
  flp_tuning_text(&tuning, tiling);
  return flp_fail(FLP_ERROR_ARGUMENT, "%s is \"%s\", which is refused: %s", field, tiling, flp_error_detail());
}

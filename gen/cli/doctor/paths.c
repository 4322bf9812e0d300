/* paths.c: directories and packs that plans search, with the kernels tuned for this machine's devices. */
#include "gen/cli/doctor/paths.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gen/cli/pack/pack.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/table.h"
#include "runtime/base/status.h"
#include "runtime/store/internal.h"

typedef struct counting {
  const flp_device *devices;
  int device_count;
  doctor_path *out;
} counting;

/* Whether "<device name>/<SM count>/<driver>" names a device of this machine. */
static int is_here(const counting *c, const char *tuned_for) {
  for (int i = 0; i < c->device_count; i++) {
    char device[192];
    int length = snprintf(device, sizeof device, "%s/%d/", c->devices[i].name, c->devices[i].multiprocessors);
    if (strncmp(tuned_for, device, (size_t)length) == 0) return 1;
  }
  return 0;
}

static int count_key(void *context, const char *text) {
  const counting *c = context;
  const char *tuned = strstr(text, " tuned="), *other = flp_store_other_sources(text);
  c->out->entries++;
  if (other && c->out->other_sources++ == 0) flp_store_made_by(NULL, other, c->out->made);
  if (other || !tuned || !tuned[7]) return 1;
  if (is_here(c, tuned + 7))
    c->out->tuned_here++;
  else
    c->out->tuned_elsewhere++;
  return 1;
}

static void set_problem(doctor_path *out) {
  snprintf(out->problem, sizeof out->problem, "%s", flp_error_detail());
}

static void examine_pack(counting *c) {
  doctor_path *out = c->out;
  cli_pack_file file;
  flp_setting keys;
  struct stat stat;
  int fd;
  flp_status status = store_file_open_pack(out->path, &fd, &stat); /* owner and mode */
  if (status == FLP_OK) close(fd);
  if (status == FLP_OK) status = cli_pack_file_open(out->path, &file);
  if (status != FLP_OK) {
    set_problem(out);
    return;
  }
  for (uint32_t i = 0; i < file.pack->entry_count; i++) {
    char key[FLP_KEY_BYTES_MAX + 1] = "";
    memcpy(key, file.pack->entries[i].key, file.pack->entries[i].key_bytes);
    count_key(c, key);
  }
  const char *name = json_string_value(json_object_get(file.manifest, "name"));
  snprintf(out->name, sizeof out->name, "%s", name ? name : "");
  flp_setting_get(FLP_SETTING_PACK_KEYS, &keys);
  if (file.pack->is_signed)
    sodium_bin2hex(out->signer, sizeof out->signer, file.pack->signer, sizeof file.pack->signer);
  out->has_keys = keys.value[0] != 0;
  flp_status trust = store_pack_trusts(file.pack);
  out->is_trusted = out->signer[0] && out->has_keys && trust == FLP_OK;
  if (trust != FLP_OK) set_problem(out);
  cli_pack_file_other(&file, out->made);
  cli_pack_file_close(&file);
}

int doctor_path_can_be_made(const char *path) {
  char above[1024];
  snprintf(above, sizeof above, "%s", path);
  for (;;) {
    char *slash = strrchr(above, '/');
    if (!slash) return access(".", W_OK | X_OK) == 0;
    slash[slash == above] = 0;
    if (access(above, F_OK) == 0 || slash == above) return access(above, W_OK | X_OK) == 0;
  }
}

static void examine_directory(counting *c, int writable) {
  doctor_path *out = c->out;
  flp_store *store = NULL;
  int fd, absent;
  if (store_file_open_directory(out->path, writable, 0, &fd, &absent) != FLP_OK) {
    set_problem(out);
    out->is_absent = absent;
    if (absent) snprintf(out->problem, sizeof out->problem, "not there");
    if (absent && writable && doctor_path_can_be_made(out->path)) out->problem[0] = 0;
    return;
  }
  close(fd);
  if (flp_store_open(NULL, out->path, &store) != FLP_OK || flp_store_each_key(store, count_key, c) != FLP_OK)
    set_problem(out);
  flp_store_close(store);
}

static void examine(const counting *all, const char *path, size_t length, int writable, doctor_path *out) {
  counting c = *all;
  c.out = out;
  memset(out, 0, sizeof *out);
  snprintf(out->path, sizeof out->path, "%.*s", (int)length, path);
  out->is_pack = !writable && store_pack_is(out->path);
  if (out->is_pack)
    examine_pack(&c);
  else
    examine_directory(&c, writable);
  if (!writable && !out->problem[0] && out->entries && out->other_sources == out->entries)
    snprintf(out->problem, sizeof out->problem, "%.512s: %s", out->path, out->made);
}

int doctor_paths_examine(const flp_device *devices, int device_count, doctor_path out[DOCTOR_PATHS_MAX]) {
  counting all = {.devices = devices, .device_count = device_count};
  flp_setting list, cache;
  int count = 0;
  flp_setting_get(FLP_SETTING_CACHE_PATH, &list);
  flp_setting_get(FLP_SETTING_CACHE_DIR, &cache);
  for (const char *at = list.value; *at && count < DOCTOR_PATHS_MAX - 1;) {
    size_t length = strcspn(at, ":");
    if (length) examine(&all, at, length, 0, &out[count++]);
    at += length + (at[length] == ':');
  }
  if (cache.value[0]) examine(&all, cache.value, strlen(cache.value), 1, &out[count++]);
  return count;
}

/* ---- output ---- */

static const char *kind_of(const doctor_path *in) {
  return in->is_pack ? "pack" : "directory";
}

json_t *doctor_paths_json(const doctor_path *paths, int count) {
  json_t *list = json_array();
  for (int i = 0; i < count; i++) {
    const doctor_path *in = &paths[i];
    json_t *object = json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "path", cli_json_text(in->path), "kind",
                               kind_of(in), "entries", cli_json_count(in->entries), "tuned_here",
                               cli_json_count(in->tuned_here), "tuned_elsewhere", cli_json_count(in->tuned_elsewhere),
                               "other_sources", cli_json_count(in->other_sources), "usable",
                               json_boolean(!in->problem[0]), "problem", cli_json_text(in->problem));
    if (in->is_pack) {
      json_object_set_new(object, "name", cli_json_text(in->name));
      json_object_set_new(object, "signed", json_boolean(in->signer[0]));
      json_object_set_new(object, "signed_by", in->signer[0] ? json_string(in->signer) : json_null());
      json_object_set_new(object, "trusted", json_boolean(in->is_trusted));
    }
    json_array_append_new(list, object);
  }
  return list;
}

/* Whose a pack is. Opening it has read its table and compared the signature; the code is for `pack verify`. */
static void note_pack(cli_table *table, const doctor_path *in) {
  const char *trust = in->is_trusted ? "a trusted key"
                      : in->has_keys ? "no trusted key"
                                     : "compared with no trusted key: FLP_PACK_KEYS names none";
  char name[160] = "";
  if (in->name[0]) snprintf(name, sizeof name, "%s: ", in->name);
  if (in->signer[0])
    cli_table_note(table, "%ssigned with %.16s..., %s; its code was not verified", name, in->signer, trust);
  else
    cli_table_note(table, "%snot signed; its code was not verified", name);
}

static void add_path(cli_table *table, const doctor_path *in) {
  cli_table_addf(table, "%s\t%s\t%llu\t%llu\t%llu\t%llu\t%s", kind_of(in), in->problem[0] ? "no" : "ok",
                 (unsigned long long)in->entries, (unsigned long long)in->tuned_here,
                 (unsigned long long)in->tuned_elsewhere, (unsigned long long)in->other_sources, in->path);
  if (in->problem[0])
    cli_table_note(table, "%s", in->problem);
  else if (in->is_absent)
    cli_table_note(table, "not there yet; it is made when needed");
  else if (in->is_pack)
    note_pack(table, in);
  else if (in->other_sources)
    cli_table_note(table, "%llu were %s", (unsigned long long)in->other_sources, in->made);
}

void doctor_paths_print(const doctor_path *paths, int count) {
  cli_table table;
  cli_table_start(&table, "kernels from", "state", "entries", "tuned for this device", "for others", "by other sources",
                  "path", NULL);
  cli_table_may_move(&table, 6, "");
  for (int i = 0; i < count; i++) add_path(&table, &paths[i]);
  cli_table_finish(&table);
}

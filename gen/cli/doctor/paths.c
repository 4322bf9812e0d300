/* paths.c: every directory and pack that plans look into, with what is tuned for this machine's devices. */
#include "gen/cli/doctor/paths.h"

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
  const char *tuned = strstr(text, " tuned=");
  flp_kernel_key key;
  uint8_t sources[32];
  c->out->entries++;
  if (!tuned || !tuned[7]) return 1;
  if (!flp_kernel_key_read(text, &key, sources) || memcmp(sources, flp_sources_hash(), sizeof sources) != 0)
    c->out->tuned_before++;
  else if (is_here(c, tuned + 7))
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
  out->is_signed = file.pack->is_signed;
  out->is_trusted = flp_pack_trusts(file.pack, keys.value) == FLP_OK;
  if (!out->is_trusted) set_problem(out);
  cli_pack_file_close(&file);
}

static void examine_directory(counting *c, int writable) {
  doctor_path *out = c->out;
  flp_store *store = NULL;
  int fd, absent;
  if (store_file_open_directory(out->path, writable, 0, &fd, &absent) != FLP_OK) {
    set_problem(out);
    if (absent) snprintf(out->problem, sizeof out->problem, "not there");
    return;
  }
  close(fd);
  out->is_trusted = 1;
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
                               "tuned_before", cli_json_count(in->tuned_before), "usable",
                               json_boolean(!in->problem[0]), "problem", cli_json_text(in->problem));
    if (in->is_pack) {
      json_object_set_new(object, "name", cli_json_text(in->name));
      json_object_set_new(object, "signed", json_boolean(in->is_signed));
      json_object_set_new(object, "trusted", json_boolean(in->is_trusted));
    }
    json_array_append_new(list, object);
  }
  return list;
}

void doctor_paths_print(const doctor_path *paths, int count) {
  cli_table table;
  cli_table_start(&table, "kernels from", "kind", "name", "signed", "entries", "tuned for this device", "for others",
                  "by other sources", "state", NULL);
  for (int i = 0; i < count; i++) {
    const doctor_path *in = &paths[i];
    char entries[32], here[32], elsewhere[32], before[32];
    snprintf(entries, sizeof entries, "%llu", (unsigned long long)in->entries);
    snprintf(here, sizeof here, "%llu", (unsigned long long)in->tuned_here);
    snprintf(elsewhere, sizeof elsewhere, "%llu", (unsigned long long)in->tuned_elsewhere);
    snprintf(before, sizeof before, "%llu", (unsigned long long)in->tuned_before);
    const char *sign = !in->is_pack     ? "-"
                       : !in->is_signed ? "no"
                       : in->is_trusted ? "yes, trusted"
                                        : "yes, not trusted";
    cli_table_add(&table, in->path, kind_of(in), in->name[0] ? in->name : "-", sign, entries, here, elsewhere, before,
                  in->problem[0] ? in->problem : "ok", NULL);
  }
  cli_table_finish(&table);
}

/* desc.c: the serialised form of a kernel descriptor, version 9.
 *
 * Layout, little-endian, no padding: u32 version, u32 length of all, key {u32 kind; 16 arch; u32 dtype, target_dtype,
 * out_dtype, entropy, bias, bias_grad, softcap, lora, weight_form, alignment; i64 hidden, vocab; u32 schedule, rows,
 * columns, stages, cluster, raster; 32 loss}, 32 sources, u32 ptx_major, ptx_minor, entry_count, entries {64 name; 64
 * signature; u32 threads, shared_bytes}, u32 tile_rows, tile_columns, tile_depth, stages, unit_columns, raster, cluster,
 * chunk_rows, chunk_vocab.
 * Invariants: what is read back writes the same bytes (strings are zero after their end, keys are canonical); whoever
 * holds a descriptor that was read may divide by its tiles and use its strings without further checks. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "runtime/base/status.h"
#include "runtime/kernel/kernel.h"

/* ---- fields, in the order of their bytes ---- */

typedef struct desc_field {
  size_t offset, bytes;
  enum { NUMBER, TEXT, BYTES } kind; /* a number of 4 bytes or 8; a text that ends with zeros */
} desc_field;

#define FIELD(kind, type, name) \
  { offsetof(type, name), sizeof(((type *)0)->name), kind }
#define KEY(kind, name) FIELD(kind, flp_kernel_key, name)
#define ENTRY(kind, name) FIELD(kind, flp_kernel_entry, name)
#define DESC(kind, name) FIELD(kind, flp_kernel_desc, name)

static const desc_field key_fields[] = {
    KEY(NUMBER, kind),          KEY(TEXT, arch),          KEY(NUMBER, dtype),        KEY(NUMBER, target_dtype),
    KEY(NUMBER, out_dtype),     KEY(NUMBER, entropy),     KEY(NUMBER, bias),         KEY(NUMBER, bias_grad),
    KEY(NUMBER, softcap),       KEY(NUMBER, lora),        KEY(NUMBER, weight_form),  KEY(NUMBER, alignment),
    KEY(NUMBER, hidden),        KEY(NUMBER, vocab),
    KEY(NUMBER, tune.schedule), KEY(NUMBER, tune.rows),   KEY(NUMBER, tune.columns), KEY(NUMBER, tune.stages),
    KEY(NUMBER, tune.cluster),  KEY(NUMBER, tune.raster), KEY(BYTES, loss)};
static const desc_field head_fields[] = {DESC(BYTES, sources), DESC(NUMBER, ptx_major), DESC(NUMBER, ptx_minor),
                                         DESC(NUMBER, entry_count)};
static const desc_field entry_fields[] = {ENTRY(TEXT, name), ENTRY(TEXT, signature), ENTRY(NUMBER, threads),
                                          ENTRY(NUMBER, shared_bytes)};
static const desc_field tile_fields[] = {
    DESC(NUMBER, tile_rows), DESC(NUMBER, tile_columns), DESC(NUMBER, tile_depth),
    DESC(NUMBER, stages),    DESC(NUMBER, unit_columns), DESC(NUMBER, raster),
    DESC(NUMBER, cluster),   DESC(NUMBER, chunk_rows),   DESC(NUMBER, chunk_vocab)};
#define COUNT(fields) (sizeof(fields) / sizeof *(fields))

static void put_fields(flp_writer *w, const void *from, const desc_field *fields, size_t count) {
  for (const desc_field *f = fields; f < fields + count; f++) {
    const void *at = (const char *)from + f->offset;
    if (f->kind == BYTES) flp_put_bytes(w, at, f->bytes);
    if (f->kind == TEXT) flp_put_string(w, at, f->bytes);
    if (f->kind == NUMBER && f->bytes == 4) flp_put_u32(w, *(const uint32_t *)at);
    if (f->kind == NUMBER && f->bytes == 8) flp_put_u64(w, *(const uint64_t *)at);
  }
}

static void get_fields(flp_reader *r, void *to, const desc_field *fields, size_t count) {
  for (const desc_field *f = fields; f < fields + count; f++) {
    void *at = (char *)to + f->offset;
    if (f->kind != NUMBER) flp_get_bytes(r, at, f->bytes);
    if (f->kind == NUMBER && f->bytes == 4) *(uint32_t *)at = flp_get_u32(r);
    if (f->kind == NUMBER && f->bytes == 8) *(uint64_t *)at = flp_get_u64(r);
  }
}

/* ---- writing ---- */

size_t flp_kernel_desc_write(const flp_kernel_desc *desc, uint8_t *out, size_t capacity) {
  if (desc->entry_count > FLP_ENTRIES_MAX || capacity < 8) return 0;
  flp_writer w = {out, out + capacity, 0};
  flp_put_u32(&w, FLP_DESC_FORMAT);
  flp_put_u32(&w, 0); /* the length, once it is known */
  flp_kernel_key key = desc->key;
  flp_kernel_key_canonicalise(&key);
  put_fields(&w, &key, key_fields, COUNT(key_fields));
  put_fields(&w, desc, head_fields, COUNT(head_fields));
  for (uint32_t i = 0; i < desc->entry_count; i++) put_fields(&w, &desc->entries[i], entry_fields, COUNT(entry_fields));
  put_fields(&w, desc, tile_fields, COUNT(tile_fields));
  if (w.full) return 0;
  size_t length = (size_t)(w.at - out);
  flp_writer head = {out + 4, out + 8, 0};
  flp_put_u32(&head, (uint32_t)length);
  return length;
}

/* ---- reading: bytes first, then each field against what it may hold ---- */

static void get_body(flp_reader *r, flp_kernel_desc *desc) {
  get_fields(r, &desc->key, key_fields, COUNT(key_fields));
  get_fields(r, desc, head_fields, COUNT(head_fields));
  if (desc->entry_count > FLP_ENTRIES_MAX) return; /* check_desc refuses it */
  for (uint32_t i = 0; i < desc->entry_count; i++) get_fields(r, &desc->entries[i], entry_fields, COUNT(entry_fields));
  get_fields(r, desc, tile_fields, COUNT(tile_fields));
}

static int is_float(flp_dtype dtype) {
  return dtype == FLP_DTYPE_BF16 || dtype == FLP_DTYPE_FP16 || dtype == FLP_DTYPE_FP32;
}

static int is_index(flp_dtype dtype) {
  return dtype == FLP_DTYPE_INT32 || dtype == FLP_DTYPE_INT64;
}

static flp_status bad_field(const char *field, uint64_t value, const char *accepted) {
  return flp_fail(FLP_ERROR_CORRUPT, "descriptor: %s is %" PRIu64 ", accepted: %s", field, value, accepted);
}

static flp_status check_key(const flp_kernel_key *key) {
  char kinds[24];
  snprintf(kinds, sizeof kinds, "1 to %d", FLP_KERNEL_KINDS - 1);
  if (!flp_kind_of(key->kind)->facts) return bad_field("key.kind", key->kind, kinds);
  if (!flp_is_name(key->arch, sizeof key->arch, ""))
    return flp_fail(FLP_ERROR_CORRUPT, "descriptor: key.arch is not a terminated name such as sm_80");
  int takes_fp64 = flp_kind_has(key->kind, FLP_KIND_FP64);
  if (!is_float(key->dtype) && !(takes_fp64 && key->dtype == FLP_DTYPE_FP64))
    return bad_field("key.dtype", key->dtype, takes_fp64 ? "1 to 3, or 6" : "1 to 3");
  if (flp_kind_has(key->kind, FLP_KIND_TARGET) && !is_index(key->target_dtype))
    return bad_field("key.target_dtype", key->target_dtype, "4 or 5");
  if (flp_kind_has(key->kind, FLP_KIND_OUT) && !is_float(key->out_dtype))
    return bad_field("key.out_dtype", key->out_dtype, "1 to 3");
  uint32_t alignment = key->alignment;
  if (flp_kind_has(key->kind, FLP_KIND_ALIGNMENT) && (alignment < 2 || alignment > 16 || (alignment & (alignment - 1))))
    return bad_field("key.alignment", alignment, "2, 4, 8 or 16");
  if (key->hidden < 0) return bad_field("key.hidden", (uint64_t)key->hidden, "0 to 2^63-1");
  if (key->vocab < 0) return bad_field("key.vocab", (uint64_t)key->vocab, "0 to 2^63-1");
  if (key->tune.schedule > FLP_SCHEDULE_COOPERATIVE)
    return bad_field("key.tune.schedule", key->tune.schedule, "0 to 2");
  flp_kernel_key canonical = *key;
  flp_kernel_key_canonicalise(&canonical);
  /* Every byte of *key was zeroed before it was filled, so padding compares equal. */
  if (memcmp(&canonical, key, sizeof canonical) != 0)
    return flp_fail(FLP_ERROR_CORRUPT,
                    "descriptor: key of kind %s has an unused field set, or a flag that is not 0 or 1",
                    flp_kernel_kind_name(key->kind));
  return FLP_OK;
}

static flp_status check_entry(const flp_kernel_entry *entry, uint32_t i) {
  if (!flp_is_name(entry->name, sizeof entry->name, ""))
    return flp_fail(FLP_ERROR_CORRUPT, "descriptor: entries[%" PRIu32 "].name is not a terminated name", i);
  const flp_abi_entry *abi = flp_abi_find(entry->name);
  if (!abi)
    return flp_fail(FLP_ERROR_CORRUPT, "descriptor: entry %s is not one that this library launches", entry->name);
  if (!flp_is_name(entry->signature, sizeof entry->signature, ""))
    return flp_fail(FLP_ERROR_CORRUPT, "descriptor: signature of entry %s is not terminated", entry->name);
  char own[FLP_ABI_PARAMS_MAX + 1];
  if (strcmp(entry->signature, flp_abi_signature(abi, own)) != 0)
    return flp_fail(FLP_ERROR_CORRUPT, "descriptor: signature of entry %s is %s, this library's is %s", entry->name,
                    entry->signature, own);
  /* 1024 threads is the limit of a CTA on every architecture; shared memory has no such constant, so 1 MiB only
   * rules out nonsense and the driver has the last word. */
  if (entry->threads == 0 || entry->threads > 1024 || entry->threads % 32)
    return bad_field("entry threads", entry->threads, "multiples of 32 up to 1024");
  if (entry->shared_bytes > 1u << 20) return bad_field("entry shared_bytes", entry->shared_bytes, "0 to 1048576");
  return FLP_OK;
}

static flp_status check_entries(const flp_kernel_desc *desc) {
  for (uint32_t i = 0; i < desc->entry_count; i++) {
    FLP_TRY(check_entry(&desc->entries[i], i));
    if (!flp_kind_entry_find(desc->key.kind, desc->entries[i].name))
      return flp_fail(FLP_ERROR_CORRUPT, "descriptor: entry %s is none of kind %s", desc->entries[i].name,
                      flp_kernel_kind_name(desc->key.kind));
    for (uint32_t j = 0; j < i; j++)
      if (strcmp(desc->entries[i].name, desc->entries[j].name) == 0)
        return flp_fail(FLP_ERROR_CORRUPT, "descriptor: entry %s stands twice", desc->entries[i].name);
  }
  return FLP_OK;
}

/* The largest keeps the planner's products of two within 64 bits; of chunks it is any that an axis may hold. */
static flp_status check_tunables(const flp_kernel_desc *desc) {
  enum { LARGEST = 1 << 20 };
  flp_kernel_kind kind = desc->key.kind;
  uint32_t least = flp_kind_has(kind, FLP_KIND_TILED) != 0;
  const struct {
    const char *name;
    uint32_t value, least, most;
  } fields[] = {
      {"tile_rows", desc->tile_rows, least, LARGEST},
      {"tile_columns", desc->tile_columns, least, LARGEST},
      {"tile_depth", desc->tile_depth, 0, LARGEST},
      {"stages", desc->stages, 0, LARGEST},
      {"unit_columns", desc->unit_columns, flp_kind_has(kind, FLP_KIND_UNITS) != 0, LARGEST},
      {"raster", desc->raster, 0, LARGEST},
      {"cluster", desc->cluster, 0, LARGEST},
      {"chunk_rows", desc->chunk_rows, 0, flp_kind_has(kind, FLP_KIND_CHUNK_ROWS) ? INT32_MAX : 0},
      {"chunk_vocab", desc->chunk_vocab, 0, flp_kind_has(kind, FLP_KIND_CHUNK_VOCAB) ? INT32_MAX : 0},
  };
  for (size_t i = 0; i < COUNT(fields); i++) {
    char accepted[48] = "0 for a kernel of this kind";
    if (fields[i].value >= fields[i].least && fields[i].value <= fields[i].most) continue;
    if (fields[i].most) snprintf(accepted, sizeof accepted, "%u to %u", fields[i].least, fields[i].most);
    return bad_field(fields[i].name, fields[i].value, accepted);
  }
  return FLP_OK;
}

static flp_status check_desc(const flp_kernel_desc *desc) {
  FLP_TRY(check_key(&desc->key));
  if (desc->ptx_major == 0 || desc->ptx_major > 99) return bad_field("ptx_major", desc->ptx_major, "1 to 99");
  if (desc->ptx_minor > 99) return bad_field("ptx_minor", desc->ptx_minor, "0 to 99");
  FLP_TRY(check_entries(desc));
  return check_tunables(desc);
}

flp_status flp_kernel_desc_read(const uint8_t *bytes, size_t length, flp_kernel_desc *out) {
  flp_reader r = {bytes, bytes + length, 0};
  memset(out, 0, sizeof *out);
  uint32_t version = flp_get_u32(&r), stated_length = flp_get_u32(&r);
  if (r.short_of_bytes) return flp_fail(FLP_ERROR_CORRUPT, "descriptor: %zu bytes are too few", length);
  if (version != FLP_DESC_FORMAT) return bad_field("version", version, "9");
  if (stated_length != length)
    return flp_fail(FLP_ERROR_CORRUPT, "descriptor: length is %" PRIu32 ", there are %zu bytes", stated_length, length);
  flp_kernel_desc desc;
  memset(&desc, 0, sizeof desc);
  get_body(&r, &desc);
  char entries[24];
  snprintf(entries, sizeof entries, "1 to %d", FLP_ENTRIES_MAX);
  if (desc.entry_count == 0 || desc.entry_count > FLP_ENTRIES_MAX)
    return bad_field("entry_count", desc.entry_count, entries);
  if (r.short_of_bytes || r.at != r.end)
    return flp_fail(FLP_ERROR_CORRUPT, "descriptor: %zu bytes do not fit %" PRIu32 " entries", length,
                    desc.entry_count);
  FLP_TRY(check_desc(&desc));
  memcpy(out, &desc, sizeof desc);
  return FLP_OK;
}

int64_t flp_kernel_panel_rows(const flp_kernel_desc *desc) {
  return (int64_t)desc->tile_rows * (desc->cluster > 1 ? desc->cluster : 1);
}

int flp_kernel_is_mapped(const flp_kernel_desc *desc) {
  for (uint32_t i = 0; i < desc->entry_count; i++) {
    const flp_kind_entry *entry = flp_kind_entry_find(desc->key.kind, desc->entries[i].name);
    if (entry && entry->mapped != FLP_NO_ENTRY && strcmp(desc->entries[i].name, flp_entry_name(entry->mapped)) == 0)
      return 1;
  }
  return 0;
}

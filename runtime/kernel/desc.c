/* desc.c: the serialised form of a kernel descriptor, version 6.
 *
 * Layout, little-endian, no padding: u32 version, u32 length of all, key {u32 kind; 16 arch; u32 dtype, target_dtype,
 * out_dtype, entropy, bias, bias_grad, softcap, alignment; i64 hidden, vocab; u32 schedule, rows, columns,
 * stages, cluster, raster; 32 loss}, 32 sources, u32 ptx_major, ptx_minor,
 * entry_count, entries {48 name; 64 signature; u32 threads, shared_bytes}, u32 tile_rows, tile_columns, tile_depth,
 * stages, unit_columns, raster, cluster, chunk_rows, chunk_vocab.
 * Invariants: what is read back writes the same bytes (strings are zero after their end, keys are canonical); whoever
 * holds a descriptor that was read may divide by its tiles and use its strings without further checks. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "runtime/base/status.h"
#include "runtime/kernel/kernel.h"

/* ---- writing ---- */

static void put_key(flp_writer *w, const flp_kernel_key *given) {
  flp_kernel_key key = *given;
  flp_kernel_key_canonicalise(&key);
  flp_put_u32(w, key.kind);
  flp_put_string(w, key.arch, sizeof key.arch);
  const uint32_t fields[] = {key.dtype, key.target_dtype, key.out_dtype, key.entropy,
                             key.bias,  key.bias_grad,    key.softcap,   key.alignment};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) flp_put_u32(w, fields[i]);
  flp_put_u64(w, (uint64_t)key.hidden);
  flp_put_u64(w, (uint64_t)key.vocab);
  const uint32_t tune[] = {key.tune.schedule, key.tune.rows,    key.tune.columns,
                           key.tune.stages,   key.tune.cluster, key.tune.raster};
  for (size_t i = 0; i < sizeof tune / sizeof tune[0]; i++) flp_put_u32(w, tune[i]);
  flp_put_bytes(w, key.loss, sizeof key.loss);
}

static void put_entry(flp_writer *w, const flp_kernel_entry *entry) {
  flp_put_string(w, entry->name, sizeof entry->name);
  flp_put_string(w, entry->signature, sizeof entry->signature);
  flp_put_u32(w, entry->threads);
  flp_put_u32(w, entry->shared_bytes);
}

size_t flp_kernel_desc_write(const flp_kernel_desc *desc, uint8_t *out, size_t capacity) {
  if (desc->entry_count > FLP_ENTRIES_MAX || capacity < 8) return 0;
  flp_writer w = {out, out + capacity, 0};
  flp_put_u32(&w, FLP_DESC_FORMAT);
  flp_put_u32(&w, 0); /* the length, once it is known */
  put_key(&w, &desc->key);
  flp_put_bytes(&w, desc->sources, sizeof desc->sources);
  flp_put_u32(&w, desc->ptx_major);
  flp_put_u32(&w, desc->ptx_minor);
  flp_put_u32(&w, desc->entry_count);
  for (uint32_t i = 0; i < desc->entry_count; i++) put_entry(&w, &desc->entries[i]);
  const uint32_t tunables[] = {desc->tile_rows, desc->tile_columns, desc->tile_depth,
                               desc->stages,    desc->unit_columns, desc->raster,
                               desc->cluster,   desc->chunk_rows,   desc->chunk_vocab};
  for (size_t i = 0; i < sizeof tunables / sizeof tunables[0]; i++) flp_put_u32(&w, tunables[i]);
  if (w.full) return 0;
  size_t length = (size_t)(w.at - out);
  flp_writer head = {out + 4, out + 8, 0};
  flp_put_u32(&head, (uint32_t)length);
  return length;
}

/* ---- reading: bytes first, then each field against what it may hold ---- */

static void get_key(flp_reader *r, flp_kernel_key *key) {
  key->kind = (flp_kernel_kind)flp_get_u32(r);
  flp_get_bytes(r, key->arch, sizeof key->arch);
  key->dtype = (flp_dtype)flp_get_u32(r);
  key->target_dtype = (flp_dtype)flp_get_u32(r);
  key->out_dtype = (flp_dtype)flp_get_u32(r);
  uint32_t *const fields[] = {&key->entropy, &key->bias, &key->bias_grad, &key->softcap, &key->alignment};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) *fields[i] = flp_get_u32(r);
  key->hidden = (int64_t)flp_get_u64(r);
  key->vocab = (int64_t)flp_get_u64(r);
  uint32_t *const tune[] = {&key->tune.schedule, &key->tune.rows,    &key->tune.columns,
                            &key->tune.stages,   &key->tune.cluster, &key->tune.raster};
  for (size_t i = 0; i < sizeof tune / sizeof tune[0]; i++) *tune[i] = flp_get_u32(r);
  flp_get_bytes(r, key->loss, sizeof key->loss);
}

static void get_entry(flp_reader *r, flp_kernel_entry *entry) {
  flp_get_bytes(r, entry->name, sizeof entry->name);
  flp_get_bytes(r, entry->signature, sizeof entry->signature);
  entry->threads = flp_get_u32(r);
  entry->shared_bytes = flp_get_u32(r);
}

static void get_body(flp_reader *r, flp_kernel_desc *desc) {
  get_key(r, &desc->key);
  flp_get_bytes(r, desc->sources, sizeof desc->sources);
  desc->ptx_major = flp_get_u32(r);
  desc->ptx_minor = flp_get_u32(r);
  desc->entry_count = flp_get_u32(r);
  if (desc->entry_count > FLP_ENTRIES_MAX) return; /* check_desc refuses it */
  for (uint32_t i = 0; i < desc->entry_count; i++) get_entry(r, &desc->entries[i]);
  uint32_t *const tunables[] = {&desc->tile_rows, &desc->tile_columns, &desc->tile_depth,
                                &desc->stages,    &desc->unit_columns, &desc->raster,
                                &desc->cluster,   &desc->chunk_rows,   &desc->chunk_vocab};
  for (size_t i = 0; i < sizeof tunables / sizeof tunables[0]; i++) *tunables[i] = flp_get_u32(r);
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

static flp_status check_tunables(const flp_kernel_desc *desc) {
  enum { LARGEST = 1 << 20 }; /* so that the planner's products of two of them stay within 64 bits */
  flp_kernel_kind kind = desc->key.kind;
  int is_tiled = flp_kind_has(kind, FLP_KIND_TILED);
  const struct {
    const char *name;
    uint32_t value;
    int required;
  } fields[] = {
      {"tile_rows", desc->tile_rows, is_tiled},
      {"tile_columns", desc->tile_columns, is_tiled},
      {"tile_depth", desc->tile_depth, 0},
      {"stages", desc->stages, 0},
      {"unit_columns", desc->unit_columns, flp_kind_has(kind, FLP_KIND_UNITS)},
      {"raster", desc->raster, 0},
      {"cluster", desc->cluster, 0},
  };
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
    if (fields[i].value > LARGEST || (fields[i].required && fields[i].value == 0))
      return bad_field(fields[i].name, fields[i].value, fields[i].required ? "1 to 1048576" : "0 to 1048576");
  return FLP_OK;
}

/* Any chunk that an axis may hold. */
static flp_status check_chunks(const flp_kernel_desc *desc) {
  const struct {
    const char *name;
    uint32_t value;
    unsigned fact;
  } chunks[] = {{"chunk_rows", desc->chunk_rows, FLP_KIND_CHUNK_ROWS},
                {"chunk_vocab", desc->chunk_vocab, FLP_KIND_CHUNK_VOCAB}};
  for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
    int may = flp_kind_has(desc->key.kind, chunks[i].fact);
    if (chunks[i].value > (may ? INT32_MAX : 0))
      return bad_field(chunks[i].name, chunks[i].value, may ? "0 to 2147483647" : "0 for a kernel of this kind");
  }
  return FLP_OK;
}

static flp_status check_desc(const flp_kernel_desc *desc) {
  FLP_TRY(check_key(&desc->key));
  if (desc->ptx_major == 0 || desc->ptx_major > 99) return bad_field("ptx_major", desc->ptx_major, "1 to 99");
  if (desc->ptx_minor > 99) return bad_field("ptx_minor", desc->ptx_minor, "0 to 99");
  FLP_TRY(check_entries(desc));
  FLP_TRY(check_tunables(desc));
  return check_chunks(desc);
}

flp_status flp_kernel_desc_read(const uint8_t *bytes, size_t length, flp_kernel_desc *out) {
  flp_reader r = {bytes, bytes + length, 0};
  memset(out, 0, sizeof *out);
  uint32_t version = flp_get_u32(&r), stated_length = flp_get_u32(&r);
  if (r.short_of_bytes) return flp_fail(FLP_ERROR_CORRUPT, "descriptor: %zu bytes are too few", length);
  if (version != FLP_DESC_FORMAT) return bad_field("version", version, "6");
  if (stated_length != length)
    return flp_fail(FLP_ERROR_CORRUPT, "descriptor: length is %" PRIu32 ", there are %zu bytes", stated_length, length);
  flp_kernel_desc desc;
  memset(&desc, 0, sizeof desc);
  get_body(&r, &desc);
  if (desc.entry_count == 0 || desc.entry_count > FLP_ENTRIES_MAX)
    return bad_field("entry_count", desc.entry_count, "1 to 8");
  if (r.short_of_bytes || r.at != r.end)
    return flp_fail(FLP_ERROR_CORRUPT, "descriptor: %zu bytes do not fit %" PRIu32 " entries", length,
                    desc.entry_count);
  FLP_TRY(check_desc(&desc));
  memcpy(out, &desc, sizeof desc);
  return FLP_OK;
}

int flp_kernel_is_mapped(const flp_kernel_desc *desc) {
  for (uint32_t i = 0; i < desc->entry_count; i++) {
    const flp_kind_entry *entry = flp_kind_entry_find(desc->key.kind, desc->entries[i].name);
    if (entry && entry->mapped != FLP_NO_ENTRY && strcmp(desc->entries[i].name, flp_entry_name(entry->mapped)) == 0)
      return 1;
  }
  return 0;
}

/* test_pack.c: packs as bytes: what is written is read back, the same kernels give the same bytes, and everything else
 * is refused with its reason. */
#include <criterion/criterion.h>

#include "tests/unit/support/pack_case.h"

static const uint8_t seed[32] = {1, 2, 3, 4, 5};
static cli_pack_items items;

/* The pack of the items, of which none are left. */
static pack_case encode(void) {
  pack_case p = pack_case_encode(&items, NULL);
  cli_pack_items_clear(&items);
  return p;
}

static void expect_sound(void) {
  pack_case p = encode();
  cr_expect_eq(pack_case_verify(p.bytes, p.length), FLP_OK, "%s", flp_error_detail());
  free(p.bytes);
}

static void expect_refused(const char *reason) {
  pack_case p = encode();
  cr_expect_eq(pack_case_verify(p.bytes, p.length), FLP_ERROR_CORRUPT, "%s", reason);
  cr_expect_not_null(strstr(flp_error_detail(), reason), "%s", flp_error_detail());
  free(p.bytes);
}

/* ---- sound packs ---- */

Test(pack, what_is_written_is_read_back) {
  pack_case_fill(&items);
  pack_case p = pack_case_encode(&items, NULL);
  cr_assert_eq(pack_case_verify(p.bytes, p.length), FLP_OK, "%s", flp_error_detail());
  int fd;
  flp_pack *pack;
  cr_assert_eq(pack_case_open(p.bytes, p.length, &fd, &pack), FLP_OK);
  cr_expect_eq(pack->entry_count, 3);
  cr_expect_eq(pack->blob_count, 4);
  cr_expect_not(pack->is_signed);
  for (size_t i = 0; i < items.count; i++) {
    const cli_pack_item *item = &items.items[i];
    const flp_pack_entry *entry = flp_pack_find(pack, item->key, strlen(item->key));
    cr_assert_not_null(entry, "%s", item->key);
    flp_kernel_image image;
    cr_assert_eq(flp_pack_load(pack, fd, entry, &image), FLP_OK, "%s", flp_error_detail());
    cr_expect_str_eq(image.ptx, item->ptx);
    cr_expect_eq(image.ptx_bytes, item->ptx_bytes);
    cr_expect_arr_eq(&image.desc, &item->desc, sizeof image.desc);
    flp_kernel_image_clear(&image);
  }
  cr_expect_null(flp_pack_find(pack, "flp-key", 7));
  cr_expect_null(flp_pack_find(pack, "zzz", 3));
  cr_expect_null(flp_pack_find(pack, "a", 1));
  flp_pack_close(pack);
  close(fd);
  cli_pack_items_clear(&items);
  free(p.bytes);
}

Test(pack, order_and_repetition_change_nothing) {
  static const int64_t vocabs[] = {1000, 2000, 3000};
  cli_pack_items forth = {.count = 0}, back = {.count = 0};
  for (int i = 0; i < 3; i++) {
    flp_kernel_desc a = pack_case_desc(FLP_KERNEL_FORWARD, "sm_80", vocabs[i]);
    flp_kernel_desc b = pack_case_desc(FLP_KERNEL_FORWARD, "sm_80", vocabs[2 - i]);
    cli_pack_item *item = pack_case_add(&forth, &a, "");
    pack_case_add_cubin(item, 80, 12000, 0);
    pack_case_add_cubin(item, 90, 13000, 0);
    item = pack_case_add(&back, &b, "");
    pack_case_add_cubin(item, 90, 13000, 0);
    pack_case_add_cubin(item, 80, 12000, 0);
    pack_case_add_cubin(item, 90, 13000, 0);
    pack_case_add(&back, &b, "");
  }
  pack_case one = pack_case_encode(&forth, seed), two = pack_case_encode(&back, seed);
  cr_assert_eq(one.length, two.length);
  cr_expect_arr_eq(one.bytes, two.bytes, one.length);
  cli_pack_items_clear(&forth);
  cli_pack_items_clear(&back);
  free(one.bytes);
  free(two.bytes);
}

Test(pack, equal_code_is_stored_once) {
  flp_kernel_desc desc = pack_case_desc(FLP_KERNEL_FORWARD, "sm_80", 1000);
  pack_case_add(&items, &desc, "");
  pack_case_add(&items, &desc, "A GPU/7/13000");
  pack_case p = encode();
  cr_expect_eq(pack_case_get(p.bytes + 20), 2);
  cr_expect_eq(pack_case_get(p.bytes + 24), 1);
  cr_expect_eq(pack_case_verify(p.bytes, p.length), FLP_OK, "%s", flp_error_detail());
  free(p.bytes);
}

Test(pack, one_kernel_of_two_codes_is_refused) {
  flp_kernel_desc desc = pack_case_desc(FLP_KERNEL_FORWARD, "sm_80", 1000);
  cli_pack_item *item = pack_case_add(&items, &desc, "");
  cr_expect_eq(cli_pack_add(&items, item->key, &desc, "other", 5), FLP_ERROR_ARGUMENT);
  cr_expect_not_null(strstr(flp_error_detail(), "given twice, with different code"));
  cli_pack_items_clear(&items);
}

Test(pack, a_tuned_kernel_replaces_the_default) {
  flp_kernel_desc desc = pack_case_desc(FLP_KERNEL_FORWARD, "sm_90a", 1000), own = desc;
  flp_kernel_desc portable = pack_case_desc(FLP_KERNEL_FORWARD, "sm_80", 1000);
  char key[FLP_KEY_BYTES_MAX + 1];
  size_t bytes;
  desc.key.tune.stages = 5;
  char *ptx = pack_case_ptx(&desc, &bytes);
  pack_case_add(&items, &portable, "");
  cr_assert_eq(cli_pack_add(&items, pack_case_key(&own, "A GPU/7/13000", key), &desc, ptx, bytes), FLP_OK);
  expect_sound();
  /* without a device, a key must name its tile configuration */
  pack_case_add(&items, &portable, "");
  cr_assert_eq(cli_pack_add(&items, pack_case_key(&own, "", key), &desc, ptx, bytes), FLP_OK);
  expect_refused("descriptor is that of another kernel");
  free(ptx);
}

Test(pack, the_cubin_of_the_device_and_the_newest_driver_that_fits) {
  flp_kernel_desc desc = pack_case_desc(FLP_KERNEL_FORWARD, "sm_80", 1000);
  cli_pack_item *item = pack_case_add(&items, &desc, "");
  pack_case_add_cubin(item, 90, 13000, 0);
  pack_case_add_cubin(item, 90, 12040, 0);
  pack_case_add_cubin(item, 80, 12040, 0);
  pack_case p = encode();
  int fd;
  flp_pack *pack;
  cr_assert_eq(pack_case_open(p.bytes, p.length, &fd, &pack), FLP_OK, "%s", flp_error_detail());
  const flp_pack_entry *entry = &pack->entries[0];
  cr_expect_eq(flp_pack_cubin(entry, 90, 13020)->driver, 13000);
  cr_expect_eq(flp_pack_cubin(entry, 90, 13000)->driver, 13000);
  cr_expect_eq(flp_pack_cubin(entry, 90, 12090)->driver, 12040);
  cr_expect_eq(flp_pack_cubin(entry, 80, 13000)->capability, 80);
  cr_expect_null(flp_pack_cubin(entry, 90, 12030));
  cr_expect_null(flp_pack_cubin(entry, 89, 13000));
  flp_pack_close(pack);
  close(fd);
  free(p.bytes);
}

/* ---- damage ---- */

static void every_damaged_byte(const uint8_t *with) {
  pack_case p = pack_case_make(with);
  cr_assert_eq(pack_case_verify(p.bytes, p.length), FLP_OK, "%s", flp_error_detail());
  for (size_t at = 0; at < p.length; at++)
    for (int bit = 0; bit < 8; bit += 1 + (with != NULL)) {
      p.bytes[at] ^= (uint8_t)(1 << bit);
      cr_expect_eq(pack_case_verify(p.bytes, p.length), FLP_ERROR_CORRUPT, "byte %zu bit %d", at, bit);
      cr_expect_neq(flp_error_detail()[0], 0);
      p.bytes[at] ^= (uint8_t)(1 << bit);
    }
  free(p.bytes);
}

Test(pack, every_damaged_byte_is_corrupt) {
  every_damaged_byte(NULL);
}

Test(pack, every_damaged_byte_of_a_signed_pack_is_corrupt) {
  every_damaged_byte(seed);
}

Test(pack, every_truncation_is_corrupt) {
  pack_case p = pack_case_make(seed);
  for (size_t length = 0; length < p.length; length++) {
    cr_expect_eq(pack_case_verify(p.bytes, length), FLP_ERROR_CORRUPT, "length %zu", length);
    cr_expect_neq(flp_error_detail()[0], 0);
  }
  for (size_t more = 1; more < 40; more++)
    cr_expect_eq(pack_case_verify(p.bytes, p.length + more), FLP_ERROR_CORRUPT, "%zu bytes behind", more);
  free(p.bytes);
}

/* ---- hostile packs: their checksums are right ---- */

typedef enum part { HEAD, BLOB, ENTRY, PTX, CUBIN } part; /* PTX, CUBIN: images of an entry */

static uint8_t *part_of(pack_case *p, part which, int i) {
  return which == HEAD    ? p->bytes
         : which == BLOB  ? pack_case_blob(p, (size_t)i)
         : which == ENTRY ? pack_case_entry(p, (size_t)i)
                          : pack_case_image(p, (size_t)i, which == CUBIN);
}

/* One number that is wrong. */
static const struct {
  part of;
  int i, at;
  uint32_t value;
  const char *reason;
} numbers[] = {
    {HEAD, 0, 4, 2, "pack format is 2, accepted: 1 to 1"},
    {HEAD, 0, 8, FLP_DESC_FORMAT - 1, "descriptor format is"},
    {HEAD, 0, 12, UINT32_MAX, "manifest bytes is 4294967295"},
    {HEAD, 0, 16, UINT32_MAX, "index bytes is 4294967295"},
    {HEAD, 0, 20, 0, "entries is 0"},
    {HEAD, 0, 20, UINT32_MAX, "entries is 4294967295"},
    {HEAD, 0, 20, FLP_PACK_ENTRIES_MAX, "do not fit an index"},
    {HEAD, 0, 20, 2, "left over behind its index"},
    {HEAD, 0, 24, UINT32_MAX, "blobs is 4294967295"},
    {HEAD, 0, 28, 64, "signature bytes is 64"},
    {HEAD, 0, 28, FLP_PACK_SIGNATURE, "its head has"},
    {HEAD, 0, 36, 0x80000000, "data bytes is"},
    {BLOB, 0, 32, 0, "stored bytes of a blob is 0"},
    {BLOB, 0, 36, UINT32_MAX, "unpacked bytes of a blob is 4294967295"},
    {BLOB, 0, 36, FLP_PACK_CODE_BYTES_MAX, "is not one zstd frame"},
    {ENTRY, 0, 0, UINT32_MAX, "key bytes of an entry is 4294967295"},
    {ENTRY, 0, 4, UINT32_MAX, "descriptor bytes of an entry is 4294967295"},
    {ENTRY, 0, 8, 0, "images of an entry is 0"},
    {ENTRY, 0, 8, FLP_PACK_IMAGES_MAX + 1, "images of an entry is 65"},
    {ENTRY, 2, 8, FLP_PACK_IMAGES_MAX, "its index ends within an entry"},
    {CUBIN, 2, 0, 3, "has code 3"},
    {PTX, 0, 0, FLP_PACK_CUBIN, "accepted: PTX first, then cubins"},
    {CUBIN, 2, 0, FLP_PACK_PTX, "accepted: PTX first, then cubins"},
    {CUBIN, 2, 8, UINT32_MAX, "driver 4294967295"},
    {PTX, 0, 12, 4, "refers to blob 4 of 4"},
};

/* Some bytes. */
static const struct {
  part of;
  int i, at;
  const char *bytes;
  size_t count;
  const char *reason;
} texts[] = {
    {HEAD, 0, 0, "PK\3\4", 4, "no pack, it does not begin with FLPP"},
    {ENTRY, 1, FLP_PACK_ENTRY_BYTES, "a", 1, "out of order, or there twice"},
    {ENTRY, 0, FLP_PACK_ENTRY_BYTES + 3, "\n", 1, "control character"},
    {ENTRY, 0, 12, "../../../../etc/passwd", 22, "descriptor is that of another kernel"},
    {HEAD, 0, FLP_PACK_HEAD_BYTES, "[", 1, "manifest is no JSON object"},
};

static void more_stored(pack_case *p) {
  pack_case_set(pack_case_blob(p, 0) + 32, pack_case_get(pack_case_blob(p, 0) + 32) + 1);
}
static void swapped_blobs(pack_case *p) {
  uint8_t kept[FLP_PACK_BLOB_BYTES];
  memcpy(kept, pack_case_blob(p, 0), sizeof kept);
  memcpy(pack_case_blob(p, 0), pack_case_blob(p, 1), sizeof kept);
  memcpy(pack_case_blob(p, 1), kept, sizeof kept);
}
static void twin_blobs(pack_case *p) {
  memcpy(pack_case_blob(p, 1), pack_case_blob(p, 0), FLP_PACK_DIGEST);
}
static void twin_names(pack_case *p) {
  memcpy(pack_case_entry(p, 1) + 12, pack_case_entry(p, 0) + 12, pack_case_get(pack_case_entry(p, 0)));
}
static void other_key(pack_case *p) {
  uint8_t *key = pack_case_entry(p, 0) + 12;
  memcpy(memmem(key, pack_case_get(pack_case_entry(p, 0)), "vocab=151936", 12), "vocab=151935", 12);
}
static void idle_blob(pack_case *p) {
  memcpy(pack_case_image(p, 1, 0) + 12, pack_case_image(p, 0, 0) + 12, 4);
}
static void bad_desc(pack_case *p) { /* threads of its entry: 33 */
  uint8_t *desc = pack_case_image(p, 0, 0) - pack_case_get(pack_case_entry(p, 0) + 4);
  uint8_t *name = memmem(desc, 260, "forward", 7);
  pack_case_set(name + 128, 33);
}
static void lying_manifest(pack_case *p) {
  uint8_t *count = memmem(p->bytes, p->length, "\"kernels\":3", 11);
  count[10] = '4';
}

static const struct {
  void (*spoil)(pack_case *p);
  const char *reason;
} others[] = {
    {more_stored, "its head has"},
    {swapped_blobs, "out of order, or there twice"},
    {twin_blobs, "out of order, or there twice"},
    {twin_names, "out of order, or there twice"},
    {other_key, "descriptor is that of another kernel"},
    {idle_blob, "belongs to no entry"},
    {bad_desc, "entry threads is 33"},
    {lying_manifest, "manifest's kernels differs from that of the entries"},
};

static void expect_hostile(pack_case *p, const char *reason) {
  pack_case_seal(p);
  cr_expect_eq(pack_case_verify(p->bytes, p->length), FLP_ERROR_CORRUPT, "%s", reason);
  cr_expect_not_null(strstr(flp_error_detail(), reason), "%s: %s", reason, flp_error_detail());
  free(p->bytes);
}

Test(pack, hostile_packs_are_refused_with_a_reason) {
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    pack_case p = pack_case_make(NULL);
    pack_case_set(part_of(&p, numbers[i].of, numbers[i].i) + numbers[i].at, numbers[i].value);
    expect_hostile(&p, numbers[i].reason);
  }
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    pack_case p = pack_case_make(NULL);
    memcpy(part_of(&p, texts[i].of, texts[i].i) + texts[i].at, texts[i].bytes, texts[i].count);
    expect_hostile(&p, texts[i].reason);
  }
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    pack_case p = pack_case_make(NULL);
    others[i].spoil(&p);
    expect_hostile(&p, others[i].reason);
  }
}

/* The table and the frame itself state more, or less, than the frame holds; every hash is right. */
Test(pack, a_lying_frame_is_refused) {
  for (int change = -1; change <= 1; change += 2) {
      flp_kernel_desc desc = pack_case_desc(FLP_KERNEL_FORWARD, "sm_80", 1000);
    pack_case_add(&items, &desc, "");
    pack_case p = encode();
    uint8_t *frame = pack_case_data(&p), *blob = pack_case_blob(&p, 0);
    cr_assert_eq(frame[4], 0x20, "a frame with one byte of content size");
    cr_assert_eq(frame[5], pack_case_get(blob + 36));
    frame[5] = (uint8_t)(frame[5] + change);
    pack_case_set(blob + 36, frame[5]);
    crypto_hash_sha256(blob, frame, pack_case_get(blob + 32));
    pack_case_seal(&p);
    cr_expect_eq(pack_case_verify(p.bytes, p.length), FLP_ERROR_CORRUPT);
    cr_expect_not_null(strstr(flp_error_detail(), "blob 0 does not unpack to"), "%s", flp_error_detail());
    free(p.bytes);
  }
}

/* ---- hostile code: the pack around it is right ---- */

Test(pack, code_without_its_entries_is_refused) {
  flp_kernel_desc desc = pack_case_desc(FLP_KERNEL_FORWARD, "sm_80", 1000);
  char key[FLP_KEY_BYTES_MAX + 1];
  pack_case_key(&desc, "", key);
  cr_assert_eq(cli_pack_add(&items, key, &desc, ".entry flp_forward_two(", 23), FLP_OK);
  expect_refused("its PTX has no entry flp_forward");
  cr_assert_eq(cli_pack_add(&items, key, &desc, ".entry flp_forward(\0rest", 24), FLP_OK);
  expect_refused("its PTX holds a NUL");
  cli_pack_cubin cubin = {90, 13000, (uint8_t *)"no machine code, but as long as a head of some would be, and more",
                          65};
  cr_assert_eq(cli_pack_add_cubin(pack_case_add(&items, &desc, ""), &cubin), FLP_OK);
  expect_refused("no 64-bit ELF file for CUDA");
  pack_case_add_cubin(pack_case_add(&items, &desc, ""), 90, 13000, 1);
  expect_refused("a cubin has parts beyond its");
  flp_kernel_desc rows = pack_case_desc(FLP_KERNEL_ROWS, "sm_80", 0);
  cli_pack_item *item = pack_case_add(&items, &rows, "");
  item->desc.entry_count = 1;
  pack_case_add_cubin(item, 90, 13000, 0);
  item->desc.entry_count = rows.entry_count;
  expect_refused("its cubin has no entry flp_combine");
}

Test(pack, kernels_of_one_capability_need_portable_company) {
  flp_kernel_desc forward = pack_case_desc(FLP_KERNEL_FORWARD, "sm_90a", 1000);
  flp_kernel_desc products = pack_case_desc(FLP_KERNEL_PRODUCTS, "sm_90a", 0);
  flp_kernel_desc weight = pack_case_desc(FLP_KERNEL_GRAD_WEIGHT, "sm_80", 0);
  pack_case_add(&items, &forward, "");
  expect_refused("no kernel for sm_80 beside it");
  pack_case_add(&items, &products, "");
  expect_refused("no kernel for sm_80 beside it");
  pack_case_add(&items, &products, "");
  pack_case_add(&items, &weight, "");
  expect_sound();
}

/* ---- trust ---- */

Test(pack, trusts_what_is_signed_by_a_key_of_the_list) {
  char own[CLI_KEY_TEXT], other[CLI_KEY_TEXT], both[256];
  const uint8_t other_seed[32] = {9};
  pack_case_public(seed, own);
  pack_case_public(other_seed, other);
  flp_pack *pack[2];
  for (int i = 0; i < 2; i++) {
    pack_case p = pack_case_make(i ? seed : NULL);
    int fd;
    cr_assert_eq(pack_case_open(p.bytes, p.length, &fd, &pack[i]), FLP_OK);
    close(fd);
    free(p.bytes);
  }
  snprintf(both, sizeof both, "%s,%s", other, own);
  cr_expect_eq(flp_pack_trusts(pack[0], ""), FLP_OK);
  cr_expect_eq(flp_pack_trusts(pack[1], ""), FLP_OK);
  cr_expect_eq(flp_pack_trusts(pack[1], own), FLP_OK);
  cr_expect_eq(flp_pack_trusts(pack[1], both), FLP_OK);
  cr_expect_eq(flp_pack_trusts(pack[1], other), FLP_ERROR_DATA);
  cr_expect_not_null(strstr(flp_error_detail(), own), "%s", flp_error_detail());
  cr_expect_eq(flp_pack_trusts(pack[0], own), FLP_ERROR_DATA);
  cr_expect_not_null(strstr(flp_error_detail(), "not signed"));
  static const char *const unreadable[] = {",", "abc", "zz", "xyz,"};
  for (size_t i = 0; i < sizeof unreadable / sizeof unreadable[0]; i++)
    cr_expect_eq(flp_pack_trusts(pack[1], unreadable[i]), FLP_ERROR_ARGUMENT, "%s", unreadable[i]);
  snprintf(both, sizeof both, "%s,,%s", own, own);
  cr_expect_eq(flp_pack_trusts(pack[1], both), FLP_ERROR_ARGUMENT, "a list with a gap");
  flp_pack_close(pack[0]);
  flp_pack_close(pack[1]);
}

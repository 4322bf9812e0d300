/* test_desc.c: descriptors: bytes exactly, round trips, and a refusal that names the field for every bad one. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/support/kernel_sample.h"

enum { KEY_AT = 8, TUNE_AT = 76, SOURCES_AT = 132, COUNT_AT = 172, ENTRY_AT = 176, ENTRY_BYTES = 80 };

static size_t write_sample(flp_kernel_kind kind, uint8_t out[FLP_DESC_BYTES_MAX]) {
  flp_kernel_desc desc = sample_desc(kind);
  size_t length = flp_kernel_desc_write(&desc, out, FLP_DESC_BYTES_MAX);
  cr_assert_gt(length, 0);
  return length;
}

static uint32_t u32_at(const uint8_t *bytes, size_t at) {
  return (uint32_t)bytes[at] | (uint32_t)bytes[at + 1] << 8 | (uint32_t)bytes[at + 2] << 16 |
         (uint32_t)bytes[at + 3] << 24;
}

Test(desc, layout_is_fixed) {
  uint8_t bytes[FLP_DESC_BYTES_MAX];
  size_t length = write_sample(FLP_KERNEL_FORWARD, bytes);
  cr_expect_eq(length, ENTRY_AT + ENTRY_BYTES + 36);
  cr_expect_eq(u32_at(bytes, 0), FLP_DESC_FORMAT);
  cr_expect_eq(u32_at(bytes, 4), length);
  cr_expect_eq(u32_at(bytes, KEY_AT), FLP_KERNEL_FORWARD);
  cr_expect_arr_eq(bytes + KEY_AT + 4, "sm_80\0\0\0\0\0\0\0\0\0\0", 16);
  cr_expect_eq(u32_at(bytes, TUNE_AT - 8), 151936, "vocab, low half");
  cr_expect_arr_eq(bytes + SOURCES_AT, flp_sources_hash(), 32);
  cr_expect_eq(u32_at(bytes, COUNT_AT), 1);
  cr_expect_arr_eq(bytes + ENTRY_AT, "forward", 8);
  cr_expect_eq(u32_at(bytes, ENTRY_AT + 72), 256, "threads");
  cr_expect_eq(u32_at(bytes, length - 20), 3072, "unit_columns");
}

Test(desc, every_kind_reads_back_equal) {
  for (int kind = FLP_KERNEL_ROWS; kind < FLP_KERNEL_KINDS; kind++) {
    uint8_t bytes[FLP_DESC_BYTES_MAX];
    size_t length = write_sample((flp_kernel_kind)kind, bytes);
    flp_kernel_desc want = sample_desc((flp_kernel_kind)kind), got;
    cr_assert_eq(flp_kernel_desc_read(bytes, length, &got), FLP_OK, "%s", flp_error_detail());
    cr_expect_arr_eq(&got, &want, sizeof got);
  }
}

Test(desc, writing_needs_its_capacity_and_a_sane_count) {
  uint8_t bytes[FLP_DESC_BYTES_MAX];
  flp_kernel_desc desc = sample_desc(FLP_KERNEL_ROWS);
  size_t length = flp_kernel_desc_write(&desc, bytes, sizeof bytes);
  for (size_t capacity = 0; capacity < length; capacity++)
    cr_expect_eq(flp_kernel_desc_write(&desc, bytes, capacity), 0, "capacity %zu", capacity);
  cr_expect_eq(flp_kernel_desc_write(&desc, bytes, length), length);
  desc.entry_count = FLP_ENTRIES_MAX + 1;
  cr_expect_eq(flp_kernel_desc_write(&desc, bytes, sizeof bytes), 0);
}

Test(desc, largest_fits) {
  flp_kernel_desc desc = sample_desc(FLP_KERNEL_ROWS);
  desc.entry_count = FLP_ENTRIES_MAX;
  uint8_t bytes[FLP_DESC_BYTES_MAX];
  cr_expect_gt(flp_kernel_desc_write(&desc, bytes, sizeof bytes), 0);
}

Test(desc, every_truncation_is_corrupt) {
  uint8_t bytes[FLP_DESC_BYTES_MAX];
  size_t length = write_sample(FLP_KERNEL_ROWS, bytes);
  for (size_t short_length = 0; short_length < length; short_length++) {
    flp_kernel_desc got;
    cr_expect_eq(flp_kernel_desc_read(bytes, short_length, &got), FLP_ERROR_CORRUPT, "length %zu", short_length);
    /* also when the length field agrees with the truncation */
    uint8_t shorter[FLP_DESC_BYTES_MAX];
    memcpy(shorter, bytes, sizeof shorter);
    shorter[4] = (uint8_t)short_length;
    shorter[5] = (uint8_t)(short_length >> 8);
    cr_expect_eq(flp_kernel_desc_read(shorter, short_length, &got), FLP_ERROR_CORRUPT, "length %zu", short_length);
  }
}

Test(desc, every_flipped_byte_is_corrupt_or_reports_what_it_is) {
  for (int kind = FLP_KERNEL_ROWS; kind < FLP_KERNEL_KINDS; kind++) {
    uint8_t bytes[FLP_DESC_BYTES_MAX], again[FLP_DESC_BYTES_MAX];
    size_t length = write_sample((flp_kernel_kind)kind, bytes);
    for (size_t at = 0; at < length; at++)
      for (int bit = 0; bit < 8; bit++) {
        bytes[at] ^= (uint8_t)(1 << bit);
        flp_kernel_desc got;
        if (flp_kernel_desc_read(bytes, length, &got) == FLP_OK) {
          cr_assert_eq(flp_kernel_desc_write(&got, again, sizeof again), length);
          cr_assert_arr_eq(bytes, again, length, "byte %zu bit %d reads as something else", at, bit);
        }
        bytes[at] ^= (uint8_t)(1 << bit);
      }
  }
}

typedef struct bad_case {
  const char *name;
  flp_kernel_kind kind;
  size_t at; /* bytes there are overwritten */
  const char *bytes;
  size_t count;
  const char *detail;
} bad_case;

Test(desc, refusals_name_the_field) {
  enum { TUNABLES_AT = ENTRY_AT + ENTRY_BYTES };
  char kinds[64];
  snprintf(kinds, sizeof kinds, "descriptor: key.kind is 255, accepted: 1 to %d", FLP_KERNEL_KINDS - 1);
  const bad_case cases[] = {
      {"version", FLP_KERNEL_FORWARD, 0, "\1", 1, "descriptor: version is 1, accepted: 5"},
      {"earlier version", FLP_KERNEL_FORWARD, 0, "\4", 1, "descriptor: version is 4, accepted: 5"},
      {"kind", FLP_KERNEL_FORWARD, KEY_AT, "\377", 1, kinds},
      {"arch", FLP_KERNEL_FORWARD, KEY_AT + 4, "0123456789abcdef", 16,
       "descriptor: key.arch is not a terminated name such as sm_80"},
      {"arch padding", FLP_KERNEL_FORWARD, KEY_AT + 4 + 15, "x", 1,
       "descriptor: key.arch is not a terminated name such as sm_80"},
      {"dtype", FLP_KERNEL_FORWARD, KEY_AT + 20, "\4", 1, "descriptor: key.dtype is 4, accepted: 1 to 3"},
      {"dtype of scores", FLP_KERNEL_SELECT, KEY_AT + 20, "\4", 1,
       "descriptor: key.dtype is 4, accepted: 1 to 3, or 6"},
      {"fp64", FLP_KERNEL_FORWARD, KEY_AT + 20, "\6", 1, "descriptor: key.dtype is 6, accepted: 1 to 3"},
      {"target of scores", FLP_KERNEL_SELECT, KEY_AT + 24, "\1", 1,
       "descriptor: key.target_dtype is 1, accepted: 4 or 5"},
      {"target", FLP_KERNEL_ROWS, KEY_AT + 24, "\1", 1, "descriptor: key.target_dtype is 1, accepted: 4 or 5"},
      {"out", FLP_KERNEL_GRAD_WEIGHT, KEY_AT + 28, "\0", 1, "descriptor: key.out_dtype is 0, accepted: 1 to 3"},
      {"flag", FLP_KERNEL_FORWARD, KEY_AT + 36, "\2", 1,
       "descriptor: key of kind forward has an unused field set, or a flag that is not 0 or 1"},
      {"unused field", FLP_KERNEL_FORWARD, KEY_AT + 24, "\4", 1,
       "descriptor: key of kind forward has an unused field set, or a flag that is not 0 or 1"},
      {"alignment", FLP_KERNEL_DZ, KEY_AT + 48, "\14", 1, "descriptor: key.alignment is 12, accepted: 2, 4, 8 or 16"},
      {"vocab", FLP_KERNEL_DZ, TUNE_AT - 1, "\200", 1,
       "descriptor: key.vocab is 9223372036854927744, accepted: 0 to 2^63-1"},
      {"schedule", FLP_KERNEL_DZ, TUNE_AT, "\3", 1, "descriptor: key.tune.schedule is 3, accepted: 0 to 2"},
      {"ptx", FLP_KERNEL_DZ, COUNT_AT - 8, "\0", 1, "descriptor: ptx_major is 0, accepted: 1 to 99"},
      {"no entries", FLP_KERNEL_DZ, COUNT_AT, "\0", 1, "descriptor: entry_count is 0, accepted: 1 to 8"},
      {"many entries", FLP_KERNEL_DZ, COUNT_AT, "\11", 1, "descriptor: entry_count is 9, accepted: 1 to 8"},
      {"more entries", FLP_KERNEL_DZ, COUNT_AT, "\2", 1, "descriptor: 292 bytes do not fit 2 entries"},
      {"unknown entry", FLP_KERNEL_DZ, ENTRY_AT, "dy", 2, "descriptor: entry dy is not one that this library launches"},
      {"threads", FLP_KERNEL_DZ, ENTRY_AT + 72, "\1", 1,
       "descriptor: entry threads is 257, accepted: multiples of 32 up to 1024"},
      {"shared", FLP_KERNEL_DZ, ENTRY_AT + 79, "\1", 1,
       "descriptor: entry shared_bytes is 16875520, accepted: 0 to 1048576"},
      {"tile", FLP_KERNEL_DZ, TUNABLES_AT, "\0", 1, "descriptor: tile_rows is 0, accepted: 1 to 1048576"},
      {"unit", FLP_KERNEL_FORWARD, TUNABLES_AT + 16, "\0\0", 2,
       "descriptor: unit_columns is 0, accepted: 1 to 1048576"},
      {"chunk of rows", FLP_KERNEL_DZ, TUNABLES_AT + 31, "\200", 1,
       "descriptor: chunk_rows is 2147483648, accepted: 0 to 2147483647"},
      {"chunk of columns", FLP_KERNEL_PRODUCTS, TUNABLES_AT + 32, "\1", 1,
       "descriptor: chunk_vocab is 1, accepted: 0 for a kernel of this kind"},
      {"chunk of rows of others", FLP_KERNEL_PRODUCTS, TUNABLES_AT + 28, "\1", 1,
       "descriptor: chunk_rows is 1, accepted: 0 for a kernel of this kind"},
      {"chunk of rows of P", FLP_KERNEL_KEEP, TUNABLES_AT + 31, "\200", 1,
       "descriptor: chunk_rows is 2147483648, accepted: 0 to 2147483647"},
      {"chunk of columns of P", FLP_KERNEL_KEEP, TUNABLES_AT + 32, "\1", 1,
       "descriptor: chunk_vocab is 1, accepted: 0 for a kernel of this kind"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const bad_case *c = &cases[i];
    uint8_t bytes[FLP_DESC_BYTES_MAX];
    size_t length = write_sample(c->kind, bytes);
    memcpy(bytes + c->at, c->bytes, c->count);
    flp_kernel_desc got;
    cr_expect_eq(flp_kernel_desc_read(bytes, length, &got), FLP_ERROR_CORRUPT, "%s", c->name);
    cr_expect_str_eq(flp_error_detail(), c->detail, "%s: %s", c->name, flp_error_detail());
  }
}

static void expect_refused(const flp_kernel_desc *desc, const char *start) {
  uint8_t bytes[FLP_DESC_BYTES_MAX];
  size_t length = flp_kernel_desc_write(desc, bytes, sizeof bytes);
  flp_kernel_desc got;
  cr_expect_eq(flp_kernel_desc_read(bytes, length, &got), FLP_ERROR_CORRUPT);
  cr_expect(strncmp(flp_error_detail(), start, strlen(start)) == 0, "%s", flp_error_detail());
}

Test(desc, entries_match_this_library) {
  flp_kernel_desc desc = sample_desc(FLP_KERNEL_DZ);
  desc.entries[0].signature[0] = 'l';
  expect_refused(&desc, "descriptor: signature of entry dz is l");
  desc = sample_desc(FLP_KERNEL_DZ);
  desc.entries[0].signature[0] = 0;
  expect_refused(&desc, "descriptor: signature of entry dz is not terminated");
  desc = sample_desc(FLP_KERNEL_DZ);
  desc.key.kind = FLP_KERNEL_FORWARD;
  expect_refused(&desc, "descriptor: entry dz is none of kind forward");
  desc = sample_desc(FLP_KERNEL_ROWS);
  desc.entries[2] = desc.entries[0];
  expect_refused(&desc, "descriptor: entry prepare stands twice");
}

Test(desc, trailing_bytes_are_corrupt) {
  uint8_t bytes[FLP_DESC_BYTES_MAX] = {0};
  size_t length = write_sample(FLP_KERNEL_DZ, bytes);
  flp_kernel_desc got;
  cr_expect_eq(flp_kernel_desc_read(bytes, length + 1, &got), FLP_ERROR_CORRUPT);
  bytes[4]++;
  cr_expect_eq(flp_kernel_desc_read(bytes, length + 1, &got), FLP_ERROR_CORRUPT);
}

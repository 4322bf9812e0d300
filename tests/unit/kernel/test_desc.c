/* test_desc.c: descriptors: bytes exactly, round trips, and what is refused; tests/golden/texts has the
 * sentences. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/support/kernel_sample.h"

enum { KEY_AT = 8, FLAGS_AT = 40, TUNE_AT = 84, SOURCES_AT = 140, COUNT_AT = 180, ENTRY_AT = 184, ENTRY_BYTES = 136 };

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
  cr_expect_eq(u32_at(bytes, ENTRY_AT + 128), 256, "threads");
  cr_expect_eq(u32_at(bytes, length - 20), 3072, "unit_columns");
}

/* Neighbours that the samples leave equal: each has a value of its own. */
Test(desc, numbers_have_their_places) {
  uint8_t bytes[FLP_DESC_BYTES_MAX];
  flp_kernel_desc d = sample_desc(FLP_KERNEL_DZ);
  uint32_t *const flags[] = {&d.key.entropy, &d.key.bias, &d.key.bias_grad, &d.key.softcap};
  flp_tunables *tune = &d.key.tune;
  uint32_t *const numbers[] = {&tune->schedule, &tune->rows,  &tune->columns, &tune->stages,   &tune->cluster,
                               &tune->raster,   &d.tile_rows, &d.tile_columns, &d.tile_depth,  &d.stages,
                               &d.unit_columns, &d.raster,    &d.cluster,      &d.chunk_rows,  &d.chunk_vocab};
  for (uint32_t i = 0; i < 15; i++) *numbers[i] = i + 1;
  for (int i = 0; i < 4; i++) {
    *flags[i] = 0;
    size_t length = flp_kernel_desc_write(&d, bytes, sizeof bytes);
    for (int j = 0; j < 4; j++) cr_expect_eq(u32_at(bytes, FLAGS_AT + 4 * (size_t)j), j != i, "flag %d", j);
    for (uint32_t j = 0; j < 15; j++)
      cr_expect_eq(u32_at(bytes, (j < 6 ? TUNE_AT : length - 60) + 4 * j), j + 1, "number %u", j);
    *flags[i] = 1;
  }
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
  desc = sample_desc(FLP_KERNEL_DZ);
  desc.key.kind = (flp_kernel_kind)FLP_KERNEL_KINDS;
  expect_refused(&desc, "descriptor: key.kind is ");
}

Test(desc, trailing_bytes_are_corrupt) {
  uint8_t bytes[FLP_DESC_BYTES_MAX] = {0};
  size_t length = write_sample(FLP_KERNEL_DZ, bytes);
  flp_kernel_desc got;
  cr_expect_eq(flp_kernel_desc_read(bytes, length + 1, &got), FLP_ERROR_CORRUPT);
  bytes[4]++;
  cr_expect_eq(flp_kernel_desc_read(bytes, length + 1, &got), FLP_ERROR_CORRUPT);
}

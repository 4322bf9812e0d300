/* kernel_sample.c: see kernel_sample.h. */
#include "tests/unit/support/kernel_sample.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

flp_kernel_key sample_key(flp_kernel_kind kind) {
  flp_kernel_key key = {
      .kind = kind,
      .arch = "sm_80",
      .dtype = FLP_DTYPE_BF16,
      .target_dtype = FLP_DTYPE_INT64,
      .out_dtype = FLP_DTYPE_FP32,
      .entropy = 1,
      .bias = 1,
      .bias_grad = 1,
      .softcap = 1,
      .lora = 1,
      .weight_form = FLP_KEY_WIDE,
      .loss = {0x4c, [31] = 0x53},
      .alignment = 16,
      .hidden = 4096,
      .vocab = 151936,
  };
  flp_kernel_key_canonicalise(&key);
  return key;
}

static void add_entry(flp_kernel_desc *desc, const char *name) {
  flp_kernel_entry *entry = &desc->entries[desc->entry_count++];
  snprintf(entry->name, sizeof entry->name, "%s", name);
  char signature[FLP_ABI_PARAMS_MAX + 1];
  snprintf(entry->signature, sizeof entry->signature, "%s", flp_abi_signature(flp_abi_find(name), signature));
  entry->threads = 256;
  entry->shared_bytes = 98304;
}

flp_kernel_desc sample_desc(flp_kernel_kind kind) {
  flp_kernel_desc desc;
  memset(&desc, 0, sizeof desc);
  desc.key = sample_key(kind);
  memcpy(desc.sources, flp_sources_hash(), sizeof desc.sources);
  desc.ptx_major = 7;
  desc.ptx_minor = 1;
  if (kind == FLP_KERNEL_ROWS) {
    add_entry(&desc, "prepare");
    add_entry(&desc, "combine");
    add_entry(&desc, "merge");
    return desc;
  }
  const flp_kind *row = flp_kind_of(kind);
  int is_listed = kind == FLP_KERNEL_LISTED || kind == FLP_KERNEL_LISTED_WEIGHT;
  if (row->entries[0].plain != FLP_NO_ENTRY && strcmp(flp_entry_name(row->entries[0].plain), row->name) != 0) {
    for (int i = 0; i < (is_listed ? row->entry_count : 2); i++)
      add_entry(&desc, flp_entry_name(row->entries[i].plain));
    if (flp_kind_has(kind, FLP_KIND_TILED)) desc.tile_rows = 128, desc.tile_columns = 256;
    return desc;
  }
  int is_product = kind == FLP_KERNEL_PRODUCTS || kind == FLP_KERNEL_LORA_PRODUCTS; /* mapped alone */
  add_entry(&desc, flp_entry_name(is_product ? row->entries[0].mapped : row->entries[0].plain));
  desc.tile_rows = 128;
  desc.tile_columns = 256;
  desc.tile_depth = 32;
  desc.stages = 4;
  desc.unit_columns = flp_kind_has(kind, FLP_KIND_UNITS) ? 3072 : 0;
  desc.raster = 16;
  desc.cluster = is_product ? 2 : 0;
  return desc;
}

flp_kernel_image sample_image(flp_kernel_kind kind, size_t ptx_bytes, unsigned seed) {
  flp_kernel_image image = {.desc = sample_desc(kind), .ptx = malloc(ptx_bytes + 1), .ptx_bytes = ptx_bytes};
  for (size_t i = 0; i < ptx_bytes; i++) image.ptx[i] = (char)('a' + (i * 7 + i / 100 + seed) % 26);
  image.ptx[ptx_bytes] = 0;
  return image;
}

int sample_image_equal(const flp_kernel_image *a, const flp_kernel_image *b) {
  return a->ptx && b->ptx && a->ptx_bytes == b->ptx_bytes && memcmp(a->ptx, b->ptx, a->ptx_bytes + 1) == 0 &&
         memcmp(&a->desc, &b->desc, sizeof a->desc) == 0;
}

/* ---- scratch directories ---- */

const char *sample_directory(void) {
  static char directory[512];
  snprintf(directory, sizeof directory, FLP_TEST_SCRATCH "/XXXXXX");
  if (!mkdtemp(directory)) abort();
  return directory;
}

int sample_count(const char *path, const char *part) {
  DIR *stream = opendir(path);
  int count = 0;
  for (struct dirent *entry; stream && (entry = readdir(stream)) != NULL;) count += strstr(entry->d_name, part) != NULL;
  if (stream) closedir(stream);
  return count;
}

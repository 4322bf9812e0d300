/* pack_case.h: small packs for tests, and ways to damage them that their checksums do not show. */
#ifndef FLP_TEST_PACK_CASE_H
#define FLP_TEST_PACK_CASE_H

#include <elf.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gen/cli/pack/pack.h"
#include "tests/unit/support/kernel_sample.h"

typedef struct pack_case {
  uint8_t *bytes; /* room for some more */
  size_t length;
} pack_case;

static inline void pack_case_require(int condition, const char *what) {
  if (condition) return;
  fprintf(stderr, "pack_case: %s: %s\n", what, flp_error_detail());
  abort();
}

/* The text of a kernel with the entries that its descriptor names. */
static inline char *pack_case_ptx(const flp_kernel_desc *desc, size_t *bytes) {
  char *text = NULL;
  FILE *out = open_memstream(&text, bytes);
  fprintf(out, "// kernel %s of %s, V=%lld\n.version 7.1\n", flp_kernel_kind_name(desc->key.kind), desc->key.arch,
          (long long)desc->key.vocab);
  for (uint32_t i = 0; i < desc->entry_count; i++) fprintf(out, ".visible .entry flp_%s(\n)\n", desc->entries[i].name);
  fclose(out);
  return text;
}

static inline flp_kernel_desc pack_case_desc(flp_kernel_kind kind, const char *arch, int64_t vocab) {
  flp_kernel_desc desc = sample_desc(kind);
  memset(desc.key.arch, 0, sizeof desc.key.arch);
  strcpy(desc.key.arch, arch);
  desc.key.vocab = vocab;
  flp_kernel_key_canonicalise(&desc.key);
  return desc;
}

static inline const char *pack_case_key(const flp_kernel_desc *desc, const char *tuned_for,
                                        char out[FLP_KEY_BYTES_MAX + 1]) {
  size_t length = flp_kernel_key_bytes(&desc->key, desc->sources, tuned_for, out, FLP_KEY_BYTES_MAX + 1);
  pack_case_require(length > 0, "key");
  return out;
}

static inline cli_pack_item *pack_case_add(cli_pack_items *items, const flp_kernel_desc *desc, const char *tuned_for) {
  char key[FLP_KEY_BYTES_MAX + 1];
  size_t bytes;
  char *ptx = pack_case_ptx(desc, &bytes);
  pack_case_require(cli_pack_add(items, pack_case_key(desc, tuned_for, key), desc, ptx, bytes) == FLP_OK, "add");
  free(ptx);
  return cli_pack_get(items, key);
}

/* A cubin of a head, one section, and names. beyond: bytes that its section claims behind the end */
static inline void pack_case_add_cubin(cli_pack_item *item, uint32_t capability, uint32_t driver, uint64_t beyond) {
  struct {
    Elf64_Ehdr head;
    Elf64_Shdr section;
    char names[512];
  } elf;
  memset(&elf, 0, sizeof elf);
  memcpy(elf.head.e_ident, ELFMAG, SELFMAG);
  elf.head.e_ident[EI_CLASS] = ELFCLASS64;
  elf.head.e_ident[EI_DATA] = ELFDATA2LSB;
  elf.head.e_machine = 190;
  elf.head.e_shoff = sizeof elf.head;
  elf.head.e_shentsize = sizeof elf.section;
  elf.head.e_shnum = 1;
  elf.section.sh_type = SHT_STRTAB;
  elf.section.sh_offset = sizeof elf.head + sizeof elf.section;
  elf.section.sh_size = sizeof elf.names + beyond;
  char *at = elf.names + 1 + snprintf(elf.names, 64, "for sm_%u, driver %u", capability, driver);
  for (uint32_t i = 0; i < item->desc.entry_count; i++)
    at += 1 + snprintf(at, 48, "flp_%s", item->desc.entries[i].name);
  cli_pack_cubin cubin = {capability, driver, (uint8_t *)&elf, sizeof elf};
  pack_case_require(cli_pack_add_cubin(item, &cubin) == FLP_OK, "cubin");
}

/* The public key of a seed. */
static inline void pack_case_public(const uint8_t seed[CLI_KEY_BYTES], char out[CLI_KEY_TEXT]) {
  cli_private_key key = {.id = {0}};
  cli_public_key public;
  memcpy(key.seed, seed, sizeof key.seed);
  cli_key_public(&key, &public);
  cli_key_hex(public.bytes, out);
}

static inline pack_case pack_case_encode(cli_pack_items *items, const uint8_t *seed) {
  pack_case out;
  char *manifest;
  uint8_t *bytes;
  pack_case_require(cli_pack_manifest(items, "a case", &manifest) == FLP_OK, "manifest");
  pack_case_require(cli_pack_encode(items, manifest, seed, &bytes, &out.length) == FLP_OK, "encode");
  out.bytes = calloc(out.length + 64, 1);
  memcpy(out.bytes, bytes, out.length);
  free(bytes);
  free(manifest);
  return out;
}

/* Two kernels of equally long keys and a third one, with a cubin; portable ones for the one that needs them. */
static inline void pack_case_fill(cli_pack_items *items) {
  flp_kernel_desc first = pack_case_desc(FLP_KERNEL_FORWARD, "sm_80", 151936);
  flp_kernel_desc second = pack_case_desc(FLP_KERNEL_FORWARD, "sm_80", 151937);
  flp_kernel_desc third = pack_case_desc(FLP_KERNEL_FORWARD, "sm_90a", 151936);
  pack_case_add(items, &first, "");
  pack_case_add(items, &second, "");
  pack_case_add_cubin(pack_case_add(items, &third, ""), 90, 13000, 0);
}

static inline pack_case pack_case_make(const uint8_t *seed) {
  cli_pack_items items = {.count = 0};
  pack_case_fill(&items);
  pack_case out = pack_case_encode(&items, seed);
  cli_pack_items_clear(&items);
  return out;
}

/* ---- places in a pack ---- */

static inline uint32_t pack_case_get(const uint8_t *at) {
  return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline void pack_case_set(uint8_t *at, uint32_t value) {
  for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> 8 * i);
}

static inline uint8_t *pack_case_blob(pack_case *p, size_t i) {
  return p->bytes + FLP_PACK_HEAD_BYTES + pack_case_get(p->bytes + 12) + i * FLP_PACK_BLOB_BYTES;
}

/* The counts of entry i, which are followed by its key. */
static inline uint8_t *pack_case_entry(pack_case *p, size_t i) {
  uint8_t *at = pack_case_blob(p, pack_case_get(p->bytes + 24));
  while (i--)
    at +=
        FLP_PACK_ENTRY_BYTES + pack_case_get(at) + pack_case_get(at + 4) + pack_case_get(at + 8) * FLP_PACK_IMAGE_BYTES;
  return at;
}

static inline uint8_t *pack_case_image(pack_case *p, size_t entry, size_t i) {
  uint8_t *at = pack_case_entry(p, entry);
  return at + FLP_PACK_ENTRY_BYTES + pack_case_get(at) + pack_case_get(at + 4) + i * FLP_PACK_IMAGE_BYTES;
}

static inline uint8_t *pack_case_data(pack_case *p) {
  return p->bytes + FLP_PACK_HEAD_BYTES + pack_case_get(p->bytes + 12) + pack_case_get(p->bytes + 16) +
         FLP_PACK_DIGEST + pack_case_get(p->bytes + 28);
}

/* Makes the digest right again, as whoever wrote a hostile pack would. */
static inline void pack_case_seal(pack_case *p) {
  size_t body = FLP_PACK_HEAD_BYTES + (size_t)pack_case_get(p->bytes + 12) + pack_case_get(p->bytes + 16);
  if (body + FLP_PACK_DIGEST <= p->length) crypto_hash_sha256(p->bytes + body, p->bytes, body);
}

/* Opens these bytes as a file of their own, which the caller closes. */
static inline flp_status pack_case_open(const uint8_t *bytes, size_t length, int *fd, flp_pack **pack) {
  *fd = memfd_create("pack", MFD_CLOEXEC);
  pack_case_require(*fd >= 0 && write(*fd, bytes, length) == (ssize_t)length, "memfd");
  return flp_pack_open(*fd, "pack", pack);
}

/* Opens these bytes as the command does, and verifies all of them. The reason is left in flp_error_detail. */
static inline flp_status pack_case_verify(const uint8_t *bytes, size_t length) {
  int fd;
  flp_pack *pack;
  json_t *manifest = NULL;
  flp_status status = pack_case_open(bytes, length, &fd, &pack);
  if (status == FLP_OK) status = flp_pack_check(pack, fd, NULL, NULL);
  if (status == FLP_OK) status = cli_pack_read_manifest(pack, &manifest);
  json_decref(manifest);
  flp_pack_close(pack);
  close(fd);
  return status;
}

#endif

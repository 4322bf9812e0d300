/* cubin.c: checks that a cubin stays within its bytes: the driver gets a pointer and no length. */
#include <elf.h>
#include <string.h>

#include "runtime/base/status.h"
#include "runtime/pack/pack.h"

enum { MACHINE_CUDA = 190 };

static int within(uint64_t offset, uint64_t size, size_t bytes) {
  return offset <= bytes && size <= bytes - offset;
}

static int are_sections_within(const uint8_t *code, size_t bytes, const Elf64_Ehdr *head) {
  for (uint32_t i = 0; i < head->e_shnum; i++) {
    Elf64_Shdr section;
    memcpy(&section, code + head->e_shoff + i * sizeof section, sizeof section);
    if (section.sh_type != SHT_NOBITS && !within(section.sh_offset, section.sh_size, bytes)) return 0;
  }
  return 1;
}

static int are_segments_within(const uint8_t *code, size_t bytes, const Elf64_Ehdr *head) {
  for (uint32_t i = 0; i < head->e_phnum; i++) {
    Elf64_Phdr segment;
    memcpy(&segment, code + head->e_phoff + i * sizeof segment, sizeof segment);
    if (!within(segment.p_offset, segment.p_filesz, bytes)) return 0;
  }
  return 1;
}

flp_status flp_pack_check_cubin(const uint8_t *code, size_t bytes) {
  Elf64_Ehdr head;
  if (bytes < sizeof head) return flp_fail(FLP_ERROR_CORRUPT, "a cubin of %zu bytes is too short", bytes);
  memcpy(&head, code, sizeof head);
  if (memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64 ||
      head.e_ident[EI_DATA] != ELFDATA2LSB || head.e_machine != MACHINE_CUDA)
    return flp_fail(FLP_ERROR_CORRUPT, "a cubin is no 64-bit ELF file for CUDA");
  int whole = (!head.e_shnum || head.e_shentsize == sizeof(Elf64_Shdr)) &&
              (!head.e_phnum || head.e_phentsize == sizeof(Elf64_Phdr)) &&
              within(head.e_shoff, head.e_shnum * sizeof(Elf64_Shdr), bytes) &&
              within(head.e_phoff, head.e_phnum * sizeof(Elf64_Phdr), bytes);
  if (!whole || !are_sections_within(code, bytes, &head) || !are_segments_within(code, bytes, &head))
    return flp_fail(FLP_ERROR_CORRUPT, "a cubin has parts beyond its %zu bytes", bytes);
  return FLP_OK;
}

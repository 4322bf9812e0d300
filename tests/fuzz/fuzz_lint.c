/* fuzz_lint.c: any bytes to the lint, as a template and as a loss: a line of the text with a message, or nothing.
 *
 * Build: clang -fsanitize=fuzzer,address,undefined, with gen/lint/lint.c and gen/sources/tokens.c. */
#include <stdint.h>
#include <string.h>

#include "gen/lint/lint.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static int count_lines(const uint8_t *bytes, size_t length) {
  int lines = 1;
  for (size_t i = 0; i < length; i++) lines += bytes[i] == '\n';
  return lines;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  for (int is_loss = 0; is_loss < 2; is_loss++) {
    char message[128] = "", again[128] = "";
    int line = gen_lint_check((const char *)bytes, length, is_loss, message, sizeof message);
    if (line < 0 || line > count_lines(bytes, length) || !line != !message[0]) __builtin_trap();
    if (gen_lint_check((const char *)bytes, length, is_loss, again, sizeof again) != line) __builtin_trap();
    if (strcmp(message, again) != 0) __builtin_trap();
  }
  return 0;
}

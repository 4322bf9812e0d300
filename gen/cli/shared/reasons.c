/* reasons.c: why the rungs above the one that runs were not taken, for people. */
#include "gen/cli/shared/reasons.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct text_buffer {
  char *out;
  size_t used, capacity;
} text_buffer;

__attribute__((format(printf, 2, 3))) static void append(text_buffer *buffer, const char *format, ...) {
  if (buffer->used >= buffer->capacity) return;
  va_list list;
  va_start(list, format);
  int length = vsnprintf(buffer->out + buffer->used, buffer->capacity - buffer->used, format, list);
  va_end(list);
  buffer->used += length > 0 ? (size_t)length : 0;
}

void cli_reasons_text(const flp_plan *plan, char *out, size_t capacity) {
  text_buffer buffer = {out, 0, capacity};
  out[0] = 0;
  for (int rung = FLP_RUNG_TUNED; rung <= FLP_RUNG_EAGER;) {
    const char *reason = flp_plan_get_reason(plan, (flp_rung)rung);
    int end = rung + 1;
    while (end <= FLP_RUNG_EAGER && strcmp(flp_plan_get_reason(plan, (flp_rung)end), reason) == 0) end++;
    if (reason[0]) {
      for (int i = rung; i < end; i++) append(&buffer, "%s%s", i > rung ? ", " : "", flp_rung_name((flp_rung)i));
      append(&buffer, ": %s\n", reason);
    }
    rung = end;
  }
}

void cli_reasons_print(const char *text, const char *label) {
  while (*text) {
    size_t length = strcspn(text, "\n");
    printf("%s%.*s\n", label, (int)length, text);
    text += length + (text[length] == '\n');
  }
}

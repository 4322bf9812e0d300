/* lint.h: what the two files of the lint share. */
#ifndef FLPGEN_LINT_H
#define FLPGEN_LINT_H

#include <stdbool.h>
#include <stddef.h>

typedef enum lint_kind { LINT_END, LINT_NAME, LINT_NUMBER, LINT_STRING, LINT_OPERATOR } lint_kind;

typedef struct lint_token {
  const char *text; /* not terminated */
  size_t length;
  int line;
  lint_kind kind; /* keywords are names */
} lint_token;

/* A malloc'ed list of *count tokens and one LINT_END behind them; NULL if memory ran out. */
lint_token *lint_tokens_read(const char *text, size_t length, size_t *count);

#endif

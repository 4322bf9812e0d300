/* lint_tokens.c: a Lua source as a list of tokens, without comments; enough for lint.c, no parser.
 *
 * It accepts whatever it is given: what is not Lua is left to Lua's own parser to refuse. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "lint.h"

/* Length of "[", "="*n, "[" at p, or 0. */
static size_t long_open(const char *p, const char *end) {
  const char *q = p + 1;
  while (q < end && *q == '=') q++;
  return p < end && *p == '[' && q < end && *q == '[' ? (size_t)(q - p) + 1 : 0;
}

/* First byte behind the long bracket that opens at p with an opening of this length. */
static const char *long_end(const char *p, const char *end, size_t open) {
  for (const char *q = p + open; q < end; q++) {
    if (*q != ']') continue;
    const char *r = q + 1;
    while (r < end && *r == '=') r++;
    if (r < end && *r == ']' && (size_t)(r - q) + 1 == open) return r + 1;
  }
  return end;
}

static const char *quoted_end(const char *p, const char *end) {
  for (const char *q = p + 1; q < end && *q != '\n'; q++) {
    if (*q == '\\' && q + 1 < end)
      q++;
    else if (*q == *p)
      return q + 1;
  }
  return end;
}

static const char *comment_end(const char *p, const char *end) {
  size_t open = long_open(p + 2, end);
  if (open) return long_end(p + 2, end, open);
  const char *newline = memchr(p, '\n', (size_t)(end - p));
  return newline ? newline : end;
}

static const char *word_end(const char *p, const char *end) {
  while (p < end && (isalnum((unsigned char)*p) || *p == '_')) p++;
  return p;
}

/* 0x1p-3, 1e+5, 3.5: letters, digits, points, and a sign behind an exponent. */
static const char *number_end(const char *p, const char *end) {
  for (; p < end; p++) {
    bool is_sign = (*p == '+' || *p == '-') && strchr("eEpP", p[-1]);
    if (!isalnum((unsigned char)*p) && *p != '.' && !is_sign) break;
  }
  return p;
}

static const char *operator_end(const char *p, const char *end) {
  static const char *const two[] = {"==", "~=", "<=", ">=", "//", "<<", ">>", "::"};
  if (end - p >= 3 && memcmp(p, "...", 3) == 0) return p + 3;
  if (end - p >= 2 && memcmp(p, "..", 2) == 0) return p + 2;
  for (size_t i = 0; i < sizeof two / sizeof two[0]; i++)
    if (end - p >= 2 && memcmp(p, two[i], 2) == 0) return p + 2;
  return p + 1;
}

static lint_token next_token(const char *p, const char *end) {
  size_t open = long_open(p, end);
  const char *stop;
  lint_kind kind;
  if (open) {
    stop = long_end(p, end, open), kind = LINT_STRING;
  } else if (*p == '"' || *p == '\'') {
    stop = quoted_end(p, end), kind = LINT_STRING;
  } else if (isalpha((unsigned char)*p) || *p == '_') {
    stop = word_end(p, end), kind = LINT_NAME;
  } else if (isdigit((unsigned char)*p) || (*p == '.' && p + 1 < end && isdigit((unsigned char)p[1]))) {
    stop = number_end(p + 1, end), kind = LINT_NUMBER;
  } else {
    stop = operator_end(p, end), kind = LINT_OPERATOR;
  }
  return (lint_token){p, (size_t)(stop - p), 0, kind};
}

static int count_lines(const char *from, const char *to) {
  int n = 0;
  for (; from < to; from++) n += *from == '\n';
  return n;
}

lint_token *lint_tokens_read(const char *text, size_t length, size_t *count) {
  const char *end = text + length, *p = text;
  size_t capacity = 1024;
  lint_token *tokens = malloc(capacity * sizeof *tokens);
  int line = 1;
  *count = 0;
  while (tokens && p < end) {
    const char *start = p;
    if (isspace((unsigned char)*p)) {
      p++;
    } else if (end - p >= 2 && p[0] == '-' && p[1] == '-') {
      p = comment_end(p, end);
    } else {
      lint_token token = next_token(p, end);
      token.line = line;
      p += token.length;
      if (*count + 1 == capacity) {
        capacity *= 2;
        lint_token *grown = realloc(tokens, capacity * sizeof *tokens);
        if (!grown) free(tokens);
        tokens = grown;
      }
      if (tokens) tokens[(*count)++] = token;
    }
    line += count_lines(start, p);
  }
  if (tokens) tokens[*count] = (lint_token){"", 0, line, LINT_END};
  return tokens;
}

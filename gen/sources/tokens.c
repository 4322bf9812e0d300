/* tokens.c: Lua or C source as a list of tokens, without comments and layout; no parser.
 *
 * Invariant: two texts have the same tokens only if a compiler reads the same program in them. It accepts any
 * text; the language's parser refuses what is no source. */
#include "gen/sources/tokens.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

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

static const char *line_end(const char *p, const char *end) {
  const char *newline = memchr(p, '\n', (size_t)(end - p));
  return newline ? newline : end;
}

/* First byte behind the comment that opens at p; p itself if none does. */
static const char *lua_comment_end(const char *p, const char *end) {
  if (end - p < 2 || memcmp(p, "--", 2) != 0) return p;
  size_t open = long_open(p + 2, end);
  return open ? long_end(p + 2, end, open) : line_end(p, end);
}

static const char *c_comment_end(const char *p, const char *end) {
  if (end - p < 2) return p;
  if (memcmp(p, "//", 2) == 0) return line_end(p, end);
  if (memcmp(p, "/*", 2) != 0) return p;
  for (const char *q = p + 2; end - q >= 2; q++)
    if (memcmp(q, "*/", 2) == 0) return q + 2;
  return end;
}

/* First byte behind blanks or one comment; p itself if neither is there. A backslash before a newline joins lines. */
static const char *gap_end(gen_language language, const char *p, const char *end) {
  if (isspace((unsigned char)*p)) return p + 1;
  if (language == GEN_LANGUAGE_LUA) return lua_comment_end(p, end);
  return end - p >= 2 && memcmp(p, "\\\n", 2) == 0 ? p + 2 : c_comment_end(p, end);
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

/* The operators of both languages that have more than one character, longest first. */
static const char *operator_end(const char *p, const char *end) {
  static const char *const operators[] = {"...", "<<=", ">>=", "..", "==", "~=", "!=", "<=", ">=", "//", "<<", ">>",
                                          "::",  "->",  "++",  "--", "&&", "||", "+=", "-=", "*=", "/=", "%=", "&=",
                                          "|=",  "^=",  "##"};
  for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) {
    size_t length = strlen(operators[i]);
    if ((size_t)(end - p) >= length && memcmp(p, operators[i], length) == 0) return p + length;
  }
  return p + 1;
}

static gen_token next_token(gen_language language, const char *p, const char *end) {
  size_t open = language == GEN_LANGUAGE_LUA ? long_open(p, end) : 0;
  const char *stop;
  gen_token_kind kind;
  if (open) {
    stop = long_end(p, end, open), kind = GEN_TOKEN_STRING;
  } else if (*p == '"' || *p == '\'') {
    stop = quoted_end(p, end), kind = GEN_TOKEN_STRING;
  } else if (isalpha((unsigned char)*p) || *p == '_') {
    stop = word_end(p, end), kind = GEN_TOKEN_NAME;
  } else if (isdigit((unsigned char)*p) || (*p == '.' && p + 1 < end && isdigit((unsigned char)p[1]))) {
    stop = number_end(p + 1, end), kind = GEN_TOKEN_NUMBER;
  } else {
    stop = operator_end(p, end), kind = GEN_TOKEN_OPERATOR;
  }
  return (gen_token){p, (size_t)(stop - p), 0, kind};
}

static int count_lines(const char *from, const char *to) {
  int n = 0;
  for (; from < to; from++) n += *from == '\n';
  return n;
}

typedef struct token_list {
  gen_token *tokens; /* NULL: memory ran out */
  size_t count, capacity;
} token_list;

/* Room for one more token and the end stays. */
static void add(token_list *list, gen_token token) {
  if (list->count + 2 > list->capacity) {
    gen_token *grown = realloc(list->tokens, 2 * list->capacity * sizeof *grown);
    if (!grown) free(list->tokens);
    list->tokens = grown;
    list->capacity *= 2;
  }
  if (list->tokens) list->tokens[list->count++] = token;
}

/* Whether the token at p opens a directive of C's preprocessor: a # with nothing but blanks before it on its line. */
static bool opens_directive(gen_language language, const char *text, const char *p) {
  if (language != GEN_LANGUAGE_C || *p != '#') return false;
  while (p > text && (p[-1] == ' ' || p[-1] == '\t')) p--;
  return p == text || p[-1] == '\n';
}

gen_token *gen_tokens_read(gen_language language, const char *text, size_t length, size_t *count) {
  const char *end = text + length, *p = text;
  token_list list = {malloc(1024 * sizeof(gen_token)), 0, 1024};
  int line = 1;
  bool in_directive = false;
  while (list.tokens && p < end) {
    const char *start = p;
    p = gap_end(language, p, end);
    if (p == start) {
      in_directive |= opens_directive(language, text, p);
      gen_token token = next_token(language, p, end);
      token.line = line;
      p += token.length;
      add(&list, token);
    } else if (in_directive && *start == '\n') {
      in_directive = false;
      add(&list, (gen_token){start, 1, line, GEN_TOKEN_LINE_END});
    }
    line += count_lines(start, p);
  }
  *count = list.count;
  if (list.tokens) list.tokens[list.count] = (gen_token){"", 0, line, GEN_TOKEN_END};
  return list.tokens;
}

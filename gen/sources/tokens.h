/* tokens.h: Lua or C source as a list of tokens, without comments and layout. The lint and the hash of the sources read
 * it. */
#ifndef FLPGEN_TOKENS_H
#define FLPGEN_TOKENS_H

#include <stdbool.h>
#include <stddef.h>

typedef enum gen_language { GEN_LANGUAGE_LUA, GEN_LANGUAGE_C } gen_language;

typedef enum gen_token_kind {
  GEN_TOKEN_END,
  GEN_TOKEN_NAME, /* keywords too */
  GEN_TOKEN_NUMBER,
  GEN_TOKEN_STRING,
  GEN_TOKEN_OPERATOR,
  GEN_TOKEN_LINE_END /* C: of a preprocessor directive */
} gen_token_kind;

typedef struct gen_token {
  const char *text; /* not terminated */
  size_t length;
  int line;
  gen_token_kind kind;
} gen_token;

/* A malloc'ed list of *count tokens and one GEN_TOKEN_END behind them; NULL if memory ran out. */
gen_token *gen_tokens_read(gen_language language, const char *text, size_t length, size_t *count);

#endif

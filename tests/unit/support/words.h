/* words.h: specs, options and calls as words of a line, as files of golden traces and tables of tests have them. */
#ifndef FLP_TEST_WORDS_H
#define FLP_TEST_WORDS_H

#include "runtime/flp.h"

/* A field of flp_args that a word names: a pointer ('p'), a number of 64 bits ('l') or a float ('f'). */
typedef struct words_argument {
  const char *name;
  char type;
  size_t offset;
} words_argument;
/* A row with a NULL name ends it. */
extern const words_argument WORDS_ARGUMENT[];

/* stage_spec(0), then the words of the spec's text, or where it has none the options of the command: "V=1000 D=64
 * grads=hidden,weight bias loss=grpo grad-weight-dtype=fp32". A loss is good until the next one is read. */
flp_spec words_spec(const char *text);
/* Options that pin the jit rung: "chunk_rows=128 chunk_vocab=512 mode=save". */
flp_options words_options(const char *text);
/* A number of that name among the words, with or without a suffix K, M or G; absent where there is none. */
uint64_t words_number(const char *text, const char *name, uint64_t absent);
/* The word of that name: 1 if it is there; out gets what stands behind its '='. */
int words_find(const char *text, const char *name, char out[64]);
/* Sets fields of args: "name=5" numbers, "name" a pointer, at an address of its own, and "-name" none. Other words are
 * left alone. */
void words_set_args(const char *text, flp_args *args);

#endif

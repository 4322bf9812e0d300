/* words.h: specs, options and calls as words of a line, as files of golden traces and tables of tests have them. */
#ifndef FLP_TEST_WORDS_H
#define FLP_TEST_WORDS_H

#include "runtime/flp.h"

enum { WORDS_BYTES = 512 }; /* of a word */

/* A field of a struct that a word names: a pointer ('p'), a number of 32 or 64 bits ('i', 'l'), a float or
 * a double ('f', 'd') or a text ('s'). */
typedef struct words_argument {
  const char *name;
  char type;
  size_t offset;
} words_argument;
/* Those of flp_args; a row with a NULL name ends it. */
extern const words_argument WORDS_ARGUMENT[];

/* stage_spec(0), then the words of the spec's text, or where it has none the options of the command: "V=1000 D=64
 * grads=hidden,weight bias loss=grpo grad-weight-dtype=fp32". A loss is good until the next one is read. */
flp_spec words_spec(const char *text);
/* Sets fields of one that is there; by the struct's name, "has_bias=2", to any number. */
void words_change_spec(flp_spec *spec, const char *text);
/* Fields of flp_options, beside the jit rung: "chunk_rows=128 mode=save", "rung=auto device=host strict". */
flp_options words_options(const char *text);
/* A number of that name among the words, with or without a suffix K, M or G; absent where there is none. */
uint64_t words_number(const char *text, const char *name, uint64_t absent);
/* The word of that name: 1 if it is there; out gets what stands behind its '='. */
int words_find(const char *text, const char *name, char out[WORDS_BYTES]);
/* The name of a pass: "forward", "combine", "backward", "step", "backward_saved", "forward_saved", and of
 * FLP_PASS_DENSE "recomputed"; and the pass of a name, or 0. */
const char *words_pass_name(flp_pass pass);
flp_pass words_pass(const char *name);
/* A call of a plan of the spec: what stage_args gives it, then fields of flp_args, "name=5" numbers, "name" a pointer
 * at an address of its own, "name+2" behind it, "-name" none. "saved" has what the plan keeps. The workspace is that of
 * the layout in the default budget, in "budget=SIZE", or the "smallest" one, "of=PASS" of another pass than the call's;
 * or "workspace=BYTES", of 0 none. error: that of the layout */
flp_status words_call(const flp_plan *plan, const flp_spec *spec, flp_pass pass, const char *text, flp_args *out);

/* Sets these fields of a struct that is there, by such rows; a pointer may be another row's: "grad_scores=scores". */
void words_change_fields(void *out, const words_argument *rows, const char *text);

#endif

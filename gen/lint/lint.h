/* lint.h: mistakes with values that Lua hides. */
#ifndef FLPGEN_LINT_H
#define FLPGEN_LINT_H

#include <stdbool.h>
#include <stddef.h>

/* Finds truth tests and comparisons that a kernel value, or in a loss file a value of a row, cannot take part in.
 * Returns 0, or the line of the first fault with a message. */
int gen_lint_check(const char *text, size_t length, bool is_loss, char *message, size_t capacity);

#endif

/* replay.h: text files of commands and of what they give (tests/golden). A line that begins with > is a command, and
 * such with | behind it are further lines of it; one with # says what it is for, and all others are what the command
 * before them gives.
 *
 * FLP_GOLDEN_UPDATE=1 writes the files anew; the difference is then reviewed like code. */
#ifndef FLP_TEST_REPLAY_H
#define FLP_TEST_REPLAY_H

#include <stdio.h>

/* Runs a command: its first word, and what stands behind it. What it gives goes to out. */
typedef void (*replay_fn)(void *context, const char *command, const char *words, FILE *out);

/* Runs the commands of a file of tests/golden, such as "launch/forward.txt". compares: what they give must be what
 * stands in the file */
void replay_file(const char *name, int compares, replay_fn run, void *context);

/* Calls it with the name of every *.txt of a folder of tests/golden, in alphabetical order. Expects so many at least. */
void replay_each(const char *folder, int least, void (*each)(const char *name, void *context), void *context);

/* A text, on lines of at most 110 columns where it has blanks; all but the first are indented. */
void replay_wrap(FILE *out, const char *text);

#endif

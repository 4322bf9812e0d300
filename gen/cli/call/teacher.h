/* teacher.h: what a loss over several targets reads, drawn from a seed: log-probabilities of a teacher's tokens, and ids
 * of which a row has each once. */
#ifndef FLPGEN_CLI_TEACHER_H
#define FLPGEN_CLI_TEACHER_H

#include <stdint.h>

/* Log-probabilities of `count` tokens of one row, nats. Some are up to 50 times as likely as others; all tokens that are
 * not among them have 2 to 40 % together. */
void cli_teacher_draw(uint64_t seed, int64_t count, float *out);

/* The id, or where it is among the ids already the next one of the vocabulary that is not; of more ids than there are
 * the id itself. */
int64_t cli_id_apart(int64_t id, const int64_t *ids, int64_t count, int64_t vocab);

#endif

/* teacher.c: log-probabilities of a teacher, and ids that differ; see the header. */
#include "gen/cli/call/teacher.h"

#include <math.h>

#include "gen/cli/call/normal.h"

/* Score of token k, up to log 50. */
static double score(uint64_t seed, int64_t k) {
  return 3.9 * cli_unit(cli_hash(seed + 1 + (uint64_t)k));
}

void cli_teacher_draw(uint64_t seed, int64_t count, float *out) {
  double sum = 0, mass = 0.98 - 0.38 * cli_unit(cli_hash(seed));
  for (int64_t k = 0; k < count; k++) sum += exp(score(seed, k));
  for (int64_t k = 0; k < count; k++) out[k] = (float)(score(seed, k) + log(mass / sum));
}

static int is_among(const int64_t *ids, int64_t count, int64_t id) {
  for (int64_t i = 0; i < count; i++)
    if (ids[i] == id) return 1;
  return 0;
}

int64_t cli_id_apart(int64_t id, const int64_t *ids, int64_t count, int64_t vocab) {
  for (int64_t tries = 0; tries < vocab && is_among(ids, count, id); tries++) id = (id + 1) % vocab;
  return id;
}

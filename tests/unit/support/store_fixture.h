/* store_fixture.h: what the tests of the kernel cache share. Every stored image is sample_image(FORWARD, 5000,
 * seed). */
#ifndef FLP_TEST_STORE_FIXTURE_H
#define FLP_TEST_STORE_FIXTURE_H

#include <time.h>

#include "tests/unit/support/kernel_sample.h"

#define FIXTURE_KEY "flp-key/1 kind=forward arch=sm_80 test"
#define FIXTURE_OTHER_KEY "flp-key/1 kind=forward arch=sm_80 other"

enum { FIXTURE_KEY_BYTES = sizeof FIXTURE_KEY - 1, FIXTURE_PATH_BYTES = 1024 };

/* The warnings logged since fixture_open, and the last of them. */
extern int fixture_warnings;
extern char fixture_warning[2048];

/* Opens a cache that must open. */
flp_store *fixture_open(const char *writable, const char *read_only);

/* Stores the image of a seed; it must succeed. */
void fixture_put(flp_store *store, const char *key, unsigned seed);
void fixture_put_in(const char *directory, const char *key, unsigned seed);

/* Whether a key is found; if so, it must be the image of this seed. */
int fixture_finds(flp_store *store, const char *key, unsigned seed);

/* Gets or makes FIXTURE_KEY, which must give the image of seed 1. Returns whether it was made. */
int fixture_makes(flp_store *store);

/* Writes <directory>/<hash of key><suffix> to out and returns it. */
char *fixture_path(const char *directory, const char *key, const char *suffix, char out[FIXTURE_PATH_BYTES]);

void fixture_write_file(const char *path, const void *bytes, size_t length);

/* Sets a file's time to age seconds ago. */
void fixture_make_old(const char *path, time_t age);

#endif

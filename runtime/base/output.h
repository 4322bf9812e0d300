/* output.h: files that are written whole or not at all. Everything that is written under a name that others may read,
 * of the cache or of a user, is written here.
 *
 * Invariants: bytes go to a new file in the same directory, which no link can lead elsewhere; its name is random,
 * because hosts that share a directory may have equal process ids; the last step puts it in place, on the disk. */
#ifndef FLP_BASE_OUTPUT_H
#define FLP_BASE_OUTPUT_H

#include <stddef.h>
#include <sys/types.h>

#include "runtime/base/status.h"

#define FLP_OUTPUT_TEMPORARY ".tmp-" /* how the names of temporary files begin */

typedef struct flp_output {
  const char *path, *name; /* borrowed; the name is the path's end */
  int directory;           /* that the name is in; -1: fd is no regular file, and gets the bytes itself */
  int fd;
  int cause; /* errno of the first failure, or 0 */
  char temporary[32];
} flp_output;

/* Begins a file. directory: what a relative path begins at, or AT_FDCWD; mode: before the umask
 * error: IO, and there is nothing to close */
flp_status flp_output_open(int directory, const char *path, mode_t mode, flp_output *out);
/* flp_output_close reports a failure. */
void flp_output_write(flp_output *out, const void *bytes, size_t length);
/* Removes what there is of it. */
void flp_output_discard(flp_output *out);
/* Puts the file in place, or removes what there is of it. error: IO */
flp_status flp_output_close(flp_output *out);

#endif

/* library.h: shared libraries that are opened at run time. */
#ifndef FLP_LIBRARY_H
#define FLP_LIBRARY_H

#include "runtime/flp.h"

/* Opens the library, for good. error: UNAVAILABLE naming path and reason */
flp_status flp_library_open(const char *path, void **out);

#endif

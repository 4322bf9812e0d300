/* fake_threads.c: preloaded into a command, it lets pthread_create fail, as where no more threads may be had.
 *
 * FAKE_THREADS is one of
 *   from=<n>  call n and all after it fail with EAGAIN
 *   at=<n>    call n does, and those after it succeed */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_int calls;

static int fails(int number) {
  const char *text = getenv("FAKE_THREADS");
  if (text && strncmp(text, "from=", 5) == 0) return number >= atoi(text + 5);
  return text && strncmp(text, "at=", 3) == 0 && number == atoi(text + 3);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *), void *argument) {
  int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = NULL;
  if (fails(atomic_fetch_add(&calls, 1) + 1)) return EAGAIN;
  *(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
  if (!create) abort();
  return create(thread, attributes, work, argument);
}

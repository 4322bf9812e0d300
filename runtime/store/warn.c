/* warn.c: warnings of the cache, once per topic and process: a full disk is reported once, not at every kernel. */
#include <stdio.h>
#include <string.h>

#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include "runtime/store/internal.h"

enum { TOPICS_MAX = 64 }; /* beyond it, warnings are dropped: the log has enough by then */

static char *topics[TOPICS_MAX];
static size_t topic_count;

/* Returns 1 the first time that a topic comes by. */
static int is_first(const char *topic) {
  int first = 0;
  flp_lock(FLP_LOCK_TOPICS);
  size_t i = 0;
  while (i < topic_count && strcmp(topics[i], topic) != 0) i++;
  if (i == topic_count && topic_count < TOPICS_MAX && (topics[i] = strdup(topic)) != NULL) {
    topic_count++;
    first = 1;
  }
  flp_unlock(FLP_LOCK_TOPICS);
  return first;
}

void store_warn(const char *topic, const char *format, ...) {
  if (!is_first(topic)) return;
  char sentence[1024];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(sentence, sizeof sentence, format, arguments);
  va_end(arguments);
  if (length >= 0) flp_log(FLP_LOG_WARNING, "%s", sentence);
}

/* plans.c: the list of plans.
 *
 * Invariants: entries are added at the front and never removed, so one that was found stays valid without a lock; an
 * entry's plan is read and written under the entry's own lock, which is held while the plan is made. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/jax/plans.h"

typedef struct plan_entry {
  flp_spec spec; /* without padding, so it is compared as bytes; but its loss, which is the entry's own */
  int32_t device;
  pthread_mutex_t lock;
  flp_plan *plan; /* NULL until one was made */
  struct plan_entry *next;
} plan_entry;

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static plan_entry *first;

static int is_of(const plan_entry *entry, const flp_spec *spec, int32_t device) {
  flp_spec own = entry->spec;
  own.loss = spec->loss;
  if (entry->device != device || memcmp(&own, spec, sizeof own) != 0) return 0;
  return !spec->loss || memcmp(entry->spec.loss, spec->loss, spec->loss_bytes) == 0;
}

/* NULL if memory ran out. */
static plan_entry *new_entry(const flp_spec *spec, int32_t device) {
  plan_entry *entry = calloc(1, sizeof *entry + spec->loss_bytes);
  if (!entry) return NULL;
  memcpy(&entry->spec, spec, sizeof *spec);
  if (spec->loss) entry->spec.loss = memcpy(entry + 1, spec->loss, spec->loss_bytes);
  entry->device = device;
  pthread_mutex_init(&entry->lock, NULL);
  entry->next = first;
  return first = entry;
}

static plan_entry *find(const flp_spec *spec, int32_t device) {
  pthread_mutex_lock(&list_lock);
  plan_entry *entry = first;
  while (entry && !is_of(entry, spec, device)) entry = entry->next;
  if (!entry) entry = new_entry(spec, device);
  pthread_mutex_unlock(&list_lock);
  return entry;
}

flp_status jax_plan_get(const flp_spec *spec, int32_t device, flp_plan **out) {
  *out = NULL;
  plan_entry *entry = find(spec, device);
  if (!entry) return FLP_ERROR_MEMORY;
  flp_status status = FLP_OK;
  pthread_mutex_lock(&entry->lock);
  if (!entry->plan) {
    flp_options options = FLP_OPTIONS_INIT;
    options.device = device;
    status = flp_plan_create(spec, &options, &entry->plan);
  }
  *out = entry->plan;
  pthread_mutex_unlock(&entry->lock);
  return status;
}

int jax_plan_count(void) {
  int count = 0;
  pthread_mutex_lock(&list_lock);
  for (plan_entry *entry = first; entry; entry = entry->next) {
    pthread_mutex_lock(&entry->lock);
    count += entry->plan != NULL;
    pthread_mutex_unlock(&entry->lock);
  }
  pthread_mutex_unlock(&list_lock);
  return count;
}

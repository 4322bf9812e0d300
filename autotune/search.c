/* search.c: pruning, successive halving under a deadline, choice with ties. See search.h. */
#include "autotune/search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/status.h"

/* Candidates of one group: enough to compile side by side, few enough to stop
 * soon. */
enum { GROUP = SEARCH_GROUP_MAX, KEEP_ONE_IN = 3, FINALISTS_MOST = SEARCH_GROUP_MAX, FINALISTS_LEAST = 2 };
/* Samples of a round beside the candidates': two of the default. */
enum { BESIDE = 2 };
/* Bounds of the noise: below, no clock resolves it; above, it would hide real differences. */
static const double noise_least = 0.002, noise_most = 0.03, noise_unknown = 0.05, noise_between = 0.005;
/* Fractions of the time budget: all middle passes together; upper limit of the last pass. */
static const double middle_part = 0.15, last_part = 0.5;

static const char *const status_names[] = {"waiting", "illegal", "pruned", "wrong", "failed", "timed", "chosen"};
enum { STATUSES = sizeof status_names / sizeof status_names[0] };

const char *search_status_name(search_status status) {
  return (unsigned)status < STATUSES ? status_names[status] : "?";
}

int search_status_of(const char *name) {
  for (int i = 0; i < STATUSES; i++)
    if (strcmp(status_names[i], name) == 0) return i;
  return -1;
}

const char *search_effort_name(search_effort effort) {
  static const char *const names[] = {"quick", "normal", "exhaustive"};
  return (unsigned)effort < 3 ? names[effort] : "?";
}

search_options search_options_of(search_effort effort) {
  static const search_options of[] = {
      [SEARCH_QUICK] = {1.12, 24, 8, 1, 3, 4, 20, 1, 0, 0},
      [SEARCH_NORMAL] = {1.25, 120, 0, 1, 6, 7, 60, 1, 0, 0},
      [SEARCH_EXHAUSTIVE] = {1.4, 0, 0, 2, 8, 9, 0, 1, 0, 0},
  };
  return of[effort];
}

/* ---- pure parts ---- */

static int by_order(const search_candidate *a, const search_candidate *b) {
  if (a->is_default != b->is_default) return a->is_default ? -1 : 1;
  if (a->predicted_ms < b->predicted_ms) return -1;
  if (a->predicted_ms > b->predicted_ms) return 1;
  return a < b ? -1 : a > b; /* place in the list */
}

static int compare_order(const void *a, const void *b) {
  return by_order(*(search_candidate *const *)a, *(search_candidate *const *)b);
}

/* The order in which candidates are tried. */
static int compare_turn(const void *a, const void *b) {
  const search_candidate *x = *(search_candidate *const *)a, *y = *(search_candidate *const *)b;
  return x->is_included != y->is_included ? y->is_included - x->is_included : by_order(x, y);
}

/* The order in which candidates go on. */
static int compare_ratio(const void *a, const void *b) {
  const search_candidate *x = *(search_candidate *const *)a, *y = *(search_candidate *const *)b;
  if (x->is_included != y->is_included) return y->is_included - x->is_included;
  if (x->ratio < y->ratio) return -1;
  if (x->ratio > y->ratio) return 1;
  return by_order(x, y);
}

/* Lists the candidates that are or were tried, in their order, without the default. Returns their number. */
static int list_order(search_candidate *candidates, int count, search_candidate **out) {
  int listed = 0;
  for (int i = 1; i < count; i++)
    if (candidates[i].status == SEARCH_WAITING || candidates[i].status == SEARCH_TIMED) out[listed++] = &candidates[i];
  qsort(out, (size_t)listed, sizeof *out, compare_turn);
  return listed;
}

flp_status search_prune(search_candidate *candidates, int count, const search_options *options) {
  double best = INFINITY;
  search_candidate **order = calloc((size_t)count + 1, sizeof *order);
  if (!order) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the search");
  for (int i = 0; i < count; i++)
    if (candidates[i].status != SEARCH_ILLEGAL) best = fmin(best, candidates[i].predicted_ms);
  int listed = list_order(candidates, count, order);
  for (int i = 0; i < listed; i++) {
    search_candidate *c = order[i];
    if (c->status != SEARCH_WAITING || c->is_included) continue;
    if (c->predicted_ms > options->prune_factor * best)
      snprintf(c->reason, sizeof c->reason, "predicted to take %.2f times as long as the fastest; up to %.2f are tried",
               c->predicted_ms / best, options->prune_factor);
    else if (options->most > 0 && i >= options->most)
      snprintf(c->reason, sizeof c->reason, "%d others are predicted to be faster, and so many are tried",
               options->most);
    else
      continue;
    c->status = SEARCH_PRUNED;
  }
  free(order);
  return FLP_OK;
}

static int is_timed(const search_candidate *c) {
  return c->status == SEARCH_TIMED && c->rounds > 0;
}

int search_choose(const search_candidate *candidates, int count, double noise, int rounds) {
  double best = INFINITY;
  int chosen = 0;
  const search_candidate *first = NULL;
  for (int i = 1; i < count; i++)
    if (is_timed(&candidates[i]) && candidates[i].rounds >= rounds) best = fmin(best, candidates[i].ratio);
  if (!isfinite(best)) return rounds > 1 ? search_choose(candidates, count, noise, 1) : 0;
  for (int i = 1; i < count; i++) {
    const search_candidate *c = &candidates[i];
    if (!is_timed(c) || c->rounds < rounds || c->ratio > best * (1 + noise) || c->ratio >= 1 - noise) continue;
    if (first && by_order(first, c) < 0) continue;
    first = c;
    chosen = i;
  }
  return chosen;
}

/* ---- the search ---- */

typedef struct search {
  search_candidate *all;
  int count;
  const search_options *options;
  const search_device *device;
  search_result *out;
  double start;
  uint64_t seed;
  double make_s, sample_s;  /* time to make a candidate, and to time it for a round; 0: not known yet */
  search_candidate **order; /* of those that are tried */
  int order_count;
  double done, work; /* rounds of a candidate, for the progress */
} search;

static double elapsed(const search *s) {
  return s->device->now(s->device->context) - s->start;
}

static double left(const search *s) {
  return s->options->budget_s - elapsed(s);
}

/* Expected seconds of the last pass; without that pass only the default can be chosen. */
static double last_seconds(const search *s) {
  double all = s->sample_s * (s->options->finalists + BESIDE) * s->options->final_rounds;
  return fmin(all, last_part * s->options->budget_s);
}

/* How many fit into a time, between bounds. */
static int fitting(double seconds, double each, int least, int most) {
  if (!(each > 0) || seconds >= each * most) return most;
  return seconds < each * least ? least : (int)(seconds / each);
}

/* Candidates of the next group of the first pass; `count` of them are made whatever the deadline. */
static int group_size(const search *s, int least) {
  const search_options *options = s->options;
  int most = options->group > 0 && options->group < GROUP ? options->group : GROUP;
  double each = s->make_s + s->sample_s * options->first_rounds;
  if (options->budget_s <= 0) return most;
  return fitting(left(s) - last_seconds(s) - BESIDE * s->sample_s * options->first_rounds, each, least, most);
}

/* How many of a list whose first were included. */
static int count_included(search_candidate *const *list, int count) {
  int included = 0;
  while (included < count && list[included]->is_included) included++;
  return included;
}

/* Finalists that the last pass has time for. */
static int finalists_that_fit(const search *s, search_candidate *const *list, int count) {
  double each = s->sample_s * s->options->final_rounds;
  int least = count_included(list, count);
  if (least < FINALISTS_LEAST) least = count < FINALISTS_LEAST ? count : FINALISTS_LEAST;
  return s->options->budget_s > 0 ? fitting(left(s) - BESIDE * each, each, least, count) : count;
}

static int is_stopped(search *s) {
  if (s->device->stopped(s->device->context)) s->out->stopped = 1;
  return s->out->stopped;
}

/* 1 if the search starts the next group of a pass that must leave this share of the budget, and the last pass. */
static int goes_on(search *s, double part) {
  double budget = s->options->budget_s;
  int late = budget > 0 && left(s) < part * budget + last_seconds(s);
  if (late) s->out->out_of_time = 1;
  return !is_stopped(s) && !late;
}

static void note(const search *s, search_candidate *c) {
  if (s->device->note) s->device->note(s->device->context, c);
}

static void progress(search *s, double rounds) {
  s->done += rounds;
  double by_work = s->work > 0 ? s->done / s->work : 0;
  double by_time = s->options->budget_s > 0 ? elapsed(s) / s->options->budget_s : 0;
  if (s->device->progress) s->device->progress(s->device->context, fmin(fmax(by_work, by_time), 1));
}

static void release(const search *s, search_candidate *c) {
  if (s->device->release && c->ready && !c->is_default) s->device->release(s->device->context, c);
  if (!c->is_default) c->ready = 0;
}

static void take_sample(search_candidate *c, const search_sample *sample, int rounds) {
  c->ms = sample->ms;
  c->ratio = c->is_default ? 1 : sample->ms.median / sample->reference.median;
  c->rounds = rounds;
  c->status = SEARCH_TIMED;
}

/* Makes those of a group that are not ready. */
static flp_status make_group(search *s, search_candidate **list, int count) {
  search_candidate *wanting[FINALISTS_MOST];
  int wants = 0;
  for (int i = 0; i < count; i++)
    if (!list[i]->ready) wanting[wants++] = list[i];
  if (!wants) return FLP_OK;
  double before = elapsed(s);
  FLP_TRY(s->device->prepare(s->device->context, wanting, wants));
  s->make_s = (elapsed(s) - before) / wants;
  return FLP_OK;
}

/* Makes and times one group; wrong candidates drop out. */
static flp_status run_group(search *s, search_candidate **list, int count, int rounds, int is_last) {
  search_candidate *ready[FINALISTS_MOST];
  search_sample samples[FINALISTS_MOST];
  int readies = 0;
  FLP_TRY(make_group(s, list, count));
  for (int i = 0; i < count; i++) {
    if (list[i]->ready) ready[readies++] = list[i];
    if (!list[i]->ready) note(s, list[i]);
  }
  double before = elapsed(s);
  if (readies) FLP_TRY(s->device->time(s->device->context, ready, readies, rounds, is_last, s->seed++, samples));
  if (readies && s->options->sample_s <= 0) s->sample_s = (elapsed(s) - before) / (readies * rounds);
  for (int i = 0; i < readies; i++) {
    take_sample(ready[i], &samples[i], rounds);
    note(s, ready[i]);
  }
  progress(s, (double)count * rounds);
  return FLP_OK;
}

/* Times the default and included candidates whatever the deadline; then, while there is time, those with the
 * best predictions. */
static flp_status first_pass(search *s) {
  search_candidate *untuned = &s->all[0];
  int done = 0;
  while (!untuned->ready || (done < s->order_count && goes_on(s, middle_part))) {
    search_candidate *group[GROUP];
    int count = 0, most = group_size(s, untuned->ready ? 1 : 1 + count_included(s->order, s->order_count));
    if (!untuned->ready) group[count++] = untuned;
    while (done < s->order_count && count < most && !is_stopped(s)) {
      search_candidate *c = s->order[done++];
      if (c->status == SEARCH_WAITING) group[count++] = c;
    }
    if (count) FLP_TRY(run_group(s, group, count, s->options->first_rounds, 0));
    if (!untuned->ready)
      return flp_fail(FLP_ERROR_INTERNAL, "the untuned default is %s: %s", search_status_name(untuned->status),
                      untuned->reason);
    /* Plans hold modules and memory, so only the better part stays. */
    for (int i = 0; i < count; i++) {
      s->out->tried += !group[i]->is_default;
      if (group[i]->ready && group[i]->ratio > 1.15) release(s, group[i]);
    }
  }
  return FLP_OK;
}

/* Keeps what is timed, the best first. */
static int rank(search_candidate **list, int count) {
  int kept = 0;
  for (int i = 0; i < count; i++)
    if (is_timed(list[i])) list[kept++] = list[i];
  qsort(list, (size_t)kept, sizeof *list, compare_ratio);
  return kept;
}

/* Lets `kept` of the ranked candidates go on: half of them by time, and of those that may tie with the best as
 * many as come first in the order that breaks ties, so that noise does not decide which of them are seen at the
 * end. */
static void keep(search_candidate **list, int count, int kept) {
  int by_time = kept - kept / 2, first = count_included(list, count), ties = first;
  while (ties < count && list[ties]->ratio <= list[first]->ratio * (1 + noise_between)) ties++;
  if (by_time < first) by_time = first;
  if (ties > kept && by_time < kept) qsort(list + by_time, (size_t)(ties - by_time), sizeof *list, compare_order);
}

static flp_status middle_passes(search *s, search_candidate **list, int *count) {
  *count = 0;
  for (int i = 1; i < s->count; i++) list[(*count)++] = &s->all[i];
  *count = rank(list, *count);
  for (int rounds = s->options->first_rounds + 1; *count > s->options->finalists; rounds++) {
    int kept = (*count + KEEP_ONE_IN - 1) / KEEP_ONE_IN;
    if (kept < s->options->finalists) kept = s->options->finalists;
    keep(list, *count, kept);
    for (int i = kept; i < *count; i++) release(s, list[i]);
    *count = kept;
    for (int i = 0; i < kept && kept > s->options->finalists && goes_on(s, 0); i += GROUP)
      FLP_TRY(run_group(s, list + i, kept - i < GROUP ? kept - i : GROUP, rounds, 0));
    *count = rank(list, *count);
  }
  return FLP_OK;
}

/* Leaves out finalists that there is no time for. */
static void shorten(search *s, search_candidate **list, int *count) {
  int fit = finalists_that_fit(s, list, *count);
  if (fit == *count) return;
  s->out->out_of_time = 1;
  keep(list, *count, fit);
  for (int i = fit; i < *count; i++) release(s, list[i]);
  *count = fit;
}

static int compare_double(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double noise_of(search_candidate *const *list, int count) {
  double spread[FINALISTS_MOST + 1];
  int known = 0;
  for (int i = 0; i < count; i++)
    if (list[i]->status == SEARCH_TIMED && list[i]->rounds > 2)
      spread[known++] = (list[i]->ms.high - list[i]->ms.low) / (2 * list[i]->ms.median);
  if (known == 0) return noise_unknown;
  qsort(spread, (size_t)known, sizeof *spread, compare_double);
  return fmin(fmax(spread[known / 2], noise_least), noise_most);
}

/* All finalists and the default in one group; the default alone if there is time. */
static flp_status last_pass(search *s, search_candidate **list, int count) {
  search_candidate *group[FINALISTS_MOST] = {&s->all[0]};
  int members = 1;
  for (int i = 0; i < count && members < FINALISTS_MOST; i++) group[members++] = list[i];
  s->out->noise = noise_unknown;
  if (!is_stopped(s) && !(count == 0 && s->out->out_of_time)) {
    FLP_TRY(run_group(s, group, members, s->options->final_rounds, 1));
    s->out->noise = noise_of(group, members);
  }
  s->out->chosen = search_choose(s->all, s->count, s->out->noise, s->options->final_rounds);
  return FLP_OK;
}

static flp_status run_passes(search *s, search_candidate **list) {
  int count = 0;
  FLP_TRY(first_pass(s));
  FLP_TRY(middle_passes(s, list, &count));
  shorten(s, list, &count);
  return last_pass(s, list, count);
}

static void finish(search *s) {
  for (int i = 0; i < s->count; i++) {
    s->out->timed += is_timed(&s->all[i]);
    release(s, &s->all[i]);
  }
  search_candidate *chosen = &s->all[s->out->chosen];
  if (chosen->status == SEARCH_TIMED) chosen->status = SEARCH_CHOSEN;
  s->out->ms = chosen->ms.median;
  s->out->default_ms = s->all[0].ms.median;
  note(s, chosen);
  if (s->device->progress) s->device->progress(s->device->context, 1);
}

flp_status search_run(search_candidate *candidates, int count, const search_options *options,
                      const search_device *device, search_result *out) {
  *out = (search_result){.chosen = 0};
  search s = {.all = candidates,
              .count = count,
              .options = options,
              .device = device,
              .out = out,
              .seed = options->seed,
              .make_s = options->make_s,
              .sample_s = options->sample_s};
  search_candidate **lists = calloc(2 * (size_t)count + 1, sizeof *lists);
  if (!lists) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the search");
  s.order = lists;
  s.start = device->now(device->context);
  flp_status status = search_prune(candidates, count, options);
  for (int i = 0; i < count; i++)
    if (candidates[i].status == SEARCH_PRUNED || candidates[i].status == SEARCH_ILLEGAL) note(&s, &candidates[i]);
  s.order_count = list_order(candidates, count, s.order);
  s.work = 1.3 * s.order_count * options->first_rounds + 2.0 * options->finalists * options->final_rounds;
  if (status == FLP_OK) status = run_passes(&s, lists + count);
  if (status == FLP_OK) finish(&s);
  for (int i = 0; status != FLP_OK && i < count; i++) release(&s, &candidates[i]);
  free(lists);
  return status;
}

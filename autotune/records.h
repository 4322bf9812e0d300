/* records.h: what was tried and found, kept in one SQLite file: the source of `python -m flp.report`, and where a
 * search goes on.
 *
 * Version 1 (PRAGMA user_version):
 *   run        one call of `flpgen tune`: when, where, with what. sources: flp_sources_id
 *   spec       one specialisation of a run; text is the one that the command prints, with the mode and workspace
 *              that were asked for. finished: when its kernels were stored, null before; plan: id of the plan that then
 *              runs
 *   candidate  one tile configuration of a kernel (kind forward, dz, forward_keep, products, grad_hidden, grad_weight),
 *              or one layout of the backward pass or of a step (layout). ms, ms_low, ms_high: the pass that the kernel
 *              is timed in, over spec.rows rows: forward, backward, what save or direction mode makes of both, or a
 *              step of stream mode; ratio: to that of the untuned default (is_default) in the same group of bursts
 *   bare       GEMM baselines of the same shapes, timed among them
 * Rows are written one at a time in transactions of their own, so that a process that is killed leaves what it had. The
 * file is synced at the end of the run only: 10 ms a row would cost much of the budget. */
#ifndef FLP_AUTOTUNE_RECORDS_H
#define FLP_AUTOTUNE_RECORDS_H

#include "autotune/search.h"

enum { RECORDS_VERSION = 1 };

typedef struct records records;

/* Opens or creates a file. error: IO; CORRUPT if it is another kind of file or another version */
flp_status records_open(const char *path, records **out);
void records_close(records *file);

typedef struct records_run {
  int64_t id;
  const char *command, *gpu, *sources, *effort;
  int multiprocessors, driver;
  int64_t seed;
  double budget_s;
} records_run;

/* Both set the id. error: IO */
flp_status records_begin_run(records *file, records_run *run);
flp_status records_finish_run(records *file, const records_run *run);

typedef struct records_spec {
  int64_t id;
  const flp_spec *spec;     /* resolved */
  const char *text, *model; /* model: NULL for none */
  int64_t rows;
} records_spec;

flp_status records_begin_spec(records *file, const records_run *run, records_spec *spec);
flp_status records_finish_spec(records *file, const records_spec *spec, const char *plan_id);

/* Name of the kind of kernel, or "layout". */
const char *records_kind(const search_candidate *candidate);

/* Adds a candidate, or changes it if it has an id. error: IO */
flp_status records_put(records *file, const records_spec *spec, search_candidate *candidate);

/* Several puts in one transaction. */
flp_status records_begin(records *file);
flp_status records_commit(records *file);

typedef struct records_baseline {
  const char *product;
  int64_t rows;
  measure_summary ms;
  int algorithm;
} records_baseline;
flp_status records_put_baseline(records *file, const records_spec *spec, const records_baseline *baseline);

/* ---- going on ---- */

/* 1 if the newest spec of that text and rows, on the same GPU with the same driver and sources, was finished with this
 * effort; plan_id gets what was noted. error: IO */
flp_status records_find_finished(records *file, const records_run *run, const records_spec *spec, char plan_id[17],
                                 int *found);

/* Takes status, numbers and reason of a candidate that an earlier run has timed or rejected on the same GPU with the
 * same driver and sources; the newest counts. error: IO */
flp_status records_recall(records *file, const records_run *run, const records_spec *spec, search_candidate *candidate,
                          int *found);

#endif

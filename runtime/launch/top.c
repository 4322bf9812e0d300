/* top.c: the best columns of each row and the rank of its target (abi.h): forward in slices of the vocabulary.
 *
 * Of a chunk: top_target and top_begin; forward with part top over the first columns, all of which are listed, and then
 * over each slice, the first of which begins with them anew, with part keep where exponentials are saved; behind each
 * top_floor; top_redo of rows whose list overflowed; and when the caller's outputs are folded top_finish.
 * Invariants: slices begin where partials do, so bits are those of one launch; how many rows are lost only the device
 * knows; arrays are of the chunk's rows. */
#include <math.h>

#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/launch/launch.h"

/* ---- slices ---- */

/* Waves that a launch over so many units takes beyond the work in them. A last wave that is not half full takes its units
 * in halves. */
static double lost_waves(double waves) {
  double part = waves - floor(waves);
  return part == 0 ? 0 : part <= 0.5 ? 0.55 - part : 1 - part;
}

/* Units of the next slice, of as many as are left: those of `low` to `high` with which it and what is behind it best fill
 * whole waves. unit_waves: of a wave, that the rows of the chunk take of one unit of columns */
static int64_t choose_units(int64_t low, int64_t high, int64_t left, double unit_waves) {
  int64_t best = flp_min(flp_max(low, 1), left - 1);
  double least = INFINITY;
  for (int64_t units = best; units <= flp_min(high, left - 1); units++) {
    double lost = lost_waves((double)units * unit_waves) + lost_waves((double)(left - units) * unit_waves);
    if (lost < least - 1e-9) best = units, least = lost;
  }
  return best;
}

/* Columns of the units in which forward takes a panel: of two leaves where two warpgroups have one each. */
static int64_t unit_columns(const flp_call *call) {
  return flp_max(call->plan->planner.unit_columns, 2 * FLP_LEAF_COLUMNS);
}

static double unit_waves(const flp_call *call, flp_row_range rows) {
  const flp_planner *planner = &call->plan->planner;
  unsigned parts = FLP_PART_TOP | flp_kernel_spec_parts(&call->plan->spec);
  const flp_kernel_desc *desc = flp_call_desc(call, (flp_kernel_kind)(FLP_KERNEL_FORWARD + parts));
  int64_t cluster = flp_max(desc->cluster, 1), panel = flp_kernel_panel_rows(desc);
  double at_once = (double)flp_max(planner->multiprocessors / cluster, 1);
  return (double)flp_ceil_div(rows.end - rows.begin, panel) / at_once;
}

/* Where slice `slice` of `slices` ends, which begins at `begin`: about where they all grow by the same ratio; neither it
 * nor those behind it may grow by more than lists hold. */
static int64_t slice_end(const flp_call *call, flp_row_range rows, int64_t begin, int slice, int slices) {
  int64_t columns = call->args->vocab_valid, unit = unit_columns(call), left = flp_ceil_div(columns - begin, unit);
  if (slice + 1 >= slices || left <= 1) return columns;
  double most = flp_planner_top_ratio(&call->plan->spec), first = FLP_LEAF_COLUMNS;
  double wanted = first * pow((double)columns / first, (slice + 1.0) / slices) - (double)begin;
  double least = fmax(wanted * 2 / 3, (double)columns / pow(most, slices - slice - 1) - (double)begin);
  double highest = fmin(wanted * 3 / 2, fmax((double)begin, first) * most - (double)begin);
  int64_t low = (int64_t)ceil(least / (double)unit), high = (int64_t)(highest / (double)unit);
  return begin + choose_units(low, high, left, unit_waves(call, rows)) * unit;
}

/* ---- launches ---- */

static flp_status launch_begin(const flp_call *call, flp_row_range rows) {
  int has_score = call->scheme.mode == FLP_MODE_LISTED || call->scheme.mode == FLP_MODE_TAIL;
  if (call->args->rank && !has_score) FLP_TRY(flp_launch_own_scores(call, FLP_ENTRY_top_target, rows));
  flp_top_begin_given p = {
      FLP_GIVE_ROWS(rows),
      .ranks = call->args->rank != NULL,
      .target_score = call->args->rank ? flp_call_pointer(call->args->target_score) : 0,
  };
  return flp_launch_over(call, FLP_ENTRY_top_begin, &p, rows.end - rows.begin, 1);
}

static flp_status launch_floor(const flp_call *call, flp_row_range rows, int is_first, int is_last) {
  flp_top_floor_given p = {
      FLP_GIVE_ROWS(rows),
      .is_first = is_first,
      .is_last = is_last,
  };
  return flp_launch(call, FLP_ENTRY_top_floor, &p, rows.end - rows.begin);
}

/* CTAs that make nothing where no row is lost. */
static flp_status launch_redo(const flp_call *call, flp_row_range rows) {
  enum { SEGMENTS_MOST = 64, SEGMENT_LEAST = 1024, CTAS = 2 };
  int32_t most = flp_planner_top_places(&call->plan->spec) / flp_call_best(call);
  int64_t segments = flp_min(flp_min(most, SEGMENTS_MOST), flp_max(call->args->vocab_valid / SEGMENT_LEAST, 1));
  flp_top_redo_given p = {
      FLP_GIVE_WHOLE_WEIGHT(call),
      .row_begin = (int32_t)rows.begin,
      .segments = (int32_t)segments,
  };
  return flp_launch(call, FLP_ENTRY_top_redo, &p, (int64_t)call->plan->planner.multiprocessors * CTAS);
}

/* The first columns, which are listed all, so that there is a floor. */
static flp_status launch_sample(const flp_call *call, flp_row_range rows, int64_t sample) {
  if (!sample) return FLP_OK;
  FLP_TRY(flp_launch_scores(call, rows, (flp_column_range){0, sample}, (flp_sinks){.top = 1}));
  return launch_floor(call, rows, 1, 0);
}

/* One slice, whose exponentials stand behind those of the columns of the range before it. */
static flp_status launch_slice(const flp_call *call, flp_row_range rows, flp_column_range slice, int64_t range_begin,
                               flp_sinks to, int64_t from) {
  flp_keep_sink own;
  if (to.keep) {
    own = *to.keep;
    own.kept += (uint64_t)(slice.begin - range_begin) * flp_dtype_bytes(call->plan->spec.dtype);
    to.keep = &own;
  }
  to.top = 1;
  to.top_from = from;
  return flp_launch_scores(call, rows, slice, to);
}

flp_status flp_launch_top(const flp_call *call, flp_row_range rows, flp_column_range columns, flp_sinks to) {
  const flp_spec *spec = &call->plan->spec;
  flp_call but_last = *call; /* launches but the last make nothing of the weight's next slice */
  but_last.ahead = (flp_ahead){.rows = 0};
  int64_t vocab = call->args->vocab_valid, sample = flp_call_best(call) ? flp_planner_top_sample(spec, vocab) : 0;
  if (columns.begin == 0) FLP_TRY(launch_begin(call, rows));
  if (!flp_call_best(call)) return launch_slice(call, rows, columns, columns.begin, to, 0);
  if (columns.begin == 0) FLP_TRY(launch_sample(&but_last, rows, sample));
  int slices = flp_planner_top_slices(spec, vocab);
  for (int64_t begin = 0, slice = 0; begin < columns.end; slice++) {
    int64_t end = slice_end(call, rows, begin, (int)slice, slices);
    flp_column_range own = {flp_max(begin, columns.begin), flp_min(end, columns.end)};
    begin = end;
    if (own.begin >= own.end) continue;
    const flp_call *each = own.end == columns.end ? call : &but_last;
    FLP_TRY(launch_slice(each, rows, own, columns.begin, to, own.begin ? 0 : sample));
    if (own.end == end) FLP_TRY(launch_floor(call, rows, 0, own.end == vocab));
  }
  return columns.end == vocab ? launch_redo(call, rows) : FLP_OK;
}

flp_status flp_launch_top_listed(const flp_call *call, flp_row_range rows) {
  if (!flp_call_wants_top(call)) return FLP_OK;
  flp_top_listed_given p = {FLP_GIVE_ROWS(rows)};
  FLP_TRY(launch_begin(call, rows));
  return flp_launch_over(call, FLP_ENTRY_top_listed, &p, rows.end - rows.begin, 32);
}

/* A shard of a larger vocabulary has its partial to be held against; a whole head its stats. */
flp_status flp_launch_top_finish(const flp_call *call, flp_row_range rows) {
  const flp_args *a = call->args;
  if (!flp_call_wants_top(call)) return FLP_OK;
  flp_top_finish_given p = {
      FLP_GIVE_ROWS(rows),
      .stats = flp_args_are_whole(a) ? flp_call_stats(call) : 0,
      .top_rest = flp_args_are_whole(a) ? flp_call_pointer(a->top_rest) : 0,
  };
  return flp_launch(call, FLP_ENTRY_top_finish, &p, rows.end - rows.begin);
}

flp_status flp_launch_top_others(const flp_call *call) {
  return flp_call_wants_top(call) ? flp_launch_over(call, FLP_ENTRY_top_others, NULL, call->args->n, 32) : FLP_OK;
}

/* rejected.c: how many candidates were turned down, and why. */
#include <stdlib.h>
#include <string.h>

#include "gen/cli/report/charts/charts.h"
#include "gen/cli/report/parts/svg.h"

enum { GROUPS_MAX = 200, BARS_MAX = 16, PATTERN_BYTES = 200, BAR = 18, ROW = 44, TOP = 8, FOOT = 48 };

static const char title[] = "Candidates that were not timed, by reason";

/* Candidates whose status and reason are the same but for numbers. */
typedef struct group {
  report_status status;
  char pattern[PATTERN_BYTES];
  int count;
  const report_candidate *example; /* the first */
} group;

typedef struct tally {
  group of[GROUPS_MAX];
  int groups, rejected, waiting, other; /* other: of groups beyond GROUPS_MAX */
} tally;

/* The reason with # for every run of digits. */
static void pattern_of(const char *reason, char out[PATTERN_BYTES]) {
  size_t used = 0;
  if (strncmp(reason, "tune: ", 6) == 0) reason += 6; /* all are about what is tuned */
  for (const char *at = reason; *at && used < PATTERN_BYTES - 1; at++) {
    int is_digit = *at >= '0' && *at <= '9';
    if (is_digit && used && out[used - 1] == '#') continue;
    out[used++] = is_digit ? '#' : *at;
  }
  out[used] = 0;
  if (!used) snprintf(out, PATTERN_BYTES, "no reason recorded");
}

static void add(tally *t, const report_candidate *c) {
  char pattern[PATTERN_BYTES];
  pattern_of(c->status == REPORT_WAITING && !c->reason[0] ? "not reached before the search ended" : c->reason, pattern);
  t->rejected += c->status != REPORT_WAITING;
  t->waiting += c->status == REPORT_WAITING;
  for (int i = 0; i < t->groups; i++)
    if (t->of[i].status == c->status && strcmp(t->of[i].pattern, pattern) == 0) {
      t->of[i].count++;
      return;
    }
  if (t->groups == GROUPS_MAX) {
    t->other++;
    return;
  }
  group *added = &t->of[t->groups++];
  *added = (group){.status = c->status, .count = 1, .example = c};
  memcpy(added->pattern, pattern, sizeof pattern);
}

static int compare_groups(const void *left, const void *right) {
  const group *a = left, *b = right;
  if (a->count != b->count) return a->count > b->count ? -1 : 1;
  if (a->status != b->status) return a->status < b->status ? -1 : 1;
  return a->example->order < b->example->order ? -1 : 1;
}

/* A bar below its reason; colour and a word before the reason show the status. */
static void draw(FILE *out, const tally *t, int i) {
  int bars = t->groups < BARS_MAX ? t->groups : BARS_MAX;
  int lines = i + 1, row = ROW + REPORT_LINE * (lines - 1); /* phones break reasons in two */
  double height = TOP + FOOT + row * bars, right = REPORT_WIDTH[i] - 56;
  report_scale x = report_scale_make(0, t->of[0].count, 0, i ? 5 : 9, 6, right);
  report_svg_start(out, i, height, title);
  report_svg_axis_x(out, &x, TOP, height - FOOT, "candidates (count)", i ? 5 : 9, report_format_number);
  for (int b = 0; b < bars; b++) {
    char text[PATTERN_BYTES + 32], count[16];
    double y = TOP + row * b, end = report_scale_at(&x, t->of[b].count);
    snprintf(text, sizeof text, "%s: %s", report_status_name(t->of[b].status), t->of[b].pattern);
    snprintf(count, sizeof count, "%d", t->of[b].count);
    report_svg_lines(out, 6, y + 15, "", REPORT_WIDTH[i] - 10, lines, text);
    y += REPORT_LINE * (lines - 1);
    fprintf(out, "<rect x=\"6\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" class=\"bar s%d\"/>\n", y + 21, end - 6 + 1,
            BAR, (int)t->of[b].status);
    report_svg_text(out, end + 7, y + 34.5, REPORT_START, "head", 60, count);
  }
  report_svg_finish(out);
}

static void write_table(FILE *out, const tally *t) {
  static const char *const columns[] = {"rejected as", "reason, # for numbers", "#candidates", "an example",
                                        "its tiling"};
  enum { COLUMNS = sizeof columns / sizeof columns[0] };
  report_table_start(out, "reasons", t->groups, columns, COLUMNS);
  for (int g = 0; g < t->groups; g++) {
    char count[16], tiling[160];
    const report_candidate *c = t->of[g].example;
    snprintf(count, sizeof count, "%d", t->of[g].count);
    snprintf(tiling, sizeof tiling, "%.24s %.120s", c->kind, c->tune);
    const char *const cells[COLUMNS] = {report_status_name(t->of[g].status), t->of[g].pattern, count, c->reason,
                                        tiling};
    report_table_row(out, columns, COLUMNS, cells);
  }
  report_table_finish(out);
}

/* A swatch for each status that occurs. */
static void write_legend(FILE *out, const tally *t) {
  static const char *const meaning[] = {[REPORT_ILLEGAL] = "illegal: cannot be built",
                                        [REPORT_PRUNED] = "pruned: the cost model put it behind",
                                        [REPORT_WRONG] = "wrong: its numbers missed the reference",
                                        [REPORT_FAILED] = "failed: did not build or run",
                                        [REPORT_WAITING] = "waiting: the search ended before their turn"};
  report_legend_start(out);
  for (int status = REPORT_ILLEGAL; status < REPORT_TIMED; status++) {
    int used = 0;
    for (int g = 0; g < t->groups; g++) used |= (int)t->of[g].status == status;
    if (!used) continue;
    char class[16];
    snprintf(class, sizeof class, "bar s%d", status);
    report_legend_swatch(out, class, report_status_name((report_status)status), meaning[status]);
  }
  report_legend_finish(out);
}

static void write_figure(FILE *out, const report_data *data, const tally *t) {
  char about[256];
  snprintf(about, sizeof about,
           "%d candidates: %d were timed, %d rejected before, and %d not reached. Numbers in reasons are shown as #.",
           data->candidate_count, data->candidate_count - t->rejected - t->waiting, t->rejected, t->waiting);
  report_figure_start(out, "rejected", title, about);
  write_legend(out, t);
  for (int i = 0; i < REPORT_WIDTHS; i++) draw(out, t, i);
  if (t->groups > BARS_MAX) report_note(out, "Only the 16 most frequent reasons are drawn; the table has more.");
  if (t->other)
    report_note(out, "Candidates of rarer reasons, beyond the first 200 different ones, are not in the table.");
  write_table(out, t);
  report_figure_finish(out);
}

void report_chart_rejected(FILE *out, const report_data *data) {
  tally *t = calloc(1, sizeof *t);
  for (int i = 0; t && i < data->candidate_count; i++)
    if (data->candidates[i].status < REPORT_TIMED) add(t, &data->candidates[i]);
  if (t && t->groups) {
    qsort(t->of, (size_t)t->groups, sizeof *t->of, compare_groups);
    write_figure(out, data, t);
  } else {
    report_figure_missing(out, "rejected", title,
                          data->candidate_count
                              ? "The records hold none. Databases of flpgen tune hold all candidates, "
                                "exported searches the timed ones alone."
                              : "No candidates were given: name records of flpgen tune.");
  }
  free(t);
}

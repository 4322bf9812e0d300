/* gen_replay.h: the commands of tests/golden/words and tests/golden/language, which are files in the language of
 * templates and losses: see replay.h.
 *
 *   > arch sm_90a        of what follows in the file; sm_80 at first
 *   > word NAME          lines that give x, of p and of i, j (i32), f and g (f32)
 *   > body               of a kernel of 128 threads
 *   > template           a whole file; > module: the same, its IR
 *   > loss FILE          a whole file of a loss
 *   > loss-body TEXT     what a loss does before it returns row.logprob
 *   > loss-long          the longest file of a head, so many units, with %d their number, and a tail: a line each
 *   > order              a body: its instructions with their registers
 *   > ir                 a body: its IR as it is built
 *   > counts TEXT ...    how often each stands in the IR and PTX of a body
 *   > assembles ARCH ... a body for each of them
 *   > tile KIND DTYPE SCHEDULE ROWS COLUMNS STAGES CLUSTER RASTER    a tile configuration, 0 for the templates' own;
 *                      what is asked and what is built say the same of it
 *
 * What is refused gives its message; the rest, but for losses, its instructions, each once, without the numbers of
 * registers. Where there is a ptxas it takes all of them, and none has anything in local memory. */
#ifndef FLP_TEST_GEN_REPLAY_H
#define FLP_TEST_GEN_REPLAY_H

#include <ctype.h>

#include "tests/unit/support/gen_case.h"
#include "tests/unit/support/replay.h"

static const char gen_replay_word[] =
    "local x; local i, j, f, g = p.depth, p.bands, p.cap_in, k.load(k.f32, p.zy, 0)\n"
    "%s\n"
    "for n, y in ipairs(type(x) == 'table' and x or {x}) do\n"
    "  if y.type == k.i1 then y = k.zext(k.i32, y) end\n"
    "  k.store(p.part, n, y)\n"
    "end";

static inline void gen_replay_assemble(FILE *out, const flpgen_result *result, const char *arch) {
  char report[8192] = "";
  if (!gen_case_ptxas()) return;
  int status = gen_case_assemble(result->ptx, result->ptx_bytes, arch, report, sizeof report);
  if (status != 0 || !strstr(report, "0 bytes stack frame") || strstr(report, "C75")) fprintf(out, "%s\n", report);
}

/* Of a list of the same how many. */
static inline void gen_replay_count(char *text, const char *item) {
  size_t step = strlen(item);
  for (char *at = text; (at = strstr(at, item)); at++) {
    size_t count = 1;
    while (strncmp(at + count * step, item, step) == 0) count++;
    if (count < 5) continue;
    char rest[4096];
    snprintf(rest, sizeof rest, "%zu of %s%s", count, item, at + count * step);
    strcpy(at, rest);
  }
}

/* An instruction without the numbers of its registers. */
static inline void gen_replay_plain(char *text) {
  char *to = text;
  for (const char *at = text; *at;) {
    *to++ = *at;
    if (*at++ != '%') continue;
    while (isalpha((unsigned char)*at)) *to++ = *at++;
    while (isdigit((unsigned char)*at)) at++;
  }
  *to = 0;
  gen_replay_count(text, "%f,");
  gen_replay_count(text, "%r,");
}

static inline int gen_replay_is_shown(const char *line, const char *command) {
  static const char *const hidden[] = {"\t//", "\t.", "\tld.param.u64", "\tld.param.u32", "\tld.param.f32", "\tcvta."};
  for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++)
    if (strncmp(line, hidden[i], strlen(hidden[i])) == 0) return 0;
  if (strncmp(line, ".extern .shared", 15) == 0) return 1;
  if (strcmp(command, "word") == 0)
    return *line == '\t' && strncmp(line, "\tst.global", 10) && strncmp(line, "\tret;", 5);
  return *line == '\t' || (strcmp(command, "template") == 0 && strncmp(line, ".m", 2) == 0);
}

/* Each once, in the order of PTX. */
static inline void gen_replay_instructions(FILE *out, const char *ptx, const char *command) {
  static char seen[1 << 16], text[4096], whole[4100];
  strcpy(seen, "\n");
  for (const char *line = ptx, *end; (end = strchr(line, '\n')); line = end + 1) {
    if (!gen_replay_is_shown(line, command)) continue;
    int indent = *line == '\t', length = (int)(end - line) - indent;
    cr_assert_lt(snprintf(text, sizeof text, "%.*s", length, line + indent), sizeof text);
    if (strcmp(command, "order") != 0) gen_replay_plain(text);
    snprintf(whole, sizeof whole, "\n%s\n", text);
    if (strstr(seen, whole)) continue;
    cr_assert_lt(strlen(seen) + strlen(whole), sizeof seen);
    strcat(seen, whole + 1);
  }
  for (char *at = seen; *at; at++)
    if (*at == '\n' || *at == '\t') *at = ' ';
  replay_wrap(out, seen + 1);
}

/* Instructions of the IR as it is built. */
static inline void gen_replay_ir(FILE *out, const char *ir) {
  for (const char *line = ir, *end; (end = strchr(line, '\n')); line = end + 1)
    if (strncmp(line, "  ", 2) == 0) fprintf(out, "%.*s\n", (int)(end - line), line);
}

static inline void gen_replay_counts(FILE *out, const flpgen_result *result, char *texts) {
  for (char *text; (text = strsep(&texts, " "));) {
    int count = 0;
    for (const char *at = result->ptx; (at = strstr(at, text)); at++) count++;
    for (const char *at = result->ir; (at = strstr(at, text)); at++) count++;
    fprintf(out, "%s %d\n", text, count);
  }
}

/* Of forward, the one kernel of a template. */
static inline void gen_replay_launch(FILE *out, const flp_kernel_desc *d) {
  fprintf(out, "%u threads, %u bytes shared, tile", d->entries[0].threads, d->entries[0].shared_bytes);
  const uint32_t tile[] = {d->tile_rows,    d->tile_columns, d->tile_depth, d->stages,
                           d->unit_columns, d->raster,       d->cluster};
  for (size_t i = 0; i < sizeof tile / sizeof tile[0]; i++) fprintf(out, " %u", tile[i]);
  fprintf(out, "\n");
}

static inline void gen_replay_long(char *text, size_t bytes, char *lines) {
  const char *head = strsep(&lines, "\n"), *unit = strsep(&lines, "\n");
  size_t length = (size_t)sprintf(text, "%s", head);
  for (int n = 0; length + strlen(lines) + 32 < bytes; n++) length += (size_t)sprintf(text + length, unit, n);
  strcpy(text + length, lines);
}

static inline void gen_replay_loss(const char *command, const char *words, char *lines, FILE *out) {
  static flpgen_loss loss;
  static char text[(64 << 10) + 256];
  char error[512] = "";
  if (strcmp(command, "loss") == 0)
    snprintf(text, sizeof text, "%s\n", lines);
  else if (strcmp(command, "loss-long") == 0)
    gen_replay_long(text, 64 << 10, lines);
  else
    snprintf(text, sizeof text, "return function(row)\n%s\nreturn row.logprob end", words);
  const char *file = strcmp(command, "loss") == 0 ? words : "x.lua";
  flp_status status = flpgen_loss_trace(file, text, strlen(text), &loss, error, sizeof error);
  fprintf(out, "%s\n", status == FLP_OK ? "taken" : error);
}

/* words: what stands behind the command; lines: those below it */
static inline void gen_replay_kernel(const char *command, char *words, const char *lines, FILE *out) {
  char text[8192], error[512];
  flpgen_result result;
  snprintf(text, sizeof text, strcmp(command, "word") == 0 ? gen_replay_word : "%s", lines);
  int is_file = strcmp(command, "template") == 0 || strcmp(command, "module") == 0;
  flp_status status = is_file ? gen_case_text(text, strlen(text), &result, error) : gen_case_body(text, &result, error);
  if (status != FLP_OK) {
    fprintf(out, "%s%s\n", status == FLP_ERROR_COMPILE ? "" : "another status: ", error);
    cr_expect_null(result.ptx);
    return;
  }
  if (strcmp(command, "ir") == 0)
    gen_replay_ir(out, result.ir);
  else if (strcmp(command, "module") == 0)
    fputs(result.ir, out);
  else if (strcmp(command, "counts") == 0)
    gen_replay_counts(out, &result, words);
  else if (strcmp(command, "assembles") != 0)
    gen_replay_instructions(out, result.ptx, command);
  if (strcmp(command, "template") == 0) gen_replay_launch(out, &result.desc);
  gen_replay_assemble(out, &result, gen_case_arch);
  flpgen_result_clear(&result);
}

static inline void gen_replay_tile(const char *words, FILE *out) {
  char kind[32], error[512], dtype[8];
  flp_tunables t;
  flpgen_space *space;
  flpgen_tile tile;
  cr_assert_eq(sscanf(words, "%31s %7s %u %u %u %u %u %u", kind, dtype, &t.schedule, &t.rows, &t.columns, &t.stages,
                      &t.cluster, &t.raster), 8, "%s", words);
  flp_kernel_key key = gen_case_key(flp_kind_find(kind, strlen(kind)));
  key.dtype = strcmp(dtype, "fp32") == 0 ? FLP_DTYPE_FP32 : FLP_DTYPE_BF16;
  cr_assert_eq(flpgen_space_open(&key, NULL, &space, error, sizeof error), FLP_OK, "%s", error);
  flp_status status = flpgen_space_ask(space, &t, &tile, error, sizeof error);
  flpgen_space_close(space);
  key.tune = t;
  gen_case_refused(&key, NULL, status, error);
  fprintf(out, "%s\n", error);
}

static inline void gen_replay_run(void *context, const char *command, const char *given, FILE *out) {
  (void)context;
  static char room[128];
  char *words = strdup(given), *lines = words + strcspn(words, "\n");
  if (*lines) *lines++ = 0;
  if (strcmp(command, "arch") == 0) {
    snprintf(room, sizeof room, "%s", words);
    gen_case_arch = room;
  } else if (strncmp(command, "loss", 4) == 0) {
    gen_replay_loss(command, words, lines, out);
  } else if (strcmp(command, "tile") == 0) {
    gen_replay_tile(words, out);
  } else if (strcmp(command, "assembles") == 0) {
    for (char *rest = words; (gen_case_arch = strsep(&rest, " "));) gen_replay_kernel(command, words, lines, out);
    gen_case_arch = "sm_80";
    fprintf(out, "taken\n");
  } else {
    gen_replay_kernel(command, words, lines, out);
  }
  free(words);
}

static inline void gen_replay_file(const char *name, void *context) {
  gen_case_arch = "sm_80";
  replay_file(name, 1, gen_replay_run, context);
}

#endif

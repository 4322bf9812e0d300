/* trace.c: see trace.h. */
#include "tests/unit/support/trace.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "tests/unit/support/words.h"

enum { WIDTH = 110, PASSES = FLP_PASS_LAST + 1, NONE = -1 };

static const char *const region_names[] = {
#define NAME(name) #name,
    FLP_REGION_LIST(NAME)
#undef NAME
};

typedef struct trace {
  FILE *out;
  const flp_plan *plan;
  const flp_args *args;
  int pass; /* whose layout the launch has its arrays from */
  int column;
} trace;

/* A word on the present line, or on a new one. */
__attribute__((format(printf, 2, 3))) static void put(trace *t, const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (t->column && t->column + length > WIDTH) t->column = fprintf(t->out, "\n   ") - 1;
  t->column += fprintf(t->out, "%s%s", t->column ? " " : "", text);
}

static void end_line(trace *t) {
  if (t->column) fputc('\n', t->out);
  t->column = 0;
}

/* ---- layouts ---- */

static int is_used(const flp_plan *plan, int pass) {
  return plan->last[pass].n >= 0;
}

void trace_begin(stage *s, flp_plan *plan) {
  for (int pass = 0; pass < PASSES; pass++) plan->last[pass].n = NONE;
  s->reset();
}

static int outermost(const flp_plan *plan) {
  static const flp_pass order[] = {FLP_PASS_STEP, FLP_PASS_BACKWARD_SAVED, FLP_PASS_BACKWARD_GIVEN, FLP_PASS_BACKWARD,
                                   FLP_PASS_COMBINE, FLP_PASS_FORWARD_SAVED, FLP_PASS_FORWARD};
  for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
    if (is_used(plan, order[i])) return order[i];
  return NONE;
}

const flp_scheme *trace_scheme(const flp_plan *plan) {
  return outermost(plan) == NONE ? NULL : &plan->last[outermost(plan)].scheme;
}

/* Where the workspace of a pass begins: passes of a step stand behind its own arrays, and rows that are recomputed
 * behind those of the backward pass. */
static uint64_t base_of(const trace *t, int pass) {
  uint64_t base = stage_address(t->args->workspace);
  if (is_used(t->plan, FLP_PASS_STEP) && pass != FLP_PASS_STEP) base += t->plan->last[FLP_PASS_STEP].scheme.passes;
  return pass == FLP_PASS_DENSE ? base + t->plan->last[FLP_PASS_BACKWARD_SAVED].scheme.passes : base;
}

static uint64_t region_address(const trace *t, int pass, int region) {
  const flp_scheme *scheme = &t->plan->last[pass].scheme;
  return scheme->size[region] ? base_of(t, pass) + scheme->offset[region] : 0;
}

static int next_region(const flp_scheme *s, int after) {
  int best = NONE;
  for (int r = 0; r < FLP_REGION_ID_COUNT; r++) {
    int is_behind = after == NONE || s->offset[r] > s->offset[after] || (s->offset[r] == s->offset[after] && r > after);
    if (s->size[r] && is_behind && (best == NONE || s->offset[r] < s->offset[best])) best = r;
  }
  return best;
}

static void put_layout(trace *t, const char *name, const flp_scheme *s) {
  put(t, "layout %s: %s, %" PRId64 " x %" PRId64 " in %" PRId64 ", products=%d launches=%d bytes=%" PRIu64, name,
      flp_mode_name(s->mode), s->chunk_rows, s->chunk_vocab, s->chunks, s->products, s->launches, s->bytes);
  if (s->smallest_bytes != s->bytes) put(t, "smallest=%" PRIu64, s->smallest_bytes);
  if (s->saved_bytes) put(t, "saved=%" PRIu64, s->saved_bytes);
  if (s->slice) put(t, "slice=%" PRId64 " first=%" PRId64 " ahead=%d", s->slice, s->first, s->ahead);
  if (s->passes) put(t, "passes=%" PRIu64, s->passes);
  end_line(t);
  if (s->bytes) t->column = fprintf(t->out, "   ");
  uint64_t end = 0;
  for (int r = NONE; (r = next_region(s, r)) != NONE; end = (s->offset[r] + s->size[r] + 255) / 256 * 256) {
    if (s->offset[r] == end) put(t, "%s:%" PRIu64, region_names[r], s->size[r]);
    else put(t, "%s:%" PRIu64 "@%" PRIu64, region_names[r], s->size[r], s->offset[r]);
  }
  end_line(t);
}

void trace_layout(FILE *out, const char *name, const flp_scheme *scheme) {
  put_layout(&(trace){.out = out}, name, scheme);
}

/* ---- addresses ---- */

static void spell(char out[96], const char *before, const char *name, int64_t offset) {
  snprintf(out, 96, offset ? "%s%s%+" PRId64 : "%s%s", before, name, offset);
}

/* Of the caller's arrays; the workspace has regions. */
static int spell_argument(const trace *t, uint64_t address, char out[96]) {
  for (const words_argument *row = WORDS_ARGUMENT; row->name; row++) {
    void *start;
    if (row->type != 'p' || row->offset == offsetof(flp_args, workspace)) continue;
    memcpy(&start, (const char *)t->args + row->offset, sizeof start);
    if (!start || address - stage_address(start) >= STAGE_APART) continue;
    spell(out, "", row->name, (int64_t)(address - stage_address(start)));
    return 1;
  }
  return 0;
}

/* Of arrays that lie over each other one of the launch's own layout, of the parameter's name, or that starts there. */
static int spell_region(const trace *t, uint64_t address, const char *name, char out[96]) {
  int most = 0;
  for (int pass = 0; pass < PASSES; pass++)
    for (int r = 0; r < FLP_REGION_ID_COUNT && is_used(t->plan, pass); r++) {
      uint64_t start = region_address(t, pass, r), offset = address - start;
      if (!start || offset >= t->plan->last[pass].scheme.size[r]) continue;
      int likeness = 1 + 8 * (pass == t->pass) + 4 * (strcmp(region_names[r], name) == 0) + 2 * (offset == 0);
      if (likeness <= most) continue;
      char before[32];
      most = likeness;
      snprintf(before, sizeof before, pass == t->pass ? "@" : "@%s.", words_pass_name((flp_pass)pass));
      spell(out, before, region_names[r], (int64_t)offset);
    }
  return most > 0;
}

/* A slice of the weight stands where row 0 of the weight would be before it. */
static int spell_slice(const trace *t, uint64_t address, const char *name, char out[96]) {
  if (t->pass == NONE || (strcmp(name, "weight") != 0 && strcmp(name, "operand") != 0)) return 0;
  uint64_t slice = region_address(t, t->pass, FLP_REGION_operand_weight);
  if (address > slice || address == region_address(t, t->pass, FLP_REGION_operand_hidden)) return 0;
  spell(out, "@", "operand_weight", (int64_t)(address - slice));
  return 1;
}

static const char *address_of(const trace *t, uint64_t address, const char *name, char out[96]) {
  uint64_t into = address - stage_address(t->args->workspace), errors = t->plan->error_word;
  if (spell_argument(t, address, out) || spell_slice(t, address, name, out) || spell_region(t, address, name, out))
    return out;
  if (address - errors <= sizeof(int32_t)) spell(out, "", "error_word", (int64_t)(address - errors));
  else if (address == t->plan->program) spell(out, "", "program", 0);
  else if (into < STAGE_APART) spell(out, "@", "workspace", (int64_t)into);
  else cr_assert_fail("%s is at 0x%" PRIx64 ", where nothing is", name, address);
  return out;
}

/* ---- launches ---- */

static uint64_t pointer_at(const fake_launch *l, const flp_abi_param *p) {
  uint64_t address;
  memcpy(&address, l->params + p->offset, sizeof address);
  return address;
}

/* How many of the launch's arrays are not those of that layout. */
static int strangers(const trace *t, const fake_launch *l, const flp_abi_entry *entry, int pass) {
  int count = 0;
  for (const flp_abi_param *p = flp_abi_first(entry); p; p = flp_abi_next(entry, p))
    count += p->source >= FLP_ABI_REGION && pointer_at(l, p) != region_address(t, pass, (int)p->place);
  return count;
}

/* Says from which layout the launch has its arrays, where it is another one than of the launch before. */
static void put_pass(trace *t, const fake_launch *l, const flp_abi_entry *entry) {
  int best = t->pass;
  for (int pass = 0; pass < PASSES; pass++)
    if (is_used(t->plan, pass) && strangers(t, l, entry, pass) < strangers(t, l, entry, best)) best = pass;
  if (best == t->pass) return;
  t->pass = best;
  put(t, "in the layout %s:", words_pass_name((flp_pass)best));
  end_line(t);
}

static void put_map(trace *t, const char *name, const flp_abi_map *map) {
  char start[96], own[32];
  stage_map m = stage_read_map(map);
  snprintf(own, sizeof own, "%.*s", (int)(strlen(name) - strlen("_map")), name);
  put(t, "%s=%s[%" PRIu64 "x%" PRIu64 ",%" PRIu64 ",%" PRIu64 "x%" PRIu64 "]", name, address_of(t, m.start, own, start),
      m.rows, m.columns, m.stride_bytes, m.box_rows, m.box_columns);
}

static void put_flags(trace *t, const char *name, int32_t flags) {
  static const char *const words[] = {"wanted", "read_acc", "write_acc", "write_out", "out_f32", "if_any"};
  char text[96] = "";
  for (int i = 0; i < 5; i++)
    if (flags >> i & 1) snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", *text ? "," : "", words[i]);
  put(t, "%s=%s", name, text);
}

static void put_pointer(trace *t, const flp_abi_param *p, uint64_t address) {
  char text[96];
  int is_own = p->source >= FLP_ABI_REGION && address == region_address(t, t->pass, (int)p->place);
  if (is_own && p->source == FLP_ABI_REGION) return;
  address_of(t, address, p->name, text);
  if (strcmp(text + (*text == '@'), p->name) == 0) put(t, "%s", text);
  else put(t, "%s=%s", p->name, text);
}

static void put_param(trace *t, const fake_launch *l, const flp_abi_param *p) {
  union {
    int32_t i32;
    int64_t i64;
    float f32;
    double f64;
    flp_abi_map map;
  } v = {.i64 = 0};
  static const uint8_t nothing[8];
  const uint8_t *at = l->params + p->offset;
  size_t bytes = p->type == FLP_ABI_MAP ? sizeof v.map : p->type == FLP_ABI_I32 || p->type == FLP_ABI_F32 ? 4 : 8;
  memcpy(&v, at, bytes);
  if (bytes <= 8 && memcmp(at, nothing, bytes) == 0) return;
  switch (p->type) {
    case FLP_ABI_PTR: put_pointer(t, p, (uint64_t)v.i64); break;
    case FLP_ABI_I64: put(t, "%s=%" PRId64, p->name, v.i64); break;
    case FLP_ABI_I32:
      if (strstr(p->name, "_flags")) put_flags(t, p->name, v.i32);
      else put(t, "%s=%d", p->name, v.i32);
      break;
    case FLP_ABI_F32: put(t, "%s=%.9g", p->name, (double)v.f32); break;
    case FLP_ABI_F64: put(t, "%s=%.9g", p->name, v.f64); break;
    case FLP_ABI_MAP: put_map(t, p->name, &v.map); break;
  }
}

static void expect_as_described(const flp_plan *plan, const fake_launch *l, const flp_abi_entry *entry) {
  const flp_modules *modules = &plan->modules;
  uint32_t cluster = modules->function[entry->id].cluster;
  cr_expect_eq(l->stream, STAGE_STREAM);
  cr_expect_eq(l->cluster, cluster ? cluster : 1, "%s", l->entry);
  for (int i = 0; i < modules->count; i++)
    for (uint32_t e = 0; e < modules->desc[i].entry_count; e++) {
      const flp_kernel_entry *named = &modules->desc[i].entries[e];
      if (strcmp(named->name, l->entry) != 0) continue;
      cr_expect(l->block == named->threads && l->shared == named->shared_bytes, "%s", l->entry);
    }
}

static void put_launch(trace *t, const fake_launch *l) {
  const flp_abi_entry *entry = flp_abi_find(l->entry);
  put_pass(t, l, entry);
  put(t, "%s grid=%u", l->entry, l->grid);
  if (l->cluster > 1) put(t, "cluster=%u", l->cluster);
  for (const flp_abi_param *p = flp_abi_first(entry); p; p = flp_abi_next(entry, p)) put_param(t, l, p);
  end_line(t);
  expect_as_described(t->plan, l, entry);
}

/* ---- memsets ---- */

static void put_memset(trace *t, const char *line) {
  unsigned long start, pitch = 0, width, height = 1;
  int value;
  void *stream;
  char text[96];
  if (sscanf(line, "cuMemsetD8Async start=0x%lx value=%d bytes=%lu stream=%p", &start, &value, &width, &stream) != 4 &&
      sscanf(line, "cuMemsetD2D8Async start=0x%lx pitch=%lu value=%d width=%lu height=%lu stream=%p", &start, &pitch,
             &value, &width, &height, &stream) != 6)
    cr_assert_fail("%.*s", (int)strcspn(line, "\n"), line);
  cr_expect_eq(stream, STAGE_STREAM);
  put(t, "memset %s value=%d bytes=%lu", address_of(t, start, "", text), value, width);
  if (pitch) put(t, "rows=%lu pitch=%lu", height, pitch);
  end_line(t);
}

void trace_write(FILE *out, stage *s, const flp_plan *plan, const flp_args *args) {
  trace t = {.out = out, .plan = plan, .args = args, .pass = outermost(plan)};
  for (int pass = PASSES - 1; pass >= 0; pass--)
    if (is_used(plan, pass)) put_layout(&t, words_pass_name((flp_pass)pass), &plan->last[pass].scheme);
  size_t launch = 0;
  for (const char *line = s->log(); *line; line += strcspn(line, "\n"), line += *line == '\n') {
    if (strncmp(line, "cuLaunchKernel", 14) == 0) put_launch(&t, s->launch_at(launch++));
    if (strncmp(line, "cuMemset", 8) == 0) put_memset(&t, line);
  }
  cr_expect_eq(launch, s->launch_count());
  stage_expect_capturable(s);
}

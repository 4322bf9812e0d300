/* lint.c: finds mistakes with kernel values that Lua does not report: a value is always true, and never equal to a
 * constant.
 *
 * A "known value" is a call of a word that always gives one, k.lt(a, b), or a local whose declaration is exactly such
 * a call and which no statement of the file assigns anew. Only those are checked, so ordinary Lua is never flagged:
 * optional values (`x and k.load(...) or nil`, `if bias then`) stay idiomatic. Files of losses use other words, lt(a,
 * b), and fields of `row` are values. */
#include "gen/lint/lint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/sources/tokens.h"

enum { NAMES_MAX = 4096, BLOCKS_MAX = 256 };

typedef struct declared {
  const gen_token *name;
  bool is_value;
} declared;

/* How values are named, and what is reported of them. */
typedef struct dialect {
  bool is_loss;             /* words stand alone, min(a, b), and fields of a row are values */
  const char *const *words; /* that always give a value */
  const char *equal, *differs, *not_, *if_, *loop;
} dialect;

typedef struct lint {
  const dialect *dialect;
  gen_token *tokens;
  size_t count;
  size_t *closes;             /* of each "(", the index of its ")"; 0 of others */
  const gen_token **assigned; /* names that a statement gives a new value, sorted */
  size_t assigned_count;
  int line, line_calls;      /* the line that was last asked about, and whether it calls words */
  declared names[NAMES_MAX]; /* visible names, innermost last */
  size_t name_count;
  size_t blocks[BLOCKS_MAX]; /* name_count when the block opened */
  bool awaits_do[BLOCKS_MAX];
  size_t block_count;
  char *message;
  size_t capacity;
} lint;

/* Token i, or the end behind the last one: a file may stop anywhere. */
static const gen_token *at(const lint *l, size_t i) {
  return &l->tokens[i < l->count ? i : l->count];
}

static bool is(const lint *l, size_t i, const char *text) {
  const gen_token *t = at(l, i);
  return t->kind != GEN_TOKEN_STRING && strlen(text) == t->length && memcmp(t->text, text, t->length) == 0;
}

static bool is_any(const lint *l, size_t i, const char *const *texts) {
  for (int n = 0; texts[n]; n++)
    if (is(l, i, texts[n])) return true;
  return false;
}

static bool same(const gen_token *a, const gen_token *b) {
  return a->length == b->length && memcmp(a->text, b->text, a->length) == 0;
}

static int compare_names(const void *left, const void *right) {
  const gen_token *a = *(const gen_token *const *)left, *b = *(const gen_token *const *)right;
  if (a->length != b->length) return a->length < b->length ? -1 : 1;
  return memcmp(a->text, b->text, a->length);
}

/* ---- known values ---- */

static const char *const kernel_words[] = {
    "const",  "udiv",        "urem",         "lshr",       "eq",          "ne",      "lt",       "le",     "gt",
    "ge",     "ult",         "select",       "min",        "max",         "max_nan", "abs",      "fma",    "exp2",
    "log2",   "rcp",         "rcp_approx",   "sqrt",       "zext",        "bitcast", "convert",  "is_nan", "tid",
    "ctaid",  "reread_tid",  "reread_ctaid", "nctaid",     "lane",        "warp",    "load",     "offset", "is_null",
    "shared", "shared_load", "shuffle_xor",  "shuffle_up", "shuffle_idx", "ballot",  "popcount", "any",    "pack",
    NULL};
static const char *const loss_words[] = {"abs",   "exp", "expm1", "log", "sqrt", "detach", "min", "max", "clamp",
                                         "where", "lt",  "le",    "gt",  "ge",   "eq",     "ne",  NULL};
static const char *const row_fields[] = {"logprob",   "entropy", "old_logprob", "ref_logprob",
                                         "advantage", "weight",  NULL};

static const dialect kernel_dialect = {false,
                                       kernel_words,
                                       "a kernel value never equals a Lua constant; use k.eq",
                                       "a kernel value always differs from a Lua constant; use k.ne",
                                       "'not' of a kernel value is always false; use ~ on the condition",
                                       "a kernel value is always true in 'if'; use k.when, k.branch or k.select",
                                       "a kernel value is always true as condition of a loop; use k.loop or k.while_"};
static const dialect loss_dialect = {
    true,
    loss_words,
    "a value of a row never equals a Lua constant; use eq",
    "a value of a row always differs from a Lua constant; use ne",
    "'not' of a condition is always false; use ~",
    "a condition on a row is always true in 'if'; use where",
    "a condition on a row is always true in a loop, which runs while the loss is traced; use where"};

/* Whether the file has declared the name at i where it stands. */
static bool is_declared(const lint *l, size_t i) {
  for (size_t n = 0; n < l->name_count; n++)
    if (same(l->names[n].name, at(l, i))) return true;
  return false;
}

/* Whether a call of a word of the dialect begins at first, the word itself standing at i. */
static bool is_word_call(const lint *l, size_t first, size_t i) {
  if (!is_any(l, i, l->dialect->words) || !is(l, i + 1, "(")) return false;
  if (l->dialect->is_loss && is_declared(l, i)) return false;
  return first == 0 || !(is(l, first - 1, ".") || is(l, first - 1, ":") || is(l, first - 1, "function"));
}

/* `k.word(...)`, or in a loss `word(...)` or `row.field`, at i: index of its last token, else 0. */
static size_t value_call(const lint *l, size_t i) {
  bool is_loss = l->dialect->is_loss;
  bool is_field = i > 0 && (is(l, i - 1, ".") || is(l, i - 1, ":"));
  if (is_loss && !is_field && is(l, i, "row") && is(l, i + 1, ".") && is_any(l, i + 2, row_fields)) return i + 2;
  size_t open = is_loss ? i + 1 : i + 3;
  if (!is_loss && !(is(l, i, "k") && is(l, i + 1, "."))) return 0;
  if (!is_word_call(l, i, open - 1)) return 0;
  return l->closes[open];
}

/* After a call, these tokens make it something other than the value. */
static bool is_suffix(const lint *l, size_t i) {
  static const char *const suffixes[] = {".", ":", "[", "(", "{", NULL};
  return is_any(l, i, suffixes) || at(l, i)->kind == GEN_TOKEN_STRING;
}

/* A known value that begins at i: index of its last token plus 1, else 0. */
static size_t known_value(const lint *l, size_t i) {
  size_t end = value_call(l, i);
  if (end) return is_suffix(l, end + 1) ? 0 : end + 1;
  if (at(l, i)->kind != GEN_TOKEN_NAME || is_suffix(l, i + 1)) return 0;
  if (i > 0 && (is(l, i - 1, ".") || is(l, i - 1, ":"))) return 0;
  for (size_t n = l->name_count; n > 0; n--)
    if (same(l->names[n - 1].name, at(l, i))) return l->names[n - 1].is_value ? i + 1 : 0;
  return 0;
}

/* ---- scopes ---- */

static bool is_assigned(const lint *l, size_t i) {
  const gen_token *name = at(l, i);
  return bsearch(&name, l->assigned, l->assigned_count, sizeof name, compare_names) != NULL;
}

static void declare(lint *l, size_t i, bool is_value) {
  if (l->name_count < NAMES_MAX) l->names[l->name_count++] = (declared){at(l, i), is_value};
}

static void open_block(lint *l, bool awaits_do) {
  if (l->block_count == BLOCKS_MAX) return;
  l->awaits_do[l->block_count] = awaits_do;
  l->blocks[l->block_count++] = l->name_count;
}

static void close_block(lint *l) {
  if (l->block_count) l->name_count = l->blocks[--l->block_count];
}

/* Declares the names of a list that begins at i, none of them a value. */
static void declare_list(lint *l, size_t i) {
  for (; at(l, i)->kind == GEN_TOKEN_NAME; i += 2) {
    declare(l, i, false);
    if (!is(l, i + 1, ",")) return;
  }
}

static void declare_local(lint *l, size_t i) {
  static const char *const binary[] = {"and", "or", "==", "~=", "<", ">", "<=", ">=", "..", ",", NULL};
  if (is(l, i + 1, "function")) {
    declare(l, i + 2, false);
    return;
  }
  size_t end = is(l, i + 2, "=") ? value_call(l, i + 3) : 0;
  bool is_value = end && !is_suffix(l, end + 1) && !is_any(l, end + 1, binary);
  if (is_value && !is_assigned(l, i + 1))
    declare(l, i + 1, true);
  else
    declare_list(l, i + 1);
}

/* Declares the parameters of `function (`, `function f(` or `function t.f:g(` at i. */
static void open_function(lint *l, size_t i) {
  open_block(l, false);
  i++;
  if (at(l, i)->kind == GEN_TOKEN_NAME) i++;
  while (is(l, i, ".") || is(l, i, ":")) i += 2;
  if (is(l, i, "(")) declare_list(l, i + 1);
}

/* Follows declarations and blocks at token i. */
static void follow(lint *l, size_t i) {
  if (at(l, i)->kind != GEN_TOKEN_NAME || (i > 0 && (is(l, i - 1, ".") || is(l, i - 1, ":")))) return;
  if (is(l, i, "local")) {
    declare_local(l, i);
  } else if (is(l, i, "function")) {
    open_function(l, i);
  } else if (is(l, i, "for")) {
    open_block(l, true);
    declare_list(l, i + 1);
  } else if (is(l, i, "while")) {
    open_block(l, true);
  } else if (is(l, i, "do")) {
    if (l->block_count && l->awaits_do[l->block_count - 1])
      l->awaits_do[l->block_count - 1] = false;
    else
      open_block(l, false);
  } else if (is(l, i, "if") || is(l, i, "repeat")) {
    open_block(l, false);
  } else if (is(l, i, "else") || is(l, i, "elseif")) {
    close_block(l);
    open_block(l, false);
  } else if (is(l, i, "end") || is(l, i, "until")) {
    close_block(l);
  }
}

/* ---- faults ---- */

static int fault(lint *l, size_t i, const char *message) {
  snprintf(l->message, l->capacity, "%s", message);
  return at(l, i)->line;
}

static int check_truth(lint *l, size_t i) {
  static const char *const tests[] = {"not", "if", "elseif", "while", "until", NULL};
  static const char *const operators[] = {"+",  "-",  "*",  "/",  "//", "%", "^",  "&",  "|",   "~",  "<<",
                                          ">>", "..", "==", "~=", "<",  ">", "<=", ">=", "and", "or", NULL};
  size_t end = is_any(l, i, tests) ? known_value(l, i + 1) : 0;
  if (!end) return 0;
  if (is(l, i, "not")) return fault(l, i, l->dialect->not_);
  if ((is(l, i, "if") || is(l, i, "elseif")) && is(l, end, "then")) return fault(l, i, l->dialect->if_);
  bool is_loop = (is(l, i, "while") && is(l, end, "do")) || (is(l, i, "until") && !is_any(l, end, operators));
  return is_loop ? fault(l, i, l->dialect->loop) : 0;
}

static bool is_literal(const lint *l, size_t i) {
  static const char *const words[] = {"true", "false", NULL};
  return at(l, i)->kind == GEN_TOKEN_NUMBER || at(l, i)->kind == GEN_TOKEN_STRING || is_any(l, i, words);
}

static bool is_call(const lint *l, size_t i) {
  return l->dialect->is_loss ? is_word_call(l, i, i) : is(l, i, "k") && is(l, i + 1, ".");
}

/* Whether the line of token i calls words; one answer a line, so that a long one is read once. */
static bool line_calls_words(lint *l, size_t i) {
  int line = at(l, i)->line;
  if (l->line == line) return l->line_calls;
  l->line = line;
  l->line_calls = 0;
  while (i > 0 && at(l, i - 1)->line == line) i--;
  for (; i < l->count && at(l, i)->line == line && !l->line_calls; i++) l->line_calls = is_call(l, i);
  return l->line_calls;
}

/* `v == 0`, `0 ~= v`, `v == -1` of a local v, or row.weight, on a line that calls no word. */
static int check_comparison(lint *l, size_t i) {
  if (i == 0 || (!is(l, i, "==") && !is(l, i, "~="))) return 0;
  size_t right = is(l, i + 1, "-") ? i + 2 : i + 1;
  bool left_known = known_value(l, i - 1) == i || (l->dialect->is_loss && i > 2 && known_value(l, i - 3) == i);
  bool left_value = left_known && is_literal(l, right);
  bool right_value = is_literal(l, i - 1) && known_value(l, i + 1);
  if ((!left_value && !right_value) || line_calls_words(l, i)) return 0;
  return fault(l, i, is(l, i, "==") ? l->dialect->equal : l->dialect->differs);
}

/* ---- tables that are made once: what a file costs grows as its length ---- */

static void find_closes(lint *l, size_t *open) {
  size_t depth = 0;
  for (size_t i = 0; i < l->count; i++) {
    if (is(l, i, "(")) open[depth++] = i;
    if (is(l, i, ")") && depth > 0) l->closes[open[--depth]] = i;
  }
}

/* The names of `name =` and `name, ... =` outside declarations. */
static void find_assigned(lint *l) {
  for (size_t i = 1; i < l->count; i++) {
    if (!is(l, i, "=")) continue;
    size_t first = i - 1;
    while (first >= 2 && is(l, first - 1, ",") && at(l, first - 2)->kind == GEN_TOKEN_NAME) first -= 2;
    if (first > 0 && (is(l, first - 1, "local") || is(l, first - 1, "for"))) continue;
    for (size_t j = first; j < i; j += 2)
      if (at(l, j)->kind == GEN_TOKEN_NAME) l->assigned[l->assigned_count++] = at(l, j);
  }
  qsort(l->assigned, l->assigned_count, sizeof l->assigned[0], compare_names);
}

static int check_tokens(lint *l) {
  int line = 0;
  for (size_t i = 0; i < l->count && !line; i++) {
    line = check_truth(l, i);
    if (!line) line = check_comparison(l, i);
    follow(l, i);
  }
  return line;
}

int gen_lint_check(const char *text, size_t length, bool is_loss, char *message, size_t capacity) {
  lint *l = calloc(1, sizeof *l);
  if (!l) return 0;
  int line = 0;
  l->dialect = is_loss ? &loss_dialect : &kernel_dialect;
  l->message = message;
  l->capacity = capacity;
  l->tokens = gen_tokens_read(GEN_LANGUAGE_LUA, text, length, &l->count);
  l->closes = calloc(l->count + 1, sizeof l->closes[0]);
  l->assigned = calloc(l->count + 1, sizeof l->assigned[0]);
  size_t *open = calloc(l->count + 1, sizeof open[0]);
  if (l->tokens && l->closes && l->assigned && open) {
    find_closes(l, open);
    find_assigned(l);
    line = check_tokens(l);
  }
  free(open);
  free(l->assigned);
  free(l->closes);
  free(l->tokens);
  free(l);
  return line;
}

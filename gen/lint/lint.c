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
  const gen_token *tokens;
  size_t count;
  declared names[NAMES_MAX]; /* visible names, innermost last */
  size_t name_count;
  size_t blocks[BLOCKS_MAX]; /* name_count when the block opened */
  bool awaits_do[BLOCKS_MAX];
  size_t block_count;
  char *message;
  size_t capacity;
} lint;

static bool is(const lint *l, size_t i, const char *text) {
  const gen_token *t = &l->tokens[i < l->count ? i : l->count];
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
    if (same(l->names[n].name, &l->tokens[i])) return true;
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
  int depth = 0;
  for (size_t j = open; j < l->count; j++) {
    depth += is(l, j, "(") - is(l, j, ")");
    if (depth == 0) return j;
  }
  return 0;
}

/* After a call, these tokens make it something other than the value. */
static bool is_suffix(const lint *l, size_t i) {
  static const char *const suffixes[] = {".", ":", "[", "(", "{", NULL};
  return is_any(l, i, suffixes) || l->tokens[i].kind == GEN_TOKEN_STRING;
}

/* A known value that begins at i: index of its last token plus 1, else 0. */
static size_t known_value(const lint *l, size_t i) {
  size_t end = value_call(l, i);
  if (end) return is_suffix(l, end + 1) ? 0 : end + 1;
  if (l->tokens[i].kind != GEN_TOKEN_NAME || is_suffix(l, i + 1)) return 0;
  if (i > 0 && (is(l, i - 1, ".") || is(l, i - 1, ":"))) return 0;
  for (size_t n = l->name_count; n > 0; n--)
    if (same(l->names[n - 1].name, &l->tokens[i])) return l->names[n - 1].is_value ? i + 1 : 0;
  return 0;
}

/* ---- scopes ---- */

/* Whether some `name =` or `name, ... =` outside a declaration gives the name a new value. */
static bool is_assigned(const lint *l, const gen_token *name) {
  for (size_t i = 1; i < l->count; i++) {
    if (!is(l, i, "=")) continue;
    size_t first = i - 1;
    while (first >= 2 && is(l, first - 1, ",") && l->tokens[first - 2].kind == GEN_TOKEN_NAME) first -= 2;
    if (first > 0 && (is(l, first - 1, "local") || is(l, first - 1, "for"))) continue;
    for (size_t j = first; j < i; j += 2)
      if (l->tokens[j].kind == GEN_TOKEN_NAME && same(&l->tokens[j], name)) return true;
  }
  return false;
}

static void declare(lint *l, size_t i, bool is_value) {
  if (l->name_count < NAMES_MAX) l->names[l->name_count++] = (declared){&l->tokens[i], is_value};
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
  for (; l->tokens[i].kind == GEN_TOKEN_NAME; i += 2) {
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
  if (is_value && !is_assigned(l, &l->tokens[i + 1]))
    declare(l, i + 1, true);
  else
    declare_list(l, i + 1);
}

static void open_function(lint *l, size_t i) {
  open_block(l, false);
  while (i < l->count && !is(l, i, "(")) i++;
  declare_list(l, i + 1);
}

/* Follows declarations and blocks at token i. */
static void follow(lint *l, size_t i) {
  if (l->tokens[i].kind != GEN_TOKEN_NAME || (i > 0 && (is(l, i - 1, ".") || is(l, i - 1, ":")))) return;
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
  return l->tokens[i].line;
}

static int check_truth(lint *l, size_t i) {
  static const char *const operators[] = {"+",  "-",  "*",  "/",  "//", "%", "^",  "&",  "|",   "~",  "<<",
                                          ">>", "..", "==", "~=", "<",  ">", "<=", ">=", "and", "or", NULL};
  size_t end = known_value(l, i + 1);
  if (!end) return 0;
  if (is(l, i, "not")) return fault(l, i, l->dialect->not_);
  if ((is(l, i, "if") || is(l, i, "elseif")) && is(l, end, "then")) return fault(l, i, l->dialect->if_);
  bool is_loop = (is(l, i, "while") && is(l, end, "do")) || (is(l, i, "until") && !is_any(l, end, operators));
  return is_loop ? fault(l, i, l->dialect->loop) : 0;
}

static bool is_literal(const lint *l, size_t i) {
  static const char *const words[] = {"true", "false", NULL};
  return l->tokens[i].kind == GEN_TOKEN_NUMBER || l->tokens[i].kind == GEN_TOKEN_STRING || is_any(l, i, words);
}

static bool line_calls_words(const lint *l, int line) {
  for (size_t i = 0; i < l->count; i++)
    if (l->tokens[i].line == line && (l->dialect->is_loss ? is_word_call(l, i, i) : is(l, i, "k") && is(l, i + 1, ".")))
      return true;
  return false;
}

/* `v == 0`, `0 ~= v`, `v == -1` of a local v, or row.weight, on a line that calls no word. */
static int check_comparison(lint *l, size_t i) {
  if (i == 0 || (!is(l, i, "==") && !is(l, i, "~="))) return 0;
  size_t right = is(l, i + 1, "-") ? i + 2 : i + 1;
  bool left_known = known_value(l, i - 1) == i || (l->dialect->is_loss && i > 2 && known_value(l, i - 3) == i);
  bool left_value = left_known && is_literal(l, right);
  bool right_value = is_literal(l, i - 1) && known_value(l, i + 1);
  if ((!left_value && !right_value) || line_calls_words(l, l->tokens[i].line)) return 0;
  return fault(l, i, is(l, i, "==") ? l->dialect->equal : l->dialect->differs);
}

int gen_lint_check(const char *text, size_t length, bool is_loss, char *message, size_t capacity) {
  lint *l = calloc(1, sizeof *l);
  gen_token *tokens = l ? gen_tokens_read(GEN_LANGUAGE_LUA, text, length, &l->count) : NULL;
  int line = 0;
  if (tokens) {
    l->dialect = is_loss ? &loss_dialect : &kernel_dialect;
    l->tokens = tokens;
    l->message = message;
    l->capacity = capacity;
    for (size_t i = 0; i < l->count && !line; i++) {
      line = check_truth(l, i);
      if (!line) line = check_comparison(l, i);
      follow(l, i);
    }
  }
  free(tokens);
  free(l);
  return line;
}

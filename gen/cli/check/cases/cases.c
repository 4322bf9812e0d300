/* cases.c: the cases: a matrix of specialisations over ragged shapes, and the adversarial ones by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/check/cases/case.h"
#include "gen/cli/shared/losses.h"
#include "gen/cli/shared/spec_args.h"
#include "runtime/api/validate.h"
#include "runtime/base/half.h"
#include "runtime/base/operands.h"
#include "runtime/kernel/kernel.h"
#include "runtime/planner/planner.h"

enum { ALL_GRADS = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS };

static const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32};

/* Every entropy mode with no gradient, that of hidden, and all. */
static void add_matrix(check_list *list, flp_dtype dtype, int64_t n, int64_t vocab, int64_t hidden) {
  static const uint32_t grads[] = {0, FLP_GRAD_HIDDEN, ALL_GRADS};
  for (int entropy = FLP_ENTROPY_NONE; entropy <= FLP_ENTROPY_BACKWARD; entropy++)
    for (int g = 0; g < 3; g++) {
      check_case c = check_case_default(dtype, n, vocab, hidden);
      c.spec.entropy = (flp_entropy)entropy;
      c.spec.grads = grads[g];
      c.spec.has_bias = grads[g] == ALL_GRADS;
      check_list_add(list, c);
    }
}

/* Rows of a table that are of a dtype. */
static size_t count_of(const check_oddity_table *table, flp_dtype dtype) {
  size_t count = 0;
  while (count < table->count &&
         (dtype == FLP_DTYPE_BF16 || !table->of_bf16 || strcmp(table->rows[count], table->of_bf16) != 0))
    count++;
  return count;
}

static int is_aligned(const check_oddity *o, flp_dtype dtype) {
  return !o->alignment || o->alignment >= flp_half_bytes(dtype);
}

/* set: NULL for nothing */
static void add_rows(check_list *list, const check_oddity_table *table, flp_dtype dtype, check_set_row_fn set) {
  for (size_t i = 0; i < count_of(table, dtype); i++) {
    const check_oddity odd = check_odd_at(table, i);
    if (!is_aligned(&odd, dtype) || odd.old) continue;
    check_case c = check_make_odd(&odd, dtype);
    if (set) set(list, &odd, i, &c);
    check_list_add(list, c);
  }
}

/* ---- save, stream and direction modes ---- */

static void set_loss(check_list *list, check_case *c, const char *name) {
  if (list->status == FLP_OK) list->status = cli_loss_keep(name, &c->spec);
  if (list->status != FLP_OK) return;
  flp_entropy least = cli_loss_entropy(&c->spec);
  if (c->spec.entropy < least) c->spec.entropy = least;
}

enum { LOSSES_MOST = 64 };

/* Of one target a row; in mode tail no other column's score counts. */
static int has_turn(const check_case *c, const flp_loss *loss) {
  return !flp_loss_is_over_targets(loss) && !(c->mode == FLP_MODE_TAIL && flp_loss_is_of_scores(loss));
}

/* Built-in loss i in turn, of those that the case takes; beside an entropy bonus, if it goes with one, or without. */
static void set_builtin(check_list *list, check_case *c, int i, int bonus) {
  if (list->status != FLP_OK) return; /* looking for a loss leaves a message of its own */
  const char *of_rows[LOSSES_MOST];
  int count = 0;
  char name[64];
  flp_loss sum;
  for (int b = 0; flp_loss_builtin(b) && count < LOSSES_MOST; b++)
    if (flp_loss_find(flp_loss_builtin(b), &sum) == FLP_OK && has_turn(c, &sum)) of_rows[count++] = flp_loss_builtin(b);
  const char *own = of_rows[i % count];
  snprintf(name, sizeof name, "%s+entropy", own);
  set_loss(list, c, bonus && flp_loss_find(name, &sum) == FLP_OK ? name : own);
}

/* Plain: what was kept is multiplied as it is; else it is turned into gradients of the scores first. */
static void add_mode(check_list *list, check_case c, flp_mode mode, int plain, int turn) {
  c.mode = mode;
  if (plain) {
    c.spec.entropy = FLP_ENTROPY_FORWARD;
    c.spec.grads &= ~(uint32_t)FLP_GRAD_BIAS;
  }
  if (mode == FLP_MODE_DIRECTION) {
    c.spec.grads = FLP_GRAD_HIDDEN;
    c.spec.grad_weight_dtype = c.spec.grad_bias_dtype = (flp_dtype)0;
    c.spec.accumulate_grad_weight = 0;
  }
  cli_spec_set_mode(&c.spec, mode);
  if (!c.spec.keep) set_builtin(list, &c, turn, !plain);
  if (mode == FLP_MODE_STREAM && flp_spec_passes_for_mean(&c.spec))
    set_loss(list, &c, "nll"); /* takes no such loss */
  check_list_add(list, c);
}

/* Whole heads that are not split along the vocabulary; chunks of rows are those of stream mode. */
static int fits_modes(const check_oddity *o, flp_dtype dtype) {
  if (o->shards || o->forward_only || o->mode || o->chunk_vocab) return 0;
  return is_aligned(o, dtype);
}

/* both: each oddity in both forms, else in turn. Steps of the other dtypes take recompute mode, which is not pinned
 * then. */
static void add_modes(check_list *list, const check_oddity_table *table, flp_dtype dtype, int both) {
  int turn = 0;
  for (size_t i = 0; i < table->count; i++) {
    const check_oddity odd = check_odd_at(table, i);
    if (!fits_modes(&odd, dtype)) continue;
    check_case c = check_make_odd(&odd, dtype);
    for (int plain = 0; plain < 2; plain++) {
      if (!both && plain != turn % 2) continue;
      if (dtype == FLP_DTYPE_BF16 && !c.chunk_rows) add_mode(list, c, FLP_MODE_SAVE, plain, 0);
      add_mode(list, c, dtype == FLP_DTYPE_BF16 ? FLP_MODE_STREAM : (flp_mode)0,
               dtype == FLP_DTYPE_BF16 ? !plain : plain, turn);
    }
    turn++;
  }
}

/* Shards and all chunks too. */
static void add_directions(check_list *list, const check_oddity_table *table) {
  for (size_t i = 0; i < table->count; i++) {
    const check_oddity odd = check_odd_at(table, i), *o = &odd;
    if (o->forward_only || o->mode || o->accumulate) continue;
    add_mode(list, check_make_odd(o, FLP_DTYPE_BF16), FLP_MODE_DIRECTION, 1, 0);
  }
}

static void add_all_directions(check_list *list) {
  add_directions(list, &check_odd_first);
  add_directions(list, &check_odd_later);
  add_directions(list, &check_odd_columns);
}

/* ---- mode tail ---- */

/* In three forms: with a gradient of the entropy and all others, without, and as a step of a loss. */
enum { TAIL_FORMS = 3, TAIL_STEP = 2 };

static void add_tail(check_list *list, const check_oddity *o, flp_dtype dtype, int is_sharp, int form, int turn) {
  check_case c = check_make_odd(o, dtype);
  if (is_sharp && !(o->temperature > 100)) {
    c.fill = CHECK_FILL_SHARP;
    c.spec.hidden = 264; /* so that a score by chance is no rival */
  }
  c.mode = FLP_MODE_TAIL;
  cli_spec_set_mode(&c.spec, c.mode);
  if (form == 1) {
    c.spec.entropy = FLP_ENTROPY_FORWARD;
    if (c.spec.grads != FLP_GRAD_BIAS) c.spec.grads &= ~(uint32_t)FLP_GRAD_BIAS;
  }
  if (form == TAIL_STEP) set_builtin(list, &c, turn, turn % 2);
  check_list_add(list, c);
}

/* all: each oddity in all forms, else in turn. Shards have no steps. */
static void add_tails(check_list *list, const check_oddity_table *table, flp_dtype dtype, int all) {
  int turn = 0;
  for (size_t i = 0; i < table->count; i++) {
    const check_oddity odd = check_odd_at(table, i), *o = &odd;
    if (o->forward_only || o->mode || !is_aligned(o, dtype)) continue;
    for (int form = 0; form < TAIL_FORMS; form++) {
      int wanted = all || form == (o->shards ? turn % TAIL_STEP : turn % TAIL_FORMS);
      if (wanted && !(form == TAIL_STEP && o->shards)) add_tail(list, o, dtype, table == &check_odd_tailed, form, turn);
    }
    turn++;
  }
}

static void add_all_tails(check_list *list, flp_dtype dtype, int all) {
  add_tails(list, &check_odd_first, dtype, 0);
  add_tails(list, &check_odd_later, dtype, 0);
  add_tails(list, &check_odd_tailed, dtype, all);
}

/* ---- mode listed ---- */

static void set_listed(check_case *c, double kept, check_lists lists) {
  c->mode = FLP_MODE_LISTED;
  cli_spec_set_mode(&c->spec, c->mode);
  c->kept = kept > (double)c->spec.vocab ? (double)c->spec.vocab : kept;
  c->lists = lists;
}

/* Every entropy mode with no gradient, that of hidden, and all: of bf16 each with each, else one with each. Of listed
 * columns, or of several targets. */
static void add_own_matrix(check_list *list, flp_dtype dtype, int is_listed) {
  static const int counts[] = {CHECK_TARGETS_USUAL, 2, 64};
  check_list matrix = {0};
  add_matrix(&matrix, dtype, 67, 1531, 72);
  for (int i = 0; i < matrix.count; i++) {
    check_case *c = &matrix.cases[i];
    if (dtype != FLP_DTYPE_BF16 && i % 4) continue; /* on the diagonal */
    if (is_listed)
      set_listed(c, 20, CHECK_LISTS_DRAWN);
    else
      c->spec.targets = counts[i % 3];
    check_list_add(list, *c);
  }
  if (matrix.status != FLP_OK && list->status == FLP_OK) list->status = matrix.status;
  check_list_clear(&matrix);
}

static void set_listed_row(check_list *list, const check_oddity *o, size_t i, check_case *c) {
  (void)list;
  (void)i;
  set_listed(c, o->kept > 0 ? o->kept : 20, o->lists);
}

/* ---- several targets ---- */

/* Several targets, and steps of losses over them. */
static void set_targeted_row(check_list *list, const check_oddity *o, size_t i, check_case *c) {
  (void)i;
  c->spec.targets = o->targets ? o->targets : CHECK_TARGETS_USUAL;
  c->targets = o->of_row;
  c->teacher = o->teacher;
  if (o->loss) set_loss(list, c, o->loss);
}

/* ---- operands of two dtypes ---- */

/* An fp32 weight, then an fp32 hidden, rounded and split, over patterns in turn. */
static void add_mixed(check_list *list, flp_dtype dtype, int all) {
  enum { FORMS = 4 };
  for (size_t i = 0; i < check_odd_mixed.count; i++)
    for (int form = 0; form < FORMS; form++) {
      if (!all && form != (int)(i % FORMS)) continue;
      const check_oddity odd = check_odd_at(&check_odd_mixed, i);
      check_case c = check_make_odd(&odd, dtype);
      *(form / 2 ? &c.spec.hidden_dtype : &c.spec.weight_dtype) = FLP_DTYPE_FP32;
      c.spec.mixed = form % 2 ? FLP_MIXED_SPLIT : FLP_MIXED_ROUND;
      check_list_add(list, c);
    }
}

/* ---- an adapter on the head ---- */

enum { ADAPTER = FLP_GRAD_LORA_A | FLP_GRAD_LORA_B };

static check_case make_adapted(const check_oddity *o, flp_dtype dtype) {
  check_case c = check_make_odd(o, dtype);
  c.lora = o->lora;
  c.spec.lora_rank = o->adapter ? o->adapter : CHECK_LORA_USUAL;
  if (!o->grads) c.spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_BIAS | ADAPTER;
  c.spec.has_bias = (c.spec.grads & FLP_GRAD_BIAS) != 0;
  c.spec.grad_weight_dtype = (flp_dtype)0;
  if (o->grads_fp32) c.spec.grad_lora_dtype = FLP_DTYPE_FP32;
  return c;
}

/* Beside the gradients of all those of A, of B, and scores alone. */
static void add_adapted_forms(check_list *list, check_case c) {
  static const uint32_t masks[] = {FLP_GRAD_LORA_A, FLP_GRAD_LORA_B, 0};
  for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
    c.spec.grads = masks[i];
    c.spec.entropy = i ? FLP_ENTROPY_FORWARD : FLP_ENTROPY_BACKWARD;
    check_list_add(list, c);
  }
}

static void add_adapted(check_list *list, flp_dtype dtype) {
  for (size_t i = 0; i < count_of(&check_odd_adapted, dtype); i++) {
    const check_oddity odd = check_odd_at(&check_odd_adapted, i), *o = &odd;
    if (!is_aligned(o, dtype)) continue;
    check_case c = make_adapted(o, dtype);
    if (o->loss && list->status == FLP_OK) list->status = cli_loss_keep(o->loss, &c.spec);
    check_list_add(list, c);
    if (i == 0) add_adapted_forms(list, c);
  }
}

/* ---- pairs of features ---- */

/* Asks for a feature. turn: which form of it */
static void ask(check_list *list, check_case *c, flp_feature feature, int turn) {
  static const int64_t usual[FLP_FEATURE_NONE] = {[FLP_FEATURE_KEEP] = 1,  [FLP_FEATURE_LISTED] = 1,
                                                  [FLP_FEATURE_RANK] = 1,  [FLP_FEATURE_STATISTICS] = 1,
                                                  [FLP_FEATURE_RAW] = 1,   [FLP_FEATURE_TARGETS] = CHECK_TARGETS_USUAL,
                                                  [FLP_FEATURE_TOPK] = 20, [FLP_FEATURE_LORA] = CHECK_LORA_USUAL};
  const uint32_t hidden = FLP_GRAD_HIDDEN, weight = FLP_GRAD_WEIGHT;
  flp_spec *spec = &c->spec;
  for (const flp_field *f = FLP_SPEC_FIELD; f < FLP_SPEC_FIELD + FLP_SPEC_FIELD_COUNT; f++)
    if (usual[feature] && f->feature == feature) flp_field_set(f, spec, usual[feature]);
  if (feature == FLP_FEATURE_KEEP) spec->grads = turn % 2 ? hidden : hidden | weight;
  if (feature == FLP_FEATURE_KEEP && turn % 2) spec->entropy = FLP_ENTROPY_FORWARD;
  if (feature == FLP_FEATURE_LISTED) c->kept = 20;
  if (feature == FLP_FEATURE_TAIL) spec->tail = CLI_TAIL_USUAL, spec->hidden = 264;
  if (feature == FLP_FEATURE_LORA) spec->grads = (spec->grads & ~weight) | ADAPTER;
  if (feature == FLP_FEATURE_MIXED) spec->hidden_dtype = FLP_DTYPE_FP32, spec->mixed = FLP_MIXED_ROUND;
  if (feature == FLP_FEATURE_SLICES) spec->weight_dtype = FLP_DTYPE_FP32;
  if (feature == FLP_FEATURE_SLICES) spec->mixed = turn % 2 ? FLP_MIXED_SPLIT : FLP_MIXED_ROUND;
  if (feature == FLP_FEATURE_LOSS) set_loss(list, c, spec->targets > 1 ? "forward_kl" : "grpo");
  if (feature == FLP_FEATURE_SCORES) set_loss(list, c, "cross_entropy");
}

/* What rows the pairs meet, in turn. */
static const char *const pair_rows[] = {"random", "sharp",  "masked",   "bad-rows", "one-hot",  "nan-rows",
                                        "peaked", "steep",  "row-list", "shifted",  "idle-rows", "holes",
                                        "equal",  "last-tile"};
static void add_pair(check_list *list, flp_dtype dtype, flp_feature first, flp_feature second, int turn) {
  const check_oddity odd = check_odd_named("given", pair_rows[turn % (int)(sizeof pair_rows / sizeof pair_rows[0])]);
  check_case c = check_make_odd(&odd, dtype);
  flp_spec resolved;
  if (c.fill == CHECK_FILL_SHARP) c.spec.hidden = 264; /* so that a score by chance is no rival */
  ask(list, &c, first, turn);
  ask(list, &c, second, turn);
  const flp_spec *s = &c.spec;
  int saves = s->keep && !s->loss && !flp_weight_is_sliced(s);
  flp_mode saved = flp_planner_has_direction(s) ? FLP_MODE_DIRECTION : FLP_MODE_SAVE;
  c.mode = s->listed ? FLP_MODE_LISTED : flp_kernel_spec_emits(s) ? FLP_MODE_TAIL : saves ? saved : (flp_mode)0;
  if (list->status == FLP_OK && flp_spec_resolve(&c.spec, &resolved) == FLP_OK) check_list_add(list, c);
}

/* Each two features that a spec may have. rows: of how many kinds */
static void add_pairs(check_list *list, flp_dtype dtype, int rows) {
  int turn = 0;
  for (int first = 0; first < FLP_FEATURE_NONE; first++)
    for (int second = first + 1; second < FLP_FEATURE_NONE; second++)
      for (int i = 0; i < rows; i++) add_pair(list, dtype, (flp_feature)first, (flp_feature)second, turn++);
}

/* ---- large problems ---- */

/* Compared on samples, as every problem of its size; losses too then take what they need of rows from the rung. */
static check_case large_case(const check_case *given) {
  check_case c = check_case_default(given->spec.dtype, 8192, 151936, 4096);
  c.name = "large";
  c.rows = CHECK_ROWS_MASKED;
  c.sampled = 1;
  c.spec.entropy = FLP_ENTROPY_BACKWARD;
  c.spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  return c;
}

/* Losses whose derivatives need no reference of every row; grad_weight's sum is the caller's. */
static void add_stream_large(check_list *list, check_case c) {
  static const char *const losses[] = {"reinforce", "reinforce+entropy"};
  c.mode = FLP_MODE_STREAM;
  c.spec.accumulate_grad_weight = 1;
  c.spec.grad_weight_dtype = FLP_DTYPE_FP32;
  for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
    c.spec.entropy = FLP_ENTROPY_FORWARD;
    set_loss(list, &c, losses[i]);
    check_list_add(list, c);
  }
}

static void add_exact_large(check_list *list, check_case c) {
  check_list_add(list, c);
  if (c.spec.dtype != FLP_DTYPE_BF16) return;
  add_mode(list, c, FLP_MODE_SAVE, 0, 0);
  add_mode(list, c, FLP_MODE_SAVE, 1, 0);
  add_mode(list, c, FLP_MODE_DIRECTION, 1, 0);
  add_stream_large(list, c);
}

static void add_mixed_large(check_list *list, check_case c) {
  if (c.spec.dtype == FLP_DTYPE_FP32) return;
  c.spec.weight_dtype = FLP_DTYPE_FP32;
  for (int form = FLP_MIXED_ROUND; form <= FLP_MIXED_SPLIT; form++) {
    c.spec.mixed = (flp_mixed)form;
    check_list_add(list, c);
  }
}

/* Steps of a loss over all scores. */
static void add_scores_large(check_list *list, check_case c) {
  c.spec.entropy = FLP_ENTROPY_FORWARD;
  set_loss(list, &c, "cross_entropy");
  c.mode = FLP_MODE_RECOMPUTE_VOCAB;
  check_list_add(list, c);
  c.mode = FLP_MODE_STREAM;
  if (c.spec.dtype == FLP_DTYPE_BF16) check_list_add(list, c);
}

/* The gradient of A is of all rows with work: it is compared where these are few. */
static void add_adapted_large(check_list *list, check_case c) {
  c.spec.lora_rank = CHECK_LORA_LARGE;
  c.spec.grads = FLP_GRAD_HIDDEN | ADAPTER;
  check_list_add(list, c);
  c.name = "large-few";
  c.rows = CHECK_ROWS_FEW;
  check_list_add(list, c);
}

static void add_large(check_list *list, const check_case *given) {
  const check_case large = large_case(given);
  check_case listed = large, tail = large, targets = large, top = large;
  set_listed(&listed, 20, CHECK_LISTS_DRAWN);
  tail.mode = FLP_MODE_TAIL; /* rows of which no list holds enough, at a size where that is many */
  cli_spec_set_mode(&tail.spec, tail.mode);
  targets.spec.targets = 64;
  top.spec.entropy = FLP_ENTROPY_NONE;
  top.spec.grads = 0;
  check_set_top(&top, 20);
  add_exact_large(list, large);
  check_list_add(list, listed);
  check_list_add(list, tail);
  check_list_add(list, targets);
  check_list_add(list, top);
  add_mixed_large(list, large);
  add_scores_large(list, large);
  add_adapted_large(list, large);
}

/* A shape of which the oracle sees samples. */
static int is_big(const check_case *given) {
  return (double)given->n * (double)given->spec.vocab * (double)given->spec.hidden > 2e9;
}

/* What a specification of its own is checked with: what any can carry, and what is beside its own rows. */
typedef enum given_kind {
  GIVEN_ANY,
  GIVEN_SMALL, /* any that is not big */
  GIVEN_LISTS,
  GIVEN_TAIL,
  GIVEN_TARGETS,
  GIVEN_TEACHER,
  GIVEN_TOP,
  GIVEN_LOSS,
  GIVEN_LORA,
  GIVEN_KINDS
} given_kind;

enum { GIVEN_MOST = 14 };

/* By the names of the catalog; in this order, as data depend on a case's place. */
static const char *const given_names[GIVEN_KINDS][GIVEN_MOST] = {
    [GIVEN_ANY] = {"random", "masked"},
    [GIVEN_SMALL] = {"shifted", "one-hot", "negative", "bad-rows", "nan-rows", "row-list", "idle-rows", "last-tile",
                     "peaked", "unlikely", "steep", "holes", "T-beyond"},
    [GIVEN_LISTS] = {"lists-bad", "lists-one", "lists-all", "lists-repeat", "lists-descend", "lists-before",
                     "lists-behind"},
    /* rows with lists, rows that no list holds, no row */
    [GIVEN_TAIL] = {"sharp", "sharp-masked", "sharp-bad", "sharp-nan", "equal", "masked-all"},
    [GIVEN_TARGETS] = {"targets-teacher", "targets-same", "targets-ends", "targets-few", "targets-bad"},
    [GIVEN_TEACHER] = {"teacher-certain", "teacher-missing", "teacher-tails", "teacher-whole"},
    [GIVEN_TOP] = {"equal", "exact", "sharp"},
    [GIVEN_LOSS] = {"nan-idle"}, /* of weight 0 */
    [GIVEN_LORA] = {"lora-zero", "lora-off"}};

static void add_pattern(check_list *list, const check_case *given, const char *name) {
  const check_oddity o = check_odd_named("given", name);
  check_case c = *given;
  c.name = o.name;
  c.fill = o.fill;
  c.rows = o.rows;
  if (o.lists) c.lists = o.lists;
  if (o.of_row) c.targets = o.of_row;
  c.teacher = o.teacher;
  c.lora = o.lora;
  if (c.fill == CHECK_FILL_HOLES && !c.spec.has_bias) return;
  if (c.rows == CHECK_ROWS_BEYOND && !c.spec.per_row_temperature) return;
  check_list_add(list, c);
}

static void add_given(check_list *list, const check_case *given) {
  const flp_spec *spec = &given->spec;
  const int is_given[GIVEN_KINDS] = {[GIVEN_ANY] = 1,
                                     [GIVEN_SMALL] = 1,
                                     [GIVEN_LISTS] = spec->listed,
                                     [GIVEN_TAIL] = spec->tail > 0,
                                     [GIVEN_TARGETS] = spec->targets > 1,
                                     [GIVEN_TEACHER] = spec->targets > 1 && spec->loss,
                                     [GIVEN_TOP] = flp_planner_has_row_values(spec),
                                     [GIVEN_LOSS] = spec->loss != NULL,
                                     [GIVEN_LORA] = spec->lora_rank};
  for (int kind = 0; kind < GIVEN_KINDS; kind++) {
    if (!is_given[kind] || (is_big(given) && kind != GIVEN_ANY && kind != GIVEN_LORA)) continue;
    for (const char *const *name = given_names[kind]; *name; name++) add_pattern(list, given, *name);
  }
}

/* all: of every dtype over ragged shapes, and each oddity in every form; else of bf16, in forms that take turns. */
static void add_sets(check_list *list, int all) {
  static const int64_t shapes[][3] = {{1, 2, 8}, {5, 131, 40}, {130, 1000, 72}, {67, 4099, 264}};
  static const check_oddity_table *const tables[] = {&check_odd_first, &check_odd_later};
  int count = all ? 3 : 1, narrow = all ? 2 : 1; /* of dtypes */
  for (int t = 0; t < 2; t++)
    for (int d = 0; d < count; d++) {
      for (int s = 0; all && t == 0 && s < 4; s++)
        add_matrix(list, dtypes[d], shapes[s][0], shapes[s][1], shapes[s][2]);
      add_rows(list, tables[t], dtypes[d], NULL);
      add_modes(list, tables[t], dtypes[d], all && d == 0);
    }
  add_all_directions(list);
  for (int d = 0; d < count; d++) {
    if (all) add_own_matrix(list, dtypes[d], 1);
    add_rows(list, &check_odd_listed, dtypes[d], set_listed_row);
  }
  for (int d = 0; d < count; d++) add_all_tails(list, dtypes[d], all && d == 0);
  for (int d = 0; d < count; d++) {
    if (all) add_own_matrix(list, dtypes[d], 0);
    add_rows(list, &check_odd_targeted, dtypes[d], set_targeted_row);
  }
  for (int d = 0; d < count; d++) add_rows(list, &check_odd_topped, dtypes[d], check_set_top_row);
  for (int d = 0; d < narrow; d++) add_mixed(list, dtypes[d], all && d == 0);
  for (int d = 0; d < count; d++) add_adapted(list, dtypes[d]);
  for (int d = 0; d < count; d++) add_rows(list, &check_odd_distilled, dtypes[d], set_targeted_row);
  for (int d = 0; d < count; d++) add_pairs(list, dtypes[d], all ? 5 : 1);
  for (int d = 0; d < count; d++) add_rows(list, &check_odd_statistics, dtypes[d], check_set_statistics_row);
  for (int d = 0; d < count; d++) add_rows(list, &check_odd_raw, dtypes[d], check_set_raw_row);
}

static void add_quick(check_list *list) {
  for (int d = 0; d < 3; d++) {
    check_case c = check_case_default(dtypes[d], 67, 1531, 72);
    c.spec.entropy = FLP_ENTROPY_BACKWARD;
    c.spec.grads = ALL_GRADS;
    c.spec.has_bias = 1;
    check_list_add(list, c);
  }
  add_sets(list, 0);
}

static int is_usual_rank(int rank) {
  return rank == CHECK_LORA_USUAL || rank == CHECK_LORA_LARGE;
}

flp_status check_list_create(check_set set, const check_case *given, check_list *out) {
  *out = (check_list){0};
  if (set == CHECK_SET_QUICK) add_quick(out);
  if (set == CHECK_SET_ALL) add_sets(out, 1);
  if (set == CHECK_SET_LARGE) add_large(out, given);
  if (set == CHECK_SET_GIVEN) add_given(out, given);
  for (int i = 0; i < out->count; i++) {
    check_case *c = &out->cases[i];
    if (c->spec.listed && c->fill == CHECK_FILL_ONE_HOT) c->lists = CHECK_LISTS_ALL; /* or a row's columns were equal */
    if (c->spec.tail > 0 && given->spec.tail > 0) c->spec.tail = given->spec.tail;
    if (c->spec.targets == CHECK_TARGETS_USUAL && given->spec.targets > 1) c->spec.targets = given->spec.targets;
    if (c->spec.topk && given->spec.topk && given->spec.topk <= c->spec.vocab) c->spec.topk = given->spec.topk;
    if (given->spec.lora_rank && is_usual_rank(c->spec.lora_rank)) c->spec.lora_rank = given->spec.lora_rank;
    c->seed = given->seed + (uint64_t)i;
  }
  flp_status status = out->status;
  if (status != FLP_OK) check_list_clear(out);
  return status;
}

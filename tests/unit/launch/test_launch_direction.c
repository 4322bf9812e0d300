/* test_launch_direction.c: direction mode on a device: what is launched in which order over which rows and columns, that
 * what forward sums up is what backward reads, and what is refused. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/driver/driver.h"
#include "runtime/planner/planner.h"
#include "tests/unit/support/launch_case.h"

static const char hopper[] = "capability=9.0";
enum { VOCAB = 7001, GROUP = FLP_GROUP_COLUMNS, DEPTH = 64, BLOCK = FLP_KEPT_BLOCK_ROWS };

static flp_spec frozen(void) {
  flp_spec spec = stage_spec(FLP_GRAD_HIDDEN);
  spec.vocab = VOCAB;
  spec.keep = 1;
  return spec;
}

static void open_chunks(const char *script, flp_spec wanted, int64_t rows, int64_t columns) {
  flp_options options = stage_options(rows, FLP_MODE_DIRECTION);
  options.chunk_vocab = columns;
  stage_open(&s, script);
  use_plan(wanted, &options);
}

TestSuite(launch_direction, .fini = close_plan);

static flp_layout layout_of(flp_pass pass, int64_t n) {
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, pass, n, 0, &layout), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(layout.mode, FLP_MODE_DIRECTION);
  return layout;
}

static flp_args saved_args(flp_pass pass, int64_t n) {
  flp_args a = stage_saved_args(plan, &spec, pass, n);
  a.workspace_bytes = layout_of(pass == FLP_PASS_BACKWARD ? FLP_PASS_BACKWARD_SAVED : FLP_PASS_FORWARD_SAVED, n).bytes;
  return a;
}

/* As many launches as the layout says, none of which a graph could not hold. */
static void run_forward(const flp_args *a) {
  stage_execute(&s, plan, a);
  cr_expect_eq(s.launch_count(), (size_t)layout_of(FLP_PASS_FORWARD_SAVED, a->n).launches, "%zu", s.launch_count());
  stage_expect_capturable(&s);
}

/* Where references, slopes and sums lie in what is kept of n rows. */
typedef struct kept {
  uint64_t references, slopes, sums;
} kept;

static kept kept_of(const flp_args *a) {
  uint64_t start = stage_address(a->saved), rows = (uint64_t)(a->n * 4 + 255) / 256 * 256;
  cr_expect_eq(a->saved_bytes, 2 * rows + (uint64_t)a->n * DEPTH * 4);
  return (kept){start, start + rows, start + 2 * rows};
}

#define PARAMS(entry, which) STAGE_PARAMS(flp_##entry##_params, stage_launch(&s, #entry, which))

/* ---- forward ---- */

Test(launch_direction, forward_sums_up_what_it_keeps) {
  open_chunks("", frozen(), 0, 0);
  flp_args a = saved_args(FLP_PASS_FORWARD, 300);
  kept to = kept_of(&a);
  run_forward(&a);
  stage_expect_sequence(&s,
                        "prepare forward keep_reference forward_keep direction_strike grad_hidden combine combine "
                        "direction_finish dz grad_hidden");
  flp_forward_params first = PARAMS(forward, 0);
  cr_expect_eq(first.vocab_valid, FLP_REFERENCE_COLUMNS);
  cr_expect_eq(PARAMS(keep_reference, 0).reference, to.references);
  flp_forward_keep_params keep = PARAMS(forward_keep, 0);
  cr_expect(keep.column_begin == 0 && keep.vocab_valid == VOCAB && keep.slope == 1.0f);
  cr_expect(keep.reference == to.references && keep.kept_stride == 7040 && keep.part == first.part);
  flp_direction_strike_params strike = PARAMS(direction_strike, 0);
  cr_expect(strike.kept == keep.kept && strike.kept_stride == 7040);
  cr_expect(strike.column_begin == 0 && strike.column_end == VOCAB && strike.row_begin == 0 && strike.row_end == 300);
  cr_expect_eq(stage_launch(&s, "direction_strike", 0)->grid, 2, "a thread a row");
  flp_grad_hidden_params sums = PARAMS(grad_hidden, 0);
  cr_expect(sums.dz == keep.kept && sums.dz_stride == 7040 && sums.factor == 0);
  cr_expect(sums.acc == to.sums && sums.acc_stride == DEPTH && sums.out == 0);
  cr_expect(!sums.read_acc && sums.write_acc && !sums.write_out);
  flp_combine_params own = PARAMS(combine, 0), outputs = PARAMS(combine, 1);
  cr_expect(own.partial != 0 && own.logprob == 0 && own.stats == 0);
  cr_expect(outputs.partial == 0 && outputs.logprob == stage_address(a.logprob) &&
            outputs.stats == stage_address(a.stats));
  flp_direction_finish_params finish = PARAMS(direction_finish, 0);
  cr_expect(finish.partial == own.partial && finish.reference == to.references && finish.slope == to.slopes);
  cr_expect(finish.capped == 0 && finish.row_begin == 0 && finish.row_end == 300);
  flp_dz_params redo = PARAMS(dz, 0);
  cr_expect(redo.count == finish.redo && redo.record == finish.record);
  cr_expect(redo.dz == keep.kept && redo.dz_stride == 7040 && redo.column_end == VOCAB && redo.bias_part == 0);
  flp_grad_hidden_params again = PARAMS(grad_hidden, 1);
  cr_expect(again.acc == to.sums && again.count == finish.redo && again.dz == redo.dz && !again.read_acc);
}

/* Chunk i of columns of the rows [begin, end). */
static void expect_columns(const flp_args *a, int launch, int i, int64_t begin, int64_t end) {
  flp_forward_keep_params keep = PARAMS(forward_keep, launch);
  flp_direction_strike_params strike = PARAMS(direction_strike, launch);
  int columns = i < 2 ? GROUP : VOCAB - 2 * GROUP, first = i * GROUP;
  cr_expect_eq(keep.weight, stage_address(a->weight) + (uint64_t)first * 72 * 2);
  cr_expect_eq(keep.bias, stage_address(a->bias) + (uint64_t)first * 2);
  cr_expect(keep.column_begin == first && keep.vocab_valid == columns && keep.groups == 1);
  cr_expect(keep.row_begin == begin && keep.row_end == end && keep.kept_stride == GROUP);
  cr_expect(strike.column_begin == first && strike.column_end == first + columns);
  cr_expect(strike.row_begin == begin && strike.row_end == end && strike.kept == keep.kept);
}

static void expect_sum(int launch, int64_t begin, int64_t end, int i, uint64_t sums) {
  flp_grad_hidden_params p = PARAMS(grad_hidden, launch);
  cr_expect(p.row_begin == begin && p.row_end == end, "launch %d", launch);
  cr_expect(p.column_begin == i * GROUP && p.column_end == (i < 2 ? (i + 1) * GROUP : VOCAB), "launch %d", launch);
  cr_expect(p.read_acc == (i > 0) && p.write_acc && !p.write_out && p.acc == sums, "launch %d", launch);
}

/* Rows in chunks of 1500, of which each has blocks of 1024 and 476 rows; a block has the room of one chunk of columns. */
Test(launch_direction, chunks_of_rows_and_columns_cover_all_once) {
  flp_spec wanted = frozen();
  wanted.has_bias = 1;
  open_chunks("", wanted, 1500, GROUP);
  flp_args a = saved_args(FLP_PASS_FORWARD, 2000);
  a.weight_stride = 72;
  kept to = kept_of(&a);
  run_forward(&a);
#define PIECES                                                                           \
  "forward_keep direction_strike grad_hidden forward_keep direction_strike grad_hidden " \
  "forward_keep direction_strike grad_hidden "
#define REDO "dz grad_hidden dz grad_hidden dz grad_hidden"
  stage_expect_sequence(&s, "prepare forward keep_reference " PIECES "combine combine direction_finish " REDO " " REDO
                            " forward keep_reference " PIECES "combine combine direction_finish " REDO);
  cr_expect_eq(PARAMS(forward, 1).row_begin, 1500);
  cr_expect_eq(PARAMS(combine, 2).partial, PARAMS(combine, 0).partial, "by row of the call");
  static const struct {
    int rows, begin, end, block; /* block -1: not of one that is redone */
  } groups[] = {{0, 0, 1500, -1}, {0, 0, 1024, 0}, {0, 1024, 1500, 1}, {1, 1500, 2000, -1}, {1, 1500, 2000, 0}};
  for (int g = 0, chunk = 0, redone = 0; g < 5; g++)
    for (int i = 0; i < 3; i++) {
      int begin = groups[g].begin, end = groups[g].end, launch = 3 * g + i;
      expect_sum(launch, begin, end, i, to.sums);
      flp_direction_finish_params finish = PARAMS(direction_finish, groups[g].rows);
      if (groups[g].block < 0) {
        expect_columns(&a, chunk++, i, begin, end);
        continue;
      }
      flp_dz_params dz = PARAMS(dz, redone++);
      uint64_t count = finish.redo + 4 * (uint64_t)groups[g].block;
      cr_expect(dz.count == count && PARAMS(grad_hidden, launch).count == count);
      cr_expect(dz.row_begin == begin && dz.row_end == end && dz.column_begin == i * GROUP);
      cr_expect(dz.dz == PARAMS(forward_keep, 0).kept && dz.dz_stride == GROUP, "the whole room for each block");
      cr_expect(dz.weight == stage_address(a.weight) && dz.bias == stage_address(a.bias), "dz takes the whole head");
    }
}

Test(launch_direction, blocks_of_long_chunks_of_rows_are_redone_in_more_columns) {
  open_chunks("", frozen(), 0, GROUP);
  flp_args a = saved_args(FLP_PASS_FORWARD, 2 * BLOCK);
  run_forward(&a);
  cr_expect(PARAMS(dz, 0).column_end == 2 * GROUP && PARAMS(dz, 0).dz_stride == 2 * GROUP);
  cr_expect(PARAMS(dz, 1).column_begin == 2 * GROUP && PARAMS(dz, 1).column_end == VOCAB);
  cr_expect_eq(PARAMS(dz, 2).row_begin, BLOCK);
}

Test(launch_direction, a_shard_decides_by_its_own_partial) {
  open_chunks("", frozen(), 0, GROUP);
  flp_args a = saved_args(FLP_PASS_FORWARD, 100);
  a.vocab_offset = 3 * VOCAB;
  a.vocab_valid = VOCAB - 1000;
  a.vocab_total = 9 * VOCAB;
  a.logprob = a.stats = NULL;
  a.partial = STAGE_AT(11);
  stage_execute(&s, plan, &a);
  stage_expect_capturable(&s);
  stage_expect_sequence(&s,
                        "prepare forward keep_reference forward_keep direction_strike grad_hidden forward_keep "
                        "direction_strike grad_hidden combine direction_finish dz grad_hidden dz grad_hidden");
  cr_expect_eq(PARAMS(forward_keep, 1).vocab_valid, VOCAB - 1000 - GROUP, "of the columns that are valid");
  cr_expect_eq(PARAMS(combine, 0).partial, stage_address(a.partial));
  cr_expect_eq(PARAMS(direction_finish, 0).partial, stage_address(a.partial));
}

Test(launch_direction, old_lse_takes_the_place_of_the_first_columns) {
  open_chunks("", frozen(), 0, 0);
  flp_args a = saved_args(FLP_PASS_FORWARD, 100);
  a.old_lse = STAGE_AT(61);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s,
                        "prepare keep_reference forward_keep direction_strike grad_hidden combine combine "
                        "direction_finish dz grad_hidden");
  cr_expect_eq(PARAMS(keep_reference, 0).old_lse, stage_address(a.old_lse));
}

Test(launch_direction, a_softcap_has_its_slope_in_what_is_kept_and_at_the_target) {
  flp_spec wanted = frozen();
  wanted.softcap = 30;
  open_chunks("", wanted, 0, 0);
  flp_args a = saved_args(FLP_PASS_FORWARD, 100);
  run_forward(&a);
  flp_direction_finish_params finish = PARAMS(direction_finish, 0);
  cr_expect(finish.capped == 1 && finish.cap_in == PARAMS(forward_keep, 0).cap_in && finish.cap_in > 0);
  cr_expect_eq(PARAMS(forward_keep, 0).slope, 1.0f);
  cr_expect_eq(finish.scale, PARAMS(prepare, 0).scale);
}

/* ---- through tensor maps ---- */

#define MAP_PARAMS(entry, which, out) memcpy(&(out), stage_launch(&s, #entry, which)->params, sizeof(out))

Test(launch_direction, maps_hold_a_chunks_columns) {
  flp_spec wanted = frozen();
  wanted.has_bias = 1;
  open_chunks(hopper, wanted, 1500, GROUP);
  flp_args a = saved_args(FLP_PASS_FORWARD, 2000);
  kept to = kept_of(&a);
  run_forward(&a);
#define MAPPED "forward_keep_map direction_strike products_map "
#define MAPPED_ROWS "gather forward_map keep_reference " MAPPED MAPPED MAPPED "combine combine direction_finish "
#define MAPPED_REDO "dz_map products_map dz_map products_map dz_map products_map"
  stage_expect_sequence(&s, "prepare " MAPPED_ROWS MAPPED_REDO " " MAPPED_REDO " " MAPPED_ROWS MAPPED_REDO);
  for (int i = 0; i < 6; i++) {
    int first = i % 3 * GROUP, columns = i % 3 < 2 ? GROUP : VOCAB - 2 * GROUP, rows = i < 3 ? 1500 : 500;
    flp_forward_keep_map_params p;
    MAP_PARAMS(forward_keep_map, i, p);
    cr_expect(p.column_begin == first && p.vocab_valid == columns && p.row_begin == (i < 3 ? 0 : 1500));
    cr_expect_eq(p.bias, stage_address(a.bias) + (uint64_t)first * 2);
    stage_map weight = stage_read_map(&p.weight_map), exponentials = stage_read_map(&p.kept_map);
    cr_expect(weight.start == stage_address(a.weight) + (uint64_t)first * DEPTH * 2 &&
              weight.rows == (uint64_t)columns);
    cr_expect(exponentials.rows == (uint64_t)rows && exponentials.columns == (uint64_t)columns);
    cr_expect_eq(exponentials.stride_bytes, GROUP * 2);
    flp_products_map_params sums;
    MAP_PARAMS(products_map, i < 3 ? i : i + 6, sums);
    int flags = FLP_PRODUCT_WANTED | FLP_PRODUCT_WRITE_ACC | (i % 3 ? FLP_PRODUCT_READ_ACC : 0);
    cr_expect(sums.hidden_acc == to.sums && sums.hidden_flags == flags && sums.weight_flags == 0, "%d", i);
    cr_expect_eq(stage_read_map(&sums.dz_map).start, exponentials.start);
    cr_expect_eq(stage_read_map(&sums.weight_map).start, weight.start);
  }
  flp_dz_map_params redo;
  MAP_PARAMS(dz_map, 3, redo);
  flp_gather_params gather = PARAMS(gather, 0);
  cr_expect_eq(redo.count, PARAMS(direction_finish, 0).redo + 4);
  cr_expect_eq(stage_read_map(&redo.gathered_map).start, gather.out + BLOCK * (uint64_t)gather.out_stride * 2);
  MAP_PARAMS(dz_map, 6, redo);
  cr_expect_eq(stage_read_map(&redo.gathered_map).start, gather.out, "gathered rows are of the chunk");
  cr_expect_eq(stage_read_map(&redo.hidden_map).start, stage_address(a.hidden) + 1500 * DEPTH * 2);
}

/* ---- backward ---- */

static void expect_backward(const flp_args *a, flp_dtype dtype) {
  kept from = kept_of(a);
  stage_execute(&s, plan, a);
  cr_expect_eq(s.launch_count(), (size_t)layout_of(FLP_PASS_BACKWARD_SAVED, a->n).launches);
  stage_expect_capturable(&s);
  stage_expect_sequence(&s, "prepare record direction_rows fill");
  flp_direction_rows_params p = PARAMS(direction_rows, 0);
  cr_expect(p.reference == from.references && p.slope == from.slopes && p.sums == from.sums);
  cr_expect(p.weight == stage_address(a->weight) && p.weight_stride == 80 && p.depth == DEPTH);
  cr_expect(p.out == stage_address(a->grad_hidden) && p.out_stride == 96);
  cr_expect_eq(p.out_is_f32, dtype == FLP_DTYPE_FP32);
  cr_expect_eq(p.record, PARAMS(record, 0).record);
  cr_expect_eq(PARAMS(record, 0).stats, stage_address(a->stats));
  cr_expect_eq(PARAMS(prepare, 0).grad_logprob, 0, "active rows are those of forward");
  cr_expect_eq(stage_launch(&s, "direction_rows", 0)->grid, (unsigned)(a->n + 7) / 8, "a warp a row");
}

Test(launch_direction, backward_scales_what_forward_summed_up_any_number_of_times) {
  static const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP32};
  stage_open(&s, "");
  for (int i = 0; i < 4; i++) {
    flp_spec wanted = frozen();
    wanted.grad_hidden_dtype = dtypes[i % 2];
    flp_options options = stage_options(0, (flp_mode)0);
    s.script(i < 2 ? "" : hopper);
    use_plan(wanted, &options);
    flp_args a = saved_args(FLP_PASS_BACKWARD, 1500);
    a.weight_stride = 80;
    a.grad_hidden_stride = 96;
    expect_backward(&a, dtypes[i % 2]);
    expect_backward(&a, dtypes[i % 2]);
  }
}

Test(launch_direction, a_shards_backward_is_of_its_own_part) {
  open_chunks("", frozen(), 0, 0);
  flp_args a = saved_args(FLP_PASS_BACKWARD, 100);
  a.vocab_offset = VOCAB;
  a.vocab_total = 2 * VOCAB;
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare record direction_rows fill");
}

/* ---- what is taken and what is refused ---- */

static void expect_refused(const flp_args *a, flp_status want, const char *sentence) {
  s.reset();
  cr_expect_eq(flp_execute(plan, a), want, "%s", flp_error_detail());
  cr_expect_not_null(strstr(flp_error_detail(), sentence), "%s", flp_error_detail());
  cr_expect_eq(s.launch_count(), 0);
}

Test(launch_direction, forward_wants_the_workspace_of_directions) {
  open_chunks("", frozen(), 0, 0);
  flp_args a = saved_args(FLP_PASS_FORWARD, 300);
  flp_layout layout = layout_of(FLP_PASS_FORWARD_SAVED, 300);
  size_t plain = stage_workspace(plan, FLP_PASS_FORWARD, 300, 0);
  cr_assert_lt(plain, layout.smallest_bytes);
  a.workspace_bytes = plain;
  char sentence[200];
  snprintf(sentence, sizeof sentence,
           "args.workspace_bytes is %zu, but the smallest layout of this pass over 300 rows needs %llu", plain,
           (unsigned long long)layout.smallest_bytes);
  expect_refused(&a, FLP_ERROR_WORKSPACE, sentence);
  a.workspace_bytes = layout.smallest_bytes;
  stage_execute(&s, plan, &a);
  a.saved = NULL;
  a.saved_bytes = 0;
  a.workspace_bytes = plain;
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare forward combine");
}

Test(launch_direction, too_few_saved_bytes_are_refused) {
  open_chunks("", frozen(), 0, 0);
  flp_args a = saved_args(FLP_PASS_FORWARD, 300), b = saved_args(FLP_PASS_BACKWARD, 300);
  cr_assert_eq(a.saved_bytes, 2 * 1280 + 300 * DEPTH * 4);
  a.saved_bytes = b.saved_bytes = a.saved_bytes - 1;
  static const char sentence[] =
      "args.saved_bytes is 79359, but mode direction keeps 79360 bytes of 300 rows (accepted: what "
      "flp_plan_saved gives)";
  expect_refused(&a, FLP_ERROR_ARGUMENT, sentence);
  expect_refused(&b, FLP_ERROR_ARGUMENT, sentence);
}

/* By specification, pinned mode and budget. */
Test(launch_direction, plans_tell_what_they_keep) {
  const int64_t n = 100;
  const size_t directions = 2 * 512 + 100 * DEPTH * 4, exponentials = 512 + 100 * 7040 * 2;
  static const struct {
    flp_entropy entropy;
    uint32_t grads;
    flp_mode mode;
    int keeps; /* 0: nothing, 1: directions, 2: exponentials */
  } cases[] = {
      {FLP_ENTROPY_NONE, 1, (flp_mode)0, 1},     {FLP_ENTROPY_FORWARD, 1, (flp_mode)0, 1},
      {FLP_ENTROPY_NONE, 1, FLP_MODE_SAVE, 2},   {FLP_ENTROPY_NONE, 1, FLP_MODE_DIRECTION, 1},
      {FLP_ENTROPY_BACKWARD, 1, (flp_mode)0, 2}, {FLP_ENTROPY_NONE, 5, (flp_mode)0, 2},
      {FLP_ENTROPY_NONE, 3, (flp_mode)0, 2},     {FLP_ENTROPY_NONE, 1, FLP_MODE_RECOMPUTE_ROWS, 0},
  };
  stage_open(&s, "");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    flp_spec wanted = frozen();
    wanted.entropy = cases[i].entropy;
    wanted.grads = cases[i].grads;
    wanted.has_bias = (cases[i].grads & FLP_GRAD_BIAS) != 0;
    flp_options options = stage_options(0, cases[i].mode);
    use_plan(wanted, &options);
    cr_expect_eq(saved_bytes(n), cases[i].keeps == 1 ? directions : cases[i].keeps ? exponentials : 0, "case %zu", i);
    cr_expect_eq(saved_bytes(0), 0);
    size_t most;
    cr_assert_eq(flp_spec_saved(&spec, n, 0, &most), FLP_OK);
    cr_expect_eq(most, exponentials, "the most that a plan of the spec can keep: case %zu", i);
    cr_assert_eq(flp_spec_saved(&spec, n, exponentials - 1, &most), FLP_OK);
    int has_direction = cases[i].grads == 1 && cases[i].entropy != FLP_ENTROPY_BACKWARD;
    cr_expect_eq(most, has_direction ? directions : 0, "case %zu", i);
    cr_assert_eq(flp_spec_saved(&spec, n, directions - 1, &most), FLP_OK);
    cr_expect_eq(most, 0, "case %zu", i);
  }
}

/* Directions of a small vocabulary take more than exponentials. */
Test(launch_direction, the_most_of_a_spec_is_the_larger_of_two) {
  stage_open(&s, "");
  flp_spec wanted = frozen();
  wanted.vocab = 100;
  use_plan(wanted, NULL);
  size_t most;
  cr_assert_eq(flp_spec_saved(&spec, 100, 0, &most), FLP_OK);
  cr_expect_eq(most, 2 * 512 + 100 * DEPTH * 4);
  cr_expect_eq(saved_bytes(100), most);
}

Test(launch_direction, modes_that_a_head_cannot_have_are_refused) {
  stage_open(&s, "");
  flp_options options = stage_options(0, FLP_MODE_DIRECTION);
  static const struct {
    int keep;
    uint32_t grads;
    flp_entropy entropy;
    const char *is;
  } cases[] = {{0, 1, FLP_ENTROPY_NONE, "spec.keep is 0, spec.grads 1 and spec.entropy none"},
               {1, 3, FLP_ENTROPY_FORWARD, "spec.keep is 1, spec.grads 3 and spec.entropy forward"},
               {1, 1, FLP_ENTROPY_BACKWARD, "spec.keep is 1, spec.grads 1 and spec.entropy backward"}};
  flp_plan *none = NULL;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    flp_spec wanted = frozen();
    wanted.keep = cases[i].keep;
    wanted.grads = cases[i].grads;
    wanted.entropy = cases[i].entropy;
    char sentence[300];
    snprintf(
        sentence, sizeof sentence,
        "options.mode is FLP_MODE_DIRECTION, but %s (accepted: keep 1, the gradient of hidden alone, and an entropy "
        "without a gradient)",
        cases[i].is);
    cr_expect_eq(flp_plan_create(&wanted, &options, &none), FLP_ERROR_ARGUMENT);
    cr_expect_str_eq(flp_error_detail(), sentence);
  }
  flp_spec wanted = frozen();
  wanted.keep = 0;
  options.mode = FLP_MODE_SAVE;
  cr_expect_eq(flp_plan_create(&wanted, &options, &none), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(), "options.mode is FLP_MODE_SAVE, but spec.keep is 0 (accepted: 1)");
  options.mode = (flp_mode)8;
  cr_expect_eq(flp_plan_create(&wanted, &options, &none), FLP_ERROR_ARGUMENT);
  cr_expect_null(none);
}

/* A shard's exponentials are refused, its directions taken. */
Test(launch_direction, a_pinned_mode_decides_about_shards) {
  stage_open(&s, "");
  for (int mode = FLP_MODE_SAVE; mode <= FLP_MODE_DIRECTION; mode += FLP_MODE_DIRECTION - FLP_MODE_SAVE) {
    flp_options options = stage_options(0, (flp_mode)mode);
    use_plan(frozen(), &options);
    flp_args a = stage_saved_args(plan, &spec, FLP_PASS_BACKWARD, 100);
    a.workspace_bytes = stage_workspace(plan, FLP_PASS_BACKWARD_SAVED, 100, 0);
    a.vocab_total = VOCAB + 1;
    if (mode == FLP_MODE_SAVE)
      expect_refused(&a, FLP_ERROR_ARGUMENT,
                     "args.saved is given, but the call covers a vocab shard (accepted: NULL in mode save)");
    else
      stage_execute(&s, plan, &a);
  }
}

Test(launch_direction, no_rows_launch_nothing_that_fails) {
  open_chunks("", frozen(), 0, 0);
  flp_args a = stage_args(&spec, FLP_PASS_FORWARD, 0);
  a.saved = STAGE_AT(60);
  stage_execute(&s, plan, &a);
  cr_expect_eq(s.launch_count(), 0);
}

/* test_loss.c: loss programs: bytes and refusals, building and sums, values and derivatives beside formulas by hand. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/unit/support/loss_case.h"
#include "tests/unit/support/refuse.h"

/* Where fields stand in the bytes. */
enum { NAME_AT = 12, COUNTS_AT = 76, BODY_AT = 100, PARAMETER_BYTES = 56, NODE_BYTES = 8 };

static uint16_t constant(flp_loss *loss, double value) {
  uint16_t node;
  cr_assert_eq(flp_loss_constant(loss, value, &node), FLP_OK, "%s", flp_error_detail());
  return node;
}

/* ---- bytes ---- */

static size_t write_sample(uint8_t out[FLP_LOSS_BYTES_MAX]) {
  flp_loss loss = find("ppo+k3");
  size_t length = flp_loss_write(&loss, out, FLP_LOSS_BYTES_MAX);
  cr_assert_gt(length, 0);
  return length;
}

Test(loss, layout_is_fixed) {
  uint8_t bytes[FLP_LOSS_BYTES_MAX];
  size_t length = write_sample(bytes);
  cr_expect_arr_eq(bytes, "FLPL\1\0\0\0", 8);
  cr_expect_eq((size_t)bytes[8] + 256u * bytes[9], length);
  cr_expect_str_eq((char *)bytes + NAME_AT, "ppo+k3");
  cr_expect_eq(bytes[COUNTS_AT], 3, "parameters");
  cr_expect_str_eq((char *)bytes + BODY_AT, "clip_high");
}

/* Beside the program itself, and beside a table by hand. */
Test(loss, a_program_describes_itself) {
  uint8_t bytes[FLP_LOSS_BYTES_MAX];
  for (int i = 0; flp_loss_builtin(i); i++) {
    flp_loss loss = find(flp_loss_builtin(i));
    flp_loss_description description = FLP_LOSS_DESCRIPTION_INIT;
    cr_assert_eq(flp_loss_describe(bytes, flp_loss_write(&loss, bytes, sizeof bytes), &description), FLP_OK);
    cr_expect_str_eq(description.name, loss.name);
    cr_expect_eq(description.parameter_count, (int32_t)loss.parameter_count);
    cr_expect_eq(description.metric_count, (int32_t)loss.metric_count);
    cr_expect_eq(description.input_count, __builtin_popcount(flp_loss_inputs(&loss)));
  }
  size_t length = write_sample(bytes);
  flp_loss_description description = FLP_LOSS_DESCRIPTION_INIT;
  cr_assert_eq(flp_loss_describe(bytes, length, &description), FLP_OK);
  cr_expect_str_eq(description.name, "ppo+k3");
  cr_assert_eq(description.parameter_count, 3);
  cr_expect_str_eq(description.parameters[0].name, "clip_high");
  cr_expect_eq(description.parameters[0].fallback, 0.2);
  cr_expect_eq(description.vector_count, 0);
  const char *const inputs[] = {"logprob", "old_logprob", "ref_logprob", "advantage", "weight"};
  cr_assert_eq(description.input_count, 5);
  for (int i = 0; i < 5; i++) cr_expect_str_eq(description.inputs[i], inputs[i]);
  bytes[0] = 'f';
  cr_expect_eq(flp_loss_describe(bytes, length, &description), FLP_ERROR_CORRUPT);
  cr_expect_str_eq(flp_error_detail(), "loss: the bytes do not begin with FLPL");
  cr_expect_eq(description.input_count, 0, "bytes that are no program have no description");
  cr_expect_eq(flp_loss_describe(NULL, 0, &description), FLP_ERROR_ARGUMENT);
  description.struct_bytes = 4;
  cr_expect_eq(flp_loss_describe(bytes, length, &description), FLP_ERROR_ARGUMENT);
}

Test(loss, every_builtin_reads_back_equal_and_needs_its_capacity) {
  cr_assert_not_null(flp_loss_builtin(10));
  cr_expect_null(flp_loss_builtin(-1));
  for (int i = 0; flp_loss_builtin(i); i++) {
    uint8_t bytes[FLP_LOSS_BYTES_MAX];
    flp_loss want = find(flp_loss_builtin(i)), got;
    size_t length = flp_loss_write(&want, bytes, sizeof bytes);
    cr_assert_eq(flp_loss_read(bytes, length, &got), FLP_OK, "%s", flp_error_detail());
    cr_expect_eq(memcmp(&got, &want, sizeof got), 0);
    for (size_t capacity = 0; capacity < length; capacity++)
      cr_expect_eq(flp_loss_write(&want, bytes, capacity), 0, "capacity %zu", capacity);
  }
}

Test(loss, the_largest_program_fits) {
  flp_loss loss;
  uint8_t bytes[FLP_LOSS_BYTES_MAX];
  cr_assert_eq(flp_loss_start(&loss, "large"), FLP_OK);
  loss.parameter_count = FLP_LOSS_PARAMETERS_MAX;
  loss.vector_count = FLP_LOSS_VECTORS_MAX;
  loss.constant_count = FLP_LOSS_CONSTANTS_MAX;
  loss.node_count = FLP_LOSS_NODES_MAX;
  loss.metric_count = FLP_LOSS_METRICS_MAX;
  cr_expect_gt(flp_loss_write(&loss, bytes, sizeof bytes), 0);
}

Test(loss, every_truncation_is_corrupt) {
  uint8_t bytes[FLP_LOSS_BYTES_MAX];
  size_t length = write_sample(bytes);
  for (size_t shorter = 0; shorter < length; shorter++) {
    flp_loss got;
    bytes[8] = (uint8_t)shorter; /* the length field agrees */
    bytes[9] = (uint8_t)(shorter >> 8);
    cr_expect_eq(flp_loss_read(bytes, shorter, &got), FLP_ERROR_CORRUPT, "length %zu", shorter);
  }
}

/* ---- building ---- */

Test(loss, operands_must_fit) {
  flp_loss loss;
  uint16_t node, number, condition;
  cr_expect_eq(flp_loss_start(&loss, "Bad name"), FLP_ERROR_ARGUMENT);
  cr_assert_eq(flp_loss_start(&loss, "x"), FLP_OK);
  number = append(&loss, FLP_LOSS_INPUT, FLP_LOSS_LOGPROB, 0, 0);
  condition = append(&loss, FLP_LOSS_LT, number, number, 0);
  expect_refused(flp_loss_append(&loss, FLP_LOSS_ADD, number, 7, 0, &node), "add: there is no such value");
  expect_refused(flp_loss_append(&loss, FLP_LOSS_ADD, number, condition, 0, &node),
                 "add: expected a number, got a condition");
  expect_refused(flp_loss_append(&loss, FLP_LOSS_WHERE, number, number, number, &node),
                 "where: expected a condition, got a number");
  cr_expect_eq(flp_loss_finish(&loss, condition), FLP_ERROR_ARGUMENT);
}

Test(loss, sums_share_what_is_equal) {
  flp_loss both = find("ppo+k3"), ppo = find("ppo"), k3 = find("k3"), k1 = find("k1");
  cr_expect_lt(both.node_count, ppo.node_count + k3.node_count, "logprob and weight are read once");
  cr_expect_eq(both.parameter_count, 3);
  cr_expect_eq(both.metric_count, 4);
  expect_refused(flp_loss_add(&both, &k1), "metric 'kl' stands twice");
  flp_loss dapo = find("dapo");
  expect_refused(flp_loss_add(&dapo, &ppo),
                 "parameter 'clip_high' has two defaults or bounds (accepted: the same, or two names)");
}

Test(loss, an_unknown_name_reports_the_accepted_ones) {
  flp_loss loss;
  cr_expect_eq(flp_loss_find("grpo+k4", &loss), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(),
                   "loss 'k4' is not accepted; one of cispo, cross_entropy, dapo, dr_grpo, entropy, forward_kl, grpo, "
                   "jsd, k1, k2, k3, lk, neg_log_acceptance, nll, ppo, reinforce, reverse_kl, skew_kl, token_entropy, "
                   "total_variation, z_loss, or a sum such as grpo+k3, is");
  cr_expect_eq(flp_loss_find("", &loss), FLP_ERROR_ARGUMENT);
  cr_expect_eq(flp_loss_find("grpo+", &loss), FLP_ERROR_ARGUMENT);
}

/* Beside the formula and its derivatives by hand. */
Test(loss, values_of_all_scores_have_derivatives) {
  flp_loss loss = find("cross_entropy");
  cr_expect_eq(flp_loss_is_active(&loss), FLP_LOSS_BY_LOGPROB | FLP_LOSS_BY_LSE | FLP_LOSS_BY_MEAN);
  cr_expect(flp_loss_is_of_scores(&loss) && flp_loss_reads_mean(&loss) && !flp_loss_is_over_targets(&loss));
  double inputs[FLP_LOSS_ALL_INPUTS] = {[FLP_LOSS_LOGPROB] = -2.5, [FLP_LOSS_WEIGHT] = 0.5};
  inputs[FLP_LOSS_LSE] = 3;
  inputs[FLP_LOSS_MEAN_SCORE] = -1;
  const double parameters[] = {0.1, 0.01}; /* label_smoothing, z_loss */
  flp_loss_row row;
  flp_loss_evaluate_row(&loss, inputs, parameters, &row);
  cr_expect_float_eq(row.loss, 0.5 * (0.9 * 2.5 + 0.1 * (3 + 1) + 0.01 * 9), 1e-15);
  cr_expect_float_eq(row.grad_logprob, -0.45, 1e-15);
  cr_expect_float_eq(row.grad_lse, 0.5 * (0.1 + 2 * 0.01 * 3), 1e-15);
  cr_expect_float_eq(row.grad_mean, -0.05, 1e-15);
  cr_expect_eq(row.grad_entropy, 0);
  flp_loss z = find("nll+z_loss");
  cr_expect_eq(flp_loss_is_active(&z), FLP_LOSS_BY_LOGPROB | FLP_LOSS_BY_LSE);
  cr_expect(!flp_loss_reads_mean(&z));
}

/* As data of a kernel: bits of the node itself, and of its operands. */
Test(loss, data_has_derivatives_by_values_of_all_scores) {
  flp_loss loss = find("z_loss");
  flp_loss_code code;
  flp_loss_encode(&loss, &code);
  uint32_t square = 0;
  while (loss.nodes[square].op != FLP_LOSS_MUL || loss.nodes[square].operands[0] != loss.nodes[square].operands[1]) square++;
  cr_expect_eq(code.nodes[square].active, 1 << 11 | 1 << 13 | 1 << 14);
}

Test(loss, a_vector_may_not_have_the_name_of_an_input) {
  flp_loss loss;
  uint32_t index;
  cr_assert_eq(flp_loss_start(&loss, "x"), FLP_OK);
  expect_refused(flp_loss_declare_vector(&loss, "lse", &index), "vector 'lse': every row has that already");
}

Test(loss, a_description_has_room_for_every_input) {
  flp_loss loss;
  uint16_t sum = 0;
  cr_assert_eq(flp_loss_start(&loss, "wide"), FLP_OK);
  for (uint32_t i = 0, index; i < FLP_LOSS_VECTORS_MAX; i++)
    cr_assert_eq(flp_loss_declare_vector(&loss, (char[]){'v', (char)('0' + i), 0}, &index), FLP_OK);
  for (uint32_t i = 0; i < FLP_LOSS_ALL_INPUTS; i++) {
    if (flp_loss_input_is_of_targets(i)) continue;
    uint16_t node = append(&loss, FLP_LOSS_INPUT, i, 0, 0);
    sum = i ? append(&loss, FLP_LOSS_ADD, sum, node, 0) : node;
  }
  expect_refused(flp_loss_finish(&loss, sum), "a loss may have at most 14 inputs");
}

Test(loss, activity_reports_which_gradients_exist) {
  flp_loss nll = find("nll"), entropy = find("entropy"), both = find("nll+entropy");
  cr_expect_eq(flp_loss_is_active(&nll), FLP_LOSS_BY_LOGPROB);
  cr_expect_eq(flp_loss_is_active(&entropy), FLP_LOSS_BY_ENTROPY);
  cr_expect_eq(flp_loss_is_active(&both), FLP_LOSS_BY_LOGPROB | FLP_LOSS_BY_ENTROPY);
}

/* ---- values and derivatives ---- */

/* op of three values, of which the one at that place is the logprob: the value, and its derivative by that. */
static flp_loss_row operate(flp_loss_op op, int at, double x, double y, double z) {
  flp_loss loss;
  double v[3] = {x, y, z}, inputs[FLP_LOSS_ALL_INPUTS] = {[FLP_LOSS_WEIGHT] = 1};
  uint32_t operands[3] = {0, 0, 0}, other = FLP_LOSS_OLD_LOGPROB;
  cr_assert_eq(flp_loss_start(&loss, "x"), FLP_OK);
  for (int j = 0; j < flp_loss_op_arity(op); j++) { /* inputs, lest they fold */
    uint32_t input = j == at ? FLP_LOSS_LOGPROB : other++;
    inputs[input] = v[j];
    operands[j] = append(&loss, FLP_LOSS_INPUT, input, 0, 0);
  }
  cr_assert_eq(flp_loss_finish(&loss, append(&loss, op, operands[0], operands[1], operands[2])), FLP_OK);
  flp_loss_row row;
  flp_loss_evaluate_row(&loss, inputs, NULL, &row);
  return row;
}

Test(loss, each_operation_has_its_value_and_derivative) {
  const struct {
    flp_loss_op op;
    double x, b, c, value, derivative;
  } cases[] = {
      {FLP_LOSS_NEG, 2, 0, 0, -2, -1},
      {FLP_LOSS_ABS, -2, 0, 0, 2, -1},
      {FLP_LOSS_ABS, 0, 0, 0, 0, 0},
      {FLP_LOSS_EXP, 0.5, 0, 0, exp(0.5), exp(0.5)},
      {FLP_LOSS_EXPM1, 1e-9, 0, 0, 1e-9 + 5e-19, 1 + 1e-9},
      {FLP_LOSS_LOG, 4, 0, 0, log(4), 0.25},
      {FLP_LOSS_SQRT, 4, 0, 0, 2, 0.25},
      {FLP_LOSS_DETACH, 4, 0, 0, 4, 0},
      {FLP_LOSS_ADD, 4, 3, 0, 7, 1},
      {FLP_LOSS_SUB, 4, 3, 0, 1, 1},
      {FLP_LOSS_MUL, 4, 3, 0, 12, 3},
      {FLP_LOSS_DIV, 4, 8, 0, 0.5, 0.125},
      {FLP_LOSS_MIN, 1, 2, 0, 1, 1},
      {FLP_LOSS_MIN, 2, 2, 0, 2, 0.5},
      {FLP_LOSS_MIN, 3, 2, 0, 2, 0},
      {FLP_LOSS_MAX, 1, 2, 0, 2, 0},
      {FLP_LOSS_MAX, 2, 2, 0, 2, 0.5},
      {FLP_LOSS_MAX, 3, 2, 0, 3, 1},
      {FLP_LOSS_CLAMP, 0.5, 1, 2, 1, 0},
      {FLP_LOSS_CLAMP, 1, 1, 2, 1, 1},
      {FLP_LOSS_CLAMP, 1.5, 1, 2, 1.5, 1},
      {FLP_LOSS_CLAMP, 2, 1, 2, 2, 1},
      {FLP_LOSS_CLAMP, 2.5, 1, 2, 2, 0},
      {FLP_LOSS_CLAMP, 1.5, 2, 1, 1, 0},
      {FLP_LOSS_CLAMP, 0.5, 1, 1, 1, 0},
      {FLP_LOSS_CLAMP, 1, 1, 1, 1, 1},
      {FLP_LOSS_CLAMP, 1.5, 1, 1, 1, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    flp_loss_row got = operate(cases[i].op, 0, cases[i].x, cases[i].b, cases[i].c);
    cr_expect_lt(fabs(got.loss - cases[i].value), 1e-15, "case %zu: %.17g", i, got.loss);
    cr_expect_lt(fabs(got.grad_logprob - cases[i].derivative), 1e-15, "case %zu: %.17g", i, got.grad_logprob);
  }
  cr_expect(isnan(operate(FLP_LOSS_MIN, 0, NAN, 2, 0).loss));
  cr_expect(isnan(operate(FLP_LOSS_MAX, 0, 2, NAN, 0).loss));
  cr_expect(isnan(operate(FLP_LOSS_CLAMP, 0, NAN, 1, 2).loss));
}

/* The second operand of div, sub, min and max. */
Test(loss, other_operands_have_derivatives_too) {
  static const flp_loss_op ops[] = {FLP_LOSS_SUB, FLP_LOSS_DIV, FLP_LOSS_MIN, FLP_LOSS_MAX};
  static const double derivatives[] = {-1, -0.75, 1, 0};
  for (int i = 0; i < 4; i++) cr_expect_eq(operate(ops[i], 1, 3, 2, 0).grad_logprob, derivatives[i], "case %d", i);
}

/* By x, low and high; min(max(x, low), high) with low above high is high, wherever x stands. */
Test(loss, edges_of_clamp) {
  const struct {
    double x, low, high, by[3];
  } cases[] = {{0, 1, 2, {0, 1, 0}},   {1, 1, 2, {1, 0, 0}},   {2, 1, 2, {1, 0, 0}},        {3, 1, 2, {0, 0, 1}},
               {0, 1, 1, {0, 0, 0}},   {1, 1, 1, {1, 0, 0}},   {2, 1, 1, {0, 0, 1}},        {0, 2, 1, {0, 0, 1}},
               {3, 2, 5, {1, 0, 0}},   {1, 5, 2, {0, 0, 1}},   {3, 5, 2, {0, 0, 1}},   {6, 5, 2, {0, 0, 1}},        {0, 1, NAN, {0, 0, 0}},
               {NAN, 1, 2, {0, 0, 0}}, {NAN, 2, 1, {0, 0, 1}}, {0, NAN, 2, {0, 0, 0}},      {3, NAN, 2, {0, 0, 1}},
               {1, 1, NAN, {0, 0, 0}}, {-INFINITY, 1, 2, {0, 1, 0}}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    for (int at = 0; at < 3; at++) {
      flp_loss_row got = operate(FLP_LOSS_CLAMP, at, cases[i].x, cases[i].low, cases[i].high);
      cr_expect_eq(got.grad_logprob, cases[i].by[at], "case %zu, operand %d: %g", i, at, got.grad_logprob);
      if (cases[i].low > cases[i].high && !isnan(cases[i].x)) cr_expect_eq(got.loss, cases[i].high, "case %zu", i);
    }
}

/* where(x < 0, exp(x), log(x)): the branch that is not taken counts for nothing, NaN and inf included. */
Test(loss, where_leaves_out_what_it_does_not_take) {
  flp_loss loss;
  cr_assert_eq(flp_loss_start(&loss, "x"), FLP_OK);
  uint16_t x = append(&loss, FLP_LOSS_INPUT, FLP_LOSS_LOGPROB, 0, 0), zero = constant(&loss, 0);
  uint16_t below = append(&loss, FLP_LOSS_LT, x, zero, 0), root = append(&loss, FLP_LOSS_SQRT, x, 0, 0);
  cr_assert_eq(flp_loss_finish(&loss, append(&loss, FLP_LOSS_WHERE, below, append(&loss, FLP_LOSS_EXP, x, 0, 0), root)),
               FLP_OK);
  const double xs[] = {-1, 4, 0}, values[] = {exp(-1), 2, 0}, derivatives[] = {exp(-1), 0.25, INFINITY};
  for (int i = 0; i < 3; i++) {
    double inputs[FLP_LOSS_ALL_INPUTS] = {xs[i], 0, 0, 0, 0, 1};
    flp_loss_row row;
    flp_loss_evaluate_row(&loss, inputs, NULL, &row);
    cr_expect_eq(row.loss, values[i]);
    cr_expect_eq(row.grad_logprob, derivatives[i]);
  }
}

/* PPO on either side of both bounds, and where old and new policy agree. */
Test(loss, ppo_is_the_clipped_surrogate) {
  flp_loss ppo = find("ppo+k3+entropy");
  double parameters[] = {0.3, 0.2, 0.5, 0.01}; /* clip_high, clip_low, beta, entropy_weight */
  for (int i = 0; i < 80; i++) {
    double d = -0.6 + 0.3 * (i % 5), a = i / 5 % 2 ? 1.5 : -0.7, w = 0.25, lp = -2, ref = -2.3 + 0.1 * (i / 10), h = 3;
    double inputs[FLP_LOSS_ALL_INPUTS] = {lp, h, lp - d, ref, a, w}, r = exp(d), u = lp - ref;
    double bounded = r < 0.8 ? 0.8 : r > 1.3 ? 1.3 : r;
    int is_clipped = r * a > bounded * a;
    double want = -w * (is_clipped ? bounded : r) * a + w * 0.5 * (exp(-u) - 1 + u) - w * 0.01 * h;
    double slope = -w * (is_clipped ? 0 : r) * a + w * 0.5 * (1 - exp(-u));
    flp_loss_row row;
    flp_loss_evaluate_row(&ppo, inputs, parameters, &row);
    cr_expect_lt(fabs(row.loss - want), 1e-14, "row %d: %g, want %g", i, row.loss, want);
    cr_expect_lt(fabs(row.grad_logprob - slope), 1e-14, "row %d: %g, want %g", i, row.grad_logprob, slope);
    cr_expect_eq(row.grad_entropy, -w * 0.01);
    cr_expect_eq(row.metrics[0], is_clipped, "clip_fraction");
    cr_expect_eq(row.metrics[4], h, "entropy");
  }
}

static int is_nothing(const flp_loss_row *row, uint32_t metrics) {
  int is_zero = row->loss == 0 && row->grad_logprob == 0 && row->grad_entropy == 0 && row->grad_lse == 0;
  for (uint32_t i = 0; i < metrics; i++) is_zero &= row->metrics[i] == 0;
  return is_zero && row->grad_mean == 0;
}

static void expect_nothing(const flp_loss *loss) {
  const double values[] = {NAN, INFINITY, -INFINITY, -1e30, 0, 3};
  for (size_t v = 0; v < 2 * sizeof values / sizeof *values; v++) {
    double inputs[FLP_LOSS_ALL_INPUTS], parameters[FLP_LOSS_PARAMETERS_MAX];
    for (int j = 0; j < FLP_LOSS_ALL_INPUTS; j++) inputs[j] = values[v / 2];
    for (uint32_t j = 0; j < loss->parameter_count; j++) parameters[j] = loss->parameters[j].high;
    inputs[FLP_LOSS_WEIGHT] = v % 2 ? -0.0 : 0.0;
    flp_loss_row row;
    flp_loss_evaluate_row(loss, inputs, parameters, &row);
    cr_expect(is_nothing(&row, loss->metric_count), "%s of %g: loss %g", loss->name, values[v / 2], row.loss);
  }
}

/* Every built-in loss of one target, a sum of them, and one that does not read its weight. */
Test(loss, a_row_of_weight_0_has_nothing_whatever_it_holds) {
  for (int i = 0; flp_loss_builtin(i); i++) {
    flp_loss loss = find(flp_loss_builtin(i));
    if (!flp_loss_is_over_targets(&loss)) expect_nothing(&loss);
  }
  flp_loss sum = find("reinforce+k3+entropy+z_loss"), unweighted;
  cr_assert_eq(flp_loss_start(&unweighted, "x"), FLP_OK);
  cr_assert_eq(flp_loss_finish(&unweighted, append(&unweighted, FLP_LOSS_INPUT, FLP_LOSS_LOGPROB, 0, 0)), FLP_OK);
  expect_nothing(&sum);
  expect_nothing(&unweighted);
}

/* ---- arrays ---- */

Test(loss, arrays_have_defaults_where_they_are_documented) {
  flp_loss ppo = find("ppo");
  const float logprob[] = {-1, -2, -3}, advantage[] = {1, -2, 0.5f}, old[] = {-1, -2, -3}, ones[] = {1, 1, 1};
  float loss[2][3], grad[2][3], metrics[2][9];
  flp_loss_rows rows = {.n = 3, .loss = loss[0], .grad_logprob = grad[0], .metrics = metrics[0]};
  rows.inputs[FLP_LOSS_LOGPROB] = logprob;
  rows.inputs[FLP_LOSS_ADVANTAGE] = advantage;
  cr_assert_eq(flp_loss_evaluate(&ppo, &rows), FLP_OK, "%s", flp_error_detail());
  rows.inputs[FLP_LOSS_OLD_LOGPROB] = old;
  rows.inputs[FLP_LOSS_WEIGHT] = ones;
  rows.loss = loss[1], rows.grad_logprob = grad[1], rows.metrics = metrics[1];
  cr_assert_eq(flp_loss_evaluate(&ppo, &rows), FLP_OK, "%s", flp_error_detail());
  cr_expect_arr_eq(loss[0], loss[1], sizeof loss[0]);
  cr_expect_arr_eq(grad[0], grad[1], sizeof grad[0]);
  cr_expect_arr_eq(metrics[0], metrics[1], sizeof metrics[0]);
  for (int i = 0; i < 3; i++) cr_expect_eq(grad[0][i], -advantage[i], "ratio 1: the policy gradient");
  for (int i = 0; i < 3; i++) cr_expect_eq(metrics[0][6 + i], 1, "metric 2, ratio, row %d", i);
}

Test(loss, arrays_that_are_missing_and_parameters_out_of_bounds_are_refused) {
  flp_loss ppo = find("ppo");
  const float some[] = {0};
  flp_loss_rows rows = {.n = 1};
  rows.inputs[FLP_LOSS_LOGPROB] = some;
  expect_refused(flp_loss_evaluate(&ppo, &rows), "advantage is NULL; loss ppo needs an array of 1");
  rows.inputs[FLP_LOSS_LOGPROB] = NULL;
  rows.inputs[FLP_LOSS_ADVANTAGE] = some;
  expect_refused(flp_loss_evaluate(&ppo, &rows), "logprob is NULL; loss ppo needs an array of 1");
  rows.parameters = (const double[]){0.2, 1.5};
  expect_refused(flp_loss_evaluate(&ppo, &rows),
                 "clip_low of loss ppo is 1.5; a finite number from 0 to 1 is accepted");
  rows.parameters = (const double[]){INFINITY, 0.2};
  cr_expect_eq(flp_loss_evaluate(&ppo, &rows), FLP_ERROR_ARGUMENT);
  rows.n = -1;
  cr_expect_eq(flp_loss_evaluate(&ppo, &rows), FLP_ERROR_ARGUMENT);
  rows = (flp_loss_rows){.n = 0};
  cr_expect_eq(flp_loss_evaluate(&ppo, &rows), FLP_OK);
}

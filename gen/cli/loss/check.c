/* check.c: `flpgen loss check`: derivatives of a loss against finite differences on seeded rows, and whether everything
 * is finite on rows at the limits of what training produces. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/loss/loss.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/text.h"

enum { KEY_ROWS = CLI_KEY_FIRST, KEY_SEED, KEY_SET };

typedef struct check_args {
  const char *text;
  cli_texts sets;
  int json, is_printed; /* is_printed: the JSON document is out */
  int64_t rows, seed;
} check_args;

/* One row, and what of it is varied. */
typedef struct probe {
  const flp_loss *loss;
  double inputs[FLP_LOSS_ALL_INPUTS], parameters[FLP_LOSS_PARAMETERS_MAX];
  double values[FLP_LOSS_NODES_MAX]; /* at the row itself: what detach keeps */
  int varied;
  flp_loss_row got;
} probe;

/* What the rows at the limits gave. */
typedef struct boundary {
  int rows;
  cli_loss_tally faults;
  int overflows;      /* rows that are not finite where logprobs differ by more than CLI_LOSS_NATS_MAX */
  double from;        /* the least such difference */
  char overflow[512]; /* such a row */
} boundary;

static double value_at(double x, const void *context) {
  const probe *p = context;
  double inputs[FLP_LOSS_ALL_INPUTS], values[FLP_LOSS_NODES_MAX];
  for (int i = 0; i < FLP_LOSS_ALL_INPUTS; i++) inputs[i] = i == p->varied ? x : p->inputs[i];
  if (flp_loss_is_weightless(inputs)) return 0;
  flp_loss_values(p->loss, inputs, p->parameters, p->values, values);
  return values[p->loss->loss];
}

/* What a loss has derivatives by, and those of a row. */
static const uint32_t varied[] = {FLP_LOSS_LOGPROB, FLP_LOSS_ENTROPY, FLP_LOSS_LSE, FLP_LOSS_MEAN_SCORE};
enum { VARIED = sizeof varied / sizeof varied[0] };

static void claims(const probe *p, double out[VARIED]) {
  const double each[] = {p->got.grad_logprob, p->got.grad_entropy, p->got.grad_lse, p->got.grad_mean};
  memcpy(out, each, sizeof each);
}

/* A NaN without its sign, which differs between machines. */
static double shown(double x) {
  return isnan(x) ? fabs(x) : x;
}

/* Writes what of the row is not finite as float32, with the name of the row in front; 0 if nothing is. */
static int find_infinite(const probe *p, const char *row, char *fault, size_t capacity) {
  double derivatives[VARIED];
  claims(p, derivatives);
  if (!isfinite((float)p->got.loss)) return snprintf(fault, capacity, "%s: the loss is %g", row, shown(p->got.loss));
  for (int j = 0; j < (int)p->loss->metric_count; j++)
    if (!isfinite((float)p->got.metrics[j]))
      return snprintf(fault, capacity, "%s: metric %s is %g", row, p->loss->metrics[j].name, shown(p->got.metrics[j]));
  for (int j = 0; j < VARIED; j++)
    if (!isfinite((float)derivatives[j]))
      return snprintf(fault, capacity, "%s: d loss/d %s is %g", row, flp_loss_input_name(p->loss, varied[j]),
                      shown(derivatives[j]));
  return 0;
}

/* Whether row i is right; else `fault` names what is not. */
static int check_row(probe *p, int i, double *worst, char *fault, size_t capacity) {
  double claimed[VARIED];
  char row[32];
  claims(p, claimed);
  snprintf(row, sizeof row, "row %d", i);
  if (find_infinite(p, row, fault, capacity)) return 0;
  for (int j = 0; j < VARIED; j++) {
    double nearest;
    p->varied = (int)varied[j];
    double error = cli_loss_derivative_error(value_at, p, p->inputs[varied[j]], claimed[j], &nearest);
    *worst = fmax(*worst, error);
    if (error <= 1) continue;
    snprintf(fault, capacity, "%s: d loss/d %s is %.9g; finite differences give %.9g", row,
             flp_loss_input_name(p->loss, varied[j]), claimed[j], nearest);
    return 0;
  }
  return 1;
}

static json_t *row_json(const probe *p, const char *fault) {
  json_t *inputs = json_object(), *parameters = json_object(), *metrics = json_object();
  const flp_loss *loss = p->loss;
  for (uint32_t i = 0, read = flp_loss_inputs(loss); i < FLP_LOSS_ALL_INPUTS; i++)
    if (read >> i & 1) json_object_set_new(inputs, flp_loss_input_name(loss, i), cli_json_number(p->inputs[i]));
  for (uint32_t i = 0; i < loss->parameter_count; i++)
    json_object_set_new(parameters, loss->parameters[i].name, cli_json_number(p->parameters[i]));
  for (uint32_t i = 0; i < loss->metric_count; i++)
    json_object_set_new(metrics, loss->metrics[i].name, cli_json_number(p->got.metrics[i]));
  json_t *row = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "inputs", inputs, "parameters", parameters, "loss",
                          cli_json_number(p->got.loss), "grad_logprob", cli_json_number(p->got.grad_logprob),
                          "grad_entropy", cli_json_number(p->got.grad_entropy), "metrics", metrics, "fault",
                          fault[0] ? cli_json_text(fault) : json_null());
  if (!flp_loss_is_of_scores(loss)) return row;
  json_object_set_new(row, "grad_lse", cli_json_number(p->got.grad_lse));
  json_object_set_new(row, "grad_mean_score", cli_json_number(p->got.grad_mean));
  return row;
}

static void run_rows(const check_args *args, const flp_loss *loss, const double *given, cli_loss_tally *out) {
  for (int i = 0; i < (int)args->rows; i++) {
    probe p = {.loss = loss};
    char fault[256] = "";
    cli_loss_draw(loss, (uint64_t)args->seed, i, given, p.inputs, p.parameters);
    flp_loss_evaluate_row(loss, p.inputs, p.parameters, &p.got);
    flp_loss_values(loss, p.inputs, p.parameters, NULL, p.values);
    if (!check_row(&p, i, &out->worst, fault, sizeof fault) && out->failed++ == 0)
      snprintf(out->first, sizeof out->first, "%s", fault);
    if (out->rows) json_array_append_new(out->rows, row_json(&p, fault));
  }
}

/* "boundary row (logprob 0, weight 1)": values of what the loss reads. */
static void name_row(const probe *p, char *out, size_t capacity) {
  size_t used = (size_t)snprintf(out, capacity, "boundary row (");
  const char *comma = "";
  for (uint32_t i = 0, read = flp_loss_inputs(p->loss); i < FLP_LOSS_ALL_INPUTS; i++) {
    if (!(read >> i & 1) || used >= capacity) continue;
    used +=
        (size_t)snprintf(out + used, capacity - used, "%s%s %g", comma, flp_loss_input_name(p->loss, i), p->inputs[i]);
    comma = ", ";
  }
  if (used < capacity) snprintf(out + used, capacity - used, ")");
}

static void add_overflow(boundary *out, double difference, const char *fault) {
  if (out->overflows++ == 0 || difference < out->from) {
    out->from = difference;
    snprintf(out->overflow, sizeof out->overflow, "%s", fault);
  }
}

static void run_boundary(const flp_loss *loss, const double *given, boundary *out) {
  enum { LISTED = 64 };
  out->rows = cli_loss_boundary_rows(loss);
  for (int i = 0; i < out->rows; i++) {
    probe p = {.loss = loss};
    char row[384], fault[512];
    memcpy(p.parameters, given, sizeof p.parameters);
    cli_loss_boundary_draw(loss, i, p.inputs);
    flp_loss_evaluate_row(loss, p.inputs, p.parameters, &p.got);
    name_row(&p, row, sizeof row);
    if (!find_infinite(&p, row, fault, sizeof fault)) continue;
    double difference = cli_loss_difference(loss, p.inputs);
    if (difference > CLI_LOSS_NATS_MAX) {
      add_overflow(out, difference, fault);
    } else {
      if (out->faults.failed++ == 0) snprintf(out->faults.first, sizeof out->faults.first, "%s", fault);
      if (out->faults.rows && out->faults.failed <= LISTED)
        json_array_append_new(out->faults.rows, row_json(&p, fault));
    }
  }
}

static json_t *boundary_json(const boundary *b) {
  return json_pack("{s:i, s:i, s:o, s:i, s:o, s:o}", "rows", b->rows, "failed", b->faults.failed, "faults",
                   b->faults.rows, "overflows", b->overflows, "overflow_nats",
                   b->overflows ? json_real(b->from) : json_null(), "overflow",
                   b->overflows ? cli_json_text(b->overflow) : json_null());
}

static void print_boundary(const boundary *b) {
  cli_print_field(LOSS_INDENT, "boundary", "%d rows, %d failed", b->rows, b->faults.failed);
  if (b->overflows)
    cli_print_field(LOSS_INDENT, "overflow", "%d of them, where logprobs differ by %g nats or more: %s", b->overflows,
                    b->from, b->overflow);
}

static void print_summary(const cli_loss *loss, const check_args *args, const cli_loss_tally *result,
                          const boundary *limits) {
  char text[CLI_LOSS_TEXT_BYTES];
  const flp_loss *program = &loss->program;
  cli_print_field(LOSS_INDENT, "loss", "%s", program->name);
  cli_print_field(LOSS_INDENT, "reads", "%s", cli_loss_inputs_text(program, text));
  cli_print_field(LOSS_INDENT, "parameters", "%s", cli_loss_parameters_text(program, text));
  cli_print_field(LOSS_INDENT, "metrics", "%s", cli_loss_metrics_text(program, text));
  cli_print_field(LOSS_INDENT, "gradients", "%s", cli_loss_gradients_text(program, text));
  cli_print_field(LOSS_INDENT, "rows", "%lld, %d failed; the worst derivative differs by %.2g of what is allowed",
                  (long long)args->rows, result->failed, result->worst);
  print_boundary(limits);
}

static flp_status fail(const check_args *args, const cli_loss_tally *result, const boundary *limits) {
  if (!limits->faults.failed)
    return flp_fail(FLP_ERROR_DATA, "%s: %d of %lld rows failed; %s", args->text, result->failed, (long long)args->rows,
                    result->first);
  return flp_fail(FLP_ERROR_DATA, "%s: %d of %lld rows and %d of %d boundary rows failed; %s", args->text,
                  result->failed, (long long)args->rows, limits->faults.failed, limits->rows,
                  result->failed ? result->first : limits->faults.first);
}

/* A loss over targets has rows of its own, and no boundary rows. */
static void run_all(const check_args *args, const flp_loss *loss, const double *given, cli_loss_tally *result,
                    boundary *limits) {
  if (flp_loss_is_over_targets(loss)) {
    cli_loss_targets_check(loss, (uint64_t)args->seed, (int)args->rows, given, result);
    return;
  }
  run_rows(args, loss, given, result);
  run_boundary(loss, given, limits);
}

static flp_status check(check_args *args) {
  cli_loss loss;
  double given[FLP_LOSS_PARAMETERS_MAX];
  FLP_TRY(cli_loss_load(args->text, &loss));
  for (uint32_t i = 0; i < loss.program.parameter_count; i++) given[i] = loss.program.parameters[i].fallback;
  for (int i = 0; i < args->sets.count; i++) FLP_TRY(cli_loss_set(&loss.program, "--set", args->sets.text[i], given));
  cli_loss_tally result = {.rows = args->json ? json_array() : NULL};
  boundary limits = {.faults.rows = args->json ? json_array() : NULL};
  run_all(args, &loss.program, given, &result, &limits);
  int failed = result.failed + limits.faults.failed;
  if (args->json) {
    json_t *document = cli_loss_json(&loss);
    json_object_set_new(document, "failed", json_integer(failed));
    json_object_set_new(document, "worst", cli_json_number(result.worst));
    json_object_set_new(document, "rows", result.rows);
    json_object_set_new(document, "boundary", boundary_json(&limits));
    args->is_printed = 1;
    FLP_TRY(cli_json_print(document));
  } else {
    print_summary(&loss, args, &result, &limits);
  }
  return failed ? fail(args, &result, &limits) : FLP_OK;
}

static const struct argp_option check_options[] = {
    {"rows", KEY_ROWS, "N", 0, "seeded rows to try (default 1024)", 0},
    {"seed", KEY_SEED, "N", 0, "other rows (default 0)", 0},
    {"set", KEY_SET, "NAME=NUMBER", 0, "a parameter of half of the rows; may be repeated; the others draw theirs", 0},
    {"loss-parameter", KEY_SET, NULL, OPTION_ALIAS, NULL, 0}, /* as other verbs call it */
    {"json", CLI_SWITCH(check_args, json), NULL, 0,
     "print one JSON document, with every row: values in, loss, derivatives, metrics", 0},
    {0}};

static const cli_value values[] = {
    {KEY_ROWS, CLI_IS_INTEGER, CLI_PLACE(check_args, rows), .least = 1, .most = 1000000},
    {KEY_SEED, CLI_IS_INTEGER, CLI_PLACE(check_args, seed), .most = INT64_MAX},
    {KEY_SET, CLI_IS_LIST, CLI_PLACE(check_args, sets), .most = FLP_LOSS_PARAMETERS_MAX},
    {ARGP_KEY_ARG, CLI_IS_ARGUMENT, CLI_PLACE(check_args, text),
     .unsaid = "the loss is missing: a file that ends in .lua, or a name of `flpgen loss list`"},
    {0}};

const cli_values cli_loss_check_argp = {
    CLI_OPTIONS(check_options, cli_values_parse, values),
    .argp.args_doc = "LOSS",
    .argp.doc =
        "Traces a loss and compares its derivatives by logprob, entropy, lse and mean_score with finite differences."
        "\vRows are ordinary, tied (logprob = old_logprob = ref_logprob), far from the old policy, without advantage "
        "or weight, or beside a kink of the loss, where the derivative of one side is accepted, or one between both; "
        "what stands under detach is held. A loss, metric or derivative that float32 cannot hold fails. So does one on "
        "a boundary row, a limit of what training produces: logprobs of 0, -1e-7, down to -1e4, entropy 0 and log V, "
        "advantages of 0 and up to 1e4, weight 0, vectors of 0 and up to 64, lse and mean_score up to 1e4. Where "
        "logprobs differ by more than 20 nats ratios overflow in the published losses too: such rows are counted and "
        "do not fail; clamp the difference where they can occur. A loss over targets is tried on seeded rows of 1 to "
        "12 targets alone, by each target's logprob. LOSS is a file that ends in .lua, a name of `flpgen loss list`, "
        "or a sum of them.\n\n"
        "Examples:\n"
        "  flpgen loss check my.lua\n"
        "  flpgen loss check grpo+k3 --set beta=0.04\n\n" CLI_EXIT_HELP};

int cli_loss_check(int argc, char **argv) {
  check_args args = {.rows = 1024};
  cli_parse(&cli_loss_check_argp, argc, argv, &args);
  flp_status status = check(&args);
  return cli_finish(argv[0], args.json && !args.is_printed, status);
}

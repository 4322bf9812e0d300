/* check.c: `flpgen loss check`: derivatives of a loss against finite differences on seeded rows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "gen/cli/loss/loss.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/text.h"

enum { KEY_JSON = CLI_KEY_FIRST, KEY_ROWS, KEY_SEED, KEY_SET, SETS_MAX = FLP_LOSS_PARAMETERS_MAX };

typedef struct check_args {
  const char *text, *sets[SETS_MAX];
  int set_count, json, is_printed; /* is_printed: the JSON document is out */
  int64_t rows, seed;
} check_args;

/* One row, and what of it is varied. */
typedef struct probe {
  const flp_loss *loss;
  double inputs[FLP_LOSS_INPUTS_MAX], parameters[FLP_LOSS_PARAMETERS_MAX];
  double values[FLP_LOSS_NODES_MAX]; /* at the row itself: what detach keeps */
  int varied;
  flp_loss_row got;
} probe;

typedef struct tally {
  int failed;
  char first[256]; /* what is wrong with the first row that failed */
  json_t *rows;    /* NULL without --json */
} tally;

static double value_at(double x, const void *context) {
  const probe *p = context;
  double inputs[FLP_LOSS_INPUTS_MAX], values[FLP_LOSS_NODES_MAX];
  for (int i = 0; i < FLP_LOSS_INPUTS_MAX; i++) inputs[i] = i == p->varied ? x : p->inputs[i];
  flp_loss_values(p->loss, inputs, p->parameters, p->values, values);
  return values[p->loss->loss];
}

/* Whether row i is right; else `fault` names what is not. */
static int check_row(probe *p, int i, char *fault, size_t capacity) {
  const double claimed[] = {p->got.grad_logprob, p->got.grad_entropy};
  if (!isfinite(p->got.loss)) {
    snprintf(fault, capacity, "row %d: the loss is %g", i, p->got.loss);
    return 0;
  }
  for (int j = 0; j < (int)p->loss->metric_count; j++)
    if (!isfinite(p->got.metrics[j])) {
      snprintf(fault, capacity, "row %d: metric %s is %g", i, p->loss->metrics[j].name, p->got.metrics[j]);
      return 0;
    }
  for (p->varied = FLP_LOSS_LOGPROB; p->varied <= FLP_LOSS_ENTROPY; p->varied++) {
    double nearest, derivative = claimed[p->varied];
    if (isfinite(derivative) && cli_loss_derivative_holds(value_at, p, p->inputs[p->varied], derivative, &nearest))
      continue;
    const char *name = flp_loss_input_name(p->loss, (uint32_t)p->varied);
    if (isfinite(derivative))
      snprintf(fault, capacity, "row %d: d loss/d %s is %.9g; finite differences give %.9g", i, name, derivative,
               nearest);
    else
      snprintf(fault, capacity, "row %d: d loss/d %s is %g", i, name, derivative);
    return 0;
  }
  return 1;
}

static json_t *row_json(const probe *p, const char *fault) {
  json_t *inputs = json_object(), *parameters = json_object(), *metrics = json_object();
  const flp_loss *loss = p->loss;
  for (uint32_t i = 0, read = flp_loss_inputs(loss); i < FLP_LOSS_INPUTS_MAX; i++)
    if (read >> i & 1) json_object_set_new(inputs, flp_loss_input_name(loss, i), cli_json_number(p->inputs[i]));
  for (uint32_t i = 0; i < loss->parameter_count; i++)
    json_object_set_new(parameters, loss->parameters[i].name, cli_json_number(p->parameters[i]));
  for (uint32_t i = 0; i < loss->metric_count; i++)
    json_object_set_new(metrics, loss->metrics[i].name, cli_json_number(p->got.metrics[i]));
  return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "inputs", inputs, "parameters", parameters, "loss",
                   cli_json_number(p->got.loss), "grad_logprob", cli_json_number(p->got.grad_logprob), "grad_entropy",
                   cli_json_number(p->got.grad_entropy), "metrics", metrics, "fault",
                   fault[0] ? cli_json_text(fault) : json_null());
}

static void run_rows(const check_args *args, const flp_loss *loss, const double *given, tally *out) {
  for (int i = 0; i < (int)args->rows; i++) {
    probe p = {.loss = loss};
    char fault[256] = "";
    cli_loss_draw(loss, (uint64_t)args->seed, i, given, p.inputs, p.parameters);
    flp_loss_evaluate_row(loss, p.inputs, p.parameters, &p.got);
    flp_loss_values(loss, p.inputs, p.parameters, NULL, p.values);
    if (!check_row(&p, i, fault, sizeof fault) && out->failed++ == 0)
      snprintf(out->first, sizeof out->first, "%s", fault);
    if (out->rows) json_array_append_new(out->rows, row_json(&p, fault));
  }
}

static void print_summary(const cli_loss *loss, const check_args *args, const tally *result) {
  char text[CLI_LOSS_TEXT_BYTES];
  const flp_loss *program = &loss->program;
  cli_print_field(LOSS_INDENT, "loss", "%s", program->name);
  cli_print_field(LOSS_INDENT, "reads", "%s", cli_loss_inputs_text(program, text));
  cli_print_field(LOSS_INDENT, "parameters", "%s", cli_loss_parameters_text(program, text));
  cli_print_field(LOSS_INDENT, "metrics", "%s", cli_loss_metrics_text(program, text));
  cli_print_field(LOSS_INDENT, "gradients", "%s", cli_loss_gradients_text(program, text));
  cli_print_field(LOSS_INDENT, "rows", "%lld, %d failed", (long long)args->rows, result->failed);
}

static flp_status check(check_args *args) {
  cli_loss loss;
  double given[FLP_LOSS_PARAMETERS_MAX];
  FLP_TRY(cli_loss_load(args->text, &loss));
  for (uint32_t i = 0; i < loss.program.parameter_count; i++) given[i] = loss.program.parameters[i].fallback;
  for (int i = 0; i < args->set_count; i++) FLP_TRY(cli_loss_set(&loss.program, "--set", args->sets[i], given));
  tally result = {.rows = args->json ? json_array() : NULL};
  run_rows(args, &loss.program, given, &result);
  if (args->json) {
    json_t *document = cli_loss_json(&loss);
    json_object_set_new(document, "failed", json_integer(result.failed));
    json_object_set_new(document, "rows", result.rows);
    args->is_printed = 1;
    FLP_TRY(cli_json_print(document));
  } else {
    print_summary(&loss, args, &result);
  }
  if (!result.failed) return FLP_OK;
  return flp_fail(FLP_ERROR_DATA, "%s: %d of %lld rows failed; %s", args->text, result.failed, (long long)args->rows,
                  result.first);
}

static error_t parse(int key, char *text, struct argp_state *state) {
  check_args *args = state->input;
  switch (key) {
    case KEY_JSON:
      args->json = 1;
      return 0;
    case KEY_ROWS:
      cli_argp_check(state, cli_parse_integer("--rows", text, 1, 1000000, &args->rows));
      return 0;
    case KEY_SEED:
      cli_argp_check(state, cli_parse_integer("--seed", text, 0, INT64_MAX, &args->seed));
      return 0;
    case KEY_SET:
      if (args->set_count == SETS_MAX) argp_error(state, "--set: at most %d are accepted", (int)SETS_MAX);
      args->sets[args->set_count++] = text;
      return 0;
    case ARGP_KEY_ARG:
      if (args->text) argp_error(state, "argument '%s' is not accepted after '%s'", text, args->text);
      args->text = text;
      return 0;
    case ARGP_KEY_END:
      if (!args->text)
        argp_error(state, "the loss is missing: a file that ends in .lua, or a name of `flpgen loss list`");
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

int cli_loss_check(int argc, char **argv) {
  static const struct argp_option options[] = {
      {"rows", KEY_ROWS, "N", 0, "seeded rows to try (default 1024)", 0},
      {"seed", KEY_SEED, "N", 0, "other rows (default 0)", 0},
      {"set", KEY_SET, "NAME=NUMBER", 0, "a parameter of half of the rows; may be repeated; the others draw theirs", 0},
      {"json", KEY_JSON, NULL, 0, "print one JSON document, with every row: values in, loss, derivatives, metrics", 0},
      {0}};
  static const struct argp argp = {
      options,
      parse,
      "LOSS",
      "Traces a loss and compares its derivatives by logprob and entropy with finite differences."
      "\vRows are ordinary, tied (logprob = old_logprob = ref_logprob), far from the old policy, without advantage or "
      "weight, or beside a kink of the loss, where the derivative of one side is accepted, or one between both; what "
      "stands under detach is held. A loss, metric or derivative that is not finite fails. LOSS is a file that ends in "
      ".lua, a name of `flpgen loss list`, or a sum of them.\n\n"
      "  flpgen loss check my.lua\n"
      "  flpgen loss check grpo+k3 --set beta=0.04\n\n" CLI_EXIT_HELP,
      NULL,
      NULL,
      NULL};
  check_args args = {.rows = 1024};
  cli_parse(&argp, argc, argv, &args);
  flp_status status = check(&args);
  return cli_finish(argv[0], args.json && !args.is_printed, status);
}

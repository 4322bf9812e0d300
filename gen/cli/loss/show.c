/* show.c: `flpgen loss list` and `flpgen loss show`: what is built in, and everything about one loss. */
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "gen/cli/kernels/kernels.h"
#include "gen/cli/loss/loss.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/table.h"
#include "gen/cli/shared/text.h"

enum { KEY_EMIT = CLI_KEY_FIRST };

typedef struct show_args {
  const char *text, *arch, *bytes;
  uint32_t emit;
  int json;
} show_args;

/* ---- list ---- */

static void start_list(cli_table *table) {
  cli_table_start(table, "loss", "formula", "parameters", "source", NULL);
  cli_table_may_move(table, 3, "source: ");
  cli_table_may_move(table, 2, "parameters: ");
}

static flp_status list(void *input) {
  int json = ((const show_args *)input)->json;
  json_t *document = json_array();
  cli_table table;
  flp_status status = FLP_OK;
  if (!json) start_list(&table);
  for (int i = 0; status == FLP_OK && flp_loss_builtin(i); i++) {
    cli_loss loss;
    char parameters[CLI_LOSS_TEXT_BYTES];
    status = cli_loss_load(flp_loss_builtin(i), &loss);
    if (status != FLP_OK) break;
    if (json)
      json_array_append_new(document, cli_loss_json(&loss));
    else
      cli_table_add(&table, loss.program.name, loss.formula, cli_loss_parameters_text(&loss.program, parameters),
                    loss.source, NULL);
  }
  if (!json) cli_table_finish(&table);
  if (json && status == FLP_OK) return cli_json_print(document);
  json_decref(document);
  return status;
}

static const struct argp_option list_options[] = {
    {"json", CLI_SWITCH(show_args, json), NULL, 0, "print one JSON document", 0}, {0}};

const cli_values cli_loss_list_argp = {CLI_OPTIONS(list_options, cli_values_parse, (const cli_value[]){{0}}),
                                       CLI_RUN(show_args, list),
                                       .argp.doc =
                                           "Lists the losses that are built in. w: weight, A: advantage, H: entropy."
                                           "\vLosses of this list and files are added by '+': grpo+k3+entropy.\n\n"
                                           "Examples:\n"
                                           "  flpgen loss list\n"
                                           "  flpgen loss list --json\n\n" CLI_EXIT_HELP};

/* ---- show ---- */

static void print_operation(const flp_loss *loss, uint32_t i) {
  const flp_loss_node *node = &loss->nodes[i];
  printf("  %%%-3u = ", i);
  if (node->op == FLP_LOSS_CONSTANT)
    printf("%.17g", loss->constants[node->operands[0]]);
  else if (node->op == FLP_LOSS_INPUT)
    printf("row.%s", flp_loss_input_name(loss, node->operands[0]));
  else if (node->op == FLP_LOSS_PARAMETER)
    printf("p.%s", loss->parameters[node->operands[0]].name);
  else
    printf("%s", flp_loss_op_name(node->op));
  for (int j = 0; j < flp_loss_op_arity(node->op); j++) printf("%s%%%u", j ? ", " : " ", node->operands[j]);
  putchar('\n');
}

static void print_loss(const cli_loss *loss) {
  const flp_loss *program = &loss->program;
  char text[CLI_LOSS_TEXT_BYTES];
  cli_print_field(LOSS_INDENT, "loss", "%s", program->name);
  if (loss->formula[0]) cli_print_field(LOSS_INDENT, "formula", "%s", loss->formula);
  if (loss->source[0]) cli_print_field(LOSS_INDENT, "source", "%s", loss->source);
  cli_print_field(LOSS_INDENT, "reads", "%s", cli_loss_inputs_text(program, text));
  cli_print_field(LOSS_INDENT, "parameters", "%s", cli_loss_parameters_text(program, text));
  cli_print_field(LOSS_INDENT, "metrics", "%s", cli_loss_metrics_text(program, text));
  cli_print_field(LOSS_INDENT, "gradients", "%s", cli_loss_gradients_text(program, text));
  putchar('\n');
  for (uint32_t i = 0; i < program->node_count; i++) print_operation(program, i);
  printf("  loss = %%%u\n", program->loss);
  for (uint32_t i = 0; i < program->metric_count; i++)
    printf("  %s = %%%u\n", program->metrics[i].name, program->metrics[i].node);
}

static flp_status generate(const show_args *args, const flp_loss *loss, cli_kernel *out) {
  uint8_t bytes[FLP_LOSS_BYTES_MAX];
  flpgen_options options = {.want_ir = 1, .want_opt_ir = 1, .loss = loss};
  flp_kernel_key key = {.kind = FLP_KERNEL_LOSS, .dtype = FLP_DTYPE_FP32, .target_dtype = FLP_DTYPE_INT64};
  if (flp_loss_is_over_targets(loss)) key.kind = FLP_KERNEL_LOSS_TARGETS;
  if (flp_loss_is_of_scores(loss)) key.kind = FLP_KERNEL_LOSS_SCORES;
  crypto_hash_sha256(key.loss, bytes, flp_loss_write(loss, bytes, sizeof bytes));
  FLP_TRY(cli_kernels_target(args->arch ? args->arch : FLP_PORTABLE_ARCH, key.arch));
  return cli_kernel_generate(&key, &options, out);
}

static flp_status write_bytes(const char *path, const flp_loss *loss) {
  uint8_t bytes[FLP_LOSS_BYTES_MAX];
  return cli_write_file(path, bytes, flp_loss_write(loss, bytes, sizeof bytes));
}

static flp_status show(void *input) {
  const show_args *args = input;
  cli_loss loss;
  cli_kernel kernel = {.seconds = 0};
  FLP_TRY(cli_loss_load(args->text, &loss));
  if (args->bytes) FLP_TRY(write_bytes(args->bytes, &loss.program));
  if (args->emit) FLP_TRY(generate(args, &loss.program, &kernel));
  const struct {
    uint32_t flag;
    const char *name, *text;
  } parts[] = {{CLI_EMIT_IR, "ir", kernel.result.ir},
               {CLI_EMIT_OPT, "opt", kernel.result.opt_ir},
               {CLI_EMIT_PTX, "ptx", kernel.result.ptx}};
  json_t *document = args->json ? cli_loss_json(&loss) : NULL;
  if (args->json && args->emit) json_object_set_new(document, "kernel", cli_desc_json(&kernel.result.desc));
  if (!args->json && !args->emit) print_loss(&loss);
  for (int i = 0; i < 3; i++) {
    if (!(args->emit & parts[i].flag)) continue;
    if (args->json)
      json_object_set_new(document, parts[i].name, cli_json_text(parts[i].text));
    else
      fputs(parts[i].text, stdout);
  }
  flpgen_result_clear(&kernel.result);
  return args->json ? cli_json_print(document) : FLP_OK;
}

static const struct argp_option show_options[] = {
    {"emit", KEY_EMIT, "LIST", 0, "any of ir,opt,ptx: print the kernel of this loss over arrays of rows", 0},
    {"arch", CLI_TEXT(show_args, arch), "NAME", 0,
     "its architecture, e.g. sm_90; sm_80 (default) runs on every newer GPU", 0},
    {"bytes", CLI_TEXT(show_args, bytes), "FILE", 0, "write the program here, as flp_spec.loss takes it", 0},
    {"json", CLI_SWITCH(show_args, json), NULL, 0, "print one JSON document", 0},
    {0}};

static const cli_value show_values[] = {
    {KEY_EMIT, CLI_IS_FLAGS, CLI_PLACE(show_args, emit), .words = CLI_EMITS},
    {ARGP_KEY_ARG, CLI_IS_ARGUMENT, CLI_PLACE(show_args, text),
     .unsaid = "the loss is missing: a name of `flpgen loss list`, or a file that ends in .lua"},
    {0}};

const cli_values cli_loss_show_argp = {
    CLI_OPTIONS(show_options, cli_values_parse, show_values),
    .argp.args_doc = "LOSS",
    CLI_RUN(show_args, show),
    .argp.doc =
        "Shows what a loss reads, its parameters, metrics and operations."
        "\vLOSS is a name of `flpgen loss list`, a file that ends in .lua, or a sum of them.\n\n"
        "Examples:\n"
        "  flpgen loss show grpo+k3\n"
        "  flpgen loss show my.lua --emit ptx --arch sm_90\n"
        "  flpgen loss show my.lua --bytes my.loss\n\n" CLI_EXIT_HELP};

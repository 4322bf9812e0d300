/* loss.c: `flpgen loss list|show|check`: finds the action and hands over. */
#include "gen/cli/loss/loss.h"
#include "gen/cli/verbs.h"

const cli_action CLI_LOSS_ACTIONS[] = {
    {"list", NULL, "the losses that are built in: formulas, parameters, sources", &cli_loss_list_argp, NULL},
    {"show", NULL, "what a loss reads, its parameters, metrics, operations and kernel", &cli_loss_show_argp, NULL},
    {"check", cli_loss_check, "compare the derivatives of a loss with finite differences", &cli_loss_check_argp, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

int cli_losses(int argc, char **argv) {
  return cli_action_run(
      argc, argv, CLI_LOSS_ACTIONS,
      "Usage: flpgen loss ACTION [OPTION...]\n"
      "Losses of a row: Lua functions of its logprob, entropy, old and reference\n"
      "logprob, advantage, weight and vectors of yours, with derivatives by dual\n"
      "numbers.\n\n"
      "Actions:\n",
      "\nExamples:\n"
      "  flpgen loss show grpo+k3+entropy        terms are added\n"
      "  flpgen loss check my.lua\n\n"
      "  -- my.lua\n"
      "  return {\n"
      "    parameters = {margin = 0.1}, vectors = {\"reward\"},\n"
      "    loss = function(row, p)\n"
      "      local ratio = exp(row.logprob - row.old_logprob)\n"
      "      local gain = min(ratio, 1 + p.margin) * row.reward\n"
      "      return -row.weight * gain, {ratio = ratio}\n"
      "    end,\n"
      "  }\n\n"
      "Words: + - * / and ^ with a small whole number; abs clamp detach exp expm1 log\n"
      "max min sqrt; where(condition, a, b) with lt le gt ge eq ne, and & | ~ between\n"
      "conditions; import \"ppo\" gives what the file of a built-in loss returns.\n"
      "A row has logprob, entropy, old_logprob, ref_logprob, advantage, weight and the\n"
      "vectors of the file; of all scores t in nats lse, log of the sum of exp(t), and\n"
      "mean_score, their mean. A loss over several targets reads target_logprob and\n"
      "teacher_logprob in place of the logprobs, and joins their values by sum(x).\n\n"
      "`flpgen loss ACTION --help` shows the options of an action; each takes --json.\n\n" CLI_EXIT_HELP "\n");
}

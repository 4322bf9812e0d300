"""A stand-in for a Megatron model: an output layer of Megatron's name and attributes, and a model that hands on what
the layer makes, as GPTModel does. Small packages in the names of slime, Miles and verl call it as those do."""
import types

import torch

DEPTH, VOCAB = 16, 64


class ColumnParallelLinear(torch.nn.Module):
    """On one rank, or this rank's part of a group's."""

    def __init__(self, weight, group=None, sequence_parallel=False, config=None):
        super().__init__()
        self.weight, self.bias, self.skip_bias_add = torch.nn.Parameter(weight), None, False
        self.tp_group, self.sequence_parallel, self.gradient_accumulation_fusion = group, sequence_parallel, False
        self.config = config
        self.output_size_per_partition = len(weight)
        self.output_size = len(weight) * (group.size() if group is not None else 1)

    def forward(self, input_, weight=None, runtime_gather_output=None):
        return input_ @ (self.weight if weight is None else weight).t(), None


class Model(torch.nn.Module):
    """hidden states (S, B, D) in place of tokens; a further head's loss where labels are given."""

    def __init__(self, dtype=torch.float32, **options):
        super().__init__()
        torch.manual_seed(0)
        self.config = types.SimpleNamespace(use_mup=False, **options)
        self.output_layer = ColumnParallelLinear(torch.randn(VOCAB, DEPTH).to(dtype), config=self.config)

    def _scale_logits(self, scores):
        return scores * self.config.mup_output_mult if self.config.use_mup else scores

    def compute_language_model_loss(self, labels, logits):
        return -logits.float().log_softmax(-1).gather(-1, labels.t().unsqueeze(-1)).squeeze(-1).t()

    def forward(self, hidden, labels=None, output_processor=None, output_processor_context=None, **given):
        if output_processor is not None:
            return output_processor(
                hidden_states=hidden, output_layer=self.output_layer, output_weight=None, labels=labels,
                context=output_processor_context, scale_logits=self._scale_logits, config=self.config,
                inference_context=None, compute_language_model_loss=self.compute_language_model_loss, **given)
        logits = self._scale_logits(self.output_layer(hidden)[0])
        if labels is not None:
            return self.compute_language_model_loss(labels, logits)
        return logits.transpose(0, 1).contiguous().float()


RESPONSES = '''
import torch


def get_responses(logits, *, args, unconcat_tokens, total_lengths, response_lengths, {more}):
    assert logits.dtype is torch.float32
    logits, end = logits.reshape(-1, logits.size(-1)), 0
    for tokens, total, response in zip(unconcat_tokens, total_lengths, response_lengths):
        end += total
        yield logits[end - response - 1:end - 1], tokens[-response:]


def get_log_probs_and_entropy(logits, *, args, unconcat_tokens, total_lengths, response_lengths, {parameters}):
    """By scores."""
    parts = list(get_responses(logits, args=args, unconcat_tokens=unconcat_tokens, total_lengths=total_lengths,
                               response_lengths=response_lengths))
    logps = [(part / args.rollout_temperature).log_softmax(-1) for part, _ in parts]
    found = {{"log_probs": [logp.gather(-1, tokens[:, None])[:, 0] for logp, (_, tokens) in zip(logps, parts)]}}
    if with_entropy:
        found["entropy"] = [-(logp.exp() * logp).sum(-1) for logp in logps]
    return {result}


class Redistributed:
    calls = 0


def {redistribute}(results, **others):
    Redistributed.calls += 1
'''
STEPS = '''
import torch

from {loss} import get_log_probs_and_entropy


@torch.no_grad()
def forward_only(f, args, model, data_iterator, num_microbatches, {scored}):
    return f(model[0](data_iterator["hidden"]), args=args, with_entropy=True, **data_iterator["samples"])


def train_one_step(args, rollout_id, step_id, data_iterator, model, optimizer, opt_param_scheduler, num_microbatches,
                   {trained}):
    further = model[0](data_iterator["hidden"], labels=data_iterator["labels"]).sum() if args.further else 0
    logits = model[0](data_iterator["hidden"])
    if args.loss_type == "custom_loss":
        return logits.square().sum()
    results = get_log_probs_and_entropy(logits, args=args, with_entropy=True, **data_iterator["samples"])
    results = results[1] if isinstance(results, tuple) else results
    return sum(map(torch.sum, results["log_probs"])) + further + 0 * logits.sum()
'''
SOURCES = {
    "slime-megatron": {
        "slime.backends.megatron_utils.loss": RESPONSES.format(
            more="apply_temperature=True", result="torch.empty((0,)), found", redistribute="_allgather_cp_redistribute",
            parameters="with_entropy=False, non_loss_data=True, top_p_token_ids=None, top_p_token_offsets=None"),
        "slime.backends.megatron_utils.model": STEPS.format(
            loss="slime.backends.megatron_utils.loss", scored="store_prefix='', use_rollout_top_p_replay=False",
            trained="step_global_batch_size, microbatch_pbar=None")},
    "miles-megatron": {
        "miles.backends.training_utils.loss_hub.logit_processors": RESPONSES.format(
            more="max_seq_lens=None", result="found", redistribute="allgather_cp_redistribute",
            parameters="with_entropy=False, entropy_requires_grad=True, non_loss_data=True, max_seq_lens=None"),
        "miles.backends.megatron_utils.model": STEPS.format(
            loss="miles.backends.training_utils.loss_hub.logit_processors", scored="rollout_id=0, store_prefix=''",
            trained="num_rollouts, witness_info=None, attempt=0, ft_test_action_executor=None")},
    "verl-megatron": {"verl.models.mcore.model_forward_fused": '''
import types

CausalLMOutputForPPO = types.SimpleNamespace


def has_config_logger_enabled(config):
    return getattr(config, "logged", False)


def fused_output_processor(*, hidden_states, output_layer, output_weight, labels, context, config, **_ignored):
    return "host"
'''},
    "megatron": {"megatron.core.transformer.multi_token_prediction": '''
import types

import torch


class MTPLossAutoScaler(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output, loss):
        ctx.save_for_backward(loss)
        return output

    @staticmethod
    def backward(ctx, gradient):
        loss, = ctx.saved_tensors
        return gradient, torch.ones_like(loss)


class MTPLossLoggingHelper:
    logged = []

    @classmethod
    def save_metrics_to_tracker(cls, *metrics, avg_group=None):
        cls.logged.append(metrics)


parallel_state = types.SimpleNamespace(get_data_parallel_group=lambda with_context_parallel: None)


def roll_tensor(tensor, shifts=-1, dims=-1, cp_group=None, packed_seq_params=None):
    rolled = torch.roll(tensor, shifts, dims)
    rolled[..., -1] = 0
    return rolled, rolled.sum()


def process_mtp_loss(hidden_states, labels, loss_mask, output_layer, output_weight, runtime_gather_output, is_training,
                     compute_language_model_loss, config, cp_group=None, tp_group=None, packed_seq_params=None,
                     scale_logits_fn=None, input_ids=None):
    """By scores."""
    main, *heads = torch.chunk(hidden_states, 1 + config.mtp_num_layers, dim=0)
    if labels is None:
        return main
    for i, hidden in enumerate(heads):
        labels, (loss_mask, count) = roll_tensor(labels)[0], roll_tensor(loss_mask)
        scores, _ = output_layer(hidden, weight=output_weight)
        loss = loss_mask * compute_language_model_loss(labels, scores)
        if is_training:
            correct = ((scores.argmax(-1).t() == labels) & loss_mask.bool()).sum().float()
            MTPLossLoggingHelper.save_metrics_to_tracker(loss.sum() / count, correct, loss_mask.sum().float(), i,
                                                         len(heads))
        main = MTPLossAutoScaler.apply(main, config.mtp_loss_scaling_factor / len(heads) * loss / count)
    return main
''', "megatron.core.models.common.language_module.language_module": '''
from flp_megatron import Model as LanguageModule
'''},
}

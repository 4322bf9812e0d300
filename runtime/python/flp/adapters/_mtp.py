"""Losses of Megatron's heads that predict further tokens (MTP), from hidden states: all of them in one call, whose rows
are the tokens of every head; tokens that the loss mask leaves out cost no work."""
import functools
import inspect

import torch

from .. import errors
from .._functions._select import NEVER
from . import _call, _megatron

NAME = "megatron"
# An attribute of functions that stand for a model's own loss of scores.
OWN_LOSS = "_flp_own_loss"


def from_hidden(host):
    """process_mtp_loss: hidden states of the model and of its k further heads ((1+k)·S/R, B, D) -> the first of them
    (S/R, B, D), with the heads' losses in their backward pass."""
    module, signature = host.__globals__, inspect.signature(host)

    @functools.wraps(host)
    def process_mtp_loss(*arguments, **keywords):
        bound = signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        given = bound.arguments
        try:
            head = _head(given)
        except errors.UnsupportedError as error:
            return _call.to_host(NAME, str(error), host, *arguments, **keywords)
        return _scored(module, head, **given) if head is not None else host(*arguments, **keywords)

    return process_mtp_loss


def _head(given):
    """The Head of the further tokens; None where the host needs none. error: UnsupportedError"""
    if given["labels"] is None and given["input_ids"] is None:
        return None
    if given["runtime_gather_output"]:
        _megatron.refuse("runtime_gather_output", "True", "None or False")
    loss = given["compute_language_model_loss"]
    if not hasattr(loss, OWN_LOSS):
        from megatron.core.models.common.language_module.language_module import LanguageModule

        if getattr(loss, "__func__", None) is not LanguageModule.compute_language_model_loss:
            _megatron.refuse("compute_language_model_loss", "%s" % getattr(loss, "__qualname__", loss),
                             "LanguageModule's own, a cross entropy")
    head = _megatron.head_of(given["output_layer"], given["output_weight"], given["config"], given["scale_logits_fn"],
                             own_handler=hasattr(loss, OWN_LOSS))
    reason = _call.refusal(given["hidden_states"], head.weight, head.bias)
    if reason:
        _megatron.refuse("output_layer", "refused: " + reason, _megatron.PLAIN)
    return head._replace(weight=head.weight.detach()) if given["config"].mtp_detach_heads else head


def _scored(module, head, *, hidden_states, labels, loss_mask, is_training, config, cp_group, packed_seq_params,
            input_ids, **_others):
    k = config.mtp_num_layers

    def roll(tensor):
        return module["roll_tensor"](tensor, shifts=-1, dims=-1, cp_group=cp_group, packed_seq_params=packed_seq_params)

    rolled_once = labels is None
    labels = roll(input_ids)[0] if rolled_once else labels
    loss_mask = torch.ones_like(labels) if loss_mask is None else loss_mask
    if rolled_once:
        loss_mask = roll(loss_mask)[0]
    tokens = loss_mask.sum()
    further, masks, counts = [], [], []
    for _ in range(k):
        labels, (loss_mask, count) = roll(labels)[0], roll(loss_mask)
        further, masks, counts = [*further, labels], [*masks, loss_mask], [*counts, count]
    losses, correct = _losses(head, hidden_states, torch.stack(further), torch.stack(masks), k, is_training)
    main = hidden_states[:hidden_states.shape[0] // (1 + k)]
    for i, (loss, mask, count) in enumerate(zip(losses, masks, counts)):
        loss, at_least_one = mask * loss, count.clamp(min=1)
        if is_training:
            module["MTPLossLoggingHelper"].save_metrics_to_tracker(
                loss.sum() * (count > 0) / at_least_one, correct[i].sum().float(), mask.bool().sum().float(), i, k,
                avg_group=module["parallel_state"].get_data_parallel_group(with_context_parallel=True))
        share = tokens / at_least_one if config.calculate_per_token_loss else 1 / at_least_one
        main = module["MTPLossAutoScaler"].apply(main, config.mtp_loss_scaling_factor / k * loss * share)
    return main


def _losses(head, hidden, labels, masks, k, counted):
    """Of the heads' labels and masks (k, B, S): their losses (k, B, S) float32, 0 where masked, and which best tokens
    are the labels, where they are counted."""
    target = labels.long().masked_fill(masks == 0, NEVER)
    _, batch, length = target.shape
    ranks = head.group.size() if head.sequence_parallel else 1
    rows = target.transpose(1, 2).reshape(k, ranks, length // ranks, batch)  # as ranks hold them, head by head
    rows = rows.transpose(0, 1).reshape(k * length, batch)

    def of_heads(values):
        values = values.reshape(ranks, k, length // ranks, batch).transpose(0, 1)
        return values.reshape(k, length, batch).transpose(1, 2)

    own = hidden[hidden.shape[0] // (1 + k):]
    if not counted:
        return of_heads(-_megatron.logprobs(head, own, rows)), None
    logprob, top = _megatron.logprobs(head, own, rows, topk=1)
    return of_heads(-logprob), of_heads((top.ids.squeeze(-1) == rows) & (rows != NEVER))

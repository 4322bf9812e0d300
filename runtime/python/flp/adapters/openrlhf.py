"""OpenRLHF: Actor.forward, whose head hands over hidden states instead of scores."""
import contextlib
import sys
import threading
import typing
import weakref

import torch

from .._functions._logprob import linear_logprob
from ..heads import _patch
from . import _call
from ._seam import Host, Seam

IGNORED = -100

# Heads whose models turned out to do more than hand on the scores.
needs_scores: typing.Any = weakref.WeakSet()


@contextlib.contextmanager
def passing(head):
    """Makes the head record what this thread gives it -> a list that will hold the hidden states. Other threads, and
    copies of the head, get scores."""
    seen, thread = [], threading.get_ident()

    def record(module, below, hidden):
        if threading.get_ident() != thread:
            return below(hidden)
        seen.append(hidden)
        return torch.empty(0, device=hidden.device).as_subclass(_call.Unscored)

    _patch.put(head, record)
    try:
        yield seen
    finally:
        _patch.take(head, record)


def head_of(actor):
    """(head, None), or (None, the reason why its scores are needed)."""
    head = actor.model.get_output_embeddings() if hasattr(actor.model, "get_output_embeddings") else None
    if isinstance(head, _patch.Patched):
        return None, "the head is under flp.logprob_head, or another thread is in the actor"
    if type(head) is not torch.nn.Linear:
        return None, "the head is of type %s, not torch.nn.Linear" % type(head).__name__
    if head in needs_scores:
        return None, "the model does more with its head than hand on the scores (softcap, scale)"
    if _patch.replaced_forward(head) is not None:
        return None, "the head's forward was replaced"
    return head, _call.refusal(head.weight, head.weight, head.bias)


def rolled(actor, module, sequences, attention_mask, ring_attn_group):
    """What the model is given and asked for: (ids, mask, positions, targets, how to pad again)."""
    if actor.packing_samples:
        ids, positions, targets, *padding = module.unpad_and_slice_tensor(sequences, attention_mask, ring_attn_group)
        return ids, None, positions, targets, padding
    positions = (attention_mask.long().cumsum(-1) - 1).masked_fill(attention_mask == 0, 1)
    return sequences, attention_mask, positions, torch.roll(sequences, -1, 1), None


def scored(actor, module, head, sequences, action_mask, attention_mask, ring_attn_group, entropy):
    """The model's output without scores, log-probabilities and, if asked for, entropies, (B, T) float32."""
    ids, mask, positions, targets, padding = rolled(actor, module, sequences, attention_mask, ring_attn_group)
    if action_mask is not None and not entropy and padding is None:
        needed = torch.zeros_like(targets)
        needed[:, -action_mask.shape[1] - 1:-1] = action_mask
        targets = targets.masked_fill(needed == 0, IGNORED)
    with passing(head) as seen:
        output = actor.model(ids, attention_mask=mask, position_ids=positions)
    if len(seen) != 1 or type(output["logits"]) is not _call.Unscored:
        raise _call.ScoresNeeded
    output["logits"] = None
    results = linear_logprob(seen[0], head.weight, targets, head.bias, temperature=actor.temperature, entropy=entropy,
                             ignore_index=IGNORED)
    results = results if entropy else (results,)
    if padding is not None:
        results = tuple(module.gather_and_pad_tensor(result, ring_attn_group, *padding, *sequences.shape)
                        for result in results)
    return output, results


def forward(host):
    """Actor.forward: sequences (B, T) -> log-probabilities of the next tokens (B, T-1), or of the actions (B, A).

    The output that return_output asks for has logits None.
    """
    module = sys.modules[host.__module__]

    @_call.in_place("openrlhf", host)
    def actor_forward(self, sequences, action_mask=None, attention_mask=None, return_output=False,
                      allgather_logits=False, return_logprobs=False, ring_attn_group=None, packed_seq_lens=None,
                      return_entropy=False, **mm_inputs):
        head, reason = head_of(self)
        if action_mask is None and not return_logprobs:
            reason = "scores are asked for"
        elif mm_inputs or getattr(self, "is_vlm", False):
            reason = "the model takes more than tokens"
        _call.refuse(reason)
        try:
            output, results = scored(self, module, head, sequences, action_mask, attention_mask, ring_attn_group,
                                     return_entropy)
        except _call.ScoresNeeded as needed:
            needs_scores.add(head)
            raise _call.Refused(head_of(self)[1]) from needed
        if return_entropy:
            output.entropy = results[1][:, :-1]
        logprob = results[0][:, :-1]
        if action_mask is not None:
            logprob = logprob[:, -action_mask.shape[1]:] * action_mask.float()
        return (logprob, output) if return_output else logprob

    return actor_forward


HOST = Host(
    "openrlhf", (
        Seam("openrlhf.models.actor", "Actor.forward",
             ("self", "sequences", "action_mask", "attention_mask", "return_output", "allgather_logits",
              "return_logprobs", "ring_attn_group", "packed_seq_lens", "return_entropy", "mm_inputs"),
             "e455e46bd10d4592", forward),
    ), "openrlhf==0.11.2")

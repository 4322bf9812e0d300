"""policy_loss: loss, metrics and gradients of a policy update from hidden states, in one call.

Invariants: a rule of tokens is a loss program that libflp runs between the passes over the head (flp_step, stream
mode), so gradients exist when the call returns and the backward pass hands them out (_hand_out.py). Until its upstream
gradient is known they have the range of float32: those of bfloat16 operands are bfloat16, those of float16 operands
float32. Averages are weights a token, made on the device from the mask alone. What a program cannot be goes over
linear_logprob: rules of whole sequences. Nothing synchronises.
"""
from __future__ import annotations

import collections
from typing import Literal, Mapping, Sequence

import torch
from torch import Tensor

from .. import losses
from .._library import _c, _rules
from .._passes import _autograd, _run
from .._tensors import _check, _lora, _top
from .._tensors._call import Call
from .._tensors._compile import outside_graphs
from .._tensors._operands import Loss, Operands
from . import _hand_out, _reference

# Tensors of tokens, on one device: target (B,T), ignore_index outside the mask; mask (B,T) float32; advantage (B,T) or
# (B,1), old_logprob, ref_logprob (B,T), each float32 or None; vectors by name.
Batch = collections.namedtuple("Batch", "target mask advantage old_logprob ref_logprob vectors")


@outside_graphs
def policy_loss(rule: str, hidden: Tensor, weight: Tensor, target: Tensor,
                advantage: Tensor | None = None, bias: Tensor | None = None, *, old_logprob: Tensor | None = None,
                ref_logprob: Tensor | None = None, mask: Tensor | None = None,
                clip: Sequence[float] | None = None, beta: float = 0.0, kl_kind: str = "k3",
                entropy_weight: float = 0.0, entropy: bool = False, length: float | None = None,
                total: float | Tensor | None = None, average: str | None = None,
                parameters: Mapping[str, float] | None = None, vectors: Mapping[str, Tensor] | None = None,
                temperature: float | Tensor = 1.0, softcap: float | None = None, scale: float = 1.0,
                ignore_index: int = -100, budget: int | str | None = None, save: bool | None = None,
                old_lse: Tensor | None = None, grad_weight_accumulate: Tensor | None = None,
                grad_scale: float | Tensor = 1.0, tail: float | None = None,
                tail_report: Tensor | None = None, mixed: Literal["round", "split"] | None = None,
                keep: tuple[Tensor, Tensor] | None = None, lora: _lora.Lora | None = None, topk: int = 0,
                rank: bool = False, reference: _reference.Reference | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes the loss of a policy update and its gradients from hidden states, without the (N,V) scores.

    rule             a name of flp.losses.RULES: reinforce, ppo, grpo, dapo, dr_grpo, cispo, gspo; nll (no advantage);
                     or the path of a Lua file with a loss of yours (flpgen loss --help), which needs libflpgen
    hidden, weight, target, bias, temperature, softcap, scale, ignore_index, budget
                     as in flp.linear_logprob, with hidden (B, T, D) and target (B, T): the tokens that were chosen
    advantage, old_logprob, ref_logprob, mask, clip, beta, kl_kind, entropy_weight, length, total
                     as in flp.losses.policy_loss; tokens whose target is ignore_index are outside the mask too
    entropy          True: report the entropy even where entropy_weight is 0
    average          "tokens", "sequences" (mean of their means) or "length" (sum over sequences · length); None: the
                     rule's own, of a file tokens
    beta             of a file too: its Kullback-Leibler term is added where beta is not 0
    parameters       {name: number} of a file's parameters; what is not given has the file's default
    vectors          {name: (B, T) floating point} that a file's loss reads
    save, old_lse    as in flp.linear_logprob, for rules that pass through it; old_lse for every rule
    grad_weight_accumulate
                     (V, D) float32 buffer that the weight's gradient is added to once, when this function is called;
                     weight.grad stays as it is. Of gspo, and where hooks of saved tensors are in force (so in what
                     torch.utils.checkpoint makes again, with use_reentrant=False), it is added when the loss is
                     back-propagated, by a step that runs then: one matrix product more
    grad_scale       the upstream gradient that loss.backward() will bring, a number or 0-dim tensor (loss scale over
                     micro-batches): what is added to grad_weight_accumulate has it; with that buffer another upstream
                     gradient makes the other gradients NaN
    tail, tail_report
                     as in flp.linear_logprob; the report is of the gradients of this loss, and is filled when they are
                     computed, as grad_weight_accumulate says it. Where most rows are flat, gradients are exact and the
                     report has all rows as recomputed
    mixed            as in flp.linear_logprob: "round" or "split" for one float32 operand beside one of 16 bits. With a
                     float32 weight, or "split", the step recomputes scores: four matrix products and more

    keep             (offsets, token_ids) as in flp.linear_logprob, of all B·T rows in order: log-probabilities and the
                     entropy are of the distribution that a sampler's top-p or top-k mask leaves. Tokens outside the
                     mask may have any list
    lora             flp.Lora(a, b, scale) on a frozen head, as in flp.linear_logprob
    topk, rank       as in flp.linear_logprob; what they give is in metrics, a value a token: top_ids and top_logprobs
                     (B, T, K), top_rest and rank (B, T)
    reference        a flp.Reference: hidden states and a head, the exact divergence to whose distribution is added,
                     times its coefficient, in the place of what one token estimates of it (beta): four matrix products
                     for both. Of rules of tokens, with operands of one dtype but float16; metrics have it by its
                     kind, and acceptance and agreement

    Returns (loss, metrics) as flp.losses.policy_loss: a float32 scalar, differentiable once in hidden, weight, bias and
    the adapter, and a dict of detached scalars; entropy if it was asked for or weighed; a file's own metrics as means
    of its tokens.
    The gradients are computed here, in three matrix products (frozen head: two), row chunk by row chunk within the
    budget; under torch.no_grad() there are none. The backward pass multiplies them by its upstream gradient, such as a
    loss scale, in float32 and rounds once; of float16 operands they are float32 until then, unless grad_scale has said
    it. A rule of whole sequences (gspo) costs what linear_logprob costs; the log mentions it.
    error:  ValueError or TypeError naming the field, its value and what is accepted; flp.FlpError and its classes;
            RuntimeError in a second backward pass
    thread: safe
    """
    vectors = vectors or {}
    call = Call("flp.policy_loss", hidden, weight, target, bias, several=False,
                instead="torch.autograd, or under torch.func.grad flp.losses.policy_loss of flp.linear_logprob",
                others={"advantage": advantage, "old_logprob": old_logprob, "ref_logprob": ref_logprob, "mask": mask,
                        **{"vectors[%r]" % name: value for name, value in vectors.items()},
                        **_reference.tensors_of(reference)},
                entropy=bool(entropy) or entropy_weight != 0, temperature=temperature, softcap=softcap, scale=scale,
                ignore_index=ignore_index, budget=budget, save=save, old_lse=old_lse, tail=tail,
                tail_report=tail_report, grad_weight_accumulate=grad_weight_accumulate, mixed=mixed, keep=keep,
                lora=lora, topk=topk, rank=rank, asked={"reference": reference})
    if len(call.lead) != 2:
        _check.refuse_shape("hidden", hidden, "(B, T, D)")
    call.settings.detached = entropy_weight == 0
    wishes = _rules.wishes_of(rule, average, clip, beta, kl_kind, entropy_weight, length, total, parameters,
                              ref_logprob is not None)
    batch = _batch_of(target, mask, advantage, old_logprob, ref_logprob, vectors, call.settings.ignore_index)
    _rules.needed(wishes, batch._asdict(), batch.vectors)
    call.operands["target"] = batch.target.reshape(-1)
    grad_scale = _scale_of(grad_scale, call.settings)
    beside = _reference.beside_of("flp.policy_loss", call, reference, temperature, wishes)
    if wishes.program is None:
        _log_pooled(wishes.rule, call)
        return _over_logprob(call, wishes, batch)
    return _stepped(call, wishes, batch, grad_scale, beside)


# ---- as a loss program: the gradients are made at once ----

def _stepped(call, wishes, batch, grad_scale, beside):
    def rows(values):
        return None if values is None else values.expand(batch.target.shape).reshape(-1).contiguous()

    weights, of_entropy = _rules.row_weights(wishes, batch.mask)
    scale = 1.0 if grad_scale is None else grad_scale
    vectors = {name: rows(values) for name, values in batch.vectors.items()}
    if _rules.SHARE in wishes.program.vectors:
        vectors[_rules.SHARE] = rows(of_entropy * scale)
    loss = Loss(wishes.program, wishes.parameters, rows(batch.old_logprob), rows(batch.ref_logprob),
                     rows(batch.advantage), rows(weights * scale), vectors)
    if beside is None:
        value, made = _hand_out.loss_of(call, loss, grad_scale, "flp.policy_loss")
        policy, others = value.detach(), _top.metrics_of(made.top.tensors(), call.settings, call.lead)
    else:
        value, made, others = beside(loss, grad_scale, rows(batch.mask))
        policy = made.loss.sum() / scale
    metrics = _rules.metrics_of(losses.TORCH, made, made.entropy if call.settings.entropy else None, policy,
                                rows(weights), rows(of_entropy), rows(batch.mask), wishes, loss.old_logprob)
    return value, {**metrics, **others}


# ---- over log-probabilities: rules of whole sequences ----

def _over_logprob(call, wishes, batch):
    logprob, *results = _autograd.run(call)
    entropy = results.pop(0).reshape(call.lead) if call.settings.entropy else None
    loss, metrics = losses.policy_loss(
        wishes.rule, logprob.reshape(call.lead), batch.advantage, old_logprob=batch.old_logprob,
        ref_logprob=batch.ref_logprob, entropy=entropy, mask=batch.mask, clip=wishes.clip, beta=wishes.beta,
        kl_kind=wishes.kl_kind or "k3", entropy_weight=wishes.entropy_weight, length=wishes.length, total=wishes.total)
    return loss, {**metrics, **_top.metrics_of(results, call.settings, call.lead)}


_logged = set()


def _log_pooled(rule, call):
    """Logs once per rule and mode how it runs."""
    mode = _run.mode_of(Operands(*call.operands.values()), call.settings, call.grads)
    if (rule, mode) not in _logged:
        _logged.add((rule, mode))
        _c.log(_c.LOG_INFO, "policy_loss: %s pools the log-probabilities of a sequence, so it is no loss program of "
                            "rows; it runs over linear_logprob, mode %s" % (rule, mode))


# ---- checks ----

def _batch_of(target, mask, advantage, old_logprob, ref_logprob, vectors, ignore_index):
    def numbers(field, value):
        if value is None:
            return None
        _check.float_tensor_of(field, value)
        _check.like(field, value, "target", target)
        return value.detach().float()

    counted = target != ignore_index
    if mask is not None:
        _check.like("mask", mask, "target", target)
        counted = counted & (mask != 0)
    if advantage is not None:
        advantage = losses.advantage_of(advantage, "target", target)
    return Batch(target.masked_fill(~counted, ignore_index), counted.float(), advantage,
                 numbers("old_logprob", old_logprob), numbers("ref_logprob", ref_logprob),
                 {name: numbers("vectors[%r]" % name, value) for name, value in vectors.items()})


def _scale_of(scale, settings):
    """The upstream gradient that is coming, or None where nothing has to know."""
    if isinstance(scale, torch.Tensor):
        if scale.dim() != 0 or not scale.is_floating_point():
            _check.refuse(ValueError, "grad_scale", "%s of shape %s" % (scale.dtype, tuple(scale.shape)),
                          "a number, or a 0-dim floating tensor")
    elif not _check.number_of("grad_scale", scale) > 0:
        _check.refuse(ValueError, "grad_scale", scale, "a number above 0")
    if settings.accumulate is not None:
        return scale.detach() if isinstance(scale, torch.Tensor) else scale
    if isinstance(scale, torch.Tensor) or scale != 1:
        _check.refuse(ValueError, "grad_scale", "given without grad_weight_accumulate",
                      "1, as gradients are multiplied in the backward pass")
    return None

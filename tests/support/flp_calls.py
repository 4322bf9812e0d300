"""Every public function of flp that computes, as flp_cases.py calls it: results by names, what its reference in
flp_exact.py is, and operands that a case may replace."""
import inspect
import math

import torch

import flp
import flp_exact
import flp_exact_pair
from flp_problem import D, V


def linear_logprob(**given):
    """One function's result by names; so do those below."""
    return named(flp.linear_logprob(**given), given)


def named(result, given):
    options = {"entropy": "entropy", "kept_mass": "kept_mass", "top": "topk", "rank": "rank",
               "statistics": "statistics", "reference": "reference"}
    names = ["logprob", *(name for name, option in options.items() if given.get(option))]
    found = dict(zip(names, result if isinstance(result, tuple) else (result,)))
    return opened(found)


def opened(found):
    for part in ("top", "statistics"):
        values = found.pop(part, None)
        if values is not None:
            found.update({part + "." + name: each for name, each in values._asdict().items()})
    return found


def parallel(**given):
    return named(flp.parallel.linear_logprob(**given), given)


def losses_of(function, given):
    result = function(**given)
    names = ["loss", *(name for name, option in (("z_loss", "return_z_loss"), ("entropy",) * 2, ("statistics",) * 2)
                       if given.get(option))]
    return opened(dict(zip(names, result if isinstance(result, tuple) else (result,))))


class Shards(torch.autograd.Function):
    """linear_logprob of shards: partials, their merge, and the backward pass of each, by hand."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, target, options):
        ctx.save_for_backward(hidden, weight, bias, target)
        ctx.options, ctx.kept = options, []
        tail, needs = options.get("tail"), options.get("needs", NEEDS)
        partials = []
        for begin, end in CUTS:
            own = Shards.rows(weight, begin, end), target, Shards.rows(bias, begin, end)
            more = {**Shards.place(begin, end), **taken(flp.linear_logprob_partial, options)}
            found = flp.linear_logprob_partial(hidden, *own, **more)
            partials.append(found if tail is None else found[0])
            assert partials[-1].shape == (len(hidden), 4 + (target.shape[1] if target.dim() == 2 else 0))
            ctx.kept.append(None if tail is None else found[1])
        logprob, entropy, ctx.stats = flp.combine_partials(
            partials, target, vocab_total=V, weight_shard=weight[:CUTS[0][1]], **taken(flp.combine_partials, options))
        ctx.needs = needs
        ctx.set_materialize_grads(False)
        return (logprob, entropy) if options.get("entropy") else logprob

    @staticmethod
    def rows(values, begin, end):
        """A shard's, whose rows behind the real ones are poison."""
        return torch.cat([values[begin:end], torch.full_like(values[:PADDING], math.nan)])

    @staticmethod
    def place(begin, end):
        return {"vocab_offset": begin, "vocab_valid": end - begin, "vocab_total": V}

    @staticmethod
    def backward(ctx, grad_logprob, grad_entropy=None):
        hidden, weight, bias, target = ctx.saved_tensors
        options = taken(flp.linear_logprob_backward, ctx.options)
        buffer, made = options.pop("grad_weight_accumulate", None), []
        for (begin, end), kept in zip(CUTS, ctx.kept):
            own = {"grad_weight_accumulate": None if buffer is None else buffer.new_ones(end - begin + PADDING, D),
                   "saved": kept, "needs": ctx.needs}
            of_hidden, *of_rows = flp.linear_logprob_backward(
                hidden, Shards.rows(weight, begin, end), target, ctx.stats, grad_logprob, grad_entropy,
                Shards.rows(bias, begin, end), **Shards.place(begin, end), **{**options, **own})
            if buffer is not None:
                of_rows[0] = own["grad_weight_accumulate"] - 1
                buffer[begin:end] += of_rows[0][:end - begin]
            assert not any(values[end - begin:].any() for values in of_rows), "padding has a gradient"
            made.append((of_hidden, *(values[:end - begin] for values in of_rows)))
        of_hidden, of_weight, of_bias = zip(*made)
        return sum(of_hidden), None if buffer is not None else torch.cat(of_weight), torch.cat(of_bias), None, None


NEEDS, CUTS, PADDING = ("hidden", "weight", "bias"), ((0, 120), (120, 248), (248, V)), 3


def taken(function, options):
    """The options that a function takes."""
    return {name: value for name, value in options.items() if name in inspect.signature(function).parameters}


def shards(hidden, weight, target, bias, **options):
    return named(Shards.apply(hidden, weight, bias, target, options), options)


def loss_and_metrics(result):
    loss, metrics = result
    return {"loss": loss, **{BEST.get(name, "metric " + name): value for name, value in metrics.items()}}


BEST = {"top_ids": "top.ids", "top_logprobs": "top.logprobs", "top_rest": "top.rest", "rank": "rank"}


def policy_loss(reference=None, **given):
    """reference: fields of a flp.Reference, by name, or None"""
    beside = {} if reference is None else {"reference": flp.Reference(**reference)}
    return loss_and_metrics(flp.policy_loss(**given, **beside))


def selective_log_softmax(**given):
    if given.get("inplace_backward"):
        given["logits"] = given["logits"] * 1  # a leaf stays as it is
    return named(flp.selective_log_softmax(**given), given)


def score(**given):
    found = opened(flp.score(**given)._asdict())
    left_out = ("counts", "cu_seqlens")
    return {name: values for name, values in found.items() if values is not None and name not in left_out}


def logprob_head(model, input_ids, **given):
    with flp.logprob_head(model, **given):
        out = model(input_ids)
    return {"logprob": out.logprobs, **({"entropy": out.entropy} if given.get("entropy") else {})}


def cross_entropy_head(model, input_ids, **given):
    with flp.CrossEntropyHead(model, **given):
        return {"loss": model(input_ids, labels=input_ids).loss}


def divergence(**given):
    if "payload" in given:
        given = {**given, "payload": flp.Payload(*given["payload"]), "teacher_hidden": None, "teacher_weight": None}
    return {name: values for name, values in flp.divergence(**given)._asdict().items() if values is not None}


def divergence_payload(**given):
    return {name: values for name, values in flp.divergence_payload(**given)._asdict().items() if values is not None}


def parallel_divergence(**given):
    return flp.parallel.divergence(**given)._asdict()


# name of the public function: how it is called here, its reference, operands that a case may replace
HEAD = {"hidden": "@hidden", "weight": "@weight", "target": "@target"}
PAIR = {"hidden": "@hidden", "weight": "@weight", "teacher_hidden": "@teacher_hidden",
        "teacher_weight": "@teacher_weight"}
SHARD = {"hidden": "@hidden", "weight_shard": "@weight", "target": "@target"}
PAIR_SHARD = {"hidden": "@hidden", "weight_shard": "@weight", "teacher_hidden": "@teacher_hidden",
              "teacher_weight_shard": "@teacher_weight"}
FUNCTIONS = {
    "linear_logprob": (linear_logprob, flp_exact.linear_logprob, HEAD),
    "parallel.linear_logprob": (parallel, flp_exact.parallel, SHARD),
    "shards": (shards, flp_exact.shards, {**HEAD, "bias": "@bias"}),
    "cross_entropy": (lambda **given: losses_of(flp.cross_entropy, given), flp_exact.cross_entropy, HEAD),
    "parallel.cross_entropy": (lambda **given: losses_of(flp.parallel.cross_entropy, given),
                               flp_exact.parallel_cross_entropy, SHARD),
    "policy_loss": (policy_loss, flp_exact_pair.policy_loss, {**HEAD, "advantage": "@advantage"}),
    "distill_loss": (lambda **given: loss_and_metrics(flp.distill_loss(**given)), flp_exact.distill_loss,
                     {**HEAD, "target": "@targets", "teacher_logprob": "@teacher"}),
    "divergence": (divergence, flp_exact_pair.divergence, PAIR),
    "parallel.divergence": (parallel_divergence, flp_exact_pair.parallel_divergence, PAIR_SHARD),
    "divergence_loss": (lambda **given: loss_and_metrics(flp.divergence_loss(**given)),
                        flp_exact_pair.divergence_loss, PAIR),
    "divergence_payload": (divergence_payload, flp_exact_pair.divergence_payload,
                           {name: value for name, value in PAIR.items() if name != "hidden"}),
    "losses.policy_loss": (lambda **given: loss_and_metrics(flp.losses.policy_loss(**given)),
                           flp_exact.losses_policy_loss, {"logprob": "@logprob", "advantage": "@advantage"}),
    "losses.preference_loss": (lambda **given: loss_and_metrics(flp.losses.preference_loss(**given)),
                               flp_exact.losses_preference_loss, {"logprob": "@sequences"}),
    "losses.kl": (lambda **given: {"kl": flp.losses.kl(**given)}, flp_exact.losses_kl,
                  {"logprob": "@logprob", "ref_logprob": "@ref"}),
    "losses.divergence": (lambda **given: {"divergence": flp.losses.divergence(**given)}, flp_exact.losses_divergence,
                          {"logprob": "@logprobs", "teacher_logprob": "@teacher"}),
    "selective_log_softmax": (selective_log_softmax, flp_exact.selective_log_softmax,
                              {"logits": "@logits", "index": "@target"}),
    "selective_divergence": (lambda **given: flp.selective_divergence(**given)._asdict(),
                             flp_exact_pair.selective_divergence,
                             {"scores": "@logits", "teacher_scores": "@teacher_logits"}),
    "score": (score, flp_exact.score, {"hidden": "@hidden", "weight": "@weight", "tokens": "@tokens"}),
    "sequence_logprob": (lambda **given: dict(zip(("sum", "mean"), flp.sequence_logprob(**given))),
                         flp_exact.sequence_logprob, {"logprob": "@logprob"}),
    "delight": (lambda **given: {"worth": flp.delight(**given)}, flp_exact.delight,
                {"logprob": "@logprob", "advantage": "@advantages"}),
    "gate": (lambda **given: {"kept": flp.gate(**given)}, flp_exact.gate, {"worth": "@worth"}),
    "logprob_head": (logprob_head, flp_exact.logprob_head, {"model": "@model", "input_ids": "@ids"}),
    "CrossEntropyHead": (cross_entropy_head, flp_exact.cross_entropy_head, {"model": "@model", "input_ids": "@ids"}),
}
OF_HEADS = ("linear_logprob", "parallel.linear_logprob", "shards", "score", "logprob_head")
OF_SHARDS = ("linear_logprob_partial", "combine_partials", "linear_logprob_backward")
# What the rows of "shards" give by themselves.
BY_SHARDS = {"hidden", "weight", "weight_shard", "target", "bias", "partials", "stats", "grad_logprob", "grad_entropy",
             "saved", "vocab_offset", "vocab_valid", "vocab_total"}
# What computes no numbers of a row.
OTHERS = {"Divergence", "Lora", "Payload", "PlanInfo", "Reference", "Scores", "Statistics", "Top", "adapters",
          "backend", "check", "clear_plans", "contract", "errors", "explain", "explain_divergence", "install",
          "installed", "library_path", "losses", "memory", "parallel", "phase", "plan_info", "prefix", "set_log",
          "sources_id", "uninstall", "version",
          "losses.DIVERGENCES", "losses.KL", "losses.PREFERENCES", "losses.RULES"}

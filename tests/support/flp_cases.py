"""Every public function of flp that computes, with every option and edge: one list of cases, which a runner puts
through a form of flp (libflp's CPU rung, the torch form, emulated kernels), each beside flp_exact.py in float64.

A case is a row of CASES: a function, options, what is spoiled (EDGES of flp_problem.py), a dtype. An option "@name" is a
tensor of the Problem. missing() says which functions and options stand in no row.
"""
import dataclasses
import inspect

import torch

import flp
import flp_exact
from flp_problem import FILE, V, Case, Problem


# ---- functions ----

def linear_logprob(**given):
    """One function's result by names; so do those below."""
    return named(flp.linear_logprob(**given), given)


def named(result, given):
    names = ["logprob"] + ["entropy"] * bool(given.get("entropy")) + ["kept_mass"] * bool(given.get("kept_mass")) + \
        ["top"] * bool(given.get("topk")) + ["rank"] * bool(given.get("rank")) + ["reference"] * bool(given.get("reference"))
    found = dict(zip(names, result if isinstance(result, tuple) else (result,)))
    return opened(found)


def opened(found):
    top = found.pop("top", None)
    return found if top is None else {**found, **{"top." + name: values for name, values in top._asdict().items()}}


def parallel(**given):
    return named(flp.parallel.linear_logprob(**given), given)


class Shards(torch.autograd.Function):
    """linear_logprob of shards: partials, their merge, and the backward pass of each, by hand."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, target, options):
        ctx.save_for_backward(hidden, weight, bias, target)
        ctx.options, ctx.kept = options, []
        tail, needs = options.get("tail"), options.get("needs", NEEDS)
        partials = []
        for begin, end in CUTS:
            own = weight[begin:end], target, bias[begin:end]
            found = flp.linear_logprob_partial(hidden, *own, **Shards.place(begin, end), **taken(flp.linear_logprob_partial, options))
            partials.append(found if tail is None else found[0])
            ctx.kept.append(None if tail is None else found[1])
        logprob, entropy, ctx.stats = flp.combine_partials(
            partials, target, vocab_total=V, weight_shard=weight[:CUTS[0][1]], **taken(flp.combine_partials, options))
        ctx.needs = needs
        ctx.set_materialize_grads(False)
        return (logprob, entropy) if options.get("entropy") else logprob

    @staticmethod
    def place(begin, end):
        return {"vocab_offset": begin, "vocab_valid": end - begin, "vocab_total": V}

    @staticmethod
    def backward(ctx, grad_logprob, grad_entropy=None):
        hidden, weight, bias, target = ctx.saved_tensors
        options = taken(flp.linear_logprob_backward, ctx.options)
        buffer, made = options.pop("grad_weight_accumulate", None), []
        for (begin, end), kept in zip(CUTS, ctx.kept):
            own = {"grad_weight_accumulate": buffer if buffer is None else buffer[begin:end], "saved": kept, "needs": ctx.needs}
            made.append(flp.linear_logprob_backward(hidden, weight[begin:end], target, ctx.stats, grad_logprob, grad_entropy,
                                                    bias[begin:end], **Shards.place(begin, end), **{**options, **own}))
        of_hidden, of_weight, of_bias = zip(*made)
        return sum(of_hidden), None if buffer is not None else torch.cat(of_weight), torch.cat(of_bias), None, None


NEEDS, CUTS = ("hidden", "weight", "bias"), ((0, 200), (200, V))


def taken(function, options):
    """The options that a function takes."""
    return {name: value for name, value in options.items() if name in inspect.signature(function).parameters}


def shards(hidden, weight, target, bias, **options):
    return named(Shards.apply(hidden, weight, bias, target, options), options)


def loss_and_metrics(result):
    loss, metrics = result
    return {"loss": loss, **{"metric " + name: value for name, value in metrics.items()}}


def cross_entropy(**given):
    result = flp.cross_entropy(**given)
    return dict(zip(("loss", "z_loss"), result if isinstance(result, tuple) else (result,)))


def selective_log_softmax(**given):
    if given.get("inplace_backward"):
        given["logits"] = given["logits"] * 1  # a leaf stays as it is
    return named(flp.selective_log_softmax(**given), given)


def score(**given):
    found = opened(flp.score(**given)._asdict())
    return {name: values for name, values in found.items() if values is not None and name not in ("counts", "cu_seqlens")}


def logprob_head(model, input_ids, **given):
    with flp.logprob_head(model, **given):
        out = model(input_ids)
    return {"logprob": out.logprobs, **({"entropy": out.entropy} if given.get("entropy") else {})}


def cross_entropy_head(model, input_ids, **given):
    with flp.CrossEntropyHead(model, **given):
        return {"loss": model(input_ids, labels=input_ids).loss}


# name of the public function: how it is called here, its reference, operands that a case may replace
HEAD = {"hidden": "@hidden", "weight": "@weight", "target": "@target"}
FUNCTIONS = {
    "linear_logprob": (linear_logprob, flp_exact.linear_logprob, HEAD),
    "parallel.linear_logprob": (parallel, flp_exact.parallel,
                                {"hidden": "@hidden", "weight_shard": "@weight", "target": "@target"}),
    "shards": (shards, flp_exact.shards, {**HEAD, "bias": "@bias"}),
    "cross_entropy": (cross_entropy, flp_exact.cross_entropy, HEAD),
    "policy_loss": (lambda **given: loss_and_metrics(flp.policy_loss(**given)), flp_exact.policy_loss,
                    {**HEAD, "advantage": "@advantage"}),
    "distill_loss": (lambda **given: loss_and_metrics(flp.distill_loss(**given)), flp_exact.distill_loss,
                     {**HEAD, "target": "@targets", "teacher_logprob": "@teacher"}),
    "losses.policy_loss": (lambda **given: loss_and_metrics(flp.losses.policy_loss(**given)), flp_exact.losses_policy_loss,
                           {"logprob": "@logprob", "advantage": "@advantage"}),
    "losses.kl": (lambda **given: {"kl": flp.losses.kl(**given)}, flp_exact.losses_kl,
                  {"logprob": "@logprob", "ref_logprob": "@ref"}),
    "losses.divergence": (lambda **given: {"divergence": flp.losses.divergence(**given)}, flp_exact.losses_divergence,
                          {"logprob": "@logprobs", "teacher_logprob": "@teacher"}),
    "selective_log_softmax": (selective_log_softmax, flp_exact.selective_log_softmax, {"logits": "@logits", "index": "@target"}),
    "score": (score, flp_exact.score, {"hidden": "@hidden", "weight": "@weight", "tokens": "@tokens"}),
    "sequence_logprob": (lambda **given: dict(zip(("sum", "mean"), flp.sequence_logprob(**given))), flp_exact.sequence_logprob,
                         {"logprob": "@logprob"}),
    "delight": (lambda **given: {"worth": flp.delight(**given)}, flp_exact.delight,
                {"logprob": "@logprob", "advantage": "@advantages"}),
    "gate": (lambda **given: {"kept": flp.gate(**given)}, flp_exact.gate, {"worth": "@worth"}),
    "logprob_head": (logprob_head, flp_exact.logprob_head, {"model": "@model", "input_ids": "@ids"}),
    "CrossEntropyHead": (cross_entropy_head, flp_exact.cross_entropy_head, {"model": "@model", "input_ids": "@ids"}),
}
OF_SHARDS = ("linear_logprob_partial", "combine_partials", "linear_logprob_backward")
# What the rows of "shards" give by themselves.
BY_SHARDS = {"hidden", "weight", "weight_shard", "target", "bias", "partials", "stats", "grad_logprob", "grad_entropy", "saved",
             "vocab_offset", "vocab_valid", "vocab_total"}
# What computes no numbers of a row.
OTHERS = {"Lora", "PlanInfo", "Scores", "Top", "adapters", "check", "clear_plans", "errors", "explain", "install", "installed",
          "library_path", "losses", "memory", "parallel", "phase", "plan_info", "prefix", "set_log", "sources_id", "uninstall",
          "version", "losses.DIVERGENCES", "losses.KL", "losses.RULES"}


# ---- the list ----

ROW_EDGES = ["nan row", "bad ids", "banned", "few left", "beyond", "all ignored"]
FIELDS = {field.name for field in dataclasses.fields(Case)} - {"function", "options", "edges"}


def case(function, *edges, **given):
    """One row; given: fields of Case, all else are options of the function."""
    return Case(function, {name: value for name, value in given.items() if name not in FIELDS}, edges,
                **{name: value for name, value in given.items() if name in FIELDS})


def edged(function, edges, **given):
    """A row for each edge, and one without."""
    return [case(function, **given), *(case(function, edge, **given) for edge in edges)]


BIAS, TEMPERATURES = {"bias": "@bias"}, {"temperature": "@temperatures"}
TAIL = {"tail": 2.0**-9, "tail_report": "@report", "near": 1e-2}
BUFFER = {"grad_weight_accumulate": "@buffer"}
MIXED = {"dtype": torch.bfloat16, "weight_dtype": torch.float32}
WHOLE = {**BIAS, "temperature": 0.7, "softcap": 9.0, "scale": 1.2}
HEADS = [  # options that every function over a head takes
    {**WHOLE}, {**BIAS, "dtype": torch.bfloat16}, {"dtype": torch.float16}, TEMPERATURES, {"budget": 2**25}, BUFFER]
LINEAR = [
    *edged("linear_logprob", ROW_EDGES, **BIAS, entropy=True),
    *[case("linear_logprob", **options) for options in HEADS],
    case("linear_logprob", "bad temperature", **TEMPERATURES, entropy=True),
    case("linear_logprob", "ignored as 5", ignore_index=5),
    case("linear_logprob", entropy="detached", frozen=("weight",)), case("linear_logprob", save=False),
    case("linear_logprob", chunk_rows=5, entropy=True), case("linear_logprob", rows="@rows", entropy=True),
    case("linear_logprob", old_lse="@old_lse"), case("linear_logprob", few=0), case("linear_logprob", few=1, entropy=True),
    *edged("linear_logprob", ["nan row", "bad ids", "bad list"], keep="@keep", kept_mass=True, entropy=True),
    case("linear_logprob", **TAIL),
    *edged("linear_logprob", ROW_EDGES, **BIAS, topk=5, rank=True),
    case("linear_logprob", mixed="round", **MIXED), case("linear_logprob", mixed="split", **MIXED),
    *edged("linear_logprob", ["nan row", "bad ids"], lora="@lora", reference=True, frozen=("weight",)),
    *edged("linear_logprob", ["nan row", "bad ids", "banned"], **BIAS, target="@targets", entropy=True),
]
LOSSES = [
    *edged("cross_entropy", [*ROW_EDGES, "weight 0", "weight 0 of a bad id"], **BIAS, row_weight="@row_weight"),
    *[case("cross_entropy", **options) for options in HEADS],
    case("cross_entropy", label_smoothing=0.1, z_loss=1e-3, return_z_loss=True, **WHOLE),
    *[case("cross_entropy", reduction=reduction, row_weight="@row_weight") for reduction in ("none", "sum")],
    case("cross_entropy", total="@total"), case("cross_entropy", "ignored as 5", ignore_index=5),
    case("cross_entropy", grad_scale=0.25, **BUFFER), case("cross_entropy", "nan row", z_loss=1e-3, **BUFFER),
    case("cross_entropy", few=0), case("cross_entropy", few=1), case("cross_entropy", few=0, **BUFFER),
]
POLICY = {"old_logprob": "@old", "ref_logprob": "@ref", "beta": 0.1, **BIAS}
POLICY_EDGES = ["nan row", "bad ids", "beyond", "all ignored", "all masked", "masked nan", "far down", "advantage 0"]
RULES = ["reinforce", "ppo", "grpo", "dapo", "dr_grpo", "cispo", "gspo"]
POLICIES = [
    *edged("policy_loss", POLICY_EDGES, rule="grpo", mask="@mask", entropy_weight=0.01, **POLICY),
    *[case("policy_loss", rule=rule, length=8.0 if rule == "dr_grpo" else None, **POLICY) for rule in RULES],
    case("policy_loss", rule="nll", advantage=None),
    *[case("policy_loss", rule="ppo", **options) for options in HEADS],
    *[case("policy_loss", rule="grpo", kl_kind=kind, entropy=True, **POLICY) for kind in ("k1", "k2")],
    case("policy_loss", rule="ppo", clip=(0.1, 0.3), total="@total", old_lse="@old_lse", save=False, **POLICY),
    case("policy_loss", rule="dapo", grad_scale=0.25, **BUFFER, **POLICY), case("policy_loss", rule="grpo", few=0, **POLICY),
    case("policy_loss", "ignored as 5", rule="ppo", ignore_index=5, **POLICY),
    case("policy_loss", rule="ppo", **TAIL, **POLICY),
    *[case("policy_loss", rule=FILE, average=average, length=8.0 if average == "length" else None, parameters={"share": 0.5},
           vectors={"worth": "@worth"}) for average in ("tokens", "sequences", "length")],
    case("policy_loss", rule="ppo", mixed="round", old_logprob="@old", **MIXED),
]
PLAIN = {"old_logprob": "@old", "ref_logprob": "@ref", "beta": 0.1, "mask": "@mask"}
FORMULAS = [
    *[row for rule in RULES for row in edged("losses.policy_loss", ["masked nan", "far", "far down", "far reference",
                                                                    "advantage 0", "all masked"],
                                             rule=rule, **PLAIN, **({"length": 8.0} if rule == "dr_grpo" else {}))],
    case("losses.policy_loss", rule="ppo", entropy="@entropies", entropy_weight=0.01, clip=(0.1, 0.3), total="@total",
         kl_kind="k2", **PLAIN),
    *[case("losses.kl", kind=kind) for kind in ("k1", "k2", "k3")],
    *[row for kind in ("forward_kl", "reverse_kl", "jsd")
      for row in edged("losses.divergence", ["no share", "nan teacher"], kind=kind)],
    case("losses.divergence", kind="jsd", rest_min=1e-4, rest_weight=0.5, mix=0.3, counted=None),
]
DISTILL_EDGES = ["nan row", "bad ids", "all ignored", "weight 0", "weight 0 of a bad id", "no share", "nan teacher"]
DISTILLED = [
    *[row for loss in ("forward_kl", "reverse_kl", "jsd")
      for row in edged("distill_loss", DISTILL_EDGES, loss=loss, row_weight="@row_weight", **BIAS)],
    *[case("distill_loss", **options) for options in HEADS],
    case("distill_loss", mask="@mask", total="@total", entropy=True), case("distill_loss", grad_scale=0.25, **BUFFER),
    case("distill_loss", parameters={"rest_weight": 0.5}, vectors={}), case("distill_loss", "ignored as 5", ignore_index=5),
    case("distill_loss", few=0), case("distill_loss", loss="reverse_kl+entropy", parameters={"entropy_weight": 0.1}),
]
SELECTED = [
    *edged("selective_log_softmax", ["nan score", "bad ids", "all ignored"], ignore_index=-100, entropy=True),
    case("selective_log_softmax", temperature=0.7, inplace_backward=True, ignore_index=-100),
    case("selective_log_softmax", index="@targets", ignore_index=-100, out_dtype=torch.float32),
]
SCORED = [
    *edged("score", ["nan row", "bad ids", "banned"], **BIAS, prompt_lengths="@prompts", lengths="@lengths", entropy=True),
    case("score", cu_seqlens="@cu_seqlens", prompt_lengths="@packed_prompts", mask="@mask", **WHOLE),
    case("score", attention_mask="@exists", temperature="@temperatures"), case("score", shifted=True, mask="@mask"),
    case("score", topk=5, rank=True, save=False, budget=2**25), case("score", **TAIL, **BUFFER),
    case("score", "ignored as 5", ignore_index=5),
    *edged("sequence_logprob", ["masked nan", "all masked"], mask="@mask"),
    case("sequence_logprob", cu_seqlens="@cu_seqlens"),
    case("delight"), *edged("gate", ["nan worth", "all masked"], fraction=0.4, mask="@mask"), case("gate", price=0.2),
    case("gate", price=0.2, temperature=1e-9, seed=7),
]
# One process: what takes more of them has its default here, and cases of its own in flp_parallel_cases.py.
PARALLEL = {"bias_shard": "@bias", "group": None, "vocab_offset": 0, "vocab_valid": V, "vocab_total": V}
SHARDED = [
    *edged("parallel.linear_logprob", ["nan row", "bad ids", "beyond"], entropy=True, **PARALLEL),
    case("parallel.linear_logprob", temperature=0.7, softcap=9.0, scale=1.2, merge="gather", budget=2**25, save=False, **PARALLEL),
    case("parallel.linear_logprob", rows="@rows", reduce_grad_hidden=True, reduce_dtype=torch.float32, **PARALLEL),
    case("parallel.linear_logprob", **TAIL, sequence_parallel=False, gather=None, **BUFFER),
    case("parallel.linear_logprob", keep="@keep"), case("parallel.linear_logprob", topk=5),
    case("parallel.linear_logprob", "ignored as 5", ignore_index=5),
    case("parallel.linear_logprob", mixed="round", **MIXED), case("parallel.linear_logprob", lora="@lora", frozen=("weight",)),
    *edged("shards", ["nan row", "bad ids", "beyond"], entropy=True),
    case("shards", temperature=0.7, softcap=9.0, scale=1.2, budget=2**25), case("shards", rows="@rows", needs=NEEDS),
    case("shards", keep="@keep"), case("shards", **TAIL), case("shards", **BUFFER),
    case("shards", "ignored as 5", ignore_index=5),
]
MODELS = [
    case("logprob_head", entropy=True, budget=2**25, chunk_rows=5), case("logprob_head", temperature="@temperature"),
    case("logprob_head", **TAIL, mixed=None),
    case("logprob_head", eager=True, reduce_fp32=True, verify=False, ignore_index=-100),
    case("CrossEntropyHead", label_smoothing=0.1, z_loss=1e-3, budget=2**25), case("CrossEntropyHead", verify=False, ignore_index=-100),
]
CASES = [*LINEAR, *LOSSES, *POLICIES, *FORMULAS, *DISTILLED, *SELECTED, *SCORED, *SHARDED, *MODELS]


# ---- what stands in no row ----

def public():
    """{name: function} of all that flp's documents name."""
    named_ones = {name: getattr(flp, name) for name in flp.__all__}
    named_ones.update({f"losses.{name}": getattr(flp.losses, name) for name in flp.losses.__all__})
    named_ones["parallel.linear_logprob"] = flp.parallel.linear_logprob
    return named_ones


def missing():
    """Functions in no row, and options of a function that no row of it gives."""
    given = {name: set(FUNCTIONS[name][2]) for name in FUNCTIONS}
    for row in CASES:
        given[row.function] |= set(row.options)
    for name in OF_SHARDS:
        given[name] = given["shards"] | BY_SHARDS
    found = []
    for name, function in public().items():
        if name in OTHERS:
            continue
        if name not in given:
            found.append(name)
            continue
        found += [f"{name}: {option}" for option in inspect.signature(function).parameters if option not in given[name]]
    return found


# ---- one row, compared ----

def computed(row, wide):
    """({output: tensor}, {leaf or buffer: gradient}, rows that the forward pass counted, or None) of a row."""
    problem = Problem(row, wide)
    call, exact, operands = FUNCTIONS[row.function]
    given = problem.given({**operands, **row.options})
    found = dict((exact if wide else call)(**given))
    count = found.pop("bad", None)
    count = count if wide else counted()
    draw = torch.Generator().manual_seed(9)
    total = 0
    for name in sorted(found):
        upstream = row.options.get("grad_scale", 1.0) if found[name].numel() == 1 else torch.randn(found[name].shape, generator=draw)
        if found[name].requires_grad:
            total = total + (found[name] * upstream).sum()
    if isinstance(total, torch.Tensor):
        total.backward()
        counted()
    gradients = {name: leaf.grad for name, leaf in problem.leaves.items()}
    if "grad_weight_accumulate" in row.options:
        added = gradients.pop("weight")
        gradients["buffer"] = problem.buffer
        if wide:
            gradients["buffer"] = problem.buffer + (0 if added is None else added)
        else:
            assert added is None, "weight.grad was set beside the buffer"
    return found, gradients, count


def counted():
    try:
        flp.check()
    except flp.errors.DataError as error:
        return int(str(error).split()[0])
    return 0


def differences(row):
    """What a row's results differ in from float64; empty if they agree."""
    found, gradients, count = computed(row, wide=False)
    wanted, exact, bad = computed(row, wide=True)
    wrong = [] if bad is None or bad == count else [f"{count} rows are counted, {bad} are bad"]
    if found.keys() != wanted.keys():
        return [f"outputs are {sorted(found)}, not {sorted(wanted)}"]
    for name in found:
        wrong += differs(name, found[name], wanted[name], row.allowed())
    for name in gradients:
        wrong += differs("the gradient of " + name, gradients[name], exact[name], row.allowed())
    return wrong


def differs(name, got, want, allowed):
    if got is None or want is None:
        some = got if want is None else want
        return [] if some is None or bool((some == 0).all()) else [f"{name}: {'none' if got is None else 'one'} is there"]
    got, want = got.detach().double(), want.detach().to(got.dtype).double()  # beyond a dtype there is infinity
    if got.shape != want.shape:
        return [f"{name} has the shape {tuple(got.shape)}, not {tuple(want.shape)}"]
    if got.numel() == 0:
        return []
    same = (got == want) | (got.isnan() & want.isnan()) | (got.isnan() & want.isinf())  # infinities that meet
    size = want[want.isfinite()].abs().max().item() if want.isfinite().any() else 0
    apart = ~same & ~((got - want).abs() <= allowed * max(size, 1e-3) * torch.ones_like(want))
    if not apart.any():
        return []
    at = apart.nonzero()[0].tolist()
    return [f"{name}{at} is {got[tuple(at)]:g}, not {want[tuple(at)]:g}; {int(apart.sum())} of {got.numel()}, allowed "
            f"{allowed * size:g}"]

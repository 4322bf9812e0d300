"""flp.logprob_head on stand-in models: values and gradients against materialised scores, memory, what it puts back."""
import contextlib
import copy
import functools
import logging
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import flp
from flp._library import _plans
from flp._passes import _counts
from flp._tensors import _check
from flp.heads import _chunks
from flp_reference import relative
from flp_standin_lm import IDS, Adapted, SavedCopies, TinyLM, Wrapper, capped, next_logprobs

MASK = torch.ones_like(IDS)
MASK[0, :4] = MASK[2, 8:] = 0
TOLERANCE = 5e-6  # float32 scores of order 1
paths = pytest.mark.parametrize("eager", [False, True], ids=["libflp", "eager"])


MODELS = {
    "plain": {},
    "bias": {"bias": True},
    "tied": {"tied": True},
    "gemma": {"after": functools.partial(capped, 1.5), "final_logit_softcapping": 1.5},
    "cohere": {"after": lambda scores: scores * 0.25, "logit_scale": 0.25},
    "granite": {"after": lambda scores: scores / 8.0, "logits_scaling": 8.0},
    "both": {"bias": True, "after": lambda scores: capped(2.0, scores * 3), "lm_head_multiplier": 3,
             "logits_soft_cap": 2.0},
}


def materialised(model, targets, temperature=1.0, **arguments):
    """logprob and entropy (B,T) of targets from a float64 copy's own scores, and the copy, which gradients reach."""
    wide = copy.deepcopy(model).double()
    logp = torch.log_softmax(wide(**arguments).logits / temperature, -1)
    chosen = logp.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    work = targets != -100
    return chosen * work, -(logp.exp() * logp).sum(-1) * work, wide


def shifted(labels):
    return nn.functional.pad(labels[:, 1:], (0, 1), value=-100)


# ---- values and gradients ----

@paths
@pytest.mark.parametrize("name", MODELS)
def test_it_gives_what_the_models_own_scores_give(name, eager):
    model = TinyLM(**MODELS[name])
    logprob, entropy, wide = materialised(model, shifted(IDS), 0.7, input_ids=IDS)
    with flp.logprob_head(model, entropy=True, temperature=0.7, eager=eager, chunk_rows=8):
        for _ in range(2):  # the first call shows the model a probe, the second nothing
            out = model(input_ids=IDS)
            assert out.logprobs.shape == out.entropy.shape == (3, 10) and out.output.logits is None
            assert (out.logprobs - logprob[:, :-1]).abs().max() < TOLERANCE
            assert (out.entropy - entropy[:, :-1]).abs().max() < TOLERANCE
    (out.logprobs.square().sum() + 0.3 * out.entropy.sum()).backward()
    (logprob[:, :-1].square().sum() + 0.3 * entropy[:, :-1].sum()).backward()
    for (name, got), want in zip(model.named_parameters(), wide.parameters()):
        assert relative(got.grad, want.grad) < 1e-5, name


@paths
def test_padding_is_left_out_unless_labels_differ(eager):
    model = TinyLM()
    want, _, _ = materialised(model, shifted(IDS), input_ids=IDS)
    want = want[:, :-1]
    with flp.logprob_head(model, eager=eager), torch.no_grad():
        padded = model(input_ids=IDS, attention_mask=MASK).logprobs
        labelled = model(IDS, MASK, IDS.masked_fill(MASK == 0, -100)).logprobs
    neighbours = (MASK[:, 1:] * MASK[:, :-1]).bool()
    assert torch.equal(padded != 0, neighbours)
    assert torch.allclose(padded[neighbours].double(), want[neighbours], atol=TOLERANCE)
    assert torch.equal(labelled != 0, MASK[:, 1:].bool())


def test_targets_are_scored_where_they_stand():
    model, targets = TinyLM(), torch.randint(0, 257, (3, 11))
    targets[1, 3] = -100
    want, _, _ = materialised(model, targets, input_ids=IDS)
    with flp.logprob_head(model), torch.no_grad():
        got = model(input_ids=IDS, targets=targets).logprobs
        kept = model(input_ids=IDS, targets=targets[:, [2, 5]], logits_to_keep=torch.tensor([2, 5])).logprobs
    assert got.shape == (3, 11) and (got - want).abs().max() < TOLERANCE and got[1, 3] == 0
    assert torch.equal(kept, got[:, [2, 5]])


def test_several_targets_a_position():
    model, targets = TinyLM(), torch.randint(0, 257, (3, 11, 4))
    targets[1, 3, 1] = -100
    with flp.logprob_head(model, entropy=True):
        out = model(input_ids=IDS, targets=targets)
    with flp.logprob_head(model), torch.no_grad():
        for k in range(4):
            one = model(input_ids=IDS, targets=targets[..., k].contiguous()).logprobs
            assert (out.logprobs[..., k] - one).abs().max() < TOLERANCE
    assert out.logprobs.shape == (3, 11, 4) and out.entropy.shape == (3, 11)
    with flp.logprob_head(model, eager=True), pytest.raises(ValueError, match="target is of shape"):
        model(input_ids=IDS, targets=targets)


def test_the_last_positions_can_be_kept():
    model = TinyLM()
    with flp.logprob_head(model), torch.no_grad():
        whole, last = model(input_ids=IDS).logprobs, model(input_ids=IDS, logits_to_keep=4).logprobs
    assert torch.equal(last, whole[:, -3:])


@paths
def test_a_frozen_head_gets_no_gradient_and_the_trunk_does(eager):
    model = TinyLM()
    model.lm_head.requires_grad_(False)
    _, _, wide = materialised(model, shifted(IDS), input_ids=IDS)
    with flp.logprob_head(model, eager=eager):
        model(input_ids=IDS).logprobs.mean().backward()
    materialised(wide, shifted(IDS), input_ids=IDS)
    assert model.lm_head.weight.grad is None and model.mix.weight.grad.abs().sum() > 0


def test_old_reference_and_current_policy():
    """Around one model whose adapter can be switched off, as a GRPO step has it."""
    model = Adapted(TinyLM())
    with flp.logprob_head(model):
        with torch.no_grad():
            old = model(input_ids=IDS, attention_mask=MASK).logprobs
            before = model.base_model.mix
            model.base_model.mix = nn.Linear(16, 16)
            reference = model(input_ids=IDS, attention_mask=MASK).logprobs
            model.base_model.mix = before
        current = model(input_ids=IDS, attention_mask=MASK).logprobs
    assert not old.requires_grad and not reference.requires_grad and current.requires_grad
    assert torch.equal(old, current) and not torch.equal(old, reference)


def test_scores_follow_the_autocast_inside_the_model():
    """As accelerate's mixed precision has it: the model's forward is replaced by one that enters autocast."""
    model = TinyLM()
    own = model.forward

    def forward(*arguments, **keywords):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return own(*arguments, **keywords)

    model.forward = forward
    with flp.logprob_head(model, eager=True), torch.no_grad():
        got = model(input_ids=IDS).logprobs
    assert model.forward is forward
    logits = model(input_ids=IDS).logits
    assert logits.dtype is torch.bfloat16
    assert (got - next_logprobs(logits)).abs().max() < 1e-6


def test_reduction_in_the_operands_dtype_costs_digits():
    model = TinyLM().bfloat16()
    errors = {}
    want = next_logprobs(model(input_ids=IDS).logits)
    for reduce_fp32 in (True, False):
        with flp.logprob_head(model, eager=True, reduce_fp32=reduce_fp32), torch.no_grad():
            out = model(input_ids=IDS).logprobs
        assert out.dtype is torch.float32
        errors[reduce_fp32] = (out - want).abs().max()
    assert errors[True] < 1e-6 and 1e-3 < errors[False] < 0.1


@paths
def test_no_tokens_give_no_values(eager):
    model = TinyLM()
    with flp.logprob_head(model, entropy=True, eager=eager), torch.no_grad():
        out = model(input_ids=IDS[:0])
    assert out.logprobs.shape == out.entropy.shape == (0, 10)


def test_ids_outside_the_vocabulary_are_nan_where_they_stand():
    hidden, weight = torch.randn(4, 8), torch.randn(31, 8)
    got, entropy = _chunks.linear_logprob(hidden, weight, torch.tensor([0, 31, -1, -100]), entropy=True)
    assert torch.isnan(got).tolist() == torch.isnan(entropy).tolist() == [False, True, True, False]
    assert got[0] < 0 and got[3] == entropy[3] == 0


def test_temperatures_that_are_not_above_0():
    hidden, weight = torch.randn(4, 8), torch.randn(31, 8, requires_grad=True)
    target, rows = torch.zeros(4, dtype=torch.long), torch.tensor([1.0, 0.0, -1.0, float("inf")])
    got = _chunks.linear_logprob(hidden, weight, target, temperature=rows)
    assert torch.isfinite(torch.autograd.grad(got[0], weight)[0]).all()
    assert torch.isnan(got).tolist() == torch.isnan(flp.linear_logprob(hidden, weight, target, temperature=rows)).tolist()


def test_a_score_of_minus_infinity_has_no_part_in_the_entropy():
    hidden, weight, bias = torch.randn(3, 8, requires_grad=True), torch.randn(31, 8), torch.zeros(31)
    bias[7] = -float("inf")
    _, entropy = _chunks.linear_logprob(hidden, weight, torch.zeros(3, dtype=torch.long), bias, entropy=True)
    kept = [i for i in range(31) if i != 7]
    logp = torch.log_softmax(hidden.double() @ weight[kept].double().t(), -1)
    want = -(logp.exp() * logp).sum(-1)
    got, = torch.autograd.grad(entropy.sum(), hidden)
    assert torch.allclose(entropy.double(), want, atol=TOLERANCE)
    assert relative(got, torch.autograd.grad(want.sum(), hidden)[0]) < 1e-5


def test_a_model_is_verified_once(monkeypatch):
    shown = []
    model = TinyLM(after=lambda scores: shown.append(tuple(scores.shape)) or scores)
    for _ in range(2):
        with flp.logprob_head(model), torch.no_grad():
            model(input_ids=IDS)
    assert shown == [(1, 1, 257), (3, 11, 0)]
    model.config.logit_scale = 2.0
    with flp.logprob_head(model), pytest.raises(flp.UnsupportedError):
        model(input_ids=IDS)
    alive = weakref.ref(model)
    del model
    assert alive() is None


# ---- memory ----

class Sizes(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        results = function(*arguments, **(keywords or {}))
        made = [value for value in tree_flatten(results)[0] if isinstance(value, torch.Tensor)]
        self.largest = max([self.largest, *(value.numel() * value.element_size() for value in made)])
        return results


@contextlib.contextmanager
def largest_tensor():
    """Yields a function -> bytes of the largest tensor that any operation made meanwhile, backward included."""
    with Sizes() as sizes:
        yield lambda: sizes.largest


@contextlib.contextmanager
def saved_sizes():
    """Yields the list of bytes of tensors saved for backward."""
    sizes = []

    def pack(tensor):
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes


def live_bytes(step):
    """Runs a step on the CPU -> the most bytes that it had allocated at once."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns() if hasattr(event, "start_ns") else event.start_us())
    alive = most = 0
    for event in events:
        alive += event.nbytes()
        most = max(most, alive)
    return most


@paths
def test_an_objective_of_sequences_stays_bounded(eager):
    """gspo pools whole sequences between forward and backward: still no tensor beyond a chunk, nor beyond the weight."""
    vocab, rows = 4099, 16
    ids = torch.randint(0, vocab, (4, 129))
    model, advantage = TinyLM(vocab, hidden=8), torch.tensor([1.0, -1.0, 0.5, -0.5])
    # libflp's workspace of a pass is the chunk; the weight's gradient is as large as the weight.
    budget = None if eager else 4 << 20
    most = max(model.lm_head.weight.numel() * 4, rows * vocab * 4 if eager else budget)

    def step():
        out = model(input_ids=ids)
        loss, _ = flp.losses.policy_loss("gspo", out.logprobs, advantage, old_logprob=out.logprobs.detach() - 1e-4)
        (loss - 0.01 * out.entropy.mean()).backward()

    with flp.logprob_head(model, eager=eager, chunk_rows=rows if eager else None, budget=budget, entropy=True):
        with saved_sizes() as saved:
            step()
        with largest_tensor() as largest:
            step()
    assert model.mix.weight.grad.abs().sum() > 0
    assert max(saved) <= model.lm_head.weight.numel() * 4 and largest() <= most
    naive = ids.numel() * vocab * 4
    assert naive > 2 * most
    with largest_tensor() as largest:
        model(input_ids=ids)
    assert largest() == naive


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype, reduce_fp32", [(torch.float32, True), (torch.bfloat16, True), (torch.bfloat16, False)])
def test_chunks_hold_the_budget(dtype, reduce_fp32, training, softcap, entropy):
    vocab, budget = 20000, 16 << 20
    hidden, weight = torch.randn(200, 8).to(dtype).requires_grad_(training), torch.randn(vocab, 8).to(dtype)
    target = torch.randint(0, vocab, (200,))

    def step():
        results = _chunks.linear_logprob(hidden, weight, target, entropy=entropy, softcap=softcap, budget=budget,
                                         reduce_fp32=reduce_fp32, temperature=0.7, scale=0.9)
        if training:
            (sum(result.sum() for result in results) if entropy else results.sum()).backward()

    peak = live_bytes(step)
    assert budget / 3 < peak <= budget


def test_rows_of_a_chunk_come_from_v_and_the_budget():
    def rows(vocab, budget, **more):
        settings = _check.Settings(1.0, None, 1.0, -100, budget, False)
        return _chunks.rows_of(settings, vocab, torch.float32, torch.bfloat16, more.get("grads", False))

    assert rows(1000, 1000 * 10 * 7) == 7 and rows(2000, 1000 * 10 * 7) == 3
    assert rows(1000, 1000 * 10 * 7, grads=True) == 5
    assert rows(151936, None) == (256 << 20) // (151936 * 10)
    with pytest.raises(flp.BudgetError, match=r"budget is 9999 bytes \(accepted: at least 10000, one row of 1000 scores\)"):
        rows(1000, 9999)


def test_chunk_rows_reaches_the_plan_of_the_backward_pass():
    hidden, weight, target = torch.randn(9, 16, requires_grad=True), torch.randn(50, 16), torch.randint(0, 50, (9,))
    flp.linear_logprob(hidden, weight, target, chunk_rows=4).sum().backward()
    flp.linear_logprob(hidden.detach(), weight, target, chunk_rows=4)
    flp.explain(hidden, weight, target, chunk_rows=4)
    assert [(plan.key.grads, plan.key.chunk_rows) for plan in _plans.existing()] == [(1, 4), (0, 0)]


# ---- wrappers and copies of a head ----

@pytest.mark.parametrize("wrap", [Wrapper, Adapted, lambda model: Wrapper(Adapted(model)),
                                  lambda model: Wrapper(Wrapper(model))])
def test_wrapped_models_are_seen_through(wrap):
    model = TinyLM()
    with flp.logprob_head(model), torch.no_grad():
        want = model(input_ids=IDS).logprobs
    wrapped = wrap(model)
    with flp.logprob_head(wrapped), torch.no_grad():
        assert torch.equal(wrapped(input_ids=IDS, attention_mask=None).logprobs, want)


def test_a_head_in_modules_to_save_is_the_one_in_force():
    model = TinyLM()
    original, trained = model.lm_head, nn.Linear(16, 257, bias=False)
    want = {}
    for adapted, head in ((True, trained), (False, original)):
        model.lm_head = head
        with flp.logprob_head(model), torch.no_grad():
            want[adapted] = model(input_ids=IDS).logprobs
    model.lm_head = SavedCopies(original, trained)
    with flp.logprob_head(model):
        for adapted in (True, False):
            model.lm_head.adapted = adapted
            got = model(input_ids=IDS).logprobs
            assert torch.equal(got, want[adapted])
            got.sum().backward()
    assert "forward" not in vars(original) and "forward" not in vars(trained)
    assert original.weight.grad is not None and trained.weight.grad is not None


# ---- what it puts back ----

def state_of(model):
    return {name: (type(module), dict(vars(module))) for name, module in model.named_modules()}


def test_everything_is_put_back():
    model = TinyLM()
    before = state_of(model)
    with pytest.raises(KeyError, match="of the block"):
        with flp.logprob_head(model):
            assert type(model) is not TinyLM and type(model.lm_head) is not nn.Linear
            raise KeyError("of the block")
    assert state_of(model) == before
    assert model(input_ids=IDS, labels=IDS).loss > 0 and model(input_ids=IDS).logits.shape == (3, 11, 257)


def test_a_failing_forward_leaves_the_block_usable():
    model = TinyLM()
    with flp.logprob_head(model), torch.no_grad():
        want = model(input_ids=IDS).logprobs
        with pytest.raises(IndexError):
            model(input_ids=IDS + 1000)
        assert torch.equal(model(input_ids=IDS).logprobs, want)


def test_blocks_nest_and_the_inner_one_holds():
    model = TinyLM()
    before = state_of(model)
    with flp.logprob_head(model), torch.no_grad():
        outer = model(input_ids=IDS)
        between = state_of(model)
        with flp.logprob_head(model, entropy=True, temperature=2.0):
            inner = model(input_ids=IDS)
        assert state_of(model) == between
        assert torch.equal(model(input_ids=IDS).logprobs, outer.logprobs)
    assert outer.entropy is None and inner.entropy is not None and not torch.equal(inner.logprobs, outer.logprobs)
    assert state_of(model) == before


def test_a_forward_that_was_replaced_before_is_called_and_put_back():
    model, calls = TinyLM(), []
    own = model.forward

    def counted(*arguments, **keywords):
        calls.append(sorted(keywords))
        return own(*arguments, **keywords)

    model.forward = functools.wraps(own)(counted)
    with flp.logprob_head(model), torch.no_grad():
        model(IDS, attention_mask=MASK)
    assert vars(model)["forward"] is not own and calls == [["attention_mask", "input_ids"]]
    model(IDS)
    assert len(calls) == 2


def test_installing_without_a_block():
    model = TinyLM()
    head = flp.logprob_head(model)
    assert head.install() is head
    with pytest.raises(RuntimeError, match="installed"):
        head.install()
    assert model(input_ids=IDS).logprobs.shape == (3, 10)
    installed = model.forward
    model.forward = lambda **keywords: None
    with pytest.raises(RuntimeError, match="forward of TinyLM was replaced"):
        head.uninstall()
    model.forward = installed
    head.uninstall()
    assert model(input_ids=IDS).logits is not None


@pytest.mark.parametrize("name, options, ran, own", [
    ("logprob_head", {"budget": "64M"}, "eager recompute", {}),
    ("logprob_head", {"eager": True}, "torch chunks", {}),
    ("CrossEntropyHead", {"budget": "64M"}, "eager recompute", {_counts.NOT_ASKED: 1}),  # of scores
])
def test_a_head_says_that_it_runs_and_counts_calls(logged, name, options, ran, own):
    models = TinyLM(), TinyLM(seed=1)
    heads = [getattr(flp, name)(model, **options).install() for model in models]
    for model in models:
        model(IDS, labels=IDS)
    models[0](IDS, **({} if own else {"labels": IDS}))
    assert flp.installed(counts=True) == {name: {"TinyLM": {"flp": {ran: 3 - len(own)}, "own": own}}}
    said = ["installed in TinyLM, budget %s" % options.get("budget", "by default"),
            "TinyLM runs on flp, rung %s, mode %s" % tuple(ran.split())]
    told = [(level, text.partition("; contract: ")[0]) for level, text in logged]
    assert [(level, text) for level, text in told if text.startswith(name + ": ")] == [
        (logging.INFO, "%s: %s" % (name, words)) for words in said for _ in models]
    heads[0].uninstall()
    assert flp.installed(counts=True)[name]["TinyLM"]["flp"] == {ran: 1} and flp.installed() == {}
    heads[1].uninstall()
    assert flp.installed(counts=True) == {}

"""Adapters on stand-in hosts: installing, recognising, removing, and the numbers at each seam against float64."""
import concurrent.futures
import copy
import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import inspect
import logging
import pickle
import sys
import types

import flp_hosts
import pytest
import torch
from flp_reference import DEVICE, doubles, exact, problem, reference, relative

import flp
from flp import adapters
from flp._passes import _counts
from flp.adapters import _seam

CORE = '''
class Scorer:
    """apply is inherited, as that of a torch.autograd.Function is."""


class Child(Scorer):
    pass


Scorer.apply = classmethod(lambda cls, x: ("own", x))


def score(x, scale=1):
    return x * scale
'''


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    """Installs stand-in packages by name; afterwards they are gone, and so is every adapter."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = []

    def make(name, modules=None):
        modules = modules or flp_hosts.SOURCES[name]
        names.append(next(iter(modules)).partition(".")[0])
        flp_hosts.forget_package(names[-1])
        flp_hosts.write_package(tmp_path, modules)

    yield make
    for name in list(flp.installed()):
        flp.uninstall(name)
    for name in names:
        flp_hosts.forget_package(name)


def seam(**changes):
    fields = {"module": "toy.core", "name": "score", "parameters": ("x", "scale"), "source": "",
              "make": lambda host: lambda x, scale=1: ("flp", host(x, scale))}
    return _seam.Seam(**dict(fields, **changes))


@pytest.fixture
def toy(hosts, monkeypatch):
    """A host named toy with toy.core and toy.user, which imports a name of it -> set_seams(*seams)."""
    hosts("toy", {"toy.core": CORE, "toy.user": "from toy.core import score as mine\n"})

    def set_seams(*seams):
        monkeypatch.setitem(sys.modules, "flp.adapters.toy", flp_hosts.module_of(
            HOST=_seam.Host("toy", seams, "toy==1.0")))

    monkeypatch.setattr(adapters, "HOSTS", adapters.HOSTS + ("toy",))
    set_seams(seam())
    return set_seams


def test_install_replaces_every_import_and_uninstall_restores_them(toy):
    core, user = importlib.import_module("toy.core"), importlib.import_module("toy.user")
    own = core.score
    flp.install("toy")
    assert core.score(2, 3) == user.mine(2, 3) == ("flp", 6)
    assert flp.installed() == {"toy": None}
    late = types.ModuleType("late")
    sys.modules["late"] = late
    late.name = core.score
    flp.uninstall("toy")
    del sys.modules["late"]
    assert core.score is user.mine is late.name is own
    assert flp.installed() == {}


def test_an_inherited_attribute_is_inherited_again(toy):
    core = importlib.import_module("toy.core")
    toy(seam(name="Child.apply", parameters=("x",), make=lambda host: staticmethod(lambda x: ("flp", host(x)))))
    flp.install("toy")
    assert core.Child.apply(1) == ("flp", ("own", 1)) and core.Scorer.apply(1) == ("own", 1)
    flp.uninstall("toy")
    assert "apply" not in vars(core.Child) and core.Child.apply(1) == ("own", 1)


def test_installing_again_changes_nothing(toy):
    core = importlib.import_module("toy.core")
    flp.install("toy")
    first = core.score
    flp.install("toy")
    assert core.score is first


def test_uninstall_without_install_does_nothing(toy):
    flp.uninstall("toy")


def source_of(function):
    return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]


@pytest.mark.parametrize("version", ["0.9", "1.0", "2.0.1.dev1", "main"])
def test_any_version_with_the_seams_that_were_tested(toy, monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    toy(seam(source="0" * 16 + " " + source_of(importlib.import_module("toy.core").score)))
    flp.install("toy")
    assert flp.installed() == {"toy": version}


@pytest.mark.parametrize("changes, message", [
    ({"parameters": ("x",)}, r"the parameters of toy\.core\.score are \(x, scale\) \(accepted: \(x\)\).*toy==1\.0"),
    ({"source": "0" * 16}, r"source text of toy\.core\.score has hash .* \(accepted: 0{16}\).*was tested, toy==1\.0"),
    ({"name": "gone"}, r"toy\.core\.gone is not there"),
    ({"module": "toy.gone"}, r"toy\.gone could not be imported"),
    ({"described": "Child.forward"}, r"toy\.core\.Child\.forward is not there"),
    ({"source": "0" * 16, "make": None}, r"source text of toy\.core\.score has hash"),
])
def test_a_changed_host_is_refused_before_anything_is_replaced(toy, changes, message):
    core = importlib.import_module("toy.core")
    own = core.score
    toy(seam(), seam(**changes))
    with pytest.raises(flp.HostError, match=message):
        flp.install("toy")
    assert core.score is own and flp.installed() == {}


def test_a_host_that_was_replaced_already_is_refused(toy, monkeypatch):
    monkeypatch.setattr(importlib.import_module("toy.core"), "score", len)
    with pytest.raises(flp.HostError, match="Nothing was replaced"):
        flp.install("toy")


def test_a_function_that_someone_else_wrapped_is_refused(toy, monkeypatch, logged):
    """functools.wraps hands the inner function's source text on."""
    core = importlib.import_module("toy.core")
    own, text = core.score, source_of(core.score)
    monkeypatch.setattr(core, "score", functools.wraps(own)(lambda x, scale=1: own(x, scale) + 1))
    toy(seam(source=text))
    with pytest.raises(flp.HostError, match=r"toy\.core\.score is wrapped in a function that its source text"):
        flp.install("toy")
    flp.install("toy", untested=True)
    assert any("toy.core.score is wrapped" in text for _level, text in logged)
    flp.uninstall("toy")
    toy(seam())
    flp.install("toy")  # where any text is taken, any wrapper is


def test_a_seam_that_cannot_be_made_leaves_all_as_it_was(toy, monkeypatch):
    core = importlib.import_module("toy.core")
    own, registered = core.score, []
    toy(seam(), seam(make=lambda host: 1 / 0))
    monkeypatch.setattr(sys.modules["flp.adapters.toy"], "HOST", dataclasses.replace(
        sys.modules["flp.adapters.toy"].HOST, register=lambda: registered.append(1)))
    with pytest.raises(ZeroDivisionError):
        flp.install("toy")
    assert core.score is own and flp.installed() == {} and not registered


def test_untested_accepts_another_text_but_no_other_parameters(toy, monkeypatch, logged):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "7.1")
    toy(seam(source="0" * 16))
    flp.install("toy", untested=True)
    assert importlib.import_module("toy.core").score(1) == ("flp", 1)
    assert [level for level, text in logged if "toy (version 7.1): the source text of toy.core.score" in text] == [
        logging.WARNING]
    flp.uninstall("toy")
    toy(seam(parameters=("y",)))
    with pytest.raises(flp.HostError):
        flp.install("toy", untested=True)


def test_uninstall_reports_a_foreign_replacement_and_restores_the_rest(toy):
    core, user = importlib.import_module("toy.core"), importlib.import_module("toy.user")
    own = core.score
    flp.install("toy")
    user.mine = foreign = lambda x: "foreign"
    with pytest.raises(flp.HostError, match=r"toy\.user\.mine"):
        flp.uninstall("toy")
    assert core.score is own and user.mine is foreign and flp.installed() == {}


@pytest.mark.parametrize("name", adapters.HOSTS)
def test_stand_ins_have_the_seams_and_are_refused_by_their_text(hosts, monkeypatch, name):
    hosts(name)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99.1")
    with pytest.raises(flp.HostError) as refused:
        flp.install(name)
    host = adapters._adapter(name)
    for text in ("%s (version 99.1): the source text of " % name, "Nothing was replaced",
                 "Install what was tested, " + host.origin, "flp.install('%s', untested=True)" % name):
        assert text in str(refused.value)
    flp.install(name, untested=True)
    assert flp.installed() == {name: "99.1"}
    counts = flp.installed(counts=True)[name]
    assert counts and all(calls == {"flp": {}, "own": {}} for calls in counts.values())
    assert all(of_host.needs or ("%s.%s" % (of_host.module, of_host.name) in counts) == bool(of_host.make)
               for of_host in host.seams)


def installed(hosts, name, module):
    hosts(name)
    flp.install(name, untested=True)
    return importlib.import_module(module)


def counted(host, seam):
    """The calls at a seam: {mode: calls}, all on one rung, and {reason: calls}"""
    calls = flp.installed(counts=True)[host][seam]
    by_mode = {mode: count for _rung, mode, count in ((*name.split(), count) for name, count in calls["flp"].items())}
    assert len(by_mode) == len(calls["flp"])
    return by_mode, calls["own"]


def agrees(got, want):
    assert got.dtype is torch.float32 and got.shape == want.shape
    assert float((got.detach().double() - want.detach()).abs().max()) < 2e-5


def gradients_agree(outputs, wanted, inputs, doubled):
    weights = [torch.randn(output.shape, dtype=torch.float64, device=DEVICE) for output in outputs]
    sum((output * w.to(output.dtype)).sum() for output, w in zip(outputs, weights)).backward()
    sum((output * w).sum() for output, w in zip(wanted, weights)).backward()
    for tensor, double in zip(inputs, doubled):
        assert relative(tensor.grad, double.grad) < 1e-5


def test_trl_fused_head(hosts):
    head = installed(hosts, "trl", "trl.kernels.chunked_logprob").ChunkedLogProbFunction
    hidden, weight, target, bias = problem(bias=True)
    inputs = [tensor.requires_grad_() for tensor in (hidden, weight, bias)]
    doubled = doubles(*inputs)
    logprob, entropy, *others = head.apply(hidden, weight, bias, target, 0.7, 64, 5.0, 0.5, ("log_probs", "entropy"))
    wanted = reference(doubled[0], doubled[1], target, doubled[2], 0.7, 5.0, 0.5)
    agrees(logprob, wanted[0]), agrees(entropy, wanted[1])
    assert others == [None] * 3
    gradients_agree((logprob, entropy), wanted, inputs, doubled)
    assert head.apply(hidden, weight, bias, target, 1.0, 64, outputs=("log_probs",))[1:] == (None,) * 4
    logprob, entropy, squares, mean, best = head.apply(hidden, weight, bias, target, 1.0, 64)
    found = exact(*doubled[:2], target, doubled[2], statistics=True)
    agrees(squares, found["statistics.log_squares"]), agrees(mean, found["statistics.mean_score"])
    assert torch.equal(best.double(), found["statistics.is_best"])
    nothing = head.apply(hidden[:0], weight, bias, target[:0], 1.0, 64, outputs=("log_probs", "entropy"))
    (gradient,) = torch.autograd.grad(nothing[0].sum() + nothing[1].sum(), weight)
    assert nothing[0].shape == (0,) and not gradient.any()


@pytest.mark.parametrize("wide", [("weight",), ("weight", "bias"), ("bias",)], ids=str)
def test_trl_rounds_a_float32_head_as_the_host_does(hosts, logged, wide):
    head = installed(hosts, "trl", "trl.kernels.chunked_logprob").ChunkedLogProbFunction
    hidden, weight, target, bias = problem(bias=True)
    given = [tensor if name in wide else tensor.bfloat16()
             for name, tensor in (("hidden", hidden), ("weight", weight), ("bias", bias))]
    inputs = [tensor.requires_grad_() for tensor in given]
    narrow = [tensor.detach().bfloat16().requires_grad_() for tensor in given]
    for tensors in (inputs, narrow):
        logprob, entropy, *_ = head.apply(*tensors, target, 0.7, 64, 5.0, 0.5, ("log_probs", "entropy"))
        (logprob.sum() + 0.1 * entropy.sum()).backward()
        wanted = reference(*(tensor.double() for tensor in narrow[:2]), target, narrow[2].double(), 0.7, 5.0, 0.5)
        agrees(logprob, wanted[0]), agrees(entropy, wanted[1])
    for tensor, other in zip(inputs, narrow):
        assert tensor.grad.dtype is tensor.dtype and torch.equal(tensor.grad.bfloat16(), other.grad)
    assert counted("trl", "trl.kernels.chunked_logprob.ChunkedLogProbFunction.apply") == ({"recompute": 2}, {})


def test_trl_keeps_a_narrow_head_under_a_float32_trunk(hosts, logged):
    """The host makes the head float32 then, whose products flp does not give."""
    head = installed(hosts, "trl", "trl.kernels.chunked_logprob").ChunkedLogProbFunction
    hidden, weight, target, _ = problem()
    assert head.apply(hidden, weight.bfloat16(), None, target, 1.0, 64, outputs=("log_probs",)) == "host"
    assert head.apply(hidden.half(), weight.bfloat16(), None, target, 1.0, 64, outputs=("log_probs",)) == "host"
    left = [text for _, text in logged if "its own" in text]
    assert len(left) == 2 and all("flp.linear_logprob" in text for text in left)


def test_trl_selective_log_softmax(hosts):
    utils = installed(hosts, "trl", "trl.trainer.utils")
    logits = torch.randn(3, 5, 41)
    index = torch.randint(0, 41, (3, 5))
    mask = torch.tensor([1, 0, 1, 1, 0]).expand(3, 5)
    want = logits.log_softmax(-1).gather(-1, index.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(utils.selective_log_softmax(logits, index), want, atol=1e-6)
    outside = index.masked_fill(mask == 0, -100)
    assert torch.allclose(utils.selective_log_softmax(logits, outside, row_mask=mask), want * mask, atol=1e-6)
    warm = (logits / 2).log_softmax(-1).gather(-1, index.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(utils.selective_log_softmax(logits, index, temperature=2.0), warm, atol=1e-6)
    assert utils.selective_log_softmax(logits.to("meta"), index) == "host"


def test_trl_results_are_float32_where_its_own_kernel_would_run(hosts):
    """The stand-in's kernel takes float16 with one index a row."""
    utils = installed(hosts, "trl", "trl.trainer.utils")
    logits, index = torch.randn(3, 5, 41), torch.randint(0, 41, (3, 5))
    mask = torch.tensor([1, 0, 1, 1, 0]).expand(3, 5)
    got = utils.selective_log_softmax(logits.half(), index, row_mask=mask)
    want = logits.half().double().log_softmax(-1).gather(-1, index.unsqueeze(-1)).squeeze(-1)
    assert got.dtype is torch.float32 and torch.allclose(got.double(), want * mask, atol=2e-6)
    assert utils.selective_log_softmax(logits.half(), index.unsqueeze(-1)).dtype is torch.float16
    assert utils.selective_log_softmax(logits.bfloat16(), index).dtype is torch.bfloat16
    vars(utils)["is_triton_available"] = lambda: False
    assert utils.selective_log_softmax(logits.half(), index).dtype is torch.float16


def test_agilerl(hosts):
    module = installed(hosts, "agilerl", "agilerl.algorithms.core.llm_ops.fused_logprobs")
    hidden, weight, target, bias = problem(n=12, bias=True)
    shaped, ids = hidden.view(3, 4, -1).requires_grad_(), target.view(3, 4)
    doubled = doubles(hidden, weight, bias)
    want = reference(doubled[0], doubled[1], target, doubled[2], 1.3)[0].view(3, 4)
    inputs = [shaped, weight.requires_grad_(), bias.requires_grad_()]
    got = module.FusedLinearLogProbsFunction.apply(*inputs, ids, 1.3, True, 128)
    agrees(got, want)
    with torch.no_grad():
        assert torch.equal(module.fused_linear_logprobs_chunked(*inputs, ids, temperature=1.3, chunk_rows=128), got)
        half = [tensor.bfloat16() for tensor in inputs]
        assert module.fused_linear_logprobs_chunked(*half, ids.int(), chunk_rows=128).dtype is torch.bfloat16
        assert module.fused_linear_logprobs_chunked(half[0], weight, bias, ids, chunk_rows=128) == "host"
    doubled[0].requires_grad_()
    weights = torch.randn(3, 4)
    (got * weights.to(DEVICE)).sum().backward()
    (want * weights.to(DEVICE)).sum().backward()
    for tensor, double in zip(inputs, doubled):
        assert relative(tensor.grad.view_as(double.grad), double.grad) < 1e-5


def test_verl_linear_cross_entropy(hosts):
    module = installed(hosts, "verl", "verl.utils.kernel.linear_cross_entropy")
    hidden, weight, target, _ = problem(n=12)
    inputs = [hidden.requires_grad_(), weight.requires_grad_()]
    doubled = doubles(*inputs)
    got = module.linear_cross_entropy(hidden.view(3, 4, -1), weight, target.view(3, 4), 0.8, "none", None)
    wanted = reference(*doubled, target, temperature=0.8)
    agrees(got[0], wanted[0]), agrees(got[1], wanted[1])
    gradients_agree(got, wanted, inputs, doubled)
    assert module.linear_cross_entropy(hidden, weight, target, 1.0, "mean") == "host"
    two_ranks = flp_hosts.module_of(size=lambda: 2)
    assert module.linear_cross_entropy(hidden, weight, target, 1.0, "none", two_ranks) == "host"


@pytest.mark.parametrize("flash", [False, True])
def test_verl_logprobs_from_logits(hosts, monkeypatch, flash):
    module = installed(hosts, "verl", "verl.utils.torch_functional")
    monkeypatch.setattr(module, "FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE", flash)
    leaf = torch.randn(5, 33, requires_grad=True)
    labels = torch.randint(0, 33, (5,))
    for in_place in (True, False):
        scores = leaf * 1
        got = module.logprobs_from_logits(scores, labels, inplace_backward=in_place)
        assert torch.allclose(got, leaf.log_softmax(-1).gather(1, labels.unsqueeze(1)).squeeze(1), atol=1e-6)
        got.sum().backward()
        assert torch.equal(scores, leaf) is not (in_place and flash)
    assert module.logprobs_from_logits(torch.zeros(2, 3, dtype=torch.int32), None) == "host"


@pytest.mark.parametrize("name, module", [("slime", "slime.utils.ppo_utils"),
                                          ("miles", "miles.backends.training_utils.loss_hub.math_utils")])
def test_scores_of_megatron(hosts, name, module):
    calculate = installed(hosts, name, module).calculate_log_probs_and_entropy
    logits = torch.randn(7, 33, requires_grad=True)
    tokens = torch.randint(0, 33, (7,))
    logp = logits.detach().double().log_softmax(-1)
    logprob, entropy = calculate(logits, tokens, None, with_entropy=True)
    agrees(logprob, logp.gather(1, tokens.unsqueeze(1)))
    agrees(entropy, -(logp.exp() * logp).sum(-1))
    assert entropy.requires_grad and calculate(logits, tokens, None)[1] is None
    grad = {"slime": "with_entropy_grad", "miles": "entropy_requires_grad"}[name]
    assert not calculate(logits, tokens, None, with_entropy=True, **{grad: False})[1].requires_grad
    assert calculate(logits.bfloat16(), tokens, None)[0].dtype is torch.float32
    assert calculate(logits[:0], tokens[:0], None) == "host"
    assert calculate(logits, tokens, flp_hosts.module_of(size=lambda: 2)) == "host"
    refused = {"slime": {"log_prob_keep_mask": torch.ones(7, 33)}, "miles": {"true_on_policy": True}}[name]
    assert calculate(logits, tokens, None, **refused) == "host"
    by_mode, own = counted(name, module + ".calculate_log_probs_and_entropy")
    assert by_mode == {"select": 4} and len(own) == 3 and set(own.values()) == {1}
    assert own["the vocabulary is spread over several ranks"] == own[_counts.NOT_ASKED] == 1


FUNCTIONS = {"trl": ("trl.trainer.utils", "selective_log_softmax"),
             "agilerl": ("agilerl.algorithms.core.llm_ops.fused_logprobs", "fused_linear_logprobs_chunked"),
             "verl": ("verl.utils.kernel.linear_cross_entropy", "linear_cross_entropy"),
             "slime": ("slime.utils.ppo_utils", "calculate_log_probs_and_entropy"),
             "miles": ("miles.backends.training_utils.loss_hub.math_utils", "calculate_log_probs_and_entropy")}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_holds_a_seams_function_is_copied_and_pickled(hosts, name):
    """As a trainer that keeps the function: it travels by name, so that an unpickled one is what stands there then."""
    module = installed(hosts, name, FUNCTIONS[name][0])
    function = getattr(module, FUNCTIONS[name][1])
    trainer = types.SimpleNamespace(function=function)
    sent = pickle.dumps(trainer)
    assert copy.deepcopy(trainer).function is function and pickle.loads(sent).function is function
    flp.uninstall(name)
    own = getattr(module, FUNCTIONS[name][1])
    assert own is not function and pickle.loads(sent).function is own


FUSED = "verl.utils.kernel.linear_cross_entropy.linear_cross_entropy"


class Quantised(torch.nn.Parameter):
    pass


def partitioned(weight):
    weight = torch.nn.Parameter(weight)
    weight.ds_id = 7
    return weight


@pytest.mark.parametrize("change, reason", [
    (lambda h, w: (h, w.bfloat16()), "weight is of dtype torch.bfloat16 while hidden is of dtype torch.float32"),
    (lambda h, w: (h.double(), w.double()), "hidden is of dtype torch.float64"),
    (lambda h, w: (h[:, :60], w[:, :60]), "hidden size 60 is no multiple of 8"),
    (lambda h, w: (h, Quantised(w)), "weight is of type Quantised"),
    (lambda h, w: (h, partitioned(w)), "ZeRO-3"),
    (lambda h, w: (h.to("meta"), w), "hidden is on device meta"),
])
def test_what_flp_cannot_take_goes_to_the_host_and_is_logged_once(hosts, logged, change, reason):
    module = installed(hosts, "verl", "verl.utils.kernel.linear_cross_entropy")
    hidden, weight, target, _ = problem()
    hidden, weight = change(hidden, weight)
    assert [module.linear_cross_entropy(hidden, weight, target) for _ in range(2)] == ["host", "host"]
    assert [level for level, text in logged if reason in text] == [logging.WARNING]
    by_mode, own = counted("verl", FUSED)
    assert by_mode == {} and list(own.values()) == [2] and reason in next(iter(own))


def test_a_seam_says_once_that_it_runs_on_flp_and_counts_calls_of_threads(hosts, logged):
    module = installed(hosts, "verl", "verl.utils.kernel.linear_cross_entropy")
    hidden, weight, target, _ = problem()
    flp.linear_logprob(hidden, weight, target)  # no call at a seam
    assert flp.installed(counts=True)["verl"][FUSED] == {"flp": {}, "own": {}}
    module.linear_cross_entropy(hidden, weight, target)
    rung = flp.explain(hidden, weight, target).rung
    assert flp.installed(counts=True)["verl"][FUSED] == {"flp": {rung + " score": 1}, "own": {}}
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda _: module.linear_cross_entropy(hidden, weight, target), range(200)):
            flp.installed(counts=True)
    with pytest.raises(TypeError):
        module.linear_cross_entropy(hidden, weight, target, temperature="warm")
    (by_mode, own), expected = counted("verl", FUSED), "verl: %s runs on flp, rung %s, mode score%s" % (
        FUSED, rung, "; contract: %s" % flp.contract(weight) if DEVICE == "cpu" else "")
    assert by_mode.keys() == {"score"} and 100 < by_mode["score"] <= 201 and own == {}
    assert [(level, text) for level, text in logged if "runs on flp" in text] == [(logging.INFO, expected)]
    flp.uninstall("verl")
    flp.install("verl", untested=True)
    assert flp.installed(counts=True)["verl"][FUSED] == {"flp": {}, "own": {}}


def test_autocast_takes_mixed_dtypes(hosts):
    module = installed(hosts, "verl", "verl.utils.kernel.linear_cross_entropy")
    hidden, weight, target, _ = problem()
    with torch.autocast(DEVICE.split(":")[0], torch.bfloat16):
        logprob, _ = module.linear_cross_entropy(hidden.bfloat16(), weight, target)
    agrees(logprob, reference(hidden.bfloat16().double(), weight.bfloat16().double(), target)[0])


def test_an_unknown_token_is_nan_and_counted_not_zero(hosts):
    module = installed(hosts, "verl", "verl.utils.kernel.linear_cross_entropy")
    hidden, weight, target, _ = problem()
    target[2] = -100
    logprob, _ = module.linear_cross_entropy(hidden, weight, target)
    assert torch.isnan(logprob).nonzero().flatten().tolist() == [2]
    with pytest.raises(flp.DataError):
        flp.check()

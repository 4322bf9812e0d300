"""The adapters of flp.bench call their libraries rightly, and give a reason where they cannot."""
import sys
from pathlib import Path

import flp_bench_standins as fake
import flp_hosts
import pytest
import torch
import transcripts
from flp_bench_tool import parsed, tensors_of

from flp.bench import cases, clock, data, ours, pairs, peers, reference, run
from flp.bench.peers import agilerl, seam, skeleton

REASONS = Path(__file__).resolve().parents[1] / "golden/records/reasons.txt"
STAND_INS = ("cut_cross_entropy", "liger_kernel", "liger_cute_kernels", "verl", "quack", "agilerl", "unsloth_zoo",
             "trl", "megatron")


@pytest.fixture
def stand_ins(monkeypatch):
    """The libraries, as far as the adapters call them; they run on the CPU."""
    for name in [name for name in sys.modules if name.split(".")[0] in STAND_INS]:
        monkeypatch.delitem(sys.modules, name)
    for made in fake.modules():
        parts = made.__name__.split(".")
        for count in range(1, len(parts)):
            parent = ".".join(parts[:count])
            monkeypatch.setitem(sys.modules, parent, sys.modules.get(parent) or fake.module(parent, __path__=[]))
        monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setattr(torch.nn, "LinearCrossEntropyOptions", fake.TorchOptions, raising=False)
    monkeypatch.setattr(torch.nn.functional, "linear_cross_entropy", fake.torch_mean, raising=False)
    monkeypatch.setattr(fake, "LCK_CALLS", [])
    for name, value in peers.lck.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for peer in (*peers.PEERS, *peers.DIVERGING):
        monkeypatch.setattr(peer, "needs_cuda", False)
        for multiple in ("depth_multiple", "rows_multiple", "vocab_multiple"):
            monkeypatch.setattr(peer, multiple, 1)


OTHERS = [peer for peer in peers.PEERS if peer.name not in ("torch-fp32", "torch-16bit", "torch-compile", "liger-grpo")]


@pytest.mark.parametrize("peer", OTHERS, ids=lambda peer: peer.name)
@pytest.mark.parametrize("grads", [["none"], ["hidden"], ["hidden,weight"]], ids=lambda grads: grads[0])
def test_adapter_calls_its_library_rightly(stand_ins, peer, grads):
    """A wrong argument fails in the stand-in; a wrong sign or order shows against the reference."""
    entropies = ["none", "backward"] if peer.entropy else ["none"]
    chosen = parsed("--rows", "8", "--grad", *grads, "--entropy", ",".join(entropies),
                    *(["--bias"] if peer.bias else []), *(["--softcap", "2.5"] if peer.softcap else []))
    tensors = tensors_of(chosen)
    exact = reference.Reference(tensors, chosen.softcap, 1)
    contender = run.Contender(peer(), 60)
    contender.load({})
    assert contender.reason is None and contender.version
    wanted = [case for case in cases.cases_of(chosen, 8) if bool(case.grads) == (grads != ["none"])]
    assert len(wanted) == len(entropies)
    for case in wanted:
        assert contender.peer.supports(case, torch.device("cpu")) is None
        entry = run.Entry(contender, case, tensors)
        entry.prepare(exact, clock.HostClock(), torch.device("cpu"))
        found = dict(entry.found)
        assert ("loss_error" in found) != ("logprob_error" in found) and found.pop("extra_bytes") is None
        assert ("entropy_error" in found) == (case.entropy != "none")
        assert [name for name in found if name.startswith("grad")] == ["grad_%s_error" % leaf for leaf in case.grads]
        # bf16 rounds scores and gradients by 2^-9 of their size.
        assert all(error < 0.05 for name, error in found.items() if name.endswith("error"))
        assert found["result_bytes"] > 0


def entry_of(peer, chosen):
    """The first case of the options, its first calls made -> Entry"""
    tensors, contender = tensors_of(chosen), run.Contender(peer(), 60)
    contender.load({})
    case = cases.cases_of(chosen, chosen.rows[0])[0]
    assert contender.reason is None and contender.peer.supports(case, torch.device("cpu")) is None
    exact = reference.Reference(tensors, None, 1)
    entry = run.Entry(contender, case, tensors, tensors.batch(case, exact))
    entry.prepare(exact, clock.HostClock(), torch.device("cpu"))
    return entry


@pytest.mark.parametrize("peer, loss", [
    (ours.Flp, "grpo+k3"), (ours.Flp, "dr_grpo+k1"), (ours.Flp, "nll"), (ours.Flp, "cispo"),
    (peers.naive.NaiveFp32, "grpo+k3"), (peers.liger.LigerGrpo, "grpo+k3"), (peers.liger.LigerGrpo, "dr_grpo"),
    (peers.liger.LigerNone, "ppo+k2"), (peers.liger.LigerMean, "nll"), (peers.quack.QuackMean, "nll"),
    (peers.quack.QuackScaled, "nll"), (peers.unsloth.UnslothMean, "nll"), (peers.unsloth.Unsloth, "grpo+k3"),
    (peers.lck.Lck, "ppo"),
    (peers.verl.Verl, "dapo"), *((peer, cases.CROSS_ENTROPY) for peer in (
        ours.Flp, peers.naive.NaiveFp32, peers.liger.LigerMean, peers.liger.LigerNone))], ids=lambda value: value if isinstance(value, str) else value.name)
@pytest.mark.parametrize("accumulate", [[], ["--accumulate"]], ids=["own", "buffer"])
def test_steps_by_a_loss(stand_ins, monkeypatch, peer, loss, accumulate):
    """Each in its own way gives the loss and gradients of plain torch at exact logprobs."""
    monkeypatch.setattr(peer, "dtypes", ("fp32",))
    monkeypatch.setattr(data, "SEQUENCE", 4)
    entry = entry_of(peer, parsed("--rows", "8", "--dtype", "fp32", "--grad", "hidden,weight", "--loss", loss, *accumulate))
    assert entry.case.gemms == 3 and entry.batch.tokens == 4
    assert all(entry.found[name] < 5e-6 for name in ("loss_error", "grad_hidden_error", "grad_weight_error"))


@pytest.mark.parametrize("peer", (ours.FlpDivergence, *peers.DIVERGING), ids=lambda peer: peer.name)
@pytest.mark.parametrize("kind", cases.TEACHER_SHARES)
def test_divergences_of_two_heads(stand_ins, monkeypatch, peer, kind):
    """A student and a teacher that are told apart wrongly, or another mean, show against the reference."""
    monkeypatch.setattr(torch, "compile", lambda function: function, raising=False)
    monkeypatch.setitem(sys.modules, "torch._dynamo", fake.module("torch._dynamo", config=fake.module("config")))
    monkeypatch.setattr(peers.torch_compile, "CHUNK_ROWS", 3)
    monkeypatch.setattr(pairs, "SPREAD", 0.5)
    chosen = parsed("--rows", "8", "--dtype", "fp32", "--op", "diverge", "--teacher-hidden", "24", "--loss", kind,
                    "--grad", "hidden,weight")
    tensors, contender = tensors_of(chosen), run.Contender(peer(), 60)
    contender.load({})
    exact = pairs.Reference(tensors, 1)
    for case in cases.cases_of(chosen, 8):
        assert contender.reason is None and contender.peer.supports(case, torch.device("cpu")) is None
        entry = run.Entry(contender, case, tensors)
        entry.prepare(exact.of(case), clock.HostClock(), torch.device("cpu"))
        errors = {name: error for name, error in entry.found.items() if name.endswith("_error")}
        assert set(errors) & {"loss_error", "divergence_error"} and entry.found["divergence"] > 0.02
        assert len(errors) == 1 + len(case.grads) and all(error < 5e-6 for error in errors.values()), errors


def test_cross_entropy_of_rows_that_are_too_many_for_fp64_is_judged_by_a_sample(stand_ins, monkeypatch):
    monkeypatch.setattr(reference, "AFFORDABLE_FLOPS", 1.0)
    monkeypatch.setattr(reference, "SAMPLE_ROWS", 3)
    found = entry_of(ours.Flp, parsed("--rows", "8", "--dtype", "fp32", "--grad", "hidden,weight", "--loss",
                                      cases.CROSS_ENTROPY)).found
    assert found["loss_error"] is None and found["grad_weight_error"] is None
    assert found["grad_hidden_error"] < 5e-6


def test_what_a_peer_cannot_run_has_its_reason(stand_ins):
    class Narrow(seam.Peer):
        dtypes = ("bf16", "fp16")
        depth_multiple, vocab_multiple, rows_multiple, needs_cuda = 16, 32, 2, False

    def reason(peer, **case):
        return [peer().supports(cases.Case(**{"n": 6, "hidden": 16, "vocab": 96, **case}), torch.device("cpu")) or "none"]

    names = {"reason": reason, "peers": peers, "ours": ours, "Narrow": Narrow}
    transcripts.check(REASONS, lambda text: exec(text, names), lambda call: eval(call, names))


@pytest.mark.parametrize("peer, release, called", [
    (peers.cce.Cce, fake.cce_release, ("cce", None)), (peers.cce.Cce, fake.cce_presets, ("cce_exact", "auto")),
    (peers.cce.CceFilter, fake.cce_release, ("cce", "high")), (peers.cce.CceFilter, fake.cce_presets, ("cce", "auto"))])
def test_cce_is_exact_or_as_it_comes_in_every_release(stand_ins, monkeypatch, peer, release, called):
    monkeypatch.setattr(sys.modules["cut_cross_entropy"], "linear_cross_entropy", release)
    monkeypatch.setattr(fake, "CCE_CALLS", [])
    peer = peer()
    peer.load()
    tensors = tensors_of(parsed())
    result = peer.run(tensors.hidden, tensors.weight, None, tensors.target, cases.Case(6, 16, 96))
    assert torch.allclose(result.logprob, -fake.nll_of(tensors.hidden, tensors.weight, tensors.target))
    assert fake.CCE_CALLS == [called]


@pytest.mark.parametrize("wish", [["--entropy", "none"], ["--entropy", "backward"], ["--loss", cases.CROSS_ENTROPY]],
                         ids=lambda wish: wish[1])
def test_torch_compile_goes_through_chunks(monkeypatch, wish):
    """Ragged chunks, compiled once and checkpointed in training, give what one chunk gives."""
    compiled, config = [], fake.module("config", recompile_limit=8)
    monkeypatch.setitem(sys.modules, "torch._dynamo", fake.module("torch._dynamo", config=config))
    monkeypatch.setattr(torch, "compile", lambda function: compiled.append(function) or function, raising=False)
    monkeypatch.setattr(peers.torch_compile, "CHUNK_ROWS", 4)
    monkeypatch.setattr(peers.torch_compile.TorchCompile, "needs_cuda", False)
    recomputed = []
    checkpoint = torch.utils.checkpoint.checkpoint
    monkeypatch.setattr(torch.utils.checkpoint, "checkpoint",
                        lambda *a, **k: recomputed.append(a[1].shape[0]) or checkpoint(*a, **k))
    chosen = parsed("--rows", "10", "--grad", "hidden,weight", *wish, "--dtype", "fp32")
    tensors = tensors_of(chosen)
    exact = reference.Reference(tensors, None, 1)
    contender = run.Contender(peers.torch_compile.TorchCompile(), 60)
    contender.load({})
    assert contender.reason is None and len(compiled) == 2 and config.recompile_limit == 64
    for case in cases.cases_of(chosen, 10):
        entry = run.Entry(contender, case, tensors, tensors.batch(case, exact) if case.loss else None)
        entry.prepare(exact, clock.HostClock(), torch.device("cpu"))
        assert all(error < 3e-6 for name, error in entry.found.items() if name.endswith("error"))
        assert recomputed == ([4, 4, 2] * 3 if case.grads else [])


def test_torch_without_compile_is_reported(monkeypatch):
    monkeypatch.delattr(torch, "compile", raising=False)
    contender = run.Contender(peers.torch_compile.TorchCompile(), 60)
    contender.load({})
    assert contender.reason.startswith("ImportError: torch ") and contender.reason.endswith("has no torch.compile")


def test_liger_release_without_a_parameter_is_reported():
    class Old:
        @staticmethod
        def forward(ctx, _input, weight, target, bias=None):
            pass

    with pytest.raises(TypeError, match="Old takes no reduction, softcap"):
        peers.liger.positional(Old, {"_input": 1, "weight": 2, "target": 3, "reduction": "none", "softcap": None})


def test_a_kernel_is_imported_without_its_package(tmp_path, monkeypatch):
    flp_hosts.write_package(tmp_path, {
        **dict.fromkeys(("heavyweight.__init__", "heavyweight.utils.__init__"), "raise RuntimeError('the world')"),
        "heavyweight.utils.device": "NAME = 'device'",
        "heavyweight.utils.kernel.fast": "from heavyweight.utils.device import NAME\ndef f(): return NAME"})
    monkeypatch.syspath_prepend(tmp_path)
    packages = ("heavyweight", "heavyweight.utils", "heavyweight.utils.kernel")
    try:
        assert skeleton.import_kernel("heavyweight.utils.kernel.fast", packages).f() == "device"
        with pytest.raises(ModuleNotFoundError, match="heavyweight.utils.kernel.slow"):
            skeleton.import_kernel("heavyweight.utils.kernel.slow", packages)
    finally:
        flp_hosts.forget_package("heavyweight")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        skeleton.import_kernel("no_such_package.kernel", ("no_such_package",))


def test_agilerl_gets_its_one_function(tmp_path, monkeypatch):
    """An older release keeps the module elsewhere; both import materialize_dtensors."""
    for name in [name for name in sys.modules if name.split(".")[0] == "agilerl"]:
        monkeypatch.delitem(sys.modules, name)
    flp_hosts.write_package(tmp_path, {
        "agilerl.__init__": "raise RuntimeError('needs the world')",
        "agilerl.llm_ops.fused_logprobs": "from agilerl.distributed import materialize_dtensors"})
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with agilerl.import_module().materialize_dtensors(1, None) as (weight, bias):
            assert (weight, bias) == (1, None)
    finally:
        flp_hosts.forget_package("agilerl")


@pytest.mark.parametrize("state, compiled", [
    ({"fn": len, "disabled": False}, True), ({"fn": len, "disabled": True}, False), ({"fn": None}, False)])
def test_agilerl_without_compile_is_recorded(stand_ins, monkeypatch, state, compiled):
    peer = agilerl.Agile16()
    peer.load()
    monkeypatch.setattr(peer.fused, "_FUSED_LOGPROB_COMPILE_STATE", state, raising=False)
    assert peer.details(None, None, None, None, None) == {"compiled": compiled}


def test_agilerl_chunks_are_its_trainers():
    assert [agilerl.chunk_rows(vocab) for vocab in (1000, 151936, 10**7)] == [4096, 441, 128]

"""flp.divergence and divergence_loss of a loss over targets in a Lua file, on the CPU: beside the divergences that it
mixes, what it names, and what is refused; and what of two heads is explained."""
import pytest
import torch

import flp
from flp_reference import DEVICE, DTYPES, GRAD_TOLERANCE, relative
from test_flp_divergence import N, V, counted, gradients, own_teacher, problem

MIXED = """return {parameters = {mix = {default = 0.5, min = 0, max = 1}}, loss = function(row, p)
  local log_p, log_q = row.teacher_logprob, row.target_logprob
  local a, b = exp(log_p), exp(log_q)
  local forward = sum(where(gt(a, 0), a * (log_p - log_q), 0))
  local reverse = sum(where(gt(b, 0), b * (log_q - log_p), 0))
  return row.weight * (p.mix * forward + (1 - p.mix) * reverse)
end}"""
OPTIONS = {"plain": {}, "mixed": {"parameters": {"mix": 0.25}}, "mask": {"mask": torch.arange(N) % 4 != 1},
           "capped": {"softcap": 5.0, "scale": -1.2, "teacher_softcap": 3.0, "temperature": 0.7},
           "rows": {"temperature": torch.linspace(0.5, 2, N), "teacher_temperature": torch.linspace(2, 1, N)}}


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mixed.lua").write_text(MIXED)
    return str(tmp_path / "mixed.lua")


def other(tmp_path, loss):
    (tmp_path / "other.lua").write_text("return {loss = function(row) return %s end}" % loss)
    return str(tmp_path / "other.lua")


def on_device(options):
    return {name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in options.items()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_file_is_the_mix_that_it_states(file, options, dtype):
    given, share = problem(dtype=dtype), options.get("parameters", {"mix": 0.5})["mix"]
    ends = {name: value for name, value in on_device(options).items() if name != "parameters"}
    found = flp.divergence(kind=file, **given, **on_device(options))
    forward, reverse = (flp.divergence(kind=kind, **given, **ends) for kind in ("forward_kl", "reverse_kl"))
    torch.testing.assert_close(found.value, share * forward.value + (1 - share) * reverse.value, atol=1e-6, rtol=2e-6)
    for name in ("lse", "teacher_lse", "entropy", "acceptance", "agrees"):
        torch.testing.assert_close(getattr(found, name), getattr(forward, name), atol=1e-6, rtol=2e-6)
    for function in (flp.divergence, flp.divergence_loss):
        parts = [gradients(given, function, kind=kind, **ends) for kind in ("forward_kl", "reverse_kl")]
        for mine, first, second in zip(gradients(given, function, kind=file, **on_device(options)), *parts):
            assert relative(mine, share * first.double() + (1 - share) * second.double()) < GRAD_TOLERANCE[dtype]


def test_a_teacher_that_is_the_head_pulls_nowhere(file):
    given = own_teacher(problem(seed=7))
    assert flp.divergence(kind=file, **given).value.abs().max() < 1e-6
    assert all(gradient.abs().max() < 1e-7 for gradient in gradients(given, kind=file))


def test_the_loss_names_its_metric_as_the_file_is(file):
    given, mask = problem(), torch.arange(N, device=DEVICE) % 4 != 1
    loss, metrics = flp.divergence_loss(kind=file, mask=mask, **given)
    assert list(metrics) == ["mixed", "entropy", "acceptance", "agreement"]
    assert metrics["mixed"].item() == pytest.approx(loss.item(), rel=1e-6)
    assert loss.item() == pytest.approx(flp.divergence(kind=file, **given).value[mask].mean().item(), rel=1e-6)


def test_bad_temperatures_are_reported_once(file):
    temperature = torch.ones(N, device=DEVICE).masked_fill(torch.arange(N, device=DEVICE) < 2, -1)
    found = flp.divergence(kind=file, temperature=temperature, **problem())
    found.value.sum().backward()
    assert counted() == 2 and found.value.isnan().nonzero().flatten().tolist() == [0, 1]


@pytest.mark.parametrize("loss", ["-row.weight * row.advantage * row.logprob",
                                  "row.advantage * sum(exp(row.teacher_logprob) * row.target_logprob)"])
def test_files_of_another_sort_are_refused(tmp_path, loss):
    with pytest.raises(ValueError, match="a loss that reads target_logprob, teacher_logprob, weight alone"):
        flp.divergence(kind=other(tmp_path, loss), **problem())


def test_what_a_file_does_not_go_with_is_refused(file, one_rank):
    given = problem(trained=False)
    shards = {name + ("_shard" if "weight" in name or "bias" in name else ""): given[name] for name in given}
    with pytest.raises(ValueError, match=r"kind is .*mixed\.lua' \(accepted: forward_kl, "):
        flp.parallel.divergence(kind=file, **shards)
    with pytest.raises(ValueError, match="renormalise is False .accepted: True with a kind of a file"):
        flp.divergence(kind=file, teacher_ids=torch.arange(V, device=DEVICE), **given)
    for value in (-0.1, 1.1):
        with pytest.raises(ValueError, match=r"parameters\['mix'\] is %s \(accepted: 0 to 1\)" % value):
            flp.divergence(kind=file, parameters={"mix": value}, **given)


# ---- what runs ----

def test_it_is_explained():
    info = flp.explain_divergence(**problem())
    products = [each["products"] for each in (info.forward, info.backward, info.step)]
    if DEVICE == "cpu":
        assert products == [2, 6, 6] and info.forward["mode"] == "torch" and "no rung has kernels" in str(info)
    else:
        assert products == [2, 4, 4] and info.step["mode"] == "diverge" and "teacher's scores: rung" in str(info)
    frozen = flp.explain_divergence(**{name: values.detach() for name, values in problem().items()})
    assert frozen.forward["products"] == 2 and frozen.backward == frozen.step == {}

"""The kernels of losses on the CPU: over targets beside torch's autograd in float64, and which rows of one target count."""
import json
import os
import subprocess

import numpy
import pytest

from cpu_kernel import Kernel, needs_llc
from flpgen_tool import flpgen, needs_flpgen

torch = pytest.importorskip("torch")
BUILD = os.environ.get("FLP_TEST_BUILD", "build/release")
ACTIVE, LEFT_OUT, BAD = 0, 1, 2
IGNORED = -100

NESTED = """return {vectors = {"gain"}, parameters = {power = 2}, loss = function(row, p)
  local total = sum(exp(row.target_logprob))
  local share = exp(row.target_logprob) / total
  local mean = sum(share * row.target_logprob * row.entropy)
  local off = where(gt(row.target_logprob, mean), row.target_logprob - mean, 0)
  local spread = sum(share * off * off)
  return row.weight * p.power * row.gain * spread + max(mean, -1), {spread = spread, total = total}
end}"""


def nested(log_q, log_p, entropy, weight, gain, counted):
    share = (log_q.exp() * counted) / (log_q.exp() * counted).sum(-1, keepdim=True)
    mean = (share * log_q).sum(-1) * entropy
    off = torch.where(log_q > mean[:, None], log_q - mean[:, None], torch.zeros((), dtype=torch.float64))
    spread = (share * off * off).sum(-1)
    return weight * 2 * gain * spread + mean.clamp(min=-1)


def forward_kl(log_q, log_p, entropy, weight, gain, counted):
    p, q = log_p.exp() * counted, log_q.exp() * counted
    rest_p, rest_q = 1 - p.sum(-1), 1 - q.sum(-1)
    return weight * ((p * (log_p - log_q)).sum(-1) + rest_p * (rest_p.log() - rest_q.log())) - 0.01 * weight * entropy


def rows_of(n, k, seed):
    random = numpy.random.default_rng(seed)
    scores = random.normal(size=(2, n, k + 5)) * 2
    logs = scores - numpy.log(numpy.exp(scores).sum(-1, keepdims=True))
    target = random.integers(0, 1000, (n, k))
    target[random.random((n, k)) < 0.2] = IGNORED
    target[:, 0] = 7
    return logs[0, :, :k].astype(numpy.float32), logs[1, :, :k].astype(numpy.float32), target


@needs_llc
@pytest.mark.parametrize("loss, formula, parameters, k", [
    ("forward_kl+entropy", forward_kl, [1e-6, 1.0, 0.01], 6), ("forward_kl+entropy", forward_kl, [1e-6, 1.0, 0.01], 1),
    ("forward_kl+entropy", forward_kl, [1e-6, 1.0, 0.01], 100), ("nested", nested, [2.0], 33)])
def test_kernel(folder, tmp_path, loss, formula, parameters, k):
    if loss == "nested":
        (tmp_path / "nested.lua").write_text(NESTED)
        loss = str(tmp_path / "nested.lua")
    shown = subprocess.run([BUILD + "/bin/flpgen", "loss", "show", loss, "--emit", "ir", "--json"], capture_output=True,
                           text=True)
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    kernel = Kernel(document["ir"], "loss_targets", 256, tmp_path)
    n = 21
    log_q, log_p, target = rows_of(n, k, 3)
    random = numpy.random.default_rng(4)
    entropy, weight, gain = (random.random(n).astype(numpy.float32) + 0.5 for _ in range(3))
    out = {"loss": numpy.full(n, numpy.nan, numpy.float32), "grad_logprob": numpy.full((n, k), numpy.nan, numpy.float32),
           "grad_entropy": numpy.full(n, numpy.nan, numpy.float32),
           "metrics": numpy.full((len(document["metrics"]), n), numpy.nan, numpy.float32)}
    index = numpy.array([row for row in range(n) if row % 5 != 2], numpy.int32)
    noise = numpy.where(target == IGNORED, numpy.nan, log_p).astype(numpy.float32)
    given = dict(entropy=entropy, weight=weight, vector0=gain, target=target, targets=k, ignore_index=IGNORED,
                 target_logprob=log_q, teacher_logprob=noise, n=n,
                 **{f"parameter{i}": value for i, value in enumerate(parameters)}, **out)
    kernel.named(-(-n // 8), index=index, count=numpy.array([len(index)], numpy.int32), row_begin=0, row_end=n, **given)
    leaves = [torch.tensor(values, dtype=torch.float64, requires_grad=True) for values in (log_q, entropy)]
    p, w, g = (torch.tensor(values, dtype=torch.float64) for values in (log_p, weight, gain))
    counted = torch.tensor(target != IGNORED).double()
    want = formula(leaves[0], p, leaves[1], w, g, counted)
    by_logprob, by_entropy = torch.autograd.grad(want.sum(), leaves)
    for got, exact in ((out["loss"], want.detach()), (out["grad_entropy"], by_entropy), (out["grad_logprob"], by_logprob)):
        numpy.testing.assert_allclose(got[index], exact.numpy()[index], rtol=2e-6, atol=2e-7)
        assert numpy.isnan(numpy.delete(got, index, 0)).all()  # other rows are not touched
    assert (out["grad_logprob"][target == IGNORED][~numpy.isnan(out["grad_logprob"][target == IGNORED])] == 0).all()
    row_class = numpy.full(n, ACTIVE, numpy.int8)
    row_class[2::5], row_class[7] = LEFT_OUT, BAD
    before = out["loss"].copy()
    kernel.named(-(-n // 8), row_class=row_class, **given)
    idle = row_class != ACTIVE
    assert numpy.isnan(out["loss"][7]) and numpy.isnan(out["metrics"][:, 7]).all()
    assert (out["loss"][(row_class == LEFT_OUT)] == 0).all()
    numpy.testing.assert_array_equal(out["loss"][~idle], before[~idle])


@needs_flpgen
@needs_llc
def test_losses_by_active_row(folder):
    """Of one target: active rows [2, 30) of which 25 exist; the other rows keep what they have."""
    document = flpgen("loss", "show", "reinforce+entropy", "--emit", "ir", "--json").json()
    kernel, random = Kernel(document["ir"], "loss_rows", 256, folder), numpy.random.default_rng(13)
    n, begin, end, count = 50, 2, 30, 25
    inputs = {name: random.standard_normal(n).astype(numpy.float32)
              for name in ("logprob", "entropy", "old_logprob", "ref_logprob", "advantage", "weight")}
    index = numpy.sort(random.permutation(n)[:count]).astype(numpy.int32)

    def run(**values):
        out = {name: numpy.full(n, 7.5, numpy.float32) for name in ("loss", "grad_logprob", "grad_entropy")}
        out["metrics"] = numpy.full((max(len(document["metrics"]), 1), n), 7.5, numpy.float32)
        kernel.named(1, **inputs, parameter0=0.01, parameter1=0.01, n=n, **values, **out)
        return out

    everywhere = run()
    listed = run(index=index, count=numpy.array([count], numpy.int32), row_begin=begin, row_end=end)
    others = numpy.setdiff1d(range(n), index[begin:])
    assert (everywhere["grad_logprob"] != 7.5).all()
    for name, values in listed.items():
        assert (values[..., index[begin:]] == everywhere[name][..., index[begin:]]).all() and (values[..., others] == 7.5).all()

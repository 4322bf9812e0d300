"""flp.linear_logprob in save mode, a step of fp16, temperatures, sums of the weight, on the stand-in for libcuda that
runs kernels on the CPU: prints errors against float64 as JSON.

Tensors of the CPU pass for device memory, as the stand-in's is host memory; workspace comes from an arena of the stand-in,
which is the memory that its memset fills. Run with the stand-ins in the environment (test_torch.py).
"""
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runtime" / "python"))
import flp  # noqa: E402
from flp._library import _c, _plans  # noqa: E402
from flp._passes import _phase, _run  # noqa: E402
from flp._tensors import _check  # noqa: E402

B, T, D, V = 2, 24, 40, 1100
MODE_P = 6


def pretend():
    """CPU tensors go to device 0; plans that train by a loss pin stream mode, which is not worth it at these sizes, but
    for those with a tail or several targets."""
    create, new_options = _plans._create, _c.new_options

    def create_in_mode_p(key):
        options = new_options()
        options.mode = MODE_P if key.loss and key.grads and key.dtype == _c.DTYPE_BF16 and not (key.tail or key.targets) else 0
        _c.new_options = lambda: options
        try:
            return create(key)
        except flp.ArgumentError:  # of a loss that this mode does not take
            options.mode = 0
            return create(key)

    _run.device_of, _run.stream_of = lambda tensor: 0, lambda device: None
    _phase._capturing, _plans.Plan.__del__ = lambda device: False, lambda self: None
    _plans._create = create_in_mode_p


class Batch:
    """Operands, and what the loss reads of policies near the present one."""

    def __init__(self, dtype=torch.bfloat16):
        generator = torch.Generator().manual_seed(3)
        self.hidden = torch.randn(B, T, D, generator=generator).to(dtype).requires_grad_()
        self.weight = (0.3 * torch.randn(V, D, generator=generator)).to(dtype).requires_grad_()
        self.target = torch.randint(V, (B, T), generator=generator)
        self.old = self.exact()[1].detach().float() + 0.2 * torch.randn(B, T, generator=generator)
        self.advantage = torch.tensor([1.0, -0.5])

    def exact(self):
        """Leaves, logprob and entropy in float64."""
        leaves = [leaf.detach().double().requires_grad_() for leaf in (self.hidden, self.weight)]
        logp = torch.log_softmax(leaves[0] @ leaves[1].t(), -1)
        return leaves, logp.gather(-1, self.target[..., None])[..., 0], -(logp.exp() * logp).sum(-1)


def relative(got, wanted):
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(got, wanted)]


def saved(batch):
    """Save mode, its second backward pass, and recompute mode, for a gradient of every row and of the entropy."""
    def loss_of(logprob, entropy):
        return (logprob * batch.old).sum() + 0.1 * entropy.sum()

    leaves, logprob, entropy = batch.exact()
    wanted = torch.autograd.grad(loss_of(logprob, entropy), leaves)
    made = {}
    for name, save in (("R", False), ("S", True)):
        results = flp.linear_logprob(batch.hidden, batch.weight, batch.target, entropy=True, save=save)
        passes = [torch.autograd.grad(loss_of(*results), [batch.hidden, batch.weight], retain_graph=True) for _ in range(2)]
        made[name] = results, passes
    same = [torch.equal(a, b) for a, b in zip(made["R"][0], made["S"][0])]
    again = [torch.equal(a, b) for a, b in zip(made["R"][1][0], made["S"][1][1])]
    mode = flp.explain(batch.hidden, batch.weight, batch.target, entropy=True, save=True).backward["mode"]
    return {"mode": mode, "same_bits": all(same), "second_is_R": all(again), "error": relative(made["S"][1][0], wanted),
            "of_R": relative(made["R"][1][0], wanted)}


def scaled(batch):
    """A step of fp16 operands and a bias whose upstream gradient comes later, with every token's share below fp16."""
    leaves, logprob, _ = batch.exact()
    bias, total = torch.zeros(V, dtype=torch.float16, requires_grad=True), 2e6
    wanted = torch.autograd.grad(-65536 / total * (logprob * batch.advantage[:, None]).sum(), leaves)
    loss, _ = flp.policy_loss("reinforce", batch.hidden, batch.weight, batch.target, batch.advantage, bias, total=total)
    got = torch.autograd.grad(65536 * loss, [batch.hidden, batch.weight, bias])
    shares = torch.zeros(V, dtype=torch.float64)
    logp = torch.log_softmax(leaves[0].detach() @ leaves[1].detach().t(), -1)
    upstream = -65536 / total * batch.advantage[:, None].expand(B, T).double()
    shares -= (upstream[..., None] * logp.exp()).sum((0, 1))
    shares.index_add_(0, batch.target.flatten(), upstream.flatten())
    key, = [plan.key for plan in _plans.existing() if plan.key.loss and plan.key.dtype == _c.DTYPE_FP16]
    return {"rung": [plan.rung for plan in _plans.existing() if plan.key == key][0],
            "dtypes": [key.grad_hidden_dtype, key.grad_weight_dtype, key.grad_bias_dtype],
            "error": relative(got, [*wanted, shares])}


# One a row; float32 holds neither the reciprocal of the first four, nor the last, nor 1e-10/1e38, as a normal number.
TEMPERATURES = [0.0, float("nan"), 1e-45, 1e-40, 1.2e-38, 1e-30, 0.5, 1.0, 1e20, 1e38, 3.4e38, float("inf")]


def temperatures(batch):
    """Rows whose temperature is bad, by scale: by the kernel, by the torch form, and as flp.check() counts them."""
    n, found = len(TEMPERATURES), {}
    hidden, target = torch.zeros_like(batch.hidden[0, :n]), batch.target.flatten()[:n]  # scores 0, whatever T is
    for scale, softcap in ((1.0, None), (-1.0, None), (1e-10, None), (30.0, None), (0.0, None), (1.0, 30.0)):
        logprob = flp.linear_logprob(hidden, batch.weight.detach(), target, temperature=torch.tensor(TEMPERATURES),
                                     scale=scale, softcap=softcap)
        try:
            flp.check()
            counted = 0
        except flp.DataError as error:
            counted = int(str(error).split(" row")[0].split()[-1])
        usable = _check.usable(torch.tensor(TEMPERATURES), softcap or 0.0, scale)
        found["%g %s" % (scale, softcap)] = {"kernel": logprob.isnan().tolist(), "torch": (~usable).tolist(),
                                             "counted": counted}
    return found


def summed(rows=300, chunk_rows=64):
    """The weight's gradient in bf16 over chunks of rows, and its sums in fp32 that are rounded here: errors, and the share
    that differs."""
    generator, batch, buffer = torch.Generator().manual_seed(7), Batch(), torch.zeros(V, D)
    hidden, upstream = torch.randn(rows, D, generator=generator).bfloat16(), torch.randn(rows, generator=generator)
    target, options = torch.randint(V, (rows,), generator=generator), {"save": False, "chunk_rows": chunk_rows}
    for more in ({}, {"grad_weight_accumulate": buffer}):
        (flp.linear_logprob(hidden, batch.weight, target, **options, **more) * upstream).sum().backward()
    weight = batch.weight.detach().double().requires_grad_()
    logprob = torch.log_softmax(hidden.double() @ weight.t(), -1).gather(-1, target[:, None])[:, 0]
    wanted = torch.autograd.grad((logprob * upstream).sum(), weight)
    info = flp.explain(hidden, batch.weight, target, **options).backward
    return {"mode": info["mode"], "chunks": info["chunks"], "split": relative([batch.weight.grad], wanted)[0],
            "rounded": relative([buffer.bfloat16()], wanted)[0], "fp32": relative([buffer], wanted)[0],
            "apart": (batch.weight.grad != buffer.bfloat16()).double().mean().item()}


def main():
    pretend()
    with flp.phase("all"):
        batch = Batch()
        print(json.dumps({"S": saved(batch), "scaled": scaled(Batch(torch.float16)),
                          "temperatures": temperatures(batch), "sums": summed()}))


if __name__ == "__main__":
    main()

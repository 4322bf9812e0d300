"""flp_exact.py over numpy arrays, for tests of files that the command reads and writes."""
import torch

import flp_exact


def exact_of(arrays, grad_logprob=None, grad_entropy=None, **options):
    """{name: float64 array} of logprob, entropy and, with an upstream gradient, gradients. arrays: hidden, weight and
    target, bias where there is one; options: those of flp_exact.linear_logprob"""
    given = {name: torch.tensor(value) for name, value in arrays.items() if name in ("hidden", "weight", "bias")}
    given = {name: value.double().requires_grad_() for name, value in given.items()}
    found = flp_exact.linear_logprob(
        target=torch.tensor(arrays["target"]).reshape(given["hidden"].shape[:-1]), entropy=True, **given,
        **{name: torch.tensor(value) if hasattr(value, "shape") else value for name, value in options.items()})
    made = {name: found[name] for name in ("logprob", "entropy")}
    upstream = {name: grad for name, grad in (("logprob", grad_logprob), ("entropy", grad_entropy)) if grad is not None}
    if upstream:
        parts = [made[name].flatten() @ torch.tensor(grad).double().flatten() for name, grad in upstream.items()]
        sum(parts).backward()
        made.update({"grad_" + name: leaf.grad for name, leaf in given.items()})
    return {name: value.detach().numpy() for name, value in made.items()}

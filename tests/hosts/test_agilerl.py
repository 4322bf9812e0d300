"""AgileRL 2.58.0: the fused log-probabilities without and with gradient."""
import contextlib

import pytest
import torch
from flp_reference import doubles, problem, reference
from parity import DTYPES, bare, both, compare, stub, stubs, with_gradients

bare("agilerl", "agilerl.algorithms", "agilerl.algorithms.core", "agilerl.algorithms.core.llm_ops")
# Gathers the shards of DTensors; there are none here.
with stubs(agilerl__distributed=stub(materialize_dtensors=lambda *tensors: contextlib.nullcontext(tensors))):
    from agilerl.algorithms.core.llm_ops import fused_logprobs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("in_fp32", [True, False])
@pytest.mark.parametrize("temperature, bias", [(1.0, False), (0.7, True)])
def test_with_gradient(dtype, in_fp32, temperature, bias):
    hidden, weight, target, offset = problem(n=36, vocab=1000, dtype=dtype, bias=bias)
    hidden, target = hidden.view(3, 12, -1), target.view(3, 12)
    inputs = [tensor.requires_grad_() for tensor in (hidden, weight, offset) if tensor is not None]

    def call():
        got = fused_logprobs.FusedLinearLogProbsFunction.apply(hidden, weight, offset, target, temperature, in_fp32, 16)
        return with_gradients([got], inputs)

    doubled = doubles(*inputs)
    want = reference(doubled[0].flatten(0, 1), doubled[1], target.flatten(), doubled[2] if bias else None,
                     temperature)[0]
    own, ours = both("agilerl", call)
    compare(own, ours, with_gradients([want.view(3, 12)], doubled), dtype, rounded=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_gradient(dtype):
    hidden, weight, target, _ = problem(n=36, vocab=1000, dtype=dtype)

    @torch.no_grad()
    def call():
        return {"0": fused_logprobs.fused_linear_logprobs_chunked(
            hidden.view(3, 12, -1), weight, None, target.view(3, 12), temperature=0.9, chunk_rows=16)}

    want = reference(hidden.double(), weight.double(), target, temperature=0.9)[0].view(3, 12)
    compare(*both("agilerl", call), {"0": want}, dtype, rounded=True)

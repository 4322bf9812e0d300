"""verl 0.9.1: linear_cross_entropy and logprobs_from_logits."""
import pytest
import torch
from flp_reference import doubles, problem, reference
from parity import DTYPES, HOST_GRADIENTS, HOST_VALUES, bare, both, compare, of_scores, stub, stubs, with_gradients

bare("verl", "verl.utils", "verl.utils.kernel")
with stubs(tensordict=stub()):
    from verl.utils import torch_functional
from verl.utils.experimental.torch_functional import FusedLinearForPPO  # noqa: E402
from verl.utils.kernel import linear_cross_entropy as fused  # noqa: E402


# On a GPU verl's kernel multiplies float32 as TF32, which truncates operands to 10 bits. On an H200 its logprobs are
# off by 5.26e-4 and 8.63e-4 (T = 1 and 0.7); operands truncated so and multiplied in float64 give the same digits, and
# 3.2e-3 of the entropies, 1.3e-3 of the gradients.
TF32 = {"host_values": {**HOST_VALUES, torch.float32: 5e-3}, "host_gradients": {**HOST_GRADIENTS, torch.float32: 2e-3}}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_linear_cross_entropy(dtype, temperature, device):
    """On a CPU, where verl's own function does not run, against what verl has there for the same purpose."""
    hidden, weight, target, _ = problem(n=36, vocab=1024, depth=128, dtype=dtype)
    inputs = [hidden.requires_grad_(), weight.requires_grad_()]
    own_function = fused.linear_cross_entropy

    def call():
        if device == "cpu" and fused.linear_cross_entropy is own_function:
            results = FusedLinearForPPO(chunk_size=16)(hidden.view(3, 12, -1), weight, target.view(3, 12), temperature)
            results = [result.flatten().float() for result in results]
        else:
            results = fused.linear_cross_entropy(hidden.view(3, 12, -1), weight, target.view(3, 12), temperature,
                                                 "none")
        return with_gradients(results, inputs)

    doubled = doubles(*inputs)
    want = reference(*doubled, target, temperature=temperature)
    compare(*both("verl", call), with_gradients(want, doubled), dtype, **({} if device == "cpu" else TF32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_logprobs_from_logits(dtype, device):
    of_scores(lambda *given: torch_functional.logprobs_from_logits(*given), dtype, device, "verl", rounded=True)

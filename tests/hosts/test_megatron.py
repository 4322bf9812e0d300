"""slime and Miles at pinned commits: log-probabilities of scores, with Megatron's functions of megatron-core."""
import importlib

import parity
import pytest
import torch
from flp_reference import doubles
from parity import DTYPES, both, compare, with_gradients

pytestmark = pytest.mark.usefixtures("eager")
MODULES = {"slime": "slime.utils.ppo_utils", "miles": "miles.backends.training_utils.loss_hub.math_utils"}
# Megatron's fused cross entropy, which Miles takes, rounds its gradient to bfloat16.
HOST_GRADIENTS = {"slime": parity.HOST_GRADIENTS, "miles": dict.fromkeys(DTYPES, 4e-3)}


@pytest.fixture(params=list(MODULES))
def host(request):
    pytest.importorskip(MODULES[request.param])
    if request.param == "miles":
        pytest.importorskip("megatron.core")
    return request.param


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("chunk_size", [-1, 5])
def test_scores(host, dtype, entropy, chunk_size, device, one_rank):
    torch.manual_seed(0)
    logits = (torch.randn(13, 501, device=device) * 3).to(dtype).requires_grad_()
    tokens = torch.randint(0, 501, (13,), device=device)
    module = importlib.import_module(MODULES[host])

    def call():
        results = module.calculate_log_probs_and_entropy(logits, tokens, one_rank, with_entropy=entropy,
                                                         chunk_size=chunk_size)
        assert entropy or results[1] is None
        return with_gradients([result for result in results if result is not None], [logits])

    doubled = doubles(logits)
    logp = doubled[0].log_softmax(-1)
    want = [logp.gather(-1, tokens.unsqueeze(-1)), -(logp.exp() * logp).sum(-1)]
    compare(*both(host, call), with_gradients(want[:1 + entropy], doubled), dtype, host_gradients=HOST_GRADIENTS[host])

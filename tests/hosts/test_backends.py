"""flp in official places of trainers: NeMo Automodel 0.7.0's losses, VeOmni 0.1.12's registry of kernels."""
import types

import pytest
import torch
from flp_reference import doubles, problem
from parity import DTYPES, compare, with_gradients
from torch.nn import functional as F

IGNORED = -100


def rows(dtype, device, seed=0):
    """hidden (2,9,64) and head (331,64) that require gradients, labels (2,9) of which some are ignored."""
    hidden, weight, labels, _ = problem(n=18, dtype=dtype, seed=seed)
    labels[::5] = IGNORED
    return (hidden.view(2, 9, -1).to(device).requires_grad_(), weight.to(device).requires_grad_(),
            labels.view(2, 9).to(device))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options, weighted", [({}, False), ({"logit_softcapping": 8.0}, False), ({}, True)])
def test_automodel(dtype, options, weighted, device):
    pytest.importorskip("nemo_automodel")
    from nemo_automodel.components.loss.loss import build_loss_module
    from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
    from nemo_automodel.components.loss.utils import calculate_loss
    from flp.backend.nemo_automodel import CrossEntropy

    hidden, weight, labels = rows(dtype, device)
    model = types.SimpleNamespace(get_output_embeddings=lambda: types.SimpleNamespace(weight=weight))
    more = {"loss_weights": torch.rand(labels.shape, device=device)} if weighted else {}
    loss = build_loss_module(CrossEntropy, **options)

    def capped(scores):
        cap = options.get("logit_softcapping")
        return scores if cap is None else cap * torch.tanh(scores / cap)

    def own(hidden, weight):
        return MaskedCrossEntropy()(capped(hidden @ weight.t()), labels, num_label_tokens=11, **more)

    ours = calculate_loss(loss, model=model, hidden_states=hidden, labels=labels, num_label_tokens=11, **more)
    wide = doubles(hidden, weight)
    each = F.cross_entropy(capped(wide[0] @ wide[1].t()).flatten(0, 1), labels.flatten(), reduction="none")
    want = (each * more["loss_weights"].flatten() if more else each).sum() / 11
    compare(with_gradients([own(hidden, weight)], [hidden, weight]), with_gradients([ours], [hidden, weight]),
            with_gradients([want], wide), dtype)
    with pytest.raises(ValueError, match="num_label_tokens is given .accepted: None with reduction 'mean'"):
        CrossEntropy(reduction="mean")(hidden, labels, weight, num_label_tokens=3)


@pytest.fixture
def slot():
    """The place of VeOmni's models, with flp in it."""
    pytest.importorskip("veomni")
    from veomni.ops.dispatch import OpSlot
    from veomni.ops.kernel_registry import KERNEL_REGISTRY
    from flp.backend import veomni

    kernels = KERNEL_REGISTRY._specs["cross_entropy_loss", "causal"]
    before = dict(kernels)
    veomni.register()
    place = OpSlot("cross_entropy_loss", "causal")
    place.bind("liger_kernel")
    assert place.use_non_eager_impl
    yield place
    kernels.clear()
    kernels.update(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"num_items_in_batch": 23}, {"shifted": True}])
def test_veomni_losses(slot, dtype, options, device):
    from veomni.ops.kernels.cross_entropy import ForCausalLMLoss

    hidden, weight, labels = rows(dtype, device)
    options = dict(options)
    if options.pop("shifted", False):
        options["shift_labels"] = labels.flip(-1)

    def of(loss, hidden, weight):
        return loss(labels=labels, vocab_size=len(weight), hidden_states=hidden, weights=weight, **options)[0]

    wide = doubles(hidden, weight)
    ids = options.get("shift_labels", F.pad(labels[:, 1:], (0, 1), value=IGNORED))
    each = F.cross_entropy((wide[0] @ wide[1].t()).flatten(0, 1), ids.flatten(), reduction="sum")
    want = each / options.get("num_items_in_batch", (ids != IGNORED).sum())
    found = [with_gradients([of(loss, hidden, weight)], [hidden, weight]) for loss in (ForCausalLMLoss, slot)]
    compare(*found, with_gradients([want], wide), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_veomni_log_probabilities(slot, dtype, device):
    from veomni.ops.kernels.cross_entropy import ForCausalLMLoss

    hidden, weight, labels = rows(dtype, device)

    def of(loss):
        *_, found = loss(labels=labels, hidden_states=hidden, weights=weight, return_log_probs=True, temperature=0.7)
        return with_gradients([found.log_probs, found.entropy], [hidden, weight])

    wide = doubles(hidden, weight)
    ids = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    logp = (wide[0] @ wide[1].t() / 0.7).log_softmax(-1)
    kept = (ids != IGNORED).double()
    want = [logp.gather(-1, ids.clamp(min=0)[..., None])[..., 0] * kept, -(logp.exp() * logp).sum(-1) * kept]
    compare(of(ForCausalLMLoss), of(slot), with_gradients(want, wide), dtype)

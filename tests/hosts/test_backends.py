"""flp in official places of trainers: losses of NeMo Automodel 0.7.0 and xtuner 1.0.1, kernels of VeOmni 0.1.12."""
import importlib
import types

import pytest
import torch
from flp_reference import doubles, problem
from parity import DTYPES, bare, compare, note_test, stub, stubs, with_gradients
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
    note_test("NeMo Automodel")
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
    note_test("VeOmni")
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


# What xtuner reads configurations, logs and starts workers with: no loss calls it.
XTUNER_ABSENT = ("addict", "cyclopts", "loguru", "mmengine", "mmengine.dist", "ray", "xtuner.v1.rl.base.controller",
                 "xtuner.v1.rl.base.worker")


def of_xtuner(*names):
    """Modules of xtuner, or of flp that import it; the test is skipped where there is none, or the xtuner of PyPI."""
    pytest.importorskip("xtuner.v1")
    note_test("xtuner")
    with stubs(**{name.replace(".", "__"): stub() for name in XTUNER_ABSENT}):
        bare("xtuner.v1.model")  # of which a loss takes utils alone
        return [importlib.import_module(name) for name in ("xtuner.v1.model.utils", *names)][1:]


def micro_batches(config, dtype, device, **more):
    """xtuner's contexts of two micro-batches (1,9), their hidden states (1,9,64) and its head (331,64)."""
    (lm_head,) = of_xtuner("xtuner.v1.module.lm_head.lm_head")
    hidden, weight, labels = rows(dtype, device)
    head = lm_head.LMHead(weight.shape[1], weight.shape[0], bias=False, dtype=dtype, device=device)
    head.weight = torch.nn.Parameter(weight.detach())
    contexts = [config.build({name: each[i:i + 1] for name, each in {"shifted_labels": labels, **more}.items()})
                for i in range(2)]
    for context in contexts:
        context.loss_kwargs.to(device)
    return contexts, hidden, head


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"mode": "chunk", "chunk_size": 4}, {"loss_reduction": "square"}])
def test_xtuner_cross_entropy(dtype, options, device):
    ours, theirs, mtp = of_xtuner("flp.backend.xtuner", "xtuner.v1.loss.ce_loss", "xtuner.v1.loss.mtp_loss")
    assert mtp.MTPLossConfig(**ours.CELossConfig(**options).model_dump(), mtp_depth=1)  # as xtuner's MoE models do
    lengths = [torch.tensor([0, 4, 9], dtype=torch.int32)] * 2

    def of(config):
        contexts, hidden, head = micro_batches(config, dtype, device)
        contexts = config.loss_ctx_cls.build_batches(contexts, cu_seq_lens_list=lengths)
        losses = [head(hidden[i:i + 1], context)[0] for i, context in enumerate(contexts)]
        return with_gradients(losses, [hidden, head.weight]), [context.loss_kwargs.loss_weight for context in contexts]

    (own, weights), (found, _) = of(theirs.CELossConfig(**options)), of(ours.CELossConfig(**options))
    hidden, weight, labels = rows(dtype, device)
    wide = doubles(hidden, weight)
    each = F.cross_entropy((wide[0] @ wide[1].t()).flatten(0, 1), labels.flatten(), reduction="none").view(2, 9)
    compare(own, found, with_gradients(list((each * torch.cat(weights)).sum(1)), wide), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"mode": "chunk", "chunk_size": 4},
                                     {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "low_var_kl"}])
def test_xtuner_grpo(dtype, options, device):
    ours, theirs, functions = of_xtuner("flp.backend.xtuner_rl", "xtuner.v1.rl.grpo.loss", "xtuner.v1.rl.loss_fn")
    policy = {"cliprange_low": 0.2, "cliprange_high": 0.3}
    hidden, weight, labels = rows(dtype, device)
    wide = doubles(hidden, weight)
    logprob = (wide[0] @ wide[1].t()).log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    # No ratio is near an edge of the clipping, where rounding of the scores would choose the side.
    moved = torch.tensor([0.05, -0.05, 0.7, -0.7, 1.5], device=device).repeat(4)[:18].view(2, 9)
    given = {"advantages": torch.linspace(-1, 1, 18, device=device).view(2, 9),
             "old_logprobs": logprob.detach().float() - moved, "ref_logprobs": logprob.detach().float() + 0.3}

    def of(config):
        contexts, hidden, head = micro_batches(config, dtype, device, **given)
        contexts = config.loss_ctx_cls.build_batches(contexts)
        found = [head(hidden[i:i + 1], context) for i, context in enumerate(contexts)]
        got = with_gradients([loss for loss, _ in found], [hidden, head.weight])
        got.update(("ratio %d" % i, more["max_ratio"].detach().max()) for i, (_, (_, more)) in enumerate(found))
        return got, contexts[0].loss_kwargs.policy_loss_weight.max()

    (own, each), (found, _) = [of(module.GRPOLossConfig(policy_loss_cfg=policy, **options))
                               for module in (theirs, ours)]
    kept = (labels != IGNORED) * each.double()
    losses = []
    for i in range(2):
        loss = functions.get_policy_loss_fn("vanilla")(logprob[i], given["old_logprobs"][i].double(),
                                                       given["advantages"][i], kept[i], policy)
        if options.get("use_kl_loss"):
            loss = loss + functions.kl_penalty(logprob[i], given["ref_logprobs"][i].double(), 0.1 * kept[i], "k3")
        losses.append(loss)
    want = with_gradients(losses, wide)
    want.update(("ratio %d" % i, (moved[i].double().exp() * (kept[i] > 0)).max()) for i in range(2))
    compare(own, found, want, dtype)

"""Adapters of trainers that compare a student's head with a teacher's, on stand-in hosts: TRL; and, of scores that
exist, speculators and NeMo-RL."""
import flp_hosts
import pytest
import torch
from flp_reference import DEVICE, doubles, relative

import flp_exact_pair
from test_flp_adapters import agrees, counted, hosts, installed, partitioned  # noqa: F401

SEAM = "trl.kernels.chunked_divergence.ChunkedDivergenceFunction.apply"
LOSS = "trl.trainer.distillation_trainer._chunked_divergence_loss"
# Of each beta the same divergence as flp names it.
KINDS = [(0.0, "forward_kl", {}), (1.0, "reverse_kl", {}), (0.5, "jsd", {"mix": 0.5}), (0.1, "jsd", {"mix": 0.1})]


def heads(n=13, vocab=331, depth=24, teacher_depth=16):
    """hidden, weight and bias of the student and of the teacher"""
    draw = torch.Generator().manual_seed(0)
    return [(torch.randn(shape, generator=draw) * size).to(DEVICE) for each in (depth, teacher_depth)
            for shape, size in (((n, each), 1), ((vocab, each), 2 / each**0.5), ((vocab,), 1))]


def exact(tensors, kind, parameters, temperature=1.0, scale=1.0, softcap=None, teacher_scale=1.0, teacher_softcap=None):
    names = [whose + name for whose in ("", "teacher_") for name in ("hidden", "weight", "bias")]
    found = flp_exact_pair.divergence(
        kind=kind, parameters=parameters, temperature=temperature, scale=scale, softcap=softcap,
        teacher_scale=teacher_scale, teacher_softcap=teacher_softcap,
        **{name: None if tensor is None else tensor.cpu() for name, tensor in zip(names, tensors)})
    return found["value"].to(DEVICE), found["entropy"].to(DEVICE)


def function(hosts):  # noqa: F811
    return installed(hosts, "trl", "trl.kernels.chunked_divergence").ChunkedDivergenceFunction


@pytest.mark.parametrize("options", [(), (0.7,), (1.3, 0.8, 5.0, 1.2, 7.0)], ids=str)
@pytest.mark.parametrize("beta, kind, parameters", KINDS)
def test_trl_two_heads(hosts, beta, kind, parameters, options):  # noqa: F811
    tensors = heads()
    doubled = doubles(*(tensor.requires_grad_() for tensor in tensors))
    value, entropy = function(hosts).apply(*tensors, beta, *options)
    wanted = exact(doubled, kind, parameters, *options)
    agrees(value, wanted[0]), agrees(entropy, wanted[1])
    assert not entropy.requires_grad
    rows = torch.linspace(-1, 2, len(value), device=DEVICE)
    (value * rows).sum().backward()
    (wanted[0] * rows).sum().backward()
    for tensor, double in zip(tensors[:3], doubled):
        assert relative(tensor.grad, double.grad) < 1e-5
    assert all(tensor.grad is None for tensor in tensors[3:])
    assert counted("trl", SEAM) == ({"diverge": 1}, {})


def test_trl_rounds_a_float32_head_beside_16_bits(hosts):  # noqa: F811
    tensors = heads()
    tensors[0], tensors[3], tensors[4] = (tensors[at].bfloat16() for at in (0, 3, 4))
    narrow = [tensor.bfloat16().double() for tensor in tensors]
    inputs = [tensor.requires_grad_() for tensor in tensors[:3]]
    value, entropy = function(hosts).apply(*tensors, 1.0)
    wanted = exact(narrow, "reverse_kl", {})
    agrees(value, wanted[0]), agrees(entropy, wanted[1])
    gradients = torch.autograd.grad(value.sum(), inputs)
    assert [gradient.dtype for gradient in gradients] == [tensor.dtype for tensor in inputs]


def test_trl_two_heads_of_no_rows(hosts):  # noqa: F811
    tensors = heads(n=0)
    value, entropy = function(hosts).apply(*tensors[:1], tensors[1].requires_grad_(), *tensors[2:], 0.5)
    (gradient,) = torch.autograd.grad(value.sum(), tensors[1])
    assert value.shape == entropy.shape == (0,) and not gradient.any()


@pytest.mark.parametrize("change, reason", [
    ({"beta": 1e-5}, "beta is 1e-05 (accepted: 0, 1 and 0.001 to 0.999)"),
    ({"beta": 1.5}, "beta is 1.5"),
    ({0: lambda hidden: hidden.double()}, "hidden is of dtype torch.float64"),
    ({1: partitioned}, "weight is partitioned by DeepSpeed's ZeRO-3"),
    ({4: partitioned}, "in the teacher, weight is partitioned by DeepSpeed's ZeRO-3"),
    ({4: lambda weight: weight[:300], 5: lambda bias: None}, "the teacher has 300 tokens, the student 331"),
], ids=str)
def test_trl_two_heads_that_stay_the_hosts(hosts, logged, change, reason):  # noqa: F811
    tensors = [change.get(at, lambda tensor: tensor)(tensor) for at, tensor in enumerate(heads())]
    assert function(hosts).apply(*tensors, change.get("beta", 0.5)) == "host"
    (text,) = [text for _, text in logged if "its own" in text]
    assert reason in text
    ran, own = counted("trl", SEAM)
    assert not ran and sum(own.values()) == 1 and reason in next(iter(own))


def loss_of(hosts, tensors, mask, beta, *more, **options):  # noqa: F811
    trainer = installed(hosts, "trl", "trl.trainer.distillation_trainer")
    states = [tensors[at].view(*mask.shape, -1) for at in (0, 3)]
    return trainer._chunked_divergence_loss(*states, tensors[1], tensors[4], mask, beta, *more, tensors[2], tensors[5],
                                            **options)


@pytest.mark.parametrize("items", [None, 29, torch.tensor(29)], ids=str)
@pytest.mark.parametrize("beta, kind, parameters", KINDS)
def test_trl_distillation_loss(hosts, beta, kind, parameters, items):  # noqa: F811
    """Gradients are made in the call, and times the upstream gradient when it comes."""
    tensors, mask = heads(), (torch.arange(13, device=DEVICE) % 3 > 0).long().view(1, 13)
    doubled = doubles(*(tensor.requires_grad_() for tensor in tensors))
    loss, entropy, count = loss_of(hosts, tensors, mask, beta, items, temperature=0.7, student_logit_scale=0.8,
                                   student_final_logit_softcapping=5.0)
    value, entropies = exact(doubled, kind, parameters, 0.7, 0.8, 5.0)
    want = (value * mask[0]).sum() / (items or 8)
    agrees(loss, want), agrees(entropy / 8, (entropies * mask[0]).sum() / 8)
    assert count.item() == 8 and not entropy.requires_grad
    (3 * loss).backward()
    (3 * want).backward()
    for tensor, double in zip(tensors[:3], doubled):
        assert relative(tensor.grad, double.grad) < 1e-5
    assert counted("trl", LOSS) == ({"diverge": 1}, {}) and counted("trl", SEAM) == ({}, {})


@pytest.mark.parametrize("change, reason", [
    ({"dtype": torch.float16}, "gradients in float16 would be made before the loss scaler multiplies the loss"),
    ({"beta": 1e-5}, "beta is 1e-05 (accepted: 0, 1 and 0.001 to 0.999)"),
    ({4: partitioned}, "in the teacher, weight is partitioned by DeepSpeed's ZeRO-3"),
], ids=str)
def test_trl_distillation_losses_that_stay_the_hosts(hosts, logged, change, reason):  # noqa: F811
    tensors = [change.get(at, lambda tensor: tensor)(tensor.to(change.get("dtype", torch.float32)))
               for at, tensor in enumerate(heads())]
    mask = torch.ones(1, 13, device=DEVICE)
    assert loss_of(hosts, tensors, mask, change.get("beta", 0.5), None) == "host"
    assert counted("trl", LOSS) == ({}, {reason: 1})
    (text,) = [text for _, text in logged if "its own" in text]
    assert reason in text


FUSED = "speculators.losses.fused"
LOSSES = [("kl_div", "forward_kl", {}), ("reverse_kl_div", "reverse_kl", {}), ("js_div", "jsd", {}),
          ("tv", "total_variation", {}), ("nla", "neg_log_acceptance", {"acceptance_min": 1e-5}),
          ("lk_hybrid", "lk", {"decay": 1.5})]


def scores(dtype=torch.float32):
    draw = torch.Generator().manual_seed(0)
    return [(2 * torch.randn(1, 13, 331, generator=draw)).to(dtype).to(DEVICE) for _ in range(2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name, kind, parameters", LOSSES)
def test_speculators_losses(hosts, name, kind, parameters, dtype):  # noqa: F811
    loss = getattr(installed(hosts, "speculators", FUSED), "fused_%s_loss" % name)
    logits, targets = (tensor.requires_grad_() for tensor in scores(dtype))
    doubled = logits.detach().double().requires_grad_()
    value = loss(logits, targets, **({"eta": 1.5} if kind == "lk" else {}))
    want = flp_exact_pair.selective_divergence(doubled.cpu(), targets.detach().double().cpu(), kind=kind,
                                               parameters=parameters)["value"].to(DEVICE)
    agrees(value, want)
    value.sum().backward(), want.sum().backward()
    assert relative(logits.grad, doubled.grad) < (1e-5 if dtype is torch.float32 else 4e-3) and targets.grad is None
    assert logits.grad.dtype is dtype
    assert counted("speculators", "%s.fused_%s_loss" % (FUSED, name)) == ({"diverge": 1}, {})


@pytest.mark.parametrize("dtype, options, reason", [
    (torch.float64, {}, "logits is of dtype torch.float64"),
    (torch.float32, {"eta": -1.0}, "eta is -1 (accepted: from 0)")])
def test_speculators_losses_that_stay_the_hosts(hosts, dtype, options, reason):  # noqa: F811
    module = installed(hosts, "speculators", FUSED)
    assert module.fused_lk_hybrid_loss(*scores(dtype), **options) == "host"
    assert counted("speculators", FUSED + ".fused_lk_hybrid_loss") == ({}, {reason: 1})


NEMO_RL = "nemo_rl.algorithms.loss.loss_functions"
FULL = NEMO_RL + ".CrossTokenizerDistillationLossFn._direct_full_vocab_kl"
SOFT = "nemo_rl.distributed.model_utils.DistributedCrossEntropy.apply"
ONE_RANK, TWO_RANKS = (flp_hosts.module_of(size=lambda ranks=ranks: ranks) for ranks in (1, 2))


def full_vocab_kl(hosts, student, teacher, reverse=False, tp_group=None):  # noqa: F811
    loss = installed(hosts, "nemo-rl", NEMO_RL).CrossTokenizerDistillationLossFn(1.3, reverse)
    mask = torch.arange(13, device=DEVICE) % 3 > 0
    return loss._direct_full_vocab_kl(student, teacher, mask, 8, tp_group=tp_group, cp_group=None)


@pytest.mark.parametrize("tp_group", [None, ONE_RANK], ids=["none", "one rank"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reverse, kind", [(False, "forward_kl"), (True, "reverse_kl")])
def test_nemo_rl_kl_of_a_shared_vocabulary(hosts, reverse, kind, dtype, tp_group):  # noqa: F811
    """The teacher has five tokens more, which the student's head lacks."""
    student, teacher = scores(dtype)
    wide = torch.nn.functional.pad(teacher.float(), (0, 5), value=9.0)
    doubled = student.double().requires_grad_()
    loss = full_vocab_kl(hosts, student.requires_grad_(), wide, reverse, tp_group)
    value = flp_exact_pair.selective_divergence(doubled.cpu(), teacher.double().cpu(), kind=kind,
                                                temperature=1.3)["value"].to(DEVICE)
    want = (value * (torch.arange(13, device=DEVICE) % 3 > 0)).sum() / 8 * 1.3**2
    agrees(loss, want)
    loss.backward(), want.backward()
    assert relative(student.grad, doubled.grad) < (1e-5 if dtype is torch.float32 else 4e-3)
    assert counted("nemo-rl", FULL) == ({"diverge": 1}, {})


class Sharded(torch.Tensor):
    """No plain tensor, as a DTensor is none."""


@pytest.mark.parametrize("change, group, reason", [
    (lambda student, teacher: (student.as_subclass(Sharded), teacher), None, "student_logits is of type Sharded"),
    (lambda student, teacher: (student, teacher.double()), None, "teacher_logits is of dtype torch.float64"),
    (lambda student, teacher: (student, teacher.requires_grad_()), None, "teacher_logits need a gradient"),
    (lambda student, teacher: (student, teacher), TWO_RANKS, "the vocabulary is spread over several ranks"),
], ids=["sharded", "float64", "gradient", "two ranks"])
def test_nemo_rl_divergences_that_stay_the_hosts(hosts, change, group, reason):  # noqa: F811
    assert full_vocab_kl(hosts, *change(*scores()), tp_group=group) == "host"
    assert counted("nemo-rl", FULL) == ({}, {reason: 1})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nemo_rl_soft_cross_entropy_of_a_draft(hosts, dtype):  # noqa: F811
    apply = installed(hosts, "nemo-rl", "nemo_rl.distributed.model_utils").DistributedCrossEntropy.apply
    student, target = (tensor.requires_grad_() for tensor in scores(dtype))
    doubled = student.detach().double().requires_grad_()
    value = apply(student, target, ONE_RANK, False)
    want = -(target.detach().double().softmax(-1) * doubled.log_softmax(-1)).sum(-1)
    agrees(value, want)
    rows = torch.linspace(-1, 2, 13, device=DEVICE)
    (value * rows).sum().backward(), (want * rows).sum().backward()
    assert relative(student.grad, doubled.grad) < (1e-5 if dtype is torch.float32 else 4e-3) and target.grad is None
    assert not apply(student, target, ONE_RANK, True).requires_grad and apply(student, target, TWO_RANKS) == "host"
    assert counted("nemo-rl", SOFT) == ({"diverge": 2}, {"the vocabulary is spread over several ranks": 1})

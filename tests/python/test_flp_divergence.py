"""flp.divergence and flp.divergence_loss on the CPU: values beside float64 and beside the formulas of other libraries,
bits, which gradients are made, and what is refused."""
import math

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

import flp
import flp_exact_pair
from flp_pair_peers import liger, trl
from flp_reference import DEVICE, DTYPES, GRAD_TOLERANCE, relative, rounds_by_place

N, V, D, E = 13, 331, 24, 16
KINDS = list(flp.losses.DIVERGENCES)
STUDENT = ("hidden", "weight", "bias")
needs_func = pytest.mark.skipif(not hasattr(torch, "func"), reason="torch before 2.0 has no torch.func")


def problem(n=N, vocab=V, dtype=torch.float32, seed=0, trained=True):
    """The tensors of both heads, by name; those of the student require gradients. Scores deviate by near 2."""
    draw = torch.Generator().manual_seed(seed)
    shapes = {"hidden": (n, D), "weight": (vocab, D), "bias": (vocab,), "teacher_hidden": (n, E),
              "teacher_weight": (vocab, E), "teacher_bias": (vocab,)}
    found = {}
    for name, shape in shapes.items():
        size = 2 / shape[1]**0.5 if name.endswith("weight") else 1
        found[name] = (size * torch.randn(shape, generator=draw)).to(dtype).to(DEVICE)
        found[name].requires_grad_(trained and name in STUDENT)
    return found


def own_teacher(given):
    """Both heads are the student's."""
    return {**given, **{"teacher_" + name: given[name] for name in STUDENT}}


def exact(**given):
    """What flp_exact_pair finds, and leaves in float64 by name."""
    wide = {name: value.detach().cpu().double() for name, value in given.items() if isinstance(value, torch.Tensor)}
    leaves = {name: wide[name].requires_grad_() for name in STUDENT if name in wide}
    return flp_exact_pair.divergence(**{**given, **wide}), leaves


def gradients(given, function=flp.divergence, **options):
    """Of the student's tensors, by one backward pass of rows that count differently."""
    found = function(**given, **options)
    if function is flp.divergence:
        rows = torch.linspace(1, 2, found.value.numel(), device=DEVICE).view(found.value.shape)
        return torch.autograd.grad((found.value * rows).sum(), [given[name] for name in STUDENT])
    return torch.autograd.grad(found[0], [given[name] for name in STUDENT])


EXACT = ("forward_kl", "reverse_kl", "jsd", "total_variation")


def is_nothing(kind, gradient):
    """0, or where a divergence adds more than shares of a token what float64 rounds."""
    return gradient.abs().max() <= (0 if kind in EXACT else 1e-14)


# ---- values ----

@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_teacher_that_is_the_head_pulls_nowhere(kind, dtype):
    given = own_teacher(problem(dtype=dtype, seed=7))
    capped = {"softcap": 5.0, "scale": 1.2, "teacher_softcap": 5.0, "teacher_scale": 1.2}
    for options in ({}, {"temperature": 0.7, **capped}):
        found = flp.divergence(kind=kind, **given, **options)
        assert found.value.abs().max() < 1e-6 and found.agrees.all()
        assert torch.equal(found.lse, found.teacher_lse) and (found.acceptance - 1).abs().max() < 1e-6
        assert abs(flp.divergence_loss(kind=kind, **given, **options)[0].item()) < 1e-6
        for function in (flp.divergence, flp.divergence_loss):
            assert all(is_nothing(kind, gradient) for gradient in gradients(given, function, kind=kind, **options))


def test_a_teacher_that_is_a_copy_of_the_head_pulls_nowhere():
    given = problem()
    copied = {**given, **{"teacher_" + name: given[name].detach().clone() for name in STUDENT}}
    for kind in KINDS:
        assert all(is_nothing(kind, gradient) for gradient in gradients(copied, kind=kind))


@pytest.mark.parametrize("apart", [0.0, 1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("sharpness", [1, 16, 256])
def test_what_is_never_below_0_is_not(sharpness, apart):
    """Rows from flat ones to nearly certain ones, whose teacher is near or is another."""
    given = problem(n=40, trained=False)
    given["hidden"] *= torch.linspace(0, sharpness, 40, device=DEVICE)[:, None]
    given.update(own_teacher(given), teacher_hidden=given["hidden"] * (1 + apart * torch.randn(40, D).to(DEVICE)))
    for kind in KINDS:
        found = flp.divergence(kind=kind, **given)
        assert (found.value >= 0).all() and (found.entropy >= 0).all()
        assert ((found.acceptance >= 0) & (found.acceptance <= 1)).all()
    assert (flp.divergence(kind="total_variation", **given).value <= 1).all()


def dyadic(**given):
    """Operands whose scores float32 holds exactly, in whatever order they are summed: what is off is of the rest."""
    return {name: ((8 * value.detach().float()).round() / 8).to(value.dtype).requires_grad_(name in STUDENT)
            for name, value in problem(seed=3, **given).items()}


@pytest.mark.parametrize("temperature", [1e-3, 0.1, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_beside_float64(kind, temperature):
    given = dyadic()
    found = flp.divergence(kind=kind, temperature=temperature, **given)
    want, leaves = exact(kind=kind, temperature=torch.tensor(temperature).item(), **given)
    for name in ("value", "lse", "teacher_lse", "entropy", "acceptance"):
        got = getattr(found, name)
        assert got.dtype is torch.float32 and got.requires_grad == (name == "value")
        torch.testing.assert_close(got.detach().cpu().double(), want[name].detach(), atol=1e-5, rtol=3e-7)
    assert torch.equal(found.agrees.cpu(), want["agrees"] == 1)
    found.value.sum().backward()
    want["value"].sum().backward()
    for name, leaf in leaves.items():
        if leaf.grad.abs().max() > 1e-6:  # of distributions that have nothing in common, a variation has none
            assert relative(given[name].grad.cpu(), leaf.grad) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_sums_over_several_tiles(kind):
    """More rows and more columns than a tile of the torch form has."""
    given = problem(n=300, vocab=4099, seed=6)
    found, (want, leaves) = flp.divergence(kind=kind, **given), exact(kind=kind, **given)
    for name in ("value", "lse", "teacher_lse", "entropy", "acceptance"):
        got = getattr(found, name).detach().cpu().double()
        torch.testing.assert_close(got, want[name].detach(), atol=1e-5, rtol=1e-6)
    assert torch.equal(found.agrees.cpu(), want["agrees"] == 1) and found.agrees.dtype is torch.bool
    found.value.sum().backward()
    want["value"].sum().backward()
    for name, leaf in leaves.items():
        assert relative(given[name].grad.cpu(), leaf.grad) < 1e-5


def test_small_divergences_keep_their_digits():
    """Of nearly equal scores: a difference of log-sum-exps would lose them."""
    given = dyadic()
    for kind in ("forward_kl", "reverse_kl", "jsd", "skew_kl"):
        found = flp.divergence(kind=kind, temperature=1e3, **given)
        want, _ = exact(kind=kind, temperature=1e3, **given)
        assert want["value"].max() < 1e-4
        torch.testing.assert_close(found.value.cpu().double(), want["value"], atol=0, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_central_differences(kind):
    """Independent of the reference's derivative. Steps of 2^-8 lose h² ≈ 2e-5; b of lk is a constant to a gradient."""
    given = problem(n=2, vocab=19, seed=5)
    options = {"temperature": 0.8, "softcap": 6.0, "scale": 1.2, "parameters": {"decay": 0.0} if kind == "lk" else None}

    def total(**changed):
        return flp.divergence(kind=kind, **{**given, **changed}, **options).value.double().sum()

    total().backward()
    for name in STUDENT:
        for element in range(0, given[name].numel(), 7):
            moved = []
            for step in (2.0**-8, -2.0**-8):
                copy = given[name].detach().clone()
                copy.view(-1)[element] += step
                moved.append(total(**{name: copy}).item())
            difference = (moved[0] - moved[1]) * 2.0**7
            assert given[name].grad.view(-1)[element].item() == pytest.approx(difference, abs=2e-3)


# ---- formulas of other libraries, over scores that exist ----

def scores(given):
    """log q and log p in float64, and their leaves."""
    leaves = {name: value.detach().cpu().double().requires_grad_(name in STUDENT) for name, value in given.items()}
    logs = [torch.log_softmax(leaves[part + "hidden"] @ leaves[part + "weight"].t() + leaves[part + "bias"], -1)
            for part in ("", "teacher_")]
    return logs[0], logs[1], leaves


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("peer", [liger, trl])
def test_jsd_is_that_of_peers(peer, beta):
    given = problem(seed=11)
    loss, metrics = flp.divergence_loss(kind="jsd", parameters={"mix": beta}, **given)
    log_q, log_p, leaves = scores(given)
    want = peer(log_q, log_p, beta)
    assert loss.item() == pytest.approx(want.item(), abs=1e-5) == metrics["jsd"].item()
    loss.backward()
    want.backward()
    for name in STUDENT:
        assert relative(given[name].grad.cpu(), leaves[name].grad) < GRAD_TOLERANCE[torch.float32]


@pytest.mark.parametrize("kind, source, other", [("forward_kl", 1, 0), ("reverse_kl", 0, 1)])
def test_peers_name_the_ends_of_jsd_so(kind, source, other):
    """beta 0 of Liger and TRL is forward_kl, 1 is reverse_kl."""
    given = problem(seed=12)
    logs = scores(given)[:2]
    want = torch.nn.functional.kl_div(logs[other], logs[source], reduction="batchmean", log_target=True)
    assert flp.divergence_loss(kind=kind, **given)[0].item() == pytest.approx(want.item(), abs=1e-5)


# ---- bits ----

def rows_of(given, rows, **options):
    """What some rows give, as one tensor (5, rows)."""
    some = {**given, **{name: given[name][rows] for name in ("hidden", "teacher_hidden")}}
    found = flp.divergence(**some, **options)
    assert found.agrees.dtype is torch.bool
    return torch.stack([*found[:5], found.agrees.float()]).detach()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("make", [dyadic, problem])
def test_a_row_does_not_know_its_neighbours(make, dtype):
    if make is problem and rounds_by_place():
        pytest.skip("this processor's BLAS rounds a row by its place in a product")
    given, every = make(n=300, vocab=3001, dtype=dtype), torch.arange(300)
    whole = rows_of(given, every)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    assert torch.equal(rows_of(given, order), whole[:, order])
    for rows in (every[:1], every[77:78], every[299:], every[100:107]):
        assert torch.equal(rows_of(given, rows), whole[:, rows])
    mask = every % 3 != 0
    kept = rows_of(given, every, mask=mask.to(DEVICE))
    assert torch.equal(kept[:, mask], whole[:, mask]) and not kept[:, ~mask].any()


def test_budgets_change_no_bit_of_values():
    given, every = problem(n=300, vocab=3001), torch.arange(300)
    whole = rows_of(given, every)
    for budget in (2**28, "512M", 2**31):
        assert torch.equal(rows_of(given, every, budget=budget), whole)


def test_budgets_give_the_same_gradients():
    given = problem(n=300, vocab=3001)
    want = gradients(given)
    for budget in (2**28, 2**31):
        for got, other in zip(gradients(given, budget=budget), want):
            assert relative(got, other) < 1e-6


def test_with_and_without_gradients():
    given = problem()
    with_gradients = rows_of(given, slice(None))
    with torch.no_grad():
        found = flp.divergence(**given)
        loss, metrics = flp.divergence_loss(**given)
    assert torch.equal(torch.stack([*found[:5], found.agrees.float()]), with_gradients)
    assert not any(values.requires_grad for values in (*found, loss, *metrics.values()))
    trained, more = flp.divergence_loss(**given)
    assert torch.equal(trained, loss) and all(torch.equal(more[name], metrics[name]) for name in metrics)


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_do_not_depend_on_gradients_or_weights(kind):
    """They are means of the rows of the mask, whatever a row counts in the loss."""
    given, mask = problem(), torch.arange(N, device=DEVICE) % 4 != 1
    weights = torch.linspace(0, 1, N, device=DEVICE).masked_fill(torch.arange(N, device=DEVICE) % 3 == 0, 0)
    found = flp.divergence(kind=kind, mask=mask, **given)
    means = {name: values.float()[mask].mean().item() for name, values in (
        (kind, found.value), ("entropy", found.entropy), ("acceptance", found.acceptance), ("agreement", found.agrees))}
    for row_weight in (None, weights):
        for enabled in (True, False):
            with torch.set_grad_enabled(enabled):
                _, metrics = flp.divergence_loss(kind=kind, mask=mask, row_weight=row_weight, **given)
            assert {name: value.item() for name, value in metrics.items()} == pytest.approx(means, rel=1e-6)


def test_strides_change_nothing():
    given, want = problem(), gradients(problem())
    moved = {name: torch.stack([value.detach(), value.detach()], -1)[..., 0].requires_grad_(name in STUDENT)
             for name, value in given.items()}
    assert not moved["weight"].is_contiguous()
    assert torch.equal(rows_of(moved, slice(None)), rows_of(given, slice(None)))
    assert all(torch.equal(got, other) for got, other in zip(gradients(moved), want))


# ---- gradients ----

@pytest.mark.parametrize("name", STUDENT)
def test_only_gradients_that_are_asked_for_are_made(name):
    given = problem()
    want = dict(zip(STUDENT, gradients(given)))
    rows, buffer = torch.linspace(1, 2, N, device=DEVICE), torch.zeros(V, D, device=DEVICE)
    value = flp.divergence(grad_weight_accumulate=None if name == "weight" else buffer, **given).value
    got, = torch.autograd.grad((value * rows).sum(), [given[name]])
    assert torch.equal(got, want[name]) and all(given[other].grad is None for other in STUDENT)
    # Before torch 2.0 a backward pass cannot know that the weight's gradient is of no use.
    assert bool(buffer.any()) == (name != "weight" and not hasattr(torch._C, "_will_engine_execute_node"))
    for function in (flp.divergence, flp.divergence_loss):
        alone = {**given, **{other: given[other].detach() for other in STUDENT if other != name}}
        found = function(**alone)
        (found.value.sum() if function is flp.divergence else found[0]).backward()
        assert given[name].grad is not None and all(alone[other].grad is None for other in STUDENT if other != name)
        given[name].grad = None


def test_the_teacher_is_a_constant():
    given = problem()
    want = gradients(given)
    trained = {**given, **{"teacher_" + name: given["teacher_" + name].clone().requires_grad_() for name in STUDENT}}
    for function in (flp.divergence, flp.divergence_loss):
        found = function(**trained)
        (found.value.sum() if function is flp.divergence else found[0]).backward()
        assert all(trained["teacher_" + name].grad is None for name in STUDENT)
    assert all(torch.equal(got, other) for got, other in zip(gradients(trained), want))
    alone = {**trained, **{name: trained[name].detach() for name in STUDENT}}
    assert not flp.divergence(**alone).value.requires_grad and not flp.divergence_loss(**alone)[0].requires_grad


def test_a_teacher_over_the_same_weight_is_a_constant():
    """The weight gets the student's part alone."""
    given = problem(seed=4)
    given.update(teacher_hidden=given["hidden"].detach().flip(0), teacher_weight=given["weight"])
    apart = {**given, "teacher_weight": given["weight"].detach().clone()}
    assert all(torch.equal(got, want) for got, want in zip(gradients(given), gradients(apart)))


@pytest.mark.parametrize("kind", ["reverse_kl", "lk"])
def test_a_second_backward_pass_gives_the_same(kind):
    given = problem()
    value, leaves = flp.divergence(kind=kind, **given).value, [given[name] for name in STUDENT]
    first = torch.autograd.grad(value.sum(), leaves, retain_graph=True)
    again = torch.autograd.grad(value.sum(), leaves, retain_graph=True)
    double = torch.autograd.grad(2 * value.sum(), leaves)
    assert all(torch.equal(mine, other) for mine, other in zip(first, again))
    assert all(torch.equal(2 * mine, other) for mine, other in zip(first, double))


def test_there_is_no_second_derivative():
    given = problem()
    gradient, = torch.autograd.grad(flp.divergence(**given).value.sum(), [given["hidden"]], create_graph=True)
    with pytest.raises(RuntimeError, match=r"^flp\.divergence has no second derivative "):
        gradient.sum().backward()


def test_the_loss_hands_its_gradients_out_once():
    loss, _ = flp.divergence_loss(**problem())
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r"^flp\.divergence_loss hands its gradients out once "):
        loss.backward()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_mean_of_divergence(kind, dtype):
    given, mask = problem(dtype=dtype), torch.arange(N, device=DEVICE) % 4 != 1
    weights = torch.linspace(0, 1, N, device=DEVICE)
    leaves = [given[name] for name in STUDENT]
    for options, shares in (({}, torch.ones(N) / N), ({"mask": mask}, mask / mask.sum()),
                            ({"mask": mask, "total": 40}, mask / 40), ({"row_weight": weights}, weights)):
        loss, metrics = flp.divergence_loss(kind=kind, **given, **options)
        value = flp.divergence(kind=kind, mask=options.get("mask"), **given).value
        want = (value * shares.to(DEVICE)).sum()
        assert loss.dtype is torch.float32 and loss.dim() == 0
        assert loss.item() == pytest.approx(want.item(), rel=1e-6)
        assert list(metrics) == [kind, "entropy", "acceptance", "agreement"]
        assert not any(value.requires_grad for value in metrics.values())
        for mine, other in zip(torch.autograd.grad(3 * loss, leaves), torch.autograd.grad(3 * want, leaves)):
            assert relative(mine, other.double()) < GRAD_TOLERANCE[dtype]


def test_losses_of_micro_batches_add_up():
    given, mask = problem(n=12), torch.arange(12, device=DEVICE) % 4 != 1
    whole = gradients(given, flp.divergence_loss, mask=mask)
    parts = []
    for rows in (slice(0, 5), slice(5, 12)):
        some = {**given, **{name: given[name][rows] for name in ("hidden", "teacher_hidden")}}
        loss, _ = flp.divergence_loss(mask=mask[rows], total=mask.sum(), **some)
        parts.append(torch.autograd.grad(loss, [given[name] for name in STUDENT]))
    for got, want in zip(zip(*parts), whole):
        assert relative(sum(got), want) < 1e-6


# ---- rows that are bad, and rows outside the mask ----

def counted():
    try:
        flp.check(DEVICE)
    except flp.DataError as error:
        return int(str(error).split()[0])
    return 0


@pytest.mark.parametrize("function", [flp.divergence, flp.divergence_loss])
def test_bad_temperatures_are_reported_once(function):
    given, bad = problem(), torch.tensor([0.0, -1.0, math.nan, math.inf, 1e-40], device=DEVICE)
    temperature, other = (torch.ones(N, device=DEVICE) for _ in range(2))
    temperature[:5] = bad
    other[3:8] = bad
    mask = torch.arange(N, device=DEVICE) != 7
    found = function(temperature=temperature, teacher_temperature=other, mask=mask, **given)
    assert counted() == 7 and counted() == 0
    (found.value.sum() if function is flp.divergence else found[0]).backward()
    assert counted() == 0, "the backward pass counts them again"
    assert given["hidden"].grad[:7].isnan().all() and not given["hidden"].grad[7].any()
    if function is flp.divergence:
        assert not given["hidden"].grad[8:].isnan().any() and not given["weight"].grad.isnan().any()
        assert all(values[:7].isnan().all() and not values[7] for values in found[:5]) and not found.agrees[:8].any()


def test_rows_outside_the_mask_reach_nothing():
    given, mask = problem(), torch.arange(N, device=DEVICE) % 4 != 1
    want = gradients(given, flp.divergence_loss, mask=mask)
    spoilt = {**given, **{name: given[name].detach().masked_fill(~mask[:, None], value) for name, value in (
        ("hidden", math.nan), ("teacher_hidden", math.inf))}}
    spoilt["hidden"].requires_grad_()
    temperature = torch.ones(N, device=DEVICE).masked_fill(~mask, -1)
    got = gradients(spoilt, flp.divergence_loss, mask=mask, temperature=temperature)
    assert all(torch.equal(mine, other) for mine, other in zip(got, want)) and not got[0][~mask].any()
    assert counted() == 0


def test_a_call_in_inference_mode_spoils_no_later_one():
    given = problem(trained=False)
    flp.clear_plans()
    with torch.inference_mode():
        flp.divergence(**given)
    flp.divergence(**given)
    assert counted() == 0


def test_gradients_of_fp16_wait_for_the_scale_of_the_loss():
    given = problem(n=600, dtype=torch.float16)
    loss, _ = flp.divergence_loss(**{**given, "hidden": given["hidden"] / 16})
    (2**16 * loss).backward()
    assert all((given[name].grad == 0).float().mean() < 1e-3 for name in STUDENT)


# ---- payloads ----

def payload_of(given, **options):
    student = {name: given[name].detach() for name in ("weight", "bias")}
    teacher = {"teacher_" + name: given["teacher_" + name] for name in STUDENT}
    return student, flp.divergence_payload(**student, **teacher, **options)


def test_a_payload_of_another_mask_or_head_is_nothing():
    given, mask = problem(), torch.arange(N, device=DEVICE) % 4 != 1
    student, payload = payload_of(given, mask=mask)
    found = flp.divergence(given["hidden"], kind="forward_kl", payload=payload, **student)
    assert torch.equal(found.value.isnan(), ~mask)
    student, payload = payload_of(given)
    other = payload._replace(mean=3 * payload.mean + 100 * given["hidden"].detach())
    assert flp.divergence(given["hidden"], kind="forward_kl", payload=other, **student).value.isnan().all()


def test_a_payload_follows_autocast_as_the_student_does():
    given = problem(trained=False)
    given.update({"teacher_" + name: given[name] for name in STUDENT})
    with torch.autocast(DEVICE.split(":")[0], torch.bfloat16):
        student, payload = payload_of(given)
        found = flp.divergence(given["hidden"], kind="forward_kl", payload=payload, **student)
    assert found.value.max() < 1e-5


# ---- what is refused; tests/golden/refused/python/divergence.txt has more ----

@pytest.mark.parametrize("function", [flp.divergence, flp.divergence_loss, flp.explain_divergence])
@pytest.mark.parametrize("part", ["", "teacher_"])
def test_depths_are_multiples_of_8(function, part):
    given = problem(trained=False)
    given.update({name: given[name][:, :12] for name in (part + "hidden", part + "weight")})
    with pytest.raises((ValueError, flp.FlpError), match=r"12\) .*a multiple of 8"):
        function(**given)


def refused(words, function, *arguments):
    with pytest.raises(flp.errors.UnsupportedError, match=words):
        function(*arguments)


@pytest.mark.parametrize("name", ["divergence", "divergence_loss"])
def test_dual_tensors_are_refused(name):
    given, function = problem(trained=False), getattr(flp, name)
    words = r"^flp\.%s does not support forward-mode derivatives" % name
    with forward_ad.dual_level():
        for field in (*STUDENT, "teacher_hidden", "teacher_weight", "teacher_bias"):
            dual = forward_ad.make_dual(given[field], torch.ones_like(given[field]))
            refused(words, lambda: function(**{**given, field: dual}))


@needs_func
@pytest.mark.parametrize("name", ["divergence", "divergence_loss"])
def test_transforms_of_torch_func_are_refused(name):
    given, function = problem(trained=False), getattr(flp, name)

    def total(hidden):
        return function(**{**given, "hidden": hidden})[0].sum()

    first = given["hidden"]
    refused(r"^flp\.%s does not support the transforms of torch\.func \(accepted: torch\.autograd" % name,
            torch.func.grad(total), first)
    refused(r"^flp\.%s does not support" % name, torch.func.jvp, total, (first,), (first,))
    refused(r"^flp\.%s does not support torch\.func\.vmap" % name, torch.vmap(total), torch.stack([first] * 2))

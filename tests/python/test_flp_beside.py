"""flp.policy_loss with a reference beside what makes no row of a list: hooks of saved tensors, no gradients, a
reference that is the policy, files, memory that is shared, backward passes."""
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import flp
from flp_beside import BESIDES, HEAD, OLD, row
from flp_calls import FUNCTIONS
from flp_cases import DIVERGENCES, computed
from flp_options import BF16, BUFFER, TEMPERATURES, case
from flp_problem import Problem
from flp_reference import GRAD_TOLERANCE, relative

REVERSE = """return {loss = function(row)
  local p, q = row.teacher_logprob, row.target_logprob
  return row.weight * sum(where(gt(exp(q), 0), exp(q) * (q - p), 0))
end}"""
SOME = [*BESIDES[::9], *(row for row in BESIDES if "grad_weight_accumulate" in row.options)]


def same(some, others):
    return all(torch.equal(some[name].nan_to_num(0.5), others[name].nan_to_num(0.5)) if some[name] is not None
               else others[name] is None for name in some)


def call(row, **more):
    """A row's loss and metrics by names, and its Problem."""
    problem = Problem(row, wide=False)
    function, _, operands = FUNCTIONS[row.function]
    return function(**{**problem.given({**operands, **row.options}), **more}), problem


# ---- the same bits ----

@pytest.mark.parametrize("one", SOME, ids=str)
def test_hooks_of_saved_tensors_change_no_bit(engine, one):
    """A buffer gets its gradient in the backward pass then, of a step that runs there."""
    found, gradients, bad = computed(one, wide=False)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
        others = computed(one, wide=False)
    assert same(found, others[0]) and same(gradients, others[1]) and bad == others[2]
    with torch.no_grad():
        without = call(one)[0]
    assert same(without, {name: values.detach() for name, values in found.items()})
    assert not without["loss"].requires_grad


@pytest.mark.parametrize("more", [{}, {**BUFFER, "grad_scale": 4.0}], ids=str)
def test_checkpoints_add_to_a_buffer_once(engine, more):
    one = row(rule="grpo", **OLD, **more)
    found, gradients, _ = computed(one, wide=False)
    problem = Problem(one, wide=False)
    _, _, operands = FUNCTIONS[one.function]
    given = problem.given({**operands, **one.options})
    given.update(reference=flp.Reference(**given["reference"]))
    loss = checkpoint(lambda hidden: flp.policy_loss(**{**given, "hidden": hidden})[0], given.pop("hidden"),
                      use_reentrant=False)
    (loss * more.get("grad_scale", 1.0)).backward()
    assert torch.equal(loss, found["loss"]) and torch.equal(problem.hidden.grad, gradients["hidden"])
    assert torch.equal(problem.buffer if more else problem.weight.grad, gradients["buffer" if more else "weight"])


@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.parametrize("options", [{}, BF16, {"softcap": 5.0, "scale": 1.2, "entropy_weight": 0.1}, TEMPERATURES],
                         ids=str)
def test_a_reference_that_is_the_policy_pulls_nowhere(engine, kind, options):
    capped = {name: options[name] for name in ("softcap", "scale") if name in options}
    own = {**HEAD, "hidden": "@hidden", "weight": "@weight", "bias": "@bias", "kind": kind, "coefficient": 100.0}
    rows = case("policy_loss", rule="ppo", **OLD, **options), row(rule="ppo", of={**own, **capped}, **OLD, **options)
    (found, gradients, _), (others, also, _) = (computed(each, wide=False) for each in rows)
    assert abs(others["metric " + kind]) < 1e-6 and others["metric agreement"] == 1
    assert others["loss"].item() == pytest.approx(found["loss"].item(), abs=1e-4)
    for name in ("hidden", "weight", "bias"):
        assert relative(also[name], gradients[name]) < (GRAD_TOLERANCE[torch.bfloat16] if options is BF16 else 3e-6)


def test_a_reference_is_a_constant(engine):
    given = call(row(**OLD))[1]
    head = [values.clone().requires_grad_() for values in (given.teacher_hidden, given.teacher_weight)]
    found, problem = call(row(**OLD), reference=dict(zip(HEAD, head)))
    found["loss"].backward()
    assert [values.grad for values in head] == [None, None] and problem.hidden.grad.any()


# ---- files ----

@pytest.fixture
def file(tmp_path, monkeypatch):
    def made(name):
        (tmp_path / name).write_text(REVERSE)
        return str(tmp_path / name)
    monkeypatch.setenv("FLP_JIT_LIBRARY", flp.library_path().replace("libflp.so", "libflpgen.so"))
    return made


@pytest.mark.parametrize("options", [{}, BF16, {**TEMPERATURES, "softcap": 6.0}], ids=str)
def test_a_kind_of_a_file_is_what_it_states(file, options):
    rows = [row(rule="dapo", of={"kind": kind, "coefficient": 0.5}, **OLD, **options)
            for kind in ("reverse_kl", file("mine.lua"))]
    (want, exact, _), (found, gradients, _) = (computed(each, wide=False) for each in rows)
    assert found.pop("metric mine").item() == pytest.approx(want.pop("metric reverse_kl").item(), rel=1e-5)
    assert all(found[name].item() == pytest.approx(want[name].item(), rel=1e-5, abs=1e-6) for name in want)
    for name in ("hidden", "weight", "bias"):
        assert relative(gradients[name], exact[name]) < GRAD_TOLERANCE[rows[0].dtype]


@pytest.mark.parametrize("name", ["kl", "policy_loss", "ratio", "clip_fraction", "entropy", "acceptance"])
def test_a_file_takes_no_name_of_another_metric(file, name):
    with pytest.raises(ValueError, match=r"reference\.kind is .*a file of another name than the metrics"):
        call(row(of={"kind": file(name + ".lua")}, **OLD))


@pytest.mark.parametrize("of", ["lse", "mean_score"])
def test_losses_of_all_scores_are_refused(tmp_path, file, of):
    file("any.lua")
    (tmp_path / "rule.lua").write_text("return {loss = function(row) return row.weight * row.%s end}" % of)
    with pytest.raises(ValueError, match="reference is given with a loss that reads " + of):
        call(row(rule=str(tmp_path / "rule.lua"), **{**OLD, "old_logprob": None}))


# ---- memory, backward passes ----

def test_memory_of_a_reference_is_no_buffer():
    problem = call(row(**OLD))[1]
    buffer = torch.zeros_like(problem.weight.detach())
    with pytest.raises(ValueError, match=r"grad_weight_accumulate is at addresses .* those of reference\.weight"):
        call(row(of={"hidden": "@hidden"}, **OLD), grad_weight_accumulate=buffer,
             reference={"hidden": problem.hidden.detach(), "weight": buffer})
    with pytest.raises(flp.BudgetError, match="budget is 1 bytes"):
        call(row(budget=1, **OLD))


def test_one_backward_pass():
    found, problem = call(row(**OLD))
    with pytest.raises(RuntimeError, match="no second derivative"):
        first, = torch.autograd.grad(found["loss"], problem.hidden, create_graph=True)
        torch.autograd.grad(first.sum(), problem.hidden)
    found, problem = call(row(**OLD))
    found["loss"].backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="hands its gradients out once"):
        found["loss"].backward()

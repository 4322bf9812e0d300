"""flpgen loss: every built-in loss against its published formula in float64 torch and against flp.losses, values and
derivatives, ties included; its kernel, run on the CPU, against the reference; files of users; errors."""
import math
import os
from pathlib import Path

import numpy
import pytest
import torch

import flp
from flp_loss_kernel import INPUTS, Kernel, any_loss, needs_emit, needs_llc
from flpgen_tool import flpgen, needs_flpgen, succeed

pytestmark = needs_flpgen

TREE = Path(os.environ.get("FLP_TEST_TREE", Path(__file__).parents[2]))
EVERY_WORD = TREE / "tests/golden/losses/every_word.lua"
POLICIES = ["reinforce", "ppo", "grpo", "dapo", "dr_grpo", "cispo"]
KINDS = ["k1", "k2", "k3"]
SUMS = ["nll", "nll+entropy", "grpo+k3+token_entropy"] + POLICIES + [
    f"{policy}+{kind}+entropy" for policy in POLICIES for kind in KINDS]
TIES = ["--set", "clip_low=0", "--set", "clip_high=0"]


def checked(text, *options):
    """The document of `flpgen loss check --json`, which must pass."""
    return succeed("loss", "check", text, "--json", *options).json()


def columns(rows, part):
    """name -> (n) float64 of what each row holds under inputs, parameters or metrics."""
    return {name: torch.tensor([row[part][name] for row in rows], dtype=torch.float64) for name in rows[0][part]}


def column(rows, name):
    return torch.tensor([row[name] for row in rows], dtype=torch.float64)


# ---- the published formulas, a row each ----

def clipped(x, p):
    ratio = torch.exp(x["logprob"] - x["old_logprob"])
    low, high = 1 - p["clip_low"], 1 + p["clip_high"]
    return -torch.minimum(ratio * x["advantage"], torch.clamp(ratio, low, high) * x["advantage"])


def cispo(x, p):
    ratio = torch.exp(x["logprob"] - x["old_logprob"]).detach()
    return -torch.clamp(ratio, 1 - p["clip_low"], 1 + p["clip_high"]) * x["advantage"] * x["logprob"]


FORMULAS = {
    "nll": lambda x, p: -x["logprob"],
    "reinforce": lambda x, p: -x["advantage"] * x["logprob"],
    "ppo": clipped, "grpo": clipped, "dapo": clipped, "dr_grpo": clipped, "cispo": cispo,
    "k1": lambda x, p: p["beta"] * (x["logprob"] - x["ref_logprob"]),
    "k2": lambda x, p: p["beta"] * (x["logprob"] - x["ref_logprob"])**2 / 2,
    "k3": lambda x, p: p["beta"] * (torch.exp(x["ref_logprob"] - x["logprob"]) - 1 + x["logprob"] - x["ref_logprob"]),
    "entropy": lambda x, p: -p["entropy_weight"] * x["entropy"],
    "token_entropy": lambda x, p: -p["entropy_weight"] * x["entropy"] * x["token_share"],  # in place of the weight
}


def weighted(term):
    """The term of a row as it counts in the loss."""
    if term == "token_entropy":
        return lambda x, p: FORMULAS[term](x, p) * (x["weight"] != 0)
    return lambda x, p: FORMULAS[term](x, p) * x["weight"]


def assert_rows_are(rows, formula):
    x, p = columns(rows, "inputs"), columns(rows, "parameters")
    leaves = [x[name].requires_grad_() for name in ("logprob", "entropy") if name in x]
    loss = formula(x, p)
    found = torch.autograd.grad(loss.sum(), leaves)
    scale = 1 + loss.detach().abs()
    assert ((column(rows, "loss") - loss.detach()).abs() <= 1e-12 * scale).all()
    names = [name for name in ("logprob", "entropy") if name in x]
    for name, want in zip(names, found):
        assert ((column(rows, f"grad_{name}") - want).abs() <= 1e-11 * scale * (1 + want.abs())).all(), name
    if "entropy" not in x:
        assert (column(rows, "grad_entropy") == 0).all()


@pytest.mark.parametrize("text", SUMS)
def test_builtins_are_their_published_formulas(text):
    options = ["--set", "beta=0.04"] * ("+k" in text) + ["--set", "entropy_weight=0.01"] * ("entropy" in text)
    document = checked(text, *options)
    assert document["failed"] == 0 and document["name"] == text
    assert_rows_are(document["rows"], lambda x, p: sum(weighted(term)(x, p) for term in text.split("+")))


@pytest.mark.parametrize("text", ["ppo", "cispo"])
def test_ties_at_the_boundary_are_those_of_torch(text):
    """With bounds of 0 a ratio of 1 lies on both of them."""
    rows = [row for row in checked(text, *TIES)["rows"] if row["parameters"] == {"clip_low": 0, "clip_high": 0}]
    tied = [row for row in rows if row["inputs"]["logprob"] == row["inputs"]["old_logprob"]]
    assert len(tied) > 30 and len(tied) < len(rows)
    assert_rows_are(tied, weighted(text))
    for row in tied:
        assert row["grad_logprob"] == pytest.approx(-row["inputs"]["weight"] * row["inputs"]["advantage"])


def is_beside_a_bound(row):
    """Where the float32 of flp.losses may see the other side."""
    x, p = row["inputs"], row["parameters"]
    ratio = math.exp(x["logprob"] - x["old_logprob"]) if "old_logprob" in x else 1
    return "clip_low" in p and min(abs(ratio - 1 + p["clip_low"]), abs(ratio - 1 - p["clip_high"])) < 1e-5 * ratio


@pytest.mark.first(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", POLICIES)
def test_builtins_are_those_of_flp_losses(policy, kind):
    """Each row as a sequence of one token with the same parameters; weight is what the averages of flp.losses make."""
    own = flp.losses.RULES[policy].clip
    document = checked(f"{policy}+{kind}+entropy", "--set", "beta=0.3", "--set", "entropy_weight=0.2")
    defaults = {"beta": 0.3, "entropy_weight": 0.2}
    if policy != "reinforce":
        defaults.update(clip_low=own[0], clip_high=own[1])
    rows = [row for row in document["rows"] if row["parameters"] == defaults and row["inputs"]["weight"] > 0 and
            not is_beside_a_bound(row)]
    assert len(rows) > 400
    x = {name: value.float()[:, None] for name, value in columns(rows, "inputs").items()}
    x["logprob"].requires_grad_(), x["entropy"].requires_grad_()
    loss, metrics = flp.losses.policy_loss(policy, x["logprob"], x["advantage"], old_logprob=x.get("old_logprob"),
                                           ref_logprob=x["ref_logprob"], entropy=x["entropy"], beta=0.3, kl_kind=kind,
                                           entropy_weight=0.2, length=1)
    by_logprob, by_entropy = torch.autograd.grad(loss * len(rows), [x["logprob"], x["entropy"]])
    weight = x["weight"].double()
    for name, found in (("grad_logprob", by_logprob), ("grad_entropy", by_entropy)):
        want = column(rows, name)[:, None] / weight
        assert torch.allclose(found.double(), want, rtol=2e-5, atol=2e-5), name
    assert loss.item() == pytest.approx((column(rows, "loss")[:, None] / weight).mean().item(), rel=1e-4)
    for name, value in columns(rows, "metrics").items():
        assert metrics[name].item() == pytest.approx(value.mean().item(), rel=1e-4, abs=1e-6), name


def test_list_names_defaults_and_sources():
    listed = {loss["name"]: loss for loss in flpgen("loss", "list", "--json").json()}
    assert set(listed) == set(FORMULAS) | set(flp.losses.DIVERGENCES) | {"cross_entropy", "z_loss"}
    for policy in POLICIES:
        defaults = {parameter["name"]: parameter["default"] for parameter in listed[policy]["parameters"]}
        own = flp.losses.RULES[policy].clip
        assert defaults == ({} if policy == "reinforce" else {"clip_low": own[0], "clip_high": own[1]})
        assert listed[policy]["source"] and listed[policy]["formula"]
    text = flpgen("loss", "list").out
    assert all(name in text for name in listed) and "arXiv:2402.03300" in text


def test_values_of_all_scores_have_derivatives():
    """Each row beside the formula by hand."""
    checked = flpgen("loss", "check", "cross_entropy", "--rows", "60", "--set", "label_smoothing=0.1", "--set",
                     "z_loss=0.01", "--json").json()
    assert checked["failed"] == 0 and checked["by_lse"] and checked["by_mean_score"] and not checked["by_entropy"]
    for row in checked["rows"]:
        given, e, z = row["inputs"], row["parameters"]["label_smoothing"], row["parameters"]["z_loss"]
        loss = -(1 - e) * given["logprob"] + e * (given["lse"] - given["mean_score"]) + z * given["lse"] ** 2
        assert row["loss"] == pytest.approx(given["weight"] * loss, rel=1e-9, abs=1e-12)
        assert row["grad_lse"] == pytest.approx(given["weight"] * (e + 2 * z * given["lse"]), rel=1e-9, abs=1e-12)
        assert row["grad_mean_score"] == pytest.approx(-given["weight"] * e, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", flp.losses.DIVERGENCES)
def test_losses_over_targets_are_checked_and_shown(name):
    checked = flpgen("loss", "check", name, "--rows", "60", "--json").json()
    assert checked["failed"] == 0 and "teacher_logprob" in checked["inputs"]


# ---- kernels ----

@pytest.fixture(scope="module", params=["compiled", pytest.param("any", marks=needs_emit)])
def kernel_of(request, tmp_path_factory):
    """A loss compiled, and as data of the kernel that ships."""
    def build(text):
        document = flpgen("loss", "show", text, "--emit", "ir", "--json").json()
        kernel = (document["ir"],) if request.param == "compiled" else any_loss(document["bytes"])
        return Kernel(kernel[0], len(document["metrics"]), tmp_path_factory.mktemp("kernel"), *kernel[1:])
    return build


def near(found, want):
    """Equal but for the rounding to float32 and the last bits of exp and log."""
    want = numpy.asarray(want, dtype=numpy.float64)
    return (numpy.abs(found - want) <= 1.3e-7 * numpy.abs(want) + 1e-12 * (1 + numpy.abs(want).max())).all()


@pytest.mark.first(4)
@needs_llc
@pytest.mark.parametrize("text", ["nll", "ppo", "cispo+k1", "reinforce+k2", "dapo+k3+entropy", str(EVERY_WORD)])
def test_kernels_compute_what_the_reference_does(text, kernel_of):
    kernel, document = kernel_of(text), checked(text)
    names = [parameter["name"] for parameter in document["parameters"]]
    defaults = {parameter["name"]: parameter["default"] for parameter in document["parameters"]}
    vectors = [name for name in document["inputs"] if name not in INPUTS]
    rows = [row for row in document["rows"] if row["parameters"] == defaults]
    assert len(rows) > 400
    x = {name: value.numpy() for name, value in columns(rows, "inputs").items()}
    loss, by_logprob, by_entropy, metrics = kernel(x, [x[name] for name in vectors], [defaults[name] for name in names])
    assert near(loss, column(rows, "loss")) and near(by_logprob, column(rows, "grad_logprob"))
    assert near(by_entropy, column(rows, "grad_entropy"))
    for i, name in enumerate(document["metrics"]):
        assert near(metrics[i], columns(rows, "metrics")[name]), name


@needs_llc
def test_kernels_take_ties_and_missing_arrays_as_the_reference_does(kernel_of):
    kernel = kernel_of("ppo")
    logprob, advantage = numpy.array([-1, -2, -3, -4]), numpy.array([1, -2, 0.5, 0])
    x = {"logprob": logprob, "advantage": advantage}
    loss, by_logprob, by_entropy, metrics = kernel(x, [], [0, 0])
    assert (by_logprob == -advantage).all() and (loss == -advantage).all() and (by_entropy == 0).all()
    assert (metrics == numpy.array([[0], [0], [1]])).all()
    far = kernel({**x, "old_logprob": logprob - 800, "weight": numpy.array([1, 1, 1, 0])}, [], [0.2, 0.2])
    assert numpy.isinf(far[3][2, :3]).all(), "the ratio overflows as in float32"
    assert far[0][3] == far[1][3] == 0 and (far[3][:, 3] == 0).all(), "a row of weight 0 has nothing"
    assert far[1].tolist()[1] == numpy.inf and far[1].tolist()[0] == 0


@needs_llc
def test_kernels_derive_by_the_bounds_of_clamp_too(kernel_of, tmp_path):
    """Bounds in every order, also crossed; the reference itself against finite differences."""
    path = tmp_path / "bounds.lua"
    path.write_text("return function(row) return clamp(2 * row.advantage, row.logprob + 6, row.entropy - 4) end\n")
    rows = checked(str(path))["rows"]
    x = {name: value.numpy() for name, value in columns(rows, "inputs").items()}
    middle, low, high = 2 * x["advantage"], x["logprob"] + 6, x["entropy"] - 4
    orders = {tuple(order) for order in numpy.argsort([middle, low, high], axis=0).T.tolist()}
    loss, by_logprob, by_entropy, _ = kernel_of(str(path))(x, [], [])
    assert len(orders) == 6 and near(loss, numpy.minimum(numpy.maximum(middle, low), high))
    cut = (middle > high) | (high < low)
    assert (by_entropy == cut).all() and (by_logprob == (~cut & (middle < low))).all()
    assert near(by_logprob, column(rows, "grad_logprob")) and near(by_entropy, column(rows, "grad_entropy"))


@needs_llc
def test_kernels_take_logarithms_of_any_double(kernel_of, tmp_path):
    path = tmp_path / "logarithm.lua"
    path.write_text("return function(row) return row.logprob * log(row.advantage ^ 8) end\n")
    given = numpy.array([1e-39, 1e-30, 1, 1e38, 0, numpy.inf], dtype=numpy.float32)  # 1e-39^8 is subnormal
    loss, _, _, _ = kernel_of(str(path))({"logprob": numpy.ones(6), "advantage": given}, [], [])
    with numpy.errstate(divide="ignore"):
        assert near(loss[:4], numpy.log(given[:4].astype(numpy.float64)**8))
    assert loss[4:].tolist() == [-numpy.inf, numpy.inf]


@needs_llc
def test_kernels_keep_nan_in_its_row(kernel_of):
    kernel = kernel_of(str(EVERY_WORD))
    x = {name: numpy.full(3, 0.5) for name in INPUTS}
    x["logprob"] = numpy.array([-1, numpy.nan, -1])
    loss, by_logprob, _, _ = kernel(x, [numpy.ones(3), numpy.ones(3)], [2, -1])
    assert numpy.isnan(loss).tolist() == [False, True, False]
    assert loss[0] == loss[2] and by_logprob[0] == by_logprob[2]


# ---- files of users ----

def test_a_file_is_checked_and_added_to(tmp_path):
    path = tmp_path / "soft_clip.lua"
    path.write_text("""
return {
  parameters = {sharpness = {default = 4, min = 0}}, vectors = {"reward"},
  loss = function(row, p)
    local ratio = exp(clamp(row.logprob - row.old_logprob, -5, 5))
    local gate = detach(1 / (1 + exp(-p.sharpness * (ratio - 1))))
    return -row.weight * gate * ratio * row.reward, {gate = gate}
  end,
}
""")
    document = checked(f"{path}+k3", "--set", "sharpness=2")
    assert document["name"] == "soft_clip+k3" and document["failed"] == 0 and 0 < document["worst"] < 1
    assert document["inputs"] == ["logprob", "old_logprob", "ref_logprob", "weight", "reward"]
    assert [parameter["name"] for parameter in document["parameters"]] == ["sharpness", "beta"]
    assert document["by_logprob"] and not document["by_entropy"]

    def formula(x, p):
        ratio = torch.exp(torch.clamp(x["logprob"] - x["old_logprob"], -5, 5))
        gate = torch.sigmoid(p["sharpness"] * (ratio - 1)).detach()
        return (-gate * ratio * x["reward"] + FORMULAS["k3"](x, p)) * x["weight"]
    assert_rows_are(document["rows"], formula)
    text = flpgen("loss", "check", path)
    assert text.code == 0 and "1024, 0 failed" in text.out and "gate" in text.out


def test_functions_of_math_take_values(tmp_path):
    """Those that are words of a loss; of numbers alone they are Lua's."""
    words, functions = (tmp_path / name / "a.lua" for name in ("words", "functions"))
    text = "return {parameters = {cap = %(m)smax(1, 2)}, loss = function(row, p)\n" \
           "  return %(w)smin(%(w)sexp(row.logprob), p.cap) * %(w)sabs(row.logprob) end}\n"
    for path, w in ((words, ""), (functions, "math.")):
        path.parent.mkdir()
        path.write_text(text % {"m": "math.", "w": w})
    shown = [flpgen("loss", "show", path, "--json").json() for path in (words, functions)]
    assert shown[0]["bytes"] == shown[1]["bytes"] and shown[1]["parameters"][0]["default"] == 2


def test_a_derivative_that_is_not_finite_fails(tmp_path):
    path = tmp_path / "root.lua"
    path.write_text("return function(row) local d = row.logprob - row.old_logprob return sqrt(d * d) end")
    done = flpgen("loss", "check", path)
    assert done.code == 1 and "d loss/d logprob is" in done.err and "nan" in done.err
    assert " 0 failed" not in done.out
    faults = [row["fault"] for row in flpgen("loss", "check", path, "--json").json()["rows"]]
    assert any(faults) and None in faults


# ---- rows at the limits of what training produces ----

def boundary_of(tmp_path, text, *options):
    """The exit status, the message and the document's part of a loss that is this expression of row."""
    path = tmp_path / "edge.lua"
    path.write_text(f"return {{vectors = {{'reward'}}, loss = function(row) return {text} end}}\n")
    done = flpgen("loss", "check", path, "--json", *options)
    return done.code, done.err, done.json()["boundary"]


@pytest.mark.parametrize("text, message", [
    ("-row.weight * log(1 - exp(row.logprob))", "boundary row (logprob 0, weight 1): the loss is inf"),
    ("sqrt(-row.logprob)", "boundary row (logprob 0): d loss/d logprob is inf"),
    ("log(-row.logprob)", "boundary row (logprob 0): the loss is -inf"),
    ("-exp(-row.logprob)", "boundary row (logprob -100): the loss is -2.68812e+43"),  # finite in float64 alone
    ("row.logprob * log(row.entropy)", "boundary row (logprob 0, entropy 0): the loss is nan"),
    ("row.logprob / row.entropy", "boundary row (logprob 0, entropy 0): the loss is nan"),
    ("row.logprob * exp(row.advantage)", "boundary row (logprob 0, advantage 10000): the loss is nan"),
    ("row.logprob / row.reward", "boundary row (logprob 0, reward 0): the loss is nan"),
    ("row.logprob * log(row.ref_logprob / (row.old_logprob - 1))",
     "boundary row (logprob 0, old_logprob 0, ref_logprob 0): the loss is nan"),
    ("exp(4 * (row.logprob - row.old_logprob)) * row.advantage", "old_logprob -20, advantage 10000): the loss is 5.5"),
])
def test_a_loss_that_is_not_finite_at_a_limit_fails(tmp_path, text, message):
    code, error, found = boundary_of(tmp_path, text, "--rows", "5")
    assert code == 1 and message in error
    assert 0 < found["failed"] <= found["rows"] and len(found["faults"]) == min(found["failed"], 64)
    assert found["faults"][0]["fault"] in error or "of 5 rows and" in error


@pytest.mark.parametrize("text", [
    "-row.weight * log(1 - exp(min(row.logprob, -0.01)))", "row.logprob * sqrt(row.entropy + 1e-6)",
    "-row.weight * exp(clamp(row.logprob - row.old_logprob, -20, 20)) * row.advantage",
    "-exp(detach(clamp(row.logprob - row.ref_logprob, -20, 20))) * row.logprob",
    "row.logprob * exp(min(row.advantage, 20))", "row.logprob / row.weight"])  # a row of weight 0 has no loss
def test_a_loss_that_minds_its_limits_passes(tmp_path, text):
    code, error, found = boundary_of(tmp_path, text)
    assert code == 0, error
    assert found["rows"] >= 12 and found["failed"] == found["overflows"] == 0 and found["overflow_nats"] is None


@pytest.mark.parametrize("text, nats", [("ppo", 80), ("cispo", 100), ("k3", 100), ("reinforce+k2+entropy", None)])
def test_ratios_that_overflow_are_counted(text, nats):
    found = checked(text, "--set", "beta=0.1")["boundary"] if "k" in text else checked(text)["boundary"]
    assert found["failed"] == 0 and found["overflow_nats"] == (nats and pytest.approx(nats, abs=1e-6))
    assert (found["overflows"] > 0) == (nats is not None)
    if nats:
        assert f"where logprobs differ by {nats} nats or more: boundary row (" in flpgen("loss", "check", text).out


def test_show_prints_everything(tmp_path):
    done = flpgen("loss", "show", "grpo+k3")
    assert done.code == 0
    for word in ("row.ref_logprob", "p.clip_low", "clamp", "loss = %", "kl = %", "arXiv:2402.03300", "gradients"):
        assert word in done.out
    document = flpgen("loss", "show", "grpo+k3", "--json").json()
    assert bytes.fromhex(document["bytes"])[:4] == b"FLPL" and len(document["sha256"]) == 64
    assert ".entry flp_loss_rows" in flpgen("loss", "show", "grpo", "--emit", "ptx").out

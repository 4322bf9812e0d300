"""The generated kernels of selective log-softmax, run on the CPU from their IR, against float64."""
import functools

import numpy
import pytest
import torch

from flp_cpu_kernel import Kernel, needs_llc
from flpgen_tool import flpgen, needs_flpgen

pytestmark = [needs_flpgen, needs_llc]
THREADS = 256
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}
IGNORED = -100


@functools.lru_cache(maxsize=None)
def kernels(folder, dtype, vocab, entropy, alignment):
    """-> select, select_grad"""
    made = flpgen("gen", "--op", "select", "--dtype", dtype, "--vocab", vocab, "--entropy", entropy, "--alignment", alignment,
                  "--emit", "ir")
    assert made.code == 0, made.err
    out = []
    for entry in ("select", "select_grad"):
        place = folder / f"{entry}-{dtype}-{vocab}-{entropy}-{alignment}"
        place.mkdir()
        out.append(Kernel(made.out, entry, THREADS, place))
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


class Problem:
    """Scores with a gap behind each row, targets and upstream gradients, and what comes out, poisoned."""

    def __init__(self, dtype, n, vocab, k, temperature=1.0):
        generator = torch.Generator().manual_seed(vocab)
        self.dtype, self.n, self.vocab, self.k, self.temperature = DTYPES[dtype], n, vocab, k, temperature
        self.stride = -(-(vocab + 1) // 8) * 8
        self.number = torch.float64 if dtype == "fp64" else torch.float32
        self.scores = torch.full((n, self.stride), float("nan"), dtype=self.dtype)
        self.scores[:, :vocab] = torch.randn(n, vocab, generator=generator, dtype=torch.float64).mul(3).to(self.dtype)
        self.target = torch.randint(0, vocab, (n, k), generator=generator)
        self.g = torch.randn(n, k, generator=generator, dtype=torch.float64).to(self.number)
        self.e = torch.randn(n, generator=generator, dtype=torch.float64).mul(0.3).to(self.number)
        self.logprob, self.entropy, self.stats = (
            torch.full(shape, float("nan"), dtype=self.number) for shape in ((n, k), (n,), (n, 3)))
        self.grad = self.scores.clone().fill_(float("nan"))
        self.errors = torch.zeros(1, dtype=torch.int32)

    def memory(self, tensor):
        return tensor.view(torch.int16).numpy() if tensor.dtype is torch.bfloat16 else tensor.numpy()

    def run(self, folder, entropy="backward", alignment=16, in_place=False):
        name = next(name for name, dtype in DTYPES.items() if dtype is self.dtype)
        forward, backward = kernels(folder, name, self.vocab, entropy, alignment)
        m = self.memory
        common = (m(self.scores), self.stride, m(self.target), self.k, self.vocab, IGNORED, 1 / self.temperature)
        forward(self.n, *common, m(self.logprob), m(self.entropy) if entropy != "none" else None, m(self.stats), m(self.errors))
        out = self.scores if in_place else self.grad
        backward(self.n, *common, m(self.logprob), m(self.stats), m(self.g), m(self.e) if entropy == "backward" else None,
                 m(out), self.stride)
        self.grad = out

    def expected(self, with_entropy_gradient=True):
        """In float64 -> logprob, entropy, gradient; rows of which all is ignored give 0."""
        z = self.scores[:, :self.vocab].double().clamp_min(-1e5).requires_grad_()  # torch makes NaN of -inf in entropies
        wanted = self.target != IGNORED
        ids = torch.where(wanted, self.target, torch.zeros_like(self.target))
        logp = torch.log_softmax(z / self.temperature, -1)
        logprob = torch.where(wanted, logp.gather(-1, ids), torch.zeros((), dtype=torch.float64))
        p = logp.exp()
        entropy = -torch.where(p > 0, p * logp, torch.zeros_like(p)).sum(-1)
        loss = (logprob * self.g).sum() + (entropy * self.e).sum() * with_entropy_gradient
        return logprob.detach(), entropy.detach(), torch.autograd.grad(loss, z)[0]


def check(problem, expected, entropy="backward"):
    logprob, wanted_entropy, grad = expected
    wide = problem.number is torch.float64
    unit = 1e-13 if wide else 3e-6
    assert (problem.logprob.double() - logprob).abs().max() < unit
    if entropy != "none":
        assert (problem.entropy.double() - wanted_entropy).abs().max() < 4 * unit
    got = problem.grad[:, :problem.vocab].double()
    rounding = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}.get(problem.dtype, unit)
    assert (got - grad).norm() <= rounding * grad.norm()
    assert problem.grad[:, problem.vocab:].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n,vocab,k,entropy,temperature", [
    (3, 7, 2, "backward", 1.0), (2, 2051, 3, "backward", 0.7), (2, 16384, 1, "none", 1.0), (2, 8200, 1, "forward", 1.3)])
def test_values_and_gradients(folder, dtype, n, vocab, k, entropy, temperature):
    problem = Problem(dtype, n, vocab, k, temperature)
    expected = problem.expected(entropy == "backward")
    problem.run(folder, entropy)
    check(problem, expected, entropy)
    assert problem.errors.item() == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place_and_element_by_element_give_the_same_bits(folder, dtype):
    apart, in_place, single = (Problem(dtype, 3, 2051, 2) for _ in range(3))
    apart.run(folder)
    in_place.run(folder, in_place=True)
    single.run(folder, alignment=apart.scores.element_size())
    for other in (in_place, single):
        for name in ("logprob", "entropy", "stats"):
            assert torch.equal(getattr(apart, name), getattr(other, name))
        assert torch.equal(apart.grad[:, :2051], other.grad[:, :2051])


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp64"])
def test_targets_that_are_ignored_bad_or_the_same(folder, dtype):
    problem = Problem(dtype, 5, 300, 4)
    problem.target[0] = IGNORED
    problem.e[0] = 0
    problem.target[1, 2] = IGNORED
    problem.target[2, 1:] = problem.target[2, 0]
    problem.g[3], problem.e[3] = 0, 0                       # nothing asked of the row
    expected = problem.expected()
    expected[1][0] = 0
    problem.target[4, 1] = 300
    problem.run(folder)
    assert problem.errors.item() == 1 and problem.logprob[4].isnan().tolist() == [False, True, False, False]
    assert problem.grad[4, :300].isnan().all() and (problem.grad[[0, 3], :300] == 0).all() and (problem.stats[0] == 0).all()
    for name in ("logprob", "entropy", "grad"):
        setattr(problem, name, getattr(problem, name)[:4])
    check(problem, [part[:4] for part in expected])


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp64"])
def test_infinities_and_nan(folder, dtype):
    problem = Problem(dtype, 5, 600, 1)
    infinity = float("inf")
    problem.scores[0, 1:600:2], problem.target[0] = -infinity, 2
    problem.scores[1, :600] = -infinity
    problem.scores[2, 9], problem.scores[3, 9] = float("nan"), infinity
    problem.scores[4, :600] += 1e4 if dtype != "bf16" else 64
    expected = problem.expected()
    problem.run(folder)
    assert problem.logprob[1:4].isnan().all() and problem.entropy[1:4].isnan().all()
    kept = [0, 4]
    for name in ("logprob", "entropy", "grad"):
        setattr(problem, name, getattr(problem, name)[kept])
    logprob, entropy, grad = (part[kept] for part in expected)
    check(problem, (logprob, entropy, grad))


def test_a_row_does_not_know_its_neighbours(folder):
    whole, alone = Problem("bf16", 4, 2051, 1), Problem("bf16", 4, 2051, 1)
    whole.run(folder)
    alone.scores, alone.target = alone.scores[2:3].clone(), alone.target[2:3].clone()
    alone.n, alone.g, alone.e, alone.grad = 1, alone.g[2:3].clone(), alone.e[2:3].clone(), alone.grad[:1].clone()
    alone.run(folder)
    assert torch.equal(alone.logprob[0], whole.logprob[2]) and torch.equal(alone.grad[0, :2051], whole.grad[2, :2051])


def test_no_target_is_read_outside_the_vocabulary(folder):
    """Targets far outside would end the process where the kernel read there."""
    problem = Problem("fp32", 2, 100, 2)
    problem.target[0, 0], problem.target[1, 1] = 1 << 40, -(1 << 40)
    problem.run(folder, "none")
    assert problem.errors.item() == 2 and numpy.isnan(problem.logprob.numpy()).sum() == 2

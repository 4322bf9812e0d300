"""What a case of flp_cases.py is: its fields, the tensors that it is given, and what may be spoiled in them."""
import dataclasses
import math
from pathlib import Path

import torch

import flp
from flp_reference import DEVICE
from flp_standin_lm import TinyLM

B, T, N, V, D, E, U, K, RANK = 3, 7, 21, 331, 24, 16, 370, 4, 8
NAN, INFINITY = math.nan, math.inf
FILE = str(Path(__file__).with_name("weighed.lua"))  # a loss of a user's file


# ---- a case ----

@dataclasses.dataclass(frozen=True)
class Case:
    """A row of CASES. few: rows, instead of N; lead: the dimensions that rows have, instead of one; frozen: leaves
    without a gradient; silent: outputs without one; near: how far values may be off, relative to the largest of an
    output, where that is more than what its dtype rounds."""
    function: str
    options: dict
    edges: tuple = ()
    dtype: torch.dtype = torch.float32
    hidden_dtype: torch.dtype = None
    weight_dtype: torch.dtype = None
    teacher_dtype: torch.dtype = None
    few: int = None
    lead: tuple = None
    frozen: tuple = ()
    silent: tuple = ()
    near: float = 0

    @property
    def shape(self):
        """The dimensions that rows have, one of which may be -1."""
        if self.lead is None and self.function in SEQUENCES and "cu_seqlens" not in self.options:
            return (0, T) if self.few == 0 else (-1, T)
        return (-1,) if self.lead is None else self.lead

    def __str__(self):
        def shown(value):
            return repr(value) if isinstance(value, torch.Tensor) else Path(value).name if value == FILE else value

        words = [f"{name}={shown(value)}" for name, value in self.options.items() if value is not None]
        words += [*self.edges] + [str(self.dtype)[6:]] * (self.dtype != torch.float32)
        words += [f"teacher {self.teacher_dtype}".replace("torch.", "")] * (self.teacher_dtype is not None)
        words += [f"of {self.few}"] * (self.few is not None) + [f"as {self.lead}"] * (self.lead is not None)
        words += [f"frozen {name}" for name in self.frozen] + [f"silent {name}" for name in self.silent]
        return " ".join([self.function, *words]).replace("@", "")

    def allowed(self, gradient, share):
        """Outputs are of float32 whatever the dtype of operands, except those of scores that exist; what an adapter
        makes of hidden is rounded to its dtype. Gradients of two heads are differences of what both have."""
        rounded = gradient or "lora" in self.options or \
            self.function == "selective_log_softmax" and "out_dtype" not in self.options
        share = 2 * share if gradient and "divergence" in self.function else share
        return max(self.near, share * ROUNDING[self.dtype if rounded or self.dtype == torch.float64 else torch.float32])


ROUNDING = {torch.float64: 1e-12, torch.float32: 3e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


SEQUENCES = {"policy_loss", "losses.policy_loss", "score", "sequence_logprob"}
# Have no targets that leave a row out.
OF_ALL_ROWS = {"divergence", "divergence_loss", "divergence_payload", "selective_divergence"}


# ---- operands ----

OF_ROWS = ("hidden", "target", "targets", "many", "whole", "whole_teacher", "tokens", "old", "ref", "teacher", "mask",
           "logprob", "logprobs", "entropies", "advantages", "row_weight", "temperatures", "old_lse", "worth", "logits",
           "teacher_hidden", "teacher_temperatures", "ones", "numbers", "teacher_logits")
# Without a gradient.
TEACHER = ("teacher_hidden", "teacher_weight", "teacher_bias", "more_weight", "more_bias", "teacher_logits")


class Problem:
    """The tensors of a case. dtype: of hidden, weight, bias and logits; float64: for the reference, of the values that
    the dtype of the case holds."""

    def __init__(self, case, wide):
        self.draw = torch.Generator().manual_seed(3)
        normal = self.normal
        self.hidden, self.weight, self.bias = normal(N, D), 2 / D**0.5 * normal(V, D), normal(V)
        self.a, self.b, self.logits = normal(RANK, D) / 4, normal(V, RANK) / 4, 2 * normal(N, V)
        logp = torch.log_softmax(self.hidden @ self.weight.t() + self.bias, -1)
        self.targets = torch.stack([torch.randperm(V - 1, generator=self.draw)[:K] for _ in range(N)])
        self.target = self.targets[:, 0].clone()
        own = logp.gather(1, self.targets)
        self.teacher = (own + 0.3 * normal(N, K)).clamp(max=-1)
        self.old, self.ref, self.entropies = own[:, 0] + 0.3 * normal(N), own[:, 0] + 0.4 * normal(N), normal(N).abs()
        self.logprob, self.logprobs = own[:, 0].clone(), own.clone()
        self.advantage, self.row_weight = torch.tensor([1.0, -0.7, 0.4]), torch.rand(N, generator=self.draw) + 0.2
        self.advantages = normal(N)
        self.temperatures, self.old_lse = 0.5 + torch.rand(N, generator=self.draw), normal(N)
        self.mask = torch.arange(N) % 5 != 2
        self.rows = torch.tensor([0, 2, 4, 5, 6, 7, 8, 9, 12, 20, 20], dtype=torch.int32)
        lengths = torch.randint(1, 9, (N,), generator=self.draw)
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), (lengths + 1).cumsum(0)])
        self.listed = torch.randint(V, (int(self.offsets[-1]),), generator=self.draw)
        self.listed[self.offsets[:-1]] = self.target
        self.cu_seqlens, self.lengths, self.prompts = (torch.tensor(x) for x in ([0, 5, 6, 17, N], [7, 1, 4], [2, 0, 3]))
        self.packed_prompts, self.worth = torch.tensor([2, 0, 3, 1]), normal(N)
        self.exists = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [1] * 7])
        self.tokens, self.total = self.target.clone(), torch.tensor(17.0)
        self.many = torch.stack([torch.randperm(V, generator=self.draw)[:40] for _ in range(N)])
        self.whole, self.whole_teacher = torch.arange(V).expand(N, V).clone(), torch.log_softmax(normal(N, V), -1)
        self.teach()
        if case.function not in OF_ALL_ROWS:
            self.ignore()
        for edge in case.edges:
            EDGES[edge](self)
        self.shape_of(case)
        self.settle(case, wide)

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.draw)

    def teach(self):
        """A second head over the same vocabulary, and one over more tokens; masks of numbers."""
        draw = torch.Generator().manual_seed(4)
        self.teacher_hidden = torch.randn(N, E, generator=draw)
        self.teacher_weight = 2 / E**0.5 * torch.randn(V, E, generator=draw)
        self.teacher_bias = torch.randn(V, generator=draw)
        self.teacher_temperatures = 0.5 + torch.rand(N, generator=draw)
        self.more_weight = 2 / E**0.5 * torch.randn(U, E, generator=draw)
        self.more_bias = torch.randn(U, generator=draw)
        self.teacher_ids = torch.randperm(U, generator=draw)[:V]
        self.ones, self.numbers = torch.ones(N), self.mask.int()
        self.teacher_logits = 2 * torch.randn(N, V, generator=draw)

    def ignore(self):
        """What takes no part holds anything."""
        self.target[3], self.targets[3], self.targets[4, 1:] = -100, -100, -100
        self.hidden[3], self.logits[3] = NAN, NAN
        self.teacher[4, 1:], self.old[3], self.row_weight[3] = NAN, NAN, 5

    def shape_of(self, case):
        """Rows as sequences, for functions that take those; fewer of them, where a case is of few."""
        for name in OF_ROWS:
            values = getattr(self, name)
            if case.few is not None:
                values = values[:case.few]
            setattr(self, name, values.reshape((*case.shape, *values.shape[1:])))
        self.again = self.targets[..., :1].expand_as(self.targets).contiguous()
        self.single, self.single_teacher = self.targets[..., :1], self.teacher[..., :1]
        if case.few is not None:
            self.offsets = self.offsets[:case.few + 1]
            self.advantage = self.advantage[:case.lead[0] if case.lead else -(-case.few // T)]

    def settle(self, case, wide):
        """Dtypes, leaves and what is made of them; on the device of the tests, except for the reference."""
        narrow = dict.fromkeys(("hidden", "weight", "bias", "a", "b", "logits"), case.dtype)
        narrow.update(hidden=case.hidden_dtype or case.dtype, weight=case.weight_dtype or case.dtype)
        if "float32 adapter" in case.edges:
            narrow.update(a=torch.float32, b=torch.float32)
        for name in (*narrow, "logprob", "logprobs", "entropies"):
            value = getattr(self, name).to(narrow.get(name, torch.float32))
            setattr(self, name, (value.double() if wide else value).requires_grad_(name not in case.frozen))
        for name in TEACHER:
            value = getattr(self, name).to(case.teacher_dtype or case.dtype)
            setattr(self, name, value.double() if wide else value)
        count = len(self.hidden)
        self.bounds, self.every = torch.arange(count + 1) * V, torch.arange(V).flip(0).repeat(count)
        self.buffer, self.report = torch.ones(V, D), torch.full((4,), 7.0)
        self.temperature = torch.tensor([[0.7], [1.6]])
        self.model, self.ids = TinyLM(vocab=37, bias=True), torch.randint(37, (2, 9), generator=self.draw)
        self.model = self.model.double() if wide else self.model.to(DEVICE)
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor) and not wide:
                setattr(self, name, value.to(DEVICE).detach().requires_grad_(value.requires_grad))
        self.lora = flp.Lora(self.a, self.b, 1.5)
        self.payload = self.payload_of(wide)
        ten = self.logprob.reshape(-1)[:10]
        self.sequences, self.ref_sequences = (4 * ten, ten), (3.7 * ten.detach() - 1, 0.9 * ten.detach() - 0.3)
        self.liked = torch.arange(10, device=DEVICE if not wide else "cpu") % 3 != 1
        self.keep, self.keep_all = (self.offsets, self.listed), (self.bounds, self.every)
        self.leaves = {name: getattr(self, name) for name in LEAVES}
        self.leaves.update({"model " + name: value for name, value in self.model.named_parameters()})

    def payload_of(self, wide):
        """What a teacher sends of its rows, float32."""
        wide_ones = [getattr(self, name).detach().cpu().double() for name in (*TEACHER[:3], "weight", "bias")]
        states, head, offset, weight, bias = wide_ones
        logp = torch.log_softmax(states @ head.t() + offset, -1)
        found = [(logp.exp() @ weight).float(), -(logp.exp() * logp).sum(-1).float(), (logp.exp() @ bias).float()]
        return tuple(values.double() if wide else values.to(DEVICE) for values in found)

    def given(self, options):
        """Options with tensors in the place of their names."""
        def tensor_of(value):
            if isinstance(value, dict):
                return {name: tensor_of(one) for name, one in value.items()}
            return getattr(self, value[1:]) if isinstance(value, str) and value.startswith("@") else value
        return tensor_of(options)


LEAVES = ("hidden", "weight", "bias", "a", "b", "logits", "logprob", "logprobs", "entropies")


def spoil(**changes):
    """An edge: tensor=[index, value, index, value, ...]"""
    def edge(problem):
        for name, pairs in changes.items():
            for index, value in zip(pairs[::2], pairs[1::2]):
                getattr(problem, name)[index] = value
    return edge


def typed(*names):
    """Integers of 32 bits."""
    def edge(problem):
        for name in names:
            setattr(problem, name, getattr(problem, name).int())
    return edge


def empty_list(problem):
    """Of row 7, whose columns row 8 has too."""
    problem.offsets[8] = problem.offsets[7]


EVERY = slice(None)
EDGES = {
    "nan row": spoil(hidden=[2, NAN]),
    "no b": spoil(b=[EVERY, 0.0]),
    "float32 adapter": spoil(),
    "rank 3": lambda problem: vars(problem).update(a=problem.a[:3], b=problem.b[:, :3]),
    "nan teacher row": spoil(teacher_hidden=[2, NAN]),
    "teacher beyond": spoil(teacher_hidden=[9, 1e12]),
    "teacher none left": spoil(teacher_bias=[EVERY, -INFINITY]),
    "teacher far up": spoil(teacher_bias=[EVERY, 1e4]),
    "teacher banned": spoil(teacher_bias=[slice(V - 40, None), -INFINITY]),
    "disjoint": spoil(bias=[slice(0, V // 2), -INFINITY], teacher_bias=[slice(V // 2, None), -INFINITY]),
    "sharp": lambda problem: (problem.hidden[4:6].mul_(40), problem.teacher_hidden[5:7].mul_(40)),
    "masked nan of both": spoil(mask=[slice(9, 12), False], hidden=[9, NAN], teacher_hidden=[10, NAN, 11, INFINITY],
                                temperatures=[11, NAN], row_weight=[9, NAN], logits=[9, NAN, 10, 1e12],
                                teacher_logits=[10, NAN, 11, INFINITY]),
    "nan of scores": spoil(logits=[2, NAN, 4, -INFINITY, (6, slice(0, 9)), -INFINITY]),
    "nan teacher score": spoil(teacher_logits=[2, NAN, (4, 3), NAN]),
    "score beyond": spoil(logits=[9, 1e12, (4, 5), -1e12]),
    "teacher score beyond": spoil(teacher_logits=[9, 1e12]),
    "no score": spoil(logits=[EVERY, -INFINITY]),
    "no teacher score": spoil(teacher_logits=[5, -INFINITY]),
    "banned scores": spoil(logits=[(EVERY, slice(V - 40, None)), -INFINITY]),
    "banned teacher scores": spoil(teacher_logits=[(EVERY, slice(V - 40, None)), -INFINITY]),
    "disjoint scores": spoil(logits=[(EVERY, slice(0, V // 2)), -INFINITY],
                             teacher_logits=[(EVERY, slice(V // 2, None)), -INFINITY]),
    "few scores": spoil(logits=[(EVERY, slice(2, None)), -INFINITY]),
    "sharp scores": lambda problem: (problem.logits[4:6].mul_(8), problem.teacher_logits[5:7].mul_(8)),
    "row of weight 0": spoil(row_weight=[slice(1, N, 3), 0.0, 4, -0.0], hidden=[1, NAN], teacher_hidden=[7, INFINITY]),
    "low": spoil(bias=[EVERY, -12.0]),
    "bad ids": spoil(target=[5, V, 6, -7], targets=[5, V, (6, 1), -7], tokens=[5, V, 16, -7]),
    "far ids": spoil(target=[5, 2**40, 6, -2**40]),
    "bad temperature": spoil(temperatures=[7, 0.0, 8, NAN, 10, -1.0, 11, INFINITY, 12, 1e-40, 13, 1e-12]),
    "bad teacher temperature": spoil(teacher_temperatures=[6, 0.0, 7, NAN, 10, -1.0, 13, 1e-12]),
    "none left": spoil(bias=[EVERY, -INFINITY]),
    "banned": spoil(bias=[slice(V - 40, None), -INFINITY], target=[8, V - 1], targets=[(9, 0), V - 1]),
    "few left": spoil(bias=[slice(2, None), -INFINITY], target=[EVERY, 1, 3, -100]),
    "beyond": spoil(hidden=[9, 1e12]),
    "all ignored": spoil(target=[EVERY, -100], targets=[EVERY, -100]),
    **{f"ignored as {index}": spoil(target=[3, index]) for index in (0, 5, -1)},
    "all masked": spoil(mask=[EVERY, False]),
    "masked": spoil(mask=[slice(9, 12), False]),
    "empty sequence": spoil(cu_seqlens=[2, 5]),
    "nan": spoil(logprob=[1, NAN]),
    "masked sequence": spoil(mask=[slice(7, 14), False]),
    "nan advantage masked": spoil(mask=[slice(7, 14), False], advantage=[1, NAN]),
    "weight 0": spoil(row_weight=[slice(1, N, 3), 0.0, 4, -0.0], hidden=[1, NAN, 7, INFINITY],
                      teacher=[10, NAN, 13, -INFINITY]),
    "weight 0 of a bad id": spoil(row_weight=[5, 0.0], target=[5, V], targets=[5, V]),
    "masked nan": spoil(mask=[slice(9, 12), False], target=[11, V + 7], old=[9, NAN], ref=[9, NAN],
                        hidden=[10, NAN], advantages=[9, NAN],
                        logprob=[9, NAN], entropies=[9, NAN], worth=[9, NAN]),
    "far": spoil(old=[0, -95.0, 1, -150.0, 2, -INFINITY, 7, 90.0, 14, -120.0], logprob=[0, -1.0, 1, -1.0]),
    "far down": spoil(old=[8, -45.0, 9, -60.0]),
    "far reference": spoil(ref=[0, 60.0, 7, -300.0]),
    "advantage 0": spoil(advantages=[slice(0, 9), 0.0], advantage=[0, 0.0], old=[0, -95.0, 1, -150.0]),
    "no share": spoil(teacher=[0, -INFINITY, (2, 1), -INFINITY], logprobs=[(1, 2), -INFINITY, (2, 1), -INFINITY]),
    "nan teacher": spoil(teacher=[5, NAN], logprobs=[6, NAN]),
    "nan score": spoil(logits=[2, NAN, 4, -INFINITY, (6, slice(0, 9)), -INFINITY, (8, 7), INFINITY, 9, -INFINITY,
                               (9, 0), 1], target=[9, 0]),
    "bad list": lambda problem: empty_list(problem) or spoil(listed=[0, V - 1, 9, V, -1, -1])(problem),
    "one kept": spoil(offsets=[1, 1]),
    "int32 ids": typed("teacher_ids", "target", "targets", "tokens", "cu_seqlens", "packed_prompts"),
    "int32 lists": typed("listed", "offsets"),
    "nan worth": spoil(worth=[slice(0, 5), NAN], mask=[5, True]),
}

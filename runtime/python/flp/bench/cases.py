"""Cases: which passes over which shapes are compared. Pure; no tensors.

Invariant: every subject of a case is compared with the same number of GEMM baselines: one for forward; for a
training step one for each gradient and the scores, twice where ours keeps nothing of them (recompute mode), once where
it saves exponentials (save mode) or trains by a loss whose gradients are made in one sweep (stream mode), and with a
frozen head, where the gradient of each row's logprob can be made in the forward pass. A tail changes nothing of that:
who leaves elements out, ours or a peer, stands beside the products of who computes them all. A divergence of two heads
stands beside the scores of each, once, and one product for each gradient; from a payload beside the student's alone.
"""
import dataclasses
from typing import Optional

ENTROPIES = ("none", "forward", "backward")
GRADS = ("hidden", "weight")
DTYPES = ("bf16", "fp16", "fp32")
PRODUCTS = ("scores", "grad_hidden", "grad_weight")
TEACHER_SCORES = "teacher_scores"  # the product of a divergence beside these
HEAD, DIVERGE = OPS = ("head", "diverge")
LOSSES = ("nll", "reinforce", "ppo", "grpo", "dapo", "dr_grpo", "cispo")
CROSS_ENTROPY = "cross_entropy"  # that of supervised fine-tuning: a loss of all scores, of no logprob alone
SMOOTHING, Z_LOSS = 0.1, 1e-4  # of it
TAIL = "flp, tail"  # ours with --tail, beside ours without
# What libraries of a generalised Jensen-Shannon divergence know kinds by: the teacher's share of the mixture.
TEACHER_SHARES = {"forward_kl": 0.0, "reverse_kl": 1.0, "jsd": 0.5}
BETA = 0.04  # of the Kullback-Leibler term that a loss has with +k1, +k2 or +k3, and of the divergence beside one


@dataclasses.dataclass(frozen=True)
class Case:
    """One computation: logprob (N) of hidden (N,D) under weight (V,D), and what is wanted beside it."""

    n: int
    hidden: int
    vocab: int
    dtype: str = "bf16"
    entropy: str = "none"  # backward: computed and differentiated
    grads: tuple = ()  # of hidden, weight; empty: scoring without gradients
    bias: bool = False
    softcap: Optional[float] = None
    budget: Optional[int] = None  # workspace bytes of ours; None: its default
    loss: Optional[str] = None  # trained by: a rule of LOSSES, alone or with +k1, +k2, +k3; or CROSS_ENTROPY
    save: Optional[bool] = None  # whether ours saves exponentials; None: where the budget holds them
    frozen: bool = False  # a frozen head, compared with the scores once
    accumulate: bool = False  # a loss: ours adds the weight's gradient to an fp32 buffer
    tail: Optional[float] = None  # what ours may leave out where it is asked to; None: there is no such contender
    op: str = HEAD  # DIVERGE: the divergence that loss names, of this head from a teacher's, by row or as their mean
    teacher: Optional[int] = None  # columns of the teacher's hidden states
    one_head: bool = False  # the student's weight is the teacher's
    payload: bool = False  # what flp.divergence_payload gives stands for the teacher
    policy: Optional[str] = None  # steps by this rule of LOSSES, alone or with +k1, ...; the teacher is their reference

    @property
    def name(self):
        if self.loss and self.grads:
            return "step"
        return "forward+backward" if self.grads else "forward"

    @property
    def reads_batch(self):
        """Whether its loss is one of logprobs, which data.Batch has the rest of, or stands beside one."""
        return bool(self.loss) and self.op == HEAD or bool(self.policy)

    @property
    def rule(self):
        return (self.policy or self.loss).partition("+")[0]

    @property
    def kl_kind(self):
        """ "k1", "k2", "k3", or "" without a term."""
        return (self.policy or self.loss).partition("+")[2]

    @property
    def products(self):
        """How many of each GEMM baseline stand for this case."""
        counts = {"scores": 2 if self.one_head or self.grads and not (self.loss or self.save or self.frozen) else 1}
        if self.op == DIVERGE and not (self.one_head or self.payload):
            counts[TEACHER_SCORES] = 1
        counts.update(("grad_" + grad, 1) for grad in self.grads)
        return counts

    @property
    def gemms(self):
        return sum(self.products.values())

    @property
    def flops(self):
        """Useful work of the products."""
        depths = {TEACHER_SCORES: self.teacher}
        return sum(2.0 * self.n * depths.get(name, self.hidden) * self.vocab * count
                   for name, count in self.products.items())


def cases_of(options, n):
    """The cases of one number of rows, without repetition: forward for each entropy, training for each mask; or steps of
    each loss for each mask; of a divergence without gradients, too."""
    shape = dict(n=n, hidden=options.hidden, vocab=options.vocab, dtype=options.dtype, bias=options.bias,
                 softcap=options.softcap, budget=options.budget)
    if options.op == DIVERGE:
        masks = dict.fromkeys([*([] if options.policy else [()]), *options.grad])
        return [Case(grads=grads, loss=loss, op=DIVERGE, teacher=options.teacher_hidden, one_head=options.one_head,
                     payload=options.payload, policy=options.policy, **shape)
                for grads in masks for loss in options.loss]
    if options.loss:
        return [Case(grads=grads, loss=loss, accumulate=options.accumulate and "weight" in grads, tail=options.tail,
                     **shape)
                for grads in options.grad if grads for loss in options.loss]
    cases = [Case(entropy="none" if entropy == "none" else "forward", **shape) for entropy in options.entropy]
    cases += [Case(entropy=entropy, grads=grads, save=options.save, frozen=options.frozen, tail=options.tail,
                   **shape)
              for grads in options.grad if grads for entropy in options.entropy]
    return list(dict.fromkeys(cases))

"""Cases: which passes over which shapes are compared. Pure; no tensors.

Invariant: every subject of a case is compared with the same number of bare matrix products, those of a training step
that keeps no scores: one for forward; for forward+backward the scores again and one for each gradient.
"""
import dataclasses
from typing import Optional

ENTROPIES = ("none", "forward", "backward")
GRADS = ("hidden", "weight")
DTYPES = ("bf16", "fp16", "fp32")
PRODUCTS = ("scores", "grad_hidden", "grad_weight")


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

    @property
    def name(self):
        return "forward+backward" if self.grads else "forward"

    @property
    def products(self):
        """How many of each bare product stand for this case."""
        counts = {"scores": 2 if self.grads else 1}
        counts.update(("grad_" + grad, 1) for grad in self.grads)
        return counts

    @property
    def gemms(self):
        return sum(self.products.values())

    @property
    def flops(self):
        """Useful work of the products."""
        return 2.0 * self.n * self.hidden * self.vocab * self.gemms


def cases_of(options, n):
    """The cases of one number of rows, without repetition: forward for each entropy, training for each mask."""
    shape = dict(n=n, hidden=options.hidden, vocab=options.vocab, dtype=options.dtype, bias=options.bias,
                 softcap=options.softcap, budget=options.budget)
    cases = [Case(entropy="none" if entropy == "none" else "forward", **shape) for entropy in options.entropy]
    cases += [Case(entropy=entropy, grads=grads, **shape) for grads in options.grad if grads
              for entropy in options.entropy]
    return list(dict.fromkeys(cases))

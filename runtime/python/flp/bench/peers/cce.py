"""cut-cross-entropy (Apple): cut_cross_entropy.linear_cross_entropy, with gradients that leave nothing out, and as it
comes.

Its default drops gradient blocks below a threshold; filter_eps=None, or impl="cce_exact" where a release has presets,
computes them all, as every other subject does.
"""
import inspect

from .seam import Peer, Result


class Cce(Peer):
    name = "cce"
    title = "cut_cross_entropy.linear_cross_entropy(reduction='none'), exact gradients"
    distribution = "cut-cross-entropy"
    dtypes = ("bf16", "fp16")
    softcap = True
    module, function_name = "cut_cross_entropy", "linear_cross_entropy"
    exact = True

    def load(self):
        version = super().load()
        has_presets = "accum_c_fp32" in inspect.signature(self.function).parameters
        exact = {"impl": "cce_exact"} if has_presets else {"impl": "cce", "filter_eps": None}
        self.chosen = exact if self.exact else {}
        return version

    def run(self, hidden, weight, bias, target, case):
        loss = self.function(hidden, weight, target, softcap=case.softcap, reduction="none", **self.chosen)
        return Result(-loss)


class CceFilter(Cce):
    name = "cce-filter"
    title = "cut_cross_entropy.linear_cross_entropy(reduction='none'), its default filter of gradients"
    note = "drops blocks of gradients below a threshold, which sharp rows have many of"
    exact = False

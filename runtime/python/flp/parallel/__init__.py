"""Vocab-parallel heads over torch.distributed: the weight's rows are spread over a group, each rank has its own.

    logprob = flp.parallel.linear_logprob(hidden, lm_head.weight, target, group=tensor_parallel_group)

What the ranks exchange in the forward pass is a few numbers a row, whatever the size of the vocabulary.
"""
from ._divergence import divergence
from ._head import linear_logprob
from ._losses import cross_entropy

__all__ = ["cross_entropy", "divergence", "linear_logprob"]

"""Models whose head gives log-probabilities or a loss instead of scores: flp.logprob_head and flp.CrossEntropyHead."""
from ._cross_entropy_head import CrossEntropyHead
from ._head import LogprobHead, LogprobOutput, logprob_head

__all__ = ["CrossEntropyHead", "LogprobHead", "LogprobOutput", "logprob_head"]

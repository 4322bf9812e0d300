"""What tokens that the student lacks are to a divergence by kernels: p is the softmax over all tokens of the teacher's
whole head, and they are one more outcome, of q = 0, which flp_diverge takes as another shard of the vocabulary.
"""
import copy
import math

import torch

from .._library import _divergences, _plans
from .._library._divergences import STATE
from .._passes import _run
from .._tensors import _top
from ._head_scores import without_targets


class Rest:
    """head: HeadScores of the teacher's rows of the student's tokens; counts: whether values are wanted"""

    def __init__(self, plan, problem, head, counts):
        self.plan, self.whole, self.head, self.best = _plan_of_outcome(plan), problem.whole, head, None
        self.settings = _settings_of(problem, counts)
        if counts:  # of each token of the teacher, which of the student's it is
            self.place = problem.ids.new_full((len(self.whole.weight),), -1)
            self.place[problem.ids] = torch.arange(len(problem.ids), device=problem.ids.device)

    def partials(self, ends, part):
        """flp_args.partial of the student and of the teacher's whole head, of some active rows. ends: (n, 2) of both
        heads, of the student's tokens"""
        rows = None if self.whole.temperature_rows is None else self.head.among(self.whole.temperature_rows)[part]
        ops = without_targets(self.whole, self.head.hidden(part), self.whole.bias, rows)
        best = _top.Outputs(ops.target, self.settings, is_part=True) if self.settings.topk else None
        whole = _run.partial(ops, self.settings, top=best)
        if best is not None:
            self.best = self.place[best.ids[:, 0]]
        (m, s), (top, total) = (each[:, :2].double().unbind(1) for each in (ends[1], whole))
        self.log_p = (1 - s / total * torch.exp2(m - top)).clamp(min=0).log()
        student = torch.zeros_like(whole)
        student[:, :2] = ends[0]
        return [student, whole]

    def total(self, state, _scores, _units, of_shard):
        """Adds the outcome to state (n, STATE) of the student's tokens. of_shard: _Call.of_shard"""
        shape = len(state), _divergences.width_of(self.plan.key.vocab)
        x, y = (torch.full(shape, -math.inf, device=state.device) for _ in range(2))
        y[:, 0] = self.log_p
        one, known = x.new_ones(len(x)), x.new_tensor([0.0, 1.0, 0.0, 0.0]).repeat(len(x), 1)  # log-sum-exps of 0
        state[:, 2:STATE - 2] += of_shard(self.plan, [x, y], [one, one], [known, known])[:, 2:STATE - 2]
        if self.best is not None:
            state[:, STATE - 1] = self.best


def plans_of(plan, problem):
    """The plans beside that of the student's tokens."""
    return [_plan_of_outcome(plan), plan_of_whole(problem)]


def plan_of_whole(problem):
    """The plan that sums the scores of the teacher's whole head."""
    settings, whole = _settings_of(problem, True), problem.whole
    return _run.forward_plan(without_targets(whole, whole.hidden, whole.bias), settings, 0, None, settings)


def _plan_of_outcome(plan):
    return _plans.get(plan.key._replace(vocab=2))  # the least; of the second column p and q are 0


def _settings_of(problem, counts):
    settings = copy.copy(problem.teacher_settings)
    settings.ignore_index, settings.topk = -1, int(counts)
    settings.valid = len(problem.whole.weight)
    settings.total = settings.valid + 1  # as a shard: no row of it is finished, and counted
    return settings

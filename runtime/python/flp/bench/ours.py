"""flp.linear_logprob, flp.policy_loss and flp.divergence_loss, behind the same seam as their peers."""
import torch

import flp

from .cases import BETA, CROSS_ENTROPY, SMOOTHING, TAIL, Z_LOSS
from .peers.seam import Peer, Result


class Flp(Peer):
    name = "flp"
    title = "flp.linear_logprob; of a loss flp.policy_loss, or flp.cross_entropy"
    distribution = "flp"
    install = "build libflp and set FLP_LIBRARY, or install the wheel that carries it"
    needs_cuda = False
    entropy = bias = softcap = True
    lacks = None
    held = None

    def load(self):
        """The version of libflp."""
        return flp.version()

    def keywords(self, case):
        """Of linear_logprob, and of explain about it."""
        return {"entropy": case.entropy != "none", "softcap": case.softcap, "budget": case.budget, "save": case.save,
                **self.bound(case)}

    def bound(self, case):
        """What a backward pass may leave out, as every call takes it; nothing here."""
        return {}

    def outputs(self, device):
        """What a call on this device fills beside its results."""
        return {}

    def run(self, hidden, weight, bias, target, case):
        results = flp.linear_logprob(hidden, weight, target, bias, **self.keywords(case),
                                      **self.outputs(hidden.device))
        return Result(*results) if case.entropy != "none" else Result(results)

    def step(self, hidden, weight, bias, target, batch, case):
        if case.loss == CROSS_ENTROPY:
            return Result(loss=flp.cross_entropy(hidden, weight, target, bias, label_smoothing=SMOOTHING, z_loss=Z_LOSS,
                                                 budget=case.budget,
                                                 grad_weight_accumulate=self.buffer(weight, case)))
        loss, _ = flp.policy_loss(case.rule, hidden.view(-1, batch.tokens, hidden.shape[-1]), weight,
                                  target.view(-1, batch.tokens), None if case.rule == "nll" else batch.advantage, bias,
                                  budget=case.budget, grad_weight_accumulate=self.buffer(weight, case),
                                  **self.bound(case), **batch.options(), **self.outputs(hidden.device))
        return Result(loss=loss)

    def buffer(self, weight, case):
        """Made once for a head, where the case asks for it."""
        if not case.accumulate:
            return None
        if self.held is None or self.held.shape != weight.shape:
            self.held = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        return self.held

    def details(self, hidden, weight, bias, target, case):
        """What runs: the rung, and the chunks of the pass that counts most."""
        plan = flp.explain(hidden, weight, target, bias, loss=case.loss,
                           grad_weight_accumulate=self.buffer(weight, case), **self.keywords(case))
        return {"rung": plan.rung, "plan_id": plan.plan_id,
                "mode": (plan.step or plan.backward or plan.forward)["mode"], "budget_bytes": case.budget,
                "saved_bytes": plan.backward.get("saved_bytes")}


class FlpDivergence(Peer):
    name = Flp.name
    title = "flp.divergence_loss; without gradients, and of a payload, flp.divergence; with --policy flp.policy_loss"
    distribution, install, needs_cuda, load = Flp.distribution, Flp.install, Flp.needs_cuda, Flp.load
    divergences, payload, policies = tuple(flp.losses.DIVERGENCES), True, True

    def run(self, hidden, weight, teacher, case):
        if case.payload:
            return Result(divergence=flp.divergence(hidden, weight, kind=case.loss, payload=teacher.payload,
                                                    budget=case.budget).value)
        operands = (hidden, weight, teacher.hidden, teacher.weight, case.loss)
        if not case.grads:
            return Result(divergence=flp.divergence(*operands, budget=case.budget).value)
        return Result(loss=flp.divergence_loss(*operands, budget=case.budget)[0])

    def step(self, hidden, weight, teacher, target, batch, case):
        hidden, other, target = (each.view(-1, batch.tokens, *each.shape[1:]) for each in
                                 (hidden, teacher.hidden, target))
        reference = flp.Reference(other, teacher.weight, kind=case.loss, coefficient=BETA)
        return Result(loss=flp.policy_loss(case.rule, hidden, weight, target, batch.advantage, reference=reference,
                                           budget=case.budget, **batch.options())[0])

    def details(self, *arguments):
        return {"budget_bytes": arguments[-1].budget}


class FlpTail(Flp):
    """The same with gradients that may leave out the part of the scores' gradient that --tail names."""

    name = TAIL
    title = "flp.linear_logprob(tail=...); of a loss flp.policy_loss(tail=...)"
    note = "leaves out as much of the scores' gradient as --tail says, never more"
    lacks = "tail with a loss of all scores"

    report = None  # (4) float32: what the last backward pass left out

    def bound(self, case):
        return {"tail": case.tail}

    def outputs(self, device):
        if self.report is None or self.report.device != device:
            self.report = torch.zeros(4, dtype=torch.float32, device=device)
        return {"tail_report": self.report}

    def report_of(self, case):
        """The report by the names that `flpgen bench` gives it."""
        left, whole, dense_rows, columns = self.report.tolist()
        listed = case.n - dense_rows
        return {"left": left, "sum": whole, "bound": case.tail * whole, "dense_rows": dense_rows, "columns": columns,
                "columns_a_row": columns / listed if listed > 0 else 0.0}

    def supports(self, case, device):
        return super().supports(case, device) if case.grads else "is flp without gradients, which alone have a tail"

    def details(self, hidden, weight, bias, target, case):
        return {**super().details(hidden, weight, bias, target, case), "tail": case.tail,
                "tail_report": self.report_of(case)}

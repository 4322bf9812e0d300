"""flp.linear_logprob and flp.policy_loss, behind the same seam as their peers."""
import torch

import flp

from .peers.seam import Peer, Result


class Flp(Peer):
    name = "flp"
    title = "flp.linear_logprob; of a loss flp.policy_loss"
    distribution = "flp"
    install = "build libflp and set FLP_LIBRARY, or install the wheel that carries it"
    needs_cuda = False
    dtypes = ("bf16", "fp16", "fp32")
    entropy = bias = softcap = True
    held = None

    def load(self):
        """The version of libflp."""
        return flp.version()

    def run(self, hidden, weight, bias, target, case):
        results = flp.linear_logprob(hidden, weight, target, bias, entropy=case.entropy != "none",
                                     softcap=case.softcap, budget=case.budget, save=case.save)
        return Result(*results) if case.entropy != "none" else Result(results)

    def step(self, hidden, weight, bias, target, batch, case):
        loss, _ = flp.policy_loss(case.rule, hidden.view(-1, batch.tokens, hidden.shape[-1]), weight,
                                  target.view(-1, batch.tokens), None if case.rule == "nll" else batch.advantage, bias,
                                  budget=case.budget, grad_weight_accumulate=self.buffer(weight, case), **batch.options())
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
        plan = flp.explain(hidden, weight, target, bias, entropy=case.entropy != "none", softcap=case.softcap,
                           budget=case.budget, save=case.save, loss=case.loss,
                           grad_weight_accumulate=self.buffer(weight, case))
        return {"rung": plan.rung, "plan_id": plan.plan_id,
                "mode": (plan.step or plan.backward or plan.forward)["mode"], "budget_bytes": case.budget,
                "saved_bytes": plan.backward.get("saved_bytes")}

"""flp.linear_logprob, behind the same seam as its peers."""
import flp

from .peers.seam import Peer, Result


class Flp(Peer):
    name = "flp"
    title = "flp.linear_logprob"
    distribution = "flp"
    install = "build libflp and set FLP_LIBRARY, or install the wheel that carries it"
    needs_cuda = False
    dtypes = ("bf16", "fp16", "fp32")
    entropy = bias = softcap = True

    def load(self):
        """The version of libflp."""
        return flp.version()

    def run(self, hidden, weight, bias, target, case):
        results = flp.linear_logprob(hidden, weight, target, bias, entropy=case.entropy != "none",
                                     softcap=case.softcap, budget=case.budget)
        return Result(*results) if case.entropy != "none" else Result(results)

    def details(self, hidden, weight, bias, target, case):
        """What runs: the rung, and how the pass that counts most is cut up."""
        plan = flp.explain(hidden, weight, target, bias, entropy=case.entropy != "none", softcap=case.softcap,
                           budget=case.budget)
        return {"rung": plan.rung, "plan_id": plan.plan_id, "mode": (plan.backward or plan.forward)["mode"],
                "budget_bytes": case.budget}

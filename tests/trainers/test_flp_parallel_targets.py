"""flp.parallel with K targets a row, on processes of this machine (gloo), against float64."""
import pytest
import torch

import flp_parallel_cases as cases
from flp_reference import doubles, problem
from test_flp_parallel import EMPTY, EVEN, MADE, UNEVEN, check, ranks  # noqa: F401


def drawn():
    targets = torch.randint(331, (12, 5), generator=torch.Generator().manual_seed(8))
    targets[2], targets[5, 3:] = -100, -100
    targets[7, 1] = targets[7, 0]
    return targets


def wanted(targets, temperature):
    hidden, weight, _, bias = problem(**MADE)
    wide = doubles(hidden, weight, bias)
    logp = torch.log_softmax((wide[0] @ wide[1].t() + wide[2]) / temperature, -1)
    counted = targets != -100
    logprob = logp.gather(1, targets.clamp(min=0)).masked_fill(~counted, 0)
    entropy = -(logp.exp() * logp).sum(-1).masked_fill(~counted.any(1), 0)
    g, e = cases.upstream(len(targets))
    ((logprob * g[:, None]).sum() + (entropy * e).sum()).backward()
    return logprob.detach(), entropy.detach(), [tensor.grad for tensor in wide]


@pytest.mark.parametrize("engine", ["libflp", "torch form"])
@pytest.mark.parametrize("merge", ["sum", "gather"])
@pytest.mark.parametrize("cuts, sequence", [(EVEN, False), (EVEN, 2), (UNEVEN, False), (EMPTY, True)], ids=str)
def test_ranks_are_one_head(ranks, cuts, sequence, merge, engine):  # noqa: F811
    targets = drawn()
    results = ranks.run(len(cuts), cases.head, cuts=cuts, made=MADE, options={"temperature": 0.8, "merge": merge},
                        sequence=sequence, engine=engine, targets=targets)
    check(results, cuts, wanted(targets, 0.8), sequence=sequence)


@pytest.mark.parametrize("engine", ["libflp", "torch form"])
def test_one_target_of_one_more_dimension(ranks, engine):  # noqa: F811
    targets = drawn()[:, :1].contiguous()
    results = ranks.run(2, cases.head, cuts=EVEN, made=MADE, options={"temperature": 0.8}, engine=engine, targets=targets)
    check(results, EVEN, wanted(targets, 0.8))

"""The list of cases of support/flp_cases.py on kernels that run on the CPU: prints what differs from float64 as JSON,
{case: differences}, and the rungs that ran. arguments: the dtype of heads that name none; of how many parts of the list
this is which. As torch_case.py, run by test_every_case.py."""
import dataclasses
import json
import sys
from pathlib import Path

import torch

from torch_case import flp, pretend

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from flp._library import _plans  # noqa: E402
from flp_cases import CASES, FILE, differences  # noqa: E402

OF_NO_KERNEL = ("losses.", "sequence_logprob", "delight", "gate", "logprob_head", "CrossEntropyHead")


def rows_of(dtype):
    for row in CASES:
        if row.function.startswith(OF_NO_KERNEL) or row.options.get("rule") == FILE:  # whose kernels a test of steps has
            continue
        if dtype == torch.float16 and "far down" in row.edges:  # dz of fp16 has one scale, which the largest row sets
            continue
        yield row if row.dtype != torch.float32 or row.weight_dtype else dataclasses.replace(row, dtype=dtype)


def main():
    dtype, parts, part = getattr(torch, sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    pretend()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    found, rungs = {}, set()
    with flp.phase("all"):
        for row in list(rows_of(dtype))[part::parts]:
            try:
                found[str(row)] = differences(row)
            except Exception as error:  # of this row alone
                found[str(row)] = [f"{type(error).__name__}: {error}"]
            rungs |= {plan.rung for plan in _plans.existing()}
    print(json.dumps({"found": found, "rungs": sorted(rungs)}))


if __name__ == "__main__":
    main()

"""tests/gpu/near_certain.py at small sizes on the stand-in for libcuda that runs kernels on the CPU: prints its rows as JSON.
As torch_case.py, run by test_near_certain.py with the eps of the rows."""
import json
import sys
from pathlib import Path

import torch

from torch_case import pretend

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
import near_certain  # noqa: E402

if __name__ == "__main__":
    pretend()
    near_certain.EPSILONS = [float(eps) for eps in sys.argv[1:]]
    json.dump(near_certain.rows_of(near_certain.TINY, torch.device("cpu")), sys.stdout)

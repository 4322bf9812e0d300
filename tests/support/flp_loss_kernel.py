"""Runs the kernel of a loss on the CPU."""
import sys
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "simt"))

from cpu_kernel import Kernel as CpuKernel  # noqa: E402
from cpu_kernel import emit, needs_emit, needs_llc  # noqa: E402, F401

INPUTS = ["logprob", "entropy", "old_logprob", "ref_logprob", "advantage", "weight"]


def any_loss(program):
    """The kernel of any loss, and this program as its data. program: hexadecimal bytes"""
    module = emit(kind="loss_rows", dtype="fp32", program=program)
    return module["ir"], module["entries"][0]["threads"], numpy.frombuffer(bytes.fromhex(module["code"]), numpy.uint8)


class Kernel:
    """The kernel of a loss. ir: what `flpgen loss show --emit ir` prints; metrics: how many it has; program: the data
    of one for any loss"""

    def __init__(self, ir, metrics, folder, threads=256, program=None):
        self.metrics, self.threads, self.program = metrics, threads, program
        self.kernel = CpuKernel(ir, "loss_rows", threads, folder)

    def __call__(self, inputs, vectors, parameters):
        """inputs: name -> (n) float32, those of INPUTS that are there; vectors: arrays; parameters: floats, in order.
        Returns loss, gradients by logprob and entropy (n), metrics (count, n), all float32."""
        arrays = [inputs.get(name) for name in INPUTS] + list(vectors) + [None] * (8 - len(vectors))
        arrays = [None if array is None else numpy.ascontiguousarray(array, dtype=numpy.float32) for array in arrays]
        n = len(next(array for array in arrays if array is not None))
        out = [numpy.full(n, numpy.nan, dtype=numpy.float32) for _ in range(3)]
        out.append(numpy.full((self.metrics, n), numpy.nan, dtype=numpy.float32))
        every_row = [None, None, 0, 0, None]  # index, count, row_begin, row_end, row_class
        self.kernel(-(-n // self.threads), *arrays, *parameters, *[0.0] * (8 - len(parameters)), n, *every_row, *out,
                    self.program)
        return out

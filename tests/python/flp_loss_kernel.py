"""Runs the kernel of a loss on the CPU: its LLVM IR, the registers of the GPU made functions, through llc and cc."""
import ctypes
import glob
import re
import shutil
import subprocess

import numpy
import pytest

LLC = shutil.which("llc-19") or next(iter(glob.glob("/usr/lib/llvm-19/bin/llc")), None)

needs_llc = pytest.mark.skipif(not (LLC and shutil.which("cc")), reason="no llc of LLVM 19, or no C compiler")

INPUTS = ["logprob", "entropy", "old_logprob", "ref_logprob", "advantage", "weight"]
HARNESS = """
#include <stdint.h>
static int cta, thread;
int read_cta(void) { return cta; }
int read_thread(void) { return thread; }
void flp_loss_rows(%(types)s);
void run(float **p, int64_t *v, int64_t n, float *loss, float *by_logprob, float *by_entropy, float *metrics) {
  for (cta = 0; cta < (n + 255) / 256; cta++)
    for (thread = 0; thread < 256; thread++) flp_loss_rows(%(values)s, n, loss, by_logprob, by_entropy, metrics);
}
"""


def for_the_cpu(ir):
    """NVPTX's IR as x86's or ARM's: no target, one address space, no intrinsics of the GPU."""
    ir = re.sub(r"^target .*\n", "", ir, flags=re.M).replace(" addrspace(1)", "")
    for register, name in (("ctaid", "read_cta"), ("tid", "read_thread")):
        ir = ir.replace(f"@llvm.nvvm.read.ptx.sreg.{register}.x", f"@{name}")
    assert "nvvm.read" not in ir
    return ir


class Kernel:
    """A compiled loss. ir: what `flpgen loss show --emit ir` prints; metrics: how many it has"""

    def __init__(self, ir, metrics, folder):
        self.metrics = metrics
        source, objects, library = folder / "kernel.ll", folder / "kernel.o", folder / "kernel.so"
        source.write_text(for_the_cpu(ir))
        types = ["float *"] * 14 + ["int64_t"] * 9 + ["float *"] * 4
        values = [f"p[{i}]" for i in range(14)] + [f"v[{i}]" for i in range(8)]
        (folder / "harness.c").write_text(HARNESS % {"types": ", ".join(types), "values": ", ".join(values)})
        subprocess.run([LLC, "-O1", "-filetype=obj", "-relocation-model=pic", "-o", objects, source], check=True)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "harness.c", objects, "-lm"], check=True)
        self.run = ctypes.CDLL(str(library)).run

    def __call__(self, inputs, vectors, parameters):
        """inputs: name -> (n) float32, those of INPUTS that are there; vectors: arrays; parameters: floats, in order.
        Returns loss, gradients by logprob and entropy (n), metrics (count, n), all float32."""
        arrays = [inputs.get(name) for name in INPUTS] + list(vectors) + [None] * (8 - len(vectors))
        arrays = [None if array is None else numpy.ascontiguousarray(array, dtype=numpy.float32) for array in arrays]
        n = len(next(array for array in arrays if array is not None))
        pointers = (ctypes.c_void_p * 14)(*[None if array is None else array.ctypes.data for array in arrays])
        bits = numpy.zeros(8, dtype=numpy.float64)
        bits[:len(parameters)] = parameters
        out = [numpy.full(n, numpy.nan, dtype=numpy.float32) for _ in range(3)]
        out.append(numpy.full((self.metrics, n), numpy.nan, dtype=numpy.float32))
        self.run(pointers, bits.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(n),
                 *[array.ctypes.data_as(ctypes.c_void_p) for array in out])
        return out

"""trl (Hugging Face): ChunkedLogProbFunction, cuBLAS products over tiles and Triton kernels between them.

trl itself needs datasets and accelerate to be imported; this module needs torch, transformers and, in its backward
pass, one function of trl.trainer.utils, which gathers a sharded head and passes a whole one through. So only the
module is loaded, with that function's plain case in its place.
"""
import contextlib

from .seam import Peer, Result
from .skeleton import stand_in

CHUNK = 32768  # columns of a tile, as its trainers have it


class Trl(Peer):
    name = "trl"
    title = "trl.kernels.ChunkedLogProbFunction"
    distribution = "trl"
    needs_cuda = False
    entropy = bias = softcap = True

    module, function_name = "trl.kernels.chunked_logprob", "ChunkedLogProbFunction"
    packages = ("trl", "trl.kernels", "trl.trainer")

    def load(self):
        version = super().load()
        stand_in("trl.trainer.utils", maybe_gather_lm_head_ctx=lambda *_: contextlib.nullcontext())  # of a whole head
        return version

    def run(self, hidden, weight, bias, target, case):
        wanted = ("entropy",) if case.entropy != "none" else ()
        # temperature, chunk_size, final_logit_softcapping, logit_scale, outputs
        results = self.function.apply(hidden, weight, bias, target, 1.0, CHUNK, case.softcap, 1.0, wanted)
        return Result(results[0], results[1] if wanted else None)

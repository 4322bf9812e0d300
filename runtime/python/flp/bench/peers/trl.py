"""trl (Hugging Face): ChunkedLogProbFunction and ChunkedDivergenceFunction, cuBLAS products over tiles and Triton
kernels between them.

trl itself needs datasets and accelerate to be imported; these modules need torch, transformers and one function of
trl.trainer.utils, which gathers a sharded head and passes a whole one through. So only a module is loaded, with that
function's plain case in its place.
"""
import contextlib

from ..cases import TEACHER_SHARES
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
        stand_in("trl.trainer.utils", maybe_gather_lm_head_ctx=lambda *_: contextlib.nullcontext())  # of a whole head
        return super().load()

    def run(self, hidden, weight, bias, target, case):
        wanted = ("entropy",) if case.entropy != "none" else ()
        # temperature, chunk_size, final_logit_softcapping, logit_scale, outputs
        results = self.function.apply(hidden, weight, bias, target, 1.0, CHUNK, case.softcap, 1.0, wanted)
        return Result(results[0], results[1] if wanted else None)


class TrlDivergence(Trl):
    name = "trl-divergence"
    title = "trl.kernels.ChunkedDivergenceFunction"
    divergences = tuple(TEACHER_SHARES)
    module, function_name = "trl.kernels.chunked_divergence", "ChunkedDivergenceFunction"

    def run(self, hidden, weight, teacher, case):
        # biases of both, beta
        return Result(divergence=self.function.apply(hidden, weight, None, teacher.hidden, teacher.weight, None,
                                                     TEACHER_SHARES[case.loss])[0])

"""NeMo-RL: the fused head of its Megatron workers, and its log-probabilities of scores, DTensor's too, on one rank."""
from . import _call, _vocab_parallel
from ._seam import Host, Seam
from ._vocab_parallel import RANGE, SCORES

MODULE = "nemo_rl.distributed.model_utils"


def fused_head(hidden, target, weight, start, end, chunk_size, group, inference_only=False):
    """ChunkedDistributedHiddenStatesToLogprobs.apply: hidden (S/R,B,D), the rows of each of R ranks, target (B,S),
    weight (V/R,D) -> (B,S) float32."""
    _call.take(hidden, weight)
    return _vocab_parallel.of_hidden(hidden, weight, target.t().contiguous(), start, group, inference_only,
                                     sequence_parallel=True).t()


HOST = Host(
    "nemo-rl", (
        Seam(MODULE, "ChunkedDistributedHiddenStatesToLogprobs.apply",
             ("ctx", "tensor_parallel_hidden_states", "target", "output_weight_layer", *RANGE, "chunk_size",
              "tp_group", "inference_only"), "9f6a1daf93768808",
             _call.stands_for_apply("nemo-rl", fused_head),
             "ChunkedDistributedHiddenStatesToLogprobs.forward"),
        Seam(MODULE, "DistributedLogprob.apply", (*SCORES, "group", "inference_only"), "c1436cfdb8cdef78",
             _vocab_parallel.of_scores("nemo-rl", False), "DistributedLogprob.forward"),
        Seam(MODULE, "ChunkedDistributedLogprob.apply", (*SCORES, "chunk_size", "tp_group", "inference_only"),
             "3769d244d264b870", _vocab_parallel.of_scores("nemo-rl", True), "ChunkedDistributedLogprob.forward"),
    ), "github.com/NVIDIA-NeMo/RL at tag v0.7.0")

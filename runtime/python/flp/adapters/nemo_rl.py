"""NeMo-RL: the fused head of its Megatron workers; of scores, on one rank, log-probabilities, DTensor's too, and
divergences over the whole vocabulary."""
import torch

from .._functions._select_divergence import selective_divergence
from . import _call, _vocab_parallel
from ._seam import Host, Seam
from ._vocab_parallel import RANGE, SCORES

MODULE, LOSSES = "nemo_rl.distributed.model_utils", "nemo_rl.algorithms.loss.loss_functions"


def fused_head(hidden, target, weight, start, end, chunk_size, group, inference_only=False):
    """ChunkedDistributedHiddenStatesToLogprobs.apply: hidden (S/R,B,D), the rows of each of R ranks, target (B,S),
    weight (V/R,D) -> (B,S) float32."""
    _call.take(hidden, weight)
    return _vocab_parallel.of_hidden(hidden, weight, target.t().contiguous(), start, group, inference_only,
                                     sequence_parallel=True).t()


def soft_cross_entropy(student_logits, target_logits, group, inference_only=False):
    """DistributedCrossEntropy.apply, of a draft beside its target: scores (B,S,V) -> (B,S) float32, the divergence and,
    from a pass of its own, the target's entropy; the target is a constant, as in the host."""
    _call.take_pair(student_logits=student_logits, target_logits=target_logits)
    _call.one_rank(group)
    target = target_logits.detach()
    with torch.set_grad_enabled(torch.is_grad_enabled() and not inference_only):
        return (selective_divergence(student_logits, target, "forward_kl").value
                + selective_divergence(target, target, "forward_kl").entropy)


def full_vocab_kl(self, student_logits, teacher_logits, align, global_valid_toks, *, tp_group, cp_group):
    """CrossTokenizerDistillationLossFn's of a shared vocabulary: scores (B,S,V), the first V of the teacher's -> the
    loss, which the host reduces."""
    _call.take_pair(student_logits=student_logits, teacher_logits=teacher_logits)
    _call.refuse(teacher_logits.requires_grad and "teacher_logits need a gradient")
    if tp_group is not None:
        _call.one_rank(tp_group)
    kind = "reverse_kl" if self.reverse_kl else "forward_kl"
    value = selective_divergence(student_logits, teacher_logits[..., :student_logits.shape[-1]], kind,
                                 temperature=self.temperature).value
    return self._same_vocab_masked_kl(value, align, global_valid_toks, cp_group)


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
        Seam(MODULE, "DistributedCrossEntropy.apply",
             ("ctx", "student_logits", "target_logits", "group", "inference_only"), "5f55ae3f93e3f47b",
             _call.stands_for_apply("nemo-rl", soft_cross_entropy), "DistributedCrossEntropy.forward"),
        Seam(LOSSES, "CrossTokenizerDistillationLossFn._direct_full_vocab_kl",
             ("self", "student_logits", "teacher_logits", "align", "global_valid_toks", "tp_group", "cp_group"),
             "db93e626c4815905", _call.stands("nemo-rl", full_vocab_kl)),
    ), "github.com/NVIDIA-NeMo/RL at tag v0.7.0")

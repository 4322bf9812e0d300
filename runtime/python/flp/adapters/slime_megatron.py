"""slime from hidden states: its Megatron models' scores are left out, get_log_probs_and_entropy takes what they would
be made of. Prompts and the prompts' padding cost no work in the head."""
import functools

from . import _deferred
from ._seam import Host, Seam

NAME = "slime-megatron"
FROM_SCORES = "get_log_probs_and_entropy"
NEEDING = (("rollout_top_p", lambda share: share != 1.0, "asks for masked scores"), _deferred.IN_PIECES)


def from_hidden(host):
    """get_log_probs_and_entropy: scores (1, T, V/R) -> (empty, {"log_probs": [...], "entropy": [...]})"""
    module = host.__globals__

    @functools.wraps(host)
    def get_log_probs_and_entropy(logits, *, args, unconcat_tokens, total_lengths, response_lengths,
                                  with_entropy=False, **others):
        samples = dict(total_lengths=total_lengths, response_lengths=response_lengths)
        if not isinstance(logits, _deferred.Deferred):
            return host(logits, args=args, unconcat_tokens=unconcat_tokens, with_entropy=with_entropy, **samples,
                        **others)
        trained = getattr(args, "entropy_coef", 0.0) != 0
        results = _deferred.of_responses(
            logits, module["get_responses"], getattr(args, "rollout_temperature", 1.0),
            with_entropy and (trained or "detached"), args=args, unconcat_tokens=unconcat_tokens,
            apply_temperature=False, **samples)
        if args.allgather_cp:
            module["_allgather_cp_redistribute"](results, logits_local_len=logits.size(1), **samples)
        return logits.hidden.new_empty((0,), dtype=logits.dtype), results

    return get_log_probs_and_entropy


scored, trained = _deferred.passes(NAME, NEEDING, FROM_SCORES)
MODEL, LOSS = "slime.backends.megatron_utils.model", "slime.backends.megatron_utils.loss"
HOST = Host(
    NAME, (
        Seam(MODEL, "forward_only", ("f", "args", "model", "data_iterator", "num_microbatches", "store_prefix",
                                     "use_rollout_top_p_replay"), "3c7bb70321693162", scored),
        Seam(MODEL, "train_one_step", ("args", "rollout_id", "step_id", "data_iterator", "model", "optimizer",
                                       "opt_param_scheduler", "num_microbatches", "step_global_batch_size",
                                       "microbatch_pbar"), "9f748173a58c2256", trained),
        Seam(LOSS, FROM_SCORES, ("logits", "args", "unconcat_tokens", "total_lengths", "response_lengths",
                                 "with_entropy", "non_loss_data", "top_p_token_ids", "top_p_token_offsets"),
             "03a8a41ac1e4539b", from_hidden),
    ), "github.com/THUDM/slime at commit 624b824a898ab0ec1fcb4d373004c7f3852bf515", "slime")

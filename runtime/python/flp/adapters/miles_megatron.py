"""Miles from hidden states: as slime_megatron, with Miles' own seams."""
import functools

from . import _deferred
from ._seam import Host, Seam

NAME = "miles-megatron"
FROM_SCORES = "get_log_probs_and_entropy"
NEEDING = (("true_on_policy_mode", bool, "asks for the bits of the rollout engine"),
           ("recompute_loss_function", bool, "cuts the loss off from what scores are made of"), _deferred.IN_PIECES)


def from_hidden(host):
    """get_log_probs_and_entropy: scores (1, T, V/R), or (B, T, V/R) -> {"log_probs": [...], "entropy": [...]}"""
    module = host.__globals__

    @functools.wraps(host)
    def get_log_probs_and_entropy(logits, *, args, unconcat_tokens, total_lengths, response_lengths,
                                  with_entropy=False, entropy_requires_grad=True, non_loss_data=True,
                                  max_seq_lens=None):
        samples = dict(args=args, unconcat_tokens=unconcat_tokens, total_lengths=total_lengths,
                       response_lengths=response_lengths, max_seq_lens=max_seq_lens)
        if not isinstance(logits, _deferred.Deferred):
            return host(logits, with_entropy=with_entropy, entropy_requires_grad=entropy_requires_grad,
                        non_loss_data=non_loss_data, **samples)
        temperature = args.rollout_temperature if args.rollout_temperature > 0 else 1.0
        results = _deferred.of_responses(logits, module["get_responses"], temperature,
                                         with_entropy and (entropy_requires_grad or "detached"), **samples)
        if args.allgather_cp:
            del samples["unconcat_tokens"]
            module["allgather_cp_redistribute"](results, logits=logits, **samples)
        return results

    return get_log_probs_and_entropy


scored, trained = _deferred.passes(NAME, NEEDING, FROM_SCORES)
MODEL, LOSS = "miles.backends.megatron_utils.model", "miles.backends.training_utils.loss_hub.logit_processors"
HOST = Host(
    NAME, (
        Seam(MODEL, "forward_only", ("f", "args", "model", "data_iterator", "num_microbatches", "rollout_id",
                                     "store_prefix"), "7aaa9a65a7f56c5b", scored),
        Seam(MODEL, "train_one_step", ("args", "rollout_id", "step_id", "data_iterator", "model", "optimizer",
                                       "opt_param_scheduler", "num_microbatches", "num_rollouts", "witness_info",
                                       "attempt", "ft_test_action_executor"), "fe1ef3802faa9474", trained),
        Seam(LOSS, FROM_SCORES, ("logits", "args", "unconcat_tokens", "total_lengths", "response_lengths",
                                 "with_entropy", "entropy_requires_grad", "non_loss_data", "max_seq_lens"),
             "8744e712cc977f77", from_hidden),
    ), "github.com/radixark/miles at commit 31f1ca961a94cb860cec3b2dea34ec332bfa8f76", "miles")

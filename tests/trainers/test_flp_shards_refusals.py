"""Wrong arguments of the calls for shards: the exception's class, field, value and what is accepted."""
import pytest
import torch

import flp
from flp_reference import DEVICE, problem

TENSOR = " (accepted: a torch.Tensor)"
PLACE = "None, or at least vocab_offset and the real rows, %d, to 1073741824"


@pytest.fixture(scope="module")
def given():
    """Right arguments of each call."""
    hidden, weight, target, _ = problem()
    partial = flp.linear_logprob_partial(hidden, weight, target, vocab_offset=0, vocab_total=331)
    stats = flp.combine_partials([partial], target, vocab_total=331)[2]
    grad = torch.ones(13, device=DEVICE)
    return {"partial": dict(hidden=hidden, weight_shard=weight, target=target, vocab_offset=0, vocab_total=331),
            "combine": dict(partials=[partial], target=target, vocab_total=331),
            "backward": dict(hidden=hidden, weight=weight, target=target, stats=stats, grad_logprob=grad)}


CALLS = {"partial": "linear_logprob_partial", "combine": "combine_partials", "backward": "linear_logprob_backward"}


@pytest.mark.parametrize("name, wrong, kind, says", [
    ("partial", dict(weight_shard=[1.0]), TypeError, "weight_shard is of type list" + TENSOR),
    ("partial", dict(weight_shard=torch.zeros(331, 8, device=DEVICE)), ValueError,
     "weight_shard is of shape (331, 8) (accepted: (V, 64), as hidden ends in 64)"),
    ("partial", dict(weight_shard=torch.zeros(331, 64, dtype=torch.float16, device=DEVICE)), TypeError,
     "weight_shard is of dtype torch.float16 while hidden is of dtype torch.float32 (accepted: one dtype for both)"),
    ("partial", dict(bias=torch.zeros(5, device=DEVICE)), ValueError,
     "bias is of shape (5,) (accepted: (331,), as weight_shard has 331 rows)"),
    ("partial", dict(vocab_offset=-1), ValueError, "vocab_offset is -1 (accepted: 0 to 1073741824)"),
    ("partial", dict(vocab_offset=None), TypeError, "vocab_offset is of type NoneType (accepted: an integer)"),
    ("partial", dict(vocab_offset=10), ValueError, "vocab_total is 331 (accepted: %s)" % (PLACE % 341)),
    ("partial", dict(vocab_total=0), ValueError, "vocab_total is 0 (accepted: %s)" % (PLACE % 331)),
    ("partial", dict(vocab_valid=0), ValueError,
     "vocab_valid is 0 (accepted: None, or 1 to 331, the rows of the shard)"),
    ("partial", dict(vocab_valid=332), ValueError,
     "vocab_valid is 332 (accepted: None, or 1 to 331, the rows of the shard)"),
    ("combine", dict(partials=5), TypeError, "partials is of type int (accepted: a sequence of torch.Tensor, or one)"),
    ("combine", dict(partials=[]), ValueError, "partials is of no rank (accepted: those of at least one)"),
    ("combine", dict(partials=[torch.zeros(13, 4, device=DEVICE), [1.0]]), TypeError,
     "partials[1] is of type list" + TENSOR),
    ("combine", dict(partials=[torch.zeros(13, 4, device=DEVICE), torch.zeros(4, 4, device=DEVICE)]), ValueError,
     "partials[1] is of dtype torch.float32 and shape (4, 4) (accepted: torch.float32 (13, 4))"),
    ("combine", dict(partials=torch.zeros(0, 13, 4, device=DEVICE)), ValueError,
     "partials is of no rank (accepted: those of at least one)"),
    ("combine", dict(vocab_total=None), TypeError, "vocab_total is of type NoneType (accepted: an integer)"),
    ("combine", dict(vocab_total=1), ValueError, "vocab_total is 1 (accepted: 2 to 1073741824)"),
    ("combine", dict(weight_shard=torch.zeros(64, device=DEVICE)), ValueError,
     "weight_shard is of shape (64,) (accepted: (V, D))"),
    ("combine", dict(weight_shard=torch.zeros(331, 64, dtype=torch.float64, device=DEVICE)), TypeError,
     "weight_shard is of dtype torch.float64 (accepted: torch.bfloat16, torch.float16, torch.float32)"),
    ("backward", dict(stats=None), TypeError, "stats is of type NoneType" + TENSOR),
    ("backward", dict(grad_logprob=1.0), TypeError, "grad_logprob is of type float" + TENSOR),
    ("backward", dict(grad_logprob=torch.ones(4, device=DEVICE)), ValueError,
     "grad_logprob is of shape (4,) (accepted: 13 elements, one a row)"),
    ("backward", dict(grad_entropy=torch.ones(13, dtype=torch.complex64, device=DEVICE)), TypeError,
     "grad_entropy is torch.complex64 (accepted: a floating-point dtype)"),
    ("backward", dict(grad_logprob=None), ValueError,
     "grad_logprob is None, as grad_entropy is (accepted: one of the two)"),
    ("backward", dict(needs="hidden"), TypeError,
     "needs is 'hidden' (accepted: a sequence of names: hidden, weight, bias)"),
    ("backward", dict(needs=None), TypeError, "needs is None (accepted: a sequence of names: hidden, weight, bias)"),
    ("backward", dict(needs=[["hidden"]]), ValueError, "needs is ['hidden'] (accepted: hidden, weight, bias)"),
    ("backward", dict(vocab_valid=400), ValueError,
     "vocab_valid is 400 (accepted: None, or 1 to 331, the rows of the shard)"),
    ("backward", dict(vocab_total=7), ValueError, "vocab_total is 7 (accepted: %s)" % (PLACE % 331)),
], ids=lambda value: "-".join(value) if isinstance(value, dict) else value if value in CALLS else "")
def test_wrong_arguments(given, name, wrong, kind, says):
    with pytest.raises(kind) as caught:
        getattr(flp, CALLS[name])(**{**given[name], **wrong})
    assert str(caught.value) == says

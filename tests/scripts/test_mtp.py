"""runtime/python/examples/mtp.py: predictions of several heads are rows of one call, with weights, without a GPU."""
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runtime" / "python" / "examples"))

import _tiny  # noqa: E402
import mtp  # noqa: E402


def given(*options):
    return _tiny.with_sizes(mtp.parser().parse_args(["--tiny", "--device", "cpu", *options]))


@pytest.mark.long
def test_every_head_learns_and_the_forms_agree():
    said = []
    torch.manual_seed(0)
    results = mtp.train(given("--compare"), say=said.append)
    first, last = results["losses"][0], results["losses"][-1]
    assert len(first) == 3 and len(said) == 40 and all(end < start - 1 for start, end in zip(first, last))
    assert results["largest_difference"] < 1e-5


@pytest.mark.parametrize("heads", [1, 4])
def test_targets_and_weights_of_rows(heads):
    """A head further ahead has a token less to predict in each sequence; together those ahead weigh a share."""
    tokens = torch.arange(20).view(2, 10)
    targets, weights = mtp.rows_of(tokens, heads, 0.3)
    assert targets.shape == (heads, 2, 10) and torch.equal(targets[0, :, :9], tokens[:, 1:])
    assert [int((row == mtp.IGNORED).sum()) for row in targets] == [2 * (k + 1) for k in range(heads)]
    share = ((targets != mtp.IGNORED) * weights).sum((1, 2))
    assert torch.allclose(share, torch.tensor([1.0] + [0.3 / max(heads - 1, 1)] * (heads - 1)))


def test_states_do_not_see_what_they_predict():
    """Those of head k read tokens up to t + k, so a change of token t + 1 + k leaves them as they are."""
    torch.manual_seed(0)
    model, tokens = mtp.Model(50, 32, 1, 3), torch.randint(50, (1, 12))
    with torch.no_grad():
        before = model(tokens)
        tokens[0, 8] = (tokens[0, 8] + 1) % 50
        after = model(tokens)
    for k in range(3):
        assert torch.equal(before[k, 0, :8 - k], after[k, 0, :8 - k])
        assert not torch.equal(before[k, 0, 8 - k], after[k, 0, 8 - k])

"""What functions of flp and scripts of tests/gpu refuse: the files of tests/golden/refused/python, of calls."""
import contextlib
import functools
import io
import re
import types
from pathlib import Path

import pytest
import torch

import flp
import transcripts
from flp import losses
from flp_reference import DEVICE, problem
from flp_standin_lm import IDS, TinyLM

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "refused" / "python"
ON_DEVICE = {made.__name__: functools.partial(made, device=DEVICE) for made in (torch.zeros, torch.ones, torch.tensor)}
NAMES = {"functools": functools, "flp": flp, "losses": losses, "torch": torch, "types": types, "problem": problem,
         "TinyLM": TinyLM, "IDS": IDS, **ON_DEVICE}


class Elsewhere(torch.Tensor):
    """A subclass as quantisation and functional collectives make them: its values are those of another tensor."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        plain = [value.inner if isinstance(value, cls) else value for value in args]
        return cls(function(*plain, **(kwargs or {})))


def freed(tensor):
    """A view of storage that is gone, as FSDP leaves one."""
    padded = torch.cat([tensor[:1], tensor])
    view = padded[1:]
    (padded.untyped_storage() if hasattr(padded, "untyped_storage") else padded.storage()).resize_(0)
    return view


def unmade(tensor):
    """Zeros, which take no memory."""
    return torch._efficientzerotensor(*tensor.shape, device=tensor.device, dtype=tensor.dtype)


def answer(names, call):
    """The exception; behind SystemExit what argparse has written."""
    told = io.StringIO()
    with pytest.raises((Exception, SystemExit)) as caught, contextlib.redirect_stderr(told):
        eval(call, names)
    said = f"{type(caught.value).__name__}: {caught.value}".replace(f"on {DEVICE} ", "on cpu ")
    return [*said.splitlines(), *re.findall("error: .*", told.getvalue())]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_what_is_refused(engine, path):
    names = dict(NAMES)
    transcripts.check(path, lambda text: exec(text, names), functools.partial(answer, names))

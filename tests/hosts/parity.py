"""Runs one call with the host's own function and with flp's in its place, and compares both with float64."""
import collections
import contextlib
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import types
from unittest import mock
from unittest.mock import MagicMock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from flp_reference import doubles, relative

import flp

DTYPES = [torch.float32, torch.bfloat16]
# Largest error of flp, relative to the value or to 1 nat if it is smaller, and relative L2 of gradients; it may be as
# large as the host's where that is larger.
VALUES = {torch.float32: 1e-5, torch.bfloat16: 1e-5}
ROUNDED = {torch.float32: 1e-5, torch.bfloat16: 2.0**-8}
GRADIENTS = {torch.float32: 2e-5, torch.bfloat16: 8e-3}
# Relative L2 of gradients of weights before the head, whose model runs in the same dtype in all three: they differ by
# what the model's own backward pass makes of one rounding more or less behind it. In bfloat16 the trainers' own arrive
# there with up to 1.5e-2 on one rank and 1.8e-2 on two (the largest of all weights, 8 seeds, tied or not, with sequence
# parallelism or without).
TRUNKS = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
# How far the host may be from float64 for the comparison to mean anything.
HOST_VALUES = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
HOST_GRADIENTS = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


# Which tests compared a host, for the record that conftest.py writes.
tests_of = collections.defaultdict(set)


def bare(*names):
    """Puts packages into sys.modules without running their __init__; skips the test if the host is not installed."""
    if importlib.util.find_spec(names[0].partition(".")[0]) is None:
        pytest.skip("%s is not installed" % names[0].partition(".")[0], allow_module_level=True)
    for name in names:
        if name not in sys.modules:
            spec = importlib.util.find_spec(name)
            module = types.ModuleType(name)
            module.__spec__, module.__path__ = spec, list(spec.submodule_search_locations)
            sys.modules[name] = module


@contextlib.contextmanager
def stubs(**modules):
    """Lets imports of packages that are not wanted here succeed; name__sub stands for name.sub."""
    made = {name.replace("__", "."): module for name, module in modules.items()}
    absent = {name: module for name, module in made.items() if name not in sys.modules}
    for name, module in absent.items():
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def of_trl(name):
    """A module of TRL; stubs stand for what it imports to read data, where that is not installed: nothing here does."""
    data = [package for package in ("datasets", "pandas", "pyarrow") if importlib.util.find_spec(package) is None]
    pytest.importorskip("transformers.trainer")  # which looks for datasets as well, and must not find a stub
    more = ["pyarrow__compute", "pyarrow__types"] if "pyarrow" in data else []
    with stubs(**{package: stub() for package in data + more}):
        return pytest.importorskip(name)


def stub(**names):
    return MagicMock(**names)


def attributes(package):
    """{(module or class, name): object} of all modules of a package and the classes in them."""
    found = {}
    for key, module in list(sys.modules.items()):
        if key.partition(".")[0] != package or module is None:
            continue
        for name, value in list(vars(module).items()):
            found[key, name] = value
            if isinstance(value, type):
                found.update(((key, name, inner), held) for inner, held in list(vars(value).items()))
    return found


def same(before, after):
    return before.keys() == after.keys() and all(after[key] is value for key, value in before.items())


def both(host, call, package=None):
    """(results of the host, results with flp installed); the host is as it was before.

    package  the host's, if it is not of the host's name
    """
    package = package or host
    note_test(host)
    own = call()
    with installed(host, package) as before:
        assert not same(before, attributes(package))
        ours = call()
    return own, ours


@contextlib.contextmanager
def installed(host, package):
    """flp in a host, which then is as it was. Yields the attributes that its package had before."""
    before = attributes(package)
    flp.install(host)
    try:
        yield before
    finally:
        flp.uninstall(host)
    assert same(before, {key: value for key, value in attributes(package).items() if key in before})


def is_left_to_host(text):
    """Whether a line of flp's log says that a call goes to the host's own function."""
    return "its own" in text


def note_test(host):
    tests_of[host].add(os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0])


RANKS = 2


def in_ranks(call, *arguments):
    """call(rank, *arguments), a function of a module, in two processes of one group -> what each gave, on the CPU.

    Where tests run on GPUs and there are two, each rank has one of its own; else all are on the CPU. call's modules
    are imported with FLP_TEST_DEVICE saying which. Raises what any rank did.
    """
    on_gpus = os.environ["FLP_TEST_DEVICE"] == "cuda" and torch.cuda.device_count() >= RANKS
    with tempfile.TemporaryDirectory() as folder, \
            mock.patch.dict(os.environ, FLP_TEST_DEVICE="cuda" if on_gpus else "cpu"):
        torch.multiprocessing.spawn(_rank, (call, folder, arguments), nprocs=RANKS)
        return [torch.load("%s/%d" % (folder, rank), map_location="cpu", weights_only=False) for rank in range(RANKS)]


def _rank(rank, call, folder, arguments):
    torch.set_num_threads(1)
    if os.environ["FLP_TEST_DEVICE"] == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend_of(os.environ["FLP_TEST_DEVICE"]), rank=rank, world_size=RANKS,
                            init_method="file://%s/store" % folder)
    torch.save(call(rank, *arguments), "%s/%d" % (folder, rank))
    dist.barrier()
    dist.destroy_process_group()


def backend_of(device):
    """torch.distributed's, for tensors there; trainers gather some on the CPU, too."""
    return "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"


def both_in_ranks(host, call, *arguments):
    """[(results of the host, results with flp installed) of each rank] of call(rank, *arguments), a function of a test
    module, in two processes (in_ranks)."""
    note_test(host)
    return in_ranks(_both, host, call, arguments)


def _both(rank, host, call, arguments):
    left = []
    flp.set_log(lambda level, text: left.append(text) if is_left_to_host(text) else None)
    own = call(rank, *arguments)
    flp.install(host)
    ours = call(rank, *arguments)
    flp.uninstall(host)
    assert not left, left
    return own, ours


def with_gradients(outputs, inputs, seed=0):
    """{"0": first output, ..., "gradient 0": gradient of the first input, ...} of a random weighting of the outputs."""
    generator = torch.Generator().manual_seed(seed)
    total = 0.0
    for output in outputs:
        weights = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.device)
        total = total + (output.double() * weights).sum()
    gradients = torch.autograd.grad(total, inputs)
    found = {str(i): output.detach() for i, output in enumerate(outputs)}
    found.update(("gradient %d" % i, gradient) for i, gradient in enumerate(gradients))
    return found


def compare(own, ours, wanted, dtype, rounded=False, host_values=HOST_VALUES, host_gradients=HOST_GRADIENTS, trunks=()):
    """flp is as near to float64 as its contract demands or as the host is; the host is near, too; shapes, dtypes agree.

    host_values, host_gradients  limits of the host's own errors; what is above the usual ones excuses nothing of flp's
    trunks                       names of gradients of weights before the head
    """
    values = ROUNDED if rounded else VALUES
    for name, want in wanted.items():
        assert ours[name].shape == own[name].shape and ours[name].dtype is own[name].dtype, (
            name, ours[name].shape, own[name].shape, ours[name].dtype, own[name].dtype)
        if name.startswith("gradient"):
            errors = [relative(x, want) for x in (ours[name], own[name])]
            limit, usual, host_limit = TRUNKS if name in trunks else GRADIENTS, HOST_GRADIENTS, host_gradients
        else:
            errors = [float(((x.double() - want) / want.abs().clamp(min=1)).abs().max())
                      for x in (ours[name], own[name])]
            limit, usual, host_limit = values, HOST_VALUES, host_values
        assert errors[0] <= max(limit[dtype], min(errors[1], usual[dtype])), (name, errors)
        assert errors[1] <= host_limit[dtype], (name, errors)


def of_scores(call, dtype, device, *host, rounded=False, shifted=False):
    """call(scores, tokens) beside log-probabilities of float64. shifted: of the tokens that follow"""
    torch.manual_seed(0)
    scores = (torch.randn(3, 12, 501, device=device) * 3).to(dtype).requires_grad_()
    tokens, doubled = torch.randint(0, 501, (3, 12), device=device), doubles(scores)
    target = tokens.roll(-1, -1) if shifted else tokens
    logprob = doubled[0].log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    found = both(host[0], lambda: with_gradients([call(scores * 1, tokens)], [scores]), *host[1:])  # may write into it
    compare(*found, with_gradients([logprob[:, :-1] if shifted else logprob], doubled), dtype, rounded=rounded)

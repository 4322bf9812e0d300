"""vLLM 0.32.0 (its CPU build) with and without flp, each in a process that vLLM's entry point brings flp into."""
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import flp

if not importlib.util.find_spec("vllm"):
    pytest.skip("vllm is not installed (requirements-vllm.txt, an environment of its own)", allow_module_level=True)

TREE = Path(__file__).resolve().parents[2]
RUNNER = "vllm.v1.worker.gpu_model_runner.GPUModelRunner."


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """run(FLP_VLLM, what vllm_engine.py is asked for) -> what it leaves: of the engine a dictionary."""
    plugin = tmp_path_factory.mktemp("plugin") / "flp-0.dist-info"  # the entry point as the wheel has it
    plugin.mkdir()
    project = (TREE / "runtime" / "python" / "pyproject.toml").read_text()
    (point,) = re.findall(r'\[project\.entry-points\."(vllm\.general_plugins)"\]\nflp = "(.*)"\n', project)
    (plugin / "entry_points.txt").write_text("[%s]\nflp = %s\n" % point)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: flp\nVersion: 0\n")
    folders = [str(plugin.parent), str(TREE / "runtime" / "python"), os.environ.get("PYTHONPATH")]

    def start(words, *asked):
        folder = tmp_path_factory.mktemp(asked[0])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders)), "HF_HUB_OFFLINE": "1",
                       "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
                       "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
        said = subprocess.run([sys.executable, TREE / "tests" / "hosts" / "vllm_engine.py", *asked, folder], text=True,
                              env={**environment, "FLP_VLLM": words}, capture_output=True)
        assert said.returncode == 0, said.stdout[-4000:] + said.stderr[-8000:]
        return torch.load(folder / "engine.pt", weights_only=False) if asked[0] == "engine" else said.stdout

    return start


@pytest.fixture(scope="module", params=["1", "2"])
def engines(run, request):
    """With flp and without it, over so many ranks."""
    return run("prompt,sampled", "engine", request.param), run("", "engine", request.param)


def positions(results):
    """[(token, {id: (logprob, rank)})] of everything that was reported: of prompts, decoding, scoring again."""
    found = []
    for part in ("first", "again"):
        for given, tokens, prompt, sampled in zip(*(results[part][name]
                                                    for name in ("given", "tokens", "prompt", "sampled"))):
            assert len(prompt) == len(given) - 1 and len(sampled) == (len(tokens) if part == "first" else 0)
            found += [*zip(given[1:], prompt), *zip(tokens, sampled)]
    return found


def calls_of(results):
    """(hidden, target, logprob) of all rows that flp was given, on every rank the same, and how many in each call."""
    first, *others = [[torch.cat(tensors) for tensors in zip(*rank["calls"])] for rank in results["ranks"]]
    assert all(torch.equal(one, other) for rank in others for one, other in zip(first, rank))
    return (*first, [len(call[0]) for call in results["ranks"][0]["calls"]])


def test_tokens_are_the_same_and_log_probabilities_those_of_float64(engines):
    """Of the hidden states that flp was given in the engine, which vLLM scores without flp as well."""
    ours, own = engines
    assert all(rank["calls"] == [] and rank["counts"] is None for rank in own["ranks"])
    for part in ("first", "again"):
        assert ours[part]["tokens"] == own[part]["tokens"] and ours[part]["given"] == own[part]["given"]
    hidden, target, logprob, _ = calls_of(ours)
    row_of = {pair: row for row, pair in enumerate(zip(target.tolist(), logprob.tolist()))}
    weight = torch.cat([rank["weight"] for rank in ours["ranks"]])
    exact = torch.log_softmax(hidden.double() @ weight.double().t(), -1)
    errors = {"ours": [], "own": []}
    for (token, mine), (_, theirs) in zip(positions(ours), positions(own)):
        row = exact[row_of[token, mine[token][0]]]
        assert (row > row[token] + 1e-5).sum() < mine[token][1] <= (row >= row[token] - 1e-5).sum()
        for name, found in (("ours", mine), ("own", theirs)):
            errors[name] += [abs(value - row[i].item()) for i, (value, _) in found.items()]
    assert len(errors["ours"]) > 463 * 4 and max(errors["ours"]) < 1e-5 and max(errors["own"]) > 1e-3


def test_bits_are_those_of_one_call_over_all_rows(engines):
    """What decoding, prefilling in chunks and scoring again reported, beside a trainer's one call of as many shards."""
    hidden, target, logprob, sizes = calls_of(engines[0])
    assert min(sizes) <= 3 and max(sizes) > 64
    shards = [rank["weight"] for rank in engines[0]["ranks"]]
    rows, total = len(shards[0]), sum(map(len, shards))
    parts = [flp.linear_logprob_partial(hidden, shard, target, vocab_offset=rows * rank, vocab_total=total)
             for rank, shard in enumerate(shards)]
    whole = (flp.combine_partials(parts, target, vocab_total=total)[0] if len(shards) > 1
             else flp.linear_logprob(hidden, shards[0], target))
    assert torch.equal(whole, logprob)


def test_every_call_ran_on_flp(engines):
    for rank in engines[0]["ranks"]:
        for name in ("_get_prompt_logprobs_dict", "_sample"):
            counts = rank["counts"][RUNNER + name]
            assert sum(counts["flp"].values()) and not {*counts["own"]} - {"flp was asked for no log-probabilities"}


def test_functions_of_runner_v2(run):
    assert run("prompt,sampled", "functions").endswith("good\n")

"""flp.policy_loss on a stand-in for a GPU, without a generator: the kernels of its steps come from a pack that has the loss."""
import json
import os
import subprocess
import sys

import pytest

from flpgen_pack_tool import build, entries_of, pack
from flpgen_tool import HANG, needs_flpgen

FAKE = os.environ.get("FLP_TEST_FAKE_CUDA", "")
HEAD = ["--vocab", 1000, "--hidden", 64, "--entropy", "backward", "--grad", "hidden,weight"]
DEVICE = "A GPU/7/13000"
# What a call by grpo is given, by the name of the program that it then asks for.
OPTIONS = {"grpo+k3": {}, "grpo+k3+token_entropy": {"entropy_weight": 1e-3}}

pytestmark = [needs_flpgen, pytest.mark.skipif(not os.path.exists(FAKE), reason="the stand-in for libcuda was not built")]

# The plan that a call on host tensors asks for, made for the device.
PLANS = """
import json, sys, torch, flp
from flp._library import _plans
hidden, weight = (torch.randn(size, dtype=torch.bfloat16, requires_grad=True) for size in ((1, 4, 64), (1000, 64)))
old = torch.zeros(1, 4)
flp.policy_loss("grpo", hidden, weight, torch.zeros(1, 4, dtype=torch.long), torch.ones(1), old_logprob=old,
                ref_logprob=old, beta=0.04, **json.loads(sys.argv[1]))
plan = _plans.get(_plans.existing()[-1].key._replace(device=0, alignment=16))
print(json.dumps([_plans.rung_name(plan.rung), plan.describe()]))
"""


def plan_of_a_step(pack_path, cache, **options):
    """-> (rung, its description) of a step by grpo with k3."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("FLP_") or name == "FLP_LIBRARY"}
    env.update(FLP_CACHE_PATH=str(pack_path), FLP_CACHE_DIR=str(cache), FLP_JIT_LIBRARY="/nonexistent/libflpgen.so",
               FLP_CUDA_LIBRARY=FAKE, FAKE_CUDA="capability=9.0;name=A GPU;sms=7;driver=13000")
    done = subprocess.run([sys.executable, "-c", PLANS, json.dumps(options)], env=env, capture_output=True, text=True,
                          timeout=HANG)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.long)], ids=["plain", "tuned"])
def packs(request, tmp_path_factory):
    """-> (the rung of kernels from it, a pack of a head, the same and two losses that came with another head)."""
    folder = tmp_path_factory.mktemp("packs")
    line = " ".join(map(str, HEAD)) + (f" --tuned-for '{DEVICE}'" if request.param else "")
    (folder / "list").write_text(line)
    (folder / "losses").write_text("".join(f"--vocab 900 --hidden 64 --loss {loss}\n" for loss in OPTIONS))
    bare = build(folder / "bare.flpp", "--list", folder / "list", "--variants")
    return "tuned" if request.param else "heuristic", bare, build(folder / "a.flpp", "--from", bare, "--list", folder / "losses")


def test_a_pack_has_each_loss_once(packs):
    _, bare, whole = packs
    kinds = [[entry["kernel"]["key"]["kind"] for entry in entries_of(path)] for path in (bare, whole)]
    assert [kind.count("loss_rows") for kind in kinds] == [0, len(OPTIONS)]


@pytest.mark.long
@pytest.mark.parametrize("loss", OPTIONS)
def test_a_step_takes_its_loss_from_a_pack(packs, tmp_path, loss):
    """Where none has it, a kernel that runs any loss does, and with it all that ship."""
    rung, bare, whole = packs
    assert plan_of_a_step(whole, tmp_path, **OPTIONS[loss])[0] == rung
    without, why = plan_of_a_step(bare, tmp_path, **OPTIONS[loss])
    assert without == "generic" and "has no sm_80 kernel loss_rows" in why


def test_a_loss_of_no_head_is_refused(tmp_path):
    (tmp_path / "list").write_text(" ".join(map(str, HEAD)))
    done = pack("build", "--list", tmp_path / "list", "--loss", "grpo+k3", "--out", tmp_path / "x")
    assert done.code == 2 and "--loss: 'grpo+k3' is not accepted without --vocab and --hidden" in done.err

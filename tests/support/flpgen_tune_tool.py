"""What the tests of flpgen tune share: the command on the stand-in for a GPU, its document, record and plans."""
import re
import sqlite3
from pathlib import Path

import pytest

from flpgen_tool import FAKE, flpgen, needs_fake, needs_flpgen

STAND_INS = {"FLP_CUDA_LIBRARY": FAKE,
             "FLP_JIT_LIBRARY": FAKE.replace("fake_cuda", "fake_provider"),
             "FLP_CUBLASLT_LIBRARY": FAKE.replace("fake_cuda", "fake_cublaslt")}

pytestmark = [needs_flpgen, needs_fake]

TREE = Path(__file__).resolve().parents[2]
SPEC = ["--vocab", 200, "--hidden", 8]
BACKWARD = ["--grad", "hidden,weight", "--entropy", "backward"]
# Whatever the untuned kernels are, all others are faster: the tests know nothing of the cost model.
KINDS = ("forward", "dz", "forward_keep", "products")  # of Hopper; portable kernels make the products one by one
TIMED = (*KINDS, "grad_hidden", "grad_weight")
FASTER = ";".join(f"cost={kind}/tune=own :50" for kind in TIMED)
# A device of compute capability 9.0 whose times have hardly any noise; 40 ms a launch, if the script sets nothing else.
DEVICE = "capability=9.0;compute=1;jitter=5;" + "".join(f"cost={kind}/:40;" for kind in TIMED)
QUICK = ["--rows", 40, "--burst-ms", 1, "--effort", "quick"]


def tune(*arguments, cache, script=FASTER, spec=SPEC, **environment):
    environment = {"TMPDIR": str(cache.parent), **STAND_INS, **environment}
    return flpgen("tune", *spec, *QUICK, *arguments, cache=cache, FAKE_CUDA=DEVICE + script, **environment)


def result(*arguments, **options):
    """-> the one target of the document, which must be there."""
    done = tune(*arguments, "--json", **options)
    assert done.code == 0 and done.err == "", done.err
    return done.json()["targets"][0]


def steps(target):
    return {step["kind"]: step for step in target["steps"]}


def rows(cache, sql, *values):
    db = sqlite3.connect(str(cache / "tune.sqlite"))
    found = db.execute(sql, values).fetchall()
    db.close()
    return found


def plan_of(cache, *spec):
    """-> (rung, plan id) of a plan that a user makes where no generator is."""
    done = flpgen("explain", *(spec or SPEC), "--json", cache=cache, FLP_CUDA_LIBRARY=FAKE,
                  FLP_JIT_LIBRARY="/nonexistent/lib.so", FAKE_CUDA=DEVICE)
    plan = done.json()["plan"]
    return plan["rung"], re.search(r"plan id ([0-9a-f]{16})", plan["description"]).group(1)


@pytest.fixture
def cache(tmp_path):
    """Not there yet: the verb makes it."""
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A cache that was tuned for every kind of kernel -> (it, the target of the document)."""
    cache = tmp_path_factory.mktemp("tune") / "cache"
    return cache, result(*BACKWARD, cache=cache)


def ways_tried(*spec):
    """kind -> its tile configurations, the least predicted first."""
    done = tune("--dry-run", "--json", *spec, cache=TREE)
    return {kind["kind"]: [way["cut"] for way in kind["tried"] if not way["is_default"]]
            for kind in done.json()["targets"][0]["kinds"]}


def planted(ways, *places):
    """Script in which those of each kind are faster than all others, and equally fast."""
    return ";".join(f"cost={kind}/{tilings[place]} :35" for kind, tilings in ways.items() for place in places)

"""flpgen in a folder whose name has the same length on every machine, with stand-ins for a GPU and things to look at.

What the command prints for people depends on the length of paths: a long one moves below its row or is wrapped."""
import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from flpgen_tool import FAKE, FLPGEN, flpgen

TESTS = Path(FAKE).parent
NO_GPU = {"FLP_CUDA_LIBRARY": "libcuda.so.none"}
SMALL = ["--vocab", "1000", "--hidden", "64"]
TRAINED = [*SMALL, "--grad", "hidden,weight"]
TINY = ["--vocab", "200", "--hidden", "8"]
SEED = "0123456789abcdef" * 4
SIGNER = "RWTiA+fHaUZUpyB6BniSgh4l13Dx+6DEfBH/S4E+VBYuzp64OeB2Ixq2"  # its public key, as minisign has it
OTHER = "29acbae141bccaf0b22e1a94d34d0bc7361e526d0bfe12c89794bc9322966dd7"
MODULES = "capability=9.0;name=Fake H200;sms=132;driver=13000;fill=1"
TIMES = ("capability=9.0;name=Fake H200;sms=132;driver=13000;compute=1;jitter=5;" +
         "".join(f"cost={kind}/:40;cost={kind}/tune=own :50;" for kind in ("forward", "dz", "forward_keep", "products")))


def copy(source, target):
    """A link where it can be one: the libraries are large."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


class Stage:
    def __init__(self, root):
        self.root, self.seen = root, {}
        build = Path(FLPGEN).resolve().parents[1]
        for folder in ("bin", "lib", "share"):
            for path in sorted((build / folder).rglob("*")):
                if path.is_file() and path.suffix != ".a":
                    copy(path, root / path.relative_to(build))
        for name in ("cuda", "provider", "cublaslt"):
            copy(TESTS / f"libfake_{name}.so", root / f"libfake_{name}.so")

    def path(self, name):
        return str(self.root / name)

    def fake(self, script):
        return {"FLP_CUDA_LIBRARY": self.path("libfake_cuda.so"), "FAKE_CUDA": script}

    def timed(self):
        """A GPU that runs no kernel but takes the time of one."""
        return {**self.fake(TIMES), "FLP_JIT_LIBRARY": self.path("libfake_provider.so"),
                "FLP_CUBLASLT_LIBRARY": self.path("libfake_cublaslt.so"), "TMPDIR": str(self.root)}

    def run(self, *arguments, width=None, cache="cache", **environment):
        if width:
            environment["COLUMNS"] = str(width)
        return flpgen(*arguments, program=self.path("bin/flpgen"), cache=self.path(cache), cwd=str(self.root),
                      OPENBLAS_NUM_THREADS="1", **{**NO_GPU, **environment})

    def fill(self):
        """A cache with an entry that is damaged, a signed pack and one that is not."""
        assert self.run("gen", *TRAINED, "--install-cache", cache="filled").code == 0
        assert self.run("gen", *SMALL, "--arch", "sm_90a", "--install-cache", cache="filled").code == 0
        victim = max((self.root / "filled").glob("*.flpk"), key=lambda path: path.stat().st_size)
        victim.write_bytes(victim.read_bytes()[:-1])
        (self.root / "key.hex").write_text(SEED)
        (self.root / "key.hex").chmod(0o600)
        assert self.run("pack", "build", *TRAINED, "--name", "a small one", "--sign", "key.hex", "-o", "signed.flpp").code == 0
        assert self.run("pack", "build", *SMALL, "-o", "plain.flpp").code == 0


@pytest.fixture(scope="session")
def stage():
    if not os.path.exists(FLPGEN) or not os.path.exists(FAKE):
        pytest.skip("the flpgen command or the stand-in for libcuda was not built")
    return filled_stage()


@functools.cache
def filled_stage():
    """One for all modules, each of which has the fixture as its own."""
    root = Path(tempfile.mkdtemp(prefix="flp.", dir="/tmp"))
    atexit.register(shutil.rmtree, root)
    made = Stage(root)
    made.fill()
    return made


# What each verb is asked for: (words, a function of the stage that gives settings).
def none(stage):
    return {}


def modules(stage):
    return stage.fake(MODULES)


def packs(stage):
    return {**stage.fake(MODULES), "FLP_CACHE_PATH": "signed.flpp:plain.flpp"}


def filled(stage):
    return {"cache": "filled"}


HEAD = ["--vocab", "151936", "--hidden", "4096", "--grad", "hidden,weight"]
FROZEN = [*HEAD[:4], "--grad", "hidden"]
CASES = {
    "gen": [(["gen", *TRAINED, "--arch", "sm_80,sm_90a"], none),
            (["gen", *SMALL, "--out", "kernels"], none),
            (["gen", *SMALL, "--out", "-"], none)],
    "run": [(["run", "--demo", "--vocab", "1000", "--hidden", "64", "--rows", "12", "--grad", "hidden"], none),
            (["run", "--demo", "--vocab", "1000", "--hidden", "64", "--rows", "12", "--loss", "grpo+k3", "-q"], none)],
    "check": [(["check", *TRAINED, "--rows", "5", "--dtype", "fp32", "--rung", "eager"], none),
              (["check", *TRAINED, "--rows", "5", "--dtype", "fp32", "-q"], none),
              (["check", *SMALL, "--rung", "jit"], none)],
    "bench": [(["bench", *TINY, "--grad", "hidden,weight", "--rows", "40", "--burst-ms", "1", "--rounds", "3", "-q"],
               Stage.timed),
              (["bench", *TINY, "--grad", "hidden", "--tail", "2^-9", "--rows", "40", "--burst-ms", "1", "--rounds", "3", "-q"],
               Stage.timed),
              (["bench", *TINY], none)],
    "tune": [(["tune", "--dry-run", *HEAD], none),
             (["tune", *TINY, "--grad", "hidden,weight", "--rows", "40", "--burst-ms", "1", "--effort", "quick", "-q",
               "--out", "tuned"], Stage.timed)],
    "explain": [(["explain", *HEAD, "--rows", "8192"], none),
                (["explain", *HEAD, "--keep", "--rows", "8192", "--budget", "1G"], modules),
                (["explain", *FROZEN, "--mode", "direction", "--rows", "8192", "--budget", "512M"], none),
                (["explain", *HEAD, "--tail", "2^-9", "--rows", "8192"], none),
                (["explain", *HEAD, "--keep-set", "20", "--rows", "8192"], none),
                (["explain", *HEAD, "--rows", "8192", "--budget", "100M"], none),
                (["explain", *HEAD, "--loss", "grpo", "--rows", "65536", "--capability", "8.0"], none)],
    "doctor": [(["doctor"], none), (["doctor"], packs), (["doctor", "--require", "gpu"], filled)],
    "pack": [(["pack", "build", *SMALL, "--name", "another", "-o", "another.flpp"], none),
             (["pack", "inspect", "signed.flpp"], none),
             (["pack", "verify", "signed.flpp"], none),
             (["pack", "verify", "plain.flpp"], none),
             (["pack", "install", "signed.flpp", "--dir", "installed"], none)],
    "sign": [(["sign", "--key", "key.hex", "--public", "release.pub", "--comment", "flp", "plain.flpp", "signed.flpp"], none),
             (["verify", "--trust", SIGNER, "plain.flpp", "signed.flpp"], none),
             (["verify", "--trust", OTHER, "plain.flpp"], none)],
    "loss": [(["loss", "list"], none), (["loss", "show", "grpo+k3"], none), (["loss", "check", "grpo+k3", "--rows", "20"], none)],
    "cache": [(["cache", "ls"], filled), (["cache", "verify"], filled), (["cache", "ls"], none)],
}
# Those of which the layout counts alone.
OTHERS = [(["check", *TRAINED, "--rows", "5", "--dtype", "fp32", "-v"], none),
          (["check", *TRAINED, "--rows", "5", "--dtype", "fp32", "--rung", "jit"], modules)]


def run_case(stage, words, settings, width):
    """-> the outcome, of one run for all tests; folders that the command fills are not there before."""
    key = (*words, str(settings(stage)), width)
    if key not in stage.seen:
        stage.seen[key] = run_anew(stage, words, settings, width)
    return stage.seen[key]


def run_anew(stage, words, settings, width):
    for name in ("cache", "kernels", "installed", "tuned"):
        shutil.rmtree(stage.root / name, ignore_errors=True)
    return stage.run(*words, width=width, **settings(stage))

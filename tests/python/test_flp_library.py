"""Finding libflp, its log, its plans in words, the fallback of device tensors, fork, and a process without torch."""
import logging
import operator
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

import flp
from flp._library import _c, _plans
from flp_reference import DEVICE, problem

SCORE = ("import torch, flp\n"
         "print(flp.linear_logprob(torch.zeros(2, 8), torch.zeros(4, 8), torch.tensor([0, 1])))\n")


def python(code, **environment):
    """Runs code in a fresh interpreter; a variable set to None is unset."""
    merged = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={name: value for name, value in merged.items() if value is not None})


def test_library_is_not_named():
    done = python(SCORE, FLP_LIBRARY=None)
    carried = os.path.join(os.path.dirname(flp.__file__), "lib", "libflp.so.0")
    assert not os.path.exists(carried)
    assert done.stderr.strip().splitlines()[-1] == (
        "flp.errors.LibraryError: this package carries no library: %s does not exist, FLP_LIBRARY is not set and the "
        "loader finds no libflp.so.0; install the wheel of flp, or set FLP_LIBRARY to the path of libflp.so" % carried)


def test_library_of_the_system(tmp_path):
    """Without a path the loader's search decides, as where Debian's libflp0 is installed."""
    built = os.path.realpath(os.environ["FLP_LIBRARY"])
    os.symlink(built, tmp_path / "libflp.so.0")
    done = python("import flp; print(flp.library_path(), flp.version())", FLP_LIBRARY=None, LD_LIBRARY_PATH=str(tmp_path))
    assert done.stdout.split()[0] == "libflp.so.0", done.stderr


LOSS = """return {loss = function(row) return -row.weight * row.logprob * row.advantage, {} end}"""
LUA = ("import torch, flp\nfrom flp._library import _programs\n"
       "print(_programs.generator_path())\n"
       "one = torch.ones(1, 1)\n"
       "print('%%.4f' %% flp.policy_loss(%r, torch.ones(1, 1, 8), torch.zeros(4, 8), one.long(), one)[0])\n")


@pytest.mark.first
@pytest.mark.parametrize("folder", ["", "flp"])
@pytest.mark.parametrize("is_named", [False, True])
def test_the_generator_stands_with_the_library(tmp_path, folder, is_named):
    """Beside it, as the wheel has it, or in lib/<triplet>/flp, as Debian has it: a loss of Lua runs in either."""
    built = os.path.realpath(os.environ["FLP_LIBRARY"])
    generator = os.path.join(os.path.dirname(built), "libflpgen.so")
    if not os.path.exists(generator):
        pytest.skip("no libflpgen in this build")
    libraries = tmp_path / "lib" / "x86_64-linux-gnu"
    (libraries / folder).mkdir(parents=True)
    shutil.copy(built, libraries / "libflp.so.0")
    os.symlink(generator, libraries / folder / "libflpgen.so")
    (tmp_path / "mine.lua").write_text(LOSS)
    found = {"FLP_LIBRARY": str(libraries / "libflp.so.0")} if is_named else \
        {"FLP_LIBRARY": None, "LD_LIBRARY_PATH": str(libraries)}
    done = python(LUA % str(tmp_path / "mine.lua"), FLP_JIT_LIBRARY=None, **found)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(libraries / folder / "libflpgen.so"), "1.3863"]


@pytest.mark.first
@pytest.mark.parametrize("content", [None, b"not a library"])
def test_library_cannot_be_opened(tmp_path, content):
    path = tmp_path / "libflp.so"
    if content is not None:
        path.write_bytes(content)
    done = python(SCORE, FLP_LIBRARY=str(path))
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("flp.errors.LibraryError: libflp could not be loaded from %s (" % path)
    assert last.endswith("); set FLP_LIBRARY to the path of libflp.so")


@pytest.mark.long
def test_library_for_a_newer_libc(tmp_path):
    """A library whose table of versions asks for a glibc that does not exist yet."""
    source, path = tmp_path / "new.c", tmp_path / "new.so"
    source.write_text("#include <stdio.h>\nint flp_version(void) { return puts(\"\"); }\n")
    subprocess.run([os.environ.get("CC", "gcc"), "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    path.write_bytes(re.sub(rb"GLIBC_2\.[0-9.]+", lambda found: b"GLIBC_" + b"9" * (len(found[0]) - 6), path.read_bytes()))
    last = python(SCORE, FLP_LIBRARY=str(path)).stderr.strip().splitlines()[-1]
    assert "version `GLIBC_9" in last and "' not found" in last
    assert "; this system's C library is glibc 2." in last
    assert last.endswith(", and that libflp was built for a newer one; the wheel of flp runs on glibc 2.28 and newer")


def test_a_call_while_the_process_ends():
    done = python("import builtins, torch, flp\n"
                  "class Late:\n"
                  "    given = torch.ones(2, 8), torch.ones(4, 8), torch.zeros(2, dtype=torch.long)\n"
                  "    def __del__(self, call=flp.linear_logprob): print('%.4f' % call(*self.given)[0])\n"
                  "builtins.late = Late()\n")
    assert done.stdout.strip() == "-1.3863", done.stderr


@pytest.mark.long
def test_prefix(tmp_path):
    """The folder above lib, whatever stands below it and by whatever link it is named."""
    folder = tmp_path / "opt" / "lib" / "x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (folder / "libflp.so.0").touch()
    (folder / "libflp.so").symlink_to("libflp.so.0")
    (tmp_path / "libflp.so").touch()
    code = "import flp; print(flp.prefix())"
    assert python(code, FLP_LIBRARY=str(folder / "libflp.so")).stdout.strip() == str(tmp_path / "opt")
    last = python(code, FLP_LIBRARY=str(tmp_path / "libflp.so")).stderr.strip().splitlines()[-1]
    assert last == ("flp.errors.LibraryError: FLP_LIBRARY is %s/libflp.so, which stands in no installed tree; accepted: "
                    "PREFIX/lib/libflp.so" % tmp_path)


@pytest.mark.long
def test_the_command_of_a_package_without_one(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libflp.so").touch()
    done = subprocess.run([sys.executable, "-m", "flp", "--version"], capture_output=True, text=True,
                          env={**os.environ, "FLP_LIBRARY": str(tmp_path / "lib" / "libflp.so")})
    assert done.returncode == 1 and done.stderr == (
        "flp: %s/bin/flpgen: No such file or directory; accepted: a package that carries the command, such as the wheel "
        "of flp\n" % tmp_path)


def test_library_of_another_kind_or_version(tmp_path):
    for body, words in (("int unrelated;", "flp_status_name"), (None, "is version 9.1.0; this package needs 0.1")):
        source, path = tmp_path / "other.c", tmp_path / "other.so"
        stubs = "".join("int %s(void) { return 0; }\n" % name for name in _c.PROTOTYPES if name != "flp_version")
        source.write_text(body or stubs + 'const char *flp_version(void) { return "9.1.0"; }\n')
        subprocess.run([os.environ.get("CC", "gcc"), "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
        last = python(SCORE, FLP_LIBRARY=str(path)).stderr.strip().splitlines()[-1]
        assert last.startswith("flp.errors.LibraryError: libflp ") and words in last


def test_library_error_is_an_import_error():
    assert issubclass(flp.LibraryError, ImportError)
    assert issubclass(flp.ArgumentError, ValueError) and issubclass(flp.FlpError, RuntimeError)


def test_import_opens_nothing():
    done = python("import flp; print(flp._library._c._library)", FLP_LIBRARY="/nonexistent/libflp.so")
    assert done.stdout.strip() == "None", done.stderr


def test_without_torch():
    code = ("import sys\nsys.modules['torch'] = None\nimport flp\nprint(flp.version())\n"
            "try:\n    flp.linear_logprob\nexcept ImportError as error:\n    print(error)\n"
            "try:\n    flp.nothing\nexcept AttributeError as error:\n    print(error)\n")
    done = python(code)
    assert done.stdout.splitlines() == [_c.version(), "flp.linear_logprob needs torch, which is not installed: pip install torch",
                                        "module 'flp' has no attribute 'nothing'"], done.stderr


def test_the_bench_says_that_it_needs_torch():
    done = python("import runpy, sys\nsys.modules['torch'] = None\nrunpy.run_module('flp.bench', run_name='__main__')")
    assert (done.returncode, done.stderr) == (3, "flp.bench: needs torch, which is not installed: pip install torch\n")


def test_every_public_name_exists():
    assert all(hasattr(flp, name) for name in flp.__all__)


def test_help_opens_with_what_people_look_for():
    """Every name of its table is there, and exceptions do not fill the pages before the functions."""
    table = re.findall(r"^    ([a-z_.]+(?:, [a-z_.]+)*)  ", flp.__doc__, re.M)
    names = [name for entry in table for name in entry.split(", ")]
    assert len(names) > 10 and {"linear_logprob", "policy_loss", "logprob_head", "install", "errors"} <= set(names)
    for name in names:
        assert operator.attrgetter(name)(flp) is not None
        assert name.split(".")[0] in flp.__all__
    assert not any(isinstance(getattr(flp, name), type) and issubclass(getattr(flp, name), Exception)
                   for name in flp.__all__)


def test_exceptions_stand_in_errors_and_beside_the_functions():
    kinds = [kind for kind in vars(flp.errors).values() if isinstance(kind, type)]
    assert len(kinds) == 16 and all(getattr(flp, kind.__name__) is kind for kind in kinds)


def test_messages_go_to_logging(caplog):
    with caplog.at_level(logging.INFO, logger="flp"):
        _c._log_callback(_c.LOG_WARNING, b"one \xff message", None)
    assert [(record.levelname, record.name) for record in caplog.records] == [("WARNING", "flp")]
    assert caplog.records[0].getMessage() == "one \ufffd message"


def test_messages_go_to_a_callable(caplog, logged):
    _c._log_callback(_c.LOG_INFO, b"hello", None)
    flp.set_log(lambda level, message: 1 / 0)
    _c._log_callback(_c.LOG_ERROR, b"again", None)
    assert logged == [(logging.INFO, "hello")]
    assert caplog.records[0].getMessage() == "the callable given to flp.set_log failed on: again"


def test_plan_info_on_the_host():
    info = flp.plan_info(vocab=331, hidden=64, n=100, dtype=torch.float32, grads=("hidden", "weight"), entropy=True)
    assert info.rung == "eager" and info.device == "cpu" and str(info) == info.text and info.text
    assert len(info.plan_id) == 16 and int(info.plan_id, 16) >= 0
    assert 0 < info.forward["bytes"] <= 256 << 20 and 0 < info.backward["bytes"] <= 1 << 30
    assert info.backward["products"] >= 3
    assert flp.plan_info(vocab=331, hidden=64).backward == {}


def test_explain_makes_the_plan_of_the_call():
    hidden, weight, target, _ = problem()
    info = flp.explain(hidden, weight.requires_grad_(), target)
    made = _plans.existing()
    flp.linear_logprob(hidden, weight, target)
    assert info.backward and _plans.existing() == made and len(made) == 1


def test_workspace_is_that_of_the_layout(monkeypatch):
    hidden, weight, target, _ = problem()
    seen = []
    execute = _plans.Plan.execute
    monkeypatch.setattr(_plans.Plan, "execute", lambda plan, args, *function: (
        seen.append((args.workspace, args.workspace_bytes)), execute(plan, args, *function)))
    info = flp.explain(hidden, weight, target, budget=64 << 20)
    flp.linear_logprob(hidden, weight, target, budget=64 << 20)
    assert seen[0][1] == info.forward["bytes"] <= 64 << 20 and seen[0][0] % 256 == 0


@pytest.fixture
def no_driver(monkeypatch):
    monkeypatch.setenv("FLP_CUDA_LIBRARY", "/nonexistent/libcuda.so.1")
    monkeypatch.delenv("FLP_STRICT", raising=False)
    monkeypatch.delenv("FLP_FORCE", raising=False)
    monkeypatch.setattr(_plans, "_said", set())


HAS_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="the driver of this process is already open")


@HAS_GPU
def test_device_tensors_fall_back_to_the_torch_form(no_driver, caplog):
    for _ in range(2):
        flp.clear_plans()
        with caplog.at_level(logging.INFO, logger="flp"):
            info = flp.plan_info(vocab=331, hidden=64, device="cuda:0", grads=["hidden"])
    assert info.rung == "eager" and info.plan_id == "eager-torch" and info.device == "cuda:0"
    assert info.text.startswith("eager: chunked torch operations on the tensor's own device, because ")
    assert set(info.reasons) == {"tuned", "heuristic", "jit", "generic"} and all(info.reasons.values())
    falls = [record for record in caplog.records if record.getMessage().startswith("device tensors run as")]
    assert [record.levelname for record in falls] == ["WARNING"]
    assert info.backward["mode"] == "torch" and info.forward["bytes"] <= 256 << 20


@HAS_GPU
@pytest.mark.parametrize("environment", [{"FLP_STRICT": "1"}, {"FLP_FORCE": "generic"}, {"FLP_FORCE": "jit"}], ids=str)
def test_device_tensors_do_not_fall_back_when_asked_to(no_driver, monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(flp.UnavailableError) as caught:
        flp.plan_info(vocab=331, hidden=64, device="cuda:0")
    assert str(caught.value)


@HAS_GPU
@pytest.mark.parametrize("environment", [{}, {"FLP_STRICT": "1"}, {"FLP_FORCE": "tuned"}], ids=str)
def test_a_product_with_a_factor_falls_back_whatever_was_asked(no_driver, monkeypatch, caplog, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    flp.clear_plans()
    with caplog.at_level(logging.INFO, logger="flp"):
        plans = [_plans.get(_plans.Spec(0, dtype=_c.DTYPE_BF16, vocab=64, op=_c.OP_SCALE)) for _ in range(2)]
    assert plans[0] is plans[1] and plans[0].handle is None and plans[0].reason
    falls = [record for record in caplog.records if "torch multiplies gradients" in record.getMessage()]
    assert [record.levelname for record in falls] == ["INFO"]


@HAS_GPU
@pytest.mark.parametrize("strict", ["0", "1"])
def test_the_eager_rung_can_be_pinned(no_driver, monkeypatch, strict):
    monkeypatch.setenv("FLP_FORCE", "eager")
    monkeypatch.setenv("FLP_STRICT", strict)
    assert flp.plan_info(vocab=331, hidden=64, device="cuda:0").plan_id == "eager-torch"


def test_one_plan_a_specialisation():
    hidden, weight, target, _ = problem()
    for _ in range(3):
        flp.linear_logprob(hidden, weight, target)
        flp.linear_logprob(hidden[:4], weight, target[:4], temperature=0.5, scale=2.0, ignore_index=3)
    assert len(_plans.existing()) == 1
    flp.linear_logprob(hidden, weight, target, softcap=2.0)
    assert len(_plans.existing()) == 2


@pytest.mark.skipif(DEVICE != "cpu", reason="CUDA contexts do not survive a fork")
def test_a_forked_child_makes_its_own_plans():
    code = ("import os, torch, flp\n"
            "torch.set_num_threads(1)\n"
            "call = lambda: flp.linear_logprob(torch.ones(3, 8), torch.eye(8), torch.tensor([0, 1, 2])).tolist()\n"
            "want = call()\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    os._exit(0 if call() == want and len(flp._library._plans.existing()) == 1 else 1)\n"
            "assert os.waitpid(child, 0)[1] == 0 and call() == want\n")
    done = python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(DEVICE != "cpu", reason="the stand-in for libcuda is not torch's driver")
def test_a_fork_does_not_wait_for_a_log_callable_that_waits_for_it(tmp_path):
    """A thread makes a GPU plan and sits in the callable of set_log, which only goes on after the fork."""
    (tmp_path / "bad.flpp").write_text("not a pack")
    code = ("import os, signal, threading, torch, flp\n"
            "torch.set_num_threads(1)\n"
            "inside, go = threading.Event(), threading.Event()\n"
            "def slow(level, message):\n"
            "    if 'pack ' in message:\n"
            "        inside.set()\n"
            "        go.wait()\n"
            "flp.set_log(slow)\n"
            "maker = threading.Thread(target=lambda: flp.plan_info(vocab=331, hidden=64, device='cuda:0'))\n"
            "maker.start()\n"
            "inside.wait()\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    signal.alarm(100)\n"
            "    flp.set_log(lambda level, message: None)\n"
            "    value = flp.linear_logprob(torch.ones(3, 8), torch.eye(8), torch.tensor([0, 1, 2]))\n"
            "    info = flp.plan_info(vocab=331, hidden=64, device='cuda:0')\n"
            "    works = bool(value.isfinite().all()) and 'CUDA does not outlive a fork' in info.text\n"
            "    flp.clear_plans()\n"
            "    os._exit(0 if works else 1)\n"
            "code = os.waitpid(child, 0)[1]\n"
            "go.set()\n"
            "maker.join()\n"
            "assert code == 0, code\n")
    done = python(code, FLP_CUDA_LIBRARY=os.environ["FLP_TEST_FAKE_CUDA"], FLP_CACHE_PATH=str(tmp_path / "bad.flpp"),
                  FLP_JIT_LIBRARY="/nonexistent", FLP_GENERIC_DIR="/nonexistent", FLP_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_a_graph_keeps_its_plan_alive():
    hidden, weight, target, _ = problem()
    hidden.requires_grad_()
    loss = flp.linear_logprob(hidden, weight, target).sum()
    flp.clear_plans()
    loss.backward()
    assert hidden.grad.isfinite().all()

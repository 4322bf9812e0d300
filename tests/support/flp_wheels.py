"""Clean virtual environments of every Python that is found, and what a wheel of flp has to hold and to do in one."""
import json
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

TREE = Path(os.environ["FLP_TEST_TREE"])
LARGEST_WHEEL = 30 << 20  # bytes: half of it is LLVM, two fifths generic kernels
MINORS = range(9, 15)  # Python 3.9 to 3.14
BINARIES = ("flp/lib/libflp.so.0", "flp/lib/libflp_jax.so", "flp/lib/libflpgen.so", "flp/bin/flpgen")
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libgcc_s.so.1", "libflp.so.0", "libflpgen.so"}

WITHOUT_TORCH = """
import flp
print(flp.version(), flp.prefix())
try:
    flp.linear_logprob
except ImportError as error:
    print(error)
"""

# On an older system, with the wheel in /tmp.
OLD_SYSTEM = r"""
rm -rf /tmp/venv && python3 -m venv /tmp/venv
/tmp/venv/bin/pip install --quiet --no-index /tmp/*.whl
ldd --version | head -n 1
/tmp/venv/bin/flpgen --version
/tmp/venv/bin/python -c 'import flp; print("library", flp.version())'
/tmp/venv/bin/flpgen run --demo --vocab 1000 --hidden 64 --rows 16 --rung eager
rm -rf /tmp/kernels && /tmp/venv/bin/flpgen gen --vocab 1000 --hidden 64 --out /tmp/kernels && ls /tmp/kernels
"""

LOGPROB = """
import torch, flp
hidden, weight, target = torch.randn(5, 16, requires_grad=True), torch.randn(50, 16), torch.randint(50, (5,))
got = flp.linear_logprob(hidden, weight, target)
want = torch.log_softmax(hidden.double() @ weight.double().T, -1).gather(1, target[:, None])[:, 0]
assert (got - want).abs().max() < 1e-5, (got, want)
got.sum().backward()
print(torch.isfinite(hidden.grad).all().item(), flp.library_path())
"""


def run(*command, **keywords):
    """Output of a command that must succeed; its whole output is the failure message otherwise."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **keywords)
    assert done.returncode == 0, f"{command} exited {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def clean_environment(folder):
    """An environment in which nothing of the tree, of the user or of a compiler is found."""
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    return {**kept, "PATH": "/nonexistent", "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}


def pythons():
    """{version: interpreter} of CPython 3.9 to 3.14: pyenv's, and python3.X in PATH. Each can make environments."""
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    candidates = [path for root in roots for path in root.glob("3.*/bin/python")]
    candidates += [Path(path) for minor in MINORS if (path := shutil.which(f"python3.{minor}"))]
    found = {}
    for path in candidates:
        done = subprocess.run([str(path), "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"],
                              capture_output=True, text=True)
        version = done.stdout.strip()
        if done.returncode == 0 and re.fullmatch(r"3\.\d+", version) and int(version[2:]) in MINORS:
            found.setdefault(version, path)
    return dict(sorted(found.items(), key=lambda item: int(item[0][2:])))


def make_environment(python, folder, *wheels, site=False):
    """A virtual environment with the wheels, installed without an index. Returns its folder bin."""
    run(python, "-m", "venv", *(["--system-site-packages"] if site else []), folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", *wheels,
        env=clean_environment(folder))
    return folder / "bin"


def check_command(programs, version, folder):
    """The command and import flp, as a user without torch, compiler and GPU runs them."""
    environment = clean_environment(folder)
    assert run(programs / "flpgen", "--version", env=environment).startswith(f"flpgen {version}")
    assert run(programs / "python", "-m", "flp", "--version", env=environment).startswith(f"flpgen {version}")
    first, message = run(programs / "python", "-c", WITHOUT_TORCH, env=environment, cwd=folder).splitlines()
    found, prefix = first.split(" ", 1)
    assert found == version and Path(prefix).is_relative_to(folder)
    assert message == "flp.linear_logprob needs torch, which is not installed: pip install torch"
    scored = run(programs / "flpgen", "run", "--demo", "--vocab", "1000", "--hidden", "64", "--rows", "8", "--rung",
                 "eager", env=environment)
    assert "rung         eager on CPU" in scored and "against fp64 largest error" in scored
    run(programs / "flpgen", "gen", "--vocab", "1000", "--hidden", "64", "--out", folder / "kernels", env=environment)
    assert {path.suffix for path in (folder / "kernels").iterdir()} >= {".ptx", ".flpk"}
    return Path(prefix)


def check_binary(path, loader):
    """A library or command of the wheel: of glibc 2.28 at most, and of nothing else that this machine has. loader is
    the name of glibc's for the architecture."""
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", "-W", path)))
    assert needed <= SYSTEM | {loader}
    symbols = run("readelf", "-V", "-W", path)
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", symbols)}
    assert versions and max(versions) <= (2, 28)
    assert ".symtab" not in run("readelf", "-S", "-W", path)
    folders = [str(TREE), str(Path.home()), tempfile.gettempdir() + "/tmp", "ziglang"]
    text = path.read_bytes()
    assert [folder for folder in folders if len(folder) > 1 and folder.encode() in text] == []


def build_elsewhere(wheel, folder, *words):
    """The bytes of the wheel as build.sh makes it again, in another folder and from nothing but the tools."""
    names = run("git", "-C", TREE, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in names:
        if (TREE / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TREE / name, folder / name)
    (folder / "build/wheel").mkdir(parents=True)
    (folder / "build/wheel/venv").symlink_to(TREE / "build/wheel/venv")
    with zipfile.ZipFile(wheel) as archive:
        (document,) = [name for name in archive.namelist() if name.endswith("/sboms/flp.cdx.json")]
        time = json.loads(archive.read(document))["metadata"]["timestamp"]
    epoch = run("date", "--date", time, "+%s").strip()
    run(folder / "packaging/wheel/build.sh", *words, env={**os.environ, "SOURCE_DATE_EPOCH": epoch})
    return (folder / wheel.relative_to(TREE)).read_bytes()

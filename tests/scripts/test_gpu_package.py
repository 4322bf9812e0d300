"""tests/gpu/package.sh: what it packs runs from where it is unpacked, with nothing of this tree or of this machine's libraries."""
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from flpgen_tool import needs_flpgen

TREE = Path(__file__).resolve().parents[2]
COMMAND = shlex.quote(str(TREE / "tests" / "gpu" / "package.sh"))
BUILD = os.environ.get("FLP_TEST_BUILD", "")


def bash(command, cwd, **env):
    return subprocess.run(["bash", "-c", command], cwd=cwd, capture_output=True, text=True,
                          env={"PATH": os.environ["PATH"], "HOME": str(cwd), **env})


@pytest.mark.long
@needs_flpgen
@pytest.mark.skipif(not (Path(BUILD) / "CMakeCache.txt").exists() or not shutil.which("strip"), reason="no build folder")
def test_a_package_runs_where_it_is_unpacked(tmp_path):
    (tmp_path / "some.flpp").write_bytes(b"pack")
    made = bash(f"{COMMAND} {shlex.quote(BUILD)} {tmp_path}/p.tgz {tmp_path}/some.flpp", tmp_path)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "p.tgz").stat().st_size < 40 << 20
    place = tmp_path / "elsewhere"
    place.mkdir()
    done = bash("tar xzf ../p.tgz && . flp/env.sh && ls flp && flpgen gen --vocab 1000 --hidden 64 --out k >/dev/null && "
                "ldd $FLPGEN flp/lib/libflpgen.so && flpgen doctor | grep ^generator && python3 -c 'import flp; print(flp.library_path())' && "
                "python3 flp/tests/gpu/record.py --help >/dev/null && echo done", place)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr
    assert "some.flpp" in done.stdout and str(place / "flp" / "lib" / "libflp.so") in done.stdout
    generator = next(line for line in done.stdout.splitlines() if line.startswith("generator"))
    assert os.path.realpath(generator.split()[-1]) == str(place / "flp" / "lib" / "libflpgen.so")
    for library in ("liblua5.4", "libsodium", "libzstd", "libjansson", "libsqlite3"):
        assert any(line.split()[0].startswith(library) and str(place) in os.path.realpath(line.split()[2])
                   for line in done.stdout.splitlines() if " => " in line), f"{library}\n{done.stdout}"
    assert (place / "k" / "forward.sm_80.ptx").exists()


def test_wrong_usage(tmp_path):
    assert bash(f"{COMMAND} onlyone", tmp_path).returncode == 2
    wrong = bash(f"{COMMAND} {tmp_path} {tmp_path}/p.tgz", tmp_path)
    assert wrong.returncode == 2 and "is no build folder" in wrong.stderr
    assert bash(f"{COMMAND} --help", tmp_path).stdout.startswith("usage: tests/gpu/package.sh BUILD")

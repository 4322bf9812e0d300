"""tests/gpu/wheels.py without a registry: what is brought, cut into parts, checked and put together again."""
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
SCRIPT = TREE / "tests/gpu/wheels.py"
PINS = "# the peers\nfast==1.2\n\nslow==3.0 # a comment\n"


@pytest.fixture
def wheels(monkeypatch, tmp_path):
    """The script, whose pip installs a package of a few files and a large one."""
    spec = importlib.util.spec_from_file_location("wheels_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LARGE", 1 << 16)
    asked, module.size = [], 3 << 17

    def install(command):
        folder = Path(command[command.index("--target") + 1])
        files = {"fast/__init__.py": b"NAME = 'fast'", "fast/lib.so": os.urandom(module.size), "fast/include/x.h": b"1",
                 "fast/mid.so": os.urandom(module.size // 6), "fast/tests/test_x.py": b"1",
                 "slow/inner/slow_module.py": b"N = 3",
                 "slow.pth": b"import sys, os, fast; "
                             b"sys.path.insert(0, os.path.join(os.path.dirname(fast.__path__[0]), 'slow', 'inner'))",
                 "fast-1.2.dist-info/METADATA": b"Name: fast\nVersion: 1.2\n"}
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        module.library = files["fast/lib.so"]
        asked.append(command)
        return subprocess.CompletedProcess(command, 0)

    run = subprocess.run
    monkeypatch.setattr(module.subprocess, "run",
                        lambda command, **rest: install(command) if "pip" in command else run(command, **rest))
    (tmp_path / "requirements.txt").write_text(PINS)
    module.asked, module.parts = asked, tmp_path / "parts"
    module.packed = lambda *words: module.main(["pack", str(module.parts), "--requirements",
                                                str(tmp_path / "requirements.txt"), "--part-mib", "1", *words])
    return module


def test_only_what_is_pinned_and_missing_is_asked_for(wheels):
    assert wheels.packed("--have", "slow,other", "--python", "3.12", "--glibc", "31") == 0
    (command,) = wheels.asked
    assert command[-1] == "fast==1.2" and "--no-deps" in command and "--python-version=3.12" in command
    assert "--platform=manylinux_2_31_x86_64" in command and "--platform=manylinux_2_32_x86_64" not in command


@pytest.mark.long
def test_parts_are_small_and_give_the_files_back(wheels, tmp_path):
    wheels.size = 3 << 20
    assert wheels.packed() == 0
    listed = json.loads((wheels.parts / "parts.json").read_text())
    assert listed["requirements"] == ["fast==1.2", "slow==3.0"]
    assert listed["left_out"] == ["fast/include/x.h", "fast/tests/test_x.py"]
    assert len(listed["parts"]) >= 4 and all(part["bytes"] <= 1 << 20 for part in listed["parts"])
    kept = wheels.parts.parent / "kept"
    for i, part in enumerate(listed["parts"]):  # as they arrive one by one, and are gone again
        kept.mkdir(exist_ok=True)
        (kept / "parts.json").write_text(json.dumps(listed))
        (wheels.parts / part["file"]).rename(kept / part["file"])
        last = i == len(listed["parts"]) - 1
        assert wheels.main(["unpack", str(kept), "--into", str(tmp_path / "site")]) == (0 if last else 3)
        (kept / part["file"]).unlink()
    site = tmp_path / "site" / "site-packages"
    assert (site / "fast/lib.so").read_bytes() == wheels.library and not list(site.rglob("*piece*"))
    assert not (site / "fast/include").exists()
    code = "import fast, slow_module; print(fast.NAME, slow_module.N)"
    words = ". %s && exec %s -c '%s'" % (tmp_path / "site" / "env.sh", sys.executable, code)
    shown = subprocess.run(["bash", "-c", words], capture_output=True, text=True)
    assert shown.stdout == "fast 3\n", shown.stderr


def test_a_damaged_part_is_refused(wheels, tmp_path, capsys):
    wheels.packed()
    part = wheels.parts / "part-1.txz"
    part.write_bytes(part.read_bytes()[:-1])
    assert wheels.main(["unpack", str(wheels.parts), "--into", str(tmp_path / "site")]) == 1
    assert "part-1.txz: its checksum is not that of parts.json" in capsys.readouterr().err


def test_pips_failure_is_the_scripts(wheels, monkeypatch, capsys):
    monkeypatch.setattr(wheels.subprocess, "run", lambda command: subprocess.CompletedProcess(command, 1))
    assert wheels.packed() == 1 and "pip failed with status 1" in capsys.readouterr().err


def test_the_trees_list_pins_each_once():
    spec = importlib.util.spec_from_file_location("pins", TREE / "runtime/python/flp/bench/peers/pins.py")
    pins = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pins)
    lines = [line.partition("#")[0].strip() for line in Path(pins.REQUIREMENTS).read_text().splitlines()]
    lines = [line for line in lines if line]
    assert len(pins.pins()) == len(lines) and all(line.count("==") == 1 for line in lines)
    assert pins.install_of(["liger-kernel"]) == "pip install --no-deps liger-kernel==" + pins.pins()["liger-kernel"]

"""Makes the wheel of a laid-out package (runtime/python/package.cmake): licences and SBOM of what is linked, the tag, and
the same bytes for the same content.

    build/wheel/venv/bin/python packaging/wheel/pack.py --package DIR --sysroot build/wheel/amd64 --out DIST

Times are those of SOURCE_DATE_EPOCH, modes 0644 and 0755, names sorted.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import sbom

PLATFORMS = {"x86_64": "manylinux_2_28_x86_64", "aarch64": "manylinux_2_28_aarch64"}


def run(*command, **keywords):
    subprocess.run([str(word) for word in command], check=True, **keywords)


def processor(sysroot):
    """The architecture of target.cmake, as wheels name it."""
    text = (sysroot / "target.cmake").read_text()
    return text.split("CMAKE_SYSTEM_PROCESSOR ")[1].split(")")[0]


def add_licences(package, parts):
    """LICENSE.NAME of each part, for setuptools to find beside flp's own LICENSE."""
    for part in parts:
        (package / f"LICENSE.{part.name}").write_text(part.licence_text())


def set_modes(folder):
    """0755 of folders and programs, 0644 of all else, whatever umask and package manager made of them."""
    for path in [folder, *folder.rglob("*")]:
        is_program = path.is_dir() or path.parent.name in ("bin", "scripts") or path.name.startswith(("libflp.so.", "libflpgen"))
        path.chmod(0o755 if is_program else 0o644)


def build(package, platform, work):
    """The wheel as setuptools makes it, unpacked: a folder."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir",
        work / "built", package, f"--config-settings=--build-option=--plat-name={platform}")
    (wheel,) = (work / "built").iterdir()
    run(sys.executable, "-m", "wheel", "unpack", "--dest", work / "unpacked", wheel, stdout=subprocess.DEVNULL)
    (folder,) = (work / "unpacked").iterdir()
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", type=Path, required=True, help="what package.cmake made")
    parser.add_argument("--sysroot", type=Path, required=True, help="what sysroot.sh made")
    parser.add_argument("--out", type=Path, required=True, help="folder of the wheel and of its SBOM")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    parts = sbom.linked_parts(options.sysroot)
    add_licences(options.package, parts)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        set_modes(options.package)
        folder = build(options.package, PLATFORMS[processor(options.sysroot)], work)
        (info,) = folder.glob("*.dist-info")
        (info / "sboms").mkdir()
        text = sbom.write(folder, parts)
        (info / "sboms" / "flp.cdx.json").write_text(text)
        set_modes(folder)
        (work / "packed").mkdir()
        run(sys.executable, "-m", "wheel", "pack", "--dest-dir", work / "packed", folder, stdout=subprocess.DEVNULL)
        (wheel,) = (work / "packed").iterdir()
        shutil.copyfile(wheel, options.out / wheel.name)
        (options.out / (wheel.name[:-len(".whl")] + ".cdx.json")).write_text(text)
    print(options.out / wheel.name)


if __name__ == "__main__":
    os.umask(0o022)
    main()

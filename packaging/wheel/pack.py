"""Makes the wheel of a laid-out package (runtime/python/package.cmake): licences and SBOM of what is linked, the tag,
and the same bytes for the same content.

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


def set_modes(folder):
    """0755 of folders and programs, 0644 of all else, whatever umask and package manager made of them."""
    for path in [folder, *folder.rglob("*")]:
        is_program = path.parent.name in ("bin", "scripts") or path.name.startswith(("libflp.so.", "libflpgen.so"))
        path.chmod(0o755 if path.is_dir() or is_program else 0o644)


def build(package, platform, licence, work):
    """The wheel as setuptools makes it, unpacked: a folder."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
        "--wheel-dir", work / "built", package, *([f"--config-settings=--build-option=--plat-name={platform}"] if platform else []),
        env={**os.environ, "FLP_LICENSE_EXPRESSION": licence})
    (wheel,) = (work / "built").iterdir()
    run(sys.executable, "-m", "wheel", "unpack", "--dest", work / "unpacked", wheel, stdout=subprocess.DEVNULL)
    (folder,) = (work / "unpacked").iterdir()
    return folder


def pack(folder, out):
    """The wheel of an unpacked one. Returns its path."""
    set_modes(folder)
    with tempfile.TemporaryDirectory() as name:
        run(sys.executable, "-m", "wheel", "pack", "--dest-dir", name, folder, stdout=subprocess.DEVNULL)
        (wheel,) = Path(name).iterdir()
        shutil.copyfile(wheel, out / wheel.name)
    return out / wheel.name


def make(package, sysroot, out):
    """The wheel, its SBOM inside and beside it. sysroot: None where nothing is linked. Returns the wheel's path."""
    parts = sbom.linked_parts(sysroot) if sysroot else []
    for part in parts:  # for setuptools to find beside flp's own
        (package / f"LICENSE.{part.name}").write_text(part.text)
    set_modes(package)
    licence = " AND ".join(dict.fromkeys(["Apache-2.0", *(part.licence for part in parts)]))
    with tempfile.TemporaryDirectory() as name:
        folder = build(package, PLATFORMS[processor(sysroot)] if sysroot else None, licence, Path(name))
        (info,) = folder.glob("*.dist-info")
        (info / "sboms").mkdir()
        text = sbom.write(folder, parts)
        (info / "sboms" / f"{info.name.split('-')[0]}.cdx.json").write_text(text)
        wheel = pack(folder, out)
    wheel.with_suffix(".cdx.json").write_text(text)
    return wheel


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", type=Path, required=True, help="what package.cmake made, or another such folder")
    parser.add_argument("--sysroot", type=Path, help="what sysroot.sh made, for a package with libraries")
    parser.add_argument("--out", type=Path, required=True, help="folder of the wheel and of its SBOM")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print(make(options.package, options.sysroot, options.out))


if __name__ == "__main__":
    os.umask(0o022)
    main()

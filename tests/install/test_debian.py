"""Debian packages: what each has, depends on and says of itself; what they hold runs; lintian; a real installation.

This build is packed, whose folders are not Debian's; and one as `./setup.sh deb` makes it."""
import gzip
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from installed import refused, run

BUILD = Path(os.environ["FLP_TEST_BUILD"])
TREE = Path(os.environ["FLP_TEST_TREE"])
PACKAGES = ("libflp0", "libflp-dev", "flpgen", "python3-flp")
LISTED = TREE / "packaging/debian/libflp0.symbols"
pytestmark = [pytest.mark.long,
              pytest.mark.skipif(not (BUILD / "CPackConfig.cmake").exists(),
                                 reason="no dpkg-shlibdeps where this build was configured, or no generator"),
              pytest.mark.skipif(not (BUILD / "bin" / "flpgen").exists(), reason="this build has no generator")]


def pack(build, out, *options, **environment):
    """The packages of a build, by name."""
    run("cpack", "--config", build / "CPackConfig.cmake", "-B", out, *options, env=environment)
    return {path.name.split("_")[0]: path for path in out.glob("*.deb")}


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    # Debian's own compression takes a minute.
    return pack(BUILD, folder, "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip", SOURCE_DATE_EPOCH="1700000000")


@pytest.fixture(scope="session")
def root(packages, tmp_path_factory):
    """All of them, unpacked into one folder."""
    folder = tmp_path_factory.mktemp("root")
    for path in packages.values():
        run("dpkg-deb", "-x", path, folder)
    return folder


def field(path, name):
    return run("dpkg-deb", "-f", path, name).strip()


def contents(path):
    return {line.split(None, 5)[5].split(" -> ")[0] for line in run("dpkg-deb", "-c", path).splitlines()}


def test_there_are_four(packages):
    assert sorted(packages) == sorted(PACKAGES)
    assert {name: field(path, "Architecture") == "all" for name, path in packages.items()} == {
        "libflp0": False, "libflp-dev": False, "flpgen": False, "python3-flp": True}


def test_contents(packages):
    wanted = {"libflp0": [r"usr/lib/(\S+/)?libflp\.so\.0", r"usr/share/flp/generic/\S+\.flpk"],
              "libflp-dev": [r"usr/include/flp\.h", r"usr/lib/(\S+/)?libflp\.so", r"\S+/flpConfig\.cmake",
                             r"\S+/pkgconfig/flp\.pc"],
              "flpgen": ["usr/bin/flpgen", r"usr/lib/(\S+/)?libflpgen\.so",
                         "usr/share/bash-completion/completions/flpgen", "usr/share/zsh/site-functions/_flpgen",
                         r"usr/share/fish/vendor_completions\.d/flpgen\.fish"],
              "python3-flp": [r"usr/lib/python3/dist-packages/flp/__init__\.py",
                              r"usr/lib/python3/dist-packages/flp/include/flp\.h",
                              r"usr/lib/python3/dist-packages/flp-[\d.]+\.dist-info/METADATA"]}
    held = {name: contents(path) for name, path in packages.items()}
    for name, patterns in wanted.items():
        for pattern in [*patterns, f"usr/share/doc/{name}/copyright", rf"usr/share/doc/{name}/changelog\.Debian\.gz"]:
            assert [path for path in held[name] if re.fullmatch(r"\./" + pattern, path)], (name, pattern)
    files = [path for paths in held.values() for path in paths if not path.endswith("/")]
    assert len(files) == len(set(files))
    assert not [path for path in files if "__pycache__" in path]


def test_dependencies(packages):
    version = field(packages["libflp0"], "Version")
    assert re.search(r"libc6 \(>= [\d.]+\), libsodium23 .*, libzstd1", field(packages["libflp0"], "Depends"))
    assert "libopenblas0" in field(packages["libflp0"], "Recommends")
    for name in ("libflp-dev", "flpgen", "python3-flp"):
        assert f"libflp0 (= {version})" in field(packages[name], "Depends")
    for library in ("libjansson4", "liblua5.4-0", "libsqlite3-0"):
        assert library in field(packages["flpgen"], "Depends")
    assert "libstdc++6" not in field(packages["flpgen"], "Depends")  # LLVM's is linked in


def test_control_files_of_the_library(packages, root, tmp_path):
    run("dpkg-deb", "-e", packages["libflp0"], tmp_path)
    version = field(packages["libflp0"], "Version").split("-")[0]
    assert (tmp_path / "triggers").read_text() == "activate-noawait ldconfig\n"
    assert (tmp_path / "shlibs").read_text() == f"libflp 0 libflp0 (>= {version})\n"
    library = next(root.glob("usr/lib/**/libflp.so.0"))
    exported = {line.split()[-1].split("@")[0] for line in run("nm", "-D", "--defined-only", library).splitlines()
                if line.split()[-2] != "A"}
    listed = {line.split("@")[0].strip() for line in (tmp_path / "symbols").read_text().splitlines() if "@" in line}
    assert {name for name in listed if name.startswith("flp_")} == exported
    assert not (tmp_path / "postinst").exists()


def test_a_symbol_that_is_not_listed_stops_the_packing(packages, tmp_path):
    lines = LISTED.read_text().splitlines()
    (tmp_path / "less").write_text("\n".join(lines[:-1]) + "\n")
    (tmp_path / "debian").mkdir()
    (tmp_path / "debian" / "control").write_text("Source: flp\n\nPackage: libflp0\nArchitecture: any\n")
    library = next((BUILD).glob("lib/libflp.so.0.*"))
    done = subprocess.run(["dpkg-gensymbols", "-c4", "-v0.1.0", "-plibflp0", f"-e{library}", "-Oout", "-I" + "less"],
                          cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and lines[-1].split("@")[0].strip() in done.stdout
    assert "staged.cmake" in (BUILD / "CPackConfig.cmake").read_text()


def test_changelog_and_copyright(packages, root):
    for name in PACKAGES:
        folder = root / "usr/share/doc" / name
        text = gzip.open(folder / "changelog.Debian.gz", "rt").read()
        assert text.startswith(f"flp ({field(packages[name], 'Version')}) ")
        assert "LLVM" in (folder / "copyright").read_text() and "GCC" in (folder / "copyright").read_text()


def library_path(root):
    return ":".join(sorted({str(path.parent) for path in root.glob("usr/lib/**/lib*.so*")}))


def test_what_was_unpacked_runs(root):
    """The command, its kernels beside it, and the Python module, with no path to the build."""
    environment = {"LD_LIBRARY_PATH": library_path(root), "FLP_LIBRARY": "",
                   "PYTHONPATH": str(root / "usr/lib/python3/dist-packages")}
    assert run(root / "usr/bin/flpgen", "--version", env={"LD_LIBRARY_PATH": ""}).startswith("flpgen ")
    settings = run(root / "usr/bin/flpgen", "doctor", "--json", env={"LD_LIBRARY_PATH": ""})
    assert f'"{root}/usr/share/flp/generic"' in settings.replace("/bin/..", "").replace("usr/../", "")
    code = "import flp; print(flp.library_path(), flp.version())"
    assert re.fullmatch(r"libflp\.so\.0 [\d.]+\n", run("/usr/bin/python3", "-c", code, env=environment))
    # Without the library the message says where it was looked for.
    said = refused("/usr/bin/python3", "-c", code, env={**environment, "LD_LIBRARY_PATH": ""})
    assert "the loader finds no libflp.so.0" in said


@pytest.mark.skipif(not shutil.which("man") or not list(BUILD.glob("share/man/man1/*.1")),
                    reason="no man, or no help2man")
def test_manual_pages(root):
    pages = sorted(root.glob("usr/share/man/man1/*.1.gz"))
    commands = run(root / "usr/bin/flpgen", "completion", "commands").splitlines()
    assert [page.name for page in pages] == sorted(
        ["flpgen.1.gz", *("flpgen-%s.1.gz" % line.split("\t")[0].replace(" ", "-") for line in commands)])
    for page in pages:
        done = subprocess.run(["man", "--warnings", "-l", page], capture_output=True, text=True,
                              env={**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""})
        assert (done.returncode, done.stderr) == (0, ""), page.name
        for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "SEE ALSO",
                        *(() if page.name == "flpgen.1.gz" else ("EXAMPLES",))):
            assert f"\n{section}\n" in done.stdout, (page.name, section)
        assert re.search(rf"\n {{7}}{page.name[:-5]} +- +\w", done.stdout), page.name
    gen = run("man", "-l", root / "usr/share/man/man1/flpgen-gen.1.gz", env={"MANWIDTH": "100"})
    assert "\n         flpgen gen --vocab 151936 --hidden 4096 --grad hidden,weight --install-cache\n" in gen


# What a build for Debian does otherwise than this one: hardening, folders of the architecture, one for libflpgen.
OF_THE_BUILD = ("hardening-no-bindnow,hardening-no-fortify-functions,custom-library-search-path,"
                "shared-library-lacks-version,maintscript-calls-ldconfig,"
                "pkg-config-unavailable-for-cross-compilation,"
                "sharedobject-in-library-directory-missing-soname,package-name-doesnt-match-sonames,"
                "no-shlibs,lacks-ldconfig-trigger,no-symbols-control-file,uses-no-compression-for-data-tarball")
needs_lintian = pytest.mark.skipif(not shutil.which("lintian"), reason="lintian is not installed")


@needs_lintian
def test_lintian_of_this_build(packages):
    out = run("lintian", "--allow-root", "--fail-on", "none", "--suppress-tags", OF_THE_BUILD, *packages.values())
    assert [line for line in out.splitlines() if line[:2] in ("E:", "W:")] == []


# ---- as ./setup.sh deb builds them ----

@pytest.fixture(scope="session")
def built():
    """Folders, flags and compression of Debian; build/deb is kept, so that a second time takes seconds."""
    run(TREE / "packaging/debian/build")
    return {path.name.split("_")[0]: path for path in (TREE / "build/deb/packages").glob("*.deb")}


@needs_lintian
def test_lintian(built):
    assert sorted(built) == sorted(PACKAGES)
    assert run("lintian", "--allow-root", "--fail-on", "error,warning", *built.values()) == ""
    triplet = run("dpkg-architecture", "-qDEB_HOST_MULTIARCH").strip()
    assert f"./usr/lib/{triplet}/libflp.so.0" in contents(built["libflp0"])
    assert f"./usr/lib/{triplet}/flp/libflpgen.so" in contents(built["flpgen"])


def test_packing_twice_gives_the_same_bytes(built, tmp_path):
    epoch = run("git", "-C", TREE, "log", "-1", "--format=%ct").strip()
    again = pack(TREE / "build/deb", tmp_path, SOURCE_DATE_EPOCH=epoch)
    assert {name: path.read_bytes() == built[name].read_bytes() for name, path in again.items()} == {
        name: True for name in PACKAGES}


PROGRAM = r"""
#include <flp.h>
#include <stdio.h>
int main(void) { return puts(flp_version()) < 0; }
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("debootstrap"), reason="needs root and debootstrap")
def test_installed_in_a_chroot(built, tmp_path):
    """A bare bookworm: apt takes the packages with what they depend on, they work, and go without a trace."""
    chroot = tmp_path / "bookworm"
    run("debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", chroot)

    def inside(*command):
        return run("chroot", chroot, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
                   "DEBIAN_FRONTEND=noninteractive",
                   *(f"{name}={os.environ[name]}" for name in ("http_proxy", "https_proxy") if name in os.environ),
                   *command)

    for path in built.values():
        shutil.copy(path, chroot / "tmp")
    (chroot / "tmp/use.c").write_text(PROGRAM)
    inside("sh", "-c", "apt-get install -y -qq --no-install-recommends gcc libc6-dev pkg-config /tmp/*.deb")
    version = inside("python3", "-c", "import flp; print(flp.version())").strip()
    assert inside("flpgen", "--version").startswith(f"flpgen {version}")
    inside("flpgen", "doctor", "--require", "eager")
    inside("flpgen", "gen", "--vocab", "1000", "--hidden", "64", "--out", "/tmp/kernels")
    assert list((chroot / "tmp/kernels").iterdir())
    inside("sh", "-c", "gcc /tmp/use.c $(pkg-config --cflags --libs flp) -o /tmp/use")
    assert inside("/tmp/use").strip() == version
    assert list((chroot / "usr/lib/python3/dist-packages/flp/__pycache__").iterdir())
    inside("dpkg", "-r", *PACKAGES)
    assert not (chroot / "usr/lib/python3/dist-packages/flp").exists()
    assert not list(chroot.glob("usr/**/*flpgen*")) and "libflp" not in inside("ldconfig", "-p")

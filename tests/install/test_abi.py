"""packaging/abi/check: this library's ABI beside that of the last release, and the changes that it must refuse.

The changes are made to copies of flp.h and flp.map; libraries of these have every function and do nothing."""
import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from installed import names_place, refused, run

TREE = Path(os.environ["FLP_TEST_TREE"])
BUILD = Path(os.environ["FLP_TEST_BUILD"])
CHECK = TREE / "packaging/abi/check"
HEADER, MAP = (TREE / "runtime" / name for name in ("flp.h", "flp.map"))
pytestmark = pytest.mark.skipif(not (shutil.which("abidiff") and shutil.which("abidw")), reason="no abigail-tools")


@pytest.fixture(scope="module")
def check():
    loader = importlib.machinery.SourceFileLoader("abi_check", str(CHECK))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("abi_check", loader))
    loader.exec_module(module)
    return module


def declarations(header):
    """(what it returns, its name and parameters) of every function."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    return re.findall(r"FLP_API ([\w ]+?[ *]+)(flp_\w+\([^;]*\));", text)


def build(folder, header, symbols, soname="libflp.so.0", debug="-g"):
    """A library with the functions of a header. -> its path"""
    (folder / "flp.h").write_text(header)
    (folder / "flp.map").write_text(symbols)
    body = "".join(f"{kind}{function} {{ {'' if kind == 'void ' else 'return 0;'} }}\n"
                   for kind, function in declarations(header))
    (folder / "stub.c").write_text(f'#include "flp.h"\n{body}')
    run("cc", debug, "-shared", "-fPIC", f"-I{folder}", folder / "stub.c", f"-Wl,-soname,{soname}",
        f"-Wl,--version-script={folder}/flp.map", "-o", folder / "libflp.so")
    return folder / "libflp.so"


def changed(text, *changes):
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
        text = text.replace(old, new)
    return text


SPEC_END = "\n} flp_spec;"
LAYOUT_END = "\n} flp_layout;"
STATS_END = "\n} flp_arena_stats;"
VERSION = "FLP_API const char *flp_version(void);"
NEW_FUNCTION = (VERSION, f"{VERSION}\nFLP_API int flp_new(int one);")
NEW_VERSION = ("local:\n    *;\n};\n", "local:\n    *;\n};\nFLP_0.99 { global: flp_new; } FLP_0;\n")
ALLOWED = {
    "nothing": ([], [], ""),
    "a field at the end": ([(SPEC_END, " int64_t more;\n} flp_spec;")], [],
                           "flp_spec grew from 144 to 152 bytes"),
    "a double and a pointer at the end": ([(LAYOUT_END, " double more; const char *words;\n} flp_layout;")], [],
                                          "flp_layout grew from 72 to 88 bytes"),
    "arrays and halves of words": ([(STATS_END, "int32_t one, two; float many[4];\n} flp_arena_stats;")], [],
                                   "flp_arena_stats grew from 72 to 96 bytes"),
    "an enumerator": ([("FLP_LOG_INFO = 2 }", "FLP_LOG_INFO = 2, FLP_LOG_TRACE = 3 }")], [], ""),
    "another name for a field": ([("int32_t listed; ", "int32_t fresh; ")], [], ""),
    "a function of a later version": ([NEW_FUNCTION], [NEW_VERSION], "flp_new is new, FLP_0.99"),
}
REFUSED = {
    "a function dropped": ([("FLP_API flp_status flp_plan_check(flp_plan *plan, void *stream);", "")],
                           [("    flp_plan_check;\n", "")], "flp_plan_check@@FLP_0"),
    "a function hidden": ([], [("    flp_plan_check;\n", "")], "flp_plan_check@@FLP_0"),
    "a function of another version": ([], [("    flp_version;\n", ""),
                                           (NEW_VERSION[0], NEW_VERSION[1].replace("new", "version"))],
                                      "flp_version@@FLP_0"),
    "a function added to a version that is out": ([NEW_FUNCTION], [("    flp_version;", "    flp_version; flp_new;")],
                                                  "flp_new: new since 0.1.0, but of version FLP_0"),
    "a parameter's type": ([("flp_plan_saved(const flp_plan *plan, int64_t n", "flp_plan_saved(const flp_plan *plan, int32_t n")],
                           [], "parameter 2 of type 'typedef int64_t' changed"),
    "a parameter more": ([("flp_plan_check(flp_plan *plan, void *stream)", "flp_plan_check(flp_plan *plan, void *stream, int more)")],
                         [], "parameter 3 of type 'int' was added"),
    "what a function returns": ([("FLP_API void flp_arena_reset_peaks", "FLP_API int flp_arena_reset_peaks")], [],
                                "return type changed"),
    "a field removed": ([("  size_t loss_bytes;\n  flp_dtype grad_bias", "  flp_dtype grad_bias")], [], "flp_spec"),
    "a field in the middle": ([("  size_t loss_bytes;\n", "  size_t loss_bytes; int64_t more;\n")], [], "flp_spec"),
    "a field in padding": ([("  uint64_t budget_bytes;  /* 0:", "  int32_t more; uint64_t budget_bytes; /* 0:")], [],
                           "'int32_t more'"),
    "fields that change places": ([("  uint64_t bytes;          /*", "  uint64_t smallest_bytes; /*"),
                                   ("smallest_bytes; /* workspace of", "bytes; /* workspace of")], [], "flp_layout"),
    "a field of another type": ([("  double flops;\n", "  int64_t flops;\n")], [], "flp_layout"),
    "a field of another sign": ([("  uint64_t phases; ", "  int64_t phases; ")], [], "flp_arena_stats"),
    "a renumbered enum": ([("FLP_DTYPE_FP16 = 2", "FLP_DTYPE_FP16 = 7")], [], "FLP_DTYPE_FP16"),
    "an enumerator dropped": ([("FLP_ERROR_DATA = 11,", "")], [], "FLP_ERROR_DATA"),
    "a renumbered enum in a struct that grew": ([("FLP_DTYPE_FP16 = 2", "FLP_DTYPE_FP16 = 7"),
                                                 (SPEC_END, " int64_t more;\n} flp_spec;")], [],
                                                "FLP_DTYPE_FP16"),
    "a changed field in a struct that grew": ([("  double flops;\n", "  int64_t flops;\n"),
                                               (LAYOUT_END, " double more;\n} flp_layout;")], [], "flp_layout"),
    "padding at the end": ([(LAYOUT_END, " int32_t more;\n} flp_layout;")], [],
                           "flp_layout has padding from byte 76 on (accepted: new fields without)"),
    "a longer array": ([("FLP_LOSS_METRICS_MAX = 8", "FLP_LOSS_METRICS_MAX = 9")], [], "changed length from 8 to 9"),
    "a struct without struct_bytes": ([("  double fallback, low, high;", "  double fallback, low, high, step;")], [],
                                      "flp_loss_parameter"),
    "a callback": ([("(*flp_log_fn)(flp_log_level level,", "(*flp_log_fn)(int64_t level,")], [], "flp_log_set"),
}


def verdict(check, folder, header, symbols, **options):
    """What the check says of a library: (what was added, the failure or None)"""
    (folder / "library").mkdir()
    library = build(folder / "library", changed(HEADER.read_text(), *header), changed(MAP.read_text(), *symbols), **options)
    release = check.last_release(CHECK.parent)
    try:
        now = check.abi_of(library, library.parent / "flp.h")
        return check.compare(xml.parse(release), now, check.version_of(release)), None
    except check.Failure as failure:
        return [], str(failure)


def test_programs_of_the_last_release_run_with_this_library():
    """Where this fails, programs break; if the release that the baseline stands for is not out: check --update."""
    run(CHECK, "--library", BUILD / "lib/libflp.so")


@pytest.mark.parametrize("change", ALLOWED)
def test_what_may_change(change, check, tmp_path):
    header, symbols, said = ALLOWED[change]
    assert verdict(check, tmp_path, header, symbols) == ([said] if said else [], None)


@pytest.mark.first(6)
@pytest.mark.parametrize("change", REFUSED)
def test_what_may_not(change, check, tmp_path):
    header, symbols, said = REFUSED[change]
    failure = verdict(check, tmp_path, header, symbols)[1]
    assert failure and said in failure


def test_another_soname_is_refused(check, tmp_path):
    failure = verdict(check, tmp_path, [], [], soname="libflp.so.1")[1]
    assert "SONAME changed from 'libflp.so.0' to 'libflp.so.1'" in failure


def test_a_library_without_types_is_refused(check, tmp_path):
    failure = verdict(check, tmp_path, [], [], debug="-g0")[1]
    assert "has no debug information (accepted: one of build/release" in failure


def test_every_public_struct_grows_or_is_known_not_to(check):
    """Those of the header are those of runtime/base/structs.h, and flp_loss_parameter, which stands in an array."""
    structs = set(re.findall(r"^typedef struct (flp_\w+) \{", HEADER.read_text(), re.M)) - {"flp_loss_parameter"}
    listed = set(re.findall(r"^  X\(\w+, (flp_\w+),", (TREE / "runtime/base/structs.h").read_text(), re.M))
    assert structs == listed == set(check.growing(xml.parse(check.last_release(CHECK.parent))))


# ---- the command

def test_update_takes_the_library_at_hand(tmp_path):
    (tmp_path / "libflp-0.0.9.abi").write_text("<abi-corpus/>")
    words = [CHECK, "--library", BUILD / "lib/libflp.so", "--releases", tmp_path]
    version = re.search(r'FLP_VERSION_STRING "(.*)"', HEADER.read_text())[1]
    assert run(*words, "--update") == f"wrote libflp-{version}.abi\n"
    assert [path.name for path in tmp_path.iterdir()] == [f"libflp-{version}.abi"]
    assert not names_place((tmp_path / f"libflp-{version}.abi").read_text(), TREE)
    assert run(*words) == f"programs that were built with {version} run with this library\n"


def test_exit_codes(tmp_path):
    said = refused(CHECK, "--library", BUILD / "lib/libflp.so", "--releases", tmp_path)
    assert "has 0 files libflp-VERSION.abi" in said
    missing = subprocess.run([CHECK, "--library", tmp_path / "none.so"], capture_output=True, text=True)
    assert (missing.returncode, missing.stderr) == (2, f"packaging/abi/check: {tmp_path}/none.so is not there\n")
    bare = subprocess.run([sys.executable, CHECK], capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert bare.returncode == 2 and "Debian has them in abigail-tools" in bare.stderr

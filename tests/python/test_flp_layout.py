"""flp/_library/_c.py mirrors flp.h: offsets, sizes, constants and functions, against a probe that the C
compiler builds."""
import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import flp
from flp import errors
from flp._eager import _eager_torch
from flp._library import _c, _plans
from tree_version import VERSION

TREE = Path(os.environ.get("FLP_TEST_TREE") or Path(__file__).resolve().parents[2])
HEADER = TREE / "runtime" / "flp.h"
# By what _c.py says of itself: "flp_spec: ..." above a class; new_spec makes FLP_SPEC_INIT.
STRUCTS = {cls.__doc__.split(":")[0]: cls for cls in vars(_c).values()
           if isinstance(cls, type) and issubclass(cls, ctypes.Structure) and cls is not ctypes.Structure}
INITIAL = {type(make()).__doc__.split(":")[0]: (make, "FLP_%s_INIT" % name[4:].upper())
           for name, make in vars(_c).items() if name.startswith("new_")}
PREFIXES = ("DTYPE_", "OP_", "ENTROPY_", "GRAD_", "RUNG_", "DEVICE_", "PASS_", "LOG_")
CONSTANTS = {**{"FLP_" + name: value for name, value in vars(_c).items() if name.startswith(PREFIXES)}}


def test_the_mirror_is_found():
    assert {"flp_spec", "flp_args", "flp_select_args", "flp_loss_parameter"} <= set(STRUCTS) and len(STRUCTS) >= 8
    assert set(STRUCTS) - set(INITIAL) == {"flp_loss_parameter"}
    assert {"FLP_DTYPE_FP64", "FLP_OP_SELECT", "FLP_PASS_STEP", "FLP_DEVICE_HOST"} <= set(CONSTANTS)


def probe_source():
    lines = ['#include <stddef.h>', '#include <stdio.h>', '#include "flp.h"', "int main(void) {"]
    for name, cls in STRUCTS.items():
        lines.append('  printf("%s size %%zu\\n", sizeof(%s));' % (name, name))
        for field, _ in cls._fields_:
            lines.append('  printf("%s.%s %%zu %%zu\\n", offsetof(%s, %s), sizeof(((%s *)0)->%s));'
                         % (name, field, name, field, name, field))
    for name in CONSTANTS:
        lines.append('  printf("%s %%lld\\n", (long long)%s);' % (name, name))
    for name, (_, macro) in INITIAL.items():
        lines += ["  { %s value = %s;" % (name, macro),
                  "    const unsigned char *bytes = (const unsigned char *)&value;",
                  '    printf("%s ");' % macro,
                  '    for (size_t i = 0; i < sizeof value; i++) printf("%02x", bytes[i]);',
                  '    printf("\\n"); }']
    return "\n".join(lines + ["  return 0;", "}", ""])


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    """The output of the C compiler, by first word."""
    folder = tmp_path_factory.mktemp("probe")
    (folder / "probe.c").write_text(probe_source())
    subprocess.run([os.environ.get("CC", "gcc"), "-std=c11", "-I", str(HEADER.parent), str(folder / "probe.c"), "-o",
                    str(folder / "probe")], check=True)
    lines = subprocess.run([str(folder / "probe")], check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split(" ", 1)[0] if " size " not in line else line.rsplit(" ", 1)[0]: line.split(" ")[1:]
            if " size " not in line else line.rsplit(" ", 1)[1:] for line in lines}


@pytest.mark.parametrize("name", STRUCTS)
def test_struct_is_that_of_the_header(probe, name):
    cls = STRUCTS[name]
    assert ctypes.sizeof(cls) == int(probe[name + " size"][0])
    for field, _ in cls._fields_:
        mine = getattr(cls, field)
        assert [mine.offset, mine.size] == [int(word) for word in probe["%s.%s" % (name, field)]], field


@pytest.mark.parametrize("name", STRUCTS)
def test_struct_has_every_field_of_the_header(name):
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    body = re.search(r"typedef struct %s \{(.*?)\} %s;" % (name, name), text, flags=re.S).group(1)
    declared = [re.sub(r"[*\s]|\[\w+\]", "", part.split()[-1]) for line in body.split(";") if line.strip()
                for part in line.split(",")]
    assert declared == [field for field, _ in STRUCTS[name]._fields_]


@pytest.mark.parametrize("name", INITIAL)
def test_initial_values_are_those_of_the_header(probe, name):
    make, macro = INITIAL[name]
    assert bytes(make()).hex() == probe[macro][0]


@pytest.mark.parametrize("standard", ("c++11", "c++17", "c++20"))
def test_initial_values_in_cpp_are_those_in_c(tmp_path, standard):
    """Without a warning, and field by field: padding may differ."""
    compiler = shutil.which("g++")
    if not compiler:
        pytest.skip("no g++")
    lines = ['#include "flp.h"', "#include <cstdio>", "#include <cstring>", "int main() {"]
    for name, (make, macro) in INITIAL.items():
        value = make()
        lines += ["  { %s value = %s;" % (name, macro), "    unsigned char bytes[sizeof value];",
                  "    std::memcpy(bytes, &value, sizeof value);"]
        for field, _ in value._fields_:
            place = getattr(type(value), field)
            want = bytes(value)[place.offset:place.offset + place.size]
            same = "std::memcmp(bytes + %d, \"%s\", %d) == 0" % (place.offset, "".join("\\%03o" % b for b in want),
                                                               place.size)
            lines.append('    if (!(%s)) return std::puts("%s.%s"), 1;' % (same, name, field))
        lines.append("  }")
    (tmp_path / "probe.cpp").write_text("\n".join(lines + ["  return 0;", "}", ""]))
    subprocess.run([compiler, "-std=" + standard, "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-I",
                    str(HEADER.parent), str(tmp_path / "probe.cpp"), "-o", str(tmp_path / "probe")], check=True)
    done = subprocess.run([str(tmp_path / "probe")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", STRUCTS)
def test_a_name_that_is_no_field_is_refused(name):
    """Else a mistyped argument would be an attribute that libflp never sees."""
    for make in (STRUCTS[name], INITIAL.get(name, (STRUCTS[name],))[0]):
        with pytest.raises(AttributeError, match="hiden"):
            make().hiden = 1
    with pytest.raises(AttributeError, match="hiden"):
        STRUCTS[name](hiden=1)


def test_a_spec_has_the_fields_of_the_struct_and_its_initial_values():
    names = [name for name, _ in _c.Spec._fields_ if name not in ("struct_bytes", "loss", "loss_bytes", "reserved")]
    assert list(_plans.Spec._fields) == ["device", "chunk_rows", *names, "loss"]
    made = _plans.Spec(_c.DEVICE_HOST)
    assert bytes(_plans._flp_spec(made)) == bytes(_c.new_spec())
    given = {name: place for place, name in enumerate(names, 1)}
    loss = b"a program"
    struct = _plans._flp_spec(_plans.Spec(3, 4, **given, loss=loss))
    assert {name: getattr(struct, name) for name in given} == given
    assert ctypes.string_at(struct.loss, struct.loss_bytes) == loss
    assert len({made, _plans.Spec(_c.DEVICE_HOST), made._replace(keep=1)}) == 2


def test_initial_values_name_their_fields():
    """A list of values in the order of the fields breaks with any field that is put between them."""
    for _, macro in INITIAL.values():
        text = re.search(r"#define %s\b(.*?)\n\n" % macro, HEADER.read_text(), flags=re.S).group(1)
        values = text.replace("\\\n", " ").split("(", 1)[1].rsplit(")", 1)[0].split(",")[1:]
        assert values and all(re.match(r"\s*FLP_SET_\(\w+\) = ", value) for value in values), macro


def test_constants(probe):
    assert {name: int(probe[name][0]) for name in CONSTANTS} == CONSTANTS


def test_modes_are_those_of_the_header():
    numbers = dict(re.findall(r"FLP_MODE_(\w+) = (\d+)", HEADER.read_text()))
    library = _c.get()
    assert len(numbers) == 10 and int(numbers["DIRECTION"]) == _c.MODE_DIRECTION
    for word, number in numbers.items():
        assert library.flp_mode_name(int(number)).decode() == word.lower().replace("_", "-")


def test_statuses_are_those_of_the_header():
    numbers = dict(re.findall(r"FLP_ERROR_(\w+) = (\d+)", HEADER.read_text()))
    assert sorted(int(number) for number in numbers.values()) == sorted(errors.BY_STATUS)
    library = _c.get()
    for word, number in numbers.items():
        assert library.flp_status_name(int(number)).decode() == "FLP_ERROR_" + word
        stem = {"MEMORY": "HostMemory", "IO": "File"}.get(word, word.capitalize())
        assert errors.BY_STATUS[int(number)].__name__ == stem + "Error"


def test_the_limit_of_scores_is_the_kernels():
    """torch.compile traces the torch form, so it is a number in Python."""
    power = re.search(r"C\(SCORE_LIMIT, 1 << (\d+)\)", (TREE / "runtime" / "kernel" / "abi.h").read_text()).group(1)
    assert _eager_torch.LIMIT == 2.0 ** int(power)


def test_library_and_package_have_the_version_of_the_header():
    assert _c.version() == flp.__version__ == VERSION

"""The hash in keys of kernels follows what the generator's sources mean: comments, layout and the files that C is
divided into change nothing; any other edit changes it. Fails where an edited comment makes caches and packs unusable."""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from flpgen_tool import flpgen, needs_flpgen

BUILD = Path(os.environ.get("FLP_TEST_BUILD", "/nonexistent"))
TREE = Path(__file__).resolve().parents[2]
PROGRAM = BUILD / "generated" / "flp_hash_sources"

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="flp_hash_sources was not built (FLP_TEST_BUILD)")


@pytest.fixture
def sources(tmp_path):
    """A copy of what is hashed: templates/, and the C of the generator in gen/."""
    shutil.copytree(TREE / "templates", tmp_path / "templates")
    # the command and the program of the build are no part of the generator
    shutil.copytree(TREE / "gen", tmp_path / "gen", ignore=shutil.ignore_patterns("cli", "hash_sources.c"))
    shutil.copy(TREE / "runtime/kernel/abi.h", tmp_path / "gen")
    return tmp_path


def hash_of(sources):
    header = sources / "flp_sources.h"
    files = sorted(sources.glob("gen/**/*.[ch]"))
    subprocess.run([PROGRAM, header, sources / "templates", *files, "--", *files], check=True)
    return re.search(r'FLP_SOURCES_SHA256_HEX "([0-9a-f]{64})"', header.read_text()).group(1)


def test_the_tree_is_hashed_so(sources):
    built = (BUILD / "generated" / "flp_sources.h").read_text()
    assert hash_of(sources) in built


def test_comments_and_layout_change_nothing(sources):
    before = hash_of(sources)
    written = (sources / "flp_sources.h").stat().st_mtime_ns
    for path in sources.glob("templates/**/*.lua"):
        text = path.read_text()
        path.write_text("-- another comment\n--[[ and a long\none ]]\n" + text.replace("\n", "  -- note\n \n", 1))
    for path in sources.glob("gen/**/*.[ch]"):
        path.write_text("/* another comment */\n// and one more\n\n" + path.read_text())
    assert hash_of(sources) == before
    assert (sources / "flp_sources.h").stat().st_mtime_ns == written, "nothing is to be built anew for it"


def test_files_of_c_may_move(sources):
    before = hash_of(sources)
    (sources / "gen/ptx").mkdir()
    (sources / "gen/target/nvptx.c").rename(sources / "gen/ptx/a.c")
    text = (sources / "gen/ptx/a.c").read_text()
    assert '#include "gen/lang/call.h"' in text
    (sources / "gen/ptx/a.c").write_text(text.replace('#include "gen/lang/call.h"', '#include "call.h"'))
    assert hash_of(sources) == before


LUA = "return function(k)\n%s\nend\n"
EQUAL = [
    ("lua", "local a = 1", "local a=1 -- one"), ("lua", "local a = 1", "local --[==[ ]] ]==] a\n=\n1"),
    ("lua", "f('--')", "f('--') --"), ("lua", "a = b // c", "a = b//c -- //"),
    ("c", "int a = 1;", "int a=1; // one"), ("c", "int a = 1;", "int /* a, \" */ a\n=\t1;"),
    ("c", "#define A b\nint c;", "#define A /*\n*/ b // d\n\nint c;"), ("c", "#define A b c", "#define A b \\\n c"),
    ("c", '#include "a.h"\nint a;', 'int a;'), ("c", 's = "/*" "\\"//";', 's = "/*"   "\\"//";//')]
DIFFERENT = [
    ("lua", "a = b - -c", "a = b c"), ("lua", "a = 'x y'", "a = 'x  y'"), ("lua", "a = b .. c", "a = b . c"),
    ("lua", "a = [[ -- ]]", "a = [[ ]]"), ("lua", "ab = 1", "a b = 1"), ("lua", "a = 1.5", "a = 1 .5"),
    ("c", "a = b + +c;", "a = b ++c;"), ("c", "a = b - -c;", "a = b --c;"), ("c", "#define A b\nc", "#define A b c"),
    ("c", "#define A(b) c", "#define A (b) c\n"), ("c", '"a" "b"', '"ab"'), ("c", "a = b / *c;", "a = b /*c*/;"),
    ("c", "a <<= b", "a << = b"), ("c", "#include <a.h>\n", "#include <b.h>\n"), ("c", 'f("//")', 'f("/")')]


def written(sources, language, text):
    path = sources / ("templates/sample.lua" if language == "lua" else "gen/sample.c")
    path.write_text(LUA % text if language == "lua" else text)
    return hash_of(sources)


@pytest.mark.parametrize("language,one,other", EQUAL)
def test_one_meaning_one_hash(sources, language, one, other):
    assert written(sources, language, one) == written(sources, language, other)


@pytest.mark.first(5)
@pytest.mark.parametrize("language,one,other", DIFFERENT)
def test_another_meaning_another_hash(sources, language, one, other):
    assert written(sources, language, one) != written(sources, language, other)


def test_templates_have_names(sources):
    before = hash_of(sources)
    (sources / "templates/portable/head.lua").rename(sources / "templates/portable/heads.lua")
    assert hash_of(sources) != before


@needs_flpgen
def test_a_cache_outlives_an_edited_comment(sources):
    """Keys of a folder of templates, and of the built-in ones, which it equals but for comments."""
    def keys():
        done = flpgen("gen", "--vocab", 64, "--hidden", 16, "--template-dir", sources / "templates", "--json")
        return [kernel["sources"] for kernel in done.json()["kernels"]]
    for path in sources.glob("templates/**/*.lua"):
        path.write_text("-- another comment\n" + path.read_text())
    built_in = [kernel["sources"] for kernel in flpgen("gen", "--vocab", 64, "--hidden", 16, "--json").json()["kernels"]]
    assert keys() == built_in
    (sources / "templates/portable/head.lua").write_text("local unused = 1\n" + (sources / "templates/portable/head.lua").read_text())
    assert keys() != built_in

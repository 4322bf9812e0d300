"""flp.h alone, as C and as C++, in every standard that a compiler at hand knows, without a warning."""
import shutil
import subprocess

import pytest
from installed import run

C = ["c99", "c11", "c17", "c2x"]
CPP = ["c++11", "c++14", "c++17", "c++20", "c++2b"]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
C_WARNINGS = ["-Wstrict-prototypes", "-Wc++-compat"]
CPP_WARNINGS = ["-Wold-style-cast", "-Wzero-as-null-pointer-constant", "-Wsign-conversion"]
TYPES = {"spec": "SPEC", "options": "OPTIONS", "args": "ARGS", "layout": "LAYOUT", "select_args": "SELECT_ARGS",
         "loss_description": "LOSS_DESCRIPTION", "arena_stats": "ARENA_STATS"}
# INIT values at file scope, in a function and in a copy.
PROGRAM = "#include <flp.h>\n" + "".join(f"""
flp_{name} of_{name} = FLP_{init}_INIT;
flp_{name} make_{name}(int one);
flp_{name} make_{name}(int one) {{
  flp_{name} value = FLP_{init}_INIT;
  return one ? value : of_{name};
}}
""" for name, init in TYPES.items())


def knows(compiler, language, standard):
    return subprocess.run([compiler, f"-std={standard}", "-x", language, "-fsyntax-only", "/dev/null"],
                          capture_output=True).returncode == 0


# The oldest and the newest of what is there.
FOUND = [(compiler, language, standard)
         for names, language, standards in ((("gcc", "clang", "clang-19"), "c", C),
                                            (("g++", "clang++", "clang++-19"), "c++", CPP))
         for compiler in names if shutil.which(compiler)
         for standard in standards if knows(compiler, language, standard)]


def test_gcc_knows_them_all():
    assert {("gcc", "c", standard) for standard in C} | {("g++", "c++", standard) for standard in CPP} <= set(FOUND)


@pytest.mark.parametrize("compiler, language, standard", FOUND, ids=lambda value: value)
def test_the_header_compiles(compiler, language, standard, prefix, tmp_path):
    (tmp_path / "use").write_text(PROGRAM)
    more = C_WARNINGS if language == "c" else CPP_WARNINGS
    run(compiler, f"-std={standard}", *WARNINGS, *more, f"-I{prefix}/include", "-x", language, "-c", tmp_path / "use",
        "-o", tmp_path / "use.o")

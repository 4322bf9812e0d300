"""Calls that fail once under every verb: a sample of them here, all in the long form. faults.py has what must hold."""
import random
import resource
import subprocess

import pytest

from faults import CASES, FLPGEN, SHIM, SM80, Bench, Tally, calls_of, clean_environment, try_calls

pytestmark = pytest.mark.skipif(not (FLPGEN.exists() and SHIM.exists()),
                                reason="flpgen or the failing calls were not built")

# Those that make kernels or open all libraries take half a second a try.
SLOW = {name for name in CASES if name.endswith("_cuda")} | {"gen", "gen_cache", "explain", "pack_build", "pack_sign",
                                                             "report", "tune", "doctor"}
LEFT_OUT = {"gen_cache", "run_cuda", "explain_cuda", "doctor_cuda", "pack_sign"}  # of the short form: a verb once
SHORT, LONG, LONG_SLOW = 4, 200, 60  # calls of a kind
SHORT_SLOW = 4  # tries in all


def campaign(name, folder, most, tries=None):
    bench = Bench(name, folder)
    calls = calls_of(bench, most, random.Random(1))
    calls = random.Random(1).sample(calls, tries) if tries else calls
    tally = try_calls(bench, calls, Tally())
    print(f"{name}: {tally.text()}")
    assert sum(tally.tries.values()) == len(calls) > 0
    assert tally.wrong == []


@pytest.mark.first(6)
@pytest.mark.parametrize("name", sorted(CASES.keys() - LEFT_OUT))
def test_some_calls_fail(name, tmp_path):
    campaign(name, tmp_path, SHORT, SHORT_SLOW if name in SLOW else None)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(CASES))
def test_every_call_fails(name, tmp_path):
    campaign(name, tmp_path, LONG_SLOW if name in SLOW else LONG)


# ---- what campaigns have found ----

def failed(name, kind, call, folder):
    ended, wrong = Bench(name, folder).fail(kind, call)
    assert wrong == ""
    return ended


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("name", ["cache_verify", "cache_ls", "cache_gc"])
def test_a_directory_that_cannot_be_read_is_not_an_empty_one(name, call, tmp_path):
    """Calls 1 to 3 that read are those of the cache's names, its end among them."""
    ended = failed(name, "read", call, tmp_path)
    assert ended.code == 4 and "cache directory: Input/output error" in ended.err


@pytest.mark.parametrize("kind, call, said", [("unlink", 1, "cannot remove: Permission denied"),
                                              ("unlink", 2, "cannot remove: Permission denied"),
                                              ("stat", 2, "cannot stat: Permission denied")])
def test_gc_names_a_file_that_stays(kind, call, said, tmp_path):
    ended = failed("cache_gc", kind, call, tmp_path)
    assert ended.code == 4 and ".flpk: " + said in ended.err


@pytest.mark.long
def test_a_record_is_whole_or_not_there(tmp_path):
    """Whichever write or allocation fails: no JSON with a part of the rows, nor with a null in place of one."""
    bench = Bench("check", tmp_path)
    last = bench.counts["malloc"]
    calls = [("fwrite", call) for call in range(1, bench.counts["fwrite"] + 1, 2)]
    calls += [("malloc", call) for call in range(last - 400, last + 1, 13)]
    tally = try_calls(bench, calls, Tally())
    assert tally.wrong == [] and tally.tries["refused"] >= 8


@pytest.mark.long
def test_tensors_are_written_whole_or_not_at_all(tmp_path):
    """Every allocation of the header's text among them: a name that is missing in it made a file that nobody reads."""
    bench = Bench("run", tmp_path)
    last = bench.counts["malloc"]
    tally = try_calls(bench, [("malloc", call) for call in range(last - 50, last + 1)], Tally())
    assert tally.wrong == [] and tally.tries["refused"] >= 8


def test_a_limit_of_memory_is_met_before_llvm_is(tmp_path):
    """LLVM would end the process. Below the first limits the loader says that it cannot map the libraries."""
    codes = {}
    for megabytes in (40, 70, 90, 110, 400):
        done = subprocess.run([FLPGEN, "gen", *SM80, "--out", tmp_path / "k"], capture_output=True, text=True,
                              env=clean_environment(tmp_path), preexec_fn=lambda: resource.setrlimit(
                                  resource.RLIMIT_AS, (megabytes << 20, megabytes << 20)))
        codes[megabytes] = done.returncode
        assert done.returncode in (0, 3, 127), (megabytes, done.returncode, done.stderr)
        told = ("out of memory", "shared object", "cannot allocate memory")       # by flpgen, or by the loader
        assert done.returncode == 0 or any(words in done.stderr for words in told)
    assert codes[40] != 0 and codes[400] == 0 and 3 in codes.values(), codes

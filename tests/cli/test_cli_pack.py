"""flpgen pack: build, verify, inspect, install; what is refused, and what an interrupted installation leaves behind."""
import errno
import hashlib
import os
import shlex
import signal
import stat
import subprocess

import pytest

from flpgen_pack_tool import build, entries_of, of_other_sources, pack, shared
from flpgen_tool import FAKE, FLPGEN, HANG, findings, flpgen, needs_fake, needs_flpgen
from preloaded import preloaded
from tree_version import VERSION

FAILURES = os.environ.get("FLP_TEST_FAKE_FAILURES", "")
PTXAS = os.environ.get("FLP_PTXAS", "")

pytestmark = needs_flpgen

SPEC = ["--vocab", 1000, "--hidden", 64]
TRAINED = [*SPEC, "--entropy", "forward", "--grad", "hidden,weight"]
HOPPER = [*SPEC, "--arch", "sm_90a"]  # and the portable kernels, as always
SEED = bytes(range(32)).hex()
PUBLIC = "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"  # of that seed, by RFC 8032


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A pack of scoring kernels."""
    return build(tmp_path_factory.mktemp("made") / "a.flpp", *HOPPER)


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "key.hex"
    path.write_text(SEED + "\n")
    path.chmod(0o600)
    return path


def names(directory):
    return sorted(entry.name for entry in directory.iterdir()) if directory.exists() else []


# ---- building ----

def test_same_kernels_same_bytes(tmp_path, made):
    kernels, more = tmp_path / "kernels", tmp_path / "list.txt"
    assert flpgen("gen", *SPEC, "--arch", "sm_90a,sm_80", "--out", kernels).code == 0
    more.write_text("# two specialisations, one of them twice\n\n"
                    "--vocab 1000 --hidden 64 --arch sm_90a\n--arch sm_90a --hidden '64' --vocab 1000   # again\n")
    ways = [[*HOPPER], ["--from", kernels], ["--list", more], ["--from", made],
            ["--from", made, "--from", kernels, *HOPPER]]
    contents = {build(tmp_path / f"{i}.flpp", *way).read_bytes() for i, way in enumerate(ways)}
    assert contents == {made.read_bytes()}


@pytest.mark.long
def test_presets_are_the_heads_that_they_name(tmp_path):
    own = tmp_path / "own.json"
    own.write_text('{"presets": [{"name": "tiny", "vocab": 1000, "hidden": 64, "source": "here"},'
                   ' {"name": "capped", "vocab": 2000, "hidden": 64, "softcap": 30.0, "bias": true, "source": "here"}]}')
    heads = tmp_path / "heads.list"
    capped = ["--vocab", 2000, "--hidden", 64, "--softcap", 30, "--bias"]
    heads.write_text("--vocab 1000 --hidden 64\n" + " ".join(map(str, capped)) + "\n")
    portable = ["--arch", "sm_80"]
    both = build(tmp_path / "both.flpp", "--preset-file", own, *portable)
    assert both.read_bytes() == build(tmp_path / "list.flpp", "--list", heads, "--arch", "sm_80").read_bytes()
    one = build(tmp_path / "one.flpp", "--preset-file", own, "--preset", "capped", *portable)
    assert one.read_bytes() == build(tmp_path / "capped.flpp", *capped, *portable).read_bytes() != both.read_bytes()
    named = tmp_path / "named.list"
    named.write_text(f"--preset-file {own} --preset capped\n")
    assert one.read_bytes() == build(tmp_path / "named.flpp", "--list", named, "--arch", "sm_80").read_bytes()


def test_every_architecture_that_plans_take_by_default(tmp_path):
    arches = {entry["kernel"]["key"]["arch"] for entry in entries_of(build(tmp_path / "a.flpp", *SPEC))}
    assert arches >= {"sm_80", "sm_90a"} and not arches & {"sm_90", "sm_100"}


def test_order_of_lists_changes_nothing(tmp_path):
    lines = ["--vocab 1000 --hidden 64", "--vocab 2000 --hidden 64 --entropy forward", "--vocab 1000 --hidden 128"]
    contents = set()
    for i, order in enumerate([lines, lines[::-1]]):
        (tmp_path / "list.txt").write_text("\n".join(order))
        contents.add(build(tmp_path / f"{i}.flpp", "--list", tmp_path / "list.txt", "--arch", "sm_80").read_bytes())
    assert len(contents) == 1


@pytest.mark.long
def test_portable_kernels_are_always_there(tmp_path):
    """A directory without kernels, and a pack for Hopper alone."""
    kernels, hopper = tmp_path / "kernels", tmp_path / "hopper"
    trained = [*SPEC, *GRADS, "--arch", "sm_90a"]
    assert flpgen("gen", *trained, "--out", kernels).code == 0
    hopper.mkdir(mode=0o700)
    for entry in kernels.glob("*.flpk"):
        if b"arch=sm_90a" in entry.read_bytes():
            entry.rename(hopper / entry.name)
    kinds = {}
    for path in (build(tmp_path / "a.flpp", "--from", hopper), build(tmp_path / "b.flpp", *trained)):
        for entry in pack("inspect", path, "--json").json()["entries"]:
            kinds.setdefault(path.name, set()).add((entry["kernel"]["key"]["kind"], entry["kernel"]["key"]["arch"]))
    portable = {(kind, "sm_80") for kind in ("forward", "dz", "grad_hidden", "grad_weight")}
    assert kinds["a.flpp"] == portable | {(kind, "sm_90a") for kind in ("forward", "dz", "products")}
    assert kinds["b.flpp"] == kinds["a.flpp"] | {("rows", "sm_80")}


def test_tuned_kernels_stand_beside_the_default(tmp_path):
    path = build(tmp_path / "a.flpp", *SPEC, "--tune", "forward:stages=4", "--tuned-for", "A GPU/7/13000")
    document = pack("inspect", path, "--json").json()
    forward = [entry["key"] for entry in document["entries"]
               if entry["kernel"]["key"]["kind"] == "forward" and entry["kernel"]["key"]["arch"] == "sm_90a"]
    assert len(forward) == 2 and all("tune=own" in key for key in forward)
    assert forward[0].endswith("tuned=") and forward[1].endswith("tuned=A GPU/7/13000")
    assert document["manifest"]["tuned_for"] == ["A GPU/7/13000"]


@pytest.mark.long
def test_a_list_has_tilings_and_chunks(tmp_path):
    spec = "--vocab 700 --hidden 64 --entropy backward --grad hidden,weight --tuned-for 'A GPU/7/13000'"
    (tmp_path / "list.txt").write_text(f"{spec} --tune 'forward:stages=4;products:raster=4' --chunks 0x320\n")
    path = build(tmp_path / "a.flpp", "--list", tmp_path / "list.txt")
    tuned = {entry["kernel"]["key"]["kind"]: entry for entry in entries_of(path)
             if entry["key"].endswith("tuned=A GPU/7/13000")}
    assert set(tuned) == {"forward", "dz", "products"}
    assert tuned["dz"]["kernel"]["chunk_vocab"] == 320 and tuned["dz"]["kernel"]["chunk_rows"] == 0
    own = [entry["kernel"] for entry in entries_of(path) if entry["key"].endswith("tuned=")]
    assert [kernel["chunk_vocab"] for kernel in own if kernel["key"]["kind"] == "dz"] == [0, 0]


@pytest.mark.long
def test_a_list_names_what_steps_take(tmp_path):
    (tmp_path / "list.txt").write_text("--vocab 700 --hidden 64 --grad hidden --loss 'grpo+k3' --tuned-for 'A GPU/7/13000' "
                                       "--tune 'forward_keep:stages=4' --step-rows 1536\n")
    path = build(tmp_path / "a.flpp", "--list", tmp_path / "list.txt")
    entries = entries_of(path)
    tuned = {entry["kernel"]["key"]["kind"]: entry["kernel"] for entry in entries
             if entry["key"].endswith("tuned=A GPU/7/13000")}
    assert set(tuned) == {"forward", "dz", "products", "forward_keep"}
    assert {kind: kernel["chunk_rows"] for kind, kernel in tuned.items()} == {
        "forward": 0, "dz": 0, "products": 0, "forward_keep": 1536}
    assert "loss_rows" in {entry["kernel"]["key"]["kind"] for entry in entries}


def test_kernels_of_scores_that_exist(tmp_path):
    spec, line = ["--op", "select", "--vocab", 1000, "--dtype", "fp64"], tmp_path / "list.txt"
    line.write_text("--op select --vocab 1000 --dtype fp64\n")
    path = build(tmp_path / "a.flpp", *spec)
    assert build(tmp_path / "b.flpp", "--list", line).read_bytes() == path.read_bytes()
    assert pack("verify", path).code == 0
    document = pack("inspect", path, "--json").json()
    assert document["manifest"]["shapes"] == ["1000"]
    keys = [entry["kernel"]["key"] for entry in document["entries"]]
    assert [(key["kind"], key["arch"], key["dtype"], key["vocab"]) for key in keys] == [("select", "sm_80", "fp64", 1000)]


# ---- signatures ----

def test_signing_and_trust(tmp_path, key_file, made):
    signed = build(tmp_path / "signed.flpp", "--from", made, "--sign", key_file)
    assert build(tmp_path / "again.flpp", *HOPPER, "--sign", key_file).read_bytes() == signed.read_bytes()
    assert pack("verify", signed, "--json").json()["signed_by"] == PUBLIC
    assert pack("verify", signed, "--trust", PUBLIC, "--json").json()["trusted"] is True
    assert pack("verify", signed, "--json").json()["sound"] is True
    (tmp_path / "pub").write_text(PUBLIC)
    assert pack("verify", signed, "--trust", "0" * 64, "--trust", tmp_path / "pub").code == 0
    for arguments, environment in ((["--trust", "0" * 64], {}), ([], {"FLP_PACK_KEYS": "0" * 64})):
        done = pack("verify", signed, *arguments, **environment)
        assert done.code == 1 and PUBLIC in done.err, done.err
    done = pack("install", made, "--trust", PUBLIC, "--dir", tmp_path / "cache")
    assert done.code == 1 and "not signed" in done.err and names(tmp_path / "cache") == []


def test_pem_keys(tmp_path, made):
    private = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n" \
              "-----END PRIVATE KEY-----\n"
    public = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=\n" \
             "-----END PUBLIC KEY-----\n"
    key = tmp_path / "key.pem"
    key.write_text(private)
    key.chmod(0o600)
    (tmp_path / "pub.pem").write_text(public)
    signed = build(tmp_path / "signed.flpp", "--from", made, "--sign", key)
    assert pack("verify", signed, "--trust", tmp_path / "pub.pem", "--json").json()["signed_by"] == PUBLIC


# ---- damage ----

def spoil(made, path, change):
    data = bytearray(made.read_bytes())
    change(data)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("change, message", [
    (lambda data: data.__setitem__(0, 0x50), "no pack"),
    (lambda data: data.__setitem__(4, 9), "pack format is 9"),
    (lambda data: data.__delitem__(-1), "its head has"),
    (lambda data: data.extend(b"\0"), "its head has"),
    (lambda data: data.__setitem__(200, data[200] ^ 1), "differs from its digest"),
    (lambda data: data.__setitem__(-1, data[-1] ^ 1), "differs from its SHA-256"),
    (lambda data: data.clear(), "too few"),
])
def test_damage_is_refused_and_nothing_written(tmp_path, made, change, message):
    bad = spoil(made, tmp_path / "bad.flpp", change)
    for action in (["verify"], ["install", "--dir", tmp_path / "cache"]):
        done = pack(action[0], bad, *action[1:], "--json")
        assert done.code == 4 and message in done.err, done.err
        assert done.json()["error"]["exit"] == 4
    assert names(tmp_path / "cache") == []


def test_links_and_directories_are_refused(tmp_path, made):
    (tmp_path / "link.flpp").symlink_to(made)
    done = pack("install", tmp_path / "link.flpp", "--dir", tmp_path / "cache")
    assert done.code == 4 and "a link, which is not followed" in done.err
    found = flpgen("doctor", "--json", FLP_CACHE_PATH=f"{tmp_path / 'link.flpp'}").json()["paths"][0]
    assert found["problem"] == f"{tmp_path / 'link.flpp'}: a link, which is not followed" and not found["usable"]
    assert pack("verify", tmp_path).code == 4
    os.mkfifo(tmp_path / "fifo")
    assert pack("verify", tmp_path / "fifo").code == 4
    assert names(tmp_path / "cache") == []


@pytest.mark.long
def test_doctor_trusts_nobody_of_itself(tmp_path, made, key_file):
    signed = build(tmp_path / "signed.flpp", "--from", made, "--sign", key_file)

    def doctor(**settings):
        settings.update(FLP_CACHE_PATH=str(signed), FLP_CUDA_LIBRARY="/nonexistent/libcuda.so.1")
        return flpgen("doctor", "--json", **settings).json()["paths"][0], flpgen("doctor", **settings).out

    found, text = doctor()
    assert (found["signed"], found["signed_by"], found["trusted"], found["usable"]) == (True, PUBLIC, False, True)
    assert f"signed with {PUBLIC[:16]}..., compared with no trusted key" in text
    found, text = doctor(FLP_PACK_KEYS=PUBLIC)
    assert found["trusted"] is True and f"signed with {PUBLIC[:16]}..., a trusted key" in text
    found, text = doctor(FLP_PACK_KEYS="0" * 64)
    assert (found["trusted"], found["usable"]) == (False, False) and "not among the trusted ones" in text
    found, text = doctor(FLP_PACK_KEYS=",".join([PUBLIC] * 16))  # 1039 bytes, which plans do not take for no keys
    assert (found["trusted"], found["usable"]) == (False, False)
    assert "FLP_PACK_KEYS has 1039 bytes, accepted: up to 1023" in text
    assert "(unset: too long, so that no pack is used)" in text


# ---- installing ----

@pytest.mark.first
@pytest.mark.parametrize("mask, folder, file", [(0o002, 0o755, 0o644), (0o077, 0o700, 0o600), (0o022, 0o755, 0o644)])
def test_a_directory_of_ones_choice_is_made_as_the_umask_reports(tmp_path, made, mask, folder, file):
    """What an image's build installs, another user must be able to read; the cache of a user is for nobody else."""
    before = os.umask(mask)
    try:
        assert pack("install", made, "--dir", tmp_path / "served" / "kernels").code == 0
        assert flpgen("gen", *SPEC, "--out", tmp_path / "made").code == 0
        assert pack("install", made, cache=tmp_path / "cache").code == 0
        assert stat.S_IMODE(build(tmp_path / "a.flpp", "--from", made).stat().st_mode) == file
        assert flpgen("gen", *SPEC, "--install-cache", cache=tmp_path / "another").code == 0
    finally:
        os.umask(before)

    def modes(path):
        return {stat.S_IMODE(path.stat().st_mode)}, {stat.S_IMODE(entry.stat().st_mode) for entry in path.glob("*.flpk")}

    for place in ("served/kernels", "made"):
        assert modes(tmp_path / place) == ({folder}, {file})
    for place in ("cache", "another"):
        assert modes(tmp_path / place) == ({0o700}, {0o600})

def test_install(tmp_path, made):
    cache = tmp_path / "cache"
    first = pack("install", made, "--dir", cache, "--json").json()
    assert first["written"] == len(names(cache)) == 4 and first["there"] == 0
    for name in names(cache):
        assert len(name) == 64 + 5 and name.endswith(".flpk")
    before = {name: (cache / name).stat().st_mtime_ns for name in names(cache)}
    again = pack("install", made, "--dir", cache, "--json").json()
    assert again["written"] == 0 and again["there"] == 4
    assert before == {name: (cache / name).stat().st_mtime_ns for name in names(cache)}
    assert flpgen("cache", "verify", "--dir", cache).code == 0
    assert build(tmp_path / "back.flpp", "--from", cache).read_bytes() == made.read_bytes()
    (cache / names(cache)[0]).write_bytes(b"rubbish")
    assert pack("install", made, "--dir", cache, "--json").json()["written"] == 1
    assert flpgen("cache", "verify", "--dir", cache).code == 0


def test_install_into_the_cache_of_the_user(tmp_path, made):
    assert pack("install", made, cache=tmp_path / "own").code == 0
    assert len(names(tmp_path / "own")) == 4


def install_with(failure, made, cache, counts=""):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLP_")}
    environment.update(preloaded(FAILURES), FAKE_FAILURES=failure, FAKE_FAILURES_COUNTS=str(counts), LC_ALL="C.UTF-8")
    return subprocess.run([FLPGEN, "pack", "install", str(made), "--dir", str(cache)], env=environment,
                          capture_output=True, text=True, timeout=HANG)


needs_failures = pytest.mark.skipif(not os.path.exists(FAILURES), reason="the preloaded failures were not built")


def calls_of_an_install(tmp_path, made):
    done = install_with("", made, tmp_path / "counted", tmp_path / "counts")
    assert done.returncode == 0, done.stderr
    calls = int((tmp_path / "counts").read_text().split("change ")[1])
    assert calls >= 3 * 5, "each entry is created, written, synced, closed and renamed"
    return calls


@pytest.mark.first
@needs_failures
@pytest.mark.parametrize("how", ["kill", "tear"])
def test_killed_at_every_call(tmp_path, made, how):
    whole, killed = set(), 0
    for call in range(1, calls_of_an_install(tmp_path, made) + 1):
        cache = tmp_path / str(call)
        done = install_with(f"change:{call}:{how}", made, cache)
        killed += done.returncode == -signal.SIGKILL
        assert how == "tear" or done.returncode == -signal.SIGKILL
        if cache.exists():
            verified = flpgen("cache", "verify", "--dir", cache, "--json")
            assert verified.code == 0, (call, verified.out)
            assert all(name.endswith(".flpk") or name.startswith(".tmp-") for name in names(cache))
        done = install_with("", made, cache)
        assert done.returncode == 0, (call, done.stderr)
        entries = [name for name in names(cache) if name.endswith(".flpk")]
        whole.add(tuple((name, hashlib.sha256((cache / name).read_bytes()).hexdigest()) for name in entries))
    assert len(whole) == 1 and len(whole.pop()) == 4 and killed >= 4


@needs_failures
def test_disk_full_at_every_call(tmp_path, made):
    failed = 0
    for call in range(1, calls_of_an_install(tmp_path, made) + 1):
        cache = tmp_path / str(call)
        done = install_with(f"change:{call}+:{errno.ENOSPC}", made, cache)
        if done.returncode:
            failed += 1
            assert done.returncode == 4, (call, done.stderr)
            assert "No space left on device" in done.stderr or "No such file or directory" in done.stderr
            assert "the cache is valid" in done.stderr
        if cache.exists():
            assert flpgen("cache", "verify", "--dir", cache).code == 0
            assert not any(name.startswith(".tmp-") for name in names(cache)), call
        assert install_with("", made, cache).returncode == 0
    assert failed >= 9


# ---- using a pack in place ----

DEMO = ["run", "--demo", "--vocab", 1000, "--hidden", 64, "--rows", 12, "--json"]


def run_with(tmp_path, path, script="", **environment):
    """With an empty home and no generator."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    done = flpgen(*DEMO, "--grad", "hidden,weight", cache=tmp_path / "cache", HOME=str(home), FLP_CACHE_PATH=str(path),
                  FLP_JIT_LIBRARY="/nonexistent/libflpgen.so", FLP_GENERIC_DIR="/nonexistent", FLP_CUDA_LIBRARY=FAKE,
                  FAKE_CUDA=script, **environment)
    assert names(home) == [] and names(tmp_path / "cache") == []
    return done


@pytest.mark.first
@needs_fake
@pytest.mark.parametrize("capability", ["8.0", "9.0", "12.0"])
def test_plans_of_nothing_but_a_pack(tmp_path, capability):
    path = shared(*TRAINED)
    done = run_with(tmp_path, path, f"capability={capability}")
    assert done.code == 0 and done.json()["rung"] == "heuristic", done.err
    assert done.err == ""


@needs_fake
@pytest.mark.parametrize("capability", ["8.0", "9.0", "12.0"])
def test_scores_that_exist_take_kernels_of_a_pack(tmp_path, capability):
    """The pack has the first of the checked shapes; the stand-in computes nothing, so the checks fail."""
    path = shared("--op", "select", "--vocab", 2, "--entropy", "backward")
    done = flpgen("check", "--op", "select", "--dtype", "bf16", "--rung", "heuristic", "--json", cache=tmp_path / "cache",
                  FLP_CACHE_PATH=str(path), FLP_JIT_LIBRARY="/nonexistent/libflpgen.so", FLP_GENERIC_DIR="/nonexistent",
                  FLP_CUDA_LIBRARY=FAKE, FAKE_CUDA=f"capability={capability}")
    assert {(row["case"], row["rung"]) for row in findings(done.json())} == {("V=2", "heuristic")}, done.err


@needs_fake
def test_a_corrupt_pack_is_passed_by(tmp_path):
    path = shared(*TRAINED)
    bad = spoil(path, tmp_path / "bad.flpp", lambda data: data.__delitem__(-1))
    done = run_with(tmp_path, f"{bad}:{path}")
    assert done.json()["rung"] == "heuristic" and done.err.count("is ignored") == 1
    done = run_with(tmp_path, path, FLP_PACK_KEYS=PUBLIC)
    assert done.json()["rung"] == "eager" and "not signed" in done.err


@needs_fake
def test_tuned_kernels_of_a_pack(tmp_path):
    path = build(tmp_path / "a.flpp", *TRAINED, "--tune", "forward:stages=4", "--tuned-for", "A GPU/7/13000")
    script = "capability=9.0;name=A GPU;sms={};driver=13000"
    assert run_with(tmp_path, path, script.format(7)).json()["rung"] == "tuned"
    assert run_with(tmp_path, path, script.format(8)).json()["rung"] == "heuristic"


@pytest.mark.long
@needs_fake
@pytest.mark.skipif(not PTXAS, reason="no ptxas")
def test_cubins(tmp_path):
    path = build(tmp_path / "a.flpp", *TRAINED, "--cubin", "sm_90", FLP_PTXAS=PTXAS)
    assert build(tmp_path / "b.flpp", *TRAINED, "--cubin", "sm_90", FLP_PTXAS=PTXAS).read_bytes() == path.read_bytes()
    document = pack("inspect", path, "--json").json()
    assert {image["arch"] for entry in document["entries"] for image in entry["images"][1:]} == {"sm_90"}
    assert document["manifest"]["cubins"][0].startswith("sm_90, driver ")
    newest = f"driver={max(image['driver'] for entry in document['entries'] for image in entry['images'][1:])}"
    done = run_with(tmp_path, path, f"capability=9.0;{newest};refuse=.version ")
    assert done.json()["rung"] == "heuristic" and done.err == "", "no PTX was needed"
    done = run_with(tmp_path, path, f"capability=9.0;{newest};nocubin=209")
    assert done.json()["rung"] == "heuristic" and "its PTX is compiled" in done.err


GRADS = ["--grad", "hidden,weight"]
ROWS, SCORING = {"rows"}, {"forward", "forward_short"}
TRAINING, HOPPERS = {"forward", "dz", "grad_hidden", "grad_weight"}, {"forward", "dz", "products"}
FAMILY = {"sm_80": {"rows", "forward"}, "sm_100f": SCORING}


@pytest.mark.skipif(not PTXAS, reason="no ptxas")
@pytest.mark.parametrize("options, made", [
    ([], {"sm_90": {"sm_80": ROWS, "sm_90a": SCORING}}),
    *(pytest.param(*case, marks=pytest.mark.long) for case in (
        (["--arch", "sm_100f"], {"sm_100": FAMILY, "sm_103": FAMILY}),
        (["--tune", "forward:stages=4"], {"sm_90": {"sm_80": {"rows", "forward"}, "sm_90a": SCORING}}),
        ([*GRADS, "--tune", "forward:stages=4"], {"sm_90": {"sm_80": {"rows", "forward"}, "sm_90a": HOPPERS}}),
        ([*GRADS, "--arch", "sm_80"], {"sm_90": {"sm_80": TRAINING | ROWS}}),
        ([*GRADS, "--alignment", 8], {"sm_90": {"sm_80": TRAINING | ROWS}}),
        (GRADS, {"sm_80": {"sm_80": TRAINING | ROWS}, "sm_90": {"sm_80": ROWS, "sm_90a": HOPPERS}})))])
def test_cubins_of_what_a_gpu_takes(tmp_path, options, made):
    """By GPU and architecture: portable ones where it has none of its own, or none that were proven there."""
    path = build(tmp_path / "a.flpp", *SPEC, *options, "--cubin", ",".join(made), FLP_PTXAS=PTXAS)
    found = {}
    for key, image in ((entry["kernel"]["key"], image) for entry in entries_of(path) for image in entry["images"][1:]):
        found.setdefault(image["arch"], {}).setdefault(key["arch"], set()).add(key["kind"])
    assert found == made


@pytest.mark.long
@pytest.mark.skipif(not PTXAS, reason="no ptxas")
def test_cubins_of_another_pack_are_not_made_again(tmp_path):
    made = build(tmp_path / "a.flpp", *SPEC, "--cubin", "sm_90", FLP_PTXAS=PTXAS)
    other = tmp_path / "ptxas"
    version = f"exec {shlex.quote(PTXAS)} --version"
    other.write_text(f'#!/bin/sh\ncase "$*" in *--version*) {version};; esac\necho why\nexit 9\n')
    other.chmod(0o755)
    again = build(tmp_path / "b.flpp", "--from", made, "--cubin", "sm_90", FLP_PTXAS=str(other))
    assert again.read_bytes() == made.read_bytes()
    done = flpgen("pack", "build", *SPEC, "--cubin", "sm_90", "-o", tmp_path / "c.flpp", FLP_PTXAS=str(other))
    assert done.code == 5 and "ptxas -arch=sm_90 ended with 9 for kernel rows of sm_80: why\n" in done.err


def test_cache_verbs_read_packs(tmp_path, made):
    listed = flpgen("cache", "ls", "--json", FLP_CACHE_PATH=str(made)).json()
    assert listed["entries_count"] == 4 and listed["bad"] == 0
    assert {entry["directory"] for entry in listed["entries"]} == {str(made)}
    bad = spoil(made, tmp_path / "bad.flpp", lambda data: data.__delitem__(-1))
    assert flpgen("cache", "verify", FLP_CACHE_PATH=str(bad)).code == 4


# ---- what another flp has made ----

@needs_fake
@pytest.mark.parametrize("command, setting, who, code", [
    ("pack verify {other}", "", "flp 9.9.9", 0), ("pack install {other} --dir {kept}", "", "flp 9.9.9", 0),
    ("cache ls --dir {kept}", "", "another flp", 0), ("cache verify --dir {kept}", "", "another flp", 0),
    ("run --demo --vocab 1000 --hidden 64 --rows 4", "CACHE_PATH={other}", "another flp", 0),
    ("doctor", "CACHE_PATH={other}", "flp 9.9.9", 3), ("doctor", "CACHE_PATH={kept}", "another flp", 3),
    ("doctor", "CACHE_PATH={made}:{other}", "flp 9.9.9", 0), ("doctor", "CACHE_DIR={kept}", "another flp", 0),
    ("doctor --require heuristic", "CACHE_PATH={other}", "another flp", 3),
    ("doctor --require heuristic", "CACHE_DIR={kept}", "another flp", 3),
    ("doctor", "GENERIC_DIR={kept}", "another flp", 4)])
def test_kernels_of_other_sources_are_named_as_such(tmp_path, made, command, setting, who, code):
    places = {"made": made, "kept": tmp_path / "kept"}
    places["other"] = of_other_sources(made, tmp_path / "other.flpp", **{VERSION: "9.9.9"})
    installed = pack("install", places["other"], "--dir", places["kept"], "--json").json()
    assert installed["of_no_use"].startswith("made by flp 9.9.9, sources 0123456789abcdef")
    name, _, value = f"FLP_{setting}".partition("=")
    before = names(places["kept"])
    done = flpgen(*command.format(**places).split(), FLP_CUDA_LIBRARY=FAKE, **{name: value.format(**places)})
    assert f"made by {who}, sources 0123456789abcdef; this library, flp {VERSION}, has " in done.out
    assert done.code == code and ("0123456789abcdef" in done.err or code == 0), done.err
    assert names(places["kept"]) == before


def test_doctor_fails_where_all_that_is_given_is_a_pack_of_another_format(tmp_path, made):
    other = spoil(made, tmp_path / "other.flpp", lambda data: data.__setitem__(8, 99))
    done = flpgen("doctor", FLP_CACHE_PATH=f"{other}")
    assert done.code == 3 and done.err.startswith(f"flpgen doctor: FLP_CACHE_PATH: {other}: descriptor format is 99")
    assert flpgen("doctor", FLP_CACHE_PATH=f"{other}:{made}").code == 0

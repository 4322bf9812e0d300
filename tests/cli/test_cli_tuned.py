"""flpgen explain, run and doctor with tuned kernels: of this driver, of another one, of the nearest shape, whatever is asked
of a head; on a scripted stand-in for libcuda."""
import pytest

from flpgen_pack_tool import build
from flpgen_tool import FAKE, flpgen, needs_fake, needs_flpgen, succeed

HOPPER = "capability=9.0;name=A GPU;sms=7;driver=13000"
TUNE = "forward:stages=4;dz:raster=16;products:raster=8"

pytestmark = [needs_flpgen, needs_fake]


def on_fake(*arguments, script=HOPPER, **environment):
    return succeed(*arguments, FLP_CUDA_LIBRARY=FAKE, FAKE_CUDA=script, **environment)


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    """Kernels of V=1000 D=64 with gradients, tuned for A GPU with driver 12080; signed."""
    folder = tmp_path_factory.mktemp("tuned")
    key = folder / "key.hex"
    key.write_text(bytes(range(32)).hex())
    key.chmod(0o600)
    return build(folder / "a.flpp", "--vocab", 1000, "--hidden", 64, "--grad", "hidden,weight", "--tune", TUNE,
                 "--tuned-for", "A GPU/7/12080", "--name", "a set", "--sign", key)


def explain(vocab, hidden, cache, *arguments, **settings):
    return on_fake("explain", "--vocab", vocab, "--hidden", hidden, "--grad", "hidden,weight", "--json", *arguments,
                   cache=cache, **settings).json()["plan"]


@pytest.mark.long
def test_explain_reports_tilings(tmp_path, pack):
    plan = explain(1000, 64, tmp_path, FLP_CACHE_PATH=str(pack))
    assert plan["rung"] == "tuned" and plan["cut"] == "tuned with driver 12080"
    assert "; tiling: tuned with driver 12080; plan id " in plan["description"]
    here = explain(1000, 64, tmp_path, FLP_CACHE_PATH=str(pack), script=HOPPER.replace("13000", "12080"))
    assert here["rung"] == "tuned" and here["cut"] == "tuned here" and here["id"] == plan["id"]
    near = explain(1200, 64, tmp_path, FLP_CACHE_PATH=str(pack))
    assert near["rung"] == "jit" and near["cut"] == "as the nearest tuned shape, V=1000 D=64"
    again = explain(1200, 64, tmp_path, FLP_CACHE_PATH=str(pack))
    assert again["rung"] == "heuristic" and again["cut"] == near["cut"] and again["id"] == near["id"]
    pinned = explain(1300, 64, tmp_path, "--rung", "jit", FLP_CACHE_PATH=str(pack))
    assert pinned["cut"] == "default"
    assert explain(1400, 64, tmp_path)["cut"] == "default"
    other = explain(1500, 64, tmp_path, FLP_CACHE_PATH=str(pack), script=HOPPER.replace("sms=7", "sms=8"))
    assert other["cut"] == "default"


def test_explain_tables_name_the_tiling(tmp_path, pack):
    done = on_fake("explain", "--vocab", 1200, "--hidden", 64, cache=tmp_path, FLP_CACHE_PATH=str(pack))
    assert "  tile configuration: as the nearest tuned shape, V=1000 D=64\n" in done.out
    without = flpgen("explain", "--vocab", 1200, "--hidden", 64, FLP_CUDA_LIBRARY="/nonexistent/libcuda.so.1")
    assert "tile configuration" not in without.out


# ---- tilings that are asked for ----

OWN = ["--vocab", 1000, "--hidden", 64, "--tune", "forward:cooperative,256x128,stages=3"]


def test_a_tiling_that_is_accepted_is_what_runs(tmp_path):
    done = on_fake("bench", *OWN, "--rows", 40, "--no-bare", "--burst-ms", 1, "--rounds", 3, "-q", cache=tmp_path,
                   script="capability=9.0;compute=1;jitter=5")
    assert "forward for sm_90a" in done.out and "tiling: as the options ask" in done.out


def test_explain_has_tilings_of_kernels_of_the_assumed_gpu(tmp_path):
    document = on_fake("explain", *OWN, "--json", cache=tmp_path, script="capability=9.0;fill=1").json()
    tile, = [kernel["tile"] for kernel in document["assumed"]["kernels"] if kernel["key"]["kind"] == "forward"]
    assert (tile["rows"], tile["columns"], tile["stages"]) == (256, 128, 3)


# ---- whatever is asked of a head that was tuned for one ----

HEAD = "--vocab 1000 --hidden 64"
SCORES = ["", "--entropy forward"]
GRADS = [f"--grad {grads} --entropy {entropy} {more}"
         for grads in ("hidden", "hidden,weight") for entropy in ("none", "backward") for more in ("", "--keep")]
WIDE = ["--grad hidden,weight --accumulate-grad-weight", "--grad hidden --grad-hidden-dtype fp32 --keep"]
OTHER = HOPPER.replace("A GPU", "Other")


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    """A pack of what stands beside one line of a list."""
    folder = tmp_path_factory.mktemp("variants")
    line = f"{HEAD} --entropy backward --grad hidden,weight --tune '{TUNE}' --tuned-for 'A GPU/7/13000'"
    (folder / "list").write_text(line + "\n")
    return build(folder / "a.flpp", "--list", folder / "list", "--variants")


@pytest.mark.first(3)
@pytest.mark.parametrize("script, asked, rung, arch, cut", [
    *((HOPPER, asked, "tuned", "sm_90a", "tuned here") for asked in SCORES + GRADS + WIDE),
    *((OTHER, asked, "heuristic", "sm_90a", "default") for asked in ("", GRADS[-1])),
    *(("capability=12.0", asked, "heuristic", "sm_80", "default") for asked in SCORES[1:] + GRADS[1::2])])
def test_a_tuned_head_serves_whatever_is_asked_of_it(tmp_path, variants, script, asked, rung, arch, cut):
    """With the pack alone: on its device, on another of its architecture, on one of another architecture."""
    done = on_fake("explain", *f"{HEAD} {asked}".split(), "--json", cache=tmp_path / "cache", script=script,
                   FLP_CACHE_PATH=str(variants), FLP_JIT_LIBRARY="/nonexistent/libflpgen.so",
                   FLP_GENERIC_DIR="/nonexistent")
    plan = done.json()["plan"]
    assert plan["rung"] == rung and plan["cut"] == cut, plan["description"]
    assert plan["description"].startswith(f"rung {rung} on ") and f" {arch}" in plan["description"]


def paths_of(cache, list_, **settings):
    done = on_fake("doctor", "--json", cache=cache, FLP_CACHE_PATH=":".join(map(str, list_)), **settings)
    return done.json()["paths"]


@pytest.mark.long
def test_doctor_lists_paths_and_what_was_tuned(tmp_path, pack):
    cache, loose, missing, junk = (tmp_path / name for name in ("cache", "loose", "missing", "junk"))
    loose.mkdir()
    loose.chmod(0o777)
    junk.write_bytes(b"x" * 100)
    assert explain(1000, 64, cache)["rung"] == "jit"
    found = paths_of(cache, [pack, loose, missing, junk])
    assert [path["path"] for path in found] == [str(path) for path in (pack, loose, missing, junk, cache)]
    assert [path["kind"] for path in found] == ["pack", "directory", "directory", "pack", "directory"]
    assert [path["usable"] for path in found] == [True, False, False, False, True]
    packed = found[0]
    assert packed["name"] == "a set" and packed["signed"] and not packed["trusted"], "no key is trusted"
    assert packed["tuned_here"] == 3 and packed["tuned_elsewhere"] == packed["other_sources"] == 0
    assert packed["entries"] > 6
    assert "lets other users write" in found[1]["problem"] and found[2]["problem"] == "not there"
    assert "no pack" in found[3]["problem"]
    assert found[4]["entries"] >= 4 and found[4]["tuned_here"] == 0 and "signed" not in found[4]
    elsewhere = paths_of(cache, [pack], script=HOPPER.replace("A GPU", "Other"))[0]
    assert elsewhere["tuned_here"] == 0 and elsewhere["tuned_elsewhere"] == 3
    two = paths_of(cache, [pack], script=HOPPER.replace("13000", "14000"))[0]
    assert two["tuned_here"] == 3, "whatever the driver"
    untrusted = paths_of(cache, [pack], FLP_PACK_KEYS="0" * 64)[0]
    assert untrusted["signed"] and not untrusted["trusted"] and not untrusted["usable"]


def test_doctor_tables_list_paths(tmp_path, pack):
    done = on_fake("doctor", cache=tmp_path, FLP_CACHE_PATH=str(pack))
    lines = done.out.splitlines()
    at, = [i for i, line in enumerate(lines) if line.endswith(f" {pack}") and line.startswith("pack ")]
    row = lines[at].split()
    assert row[1] == "ok" and row[3:] == ["3", "0", "0", str(pack)]
    assert lines[at + 1].startswith("    a set: signed with ")

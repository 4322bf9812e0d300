"""Several targets a row on the command line: --targets K, kernels, packs, explain, run, check on the CPU, and what is refused."""
import json
import struct

import pytest

from flpgen_tool import flpgen, needs_flpgen

pytestmark = needs_flpgen

NO_GPU = {"FLP_CUDA_LIBRARY": "/nonexistent/libcuda.so.1"}
HEAD = ["--vocab", 1000, "--hidden", 64]
SHAPE = [*HEAD, "--grad", "hidden,weight"]
DEMO = ["run", "--demo", *HEAD, "--rows", 90, "--rung", "eager"]


def kinds(document):
    return {kernel["key"]["kind"] for kernel in document["kernels"]}


# ---- the number ----

@pytest.mark.parametrize("text", ["0", "513", "-1", "2.5", "x", ""])
def test_other_numbers_are_refused(text):
    for verb in (["gen", *SHAPE], DEMO):
        done = flpgen(*verb, f"--targets={text}")
        assert done.code == 2 and "--targets: expected" in done.err and f"'{text}'" in done.err


def test_one_target_is_what_it_was():
    one, plain = (flpgen("gen", *SHAPE, *more, "--json").json() for more in (["--targets", 1], []))
    assert one["spec"] == plain["spec"] and one["spec"]["targets"] == 1
    assert [kernel["key"] for kernel in one["kernels"]] == [kernel["key"] for kernel in plain["kernels"]]


# ---- kernels ----

def test_kernels_are_the_same_for_any_number():
    some, many = (flpgen("gen", *SHAPE, "--targets", count, "--json").json() for count in (2, 512))
    assert {"forward_targets", "targets", "listed"} <= kinds(some) and "forward" not in kinds(some)
    assert [kernel["key"] for kernel in some["kernels"]] == [kernel["key"] for kernel in many["kernels"]]
    assert (some["spec"]["targets"], many["spec"]["targets"]) == (2, 512)


def test_packs_hold_them(tmp_path):
    lines, out = tmp_path / "list.txt", tmp_path / "a.flpp"
    lines.write_text("--vocab 1000 --hidden 64 --grad hidden --targets 64\n")
    done = flpgen("pack", "build", "--list", lines, "--arch", "sm_80", "--out", out)
    assert done.code == 0, done.err
    keys = [entry["key"] for entry in flpgen("pack", "inspect", out, "--json").json()["entries"]]
    assert any("kind=forward_targets" in key for key in keys) and any("kind=targets " in key for key in keys)
    assert flpgen("pack", "build", *SHAPE, "--targets", 2, "--variants", "--arch", "sm_80", "--out", out).code == 0


def test_tune_times_what_has_one_target():
    many, one = (flpgen("tune", *SHAPE, *more, "--dry-run", "--json", **NO_GPU).json()["targets"]
                 for more in (["--targets", 64], []))
    assert many == one


# ---- explain ----

def test_explain_has_the_bytes_of_the_targets():
    words = ["explain", "--vocab", 151936, "--hidden", 4096, "--grad", "hidden,weight", "--rows", 8192]
    many, one = (flpgen(*words, *more, "--json", **NO_GPU).json() for more in (["--targets", 64], []))
    assert many["spec"]["targets"] == 64 and one["spec"]["targets"] == 1
    layouts = [{layout["pass"]: layout for layout in document["rows"][0]["assumed_layouts"]} for document in (many, one)]
    for name in ("forward", "backward"):
        assert layouts[0][name]["products"] == layouts[1][name]["products"]
        assert 0 < layouts[0][name]["smallest_bytes"] - layouts[1][name]["smallest_bytes"] < 8192 * 64 * 32
    assert "targets=64" in flpgen(*words, "--targets", 64, **NO_GPU).out


# ---- run ----

def test_a_demonstration_is_near_fp64():
    document = flpgen(*DEMO, "--targets", 7, "--grad", "hidden", "--json").json()
    assert document["spec"]["targets"] == 7 and document["active_rows"] == 60
    assert 0 <= document["fp64"]["logprob_error"] < 1e-5 and "targets=7" in document["plan"]


def tensors(path):
    """{name: (shape, bytes)} of a safetensors file."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + size]), data[8 + size:]
    header.pop("__metadata__", None)
    return {name: (entry["shape"], body[slice(*entry["data_offsets"])]) for name, entry in header.items()}


def write_tensors(path, **arrays):
    """arrays: name=(dtype, shape, struct code, values)"""
    header, body = {}, b""
    for name, (dtype, shape, code, values) in arrays.items():
        packed = struct.pack(f"<{len(values)}{code}", *values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(packed)]}
        body += packed
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


ROWS, DEPTH, VOCAB, COUNT = 4, 8, 11, 3
TARGETS = [0, 10, 5, 3, -100, 3, -100, -100, -100, 7, 7, 1]


def operands(target, shape, grad):
    values = [((i * 37) % 23 - 11) / 8 for i in range(VOCAB * DEPTH)]
    return {"hidden": ("F32", [2, 2, DEPTH], "f", values[:ROWS * DEPTH]), "weight": ("F32", [VOCAB, DEPTH], "f", values),
            "target": ("I64", shape, "q", target), "grad_logprob": ("F32", shape, "f", grad)}


def run_file(folder, name, *words, **arrays):
    source, out = folder / f"{name}.safetensors", folder / f"{name}.out"
    write_tensors(source, **arrays)
    done = flpgen("run", "-i", source, "-o", out, "--rung", "eager", "--grad", "hidden,weight", *words)
    assert done.code == 0, done.err
    return tensors(out)


def test_tensors_of_a_file_are_calls_of_one_target_each(tmp_path):
    grad = [0.5 + i / 8 for i in range(ROWS * COUNT)]
    many = run_file(tmp_path, "many", "--targets", COUNT, **operands(TARGETS, [2, 2, COUNT], grad))
    assert many["logprob"][0] == [2, 2, COUNT] and many["entropy"][0] == [2, 2]
    assert many["grad_hidden"][0] == [2, 2, DEPTH]
    found = struct.unpack(f"<{ROWS * COUNT}f", many["logprob"][1])
    sums = {name: [0.0] * (len(many[name][1]) // 4) for name in ("grad_hidden", "grad_weight")}
    for k in range(COUNT):
        one = run_file(tmp_path, f"one{k}", **operands(TARGETS[k::COUNT], [2, 2], grad[k::COUNT]))
        assert struct.unpack(f"<{ROWS}f", one["logprob"][1]) == found[k::COUNT]
        for name, total in sums.items():
            total[:] = [a + b for a, b in zip(total, struct.unpack(f"<{len(total)}f", one[name][1]))]
    for name, total in sums.items():
        assert struct.unpack(f"<{len(total)}f", many[name][1]) == pytest.approx(total, abs=1e-6)


def test_a_file_of_another_shape_is_refused(tmp_path):
    source = tmp_path / "a.safetensors"
    write_tensors(source, **operands(TARGETS, [ROWS * COUNT], [1.0] * ROWS * COUNT))
    done = flpgen("run", "-i", source, "--targets", COUNT, "--rung", "eager")
    assert done.code == 2 and "(..., 3) of 4 rows, as --targets and hidden say, is accepted" in done.err.replace("\n", " ")


# ---- check ----

def test_check_of_one_specialisation_has_every_pattern():
    done = flpgen("check", "--vocab", 300, "--hidden", 32, "--rows", 30, "--grad", "hidden,weight,bias", "--bias", "--entropy",
                  "backward", "--targets", 5, "--rung", "eager", "--json")
    assert done.code == 0, done.out
    record = done.json()
    assert record["failed"] == 0 and "--targets 5" in record["command"]
    assert {row["case"] for row in record["rows"]} >= {"random", "masked", "bad-rows", "targets-teacher", "targets-same",
                                                       "targets-ends", "targets-few", "targets-bad"}
    assert all("targets=5" in row["options"] for row in record["rows"])
    assert {row["output"] for row in record["rows"]} >= {"logprob", "entropy", "grad_hidden", "grad_weight", "grad_bias"}


def test_a_set_has_the_cases_of_several_targets_alone():
    rows = flpgen("check", "--quick", "--targets", 9, "--rung", "eager", "--json").json()["rows"]
    counts = {word for row in rows for word in row["options"].split() if word.startswith("targets=")}
    assert counts == {"targets=2", "targets=5", "targets=9", "targets=64", "targets=300", "targets=512"}
    assert all("targets=" in row["options"] and row["pass"] for row in rows)
    assert {"shards", "accumulate", "strides", "align-2", "softcap", "T=1e-3", "N=0", "targets-N=1", "targets-V=2", "bits",
            "R2", "masked-all", "shards-ends", "targets-bad"} <= {row["case"] for row in rows}
    assert {"repeat: grad_weight", "rows shuffled", "small budget"} <= {row["output"] for row in rows}


# ---- refusals ----

@pytest.mark.parametrize("arguments, message", [
    (["gen", "--op", "select", "--vocab", 1000, "--targets", 2], "--targets: not accepted with --op select"),
    (["gen", *SHAPE, "--targets", 2, "--keep"], "--targets: not accepted beside --keep"),
    (["gen", *SHAPE, "--targets", 2, "--keep-set", 20], "--targets: not accepted beside --keep-set"),
    (["gen", *SHAPE, "--targets", 2, "--tail", "2^-9"], "--targets: not accepted beside --tail"),
    (["gen", "--generic", "--out", "/nonexistent", "--targets", 2], "--targets: not accepted with --generic"),
    (["bench", *SHAPE, "--targets", 2, "--mode", "save"], "--targets: not accepted beside --keep"),
    (["bench", *HEAD, "--targets", 2, "--write-rows", "/nonexistent/a"], "--targets: not accepted with --write-rows"),
    (["bench", *SHAPE, "--targets", 2, "--peers"], "--targets: not accepted with --peers"),
    (["check", "--op", "select", "--targets", 2], "--targets: not accepted with --op select"),
    (["report", *SHAPE, "--targets", 2, "--out", "/nonexistent/a"], "--targets: not accepted here; bench, check, explain"),
    (["run", "--demo", "--vocab", 99, "--hidden", 16, "--rows", 9, "--keep-set", 9, "--targets", 2],
     "--targets: not accepted beside lists of columns"),
], ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else None)
def test_bad_usage_is_reported(arguments, message):
    done = flpgen(*arguments, **NO_GPU)
    assert done.code == 2 and message in done.err

"""The binding on kernels that run on the CPU, sm_80's and Hopper's: its modes, tails, shards and losses, each beside float64
or another rung, by processes of their own (torch_*_case.py)."""
import pytest

from emulator import both, needs_emulator, of_any_loss, run

pytest.importorskip("torch")
pytestmark = needs_emulator
TAIL = 2.0**-9
ROWS = 48
ROUNDING = 1e-3  # of sums of |dz|: scores from bf16 operands in float32 beside float64


@both
def test_save_mode_and_a_step_of_fp16(folder, capability):
    """Tensors of torch, through autograd: torch_case.py."""
    found = run(folder, capability, "torch_case.py")
    kept, scaled = found["S"], found["scaled"]
    assert kept["mode"] == "save" and kept["same_bits"] and kept["second_is_R"]
    assert all(error <= 1.5 * of_r for error, of_r in zip(kept["error"], kept["of_R"])), kept
    for case, rows in found["temperatures"].items():
        assert rows["kernel"] == rows["torch"] and rows["counted"] == sum(rows["kernel"]), (case, rows)
    sums = found["sums"]
    assert sums["mode"] == "recompute-rows" and sums["chunks"] > 2 and 0 < sums["apart"] < 0.05, sums
    assert sums["split"] <= 1.05 * sums["rounded"] and sums["fp32"] < sums["rounded"] < 1e-2, sums
    assert scaled["rung"] in (2, 3) and scaled["dtypes"] == [3, 3, 3] and max(scaled["error"]) < 1e-3, scaled


@both
def test_direction_mode(folder, capability):
    found = run(folder, capability, "torch_direction_case.py")
    whole, shards = found["whole"], found["shards"]
    assert whole["modes"] == ["direction", "direction"] and whole["products"] == [2, 0]
    assert whole["same_bits"] and whole["again"] and whole["linear"]
    assert whole["error"][0] <= 1.5 * whole["of_R"][0], whole
    assert {name: shard["kept"] for name, shard in shards.items()} == {
        "0 None": [1, 1], "20 None": [3, 3], "20 True": [3, 3], "20 False": [0, 0]}
    for name, shard in shards.items():
        assert shard["same_on_both"] and shard["off"] < 2e-6, (name, shard)
        assert shard["error"][0] <= 1.5 * shards["20 False"]["error"][0], (name, shard)


# ---- tails ----

def obeys(report, total):
    """What a report says keeps the bound, and its sum is of dz, from below. total: Σ|dz| in float64"""
    left, whole, recomputed, listed = report
    assert 0 < left <= TAIL * whole, report
    assert 0.5 * total < whole <= (1 + ROUNDING) * total, (report, total)
    assert 0 <= recomputed < ROWS and listed > 0, report


def near(found):
    for error, of_exact in zip(found["error"], found["of_exact"]):
        assert error <= 1.5 * of_exact + TAIL, found


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@both
def test_tails(folder, capability, dtype):
    found = run(folder, capability, "torch_tail_case.py", dtype)
    for name, whole in found["whole"].items():
        assert whole["modes"] == ["tail", "tail"] and whole["products"] == 1, name
        assert whole["same_bits"] and whole["again"], name
        assert whole["without_room"] == [[0, 0, 0, 0], True], name
        obeys(whole["report"], whole["sum"])
        near(whole)
    listed = [row for row in found.get("rows", ()) if row["report"][2] == 0]
    assert len(listed) >= 4 or dtype != "fp32"
    for row in listed:
        # what a report says is an upper bound of what is missing, and no more than that: rounding of float32 aside
        assert row["left"] <= row["report"][0] <= TAIL * row["report"][1] and row["columns"] == row["report"][3], row
        assert row["report"][1] <= (1 + ROUNDING) * row["sum"] and row["kept_off"] < 1e-5, row


@pytest.mark.long
@both
def test_steps_and_shards_of_tails(folder, capability):
    found = run(folder, capability, "torch_tail_case.py", "steps and shards")
    for step in found["step"].values():
        assert step["mode"] == "tail" and step["loss error"] == step["loss of_exact"]
        assert abs(step["loss error"] - step["want"]) < 1e-4
        left, whole, recomputed, listed = step["report"]
        assert 0 < left <= TAIL * whole and recomputed < ROWS and listed > 0
        near(step)
    shards = found["by_hand"]
    assert shards["same_bits"] and shards["kept error"] == [True, True] and shards["kept of_exact"] == [False, False]
    for report, total in zip(shards["reports"], shards["sums"]):
        obeys(report, total)
    left, whole = (sum(report[place] for report in shards["reports"]) for place in (0, 1))
    assert left <= TAIL * whole
    near(shards)
    for chunk, chunks in ((0, 1), (20, 3)):
        exact, within = (found["parallel"]["%d %g" % (chunk, tail)] for tail in (0, TAIL))
        assert exact["kept"] == [0, 0] and exact["reports"] == [[0, 0, 0, 0]] * 2 and within["kept"] == [chunks] * 2
        near({"error": within["error"], "of_exact": exact["error"]})
        for report, total in zip(within["reports"], shards["sums"]):
            obeys(report, total)


# ---- the same rows on two rungs, and rows beside float64 ----

def rungs_agree(folder, capability, kind, **settings):
    result = run(folder, capability, "torch_rows_case.py", kind, **settings)
    assert not {case: wrong for case, wrong in result["found"].items() if wrong}
    assert "eager" in result["rungs"] and {"jit", "heuristic"} & set(result["rungs"]), result["rungs"]


@pytest.mark.parametrize("kind", ["weightless steps", "weightless", "ratios", "clipped", "upstream"])
@both
def test_rungs_agree(folder, capability, kind):
    """Rows of weight 0, extreme ratios and upstream gradients."""
    rungs_agree(folder, capability, kind)


@pytest.mark.long
def test_a_kernel_for_any_loss_agrees(folder):
    rungs_agree(folder, "8.0", "weightless steps", **of_any_loss(folder))


@pytest.mark.long
@pytest.mark.parametrize("epsilons", [["1e-6"], ["0.3", "1e-1", "1e-2", "1e-3", "1e-4"]], ids=["least", "others"])
@both
def test_gradients_of_nearly_certain_rows(folder, capability, epsilons):
    """Rows of which one column has nearly all probability, in every mode."""
    rows = run(folder, capability, "torch_every_case.py", "near certain", *epsilons)
    assert len(rows) == 6 * len(epsilons)
    assert [row for row in rows if row["failed"]] == []


def cases_agree(folder, capability, dtype, parts, part):
    result = run(folder, capability, "torch_every_case.py", dtype, str(parts), str(part))
    assert {case: wrong for case, wrong in result["found"].items() if wrong} == {}
    assert len(result["found"]) > 150 // parts and {2, 3} & set(result["rungs"]), result["rungs"]


@pytest.mark.parametrize("capability, dtype, part", [("8.0", "float32", 0), ("9.0", "bfloat16", 1)])
def test_some_cases(folder, capability, dtype, part):
    """Of every public function, option and edge (support/flp_cases.py), part."""
    cases_agree(folder, capability, dtype, 36, part)


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@both
def test_all_cases(folder, capability, dtype, part):
    cases_agree(folder, capability, dtype, 4, part)


@pytest.mark.long
@both
def test_pairs_of_the_same_bits(folder, capability):
    """Rounded operands and operands that are rounded, an adapter that adds nothing, one target many times."""
    assert {pair: names for pair, names in run(folder, capability, "torch_every_case.py", "same").items() if names} == {}


def test_two_heads_are_explained(folder):
    """A budget of few chunks, each in memory that the bytes count."""
    found = run(folder, "9.0", "torch_every_case.py", "explained", "700", str(600_000))
    step, chunks = found["step"], found["chunks"]
    assert step["products"] == 4 and step["gradient_rows"] >= step["chunk_rows"] > 0 and "sm_90a" in found["text"]
    assert 1 < len(chunks) == -(-700 // step["gradient_rows"])
    assert max(chunks) <= step["bytes"] <= 600_000
    assert "budget is 60000 bytes (accepted: at least 7" in found["refused"], found["refused"]
    assert found["drafts"][0] == 5 and "V=331 D=16 topk=1" in found["drafts"][1]
    ways = found["ways"]
    assert {name: way["products"] for name, way in ways.items()} == {"kept": [2, 2], "anew": [2, 4], "frozen": [3, 0]}
    saved = {name: way["saved"] for name, way in ways.items()}
    assert saved["frozen"] == 4 * 700 * 24 and saved["kept"] > 2 * 700 * 331 and not saved["anew"]
    assert all(way["apart"] < 0.02 for way in ways.values()), ways


@pytest.mark.parametrize("capability, names", [("9.0", ["mask"]), pytest.param("8.0", [], marks=pytest.mark.long),
                                               pytest.param("9.0", [], marks=pytest.mark.long)])
def test_two_heads_over_two_ranks(folder, capability, names):
    """Values and gradients are those of whole heads; each rank has plans of its own columns, counts bad rows, and keeps
    gradients of scores where both have room."""
    ranks = run(folder, capability, "torch_ranks_case.py", *names)
    assert ranks[0]["kept"] == ranks[1]["kept"] and "mask" in ranks[0]["kept"] and "chunks" not in ranks[0]["kept"]
    assert all(rank["exchanges"] == [1, 1] for rank in ranks)
    for rank in ranks:
        assert {case: wrong for case, wrong in rank["found"].items() if wrong} == {} and rank["found"]
        assert rank["shards"] == 4 and rank["counted"] == (0 if names else 32)

"""What can be wrong in sm_100f's kernels, and what finds it. A row of MUTATIONS is one mistake, made in a copy of the
templates or in the text of the kernels. It is found as its row says: by wrong values, by a deadlock, by what the
emulator refuses, by any of these only where copies and products end late (SIMT_LATE), by a rule of ptx/lint.py, or by
nothing.
"""
import re
import shutil
import sys
from typing import NamedTuple

import pytest

from cpu_kernel import TREE, needs_llc
from emulator import needs_emulator
from flpgen_tool import needs_flpgen, succeed
from test_blackwell import SEEDS
from test_check import EVERYTHING, record_of, wrong_compiler

sys.path.append(str(TREE / "tests" / "ptx"))

import lint  # noqa: E402

pytestmark = [needs_flpgen, needs_emulator, needs_llc]

# Heads of several tiles, panels of rows and steps along D, in rings of few stages.
SEVERAL = f"--vocab 1100 --hidden 136 --rows 300 {EVERYTHING} --arch sm_100f --tune "
PAIRS = SEVERAL + "forward:stages=2;dz:stages=2;products:128x256,cluster=2,stages=2"
ALONE = SEVERAL + "forward:cluster=1,stages=2;dz:cluster=1,stages=2;products:cluster=1,stages=2"
FOURS = SEVERAL + "forward:128x128,cluster=4,stages=2;dz:128x128,cluster=4,stages=2;products:128x256,cluster=4,stages=2"
FORWARD = "--vocab 1100 --hidden 136 --rows 300 --dtype bf16 --arch sm_100f --tune forward:stages=2"
SHORT = "--vocab 1100 --hidden 136 --rows 20 --dtype bf16 --arch sm_100f"
ASIDE = ("--vocab 20000 --hidden 72 --rows 41 --budget 2631K --dtype bf16 --weight-dtype fp32 --mixed round "
         "--arch sm_100f")
HOPPER = f"--vocab 1100 --hidden 136 --rows 300 {EVERYTHING} --arch sm_90a"

ENGINE, RING, UNITS, MAPPED, STAGING = (f"{path}.lua" for path in (
    "sm_100f/engine", "sm_90a/ring", "sm_90a/units", "sm_90a/mapped", "sm_90a/staging"))
TEXT = "text"  # of the kernels, IR and PTX alike


class Mutation(NamedTuple):
    """where: a template, or TEXT. found: what found_by gives. why: of what nothing finds"""
    where: str
    old: str
    new: str
    found: str
    head: str = PAIRS
    why: str = ""


MUTATIONS = {
    # the short form has these
    "no fence between cleared rows and products": Mutation(MAPPED, "    k.proxy_fence()\n", "", "lint proxy", SHORT),
    "whole boxes are expected of few rows": Mutation(
        RING, "a.rows and a.rows * 128 or H.a_bytes", "H.a_bytes", "deadlock", SHORT),
    "lanes of another warp": Mutation(
        ENGINE, "k.lshr(k.reread_tid(), 5) << 21", "k.lshr(k.reread_tid(), 5) << 20", "tcgen05.ld: lanes"),
    # order: who waits for whom
    "the epilogue does not wait for a tile": Mutation(
        ENGINE, "    k.mbarrier_wait(full + slot_of(index) * 8, k.udiv(index, SLOTS) & 1)\n", "", "values"),
    "stages are told before products end": Mutation(
        ENGINE, "commit(ring.empty + now.stage * 8, ALL)", "for rank = 0, H.cluster - 1 do k.mbarrier_arrive_there("
        "k.cluster_address(ring.empty + now.stage * 8, k.const(k.i32, rank)), k.const(k.i1, true)) end",
        "late values, lint commit"),
    "tiles are told before products end": Mutation(
        ENGINE, "commit(full + at.slot * 8, H.pair and ALL or 1)", "for rank = 0, 1 do k.mbarrier_arrive_there("
        "k.cluster_address(full + at.slot * 8, k.const(k.i32, rank)), k.const(k.i1, true)) end", "late values"),
    "sums are read before products end": Mutation(
        TEXT, "wait_group.sync.aligned 0;", "wait_group.sync.aligned 7;", "late values", HOPPER),
    "a slot is freed before it is read": Mutation(
        ENGINE, "    await(index)\n    local after", "    await(index)\n    release(index)\n    local after",
        "deadlock"),
    "a slot is freed once, before it is read": Mutation(
        ENGINE, "    await(index)\n    local after", "    await(index)\n    release(index)\n"
        "    local function release() end\n    local after", "values, lint before"),
    "staged rows are overwritten before they are stored": Mutation(
        STAGING, "k.when(k.eq(H.lane, 0), function() k.tensor_stores_read() end)", "", "late values"),
    "a kernel ends before its staged rows are stored": Mutation(
        STAGING, "k.when(k.eq(k.reread_tid() & 31, 0), function() k.tensor_stores_read() end)", "",
        "late threads end while their work is under way"),
    "the multiplier does not wait for a free slot": Mutation(
        ENGINE, "    k.mbarrier_wait(empty + at.slot * 8, at.turn)\n", "", "deadlock"),
    "the multiplier does not wait for operands": Mutation(
        ENGINE, "      k.mbarrier_wait(ring.full + now.stage * 8, now.parity)\n", "", "deadlock"),
    "loads do not wait for a free stage": Mutation(
        RING, "      k.mbarrier_wait(empty + now.stage * 8, now.parity)\n", "", "deadlock"),
    # counts, parities and places
    "a stage is freed in one CTA": Mutation(
        ENGINE, "commit(ring.empty + now.stage * 8, ALL)", "commit(ring.empty + now.stage * 8, 1)", "deadlock"),
    "a tile is told in one CTA": Mutation(
        ENGINE, "commit(full + at.slot * 8, H.pair and ALL or 1)", "commit(full + at.slot * 8, 1)", "deadlock"),
    "a slot is freed in the own CTA, not in the multiplier's": Mutation(
        ENGINE, "k.mbarrier_arrive_there(k.cluster_address(there, k.const(k.i32, 0)), signals)",
        "k.mbarrier_arrive(there, signals)", "deadlock"),
    "a pair expects the bytes of one CTA": Mutation(RING, "of_a * 2 + of_b", "of_a + of_b", "deadlock"),
    "a slot is free when the warps of one CTA have read it": Mutation(
        ENGINE, "k.mbarrier_init(empty + slot * 8, H.warps * CTAS)", "k.mbarrier_init(empty + slot * 8, H.warps)",
        "deadlock"),
    "a slot's first turn is the second": Mutation(
        ENGINE, "turn = k.const(k.i32, 1)}", "turn = zero}", "deadlock"),
    "tiles have the parity of their slot": Mutation(
        ENGINE, "k.udiv(index, SLOTS) & 1", "slot_of(index) & 1", "deadlock"),
    "places of tiles are counted modulo the slots": Mutation(
        ENGINE, "k.urem(index + tiles, 2 * SLOTS)", "k.urem(index + tiles, SLOTS)", "deadlock"),
    "all CTAs of a pair free its stages": Mutation(
        ENGINE, "ring.begin(H.pair and 1 or H.cluster)", "ring.begin(H.cluster)", "deadlock"),
    "the first of four CTAs frees a stage for all": Mutation(
        ENGINE, "ring.begin(H.pair and 1 or H.cluster)", "ring.begin(1)", "deadlock", FOURS),
    "a cast misses the last CTA": Mutation(
        RING, "(1 << H.cluster) - 1 or nil", "(1 << H.cluster - 1) - 1 or nil", "deadlock", FOURS),
    "a cast begins at the same rows in all CTAs": Mutation(
        RING, "load(b, part, rank * part, to", "load(b, part, 0, to", "values", FOURS),
    "a cast goes to the same place from all CTAs": Mutation(
        RING, "H.pair and 0 or rank * (part * 128)", "0", "values", FOURS),
    "rows of the second operand come to the other CTA": Mutation(
        RING, "load(b, part, rank * part, to", "load(b, part, part - rank * part, to", "values"),
    "CTAs of a cluster do not wait for their neighbours' stages at the end": Mutation(
        RING, "if H.cluster == 1 then return end", "if true then return end", "nothing", FOURS,
        why="commits reach neighbours in their order here, those of stages ahead of the last tile's"),
    "both CTAs of a pair multiply": Mutation(
        ENGINE, "      if H.pair then multiplies = multiplies & k.eq(H.rank(), 0) end\n", "", "deadlock"),
    "each CTA of a cluster hands out units": Mutation(
        ENGINE, "k.when(k.eq(k.tid(), 160) & k.eq(H.rank(), 0), dispatch)", "k.when(k.eq(k.tid(), 160), dispatch)",
        "deadlock"),
    "the next unit comes when all but one have taken the last": Mutation(
        ENGINE, "units.begin(H.cluster * (H.warps + 1) + multipliers)",
        "units.begin(H.cluster * (H.warps + 1) + multipliers - 1)", "deadlock"),
    # tensor memory, descriptors and sums
    "a CTA has tensor memory only if it multiplies": Mutation(
        ENGINE, "k.when(k.eq(warp, 6), function() k.tmem_alloc", "k.when(k.eq(warp, 6) & k.eq(H.rank(), 0), function() "
        "k.tmem_alloc", "tcgen05.mma: columns, lint dealloc"),
    "fewer columns than sums": Mutation(
        ENGINE, "while tensor_columns < SLOTS * H.columns do", "while tensor_columns < H.columns do",
        "tcgen05.mma: columns"),
    "tensor memory is not given back": Mutation(
        ENGINE, "function() k.tmem_free(CTAS, sums, k.const(k.i32, tensor_columns)) end", "function() end",
        "tensor memory is not given back, lint dealloc"),
    "a kernel ends without its cluster": Mutation(
        ENGINE, "if H.cluster > 1 then k.cluster_sync() else k.barrier() end", "k.barrier()", "nothing",
        why="CTAs end together but for a few arrivals at mbarriers, and no lot delays those"),
    "mbarriers are used before the cluster meets": Mutation(
        ENGINE, "    if H.cluster > 1 then k.cluster_sync() end\n", "", "nothing",
        why="the barrier behind the allocation, ahead of every use, is the cluster's too"),
    "a unit is posted in one CTA": Mutation(UNITS, "for rank = 0, H.cluster - 1 do", "for rank = 0, 0 do", "deadlock"),
    "a unit is posted and a CTA alone is not told": Mutation(
        UNITS, "        k.mbarrier_arrive(posted, k.const(k.i1, true))\n", "", "deadlock", ALONE),
    "the next number is not 0 behind the last unit": Mutation(
        UNITS, "k.store(turn, 0, k.const(k.i32, 0))", "k.store(turn, 0, last.unit)", "values"),
    "descriptors of another version": Mutation(ENGINE, "1 << 62 | 1 << 46 |", "1 << 62 |", "tcgen05.mma: descriptor"),
    "rows in groups of four": Mutation(ENGINE, "(1024 >> 4) << 32", "(512 >> 4) << 32", "values"),
    "the second operand is MN-major": Mutation(ENGINE, "b_major = b.major", 'b_major = "mn"', "values"),
    "half of the columns are multiplied": Mutation(
        ENGINE, "kind = spec.dtype, columns = columns", "kind = spec.dtype, columns = columns // 2", "values"),
    "products of another shape": Mutation(
        TEXT, "mov.b32 id, 272630928", "mov.b32 id, 138413200", "tcgen05.mma: shape", FORWARD),
    "a step along K of 16 bytes": Mutation(ENGINE, "local STEP = {k = 2,", "local STEP = {k = 1,", "values"),
    "each stage is the first": Mutation(
        ENGINE, "local offset = now.stage * (H.stage_bytes // 16)", "local offset = k.const(k.i32, 0)", "values"),
    "sums go on from the slot's last tile": Mutation(
        ENGINE, "keep = k.gt(step, 0)", "keep = k.const(k.i1, true)", "values"),
    "all tiles go to the first slot": Mutation(
        ENGINE, "local into = sums + at.slot * H.columns", "local into = sums", "values"),
    "all tiles are read from the first slot": Mutation(
        ENGINE, "sums + lanes + slot_of(index) * H.columns", "sums + lanes", "values"),
    "each part of a tile is its first": Mutation(ENGINE, " + part * H.width, H.width)", ", H.width)", "values"),
    "the upper lanes are the lower ones": Mutation(TEXT, ", 1048576;", ", 0;", "values"),
    "the leading offset of K-major operands is 0": Mutation(
        ENGINE, "local LEAD = {k = 1,", "local LEAD = {k = 0,", "nothing",
        why="rows of 128 bytes that are swizzled have no leading offset along K"),
    "rows that no box brings are no zeros": Mutation(
        ENGINE, "    if spec.parts.short then mapped.clear_rows(base) end\n", "", "nothing", SHORT,
        why="their sums are left out; zeros take less power"),
    # few rows, and work aside
    "a CTA without rows does not wait for tiles": Mutation(
        ENGINE, "  function H.skip(index)\n    await(index)\n", "  function H.skip(index)\n", "deadlock", SHORT),
    "a CTA without rows keeps its slots": Mutation(
        ENGINE, "    await(index)\n    release(index)\n  end", "    await(index)\n  end", "deadlock", SHORT),
    "the multiplier's warp has a share of the work aside": Mutation(
        ENGINE, "idle = {first = 7, count = 1}", "idle = {first = 6, count = 2}", "values", ASIDE),
    "half a warp works aside": Mutation(ENGINE, "k.ge(k.tid(), 224)", "k.ge(k.tid(), 240)", "values", ASIDE),
    # what values do not show
    "no fence behind waits": Mutation(ENGINE, "k.tmem_after()", "", "lint after"),
    "no fence behind the wait for a tile": Mutation(
        ENGINE, "k.udiv(index, SLOTS) & 1)\n    k.tmem_after()\n", "k.udiv(index, SLOTS) & 1)\n", "lint after"),
    "no fence behind the wait for operands": Mutation(
        ENGINE, "now.parity)\n      k.tmem_after()\n", "now.parity)\n", "lint after"),
    "no fence before a slot is freed": Mutation(
        ENGINE, "release(index)\n    k.tmem_before()\n", "release(index)\n", "lint before"),
    "no fence before tensor memory is handed on": Mutation(
        ENGINE, "    k.tmem_before()\n    all_sync()", "    all_sync()", "lint before"),
    "a slot is freed before all lanes have read it": Mutation(
        ENGINE, "    k.tmem_before()\n    k.warp_sync()\n", "    k.tmem_before()\n", "lint warp"),
    "lanes fence behind their warp's barrier": Mutation(
        ENGINE, "    k.tmem_before()\n    k.warp_sync()\n", "    k.warp_sync()\n    k.tmem_before()\n", "lint warp"),
    "no wait for loads": Mutation(TEXT, "tcgen05.wait::ld.sync.aligned; }", "}", "lint wait"),
    "the permit to allocate is kept": Mutation(
        TEXT, "tcgen05.relinquish_alloc_permit", "fence.nothing", "lint relinquish"),
    "no fence behind the start of mbarriers": Mutation(ENGINE, "      k.mbarrier_fence()\n", "", "lint mbarrier"),
    "no fence between staged rows and their copy": Mutation(STAGING, "    k.proxy_fence()\n", "", "lint proxy"),
}


def spoiled(row, text):
    assert row.old in text, f"the mistake is not made: {row.old}"
    return text.replace(row.old, row.new)


def templates_of(row, folder):
    """A folder of templates, of which one has the mistake of a row."""
    made = folder / "templates"
    shutil.copytree(TREE / "templates", made)
    if row.where != TEXT:
        (made / row.where).write_text(spoiled(row, (made / row.where).read_text()))
    return made


def outcome(row, folder, compiler, templates, **late):
    """What a check on the CPU ends with: "passes", "values", "deadlock", or what the emulator refuses."""
    try:
        record = record_of("check", folder, "9.0" if "sm_90a" in row.head else "10.0", row.head, compiler,
                           FAKE_IR_TEMPLATES=str(templates), **late)
    except AssertionError as failed:
        return re.search(r"simt: (.*?)(?:,| \()", str(failed)).group(1)
    return "passes" if all(found["pass"] for found in record["rows"]) else "values"


def rules_broken(row, templates):
    """Rules of lint.py that the PTX of a head breaks."""
    words = re.sub(r"--(rows|budget) \S+ ", "", row.head).split()
    kernels = succeed("gen", *words, "--template-dir", templates, "--emit", "ptx", "--json").json()["kernels"]
    ptx = "".join(kernel["ptx"] for kernel in kernels if "_map(" in kernel["ptx"])
    return {rule for _, rule, _ in lint.faults(spoiled(row, ptx) if row.where == TEXT else ptx)}


def found_by(row, folder):
    """All that finds a mistake, or "nothing". What is found at once is not tried late."""
    templates = templates_of(row, folder)
    compiler = wrong_compiler(folder, "_map(", (row.old, row.new)) if row.where == TEXT else None
    found = {outcome(row, folder, compiler, templates)}
    if found == {"passes"}:
        found = {f"late {outcome(row, folder, compiler, templates, SIMT_LATE=str(seed))}" for seed in SEEDS}
    found = set() if found == {"late passes"} else found
    return ", ".join([*sorted(found), *(f"lint {rule}" for rule in sorted(rules_broken(row, templates)))]) or "nothing"


@pytest.mark.first(3)
@pytest.mark.parametrize("what", MUTATIONS)
def test_a_mistake_is_found_as_its_row_says(tmp_path, what):
    row = MUTATIONS[what]
    assert found_by(row, tmp_path) == row.found and (row.found == "nothing") == bool(row.why)


@pytest.mark.parametrize("head", dict.fromkeys(row.head for row in MUTATIONS.values()))
def test_without_a_mistake_nothing_is_found(tmp_path, head):
    assert found_by(Mutation(ENGINE, "return H", "return H", "nothing", head), tmp_path) == "nothing"

"""Matrix products that Triton compiles for sm_100 (triton_case.py), run in the emulator and compared with float64: an
independent check of how blackwell.c reads descriptors, tensor memory and pairs of CTAs. Triton is in build/triton,
where `./setup.sh test --all` puts it."""
import json
import os
import re
import subprocess
import sys
from itertools import product

import numpy
import pytest
from compile import NAMES, added, place, split, text_of
from cpu_kernel import NAN, TREE, Kernel, needs_llc, stored, wide

TRITON = TREE / "build" / "triton"
pytestmark = [pytest.mark.long, needs_llc, pytest.mark.skipif(
    not TRITON.exists(), reason="no Triton in build/triton: ./setup.sh test --all fetches it")]
CASES = [*(f"dot {dtype} {tile} {majors}" for dtype, tile, majors in product(
             ("bf16", "fp16"), ("128x256", "128x128", "128x64"), ("k/k", "k/mn", "mn/mn", "mn/k"))),
         *(f"explicit {dtype} {tile} k/k {load}" for dtype, tile, load in product(
             ("bf16", "fp16"), ("128x128", "256x128"), ("32x32b", "16x256b")))]
DEPTH, THREADS = 320, 128

# ---- Triton's IR as compile.py takes it ----

# Text of asm behind its predicate -> the function of the emulator, and arguments that stand in the text. Registers in
# braces pass through simt_accumulators.
ASM = (
    (r"tcgen05\.alloc\..*\[\$1\], (\d+);", "simt_tmem_alloc", r", i32 \1"),
    (r"tcgen05\.dealloc\..* \$1, (\d+);", "simt_tmem_free", r", i32 \1"),
    (r"tcgen05\.mma\.cta_group::(\d)\.kind::f16 .*", "simt_tmem_multiply", r", i32 \1"),
    (r"tcgen05\.commit\.[^ ]*one\.b64 .*", "simt_tmem_commit", ""),
    (r"tcgen05\.commit\.[^ ]*multicast::cluster\.b64 .*", "simt_tmem_commit_cast", ""),
    (r"tcgen05\.ld\.sync\.aligned\.16x256b\.x(\d+)\.b32 .*", "simt_tmem_load", r", i32 \1, i32 0"),
    (r"tcgen05\.ld\.sync\.aligned\.32x32b\.x(\d+)\.b32 .*", "simt_tmem_load_row", r", i32 \1"),
    (r"tcgen05\.st\.sync\.aligned\.32x32b\.x(\d+)\.b32 .*", "simt_tmem_store_row", r", i32 \1"),
    (r"mbarrier\.init\..*\[\$1\], (\d+);", "simt_mbarrier_init", r", i32 \1"),
    (r".*waitLoop:.*mbarrier\.try_wait\.parity\..*", "simt_mbarrier_wait", ""),
    (r"cp\.async\.cg\.shared\.global .*", "simt_copy16", ""),
    (r"[^@]*ld\.global\.v(\d)\.b32 .*", "simt_ld_global", r", i32 \1"),
    (r"st\.global\.v(\d)\.b32 .*", "simt_st_global", r", i32 \1"),
    (r"st\.global\.b32 .*", "simt_st_global", ", i32 1"),
    (r"(?:tcgen05\.relinquish_alloc_permit|mbarrier\.inval|fence)\..*", "simt_nothing", ""),
)
# Intrinsics that compile.py does not know. What gives a struct leaves it in simt_result.
INTRINSICS = (
    (r"barrier\.cta\.sync\.aligned\.all", "simt_barrier"),
    (r"barrier\.cluster\.wait\.aligned", "simt_cluster_barrier"),
    (r"read\.ptx\.sreg\.cluster\.ctarank", "simt_cluster_ctarank"),
    (r"elect\.sync", "simt_elect"),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x4\.b16\.p3", "simt_ldmatrix"),
    (r"(?:barrier\.cluster\.arrive\.aligned|cp\.async\.\w+\.group|tcgen05\.wait\.\w+)", "simt_nothing"),
)
# What llc of LLVM 19 does not know, or the CPU does not have.
STRIPPED = (r"^(?:@global_smem = |declare .*llvm\.nvvm\.).*\n|\btail (?=call )|(?<=icmp) samesign| captures\(none\)"
            r"| local_unnamed_addr| addrspace\(\d\)")


def as_call(match):
    """One asm as a call: of simt_nothing where its predicate is false. compile.py names what no row has."""
    into, result, text, arguments = match.groups()
    predicate, text = re.fullmatch(r"(?:@\$(\d+) )?(.*)", text).groups()
    function, more = next(((function, found.expand(more)) for pattern, function, more in ASM
                           if (found := re.fullmatch(pattern, text))), (None, None))
    if not function:
        return match[0]
    first = len(split(result)) if into else 0  # operands before this one are results
    operands, lines = dict(enumerate(map(str.strip, split(arguments)), first)), []
    for number, offset in re.findall(r"\[ ?\$(\d+) \+ ([1-9]\d*) ?\]", text):
        operands[int(number)] = added(operands[int(number)], offset, lines)
    registers = [] if into else re.findall(r"\$(\d+)", "".join(re.findall(r"\{ ?\$[^}]*", text)))
    lines += [f"store {operands.pop(int(number))}, {place(i)}" for i, number in enumerate(registers)]
    called = f"@{function}"
    if predicate:
        called = next(NAMES)
        lines.append(f"{called} = select {operands.pop(int(predicate))}, ptr @{function}, ptr @simt_nothing")
    for number, operand in operands.items():
        if operand.startswith("i1 "):
            name = next(NAMES)
            lines.append(f"{name} = zext {operand} to i32")
            operands[number] = f"i32 {name}"
    lines.append(f"call void {called}({', '.join(operands.values())}{more})")
    return text_of(lines) + (f"  {into} = load {result}, ptr @simt_accumulators\n" if into else "")


def in_shared(match):
    """A load or store: the only ones for which an address of shared memory is more than an offset."""
    before, address, after = match.groups()
    name = next(NAMES)
    return f"  {name} = call ptr @simt_pointer(ptr {address})\n{before}ptr {name}{after}"


def as_compile_takes_it(ir):
    ir = ir.replace("define ptx_kernel void @", "define void @flp_")
    ir = re.sub(r"^(  (?:%\w+ = load|store) .*, )ptr addrspace\(3\) (.*)(, align \d+)$", in_shared, ir, flags=re.M)
    ir = re.sub(STRIPPED, "", ir, flags=re.M).replace("@global_smem", "null")
    ir = re.sub(r'  (?:(%\w+) = )?call (void|\{.*\}) asm sideeffect "([^"]*)", "[^"]*"\((.*)\)(?: #\d+)?\n',
                as_call, ir)
    for pattern, function in INTRINSICS:
        ir = re.sub(rf"(%\w+) = call (\{{.*\}}) @llvm\.nvvm\.{pattern}(\(.*\))\n",
                    rf"call void @{function}\3\n  \1 = load \2, ptr @simt_result\n", ir)
        ir = re.sub(rf"@llvm\.nvvm\.{pattern}\b", f"@{function}", ir)
    return ir + "".join(f"declare void @{function}()\n" for function in sorted({function for _, function, _ in ASM}))


# ---- the products ----

@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """{case: its IR}"""
    done = subprocess.run([sys.executable, TREE / "tests/simt/triton_case.py", *CASES], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(TRITON), "TRITON_DISABLE_LINE_INFO": "1",
                               "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))})
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def wrong_elements(case, ir, folder):
    """How many elements of two tiles are not the product's; what is not written is NaN."""
    kernel, dtype, tile, majors, *_ = case.split()
    rows, columns = map(int, tile.split("x"))
    ctas, random = rows // 128, numpy.random.default_rng(1)
    operands = [stored(dtype, random.standard_normal((count, DEPTH))) for count in (2 * rows, columns)]
    laid = [numpy.ascontiguousarray(operand.T if major == "mn" else operand)
            for operand, major in zip(operands, majors.split("/"))]
    sums = numpy.full((2 * rows, columns), NAN, numpy.float32)
    run = Kernel(as_compile_takes_it(ir), kernel, THREADS, folder, ctas)
    run(2 * ctas, *laid, sums, DEPTH, *(matrix.shape[1] for matrix in (*laid, sums)), None, None)
    a, b = map(wide, operands)
    allowed = DEPTH / 16 * 2.0**-24 * (abs(a) @ abs(b).T)  # sums are rounded after every 16 products
    return int((~(abs(sums - a @ b.T) <= allowed)).sum())


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("case", CASES)
def test_a_product(modules, folder, monkeypatch, case, seed):
    monkeypatch.setenv("SIMT_LATE", str(seed or ""))
    assert wrong_elements(case, modules[case], folder) == 0


# What a reading depends on: a case, a number in its IR, the bits of it that are flipped.
INSTRUCTION, DESCRIPTOR, LOAD = r"(?<=, i32 )\d+(?=, i1 )", r"(?<=, )4611\d{15}$", r"(?<=\d\d \+ )[1-9]\d*(?=\])"
FLIPPED = {
    "A is M-major": ("dot bf16 128x64 mn/k", INSTRUCTION, 1 << 15),
    "B is N-major": ("dot fp16 128x128 k/mn", INSTRUCTION, 1 << 16),
    "operands are of bf16": ("dot bf16 128x64 k/k", INSTRUCTION, 1 << 7 | 1 << 10),
    "columns of a tile": ("dot bf16 128x128 k/k", INSTRUCTION, 24 << 17),
    "columns of a pair's tile": ("explicit bf16 256x128 k/k 32x32b", INSTRUCTION, 24 << 17),
    "from 64 to 64 elements of M or N": ("dot fp16 128x128 mn/mn", DESCRIPTOR, 1 << 25),
    "from 8 to 8 rows": ("dot bf16 128x256 k/k", DESCRIPTOR, 1 << 37),
    "first column of a load": ("dot bf16 128x256 mn/k", LOAD, 64),
    "first lane of a load": ("explicit fp16 128x128 k/k 16x256b", LOAD, 16 << 16),
}


@pytest.mark.parametrize("what", FLIPPED)
def test_another_reading_is_another_product(modules, folder, what):
    case, number, bits = FLIPPED[what]
    ir, count = re.subn(number, lambda found: str(int(found[0]) ^ bits), modules[case], flags=re.M)
    assert count > 0 and wrong_elements(case, ir, folder) > 0

"""Every kernel that ships assembles for every target within its budget (budgets.json): no spills, no stack, no
advisories of the C75xx family (wgmma serialised, register limits ignored), registers and shared memory within bounds,
and tensor-core instructions where the work is.

One test is one kind of kernel of one specification on one architecture. ptxas runs on all of them at once, one a CPU.
"""

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kept import hash_of, kept  # noqa: E402

BUDGETS = json.loads((Path(__file__).parent / "budgets.json").read_text())
FLPGEN = os.environ["FLP_TEST_FLPGEN"]
EMIT = Path(os.environ.get("FLP_TEST_BUILD", "/nonexistent")) / "tests" / "emit_kernel"
PTXAS = os.environ.get("FLP_PTXAS", "")
NVDISASM = os.environ.get("FLP_NVDISASM", "")
KINDS = ("rows", "forward", "dz", "grad_hidden", "grad_weight")
HOPPER_KINDS = ("rows", "forward", "dz", "products")  # where one kernel makes both products
TENSOR_KINDS = (*KINDS[1:], *HOPPER_KINDS[3:], "forward_keep", "forward_emit", "forward_targets", "forward_top",
                "forward_columns", "forward_raw", "forward_lora", "dz_lora", "lora_products", "listed")

# Of an architecture that is a family's, all that its PTX is assembled for.
FAMILY = {"sm_100f": ["sm_100a", "sm_103a"]}

# The flagship with every tile configuration that the tree checks.
TILINGS = json.loads((Path(__file__).parents[1] / "tilings.json").read_text())["tilings"]
for tiled, tunes in TILINGS.items():
    arch = tiled.split()[0]
    BUDGETS["specs"].update({f"tiling_{tiled.replace(' ', '_')}_{i}": {
        "options": f"{BUDGETS['specs']['flagship']['options']} --arch {arch} --tune {tune}",
        "arches": FAMILY.get(arch, [arch])} for i, tune in enumerate(tunes)})

# Hopper's specifications of 16 bits for sm_100f.
BUDGETS["specs"].update({f"{name}_sm_100f": {"options": spec["options"].replace("sm_90a", "sm_100f"),
                                             "arches": FAMILY["sm_100f"]}
                         for name, spec in BUDGETS["specs"].items()
                         if spec["arches"] == ["sm_90a"] and not re.search("fp32|tune", spec["options"])})


def kinds_of(options, arch):
    """Kinds of kernels that a specification needs."""
    if options.startswith("--op "):
        return (options.split()[1],)
    if options.startswith("kind="):  # one kernel by its key
        return (options.split()[0].removeprefix("kind="),)
    kinds = HOPPER_KINDS if arch.endswith("a") else KINDS
    return kinds if "--grad" in options else [kind for kind in kinds if kind in ("rows", "forward")]


CASES = [(name, arch, kind) for name, spec in BUDGETS["specs"].items() for arch in spec["arches"]
         for kind in kinds_of(spec["options"], arch)]
CASES += [("generic", arch, kind) for arch, want in BUDGETS["generic"].items()
          for kind in want.get("kinds", (*KINDS, "select"))]


def marked(cases):
    """Cases as parameters. The short form has the first of each kind, portable and of Hopper, few of sm_100f."""
    first = {}
    for case in cases:
        first.setdefault(case[1:], case)
    short = {case for (arch, kind), case in first.items()
             if arch in ("sm_80", "sm_90a") or (arch == "sm_103a" and kind in HOPPER_KINDS[1:])}
    return [pytest.param(case, marks=() if case in short else pytest.mark.long, id="-".join(case)) for case in cases]


def ptxas_release():
    """Major release of ptxas, 0 without one."""
    try:
        text = subprocess.run([PTXAS, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(re.search(r"release (\d+)\.", text).group(1))


pytestmark = [
    pytest.mark.skipif(not Path(FLPGEN).exists(), reason="this build has no generator"),
    pytest.mark.skipif(ptxas_release() < 13, reason="no ptxas 13.0 or newer"),
]


@functools.lru_cache(maxsize=None)
def kernels_of(name):
    """The kernels of a specification, as `flpgen gen --json` describes them, with their PTX."""
    options = "--generic --install-cache" if name == "generic" else BUDGETS["specs"][name]["options"]
    by_key = options.startswith("kind=")
    command = [EMIT, *options.split()] if by_key else [FLPGEN, "gen", *options.split(), "--emit", "ptx", "--json"]
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "FLP_CACHE_DIR": cache})
    assert done.returncode == 0, f"{options} exited {done.returncode}: {done.stderr}"
    document = json.loads(done.stdout)
    return [document] if by_key else document["kernels"]


def chosen(name, arch, kind, kernels):
    """Kernels of one case; the generic set has a filter by architecture, as it is large."""
    want = {"kind": kind, **(BUDGETS["generic"][arch] if name == "generic" else {})}
    if not arch.endswith("a"):  # code with a suffix runs on that architecture alone
        kernels = [kernel for kernel in kernels if not kernel["key"]["arch"].endswith("a")]
    want.pop("kinds", None)
    if kind == "rows":
        want.pop("alignment", None)  # it copies no tiles and is built once for all
    return [kernel for kernel in kernels if all(kernel["key"][field] == value for field, value in want.items())]


def levels_of(kernel):
    """ptxas's levels that a kernel must be good at: libflp asks the driver for 1 where that is (runtime/driver/compile.c)."""
    key = kernel["key"]
    is_quick = key["kind"] == "forward" and key.get("arch") == "sm_90a" and key["dtype"] != "fp32" and not key["softcap"]
    return (3, 1) if is_quick else (3,)


@functools.lru_cache(maxsize=None)
def ptxas_version():
    return subprocess.run([PTXAS, "--version"], capture_output=True, text=True, check=True).stdout


def run_ptxas(ptx, arch, level, cubin):
    """(exit status, the output of ptxas -v). Passing stdin keeps no files."""
    done = subprocess.run([PTXAS, "-v", f"-O{level}", f"-arch={arch}", "-o", cubin, "/dev/stdin"], input=ptx, text=True,
                          capture_output=True)
    return done.returncode, done.stdout + done.stderr


def assemble(ptx, arch, level=3, cubin=None):
    """(exit status, the output of ptxas -v). cubin: also copy the machine code there. Kept under the hash of it all."""
    name = hash_of(ptxas_version(), arch, str(level), ptx)

    def make(path):
        code = path.with_name(f"{path.name}.cubin")
        status, report = run_ptxas(ptx, arch, level, code)
        if status == 0:
            code.rename(path.with_name(f"{name}.cubin"))
        path.write_text(json.dumps([status, report]))

    report = kept("assembled", f"{name}.json", make)
    if report is None:
        return run_ptxas(ptx, arch, level, cubin or os.devnull)
    if cubin:
        cubin.write_bytes(report.with_name(f"{name}.cubin").read_bytes())
    return tuple(json.loads(report.read_text()))


def describe(kernel):
    return " ".join(f"{field}={value}" for field, value in kernel["key"].items() if value not in (0, "none", False))


def entry_usage(report, symbol):
    """(registers, stack, spill bytes) that a report gives for one entry."""
    part = re.search(rf"Compiling entry function '{symbol}'.*?Used (\d+) registers", report, re.S)
    assert part, f"ptxas reports nothing on {symbol}:\n{report}"
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part.group(0))
    return int(part.group(1)), int(frame.group(1)), int(frame.group(2)) + int(frame.group(3))


def entry_faults(entry, kernel, report, arch):
    key = kernel["key"]
    registers, stack, spills = entry_usage(report, entry["symbol"])
    any_loss, height = set(key.get("loss") or "") == {"0"}, kernel.get("tile", {}).get("rows")
    words = ["softcap"] * bool(key.get("softcap")) + ["any"] * any_loss + [f"{height} rows", key["dtype"]]
    words = [str(key.get("arch")), *words, *["lora"] * bool(key.get("lora"))]
    named = [f"{entry['name']} {word}" for word in words] + [entry["name"]]
    budget = next(BUDGETS["registers"][name] for name in named if name in BUDGETS["registers"])
    shared = BUDGETS["shared_bytes"][arch]
    allowed = next((BUDGETS["spill_bytes"][name] for name in named if name in BUDGETS["spill_bytes"]), 0)
    if spills > allowed:
        yield f"{spills} bytes of spills, {allowed} are allowed"
    if stack > allowed:
        yield f"{stack} bytes of stack, {allowed} are allowed"
    if registers > budget:
        yield f"{registers} registers, the budget is {budget}"
    if entry["shared_bytes"] > shared:
        yield f"{entry['shared_bytes']} bytes of shared memory, {arch} has {shared}"


def required_words(kernel):
    """Instructions that a kernel must use: tensor cores and asynchronous copies, where 16-byte copies are allowed."""
    key = kernel["key"]
    if key["kind"] not in TENSOR_KINDS or key["alignment"] != 16:
        return []
    required = BUDGETS["required"]
    kind, arch, dtype = key["kind"], key.get("arch"), key["dtype"]
    names = [f"{kind} {arch} {dtype}", f"{kind} {arch}", arch, f"{kind} {dtype}", "default"]
    return next(required[name] for name in names if name in required)


def kernel_faults(kernel, arch, code, report):
    """Everything that is wrong with one assembled kernel, a sentence each."""
    if code != 0:
        return [f"ptxas exited {code}: {report.strip()}"]
    faults = [f"advisory: {line.strip()}" for line in report.splitlines() if re.search(r"C75\d\d|warning", line)]
    for entry in kernel["entries"]:
        faults += [f"{entry['name']}: {fault}" for fault in entry_faults(entry, kernel, report, arch)]
    words = [word.format(**kernel.get("tile", {})) for word in required_words(kernel)]
    faults += [f"no {word} in the PTX" for word in words if word not in kernel["ptx"]]
    return faults


@pytest.fixture(scope="session")
def reports(request):
    """Futures of ptxas over the kernels of every collected case, all submitted at once."""
    cases = [item.callspec.params["case"] for item in request.session.items
             if item.fspath == __file__ and "case" in getattr(getattr(item, "callspec", None), "params", {})]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {case: [(kernel, pool.submit(assemble, kernel["ptx"], case[1], level))
                      for kernel in chosen(*case, kernels_of(case[0])) for level in levels_of(kernel)]
               for case in cases}


@pytest.mark.parametrize("case", marked(CASES))
def test_budget(case, reports):
    assert reports[case], f"{case[0]} has no kernel of kind {case[2]}"
    faults = [f"{describe(kernel)}\n    {fault}" for kernel, report in reports[case]
              for fault in kernel_faults(kernel, case[1], *report.result())]
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


def main_loops(sass):
    """The shortest loop around each HGMMA, as lists of instructions. Longer ones are those of tiles and units, and waits
    that ptxas has moved behind all else, from where they jump back."""
    labels, code, loops = {}, [], []
    for line in sass.splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label.group(1)] = len(code)
        elif instruction := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?);", line):
            code.append(instruction.group(1))
    for at, instruction in enumerate(code):
        target = re.search(r"BRA.*\(?(\.L_\w+)\)?", instruction)
        start = labels.get(target.group(1), at + 1) if target else at + 1
        if start <= at:
            loops.append((start, at))
    around = {min(((end - start, start, end) for start, end in loops if start <= at <= end), default=None)
              for at, instruction in enumerate(code) if "HGMMA" in instruction}
    return [code[loop[1]:loop[2] + 1] if loop else [] for loop in around]


HOPPER_CASES = [case for case in CASES if case[1] == "sm_90a" and case[0] != "generic" and case[2] != "rows"]


@pytest.mark.skipif(not NVDISASM, reason="no nvdisasm (FLP_NVDISASM)")
@pytest.mark.parametrize("case", marked(HOPPER_CASES))
def test_main_loops(case, tmp_path):
    """Nothing of a main loop lives in memory, and descriptors stand in uniform registers where they are computed."""
    kernels = [(kernel, level) for kernel in chosen(*case, kernels_of(case[0])) for level in levels_of(kernel)]
    for kernel, level in kernels:
        cubin = tmp_path / "kernel.cubin"
        assert assemble(kernel["ptx"], case[1], level, cubin)[0] == 0
        sass = subprocess.run([NVDISASM, "-c", cubin], capture_output=True, text=True, check=True).stdout
        loops = main_loops(sass)
        assert loops and all(loops), "HGMMA is to stand in loops"
        for loop in loops:
            spilled = [instruction for instruction in loop if re.search(r"\b(LDL|STL)\b", instruction)]
            assert not spilled, f"{describe(kernel)}: {spilled}"
            moved = [instruction for instruction in loop if "R2UR" in instruction]
            assert len(moved) <= 4, f"{describe(kernel)}: {moved}"


def test_faults_are_found():
    """The check itself: a report over every budget, and PTX without tensor cores."""
    report = ("ptxas info : Compiling entry function 'flp_forward' for 'sm_89'\n"
              "  16 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads\n"
              "ptxas info : Used 256 registers, used 1 barriers\n(C7510) serialised\n")
    kernel = {"key": {"kind": "forward", "dtype": "bf16", "alignment": 16}, "ptx": "mma.sync ldmatrix",
              "entries": [{"name": "forward", "symbol": "flp_forward", "shared_bytes": 101377}]}
    text = "\n".join(kernel_faults(kernel, "sm_89", 0, report))
    for word in ("C7510", "40 bytes of spills", "16 bytes of stack", "256 registers", "101377 bytes", "no cp.async"):
        assert word in text
    assert "exited 255" in kernel_faults(kernel, "sm_89", 255, "")[0]

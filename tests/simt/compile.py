#!/usr/bin/env python3
"""Makes a shared library for the CPU of a generated module's LLVM IR: compile.py MODULE.ll LIBRARY.so

Everything that only a GPU has becomes a call of simt.c, hopper.c or blackwell.c, which are linked in. The library has
`run_<entry>(int ctas, int threads, int cluster, void **params)` for each entry of the module, params pointing at the
arguments as a launch of CUDA does, cluster: CTAs of one, 1 for none.

What tests compile is kept in build/simt under the hash of these files and that of the IR, so that no test compiles what
another one has; without a build folder nothing is kept. Needs llc of LLVM 19, cc and libboost-context1.74.0.
"""
import glob
import itertools
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kept import hash_of, kept, kept_folder  # noqa: E402

SIMT = [Path(__file__).with_name(name) for name in ("simt.c", "late.c", "hopper.c", "blackwell.c")]
SOURCES = [*SIMT, Path(__file__).with_name("simt.h"), Path(__file__)]
FIBRES = "-l:libboost_context.so.1.74.0"
FUSED = ["-mfma", "-mf16c"] if platform.machine() == "x86_64" else []
LLC = shutil.which("llc-19") or next(iter(glob.glob("/usr/lib/llvm-19/bin/llc")), None)
QUICK = ["-O0", "-optimize-regalloc", "-regalloc=basic"]  # half of what -O1 takes, for code as quick: simt.c has the work
BY_VALUE = " byval([128 x i8]) align 64"  # tensor maps, which stay where the launch has them
FOUR = r"(\{ (?:float|i32)(?:, (?:float|i32)){3} \})"

# A call in the IR -> the function of these files, by its result and the types of its arguments.
WORDS = (
    (r'asm sideeffect "ld\.shared\.(\w+) \$0, \[\$1\];", "[^"]*"', r"@simt_ld_\1"),
    (r'asm sideeffect "st\.shared\.(\w+) \[\$0\], \$1;", "[^"]*"', r"@simt_st_\1"),
    (r'asm sideeffect "red\.relaxed\.cta\.shared\.or\.b32 \[\$0\], \$1;", "[^"]*"', "@simt_shared_or"),
    (r'asm "cvt\.rn\.(\w+)x2\.f32 \$0, \$1, \$2;", "[^"]*"', r"@simt_pack_\1"),
    (r'asm sideeffect "mov\.u32 \$0, %(\w+)\.x;", "=r"', r"@simt_\1"),
    (r'asm sideeffect "cp\.async\.cg\.shared\.global \[\$0\], \[\$1\], 16, \$2;", "[^"]*"', "@simt_copy16"),
    (r'asm sideeffect "cp\.async\.(?:commit_group|wait_group \d+);", "[^"]*"', "@simt_nothing"),
    (r'asm sideeffect "mov\.u32 \$0, %cluster_ctarank;", "=r"', "@simt_cluster_ctarank"),
    (r'asm sideeffect "mapa\.shared::cluster\.u32 [^"]*", "[^"]*"', "@simt_mapa"),
    (r'asm sideeffect "redux\.sync\.or\.b32 [^"]*", "[^"]*"', "@simt_or"),
    (r'asm sideeffect "mbarrier\.init\.[^"]*", "[^"]*"', "@simt_mbarrier_init"),
    (r'asm sideeffect "mbarrier\.arrive\.expect_tx\.[^"]*", "[^"]*"', "@simt_mbarrier_expect"),
    (r'asm sideeffect "\{ \.reg \.pred p; again: mbarrier\.try_wait[^"]*", "[^"]*"', "@simt_mbarrier_wait"),
    (r'asm sideeffect "\{ \.reg \.pred p; setp\.ne\.b32 p, \$1, 0; @p mbarrier\.arrive[^"]*", "[^"]*"',
     "@simt_mbarrier_arrive"),
    (r'asm sideeffect "st\.async\.[^"]*", "[^"]*"', "@simt_st_async"),
    (r'asm sideeffect "atom\.relaxed\.gpu\.global\.add\.u32 \$0, \[\$1\], 1;", "[^"]*"', "@simt_atomic_next"),
    (r'asm sideeffect "bar\.(sync|arrive) \$0, \$1;", "[^"]*"', r"@simt_bar_\1"),
    (r'asm sideeffect "bar\.warp\.sync [^"]*", "[^"]*"', "@simt_warp_barrier"),
    (r'asm sideeffect "barrier\.cluster\.arrive\.[^"]*wait[^"]*", "[^"]*"', "@simt_cluster_barrier"),
    (r'asm sideeffect "(?:setmaxnreg|fence|tcgen05\.fence::)[^"]*", "[^"]*"', "@simt_nothing"),
    (r'asm sideeffect "cp\.async\.bulk\.wait_group\.read 0;", "[^"]*"', "@simt_tensor_stores_read"),
    (r'asm sideeffect "cp\.async\.bulk\.tensor\.2d\.global\.[^"]*", "[^"]*"', "@simt_tensor_store"),
    (r'asm sideeffect "cp\.async\.bulk\.tensor\.2d\.shared\S*multicast::cluster\.L2::cache_hint [^"]*", "[^"]*"',
     "@simt_tensor_cast_hint"),
    (r'asm sideeffect "cp\.async\.bulk\.tensor\.2d\.shared\S*multicast::cluster [^"]*", "[^"]*"', "@simt_tensor_cast"),
    (r'asm sideeffect "cp\.async\.bulk\.tensor\.2d\.shared\S*bytes\.L2::cache_hint [^"]*", "[^"]*"',
     "@simt_tensor_load_hint"),
    (r'asm sideeffect "cp\.async\.bulk\.tensor\.2d\.shared\S*bytes [^"]*", "[^"]*"', "@simt_tensor_load"),
    (r'asm sideeffect "cp\.async\.bulk\.tensor\.2d\.shared\S*bytes\.cta_group::2\.L2::cache_hint [^"]*", "[^"]*"',
     "@simt_tensor_pair_hint"),
    (r'asm sideeffect "cp\.async\.bulk\.tensor\.2d\.shared\S*bytes\.cta_group::2 [^"]*", "[^"]*"', "@simt_tensor_pair"),
    (r'asm sideeffect "tcgen05\.alloc\.[^"]*", "[^"]*"', "@simt_tmem_alloc"),
    (r'asm sideeffect "tcgen05\.dealloc\.[^"]*", "[^"]*"', "@simt_tmem_free"),
    (r'asm sideeffect "tcgen05\.commit\.[^"]*", "[^"]*"', "@simt_tmem_commit"),
    (r'asm sideeffect "\{ \.reg \.b16 m; cvt[^"]*tcgen05\.commit\.[^"]*", "[^"]*"', "@simt_tmem_commit_cast"),
    (r'asm sideeffect "stmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 [^"]*", "[^"]*"', "@simt_stmatrix"),
    (r"@llvm\.nvvm\.ex2\.approx\.ftz\.f\b", "@simt_exp2"),
    (r"@llvm\.nvvm\.lg2\.approx\.ftz\.f\b", "@simt_log2"),
    (r"@llvm\.nvvm\.rcp\.(?:rn|approx)\.ftz\.f\b", "@simt_rcp"),
    (r"@llvm\.nvvm\.shfl\.sync\.(bfly|up|idx)\.(\w+)", r"@simt_shfl_\1_\2"),
    (r"@llvm\.nvvm\.vote\.any\.sync", "@simt_any"),
    (r"@llvm\.nvvm\.vote\.ballot\.sync", "@simt_ballot"),
    (r"@llvm\.nvvm\.barrier0\b", "@simt_barrier"),
    (r"@llvm\.nvvm\.read\.ptx\.sreg\.(\w+?)(?:\.x)?\(", r"@simt_\1("),
)
# Words that give four values leave them in simt_result.
FOURS = (
    (r'asm sideeffect "ldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 [^"]*", "[^"]*"', "@simt_ldmatrix"),
    (r'asm sideeffect "ldmatrix\.sync\.aligned\.m8n8\.x4\.trans\.shared\.b16 [^"]*", "[^"]*"', "@simt_ldmatrix_trans"),
    (r'asm "mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32 [^"]*", "[^"]*"', "@simt_mma_bf16"),
    (r'asm "mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32 [^"]*", "[^"]*"', "@simt_mma_f16"),
)


def declarations(ir):
    """One for each function of these files that is called and not declared, from how it is called."""
    found = {}
    for result, name, arguments in re.findall(r"call (\w+) (@simt_\w+)\(([^\n]*?)\)(?: #\d+)?\n", ir):
        kinds = [re.match(r"\s*(\w+)", argument).group(1) for argument in split(arguments)]
        found[name] = f"declare {result} {name}({', '.join(kinds)})"
    declared = set(re.findall(r"declare [^\n]*?(@simt_\w+)\(", ir))
    return [text for name, text in found.items() if name not in declared]


def declared_once(ir):
    """Two intrinsics may have one function."""
    seen = set()

    def first(match):
        again = match.group(1) in seen
        seen.add(match.group(1))
        return "" if again else match.group(0)

    return re.sub(r"declare [^\n]*?(@simt_\w+)\([^\n]*\n", first, ir)


def split(arguments):
    """At commas outside of parentheses."""
    parts, depth = [""], 0
    for character in arguments:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]


PRODUCT = re.compile(r"add\.u32 low, a_low, (\d+);[^;]*; add\.u32 low, b_low, (\d+);[^;]*; wgmma\.mma_async\.sync\.aligned\."
                     r"m64n(\d+)k16\.f32\.(bf16|f16)\.\w+ \{\$(\d+)[^}]*\}, da, db, (1|p), 1, 1, (\d), (\d);")


# A product whose first operand stands in registers.
TERM = re.compile(r"add\.u32 low, b_low, (\d+);[^;]*; wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.bf16\.bf16 \{[^}]*\}, "
                  r"\{\$(\d+)[^}]*\}, db, (\d), 1, 1, (\d);")


NAMES = (f"%simt{i}" for i in itertools.count())  # of values, which are nowhere else in a module


def place(i):
    return f"ptr getelementptr (float, ptr @simt_accumulators, i64 {i})"


def added(operand, number, lines):
    """operand: "i64 %x" -> "i64 %y", y = x + number"""
    name = next(NAMES)
    lines.append(f"{name} = add {operand}, {number}")
    return f"{operand.split()[0]} {name}"


def text_of(lines):
    return "".join(f"  {line}\n" for line in lines)


def products(match):
    """A stage of wgmma, or a wait for some: accumulators go through memory, and each product is a call."""
    name, result, text, arguments = match.groups()
    arguments, lines = [argument.strip() for argument in split(arguments)], []
    sums = len(re.findall("float", result))
    if TERM.search(text):
        words, b = arguments[:-1], arguments[-1]
        lines = [f"call void @simt_a_word(i32 {i}, {word})" for i, word in enumerate(words)] + ["call void @simt_a_ready()"]
        for b_at, columns, first, keep, b_mn in TERM.findall(text):
            lines.append(f"call void @simt_wgmma_term(i32 {int(first) - sums}, {added(b, b_at, lines)}, i32 {columns}, "
                         f"i32 {keep}, i32 {b_mn})")
    else:
        lines = [f"store {argument}, {place(i)}" for i, argument in enumerate(arguments[:sums])]
        for a_at, b_at, columns, kind, first, keep, a_mn, b_mn in PRODUCT.findall(text):
            a, b, kept = arguments[sums:]
            lines.append(f"call void @simt_wgmma({added(a, a_at, lines)}, {added(b, b_at, lines)}, i32 {int(kind == 'bf16')}, "
                         f"i32 {columns}, i32 {first}, {'i32 1' if keep == '1' else kept}, i32 {a_mn}, i32 {b_mn})")
    pending = re.search(r"wgmma\.wait_group\.sync\.aligned (\d)", text)
    lines.append(f"call void @simt_wgmma_wait(i32 {sums}, i32 {pending.group(1) if pending else 7})")
    return (text_of(lines) + f"  {name} = load {result}, ptr @simt_accumulators\n"
            + text_of(["call void @simt_warpgroup_barrier()"]))


INTO_TENSOR = re.compile(r"add\.u32 low, a_low, (\d+);[^;]*; add\.u32 low, b_low, (\d+);[^;]*; "
                         r"tcgen05\.mma\.cta_group::(\d)\.kind::f16 \[\$0\], da, db, id, (p|t);")


def into_tensor(match):
    """A stage of tcgen05.mma: each product is a call."""
    text, arguments = match.groups()
    into, a, b, keep = [argument.strip() for argument in split(arguments)]
    described, lines = re.search(r"mov\.b32 id, (\d+);", text).group(1), []
    for a_at, b_at, ctas, kept_ in INTO_TENSOR.findall(text):
        lines.append(f"call void @simt_tmem_multiply({into}, {added(a, a_at, lines)}, {added(b, b_at, lines)}, "
                     f"i32 {described}, {'i32 1' if kept_ == 't' else keep}, i32 {ctas})")
    return text_of(lines)


def from_tensor(match):
    """Both loads of tcgen05.ld, through memory."""
    name, result, text, address = match.groups()
    number, lines = int(re.search(r"16x256b\.x(\d+)\.", text).group(1)), []
    upper = int(re.search(r"add\.u32 upper, \$\d+, (\d+);", text).group(1))
    for half in range(2):
        at = added(address, half * upper, lines)
        lines.append(f"call void @simt_tmem_load({at}, i32 {number}, i32 {half * number * 4})")
    return text_of(lines) + f"  {name} = load {result}, ptr @simt_accumulators\n"


def at_multiple_of(size, address):
    return f"call void @simt_expect_shared({address}, i32 {size})"


def vector_load(match):
    """ld.shared.v2 and v4, word by word through memory."""
    name, result, kind, address = match.groups()
    lines = [at_multiple_of(4 * (result.count(",") + 1), address)]
    for i in range(result.count(",") + 1):
        word, where = next(NAMES), added(address, 4 * i, lines)
        lines += [f"{word} = call {result[2:].split(',')[0]} @simt_ld_{kind}({where})",
                  f"store {result[2:].split(',')[0]} {word}, {place(i)}"]
    return text_of(lines) + f"  {name} = load {result}, ptr @simt_accumulators\n"


def vector_store(match):
    kind, arguments = match.groups()
    address, *values = [argument.strip() for argument in split(arguments)]
    lines = [at_multiple_of(4 * len(values), address)]
    for i, value in enumerate(values):
        lines.append(f"call void @simt_st_{kind}({added(address, 4 * i, lines)}, {value})")
    return text_of(lines)


# What a GPU reads or writes at once has to start at a multiple of its size; the CPU takes it element by element.
VECTOR = re.compile(r"^(  (?:%[\w.]+ = load <[^>\n]*>, |store <[^>\n]*> [^\n]*, )ptr (%[\w.]+), align (\d+)[^\n]*)$", re.M)


def for_the_cpu(ir):
    """NVPTX's IR as the CPU's: no target, one address space, shared memory from address 0 of its own."""
    ir = re.sub(r"^target .*\n|^@flp_shared = .*\n", "", ir, flags=re.M).replace(" addrspace(1)", "")
    ir = ir.replace(BY_VALUE, "").replace("ptrtoint (ptr addrspace(3) @flp_shared to i32)", "0")
    ir = re.sub(r"  (%\w+) = call (\{ float[^}]*\}) asm sideeffect \"([^\"]*wgmma\.[^\"]*)\", \"[^\"]*\"\(([^\n]*)\)(?: #\d+)?\n",
                products, ir)
    ir = re.sub(r"  (%\w+) = call (\{[^}]*\}) asm sideeffect \"ld\.shared\.v\d\.(\w+) [^\"]*\", \"[^\"]*\"\(([^\n]*)\)(?: #\d+)?\n",
                vector_load, ir)
    ir = re.sub(r"  call void asm sideeffect \"st\.shared\.v\d\.(\w+) [^\"]*\", \"[^\"]*\"\(([^\n]*)\)(?: #\d+)?\n",
                vector_store, ir)
    ir = re.sub(r'  call void asm sideeffect "([^"]*tcgen05\.mma\.[^"]*)", "[^"]*"\(([^\n]*)\)(?: #\d+)?\n',
                into_tensor, ir)
    ir = re.sub(r'  (%\w+) = call (\{ float[^}]*\}) asm sideeffect "([^"]*tcgen05\.ld\.[^"]*)", "[^"]*"\(([^\n]*)\)'
                r"(?: #\d+)?\n", from_tensor, ir)
    for pattern, function in FOURS:
        ir = re.sub(rf"(%\w+) = call {FOUR} {pattern}(\([^\n]*\))(?: #\d+)?\n",
                    rf"call void {function}\3\n  \1 = load \2, ptr @simt_result\n", ir)
    for pattern, function in WORDS:
        ir = re.sub(pattern, function, ir)
    ir = VECTOR.sub(r"  call void @simt_expect_aligned(ptr \2, i32 \3)\n\1", ir)
    ir = declared_once(ir)
    left = [line for line in ir.splitlines()
            if ("nvvm." in line or " asm " in line) and not line.startswith(("!", "declare", "attributes"))]
    if left:
        sys.exit("compile.py: no word of simt.c, hopper.c or blackwell.c for: " + left[0].strip())
    return ir + "\n@simt_result = external global [4 x i32]\n@simt_accumulators = external global [256 x float]\n" + "\n".join(declarations(ir)) + "\n"


def entries(ir):
    """[(name, {parameter: its type})], in their order"""
    found = re.findall(r"define void @flp_(\w+)\((.*)\) #", ir)
    return [(name, {parameter.rpartition("%")[2]: "map" if BY_VALUE in parameter else parameter.split()[0]
                    for parameter in head.split(", ")}) for name, head in found]


def launchers(ir):
    """IR that takes params apart for each entry."""
    lines = ["declare void @simt_launch(ptr, i32, i32, i32, ptr)"]
    for name, kinds in entries(ir):
        body, values = [], []
        for i, kind in enumerate(kinds.values()):
            body += [f"%at{i} = getelementptr ptr, ptr %p, i64 {i}", f"%to{i} = load ptr, ptr %at{i}"]
            body += [] if kind == "map" else [f"%v{i} = load {kind}, ptr %to{i}"]
            values.append(f"ptr %to{i}" if kind == "map" else f"{kind} %v{i}")
        body += [f"call void @flp_{name}({', '.join(values)})", "ret void"]
        lines += [f"define internal void @simt_call_{name}(ptr %p) {{", *[f"  {line}" for line in body], "}",
                  f"define void @run_{name}(i32 %ctas, i32 %threads, i32 %cluster, ptr %p) {{",
                  f"  call void @simt_launch(ptr @simt_call_{name}, i32 %ctas, i32 %threads, i32 %cluster, ptr %p)",
                  "  ret void", "}"]
    return "\n".join(lines) + "\n"


TOOLS = hash_of(*[path.read_bytes() for path in SOURCES])
FOLDER = f"simt/{TOOLS}"


def kept_libraries():
    """The folder of all that these files have compiled, by the hash of the IR; None where build/ cannot be written."""
    return kept_folder(FOLDER)


def compile_words(path):
    """The files of words as one object."""
    subprocess.run(["cc", "-O3", "-fno-strict-aliasing", *FUSED, "-fPIC", "-r", "-o", path, *SIMT], check=True)


def compile_module(ir, library):
    """library: path of what is made"""
    module, code, words = (Path(library).with_suffix(suffix) for suffix in (".cpu.ll", ".o", ".words.o"))
    module.write_text(for_the_cpu(ir) + launchers(ir))
    subprocess.run([LLC, *QUICK, "-mattr=+f16c,+fma", "-filetype=obj", "-relocation-model=pic", "-o", code, module], check=True)
    stored = kept(FOLDER, "words.o", compile_words)
    if stored is None:
        compile_words(words)
    subprocess.run(["cc", "-shared", "-o", library, code, stored or words, FIBRES, "-lm"], check=True)
    for path in (module, code, words):
        path.unlink(missing_ok=True)


def library_of(ir, folder):
    """-> path of the library of a module, compiled if it is not kept; in folder where build/ cannot be written."""
    name = f"{hash_of(ir)}.so"
    stored = kept(FOLDER, name, lambda path: compile_module(ir, path))
    if stored is None:
        compile_module(ir, folder / name)
    return stored or folder / name


if __name__ == "__main__":
    compile_module(Path(sys.argv[1]).read_text(), sys.argv[2])

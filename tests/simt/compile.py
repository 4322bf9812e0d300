#!/usr/bin/env python3
"""Makes a shared library for the CPU of a generated module's LLVM IR: compile.py MODULE.ll LIBRARY.so

Everything that only a GPU has becomes a call of simt.c, which is linked in. The library has `run_<entry>(int ctas, int
threads, void **params)` for each entry of the module, params pointing at the arguments as a launch of CUDA does.
"""
import glob
import re
import shutil
import subprocess
import sys
from pathlib import Path

SIMT = Path(__file__).with_name("simt.c")
LLC = shutil.which("llc-19") or next(iter(glob.glob("/usr/lib/llvm-19/bin/llc")), None)
TYPES = {"ptr": "void *", "i64": "int64_t", "i32": "int32_t", "double": "double", "float": "float"}
FOUR = r"(\{ (?:float|i32)(?:, (?:float|i32)){3} \})"

# What the IR says -> the function of simt.c, by its result and the types of its arguments.
WORDS = (
    (r'asm sideeffect "ld\.shared\.(\w+) \$0, \[\$1\];", "[^"]*"', r"@simt_ld_\1"),
    (r'asm sideeffect "st\.shared\.(\w+) \[\$0\], \$1;", "[^"]*"', r"@simt_st_\1"),
    (r'asm "cvt\.rn\.(\w+)x2\.f32 \$0, \$1, \$2;", "[^"]*"', r"@simt_pack_\1"),
    (r'asm sideeffect "mov\.u32 \$0, %(\w+)\.x;", "=r"', r"@simt_\1"),
    (r'asm sideeffect "cp\.async\.cg\.shared\.global \[\$0\], \[\$1\], 16, \$2;", "[^"]*"', "@simt_copy16"),
    (r'asm sideeffect "cp\.async\.(?:commit_group|wait_group \d+);", "[^"]*"', "@simt_nothing"),
    (r"@llvm\.nvvm\.ex2\.approx\.ftz\.f\b", "@simt_exp2"),
    (r"@llvm\.nvvm\.lg2\.approx\.ftz\.f\b", "@simt_log2"),
    (r"@llvm\.nvvm\.rcp\.rn\.ftz\.f\b", "@simt_rcp"),
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
    """One for each function of simt.c that is called and not declared, from how it is called."""
    found = {}
    for result, name, arguments in re.findall(r"call (\w+) (@simt_\w+)\(([^\n]*?)\)(?: #\d+)?\n", ir):
        kinds = [re.match(r"\s*(\w+)", argument).group(1) for argument in split(arguments)]
        found[name] = f"declare {result} {name}({', '.join(kinds)})"
    declared = set(re.findall(r"declare [^\n]*?(@simt_\w+)\(", ir))
    return [text for name, text in found.items() if name not in declared]


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


def for_the_cpu(ir):
    """NVPTX's IR as the CPU's: no target, one address space, shared memory from address 0 of its own."""
    ir = re.sub(r"^target .*\n|^@flp_shared = .*\n", "", ir, flags=re.M).replace(" addrspace(1)", "")
    ir = ir.replace("ptrtoint (ptr addrspace(3) @flp_shared to i32)", "0")
    for pattern, function in FOURS:
        ir = re.sub(rf"(%\w+) = call {FOUR} {pattern}(\([^\n]*\))(?: #\d+)?\n",
                    rf"call void {function}\3\n  \1 = load \2, ptr @simt_result\n", ir)
    for pattern, function in WORDS:
        ir = re.sub(pattern, function, ir)
    left = re.findall(r"[^\n]*(?:nvvm\.|asm )[^\n]*", re.sub(r"^!.*$|^declare.*$", "", ir, flags=re.M))
    if left:
        sys.exit("compile.py: no word of simt.c for: " + left[0].strip())
    return ir + "\n@simt_result = external global [4 x i32]\n" + "\n".join(declarations(ir)) + "\n"


def entries(ir):
    """[(name, types of its parameters)]"""
    found = re.findall(r"define void @flp_(\w+)\((.*)\) #", ir)
    return [(name, [re.sub(r" addrspace\(1\)", "", parameter).split()[0] for parameter in head.split(", ")])
            for name, head in found]


def launchers(ir):
    """C that takes params apart for each entry."""
    lines = ["#include <stdint.h>", "void simt_launch(void (*kernel)(void **), int ctas, int threads, void **params);"]
    for name, kinds in entries(ir):
        types = [TYPES[kind] for kind in kinds]
        values = ", ".join(f"*({kind} *)p[{i}]" for i, kind in enumerate(types))
        lines += [f"void flp_{name}({', '.join(types)});", f"static void call_{name}(void **p) {{ flp_{name}({values}); }}",
                  f"void run_{name}(int ctas, int threads, void **p) {{ simt_launch(call_{name}, ctas, threads, p); }}"]
    return "\n".join(lines) + "\n"


def compile_module(ir, library):
    """library: path of what is made; its neighbours of the same name are scratch"""
    library = Path(library)
    module, objects, calls = (library.with_suffix(suffix) for suffix in (".cpu.ll", ".o", ".c"))
    module.write_text(for_the_cpu(ir))
    calls.write_text(launchers(ir))
    subprocess.run([LLC, "-O1", "-mattr=+f16c,+fma", "-filetype=obj", "-relocation-model=pic", "-o", objects, module],
                   check=True)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, calls, SIMT, objects, "-lm"], check=True)
    return library


if __name__ == "__main__":
    compile_module(Path(sys.argv[1]).read_text(), sys.argv[2])

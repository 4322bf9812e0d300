"""Runs generated kernels on the CPU: their LLVM IR through llc, with everything that only a GPU has made C functions.

A CTA is as many fibres as it has threads. Each runs until it waits for others, at a barrier or a shuffle; a round is over
when all of them wait. So every thread of a CTA must pass the same barriers and shuffles, as kernels of one path do.
"""
import ctypes
import glob
import re
import shutil
import subprocess

import numpy
import pytest

LLC = shutil.which("llc-19") or next(iter(glob.glob("/usr/lib/llvm-19/bin/llc")), None)

needs_llc = pytest.mark.skipif(not (LLC and shutil.which("cc")), reason="no llc of LLVM 19, or no C compiler")

# What the IR says -> the C function below that does it.
WORDS = (
    (r'asm sideeffect "ld\.shared\.(\w+) \$0, \[\$1\];", "[^"]*"', r"@shared_load_\1"),
    (r'asm sideeffect "st\.shared\.(\w+) \[\$0\], \$1;", "[^"]*"', r"@shared_store_\1"),
    (r'asm "cvt\.rn\.(\w+)x2\.f32 \$0, \$1, \$2;", "[^"]*"', r"@pack_\1"),
    (r"@llvm\.nvvm\.ex2\.approx\.ftz\.f\b", "@exp2_approx"),
    (r"@llvm\.nvvm\.shfl\.sync\.bfly\.(\w+)", r"@shuffle_xor_\1"),
    (r"@llvm\.nvvm\.barrier0\b", "@barrier"),
    (r"@llvm\.nvvm\.read\.ptx\.sreg\.ctaid\.x", "@read_cta"),
    (r"@llvm\.nvvm\.read\.ptx\.sreg\.tid\.x", "@read_thread"),
    (r"@llvm\.nvvm\.read\.ptx\.sreg\.laneid", "@read_lane"),
)
DECLARATIONS = """
declare float @shared_load_f32(i32)
declare double @shared_load_f64(i32)
declare i32 @shared_load_b32(i32)
declare void @shared_store_f32(i32, float)
declare void @shared_store_f64(i32, double)
declare void @shared_store_b32(i32, i32)
declare i32 @pack_bf16(float, float)
declare i32 @pack_f16(float, float)
"""
HARNESS = r"""
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { THREADS = %(threads)d, STACK = 1 << 16, SHARED = 1 << 16 };
static char shared[SHARED];
static ucontext_t scheduler, fibre[THREADS];
static char *stacks;
static int running[THREADS], cta, thread;
static uint64_t posted[2][THREADS];  /* by round, so that the next round does not overwrite what this one reads */
static int parity[THREADS];

int read_cta(void) { return cta; }
int read_thread(void) { return thread; }
int read_lane(void) { return thread %% 32; }

static void wait_for_all(void) { swapcontext(&fibre[thread], &scheduler); }
void barrier(void) { wait_for_all(); }

static uint64_t exchange(uint64_t mine, int mask) {
  int round = parity[thread] ^= 1;
  posted[round][thread] = mine;
  wait_for_all();
  return posted[round][thread ^ mask];
}
float shuffle_xor_f32(int32_t all, float v, int32_t mask, int32_t clamp) {
  uint32_t bits;
  (void)all, (void)clamp;
  memcpy(&bits, &v, 4);
  bits = (uint32_t)exchange(bits, mask);
  memcpy(&v, &bits, 4);
  return v;
}
int32_t shuffle_xor_i32(int32_t all, int32_t v, int32_t mask, int32_t clamp) {
  (void)all, (void)clamp;
  return (int32_t)(uint32_t)exchange((uint32_t)v, mask);
}

#define SHARED_WORD(name, type) \
  type shared_load_##name(uint32_t at) { type v; memcpy(&v, shared + at, sizeof v); return v; } \
  void shared_store_##name(uint32_t at, type v) { memcpy(shared + at, &v, sizeof v); }
SHARED_WORD(f32, float)
SHARED_WORD(f64, double)
SHARED_WORD(b32, int32_t)

/* Subnormals become 0, as the GPU's approximation has it. */
float exp2_approx(float x) {
  float y = exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
}
static uint16_t bf16_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if (isnan(x)) return 0x7fff;
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static uint16_t f16_of(float x) {
  _Float16 h = (_Float16)x;
  uint16_t bits;
  memcpy(&bits, &h, 2);
  return bits;
}
uint32_t pack_bf16(float high, float low) { return (uint32_t)bf16_of(high) << 16 | bf16_of(low); }
uint32_t pack_f16(float high, float low) { return (uint32_t)f16_of(high) << 16 | f16_of(low); }
/* LLVM's call for a rounding to bf16, whose result stands in the low half of the register that returns a float. */
float __truncsfbf2(float x) {
  uint32_t bits = bf16_of(x);
  memcpy(&x, &bits, 4);
  return x;
}

%(prototype)s
static void **given;
static void run_thread(void) {
  %(call)s
  running[thread] = 0;
  setcontext(&scheduler);
}

static void run_cta(void) {
  int left = THREADS;
  for (thread = 0; thread < THREADS; thread++) {
    getcontext(&fibre[thread]);
    fibre[thread].uc_stack.ss_sp = stacks + (size_t)thread * STACK;
    fibre[thread].uc_stack.ss_size = STACK;
    makecontext(&fibre[thread], run_thread, 0);
    running[thread] = 1;
    parity[thread] = 0;
  }
  while (left > 0) {
    left = 0;
    for (thread = 0; thread < THREADS; thread++)
      if (running[thread]) {
        swapcontext(&scheduler, &fibre[thread]);
        left += running[thread];
      }
  }
}

void launch(int grid, void **values) {
  given = values;
  stacks = malloc((size_t)THREADS * STACK);
  for (cta = 0; cta < grid; cta++) run_cta();
  free(stacks);
}
"""
TYPES = {"ptr": "void *", "i64": "int64_t", "i32": "int32_t", "double": "double", "float": "float"}
CTYPES = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "i32": ctypes.c_int32, "double": ctypes.c_double,
          "float": ctypes.c_float}


def for_the_cpu(ir):
    """NVPTX's IR as the CPU's: no target, one address space, shared memory from address 0 of its own."""
    ir = re.sub(r"^target .*\n|^@flp_shared = .*\n", "", ir, flags=re.M).replace(" addrspace(1)", "")
    ir = ir.replace("ptrtoint (ptr addrspace(3) @flp_shared to i32)", "0")
    for pattern, function in WORDS:
        ir = re.sub(pattern, function, ir)
    used = [line for line in DECLARATIONS.strip().splitlines() if re.search(r"@\w+", line).group(0) + "(" in ir]
    assert "nvvm.read" not in ir and "asm " not in ir, re.findall(r"[^\n]*(?:nvvm\.read|asm )[^\n]*", ir)[:3]
    return ir + "\n".join(used) + "\n"


class Kernel:
    """One compiled entry of a module. ir: text of `flpgen ... --emit ir`; entry: "select"; threads: of a CTA"""

    def __init__(self, ir, entry, threads, folder):
        head = re.search(rf"define void @flp_{entry}\((.*)\) #", ir).group(1)
        self.types = [re.sub(r" addrspace\(1\)", "", parameter).split()[0] for parameter in head.split(", ")]
        names = [TYPES[kind] for kind in self.types]
        call = ", ".join(f"*({name}*)given[{i}]" for i, name in enumerate(names))
        (folder / "harness.c").write_text(HARNESS % {
            "threads": threads, "prototype": f"void flp_{entry}({', '.join(names)});", "call": f"flp_{entry}({call});"})
        (folder / "kernel.ll").write_text(for_the_cpu(ir))
        objects, library = folder / "kernel.o", folder / f"{entry}.so"
        subprocess.run([LLC, "-O1", "-mattr=+f16c,+fma", "-filetype=obj", "-relocation-model=pic", "-o", objects,
                        folder / "kernel.ll"], check=True)
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, folder / "harness.c", objects, "-lm"], check=True)
        self.library = ctypes.CDLL(str(library))

    def __call__(self, grid, *values):
        """values: numpy arrays or None for pointers, numbers for the rest, in the order of runtime/abi.h"""
        held = [CTYPES[kind](value.ctypes.data if isinstance(value, numpy.ndarray) else value)
                for kind, value in zip(self.types, values, strict=True)]
        pointers = (ctypes.c_void_p * len(held))(*[ctypes.addressof(value) for value in held])
        self.library.launch(ctypes.c_int(grid), pointers)

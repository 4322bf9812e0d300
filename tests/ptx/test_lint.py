"""Kernels of Hopper and of sm_100f keep the rules of lint.py, which finds what breaks them: here in a few instructions,
in whole kernels by simt/test_mutations.py."""
import pytest

import lint
from flpgen_tool import needs_flpgen
from test_budgets import CASES, chosen, kernels_of, marked

# Of sm_100f's PTX once; kernels of kind rows are portable.
RULED = [case for case in CASES if case[1] in ("sm_90a", "sm_103a") and case[2] != "rows"]


@needs_flpgen
@pytest.mark.parametrize("case", marked(RULED))
def test_kernels_keep_the_rules(case):
    kernels = chosen(*case, kernels_of(case[0]))
    assert kernels and [fault for kernel in kernels for fault in lint.faults(kernel["ptx"])] == []


WAIT = "{ .reg .pred p; again: mbarrier.try_wait.parity.b64 p, [%r1], %r2; @p bra passed; bra again; passed: }"
ARRIVE = "{ .reg .pred p; setp.ne.b32 p, %r3, 0; @p mbarrier.arrive.b64 _, [%r1]; }"
AFTER, BEFORE = "tcgen05.fence::after_thread_sync;", "tcgen05.fence::before_thread_sync; bar.warp.sync 0xffffffff;"
LOAD, LOADED = "tcgen05.ld.x2.b32 {%f1,%f2}, [%r4];", "tcgen05.wait::ld.sync.aligned;"
ALLOC = "tcgen05.alloc.b32 [%r1], %r2; tcgen05.relinquish_alloc_permit; tcgen05.fence::before_thread_sync;"
IF_6 = "setp.{0}.s32 %p{1}, %r9, 6; @%p{1} bra L{1};"
IS_WARP_6 = f"shfl.sync.idx.b32 %r9, %r8, 0; {IF_6.format('ne', 1)} {ALLOC} L1: bar.sync 0; {AFTER}"

# Instructions -> the rules that they break.
SMALL = {
    f"{WAIT} {AFTER} {LOAD} {LOADED} {BEFORE} {ARRIVE} ret;": "",
    f"bar.sync 4, 128; {LOAD} {LOADED} bar.sync 4, 128; ret;": "",  # a named barrier
    f"{WAIT} {LOAD} {LOADED} ret;": "after",
    f"{LOAD} {LOADED} {ARRIVE} ret;": "before",
    f"{LOAD} {LOADED} tcgen05.fence::before_thread_sync; {ARRIVE} ret;": "warp",
    f"{LOAD} add.f32 %f3, %f2, %f2; {LOADED} ret;": "wait",
    f"{LOAD} ret;": "wait",
    f"{LOAD} {LOADED} @%p1 {BEFORE} {ARRIVE} ret;": "before",  # not in each thread
    f"{LOAD} {LOADED} @%p1 bra L1; {BEFORE} L1: {ARRIVE} ret;": "before",  # one way
    f"L1: {LOAD} {LOADED} {WAIT} @%p1 bra L1; ret;": "after",  # the next time
    f"bra.uni L2; L1: {LOAD} {LOADED} ret; L2: {WAIT} bra.uni L1;": "after",
    f"tcgen05.mma [%r1], %rd1, %rd2, id, p; {ARRIVE} ret;": "commit",
    f"mbarrier.init.shared::cta.b64 [%r1], 1; barrier.cluster.arrive.release; ret;": "mbarrier",
    "stmatrix.x4.shared.b16 [%r1], {%r2,%r2,%r2,%r2}; cp.async.bulk.tensor.2d.global [%rd1], [%r1]; ret;": "proxy",
    "st.shared.v2.b32 [%r1], {%r2,%r2}; fence.proxy.async; tcgen05.mma [%r1]; tcgen05.commit [%r2]; ret;": "",
    f"{ALLOC} ret;": "dealloc",
    "tcgen05.alloc.b32 [%r1], %r2; tcgen05.dealloc.b32 %r1, %r2; ret;": "relinquish",
    f"{IS_WARP_6} {IF_6.format('ne', 2)} tcgen05.dealloc.b32 %r1, %r2; L2: ret;": "",
    f"{IS_WARP_6} {IF_6.format('eq', 2)} ret; L2: tcgen05.dealloc.b32 %r1, %r2; ret;": "",
    f"{IS_WARP_6} {IF_6.format('eq', 2)} tcgen05.dealloc.b32 %r1, %r2; L2: ret;": "dealloc",
    f"{IS_WARP_6} mov.u32 %r9, %r1; {IF_6.format('ne', 2)} tcgen05.dealloc.b32 %r1, %r2; L2: ret;": "dealloc",
}


@pytest.mark.parametrize("text", SMALL)
def test_what_breaks_a_rule_is_found(text):
    found = lint.faults(f".visible .entry small(\n\t.param .u64 a\n)\n{{\n\t.reg .pred %p<3>;\n{text}\n}}\n")
    assert " ".join(sorted({rule for _, rule, _ in found})) == SMALL[text]

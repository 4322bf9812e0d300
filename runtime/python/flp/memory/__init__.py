"""Memory of a training loop: reserved, allocated and fragmentation at every device allocation, by phase and step.

    with flp.memory.Profiler() as profiler:
        with flp.phase("inference"):
            ...
    profiler.save("memory.json")
    flp.memory.plot(profiler.report, "memory.png")

In bytes, and as the RLHF memory study has them (arXiv:2410.15651, sections 2.2 and 3): `reserved` is what an allocator
holds of the driver, `allocated` what tensors (of an arena: calls) hold of that; `fragmentation` is their difference at
the moment when the allocator asks the driver for more. timeline.py, which computes them, needs no torch.
"""
from .plots import plot
from .profiler import Profiler, arena_stats, read_snapshot

__all__ = ["Profiler", "arena_stats", "plot", "read_snapshot"]

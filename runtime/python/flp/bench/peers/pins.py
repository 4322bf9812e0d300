"""The releases that the peers are tried with, read from requirements.txt: the one place that names them."""
import functools
import os

REQUIREMENTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "requirements.txt")

# What compiles CuTe kernels.
CUTE = ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-core",
        "nvidia-cutlass-dsl-libs-cu13", "apache-tvm-ffi")


@functools.lru_cache(maxsize=None)
def pins():
    """{distribution: version}"""
    with open(REQUIREMENTS, encoding="utf-8") as file:
        lines = [line.partition("#")[0].strip() for line in file]
    return dict(line.split("==") for line in lines if line)


def install_of(distributions):
    """The command that brings these; what they depend on is left out, as requirements.txt explains."""
    return "pip install --no-deps " + " ".join("%s==%s" % (name, pins()[name]) for name in distributions)

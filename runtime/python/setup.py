"""The wheel's tag: any Python, but one platform once flp/lib/ carries libraries. All else stands in pyproject.toml."""
import os

from setuptools import Distribution, setup

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    try:
        from wheel.bdist_wheel import bdist_wheel
    except ImportError:
        bdist_wheel = None

CARRIES_LIBRARIES = os.path.isdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "flp", "lib"))
commands = {}


class LibraryDistribution(Distribution):
    """Counts as one with compiled code when it carries libraries, so that they install beside the package."""

    def has_ext_modules(self):
        return CARRIES_LIBRARIES


if bdist_wheel is not None:
    class PlatformWheel(bdist_wheel):
        """py3-none-<platform> with libraries, py3-none-any without."""

        def get_tag(self):
            return ("py3", "none", super().get_tag()[2])

    commands["bdist_wheel"] = PlatformWheel

setup(cmdclass=commands, distclass=LibraryDistribution)

"""What pyproject.toml cannot say: the wheel's tag, and flp.h, which every wheel carries for the version."""
import os
import shutil

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    try:
        from wheel.bdist_wheel import bdist_wheel
    except ImportError:
        bdist_wheel = None

HERE = os.path.dirname(os.path.abspath(__file__))
CARRIES_LIBRARIES = os.path.isdir(os.path.join(HERE, "flp", "lib"))


class BuildWithHeader(build_py):
    """Takes flp.h from beside the folder where a build has not put it into the package."""

    def run(self):
        super().run()
        source, target = os.path.join(HERE, "..", "flp.h"), os.path.join(self.build_lib, "flp", "include", "flp.h")
        if not os.path.exists(target) and not getattr(self, "editable_mode", False):
            self.mkpath(os.path.dirname(target))
            shutil.copyfile(source, target)


commands = {"build_py": BuildWithHeader}


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

"""What pyproject.toml cannot say: the wheel's tag (any Python, one platform), the licence in a word that setuptools of
any age takes, flp.h, which every wheel carries for the version, and that a package without libraries is no package."""
import os
import runpy
import shutil
import sys

import setuptools
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
CARRIES_LIBRARIES = os.path.exists(os.path.join(HERE, "flp", "lib", "libflp.so.0"))
if not CARRIES_LIBRARIES and os.environ.get("FLP_WITHOUT_LIBRARY") != "1":
    sys.exit("error: this folder has no libraries (flp/lib/libflp.so.0), so that what pip installs from it could not do "
             "anything; accepted: the wheel of ./setup.sh wheel, or build/release/python of cmake --build build/release "
             "--target python_package; or FLP_WITHOUT_LIBRARY=1, where FLP_LIBRARY will name libflp.so")


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


version = runpy.run_path(os.path.join(HERE, "flp", "_version.py"))["__version__"]

# A wheel whose libraries hold others' code says so (packaging/wheel/pack.py).
licence = os.environ.get("FLP_LICENSE_EXPRESSION") or "Apache-2.0"
keyword = "license_expression" if int(setuptools.__version__.split(".")[0]) >= 77 else "license"
setup(cmdclass=commands, distclass=LibraryDistribution, **{keyword: licence},
      extras_require={"torch": ["torch>=1.13"], "plot": ["matplotlib>=3.6"], "packs": ["flp-packs==" + version]})

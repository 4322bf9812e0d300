"""What pyproject.toml cannot say: the version, which is that of the flp whose kernels these are (FLP_PACKS_VERSION), and
that the pack goes where flp's libraries go, though it fits every platform."""
import os

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class LibraryDistribution(Distribution):
    def has_ext_modules(self):
        return True


class AnyWheel(bdist_wheel):
    def get_tag(self):
        return ("py3", "none", "any")


version = os.environ["FLP_PACKS_VERSION"]
setup(version=version, install_requires=["flp==" + version], license_expression="Apache-2.0",
      cmdclass={"bdist_wheel": AnyWheel}, distclass=LibraryDistribution)

"""The installed tree, a stand-in for a driver and an unpacked wheel, for the tests of this folder."""
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from installed import run


@pytest.fixture(scope="session")
def prefix(tmp_path_factory):
    """The installed tree, moved after installation: nothing in it may remember where it was put. FLP_TEST_PREFIX names
    one to take in its place, such as the folder flp of an installed wheel."""
    if os.environ.get("FLP_TEST_PREFIX"):
        return Path(os.environ["FLP_TEST_PREFIX"])
    folder = tmp_path_factory.mktemp("install")
    run("cmake", "--install", os.environ["FLP_TEST_BUILD"], "--prefix", folder / "first")
    shutil.move(folder / "first", folder / "moved")
    return folder / "moved"


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder to mount where the loader finds a driver."""
    folder = tmp_path_factory.mktemp("driver")
    shutil.copy(os.environ["FLP_TEST_FAKE_CUDA"], folder / "libcuda.so.1")
    folder.chmod(0o755)
    return folder, "/usr/lib"


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    """The files of a module's wheel."""
    folder = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder

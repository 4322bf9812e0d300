"""python -m flp ARGUMENTS: the command flpgen that the package carries."""
import os
import sys

from ._library._c import prefix
from .errors import LibraryError


def main():
    """Becomes flpgen. error: SystemExit with a sentence where the package carries none"""
    try:
        command = os.path.join(prefix(), "bin", "flpgen")
        os.execv(command, ["flpgen"] + sys.argv[1:])
    except LibraryError as error:
        sys.exit("flp: %s" % error)
    except OSError as error:
        sys.exit("flp: %s: %s; accepted: a package that carries the command, such as the wheel of flp" % (
            command, error.strerror))


if __name__ == "__main__":
    main()

"""The command: python -m flp.bench."""
import sys

try:
    from .main import main
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    sys.stderr.write("flp.bench: needs torch, which is not installed: pip install torch\n")
    sys.exit(3)

sys.exit(main())

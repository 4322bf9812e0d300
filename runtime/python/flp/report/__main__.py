"""The command: python -m flp.report."""
import sys

from .main import main

sys.exit(main())

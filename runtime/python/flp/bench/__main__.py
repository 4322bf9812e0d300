"""The command: python -m flp.bench."""
import sys

from .main import main

sys.exit(main())

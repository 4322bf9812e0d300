"""The tree's version: what flp.h says."""
import re
from pathlib import Path

HEADER = Path(__file__).resolve().parents[2] / "runtime" / "flp.h"
VERSION = re.search(r'#define FLP_VERSION_STRING "([\d.]+)"', HEADER.read_text(encoding="utf-8")).group(1)

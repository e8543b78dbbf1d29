"""Makes the helpers beside the tests, and those of the dispatcher's tests, importable."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "dispatcher")]

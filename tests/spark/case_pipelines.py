"""The pipelines of the integration tests as one file that tasks can load: `--param case=NAME`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "integration"))

from pipelines import CASES  # found by the path above

from penstock import param

_chosen = param("case", "tumbling")
p = next(case for case in CASES if case.name == _chosen).declare(Path(param("out", "out")), None)

"""The pipelines of the integration tests over files that grow in number: `--param case=NAME --param in=FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "integration"))

import pipelines  # found by the path above

from penstock import param
from penstock.connectors import files

_in = param("in", "in")


def source(_: float | None) -> files.Source[pipelines.Event]:
    return files.Source(
        _in, schema=pipelines.Event, event_time="at", max_out_of_orderness="5s", batch_rows=int(param("batch", 100))
    )


pipelines.source = source  # what their declarations read
_chosen = param("case", "tumbling")
p = next(case for case in pipelines.CASES if case.name == _chosen).declare(Path(param("out", "out")), None)

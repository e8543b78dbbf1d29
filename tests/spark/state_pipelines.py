"""The pipelines of the integration tests over files that grow in number: `--param case=NAME --param in=FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "integration"))

import pipelines  # found by the path above

from penstock import KeyedContext, Pipeline, param, session
from penstock.connectors import files

_in = param("in", "in")
_marker = Path(param("marker", "marker"))


def source(_: float | None) -> files.Source[pipelines.Event]:
    rate = float(param("rate", 0)) or None
    return files.Source(
        _in, schema=pipelines.Event, event_time="at", max_out_of_orderness="5s", batch_rows=100, rate=rate
    )


_chosen = param("case", "tumbling")


def other_windows(out: Path, rate: float | None) -> Pipeline:
    """The uid of the tumbling windows, and other windows."""
    made = Pipeline("tumbling")
    keyed = made.read(source(rate)).key_by("key").window(session("2s"))
    keyed.agg(**pipelines.AGGREGATES).uid("w").write(files.Sink(out))
    return made


class FailsOnce(pipelines.PerMinute):
    """Fails in a key group that is not the first one of its task, once."""

    def on_row(self, row: pipelines.Event, ctx: KeyedContext[pipelines.Minute]) -> None:
        if row.number == 1_000 and not _marker.exists():
            _marker.touch()
            raise OSError("the first attempt")
        super().on_row(row, ctx)


def failing_once(out: Path, rate: float | None) -> Pipeline:
    made = Pipeline("failing-once")
    made.read(source(rate)).key_by("key").process(FailsOnce()).uid("minutes").write(files.Sink(out))
    return made


_cases = {case.name: case.declare for case in pipelines.CASES} | {
    "other-windows": other_windows,
    "fails-once": failing_once,
}
_generated, pipelines.source = pipelines.source, source  # what their declarations read, while this one is made
try:
    p = _cases[_chosen](Path(param("out", "out")), None)
finally:
    pipelines.source = _generated

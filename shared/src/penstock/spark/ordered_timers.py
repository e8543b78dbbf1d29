"""A `KeyedProcess` over sorted rows: event timers fire between the rows that they lie between.

Rows are fed many at a time, and a watermark between two feeds would fire the timers of all of them at once, days of
event time late. Streaming does not wait that long, and sorted input need not wait at all: before a row is handed to the
user's function the timers that lie before it fire, so that what a run comes to depends on the rows alone. Where event
time stops before the last row, because a stream goes on from there, so do the timers.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from penstock.batches import EVENT_TIME
from penstock.errors import PenstockError
from penstock.graph.logical import Node, ProcessRows
from penstock.state.columns import key_values
from penstock.task.operator import Operator, Output
from penstock.task.operators import build_operator
from penstock.task.operators.process import FLUSH_ROWS, KeyedProcessOperator
from penstock.task.operators.rowwise import chunks_of, raised


def timely_builder(last: int) -> Callable[[Node], Operator]:
    """Makes the operators of nodes for input that is sorted by event time, which comes as far as the watermark `last`."""

    def build(node: Node) -> Operator:
        if isinstance(node.operation, ProcessRows) and node.inputs[0].keys and node.inputs[0].event_time:
            return TimelyProcessOperator(node, last)
        return build_operator(node)

    return build


class TimelyProcessOperator(KeyedProcessOperator):
    """A `KeyedProcess` whose rows come in the order of event time."""

    def __init__(self, node: Node, last: int) -> None:
        """`last` is the watermark that event time comes to."""
        super().__init__(node)
        self._last = last

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        run, on_row, row = self._run, self._process.on_row, None
        timers = self._backend.event_timers
        last, reached = self._last, self._watermarks.current
        try:
            for chunk in chunks_of(frame):
                times: list[int] = chunk[EVENT_TIME].to_list()
                rows = zip(key_values(chunk, self._keys), times, self._reader.rows(chunk), strict=True)
                for key, time, row in rows:
                    before = time - 1 if time <= last else last
                    if timers.earliest <= before:
                        self._fire_until(before)
                    run.key, run.time = key, time
                    run.watermark_us = before if before > reached else reached
                    on_row(row, run)
                if len(run.rows) >= FLUSH_ROWS:
                    self._flush(output)
        except PenstockError:
            raise
        except Exception as error:  # whatever the user's function raises
            raise raised(f"{self._where}.on_row", row, error) from error
        self._flush(output)
        self._backend.maintain(frame.height)

    def _fire_until(self, watermark: int) -> None:
        run = self._run
        run.watermark_us = self._watermarks.advance(watermark)
        for run.key, at in self._due_event_timers():
            run.time = at
            self._on_timer(at)

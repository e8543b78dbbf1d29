"""Windows over raw rows: `penstock.functions.windows.process` run as a keyed process, and aggregates of what it fires.

Firings are gathered as the rows of functions are, and those of a batch are aggregated together: their rows become one
frame, grouped by firing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import polars as pl

from penstock.core.batches import EVENT_TIME
from penstock.functions.windows.definitions import RETRACTED, SessionWindow
from penstock.functions.windows.results import Fired
from penstock.plan.logical import Node
from penstock.plan.operations.window_rows import WindowRows
from penstock.state.columns import key_frame
from penstock.task.operators.partials import Partials
from penstock.task.operators.process import KeyedProcessOperator
from penstock.task.operators.sessions import END, SessionGap
from penstock.task.rows import RowWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.functions.windows.partials import Totalled
    from penstock.task.operator import OperatorContext, RestoredState

_FIRING: Final = "__firing"
_ROWS_AT_ONCE: Final = 65_536


class WindowProcessOperator(KeyedProcessOperator):
    """Runs a `WindowProcess`, and tells it the gaps of sessions where rows say them."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        window = cast("WindowRows", node.operation).window
        self._gap = SessionGap(node, window) if isinstance(window, SessionWindow) and window.gap is not None else None

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        # Its state is read as a whole in places, and the rows of a window are small beside those of a key's life.
        super().open(replace(context, local_state=None), restored)

    def _rows_of(self, number: int, chunk: pl.DataFrame) -> Iterable[Any]:
        self._tell_ends(chunk)
        return super()._rows_of(number, chunk)

    def _tell_ends(self, chunk: pl.DataFrame) -> None:
        if self._gap is not None:
            self._process.ends = iter(self._gap.with_ends(chunk)[END].to_list())


class WindowRowsOperator(WindowProcessOperator):
    """`apply` of windows, and `agg` under a trigger where rows are kept."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        operation = cast("WindowRows", node.operation)
        if operation.aggregates:
            self._writer = cast("RowWriter", FiringWriter(node))


class FiringWriter:
    """Makes a frame of results from firings, as `RowWriter` makes one from rows."""

    def __init__(self, node: Node) -> None:
        source = node.inputs[0]
        self._partials = Partials(node)
        self._keys = source.schema.select(source.keys, node.verb)
        self._rows = RowWriter(source.schema, None, f"{node.verb} ({node.operator_id})")
        self._timed = source.event_time
        self._names = list(node.schema.names)

    def copied(self, firing: Fired) -> Fired:
        """Nobody changes a firing."""
        return firing

    def frame_of_copies(self, firings: list[Fired], event_times: list[int] | None = None) -> pl.DataFrame:
        """One row per firing, in order."""
        results: list[pl.DataFrame] = []
        start = rows = 0
        for end, firing in enumerate(firings, 1):
            rows += len(firing.rows)
            if rows >= _ROWS_AT_ONCE or end == len(firings):
                results.append(self._aggregated(firings[start:end]))
                start, rows = end, 0
        frame = pl.concat(results)
        return frame if event_times is None else frame.with_columns(pl.Series(EVENT_TIME, event_times, pl.Int64))

    def _aggregated(self, firings: list[Fired]) -> pl.DataFrame:
        kept = [each for firing in firings for each in firing.rows]
        times: Any = [time for _, time, _ in kept] if self._timed else None
        rows = self._rows.frame([row for _, _, row in kept], times)
        lengths = pl.Series([len(firing.rows) for firing in firings], dtype=pl.Int64)
        numbers = pl.select(pl.int_range(len(firings)).repeat_by(lengths).explode().alias(_FIRING)).to_series()
        partials = self._partials.group([rows.with_columns(numbers)], [_FIRING], ordered=True)
        beside = key_frame([firing.key for firing in firings], self._keys).hstack(of_windows(firings))
        made = beside.hstack(partials.drop(_FIRING))
        return self._partials.results(made, beside.columns, self._names)


def of_windows(firings: Sequence[Fired] | Sequence[Totalled]) -> pl.DataFrame:
    """What may be said of the windows of firings; the schema tells what is."""
    moment = pl.Datetime("us", "UTC")
    bounds = zip(*(firing.bounds for firing in firings), strict=True)
    starts, ends = (pl.Series(list(each), dtype=pl.Int64).cast(moment) for each in bounds)
    retracted = pl.Series([firing.retracted for firing in firings], dtype=pl.Boolean)
    return pl.DataFrame({"window_start": starts, "window_end": ends, RETRACTED: retracted})

"""`agg` on windows of changes: what holds in a window when event time reaches its end, sent once.

The bounds of the window are a part of the key, and a retracted row says by itself which window it was in: it was put
there by a time that is one of its columns. So changes are counted as in `penstock.task.operators.aggregate_changes`,
until the window is over; then its keys are sent and forgotten, and whatever else comes for it is late.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, ClassVar, Final, cast

import polars as pl

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.functions.windows.definitions import describe_window
from penstock.plan.logical import Node
from penstock.plan.operations.window_changes import WindowChanges
from penstock.state.columns import canonical_keys, key_frame, key_values
from penstock.task.operator import OperatorContext, Output, RestoredState
from penstock.task.operators.aggregate_changes import AggregateChangesOperator
from penstock.task.operators.keyed_table import INDEX
from penstock.task.operators.lateness import of_windows_that_are_over
from penstock.task.operators.progress import GroupWatermarks

_KEYS_PER_FRAME: Final = 65_536
_END: Final = "window_end"


class WindowChangesOperator(AggregateChangesOperator):
    """The operator. Of a key that ended before its window did, only that is left which `_KeysByEnd` has."""

    _kind: ClassVar[str] = "window-changes"
    _keeps_results: ClassVar[bool] = False

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._window = describe_window(cast("WindowChanges", node.operation).window)
        self._due = _KeysByEnd()
        self._watermarks: GroupWatermarks

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._watermarks = GroupWatermarks(context, self._keys.names, restored)
        super().open(context, restored)

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        rows = canonical_keys(frame, self._keys)
        late = pl.Series(of_windows_that_are_over(rows, self._watermarks.at_rows(rows)))
        self._context.metrics.late_rows += int(late.sum())
        rows = rows.filter(~late)
        if rows.height == 0:
            return
        keys, fresh, _, _ = self._take(rows)
        self._due.add(keys, fresh[_END])

    def fire_due(self, watermark: int, output: Output) -> bool:
        keys = self._due.pop_due(self._watermarks.advance(watermark))
        if not keys:
            return False
        found = self._table.find(keys)
        named = key_frame(keys, self._keys)[found[INDEX]]
        with self._failing():
            there = found.select(self._sums.there).to_series()
            results = named.hstack(self._results(found, named).drop(INDEX)).filter(there)
        self._table.remove(keys)
        self._forget(keys)
        output.rows(self._timed(results.select(self._names)))
        return True

    def _timed(self, results: pl.DataFrame) -> pl.DataFrame:
        """With the last moment of the window as event time: results go out in order of that."""
        last = pl.col(_END).cast(pl.Int64()) - 1
        carried = [(last - 1).alias(WATERMARK)] if self._context.carries_watermarks else []
        return results.with_columns(last.alias(EVENT_TIME), *carried)

    def _header(self) -> dict[str, Any]:
        return {**super()._header(), "window": self._window}

    def _note(self, rows: pl.DataFrame) -> None:
        # Also of those that the table does not have: as many rows were popped back as were added, but others.
        keys = rows.select(self._keys.names).unique(maintain_order=True)
        self._due.add(key_values(keys, self._keys), keys[_END])


class _KeysByEnd:
    """The keys that may have a row, by the end of their window."""

    def __init__(self) -> None:
        self._keys: dict[int, dict[Any, None]] = {}

    def add(self, keys: Iterable[Any], ends: pl.Series) -> None:
        for key, end in zip(keys, ends.to_physical().to_list(), strict=True):
            self._keys.setdefault(end, {})[key] = None

    def pop_due(self, reached: int) -> list[Any]:
        """Some of the keys whose windows are over at this watermark, in order of their ends; each is given once."""
        popped: list[Any] = []
        for end in sorted(end for end in self._keys if end - 1 <= reached):
            keys = self._keys[end]
            some = list(islice(keys, _KEYS_PER_FRAME - len(popped)))
            popped += some
            for key in some:
                del keys[key]
            if keys:
                break
            del self._keys[end]
        return popped

"""`deduplicate` on a keyed stream: the first row of every key, or each newer one.

The first row is the one that arrives first and is sent at once; of newer rows a batch sends the newest of each key. What
is kept is when a key was written, in processing time, and how new its newest row is. As with Flink's state that lives for
so long after it was written, a key whose time is over is new.
"""

from __future__ import annotations

from typing import Any, Final, cast

import polars as pl

from penstock.core.batches import EVENT_TIME
from penstock.plan.logical import Node
from penstock.plan.operations.deduplicate import Deduplicate
from penstock.state.columns import canonical_keys, key_values
from penstock.state.segments import decode_segments
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.keyed_table import WRITTEN, Expiry, KeyedTable

_KIND: Final = "deduplicate"
_NEWEST: Final = "__newest"
_PLACE: Final = "__place"


class DeduplicateOperator(Operator):
    """The operator of both kinds."""

    def __init__(self, node: Node) -> None:
        operation = cast("Deduplicate", node.operation)
        source = node.inputs[0]
        self._operator = node.operator_id
        self._keep = operation.keep
        self._event_time = node.event_time
        self._ttl = operation.ttl_us
        self._keys = source.schema.select(source.keys)
        self._table = KeyedTable(self._keys, {WRITTEN: pl.Int64(), _NEWEST: pl.Int64()}, one_by_one=True)
        self._expiry = Expiry(self._ttl) if self._ttl is not None else None
        self._context: OperatorContext

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._table.open(self._operator, context)
        if restored is not None:
            self._restore(restored)

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        if frame.height == 0:
            return
        now = self._context.now_us()
        self._forget(now)
        rows = canonical_keys(frame, self._keys)
        if self._keep == "first":
            rows = rows.unique(self._keys.names, keep="first", maintain_order=True)
        else:
            rows = self._newest_of_batch(rows)
        self._send_new(rows, now, output)

    def _send_new(self, rows: pl.DataFrame, now: int, output: Output) -> None:
        """Send the rows that are new, of which there is one per key, and write them down."""
        time = pl.col(EVENT_TIME) if self._event_time else pl.lit(0, pl.Int64)
        marked = rows.with_columns(pl.lit(now, pl.Int64).alias(WRITTEN), time.alias(_NEWEST))
        keys = key_values(rows, self._keys)
        before = self._table.rows(keys)
        if self._ttl is not None:
            self._context.metrics.forgotten_keys += sum(self._is_over(row, now) for row in before)
        new = [self._is_new(row, time, now) for row, time in zip(before, marked[_NEWEST].to_list(), strict=True)]
        written = [key for key, is_new in zip(keys, new, strict=True) if is_new]
        chosen = pl.Series(new, dtype=pl.Boolean)
        self._table.put(written, marked.filter(chosen))
        if self._expiry is not None:
            self._expiry.touch(written, [now] * len(written))
        self._table.maintain(len(keys))
        output.rows(rows.filter(chosen))

    def _newest_of_batch(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The newest row of each key, by event time if there is one, then by arrival."""
        if not self._event_time:
            return rows.unique(self._keys.names, keep="last", maintain_order=True)
        place = pl.int_range(pl.len(), dtype=pl.Int64).alias(_PLACE)
        last = pl.col(_PLACE).sort_by(EVENT_TIME, maintain_order=True).last().over(self._keys.names)
        return rows.with_columns(place).filter(pl.col(_PLACE) == last).drop(_PLACE)

    def _is_new(self, row: tuple[Any, ...] | None, time: int, now: int) -> bool:
        if row is None or self._is_over(row, now):
            return True
        return self._keep == "last" and time >= row[1]

    def _is_over(self, row: tuple[Any, ...] | None, now: int) -> bool:
        return row is not None and self._ttl is not None and row[0] + self._ttl <= now

    def _forget(self, now: int) -> None:
        """Drop the keys whose time to live is over."""
        if self._expiry is None:
            return
        due = self._expiry.due(now)
        found = zip(due, self._table.rows(due), strict=True)
        over = [key for key, row in found if self._is_over(row, now)]
        self._table.remove(over)
        self._context.metrics.forgotten_keys += len(over)

    def close(self) -> None:
        self._table.close()

    # -- snapshots ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> OperatorSnapshot | None:
        return OperatorSnapshot(keyed=self._table.freeze({"kind": _KIND}, self._context))

    def _restore(self, restored: RestoredState) -> None:
        for _, _, rows in decode_segments(restored.keyed, self._operator, _KIND, self._keys):
            keys = self._table.load(canonical_keys(rows, self._keys))
            if self._expiry is not None:
                self._expiry.touch(keys, rows[WRITTEN].to_list())

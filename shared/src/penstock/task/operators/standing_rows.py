"""What stands for a key among all of its rows that hold: what operators have in common that send how it changes.

All rows of a key are kept, counted, with the place at which they came. What stands for a key before a batch and behind it
follows from them, so nothing is kept of what was sent.

With a time to live all rows of a key are forgotten when nothing has touched it for so long, and it begins anew: when a
key was touched stands in a table beside its rows. To take back a row of before does nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.logical import Node
from penstock.state.columns import canonical_keys, key_frame, key_values
from penstock.state.counted_rows import COUNT, CountedRows
from penstock.state.segments import decode_segments
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.changes import changes, count_of_change
from penstock.task.operators.keyed_table import INDEX, WRITTEN, Beside, KeyedTable

ARRIVAL: Final = "__came"
"""Int64: the place of a row among all that its subtask was given."""


class StandingRowsOperator(Operator):
    """On a keyed stream of changes, or of facts, which stay; which rows stand for a key, a subclass says."""

    def __init__(
        self, node: Node, kind: str, *, most: int = 1, beside: Mapping[str, pl.DataType] | None = None,
        order: str | None = None, ttl_us: int | None = None,
    ) -> None:  # fmt: skip
        """How rows are kept.

        Args:
            node: what the operator is of.
            kind: whose state it is, in snapshots.
            most: how many rows stand for a key at most.
            beside: columns that `_prepared` puts beside those of a row.
            order: the one of them by which rows of a key are in order, if any.
            ttl_us: how long a key is kept after it was touched; None: for ever.
        """
        source = node.inputs[0]
        self._operator = node.operator_id
        self._kind = kind
        self._most = most
        self._of_facts = source.mode != "retract"
        self._keys = source.schema.select(source.keys)
        self._hidden = [EVENT_TIME] if node.event_time else []
        self._names = [*node.schema.names, *self._hidden]
        types = {**source.row_schema.polars(), **(beside or {})}
        self._kept = {**types, COUNT: pl.Int64(), ARRIVAL: pl.Int64()}
        self._touched = None if ttl_us is None else KeyedTable(self._keys, {}, ttl_us=ttl_us)
        freezes = None if self._touched is None else self._touched.freezes
        self._rows = CountedRows(self._keys.names, types, newest=ARRIVAL, order=order, freezes=freezes)
        self._arrivals = 0
        self._context: OperatorContext

    @abstractmethod
    def _standing(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The rows that stand for these keys, without the keys, with `INDEX`: `most` numbers for each key, rising."""

    def _prepared(self, rows: pl.DataFrame) -> pl.DataFrame:
        """With the columns that are kept beside those of a row."""
        return rows

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._rows.lies_in(context.local_state)
        if self._touched is not None:
            self._touched.open(self._operator, context)
        keyed = restored.keyed if restored is not None else ()
        parts = [rows for _, _, rows in decode_segments(keyed, self._operator, self._kind, self._keys)]
        if parts:
            self._restore(canonical_keys(pl.concat(parts, how="diagonal"), self._keys))

    def _restore(self, both: pl.DataFrame) -> None:
        """Rows, and when their keys were touched, if that was kept. Segments of key groups without rows have no columns
        for them."""
        missing = {name: kind for name, kind in self._kept.items() if name not in both.columns}
        both = both.with_columns(pl.lit(None, kind).alias(name) for name, kind in missing.items())
        rows = both.filter(pl.col(COUNT).is_not_null())
        self._rows.add(rows)
        self._arrivals = int(rows[ARRIVAL].to_numpy().max(initial=self._arrivals))
        if self._touched is None:
            return
        dated = WRITTEN in both.columns
        self._touched.load(both.filter(pl.col(COUNT).is_null()) if dated else rows.unique(self._keys.names))

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        if frame.height == 0:
            return
        if self._of_facts:
            frame = frame.with_columns(pl.lit(False).alias(RETRACTED))
        changed = self._changed(canonical_keys(frame, self._keys))
        if changed.height:
            output.rows(changed.select(self._names))

    def _changed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Keep the rows, or no longer; how what stands for their keys changes."""
        if self._touched is not None:
            self._forget(self._touched)
        newest = [pl.col(name).last() for name in self._hidden]
        keys = rows.group_by(self._keys.names, maintain_order=True).agg(newest)
        only_keys = keys.select(self._keys.names)
        before = self._standing(only_keys)
        self._add(rows)
        after = self._standing(only_keys)
        if self._touched is not None:
            self._touch(self._touched, only_keys, after)
        return self._differences(before, after, keys)

    def _differences(self, before: pl.DataFrame, after: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
        """What is sent where such rows stood for these keys, and such ones do now."""
        return changes(before, after, keys, self._most)

    def _add(self, rows: pl.DataFrame) -> None:
        place = pl.int_range(self._arrivals + 1, self._arrivals + 1 + pl.len(), dtype=pl.Int64)
        arrival = pl.when(RETRACTED).then(0).otherwise(place).alias(ARRIVAL)
        self._arrivals += rows.height
        rows = self._prepared(rows.with_columns(count_of_change(), arrival))
        if self._touched is not None:
            known = self._rows.without_unknown(rows)
            self._context.metrics.lost_changes += rows.height - known.height
            rows = known
        self._rows.add(rows)

    def _forget(self, touched: KeyedTable) -> None:
        if over := touched.forget():
            self._rows.remove(key_frame(over, self._keys))

    def _touch(self, touched: KeyedTable, keys: pl.DataFrame, standing: pl.DataFrame) -> None:
        """These keys were touched, and are to be known as long as something stands for them."""
        there = np.zeros(keys.height, np.bool_)
        there[(standing[INDEX] // self._most).to_numpy()] = True
        kept = keys.filter(there)
        touched.remove(key_values(keys.filter(~there), self._keys))
        touched.put(key_values(kept, self._keys), kept)
        touched.maintain(keys.height)

    def close(self) -> None:
        if self._touched is not None:
            self._touched.close()

    def run_background_slice(self) -> bool:
        return self._rows.run_background_slice()

    def snapshot(self) -> OperatorSnapshot | None:
        if self._touched is not None:
            frames = [(run.epoch, (piece.frame for piece in run.pieces())) for run in self._rows.freeze()]
            header, beside = {"kind": self._kind}, Beside(self._kept, frames)
            return OperatorSnapshot(keyed=self._touched.freeze(header, self._context, beside))
        max_parallelism, incremental = self._context.max_parallelism, self._context.incremental
        kept = self._rows.frozen({"kind": self._kind}, self._keys, max_parallelism, incremental=incremental)
        return OperatorSnapshot(keyed=kept)

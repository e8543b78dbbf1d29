"""What stands for a key among all of its rows that hold: what operators have in common that send how it changes.

All rows of a key are kept, counted, with the place at which they came. What stands for a key before a batch and behind it
follows from them, so nothing is kept of what was sent.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Final

import polars as pl

from penstock.batches import EVENT_TIME
from penstock.graph.logical import RETRACTED, Node
from penstock.state.columns import canonical_keys
from penstock.state.counted_rows import CountedRows
from penstock.state.segments import decode_segments
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.changes import changes, count_of_change

CAME: Final = "__came"
"""Int64: the place of a row among all that its subtask was given."""


class StandingRowsOperator(Operator):
    """On a keyed stream of changes; which rows stand for a key, a subclass says."""

    def __init__(
        self, node: Node, kind: str, *, most: int = 1, beside: Mapping[str, pl.DataType] | None = None,
        order: str | None = None,
    ) -> None:  # fmt: skip
        """How rows are kept.

        Args:
            node: what the operator is of.
            kind: whose state it is, in snapshots.
            most: how many rows stand for a key at most.
            beside: columns that `_prepared` puts beside those of a row.
            order: the one of them by which rows of a key are in order, if any.
        """
        source = node.inputs[0]
        self._operator = node.operator_id
        self._kind = kind
        self._most = most
        self._keys = source.schema.select(source.keys)
        self._hidden = [EVENT_TIME] if node.event_time else []
        self._names = [*node.schema.names, *self._hidden]
        types = {**source.row_schema.polars(), **(beside or {})}
        self._rows = CountedRows(self._keys.names, types, newest=CAME, order=order)
        self._came = 0
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
        keyed = restored.keyed if restored is not None else ()
        parts = [rows for _, _, rows in decode_segments(keyed, self._operator, self._kind, self._keys)]
        if parts:
            rows = canonical_keys(pl.concat(parts), self._keys)
            self._rows.add(rows)
            self._came = int(rows[CAME].to_numpy().max(initial=self._came))

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        if frame.height == 0:
            return
        changed = self._changed(canonical_keys(frame, self._keys))
        if changed.height:
            output.rows(changed.select(self._names))

    def _changed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Keep the rows, or no longer; how what stands for their keys changes."""
        newest = [pl.col(name).last() for name in self._hidden]
        keys = rows.group_by(self._keys.names, maintain_order=True).agg(newest)
        only_keys = keys.select(self._keys.names)
        before = self._standing(only_keys)
        self._add(rows)
        return changes(before, self._standing(only_keys), keys, self._most)

    def _add(self, rows: pl.DataFrame) -> None:
        place = pl.int_range(self._came + 1, self._came + 1 + pl.len(), dtype=pl.Int64)
        came = pl.when(RETRACTED).then(0).otherwise(place).alias(CAME)
        self._rows.add(self._prepared(rows.with_columns(count_of_change(), came)))
        self._came += rows.height

    def go_on(self) -> bool:
        return self._rows.go_on()

    def snapshot(self) -> OperatorSnapshot | None:
        max_parallelism, incremental = self._context.max_parallelism, self._context.incremental
        kept = self._rows.frozen({"kind": self._kind}, self._keys, max_parallelism, incremental=incremental)
        return OperatorSnapshot(keyed=kept)

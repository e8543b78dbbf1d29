"""`top` on a keyed stream of changes: the best rows of every key that hold, with their rank: Flink's RetractableTopN.

All rows of a key are kept, counted, and in order, so that a batch looks at little more than the best ones before it and
behind it, however many there are. What stands at a rank is taken back when another row stands there, or none.
"""

from __future__ import annotations

from typing import Final, cast

import numpy as np
import polars as pl

from penstock.batches import EVENT_TIME
from penstock.errors import UserCodeError
from penstock.expressions import to_polars
from penstock.graph.logical import RANK, RETRACTED, Node, TopOfChanges
from penstock.state.columns import canonical_keys
from penstock.state.counted_rows import COUNT, INDEX, CountedRows, FrozenCounts
from penstock.state.row_order import order_of
from penstock.state.segments import decode_segments
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.changes import changes

_KIND: Final = "top-of-changes"
_BY: Final = "__by"
_ORDER: Final = "__order"
_CAME: Final = "__came"
"""Int64: the place of a row among all that its subtask was given."""


class TopOfChangesOperator(Operator):
    """`top` on a keyed stream of changes."""

    def __init__(self, node: Node) -> None:
        operation, source = cast("TopOfChanges", node.operation), node.inputs[0]
        self._operator = node.operator_id
        self._where = f"{node.verb} ({node.operator_id})"
        self._n, self._descending = operation.n, operation.descending
        self._keys = source.schema.select(source.keys)
        types = {name: kind for name, kind in source.schema.polars().items() if name != RETRACTED}
        by = to_polars(operation.by, source.schema, self._where)
        kind = pl.DataFrame(schema=types).select(by.alias(_BY)).schema[_BY]
        self._by = (by.fill_nan(None) if kind.is_float() else by).alias(_BY)
        self._hidden = [EVENT_TIME] if node.event_time else []
        self._names = [*node.schema.names, *self._hidden]
        self._ranked = [name for name in node.schema.names if name not in (*self._keys.names, RETRACTED)]
        self._rows = CountedRows(
            self._keys.names, {**types, _BY: kind, _ORDER: pl.Int64()}, newest=_CAME, order=_ORDER
        )  # fmt: skip
        self._came = 0
        self._context: OperatorContext

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        for _, _, rows in decode_segments(restored.keyed, self._operator, _KIND, self._keys) if restored else ():
            self._rows.add(canonical_keys(rows, self._keys))
            self._came = max([self._came, *rows[_CAME]])

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        if frame.height == 0:
            return
        try:
            changed = self._ranks(canonical_keys(frame, self._keys))
        except pl.exceptions.PolarsError as error:
            raise UserCodeError(f"{self._where}: the rows of a batch could not be ordered: {error}") from error
        if changed.height:
            output.rows(changed.select(self._names))

    def _ranks(self, rows: pl.DataFrame) -> pl.DataFrame:
        newest = [pl.col(name).last() for name in self._hidden]
        keys = rows.group_by(self._keys.names, maintain_order=True).agg(newest)
        before = self._best(keys)
        self._add(rows)
        beside = keys[np.repeat(np.arange(keys.height), self._n)]
        return changes(before, self._best(keys), beside)

    def _add(self, rows: pl.DataFrame) -> None:
        added = pl.int_range(self._came + 1, self._came + 1 + pl.len(), dtype=pl.Int64)
        rows = rows.with_columns(
            self._by,
            pl.when(RETRACTED).then(-1).otherwise(1).cast(pl.Int64).alias(COUNT),
            pl.when(RETRACTED).then(0).otherwise(added).alias(_CAME),
        )
        self._came += rows.height
        order = order_of(rows[_BY], descending=self._descending)
        self._rows.add(rows.with_columns(pl.Series(_ORDER, order)))

    def _best(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The best rows of these keys with their rank, numbered by key and rank."""
        rows = self._rows.greatest(keys.select(self._keys.names), self._n).filter(pl.col(COUNT) > 0)
        rows = rows.sort(INDEX, _BY, _CAME, descending=[False, self._descending, False], nulls_last=True)
        rows = rows[np.repeat(np.arange(rows.height), np.minimum(rows[COUNT].to_numpy(), self._n))]
        rows = rows.with_columns(pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(INDEX).alias(RANK))
        rows = rows.filter(pl.col(RANK) <= self._n)
        return rows.select(pl.col(INDEX) * self._n + pl.col(RANK) - 1, *self._ranked)

    def snapshot(self) -> OperatorSnapshot | None:
        kept = FrozenCounts(self._rows.freeze(), {"kind": _KIND}, self._keys, self._context.max_parallelism)
        return OperatorSnapshot(keyed=kept)

"""`final` on a stream of updates: the last row of every key, at the end of the input.

Nothing is sent before, and no watermark either: the rows, of which some are old by then, are not late behind.

Changes that have no key, such as those of a join with a stream of facts, are counted: `RowsThatHoldOperator`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final, cast

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME
from penstock.core.times import MAX_WATERMARK
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.logical import Node
from penstock.plan.operations.last_rows import LastRows
from penstock.state.columns import canonical_keys, key_frame, key_values
from penstock.state.counted_rows import COUNT, CountedRows
from penstock.state.segments import decode_segments
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.changes import count_of_change
from penstock.task.operators.keyed_table import KeyedTable
from penstock.types import polars_type

_KIND: Final = "final"
_ROWS_PER_FRAME: Final = 65_536


class _AtTheEnd(Operator):
    """Takes rows, and emits what is left of them when its input ends."""

    _names: list[str]

    @abstractmethod
    def _drain(self) -> pl.DataFrame:
        """The rows that are left, which are forgotten: a checkpoint from here on must not send them again."""

    def advance(self, watermark: int, output: Output) -> None:
        if watermark == MAX_WATERMARK:
            super().advance(watermark, output)

    def fire_due(self, watermark: int, output: Output) -> bool:
        if watermark == MAX_WATERMARK:
            for rows in self._drain().iter_slices(_ROWS_PER_FRAME):
                output.rows(rows.select(self._names))
        return False


class FinalOperator(_AtTheEnd):
    """`final` on a stream of updates."""

    def __init__(self, node: Node) -> None:
        source = node.inputs[0]
        self._operator = node.operator_id
        self._retracted = cast("LastRows", node.operation).retracted
        self._keys = source.schema.select(source.keys)
        others = {field.name: polars_type(field.type) for field in source.schema if field.name not in self._keys}
        self._types = others | {EVENT_TIME: pl.Int64()} if node.event_time else others
        self._names = [*node.schema.names, EVENT_TIME] if node.event_time else list(node.schema.names)
        self._table = KeyedTable(self._keys, self._types)
        self._context: OperatorContext

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._table.open(self._operator, context)
        if restored is not None:
            for _, _, rows in decode_segments(restored.keyed, self._operator, _KIND, self._keys):
                self._table.load(canonical_keys(rows, self._keys))

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        rows = canonical_keys(frame.select(self._names), self._keys)
        rows = rows.unique(self._keys.names, keep="last", maintain_order=True)
        keys = key_values(rows, self._keys)
        self._table.put(keys, rows)
        if self._retracted is not None:
            self._table.remove(key_values(rows.filter(pl.col(self._retracted)), self._keys))
        self._table.maintain(len(keys))

    def _drain(self) -> pl.DataFrame:
        keys = self._table.all_keys()
        rows = key_frame(keys, self._keys).hstack(self._table.find(keys).select(self._types.keys()))
        self._table.clear()
        return rows.sort(EVENT_TIME, maintain_order=True) if EVENT_TIME in self._types else rows

    def close(self) -> None:
        self._table.close()

    def snapshot(self) -> OperatorSnapshot | None:
        return OperatorSnapshot(keyed=self._table.freeze({"kind": _KIND}, self._context))


class RowsThatHoldOperator(_AtTheEnd):
    """`final` on changes of rows without a key: each that was added, less those that were retracted."""

    def __init__(self, node: Node) -> None:
        source = node.inputs[0]
        self._operator = node.operator_id
        self._keys = source.schema.select(source.keys)
        self._types = source.row_schema.polars()
        self._newest = [EVENT_TIME] if node.event_time else []
        self._names = [*node.schema.names, *self._newest]
        self._rows = CountedRows(self._keys.names, self._types, newest=EVENT_TIME if self._newest else None)
        self._context: OperatorContext

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._rows.lies_in(context.local_state)
        keyed = restored.keyed if restored is not None else ()
        parts = [rows for _, _, rows in decode_segments(keyed, self._operator, _KIND, self._keys)]
        if parts:
            self._rows.add(canonical_keys(pl.concat(parts), self._keys))

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        self._rows.add(canonical_keys(frame, self._keys).with_columns(count_of_change()))

    def run_background_slice(self) -> bool:
        return self._rows.run_background_slice()

    def _drain(self) -> pl.DataFrame:
        rows = self._rows.all()
        self._rows.clear()
        if self._newest:
            rows = rows.sort(EVENT_TIME, maintain_order=True)
        rows = rows[np.repeat(np.arange(rows.height), rows[COUNT].clip(lower_bound=0).to_numpy())]
        return rows.with_columns(pl.lit(False).alias(RETRACTED))

    def snapshot(self) -> OperatorSnapshot | None:
        max_parallelism, incremental = self._context.max_parallelism, self._context.incremental
        kept = self._rows.frozen({"kind": _KIND}, self._keys, max_parallelism, incremental=incremental)
        return OperatorSnapshot(keyed=kept)

"""Changes for a sink that has one row per key, which is not the key of the changes: the last row that still holds.

The changes of such a key come from several subtasks: its new row may be here before the old one is taken back. So all of
its rows that hold are kept, counted, and the one that came last is written (Flink: SinkUpsertMaterializer).
"""

from __future__ import annotations

from typing import Final

import polars as pl

from penstock.batches import EVENT_TIME
from penstock.graph.logical import RETRACTED, Node
from penstock.state.columns import canonical_keys
from penstock.state.counted_rows import COUNT, INDEX, CountedRows, FrozenCounts
from penstock.state.segments import decode_segments
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.changes import changes

_KIND: Final = "materialize"
_CAME: Final = "__came"
"""Int64: the place of a row among all that its subtask was given."""


class MaterializeOperator(Operator):
    """Changes by another key than their own."""

    def __init__(self, node: Node) -> None:
        self._operator = node.operator_id
        self._keys = node.schema.select(node.keys)
        self._hidden = [EVENT_TIME] if node.event_time else []
        self._names = list(node.schema.names)
        types = {name: kind for name, kind in node.schema.polars().items() if name != RETRACTED}
        self._rows = CountedRows(self._keys.names, types, newest=_CAME)
        self._came = 0
        self._context: OperatorContext

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        for _, _, rows in decode_segments(restored.keyed, self._operator, _KIND, self._keys) if restored else ():
            self._rows.add(canonical_keys(rows, self._keys))
            self._came = max([self._came, *rows[_CAME]])

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        rows = canonical_keys(frame, self._keys)
        newest = [pl.col(name).last() for name in self._hidden]
        keys = rows.group_by(self._keys.names, maintain_order=True).agg(newest)
        before = self._standing(keys)
        added = pl.int_range(self._came + 1, self._came + 1 + pl.len(), dtype=pl.Int64)
        self._came += rows.height
        sign = pl.when(RETRACTED).then(-1).otherwise(1).cast(pl.Int64)
        self._rows.add(rows.with_columns(sign.alias(COUNT), pl.when(RETRACTED).then(0).otherwise(added).alias(_CAME)))
        changed = changes(before, self._standing(keys), keys)
        if changed.height:
            output.rows(changed.select(*self._names, *self._hidden))

    def _standing(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The last row of each of these keys that has any, with `INDEX`, rising."""
        rows = self._rows.of(keys.select(self._keys.names)).filter(pl.col(COUNT) > 0).sort(INDEX, _CAME)
        return rows.unique(INDEX, keep="last", maintain_order=True).drop(*self._keys.names, COUNT, _CAME)

    def snapshot(self) -> OperatorSnapshot | None:
        kept = FrozenCounts(self._rows.freeze(), {"kind": _KIND}, self._keys, self._context.max_parallelism)
        return OperatorSnapshot(keyed=kept)

"""Streams of updates as changes: what a row replaces is retracted, so that sums of rows stay right.

Every change is a row; `RETRACTED` says of it that it takes back one that was sent before, the same in all columns. Of the
updates of a key in one batch only the last counts, and one that changes nothing is not sent. With a time to live a key
that no update has touched for so long begins anew, and what changes nothing is sent, too, so that keys behind live on (as
in Flink).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import numpy as np
import polars as pl

from penstock.connectors.base import ChangeSource
from penstock.connectors.change_rows import UNCHANGED
from penstock.core.batches import EVENT_TIME
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.logical import Node
from penstock.plan.operations.key_by import KeyBy
from penstock.plan.operations.read import Read
from penstock.plan.operations.to_changes import ToChanges
from penstock.state.columns import canonical_keys, key_values
from penstock.state.counted_rows import COUNT, counted
from penstock.state.segments import decode_segments
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.keyed_table import INDEX, KeyedTable
from penstock.types import BINARY, STRING, DataType, polars_type

_KIND: Final = "changes"


class ChangesOperator(Operator):
    """The last row of every key as state; what it was before is retracted (Flink: ChangelogNormalize)."""

    def __init__(self, node: Node) -> None:
        operation = cast("ToChanges", node.operation)
        self._operator = node.operator_id
        self._retracted = operation.retracted
        self._keys = node.schema.select(node.keys)
        self._hidden = [EVENT_TIME] if node.event_time else []
        self._names = list(node.schema.names)
        others = [field for field in node.schema if field.name not in self._keys and field.name != RETRACTED]
        types = {field.name: polars_type(field.type) for field in others}
        self._never_null = {field.name for field in others if not field.nullable}
        self._table = KeyedTable(self._keys, types, ttl_us=operation.ttl_us)
        self._unchanged = _stand_ins(node)
        self._context: OperatorContext

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._table.open(self._operator, context)
        if restored is not None:
            for _, _, rows in decode_segments(restored.keyed, self._operator, _KIND, self._keys):
                self._table.load(canonical_keys(rows, self._keys))

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        self._table.forget()
        rows = canonical_keys(frame, self._keys)
        unknown = self._unknown(rows)
        rows = self._within(rows, unknown).unique(self._keys.names, keep="last", maintain_order=True)
        keys = key_values(rows, self._keys)
        before = self._table.find(keys)
        if unknown:
            rows = self._from_kept(rows, before)
            keys = key_values(rows, self._keys)
            before = self._table.find(keys)
        after = rows.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(INDEX))
        if self._retracted is not None:
            gone = after.filter(self._retracted)
            self._table.remove(key_values(gone, self._keys))
            after = after.filter(~pl.col(self._retracted))
            if self._table.expires:
                self._context.metrics.lost_changes += gone.join(before, on=INDEX, how="anti").height
        self._table.put([keys[index] for index in after[INDEX]], after)
        beside = rows.select(*self._keys.names, *self._hidden)
        changed = changes(before, after.select(before.columns), beside, unchanged=self._table.expires)
        if changed.height:
            output.rows(changed.select(*self._names, *self._hidden))
        self._table.maintain(len(keys))

    # -- large values that an update left as they were ------------------------------------------------------------------

    def _unknown(self, rows: pl.DataFrame) -> list[str]:
        """The columns in which such a value stands."""
        if not self._unchanged:
            return []
        found = rows.select((pl.col(name) == pl.lit(value)).any() for name, value in self._unchanged.items())
        return [name for name, there in found.row(0, named=True).items() if there]

    def _within(self, rows: pl.DataFrame, unknown: Sequence[str]) -> pl.DataFrame:
        """With the values that earlier rows of the same key in this batch have."""
        for name in unknown:
            known = pl.col(name).ne_missing(pl.lit(self._unchanged[name])) & ~pl.col(self._retracted or "")
            numbered = rows.with_row_index(INDEX)  # over all rows: within `over` they would be counted by key
            place = pl.when(known).then(pl.col(INDEX)).forward_fill().over(self._keys.names)
            places = numbered.select(place).to_series()
            former = rows[name].gather(places)
            rows = rows.with_columns(pl.when(places.is_not_null()).then(former).otherwise(pl.col(name)).alias(name))
        return rows

    def _from_kept(self, rows: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """With the values that the kept rows have.

        Where no row is kept, because its time to live was over or the input begins behind it, such a value is null. A
        row that must have one is left out, and counted as a lost change.
        """
        kept = before.select(INDEX, *(pl.col(name).alias(f"{INDEX}{name}") for name in self._unchanged))
        found = rows.with_row_index(INDEX).with_columns(pl.col(INDEX).cast(pl.Int64))
        found = found.join(kept, INDEX, "left", maintain_order="left")
        lost = pl.repeat(value=False, n=rows.height, eager=True)
        for name, stand_in in self._unchanged.items():
            unchanged = found.select(pl.col(name).eq_missing(pl.lit(stand_in))).to_series()
            filled = pl.when(unchanged).then(pl.col(f"{INDEX}{name}")).otherwise(pl.col(name)).alias(name)
            found = found.with_columns(filled)
            if name in self._never_null:
                lost = lost | (unchanged & found[name].is_null())
        self._context.metrics.lost_changes += int(lost.sum())
        return found.filter(~lost).select(rows.columns)

    def close(self) -> None:
        self._table.close()

    def snapshot(self) -> OperatorSnapshot | None:
        return OperatorSnapshot(keyed=self._table.freeze({"kind": _KIND}, self._context))


def _stand_ins(node: Node) -> dict[str, str | bytes]:
    """What stands for a large value that an update left as it was, by column: straight behind a source of changes."""
    keyed = node.inputs[0]
    operation = (keyed.inputs[0] if isinstance(keyed.operation, KeyBy) else keyed).operation
    if not isinstance(operation, Read) or not isinstance(operation.source, ChangeSource):
        return {}
    forms: dict[DataType, str | bytes] = {STRING: UNCHANGED, BINARY: UNCHANGED.encode()}
    rows = operation.source.rows
    return {
        each.name: forms[each.type] for each in rows if each.type in forms and each.name not in operation.source.keys
    }


def count_of_change() -> pl.Expr:
    """`COUNT` of a change: 1 of a row that is added, -1 of one that is retracted."""
    return pl.when(RETRACTED).then(-1).otherwise(1).cast(pl.Int64).alias(COUNT)


def changes(
    before: pl.DataFrame, after: pl.DataFrame, beside: pl.DataFrame, each: int = 1, *, unchanged: bool = False
) -> pl.DataFrame:
    """What is retracted and what is added where rows have changed, one behind the other for each.

    Args:
        before: the former rows with `INDEX`, rising; where a number is missing there was none.
        after: the new ones, with the same columns.
        beside: by number, what stands beside both: the keys.
        each: how many numbers in a row have the same beside them.
        unchanged: whether what stays the same is retracted and added, too.
    """
    if not unchanged:
        _, old, new = np.intersect1d(before[INDEX], after[INDEX], assume_unique=True, return_indices=True)
        same = _equal(before[old], after[new], [name for name in before.columns if name != INDEX])
        before, after = _without(before, old[same]), _without(after, new[same])
    gone, come = before.with_columns(pl.lit(True).alias(RETRACTED)), after.with_columns(pl.lit(False).alias(RETRACTED))
    changed = pl.concat([gone, come]).sort(INDEX, maintain_order=True)
    return beside[changed[INDEX] // each].hstack(changed.drop(INDEX))


def changed_rows(before: pl.DataFrame, after: pl.DataFrame, beside: pl.DataFrame) -> pl.DataFrame:
    """What is retracted and what is added where there are other rows, in whatever order: those of each number together.

    Args:
        before: the former rows with `INDEX`; equal ones are counted.
        after: the new ones, with the same columns.
        beside: by number, what stands beside both: the keys.
    """
    signed = [rows.with_columns(pl.lit(sign, pl.Int64).alias(COUNT)) for rows, sign in ((before, -1), (after, 1))]
    changed = counted(pl.concat(signed), before.columns)
    changed = changed.sort(INDEX, pl.col(COUNT) > 0, maintain_order=True)
    changed = changed[np.repeat(np.arange(changed.height), changed[COUNT].abs().to_numpy())]
    changed = changed.with_columns((pl.col(COUNT) < 0).alias(RETRACTED))
    return beside[changed[INDEX]].hstack(changed.drop(INDEX, COUNT))


def _equal(one: pl.DataFrame, other: pl.DataFrame, names: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    equal = np.ones(one.height, np.bool_)
    for name in names:
        equal &= one[name].eq_missing(other[name]).to_numpy()
    return equal


def _without(rows: pl.DataFrame, places: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pl.DataFrame:
    kept = np.ones(rows.height, np.bool_)
    kept[places] = False
    return rows.filter(kept)

"""`top` on a keyed stream: the best rows of every key so far, with their rank: Flink's AppendOnlyTopNFunction.

A key keeps its best rows as one row of lists, best first. Rows of a batch that are not behind all of these are ranked
together with them, and the ranks where another row stands now are sent. A row keeps its own event time, whichever rank it
comes to: when it came there depends on batches. With a time to live a key none of whose ranks changed for so long begins
anew.

Without a column of ranks the changes of the best rows are sent instead: a row that is one of them now, and one that is
none any more. A row that only moves between ranks, which is most of what happens to it, sends nothing.
"""

from __future__ import annotations

from itertools import compress
from typing import Final, cast

import polars as pl

from penstock.core.batches import EVENT_TIME
from penstock.errors import UserCodeError, without_context
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.logical import Node
from penstock.plan.operations.top import Top
from penstock.state.columns import canonical_keys, key_values
from penstock.state.segments import decode_segments
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.keyed_table import INDEX, KeyedTable
from penstock.task.operators.ordering import RowOrder
from penstock.types import polars_type

_KIND: Final = "top"
_RANK: Final = "__rank"
_BEFORE: Final = "__before"
"""Int64: the rank that a row had; null for those of the batch."""
_PLACE: Final = "__place"
_FULL: Final = "__full"
_STORED: Final = "__top_"
_LEAST_SIFTED: Final = 1_024
"""Of so many rows or more those are left out first that cannot be among the best. Fewer are ranked in less time."""


class TopOperator(Operator):
    """`top` on a keyed stream."""

    def __init__(self, node: Node) -> None:
        operation = cast("Top", node.operation)
        source = node.inputs[0]
        self._operator = node.operator_id
        self._where = f"{node.verb} ({node.operator_id})"
        self._offset, self._last, self._rank_name = operation.offset, operation.last, operation.rank
        self._order = RowOrder(operation.by, source.schema, self._where)
        self._keys = source.schema.select(source.keys)
        others = {field.name: polars_type(field.type) for field in source.schema if field.name not in self._keys}
        timed = {EVENT_TIME: pl.Int64()} if node.event_time else {}
        self._others = [*others, *timed]
        self._names = [*node.schema.names, *timed]
        ordering = {name: pl.List(kind) for name, kind in self._order.types.items()}
        types = {f"{_STORED}{name}": pl.List(kind) for name, kind in {**others, **timed}.items()}
        self._table = KeyedTable(self._keys, {**ordering, **types}, ttl_us=operation.ttl_us)
        self._context: OperatorContext

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._table.open(self._operator, context)
        if restored is not None:
            for _, _, rows in decode_segments(restored.keyed, self._operator, _KIND, self._keys):
                self._table.load(canonical_keys(rows, self._keys))

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        if frame.height == 0:
            return
        try:
            self._rank(canonical_keys(frame, self._keys), output)
        except pl.exceptions.PolarsError as error:
            raise UserCodeError(
                f"{self._where}: the rows of a batch could not be ordered: {without_context(error)}"
            ) from error

    def _rank(self, rows: pl.DataFrame, output: Output) -> None:
        self._table.forget()
        by, by_order = list(self._keys.names), self._order.names
        rows = rows.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(_PLACE), *self._order.columns)
        rows = rows.with_columns(pl.col(_PLACE).first().over(by).alias(INDEX))
        touched = rows.filter(pl.col(_PLACE) == pl.col(INDEX))
        keys = key_values(touched, self._keys)
        found = self._table.find(keys)
        self._table.maintain(len(keys))
        found = found.with_columns(touched[INDEX].gather(found[INDEX]).alias(INDEX))
        if rows.height >= _LEAST_SIFTED or self._table.expires:  # or else what changes nothing would be written, too
            rows = self._hopeful(rows, found)
            if not rows.height:
                return
            changing = touched[INDEX].is_in(rows[INDEX].unique().implode())
            touched, keys = touched.filter(changing), list(compress(keys, changing))
            found = found.filter(found[INDEX].is_in(touched[INDEX].implode()))
        fresh = rows.select(INDEX, pl.lit(None, pl.Int64).alias(_BEFORE), *by_order, *self._others)
        ranked = self._ranked(pl.concat([self._kept(found), fresh]))
        best = ranked.filter(pl.col(_RANK) <= self._last)
        stored = [*map(pl.col, by_order), *(pl.col(name).alias(f"{_STORED}{name}") for name in self._others)]
        self._table.put(keys, best.group_by(INDEX, maintain_order=True).agg(stored))
        self._send(best if self._rank_name is not None else ranked, touched, output)

    def _hopeful(self, rows: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
        """The rows that are not behind as many kept ones of their key as are kept; one that is as good came before."""
        by = self._order.names
        full = found.filter(pl.col(by[0]).list.len() == self._last)
        lasts = full.select(INDEX, pl.lit(True).alias(_FULL), *(pl.col(name).list.last() for name in by))
        last = rows.select(INDEX).join(lasts, on=INDEX, how="left", maintain_order="left")
        return rows.filter(~(last[_FULL].fill_null(False) & self._order.not_before(rows, last)))

    def _kept(self, found: pl.DataFrame) -> pl.DataFrame:
        """The best rows so far of these keys, best first."""
        kept = found.explode(list(self._table.types))
        ranks = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(INDEX).alias(_BEFORE)
        others = (pl.col(f"{_STORED}{name}").alias(name) for name in self._others)
        return kept.select(INDEX, ranks, *self._order.names, *others)

    def _ranked(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows of each key with their rank, keys in order of their first row; rows come in order of arrival."""
        ranks = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(INDEX).alias(_RANK)
        return self._order.sorted(rows, INDEX).with_columns(ranks)

    def _send(self, ranked: pl.DataFrame, touched: pl.DataFrame, output: Output) -> None:
        changed = self._new_ranks(ranked) if self._rank_name is not None else self._changes(ranked)
        beside = touched.select(INDEX, *self._keys.names)
        changed = changed.join(beside, on=INDEX, how="left", maintain_order="left")
        if changed.height:
            output.rows(changed.select(self._names))

    def _new_ranks(self, best: pl.DataFrame) -> pl.DataFrame:
        """The rows that stand at another rank than before."""
        moved = pl.col(_BEFORE).is_null() | (pl.col(_BEFORE) != pl.col(_RANK))
        changed = best.filter(moved & (pl.col(_RANK) > self._offset))
        return changed.with_columns(pl.col(_RANK).alias(self._rank_name or _RANK))

    def _changes(self, ranked: pl.DataFrame) -> pl.DataFrame:
        """The rows that were among those that are sent and are no longer, and the other way round; key by key."""
        before = ranked[_BEFORE].is_between(self._offset + 1, self._last).fill_null(False)
        after = ranked[_RANK].is_between(self._offset + 1, self._last)
        changed = ranked.with_columns((before & ~after).alias(RETRACTED)).filter(before != after)
        return changed.sort(INDEX, ~pl.col(RETRACTED), maintain_order=True)

    def close(self) -> None:
        self._table.close()

    def snapshot(self) -> OperatorSnapshot | None:
        return OperatorSnapshot(keyed=self._table.freeze({"kind": _KIND}, self._context))

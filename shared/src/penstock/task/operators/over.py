"""`over` on a keyed stream: every row beside the rows of its key before it, by event time: Flink's OverAggregate.

Rows wait until the watermark has passed their event time; then they are sorted once and computed together, at most so
many at a time that others get their turn. So nothing depends on when watermarks come or how rows were batched.

Responsible for what is due and late, for what is remembered of keys and for how long, and for snapshots; what is computed
is `over_plan`'s business.
"""

from __future__ import annotations

from typing import Final, cast

import polars as pl

from penstock.batches import EVENT_TIME, WATERMARK
from penstock.errors import IncompatibleStateError
from penstock.graph.logical import Node
from penstock.state.columns import canonical_keys, key_values
from penstock.state.segments import decode_segments
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.keyed_table import INDEX, Expiry, KeyedTable
from penstock.task.operators.levels import Part
from penstock.task.operators.over_plan import KEY, PLACE, TIMES, OverPlan, with_lists
from penstock.task.operators.progress import GroupWatermarks, LateRows
from penstock.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.types import polars_type

_KIND: Final = "over"
_PENDING: Final = "__pending"
"""Boolean: a row of a segment is one that waits for its time, with the columns of the input."""
_INPUT: Final = "__in_"
_ROWS_AT_ONCE: Final = 65_536
_ROWS_OF_A_KEY: Final = 2_048
"""As frames that reach far back are computed, every row of a key looks at all those of the key that are at hand."""


class OverOperator(Operator):
    """`over` on a keyed stream."""

    def __init__(self, node: Node) -> None:
        self._operator = node.operator_id
        self._plan = OverPlan(node)
        source = node.inputs[0]
        self._input = {field.name: polars_type(field.type) for field in source.schema} | {EVENT_TIME: pl.Int64()}
        self._keys = source.schema.select(source.keys)
        self._by = list(self._keys.names)
        self._late = LateRows(node)
        self._table = KeyedTable(self._keys, self._plan.types, one_by_one=self._plan.reaches_back)
        self._expiry = Expiry(self._plan.operation.within_us or 0) if self._plan.reaches_back else None
        self._pending: list[pl.DataFrame] = []
        self._earliest = MAX_WATERMARK
        self._due = pl.DataFrame(schema=self._input)
        self._before_end = MIN_WATERMARK
        """Rows that wait for others until the end of the input leave with a time behind this one."""
        self._context: OperatorContext
        self._watermarks: GroupWatermarks

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._table.open(self._operator, context, has_deltas=False)
        self._watermarks = GroupWatermarks(context, self._by, restored)
        self._before_end = self._watermarks.highest
        if restored is not None:
            self._restore(restored)

    # -- rows -----------------------------------------------------------------------------------------------------------

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        late = pl.Series(frame[EVENT_TIME].to_numpy() <= self._watermarks.at_rows(frame), dtype=pl.Boolean)
        if late.any():
            self._late.refuse(frame.filter(late), output, self._context.metrics)
            frame = frame.filter(~late)
        self._wait(canonical_keys(frame.select(list(self._input)), self._keys))

    def _wait(self, rows: pl.DataFrame) -> None:
        if rows.height:
            self._pending.append(rows)
            self._earliest = min(self._earliest, cast("int", rows[EVENT_TIME].min()))

    def fire_due(self, watermark: int, output: Output) -> bool:
        if watermark != MAX_WATERMARK:
            self._before_end = max(self._before_end, watermark)
        reached = self._watermarks.advance(watermark)
        if not self._due.height and self._pending and self._earliest <= reached:
            self._take_due(reached)
        if self._due.height:
            self._send(self._next_part(), output)
            if self._due.height:
                return True
        self._forget(reached)
        if watermark == MAX_WATERMARK and self._plan.ahead:
            self._send_waiting(output)
        return False

    def _take_due(self, reached: int) -> None:
        rows = pl.concat(self._pending)
        later = rows.filter(pl.col(EVENT_TIME) > reached)
        self._due = rows.filter(pl.col(EVENT_TIME) <= reached).sort(EVENT_TIME, maintain_order=True)
        self._pending, self._earliest = [], MAX_WATERMARK
        self._wait(later)

    def _next_part(self) -> pl.DataFrame:
        """Rows that are due, in order; those of equal times together."""
        rows = self._rows_at_once()
        if self._due.height <= rows:
            part, self._due = self._due, self._due.clear()
            return part
        last = self._due[EVENT_TIME][rows - 1]
        end = int(self._due[EVENT_TIME].search_sorted(last, side="right"))
        part, self._due = self._due.head(end), self._due.slice(end)
        return part

    def _rows_at_once(self) -> int:
        """How many of the rows that are due are computed together."""
        if not self._plan.reaches_all:
            return _ROWS_AT_ONCE
        numbers = self._due.head(_ROWS_AT_ONCE).select(pl.int_range(pl.len()).over(self._by)).to_series()
        over = (numbers >= _ROWS_OF_A_KEY).arg_max()
        return over if over else _ROWS_AT_ONCE

    def _send(self, part: pl.DataFrame, output: Output) -> None:
        places = pl.int_range(pl.len(), dtype=pl.Int64)
        rows = part.with_columns(places.alias(PLACE)).with_columns(pl.col(PLACE).first().over(self._by).alias(KEY))
        owners = rows.filter(pl.col(KEY) == pl.col(PLACE))
        keys = key_values(owners, self._keys)
        before = self._table.find(keys)
        before = before.with_columns(owners[KEY].gather(before[INDEX]).alias(KEY))
        reached = cast("int", part[EVENT_TIME][-1])
        self._before_end = max(self._before_end, reached - 1)
        rows, kept = self._plan.evaluate(rows, before, reached)
        if self._plan.ahead:
            rows, rest = self._plan.look_ahead(rows, before, None)
            kept = with_lists(kept, rest, list(self._plan.waiting))
        self._table.put(keys, kept)
        if self._expiry is not None:
            self._expiry.touch(keys, [reached] * len(keys))
        self._table.maintain(len(keys))
        self._emit(rows, output)

    def _emit(self, rows: pl.DataFrame, output: Output) -> None:
        if rows.height == 0:
            return
        results = self._plan.results(rows)
        if self._context.carries_watermarks:
            results = results.with_columns((pl.col(EVENT_TIME) - 1).alias(WATERMARK))
        output.rows(results)

    def _send_waiting(self, output: Output) -> None:
        """The end of the input: nothing follows the rows that wait."""
        keys = self._table.all_keys()
        before = self._table.find(keys).rename({INDEX: KEY})
        rows, _ = self._plan.look_ahead(None, before, self._before_end + 1)
        self._table.remove(keys)
        self._emit(rows, output)

    def _forget(self, reached: int) -> None:
        """Drop what no frame will reach back to any more, of keys that no row came for."""
        if self._expiry is None:
            return
        due = self._expiry.due(reached)
        found = zip(due, self._table.rows(due), strict=True)
        spent = {key: row for key, row in found if row is not None and self._plan.is_spent(row, reached)}
        if self._plan.forgets:
            self._table.remove(list(spent))
        else:
            self._table.put_rows({key: self._plan.emptied(row) for key, row in spent.items()})

    def close(self) -> None:
        self._table.close()

    # -- snapshots ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> OperatorSnapshot | None:
        pending = [frame for frame in (self._due, *self._pending) if frame.height]
        header = {"kind": _KIND, "state": {name: str(kind) for name, kind in self._table.types.items()}}
        beside = [Part(self._stored(frame), self._table.freezes.current) for frame in pending]
        return OperatorSnapshot(keyed=self._table.freeze(header, self._context, beside))

    def _stored(self, rows: pl.DataFrame) -> pl.DataFrame:
        columns = [pl.col(name).alias(f"{_INPUT}{name}") for name in self._input if name not in self._by]
        return rows.select(*self._by, *columns, pl.lit(True).alias(_PENDING))

    def _restore(self, restored: RestoredState) -> None:
        expected = {name: str(kind) for name, kind in self._table.types.items()}
        for _, header, rows in decode_segments(restored.keyed, self._operator, _KIND, self._keys):
            if header["state"] != expected:
                raise IncompatibleStateError(
                    f"operator {self._operator!r}: the snapshot holds rows for other columns over rows; restore it with "
                    "the same columns, or give the operator another uid"
                )
            rows = canonical_keys(rows, self._keys)
            if _PENDING in rows.columns:
                waits = pl.col(_PENDING).fill_null(False)
                stored = [name if name in self._by else f"{_INPUT}{name}" for name in self._input]
                waiting = rows.filter(waits).select(stored)
                waiting.columns = list(self._input)
                self._wait(waiting)
                rows = rows.filter(~waits)
            if set(self._table.types) <= set(rows.columns):
                keys = self._table.load(rows)
                if self._expiry is not None:
                    newest = rows[TIMES].list.last().fill_null(MIN_WATERMARK)
                    self._expiry.touch(keys, newest.to_list())

"""`over` on a keyed stream: every row beside the rows of its key before it, by event time: Flink's OverAggregate.

Rows wait until the watermark has passed their event time; then they are computed together in order of it, at most so
many at a time that others get their turn. So nothing depends on when watermarks come or how rows were batched.

Responsible for what is due and late, for what is remembered of keys and for how long, and for snapshots; what is computed
is `over_plan`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

import polars as pl

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import IncompatibleStateError
from penstock.plan.logical import Node
from penstock.state.columns import canonical_keys, key_values
from penstock.state.segments import decode_segments
from penstock.task.operator import OperatorContext, OperatorSnapshot, Output, PassingOperator, RestoredState
from penstock.task.operators.keyed_table import INDEX, Expiry, KeyedTable
from penstock.task.operators.over_plan import KEY, PLACE, TIMES, OverPlan, with_lists
from penstock.task.operators.progress import GroupWatermarks, LateRows
from penstock.task.operators.waiting_input import WaitingInput

_KIND: Final = "over"
_ROWS_AT_ONCE: Final = 65_536
_ROWS_OF_A_KEY: Final = 2_048
"""As frames that reach far back are computed, every row of a key looks at all those of the key that are at hand."""


class OverOperator(PassingOperator):
    """`over` on a keyed stream."""

    def __init__(self, node: Node) -> None:
        self._operator = node.operator_id
        self._plan = OverPlan(node)
        source = node.inputs[0]
        self._keys = source.schema.select(source.keys)
        self._by = list(self._keys.names)
        self._late = LateRows(node)
        self._table = KeyedTable(self._keys, self._plan.types, one_by_one=self._plan.reaches_back)
        self._expiry = Expiry(self._plan.operation.within_us or 0) if self._plan.reaches_back else None
        self._waiting = WaitingInput(source, self._table.freezes)
        self._before_end = MIN_WATERMARK
        """Rows that wait for others until the end of the input leave with a time behind this one."""
        self._context: OperatorContext
        self._watermarks: GroupWatermarks

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._table.open(self._operator, context)
        self._waiting.lies_in(context.local_state)
        self._watermarks = GroupWatermarks(context, self._by, restored)
        self._before_end = self._watermarks.highest
        if restored is not None:
            self._restore(restored)

    # -- rows -----------------------------------------------------------------------------------------------------------

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        self._waiting.add(self._late.on_time(frame, self._watermarks, output, self._context.metrics))

    def run_background_slice(self) -> bool:
        return self._waiting.run_background_slice()

    def _pass(self, watermark: int, output: Output) -> Iterator[None]:
        if watermark != MAX_WATERMARK:
            self._before_end = max(self._before_end, watermark)
        reached = self._watermarks.advance(watermark)
        for due in self._waiting.due(reached):
            for part in self._parts(due):
                self._send(part, output)
                yield
        self._forget(reached)
        if watermark == MAX_WATERMARK and self._plan.ahead:
            self._send_waiting(output)

    def _parts(self, due: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Rows that are due, some at a time, those of equal times together."""
        while due.height > (rows := self._rows_at_once(due)):
            last = due[EVENT_TIME][rows - 1]
            end = int(due[EVENT_TIME].search_sorted(last, side="right"))
            yield due.head(end)
            due = due.slice(end)
        if due.height:
            yield due

    def _rows_at_once(self, due: pl.DataFrame) -> int:
        """How many of the rows that are due are computed together."""
        if not self._plan.reaches_all:
            return _ROWS_AT_ONCE
        numbers = due.head(_ROWS_AT_ONCE).select(pl.int_range(pl.len()).over(self._by)).to_series()
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
        header = {"kind": _KIND, "state": {name: str(kind) for name, kind in self._table.types.items()}}
        return OperatorSnapshot(keyed=self._table.freeze(header, self._context, self._waiting.beside()))

    def _restore(self, restored: RestoredState) -> None:
        expected = {name: str(kind) for name, kind in self._table.types.items()}
        for _, header, rows in decode_segments(restored.keyed, self._operator, _KIND, self._keys):
            if header["state"] != expected:
                raise IncompatibleStateError(
                    f"operator {self._operator!r}: the snapshot holds rows for other columns over rows; restore it with "
                    "the same columns, or give the operator another uid"
                )
            rows = self._waiting.restored(canonical_keys(rows, self._keys), self._watermarks)
            if set(self._table.types) <= set(rows.columns):
                keys = self._table.load(rows)
                if self._expiry is not None:
                    newest = rows[TIMES].list.last().fill_null(MIN_WATERMARK)
                    self._expiry.touch(keys, newest.to_list())

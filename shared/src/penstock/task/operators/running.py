"""Running results per key: `agg` and `reduce` on a keyed stream without windows.

Every key that a batch touches sends its new result once, in the order in which the batch touched them; the event time of
a result is that of the key's newest row by arrival. How many intermediate results are sent depends on batches, the last
one of each key does not.

Aggregates are vectorised but for the look-up: partials live in a `KeyedTable`, so a batch costs what the keys it
touches cost, however many there are, and a snapshot freezes in constant time. With a time to live a key that no row has
touched for so long begins anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, cast

import polars as pl

from penstock.core.batches import EVENT_TIME, ROWS
from penstock.errors import PenstockError, function_name
from penstock.functions.process_functions import ValueState
from penstock.plan.logical import Node
from penstock.plan.operations.running_aggregate import RunningAggregate
from penstock.plan.operations.running_reduce import RunningReduce
from penstock.state.backend import ABSENT
from penstock.state.columns import key_values
from penstock.state.keyed_state import KeyCursor
from penstock.state.segments import decode_segments
from penstock.task.keyed_states import KeyedBackend, keyed_backend
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.keyed_table import INDEX, WRITTEN, KeyedTable
from penstock.task.operators.partials import Partials
from penstock.task.operators.rowwise import chunks_of, raised
from penstock.task.rows import RowReader, RowWriter
from penstock.types import polars_type

_KIND: Final = "running"


class RunningAggregateOperator(Operator):
    """`agg` on a keyed stream."""

    def __init__(self, node: Node) -> None:
        self._operator = node.operator_id
        ttl_us = cast("RunningAggregate", node.operation).ttl_us
        self._partials = Partials(node)
        self._by = list(self._partials.keys.names)
        self._event_time = node.event_time
        self._names = [*node.schema.names, EVENT_TIME] if node.event_time else list(node.schema.names)
        types = {field.name: polars_type(field.type) for field in self._partials.plan.partial_fields}
        self._table = KeyedTable(self._partials.keys, types, ttl_us=ttl_us)
        self._context: OperatorContext

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._table.open(self._operator, context)
        if restored is not None:
            self._restore(restored)

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        if frame.height == 0:
            return
        self._table.forget()
        fresh = self._of_rows(frame)
        keys = key_values(fresh, self._partials.keys)
        merged = self._merged(fresh, keys)
        self._table.put(keys, merged)
        leading: list[pl.Expr | str] = [*self._by, EVENT_TIME] if self._event_time else [*self._by]
        beside = [column for column in fresh.get_columns() if column.name not in self._partials.names]
        rows = pl.DataFrame([*beside, *merged.get_columns()])
        output.rows(self._partials.results(rows, leading, self._names))
        self._table.maintain(len(keys))

    def _of_rows(self, frame: pl.DataFrame) -> pl.DataFrame:
        beside = [pl.col(EVENT_TIME).last()] if self._event_time else []
        if ROWS in frame.columns:
            return self._partials.merge([frame], self._by, ordered=True, beside=beside)
        return self._partials.group([frame], self._by, ordered=True, beside=beside)

    def _merged(self, fresh: pl.DataFrame, keys: list[Any]) -> pl.DataFrame:
        """The partials of the touched keys with what was there before, in the same order."""
        old = self._table.find(keys)
        new = fresh[self._partials.names]
        if not old.height:
            return new
        both = [old, new.hstack([pl.Series(INDEX, range(new.height), pl.Int64)])]
        merged = self._partials.merge(both, [INDEX], ordered=True)  # those that were known first
        return (merged if old.height == new.height else merged.sort(INDEX))[self._partials.names]

    def close(self) -> None:
        self._table.close()

    def snapshot(self) -> OperatorSnapshot | None:
        header = {"kind": _KIND, "partials": self._partials.describe()}
        return OperatorSnapshot(keyed=self._table.freeze(header, self._context))

    def _restore(self, restored: RestoredState) -> None:
        frames: list[pl.DataFrame] = []
        groups: set[int] = set()
        for group, header, rows in decode_segments(restored.keyed, self._operator, _KIND, self._partials.keys):
            frames.append(self._partials.restored(self._operator, header["partials"], rows))
            groups.add(group)
        if len(frames) > len(groups):  # several parts of one key group may hold the same key
            written = [pl.col(WRITTEN).max()] if WRITTEN in frames[0].columns else []
            frames = [self._partials.merge(frames, self._by, beside=written)]
        for rows in frames:
            self._table.load(rows)


class RunningReduceOperator(Operator):
    """`reduce` on a keyed stream: `function(accumulated, row)`."""

    def __init__(self, node: Node) -> None:
        operation = cast("RunningReduce", node.operation)
        source = node.inputs[0]
        self._operator = node.operator_id
        self._function = operation.function
        self._where = f"reduce ({node.operator_id}): {function_name(operation.function)}"
        self._keys = source.schema.select(source.keys, "reduce")
        self._event_time = node.event_time
        self._reader = RowReader(source.schema, source.row_type)
        self._writer = RowWriter(node.schema, node.row_type, self._where)
        self._cursor = KeyCursor()
        self._row_type = source.row_type
        self._ttl = None if operation.ttl_us is None else timedelta(microseconds=operation.ttl_us)
        self._backend: KeyedBackend
        self._state: ValueState[Any]

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._backend = keyed_backend(self._operator, self._keys, self._cursor, context)
        declaration = ValueState(self._row_type, ttl=self._ttl)
        declaration.name = "reduced"
        self._state = cast("ValueState[Any]", self._backend.bind(declaration))
        if restored is not None:
            self._backend.restore(restored.keyed)

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        touched: dict[Any, tuple[Any, int | None]] = {}
        for chunk in chunks_of(frame):
            self._reduce(chunk, touched)
        if touched:
            rows, times = zip(*touched.values(), strict=True)
            output.rows(self._writer.frame(rows, times if self._event_time else None))
        self._backend.maintain(frame.height)

    def _reduce(self, chunk: pl.DataFrame, touched: dict[Any, tuple[Any, int | None]]) -> None:
        cursor, state, function, row = self._cursor, self._state, self._function, None
        times: list[Any] = chunk[EVENT_TIME].to_list() if self._event_time else [None] * chunk.height
        rows, keys = self._reader.rows(chunk), key_values(chunk, self._keys)
        self._backend.learn(chunk.select(self._keys.names), keys)
        try:
            for cursor.key, row, time in zip(keys, rows, times, strict=True):
                before = state.get(ABSENT)
                after = row if before is ABSENT else function(before, row)
                state.set(after)
                touched[cursor.key] = (after, time)
        except PenstockError:
            raise
        except Exception as error:  # whatever the user's function raises
            raise raised(self._where, row, error) from error

    def snapshot(self) -> OperatorSnapshot | None:
        return OperatorSnapshot(keyed=self._backend.freeze())

    def close(self) -> None:
        self._backend.close()

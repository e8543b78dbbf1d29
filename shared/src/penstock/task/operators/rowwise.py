"""Functions of the user without state: per row (`map`, `flat_map`) and per Arrow record batch (`map_batches`).

A frame goes through in chunks of `ROWS_PER_CHUNK` rows: the objects of a chunk stay in the processor's caches and die
young, which is half again as fast as making all of a batch first.
"""

from __future__ import annotations

import builtins
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME, hidden_of, one_batch
from penstock.errors import PenstockError, PipelineError, UserCodeError, described, function_name, nearest, shown
from penstock.observability.user_frames import place_of
from penstock.plan.logical import Node
from penstock.plan.operations.map_batches import MapBatches
from penstock.plan.operations.map_rows import MapRows
from penstock.state.declarations import ValueState
from penstock.task.operator import Operator, Output, PartwiseOperator
from penstock.task.rows import RowReader, RowWriter
from penstock.types import Schema, arrow_type, is_row_class, of_arrow
from penstock.types.map_columns import with_keys_once

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_CHUNK: Final = 1_024
_TO_ARROW: Final = {
    "polars.DataFrame": "; write frame.to_arrow()",
    "pandas.DataFrame": "; write pyarrow.Table.from_pandas(frame, preserve_index=False)",
}

_AS_A_VALUE: Final = re.compile(r"'Bound(\w+State)'")
_WRITTEN_BY: Final = {"ListState": "add", "ReducingState": "add", "AggregatingState": "add"}
_SUBSCRIPTED: Final = re.compile(r"'(\w+)' object is not subscriptable")
_BUILT_IN: Final = vars(builtins).keys() | {"NoneType"}


def chunks_of(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The frame in pieces of `ROWS_PER_CHUNK` rows."""
    for start in range(0, frame.height, ROWS_PER_CHUNK):
        yield frame.slice(start, ROWS_PER_CHUNK)


def raised(where: str, row: object, error: Exception) -> UserCodeError:
    """The error for a function that raised on a row; the caller chains the cause."""
    return UserCodeError(f"{where} raised {described(error)}{_advice(error)}; row: {shown(row)}")


def _advice(error: Exception) -> str:
    """What was probably meant, where that can be told."""
    if type(error) not in (TypeError, AttributeError):  # also no classes of the user's, of which str() may raise
        return ""
    if isinstance(error, AttributeError) and is_row_class(type(error.obj)) and error.name:
        return f"; {nearest(error.name, [name for name in dir(error.obj) if not name.startswith('_')])}"
    if found := _AS_A_VALUE.search(str(error)):
        verb = _WRITTEN_BY.get(found[1], "set")
        return f" (a {found[1]} is no value: self.name.get(...) reads it, self.name.{verb}(...) writes it)"
    found = _SUBSCRIPTED.match(str(error))
    if found is not None and found[1] not in _BUILT_IN:
        return " (a row is an object: write row.name, not row['name'])"
    return _of_state(error)


def _of_state(error: Exception) -> str:
    """What to write where a method took the None of a state that has nothing of a key for a value."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or "NoneType" not in str(error):
        return ""
    held = getattr(trace.tb_frame.f_locals.get("self"), "__dict__", {}).items()
    named = [name for name, each in held if isinstance(each, ValueState) and name in trace.tb_frame.f_code.co_names]
    if not named or "get" not in trace.tb_frame.f_code.co_names:
        return ""
    return f" (self.{named[0]}.get() is None for a key of which nothing was set; say what to begin with, as in .get(0))"


def written(
    writer: RowWriter, results: list[Any], row_of: Callable[[int], object], function: Callable[..., Any]
) -> pl.DataFrame:
    """What a function returned and the writer has taken, as a frame.

    Raises:
        UserCodeError: a result does not fit; the message names the row (`row_of` an index of the results) and where the
            function is written.
    """
    try:
        return writer.frame_of_copies(results)
    except UserCodeError as error:
        place = f"; the function: {found}" if (found := place_of(function)) else ""
        index = next((index for index, result in enumerate(results) if not _fits(writer, result)), None)
        row = "" if index is None else f"; row: {shown(row_of(index))}"
        raise UserCodeError(f"{error}{row}{place}") from error


def _fits(writer: RowWriter, result: Any) -> bool:
    try:
        writer.frame_of_copies([result])
    except UserCodeError:
        return False
    return True


class _FunctionOperator(PartwiseOperator):
    """A function that is called with each row."""

    _verb: str

    def __init__(self, node: Node) -> None:
        operation = cast("MapRows", node.operation)
        source = node.inputs[0]
        self._function = operation.function
        self._where = f"{self._verb} ({node.operator_id}): {function_name(operation.function)}"
        self._reader = RowReader(source.schema, source.row_type)
        self._writer = RowWriter(node.schema, node.row_type, self._where)

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        self.take(self._parts(frame, output))

    def _parts(self, frame: pl.DataFrame, output: Output) -> Iterator[None]:
        parts: list[pl.DataFrame] = []
        for turn, chunk in enumerate(chunks_of(frame)):
            if turn:
                yield
            parts.append(self._mapped(chunk))
        if parts:
            output.rows(pl.concat(parts))

    @abstractmethod
    def _mapped(self, chunk: pl.DataFrame) -> pl.DataFrame:
        """What the function makes of some rows, with the hidden columns of the row that each came from."""


class MapOperator(_FunctionOperator):
    """`map`: one row in, one row out, which keeps the event time."""

    _verb = "map"

    def _mapped(self, chunk: pl.DataFrame) -> pl.DataFrame:
        function, taken, row = self._function, self._writer.copied, None
        rows = self._reader.rows(chunk)
        results: list[Any] = []
        try:
            # No map(function, rows): a StopIteration of the function, of next() perhaps, would end it like the last row.
            for row in rows:
                results.append(taken(function(row)))
        except PenstockError:
            raise
        except Exception as error:  # whatever the user's function raises
            raise raised(self._where, row, error) from error
        frame = written(self._writer, results, rows.__getitem__, self._function)
        return frame.with_columns(chunk[name] for name in hidden_of(chunk))


class FlatMapOperator(_FunctionOperator):
    """`flat_map`: one row in, any number out, which keep its event time."""

    _verb = "flat_map"

    def _mapped(self, chunk: pl.DataFrame) -> pl.DataFrame:
        results: list[Any] = []
        ends: list[int] = []
        function, taken = self._function, self._writer.copied
        rows = self._reader.rows(chunk)
        for row in rows:
            try:
                results.extend(map(taken, function(row)))
            except PenstockError:
                raise
            except Exception as error:  # whatever the user's function raises
                raise raised(self._where, row, error) from error
            ends.append(len(results))
        counts = np.diff(np.asarray(ends, np.int64), prepend=0)
        made_by = np.repeat(np.arange(chunk.height), counts)
        frame = written(self._writer, results, lambda index: rows[made_by[index]], function)
        return frame.with_columns(chunk[name].gather(made_by) for name in hidden_of(chunk))


class MapBatchesOperator(Operator):
    """`map_batches`: an Arrow record batch in, one out."""

    def __init__(self, node: Node) -> None:
        operation = cast("MapBatches", node.operation)
        self._function = operation.function
        self._where = f"map_batches ({node.operator_id}): {function_name(operation.function)}"
        self._input = node.inputs[0].schema
        self._output = node.schema

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        if frame.height == 0:
            return
        batch = to_batch(frame, self._input, self._where)
        try:
            returned = self._function(batch)
        except PenstockError:
            raise
        except Exception as error:  # whatever the user's function raises
            message = f"{self._where} raised {described(error)}; on a batch of {frame.height} rows"
            raise UserCodeError(message) from error
        results = self._checked(returned)
        if EVENT_TIME in frame.columns and results.height != frame.height:
            raise UserCodeError(
                f"{self._where} returned {results.height} rows for {frame.height}; on a stream with event time it "
                "must return as many as it got, in the same order; use flat_map to change their number"
            )
        output.rows(results.with_columns(frame[name] for name in hidden_of(frame)))

    def _checked(self, returned: Any) -> pl.DataFrame:
        """What the function returned, as a frame of exactly the declared columns."""
        import pyarrow as pa

        if isinstance(returned, pa.RecordBatch):
            returned = pa.Table.from_batches([returned])
        if not isinstance(returned, pa.Table):
            kind = type(returned)
            advice = _TO_ARROW.get(f"{kind.__module__.partition('.')[0]}.{kind.__name__}", "")
            raise UserCodeError(f"{self._where} must return a pyarrow.RecordBatch, got {kind.__name__}{advice}")
        expected = self._output.arrow()
        if list(returned.column_names) != list(expected.names):
            raise UserCodeError(
                f"{self._where} returned the columns {', '.join(returned.column_names)}; declared are "
                f"{', '.join(expected.names)}"
            )
        stored = self._output.stored_arrow()
        for field, also, column in zip(expected, stored, returned.columns, strict=True):
            self._check_column(field, also.type, column)
        frame = cast("pl.DataFrame", pl.from_arrow(returned.cast(_all_nullable(stored))))
        frame = frame.cast(cast("Any", self._output.polars()))
        return frame.with_columns(with_keys_once(frame[field.name], field.type) for field in self._output)

    def _check_column(self, field: Any, stored: Any, column: Any) -> None:
        if column.type not in (field.type, stored) and not _same_values(column.type, field.type):
            raise UserCodeError(
                f"{self._where} returned column {field.name!r} as {column.type}, declared is {field.type}; cast it with "
                "pyarrow.compute.cast"
            )
        if column.null_count and not field.nullable:
            raise UserCodeError(
                f"{self._where} returned nulls in column {field.name!r}, which is declared without null"
            )


def to_batch(frame: pl.DataFrame, schema: Schema, where: str) -> pa.RecordBatch:
    """The columns of `schema` as one Arrow record batch."""
    return one_batch(frame.select(schema.names).rechunk().to_arrow().cast(schema.stored_arrow()), where)


def _all_nullable(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([field.with_nullable(True) for field in schema])


def _same_values(actual: Any, declared: Any) -> bool:
    """Whether two Arrow types hold the same values in different layouts, such as string and large_string."""
    try:
        return arrow_type(of_arrow(actual, "")) == declared and not str(actual).startswith("timestamp[ns")
    except PipelineError:
        return False

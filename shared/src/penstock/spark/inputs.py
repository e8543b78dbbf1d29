"""Several inputs of a vertex behind an exchange of Spark: merged by time as one sequence of rows, then told apart again.

Rows of inputs that have columns of their own lie in frames with the columns of all, those of others null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.core.batches import EVENT_TIME, WATERMARK, hidden_of
from penstock.errors import ProtocolError
from penstock.spark.framing import Origin, frame_schema
from penstock.types import schema_from_json

if TYPE_CHECKING:
    from penstock.graph.jobgraph import JobEdge

_OF: Final = "__of"
"""Int8: which input a row is of."""


class Inputs:
    """The rows of all inputs of a vertex."""

    def __init__(self, edges: Sequence[JobEdge], *, watermarks: bool) -> None:
        """`watermarks`: whether rows carry theirs across the exchange.

        Raises:
            ProtocolError: edges of one input have different columns.
        """
        event_time = all(edge.event_time for edge in edges)  # else that of some rows is a column like others
        self._of = [edge.input for edge in edges]
        self._schemas: dict[int, pa.Schema] = {}
        for edge in edges:
            schema = frame_schema(schema_from_json(edge.schema), event_time=edge.event_time, watermarks=watermarks)
            if self._schemas.setdefault(edge.input, schema) != schema:
                raise ProtocolError(f"{edge.vertex}: another input of the same operator has different columns")
        self._hidden = [name for name, there in ((EVENT_TIME, event_time), (WATERMARK, watermarks)) if there]
        self.schema = self._together() if len(self._schemas) > 1 else self._schemas[0]
        """The columns of the merged rows."""

    def _together(self) -> pa.Schema:
        fields = [
            field.with_name(_name(number, field.name)).with_nullable(True)
            for number, schema in self._schemas.items()
            for field in schema
            if field.name not in self._hidden
        ]
        return pa.schema([*fields, pa.field(_OF, pa.int8()), *(pa.field(name, pa.int64()) for name in self._hidden)])

    def read(self, origin: Origin, data: pa.Buffer) -> pa.RecordBatch:
        """A frame of the edge that it came over, with the columns of all."""
        number = self._of[origin[0]]
        batch = pa.ipc.read_record_batch(data, self._schemas[number])
        if len(self._schemas) == 1:
            return batch
        known = {
            name if name in self._hidden else _name(number, name): batch.column(index)
            for index, name in enumerate(batch.schema.names)
        }
        known[_OF] = pa.repeat(pa.scalar(number, pa.int8()), batch.num_rows)
        columns = [known.get(field.name) for field in self.schema]
        return pa.record_batch(
            [
                pa.nulls(batch.num_rows, field.type) if column is None else column
                for field, column in zip(self.schema, columns, strict=True)
            ],
            schema=self.schema,
        )

    def split(self, rows: pl.DataFrame, moment: str | None, reach_us: int) -> Iterator[tuple[int, pl.DataFrame]]:
        """The rows of each input, by its number, in an order that makes none late.

        Args:
            rows: merged rows.
            moment: the column they are in order of, if they tell how far event time has come.
            reach_us: how far moments may lie apart so that none of the rows makes another one late.
        """
        if len(self._schemas) == 1:
            yield 0, rows
            return
        if moment is None:
            yield from self._parts(rows)
            return
        moments = rows[moment].to_numpy()
        begin = 0
        while begin < rows.height:
            end = int(np.searchsorted(moments, moments[begin] + reach_us, side="right"))
            yield from self._parts(rows.slice(begin, end - begin))
            begin = end

    def _parts(self, rows: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
        hidden = hidden_of(rows)
        for number, schema in self._schemas.items():
            names = [name for name in schema.names if name not in self._hidden]
            part = rows.filter(pl.col(_OF) == number)
            if part.height:
                yield number, part.select(*(pl.col(_name(number, name)).alias(name) for name in names), *hidden)


def _name(number: int, name: str) -> str:
    return f"__{number}_{name}"

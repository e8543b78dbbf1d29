"""What passes between stages: one Arrow schema per stage, a tagged union of all its edges and of its reports.

A row of a stage's output is either a row of one edge (`OUTPUT` is the edge's number among the stage's outputs, its
columns stand in `e<edge>_<column>`, all others are null) or a report (`OUTPUT` is `REPORT_OUTPUT`, `REPORT` holds JSON):
what a sink staged, what operators counted. Reports travel along with the rows through every exchange, so that those of
exactly the task attempts whose rows count arrive at the driver. No two reports of a run are alike, because rows may be
grouped on their way.

Columns are numbered, because Spark takes names that differ in case for the same one. Spark knows neither unsigned
integers nor offsets of 64 bits: `wire_type` says what a column travels as.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl
import pyarrow as pa

from penstock.core.batches import EVENT_TIME
from penstock.graph.jobgraph import JobEdge
from penstock.spark.native import NativeWindow
from penstock.types import DataType, ListType, MapType, Schema, StructType, arrow_type, schema_from_json

OUTPUT: Final = "__output"
INPUT: Final = "__input"
"""Number of the consumer's input that a row came by; only while its rows are sorted."""
PARTITION: Final = "__partition"
"""Subtask of the consumer."""
GROUP: Final = "__kg"
"""Key group; null where the edge has no key."""
FROM: Final = "__from"
"""Subtask of the producer."""
SEQ: Final = "__seq"
"""Number of the row among those of its producer and edge."""
REPORT: Final = "__report"
REPORT_OUTPUT: Final = -1
TICK_OUTPUT: Final = -2
"""A row that says nothing, so that the task of its partition runs though no row comes."""

_TAGS: Final = (
    (OUTPUT, pa.int32()),
    (PARTITION, pa.int32()),
    (GROUP, pa.int32()),
    (FROM, pa.int32()),
    (SEQ, pa.int64()),
    (EVENT_TIME, pa.int64()),
    (REPORT, pa.binary()),
)
READ_TAGS: Final = (OUTPUT, PARTITION, GROUP, EVENT_TIME, REPORT)
"""What all tasks but those of sources are given of the tags."""
SORT_TAGS: Final = (FROM, SEQ)
FRAME: Final = "__frame"
"""The rows of a frame, in Arrow."""
FRAMED_NAMES: Final = (*READ_TAGS, INPUT, FROM, SEQ, FRAME)
"""What tasks are given whose input comes in frames."""
_WIDER: Final[dict[Any, Any]] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.time64("ns"): pa.int64(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
}


@dataclass(frozen=True)
class StageEdge:
    """One output of a stage: an edge of the job graph with what its producer must know of the consumer."""

    edge: JobEdge
    partitions: int
    max_parallelism: int
    native: NativeWindow | None = None
    """The window that Spark computes from what crosses the edge: partials of rows."""
    watermarks: bool = False
    """Whether rows carry the watermark that their split had reached (see `arrival`)."""
    known: bool = True
    """Whether the producer knows it."""
    framed: bool = False
    """Whether rows cross in frames (see `framing`)."""
    by_arrival: bool = False
    """Whether the consumer is given them in the order of their watermarks."""
    judging: str = ""
    """Id of the node that finds rows late in streaming, if those are counted here."""
    restored: Mapping[int, int] = field(default_factory=dict[int, int])
    """How far event time had come for key groups in the state that this node begins with."""

    @property
    def schema(self) -> Schema:
        """The columns that cross it."""
        return self.native.schema if self.native is not None else schema_from_json(self.edge.schema)


def wire_type(kind: DataType) -> pa.DataType:
    """The Arrow type that a column has between stages: one that Spark keeps as it is."""
    if isinstance(kind, ListType):
        return pa.list_(wire_type(kind.inner))
    if isinstance(kind, MapType):
        return pa.map_(pa.string(), wire_type(kind.value))
    if isinstance(kind, StructType):
        return pa.struct([pa.field(field.name, wire_type(field.type)) for field in kind.fields])
    found = arrow_type(kind)
    return _WIDER.get(found, found)


def column_name(edge: int, column: int) -> str:
    """The name of a column of an edge in the output of a stage."""
    return f"e{edge}_{column}"


def output_schema(edges: Sequence[StageEdge]) -> pa.Schema:
    """The schema of what a stage with these outputs sends."""
    fields = [pa.field(name, kind) for name, kind in _TAGS]
    for number, edge in enumerate(edges):
        if edge.framed:
            fields.append(pa.field(column_name(number, 0), pa.binary()))
            continue
        fields += [pa.field(column_name(number, i), wire_type(field.type)) for i, field in enumerate(edge.schema)]
    return pa.schema(fields)


def encode_columns(frame: pl.DataFrame, schema: Schema) -> list[Any]:
    """The columns of a frame as they travel."""
    table = frame.select(schema.names).rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    return [_cast(table.column(field.name).combine_chunks(), wire_type(field.type)) for field in schema]


def decode_frame(batch: pa.RecordBatch, first: int, schema: Schema) -> pl.DataFrame:
    """The inverse of `encode_columns` for the columns from `first` on."""
    columns = [_cast(batch.column(first + index), arrow_type(field.type)) for index, field in enumerate(schema)]
    frame = pl.from_arrow(pa.Table.from_arrays(columns, names=list(schema.names)))
    assert isinstance(frame, pl.DataFrame)
    return frame


def _cast(column: Any, kind: Any) -> Any:
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), kind)
    return column if column.type == kind else column.cast(kind)

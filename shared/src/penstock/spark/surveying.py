"""A job of Spark before a run reads: it looks at parts of files of which all must be known before one can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from penstock.connectors.base import Position, Source, Split
from penstock.plan.operations.read import Read
from penstock.spark.archives import archive_of
from penstock.spark.code import TaskCode, load_plan
from penstock.spark.failures import wrapped
from penstock.spark.splits import RunSplit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Asked = Sequence[tuple[RunSplit, Position]]
"""Splits, and where parts of them begin."""
Survey = Callable[[Asked], Sequence[Any]]
"""Gives `Source.survey` of each part."""


def reading_of(source: Source[Any], split: RunSplit) -> Source[Any]:
    """The source itself, or the files that a backfill reads before it."""
    return archive_of(source, split.archive) if split.archive else source


def survey(session: SparkSession, code: TaskCode, vertex: str, node: str, asked: Asked) -> list[Any]:
    """Look at parts of the splits of a source, the `node` at the head of a vertex, each in a task of its own.

    Raises:
        TaskFailedError: from Spark, whatever went wrong.
    """

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            operation = load_plan(code).node(node).operation
            assert isinstance(operation, Read)
            for batch in batches:
                numbers: list[int] = batch.column(0).to_numpy().tolist()
                found = [msgspec.json.encode(_surveyed(operation.source, *asked[number])) for number in numbers]
                yield pa.record_batch([batch.column(0), pa.array(found, pa.binary())], names=["id", "found"])
        except Exception as error:  # the outermost supervisor of a task, as in `stage`
            raise wrapped(error, vertex) from None

    look.__name__ = "survey"  # as Spark's plans and pages show it
    rows = session.range(0, len(asked), 1, len(asked)).mapInArrow(look, "id long, found binary").collect()
    return [msgspec.json.decode(bytes(found)) for _, found in sorted(rows)]


def _surveyed(source: Source[Any], split: RunSplit, position: Position) -> Any:
    return reading_of(source, split).survey(Split(split.split, split.size_bytes), position)

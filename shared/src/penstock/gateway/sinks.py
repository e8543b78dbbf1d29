"""The sink of a query: rows go to a buffer as soon as they come, each with what it does to those before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.connectors import base
from penstock.connectors.base import Guarantee, Prepared, WriteContext
from penstock.core.batches import of_calendar
from penstock.gateway.buffers import Row, RowBuffer
from penstock.sql.testing.changes import Log
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl

    from penstock.plan.logical import Node


class BufferSink(base.Sink):
    """Hands every row to a buffer, which holds the pipeline back while it is full.

    Args:
        buffer: where rows go.
        node: whose rows they are: facts, or changes.
        columns: the columns that are handed on, in order.
    """

    kind: ClassVar[str] = "gateway"
    in_process: ClassVar[bool] = True

    def __init__(self, buffer: RowBuffer, node: Node, columns: Sequence[str]) -> None:
        self.buffer: Final = buffer
        self.node: Final = node
        self.columns: Final = tuple(columns)

    @property
    def guarantee(self) -> Guarantee:
        """At-least-once: a row that has been fetched cannot be taken back."""
        return "at-least-once"

    def check(self, schema: Schema, *, updates: bool) -> None:
        """Every row can be fetched."""

    def open(self, schema: Schema, context: WriteContext) -> base.SinkWriter:
        """See `Sink.open`."""
        return _Writer(self)

    def describe(self) -> Mapping[str, Any]:
        """See `Sink.describe`."""
        return {}


class _Writer:
    def __init__(self, sink: BufferSink) -> None:
        self._sink = sink

    def write(self, frame: pl.DataFrame) -> None:
        self._sink.buffer.put(self._rows(frame))

    def _rows(self, frame: pl.DataFrame) -> list[Row]:
        node, columns = self._sink.node, self._sink.columns
        with of_calendar(frame.get_columns()):
            if node.mode == "append":
                return [("+I", row) for row in frame.select(columns).iter_rows()]
            changes = Log.of(node, frame.to_dicts()).changes()
            return [(kind, tuple(row[name] for name in columns)) for kind, row in changes]

    def prepare(self, checkpoint: int) -> Prepared:
        return Prepared()

    def commit(self, committable: Any) -> None:
        """Nothing is staged."""

    def discard(self, committable: Any) -> None:
        """Nothing is staged."""

    def close(self) -> None:
        """Nothing is held."""

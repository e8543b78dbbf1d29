"""The sink of a query that somebody watches: rows come as soon as they are there, each with what it does to others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.connectors import base
from penstock.connectors.base import Guarantee, Prepared, WriteContext
from penstock.core.batches import of_calendar
from penstock.plan.building.changes import to_changes
from penstock.sql.testing.changes import Kind, Log
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl

    from penstock.plan.logical import Node
    from penstock.sql.answers import Answer


Row = tuple[Kind, tuple[Any, ...]]
"""What a row does to those before it, and its values."""


def watched(answer: Answer, put: Callable[[Sequence[Row]], None]) -> tuple[Node, WatchingSink]:
    """A node with every change of a query, and the sink that hands these to `put`, with the columns that are shown."""
    rows = to_changes(answer.rows, "sql") if answer.rows.node.mode == "upsert" else answer.rows
    return rows.node, WatchingSink(put, rows.node, [own for _, own in answer.columns])


class WatchingSink(base.Sink):
    """Hands every row to a function, in the thread of the run, which it may hold back.

    Args:
        put: is given rows.
        node: whose rows they are: facts, or changes.
        columns: the columns that are handed on, in order.
    """

    kind: ClassVar[str] = "watching"
    in_process: ClassVar[bool] = True

    def __init__(self, put: Callable[[Sequence[Row]], None], node: Node, columns: Sequence[str]) -> None:
        self.put: Final = put
        self.node: Final = node
        self.columns: Final = tuple(columns)

    @property
    def guarantee(self) -> Guarantee:
        """At-least-once: a row that has been seen cannot be taken back."""
        return "at-least-once"

    def check(self, schema: Schema, *, updates: bool) -> None:
        """Every row can be seen."""

    def open(self, schema: Schema, context: WriteContext) -> base.SinkWriter:
        """See `Sink.open`."""
        return _Writer(self)

    def describe(self) -> Mapping[str, Any]:
        """See `Sink.describe`."""
        return {}


class _Writer:
    def __init__(self, sink: WatchingSink) -> None:
        self._sink = sink

    def write(self, frame: pl.DataFrame) -> None:
        self._sink.put(self._rows(frame))

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

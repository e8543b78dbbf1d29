"""Rows gathered in memory, for tests and notebooks.

A checkpoint carries its rows itself (Arrow, as text), and the process that commits it appends them: each row is there
once, also after failures, as long as one process runs the job (embedded mode with parallelism 1).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.connectors import base
from penstock.connectors.base import Collected, Guarantee, Prepared, WriteContext
from penstock.core.arguments import checked
from penstock.core.batches import of_calendar
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl


class Sink(base.Sink):
    """Appends rows as dicts to `rows`; they appear with the checkpoint that covers them. Kept small: it is memory.

    Args:
        into: a list to append to; a new one if not given.

    Example:
        >>> sink = collecting.Sink()
        >>> written = bids.select("auction", "price").write(sink)
        >>> p.run().state
        'FINISHED'
        >>> sink.rows[0]
        {'auction': 1, 'price': 50.0}
    """

    kind: ClassVar[str] = "collecting"
    in_process: ClassVar[bool] = True

    @checked
    def __init__(self, into: list[dict[str, Any]] | None = None) -> None:
        self.collected: Final = Collected([] if into is None else into)
        self._owned = into is None
        self._committed: set[tuple[str, int, int]] = set()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows so far; in the order of their subtask, subtasks interleave."""
        return self.collected.rows

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once within one process."""
        return "exactly-once"

    def check(self, schema: Schema, *, updates: bool) -> None:
        """Every row can be collected; of an upsert stream, every update."""

    def open(self, schema: Schema, context: WriteContext) -> base.SinkWriter:
        """See `Sink.open`."""
        return _Writer(self, schema, context)

    def begin(self) -> base.Removal:
        """A new job starts: forget what an earlier run of the same pipeline object collected (not a list given)."""
        rows, committed = list(self.collected.rows) if self._owned else [], set(self._committed)

        def forget() -> None:
            if self._committed == committed:
                del self.collected.rows[: len(rows)]
                self._committed.clear()

        return forget

    def commit_once(self, key: tuple[str, int, int], frame: pl.DataFrame) -> None:
        """Append the rows of one operator, subtask and checkpoint unless they are there."""
        if key not in self._committed:
            self._committed.add(key)
            with of_calendar(frame.get_columns()):
                self.collected.rows.extend(frame.to_dicts())

    def describe(self) -> Mapping[str, Any]:
        """See `Sink.describe`."""
        return {}


class _Writer:
    def __init__(self, sink: Sink, schema: Schema, context: WriteContext) -> None:
        self._sink = sink
        self._names = schema.names
        self._context = context
        self._frames: list[pl.DataFrame] = []

    def write(self, frame: pl.DataFrame) -> None:
        if frame.height:
            self._frames.append(frame.select(self._names))

    def prepare(self, checkpoint: int) -> Prepared:
        import polars as pl

        if not self._frames:
            return Prepared()
        frames, self._frames = self._frames, []
        data = pl.concat(frames).write_ipc(None, compression="zstd").getvalue()
        key = [self._context.operator, self._context.subtask, checkpoint]
        return Prepared([{"key": key, "rows": base64.b64encode(data).decode()}])

    def commit(self, committable: Any) -> None:
        import polars as pl

        operator, subtask, checkpoint = committable["key"]
        frame = pl.read_ipc(base64.b64decode(committable["rows"]))
        self._sink.commit_once((operator, subtask, checkpoint), frame)

    def discard(self, committable: Any) -> None:
        """The rows are in the committable alone."""

    def close(self) -> None:
        self._frames = []


class FirstRows(base.Sink):
    """Keeps the first rows that come, and says when it has them: what a look at a stream needs.

    Args:
        wanted: how many rows.
    """

    kind: ClassVar[str] = "collecting"
    in_process: ClassVar[bool] = True

    def __init__(self, wanted: int) -> None:
        self.wanted: Final = wanted
        self.frames: Final[list[pl.DataFrame]] = []
        self.missing = wanted
        """How many rows are to come."""
        self._when_full: Callable[[], object] = int

    @property
    def full(self) -> bool:
        """Whether it has all its rows."""
        return self.missing <= 0

    def when_full(self, call: Callable[[], object]) -> None:
        """What to call as soon as it has its rows."""
        self._when_full = call

    @property
    def guarantee(self) -> Guarantee:
        """At-least-once: what an attempt has seen before it failed, the next one sees again."""
        return "at-least-once"

    def check(self, schema: Schema, *, updates: bool) -> None:
        """Every row can be seen; of an upsert stream, every update."""

    def open(self, schema: Schema, context: WriteContext) -> base.SinkWriter:
        """See `Sink.open`."""
        return _FirstWriter(self, schema)

    def describe(self) -> Mapping[str, Any]:
        """See `Sink.describe`."""
        return {}

    def take(self, frame: pl.DataFrame) -> None:
        """Keep as many of these rows as are missing."""
        if self.full or not frame.height:
            return
        kept = frame.head(self.missing)
        with of_calendar(kept.get_columns()):
            self.frames.append(kept)
        self.missing -= kept.height
        if self.full:
            self._when_full()


class _FirstWriter:
    def __init__(self, sink: FirstRows, schema: Schema) -> None:
        self._sink = sink
        self._names = schema.names

    def write(self, frame: pl.DataFrame) -> None:
        self._sink.take(frame.select(self._names))

    def prepare(self, checkpoint: int) -> Prepared:
        return Prepared()

    def commit(self, committable: Any) -> None:
        """Nothing is staged."""

    def discard(self, committable: Any) -> None:
        """Nothing is staged."""

    def close(self) -> None:
        """Nothing is held."""

"""What process functions are given: side outputs' names, and the contexts of calls per row and per batch.

Protocols and messages only: `penstock.task.operators.process` and `.batch_process` implement them. Imports neither numpy
nor Polars: this module is part of `import penstock`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from penstock.core.arguments import checked
from penstock.core.names import wrong_name
from penstock.errors import PipelineError

if TYPE_CHECKING:
    import polars as pl

Row = TypeVar("Row")
Emitted = TypeVar("Emitted", contravariant=True)


@checked
@dataclass(frozen=True)
class OutputTag(Generic[Row]):
    """Names a side output. Two tags are the same output if their names are equal.

    Args:
        name: unique among the side outputs of an operator.
        row_type: class of the rows: a dataclass or a `msgspec.Struct`. Not needed where the rows are those of the
            operator's input, as for late rows.

    Example:
        >>> LATE = OutputTag("late")
        >>> per_minute = bids.key_by("auction").window(tumbling("1m")).late_to(LATE).agg(bids=count())
        >>> late = per_minute.side(LATE)
    """

    name: str
    row_type: type[Row] | None = None

    def __post_init__(self) -> None:
        if wrong_name(self.name) or self.name.startswith("__"):
            raise PipelineError(f"OutputTag: {self.name!r} is no name; use a word such as 'late'")


class OpenContext(Protocol):
    """What `open` may know: the place of this copy of the function in the job.

    Example:
        >>> class Placed(Process[Bid, Total]):
        ...     def open(self, context: OpenContext) -> None:
        ...         self.subtask = context.subtask
        ...     def on_row(self, row: Bid, ctx: Context[Total]) -> None:
        ...         ctx.emit(Total(row.auction, float(self.subtask)))
        >>> bids.process(Placed()).collect().rows()
        [(1, 0.0), (2, 0.0), (1, 0.0), (2, 0.0)]
    """

    @property
    def subtask(self) -> int:
        """Number of the subtask, from 0."""
        ...

    @property
    def parallelism(self) -> int:
        """How many subtasks there are."""
        ...


class Context(Protocol[Emitted]):
    """What `on_row` is given besides the row. Valid only during the call.

    Example:
        >>> class Timed(Process[Bid, Total]):
        ...     def on_row(self, row: Bid, ctx: Context[Total]) -> None:
        ...         if ctx.timestamp is not None and ctx.timestamp.second > 10:
        ...             ctx.emit(Total(row.auction, row.price))
        >>> bids.process(Timed()).collect().rows()
        [(1, 120.0)]
    """

    def emit(self, row: Emitted) -> None:
        """Send a row on, or a dict with exactly its columns; its event time is that of the row or timer at hand.

        It is sent as it is now: what is done to the same object afterwards changes nothing.
        """
        ...

    def emit_to(self, tag: OutputTag[Row], row: Row) -> None:
        """Send a row to a side output, which `.side(tag)` reads."""
        ...

    @property
    def timestamp(self) -> datetime | None:
        """Event time of the row, or of the event timer that fires; None if the stream has no event time."""
        ...

    @property
    def watermark(self) -> datetime | None:
        """Event time up to which no more rows are expected; None before the first watermark.

        At the end of the input it is the last moment a datetime can hold.
        """
        ...

    @property
    def processing_time(self) -> datetime:
        """The wall clock."""
        ...


class KeyedContext(Context[Emitted], Protocol[Emitted]):
    """`Context` on a keyed stream: the key, and timers for it.

    Example:
        >>> class Later(KeyedProcess[Bid, Total]):
        ...     def on_row(self, row: Bid, ctx: KeyedContext[Total]) -> None:
        ...         ctx.event_timer(row.at + timedelta(hours=1))
        ...     def on_timer(self, at: datetime, ctx: KeyedContext[Total]) -> None:
        ...         ctx.emit(Total(ctx.key, float(at.minute)))
        >>> sorted(bids.key_by("auction").process(Later()).collect().rows())
        [(1, 0.0), (1, 0.0), (2, 0.0), (2, 1.0)]
    """

    @property
    def key(self) -> Any:
        """The key: a value, or a tuple if the stream is keyed by several columns."""
        ...

    @property
    def time_domain(self) -> Literal["event", "processing"] | None:
        """Which timer `on_timer` is called for; None in `on_row`."""
        ...

    def event_timer(self, at: datetime) -> None:
        """Call `on_timer` for this key when the watermark reaches `at`; setting it twice is setting it once.

        A row of exactly that time comes before it: the watermark reaches a time when no row of it is expected any more.

        At the end of bounded input all timers fire, whatever their time. Of those that are set meanwhile 100 per key
        fire too, so that a timer may look whether to wait once more; one that renews itself for ever does not run on.
        """
        ...

    def processing_timer(self, at: datetime) -> None:
        """Call `on_timer` for this key when the wall clock reaches `at`."""
        ...

    def delete_event_timer(self, at: datetime) -> None:
        """Take back `event_timer(at)`; nothing happens if it is not set."""
        ...

    def delete_processing_timer(self, at: datetime) -> None:
        """Take back `processing_timer(at)`; nothing happens if it is not set."""
        ...


class BatchContext(Protocol):
    """What `on_batch` and its like are given besides the rows. Valid only during the call.

    Example:
        >>> class Dear(Process[Bid, Total]):
        ...     def on_batch(self, frame: pl.DataFrame, ctx: BatchContext) -> None:
        ...         dear = (frame["price"] > 100) & (ctx.timestamps.dt.second() > 0)
        ...         ctx.emit(frame.filter(dear).select("auction", "price"), rows=dear)
        >>> bids.process(Dear()).collect().rows()
        [(2, 250.0), (1, 120.0)]
    """

    def emit(self, frame: pl.DataFrame, rows: pl.Series | None = None) -> None:
        """Send rows on; each has the event time of the row of the batch that it comes from.

        Args:
            frame: exactly the columns of the output, in any order.
            rows: of which rows of the batch they are made: a boolean for each row of the batch, as for a filter, or for
                each row of `frame` the number of one, from 0. Not needed if `frame` has a row for each of the batch, in
                their order, or if the stream has no event time.

        Raises:
            UserCodeError: a column is missing, too many, of another type or has nulls that it must not have, or `rows`
                does not fit.
        """
        ...

    def emit_to(self, tag: OutputTag[Any], frame: pl.DataFrame, rows: pl.Series | None = None) -> None:
        """Send rows to a side output, which `.side(tag)` reads; otherwise as `emit`."""
        ...

    @property
    def timestamps(self) -> pl.Series:
        """Event time of each row, as `Datetime("us", "UTC")`; null if the stream has no event time."""
        ...

    @property
    def watermarks(self) -> pl.Series:
        """What `Context.watermark` is at each row; null before the first one, and if the stream has no event time."""
        ...

    @property
    def processing_time(self) -> datetime:
        """The wall clock."""
        ...


class KeyedBatchContext(BatchContext, Protocol):
    """`BatchContext` on a keyed stream: the keys of the rows, and timers for them.

    `keys` of a method may be any keys of the batch, in any order and as often as one likes, but no others.

    Example:
        >>> class Later(KeyedProcess[Bid, Total]):
        ...     def on_batch(self, frame: pl.DataFrame, ctx: KeyedBatchContext) -> None:
        ...         ctx.event_timers(ctx.keys, frame["at"].dt.offset_by("1h"))
        ...     def on_timer(self, at: datetime, ctx: KeyedContext[Total]) -> None:
        ...         ctx.emit(Total(ctx.key, float(at.minute)))
        >>> sorted(bids.key_by("auction").process(Later()).collect().rows())
        [(1, 0.0), (1, 0.0), (2, 0.0), (2, 1.0)]
    """

    @property
    def keys(self) -> pl.Series:
        """The key of each row: the values of the key column, or structs if the stream is keyed by several columns."""
        ...

    def set_current_key(self, key: Any) -> None:
        """Let states work on this key from here on, as in `on_row`: for lists, maps and values that are no column.

        Args:
            key: a key of the batch: a value, or a tuple if the stream is keyed by several columns.

        Raises:
            UserCodeError: the batch has no row of this key.
        """
        ...

    def event_timers(self, keys: pl.Series, at: pl.Series | datetime) -> None:
        """`KeyedContext.event_timer` for many keys, each with its own time or all with one; null sets none."""
        ...

    def processing_timers(self, keys: pl.Series, at: pl.Series | datetime) -> None:
        """`KeyedContext.processing_timer` for many keys, each with its own time or all with one; null sets none."""
        ...

    def delete_event_timers(self, keys: pl.Series, at: pl.Series | datetime) -> None:
        """Take back what `event_timers` set; nothing happens where none is set."""
        ...

    def delete_processing_timers(self, keys: pl.Series, at: pl.Series | datetime) -> None:
        """Take back what `processing_timers` set; nothing happens where none is set."""
        ...

"""What flows along a chain: Polars frames with the columns of the stream's schema and, hidden, what belongs to each row.

`EVENT_TIME` is there exactly when the stream has event time; a filter or a sort of the frame so carries the event times
along. `WATERMARK` tells how far event time had come when the row's turn was: time moves inside a batch, and what a job
comes to must not depend on how rows were cut into batches. It is left out, or null, where nothing depends on it. A row
that is not behind its watermark is never late, so only rows that are behind have to carry it, but for functions that may
look at the time or set timers: in front of those every row does (`LogicalPlan.carries_watermarks`).

Column names with two leading underscores are reserved for such purposes (`Schema` refuses them), and are never visible to
user code.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

from penstock.errors import PipelineError, UserCodeError

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

EVENT_TIME: Final = "__event_time"
"""Int64: event time of the row, in microseconds since the epoch."""
WATERMARK: Final = "__watermark"
"""Int64: no row from this one on was to be expected with an event time at or before it. Null: nothing new is said."""
PANE: Final = "__pane"
"""Int64: start of the pane of a partial aggregate, on the clock of its windows; in exchanges and snapshots."""
ROWS: Final = "__rows"
"""Int64: how many rows a partial aggregate is made of, where rows were combined before an exchange."""
KEY_GROUP: Final = "__key_group"
"""UInt16 or wider: key group of the row; only inside operators and snapshots."""
_NO_DATE: Final = re.compile("date value out of range|year -?[0-9]+ is out of range")
"""What Python says of a moment that it has not."""


def hidden_of(frame: pl.DataFrame) -> list[str]:
    """Which of `EVENT_TIME` and `WATERMARK` the frame has: what goes along with a row."""
    return [name for name in (EVENT_TIME, WATERMARK) if name in frame.columns]


def visible(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame without them."""
    hidden = hidden_of(frame)
    return frame.drop(hidden) if hidden else frame


@contextmanager
def of_calendar(columns: Iterable[pl.Series]) -> Generator[None]:
    """Where columns become Python values: a moment or day of which Python has none is named, with its column.

    Raises:
        UserCodeError: a computed one is not within the years 1 to 9999.
    """
    try:
        yield
    except (OverflowError, ValueError) as error:
        columns = list(columns)
        wrong = next(filter(None, map(_beyond_calendar, columns)), None)
        if wrong is None and not _NO_DATE.search(str(error)):
            raise
        found = wrong or f"a value within {', '.join(repr(column.name) for column in columns)}"
        raise UserCodeError(
            f"{found} is not within the years 1 to 9999, as datetimes and dates of Python are; clip what you compute, or "
            "filter such rows out before"
        ) from error


def _beyond_calendar(column: pl.Series) -> str | None:
    import polars as pl

    if not isinstance(column.dtype, pl.Datetime | pl.Date):
        return None
    wrong = column.filter(~column.dt.year().is_between(1, 9999))
    return f"column {column.name!r}: {wrong.head(1).dt.to_string('iso')[0]}" if len(wrong) else None


def only_batch(table: pa.Table) -> pa.RecordBatch | None:
    """The rows of an Arrow table as one batch; None if they cannot be one: a chunk of text holds 2 GiB at most."""
    import pyarrow as pa

    batches = table.combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    return batches[0] if len(batches) == 1 else None


def one_batch(table: pa.Table, where: str) -> pa.RecordBatch:
    """The same where it must be one batch; `where` says in errors for whom.

    Raises:
        PipelineError: it cannot be.
    """
    batch = only_batch(table)
    if batch is None:
        raise PipelineError(
            f"{where}: {table.num_rows} rows hold more than 2 GiB of text or bytes in one column, which a batch of Arrow "
            "cannot; make the values smaller before, or read fewer rows at once"
        )
    return batch


def with_watermarks(frame: pl.DataFrame, at_rows: pl.Series, least: int, most: int, *, every_row: bool) -> pl.DataFrame:
    """The frame with `WATERMARK`, unless nothing would depend on it.

    Args:
        frame: rows with event time.
        at_rows: the watermark of their own input at each row.
        least: what all inputs together had reached before.
        most: what the other inputs have reached, which bounds what all have together.
        every_row: whether rows that are not behind carry it too.
    """
    times, most = frame[EVENT_TIME], max(least, most)
    if not every_row:
        first = cast("int | None", times.min())
        if (first is None or first > least) and not (times <= at_rows).any():
            return frame  # whatever the bounds do to the marks, no row is behind one: the usual case, without the rest
    import polars as pl

    # Not `clip`, which takes more than twice as long.
    within = pl.when(at_rows < least).then(least).when(at_rows > most).then(most).otherwise(at_rows)
    marks = pl.select(within.alias(WATERMARK)).to_series()
    if every_row:
        return frame.with_columns(marks)
    behind = (times <= marks).fill_null(False)
    return frame.with_columns(marks.set(~behind, None)) if behind.any() else frame

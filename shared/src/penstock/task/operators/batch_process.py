"""Process functions that take whole batches: the same state, timers and answers as row by row.

What a call gives is kept with the row of the batch that it comes from, so that event times, watermarks and the order of
results are those of calls per row. `penstock.task.operators.batch_timers` decides which rows of a keyed stream may come
together, and which timers fire before and behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME, WATERMARK, with_watermarks
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK, from_micros, to_micros
from penstock.errors import PenstockError, UserCodeError, described
from penstock.functions.process_functions import OutputTag, is_per_batch, overrides
from penstock.state.batch_keys import BatchKeys
from penstock.state.keyed_state import NO_KEY
from penstock.task.exchange import joined
from penstock.task.frames import FrameWriter
from penstock.task.operator import Output
from penstock.task.operators.batch_timers import CallTimers, by_watermark, calls
from penstock.task.operators.process import (
    FIRINGS_AT_ONCE,
    FIRST_MOMENT_US,
    FLUSH_ROWS,
    KeyedProcessOperator,
    ProcessBase,
    ProcessOperator,
    Run,
    carried_watermarks,
    timer_us,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.plan.logical import Node

_TIME = pl.Datetime("us", "UTC")
_LAST_MOMENT_US = to_micros(datetime.max.replace(tzinfo=from_micros(0).tzinfo))


@dataclass
class Results:
    """Frames that go to one output, and for each of their rows the row of the batch, as far as that is known."""

    frames: list[pl.DataFrame] = field(default_factory=list[pl.DataFrame])
    rows: list[pl.Series | None] = field(default_factory=list["pl.Series | None"])

    def together(self) -> tuple[pl.DataFrame, pl.Series | None]:
        """All as one, in the order in which they were given."""
        known = [rows for rows in self.rows if rows is not None]
        return pl.concat(self.frames), pl.concat(known) if len(known) == len(self.rows) else None


@dataclass
class Ordered:
    """Frames that go to one output, with numbers that say in which order their rows go."""

    frames: list[pl.DataFrame] = field(default_factory=list[pl.DataFrame])
    numbers: list[NDArray[np.int64]] = field(default_factory=list["NDArray[np.int64]"])

    def in_order(self) -> pl.DataFrame:
        """One frame; rows of equal numbers stay in the order in which they were given."""
        frame, numbers = joined(self.frames), np.concatenate(self.numbers)
        if (numbers[1:] >= numbers[:-1]).all():
            return frame
        return frame[np.argsort(numbers, kind="stable")]


class BatchRun:
    """The context of one call per batch: `BatchContext`."""

    def __init__(
        self, run: Run, frame: pl.DataFrame, marks: NDArray[np.int64], writers: dict[str | None, FrameWriter]
    ) -> None:
        self._run = run
        self._frame = frame
        self._marks = marks
        self._writers = writers
        self.results: dict[str | None, Results] = {}
        """By side output; None: the main one."""

    def emit(self, frame: pl.DataFrame, rows: pl.Series | None = None) -> None:
        self._take(None, frame, rows)

    def emit_to(self, tag: OutputTag[Any], frame: pl.DataFrame, rows: pl.Series | None = None) -> None:
        if tag.name in self._writers:  # a side output that nobody reads costs nothing
            self._take(tag.name, frame, rows)

    def _take(self, tag: str | None, frame: pl.DataFrame, rows: pl.Series | None) -> None:
        writer = self._writers[tag]
        checked = writer.checked(frame)
        results = self.results.setdefault(tag, Results())
        results.frames.append(checked)
        results.rows.append(self._rows_of(checked.height, rows, writer.where))

    def _rows_of(self, height: int, rows: pl.Series | None, where: str) -> pl.Series | None:
        """The row of the batch that each of `height` results comes from."""
        count = self._frame.height
        if rows is None and height == count:
            return pl.int_range(count, eager=True)
        if rows is None:
            if EVENT_TIME not in self._frame.columns:
                return None
            raise UserCodeError(
                f"{where} gave {height} rows for {count}, and each needs the event time of one of those; say which with "
                "ctx.emit(frame, rows=...): a mask as for a filter, or a number for each row"
            )
        return self._numbers(height, rows, where)

    def _numbers(self, height: int, rows: pl.Series, where: str) -> pl.Series:
        count = self._frame.height
        numbers = rows
        if rows.dtype == pl.Boolean and len(rows) == count:
            numbers = rows.arg_true()
        if not numbers.dtype.is_integer() or len(numbers) != height or numbers.null_count():
            raise UserCodeError(
                f"{where}: rows= has {len(rows)} values of {rows.dtype}, and the frame {height} rows of {count}; give a "
                "boolean for each row of the batch, or a row number for each of the frame"
            )
        numbers = numbers.cast(pl.Int64)
        if height and not 0 <= cast("int", numbers.min()) <= cast("int", numbers.max()) < count:
            raise UserCodeError(f"{where}: rows= names a row that is not in 0 to {count - 1}")
        return numbers

    @cached_property
    def timestamps(self) -> pl.Series:
        if EVENT_TIME not in self._frame.columns:
            return pl.repeat(None, self._frame.height, dtype=_TIME, eager=True).alias("timestamp")
        return self._frame[EVENT_TIME].cast(_TIME).rename("timestamp")

    @cached_property
    def watermarks(self) -> pl.Series:
        marks = pl.Series("watermark", self._reached())
        return marks.set(marks < FIRST_MOMENT_US, None).clip(upper_bound=_LAST_MOMENT_US).cast(_TIME)

    def _reached(self) -> NDArray[np.int64]:
        """The watermark at each row."""
        return self._marks

    @property
    def processing_time(self) -> datetime:
        return self._run.processing_time


class KeyedBatchRun(BatchRun):
    """The context of one call on a keyed stream: `KeyedBatchContext`."""

    def __init__(
        self,
        run: Run,
        frame: pl.DataFrame,
        marks: NDArray[np.int64],
        writers: dict[str | None, FrameWriter],
        batch: BatchKeys,
        reached: Callable[[], NDArray[np.int64]],
    ) -> None:
        super().__init__(run, frame, marks, writers)
        self._batch = batch
        self._reached = reached

    @property
    def keys(self) -> pl.Series:
        return self._batch.series

    def set_current_key(self, key: Any) -> None:
        self._run.key = self._batch.one(key)

    def event_timers(self, keys: pl.Series, at: pl.Series | datetime) -> None:
        self._each(self._run.timers.event_timers.set, keys, at)

    def processing_timers(self, keys: pl.Series, at: pl.Series | datetime) -> None:
        self._each(self._run.timers.processing_timers.set, keys, at)

    def delete_event_timers(self, keys: pl.Series, at: pl.Series | datetime) -> None:
        self._each(self._run.timers.event_timers.delete, keys, at)

    def delete_processing_timers(self, keys: pl.Series, at: pl.Series | datetime) -> None:
        self._each(self._run.timers.processing_timers.delete, keys, at)

    def _each(self, change: Callable[[Any, int], None], keys: pl.Series, at: pl.Series | datetime) -> None:
        of = self._batch.of(keys)
        times = repeat(timer_us(at), len(of)) if isinstance(at, datetime) else _micros(at)
        if isinstance(at, pl.Series) and len(at) != len(of):
            raise UserCodeError(f"timers: {len(at)} times were given for {len(of)} keys")
        for key, time in zip(of, times, strict=True):
            if time is not None:
                change(key, time)


def _micros(at: pl.Series) -> list[int | None]:
    """Times of timers.

    Raises:
        UserCodeError: they are no moments.
    """
    dtype = at.dtype if isinstance(at, pl.Series) else type(at).__name__  # pyright: ignore[reportUnnecessaryIsInstance]
    if not isinstance(dtype, pl.Datetime) or dtype.time_zone is None:
        raise UserCodeError(
            f"timers: times are a datetime or a series of Datetime with a time zone, got {dtype}; for example "
            "ctx.timestamps.dt.offset_by('1m')"
        )
    return at.dt.cast_time_unit("us").to_physical().to_list()


class BatchProcessBase(ProcessBase):
    """What both kinds share: calling the function with batches, and putting what comes of it in order."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._columns = [source.schema.names for source in node.inputs]
        self._frame_writers = [_frame_writers(node, f"{self._where}.{method}") for method in self._methods]
        """Of each input."""
        self._pending = Gathered()

    def _call(self, number: int, context: BatchRun, frame: pl.DataFrame) -> None:
        """Let the user's function take rows of an input."""
        try:
            method = getattr(self._process, self._methods[number])
            returned = method(frame.select(self._columns[number]), context)
            if returned is not None:
                context.emit(returned)
        except PenstockError:
            raise
        except Exception as error:  # whatever the user's function raises
            raise self._raised(number, frame, error) from error

    def _raised(self, number: int, frame: pl.DataFrame, error: Exception) -> UserCodeError:
        rows = self._readers[number].rows(frame.head(1))
        which = (
            f"row: {rows[0]!r}" if frame.height == 1 else f"on a batch of {frame.height} rows, the first: {rows[0]!r}"
        )
        return UserCodeError(f"{self._where}.{self._methods[number]} raised {described(error)}; {which}")

    def _results_of(
        self, context: BatchRun, frame: pl.DataFrame, marks: NDArray[np.int64]
    ) -> dict[str | None, Ordered]:
        """What a call gave, with the times of the rows it comes from; timers may come between, at even numbers."""
        found: dict[str | None, Ordered] = {}
        for tag, results in context.results.items():
            made, rows = results.together()
            if rows is None:
                numbers = np.zeros(made.height, np.int64)
            else:
                numbers = 2 * rows.to_numpy() + 1
                made = self._timed(made, rows, frame, marks) if self._event_time else made
            found[tag] = Ordered([made], [numbers])
        return found

    def _keep(self, results: dict[str | None, Ordered]) -> None:
        for tag, ordered in results.items():
            self._pending.add(tag, ordered.in_order())

    def _timed(
        self, made: pl.DataFrame, rows: pl.Series, frame: pl.DataFrame, marks: NDArray[np.int64]
    ) -> pl.DataFrame:
        made = made.with_columns(frame[EVENT_TIME].gather(rows))
        if not self._run.carries:
            return made
        at_rows = pl.Series(marks).gather(rows)
        return with_watermarks(made, at_rows, MIN_WATERMARK, MAX_WATERMARK, every_row=self._carries)

    def _flush(self, output: Output) -> None:
        super()._flush(self._pending)
        self._pending.hand_on(output)

    def _marks_of(self, frame: pl.DataFrame) -> NDArray[np.int64]:
        """The watermark at each row."""
        reached = self._run.mark
        if WATERMARK not in frame.columns:
            return np.full(frame.height, reached, np.int64)
        carried = carried_watermarks(frame, self._run).to_numpy()
        return np.maximum.accumulate(np.maximum(carried, reached))


def _frame_writers(node: Node, where: str) -> dict[str | None, FrameWriter]:
    """What checks the frames that a method gives: by side output, and with None those of the main one."""
    sides: dict[str | None, FrameWriter] = {
        tag: FrameWriter(schema, f"the side output {tag!r}", f"{where}, emit_to({tag!r}),")
        for tag, schema in node.sides.items()
    }
    return {**sides, None: FrameWriter(node.schema, node.row_type.__name__, where)}


class Gathered:
    """An `Output` that keeps frames until they are handed on together."""

    def __init__(self) -> None:
        self._frames: dict[str | None, list[pl.DataFrame]] = {}
        self.height = 0
        """How many rows there are."""

    def add(self, tag: str | None, frame: pl.DataFrame) -> None:
        """Keep rows of a side output, or with None of the main one."""
        if frame.height:
            self.height += frame.height
            self._frames.setdefault(tag, []).append(frame)

    def rows(self, frame: pl.DataFrame) -> None:
        self.add(None, frame)

    def side(self, tag: str, frame: pl.DataFrame) -> None:
        self.add(tag, frame)

    def watermark(self, watermark: int) -> None:
        raise AssertionError("watermarks are handed on as they come")

    def hand_on(self, output: Output) -> None:
        """Give all to `output`."""
        frames, self._frames, self.height = self._frames, {}, 0
        for tag, parts in frames.items():
            if tag is None:
                output.rows(joined(parts))
            else:
                output.side(tag, joined(parts))


class BatchProcessOperator(BatchProcessBase, ProcessOperator):
    """A `Process` with `on_batch`: rows without key, operator state."""

    def _processed(self, frame: pl.DataFrame, output: Output) -> Iterator[None]:
        yield from ()  # so it begins when what an earlier batch has left is done
        if frame.height == 0:
            return
        marks, run = self._marks_of(frame), self._run
        context = BatchRun(run, frame, marks, self._frame_writers[0])
        self._call(0, context, frame)
        self._keep(self._results_of(context, frame, marks))
        run.watermark_us = run.mark = int(marks[-1])
        self._flush_last(output)


class KeyedBatchProcessOperator(BatchProcessBase, KeyedProcessOperator):
    """A `KeyedProcess` or `KeyedCoProcess` of which an input comes by batches: keyed state and timers."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._has_timers = overrides(self._declared, "on_timer")

    def _processed(self, number: int, frame: pl.DataFrame, output: Output) -> Iterator[None]:
        if not is_per_batch(self._methods[number]):
            yield from super()._processed(number, frame, output)
        elif frame.height:
            yield from self._processed_batch(number, frame, output)

    def _processed_batch(self, number: int, frame: pl.DataFrame, output: Output) -> Iterator[None]:
        marks = self._marks_of(frame)
        keys = frame.select(self._keys_of[number].names)
        for start, end in self._calls(keys, marks):
            rows = slice(start, end)
            yield from self._called(number, frame[rows], keys[rows], marks[rows])
            if self._pending.height >= FLUSH_ROWS:
                self._flush(output)
        self._flush_last(output)
        self._backend.maintain(frame.height)

    def _calls(self, keys: pl.DataFrame, marks: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        if self._watermarks.uneven:  # key groups have times of their own: one moment after the other
            return by_watermark(marks)
        return calls(keys, marks) if self._has_timers else iter([(0, len(marks))])

    def _called(self, number: int, frame: pl.DataFrame, keys: pl.DataFrame, marks: NDArray[np.int64]) -> Iterator[None]:
        """Let the function take some rows; timers that are due before or between them fire where they belong."""
        run = self._run
        batch = BatchKeys(keys, self._keys_of[number], self._backend.learn)
        timers = CallTimers(run.mark, marks, lambda: batch.values)
        if timers.until > timers.before and (self._watermarks.uneven or self._are_due(timers.until)):
            yield from self._fire_some(timers, timers.comes_before)
        run.watermark_us = run.mark = timers.until
        results = self._take(number, batch, frame, keys, marks)
        if timers.until > int(marks[0]) and self._are_due(timers.until):
            yield from self._fire_some(timers, timers.comes_behind)
            run.watermark_us = run.mark = timers.until
        self._keep(self._with_fired(results, timers))

    def _take(
        self, number: int, batch: BatchKeys, frame: pl.DataFrame, keys: pl.DataFrame, marks: NDArray[np.int64]
    ) -> dict[str | None, Ordered]:
        run, writers = self._run, self._frame_writers[number]
        context = KeyedBatchRun(run, frame, marks, writers, batch, lambda: self._reached(keys, marks))
        run.key, run.batch = NO_KEY, batch
        try:
            self._call(number, context, frame)
        finally:
            run.key, run.batch = NO_KEY, None
        return self._results_of(context, frame, marks)

    def _reached(self, keys: pl.DataFrame, marks: NDArray[np.int64]) -> NDArray[np.int64]:
        """The watermark that the key group of each row has reached at its turn."""
        return np.maximum(self._watermarks.of_rows(keys, keys.columns), marks) if self._watermarks.uneven else marks

    def _are_due(self, until: int) -> bool:
        return self._backend.event_timers.earliest <= until

    def _fire_some(self, timers: CallTimers, since_of: Callable[[Any, int], int | None]) -> Iterator[None]:
        """Fire the due timers that have their turn now; the others stay."""
        run, stay = self._run, list[tuple[Any, int]]()
        run.carry()
        self._watermarks.advance(timers.until)
        for number, (key, at) in enumerate(self._due_event_timers(), 1):
            since = since_of(key, at)
            if since is None:
                stay.append((key, at))
                continue
            run.mark = timers.reached(key, at, since)
            self._fire(key, at)
            if number % FIRINGS_AT_ONCE == 0:
                yield
        run.time_domain = None
        for key, at in stay:
            self._backend.event_timers.set(key, at)

    def _with_fired(self, results: dict[str | None, Ordered], timers: CallTimers) -> dict[str | None, Ordered]:
        """The results of a call with those of the timers between them."""
        for tag, emitted in self._run.drain():
            writer = self._writer if tag is None else self._side_writers[tag]
            marks = np.asarray(emitted.marks, np.int64)
            order = np.argsort(marks, kind="stable")  # those before the call and those behind it are in order of time
            ordered = results.setdefault(tag, Ordered())
            ordered.frames.append(self._frame_of(emitted, writer)[order])
            ordered.numbers.append(2 * timers.places(marks[order]))
        return results
